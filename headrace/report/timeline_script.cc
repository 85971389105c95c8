#include "headrace/report/timeline_page.h"

namespace headrace {

const char* const kTimelineScript = R"PAGE('use strict';
const $ = id => document.getElementById(id);
const D = JSON.parse($('headrace-data').textContent);

// ---- data: columns of zigzag varints, see timeline_html.cc ----
function column(name) {
  const text = D.columns[name];
  if (text === undefined) return new Float64Array(0);
  const raw = atob(text.slice(2)), differences = text[0] === 'd';
  let n = 0;
  for (let i = 0; i < raw.length; i++) if (raw.charCodeAt(i) < 128) n++;
  const out = new Float64Array(n);
  let value = 0, scale = 1, last = 0;
  for (let i = 0, k = 0; i < raw.length; i++) {
    const b = raw.charCodeAt(i);
    value += (b & 127) * scale;
    scale *= 128;
    if (b >= 128) continue;
    const x = value % 2 ? -(value + 1) / 2 : value / 2;
    last = differences ? last + x : x;
    out[k++] = last;
    value = 0;
    scale = 1;
  }
  return out;
}
const E = {};
for (const c of ['kind', 'lane', 'subject', 'tier', 'codec', 'begin', 'length', 'stall', 'bytes',
                 'lead', 'blame', 'user', 'again']) E[c] = column('event_' + c);
const COUNT = E.kind.length;
E.end = E.begin.map((b, i) => b + E.length[i]);
const H = {};
for (const c of ['tier', 'tensor', 'op', 'class', 'begin', 'steps', 'bytes', 'offset', 'codec'])
  H[c] = column('held_' + c);
const tensorBytes = column('tensor_bytes'), tensorClass = column('tensor_class');
const opKernel = column('op_kernel');
function lists(count, list) {  // [first, one past the last] of each op in one long list
  const n = column(count), first = new Float64Array(n.length + 1);
  for (let i = 0; i < n.length; i++) first[i + 1] = first[i] + n[i];
  return {first, items: column(list)};
}
const READS = lists('op_reads', 'op_read'), WRITES = lists('op_writes', 'op_write'),
      UPDATES = lists('op_updates', 'op_update');
const COMPUTE = 0, LOAD = 1, STORE = 2, GATHER = 3, DETACH = 4, ENCODE = 5, DECODE = 6;
const CLASSES = D.classes.length;
const STACK = [0, 1, 4, 2, 3, 5, 6, 7];  // from the bottom: what stays longest first

// When the device side reads each instruction; one more for the end.
const issue = new Float64Array(COUNT + 1);
let LAST = D.total_ns;
{
  let now = 0;
  for (let i = 0; i < COUNT; i++) {
    issue[i] = now;
    if (E.kind[i] === COMPUTE || E.kind[i] >= ENCODE) now = Math.max(now, E.end[i]);
    if (E.lane[i] >= 0) LAST = Math.max(LAST, E.end[i]);
  }
  issue[COUNT] = Math.max(now, D.total_ns);
}
LAST = Math.max(LAST, 1);
const heldBegin = h => H.begin[h] < 0 ? 0 : issue[H.begin[h]];
const heldEnd = h => issue[H.begin[h] + H.steps[h]];

// Events of each lane by begin, and the stalls of compute.
const laneEvents = D.lanes.map(() => []), stalls = [];
for (let i = 0; i < COUNT; i++) {
  if (E.lane[i] >= 0) laneEvents[E.lane[i]].push(i);
  if (E.lane[i] === 0 && E.stall[i] > 0) stalls.push(i);
}
for (const l of laneEvents) l.sort((a, b) => E.begin[a] - E.begin[b] || a - b);

// The memory of a tier: points in time with the bytes of each class from then on. `tops` holds, for
// each run of 64 points, the one with the most bytes, so that a pixel never looks at all of them.
const RUN = 64;
function curve(times, values, width) {
  const n = times.length, totals = new Float64Array(n);
  for (let i = 0; i < n; i++) for (let c = 0; c < width; c++) totals[i] += values[i * width + c];
  const tops = new Int32Array(Math.ceil(n / RUN));
  for (let i = 0; i < n; i++) {
    const r = Math.floor(i / RUN);
    if (i % RUN === 0 || totals[i] > totals[tops[r]]) tops[r] = i;
  }
  return {times, values, totals, tops, width, n};
}
function tierCurves() {
  const tier = column('change_tier'), step = column('change_step'), cls = column('change_class'),
        bytes = column('change_bytes');
  const out = D.tiers.map(() => null);
  for (let i = 0; i < tier.length;) {
    const t = tier[i], times = [0], values = new Array(CLASSES).fill(0);
    const held = new Float64Array(CLASSES);
    let first = true;
    while (i < tier.length && tier[i] === t) {
      const s = step[i];
      while (i < tier.length && tier[i] === t && step[i] === s) held[cls[i]] += bytes[i++];
      if (first && s === 0) values.length = 0, times.length = 0;
      first = false;
      times.push(issue[s]);
      for (let c = 0; c < CLASSES; c++) values.push(held[c]);
    }
    out[t] = curve(Float64Array.from(times), Float64Array.from(values), CLASSES);
  }
  return out;
}
const TIERS = tierCurves();
// Bytes that each lane has loaded and that no op has used yet.
function earlyCurve(events) {
  const changes = [];
  for (const e of events) {
    if (E.lead[e] <= 0) continue;
    changes.push([E.end[e], E.bytes[e]], [E.end[e] + E.lead[e], -E.bytes[e]]);
  }
  if (!changes.length) return null;
  changes.sort((a, b) => a[0] - b[0]);
  const times = [0], values = [0];
  for (const [at, bytes] of changes) {
    times.push(at);
    values.push(values[values.length - 1] + bytes);
  }
  return curve(Float64Array.from(times), Float64Array.from(values), 1);
}
const EARLY = laneEvents.map((l, i) => i === 0 ? null : earlyCurve(l));

// ---- words ----
function bytesText(b) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let u = 0;
  while (Math.abs(b) >= 1024 && u < 4) b /= 1024, u++;
  return (u === 0 ? b.toFixed(0) : b.toFixed(Math.abs(b) < 9.995 ? 2 : Math.abs(b) < 99.95 ? 1 : 0)) +
         ' ' + units[u];
}
function timeText(ns, digits) {
  const a = Math.abs(ns), f = (x, unit) => x.toFixed(digits ?? (Math.abs(x) < 9.995 ? 2 :
      Math.abs(x) < 99.95 ? 1 : 0)) + ' ' + unit;
  return a < 1e3 ? ns.toFixed(0) + ' ns' : a < 1e6 ? f(ns / 1e3, 'us') :
         a < 1e9 ? f(ns / 1e6, 'ms') : f(ns / 1e9, 's');
}
// A point in time: to the microsecond, however late.
const atText = ns => ns >= 1e9 ? (ns / 1e9).toFixed(6) + ' s' : timeText(ns, 3);
const subject = i => E.kind[i] === COMPUTE ? D.ops[E.subject[i]] : D.tensors[E.subject[i]];
function eventText(i) {
  if (E.kind[i] === COMPUTE) return subject(i) + (E.again[i] ? ' (again)' : '');
  const tier = E.tier[i] >= 0 ? (E.kind[i] === STORE ? ' to ' : ' from ') + D.tiers[E.tier[i]].name : '';
  return D.kinds[E.kind[i]] + ' ' + subject(i) + tier;
}
const heldName = h => H.tensor[h] >= 0 ? D.tensors[H.tensor[h]] :
    'workspace of ' + D.ops[H.op[h]];

// ---- state and layout ----
const S = {a: 0, b: LAST, cursor: null, selected: -1, hover: -1, held: -1, map: false, lane: 0,
           found: null, mark: null};
const GUTTER = 164;
const canvas = $('canvas'), g = canvas.getContext('2d');
let W = 0, HEIGHT = 0, rows = [], colors = {};
function readColors() {
  const style = getComputedStyle(document.documentElement), get = n => style.getPropertyValue(n).trim();
  for (const n of ['bg', 'panel', 'ink', 'soft', 'line', 'compute', 'again', 'codec', 'stall',
                   'early', 'accent', 'mark', 'gap']) colors[n] = get('--' + n);
  colors.classes = D.classes.map((_, c) => get('--c' + c));
}
function layout() {
  W = Math.max(320, canvas.parentElement.clientWidth);
  const fixed = [];
  fixed.push({kind: 'overview', h: 46}, {kind: 'axis', h: 22}, {kind: 'memory', tier: 0, h: 0});
  for (let t = 1; t < D.tiers.length; t++)
    if (TIERS[t] && D.tiers[t].peak > 0) fixed.push({kind: 'memory', tier: t, h: 62});
  fixed.push({kind: 'stalls', h: 18}, {kind: 'lane', lane: 0, h: 30});
  for (let l = 1; l < D.lanes.length; l++) {
    fixed.push({kind: 'lane', lane: l, h: 26});
    if (EARLY[l]) fixed.push({kind: 'early', lane: l, h: 22});
  }
  const rest = fixed.reduce((sum, r) => sum + r.h, 0);
  const room = window.innerHeight - canvas.parentElement.getBoundingClientRect().top - window.scrollY - 270;
  fixed[2].h = Math.max(130, Math.min(420, room - rest - 4));
  rows = fixed;
  let y = 0;
  for (const r of rows) r.y = y, y += r.h;
  HEIGHT = y + 4;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = HEIGHT + 'px';
  canvas.width = Math.round(W * ratio);
  canvas.height = Math.round(HEIGHT * ratio);
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
}
const plotWidth = () => W - GUTTER - 8;
const xOf = t => GUTTER + (t - S.a) / (S.b - S.a) * plotWidth();
const tOf = x => S.a + (x - GUTTER) / plotWidth() * (S.b - S.a);
function setView(a, b) {
  const least = Math.min(LAST, 20), span = Math.min(LAST, Math.max(least, b - a));
  const middle = (a + b) / 2;
  S.a = Math.max(0, Math.min(LAST - span, middle - span / 2));
  S.b = S.a + span;
  redraw();
}
// The last index with list[i] <= x by `key`; -1: none.
function lastBefore(n, x, key) {
  let low = 0, high = n;
  while (low < high) {
    const m = (low + high) >> 1;
    if (key(m) <= x) low = m + 1; else high = m;
  }
  return low - 1;
}

// ---- drawing ----
function topOf(c, from, to) {  // the point of [from, to] with the most bytes
  let best = from;
  for (let i = from; i <= to;) {
    if (i % RUN === 0 && i + RUN - 1 <= to) {
      const top = c.tops[i / RUN];
      if (c.totals[top] > c.totals[best]) best = top;
      i += RUN;
    } else {
      if (c.totals[i] > c.totals[best]) best = i;
      i++;
    }
  }
  return best;
}
// For each pixel of [a, b) the point to show.
function pixels(c, a, b, width) {
  const out = new Int32Array(width);
  let at = Math.max(0, lastBefore(c.n, a, i => c.times[i]));
  for (let x = 0; x < width; x++) {
    const until = a + (x + 1) / width * (b - a);
    let to = at;
    if (to + 1 < c.n && c.times[to + 1] < until)
      to += 1 + lastBefore(c.n - to - 1, until, i => c.times[to + 1 + i]);
    out[x] = topOf(c, at, to);
    at = to;
  }
  return out;
}
function stack(c, points, left, y, h, scale) {
  const n = points.length, base = new Float64Array(n);
  for (const k of c.width === 1 ? [0] : STACK) {
    let any = false;
    for (let x = 0; x < n && !any; x++) any = c.values[points[x] * c.width + k] > 0;
    if (!any) continue;
    g.beginPath();
    g.moveTo(left, y + h - base[0] * scale);
    const top = new Float64Array(n);
    for (let x = 0; x < n; x++) {
      top[x] = base[x] + c.values[points[x] * c.width + k];
      const at = y + h - top[x] * scale;
      g.lineTo(left + x, at);
      g.lineTo(left + x + 1, at);
    }
    for (let x = n - 1; x >= 0; x--) {
      const at = y + h - base[x] * scale;
      g.lineTo(left + x + 1, at);
      g.lineTo(left + x, at);
    }
    g.closePath();
    g.fillStyle = c.width === 1 ? colors.early : colors.classes[k];
    g.fill();
    g.beginPath();
    for (let x = 0; x < n; x++) {
      const at = y + h - top[x] * scale;
      g.lineTo(left + x, at);
      g.lineTo(left + x + 1, at);
    }
    g.strokeStyle = colors.gap;
    g.lineWidth = .6;
    g.stroke();
    base.set(top);
  }
}
function label(text, x, y, options = {}) {
  g.font = (options.bold ? '600 ' : '') + (options.size || 12) + 'px system-ui, sans-serif';
  g.fillStyle = options.color || colors.ink;
  g.textAlign = options.align || 'left';
  g.textBaseline = 'middle';
  if (options.width && g.measureText(text).width > options.width) {
    let low = 0, high = text.length;
    while (low < high) {
      const m = (low + high + 1) >> 1;
      if (g.measureText(text.slice(0, m) + '\u2026').width <= options.width) low = m; else high = m - 1;
    }
    text = text.slice(0, low) + '\u2026';
  }
  g.fillText(text, x, y);
}
function ticks() {
  const most = Math.max(2, Math.floor(plotWidth() / 110)), raw = (S.b - S.a) / most;
  const power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = Math.max(1, [1, 2, 5, 10].map(k => k * power).find(s => s >= raw));
  const out = [];
  for (let t = Math.ceil(S.a / step) * step; t <= S.b; t += step) out.push(t);
  return {list: out, step};
}
function drawAxis(r) {
  const {list, step} = ticks();
  const unit = S.b >= 1e9 && step >= 1e6 ? [1e9, 's'] : S.b >= 1e6 && step >= 1e3 ? [1e6, 'ms'] :
               S.b >= 1e3 && step >= 1 ? [1e3, 'us'] : [1, 'ns'];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit[0]) - 1e-9));
  for (const t of list) {
    const x = xOf(t);
    g.strokeStyle = colors.line;
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(Math.round(x) + .5, r.y + 15);
    g.lineTo(Math.round(x) + .5, HEIGHT);
    g.stroke();
    if (x < W - 30)
      label((t / unit[0]).toFixed(digits) + ' ' + unit[1], x + 3, r.y + 9, {color: colors.soft, size: 11});
  }
  label('time; % is busy', 10, r.y + 9, {color: colors.soft, size: 11});
}
function drawOverview(r) {
  const width = Math.floor(plotWidth()), c = TIERS[0];
  const h = r.h - 14, y = r.y + 3, tier = D.tiers[0];
  if (c) stack(c, pixels(c, 0, LAST, width), GUTTER, y, h, h / Math.max(tier.peak, 1));
  g.fillStyle = colors.stall;
  let until = -1;
  for (const s of stalls) {
    const x0 = Math.floor((E.begin[s] - E.stall[s]) / LAST * width), x1 = E.begin[s] / LAST * width;
    if (x1 <= until && x0 < until) continue;
    g.fillRect(GUTTER + x0, y + h + 2, Math.max(1, x1 - x0), 4);
    until = x0 + 1;
  }
  const x0 = GUTTER + S.a / LAST * width, x1 = GUTTER + S.b / LAST * width;
  g.fillStyle = colors.bg;
  g.globalAlpha = .65;
  g.fillRect(GUTTER, y, x0 - GUTTER, r.h - 6);
  g.fillRect(x1, y, GUTTER + width - x1, r.h - 6);
  g.globalAlpha = 1;
  g.strokeStyle = colors.accent;
  g.lineWidth = 1.5;
  g.strokeRect(x0, y - .5, Math.max(3, x1 - x0), r.h - 5);
  label('whole step', 10, r.y + 14, {bold: true});
  label(timeText(D.total_ns), 10, r.y + 30, {color: colors.soft, size: 11});
}
const rowScale = r => {
  const t = D.tiers[r.tier];
  const most = t.capacity > 0 && t.capacity < 4 * t.peak ? Math.max(t.capacity, t.peak) : t.peak;
  return {most: most * 1.04 || 1, limit: most >= t.capacity && t.capacity > 0};
};
function drawMap(r) {
  const {most} = rowScale(r), h = r.h - 8, y = r.y + 4;
  for (let i = 0; i < H.tier.length; i++) {
    if (H.tier[i] !== r.tier) continue;
    const begin = heldBegin(i), end = heldEnd(i);
    if (end < S.a || begin > S.b) continue;
    const x0 = Math.max(GUTTER, xOf(begin)), x1 = Math.min(W - 8, xOf(end));
    const y1 = y + h - H.offset[i] / most * h, y0 = y1 - H.bytes[i] / most * h;
    if (x1 - x0 < .3 && y1 - y0 < .3) continue;  // nothing would be seen of it
    g.fillStyle = colors.classes[H.class[i]];
    g.fillRect(x0, y0, Math.max(.5, x1 - x0), Math.max(.5, y1 - y0));
    if (x1 - x0 > 2 && y1 - y0 > 2) {
      g.strokeStyle = i === S.held ? colors.ink : colors.gap;
      g.lineWidth = i === S.held ? 2 : .7;
      g.strokeRect(x0, y0, x1 - x0, y1 - y0);
    }
  }
}
function drawMemory(r) {
  const tier = D.tiers[r.tier], c = TIERS[r.tier], {most, limit} = rowScale(r);
  const h = r.h - 8, y = r.y + 4, width = Math.floor(plotWidth()), scale = h / most;
  if (r.tier === 0 && S.map) drawMap(r);
  else if (c) stack(c, pixels(c, S.a, S.b, width), GUTTER, y, h, scale);
  if (limit) {
    const at = Math.round(y + h - tier.capacity * scale) + .5;
    g.strokeStyle = colors.ink;
    g.setLineDash([5, 4]);
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(GUTTER, at);
    g.lineTo(GUTTER + width, at);
    g.stroke();
    g.setLineDash([]);
  }
  label(tier.name, 10, r.y + 14, {bold: true, width: GUTTER - 20});
  label('peak ' + bytesText(tier.peak), 10, r.y + 31, {color: colors.soft, size: 11});
  if (tier.capacity > 0)
    label((limit ? '- - ' : 'of ') + bytesText(tier.capacity), 10, r.y + 46, {color: colors.soft, size: 11});
  if (r.tier === 0 && S.map) label('by address', 10, r.y + 61, {color: colors.soft, size: 11});
}
function eventColor(i) {
  if (E.kind[i] === COMPUTE) return E.again[i] ? colors.again : colors.compute;
  if (E.kind[i] >= ENCODE) return colors.codec;
  return colors.classes[tensorClass[E.subject[i]]];
}
// Boxes that are at least a pixel and a half wide are drawn; of smaller ones a pixel shows how much
// of it they fill, divided among their colours.
function boxes(list, y, h, from, to, color, text) {
  const shares = new Map();
  let pixel = -1;
  const flush = () => {
    if (pixel < 0 || !shares.size) return;
    let sum = 0, at = y;
    for (const v of shares.values()) sum += v;
    g.globalAlpha = Math.min(1, .25 + .75 * sum);
    for (const [k, v] of shares) {
      g.fillStyle = k;
      g.fillRect(pixel, at, 1, h * v / sum);
      at += h * v / sum;
    }
    g.globalAlpha = 1;
    shares.clear();
  };
  let i = Math.max(0, lastBefore(list.length, S.a, k => from(list[k])));
  for (; i < list.length; i++) {
    const e = list[i], begin = from(e);
    if (begin > S.b) break;
    if (to(e) < S.a) continue;
    const x0 = Math.max(GUTTER, xOf(begin)), x1 = Math.min(W - 8, xOf(to(e)));
    if (x1 - x0 < 1.5) {
      const p = Math.floor(x0);
      if (p !== pixel) flush(), pixel = p;
      const k = color(e);
      shares.set(k, (shares.get(k) || 0) + Math.max(x1 - x0, .02));
      continue;
    }
    g.fillStyle = color(e);
    g.fillRect(x0, y, x1 - x0, h);
    if (x1 - x0 > 4) {
      g.fillStyle = colors.gap;
      g.fillRect(x1 - .7, y, .7, h);
    }
    if (text && x1 - x0 > 34)
      label(text(e), x0 + 4, y + h / 2 + .5, {size: 11, width: x1 - x0 - 8, color: inkOn(color(e))});
  }
  flush();
}
const inks = new Map();
function inkOn(color) {  // black or white, whichever is the further from `color`
  if (!inks.has(color)) {
    const n = parseInt(color.slice(1), 16), part = s => {
      const v = (n >> s & 255) / 255;
      return v <= .03928 ? v / 12.92 : Math.pow((v + .055) / 1.055, 2.4);
    };
    const light = .2126 * part(16) + .7152 * part(8) + .0722 * part(0);
    inks.set(color, light > .19 ? '#000000' : '#ffffff');
  }
  return inks.get(color);
}
const share = (a, b) => b > 0 ? (100 * a / b).toFixed(a / b < .0995 ? 1 : 0) + ' %' : '-';
function drawLane(r) {
  const lane = D.lanes[r.lane], y = r.y + 3, h = r.h - 6;
  boxes(laneEvents[r.lane], y, h, i => E.begin[i], i => E.end[i], eventColor, i => subject(i));
  label(lane.name, 10, r.y + r.h / 2, {bold: true, width: GUTTER - 52});
  label(share(lane.busy_ns, D.total_ns), GUTTER - 8, r.y + r.h / 2,
        {color: colors.soft, size: 10.5, align: 'right'});
}
function drawStalls(r) {
  boxes(stalls, r.y + 3, r.h - 5, i => E.begin[i] - E.stall[i], i => E.begin[i], () => colors.stall,
        i => timeText(E.stall[i]));
  label('stalls', 10, r.y + r.h / 2 + 1, {bold: true, color: colors.stall});
  label(stalls.length ? share(D.stall_ns, D.total_ns) : 'none', GUTTER - 8, r.y + r.h / 2 + 1,
        {color: colors.soft, size: 10.5, align: 'right'});
}
function drawEarly(r) {
  const c = EARLY[r.lane], h = r.h - 5;
  let most = 1;
  for (const top of c.tops) most = Math.max(most, c.totals[top]);
  stack(c, pixels(c, S.a, S.b, Math.floor(plotWidth())), GUTTER, r.y + 1, h, h / most);
  label('loaded early', 22, r.y + r.h / 2, {color: colors.soft, size: 11});
  label(bytesText(most), GUTTER - 8, r.y + r.h / 2, {color: colors.soft, size: 10.5, align: 'right'});
}
function outline(i, color) {
  const r = rows.find(x => x.kind === 'lane' && x.lane === E.lane[i]);
  if (!r) return;
  const x0 = Math.max(GUTTER, xOf(E.begin[i])), x1 = Math.min(W - 8, xOf(E.end[i]));
  if (x1 < GUTTER || x0 > W - 8) return;
  g.strokeStyle = color;
  g.lineWidth = 2;
  g.strokeRect(x0 - 1, r.y + 2, Math.max(3, x1 - x0 + 2), r.h - 4);
  return {x0, x1, y: r.y + r.h / 2};
}
// Who waits for whom: from the end of a transfer to the begin of its user.
function tie(from, to, color) {
  const a = outline(from, color), b = outline(to, color);
  if (!a || !b) return;
  g.strokeStyle = color;
  g.lineWidth = 1.5;
  g.beginPath();
  g.moveTo(a.x1, a.y);
  const middle = (a.x1 + b.x0) / 2;
  g.bezierCurveTo(middle, a.y, middle, b.y, b.x0, b.y);
  g.stroke();
}
function drawFound() {
  if (!S.found) return;
  g.fillStyle = colors.accent;
  let last = -9;
  const r = rows[1];
  for (const i of S.found) {
    const x = xOf(E.begin[i]);
    if (x < GUTTER || x > W - 8 || x - last < 1) continue;
    g.fillRect(x - 1, r.y + 15, 2, 7);
    last = x;
  }
}
function clearGutter() {
  g.fillStyle = colors.panel;
  g.fillRect(0, 0, GUTTER - 1, HEIGHT);
  g.fillStyle = colors.line;
  g.fillRect(GUTTER - 1, 0, 1, HEIGHT);
  for (const r of rows) if (r.y > 0) g.fillRect(0, r.y, W, .5);
}
function draw() {
  g.fillStyle = colors.bg;
  g.fillRect(0, 0, W, HEIGHT);
  clearGutter();
  drawAxis(rows[1]);
  for (const r of rows) {
    if (r.kind === 'overview') drawOverview(r);
    if (r.kind === 'memory') drawMemory(r);
    if (r.kind === 'lane') drawLane(r);
    if (r.kind === 'stalls') drawStalls(r);
    if (r.kind === 'early') drawEarly(r);
  }
  drawFound();
  if (D.total_ns < S.b) {
    g.fillStyle = colors.soft;
    g.fillRect(xOf(D.total_ns), rows[1].y + 15, 1, HEIGHT);
  }
  if (S.hover >= 0) outline(S.hover, colors.soft);
  if (S.selected >= 0) {
    const s = S.selected;
    outline(s, colors.ink);
    if (E.blame[s] >= 0) tie(E.blame[s], s, colors.stall);
    if (E.user[s] >= 0) tie(s, E.user[s], colors.ink);
  }
  if (S.cursor !== null && S.cursor >= S.a && S.cursor <= S.b) {
    g.fillStyle = colors.ink;
    g.globalAlpha = .6;
    g.fillRect(xOf(S.cursor), rows[1].y + 15, 1, HEIGHT);
    g.globalAlpha = 1;
  }
}
let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}
)PAGE";

}  // namespace headrace
