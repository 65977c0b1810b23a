"""A web of photographs: its WATs, its truth and the entries of its server."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from clipmill.examples.miniweb import photo_plan
from clipmill.examples.miniweb.labelled_photos import read_photos
from clipmill.examples.miniweb.links import hosts_of
from clipmill.examples.miniweb.photo_plan import PhotoLink
from clipmill.examples.miniweb.settings import Miniweb
from clipmill.examples.miniweb.wat_file import Page, pages_of
from clipmill.examples.miniweb.web_files import write_pages, write_site
from clipmill.manifests import disk

TRUTH = pa.schema(
    [
        ("uid", pa.string()),
        ("url", pa.string()),
        ("caption", pa.string()),  # as the page has it
        ("true_caption", pa.string()),
        ("page_url", pa.string()),
        ("kind", pa.string()),
        ("right", pa.bool_()),  # the caption is of a photograph with the same label
        ("file", pa.string()),  # in the folder of photographs
        ("label", pa.string()),
        ("original", pa.string()),  # URL of the image that a duplicate repeats
    ]
)


def write_photos(out: str | Path, settings: Miniweb) -> dict[str, Any]:
    """Leave a web of the photographs of `settings.photos` in `out`. Returns what it holds.

    Everything follows from the settings and the names of the files. The server reads the
    photographs where they are. ValueError where they are not enough, or not there.
    """
    started = time.monotonic()
    assert settings.photos is not None
    folder = str(Path(settings.photos).absolute())
    photos = read_photos(folder, settings.captions, settings.seed)
    links, trusted = photo_plan.plan(photos, settings)
    pages = pages_of(links, settings.seed, hosts_of(settings.hosts))
    trusted_pages = pages_of(trusted, settings.seed)
    rows = [_row(page, link) for page in pages for link in page.items]
    write_pages(out, pages, trusted_pages, pa.Table.from_pylist(rows, schema=TRUTH), settings.seed)
    settings = dataclasses.replace(settings, photos=folder)
    write_site(out, settings, [*links, *trusted], _entry)
    return {
        "photos": len(photos),
        "labels": len({photo.label for photo in photos}),
        "pairs": len(links),
        "pages": len(pages),
        "trusted_pairs": len(trusted),
        "trusted_pages": len(trusted_pages),
        "kinds": dict(sorted(Counter(link.kind for link in links).items())),
        "right": sum(link.right for link in links),
        "seconds": round(time.monotonic() - started, 2),
    }


def _row(page: Page[PhotoLink], link: PhotoLink) -> dict[str, Any]:
    """One row of truth.parquet, in document order."""
    return {
        "uid": disk.uid_of(link.url, link.caption),
        "url": link.url,
        "caption": link.caption,
        "true_caption": link.true_caption,
        "page_url": page.url,
        "kind": link.kind,
        "right": link.right,
        "file": link.file,
        "label": link.label,
        "original": link.original,
    }


def _entry(link: PhotoLink) -> dict[str, Any]:
    return {"kind": link.kind, "file": link.file}
