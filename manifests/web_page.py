"""What HTML pages share: SVG drawings and markup.

What the report of an ablation and the page of a pool share. Pure: it reads and writes no file.

Invariants:

* Text is escaped (`tests/manifests/web_page/test_markup.py`). Colours have enough contrast in
  both schemes (the same file).
* A page asks for nothing outside itself (`tests/train/reporting/page/test_browser.py`).

To extend: a chart of one page lies with that page; what two pages draw lies here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import floor, isfinite, log10

# --------------------------------------------------------------------------------------------------
# Drawing as SVG text: numbers in, one <svg> out. No script, no font, no outside address.


COLOURS = 12  # --c0 to --c11 of the style sheet, which differ in the dark
MINUS = "\u2212"


def colour(index: int) -> str:
    """The colour of the arm with that index: the same in every chart of a page."""
    return f"var(--c{index % COLOURS})"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `about` of them."""
    span = high - low
    if not isfinite(span) or span <= 0:
        return [low]
    step = 10 ** floor(log10(span / about))
    step *= min((m for m in (1, 2, 5, 10) if span / (step * m) <= about), default=10)
    first = -floor(-low / step + 1e-9)
    return [round((first + i) * step, 12) for i in range(floor(high / step + 1e-9) - first + 1)]


def number(value: float) -> str:
    """An axis label: 12.8k, 0.25, 3."""
    text = f"{value:g}"
    if abs(value) >= 1e6:
        text = f"{value / 1e6:g}M"
    elif abs(value) >= 1e4:
        text = f"{value / 1e3:g}k"
    return text.replace("-", MINUS)


def svg(width: int, height: int, body: Sequence[str], title: str, kind: str = "wide") -> str:
    size = f'class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = escape(title)
    head = f'<svg {size} role="img" aria-label="{label}"><title>{label}</title>'
    return f"{head}{''.join(body)}</svg>"


def text_at(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
    )


def line_at(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def bars(rows: Sequence[tuple[str, float, str]], title: str, shade: str = colour(1)) -> str:
    """Horizontal bars from 0, as a list: on a narrow screen the bar is under its name and label.

    rows: (name, value, label).
    """
    most = max([value for _, value, _ in rows] or [1]) or 1
    lines = []
    for name, value, label in rows:
        width = max(0.3, 100 * value / most) if value else 0.0
        lines.append(
            f'<li><span class="name">{escape(name)}</span><span class="track">'
            f'<span style="width:{width:.1f}%;background:{shade}"></span></span>'
            f'<span class="amount">{escape(label)}</span></li>'
        )
    return f'<ul class="bars" aria-label="{escape(title)}">{"".join(lines)}</ul>'


# --------------------------------------------------------------------------------------------------
# Pieces of a page that opens from disk: style sheet, script, tables, chips. It escapes text.


SORTABLE_ROWS = 3
# Every page has it: a page replaces only pages.
MARK = '<meta name="generator" content="clipmill">'
HEAD = (
    f'<!doctype html><html lang="en"><head><meta charset="utf-8">{MARK}'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    '<link rel="icon" href="data:,">'
)
LIGHT = """--ink:#1b2026; --soft:#59616b; --paper:#fbfaf7; --card:#fff; --rule:#dcd8ce;
  --good:#1f7a4d; --bad:#b3372f; --c0:#5b6470; --c1:#2f6fb7; --c2:#c8561b; --c3:#1f8a5b;
  --c4:#8a5bb5; --c5:#a37614; --c6:#b33c6a; --c7:#2d8592;
  --c8:#7d5a3c; --c9:#4b4fb0; --c10:#5c851e; --c11:#9b2fa0"""
DARK = """--ink:#e8e6e1; --soft:#a9afb6; --paper:#16181b; --card:#1e2125; --rule:#3a4047;
  --good:#5cc08c; --bad:#ec8b83; --c0:#9aa3ae; --c1:#6aa9ec; --c2:#f08a4f; --c3:#4fc38d;
  --c4:#bd93e3; --c5:#d9ad45; --c6:#e87aa3; --c7:#63bfcc;
  --c8:#c49a78; --c9:#9aa0ff; --c10:#a6cf5e; --c11:#dd86e2"""
STYLE = (
    f":root {{ color-scheme:light dark; {LIGHT} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}\n"
    f"@media print {{ :root {{ {LIGHT} }} }}\n"
    """
* { box-sizing:border-box }
html { scroll-behavior:smooth }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior:auto } }
body { margin:0; background:var(--paper); color:var(--ink); font:15px/1.55 system-ui,sans-serif }
main { max-width:1040px; margin:0 auto; padding:36px 24px 80px }
h1 { font-size:30px; line-height:1.2; margin:0 0 8px; overflow-wrap:anywhere }
h2 { font-size:20px; margin:44px 0 10px; border-top:1px solid var(--rule); padding-top:18px }
h3 { font-size:15px; margin:22px 0 6px; overflow-wrap:anywhere }
a { color:inherit }
:focus-visible { outline:3px solid var(--c1); outline-offset:2px }
p { overflow-wrap:anywhere }
p.lead { font-size:18px; color:var(--soft); margin:0 0 18px }
.verdict { background:var(--card); border:1px solid var(--rule); border-left:5px solid var(--ink);
  padding:16px 20px; border-radius:6px; margin:0 0 18px }
.verdict p { font-size:18px; font-weight:600; line-height:1.4; margin:0 }
.verdict ul { margin:10px 0 0; padding:0; list-style:none }
.verdict li { margin:4px 0 }
ul.arms { margin:0 0 6px; padding:0; list-style:none }
ul.arms li { display:grid; grid-template-columns:minmax(0,1.2fr) 210px 3.4em minmax(0,1.5fr) 11em;
  gap:4px 14px; align-items:center; padding:5px 2px; border-bottom:1px solid var(--rule) }
ul.arms .arm { overflow-wrap:anywhere; font-weight:600 }
ul.arms .mean { text-align:right; font-variant-numeric:tabular-nums }
ul.arms .difference { font-variant-numeric:tabular-nums }
.key { display:flex; flex-wrap:wrap; gap:0 18px }
.gap { color:var(--bad); overflow-wrap:anywhere }
.note { color:var(--soft); font-size:13.5px }
nav { font-size:14px; margin:18px 0; line-height:2 }
nav a { margin-right:14px; white-space:nowrap }
/* shadows at the edges behind which there is more: the covers scroll with the content */
.scroll { overflow-x:auto; max-width:100%; background:
  linear-gradient(to right,var(--paper) 40%,transparent) 0 0/48px 100% local,
  linear-gradient(to left,var(--paper) 40%,transparent) 100% 0/48px 100% local,
  linear-gradient(to right,#0006,transparent) 0 0/16px 100% scroll,
  linear-gradient(to left,#0006,transparent) 100% 0/16px 100% scroll;
  background-repeat:no-repeat }
ul.bars { margin:8px 0; padding:0; list-style:none; max-width:880px }
ul.bars li { display:grid; grid-template-columns:minmax(0,190px) minmax(60px,1fr) 150px;
  gap:2px 10px; align-items:center; padding:2px 0; font-size:13px; break-inside:avoid }
ul.bars .name { text-align:right; overflow-wrap:anywhere }
ul.bars .track > span { display:block; height:15px; border-radius:2px }
ul.bars .amount { color:var(--soft); font-variant-numeric:tabular-nums }
details.part > summary { font-size:16px; color:var(--ink); padding:7px 0;
  border-bottom:1px solid var(--rule) }
details.part[open] > summary { font-weight:600; border-bottom-color:transparent }
table { border-collapse:collapse; width:100%; font-size:14px }
caption { text-align:left; color:var(--soft); font-size:13px; padding:2px 0 4px }
th,td { text-align:left; padding:6px 10px; border-bottom:1px solid var(--rule);
  vertical-align:baseline }
th { color:var(--soft); font-weight:600 }
td > span:first-child { white-space:nowrap }
td.n,th.n { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap }
th button { all:unset; cursor:pointer; font-weight:600 }
th button:focus-visible { outline:3px solid var(--c1); outline-offset:2px }
th[aria-sort=ascending] button::after { content:" \\2191" }
th[aria-sort=descending] button::after { content:" \\2193" }
.chip { display:inline-block; width:11px; height:11px; border-radius:3px; margin-right:7px }
.heat { display:block; margin:-6px -10px; padding:6px 10px;
  background:color-mix(in srgb,var(--c1) calc(var(--share)*.35),transparent) }
.short { display:inline-block; max-width:15em; overflow:hidden; text-overflow:ellipsis;
  vertical-align:bottom }
.better { color:var(--good); font-weight:600 }
.worse { color:var(--bad); font-weight:600 }
svg { width:100%; min-width:560px; max-width:880px; height:auto; display:block; margin:8px 0;
  font:12px system-ui,sans-serif }
svg.fit { min-width:0; max-width:720px; font-size:13px }
svg.strip { min-width:0; width:210px; height:24px; margin:0 }
svg text { fill:var(--soft) }
svg text.name { fill:var(--ink) }
.grid { stroke:var(--rule) }
.axis { stroke:var(--soft) }
.link { stroke:var(--soft); stroke-width:1 }
.zone { fill:var(--rule); opacity:.55 }
.whisker { stroke-width:2.5 }
.seed { fill:none; stroke-width:1.3; opacity:.85 }
.mean-mark { stroke-width:3 }
.reference { stroke:var(--soft); stroke-dasharray:3 3 }
.curve { fill:none; stroke-width:2 }
.spread { stroke:none; fill-opacity:.16 }
.steps { fill-opacity:.12; stroke-width:1.5 }
.mark { stroke:var(--ink); stroke-dasharray:4 3 }
.shots { display:grid; grid-template-columns:repeat(auto-fill,minmax(118px,1fr)); gap:10px }
figure { margin:0; background:var(--card); border:1px solid var(--rule); border-radius:6px;
  overflow:hidden }
figure img { width:100%; aspect-ratio:1; object-fit:contain; image-rendering:pixelated;
  display:block; background:#8883 }
figcaption { font-size:12px; padding:6px 8px; line-height:1.35; overflow-wrap:anywhere }
figcaption b { font-weight:600; font-variant-numeric:tabular-nums }
code { font-size:12.5px; overflow-wrap:anywhere }
pre { font-size:12.5px; background:var(--card); border:1px solid var(--rule); border-radius:6px;
  padding:10px 12px; overflow-x:auto; margin:6px 0 }
details { margin:10px 0 }
summary { cursor:pointer; color:var(--soft) }
@media (max-width:760px) {
  main { padding:20px 14px 60px }
  h1 { font-size:24px }
  p.lead { font-size:16px }
  .verdict { padding:12px 14px }
  .verdict p { font-size:16px }
  th,td { padding:5px 7px; font-size:13px }
  ul.arms li { grid-template-columns:minmax(0,1fr) auto; padding:8px 0 }
  ul.arms .picture { grid-row:2 }
  ul.arms .mean { grid-row:2; grid-column:2 }
  ul.arms .difference { grid-row:3; grid-column:1 }
  ul.arms .word { text-align:right }
  svg.fit { font-size:16px }
  ul.bars li { grid-template-columns:minmax(0,1fr) auto }
  ul.bars .name { text-align:left }
  ul.bars .amount { grid-row:1; grid-column:2 }
  ul.bars .track { grid-column:1 / -1 }
  .shots { grid-template-columns:repeat(auto-fill,minmax(92px,1fr)) }
}
@media print {
  main { max-width:none; padding:0 }
  nav { display:none }
  h2,h3 { break-after:avoid }
  tr,figure,svg,ul.arms li { break-inside:avoid }
  .scroll { overflow:visible; background:none }
  .track > span { print-color-adjust:exact }
  th,td,td.n,th.n,td > span:first-child { white-space:normal; overflow-wrap:anywhere }
  table { font-size:12px }
  th,td { padding:4px 5px }
  pre { white-space:pre-wrap; overflow-wrap:anywhere }
  svg { min-width:0 }
  details::details-content { content-visibility:visible; height:auto }
  summary { list-style:none }
}
"""
)
# Sorts a table by a click on a head, and opens every folded part for the printer. Without it the
# page shows the same.
SCRIPT = """
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
const value = cell => {
  const text = (cell.dataset.sort || cell.textContent).replace(/\\u2212/g, "-").replace(/,/g, "");
  const number = parseFloat(text);
  return Number.isNaN(number) ? text.trim().toLowerCase() : number;
};
const order = (a, b) => {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
};
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => order(value(a.cells[column]), value(b.cells[column])) * (up ? 1 : -1));
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      table.tBodies[0].append(...rows);
    });
  });
}
"""


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    numeric: Iterable[int] = (),
    caption: str = "",
    *,
    sortable: bool = True,
) -> str:
    """An HTML table that scrolls inside its box; with three rows or more it can be sorted.

    Cells are HTML already; columns in `numeric` are aligned to the right. `caption` is text.
    """
    right = set(numeric)

    def line(cells: Sequence[str], tag: str) -> str:
        parts = []
        for index, cell in enumerate(cells):
            mark = ' class="n"' if index in right else ""
            scope = ' scope="col"' if tag == "th" else ""
            parts.append(f"<{tag}{mark}{scope}>{cell}</{tag}>")
        return f"<tr>{''.join(parts)}</tr>"

    lines = [line(row, "td") for row in rows]
    kind = ' class="sortable"' if sortable and len(lines) >= SORTABLE_ROWS else ""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = f"<thead>{line(head, 'th')}</thead><tbody>{''.join(lines)}</tbody>"
    return _scroll(f"<table{kind}>{title}{body}</table>", caption or "table")


def chart(svg: str, name: str = "chart") -> str:
    """A chart that scrolls sideways where the screen is narrower than it can be read."""
    return _scroll(svg, name)


def _scroll(body: str, name: str) -> str:
    """A box that the keyboard can scroll, with a name for screen readers."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(name)}">{body}</div>'


def chip(shade: str, name: str) -> str:
    """A name after a small square of its colour."""
    square = f'<span class="chip" style="background:{escape(shade)}"></span>'
    return f"<span>{square}{escape(name)}</span>"


def legend(shades: Mapping[str, str]) -> str:
    """The names with their colours, beside a chart: text in HTML never overlaps."""
    return f'<p class="key">{"".join(chip(shade, name) for name, shade in shades.items())}</p>'


def verdict_word(verdict: str) -> str:
    """A verdict, coloured where it is better or worse."""
    kind = verdict if verdict in ("better", "worse") else ""
    return f'<span class="{kind}">{escape(verdict)}</span>'


def details(summary: str, body: str, kind: str = "") -> str:
    """A part that opens at a click; "" where there is nothing in it."""
    mark = f' class="{kind}"' if kind else ""
    return f"<details{mark}><summary>{escape(summary)}</summary>{body}</details>" if body else ""


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def html_page(title: str, body: str, style: str = "", script: str = "", head: str = "") -> str:
    """A whole document in the common style, readable from disk: it asks for nothing outside.

    title is text, body and head are HTML. style and script are added to the common ones.
    """
    return (
        f"{HEAD}{head}<title>{escape(title)}</title><style>{STYLE}{style}</style></head>"
        f"<body><main>{body}</main><script>{SCRIPT}{script}</script></body></html>\n"
    )
