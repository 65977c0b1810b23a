"""A CLIP as filters use it: from the hub or a folder, loaded once, in batches that fit."""

from __future__ import annotations

import json
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from PIL import Image

from clipmill.filters.base import FREE, Filter, package_folder, with_options
from clipmill.filters.picture import PIXELS
from clipmill.manifests import disk, preprocess
from clipmill.manifests.arrays import Float32Array, Integers, Pixels
from clipmill.manifests.clip_tokenizer import with_long_words
from clipmill.manifests.hub import check_open_clip, check_repository, pinned, snapshot

# --------------------------------------------------------------------------------------------------
# Rows through a model in batches that fit in the memory of a GPU.


logger = logging.getLogger(__name__)

T = TypeVar("T")


def run_batches(
    rows: Sequence[Any],
    batch_size: int,
    limits: dict[str, int],
    what: str,
    run: Callable[[Sequence[Any]], T],
) -> list[T]:
    """What `run` gives for each batch, in the order of the rows.

    A batch that does not fit in the memory of the GPU is halved until it fits, and later batches
    are no larger: `limits[what]` keeps the size.
    """
    import torch

    results: list[T] = []
    start = 0
    while start < len(rows):
        batch = rows[start : start + min(batch_size, limits.get(what, batch_size))]
        try:
            results.append(run(batch))
        except torch.cuda.OutOfMemoryError:
            if len(batch) == 1:
                raise
            limits[what] = len(batch) // 2
            logger.warning(
                "out of GPU memory with %d rows; batches of %s have %d rows from now on",
                len(batch),
                what,
                limits[what],
            )
        else:
            start += len(batch)
            continue
        torch.cuda.empty_cache()  # here the error no longer holds the tensors of the batch
    return results


# --------------------------------------------------------------------------------------------------
# An image as the pixels that a CLIP's own validation transform gives, in fewer steps.
#
# open_clip's transform ends with ToTensor and Normalize, which make three copies of an image in
# float32. `Preprocess.pixels` stops before them, at uint8, and `Preprocess.normalised` does both in
# one pass over a batch. Values are the same to the last bit.


# The last steps of open_clip's validation transforms, whatever precedes them.
FLOAT_STEPS = ["MaybeToTensor", "Normalize"]
# The steps before them, by the resize_mode that they are of.
PIXEL_STEPS = {
    ("Resize", "CenterCrop", "MaybeConvertMode"): "shortest",
    ("ResizeKeepRatio", "CenterCrop", "MaybeConvertMode"): "shortest",  # to another shape
    ("Resize", "MaybeConvertMode"): "squash",
    ("ResizeKeepRatio", "CenterCropOrPad", "MaybeConvertMode"): "longest",
}


class Preprocess:
    """A validation transform of open_clip, cut into a part that gives uint8 and a part that gives
    float32."""

    def __init__(self, transform: Any, *, fast: bool = False) -> None:
        """transform: torchvision's Compose of open_clip's image_transform(is_train=False).

        fast: resize by torch's uint8 kernel instead of Pillow. It rounds the weights of a filter to
        16 bits where Pillow has 22, so that 1 of 300 values differs, by a level or two.

        ValueError for a transform with other steps than open_clip's, and for `fast` where it does
        not scale the shorter side to a square and crop the centre.
        """
        *steps, to_tensor, normalize = transform.transforms
        names = [type(to_tensor).__name__, type(normalize).__name__]
        if names != FLOAT_STEPS:
            raise ValueError(
                f"a CLIP's validation transform ends with {', '.join(names)}; "
                f"it must end with {', '.join(FLOAT_STEPS)}"
            )
        self.mean, self.std = normalize.mean, normalize.std
        kinds = tuple(type(step).__name__ for step in steps)
        if kinds not in PIXEL_STEPS:
            raise ValueError(f"a CLIP's validation transform has other steps: {', '.join(kinds)}")
        size = steps[min(1, len(steps) - 2)].size  # of the crop, where there is one
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.settings = preprocess.Preprocess(
            resize_mode=PIXEL_STEPS[kinds],
            interpolation=steps[0].interpolation.value,
            fill_color=getattr(steps[1], "fill", 0),
        )
        self.fast = fast
        if fast and kinds[:2] != ("Resize", "CenterCrop"):
            raise ValueError(
                f"resize: fast is for models that scale the shorter side and crop the centre; "
                f"this one does {', '.join(kinds)}: leave resize out"
            )

    def pixels(self, image: Image.Image) -> Pixels:
        """(H, W, 3) of an RGB image, resized and cropped."""
        if not self.fast:
            return self.settings.pixels(image, self.size)
        height, width = self.settings.scaled_size(image.height, image.width, self.size)
        interpolation = self.settings.interpolation
        scaled_HWC = _resized_by_torch(_array_of(image), width, height, interpolation)
        return self.settings.cropped(scaled_HWC, self.size)

    def normalised(self, pixels: Sequence[Pixels]) -> Any:
        """(B, 3, H, W) float32 tensor: scaled to [0, 1], less the mean, divided by the standard
        deviation.

        An image is finished before the next one is begun, so that it stays in the cache.
        """
        import torch

        mean_C11 = np.array(self.mean, np.float32).reshape(-1, 1, 1)
        std_C11 = np.array(self.std, np.float32).reshape(-1, 1, 1)
        height, width, channels = pixels[0].shape
        batch_BCHW = torch.empty(len(pixels), channels, height, width)
        for image_CHW, pixels_HWC in zip(batch_BCHW.numpy(), pixels, strict=True):
            np.copyto(image_CHW, pixels_HWC.transpose(2, 0, 1))
            np.divide(image_CHW, 255, out=image_CHW)
            np.subtract(image_CHW, mean_C11, out=image_CHW)
            np.divide(image_CHW, std_C11, out=image_CHW)
        return batch_BCHW


def _array_of(image: Image.Image) -> Pixels:
    """(H, W, 3) of an RGB image: the array that it was decoded to, where it is still at hand."""
    decoded: Pixels | None = getattr(image, PIXELS, None)
    return np.asarray(image) if decoded is None else decoded


def _resized_by_torch(pixels_HWC: Pixels, width: int, height: int, interpolation: str) -> Pixels:
    import torch
    import torch.nn.functional as F

    if pixels_HWC.shape[:2] == (height, width):
        return pixels_HWC
    # Pillow gives a read-only array, which torch does not take.
    image_1CHW = torch.from_numpy(pixels_HWC.copy()).permute(2, 0, 1)[None]
    sizes = [(height, width)]
    full_height, full_width = pixels_HWC.shape[:2]
    # Pillow from version 13 begins with the vertical pass where the height shrinks much more. Each
    # pass rounds to 8 bits, so that the order of the two is visible.
    if full_height - height > 2 * max(0, full_width - width):
        sizes.insert(0, (height, full_width))
    for size in sizes:
        image_1CHW = F.interpolate(image_1CHW, size=size, mode=interpolation, antialias=True)
    scaled_HWC: Pixels = image_1CHW[0].permute(1, 2, 0).numpy()
    return scaled_HWC


# --------------------------------------------------------------------------------------------------
# Captions through the text tower of open_clip without most of their padding.
#
# A causal tower that pools at the end of the text gives the same embedding, up to rounding,
# however many positions follow: those before do not see them. A caption of 12 tokens is run at a
# context of 16 in place of 77, which is a fifth of the work.


# A context is the length of a caption rounded up to a multiple of this, so that a batch has few
# lengths and that the context of a caption does not depend on the other captions.
CONTEXT_STEP = 8
POOLED_AT_END = {"argmax", "eos"}


def contexts(network: Any, tokens_BT: Any) -> Integers:
    """(B,) positions that each caption is run at; all T where the tower needs every one."""
    full = tokens_BT.shape[1]
    names = _causal_tower(network)
    if names is None:
        return np.full(len(tokens_BT), full)
    pool, end = names[1:]
    is_end_BT = tokens_BT if pool == "argmax" else (tokens_BT == end).int()
    lengths: Integers = is_end_BT.argmax(dim=1).numpy() + 1
    cut: Integers = np.minimum(-(-lengths // CONTEXT_STEP) * CONTEXT_STEP, full)
    return cut


def encode_text(network: Any, tokens_BT: Any) -> Any:
    """(B, width): encode_text of the network, for T up to its context length."""
    names = _causal_tower(network)
    context = tokens_BT.shape[1]
    if names is None:
        return network.encode_text(tokens_BT)
    prefix = names[0]
    tower = network.get_submodule(prefix.rstrip("."))
    if context == len(tower.positional_embedding):
        return network.encode_text(tokens_BT)
    from torch.func import functional_call

    shorter = {
        f"{prefix}positional_embedding": tower.positional_embedding[:context],
        f"{prefix}attn_mask": tower.attn_mask[:context, :context],
    }
    network.forward = network.encode_text  # functional_call calls forward
    try:
        return functional_call(network, shorter, (tokens_BT,), tie_weights=False)
    finally:
        del network.forward


def _causal_tower(network: Any) -> tuple[str, str, int | None] | None:
    """(prefix of the tower's names, pooling, token of the end) of a text tower whose embeddings
    do not depend on padding; None for others: towers of Hugging Face, CoCa, SigLIP."""
    import open_clip
    from open_clip.transformer import TextTransformer

    if type(network) is open_clip.CLIP:
        prefix, tower = "", network
        pool, end = network.text_pool_type, getattr(network, "text_eos_id", None)
    elif type(network) is open_clip.CustomTextCLIP and type(network.text) is TextTransformer:
        prefix, tower = "text.", network.text
        if tower.cls_emb is not None or tower.output_tokens or getattr(tower, "use_pad_mask", True):
            return None
        pool, end = tower.pool_type, getattr(tower, "eos_id", None)
    else:
        return None
    if pool not in POOLED_AT_END or (pool == "eos" and end is None) or tower.attn_mask is None:
        return None
    return prefix, pool, end


# --------------------------------------------------------------------------------------------------
# CLIP models that the filters of a worker share.
#
# A model is loaded once per worker for all filters that name the same weights at the same
# precision on the same device. An image of the batch at hand is preprocessed once and passed
# through the model once, a caption too, however many filters ask for their embeddings.


LOCAL, HUB = "local-dir:", "hf-hub:"
WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".json")  # what open_clip reads of a local folder
CONFIG = "open_clip_config.json"
# What is read of a repository of the hub; there may be weights in several forms.
HUB_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
HUB_FILES_OF_OLD = ["open_clip_pytorch_model.bin"]
COMPUTED = "clip_computed"  # attribute of an image that models have seen
PREPROCESS_THREADS = min(8, os.cpu_count() or 1)

BATCH: dict[str, Any] = {**FREE, "least": 1}
CACHED_WORDS = 2**18  # the tokenizer caches every word; a crawl brings new ones without end

Embeddings = Float32Array  # (rows, width), each row of length 1


@dataclass(kw_only=True)
class ModelFilter(Filter):
    """The options of every filter that runs a network, and their checks.

    model: its weights, in a form that the filter names; `local-dir:FOLDER` is one of all. precision
    auto is bf16 on a GPU and fp32 elsewhere; it is resolved before the id of the columns is made.
    """

    hub: ClassVar[str] = HUB  # what a model of the hub begins with
    model: str = field(default="", metadata=FREE)  # identity() says which weights these are
    batch_size: int = field(default=256, metadata=BATCH)
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=FREE)
    precision: Literal["auto", "fp32", "bf16"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_model_options()

    def check_model_options(self) -> None:
        """ValueError for options that contradict each other."""
        if not self.model:
            raise ValueError(f"filter {self.name} needs the option model")
        if self.model.startswith(LOCAL):  # a worker may start in another folder
            self.model = LOCAL + os.path.abspath(self.model.removeprefix(LOCAL))

    def alternatives(self) -> tuple[Filter, ...]:
        if self.precision != "auto" or not self.model:
            return (self,)
        return tuple(with_options(self, precision=precision) for precision in ("fp32", "bf16"))

    def resolved(self, *, gpu: bool) -> Filter:
        precision = self.precision
        if precision == "auto" and self.model:
            precision = "bf16" if gpu else "fp32"
        model = self.pinned_model()
        if (model, precision) == (self.model, self.precision):
            return self
        resolved: Filter = with_options(self, model=model, precision=precision)
        return resolved

    def pinned_model(self) -> str:
        """The model, with the commit where it is one of the hub: so all workers load the same."""
        if not self.model.startswith(self.hub):
            return self.model
        return self.hub + pinned(f"filter {self.name}", self.model.removeprefix(self.hub))

    def check_reach(self) -> None:
        if self.model.startswith(self.hub):
            check_repository(f"filter {self.name}", self.model.removeprefix(self.hub))

    def place(self) -> tuple[str, bool]:
        """The device that this machine has for the filter, and whether it runs in bf16.

        ValueError for a device that this machine does not have.
        """
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"filter {self.name}: device is cuda, but there is no GPU here; leave device out"
            )
        on_gpu = self.device != "cpu" and torch.cuda.is_available()
        half = self.precision == "bf16" or (self.precision == "auto" and on_gpu)
        return "cuda" if on_gpu else "cpu", half


@dataclass(kw_only=True)
class ClipFilter(ModelFilter):
    """The options of every filter that runs a CLIP, and their checks.

    model: a name of open_clip with `pretrained` (a tag, or a file of weights), or
    `local-dir:FOLDER` or `hf-hub:ORG/NAME`, which bring their own weights. precision auto is bf16
    on a GPU and fp32 elsewhere; it is resolved before the id of the columns is made. resize exact
    is Pillow's, as in open_clip's transform; fast is torch's, see `Preprocess`, and makes another
    id.
    """

    pretrained: str | None = field(default=None, metadata=FREE)
    resize: Literal["exact", "fast"] = field(default="exact", metadata=FREE)  # see identity()
    loaded: Any = field(default=None, init=False, repr=False, compare=False)  # ClipModel

    def check_model_options(self) -> None:
        super().check_model_options()
        brings_weights = self.model.startswith((LOCAL, HUB))
        if brings_weights and self.pretrained is not None:
            raise ValueError(
                f"filter {self.name}: {self.model} brings its own weights; leave pretrained out"
            )
        if not brings_weights and self.pretrained is None:
            raise ValueError(
                f"filter {self.name}: model {self.model} has no weights of its own; "
                "name them with pretrained: TAG"
            )

    def identity(self) -> str:
        identity = weights_identity(self.name, self.model, self.pretrained)
        return identity if self.resize == "exact" else f"{identity} resize: {self.resize}"

    def check(self) -> None:
        """Model and weights against open_clip's own tables.

        A machine without open_clip cannot check them: it may crawl and fetch, and scoring refuses
        there.
        """
        check_weights(self.name, self.model, self.pretrained)

    def check_reach(self) -> None:
        super().check_reach()
        if not self.model.startswith((LOCAL, HUB)) and self.pretrained is not None:
            check_open_clip(f"filter {self.name}", self.model, self.pretrained)

    def setup(self) -> None:
        if self.model:
            self.loaded = shared_model(self)

    def prepare(self, image: Image.Image) -> None:
        assert self.loaded is not None
        self.loaded.prepare(image)


# --- which weights these are ----------------------------------------------------------------------


def weights_identity(kind: str, model: str, pretrained: str | None) -> str:
    """A hash or a name of the weights and the configuration of a model. It loads none of them.

    kind: the filter, for messages. ValueError for a model that does not exist.
    """
    if model.startswith(HUB):
        return HUB + pinned(f"filter {kind}", model.removeprefix(HUB))
    folder = _config_file(kind, model).parent
    if model.startswith(LOCAL):
        files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS)
        if all(path.suffix == ".json" for path in files):  # open_clip would draw random weights
            raise ValueError(f"filter {kind}: there are no weights in {folder}")
        return disk.content_hash({path.name: disk.file_sha256(path) for path in files}, 64)
    assert pretrained is not None
    weights = disk.file_sha256(pretrained) if os.path.isfile(pretrained) else pretrained
    return f"{model}:{weights}"


def model_config(kind: str, model: str) -> dict[str, Any]:
    """open_clip's configuration of a model (embed_dim, vision_cfg, text_cfg, quick_gelu …).

    A model of the hub may be downloaded in part. ValueError for a model that does not exist.
    """
    config: dict[str, Any] = json.loads(_config_file(kind, model).read_text())
    inner: dict[str, Any] = config.get("model_cfg", config)
    return inner


def _config_file(kind: str, model: str) -> Path:
    if not model.startswith((LOCAL, HUB)):
        configs = package_folder("open_clip", kind) / "model_configs"
        known = [path.stem for path in configs.glob("*.json")]
        if model not in known:
            raise ValueError(
                f"filter {kind}: open_clip has no model {model!r}{disk.did_you_mean(model, known)}"
            )
        return configs / f"{model}.json"
    folder = model.removeprefix(LOCAL)
    if model.startswith(HUB):
        folder = snapshot(f"filter {kind}", model.removeprefix(HUB), [CONFIG])
    if not os.path.isfile(os.path.join(folder, CONFIG)):
        raise ValueError(f"filter {kind}: there is no {CONFIG} in {folder}")
    return Path(folder) / CONFIG


def check_weights(kind: str, model: str, pretrained: str | None) -> None:
    """ValueError for weights that open_clip does not have or that were trained with another
    activation."""
    if not model or model.startswith((LOCAL, HUB)) or find_spec("open_clip") is None:
        return
    _config_file(kind, model)
    if os.path.isfile(str(pretrained)):
        return
    import open_clip

    tags = open_clip.list_pretrained_tags_by_model(model)
    trained_quick = _trained_with_quick_gelu(model, str(pretrained))
    if pretrained not in tags and trained_quick is None:
        raise ValueError(
            f"filter {kind}: {model} has no weights {pretrained!r}"
            f"{disk.did_you_mean(str(pretrained), tags)}; it has {', '.join(tags)}"
        )
    # Weights trained with one activation and run with the other lose points silently.
    runs_quick = bool(open_clip.get_model_config(model).get("quick_gelu", False))
    if trained_quick != runs_quick:
        plain = model.removesuffix("-quickgelu")
        other = f"{plain}-quickgelu" if trained_quick else plain
        raise ValueError(
            f"filter {kind}: {pretrained} was trained with another activation than "
            f"{model} has; write model: {other}"
        )


def _trained_with_quick_gelu(model: str, pretrained: str) -> bool | None:
    """The activation that weights of `model` or of its -quickgelu variant were trained with;
    None for other weights."""
    import open_clip

    plain = model.removesuffix("-quickgelu")
    for name in (model, plain, f"{plain}-quickgelu"):
        if pretrained in open_clip.list_pretrained_tags_by_model(name):
            config = open_clip.get_pretrained_cfg(name, pretrained)
            return bool(config.get("quick_gelu", False))
    return None


# --- a loaded model -------------------------------------------------------------------------------


class ClipModel:
    """A CLIP of open_clip in evaluation mode, with its transform and its tokenizer."""

    def __init__(
        self, network: Any, preprocess: Preprocess, tokenizer: Any, device: Any, half: bool
    ) -> None:
        """half: forward in bf16 by autocast."""
        self.network, self.preprocess, self.tokenizer = network, preprocess, tokenizer
        self.device, self.half = device, half
        self.special_words = dict(getattr(tokenizer, "cache", {}))
        self.largest: dict[str, int] = {}  # per tower: the batch that fitted after an error
        self.forwards = {"image": 0, "text": 0}  # batches that went through a tower
        self.texts: dict[str, Embeddings] = {}  # of the captions that were asked for last

    def prepare(self, image: Image.Image) -> None:
        """Preprocess an image before it is asked for, in the thread that decoded it.

        An image that cannot be preprocessed raises when it is asked for.
        """
        known = self._known(image)
        if "pixels" not in known:
            with suppress(Exception):
                known["pixels"] = self.preprocess.pixels(image)

    def _known(self, image: Image.Image) -> dict[str, Any]:
        """What this model has computed of an image, as long as both exist."""
        of_models = vars(image).setdefault(COMPUTED, weakref.WeakKeyDictionary())
        known: dict[str, Any] = of_models.setdefault(self, {})
        return known

    def embed_images(self, images: Sequence[Image.Image], batch_size: int) -> Embeddings:
        """(images, width). An image that another filter asked for is not computed again."""
        missing = [image for image in images if "embedding" not in self._known(image)]
        unique = list({id(image): image for image in missing}.values())
        if unique:
            pixels = self.pixels_of(unique)
            new = self._forward("image", pixels, batch_size, self._encode_images)
            for image, embedding in zip(unique, new, strict=True):
                self._known(image)["embedding"] = embedding
        return self._stacked([self._known(image)["embedding"] for image in images])

    def embed_texts(self, captions: Sequence[str], batch_size: int) -> Embeddings:
        """(captions, width). A caption that another filter asked for is not computed again."""
        unique = [caption for caption in dict.fromkeys(captions) if caption not in self.texts]
        known = {caption: self.texts[caption] for caption in captions if caption in self.texts}
        if unique:
            known.update(zip(unique, self._new_texts(unique, batch_size), strict=True))
        self.texts = known
        return self._stacked([known[caption] for caption in captions])

    def _stacked(self, rows: Sequence[Embeddings]) -> Embeddings:
        return np.stack(rows) if rows else np.zeros((0, 0), np.float32)

    def pixels_of(self, images: Sequence[Image.Image]) -> list[Pixels]:
        """The preprocessed images, those that are not prepared yet too."""
        with ThreadPoolExecutor(PREPROCESS_THREADS) as threads:
            return list(threads.map(self._pixels_of, images))

    def _pixels_of(self, image: Image.Image) -> Pixels:
        prepared: Pixels | None = self._known(image).get("pixels")
        return self.preprocess.pixels(image) if prepared is None else prepared

    def _encode_images(self, pixels: Sequence[Pixels]) -> Any:
        return self.network.encode_image(self.preprocess.normalised(pixels).to(self.device))

    def _new_texts(self, captions: Sequence[str], batch_size: int) -> list[Embeddings]:
        """An embedding of each caption; captions of similar length go through the tower together,
        without most of their padding."""
        tokens_BT = self._tokens_of(captions)
        contexts_B = contexts(self.network, tokens_BT)
        embeddings: list[Embeddings] = [np.zeros(0, np.float32)] * len(captions)
        for context in np.unique(contexts_B).tolist():
            rows = np.flatnonzero(contexts_B == context)
            cut_BT = tokens_BT[rows, :context]
            new = self._forward("text", cut_BT, batch_size, self._encode_texts)
            for row, embedding in zip(rows.tolist(), new, strict=True):
                embeddings[row] = embedding
        return embeddings

    def _tokens_of(self, captions: Sequence[str]) -> Any:
        cache = getattr(self.tokenizer, "cache", {})
        if len(cache) > CACHED_WORDS:
            cache.clear()
            cache.update(self.special_words)
        return self.tokenizer(list(captions))

    def _encode_texts(self, tokens_BT: Any) -> Any:
        return encode_text(self.network, tokens_BT.to(self.device))

    def _forward(
        self,
        tower: str,
        rows: Sequence[Any],
        batch_size: int,
        encode: Callable[[Sequence[Any]], Any],
    ) -> Embeddings:
        """(rows, width). Embeddings are normalised in fp32 at every precision.

        A batch that does not fit in the memory of the GPU is halved until it fits, and later
        batches are no larger.
        """
        import torch
        import torch.nn.functional as F

        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.half)

        def run(batch: Sequence[Any]) -> Embeddings:
            with torch.inference_mode(), autocast:
                encoded = encode(batch)
            embeddings: Embeddings = F.normalize(encoded.float(), dim=-1).cpu().numpy()
            self.forwards[tower] += 1
            return embeddings

        return np.concatenate(run_batches(rows, batch_size, self.largest, tower, run))


_MODELS: weakref.WeakValueDictionary[tuple[Any, ...], ClipModel] = weakref.WeakValueDictionary()


def shared_model(filter_: ClipFilter) -> ClipModel:
    """The model of a filter. It stays as long as a filter holds it.

    ValueError for a device that this machine does not have.
    """
    import torch

    device, half = filter_.place()
    key = (ClipFilter.identity(filter_), device, half)
    model = _MODELS.get(key)
    if model is None:
        model = _load(filter_, torch.device(device), half)
        _MODELS[key] = model
    return model


def _load(filter_: ClipFilter, device: object, half: bool) -> ClipModel:
    import open_clip

    model, who = filter_.model, f"filter {filter_.name}"
    if model.startswith(HUB):  # open_clip knows no commits
        name = model.removeprefix(HUB)
        folder = snapshot(who, name, HUB_FILES)
        if not any(Path(folder).glob("*.safetensors")):
            folder = snapshot(who, name, [*HUB_FILES, *HUB_FILES_OF_OLD])
        model = LOCAL + folder
    try:
        with _without_info_messages():
            network, _, transform = open_clip.create_model_and_transforms(
                model, pretrained=filter_.pretrained, device=device
            )
            tokenizer = with_long_words(open_clip.get_tokenizer(model))
    except Exception as error:  # of the files, of the hub, of the device
        line = " ".join(str(error).split())[:300]
        raise ValueError(f"{who}: open_clip cannot load {model}: {line}") from error
    preprocess = Preprocess(transform, fast=filter_.resize == "fast")
    return ClipModel(network.eval(), preprocess, tokenizer, device, half)


@contextmanager
def _without_info_messages() -> Iterator[None]:
    """open_clip reports its every step to the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)
