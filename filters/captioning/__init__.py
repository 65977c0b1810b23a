"""Text columns beside the captions of the web: of a file, or written by a model."""

from __future__ import annotations

from filters.captioning.caption_file import CaptionFile
from filters.captioning.captioner import Captioner

__all__ = ["CaptionFile", "Captioner"]
