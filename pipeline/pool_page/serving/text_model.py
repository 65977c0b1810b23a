"""The model that made the embeddings of a score set, for the embedding of a text.

It is loaded with the first text. Without PyTorch and open_clip, or where the model has gone or is
another one, the answer is a line that says so.
"""

from __future__ import annotations

import threading
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from filters import make
from filters.clip.models import ClipFilter, ClipModel, shared_model
from manifests.documents import ScoreSetDocument
from manifests.schema import FilterSpec

EMBED = "embed"
PACKAGES = ("torch", "open_clip")


class TextModel:
    """The text tower of the model that a score set names."""

    def __init__(self, document: ScoreSetDocument) -> None:
        self._document = document
        self._model: ClipModel | None = None
        self._lock = threading.Lock()

    def embed(self, text: str) -> NDArray[np.float32]:
        """(width,) of length 1. ValueError where the model cannot be had."""
        with self._lock:
            if self._model is None:
                self._model = self._load()
            return np.asarray(self._model.embed_texts([text], 1)[0], np.float32)

    def _load(self) -> ClipModel:
        document = self._document
        if document.filter_kind != EMBED:
            raise ValueError(
                f"the embeddings are those of the filter {document.filter_kind}, which has no "
                "model for texts; choose an image instead"
            )
        missing = [package for package in PACKAGES if find_spec(package) is None]
        if missing:
            raise ValueError(
                f"a text needs the model of the embeddings, and {missing[0]} is not installed "
                "here: pip install -e '.[score]', or choose an image instead"
            )
        # The filter as it is recorded; the device is this machine's.
        options = {**document.options, "device": "auto"}
        filter_ = make(FilterSpec(name=document.name, kind=document.kind, options=options))
        assert isinstance(filter_, ClipFilter)
        if filter_.identity() != document.identity:
            raise ValueError(
                f"{filter_.model} is not the model any more that made the embeddings; score the "
                "pool again with it"
            )
        return shared_model(filter_)
