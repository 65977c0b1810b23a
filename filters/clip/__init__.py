"""Filters of CLIP embeddings: they run a model, or read what `embed` has stored."""

from filters.clip.clip_score import ClipScore
from filters.clip.embed import Embed, fixed_lists, stored_embeddings

__all__ = ["ClipScore", "Embed", "fixed_lists", "stored_embeddings"]
