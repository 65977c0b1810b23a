"""Layers of a transformer block: linear, norm, fused queries, keys and values, and the block.

Queries, keys and values come from one product whose rows are ordered head by head ([heads, 3, head
width]), so that a share of its rows is a share of the heads.

Shapes: B samples, T tokens, C channels of a tower, H heads, D channels of a head, N tokens of
packed captions. Activations are BTC, or NC where captions are packed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train.model import noise as draws
from train.model.attention import AttentionSpec, PackedCaptions, attend, attend_packed
from train.model.noise import Noise

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
        x = x + self._dropped(self.out(mixed), noise, draws.MIXED, draws.MIXED_PATH)
        hidden = self.fc1(self.ln_2(x))
        if self.quick_gelu:
            activated = hidden * torch.sigmoid(1.702 * hidden)
        else:
            activated = F.gelu(hidden)
        added: Tensor = self.fc2(activated)
        return x + self._dropped(added, noise, draws.ADDED, draws.ADDED_PATH)

    def _dropped(self, added: Tensor, noise: Noise | None, kind: int, path: int) -> Tensor:
        """What a branch adds, after dropout and stochastic depth."""
        if noise is not None and self.dropout_rate:
            added = draws.dropout(added, self.dropout_rate, noise, kind)
        if noise is not None and self.drop_path_rate:
            added = draws.drop_path(added, self.drop_path_rate, noise, path)
        return added


def _pooled_tokens(x: Tensor, packed: PackedCaptions | None, end_B: Tensor | None) -> Index:
    """The index of the pooled token of each sample."""
    if packed is not None:
        return (packed.offset_B1[1:].long() - 1,)
    if end_B is None:
        return (slice(None), 0)
    return (torch.arange(x.shape[0], device=x.device), end_B)  # len() would fix the batch size
