#include "headrace/report/timeline_page.h"

namespace headrace {

// Colours of classes are those of Okabe and Ito ("Color Universal Design", 2008), told apart by the
// colour-blind; areas are parted by lines as well.
const char* const kTimelineStyle = R"PAGE(
:root { color-scheme: light dark;
  --bg: #ffffff; --panel: #f5f6f8; --ink: #1b1f24; --soft: #5b6470; --line: #d5d9df;
  --compute: #8793a3; --again: #b35c9e; --codec: #7a6ff0; --stall: #c1121f; --early: #9aa5b1;
  --accent: #0b57d0; --mark: #ffd54a; --gap: #ffffff;
  --c0: #0072b2; --c1: #d55e00; --c2: #e69f00; --c3: #009e73; --c4: #cc79a7; --c5: #56b4e9;
  --c6: #8a8f98; --c7: #d6c700; }
@media (prefers-color-scheme: dark) { :root:not([data-theme=light]) {
  --bg: #14171b; --panel: #1d2127; --ink: #e8eaed; --soft: #a2abb6; --line: #363c45;
  --compute: #75829a; --again: #c97fb7; --codec: #9d94ff; --stall: #ff5a5f; --early: #6b7684;
  --accent: #8ab4f8; --mark: #8a6d00; --gap: #14171b;
  --c0: #3b9ddb; --c1: #e8762c; --c2: #f0b23e; --c3: #22b98e; --c4: #d791b9; --c5: #7cc7f2;
  --c6: #9aa0a8; --c7: #f0e442; } }
:root[data-theme=dark] { color-scheme: dark;
  --bg: #14171b; --panel: #1d2127; --ink: #e8eaed; --soft: #a2abb6; --line: #363c45;
  --compute: #75829a; --again: #c97fb7; --codec: #9d94ff; --stall: #ff5a5f; --early: #6b7684;
  --accent: #8ab4f8; --mark: #8a6d00; --gap: #14171b;
  --c0: #3b9ddb; --c1: #e8762c; --c2: #f0b23e; --c3: #22b98e; --c4: #d791b9; --c5: #7cc7f2;
  --c6: #9aa0a8; --c7: #f0e442; }
:root[data-theme=light] { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header { padding: 10px 16px 0; }
h1 { font-size: 18px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 18px 0 6px; }
header p { margin: 2px 0 6px; color: var(--soft); }
noscript p { margin: 0 16px; font-weight: 600; }
#app { display: none; }
#app.ready { display: block; }
#bar { display: flex; flex-wrap: wrap; gap: 6px 10px; align-items: center; padding: 4px 16px 6px; }
#bar button, #bar input, #help button { font: inherit; color: var(--ink);
  background: var(--panel); border: 1px solid var(--line); border-radius: 5px; padding: 2px 9px; }
#bar button { cursor: pointer; }
#bar button:hover { border-color: var(--soft); }
#bar button[aria-pressed=true] { border-color: var(--accent); color: var(--accent); }
#bar input { width: 15em; }
#bar .group { display: flex; gap: 4px; align-items: center; }
#found { color: var(--soft); min-width: 6em; }
#legend { display: flex; flex-wrap: wrap; gap: 2px 16px; padding: 0 16px 4px; margin: 0;
  list-style: none; font-variant-numeric: tabular-nums; }
#legend li { display: flex; gap: 6px; align-items: center; }
#legend i { width: 12px; height: 12px; border-radius: 2px; flex: none; }
#legend b { font-weight: 600; }
#legend span { color: var(--soft); }
#stage { position: relative; margin: 0 16px; border: 1px solid var(--line); border-radius: 6px;
  overflow: hidden; }
canvas { display: block; width: 100%; touch-action: none; cursor: crosshair; }
canvas:focus-visible, button:focus-visible, input:focus-visible { outline: 2px solid var(--accent);
  outline-offset: 1px; }
#panels { display: grid; grid-template-columns: 1fr 1fr; gap: 12px; margin: 8px 16px 0; }
@media (max-width: 760px) { #panels { grid-template-columns: 1fr; } }
#panels section { background: var(--panel); border: 1px solid var(--line); border-radius: 6px;
  padding: 8px 12px; height: 15.5em; overflow: auto; }
#panels h2 { margin: 0 0 4px; font-size: 14px; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 1px 14px; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
#panels button { font: inherit; color: var(--accent); background: none; border: 0; padding: 0;
  cursor: pointer; text-align: left; overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: 6px 0 14px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 4px 0; }
th, td { text-align: right; padding: 2px 14px 2px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
thead th { color: var(--soft); font-weight: 500; }
th[scope=row], thead th:first-child { text-align: left; font-weight: 500; overflow-wrap: anywhere;
  max-width: 40em; }
td.text { text-align: left; max-width: 60em; }
#panels table { width: 100%; margin: 0; }
#numbers { margin: 0 16px 24px; overflow-x: auto; }
#help { border: 1px solid var(--line); border-radius: 8px; background: var(--bg); color: var(--ink);
  max-width: 36em; }
#help::backdrop { background: rgba(0, 0, 0, .4); }
kbd { border: 1px solid var(--line); border-radius: 3px; padding: 0 5px; background: var(--panel);
  font: 12px ui-monospace, monospace; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
)PAGE";

const char* const kTimelineBody = R"PAGE(<main id="app">
<div id="bar" role="toolbar" aria-label="Timeline">
<span class="group"><button id="b-left" title="Pan left (Left)" aria-label="Pan left">&#9664;</button>
<button id="b-right" title="Pan right (Right)" aria-label="Pan right">&#9654;</button>
<button id="b-in" title="Zoom in (+)" aria-label="Zoom in">+</button>
<button id="b-out" title="Zoom out (-)" aria-label="Zoom out">&minus;</button>
<button id="b-all" title="Show the whole step (0)">Whole step</button></span>
<span class="group"><button id="b-prev" title="Previous stall (p)">&lsaquo; stall</button>
<button id="b-next" title="Next stall (n)">stall &rsaquo;</button>
<button id="b-peak" title="Go to the peak of device memory (k)">Peak</button></span>
<span class="group"><input id="find" type="search" placeholder="Find an op or tensor ( / )"
 aria-label="Find an op or tensor"><span id="found" role="status"></span></span>
<span class="group"><button id="b-map" aria-pressed="false"
 title="Device memory by address instead of by class (m)">Addresses</button>
<button id="b-theme" title="Light or dark (t)">Light / dark</button>
<button id="b-help" title="Keys (?)">Keys ?</button></span>
</div>
<ul id="legend" aria-label="Classes of data, with the bytes on the device at the cursor"></ul>
<div id="stage"><canvas id="canvas" tabindex="0" role="img"
 aria-label="Memory of every tier and the streams over time; the tables below hold the numbers"></canvas></div>
<div id="panels">
<section aria-label="Selection"><h2 id="sel-title">Nothing selected</h2><div id="sel"><p>Click an event, step through the
stalls with <kbd>n</kbd> or find a name with <kbd>/</kbd>; <kbd>?</kbd> lists all keys.</p></div></section>
<section aria-label="At the cursor"><h2 id="cur-title">At the cursor</h2><div id="cur"></div></section>
</div>
<div id="say" class="unseen" role="status" aria-live="polite"></div>
<dialog id="help" aria-label="Keys"><h2>Keys</h2><dl>
<dt><kbd>&larr;</kbd> <kbd>&rarr;</kbd></dt><dd>pan (with Shift: a whole window)</dd>
<dt><kbd>+</kbd> <kbd>-</kbd></dt><dd>zoom around the cursor; also the mouse wheel</dd>
<dt><kbd>0</kbd></dt><dd>the whole step</dd>
<dt><kbd>n</kbd> <kbd>p</kbd></dt><dd>next, previous stall</dd>
<dt><kbd>[</kbd> <kbd>]</kbd></dt><dd>previous, next event of the stream</dd>
<dt><kbd>&uarr;</kbd> <kbd>&darr;</kbd></dt><dd>the stream above, below</dd>
<dt><kbd>Enter</kbd></dt><dd>zoom to the selection</dd>
<dt><kbd>k</kbd></dt><dd>the peak of device memory</dd>
<dt><kbd>/</kbd></dt><dd>find; Enter for the next match, Escape to leave</dd>
<dt><kbd>m</kbd></dt><dd>device memory by class or by address</dd>
<dt><kbd>t</kbd></dt><dd>light or dark</dd></dl>
<p>Drag to pan, click to select. At a distance, what is smaller than a pixel is drawn as a share of it;
memory shows the highest value of each pixel.</p>
<form method="dialog"><button>Close</button></form></dialog>
</main>
)PAGE";

}  // namespace headrace
