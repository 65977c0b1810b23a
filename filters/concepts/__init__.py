"""Filters about what a caption or an image is of: concepts, their balance, synsets, targets."""

from __future__ import annotations

from filters.concepts.balance import Balance
from filters.concepts.concept import Concept
from filters.concepts.synset import Synset
from filters.concepts.targets import Targets

__all__ = ["Balance", "Concept", "Synset", "Targets"]
