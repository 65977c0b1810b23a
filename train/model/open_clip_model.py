"""A model of open_clip's list, computed by open_clip's own module, with what training needs of it:
the interface of `CLIP`, its tokenizer, its blocks, BatchNorm over all ranks, its operations and
memory, and its weights by open_clip's names.

This is the only module of the trainer that imports open_clip's models, when one is built.

Shapes: B samples, T tokens, E channels of an embedding, W ranks.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from clipmill.manifests import disk
from clipmill.manifests.arrays import Integers
from clipmill.manifests.clip_tokenizer import simple_tokenizer, tokenizers
from clipmill.train.model.architecture import ModelConfig, OpenClipConfig
from clipmill.train.model.clip import CLIP, Attention, l2_normalise
from clipmill.train.rng import derive_key

NOISE = 6  # what the random numbers are for (clip.py has 5)
PREFIX = "open_clip."  # of the parameters' names, before open_clip's own
BLOCK = re.compile(r"Block|Layer|Bottleneck")  # in the class names of a tower's blocks
COUNTED = 2  # samples of the step that is counted: BatchNorm takes no single one

logger = logging.getLogger(__name__)


class OpenClipModel(nn.Module):
    """open_clip's module of a configuration, in the place of a `CLIP`.

    Its start is drawn by open_clip's own code from `seed`. Dropout, stochastic depth and patch
    dropout draw from torch's generators, which `reseed` sets: a function of seed, step and the
    first sample of a forward. ValueError where open_clip cannot build it.
    """

    def __init__(self, config: OpenClipConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        device = torch.get_default_device()
        self._updated: set[nn.Module] = set()  # norms whose statistics have this step's batch
        with torch.device("meta" if device.type == "meta" else "cpu"), torch.random.fork_rng([]):
            torch.manual_seed(seed)
            self.open_clip = _build(config)
        self.to(device)

    @property
    def logit_scale(self) -> nn.Parameter:
        """The logarithm of the factor on the logits."""
        scale: nn.Parameter = self.open_clip.logit_scale
        return scale

    @property
    def logit_bias(self) -> nn.Parameter | None:
        """The offset of the logits."""
        bias: nn.Parameter | None = self.open_clip.logit_bias
        return bias

    def reseed(self, seed: int, step: int, row_B: Tensor) -> None:
        """Choose the random numbers of the next forward; `row_B` lies in host memory."""
        torch.manual_seed(derive_key(seed, NOISE, step, int(row_B[0])) >> 1)
        self._updated.clear()

    def encode_image(self, image_BCHW: Tensor) -> Tensor:
        """Images, normalised per channel, to unit vectors BE."""
        try:
            return l2_normalise(self.open_clip.encode_image(image_BCHW))
        except AssertionError as error:  # of timm, whose tower has a size of its own
            size = f"images of {self.config.image_size} pixels"
            raise ValueError(f"{self.config.name} does not take {size}: {_line(error)}") from error

    def encode_text(self, token_BT: Tensor) -> Tensor:
        """Captions to unit vectors BE. CLIP's tokens may be cut behind the longest caption."""
        missing = self.config.context_length - token_BT.shape[1]
        return l2_normalise(self.open_clip.encode_text(F.pad(token_BT, (0, missing))))

    def forward(
        self, image_BCHW: Tensor, token_BT: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Both embeddings BE, the factor on their products, and the logit bias or None."""
        image_BE, text_BE = self.encode_image(image_BCHW), self.encode_text(token_BT)
        return image_BE, text_BE, self.logit_scale.exp(), self.logit_bias

    def lock(self, image: int | None, text: int | None) -> None:
        """Lock the towers but for their last groups of layers; None: not at all.

        A locked BatchNorm keeps its running statistics and normalises by them. ValueError where
        open_clip cannot lock so.
        """
        try:
            if image is not None:
                self.open_clip.lock_image_tower(image, freeze_bn_stats=True)
            if text is not None:
                self.open_clip.lock_text_tower(text)
        except Exception as error:  # assertions, missing attributes: it depends on the tower
            raise ValueError(
                f"open_clip cannot lock {self.config.name} with these groups: {_line(error)}; "
                "lock the whole tower, or none"
            ) from error

    def norms(self) -> list[nn.Module]:
        """BatchNorm layers that compute statistics of a batch."""
        kind = nn.modules.batchnorm._BatchNorm
        return [module for module in self.modules() if isinstance(module, kind)]

    def blocks(self) -> Iterator[nn.Module]:
        """The blocks of both towers: what is recomputed, compiled and sharded by itself."""
        yield from _blocks(self)

    def normalise_over(self, gather: Callable[[Tensor], Tensor] | None) -> None:
        """Let every BatchNorm normalise by the statistics of the whole batch, and take them into
        its running statistics once a step, also where a block is computed again in backward.

        gather: equal shapes of all ranks, W×…, with a gradient; None: this rank has all samples.
        """
        for norm in self.norms():
            norm.forward = functools.partial(_normalised, norm, self._updated, gather)  # type: ignore[method-assign]


AnyModel = CLIP | OpenClipModel


def build_model(
    config: ModelConfig | OpenClipConfig, seed: int = 0, *, attention: Attention = "auto"
) -> AnyModel:
    """The model of a configuration, with the weights that `seed` draws."""
    if isinstance(config, OpenClipConfig):
        return OpenClipModel(config, seed)
    return CLIP(config, seed, attention=attention)


def _build(config: OpenClipConfig) -> Any:
    try:
        from open_clip.model import CLIP as Plain
        from open_clip.model import CustomTextCLIP
    except ImportError as error:
        raise ValueError(
            f"{config.name} needs open_clip ({error}); pip install open_clip_torch"
        ) from error
    settings = copy.deepcopy(dict(config.settings))
    settings.pop("nonscalar_logit_scale", None)
    custom = settings.pop("custom_text", False)
    if "hf_model_name" in config.text:
        settings["text_cfg"]["hf_model_pretrained"], custom = False, True
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # timm and transformers write to the root logger
    try:
        return (CustomTextCLIP if custom else Plain)(**settings)
    except Exception as error:  # of open_clip, timm, transformers and the hub's client
        way = ""
        if theirs := config.text.get("hf_model_name"):
            way = f"; put the config.json of {theirs} into a folder, and name that as hf_model_name"
        raise ValueError(f"open_clip cannot build {config.name}: {_line(error)}{way}") from error
    finally:
        logging.disable(before)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    is_list = isinstance(module, (nn.Sequential, nn.ModuleList))
    for child in module.children():
        inner = next(child.children(), None)
        if is_list and inner is not None and BLOCK.search(type(child).__name__):
            yield child
        else:
            yield from _blocks(child)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


# --- BatchNorm ------------------------------------------------------------------------------------


def _normalised(
    norm: Any, updated: set[nn.Module], gather: Callable[[Tensor], Tensor] | None, x: Tensor
) -> Tensor:
    """`norm(x)`; in training by the mean and variance of the samples of all ranks.

    Every rank has as many samples. Layers of timm have an activation after the norm.
    """
    if not norm.training:
        y: Tensor = type(norm).forward(norm, x)
        return y
    with torch.autocast(x.device.type, enabled=False):
        x32 = x if x.dtype == torch.float64 else x.float()
        dims = [dim for dim in range(x.ndim) if dim != 1]
        var_C, mean_C = torch.var_mean(x32, dims, correction=0)
        count, world = x.numel() // x.shape[1], 1
        if gather is not None:
            parts_W2C = gather(torch.stack([mean_C, var_C]))
            world, means_WC = len(parts_W2C), parts_W2C[:, 0]
            mean_C = means_WC.mean(0)
            var_C = parts_W2C[:, 1].mean(0) + (means_WC - mean_C).square().mean(0)
        shape = [1, -1] + [1] * (x.ndim - 2)
        factor_C = (var_C + norm.eps).rsqrt() * norm.weight
        x32 = (x32 - mean_C.view(shape)) * factor_C.view(shape) + norm.bias.view(shape)
    if norm not in updated and norm.track_running_stats:
        updated.add(norm)
        count *= world
        with torch.no_grad():
            norm.num_batches_tracked.add_(1)
            norm.running_mean.lerp_(mean_C.detach().to(norm.running_mean), norm.momentum)
            unbiased_C = var_C.detach() * (count / max(1, count - 1))
            norm.running_var.lerp_(unbiased_C.to(norm.running_var), norm.momentum)
    y = x32.to(x.dtype)
    for name in ("drop", "act"):
        y = getattr(norm, name)(y) if hasattr(norm, name) else y
    return y


# --- weights by open_clip's names -----------------------------------------------------------------


def to_their_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters and statistics by open_clip's names: contiguous copies in host memory."""
    copies = {}
    for name, value in state.items():
        whole = value.detach().cpu()
        copies[name.removeprefix(PREFIX)] = whole.clone(memory_format=torch.contiguous_format)
    return copies


# Parts of names that DDP, torch.compile, FSDP and recomputation add, around a model or a block, and
# a training whose towers are modules of their own.
WRAPPERS = re.compile(
    r"(?<![^.])(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|"
    r"_(image|text)_encoder|_logit_scale)\."
)
# The length and the direction of the rows of a weight that was trained as these two.
DIRECTIONS = (
    ("r", "theta"),
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)


def without_wrappers(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The parameters by the names that they have in a CLIP: below `state_dict` or not, without what
    wrappers add, and without what every name begins with before `logit_scale`, such as
    `model.clip.`. A weight that is stored as length and direction is multiplied out.
    """
    stored = state["state_dict"] if isinstance(state.get("state_dict"), Mapping) else state
    parameters = {WRAPPERS.sub("", name): value for name, value in stored.items()}
    parameters.pop("n_averaged", None)  # of torch's AveragedModel
    scale = next((name for name in parameters if name.endswith("logit_scale")), "")
    prefix = scale.removesuffix("logit_scale")
    parameters = {name.removeprefix(prefix): value for name, value in parameters.items()}
    for name in list(parameters):
        for length, direction in DIRECTIONS:
            base = name.removesuffix(f".{direction}")
            if base != name and f"{base}.{length}" in parameters:
                rows = parameters.pop(name).float()
                norm = rows.flatten(1).norm(dim=1).view(-1, *[1] * (rows.dim() - 1))
                parameters[f"{base}.weight"] = parameters.pop(f"{base}.{length}") * rows / norm
    return parameters


def from_their_names(state: Mapping[str, object], config: OpenClipConfig) -> dict[str, Tensor]:
    """The inverse; also of a training checkpoint that has a state dict, and of weights from before
    open_clip's text towers had a module of their own. A logit bias may be missing.

    ValueError names a tensor that is missing, unknown or of another shape.
    """
    theirs = without_wrappers(state)
    with torch.device("meta"):
        expected = OpenClipModel(config).state_dict()
    if f"{PREFIX}text.ln_final.weight" in expected and "ln_final.weight" in theirs:
        from open_clip.model import convert_to_custom_text_state_dict

        theirs = convert_to_custom_text_state_dict(theirs)
    converted = {}
    for name, wanted in expected.items():
        plain = name.removeprefix(PREFIX)
        if plain not in theirs:
            # Of a locked BatchNorm nothing is counted.
            if plain == "logit_bias" or plain.endswith("num_batches_tracked"):
                continue
            raise ValueError(
                f"the weights have no {plain!r}; are they of another model than {config.name}?"
            )
        value = theirs.pop(plain)
        if value.shape != wanted.shape and not value.numel() == wanted.numel() == 1:
            raise ValueError(
                f"{plain} has shape {list(value.shape)}; {config.name} needs {list(wanted.shape)}"
            )
        converted[name] = value.reshape(wanted.shape)
    theirs = {name: x for name, x in theirs.items() if not name.endswith(("attn_mask", "_ids"))}
    if theirs:
        names = ", ".join(sorted(theirs)[:3])
        raise ValueError(f"the weights have parameters that {config.name} lacks: {names}")
    return converted


# --- tokenizers -----------------------------------------------------------------------------------


class ModelTokenizer:
    """Texts to the tokens of a model that has a tokenizer of its own, in the place of a
    `CaptionTokenizer`.

    identity: its name and a hash of its code. pad: the token that fills a caption up to the
    context, which is left out here. ValueError where its files are not in reach.
    """

    def __init__(self, config: OpenClipConfig) -> None:
        self._tokenize = text_tokenizer(config)
        inner = hf_tokenizer(config)
        self.pad = int(inner.pad_token_id or 0)
        with tempfile.TemporaryDirectory() as folder:
            inner.save_pretrained(folder)
            self.files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
        code = {name: disk.content_hash(data.hex()) for name, data in self.files.items()}
        self.identity = f"{config.text['hf_tokenizer_name']}@{disk.content_hash(code, 12)}"

    def encode(self, text: str) -> list[int]:
        """The tokens of a text without the padding behind them."""
        tokens, _ = self.encode_all(pa.chunked_array([[text]]), blanks=True)
        return [int(token) for token in tokens]

    def encode_all(
        self, texts: pa.ChunkedArray, *, blanks: bool = False
    ) -> tuple[NDArray[np.uint32], Integers]:
        """(tokens of all texts, (texts + 1,) where those of each end); NULL has none, and a blank
        text has only with `blanks`.
        """
        captions = texts.to_pylist()
        has_tokens = [text is not None and (blanks or bool(text.strip())) for text in captions]
        chosen = [text for text, has in zip(captions, has_tokens, strict=True) if has]
        lengths, tokens = np.zeros(len(captions), np.int64), np.zeros(0, np.uint32)
        if chosen:
            token_BT = self._tokenize(chosen).numpy()
            filled_BT = token_BT != self.pad
            length_B = token_BT.shape[1] - filled_BT[:, ::-1].argmax(axis=1)
            length_B = np.where(filled_BT.any(axis=1), length_B, 1)
            lengths[np.array(has_tokens)] = length_B
            kept_BT = np.arange(token_BT.shape[1]) < length_B[:, None]
            tokens = token_BT[kept_BT].astype(np.uint32)
        return tokens, np.concatenate([[0], lengths.cumsum()])


def own_tokenizer(config: object) -> ModelTokenizer | None:
    """The tokenizer of a model that has one of its own; None: it reads CLIP's tokens."""
    if isinstance(config, OpenClipConfig) and config.tokenizer is not None:
        return ModelTokenizer(config)
    return None


def text_tokenizer(config: ModelConfig | OpenClipConfig) -> Callable[[list[str]], Tensor]:
    """open_clip's tokenizer of a model: texts to tokens BT, padded to the context.

    What it gives raises ValueError for a token that the model does not have.
    """
    tokenize = _tokenizer_of(config)
    if isinstance(config, OpenClipConfig) and "hf_model_name" in config.text:
        return tokenize  # type: ignore[no-any-return]  # its vocabulary is in another file

    def checked(texts: list[str]) -> Tensor:
        token_BT: Tensor = tokenize(texts)
        if (highest := int(token_BT.max())) >= config.vocab_size:
            raise ValueError(
                f"vocab_size is {config.vocab_size}, but tokenizer {tokenizer_words(config)} gives "
                f"the token {highest}; the model needs the tokenizer that it was trained with"
            )
        return token_BT

    return checked


def tokenizer_words(config: ModelConfig | OpenClipConfig) -> str:
    """What reads a model's captions: `clip`, or the name or folder of another tokenizer."""
    if not isinstance(config, OpenClipConfig):
        return "clip"
    usual = "clip" if config.clean == "lower" else f"clip, clean {config.clean}"
    return usual if config.tokenizer is None else config.tokenizer


def hf_tokenizer(config: OpenClipConfig) -> Any:
    """transformers' tokenizer of a model that has one of its own."""
    return _tokenizer_of(config).tokenizer


def _tokenizer_of(config: ModelConfig | OpenClipConfig) -> Any:
    if not isinstance(config, OpenClipConfig):
        return _clip_tokenizer(config.context_length)
    if config.tokenizer is None:
        return _clip_tokenizer(config.context_length, config.clean)
    rest = {**config.text.get("tokenizer_kwargs", {})}
    rest["tokenizer_mode"] = config.text.get("tokenizer_mode")
    made = _own_tokenizer(config.name, config.tokenizer, config.context_length, json.dumps(rest))
    if "hf_model_name" not in config.text and (size := len(made.tokenizer)) != config.vocab_size:
        told = "%s: its tokenizer has %d tokens, the model's table %d"
        _say_once(told % (config.tokenizer, size, config.vocab_size))
    return made


@functools.lru_cache(maxsize=4)
def _clip_tokenizer(context_length: int, clean: str = "lower") -> Any:
    return simple_tokenizer()(context_length=context_length, clean=clean)


@functools.lru_cache(maxsize=4)
def _own_tokenizer(model: str, name: str, context_length: int, rest: str) -> Any:
    try:
        made = tokenizers().HFTokenizer(name, context_length=context_length, **json.loads(rest))
        made(["a word"])
        _check_vocabulary(made.tokenizer)
    except Exception as error:  # of transformers, of the hub and its client
        reason, remedy = _line(error), "get its files again"
        if os.path.isdir(name):
            reason = _damaged_file(name) or f"{reason} (it has {', '.join(disk.list_names(name))})"
        else:
            remedy = (
                "put its files into a folder and name that in a configuration of your own, "
                "model=FILE.json, as text_cfg.hf_tokenizer_name"
            )
        raise ValueError(
            f"{model} reads captions with the tokenizer {name}, which cannot be loaded: "
            f"{reason}; {remedy}"
        ) from error
    return made


def _check_vocabulary(tokenizer: Any) -> None:
    """ValueError for a vocabulary that transformers reads and no tokenizer has: without a word, as
    where its file is missing, and with two words of one number.
    """
    numbers = tokenizer.get_vocab()
    if not numbers.keys() - set(tokenizer.all_special_tokens):
        raise ValueError("it has no words, only special tokens: its vocabulary is missing or empty")
    words = {number: word for word, number in numbers.items()}
    for word, number in numbers.items():
        if words[number] != word:
            raise ValueError(f"{word!r} and {words[number]!r} have one number, {number}")


def _damaged_file(folder: str) -> str | None:
    """What is wrong with a JSON file of a folder that holds no object."""
    for name in disk.list_names(folder, ".json"):
        path = disk.join(folder, name)
        try:
            if not isinstance(disk.read_json(path), dict):
                return f"{path} has no keys with values"
        except ValueError as error:
            return str(error)
    return None


@functools.cache
def _say_once(text: str) -> None:
    logger.info("%s", text)


# --- operations and memory ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a model takes: of one sample but for the numbers of parameters."""

    parameters: int
    trained: int
    norms: int  # BatchNorm layers that compute statistics of a batch
    largest_block: int  # its parameters
    outside: int  # parameters outside the blocks
    image_flops: float  # forward and backward
    text_flops: float
    image_bytes: int  # kept for backward, in 32 bits
    text_bytes: int


def counts_of(
    config: OpenClipConfig, trained: tuple[int | None, int | None] = (None, None)
) -> Counts:
    """Operations and memory, as torch counts them of a step without memory (device meta).

    trained: as in `training_flops`. ValueError for a model that does not take its own images.
    """
    return _counts(json.dumps([config.name, config.settings], sort_keys=True), trained)


@functools.lru_cache(maxsize=16)
def _counts(document: str, trained: tuple[int | None, int | None]) -> Counts:
    name, settings = json.loads(document)
    config = OpenClipConfig(name=name, settings=settings)
    with torch.device("meta"):
        model = OpenClipModel(config)
        model.lock(*trained)
    # transformers reads the values of meta tensors, and not those of fake ones; weights then count
    # as kept, too.
    is_theirs = "hf_model_name" in config.text
    fake = FakeTensorMode(allow_non_fake_inputs=True) if is_theirs else contextlib.nullcontext()
    with torch.device("meta"), torch.random.fork_rng([]), fake:
        image = torch.empty(COUNTED, 3, *config.height_width)
        text = torch.zeros(COUNTED, config.context_length, dtype=torch.int64)
        try:
            own = {p.untyped_storage()._cdata for p in model.parameters()}
            image_flops, image_bytes = _counted(own, lambda: model.encode_image(image))
            text_flops, text_bytes = _counted(own, lambda: model.encode_text(text))
        except Exception as error:  # of open_clip's, timm's and transformers' forward
            raise ValueError(
                f"{name} does not take images of {config.image_size} pixels and captions of "
                f"{config.context_length} tokens: {_line(error)}"
            ) from error
    sizes = [sum(p.numel() for p in block.parameters()) for block in model.blocks()]
    total = sum(p.numel() for p in model.parameters())
    return Counts(
        parameters=total,
        trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
        norms=len(model.norms()),
        largest_block=max(sizes, default=0),
        outside=total - sum(sizes),
        image_flops=image_flops / COUNTED,
        text_flops=text_flops / COUNTED,
        image_bytes=image_bytes // COUNTED,
        text_bytes=text_bytes // COUNTED,
    )


def _counted(own: set[int], encode: Callable[[], Tensor]) -> tuple[float, int]:
    """Operations of forward and backward, and the bytes that are kept between them; `own` are the
    parameters' storages.
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton, in a third of a second

    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        if x.untyped_storage()._cdata not in own:
            kept[x.untyped_storage()._cdata] = x
        return x

    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda x: x):
        features = encode()
        if features.requires_grad:
            features.sum().backward()
    return counter.get_total_flops(), sum(x.untyped_storage().nbytes() for x in kept.values())
