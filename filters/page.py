"""What the page says beside the caption: attributes of the image and its link, licence, robots."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from clipmill.filters.base import Batch, Columns, Filter

NAMES = ("title", "anchor", "license", "robots")


@dataclass(kw_only=True)
class Page(Filter):
    """title, anchor, license, robots: texts of the page, "" where the sample names none.

    They are read from the JSON member of each sample, where the fetch put them; the sidecar does
    not have them. A sample without such a member, as another program may have written, has NULL.
    """

    name = "page"
    needs = frozenset({"json"})
    adds: ClassVar[dict[str, pa.DataType]] = dict.fromkeys(NAMES, pa.string())
    meanings: ClassVar[dict[str, str]] = {
        "title": "title attribute of the image, '' if it has none",
        "anchor": "text of the link around the image, '' if there is none",
        "license": "licence link of the page, '' if it has none",
        "robots": "the page's signals for robots and RSL licences as JSON, '' if it has none",
    }

    def score(self, batch: Batch) -> Columns:
        members = [_object(data) for data in batch.rows["json"].to_pylist()]
        columns: Columns = {}
        for name in NAMES:
            columns[name] = [_text(member, name) for member in members]
        return columns


def _object(data: bytes) -> dict[str, Any]:
    """A member as a mapping. ValueError for one that is none."""
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("a JSON member is no object")
    return value


def _text(member: dict[str, object], name: str) -> str:
    value = member.get(name)
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
