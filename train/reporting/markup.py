"""Pieces of the page: its style sheet, tables, chips. Text becomes HTML by `html.escape` here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { --ink:#1b2026; --soft:#5d6670; --paper:#fbfaf7; --card:#fff; --rule:#dcd8ce;
  --good:#1f7a4d; --bad:#b3372f }
@media (prefers-color-scheme: dark) { :root { --ink:#e8e6e1; --soft:#a3a9b0; --paper:#16181b;
  --card:#1e2125; --rule:#363b41; --good:#5cc08c; --bad:#e58078 } }
* { box-sizing:border-box }
html { scroll-behavior:smooth }
body { margin:0; background:var(--paper); color:var(--ink); font:15px/1.55 system-ui,sans-serif }
main { max-width:1040px; margin:0 auto; padding:40px 24px 80px }
h1 { font-size:30px; line-height:1.2; margin:0 0 8px; overflow-wrap:anywhere }
h2 { font-size:20px; margin:44px 0 10px; border-top:1px solid var(--rule); padding-top:18px }
h3 { font-size:15px; margin:22px 0 6px }
a { color:inherit }
p.lead { font-size:18px; color:var(--soft); margin:0 0 18px }
.verdict { background:var(--card); border:1px solid var(--rule); border-left:5px solid var(--ink);
  padding:16px 20px; border-radius:6px; margin:0 0 18px }
.verdict p { font-size:18px; font-weight:600; line-height:1.4; margin:0 }
.verdict ul { margin:10px 0 0; padding:0; list-style:none }
.verdict li { margin:4px 0 }
.gap { color:var(--bad); overflow-wrap:anywhere }
.note { color:var(--soft); font-size:13.5px }
nav { font-size:14px; color:var(--soft); margin:0 0 18px; line-height:2 }
nav a { margin-right:14px; white-space:nowrap }
.scroll { overflow-x:auto }
table { border-collapse:collapse; width:100%; font-size:14px }
th,td { text-align:left; padding:6px 10px; border-bottom:1px solid var(--rule);
  vertical-align:baseline }
th { color:var(--soft); font-weight:600 }
td.n,th.n { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap }
.chip { display:inline-block; width:11px; height:11px; border-radius:3px; margin-right:7px }
.nowrap { white-space:nowrap }
.better { color:var(--good); font-weight:600 }
.worse { color:var(--bad); font-weight:600 }
svg { width:100%; min-width:560px; max-width:880px; height:auto; display:block; margin:8px 0;
  font:12px system-ui,sans-serif }
svg.fit { min-width:0; max-width:720px; font-size:13px }
svg text { fill:var(--soft) }
svg text.name { fill:var(--ink) }
.grid { stroke:var(--rule) }
.axis { stroke:var(--soft) }
.band { fill:var(--rule); opacity:.55 }
.whisker { stroke-width:2.5 }
.seed { fill:none; stroke-width:1.3; opacity:.75 }
.curve { fill:none; stroke-width:1.6; opacity:.8 }
.steps { fill-opacity:.12; stroke-width:1.5 }
.mark { stroke:var(--ink); stroke-dasharray:4 3 }
.legend span { display:inline-block; margin-right:18px }
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
@media (max-width:640px) {
  main { padding:20px 14px 60px }
  h1 { font-size:24px }
  p.lead { font-size:16px }
  .verdict { padding:12px 14px }
  .verdict p { font-size:16px }
  th,td { padding:5px 7px; font-size:13px }
  .shots { grid-template-columns:repeat(auto-fill,minmax(92px,1fr)) }
}
"""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    """An HTML table. Cells are HTML already; columns in `numeric` are aligned to the right."""
    right = set(numeric)

    def line(cells: Sequence[str], tag: str) -> str:
        parts = []
        for index, cell in enumerate(cells):
            mark = ' class="n"' if index in right else ""
            parts.append(f"<{tag}{mark}>{cell}</{tag}>")
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table>{line(head, "th")}{body}</table></div>'


def chart(svg: str) -> str:
    """A chart that scrolls sideways where the screen is narrower than it can be read."""
    return f'<div class="scroll">{svg}</div>'


def chip(shade: str, name: str) -> str:
    """A name after a small square of its colour."""
    square = f'<span class="chip" style="background:{escape(shade)}"></span>'
    return f'<span class="nowrap">{square}{escape(name)}</span>'


def verdict_word(verdict: str) -> str:
    """A verdict, coloured where it is better or worse."""
    kind = verdict if verdict in ("better", "worse") else ""
    return f'<span class="{kind}">{escape(verdict)}</span>'


def details(summary: str, body: str) -> str:
    """A part that opens at a click."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
