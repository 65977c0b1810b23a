#!/usr/bin/env python3
"""Build the site of the documents: warnings are errors, all links and anchors are checked.

Nothing is loaded from outside: a page that would load a script, a style, a font or an image from
another host is an error. Reports of ablations become pages of the site, where a folder is named.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

DOCS = Path(__file__).resolve().parents[1]
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
# Relations of <link> that a browser does not load by itself.
NOT_LOADED = {"canonical", "index", "search", "next", "prev", "author", "alternate"}


class Page(HTMLParser):
    """What a page of HTML links to, loads, and can be linked at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        for name in ("id", "name"):
            if values.get(name):
                self.anchors.add(values[name])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        relations = set(values.get("rel", "").split()) if tag == "link" else set()
        if tag in LOADING and values.get(LOADING[tag]) and not relations & NOT_LOADED:
            self.loads.append(values[LOADING[tag]])


def find_problems(site: Path) -> list[str]:
    """Links that lead nowhere and addresses outside that a page loads, one line for each."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        name = path.relative_to(site)
        for address in [*page.loads, *page.links]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loads and parts.scheme != "data":
                    problems.append(f"{name} loads {address} from outside")
                continue
            if parts.path and path.parent == site / "live":
                continue  # a report names files beside it, which are not copied
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                problems.append(f"{name} links to {address}, which is not there")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors | {""}:
                problems.append(f"{name} links to {address}: there is no such anchor")
    for path in sorted(site.rglob("*.css")):
        for load in ("@import", "url(http", 'url("http', "url('http", "url(//"):
            if load in path.read_text():
                problems.append(f"{path.relative_to(site)} has {load}")
    return problems


def build_site(source: Path, out: Path, reports: dict[str, Path]) -> list[str]:
    """Build `source` into `out`; the problems, one line for each. Of `reports` (name -> folder)
    those are copied that have a report.html."""
    from sphinx.cmd.build import main as sphinx_build

    copies = {name: folder / "report.html" for name, folder in reports.items()}
    copies = {name: path for name, path in copies.items() if path.exists()}
    doctrees = out.parent / f"{out.name}-doctrees"
    for folder in (out, doctrees):
        shutil.rmtree(folder, ignore_errors=True)
    words = ["-q", "-W", "--keep-going", "-b", "html", "-c", str(DOCS / "tools")]
    words += ["-d", str(doctrees), str(source), str(out)]
    status = sphinx_build(["-D", "live_reports=" + ",".join(copies), *words])
    if status:
        return [f"Sphinx ended with status {status}: its warnings are above"]
    for name, path in copies.items():
        (out / "live").mkdir(exist_ok=True)
        shutil.copyfile(path, out / "live" / f"{name}.html")
    return find_problems(out)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python docs/tools/build_site.py --out out/site --report demo=out/demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=DOCS.parent / "out" / "site")
    parser.add_argument(
        "--report",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="FOLDER/report.html becomes a page of the site; skipped where it is not there",
    )
    args = parser.parse_args(argv)
    reports = {}
    for text in args.report:
        name, separator, folder = text.partition("=")
        if not separator or not name.isidentifier():
            print(f"error: --report is {text!r}; it is NAME=FOLDER", file=sys.stderr)
            return 2
        reports[name] = Path(folder)
    problems = build_site(DOCS, args.out, reports)
    print("\n".join(problems) or f"site: {args.out / 'index.html'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
