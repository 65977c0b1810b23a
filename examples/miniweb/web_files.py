"""The files that every small web has, whatever its images are."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from clipmill.examples.miniweb import wat_file
from clipmill.examples.miniweb.links import CDN, Link
from clipmill.examples.miniweb.scenes import DRAW_VERSION
from clipmill.examples.miniweb.settings import Miniweb
from clipmill.examples.miniweb.wat_file import Page
from clipmill.manifests import disk

L = TypeVar("L", bound=Link)
Entry = dict[str, Any]
logger = logging.getLogger(__name__)


def write_pages(
    out: str | Path,
    pages: Sequence[Page[L]],
    trusted_pages: Sequence[Page[L]],
    truth: pa.Table,
    seed: int,
) -> None:
    """Write both WATs, truth.parquet, and pairs.parquet, which has what a crawl of the first one
    finds.
    """
    disk.write_bytes(disk.join(out, "crawl.warc.wat.gz"), wat_file.wat(pages, seed))
    disk.write_bytes(disk.join(out, "trusted.warc.wat.gz"), wat_file.wat(trusted_pages, seed))
    disk.write_parquet(disk.join(out, "truth.parquet"), truth)
    pairs = truth.select(["uid", "url", "caption", "page_url"]).rename_columns(
        ["uid", "url", "text", "page_url"]
    )
    disk.write_parquet(disk.join(out, "pairs.parquet"), pairs)
    trusted = sum(len(page.items) for page in trusted_pages)
    numbers = (len(truth), len(pages), trusted, len(trusted_pages))
    logger.info("%d pairs on %d pages, %d trusted ones on %d", *numbers)


def write_site(
    out: str | Path, settings: Miniweb, links: Iterable[L], entry_of: Callable[[L], Entry]
) -> None:
    """Write site.json, which the server answers from: the entry of each host and path."""
    site = {
        "version": DRAW_VERSION,
        "settings": settings,
        "photos": settings.photos,
        "pictures": _entries(links, entry_of),
    }
    plain = json.dumps(disk.to_plain(site), separators=(",", ":"))
    disk.write_bytes(disk.join(out, "site.json"), plain.encode())


def _entries(links: Iterable[L], entry_of: Callable[[L], Entry]) -> dict[str, dict[str, Entry]]:
    """The entry of each host and path; a redirected image has one at its second address too."""
    hosts: dict[str, dict[str, Entry]] = {}
    for link in links:
        entry = entry_of(link)
        hosts.setdefault(link.host, {})[link.path] = entry
        if link.kind == "redirect":
            target = link.path.replace("/go/", "/img/", 1)
            hosts.setdefault(CDN, {})[target] = {**entry, "kind": "clean"}
    return hosts
