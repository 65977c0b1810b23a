"""Croissant metadata: what the format asks for, and every column of the lock."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from manifests import disk
from pipeline.lock.croissant import CONFORMS_TO, CONTEXT, croissant, croissant_path
from pipeline.lock.lock_writer import write_lock
from tests.support import locked_pools

NEEDED = {"@context", "@type", "conformsTo", "name", "description", "distribution", "recordSet"}


def test_the_metadata_describes_the_file_and_every_column(tmp_path: Path) -> None:
    pool = locked_pools.make_pool(tmp_path / "pool", 20)
    lock = write_lock(pool, str(tmp_path / "ours.lock.parquet"))
    path = Path(croissant_path(lock.path))
    assert path.name == "ours.lock.croissant.json"
    metadata = disk.read_json(path)
    assert metadata.keys() >= NEEDED
    assert (metadata["conformsTo"], metadata["@type"]) == (CONFORMS_TO, "sc:Dataset")
    assert metadata["@context"] == CONTEXT
    (file,) = metadata["distribution"]
    data = Path(lock.path).read_bytes()
    assert file["sha256"] == hashlib.sha256(data).hexdigest()
    assert file["contentSize"] == f"{len(data)} B"
    assert file["contentUrl"] == file["@id"] == "ours.lock.parquet"
    (record_set,) = metadata["recordSet"]
    fields = {field["source"]["extract"]["column"]: field for field in record_set["field"]}
    assert list(fields) == next(lock.tables()).column_names
    assert len({field["@id"] for field in fields.values()}) == len(fields)
    types = {name: field["dataType"] for name, field in fields.items()}
    assert types["url"] == "sc:URL"
    assert types["link"] == "sc:Integer"
    assert types["caption"] == "sc:Text"
    assert types["view:long"] == "sc:Boolean"
    # every term with a prefix of its own is in the context
    assert {"field", "source", "extract", "column", "fileObject", "dataType"} <= CONTEXT.keys()


@pytest.mark.parametrize("size", [0, 10**12])
def test_a_size_is_in_bytes(size: int, tmp_path: Path) -> None:
    pool = locked_pools.make_pool(tmp_path / "pool", 5)
    lock = write_lock(pool, str(tmp_path / "a.parquet"))
    assert croissant(lock, "0" * 64, size)["distribution"][0]["contentSize"] == f"{size} B"
