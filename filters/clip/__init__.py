"""Filters of CLIP embeddings: they run a model, or read what `embed` has stored."""

from filters.clip.clip_loss import ClipLoss
from filters.clip.clip_score import ClipScore
from filters.clip.embed import Embed, fixed_lists, stored_embeddings
from filters.clip.head import Head

__all__ = ["ClipLoss", "ClipScore", "Embed", "Head", "fixed_lists", "stored_embeddings"]
