"""A model that two filters name is loaded once and run once for each image and caption."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import numpy as np
import pyarrow as pa
import pytest
import torch
from open_clip.transform import image_transform
from PIL import Image
from PIL import __version__ as PILLOW
from torch import Tensor

from clipmill.filters.base import Batch, set_id
from clipmill.filters.clip import model
from clipmill.filters.clip import model as models
from clipmill.filters.clip.filters import ClipScore, Embed
from clipmill.filters.clip.model import Preprocess, run_batches
from clipmill.manifests import hub
from tests.support.late import open_clip


def images(count: int = 11) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [
        Image.fromarray(rng.integers(0, 255, (20 + 5 * i, 40, 3), np.uint8)) for i in range(count)
    ]


def batch_of(images: list[Image.Image]) -> Batch:
    captions = [f"number {i}" for i in range(len(images))]
    return Batch(captions=captions, images=images, rows=pa.table({"caption": captions}))


def clip_score(folder: Path, **options: Any) -> ClipScore:
    filter_ = ClipScore(model=f"local-dir:{folder}", device="cpu", **options)
    filter_.setup()
    return filter_


def loaded(filter_: models.ClipFilter) -> models.ClipModel:
    assert filter_.loaded is not None
    return filter_.loaded


def test_two_filters_share_a_model_its_preprocessing_and_its_forwards(
    clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocessed = []
    pixels_of = models.Preprocess.pixels
    monkeypatch.setattr(
        models.Preprocess,
        "pixels",
        lambda self, image: (preprocessed.append(image), pixels_of(self, image))[1],
    )
    copied = shutil.copytree(clip_folder, tmp_path / "the same weights")
    score = clip_score(clip_folder, precision="fp32")
    embed = Embed(model=f"local-dir:{copied}", device="cpu", precision="fp32")
    embed.setup()
    assert loaded(score) is loaded(embed)
    batch = batch_of(images())
    for image in batch.images or ():
        score.prepare(image)
    scores, columns = score.score(batch), embed.score(batch)
    assert loaded(score).forwards == {"image": 1, "text": 1}
    assert len(preprocessed) == 11
    stored = [np.array(columns[f"embed_{tower}"].to_pylist()) for tower in ("image", "text")]
    np.testing.assert_allclose((stored[0] * stored[1]).sum(-1), scores["clip_score"], atol=1e-3)
    score.score(batch_of(images()))  # other images, the same captions
    assert loaded(score).forwards == {"image": 2, "text": 1}


def test_nothing_is_kept_of_images_and_models_that_are_gone(clip_folder: Path) -> None:
    score = clip_score(clip_folder, precision="fp32")
    model = loaded(score)
    batch = batch_of(images())
    for image in batch.images or ():
        score.prepare(image)
    score.score(batch)
    computed = [weakref.ref(array) for array in model._known(image).values()]
    assert len(computed) == 2
    count = len(models._MODELS)
    del score, model
    gc.collect()
    assert len(models._MODELS) == count - 1
    assert not vars(image)[models.COMPUTED]
    assert [reference() for reference in computed] == [None, None]


def test_captions_of_any_length_keep_their_rows_when_their_batches_are_halved(
    clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = clip_score(clip_folder, precision="fp32")
    captions = ["", "a " * 30, "🦜🦜🦜", "one word", "a " * 7, "x" * 5_000, "a b c d e f"] * 2
    captions = [f"{caption} {number % 5}" for number, caption in enumerate(captions)]
    model, encode, shapes = loaded(score), models.encode_text, []
    expected = np.stack([model.embed_texts([caption], 1)[0] for caption in captions])
    model.texts.clear()

    def small(network: Any, tokens_BT: torch.Tensor) -> torch.Tensor:
        if len(tokens_BT) > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        shapes.append(tuple(tokens_BT.shape))
        return encode(network, tokens_BT)

    monkeypatch.setattr(models, "encode_text", small)
    np.testing.assert_allclose(model.embed_texts(captions, 256), expected, atol=1e-6)
    assert {context for _, context in shapes} == {8, 16}
    assert sum(count for count, _ in shapes) == len(set(captions))


def test_a_folder_without_weights_is_refused(clip_folder: Path, tmp_path: Path) -> None:
    shutil.copy(clip_folder / "open_clip_config.json", tmp_path)
    with pytest.raises(ValueError, match=f"there are no weights in {tmp_path}"):
        models.weights_identity("clip_score", f"local-dir:{tmp_path}", None)


def test_the_configuration_of_a_model_is_read_without_its_weights(clip_folder: Path) -> None:
    assert models.model_config("embed", f"local-dir:{clip_folder}")["embed_dim"] == 16
    assert models.model_config("embed", "ViT-L-14")["embed_dim"] == 768
    with pytest.raises(ValueError, match="did you mean 'ViT-L-14'"):
        models.model_config("embed", "ViT-L14")
    with pytest.raises(ValueError, match=r"no open_clip_config\.json in /nowhere"):
        models.model_config("embed", "local-dir:/nowhere")


@pytest.mark.parametrize(
    ("model", "tag", "quick", "mean", "interpolation"),
    [
        ("ViT-B-32-quickgelu", "openai", True, 0.48145466, "bicubic"),
        ("ViT-B-32", "laion2b_s34b_b79k", False, 0.48145466, "bicubic"),
        ("ViT-L-14-quickgelu", "openai", True, 0.48145466, "bicubic"),
        ("ViT-L-14", "datacomp_xl_s13b_b90k", False, 0.48145466, "bicubic"),
        ("ViT-L-14-quickgelu", "dfn2b", True, 0.48145466, "bicubic"),
        ("ViT-B-16-SigLIP", "webli", False, 0.5, "bicubic"),
    ],
)
def test_activation_and_preprocessing_of_known_weights_stay(
    model: str, tag: str, quick: bool, mean: float, interpolation: str
) -> None:
    """Ids name them by model and tag, so another version of open_clip must not change them."""
    models.check_weights("clip_score", model, tag)
    assert bool(models.model_config("embed", model).get("quick_gelu", False)) is quick
    config = open_clip.get_pretrained_cfg(model, tag)
    assert bool(config.get("quick_gelu", False)) is quick
    assert (config.get("mean") or (0.48145466,))[0] == mean
    assert (config.get("interpolation") or "bicubic") == interpolation


def test_the_id_of_embeddings_follows_the_configuration(
    clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = Embed(model="ViT-B-32", pretrained="laion2b_s34b_b79k", precision="fp32")
    before = set_id(embed)
    config = {**models.model_config("embed", "ViT-B-32"), "quick_gelu": True}
    monkeypatch.setattr("clipmill.filters.clip.filters.model_config", lambda kind, model: config)
    assert set_id(embed) != before


def test_the_fast_resize_is_another_model_and_another_id(clip_folder: Path) -> None:
    exact, fast = (
        clip_score(clip_folder, precision="fp32", resize=resize) for resize in ("exact", "fast")
    )
    half = clip_score(clip_folder, precision="bf16")
    assert len({id(loaded(each)) for each in (exact, fast, half)}) == 3
    assert set_id(exact) != set_id(fast)
    first, second = (filter_.score(batch_of(images()))["clip_score"] for filter_ in (exact, fast))
    np.testing.assert_allclose(first, second, atol=0.01)


def test_the_tokenizer_does_not_remember_words_without_end(
    clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = clip_score(clip_folder, precision="fp32")
    before = score.score(batch_of(images(3)))["clip_score"]
    monkeypatch.setattr(models, "CACHED_WORDS", 10)
    cache = loaded(score).tokenizer.cache
    cache.update({f"word{i}": "w" for i in range(100)})
    loaded(score).texts.clear()
    np.testing.assert_array_equal(score.score(batch_of(images(3)))["clip_score"], before)
    assert len(cache) < 20


def test_a_hub_that_cannot_be_reached_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route\nto the hub")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    embed = Embed(model="hf-hub:org/name", precision="fp32", towers=("image",))
    assert embed.columns() == {"embed_image": pa.list_(pa.float16())}
    with pytest.raises(ValueError, match=r"commit of org/name cannot be read from the hub.* no"):
        embed.identity()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's client, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def store(cache: Path, commit: str, files: Path) -> None:
    """Files of org/clip at a commit, as a download leaves them."""
    folder = cache / "models--org--clip"
    shutil.copytree(files, folder / "snapshots" / commit)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    hub._commit.cache_clear()


def test_the_commit_that_is_stored_here_is_the_id_and_what_is_loaded(
    cache: Path, clip_folder: Path
) -> None:
    store(cache, "a" * 40, clip_folder)
    score = ClipScore(model="hf-hub:org/clip", device="cpu")
    first = score.resolved(gpu=False)
    assert isinstance(first, ClipScore)
    assert first.model == "hf-hub:org/clip@" + "a" * 40
    first_id = set_id(first)
    assert first_id in [set_id(each) for each in score.alternatives()]
    first.setup()
    local = ClipScore(model=f"local-dir:{clip_folder}", device="cpu", precision="fp32")
    local.setup()
    batch = batch_of(images())
    values = first.score(batch)["clip_score"]
    np.testing.assert_array_equal(values, local.score(batch)["clip_score"])
    # The branch moves on: the name has another id, and a filter that was resolved keeps its own.
    store(cache, "b" * 40, clip_folder)
    assert set_id(score.resolved(gpu=False)) != first_id == set_id(first)


def test_a_batch_that_does_not_fit_is_halved_for_good() -> None:
    tried: list[int] = []

    def run(batch: Sequence[int]) -> list[int]:
        tried.append(len(batch))
        if len(batch) > 3:
            raise torch.cuda.OutOfMemoryError("no memory")
        return list(batch)

    limits: dict[str, int] = {}
    parts = run_batches(range(10), 8, limits, "rows", run)
    assert [row for part in parts for row in part] == list(range(10))
    assert tried == [8, 4, 2, 2, 2, 2, 2]
    assert limits == {"rows": 2}
    assert run_batches(range(0), 8, limits, "rows", run) == []


def test_one_row_that_does_not_fit_is_an_error() -> None:
    def run(batch: Sequence[int]) -> None:
        raise torch.cuda.OutOfMemoryError("no memory")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        run_batches(range(2), 1, {}, "rows", run)


FULL, END, WORDS = 40, 99, 98
VISION = {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16}
TEXT = {"context_length": FULL, "vocab_size": 100, "width": 32, "heads": 2, "layers": 2}


def network(custom: bool = False, **text: Any) -> Any:
    torch.manual_seed(0)
    kind = open_clip.CustomTextCLIP if custom else open_clip.CLIP
    return kind(16, dict(VISION), {**TEXT, **text}).eval()


def tokens_of(lengths: list[int]) -> Tensor:
    """(B, FULL): each ends with END and is padded by 0."""
    random = torch.Generator().manual_seed(1)
    tokens_BT = torch.zeros(len(lengths), FULL, dtype=torch.long)
    for row, length in enumerate(lengths):
        tokens_BT[row, : length - 1] = torch.randint(1, WORDS, (length - 1,), generator=random)
        tokens_BT[row, length - 1] = END
    return tokens_BT


LENGTHS = [2, 7, 8, 9, 16, 17, 33, FULL]


@pytest.mark.parametrize(
    ("custom", "options"),
    [
        (False, {}),
        (True, {}),
        (True, {"pool_type": "eos", "eos_id": END}),
        (False, {"pool_type": "eos", "eos_id": END}),
    ],
)
@torch.inference_mode()
def test_embeddings_are_those_of_the_whole_context(custom: bool, options: dict[str, Any]) -> None:
    clip, tokens_BT = network(custom, **options), tokens_of(LENGTHS)
    expected_BE = clip.encode_text(tokens_BT)
    contexts = model.contexts(clip, tokens_BT).tolist()
    assert contexts == [8, 8, 8, 16, 16, 24, 40, 40]
    for row, context in enumerate(contexts):
        given_1E = model.encode_text(clip, tokens_BT[row : row + 1, :context])
        # Values of about 1 in float32, summed in another order: 1.0e-6 apart on some processors
        torch.testing.assert_close(given_1E[0], expected_BE[row], atol=2e-6, rtol=0)
    assert torch.equal(clip.encode_text(tokens_BT), expected_BE)  # nothing of it has changed


@pytest.mark.parametrize(
    "options",
    [
        {"pool_type": "last"},
        {"pool_type": "first"},
        {"no_causal_mask": True},
        {"embed_cls": True},
        {"pool_type": "eos", "eos_id": None},
    ],
)
def test_other_towers_see_every_position(options: dict[str, Any]) -> None:
    clip, tokens_BT = network(True, **options), tokens_of(LENGTHS)
    assert model.contexts(clip, tokens_BT).tolist() == [FULL] * len(LENGTHS)


def test_a_network_of_another_kind_encodes_by_itself() -> None:
    class Other:
        def encode_text(self, tokens_BT: Tensor) -> str:
            return f"encoded {tuple(tokens_BT.shape)}"

    tokens_BT = tokens_of([3, 5])
    assert model.contexts(Other(), tokens_BT).tolist() == [FULL, FULL]
    assert model.encode_text(Other(), tokens_BT) == f"encoded (2, {FULL})"


SHAPES = [(50, 40), (40, 50), (32, 32), (7, 5), (300, 33), (33, 300), (1, 1), (2, 90), (341, 256)]


def drawn(width: int, height: int) -> Image.Image:
    random = np.random.default_rng(width * 1000 + height)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"interpolation": "bilinear"},
        {"resize_mode": "squash"},
        {"resize_mode": "longest", "fill_color": 7},
        {"image_size": (24, 40)},
        {"mean": (0.5, 0.4, 0.3), "std": (0.1, 0.2, 0.3)},
    ],
)
def test_every_bit_is_that_of_open_clips_transform(options: dict[str, Any]) -> None:
    transform = image_transform(**{"image_size": 32, **options}, is_train=False)
    preprocess = Preprocess(transform)
    images = [drawn(*shape) for shape in SHAPES]
    expected_BCHW = torch.stack([transform(image) for image in images])
    pixels = [preprocess.pixels(image) for image in images]
    assert all(each.dtype == np.uint8 for each in pixels)
    assert torch.equal(preprocess.normalised(pixels), expected_BCHW)


def test_a_transform_with_another_end_is_refused() -> None:
    transform = image_transform(32, is_train=False)
    transform.transforms.pop()
    with pytest.raises(ValueError, match="ends with MaybeConvertMode, MaybeToTensor; it must end"):
        Preprocess(transform)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_the_fast_resize_is_within_two_levels(interpolation: str) -> None:
    transform = image_transform(32, is_train=False, interpolation=interpolation)
    exact, fast = Preprocess(transform), Preprocess(transform, fast=True)
    differences = []
    # Before Pillow 13 a tall image was scaled across first, and differs by more.
    tall = [(33, 300), (90, 300)] if int(PILLOW.split(".")[0]) >= 13 else []
    for shape in [(50, 40), (40, 50), (32, 32), (300, 33), (64, 64), (20, 20), *tall]:
        signed = exact.pixels(drawn(*shape)).astype(int) - fast.pixels(drawn(*shape))
        differences.append(abs(signed))
    assert max(int(each.max()) for each in differences) <= 2
    assert np.mean([each.mean() for each in differences]) < 0.1


def test_the_fast_resize_is_refused_where_the_model_squashes() -> None:
    transform = image_transform(32, is_train=False, resize_mode="squash")
    with pytest.raises(ValueError, match="this one does Resize, MaybeConvertMode: leave resize"):
        Preprocess(transform, fast=True)
