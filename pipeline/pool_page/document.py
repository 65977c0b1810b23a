"""The page of a pool as one HTML document: funnel, views, rules and tables as text, the rest by its
script. It asks for nothing outside, or only for the server that sent it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from manifests.web_page import html_page, note
from pipeline.pool_page import sections
from pipeline.pool_page.survey import Survey

HERE = Path(__file__).parent
POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "img-src data: 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'\">"
)


def render(survey: Survey, data: Mapping[str, Any]) -> str:
    """The whole page. data: what `page_data` gave for the survey."""
    bodies = [
        ("From links to images", sections.funnel(survey)),
        ("Views", sections.views_table(survey)),
        ("Choose a threshold", sections.threshold(survey)),
        ("Rules of the views", sections.rules(survey)),
        ("Columns", sections.columns(survey)),
        ("Domains, languages, values", sections.values(data)),
        ("Duplicates", sections.duplicates(data)),
        ("Images", sections.images(data)),
    ]
    links, parts = [], []
    for number, (title, body) in enumerate(bodies, start=1):
        if body:
            links.append(f'<a href="#s{number}">{escape(title)}</a>')
            parts.append(f'<section id="s{number}"><h2>{escape(title)}</h2>{body}</section>')
    bar = (
        f'<div class="bar">{sections.view_choice(survey)}'
        f'<nav aria-label="Contents">{" ".join(links)}</nav></div>'
    )
    body = sections.head(survey) + bar + "".join(parts)
    body += "<noscript>" + note("Charts and images need JavaScript.") + "</noscript>"
    body += f'<script type="application/json" id="data">{_json(data)}</script>'
    style = (HERE / "page.css").read_text()
    script = (HERE / "page.js").read_text()
    return html_page(
        f"{sections.pool_name(survey)}: the pool",
        body,
        style,
        f"(() => {{\n{script}\n}})();",
        POLICY,
    )


def _json(data: Mapping[str, Any]) -> str:
    """JSON inside a script element: no character ends it, whatever a caption holds."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
