"""What is most like an image or a text: the nearest embeddings by cosine, over a sample of the
stored rows.

faiss is used where it is installed; otherwise NumPy multiplies the whole sample, 1 ms per 10,000
rows of 512 values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from manifests.aligned import AlignedFiles
from manifests.documents import ScoreSetDocument
from pipeline.pool_page.serving.text_model import TextModel
from pipeline.pool_page.survey import Survey
from pipeline.scoring import complete_score_sets

MOST_VALUES = 50_000_000  # of all embeddings in memory, 200 MB
NEAREST = 24
Vectors = NDArray[np.float32]


class Alike:
    """Normalised embeddings of some rows. `name`: their score set. `text_model`: its model."""

    def __init__(
        self, name: str, rows: NDArray[np.int64], vectors: Vectors, text_model: TextModel
    ) -> None:
        self.name, self.rows, self._vectors, self.text_model = name, rows, vectors, text_model
        self._index = _faiss_index(vectors)

    @classmethod
    def of_survey(cls, survey: Survey) -> Alike | None:
        """The embeddings of images of a pool; None where no score set has some."""
        pool_rows = survey.rows
        sets = complete_score_sets(survey.pool)
        for name, document in sets.items():
            if document.fingerprint != pool_rows.commits.fingerprint or not len(pool_rows.shards):
                continue
            column = _embedding_column(survey, name, document)
            if column is None:
                continue
            files = AlignedFiles.of_scores(survey.pool, name)
            numbers: list[NDArray[np.int64]] = []
            parts: list[Vectors] = []
            size = 0
            for position, shard in enumerate(pool_rows.shards.tolist()):
                values = files.read(shard, [column])[0][column].combine_chunks()
                valid = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
                first = int(pool_rows.first_rows[position])
                valid &= pool_rows.stored[first : first + len(valid)]
                vectors = _normalised(values.filter(pa.array(valid)))
                numbers.append(np.flatnonzero(valid) + first)
                parts.append(vectors)
                size += vectors.size
                if size > MOST_VALUES:
                    break
            return cls(name, np.concatenate(numbers), np.concatenate(parts), TextModel(document))
        return None

    def nearest(self, row: int, most: int = NEAREST) -> list[int]:
        """The rows that are most like a row, itself left out. ValueError without an embedding."""
        position = int(np.searchsorted(self.rows, row))
        if position == len(self.rows) or self.rows[position] != row:
            raise ValueError("the row is not among those whose embeddings are in memory")
        order = self._order(self._vectors[position], most + 1)
        chosen: list[int] = self.rows[order[order != position]][:most].tolist()
        return chosen

    def nearest_to_text(self, text: str, most: int = NEAREST) -> list[int]:
        """The rows whose images are most like a text, the nearest first. ValueError where the model
        of the embeddings cannot be had."""
        wanted = self.text_model.embed(text)
        if len(wanted) != self._vectors.shape[1]:
            raise ValueError(
                f"the model gives {len(wanted)} values for a text, and {self.name} has "
                f"{self._vectors.shape[1]}"
            )
        rows: list[int] = self.rows[self._order(wanted, most)].tolist()
        return rows

    def _order(self, wanted: Vectors, most: int) -> NDArray[np.int64]:
        """Positions of the `most` nearest vectors, the nearest first."""
        if self._index is not None:
            _, places = self._index.search(wanted[None], min(most, len(self.rows)))
            return np.asarray(places[0], np.int64)
        likeness = self._vectors @ wanted
        some = np.argpartition(-likeness, min(most, len(likeness)) - 1)[:most]
        return some[np.argsort(-likeness[some], kind="stable")]


def _embedding_column(survey: Survey, name: str, document: ScoreSetDocument) -> str | None:
    """The first column of fixed-size lists of floats; of two the one of images."""
    files = AlignedFiles.of_scores(survey.pool, name)
    schema = files.read(int(survey.rows.shards[0]))[0].schema
    able = []
    for field in schema:
        kind = field.type
        if pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
            able.append(field.name)
    able.sort(key=lambda column: "image" not in column)
    return able[0] if able and able[0] in document.columns else None


def _normalised(values: pa.FixedSizeListArray) -> Vectors:
    """(rows, width) of length 1; a vector of zeros stays one."""
    width = values.type.list_size
    flat = values.flatten().to_numpy(zero_copy_only=False)
    vectors = np.nan_to_num(np.asarray(flat, np.float32).reshape(-1, width))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = vectors / np.maximum(lengths, 1e-12)
    return scaled


def _faiss_index(vectors: Vectors) -> Any:
    """An exact index by inner product; None without faiss."""
    try:
        import faiss  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return None
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index
