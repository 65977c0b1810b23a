"""Captions through the text tower of open_clip without most of their padding.

A causal tower that pools at the end of the text gives the same embedding, up to rounding, however
many positions follow: those before do not see them. A caption of 12 tokens is run at a context of
16 in place of 77, which is a fifth of the work.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

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
        f"network.{prefix}positional_embedding": tower.positional_embedding[:context],
        f"network.{prefix}attn_mask": tower.attn_mask[:context, :context],
    }
    module = _encoder_class()(network)
    return functional_call(module, shorter, (tokens_BT,), tie_weights=False)


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


@functools.cache
def _encoder_class() -> Any:
    """A module whose forward is encode_text of another: functional_call calls forward."""
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self, network: Any) -> None:
            super().__init__()
            self.network = network

        def forward(self, tokens_BT: Any) -> Any:
            return self.network.encode_text(tokens_BT)

    return Encoder
