"""A web of drawn images: its WATs, its truth, the entries of its server and its held-out sets."""

from __future__ import annotations

import csv
import io
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from clipmill.examples.miniweb import web_plan
from clipmill.examples.miniweb.links import hosts_of
from clipmill.examples.miniweb.scenes import CLASSES, draw, scene
from clipmill.examples.miniweb.settings import Miniweb
from clipmill.examples.miniweb.wat_file import Page, pages_of
from clipmill.examples.miniweb.web_files import write_pages, write_site
from clipmill.examples.miniweb.web_plan import Item
from clipmill.manifests import disk

OBJECTS_PER_CLASS = 16  # × 64 classes: a standard error of 1.5 points at 60 %
RETRIEVAL = 256  # images, each with a caption of its own
FULL_SIZE = 3000  # pairs; the held-out sets of a smaller web are smaller in proportion
TRUTH = pa.schema(
    [
        ("uid", pa.string()),
        ("url", pa.string()),
        ("caption", pa.string()),  # as the page has it
        ("true_caption", pa.string()),  # of what the image shows
        ("page_url", pa.string()),
        ("kind", pa.string()),
        ("right", pa.bool_()),  # the caption describes the image
        ("language", pa.string()),
        ("shape", pa.string()),
        ("colour", pa.string()),
        ("count", pa.int32()),
        ("texture", pa.string()),
        ("background", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("original", pa.string()),  # URL of the image that a near duplicate repeats
    ]
)


def write_drawn(out: str | Path, settings: Miniweb) -> dict[str, Any]:
    """Leave a web of drawn images in `out`. Returns what it holds.

    Everything follows from the settings.
    """
    started = time.monotonic()
    items, trusted = web_plan.plan(settings), web_plan.trusted(settings)
    pages = pages_of(items, settings.seed, hosts_of(settings.hosts))
    trusted_pages = pages_of(trusted, settings.seed)
    rows = [_row(page, item) for page in pages for item in page.items]
    truth = pa.Table.from_pylist(rows, schema=TRUTH)
    write_pages(out, pages, trusted_pages, truth, settings.seed)
    share = min(settings.pairs / FULL_SIZE, 1.0)
    held_out = {
        "objects": _write_objects(out, settings.seed, max(1, round(share * OBJECTS_PER_CLASS))),
        "retrieval": _write_retrieval(out, settings.seed, max(8, round(share * RETRIEVAL))),
    }
    write_site(out, settings, [*items, *trusted], _entry)
    return {
        "pairs": len(items),
        "pages": len(pages),
        "trusted_pairs": len(trusted),
        "trusted_pages": len(trusted_pages),
        "kinds": dict(sorted(Counter(item.kind for item in items).items())),
        "right": sum(item.right for item in items),
        "eval": held_out,
        "seconds": round(time.monotonic() - started, 2),
    }


def _row(page: Page[Item], item: Item) -> dict[str, Any]:
    """One row of truth.parquet, in document order."""
    shown = item.scene
    return {
        "uid": disk.uid_of(item.url, item.caption),
        "url": item.url,
        "caption": item.caption,
        "true_caption": item.true_caption,
        "page_url": page.url,
        "kind": item.kind,
        "right": item.right,
        "language": item.language,
        "shape": shown.shape,
        "colour": shown.colour,
        "count": shown.count,
        "texture": shown.texture,
        "background": shown.background,
        "width": shown.width,
        "height": shown.height,
        "original": item.original,
    }


def _entry(item: Item) -> dict[str, Any]:
    """What the server draws the image from."""
    return {
        "kind": item.kind,
        "scene": item.scene,
        "variant": item.variant,
        "painted": item.painted,
    }


def _write_objects(out: str | Path, seed: int, per_class: int) -> int:
    """Held-out images in folders that are named as a prompt names them: eval/objects/red
    car/00.jpg.
    """
    for number, label in enumerate(CLASSES * per_class):
        name = f"{number // len(CLASSES):02d}.jpg"
        disk.write_bytes(
            disk.join(out, "eval/objects", label, name),
            draw(scene(seed, "objects", number, label=label)),
        )
    return len(CLASSES) * per_class


def _write_retrieval(out: str | Path, seed: int, wanted: int) -> int:
    """Held-out images whose captions, which name everything, all differ:
    eval/retrieval/captions.csv beside them.
    """
    captions: dict[str, str] = {}
    number = 0
    while len(captions) < wanted:
        shown = scene(seed, "retrieval", number)
        number += 1
        text = web_plan.full_caption(shown)
        if text not in captions:
            captions[text] = f"{len(captions):04d}.jpg"
            disk.write_bytes(disk.join(out, "eval/retrieval", captions[text]), draw(shown))
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerows([("file", "caption"), *((file, text) for text, file in captions.items())])
    disk.write_bytes(disk.join(out, "eval/retrieval/captions.csv"), lines.getvalue().encode())
    return len(captions)
