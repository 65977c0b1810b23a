"""Images of evaluations and rows of other pools: read, compared, refused."""

from __future__ import annotations

import io
import logging
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clipmill.filters import decontaminate as module
from clipmill.filters import make
from clipmill.filters.base import Batch
from clipmill.filters.decontaminate import Decontaminate
from clipmill.filters.duplicates import OtherPool
from clipmill.filters.near_hashes import content_hash, read_images
from clipmill.manifests.hashes import pdq, phash
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.scorer import score
from tests.manifests.test_phash import photograph
from tests.support.pool_filters import run_inline
from tests.support.small_pool import make_pool, rows


def scored_pool(folder: Path, count: int = 12) -> str:
    pool = make_pool(folder, rows(count), per_shard=5)
    score(PoolWriter(pool), [FilterSpec(name="picture"), FilterSpec(name="pdq")], engine="inline")
    return pool


def test_columns_of_sidecars_and_of_score_sets_are_those_of_stored_rows(tmp_path: Path) -> None:
    other = OtherPool(scored_pool(tmp_path / "pool"))
    table = pa.concat_tables(other.columns(["uid", "phash", "sha256", "pdq_quality"]))
    assert len(table) == 10  # two of twelve attempts failed
    assert table.column_names == ["uid", "phash", "sha256", "pdq_quality"]
    assert table["phash"].null_count == 0
    assert set(table["pdq_quality"].to_pylist()) == {0}


def test_a_group_with_a_row_of_the_other_pool_has_no_survivor(tmp_path: Path) -> None:
    pool = scored_pool(tmp_path / "pool")
    known = pa.concat_tables(OtherPool(pool).columns(["url"]))["url"][3].as_py()
    own = pa.table({"uid": ["a", "b", "c"], "url": [known, known, "https://other.example/"]})
    options = {"on": "sha256", "column": "url", "against": pool}
    filter_ = make(FilterSpec(name="duplicate", options=options))
    columns = run_inline(filter_, [own], 2)  # type: ignore[arg-type]
    survives = {uid: values["duplicate_survivor"] for uid, values in columns.items()}
    assert survives == {"a": False, "b": False, "c": True}

    hashes = pa.concat_tables(OtherPool(pool).columns(["pdq"]))["pdq"]
    near = bytearray(hashes[0].as_py())
    near[0] ^= 0xFF
    random = np.random.default_rng(0).bytes(32)
    own = pa.table(
        {
            "uid": ["a", "b"],
            "pdq": pa.array([bytes(near), random], pa.binary(32)),
            "pdq_quality": pa.array([80, 80], pa.int8()),
        }
    )
    for quality, expected in ((0, [False, True]), (50, [True, True])):  # the other pool is plain
        options = {"on": "perceptual", "against": pool, "quality": quality}
        filter_ = make(FilterSpec(name="duplicate", options=options))
        columns = run_inline(filter_, [own], 2)  # type: ignore[arg-type]
        assert [columns[uid]["duplicate_survivor"] for uid in "ab"] == expected


def test_the_other_pool_is_part_of_the_identity(tmp_path: Path) -> None:
    first, second = scored_pool(tmp_path / "a"), scored_pool(tmp_path / "b", 7)
    identities = set()
    for pool in (first, second):
        options = {"on": "perceptual", "against": pool}
        filter_ = make(FilterSpec(name="duplicate", options=options))
        filter_.check()
        identities.add(filter_.identity())
    assert len(identities - {""}) == 2


def test_pools_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no pool: it has no folder shards"):
        OtherPool(str(tmp_path / "nothing"))
    pool = make_pool(tmp_path / "pool", rows(3))
    with pytest.raises(ValueError, match="no complete column 'pdq'"):
        list(OtherPool(pool).columns(["pdq"]))


def image_bytes(shade: int, kind: str = "PNG") -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (8, 6), (shade, 0, 0)).save(sink, kind)
    return sink.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_images_of_folders_tars_and_tables_have_names(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "a.PNG").write_bytes(image_bytes(10))
    (tmp_path / "notes.txt").write_text("no image")
    write_tar(tmp_path / "shard.tar", {"0.jpg": image_bytes(20, "JPEG"), "0.txt": b"caption"})
    pq.write_table(
        pa.table({"label": [1, 2], "image": [{"bytes": image_bytes(30), "path": "x"}, None]}),
        tmp_path / "test.parquet",
    )
    images = dict(read_images(str(tmp_path)))
    assert list(images) == ["cats/a.PNG", "shard.tar/0.jpg", "test.parquet#0"]
    assert images["test.parquet#0"].getpixel((0, 0)) == (30, 0, 0)
    assert [name for name, _ in read_images(str(tmp_path / "cats" / "a.PNG"))] == ["a.PNG"]


def test_an_image_that_cannot_be_decoded_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "good.png").write_bytes(image_bytes(1))
    with caplog.at_level(logging.WARNING):
        assert [name for name, _ in read_images(str(tmp_path))] == ["good.png"]
    assert "broken.jpg" in caplog.text
    assert "empty.png" in caplog.text


def test_the_hash_is_of_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(image_bytes(1))
    first = content_hash(str(tmp_path))
    assert content_hash(str(tmp_path)) == first
    (tmp_path / "a.png").write_bytes(image_bytes(2) + b"more")
    assert content_hash(str(tmp_path)) != first


def test_what_has_no_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no pool and has no images"):
        list(read_images(str(tmp_path)))
    pq.write_table(pa.table({"label": [1]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="no column of images"):
        list(read_images(str(tmp_path)))


def decontaminate(**options: Any) -> Decontaminate:
    filter_ = make(FilterSpec(name="decontaminate", options=options))
    assert isinstance(filter_, Decontaminate)
    return filter_


def write_images(folder: Path, seeds: list[int]) -> str:
    folder.mkdir()
    for seed in seeds:
        photograph(seed).save(folder / f"{seed}.png")
    Image.new("RGB", (90, 60)).save(folder / "blank.png")
    return str(folder)


def copy_of(seed: int) -> Image.Image:
    sink = io.BytesIO()
    photograph(seed).save(sink, "JPEG", quality=60)
    return Image.open(sink).convert("RGB")


def scored(filter_: Decontaminate, columns: dict[str, pa.Array]) -> list[dict[str, Any]]:
    filter_.setup()
    count = len(next(iter(columns.values())))
    batch = Batch(captions=[""] * count, images=None, rows=pa.table({}), columns=columns)
    rows: list[dict[str, Any]] = pa.table(dict(filter_.score(batch))).to_pylist()
    return rows


def pdq_columns(images: list[Image.Image | None]) -> dict[str, pa.Array]:
    hashes = [pdq(image) if image is not None else (None, None) for image in images]
    return {
        "pdq": pa.array([value for value, _ in hashes], pa.binary(32)),
        "pdq_quality": pa.array([quality for _, quality in hashes], pa.int8()),
    }


def test_copies_of_evaluation_images_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE", 2)
    folder = write_images(tmp_path / "eval", [1, 2, 3, 4, 5])
    images = [copy_of(5), photograph(40), None, Image.new("RGB", (50, 50)), photograph(1)]
    rows = scored(decontaminate(against=folder), pdq_columns(images))
    matches = [row["decontaminate_match"] for row in rows]
    assert matches == ["5.png", "", None, "", "1.png"]
    distances = [row["decontaminate_distance"] for row in rows]
    assert 0 < distances[0] <= 31
    assert distances[1] > 31
    assert distances[2:] == [None, 256, 0]  # not scored; a blank; the same image


def test_the_hash_of_picture_can_be_compared_too(tmp_path: Path) -> None:
    filter_ = decontaminate(against=[write_images(tmp_path / "eval", [1, 2])], column="phash")
    assert filter_.reads == ("picture",)
    hashes = pa.array([phash(copy_of(2)), phash(photograph(9)), None], pa.int64())
    rows = scored(filter_, {"phash": hashes})
    assert [row["decontaminate_match"] for row in rows] == ["2.png", "", None]


def test_a_pool_of_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = pa.list_(pa.float16(), 2)
    table = pa.table({"uid": ["e1", "e2"], "embed_image": pa.array([[1, 0], [0, 1]], kind)})
    monkeypatch.setattr(module.OtherPool, "columns", lambda *_: iter([table]))
    pool = scored_pool(tmp_path / "pool", 3)
    filter_ = decontaminate(against=pool, on="embedding", threshold=0.9)
    assert filter_.reads == ("embed",)
    own = pa.array([[0.1, 2], [1, 1], None], kind)
    rows = scored(filter_, {"embed_image": own})
    assert [row["decontaminate_match"] for row in rows] == ["e2", "", None]
    assert rows[0]["decontaminate_distance"] == pytest.approx(1 - 2 / np.hypot(0.1, 2), abs=1e-3)
    assert rows[2]["decontaminate_distance"] is None


def test_a_pool_of_evaluation_images(tmp_path: Path) -> None:
    pool = scored_pool(tmp_path / "pool", 4)
    filter_ = decontaminate(against=pool, quality=0)
    filter_.check()
    filter_.setup()
    assert len(filter_.names) == 4
    assert filter_.references.shape == (4, 4)


def test_the_images_are_part_of_the_identity_and_their_folder_is_not(tmp_path: Path) -> None:
    first, second = (write_images(tmp_path / name, [1, 2]) for name in "ab")
    third = write_images(tmp_path / "c", [1, 3])
    identities = [decontaminate(against=folder).identity() for folder in (first, second, third)]
    assert identities[0] == identities[1] != identities[2]


def test_images_that_are_not_there_or_have_no_embedding_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no pool and has no images"):
        decontaminate(against=str(tmp_path / "none")).check()
    folder = write_images(tmp_path / "eval", [1])
    with pytest.raises(ValueError, match="is no pool; embeddings are compared with those"):
        decontaminate(against=folder, on="embedding").check()
