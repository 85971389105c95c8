#include "headrace/report/timeline_page.h"

namespace headrace {

const char* const kTimelineControls = R"PAGE(
// ---- panels; names are data and are only ever set as text ----
function element(tag, text, parent) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (parent) parent.append(e);
  return e;
}
function facts(parent, list) {
  const dl = element('dl', undefined, parent);
  for (const [name, value, action] of list) {
    if (value === '' || value === undefined) continue;
    element('dt', name, dl);
    const dd = element('dd', undefined, dl);
    if (action) {
      const b = element('button', value, dd);
      b.onclick = action;
    } else {
      dd.textContent = value;
    }
  }
}
const LISTED = 12;
function operands(table, op) {
  const out = [];
  for (let i = table.first[op]; i < table.first[op + 1]; i++)
    if (table.items[i] >= 0) out.push(table.items[i]);
  out.sort((a, b) => tensorBytes[b] - tensorBytes[a]);
  return out;
}
function tensorLine(t) {
  return D.tensors[t] + ', ' + bytesText(tensorBytes[t]) + ', ' + D.classes[tensorClass[t]];
}
function operandFacts(name, table, op) {
  const list = operands(table, op), out = [];
  list.slice(0, LISTED).forEach((t, i) =>
      out.push([i ? '' : name, tensorLine(t), () => selectTensor(t)]));
  if (list.length > LISTED) out.push(['', 'and ' + (list.length - LISTED) + ' smaller ones']);
  return out;
}
function showEvent(i) {
  const box = $('sel');
  box.replaceChildren();
  $('sel-title').textContent = eventText(i);
  const list = [['time', atText(E.begin[i]) + ' to ' + atText(E.end[i]) + ', ' +
                         timeText(E.length[i]) + ' long'],
                ['instruction', String(i)]];
  if (E.kind[i] === COMPUTE) list.unshift(['kernel', D.kernels[opKernel[E.subject[i]]]]);
  if (E.stall[i] > 0) list.push(['stood still', timeText(E.stall[i]) + ' before it']);
  if (E.blame[i] >= 0)
    list.push(['waiting for', eventText(E.blame[i]), () => select(E.blame[i], true)]);
  if (E.again[i]) list.push(['again', 'ran before in this step: brings back what was given up']);
  if (E.kind[i] >= LOAD && E.kind[i] <= GATHER) {
    list.push(['moved', bytesText(E.bytes[i]) + (E.length[i] > 0 ?
        ', ' + bytesText(E.bytes[i] / E.length[i] * 1e9) + '/s' : '') +
        (E.codec[i] > 0 ? ', as ' + D.codecs[E.codec[i]] : '')]);
    list.push(['tensor', tensorLine(E.subject[i]), () => selectTensor(E.subject[i])]);
    if (E.user[i] >= 0) {
      list.push(['back early by', timeText(E.lead[i])]);
      list.push(['used by', eventText(E.user[i]), () => select(E.user[i], true)]);
    }
  }
  if (E.kind[i] === COMPUTE) {
    const op = E.subject[i];
    list.push(...operandFacts('reads', READS, op), ...operandFacts('writes', WRITES, op),
              ...operandFacts('updates', UPDATES, op));
  }
  facts(box, list.map(x => x[0] === '' ? ['\u00a0', x[1], x[2]] : x));
  $('say').textContent = eventText(i) + ', at ' + timeText(E.begin[i]) + ', ' + timeText(E.length[i]) +
      (E.stall[i] > 0 ? ', after a stall of ' + timeText(E.stall[i]) : '');
}
function selectTensor(t) {
  S.selected = -1;
  const box = $('sel');
  box.replaceChildren();
  $('sel-title').textContent = D.tensors[t];
  const list = [['bytes', bytesText(tensorBytes[t])], ['class', D.classes[tensorClass[t]]]];
  let n = 0;
  for (let h = 0; h < H.tier.length; h++) {
    if (H.tensor[h] !== t || ++n > 4 * LISTED) continue;
    list.push([n > 1 ? '\u00a0' : 'lives', D.tiers[H.tier[h]].name + ', ' + bytesText(H.bytes[h]) + ', ' +
        timeText(heldBegin(h)) + ' to ' + timeText(heldEnd(h)), () => zoomTo(heldBegin(h), heldEnd(h))]);
  }
  n = 0;
  for (let i = 0; i < COUNT; i++) {
    if (E.kind[i] === COMPUTE || E.kind[i] === DETACH || E.subject[i] !== t || ++n > LISTED) continue;
    list.push([n > 1 ? '\u00a0' : 'moves', D.kinds[E.kind[i]] + ' at ' + timeText(E.begin[i]),
               () => select(i, true)]);
  }
  facts(box, list);
  redraw();
}
function select(i, reveal) {
  S.selected = i;
  S.lane = E.lane[i];
  const begin = E.begin[i] - (E.lane[i] === 0 ? E.stall[i] : 0);
  if (reveal && (E.end[i] > S.b || begin < S.a)) {
    const span = Math.max(S.b - S.a, 2 * (E.end[i] - begin)), middle = (begin + E.end[i]) / 2;
    setView(middle - span / 2, middle + span / 2);
  }
  S.cursor = Math.min(E.begin[i], LAST);
  showEvent(i);
  showCursor();
  redraw();
}
function zoomTo(a, b) {
  const margin = Math.max((b - a) * .15, 10);
  setView(a - margin, b + margin);
}
function buildLegend() {
  const used = new Set(H.class), list = $('legend');
  for (const c of STACK) {
    if (!used.has(c)) continue;
    const li = element('li', undefined, list);
    element('i', undefined, li).style.background = 'var(--c' + c + ')';
    element('b', D.classes[c], li);
    element('span', '', li).id = 'held-' + c;
  }
  for (const [name, color, there] of [
      ['compute', '--compute', true], ['compute again', '--again', E.again.includes(1)],
      ['encode, decode', '--codec', E.kind.some(k => k >= ENCODE)],
      ['standing still', '--stall', stalls.length > 0]]) {
    if (!there) continue;
    const li = element('li', undefined, list);
    element('i', undefined, li).style.background = 'var(' + color + ')';
    element('span', name, li);
  }
}
// The bytes at the cursor: by class in the legend, the largest holders in the panel.
function showCursor() {
  const t = S.cursor, c = TIERS[0];
  if (t === null) return;
  $('cur-title').textContent = 'On the device at ' + atText(t);
  if (c) {
    const p = Math.max(0, lastBefore(c.n, t, i => c.times[i]));
    for (let k = 0; k < CLASSES; k++) {
      const cell = $('held-' + k);
      if (cell) cell.textContent = bytesText(c.values[p * CLASSES + k]);
    }
    $('cur-title').textContent += ': ' + bytesText(c.totals[p]);
  }
  const top = [];
  let count = 0;
  for (let h = 0; h < H.tier.length; h++) {
    if (H.tier[h] !== 0 || heldBegin(h) > t || heldEnd(h) <= t) continue;
    count++;
    if (top.length === LISTED && H.bytes[h] <= H.bytes[top[LISTED - 1]]) continue;
    top.push(h);
    top.sort((a, b) => H.bytes[b] - H.bytes[a]);
    if (top.length > LISTED) top.pop();
  }
  const box = $('cur');
  box.replaceChildren();
  const table = element('table', undefined, box);
  for (const h of top) {
    const tr = element('tr', undefined, table), th = element('th', undefined, tr);
    th.scope = 'row';
    if (H.tensor[h] >= 0) element('button', heldName(h), th).onclick = () => selectTensor(H.tensor[h]);
    else th.textContent = heldName(h);
    element('td', D.classes[H.class[h]], tr);
    element('td', bytesText(H.bytes[h]), tr);
    element('td', 'since ' + timeText(heldBegin(h)), tr);
  }
  if (count > top.length) element('p', 'and ' + (count - top.length) + ' smaller ones', box);
}
let cursorWaits = false;
function showCursorSoon() {
  if (cursorWaits) return;
  cursorWaits = true;
  requestAnimationFrame(() => { cursorWaits = false; showCursor(); });
}

// ---- mouse ----
const rowAt = y => rows.find(r => y >= r.y && y < r.y + r.h);
function eventAt(x, y) {
  const r = rowAt(y);
  if (!r || x < GUTTER || (r.kind !== 'lane' && r.kind !== 'stalls')) return -1;
  const list = r.kind === 'stalls' ? stalls : laneEvents[r.lane];
  const from = i => r.kind === 'stalls' ? E.begin[i] - E.stall[i] : E.begin[i];
  const to = i => r.kind === 'stalls' ? E.begin[i] : E.end[i];
  const reach = 2 * (S.b - S.a) / plotWidth(), t = tOf(x);
  let best = -1;
  for (let k = lastBefore(list.length, t + reach, j => from(list[j])), n = 0; k >= 0 && n < 4000; k--, n++) {
    const i = list[k];
    if (to(i) < t - reach) break;
    if (from(i) <= t && t < to(i)) return i;
    if (best < 0 || to(i) - from(i) > to(best) - from(best)) best = i;
  }
  return best;
}
function holdingAt(x, y) {
  const r = rowAt(y);
  if (!S.map || !r || r.kind !== 'memory' || r.tier !== 0 || x < GUTTER) return -1;
  const t = tOf(x), at = (r.y + r.h - 4 - y) / (r.h - 8) * rowScale(r).most;
  for (let h = 0; h < H.tier.length; h++)
    if (H.tier[h] === 0 && H.offset[h] <= at && at < H.offset[h] + H.bytes[h] &&
        heldBegin(h) <= t && t < heldEnd(h)) return h;
  return -1;
}
let drag = null;
const place = e => {
  const box = canvas.getBoundingClientRect();
  return [e.clientX - box.left, e.clientY - box.top];
};
function overviewTo(x) {
  const t = (x - GUTTER) / plotWidth() * LAST, half = (S.b - S.a) / 2;
  setView(t - half, t + half);
}
canvas.addEventListener('pointerdown', e => {
  const [x, y] = place(e);
  canvas.setPointerCapture(e.pointerId);
  drag = {x, a: S.a, b: S.b, moved: false, overview: rowAt(y)?.kind === 'overview'};
  if (drag.overview) overviewTo(x);
});
canvas.addEventListener('pointermove', e => {
  const [x, y] = place(e);
  if (drag) {
    drag.moved ||= Math.abs(x - drag.x) > 3;
    if (drag.overview) return overviewTo(x);
    const shift = (drag.x - x) / plotWidth() * (drag.b - drag.a);
    if (drag.moved) setView(drag.a + shift, drag.b + shift);
    return;
  }
  S.hover = eventAt(x, y);
  S.held = holdingAt(x, y);
  canvas.title = S.hover >= 0 ? eventText(S.hover) + ', ' + timeText(E.length[S.hover]) +
      (E.stall[S.hover] > 0 ? ', after a stall of ' + timeText(E.stall[S.hover]) : '') :
      S.held >= 0 ? heldName(S.held) + ', ' + bytesText(H.bytes[S.held]) : '';
  if (x >= GUTTER && !S.pinned) S.cursor = Math.max(0, Math.min(LAST, tOf(x)));
  showCursorSoon();
  redraw();
});
canvas.addEventListener('pointerup', e => {
  const [x, y] = place(e), was = drag;
  drag = null;
  if (!was || was.moved || was.overview) return;
  const i = eventAt(x, y), h = holdingAt(x, y);
  if (i >= 0) select(i, false);
  else if (h >= 0 && H.tensor[h] >= 0) selectTensor(H.tensor[h]);
});
canvas.addEventListener('pointerleave', () => { S.hover = -1; redraw(); });
function zoom(factor, around) {
  const t = around ?? (S.cursor !== null && S.cursor >= S.a && S.cursor <= S.b ? S.cursor : (S.a + S.b) / 2);
  const least = Math.min(LAST, 20), span = Math.max(least, Math.min(LAST, (S.b - S.a) * factor));
  const part = (t - S.a) / (S.b - S.a), a = t - part * span;
  setView(a, a + span);
}
canvas.addEventListener('wheel', e => {
  e.preventDefault();
  const [x] = place(e), span = S.b - S.a;
  if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
    const shift = (e.deltaX || e.deltaY) / plotWidth() * span;
    setView(S.a + shift, S.b + shift);
  } else {
    zoom(Math.exp(e.deltaY * .0015), tOf(Math.max(GUTTER, x)));
  }
}, {passive: false});
canvas.addEventListener('dblclick', e => zoom(.4, tOf(place(e)[0])));

// ---- keys, search, buttons ----
function pan(part) {
  const shift = part * (S.b - S.a);
  setView(S.a + shift, S.b + shift);
}
function nextStall(direction) {
  if (!stalls.length) return void ($('say').textContent = 'no stalls');
  const now = S.selected >= 0 ? S.selected : S.cursor === null ? -1 : lastBefore(COUNT, S.cursor, i => issue[i]);
  let k = lastBefore(stalls.length, now, i => stalls[i]);
  k = direction > 0 ? k + 1 : stalls[k] === now ? k - 1 : k;
  const i = stalls[(k + stalls.length) % stalls.length];
  // Wide enough to see the stall and who it waits for.
  const from = E.blame[i] >= 0 && E.blame[i] < i ? Math.min(E.begin[E.blame[i]], E.begin[i] - E.stall[i])
                                                 : E.begin[i] - E.stall[i];
  if (E.stall[i] < (S.b - S.a) / 100 || E.begin[i] > S.b || from < S.a) zoomTo(from, E.end[i]);
  select(i, true);
}
function step(direction) {
  const list = laneEvents[S.lane];
  if (!list.length) return;
  const t = S.selected >= 0 ? E.begin[S.selected] : S.cursor ?? S.a;
  let k = S.selected >= 0 && E.lane[S.selected] === S.lane ? list.indexOf(S.selected) + direction :
      lastBefore(list.length, t, i => E.begin[list[i]]) + (direction > 0 ? 1 : 0);
  k = Math.max(0, Math.min(list.length - 1, k));
  select(list[k], true);
}
function changeLane(direction) {
  const lane = Math.max(0, Math.min(D.lanes.length - 1, S.lane + direction));
  const list = laneEvents[lane], t = S.selected >= 0 ? E.begin[S.selected] : S.cursor ?? S.a;
  S.lane = lane;
  const k = Math.max(0, lastBefore(list.length, t, i => E.begin[list[i]]));
  if (list.length) select(list[k], true);
}
function goToPeak() {
  const t = issue[D.tiers[0].peak_step], span = S.b - S.a < LAST ? S.b - S.a : LAST / 20;
  S.cursor = t;
  setView(t - span / 2, t + span / 2);
  showCursor();
  $('say').textContent = 'peak of ' + bytesText(D.tiers[0].peak) + ' at ' + timeText(t);
}
let foundAt = -1;
function search() {
  const text = $('find').value.trim().toLowerCase();
  foundAt = -1;
  if (!text) {
    S.found = null;
    $('found').textContent = '';
    return redraw();
  }
  const hit = list => list.map(n => n.toLowerCase().includes(text));
  const ops = hit(D.ops), tensors = hit(D.tensors);
  S.found = [];
  for (let i = 0; i < COUNT; i++)
    if (E.lane[i] >= 0 && (E.kind[i] === COMPUTE ? ops : tensors)[E.subject[i]]) S.found.push(i);
  S.found.sort((a, b) => E.begin[a] - E.begin[b]);
  $('found').textContent = S.found.length ? S.found.length + ' found' : 'none found';
  redraw();
}
function nextFound(direction) {
  if (!S.found || !S.found.length) return;
  foundAt = (foundAt + direction + S.found.length) % S.found.length;
  const i = S.found[foundAt];
  $('found').textContent = (foundAt + 1) + ' of ' + S.found.length;
  if (E.length[i] < (S.b - S.a) / 400) zoomTo(E.begin[i] - 20 * E.length[i], E.end[i] + 20 * E.length[i]);
  select(i, true);
}
function toggleMap() {
  S.map = !S.map;
  $('b-map').setAttribute('aria-pressed', S.map);
  redraw();
}
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  readColors();
  inks.clear();
  redraw();
}
const isDark = () => document.documentElement.dataset.theme ?
    document.documentElement.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
const toggleTheme = () => setTheme(isDark() ? 'light' : 'dark');
const actions = {
  ArrowLeft: e => pan(e.shiftKey ? -1 : -.15), ArrowRight: e => pan(e.shiftKey ? 1 : .15),
  ArrowUp: () => changeLane(-1), ArrowDown: () => changeLane(1),
  '+': () => zoom(.6), '=': () => zoom(.6), '-': () => zoom(1 / .6), '_': () => zoom(1 / .6),
  '0': () => setView(0, LAST), Home: () => setView(0, LAST),
  n: () => nextStall(1), p: () => nextStall(-1), ']': () => step(1), '[': () => step(-1),
  k: goToPeak, m: toggleMap, t: toggleTheme, '?': () => $('help').showModal(),
  '/': () => { $('find').focus(); $('find').select(); },
  Enter: () => { if (S.selected >= 0) zoomTo(E.begin[S.selected] - E.stall[S.selected], E.end[S.selected]); },
};
document.addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey || $('help').open) return;
  const tag = e.target.tagName;
  if (tag === 'INPUT' || (tag === 'BUTTON' && (e.key === 'Enter' || e.key === ' '))) return;
  const action = actions[e.key];
  if (!action) return;
  e.preventDefault();
  action(e);
});
$('find').addEventListener('input', search);
$('find').addEventListener('keydown', e => {
  if (e.key === 'Enter') nextFound(e.shiftKey ? -1 : 1);
  if (e.key === 'Escape') { $('find').value = ''; search(); canvas.focus(); }
});
for (const [id, action] of Object.entries({
  'b-left': () => pan(-.15), 'b-right': () => pan(.15), 'b-in': () => zoom(.6), 'b-out': () => zoom(1 / .6),
  'b-all': () => setView(0, LAST), 'b-prev': () => nextStall(-1), 'b-next': () => nextStall(1),
  'b-peak': goToPeak, 'b-map': toggleMap, 'b-theme': toggleTheme,
  'b-help': () => $('help').showModal()})) $(id).onclick = action;
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readColors(); inks.clear(); redraw(); });
new ResizeObserver(() => { layout(); redraw(); }).observe($('stage'));
window.addEventListener('resize', () => { layout(); redraw(); });

$('app').classList.add('ready');
buildLegend();
readColors();
layout();
S.cursor = issue[D.tiers[0].peak_step];
showCursor();
$('cur-title').textContent += ' (the peak)';
draw();
)PAGE";

}  // namespace headrace
