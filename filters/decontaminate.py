"""Rows that show an image of an evaluation."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.filters.base import PLACE, SHARE, Batch, Columns, Filter, described
from clipmill.filters.columns import unit_vectors
from clipmill.filters.duplicates import EMBEDDING, PERCEPTUAL, RADII, OtherPool
from clipmill.filters.near_hashes import content_hash, read_images
from clipmill.manifests import disk
from clipmill.manifests.arrays import FloatArray, Hashes, Integers
from clipmill.manifests.hashes import PDQ_QUALITY, as_words, pdq, phash
from clipmill.manifests.layout import PoolLayout

PIECE = 2048  # references that a batch is compared with at a time: 256 rows take 17 MB
logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Decontaminate(Filter):
    """decontaminate_match: the nearest image of `against` if it is near enough, else "".
    decontaminate_distance: bits, or 1 - cosine, to the nearest image, near or not.

    on: perceptual (within `radius` bits) or embedding (cosine at least `threshold`). column: what
    is compared; its filter stands before this one in the recipe. against: images, folders, tars,
    Parquet files or pools; embeddings are compared with pools only, which have the same column. A
    row or an image whose PDQ has a quality below `quality` is near nothing: its distance is that of
    all bits.
    """

    name = "decontaminate"
    adds, meanings = described(
        decontaminate_match=(pa.string(), "the evaluation image that the row shows, '' if none"),
        decontaminate_distance=(pa.float32(), "bits or 1 - cosine to the nearest evaluation image"),
    )

    against: tuple[str, ...] | str = field(metadata=PLACE)  # identity() covers what is there
    on: Literal["perceptual", "embedding"] = "perceptual"
    column: str | None = None
    radius: int | None = field(default=None, metadata={**PERCEPTUAL, "least": 0})
    threshold: float = field(default=0.99, metadata={**EMBEDDING, **SHARE})
    quality: float = field(default=PDQ_QUALITY, metadata=PERCEPTUAL)
    names: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    references: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.against, str):
            self.against = (self.against,)
        if not self.against:
            raise ValueError("filter decontaminate: against is empty; name images or a pool")
        super().__post_init__()
        if self.quality != PDQ_QUALITY and self.is_phash:
            raise ValueError(
                f"filter decontaminate: quality is {self.quality}; {self.compared} has none"
            )

    @property
    def compared(self) -> str:
        """The column that is compared."""
        return self.column or ("pdq" if self.on == "perceptual" else "embed_image")

    @property
    def is_phash(self) -> bool:
        """True for the hash of the filter `picture`, which has 64 bits and no quality."""
        return self.compared.endswith("phash")

    @property
    def reads(self) -> tuple[str, ...]:
        """The instance whose column is compared: `phash` is of picture, `X_phash` and `X_image` of
        X, and a PDQ has the name of its instance."""
        if self.on == "embedding":
            return (self.compared.removesuffix("_image"),)
        if self.is_phash:
            return (self.compared.removesuffix("phash").removesuffix("_") or "picture",)
        return (self.compared,)

    def _is_pool(self, given: str) -> bool:
        return disk.exists(PoolLayout(given).shards)

    def _columns_of_pool(self) -> list[str]:
        of_pdq = self.on == "perceptual" and not self.is_phash
        return ["uid", self.compared, *([f"{self.compared}_quality"] if of_pdq else [])]

    def identity(self) -> str:
        hashes = []
        for given in self.against:
            if self._is_pool(given):
                hashes.append(OtherPool(given).identity(self._columns_of_pool()))
            else:
                hashes.append(content_hash(given))
        return disk.content_hash(hashes)

    def check(self) -> None:
        for given in self.against:
            if self.on == "embedding" and not self._is_pool(given):
                raise ValueError(
                    f"filter decontaminate: {given} is no pool; embeddings are compared with those "
                    "of a pool: build one from the images (source kind image_folder) with the same "
                    "filter embed, and name it in against"
                )
        self.identity()

    # --- the images -------------------------------------------------------------------------------

    def setup(self) -> None:
        names: list[str] = []
        columns: list[pa.Array] = []
        for given in self.against:
            of_given = self._from_pool(given) if self._is_pool(given) else self._from_images(given)
            names += of_given["name"].to_pylist()
            columns.append(of_given["value"].combine_chunks())
        self.names = names
        widths = {str(column.type) for column in columns}
        if len(widths) > 1:
            raise ValueError(
                f"filter decontaminate: the pools and images have different {self.compared}: "
                f"{', '.join(sorted(widths))}"
            )
        values = pa.concat_arrays(columns)
        if self.on == "embedding":
            self.references = unit_vectors(values)[0]
        else:
            self.references = as_words(values)
        logger.info("decontaminate: %d images to compare with", len(names))

    def _from_pool(self, given: str) -> pa.Table:
        tables = []
        for table in OtherPool(given).columns(self._columns_of_pool()):
            table = table.filter(pc.is_valid(table[self.compared]))
            for quality in table.column_names[2:]:
                table = table.filter(pc.greater_equal(table[quality], self.quality))
            tables.append(table.select([0, 1]).rename_columns(["name", "value"]))
        if not tables:
            raise ValueError(f"filter decontaminate: the pool {given} has no rows")
        return pa.concat_tables(tables)

    def _from_images(self, given: str) -> pa.Table:
        names, values, plain = [], [], 0
        for name, image in read_images(given):
            if self.is_phash:
                value: int | bytes = phash(image)
            else:
                value, quality = pdq(image)
                if quality < self.quality:
                    plain += 1
                    continue
            names.append(name)
            values.append(value)
        if plain:
            logger.warning(
                "%s: %d images are so plain that their hashes are noise; they are not searched",
                given,
                plain,
            )
        kind = pa.int64() if self.is_phash else pa.binary(32)
        return pa.table({"name": pa.array(names, pa.string()), "value": pa.array(values, kind)})

    # --- the rows ---------------------------------------------------------------------------------

    def score(self, batch: Batch) -> Columns:
        assert self.references is not None
        column = batch.columns[self.compared]
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if self.on == "embedding":
            rows, usable = unit_vectors(column)
            distance, nearest = _nearest(rows, self.references, _cosine_distances)
            limit, farthest = 1 - self.threshold, 2.0
            limit += 1e-6  # a cosine of fp32 vectors is known to about so much
        else:
            usable = np.asarray(column.is_valid())
            words = as_words(
                column.fill_null(0 if self.is_phash else bytes(column.type.byte_width))
            )
            distance, nearest = _nearest(words, self.references, _bits)
            farthest = 64.0 * words.shape[1]
            limit = self._radius(words)
            if not self.is_phash:
                quality = batch.columns[f"{self.compared}_quality"]
                plain = np.asarray(pc.fill_null(pc.less(quality, self.quality), False), np.bool_)
                distance[plain] = farthest
        distance = np.minimum(distance, farthest)
        matches = [
            self.names[index] if near else ""
            for index, near in zip(nearest.tolist(), distance <= limit, strict=True)
        ]
        return {
            "decontaminate_match": pa.array(matches, pa.string(), mask=~usable),
            "decontaminate_distance": pa.array(distance.astype(np.float32), mask=~usable),
        }

    def _radius(self, words: Hashes) -> int:
        bits = 64 * words.shape[1]
        if words.shape[1] != self.references.shape[1]:
            raise ValueError(
                f"filter decontaminate: {self.compared} has {bits} bits and the images have "
                f"{64 * self.references.shape[1]}"
            )
        return self.radius if self.radius is not None else RADII[bits]


def _bits(rows: Any, others: Any) -> FloatArray:
    count: FloatArray = np.zeros((len(rows), len(others)))
    for word in range(rows.shape[1]):
        count += np.bitwise_count(rows[:, word, None] ^ others[None, :, word])
    return count


def _cosine_distances(rows: Any, others: Any) -> FloatArray:
    distance: FloatArray = 1 - (rows @ others.T).astype(np.float64)
    return distance


def _nearest(rows: Any, references: Any, distances: Any) -> tuple[FloatArray, Integers]:
    """(rows,) the distance to the nearest reference, and which it is: the first of equal ones."""
    best = np.full(len(rows), np.inf)
    nearest = np.zeros(len(rows), np.int64)
    for start in range(0, len(references), PIECE):
        matrix = distances(rows, references[start : start + PIECE])
        index = matrix.argmin(axis=1)
        value = matrix[np.arange(len(rows)), index]
        better = value < best
        best[better], nearest[better] = value[better], index[better] + start
    return best, nearest
