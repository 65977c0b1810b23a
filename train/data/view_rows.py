"""A view of a pool as a trainer reads it: kept rows, their tokens, and the bytes of their images.

Opening a view reads JSON only. The columns of a shard are read when its first row is asked for and
stay in a cache, so a view of any size starts at once in bounded memory: about 80 bytes for a kept
row of a cached shard.

Local tars are read with `pread`, not `mmap`. A page fault holds Python's lock, which would stop
every decoding thread for one slow disk, and a truncated tar would end the process (SIGBUS) instead
of costing one sample.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from manifests import disk
from manifests.aligned.bundles import AlignedFiles
from manifests.documents import ScoreSetDocument
from manifests.pool_layout import PoolLayout, shard_name, uids_checksum
from train.data.retry import read_with_retries
from train.data.view_columns import (
    ViewMasks,
    choose_again,
    covers,
    load_columns,
    load_document,
    load_with_metadata,
    open_masks,
    shard_files,
)
from train.data.view_copies import open_copy
from train.store import ByteRanges, Mode, RangeClient, ReadCost, ShardCache, coalesce
from train.tokenise import TOKENIZER, CaptionTokenizer

Ints = NDArray[np.int64]

# 64 lanes hold windows of 4 shards each, and pass from one window to the next.
CACHED_SHARDS = 512
TOKENS = "tokens"  # the filter whose column is read
CAPTION = "caption"  # the text column whose tokens are stored
# File handles per view: a process may often have 1,024; to open one again costs about 10 µs.
OPEN_TARS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardParts:
    """The parts in which a remote tar is cached on disk."""

    ranges: ByteRanges  # `of_row`: by kept row
    names: tuple[str, ...]  # of the parts: the same for the same bytes of the same tar


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRows:
    """The kept rows of one shard, in tar order."""

    name: str
    tar: str
    offset: NDArray[np.int64]  # (rows,) of the image's bytes in the tar
    length: NDArray[np.int64]  # (rows,) of the image's bytes
    tokens: NDArray[np.uint16]  # of all rows, one after another
    # (rows + 1,) row r has tokens[ends[r]:ends[r + 1]]; none where they could not be made.
    ends: NDArray[np.int64]
    keys: pa.StringArray
    # Further text columns: tokens and ends, as above.
    texts: Mapping[str, tuple[NDArray[np.uint16], NDArray[np.int64]]] = field(default_factory=dict)
    parts: ShardParts | None = None

    def tokens_of(self, row: int, column: str | None = None) -> NDArray[np.uint16]:
        """(length,) start-of-text … end-of-text. Empty where the row has none.

        column: one of `texts`; any other name stands for the stored tokens.
        """
        tokens, ends = self.texts.get(column or "", (self.tokens, self.ends))
        return tokens[ends[row] : ends[row + 1]]

    def used_tokens(self) -> NDArray[np.uint16]:
        """Every token of the rows, once."""
        return np.unique(
            np.concatenate([self.tokens, *(tokens for tokens, _ in self.texts.values())])
        )

    def whole_image(self, row: int, data: bytes) -> bytes:
        """`data`. ValueError where the tar ended before the image did: a damaged sample."""
        if len(data) != self.length[row]:
            end = int(self.offset[row]) + int(self.length[row])
            raise ValueError(f"{self.tar} ends before byte {end}")
        return data


class _Tar:
    """An open local tar. It closes with its last reference, so no reader finds a reused handle."""

    __slots__ = ("handle",)

    def __init__(self, path: str) -> None:
        self.handle = os.open(disk.local_path(path), os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            os.close(self.handle)


class ViewRows:
    """An open view, made by `open_view`.

    shards: (shards,) their numbers in the pool, ascending. shard_rows: (shards,) kept rows. A shard
    is asked for by its position in them.
    """

    def __init__(
        self, masks: ViewMasks, token_set: str, cached_shards: int, texts: Sequence[str] = ()
    ) -> None:
        self.pool, self.view = masks.pool, masks.document.name
        self.shards, self.shard_rows = masks.shards, masks.kept
        self.token_set = token_set
        # How remote tars are cut into parts for a cache on disk; None: they are not.
        self.part_mode: Mode | None = None
        self.copy = open_copy(self.pool, masks.document)
        self.masks = masks
        self._tokens = AlignedFiles.of_scores(self.pool, token_set)
        # An instance of the filter `tokens` under another name names its column so too.
        self._token_column = token_set.partition("@")[0]
        self._texts = [name for name in texts if name != CAPTION]
        self._tokenizer = CaptionTokenizer() if self._texts else None
        self._cached_shards = cached_shards
        self.shard = ShardCache(cached_shards, self._read_shard)
        self._ranges = RangeClient()
        self._open_tar = ShardCache(OPEN_TARS, lambda number: _Tar(self._tar(number)))

    @property
    def is_remote(self) -> bool:
        """Whether its pool lies in a store. Adopted tars may, whatever this says."""
        return disk.is_url(self.pool)

    def forget_shards(self) -> None:
        """Read the columns of all shards again when they are asked for."""
        self.shard = ShardCache(self._cached_shards, self._read_shard)

    def use_copy(self, wanted: bool) -> None:
        """Read tars of the view's own, where there are some, or the pool's."""
        if not wanted:
            self.copy = None

    def _tar(self, number: int) -> str:
        if self.copy is not None and self.shard_rows[number]:
            return self.copy.tar(int(self.shards[number]))
        return self.masks.files.tar(int(self.shards[number]))

    def read_image(self, shard: int, row: int) -> bytes:
        """The stored bytes of the image of kept row `row`.

        ValueError where the tar ends before them: a damaged sample. ReadFailed where the store
        does not answer, OSError where the tar cannot be read at all.
        """
        rows = self.shard(shard)
        offset, length = int(rows.offset[row]), int(rows.length[row])
        return rows.whole_image(row, self.read_range(rows, shard, offset, length, row))

    def read_range(self, rows: ShardRows, shard: int, start: int, length: int, row: int) -> bytes:
        """Bytes of a shard's tar, fewer at its end; errors name kept row `row`, whose image is
        among them.
        """
        name = f"image {rows.keys[row]} in {rows.tar}"
        return read_with_retries(lambda: self._read(shard, rows.tar, start, length), name)

    def _read(self, shard: int, tar: str, offset: int, length: int) -> bytes:
        if disk.is_url(tar):
            data = self._ranges.read(tar, offset, length)
            return disk.read_bytes(tar, offset, length) if data is None else data
        # The reference keeps the handle open while it is read.
        open_tar = self._open_tar(shard)
        return os.pread(open_tar.handle, length, offset)

    def costs(self, number: int) -> dict[Mode, ReadCost]:
        """What a shard costs in each mode that reads the pool's own tars."""
        stored, kept, _ = self._offsets(number)
        return {
            "mask": ReadCost.of(coalesce(*stored, max_gap=None)),
            "ranged": ReadCost.of(coalesce(stored[0][kept], stored[1][kept])),
        }

    def _offsets(self, number: int) -> tuple[tuple[Ints, Ints], Ints, pa.Table]:
        """((offset, length) of the stored images of a shard, which of them are kept, the columns of
        the kept rows)."""
        shard = shard_name(int(self.shards[number]))
        columns = ["key", "uid", "image_offset", "image_length"]
        sidecar = load_columns(self.masks.files.sidecar(shard), columns)
        kept = self.masks.read(number, len(sidecar))["kept"]
        stored = pc.is_valid(sidecar["image_offset"])
        if pc.any(pc.and_(kept, pc.invert(stored))).as_py():
            raise ValueError(
                f"view {self.view!r} keeps rows of shard {shard} that are not stored; "
                f"{choose_again(self.pool)}"
            )
        images = sidecar.filter(stored)
        spans = images["image_offset"].to_numpy(), images["image_length"].to_numpy()
        kept_images = np.flatnonzero(kept.filter(stored).to_numpy())
        return spans, kept_images, sidecar.append_column("kept", kept)

    def _read_shard(self, number: int) -> ShardRows:
        shard = shard_name(int(self.shards[number]))
        (stored_offset, stored_length), kept_images, sidecar = self._offsets(number)
        kept = sidecar["kept"]
        tokens = self._read_tokens(shard, sidecar["uid"]).filter(kept).combine_chunks()
        lengths = pc.fill_null(pc.list_value_length(tokens), 0).to_numpy(zero_copy_only=False)
        kept_keys = sidecar["key"].filter(kept)
        keys = kept_keys.combine_chunks()
        rows = ShardRows(
            name=shard,
            tar=self._tar(number),
            offset=stored_offset[kept_images],
            length=stored_length[kept_images],
            tokens=tokens.flatten().to_numpy(zero_copy_only=False).astype(np.uint16, copy=False),
            ends=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
            keys=keys if isinstance(keys, pa.Array) else pa.concat_arrays(keys.chunks),
            texts=self._read_texts(number),
        )
        if self.copy is not None and self.shard_rows[number]:
            stored_offset, stored_length = self.copy.offsets(shard, kept_keys)
            kept_images = np.arange(len(stored_offset))
            rows = dataclasses.replace(rows, offset=stored_offset, length=stored_length)
        if self.part_mode is None or not disk.is_url(rows.tar):
            return rows
        if self.part_mode == "ranged":
            ranges = coalesce(rows.offset, rows.length)
        else:
            ranges = coalesce(stored_offset, stored_length, max_gap=None)
            ranges = dataclasses.replace(ranges, of_row=ranges.of_row[kept_images])
        parts = _named_parts(rows.tar, ranges, stored_offset, stored_length)
        return dataclasses.replace(rows, parts=parts)

    def _read_texts(self, number: int) -> dict[str, tuple[NDArray[np.uint16], NDArray[np.int64]]]:
        """Tokens of the further text columns of a shard."""
        if self._tokenizer is None:
            return {}
        table = self.masks.kept_columns(number, self._texts)
        texts = {}
        for name in self._texts:
            if not pa.types.is_string(table[name].type):
                raise ValueError(
                    f"captions of {self.pool}/{self.view} name {name!r}, which is no column of text"
                )
            texts[name] = self._tokenizer.encode_all(table[name])
        return texts

    def _read_tokens(self, shard: str, uids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Tokens of every row of a shard. ValueError where they were made for other rows."""
        path = self._tokens.path(shard)
        table, metadata = load_with_metadata(self._tokens, shard, [self._token_column])
        if metadata.get("uids") != uids_checksum(uids):
            raise ValueError(
                f"{path} was made for other rows than the pool has; {_tokenize_again(self.pool)}"
            )
        return table[self._token_column]


def _named_parts(tar: str, ranges: ByteRanges, offset: Ints, length: Ints) -> ShardParts:
    """offset, length: of all stored images. A tar with other contents has other ones."""
    of_tar = hashlib.sha256(tar.encode() + offset.tobytes() + length.tobytes())
    names = []
    for start, size in zip(ranges.start.tolist(), ranges.length.tolist(), strict=True):
        of_part = of_tar.copy()
        of_part.update(f"{start}+{size}".encode())
        names.append(of_part.hexdigest()[:32])
    return ShardParts(ranges=ranges, names=tuple(names))


def open_view(
    pool: str,
    view: str,
    tokenizer: str = "clip",
    cached_shards: int = CACHED_SHARDS,
    texts: Sequence[str] = (),
) -> ViewRows:
    """Open POOL/views/VIEW; the columns of `cached_shards` shards stay in memory.

    texts: text columns that captions are drawn from, beside the stored tokens (`caption`).

    ValueError, with the remedy, for an unknown or stale view and for missing tokens.
    """
    masks = open_masks(shard_files(pool), view)
    token_set = _find_tokens(PoolLayout(pool), tokenizer, masks)
    if tokenizer != TOKENIZER and set(texts) - {CAPTION}:
        raise ValueError(
            f"captions of {pool}/{view} name text columns, which only the tokenizer {TOKENIZER} "
            f"can read, and the run's is {tokenizer}; leave captions out"
        )
    return ViewRows(masks, token_set, cached_shards, texts)


def _find_tokens(layout: PoolLayout, tokenizer: str, masks: ViewMasks) -> str:
    """The score set with the tokens of all shards; of several the one of the highest version."""
    folders = read_with_retries(lambda: disk.list_names(layout.scores), layout.scores)
    token_sets: dict[str, ScoreSetDocument] = {}
    for name in folders:
        path = layout.score_set_json(name)
        if "@" not in name or not disk.exists(path):
            continue
        scores = load_document(path, ScoreSetDocument)
        if scores.filter_kind == TOKENS:  # under whatever name of an instance
            token_sets[name] = scores
    tokenizers = {str(scores.options.get("tokenizer")) for scores in token_sets.values()}
    if tokenizer not in tokenizers:
        raise ValueError(
            f"{layout.root} has no tokens of tokenizer {tokenizer!r} "
            f"(has: {', '.join(sorted(tokenizers)) or 'none'}); {_tokenize_again(layout.root)}"
        )
    complete = [
        (scores.version, name)
        for name, scores in token_sets.items()
        if scores.options.get("tokenizer") == tokenizer
        and covers(masks.pool, scores, masks.document.fingerprint, masks.shards)
    ]
    if not complete:
        raise ValueError(
            f"the tokens of {layout.root} lack shards that were added since; "
            f"{_tokenize_again(layout.root)}"
        )
    return max(complete)[1]


def _tokenize_again(pool: str) -> str:
    return f"run python pipeline/score.py {pool} --filters tokens"
