"""Options for images on their way into a shard: names of members and columns of the sidecar."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clipmill.manifests.columns import PAIRS, with_extra
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline.fetch.download import Downloader
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import ShardJob, ShardWriter
from tests.support import plans
from tests.support.image_files import noise, saved
from tests.support.pairs import write_part
from tests.support.sidecars import read_sidecar


def test_a_member_is_named_by_what_it_is(tmp_path: Path) -> None:
    with ShardWriter(PoolWriter(str(tmp_path)), 0, "task", "0") as writer:
        for row, extension in enumerate(("jpg", "webp", "avif")):
            writer.add(
                row,
                {"url": f"u{row}", "caption": "c", "uid": f"{row:032x}"},
                b"image",
                None,
                extension,
            )
        writer.commit(3)
    with tarfile.open(tmp_path / "shards/00000.tar") as tar:
        assert [name for name in tar.getnames() if not name.endswith(("txt", "json"))] == [
            "000000000.jpg", "000000001.webp", "000000002.avif",
        ]  # fmt: skip
    assert read_sidecar(str(tmp_path), 0)["image_name"].to_pylist()[1] == "000000001.webp"


OPTIONS: list[tuple[dict[str, Any], dict[str, list[str | None]]]] = [
    (
        {},
        {
            "reason": [None] * 4,
            "image_name": ["000000000.jpg", "000000001.jpg", "000000002.jpg", "000000003.jpg"],
        },
    ),
    (
        {"encode_format": "webp", "compute_hash": "md5", "extract_exif": True},
        {"image_name": ["000000000.webp", "000000001.webp", "000000002.webp", "000000003.webp"]},
    ),
    (
        {"disable_all_reencoding": True, "min_image_size": 40},
        {
            "image_name": ["000000000.jpg", "000000001.png", "000000002.gif", None],
            "reason": [None] * 3 + ["too_small"],
        },
    ),
    ({"bbox_column": "faces"}, {"reason": [None, None, None, "bad_bbox"]}),
    ({"verify_hash": ("seen", "md5")}, {"reason": [None, None, "hash_mismatch", "hash_mismatch"]}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"), OPTIONS, ids=["none", "format", "as it is", "boxes", "hash"]
)
def test_options_on_their_way_to_the_sidecar(
    tmp_path: Path, options: dict[str, Any], expected: dict[str, list[str | None]]
) -> None:
    bodies = [
        saved(noise(), "JPEG"),
        saved(noise()),
        saved(noise(), "GIF"),
        saved(noise(32, 32), "JPEG"),
    ]
    faces = [None, "[]", "[[0.1, 0.1, 0.5, 0.5]]", "[[100, 100, 200, 200]]"]
    seen = [hashlib.md5(body).hexdigest() for body in bodies[:2]] + ["0" * 32, None]
    columns = {"faces": "json", "seen": "string"}
    rows = []
    for i, body in enumerate(bodies):
        (tmp_path / f"image{i}").write_bytes(body)
        url = str(tmp_path / f"image{i}")
        rows.append(
            {"uid": f"{i:032x}", "url": url, "caption": f"c{i}", "link": i}
            | {"faces": faces[i], "seen": seen[i]}
        )
    pool = str(tmp_path / "pool")
    write_part(pool, pa.Table.from_pylist(rows, schema=with_extra(PAIRS, columns)))
    source = Source(kind="table", paths=("t.parquet",), extra_columns=columns)
    recipe = Recipe(name="r", source=source, fetch=Fetch(**options))
    [task] = plans.planned(pool, recipe)
    local = replace(recipe, source=replace(source, kind="files"))
    worker = Downloader(ShardJob(out=PoolWriter(pool), recipe=local, decoders=1))
    try:
        worker(plans.ticket(pool, task))
    finally:
        worker.close()
    rows_by_url = {row["url"]: row for row in read_sidecar(pool, 0).to_pylist()}
    for column, values in expected.items():
        ends = [rows_by_url[row["url"]][column] for row in rows]
        if column == "image_name":  # rows of a shard are in the order of their uid's hash
            ends, values = (
                [e and e.rsplit(".")[1] for e in ends],
                [v and v.rsplit(".")[1] for v in values],
            )
        assert ends == values, column
    for body, row in zip(bodies, rows, strict=True):
        assert rows_by_url[row["url"]]["sha256"] == hashlib.sha256(body).hexdigest()
        if "compute_hash" in options:
            assert rows_by_url[row["url"]]["md5"] == hashlib.md5(body).hexdigest()
