"""Attention over padded and packed sequences, and captions without their padding.

`sdpa` (torch) runs everywhere. `varlen` (torch 2.10 on) and `flash` (flash-attn) read packed
sequences as they lie; they need a GPU and 16 bits. `auto` takes `flash`, then `varlen`, for packed
captions where they can run, and `sdpa` for the rest. No mask is ever materialised: causality is a
flag.

Shapes: B samples, T queries, S keys, H heads, D channels of a head, N tokens of all captions.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from train.model.noise import ATTENTION, Noise, uniform

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
