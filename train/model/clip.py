"""CLIP: towers, blocks, attention, initialisation."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train.model.architecture import ModelConfig, group_count
from train.rng import derive_key

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
# Random numbers of patch dropout, stochastic depth and dropout as functions of their position.
#
# A number depends on the run's seed, the step, the block, the sample's row in the global batch,
# the token and the channel. So a recomputed block, the second pass of an accumulated batch,
# another micro-batch size, other ranks or packed captions meet the same numbers, and no generator
# has a state to keep. They are made where the activations lie, by SplitMix64's mixing in 64-bit
# integers that wrap.


_STEP = 0x9E3779B97F4A7C15 - (1 << 64)  # SplitMix64's constants, with a sign
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
# More tokens than any sample has: token t of sample r has the number r x TOKENS + t.
TOKENS = 1 << 16
# What a number is for: patches, embeddings, attention weights, and the two branches of a block.
PATCHES, EMBEDDED, ATTENTION, MIXED, MIXED_PATH, ADDED, ADDED_PATH = range(7)


class Noise(NamedTuple):
    """What decides the random numbers of a tower.

    `key` has no dimensions. `row` is the sample's row in the global batch and `token` the token's
    number, both of the shape of the activations without channels (`row` may have 1 for the tokens).
    """

    key: Tensor
    row: Tensor
    token: Tensor

    def of_block(self, depth: int) -> Noise:
        """The noise of block `depth`, unrelated to that of any other block."""
        return self._replace(key=_mixed(self.key + _wrapped((depth + 1) * 0x8CB92BA72F3D8DD7)))

    def at(self, *index: Tensor | slice | int) -> Noise:
        """The noise of the tokens at `index`."""
        row = self.row.expand_as(self.token)
        return Noise(self.key, row[index], self.token[index])


def noise_of(key: Tensor, row_B: Tensor, tokens: int) -> Noise:
    """The noise of activations BTC."""
    row_B1 = row_B[:, None]
    return Noise(key, row_B1, row_B1 * TOKENS + torch.arange(tokens, device=row_B.device))


def uniform(key: Tensor, kind: int, index: Tensor) -> Tensor:
    """Numbers in [0, 1), float32: each a function of `key`, `kind` and its index."""
    z = _mixed(key + _wrapped(kind * 0x632BE59BD9B4E019)) + (index + 1) * _STEP
    return ((_mixed(z) >> 40) & 0xFFFFFF).float() * 2.0**-24


def _wrapped(number: int) -> int:
    """An integer as a signed 64-bit integer holds it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _mixed(z: Tensor) -> Tensor:
    for shift, factor in _ROUNDS:
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def dropout(x: Tensor, rate: float, noise: Noise, kind: int) -> Tensor:
    """x (…C) with a share `rate` of its values set to 0; the others are scaled to keep the mean."""
    channels = torch.arange(x.shape[-1], device=x.device)
    keep = uniform(noise.key, kind, noise.token[..., None] * x.shape[-1] + channels) >= rate
    return x * (keep.to(x.dtype) / (1 - rate))


def drop_path(x: Tensor, rate: float, noise: Noise, kind: int) -> Tensor:
    """x (…C), 0 for a share `rate` of the samples; the others are scaled to keep the mean."""
    keep = uniform(noise.key, kind, noise.row) >= rate
    return x * (keep.to(x.dtype) / (1 - rate))[..., None]


def kept_patches(row_B: Tensor, key: Tensor, patches: int, rate: float) -> Tensor:
    """Numbers of the patches that stay, (B, kept), rising: patches x (1 - rate), at least 1."""
    count = max(1, int(patches * (1 - rate)))
    number_BT = row_B[:, None] * TOKENS + torch.arange(patches, device=row_B.device)
    return uniform(key, PATCHES, number_BT).topk(count, dim=1).indices.sort(dim=1).values


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
    sample_N: Tensor  # the caption of each token
    padded_index_N: Tensor  # the index of each token in the padded batch, BT flattened
    offset_B1: Tensor  # int32, B + 1: where each caption begins, and the end of the last
    longest: int

    def to(self, device: torch.device | str) -> PackedCaptions:
        """The same captions on another device."""
        *tensors, longest = self
        return PackedCaptions(*(to_device(x, device) for x in tensors), longest)  # type: ignore[call-arg]


class GroupedCaptions(NamedTuple):
    """Captions sorted by length, in groups that are each cut to their own longest caption."""

    tokens_BT: tuple[Tensor, ...]  # one tensor for each group
    grouped_index_B: Tensor  # of each caption of the batch among those of the groups
    row_B: Tensor  # of each caption of the groups in the batch

    def to(self, device: torch.device | str) -> GroupedCaptions:
        """The same captions on another device."""
        tokens = tuple(to_device(x, device) for x in self.tokens_BT)
        index_B = to_device(self.grouped_index_B, device)
        return GroupedCaptions(tokens, index_B, to_device(self.row_B, device))


def to_device(x: Tensor | PackedCaptions | GroupedCaptions, device: torch.device | str) -> Any:
    """`x` on another device.

    From host memory to a GPU it goes through pinned pages, so that nothing waits for the copy.
    """
    if isinstance(x, Tensor) and x.device.type == "cpu" and torch.device(device).type == "cuda":
        return x.contiguous().pin_memory().to(device, non_blocking=True)
    return x.to(device)


class AttentionSpec(NamedTuple):
    """How a block attends."""

    attention: Attention = "auto"  # the kernel
    dropped: float = 0.0  # share of the attention weights that is left out in training
    # Number of the block's first head: above 0 where tensor parallelism gave the block a later
    # share of the heads.
    first_head: int = 0


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
    return PackedCaptions(token_N, position_N, sample_N, padded_index_N, offset_B1, longest)


def group_by_length(
    tokens_BT: Tensor, groups: int, length_B: Tensor | None = None
) -> GroupedCaptions:
    """A batch in host memory in `groups` groups of equally many captions (± 1), by length.

    ValueError for fewer than one group.
    """
    if groups < 1:
        raise ValueError(f"{groups} length groups; there must be at least 1")
    length_B = caption_lengths(tokens_BT) if length_B is None else length_B
    row_B = length_B.argsort(stable=True)
    grouped_index_B = torch.empty_like(row_B)
    grouped_index_B[row_B] = torch.arange(len(row_B))
    tokens = []
    for rows in row_B.tensor_split(groups):
        if len(rows):
            tokens.append(tokens_BT[rows, : int(length_B[rows].max())])
    return GroupedCaptions(tuple(tokens), grouped_index_B, row_B)


# --- kernels -------------------------------------------------------------------------------------


def _find_flash() -> Any:
    """flash-attn's module; None where it is missing or was built for another torch."""
    try:
        return importlib.import_module("flash_attn")
    except (ImportError, OSError):
        return None


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


_FLASH = _find_flash()
_VARLEN: tuple[Callable[..., Tensor] | None] | None = None  # None until it is looked for


def _flash() -> Any:
    """The result of `_find_flash`."""
    return _FLASH


def _varlen() -> Callable[..., Tensor] | None:
    """The result of `_find_varlen`, which is called once.

    It imports torch's compiler, which takes almost as long as torch: a process without a GPU does
    not need it.
    """
    global _VARLEN
    if _VARLEN is None:
        _VARLEN = (_find_varlen(),)
    return _VARLEN[0]


def check_kernel(attention: Attention, *, dropped: bool) -> None:
    """ValueError for a kernel that is missing, or that cannot do what the model needs."""
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
    if attention in ("flash", "varlen") and dropped:
        raise ValueError(
            f"attention {attention!r} cannot drop attention reproducibly: its kernel draws from "
            "its own generator; set attention to auto, or the attention dropouts to 0"
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
    spec: AttentionSpec,
    *,
    causal: bool,
    end_B: Tensor | None = None,
    noise: Noise | None = None,
) -> Tensor:
    """Mixed values BTHD.

    With `end_B` there is one query for each sample; it sees the keys up to that number.
    """
    q_BHTD, k_BHTD, v_BHTD = (x.transpose(1, 2) for x in (q_BTHD, k_BTHD, v_BTHD))
    noise = noise if spec.dropped else None
    # One query costs little with any kernel; cuDNN's backward of it gave NaN and errors on GPUs.
    if noise is not None or (q_BTHD.is_cuda and q_BTHD.shape[1] == 1):
        return _explicit_attention(q_BHTD, k_BHTD, v_BHTD, spec, noise, causal, end_B).transpose(
            1, 2
        )
    seen_B11S = None
    if end_B is not None:
        key_S = torch.arange(k_BTHD.shape[1], device=q_BTHD.device)
        seen_B11S = (key_S <= end_B[:, None])[:, None, None]
    elif _kernel(spec.attention, q_BTHD, packed=False) != "sdpa":
        return _dense(q_BTHD, k_BTHD, v_BTHD, causal, spec.attention)
    mixed_BHTD = F.scaled_dot_product_attention(
        q_BHTD, k_BHTD, v_BHTD, attn_mask=seen_B11S, is_causal=causal and end_B is None
    )
    return mixed_BHTD.transpose(1, 2)


def _dense(
    q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, causal: bool, attention: Attention
) -> Tensor:
    """Sequences of one length, through the kernels for many lengths or flash-attn's own."""
    if attention == "flash":
        mixed: Tensor = _flash().flash_attn_func(q_BTHD, k_BTHD, v_BTHD, causal=causal)
        return mixed
    B, T, H, D = q_BTHD.shape
    S = k_BTHD.shape[1]
    device = q_BTHD.device
    query_offset_B1 = torch.arange(0, B * T + 1, T, dtype=torch.int32, device=device)
    key_offset_B1 = torch.arange(0, B * S + 1, S, dtype=torch.int32, device=device)
    varlen = _varlen()
    assert varlen is not None
    q, k, v = (x.reshape(-1, H, D) for x in (q_BTHD, k_BTHD, v_BTHD))
    mixed = varlen(q, k, v, query_offset_B1, key_offset_B1, T, S, causal=causal)
    return mixed.view(B, T, H, D)


def attend_packed(
    q_NHD: Tensor,
    k_NHD: Tensor,
    v_NHD: Tensor,
    spec: AttentionSpec,
    packed: PackedCaptions,
    *,
    pooled: bool = False,
    noise: Noise | None = None,
) -> Tensor:
    """Mixed values NHD of causal captions.

    With `pooled` there is one query for each caption, its last token, and the result is BHD. Where
    no kernel reads packed sequences, only queries, keys and values are padded: the matrix products
    around attention are not.
    """
    dropped = noise is not None and spec.dropped > 0
    kernel = "sdpa" if dropped else _kernel(spec.attention, q_NHD, packed=True)
    B, longest = len(packed.offset_B1) - 1, packed.longest
    if kernel != "sdpa":
        key_offset_B1 = query_offset_B1 = packed.offset_B1
        if pooled:
            query_offset_B1 = torch.arange(B + 1, dtype=torch.int32, device=q_NHD.device)
        lengths = (query_offset_B1, key_offset_B1, 1 if pooled else longest, longest)
        attend_varlen = _flash().flash_attn_varlen_func if kernel == "flash" else _varlen()
        assert attend_varlen is not None
        mixed_NHD: Tensor = attend_varlen(q_NHD, k_NHD, v_NHD, *lengths, causal=not pooled)
        return mixed_NHD
    spec = spec._replace(attention="sdpa")
    k_BTHD, v_BTHD = _padded(k_NHD, packed), _padded(v_NHD, packed)
    if pooled:
        end_B = (packed.offset_B1[1:] - packed.offset_B1[:-1] - 1).long()
        q_B1HD = q_NHD[:, None]
        mixed = attend(q_B1HD, k_BTHD, v_BTHD, spec, causal=True, end_B=end_B, noise=noise)
        return mixed[:, 0]
    if noise is not None:
        noise = noise._replace(token=_padded(noise.token, packed))
    mixed_BTHD = attend(_padded(q_NHD, packed), k_BTHD, v_BTHD, spec, causal=True, noise=noise)
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
    spec: AttentionSpec,
    noise: Noise | None,
    causal: bool,
    end_B: Tensor | None,
) -> Tensor:
    """Attention that materialises its weights; with `noise` a share of them is left out."""
    H, T, S = q_BHTD.shape[1], q_BHTD.shape[2], k_BHTD.shape[2]
    weight_BHTS = q_BHTD @ k_BHTD.mT * q_BHTD.shape[-1] ** -0.5
    key_S = torch.arange(S, device=q_BHTD.device)
    if end_B is not None:
        weight_BHTS = weight_BHTS.masked_fill((key_S > end_B[:, None])[:, None, None], -torch.inf)
    elif causal:
        weight_BHTS = weight_BHTS.masked_fill(key_S > key_S[:T, None], -torch.inf)
    weight_BHTS = weight_BHTS.softmax(dim=-1)
    if noise is None:
        mixed_BHTD: Tensor = weight_BHTS.to(v_BHTD.dtype) @ v_BHTD
        return mixed_BHTD
    head_H = torch.arange(spec.first_head, spec.first_head + H, device=q_BHTD.device)
    token_B1T1 = noise.token.view(len(q_BHTD), 1, T, 1)
    number_BHTS = ((token_B1T1 << 16) + key_S) * 256 + head_H[:, None, None]
    keep = uniform(noise.key, ATTENTION, number_BHTS) >= spec.dropped
    kept_BHTS: Tensor = weight_BHTS * (keep.to(weight_BHTS.dtype) / (1 - spec.dropped))
    return kept_BHTS @ v_BHTD


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

    Under tensor parallelism it holds a share of the heads; `attention_spec.first_head` is the
    number of the first of them.
    """

    attention_spec = AttentionSpec()
    # Shares of what a branch adds that are left out in training: of its values, of the samples.
    dropout_rate = drop_path_rate = 0.0

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
        noise: Noise | None = None,
        last: bool = False,
        end_B: Tensor | None = None,
    ) -> Tensor:
        """All tokens; with `last` only the pooled token of each sample, BC.

        The pooled token is the one at `end_B`. Without `end_B` it is the first token, or the last
        of each caption where captions are packed. A causal block sees the tokens up to it.
        """
        at = _pooled_tokens(x, packed, end_B) if last else None
        q, k, v = self.qkv(self.ln_1(x), at=at)
        noise = noise if at is None or noise is None else noise.at(*at)
        spec = self.attention_spec
        if packed is not None:
            mixed = attend_packed(q, k, v, spec, packed, pooled=last, noise=noise)
        elif at is not None:
            seen_B = end_B if self.causal else None
            pooled = attend(q[:, None], k, v, spec, causal=False, end_B=seen_B, noise=noise)
            mixed = pooled[:, 0]
        else:
            mixed = attend(q, k, v, spec, causal=self.causal, noise=noise)
        return self._add_branches(x if at is None else x[at], mixed.flatten(-2), noise)

    def _add_branches(self, x: Tensor, mixed: Tensor, noise: Noise | None) -> Tensor:
        x = x + self._dropped(self.out(mixed), noise, MIXED, MIXED_PATH)
        hidden = self.fc1(self.ln_2(x))
        if self.quick_gelu:
            activated = hidden * torch.sigmoid(1.702 * hidden)
        else:
            activated = F.gelu(hidden)
        added: Tensor = self.fc2(activated)
        return x + self._dropped(added, noise, ADDED, ADDED_PATH)

    def _dropped(self, added: Tensor, noise: Noise | None, kind: int, path: int) -> Tensor:
        """What a branch adds, after dropout and stochastic depth."""
        if noise is not None and self.dropout_rate:
            added = dropout(added, self.dropout_rate, noise, kind)
        if noise is not None and self.drop_path_rate:
            added = drop_path(added, self.drop_path_rate, noise, path)
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
# Shapes: B samples, T tokens, C channels of a tower, F class tokens, E channels of an embedding,
# N tokens of packed captions.


class Vision(nn.Module):
    """The image tower: class tokens, then patches.

    The first token's last state is projected, or the mean of the patches.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, first = config.vision_width, config.class_token_length
        self.config = config
        self.patch = Linear(config.num_channels * config.patch_size**2, width, bias=False)
        class_shape = (width,) if first == 1 else (first, width)
        self.class_embedding = nn.Parameter(torch.empty(class_shape))
        self.positional_embedding = nn.Parameter(torch.empty(config.patches + first, width))
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
        config, first = self.config, self.config.class_token_length
        B, channels, height, width = image_BCHW.shape
        expected = [config.num_channels, *config.height_width]
        if [channels, height, width] != expected:
            raise ValueError(
                f"images of shape {[channels, height, width]}; the model takes {expected}"
            )
        p = config.patch_size
        grid = image_BCHW.view(B, channels, height // p, p, width // p, p).permute(0, 2, 4, 1, 3, 5)
        x_BTC = self.patch(grid.reshape(B, -1, channels * p * p))
        first_BFC = self.class_embedding.to(x_BTC.dtype).expand(B, first, -1)
        x_BTC = torch.cat([first_BFC, x_BTC], dim=1) + self.positional_embedding.to(x_BTC.dtype)
        noise = None
        if key is not None and row_B is not None:
            x_BTC, noise = self._dropped(x_BTC, noise_of(key, row_B, x_BTC.shape[1]))
        x_BTC = self.ln_pre(x_BTC)
        # With average pooling no block computes the pooled token alone.
        pooling = len(self.blocks) if config.global_average_pool else len(self.blocks) - 1
        for depth, block in enumerate(self.blocks):
            x_BTC = block(x_BTC, noise=noise and noise.of_block(depth), last=depth == pooling)
        last_BC: Tensor = self.ln_post(x_BTC)
        if config.global_average_pool:
            last_BC = last_BC[:, first:].mean(dim=1)
        return last_BC @ self.proj

    def _dropped(self, x_BTC: Tensor, noise: Noise) -> tuple[Tensor, Noise]:
        """The embedded tokens after dropout, and without the patches that are left out."""
        config, first = self.config, self.config.class_token_length
        if config.vision_hidden_dropout:
            x_BTC = dropout(x_BTC, config.vision_hidden_dropout, noise, EMBEDDED)
        if config.drop_patch_rate:
            row_B, B = noise.row[:, 0], len(x_BTC)
            patch_BT = kept_patches(row_B, noise.key, config.patches, config.drop_patch_rate)
            class_BF = torch.arange(first, device=x_BTC.device).expand(B, first)
            sample_B1 = torch.arange(B, device=x_BTC.device)[:, None]
            at = (sample_B1, torch.cat([class_BF, patch_BT + first], dim=1))
            x_BTC, noise = x_BTC[at], noise.at(*at)
        return x_BTC, noise


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

    def forward(
        self,
        tokens: Tensor | PackedCaptions,
        key: Tensor | None = None,
        row_B: Tensor | None = None,
    ) -> Tensor:
        """Token numbers BT, or packed, to embeddings BE, not yet unit vectors.

        `key` and `row_B` say which random numbers are drawn, see `CLIP.reseed`.
        """
        if isinstance(tokens, PackedCaptions):
            x, noise = self._embed_packed(tokens, key, row_B)
            packed, end_B = tokens, None
        else:
            x, noise = self._embed_padded(tokens, key, row_B)
            packed, end_B = None, tokens.argmax(dim=-1)
        if noise is not None and self.config.text_hidden_dropout:
            x = dropout(x, self.config.text_hidden_dropout, noise, EMBEDDED)
        for depth, block in enumerate(self.blocks):
            last = depth == len(self.blocks) - 1
            x = block(
                x,
                packed=packed,
                noise=noise and noise.of_block(depth),
                last=last,
                end_B=end_B if last else None,
            )
        last_BC: Tensor = self.ln_final(x)
        return last_BC @ self.proj

    def _embed_padded(
        self, token_BT: Tensor, key: Tensor | None, row_B: Tensor | None
    ) -> tuple[Tensor, Noise | None]:
        T = token_BT.shape[1]
        x_BTC = self.token_embedding(self._rows(token_BT)) + self.positional_embedding[:T]
        noise = None
        if key is not None and row_B is not None:
            noise = noise_of(key, row_B, T)
        return x_BTC, noise

    def _embed_packed(
        self, packed: PackedCaptions, key: Tensor | None, row_B: Tensor | None
    ) -> tuple[Tensor, Noise | None]:
        # F.embedding and not an index: its gradient is fast where rows repeat.
        position_NC = F.embedding(packed.position_N, self.positional_embedding)
        x_NC = self.token_embedding(self._rows(packed.token_N)) + position_NC
        noise = None
        if key is not None and row_B is not None:
            row_N = row_B[packed.sample_N]
            noise = Noise(key, row_N, row_N * TOKENS + packed.position_N)
        return x_NC, noise

    def _rows(self, token: Tensor) -> Tensor:
        """Rows of the token table."""
        return token if self.row_of is None else self.row_of[token]


# --------------------------------------------------------------------------------------------------
# Starting values of a model's parameters: open_clip's distributions, from one seed.


LOGIT_SCALE = math.log(1 / 0.07)
# Where the sigmoid loss starts (Zhai et al. 2023).
SIGLIP_SCALE, SIGLIP_BIAS = math.log(10), -10.0


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


# What the random numbers of a model are for (order.py has 1 to 3, augment.py 4).
NOISE = 5


class CLIP(nn.Module):
    """Both towers, the logit scale (a logarithm) and, for the sigmoid loss, the logit bias.

    Initialised from `seed` with open_clip's distributions; the same seed gives the same weights,
    whatever else has been drawn. Under `torch.device("meta")` nothing is allocated. A model with a
    rate or a dropout needs `reseed` before each forward of its training.
    """

    def __init__(
        self, config: ModelConfig, seed: int = 0, *, attention: Attention = "auto"
    ) -> None:
        super().__init__()
        device = torch.get_default_device()
        self.config = config
        drops_attention = config.vision_attention_dropout or config.text_attention_dropout
        check_kernel(attention, dropped=bool(drops_attention))
        with torch.device("meta" if device.type == "meta" else "cpu"):
            self.visual = Vision(config)
            self.text = Text(config)
            self.logit_scale = nn.Parameter(torch.empty(()))
            self.logit_bias = nn.Parameter(torch.empty(())) if config.logit_bias else None
        self._keys: dict[str, int] = {}
        self._row_B: Tensor | None = None
        self._configure_blocks(attention)
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

    def _configure_blocks(self, attention: Attention) -> None:
        """Give every block its kernel and what it leaves out in training."""
        config = self.config
        for depth, block in enumerate(self.visual.blocks):
            assert isinstance(block, Block)
            block.attention_spec = AttentionSpec(attention, config.vision_attention_dropout)
            block.dropout_rate = config.vision_hidden_dropout
            block.drop_path_rate = config.drop_path_rate * depth / max(1, config.vision_layers - 1)
        for block in self.text.blocks:
            assert isinstance(block, Block)
            block.attention_spec = AttentionSpec(attention, config.text_attention_dropout)
            block.dropout_rate = config.text_hidden_dropout

    def reseed(self, seed: int, step: int, row_B: Tensor) -> None:
        """Choose the random numbers of the next forward: of the samples `row_B` of batch `step`.

        Call it before every forward, also before the second one of a micro-batch. The same
        arguments give the same numbers, however a batch is cut into micro-batches and over
        data-parallel ranks. Tensor-parallel ranks pass the same arguments.
        """
        self._keys = {
            "visual": derive_key(seed, NOISE, step, 0),
            "text": derive_key(seed, NOISE, step, 1),
        }
        self._row_B = row_B

    def encode_image(self, image_BCHW: Tensor) -> Tensor:
        """Images, normalised per channel, to unit vectors BE."""
        key, row_B = self._random_numbers("visual", image_BCHW.device, len(image_BCHW))
        return l2_normalise(self.visual(image_BCHW, key, row_B))

    def encode_text(self, tokens: Tensor | PackedCaptions | GroupedCaptions) -> Tensor:
        """Captions to unit vectors BE.

        Captions are token numbers BT with zeros after the end-of-text token, or what
        `pack_captions` or `group_by_length` makes of these.
        """
        if isinstance(tokens, Tensor):
            key, row_B = self._random_numbers("text", tokens.device, len(tokens))
            return l2_normalise(self.text(trim(tokens), key, row_B))
        if isinstance(tokens, PackedCaptions):
            samples = len(tokens.offset_B1) - 1
            key, row_B = self._random_numbers("text", tokens.token_N.device, samples)
            return l2_normalise(self.text(tokens, key, row_B))
        index_B = tokens.grouped_index_B
        key, row_B = self._random_numbers("text", index_B.device, len(index_B))
        sizes = [len(group) for group in tokens.tokens_BT]
        rows = [None] * len(sizes) if row_B is None else row_B[tokens.row_B].split(sizes)
        embedded = []
        for group_BT, group_row_B in zip(tokens.tokens_BT, rows, strict=True):
            embedded.append(self.text(group_BT, key, group_row_B))
        return l2_normalise(torch.cat(embedded)[index_B])

    def _random_numbers(
        self, tower: str, device: torch.device, samples: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """The key of a tower and the rows of the samples; None where the model draws no numbers."""
        if not self.training or not self.config.stochastic:
            return None, None
        if self._row_B is None or len(self._row_B) != samples:
            named = "none were named" if self._row_B is None else f"{len(self._row_B)} were named"
            raise ValueError(
                f"a model with dropout got {samples} samples, but {named}; "
                "call reseed before each forward"
            )
        key = self._keys[tower]
        signed = key - (1 << 64) * (key >> 63)  # 64 bits as torch's int64 holds them
        row_B = self._row_B.to(device, non_blocking=True)
        return torch.full((), signed, device=device), row_B

    def forward(
        self, image_BCHW: Tensor, tokens: Tensor | PackedCaptions | GroupedCaptions
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
