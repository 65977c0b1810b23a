"""HTML pages that open from disk: style sheet, tables, charts as SVG."""

from __future__ import annotations

from manifests.web_page.drawing import bars, colour, line_at, number, svg, text_at, ticks
from manifests.web_page.markup import (
    chart,
    chip,
    details,
    html_page,
    legend,
    note,
    paragraphs,
    table,
    verdict_word,
)

__all__ = [
    "bars",
    "chart",
    "chip",
    "colour",
    "details",
    "html_page",
    "legend",
    "line_at",
    "note",
    "number",
    "paragraphs",
    "svg",
    "table",
    "text_at",
    "ticks",
    "verdict_word",
]
