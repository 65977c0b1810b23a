"""Filters of CLIP embeddings: they run a model, or read what `embed` has stored."""

from filters.clip.batches import run_batches
from filters.clip.clip_loss import ClipLoss
from filters.clip.clip_score import ClipScore
from filters.clip.embed import Embed, fixed_lists, stored_embeddings
from filters.clip.head import Head
from filters.clip.hub import pinned, snapshot
from filters.clip.models import (
    HUB,
    LOCAL,
    ClipFilter,
    ClipModel,
    Pixels,
    model_config,
    takes_gpu,
)

__all__ = [
    "HUB",
    "LOCAL",
    "ClipFilter",
    "ClipLoss",
    "ClipModel",
    "ClipScore",
    "Embed",
    "Head",
    "Pixels",
    "fixed_lists",
    "model_config",
    "pinned",
    "run_batches",
    "snapshot",
    "stored_embeddings",
    "takes_gpu",
]
