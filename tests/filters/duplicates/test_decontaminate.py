from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from filters import decontaminate as module
from filters import make
from filters.base import Batch
from filters.decontaminate import Decontaminate
from manifests.hashes import pdq, phash
from manifests.schema import FilterSpec
from tests.filters.duplicates.test_other_pool import scored_pool
from tests.manifests.test_phash import photograph


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


def score(filter_: Decontaminate, columns: dict[str, pa.Array]) -> list[dict[str, Any]]:
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
    rows = score(decontaminate(against=folder), pdq_columns(images))
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
    rows = score(filter_, {"phash": hashes})
    assert [row["decontaminate_match"] for row in rows] == ["2.png", "", None]


def test_a_pool_of_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = pa.list_(pa.float16(), 2)
    table = pa.table({"uid": ["e1", "e2"], "embed_image": pa.array([[1, 0], [0, 1]], kind)})
    monkeypatch.setattr(module.OtherPool, "columns", lambda *_: iter([table]))
    pool = scored_pool(tmp_path / "pool", 3)
    filter_ = decontaminate(against=pool, on="embedding", threshold=0.9)
    assert filter_.reads == ("embed",)
    own = pa.array([[0.1, 2], [1, 1], None], kind)
    rows = score(filter_, {"embed_image": own})
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
