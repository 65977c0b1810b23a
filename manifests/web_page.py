"""What HTML pages share: the templates of a page, and SVG drawing.

What the report of an ablation and the page of a pool share: `templates/` holds the page around
both, its style and script, and macros for tables, charts, chips and folded parts.

Invariants:

* Text is escaped by the templates, and here in drawings; colours have enough contrast in both
  schemes (`tests/manifests/web_page/`).
* A page asks for nothing outside itself (`tests/study/reporting/page/test_browser.py`).

To extend: a chart or a template of one page lies with that page; what two pages use lies here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape, unescape
from math import floor, isfinite, log10
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from clipmill.manifests import disk

# Every page has it: a page replaces only pages.
MARK = '<meta name="generator" content="clipmill">'
TEMPLATES = Path(__file__).parent / "templates"
HEAD = 2048  # bytes at the start of a page, with its mark and its title
MOST_LINKS = 6


def page_templates(folder: Path = TEMPLATES, **names: object) -> Environment:
    """The templates of a folder, which may use those of every page. names: what they may call.

    All text is escaped but what is Markup already. A name that is not there is an error.
    """
    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update({"MARK": Markup(MARK), "colour": colour, "links": None, **names})
    environment.filters["commas"] = "{:,}".format
    return environment


def pages_beside(path: str) -> dict[str, str]:
    """{file: title} of the other pages in the folder of a page: it links to them, and the links
    hold while they lie together. Six at most, by name."""
    folder, _, own = path.rpartition("/")
    pages: dict[str, str] = {}
    for name in disk.list_names(folder or ".", ".html"):
        try:
            head = disk.read_bytes(disk.join(folder or ".", name), 0, HEAD).decode(errors="replace")
        except (OSError, ValueError):
            continue
        title = re.search("<title>(.*?)</title>", head)
        if name != own and MARK in head and title and len(pages) < MOST_LINKS:
            pages[name] = unescape(title[1])
    return pages


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
    step = 10.0 ** floor(log10(span / about))
    step *= min((m for m in (1, 2, 5, 10) if span / (step * m) <= about), default=10)
    first = -floor(-low / step + 1e-9)
    numbers = range(first, floor(high / step + 1e-9) + 1)
    return [float(f"{number * step:.12g}") for number in numbers]


def number(value: float) -> str:
    """An axis label: 12.8k, 0.25, 3."""
    text = f"{value:g}"
    if abs(value) >= 1e6:
        text = f"{value / 1e6:g}M"
    elif abs(value) >= 1e4:
        text = f"{value / 1e3:g}k"
    return text.replace("-", MINUS)


def svg(width: int, height: int, body: Sequence[str], title: str, kind: str = "wide") -> Markup:
    """A drawing of escaped parts, with its title for screen readers."""
    size = f'class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = escape(title)
    head = f'<svg {size} role="img" aria-label="{label}"><title>{label}</title>'
    return Markup(f"{head}{''.join(body)}</svg>")


def text_at(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def line_at(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'
