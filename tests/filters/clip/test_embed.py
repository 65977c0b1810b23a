"""Embeddings as Arrow columns of fixed-size fp16 lists, and read back from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from filters.base import Batch, set_id
from filters.clip.filters import ClipScore, Embed, fixed_lists, stored_embeddings

CAPTIONS = ["a dog", "a red boat on a lake", "a dog"]


def images() -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 255, (40, 30, 3), np.uint8)) for _ in range(3)]


def embed(folder: Path, **options: Any) -> Embed:
    filter_ = Embed(model=f"local-dir:{folder}", device="cpu", precision="fp32", **options)
    filter_.setup()
    return filter_


def test_both_towers_as_open_clip_embeds_them(clip_folder: Path, tmp_path: Path) -> None:
    filter_ = embed(clip_folder)
    rows = pa.table({"caption": ["a dog", None, "a dog"]})
    batch = Batch(captions=["a dog", "", "a dog"], images=images(), rows=rows)
    table = pa.table(dict(filter_.score(batch)))
    assert dict(zip(table.column_names, table.schema.types, strict=True)) == filter_.columns()
    assert filter_.columns()["embed_image"] == pa.list_(pa.float16(), 16)
    assert table["embed_text"].null_count == 1  # the row without a caption keeps its image
    assert table["embed_image"].null_count == 0

    pq.write_table(table, tmp_path / "embed.parquet")
    stored = pq.read_table(tmp_path / "embed.parquet")
    image_BE, there = stored_embeddings({"e_image": stored["embed_image"]}, "e", "image")
    assert there.all()
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{clip_folder}")
    with torch.no_grad():
        expected_BE = model.eval().encode_image(
            torch.stack([transform(image) for image in images()]), normalize=True
        )
    np.testing.assert_allclose(image_BE, expected_BE.numpy(), atol=2e-3)
    np.testing.assert_allclose(np.linalg.norm(image_BE, axis=1), 1, atol=1e-6)
    text_BE, there = stored_embeddings({"e_text": stored["embed_text"]}, "e", "text")
    assert there.tolist() == [True, False, True]
    assert not text_BE[1].any()
    assert np.array_equal(text_BE[0], text_BE[2])


def test_one_tower_needs_only_its_side(clip_folder: Path) -> None:
    text, image = embed(clip_folder, towers=("text",)), embed(clip_folder, towers=("image",))
    assert text.needs == {"caption"}
    assert image.needs == {"image"}
    batch = Batch(captions=CAPTIONS, images=None, rows=pa.table({}))
    assert list(text.score(batch)) == ["embed_text"]
    assert len({set_id(text), set_id(image), set_id(embed(clip_folder))}) == 3
    both = embed(clip_folder, towers=("text", "image"))
    assert set_id(both) == set_id(embed(clip_folder, towers=("image", "text")))


def test_a_recipe_may_name_a_model_that_is_trained_later(tmp_path: Path) -> None:
    later = Embed(model=f"local-dir:{tmp_path}/export", towers=("text",))
    assert later.columns() == {"embed_text": pa.list_(pa.float16())}
    with pytest.raises(ValueError, match=r"there is no open_clip_config\.json"):
        later.identity()


def test_a_score_of_stored_embeddings_is_close_to_that_of_the_model(clip_folder: Path) -> None:
    batch = Batch(captions=CAPTIONS, images=images(), rows=pa.table({}))
    direct = ClipScore(model=f"local-dir:{clip_folder}", device="cpu", precision="fp32")
    direct.setup()
    exact = np.asarray(direct.score(batch)["clip_score"])
    columns: dict[str, Any] = dict(embed(clip_folder).score(batch))
    stored = {f"mine_{name.removeprefix('embed_')}": column for name, column in columns.items()}
    from_columns = ClipScore(on="mine")
    from_columns.setup()
    assert from_columns.reads == ("mine",)
    assert not from_columns.needs
    rows = Batch(captions=["", "", ""], images=None, rows=pa.table({}), columns=stored)
    np.testing.assert_allclose(from_columns.score(rows)["clip_score"], exact, atol=1e-3)


def test_the_rounding_to_fp16_stays_in_its_bound() -> None:
    random = np.random.default_rng(0)
    pairs = random.standard_normal((2, 2000, 512)).astype(np.float32)
    pairs[1, ::2] += 3 * pairs[0, ::2]  # similar pairs too
    pairs /= np.linalg.norm(pairs, axis=-1, keepdims=True)
    kind = pa.list_(pa.float16(), 512)
    columns = {"e_image": fixed_lists(pairs[0], kind), "e_text": fixed_lists(pairs[1], kind)}
    rows = Batch(captions=[""] * 2000, images=None, rows=pa.table({}), columns=columns)
    scores = ClipScore(on="e").score(rows)["clip_score"]
    exact = (pairs[0].astype(np.float64) * pairs[1]).sum(-1)
    assert np.abs(scores - exact).max() < 1e-4


def test_a_column_that_is_not_there_is_named(clip_folder: Path) -> None:
    columns = {"e_image": fixed_lists(np.ones((1, 16), np.float32), pa.list_(pa.float16(), 16))}
    rows = Batch(captions=[""], images=None, rows=pa.table({}), columns=columns)
    with pytest.raises(ValueError, match=r"e has no column e_text; it must be an embed filter"):
        ClipScore(on="e").score(rows)
