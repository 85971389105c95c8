// Part of page.html: answers as elements. Of what models write as markdown (CommonMark and GitHub's
// tables) these: headings, lists, quotes, tables, code, rules, **strong** and *emphasis*. All else,
// HTML and links too, stays the text that it is: no text ever becomes markup.

// Every step is linear in the length of a line, also of one that is nothing but blanks or marks.

const kItem = /^( *)([-*+]|\d{1,9}[.)]) +(.*)$/s;
const kRule = /^ {0,3}(-{3,}|\*{3,}|_{3,}) *$/;

// Where the run of the character at `at` ends.
function end_of_run(text, at) {
  let end = at;
  while (end < text.length && text[end] === text[at]) ++end;
  return end;
}

// [marks, what follows] of a line of at least `least` of a mark after blanks; null when it is none.
function marked(line, marks, least) {
  const rest = line.replace(/^ +/, "");
  const end = rest !== "" && marks.includes(rest[0]) ? end_of_run(rest, 0) : 0;
  return end < least || end === 0 ? null : [rest.slice(0, end), rest.slice(end).trim()];
}
function fence_of(line) {
  const fence = marked(line, "`~", 3);
  return fence && fence[0][0] === "`" && fence[1].includes("`") ? null : fence;
}

// What kind of block begins with a line; "" where one never begins inside another.
function kind_of(line, within) {
  if (fence_of(line)) return "code";
  if (kRule.test(line)) return "rule";
  if (/^ {0,3}#{1,6} /.test(line)) return "heading";
  if (/^ *>/.test(line)) return "quote";
  if (/^ *\|.*\| *$/.test(line)) return "table";
  // "1986. That was..." inside a paragraph is no list.
  const item = line.match(kItem);
  if (item && (within !== "text" || !/\d/.test(item[2]) || parseInt(item[2], 10) === 1)) return "list";
  return "";
}

// The blocks of a text as [kind, lines]. Text that is added at the end changes the last one alone.
function blocks_of(text) {
  const out = [];
  let kind = "", lines = [], fence = "", blank = false;
  const end = () => { if (kind !== "") out.push([kind, lines]); kind = ""; lines = []; };
  for (const line of text.split("\n")) {
    if (fence !== "") {
      if (line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], "") === "") { fence = ""; end(); }
      else lines.push(line);
      continue;
    }
    if (line.trim() === "") {
      if (kind === "list") blank = true;  // the list may go on
      else end();
      continue;
    }
    const next = kind_of(line, kind) || "text";
    const goes_on = next === kind && next !== "heading" && next !== "rule" && next !== "code" ||
      next === "text" && (kind === "list" || kind === "quote") && (!blank || /^ {2}/.test(line));
    if (!goes_on) { end(); kind = next; }
    blank = false;
    lines.push(line);
    if (next === "code") fence = fence_of(line)[0];
  }
  end();
  return out;
}

// Marks of spans that may begin at `at`: a run of one character, "" where there is none.
function mark_at(text, at) {
  const c = text[at];
  if (c !== "`" && c !== "*" && c !== "_") return "";
  return text.slice(at, end_of_run(text, at));
}
const is_word = (c) => c !== undefined && /[\p{L}\p{N}_]/u.test(c);

// Where the span that `mark` begins before `from` ends; -1: nowhere.
function end_of_span(text, mark, from) {
  for (let at = from; (at = text.indexOf(mark, at)) >= 0;) {
    const run = mark_at(text, at);
    const closes = mark[0] === "`" || !/\s/.test(text[at - 1]) && (mark[0] === "*" || !is_word(text[at + run.length]));
    if (run === mark && at > from && closes) return at;
    at += run.length;
  }
  return -1;
}

// A paragraph's text and spans. Linear in its length: what does not end is looked for once.
function spans_of(text) {
  const out = [], endless = new Set();
  let plain = "";
  for (let at = 0; at < text.length;) {
    if (text[at] === "\\" && "*_`#".includes(text[at + 1] || " ")) {
      plain += text[at + 1];
      at += 2;
      continue;
    }
    const mark = mark_at(text, at);
    const code = mark[0] === "`";
    const from = at + mark.length;
    // __init__ is a name, not strong.
    const begins = mark !== "" && (code || /\S/.test(text[from] || " ") &&
      (mark[0] === "*" ? mark.length <= 3 : mark.length === 1 && !is_word(text[at - 1])));
    const end = begins && !endless.has(mark) ? end_of_span(text, mark, from) : -1;
    if (end < 0) {
      if (begins) endless.add(mark);
      plain += mark || text[at];
      at = mark !== "" ? from : at + 1;
      continue;
    }
    const inner = text.slice(from, end);
    const children = code ? inner.length > 2 ? inner.replace(/^ (.*) $/s, "$1") : inner : spans_of(inner);
    let span = make(code ? "code" : mark.length === 1 ? "em" : "strong", {}, children);
    if (!code && mark.length === 3) span = make("em", {}, span);
    out.push(plain, span);
    plain = "";
    at = end + mark.length;
  }
  out.push(plain);
  return out.filter((x) => x !== "");
}

function list_of(lines) {
  const root = make("div");
  const open = [{indent: -1, list: root, item: root}];
  let text = [];  // of the last item
  const end = () => { if (text.length > 0) append_all(open[open.length - 1].item, spans_of(text.join("\n"))); text = []; };
  for (const line of lines) {
    const m = line.match(kItem);
    if (!m) { text.push(line.trim()); continue; }
    end();
    const indent = m[1].length;
    const tag = /\d/.test(m[2]) ? "ol" : "ul";
    while (open[open.length - 1].indent > indent + 1) open.pop();
    let last = open[open.length - 1];
    // Two blanks more begin a list inside; eight lists deep is enough.
    if (indent >= last.indent + 2 && open.length < 9 || last.list === root) {
      const list = make(tag, tag === "ol" ? {start: parseInt(m[2], 10)} : {});
      last.item.append(list);
      open.push(last = {indent, list});
    } else if (last.list.localName !== tag) {
      const list = make(tag, tag === "ol" ? {start: parseInt(m[2], 10)} : {});
      last.list.after(list);
      last.list = list;
    }
    last.item = make("li");
    last.list.append(last.item);
    text = [m[3]];
  }
  end();
  return root;
}

function cells_of(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());
}

function block_of([kind, lines]) {
  switch (kind) {
    case "code": {
      const name = fence_of(lines[0])[1];
      const indent = lines[0].search(/\S/);
      const code = lines.slice(1).map((l) => l.slice(Math.min(indent, l.search(/\S|$/)))).join("\n");
      return make("figure", {class: "code"}, make("figcaption", {}, make("span", {}, name || "code"),
        copy_button(() => code)), make("pre", {}, make("code", {}, code)));
    }
    case "rule": return make("hr");
    case "heading": {
      const [marks, text] = marked(lines[0], "#", 1);
      let end = text.length;
      while (text[end - 1] === "#") --end;
      if (end > 0 && text[end - 1] !== " ") end = text.length;  // "# C#"
      return make("h" + Math.min(6, Math.max(4, marks.length + 2)), {}, spans_of(text.slice(0, end).trimEnd()));
    }
    case "quote": return make("blockquote", {}, make("p", {},
      spans_of(lines.map((l) => l.replace(/^(\s*>)+ ?/, "")).join("\n"))));
    case "list": return list_of(lines);
    case "table":
      if (lines.length > 1 && lines[1].includes("-") && /^[\s|:-]+$/.test(lines[1])) {
        const row = (tag, line) => make("tr", {}, cells_of(line).map((c) =>
          make(tag, tag === "th" ? {scope: "col"} : {}, spans_of(c))));
        return make("div", {class: "wide-table"}, make("table", {}, make("thead", {}, row("th", lines[0])),
          make("tbody", {}, lines.slice(2).map((l) => row("td", l)))));
      }
  }
  return make("p", {}, spans_of(lines.join("\n")));
}

// Shows an answer, or what there is of it: only blocks that are not the same are made again.
function show_text(element, text) {
  const blocks = blocks_of(text);
  const sources = blocks.map((b) => b[0] + b[1].join("\n"));
  const shown = element.sources || [];
  blocks.forEach((block, i) => {
    if (sources[i] === shown[i]) return;
    const fresh = block_of(block);
    const old = element.children[i];
    if (old === undefined) element.append(fresh);
    else if (block[0] === "code") old.replaceWith(fresh);  // its button copies the code of its own
    else patch(old, fresh);
  });
  while (element.childElementCount > blocks.length) element.lastElementChild.remove();
  element.sources = sources;
}
