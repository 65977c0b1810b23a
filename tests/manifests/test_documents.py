"""JSON documents keep their bytes, and a file that is no such document is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import disk
from manifests.records import PoolDocument, ViewDocument, read_document

VIEW = {
    "name": "clip",
    "rules": [{"name": "clip", "where": "clip_score >= top(clip_score, 0.3)"}],
    "thresholds": {
        "top(clip_score, 0.3)": {"value": 0.25, "asked": 0.3, "share": 0.5, "kept": 1, "rows": 2}
    },
    "funnel": [["attempted", 3], ["stored", 2], ["clip", 1]],
    "kept": 1,
    "fingerprint": "f",
    "scores": {"clip_score": "clip_score@1"},
    "shards": {"file": "shards-0.parquet", "count": 1, "sha256": "ab"},
}
FETCH = {
    "shards": 1,
    "planned": 1,
    "attempted": 3,
    "retries": 0,
    "stored": 2,
    "reasons": {"dns": 1},
    "classes": {"transient": 1},
    "final": {"stored": 2, "reasons": {"dns": 1}},
    "bytes": 10240,
}
POOL = {
    "crawl": None,
    "fetch": FETCH,
    "scores": {"clip_score@1": {"rows": 3, "stored": 2, "scored": 2}},
    "views": {"clip": {key: VIEW[key] for key in ("kept", "funnel", "thresholds")}},
    "complete": True,
    "problems": [],
    "recipe": "r",
    "recipe_hash": "h",
    "source": "s",
    "fingerprint": "f",
    "seconds": {"fetch": 1.5},
    "task_seconds": 1.0,
    "versions": {"python": "3.12", "shard": [1]},
}


@pytest.mark.parametrize(("kind", "value"), [(ViewDocument, VIEW), (PoolDocument, POOL)])
def test_a_document_that_is_read_and_written_again_has_the_same_bytes(
    kind: type, value: dict[str, object], tmp_path: Path
) -> None:
    disk.write_json(tmp_path / "a.json", value)
    document = read_document(tmp_path / "a.json", kind)
    plain = disk.to_plain(document)
    disk.write_json(tmp_path / "b.json", plain)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize(
    "value", [{}, [], "x", {**VIEW, "shard": {}}, {**VIEW, "thresholds": {"top(x, 1)": 3}}]
)
def test_a_file_that_is_no_such_document_is_named(value: object, tmp_path: Path) -> None:
    disk.write_json(tmp_path / "a.json", value)
    with pytest.raises(ValueError, match=r"a\.json is no ViewDocument"):
        read_document(tmp_path / "a.json", ViewDocument)
    with pytest.raises(FileNotFoundError):
        read_document(tmp_path / "b.json", ViewDocument)
