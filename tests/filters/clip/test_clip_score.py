"""Embeddings and their cosine, however rows are cut into batches; wrong weights are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from clipmill.filters.base import Batch, set_id
from clipmill.filters.clip.filters import ClipScore, Embed, fixed_lists, stored_embeddings
from tests.support.late import open_clip

CAPTIONS = [f"picture {'of something ' * i}number {i}" for i in range(11)]


def images() -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [
        Image.fromarray(random.integers(0, 255, (20 + 5 * i, 40, 3), np.uint8)) for i in range(11)
    ]


def scored(folder: Path, **options: Any) -> np.ndarray[Any, Any]:
    filter_ = ClipScore(model=f"local-dir:{folder}", device="cpu", **options)
    filter_.setup()
    return np.asarray(
        filter_.score(Batch(captions=CAPTIONS, images=images(), rows=pa.table({})))["clip_score"]
    )


def test_the_same_cosine_as_by_hand(clip_folder: Path) -> None:
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{clip_folder}")
    text_BT = open_clip.tokenize(CAPTIONS, context_length=16)
    with torch.no_grad():
        image_BE = model.eval().encode_image(
            torch.stack([transform(p) for p in images()]), normalize=True
        )
        text_BE = model.encode_text(text_BT, normalize=True)
    scores = scored(clip_folder)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, (image_BE * text_BE).sum(-1).numpy(), atol=1e-6)
    assert scores.std() > 0.01  # rows differ


@pytest.mark.slow
def test_the_batch_split_and_a_second_run_change_nothing(clip_folder: Path) -> None:
    whole = scored(clip_folder)
    assert np.array_equal(whole, scored(clip_folder))
    for size in (1, 4, 10):
        np.testing.assert_allclose(scored(clip_folder, batch_size=size), whole, atol=1e-6)


def test_precision_is_heard(clip_folder: Path) -> None:
    exact, half = scored(clip_folder, precision="fp32"), scored(clip_folder, precision="bf16")
    assert not np.array_equal(exact, half)
    np.testing.assert_allclose(exact, half, atol=0.05)


def test_an_empty_batch(clip_folder: Path) -> None:
    filter_ = ClipScore(model=f"local-dir:{clip_folder}")
    filter_.setup()
    assert len(filter_.score(Batch(captions=[], images=[], rows=pa.table({})))["clip_score"]) == 0


def test_the_id_is_of_the_weights_and_not_of_their_place(clip_folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(clip_folder, moved)
    first = set_id(exact(clip_folder))
    assert set_id(exact(moved)) == first
    with open(moved / "open_clip_model.safetensors", "r+b") as f:
        f.seek(-1, 2)
        f.write(b"\x01")
    assert set_id(exact(moved)) != first


def exact(folder: Path) -> ClipScore:
    return ClipScore(model=f"local-dir:{folder}", precision="fp32")


def test_precision_auto_has_no_id_before_it_is_resolved(clip_folder: Path) -> None:
    auto = ClipScore(model=f"local-dir:{clip_folder}", batch_size=7)
    with pytest.raises(AssertionError, match="clip_score must be resolved first"):
        set_id(auto)
    assert set_id(auto.resolved(gpu=False)) == set_id(exact(clip_folder))
    assert set_id(auto.resolved(gpu=True)) != set_id(exact(clip_folder))
    assert [set_id(each) for each in auto.alternatives()] == [
        set_id(auto.resolved(gpu=gpu)) for gpu in (False, True)
    ]
    assert exact(clip_folder).alternatives() == (exact(clip_folder),)
    assert auto.resolved(gpu=True).batch_size == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model", "pretrained", "message"),
    [
        ("ViT-B-32", "laion2b_s34b_b79", "did you mean 'laion2b_s34b_b79k'"),
        (
            "ViT-L-14",
            "openai",
            "another activation than ViT-L-14 has; write model: ViT-L-14-quickgelu",
        ),
        ("ViT-B-32", "openai", "write model: ViT-B-32-quickgelu"),
        ("ViT-B-32-quickgelu", "laion2b_s34b_b79k", "write model: ViT-B-32$"),
        ("ViT-B-33", "openai", "no model 'ViT-B-33'; did you mean 'ViT-B-32'"),
        ("ViT-B-32-quickgelu", "laion9b", "has no weights 'laion9b'"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_a_pass(
    model: str, pretrained: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ClipScore(model=model, pretrained=pretrained).check()


def test_weights_that_fit_pass() -> None:
    ClipScore(model="ViT-L-14-quickgelu", pretrained="openai").check()
    ClipScore(model="ViT-B-32", pretrained="laion2b_s34b_b79k").check()
    ClipScore(model="hf-hub:org/name").check()


def test_a_machine_without_open_clip_may_crawl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clipmill.filters.clip.model.find_spec", lambda name: None)
    ClipScore(model="ViT-B-33", pretrained="openai").check()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(clip_folder: Path) -> None:
    with pytest.raises(ValueError, match="there is no GPU here"):
        ClipScore(model=f"local-dir:{clip_folder}", device="cuda").setup()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_gpu_agrees(clip_folder: Path) -> None:
    filter_ = ClipScore(model=f"local-dir:{clip_folder}", precision="fp32")
    filter_.setup()
    scores = filter_.score(Batch(captions=CAPTIONS, images=images(), rows=pa.table({})))[
        "clip_score"
    ]
    np.testing.assert_allclose(np.asarray(scores), scored(clip_folder), atol=1e-3)


THREE = ["a dog", "a red boat on a lake", "a dog"]


def three_images() -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 255, (40, 30, 3), np.uint8)) for _ in range(3)]


def embed(folder: Path, **options: Any) -> Embed:
    filter_ = Embed(model=f"local-dir:{folder}", device="cpu", precision="fp32", **options)
    filter_.setup()
    return filter_


def test_both_towers_as_open_clip_embeds_them(clip_folder: Path, tmp_path: Path) -> None:
    filter_ = embed(clip_folder)
    rows = pa.table({"caption": ["a dog", None, "a dog"]})
    batch = Batch(captions=["a dog", "", "a dog"], images=three_images(), rows=rows)
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
            torch.stack([transform(image) for image in three_images()]), normalize=True
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
    batch = Batch(captions=THREE, images=None, rows=pa.table({}))
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
    batch = Batch(captions=THREE, images=three_images(), rows=pa.table({}))
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
