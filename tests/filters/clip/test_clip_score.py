"""The cosine that open_clip gives, however the rows are cut into batches; wrong weights are
refused early."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pyarrow as pa
import pytest
import torch
from PIL import Image

from filters.base import Batch, set_id
from filters.clip.filters import ClipScore

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
    ("precision", "number"), [("fp32", "7d9be6ea3b29"), ("bf16", "23b98c6c16d2")]
)
def test_ids_of_before_stay(precision: Any, number: str) -> None:
    """Folders of pools that were scored before clip_score had further options."""
    score = ClipScore(model="ViT-B-32", pretrained="laion2b_s34b_b79k", precision=precision)
    assert set_id(score) == number


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
    monkeypatch.setattr("filters.clip.model.find_spec", lambda name: None)
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
