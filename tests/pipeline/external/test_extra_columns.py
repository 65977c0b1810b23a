"""A source's own columns are in sidecars and in each sample's json."""

from __future__ import annotations

import json
from pathlib import Path

from clipmill.manifests import disk
from clipmill.manifests.columns import SIDECAR, with_extra
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import ShardWriter
from clipmill.pipeline.pool.tars import index_tar
from tests.support.commit_records import read_commit_records
from tests.support.sidecars import read_sidecar


def test_they_are_columns_of_the_sidecar_and_of_each_samples_json(tmp_path: Path) -> None:
    columns = {"similarity": "float", "NSFW": "string", "boxes": "json"}
    values = [
        dict(zip(columns, row, strict=True)) for row in ((0.31, "UNLIKELY", "[]"), (None,) * 3)
    ]
    row = dict.fromkeys(SIDECAR.names) | {"uid": "0" * 32, "url": "u", "sha256": "0" * 64}
    with ShardWriter(PoolWriter(str(tmp_path)), 0, "task", "0", columns) as writer:
        for number, own in enumerate(values):
            writer.add(number, {**row, **own}, b"\xff\xd8picture")
        writer.commit(2)
    table = read_sidecar(str(tmp_path), 0)
    assert table.schema.remove_metadata() == with_extra(SIDECAR, columns)
    assert table.select(list(columns)).to_pylist() == values
    tar = PoolLayout(str(tmp_path)).tar(read_commit_records(str(tmp_path))["00000"])
    member = next(each for each in index_tar(tar) if each.name == "000000000.json")
    metadata = json.loads(disk.read_bytes(tar, member.offset, member.length))
    assert {name: metadata[name] for name in columns} == values[0]
