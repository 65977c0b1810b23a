"""CLIP: towers, blocks, attention, initialisation."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipmill.manifests.preprocess import CHANNELS
from clipmill.train.model.architecture import (
    SIGLIP_BIAS,
    SIGLIP_SCALE,
    ModelConfig,
    group_count,
)
from clipmill.train.rng import derive_key

# --------------------------------------------------------------------------------------------------
# Towers that are locked: their weights stay as they are, but for the last groups of layers.
#
# The groups are open_clip's (`--lock-image-unlocked-groups`, `--lock-text-unlocked-layers`): the
# embeddings, each block, and the projection; the norm before the projection belongs to the last
# block. LiT (Zhai et al. 2022) locks the image tower.


def lock_tower(tower: nn.Module, layers: int, unlocked: int) -> None:
    """Lock a tower with `layers` blocks; its last `unlocked` groups are still trained."""
    first_unlocked = group_count(layers) - unlocked
    for name, parameter in tower.named_parameters():
        parameter.requires_grad_(_group_of(name, layers) >= first_unlocked)


def _group_of(name: str, layers: int) -> int:
    """The number of the group of a tower's parameter, from 0."""
    part, _, rest = name.partition(".")
    if part == "blocks":
        return 1 + int(rest.partition(".")[0])
    return {"ln_post": layers, "ln_final": layers, "proj": layers + 1}.get(part, 0)


# --------------------------------------------------------------------------------------------------
# Random numbers of patch dropout (FLIP, Li et al. 2023) as functions of their position.
#
# A number depends on the run's seed, the step, the sample's row in the global batch and the patch.
# So the second pass of an accumulated batch, another micro-batch size and other ranks meet the same
# numbers, and no generator has a state to keep. They are made where the activations lie, by
# SplitMix64's mixing in 64-bit integers that wrap.


_STEP = 0x9E3779B97F4A7C15 - (1 << 64)  # SplitMix64's constants, with a sign
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
# More patches than any image has: patch t of sample r has the number r x TOKENS + t.
TOKENS = 1 << 16


def uniform(key: Tensor, index: Tensor) -> Tensor:
    """Numbers in [0, 1), float32: each a function of `key` and its index."""
    z = _mixed(key) + (index + 1) * _STEP
    return ((_mixed(z) >> 40) & 0xFFFFFF).float() * 2.0**-24


def _mixed(z: Tensor) -> Tensor:
    for shift, factor in _ROUNDS:
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def kept_patches(row_B: Tensor, key: Tensor, patches: int, rate: float) -> Tensor:
    """Numbers of the patches that stay, (B, kept), rising: patches x (1 - rate), at least 1."""
    count = max(1, int(patches * (1 - rate)))
    number_BT = row_B[:, None] * TOKENS + torch.arange(patches, device=row_B.device)
    return uniform(key, number_BT).topk(count, dim=1).indices.sort(dim=1).values


# --------------------------------------------------------------------------------------------------
# Attention over padded and packed sequences, and captions without their padding.
#
# `sdpa` (torch) runs everywhere. `varlen` (torch 2.10 on) and `flash` (flash-attn) read packed
# sequences as they lie; they need a GPU and 16 bits. `auto` takes `flash`, then `varlen`, for
# packed captions where they can run, and `sdpa` for the rest. No mask is ever materialised:
# causality is a flag.
#
# Shapes: B samples, T queries, S keys, H heads, D channels of a head, N tokens of all captions.


Attention = Literal["auto", "sdpa", "varlen", "flash"]
HALVES = (torch.bfloat16, torch.float16)


class PackedCaptions(NamedTuple):
    """Captions one after another, without what follows their end-of-text tokens."""

    token_N: Tensor
    position_N: Tensor  # restarts with every caption
    padded_index_N: Tensor  # the index of each token in the padded batch, BT flattened
    offset_B1: Tensor  # int32, B + 1: where each caption begins, and the end of the last
    longest: int

    def to(self, device: torch.device | str) -> PackedCaptions:
        """The same captions on another device."""
        *tensors, longest = self
        return PackedCaptions(*(to_device(x, device) for x in tensors), longest)  # type: ignore[call-arg]


def to_device(x: Tensor | PackedCaptions, device: torch.device | str) -> Any:
    """`x` on another device.

    From host memory to a GPU it goes through pinned pages, so that nothing waits for the copy.
    """
    if isinstance(x, Tensor) and x.device.type == "cpu" and torch.device(device).type == "cuda":
        return x.contiguous().pin_memory().to(device, non_blocking=True)
    return x.to(device)


def caption_lengths(tokens_BT: Tensor) -> Tensor:
    """Tokens of each caption with its end-of-text token: the first highest number of a row."""
    return tokens_BT.argmax(dim=-1) + 1


def trim(tokens_BT: Tensor) -> Tensor:
    """The columns up to the last end-of-text token of a batch in host memory.

    On an accelerator the length would have to be waited for: trim before the batch is copied.
    """
    if tokens_BT.device.type != "cpu":
        return tokens_BT
    return tokens_BT[:, : int(tokens_BT.argmax(dim=-1).max()) + 1]


def pack_captions(tokens_BT: Tensor, length_B: Tensor | None = None) -> PackedCaptions:
    """A batch in host memory, packed. `length_B` spares the search for end-of-text tokens."""
    length_B = caption_lengths(tokens_BT) if length_B is None else length_B
    B, T = tokens_BT.shape
    index_N = (torch.arange(T) < length_B[:, None]).flatten().nonzero().flatten()
    offset_B1 = torch.zeros(B + 1, dtype=torch.int32)
    offset_B1[1:] = length_B.cumsum(0)
    longest = int(length_B.max())
    sample_N, position_N = index_N // T, index_N % T
    padded_index_N = sample_N * longest + position_N
    token_N = tokens_BT[sample_N, position_N]
    return PackedCaptions(token_N, position_N, padded_index_N, offset_B1, longest)


# --- kernels -------------------------------------------------------------------------------------


def _find_varlen() -> Callable[..., Tensor] | None:
    """torch's varlen_attn with the argument `causal`, or None.

    From 2.13 on torch takes a window for it, before that `is_causal`.
    """
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return None
    from torch.nn.attention.varlen import varlen_attn

    window = "window_size" in inspect.signature(varlen_attn).parameters

    def attend(*arguments: Any, causal: bool) -> Tensor:
        extra = {"window_size": (-1, 0 if causal else -1)} if window else {"is_causal": causal}
        mixed: Tensor = varlen_attn(*arguments, **extra)  # type: ignore[assignment]
        return mixed

    return attend


_VARLEN: tuple[Callable[..., Tensor] | None] | None = None  # None until it is looked for


def _varlen() -> Callable[..., Tensor] | None:
    """The result of `_find_varlen`, which is called once.

    It imports torch's compiler, which takes almost as long as torch: a process without a GPU does
    not need it.
    """
    global _VARLEN
    if _VARLEN is None:
        _VARLEN = (_find_varlen(),)
    return _VARLEN[0]


@functools.cache
def _flash() -> Callable[..., Tensor] | None:
    """flash-attn's function for many lengths; None where it is missing or for another torch."""
    try:
        attend: Callable[..., Tensor] = importlib.import_module("flash_attn").flash_attn_varlen_func
    except (ImportError, OSError):
        return None
    return attend


def check_kernel(attention: Attention) -> None:
    """ValueError for a kernel that is missing."""
    if attention != "sdpa" and torch.cuda.is_available():
        _varlen()  # now: an import inside forward breaks the compiler's graph
    if attention == "flash" and _flash() is None:
        raise ValueError(
            "attention is 'flash', but flash-attn is not installed, or not for this torch; "
            "install it, or set attention to auto"
        )
    if attention == "varlen" and _varlen() is None:
        raise ValueError(
            f"attention is 'varlen', which torch {torch.__version__} lacks; set attention to auto"
        )


def _kernel(attention: Attention, q: Tensor, *, packed: bool) -> str:
    """The kernel that runs: `sdpa`, `varlen` or `flash`."""
    fits = q.is_cuda and q.dtype in HALVES
    if attention == "auto":
        if not packed or not fits:
            return "sdpa"
        if _flash() is not None:
            return "flash"
        return "sdpa" if _varlen() is None else "varlen"
    if attention != "sdpa" and not fits:
        actual = f"{q.dtype} on {q.device.type}".removeprefix("torch.")
        raise ValueError(
            f"attention {attention!r} needs a GPU and bf16 or fp16, "
            f"not {actual}; set attention to auto"
        )
    return attention


def attend(
    q_BTHD: Tensor,
    k_BTHD: Tensor,
    v_BTHD: Tensor,
    attention: Attention = "auto",
    *,
    causal: bool,
    end_B: Tensor | None = None,
) -> Tensor:
    """Mixed values BTHD.

    With `end_B` there is one query for each sample; it sees the keys up to that number.
    """
    q_BHTD, k_BHTD, v_BHTD = (x.transpose(1, 2) for x in (q_BTHD, k_BTHD, v_BTHD))
    # One query costs little with any kernel; cuDNN's backward of it gave NaN and errors on GPUs.
    if q_BTHD.is_cuda and q_BTHD.shape[1] == 1:
        return _explicit_attention(q_BHTD, k_BHTD, v_BHTD, causal, end_B).transpose(1, 2)
    seen_B11S = None
    if end_B is not None:
        key_S = torch.arange(k_BTHD.shape[1], device=q_BTHD.device)
        seen_B11S = (key_S <= end_B[:, None])[:, None, None]
    elif (kernel := _kernel(attention, q_BTHD, packed=False)) != "sdpa":
        return _dense(q_BTHD, k_BTHD, v_BTHD, causal, kernel)
    mixed_BHTD = F.scaled_dot_product_attention(
        q_BHTD, k_BHTD, v_BHTD, attn_mask=seen_B11S, is_causal=causal and end_B is None
    )
    return mixed_BHTD.transpose(1, 2)


def _dense(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, causal: bool, kernel: str) -> Tensor:
    """Sequences of one length, through a kernel for many lengths."""
    B, T, H, D = q_BTHD.shape
    S = k_BTHD.shape[1]
    device = q_BTHD.device
    query_offset_B1 = torch.arange(0, B * T + 1, T, dtype=torch.int32, device=device)
    key_offset_B1 = torch.arange(0, B * S + 1, S, dtype=torch.int32, device=device)
    varlen = _flash() if kernel == "flash" else _varlen()
    assert varlen is not None
    q, k, v = (x.reshape(-1, H, D) for x in (q_BTHD, k_BTHD, v_BTHD))
    mixed = varlen(q, k, v, query_offset_B1, key_offset_B1, T, S, causal=causal)
    return mixed.view(B, T, H, D)


def attend_packed(
    q_NHD: Tensor,
    k_NHD: Tensor,
    v_NHD: Tensor,
    attention: Attention,
    packed: PackedCaptions,
    *,
    pooled: bool = False,
) -> Tensor:
    """Mixed values NHD of causal captions.

    With `pooled` there is one query for each caption, its last token, and the result is BHD. Where
    no kernel reads packed sequences, only queries, keys and values are padded: the matrix products
    around attention are not.
    """
    kernel = _kernel(attention, q_NHD, packed=True)
    B, longest = len(packed.offset_B1) - 1, packed.longest
    if kernel != "sdpa":
        key_offset_B1 = query_offset_B1 = packed.offset_B1
        if pooled:
            query_offset_B1 = torch.arange(B + 1, dtype=torch.int32, device=q_NHD.device)
        lengths = (query_offset_B1, key_offset_B1, 1 if pooled else longest, longest)
        varlen = _flash() if kernel == "flash" else _varlen()
        assert varlen is not None
        return varlen(q_NHD, k_NHD, v_NHD, *lengths, causal=not pooled)
    k_BTHD, v_BTHD = _padded(k_NHD, packed), _padded(v_NHD, packed)
    if pooled:
        end_B = (packed.offset_B1[1:] - packed.offset_B1[:-1] - 1).long()
        q_B1HD = q_NHD[:, None]
        mixed = attend(q_B1HD, k_BTHD, v_BTHD, "sdpa", causal=True, end_B=end_B)
        return mixed[:, 0]
    mixed_BTHD = attend(_padded(q_NHD, packed), k_BTHD, v_BTHD, "sdpa", causal=True)
    return mixed_BTHD.flatten(0, 1)[packed.padded_index_N]


def _padded(x_N: Tensor, packed: PackedCaptions) -> Tensor:
    """N… as BT…, with zeros after the captions."""
    B, T = len(packed.offset_B1) - 1, packed.longest
    zeros = x_N.new_zeros((B * T, *x_N.shape[1:]))
    return zeros.index_copy(0, packed.padded_index_N, x_N).view(B, T, *x_N.shape[1:])


def _explicit_attention(
    q_BHTD: Tensor,
    k_BHTD: Tensor,
    v_BHTD: Tensor,
    causal: bool,
    end_B: Tensor | None,
) -> Tensor:
    """Attention that materialises its weights."""
    T, S = q_BHTD.shape[2], k_BHTD.shape[2]
    weight_BHTS = q_BHTD @ k_BHTD.mT * q_BHTD.shape[-1] ** -0.5
    key_S = torch.arange(S, device=q_BHTD.device)
    if end_B is not None:
        weight_BHTS = weight_BHTS.masked_fill((key_S > end_B[:, None])[:, None, None], -torch.inf)
    elif causal:
        weight_BHTS = weight_BHTS.masked_fill(key_S > key_S[:T, None], -torch.inf)
    weight_BHTS = weight_BHTS.softmax(dim=-1)
    mixed_BHTD: Tensor = weight_BHTS.to(v_BHTD.dtype) @ v_BHTD
    return mixed_BHTD


# --------------------------------------------------------------------------------------------------
# Layers of a transformer block: linear, norm, fused queries, keys and values, and the block.
#
# Queries, keys and values come from one product whose rows are ordered head by head ([heads, 3,
# head width]), so that a share of its rows is a share of the heads.
#
# Shapes: B samples, T tokens, C channels of a tower, H heads, D channels of a head, N tokens of
# packed captions. Activations are BTC, or NC where captions are packed.


Index = tuple[Tensor | slice | int, ...]


class Linear(nn.Linear):
    """Initialised by `initialise` alone: nothing is drawn twice or from torch's generator."""

    def reset_parameters(self) -> None:
        """Leave the parameters as they were allocated."""


class Embedding(nn.Embedding):
    """Not initialised here, as `Linear`."""

    def reset_parameters(self) -> None:
        """Leave the parameters as they were allocated."""


class LayerNorm(nn.LayerNorm):
    """Returns the type of its input: autocast on a GPU would turn the residual stream to fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input, computed in fp32 where the input or the weights are."""
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if x.dtype == torch.float32 != weight.dtype:
            # Weights that FSDP gathers in 16 bits, and a residual stream in fp32: autocast on a GPU
            # widens them too, the kernel of a processor refuses to mix.
            weight, bias = weight.float(), bias.float()
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps).to(x.dtype)


class QKV(Linear):
    """Queries, keys and values by one product. Rows are [H, 3, D]: H follows from the weight."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, 3 * width)
        self.head_width = width // heads

    def forward(  # type: ignore[override]
        self, h: Tensor, at: Index | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """…HD of all tokens; with `at` queries of those tokens only."""
        D = self.head_width
        if at is None:
            q, k, v = F.linear(h, self.weight, self.bias).view(*h.shape[:-1], -1, 3, D).unbind(-2)
            return q, k, v
        C = h.shape[-1]
        weight_H3DC, bias_H3D = self.weight.view(-1, 3, D, C), self.bias.view(-1, 3, D)
        H = len(bias_H3D)
        query_weight, query_bias = weight_H3DC[:, 0].reshape(H * D, C), bias_H3D[:, 0]
        q = F.linear(h[at], query_weight, query_bias.reshape(H * D)).view(-1, H, D)
        key_value_weight = weight_H3DC[:, 1:].reshape(2 * H * D, C)
        key_value = F.linear(h, key_value_weight, bias_H3D[:, 1:].reshape(2 * H * D))
        k, v = key_value.view(*h.shape[:-1], H, 2, D).unbind(-2)
        return q, k, v


class Block(nn.Module):
    """A pre-norm transformer block: attention and a two-layer MLP, each added to the residual.

    Under tensor parallelism it holds a share of the heads.
    """

    attention: Attention = "auto"  # the kernel

    def __init__(self, width: int, heads: int, mlp: int, *, causal: bool, quick_gelu: bool) -> None:
        super().__init__()
        self.causal, self.quick_gelu = causal, quick_gelu
        self.ln_1 = LayerNorm(width)
        self.qkv = QKV(width, heads)
        self.out = Linear(width, width)
        self.ln_2 = LayerNorm(width)
        self.fc1 = Linear(width, mlp)
        self.fc2 = Linear(mlp, width)

    def forward(
        self,
        x: Tensor,
        *,
        packed: PackedCaptions | None = None,
        last: bool = False,
        end_B: Tensor | None = None,
    ) -> Tensor:
        """All tokens; with `last` only the pooled token of each sample, BC.

        The pooled token is the one at `end_B`. Without `end_B` it is the first token, or the last
        of each caption where captions are packed. A causal block sees the tokens up to it.
        """
        at = _pooled_tokens(x, packed, end_B) if last else None
        q, k, v = self.qkv(self.ln_1(x), at=at)
        if packed is not None:
            mixed = attend_packed(q, k, v, self.attention, packed, pooled=last)
        elif at is not None:
            seen_B = end_B if self.causal else None
            mixed = attend(q[:, None], k, v, self.attention, causal=False, end_B=seen_B)[:, 0]
        else:
            mixed = attend(q, k, v, self.attention, causal=self.causal)
        x = (x if at is None else x[at]) + self.out(mixed.flatten(-2))
        hidden = self.fc1(self.ln_2(x))
        if self.quick_gelu:
            activated = hidden * torch.sigmoid(1.702 * hidden)
        else:
            activated = F.gelu(hidden)
        added: Tensor = x + self.fc2(activated)
        return added


def _pooled_tokens(x: Tensor, packed: PackedCaptions | None, end_B: Tensor | None) -> Index:
    """The index of the pooled token of each sample."""
    if packed is not None:
        return (packed.offset_B1[1:].long() - 1,)
    if end_B is None:
        return (slice(None), 0)
    return (torch.arange(x.shape[0], device=x.device), end_B)  # len() would fix the batch size


# --------------------------------------------------------------------------------------------------
# The image tower and the caption tower: embeddings, blocks, pooling, projection.
#
# The last block computes only the token that is pooled, captions are computed without what
# follows their end (text attention is causal and the pooled token is the last, so padding never
# counts), and patches are embedded by one matrix product. The results are open_clip's up to
# rounding.
#
# Shapes: B samples, T tokens, C channels of a tower, E channels of an embedding,
# N tokens of packed captions.


class Vision(nn.Module):
    """The image tower: a class token, whose last state is projected, then patches."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.vision_width
        self.config = config
        self.patch = Linear(CHANNELS * config.patch_size**2, width, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.positional_embedding = nn.Parameter(torch.empty(config.patches + 1, width))
        self.ln_pre = LayerNorm(width)
        heads, mlp, quick_gelu = config.vision_heads, config.vision_mlp, config.quick_gelu
        self.blocks = nn.ModuleList(
            Block(width, heads, mlp, causal=False, quick_gelu=quick_gelu)
            for _ in range(config.vision_layers)
        )
        self.ln_post = LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, config.embed_dim))

    def forward(
        self, image_BCHW: Tensor, key: Tensor | None = None, row_B: Tensor | None = None
    ) -> Tensor:
        """Normalised images to embeddings BE, not yet unit vectors.

        `key` and `row_B` say which random numbers are drawn, see `CLIP.reseed`. ValueError for
        images of another shape.
        """
        config = self.config
        B, channels, height, width = image_BCHW.shape
        expected = [CHANNELS, *config.height_width]
        if [channels, height, width] != expected:
            raise ValueError(
                f"images of shape {[channels, height, width]}; the model takes {expected}"
            )
        p = config.patch_size
        grid = image_BCHW.view(B, channels, height // p, p, width // p, p).permute(0, 2, 4, 1, 3, 5)
        x_BTC = self.patch(grid.reshape(B, -1, channels * p * p))
        first_B1C = self.class_embedding.to(x_BTC.dtype).expand(B, 1, -1)
        x_BTC = torch.cat([first_B1C, x_BTC], dim=1) + self.positional_embedding.to(x_BTC.dtype)
        if key is not None and row_B is not None:
            patch_BT = kept_patches(row_B, key, config.patches, config.drop_patch_rate)
            kept_BT = F.pad(patch_BT + 1, (1, 0))  # and the class token, 0
            x_BTC = x_BTC[torch.arange(B, device=x_BTC.device)[:, None], kept_BT]
        x_BTC = self.ln_pre(x_BTC)
        for depth, block in enumerate(self.blocks):
            x_BTC = block(x_BTC, last=depth == len(self.blocks) - 1)
        last_BC: Tensor = self.ln_post(x_BTC)
        return last_BC @ self.proj


class Text(nn.Module):
    """The caption tower: causal, pooled at the end-of-text token, then projected.

    The end-of-text token is the highest number of a caption.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.text_width
        self.config = config
        self.token_embedding = Embedding(config.vocab_size, width)
        # Row of each token in a table that `ReducedTokenTable` has reduced.
        self.row_of: Tensor | None = None
        self.positional_embedding = nn.Parameter(torch.empty(config.context_length, width))
        heads, mlp, quick_gelu = config.text_heads, config.text_mlp, config.quick_gelu
        self.blocks = nn.ModuleList(
            Block(width, heads, mlp, causal=True, quick_gelu=quick_gelu)
            for _ in range(config.text_layers)
        )
        self.ln_final = LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, config.embed_dim))

    def forward(self, tokens: Tensor | PackedCaptions) -> Tensor:
        """Token numbers BT, or packed, to embeddings BE, not yet unit vectors."""
        packed, end_B = None, None
        if isinstance(tokens, PackedCaptions):
            packed, token = tokens, tokens.token_N
            # F.embedding and not an index: its gradient is fast where rows repeat.
            position = F.embedding(packed.position_N, self.positional_embedding)
        else:
            token, end_B = tokens, tokens.argmax(dim=-1)
            position = self.positional_embedding[: tokens.shape[1]]
        x = self.token_embedding(self._rows(token)) + position
        for depth, block in enumerate(self.blocks):
            last = depth == len(self.blocks) - 1
            x = block(x, packed=packed, last=last, end_B=end_B if last else None)
        last_BC: Tensor = self.ln_final(x)
        return last_BC @ self.proj

    def _rows(self, token: Tensor) -> Tensor:
        """Rows of the token table."""
        return token if self.row_of is None else self.row_of[token]


# --------------------------------------------------------------------------------------------------
# Starting values of a model's parameters: open_clip's distributions, from one seed.


LOGIT_SCALE = math.log(1 / 0.07)


@torch.no_grad()
def initialise(visual: Vision, text: Text, seed: int) -> None:
    """Fill every parameter of both towers. The order of the draws decides the values."""
    generator = torch.Generator().manual_seed(seed)
    for tower in (visual, text):
        for module in tower.modules():
            _fill_layer(module, generator)
    _fill_vision(visual, generator)
    _fill_text(text, generator)


def _normal(x: Tensor, std: float, generator: torch.Generator) -> None:
    x.normal_(0, std, generator=generator)


def _uniform(x: Tensor, bound: float, generator: torch.Generator) -> None:
    x.uniform_(-bound, bound, generator=generator)


def _fill_layer(module: nn.Module, generator: torch.Generator) -> None:
    """Norms: 1 and 0. Linear layers as in torch: U(±1/√inputs) for the weight and the bias."""
    if isinstance(module, nn.LayerNorm):
        module.weight.fill_(1)
        module.bias.zero_()
    elif isinstance(module, nn.Linear):
        _uniform(module.weight, module.in_features**-0.5, generator)
        if module.bias is not None:
            _uniform(module.bias, module.in_features**-0.5, generator)


def _fill_vision(visual: Vision, generator: torch.Generator) -> None:
    width = visual.config.vision_width
    for parameter in (visual.class_embedding, visual.positional_embedding, visual.proj):
        _normal(parameter, width**-0.5, generator)
    for block in visual.blocks:
        assert isinstance(block, Block)
        # Xavier's bound for the fused matrix.
        _uniform(block.qkv.weight, math.sqrt(6 / (width + 3 * width)), generator)
        block.qkv.bias.zero_()
        block.out.bias.zero_()


def _fill_text(text: Text, generator: torch.Generator) -> None:
    width = text.config.text_width
    residual_std = width**-0.5 * (2 * text.config.text_layers) ** -0.5
    _normal(text.token_embedding.weight, 0.02, generator)
    _normal(text.positional_embedding, 0.01, generator)
    _normal(text.proj, width**-0.5, generator)
    for block in text.blocks:
        assert isinstance(block, Block)
        _normal(block.qkv.weight, width**-0.5, generator)
        _normal(block.out.weight, residual_std, generator)
        _normal(block.fc1.weight, (2 * width) ** -0.5, generator)
        _normal(block.fc2.weight, residual_std, generator)
        block.qkv.bias.zero_()
        block.out.bias.zero_()


# --------------------------------------------------------------------------------------------------
# CLIP: an image tower and a caption tower, trained into one space of unit vectors.
#
# The mathematics is open_clip's (`train/formats` carries checkpoints both ways).
#
# Shapes: B samples, T tokens, E channels of an embedding.


# What the random numbers of a model are for (order.py has 1 to 3, transforms.py 4).
NOISE = 5


class CLIP(nn.Module):
    """Both towers, the logit scale (a logarithm) and, for the sigmoid loss, the logit bias.

    Initialised from `seed` with open_clip's distributions; the same seed gives the same weights,
    whatever else has been drawn. Under `torch.device("meta")` nothing is allocated. A model with
    patch dropout needs `reseed` before each forward of its training.
    """

    def __init__(
        self, config: ModelConfig, seed: int = 0, *, attention: Attention = "auto"
    ) -> None:
        super().__init__()
        device = torch.get_default_device()
        self.config = config
        check_kernel(attention)
        with torch.device("meta" if device.type == "meta" else "cpu"):
            self.visual = Vision(config)
            self.text = Text(config)
            self.logit_scale = nn.Parameter(torch.empty(()))
            self.logit_bias = nn.Parameter(torch.empty(())) if config.logit_bias else None
        self._key = 0
        self._row_B: Tensor | None = None
        for block in (*self.visual.blocks, *self.text.blocks):
            assert isinstance(block, Block)
            block.attention = attention
        if device.type != "meta":
            # In host memory: the same numbers for every device.
            initialise(self.visual, self.text, seed)
            self._initialise_logits()
            self.to(device)

    @torch.no_grad()
    def _initialise_logits(self) -> None:
        self.logit_scale.fill_(LOGIT_SCALE if self.logit_bias is None else SIGLIP_SCALE)
        if self.logit_bias is not None:
            self.logit_bias.fill_(SIGLIP_BIAS)

    def reseed(self, seed: int, step: int, row_B: Tensor) -> None:
        """Choose the random numbers of the next forward: of the samples `row_B` of batch `step`.

        Call it before every forward, also before the second one of a micro-batch. The same
        arguments give the same numbers, however a batch is cut into micro-batches and over
        data-parallel ranks. Tensor-parallel ranks pass the same arguments.
        """
        self._key, self._row_B = derive_key(seed, NOISE, step, 0), row_B

    def encode_image(self, image_BCHW: Tensor) -> Tensor:
        """Images, normalised per channel, to unit vectors BE."""
        key, row_B = self._random_numbers(image_BCHW.device, len(image_BCHW))
        return l2_normalise(self.visual(image_BCHW, key, row_B))

    def encode_text(self, tokens: Tensor | PackedCaptions) -> Tensor:
        """Captions to unit vectors BE.

        Captions are token numbers BT with zeros after the end-of-text token, or what
        `pack_captions` makes of these.
        """
        return l2_normalise(self.text(trim(tokens) if isinstance(tokens, Tensor) else tokens))

    def _random_numbers(
        self, device: torch.device, samples: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """The key and the rows of the samples; None where the model draws no numbers."""
        if not self.training or not self.config.drop_patch_rate:
            return None, None
        if self._row_B is None or len(self._row_B) != samples:
            named = "none were named" if self._row_B is None else f"{len(self._row_B)} were named"
            raise ValueError(
                f"a model with patch dropout got {samples} samples, but {named}; "
                "call reseed before each forward"
            )
        key = self._key
        signed = key - (1 << 64) * (key >> 63)  # 64 bits as torch's int64 holds them
        row_B = self._row_B.to(device, non_blocking=True)
        return torch.full((), signed, device=device), row_B

    def forward(
        self, image_BCHW: Tensor, tokens: Tensor | PackedCaptions
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Both embeddings BE, the factor on their products, and the logit bias or None."""
        image_BE = self.encode_image(image_BCHW)
        text_BE = self.encode_text(tokens)
        return image_BE, text_BE, self.logit_scale.exp(), self.logit_bias


def l2_normalise(x_BE: Tensor) -> Tensor:
    """Rows scaled to length 1, in at least 32 bits."""
    return F.normalize(x_BE if x_BE.dtype == torch.float64 else x_BE.float(), dim=-1)


# --------------------------------------------------------------------------------------------------
# A token table that holds only the tokens of a run: the same training at less cost.


class ReducedTokenTable:
    """The token table of a model, reduced while it trains to the tokens that the run reads.

    No other row ever has a gradient, so all that AdamW does to it is weight decay: after n steps
    it is its start times the product of (1 - lr x decay). The captions of the demo use a few
    hundred of 49,408 rows.
    """

    def __init__(self, text: Text, used: Tensor) -> None:
        """Reduce the table of `text` to the rows `used` (token numbers, rising)."""
        self.start = text.token_embedding.weight.detach()
        self.used = used.to(self.start.device)
        table = self.start[self.used].clone()
        text.token_embedding = Embedding.from_pretrained(table, freeze=False)
        # -1 is an error where it is ever looked up.
        row_of = torch.full((len(self.start),), -1, device=self.used.device)
        row_of[self.used] = torch.arange(len(self.used), device=self.used.device)
        text.row_of = row_of

    def full_table(self, text: Text, decay_factor: float) -> Tensor:
        """The table of all tokens; `decay_factor` is the product over the steps so far."""
        table = (self.start.double() * decay_factor).to(self.start.dtype)
        table[self.used] = text.token_embedding.weight.detach()
        return table

    def restore(self, text: Text, decay_factor: float) -> None:
        """Put the table of all tokens back into the tower."""
        table = self.full_table(text, decay_factor)
        text.token_embedding = Embedding.from_pretrained(table, freeze=False)
        text.row_of = None
