"""A view of a pool as a trainer reads it: rows, columns, chances."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.manifests import disk
from clipmill.manifests.arrays import Array, FloatArray, Integers
from clipmill.manifests.clip_tokenizer import TOKENIZER, CaptionTokenizer, TokenArray
from clipmill.manifests.commits import open_shard_files
from clipmill.manifests.disk import to_plain
from clipmill.manifests.layout import PoolLayout, shard_name
from clipmill.manifests.pool import OpenView, Pool, choose_again
from clipmill.manifests.records import ScoreSetDocument
from clipmill.manifests.schema import Balance
from clipmill.train.mixture.order import candidates_for, expected_unique
from clipmill.train.store import ByteRanges, RangeClient, ShardCache, coalesce, read_with_retries

# --------------------------------------------------------------------------------------------------
# A pool whose every read is repeated after a time-out or a lost connection.


def open_pool(path: str) -> Pool:
    """A pool of which two small files are read: where the files of its shards are."""
    files = read_with_retries(lambda: open_shard_files(path), path)
    return Pool(files, read_with_retries)


# --------------------------------------------------------------------------------------------------
# A view of a pool as a trainer reads it: kept rows, their tokens, and the bytes of their images.
#
# Opening a view reads JSON only. The columns of a shard are read when its first row is asked for
# and stay in a cache, so a view of any size starts at once in bounded memory: about 80 bytes for
# a kept row of a cached shard.
#
# Local tars are read with `pread`, not `mmap`. A page fault holds Python's lock, which would stop
# every decoding thread for one slow disk, and a truncated tar would end the process (SIGBUS)
# instead of costing one sample.


# 64 lanes hold windows of 4 shards each, and pass from one window to the next.
CACHED_SHARDS = 512
TOKENS = "tokens"  # the filter whose column is read
CAPTION = "caption"  # the text column whose tokens are stored
# File handles per view: a process may often have 1,024; to open one again costs about 10 µs.
OPEN_TARS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardParts:
    """The parts of a remote tar that a cache on disk has."""

    ranges: ByteRanges  # `of_row`: by kept row
    names: tuple[str, ...]  # of the parts: the same for the same rows of the same tar


@dataclass(frozen=True, kw_only=True)
class ShardRows:
    """The kept rows of one shard, in tar order."""

    name: str
    tar: str
    offset: Integers  # (rows,) of the image's bytes in the tar
    length: Integers  # (rows,) of the image's bytes
    tokens: TokenArray  # of all rows, one after another
    # (rows + 1,) row r has tokens[ends[r]:ends[r + 1]]; none where they could not be made.
    ends: Integers
    keys: pa.StringArray
    # Further text columns: tokens and ends, as above.
    texts: Mapping[str, tuple[TokenArray, Integers]] = field(default_factory=dict)
    columns: pa.Table | None = None  # (rows,) those that were asked for beside the images

    def tokens_of(self, row: int, column: str | None = None) -> TokenArray:
        """(length,) start-of-text … end-of-text. Empty where the row has none.

        column: one of `texts`; any other name stands for the stored tokens.
        """
        tokens, ends = self.texts.get(column or "", (self.tokens, self.ends))
        return tokens[ends[row] : ends[row + 1]]

    @functools.cached_property
    def parts(self) -> ShardParts:
        """How the tar is cut for a cache on disk: near rows are in one part."""
        of_tar = hashlib.sha256(self.tar.encode() + self.offset.tobytes() + self.length.tobytes())
        ranges = coalesce(self.offset, self.length)
        names = []
        for start, size in zip(ranges.start.tolist(), ranges.length.tolist(), strict=True):
            of_part = of_tar.copy()
            of_part.update(f"{start}+{size}".encode())
            names.append(of_part.hexdigest()[:32])
        return ShardParts(ranges=ranges, names=tuple(names))

    def used_tokens(self) -> TokenArray:
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


class CaptionCoder(Protocol):
    """Makes tokens of captions, in the place of those that a pool stores."""

    identity: str
    pad: int  # the token that fills a caption up to the context

    def encode_all(
        self, texts: pa.ChunkedArray, *, blanks: bool = False
    ) -> tuple[TokenArray, Integers]:
        """(tokens of all texts, (texts + 1,) where those of each end); NULL has none, and a blank
        text has only with `blanks`."""


class _Tar:
    """An open local tar. It closes with its last reference, so no reader finds a reused handle."""

    __slots__ = ("handle",)

    def __init__(self, path: str) -> None:
        self.handle = os.open(disk.local_path(path), os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            os.close(self.handle)


class RowReader:
    """Rows by shard and row: their columns, and the bytes of their images.

    `shard(number)` gives the ShardRows of a shard; those used last stay in memory.
    """

    def __init__(
        self,
        pool: str,
        cached_shards: int,
        read_shard: Callable[[int], ShardRows],
    ) -> None:
        """read_shard: reads the columns of a shard."""
        self.pool = pool
        self.shard = ShardCache(cached_shards, read_shard)
        self._ranges = RangeClient()
        self._open_tar = ShardCache(OPEN_TARS, _Tar)

    @property
    def is_remote(self) -> bool:
        """Whether its pool lies in a store. Adopted tars may, whatever this says."""
        return disk.is_url(self.pool)

    def files_of(self, number: int) -> Iterable[Callable[[], object]]:
        """What opens the files that a shard shares with others: asked for beside its own, they
        answer while it is read."""
        return ()

    def read_image(self, rows: ShardRows, row: int) -> bytes:
        """The stored bytes of the image of kept row `row` of a shard.

        ValueError where the tar ends before them: a damaged sample. ReadFailed where the store
        does not answer, OSError where the tar cannot be read at all.
        """
        data = self.read_range(rows, int(rows.offset[row]), int(rows.length[row]), row)
        return rows.whole_image(row, data)

    def read_range(self, rows: ShardRows, start: int, length: int, row: int) -> bytes:
        """Bytes of a shard's tar, fewer at its end; errors name kept row `row`, whose image is
        among them.
        """
        name = f"image {rows.keys[row]} in {rows.tar}"
        return read_with_retries(lambda: self._read(rows.tar, start, length), name)

    def _read(self, tar: str, offset: int, length: int) -> bytes:
        if disk.is_url(tar):
            data = self._ranges.read(tar, offset, length)
            return disk.read_bytes(tar, offset, length) if data is None else data
        # The reference keeps the handle open while it is read.
        open_tar = self._open_tar(tar)
        return os.pread(open_tar.handle, length, offset)


class ViewRows(RowReader):
    """An open view, made by `open_view`.

    token_set: which tokens its rows have. shards: (shards,) their numbers in the pool, ascending.
    shard_rows: (shards,) kept rows. A shard is asked for by its position in them.
    """

    def __init__(
        self,
        masks: OpenView,
        token_set: str,
        cached_shards: int,
        texts: Sequence[str] = (),
        own: CaptionCoder | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        """own: makes the tokens of the captions, where they are not those of `token_set`. columns:
        what `ShardRows.columns` has."""
        super().__init__(masks.pool, cached_shards, self._read_shard)
        self.view, self.token_set = masks.document.name, token_set
        self.masks, self.shards, self.shard_rows = masks, masks.shards, masks.kept
        # An instance of the filter `tokens` under another name names its column so too.
        self._token_column = token_set.partition("@")[0]
        self._texts = [name for name in texts if name != CAPTION]
        self._own, self._columns = own, tuple(columns)
        self._tokenizer = (own or CaptionTokenizer()) if self._texts else None

    def files_of(self, number: int) -> Iterable[Callable[[], object]]:
        """As in `RowReader`, of a store: its masks and its tokens."""
        if self.is_remote:
            shard = int(self.shards[number])
            yield functools.partial(self.masks.bundle, shard)
            if self._own is None:
                yield functools.partial(self.masks.table.scores(self.token_set).bundle, shard)

    def _read_shard(self, number: int) -> ShardRows:
        shard = shard_name(int(self.shards[number]))
        columns = ["key", "uid", "image_offset", "image_length"]
        beside = [name for name in self._columns if name == CAPTION]
        sidecar = self.masks.table.read_lazily(shard, [*columns, *beside])
        mask = self.masks.read(number, len(sidecar))["kept"]
        kept = sidecar.filter(mask)
        if kept["image_offset"].null_count:
            raise ValueError(
                f"view {self.view!r} keeps rows of shard {shard} that are not stored; "
                f"{choose_again(self.pool)}"
            )
        if self._own is None:
            tokens_of, name = self.masks.table.read_of_uids, self._token_column
            table = tokens_of(shard, [name], self.token_set, sidecar["uid"])
            column = table[name].filter(mask).combine_chunks()
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
            tokens = column.flatten().to_numpy(zero_copy_only=False).astype(np.uint16, copy=False)
            ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        else:
            captions = self.masks.kept_columns(number, [CAPTION])[CAPTION]
            tokens, ends = self._own.encode_all(captions, blanks=True)
        return ShardRows(
            name=shard,
            tar=self.masks.files.tar(int(shard)),
            offset=kept["image_offset"].to_numpy(),
            length=kept["image_length"].to_numpy(),
            tokens=tokens,
            ends=ends,
            keys=one_array(kept["key"]),
            texts=self._read_texts(number),
            columns=self._read_columns(shard, kept.select(beside), mask),
        )

    def _read_columns(self, shard: str, known: pa.Table, mask: pa.ChunkedArray) -> pa.Table | None:
        """The columns of the kept rows that were asked for; `known` has the caption."""
        if not self._columns:
            return None
        others = [name for name in self._columns if name not in known.column_names]
        if others:
            table = self.masks.table.read(shard, others, self._sets)
            for name, column in zip(others, table.filter(mask).columns, strict=True):
                known = known.append_column(name, column)
        return known.select(list(self._columns)).combine_chunks()

    @functools.cached_property
    def _sets(self) -> dict[str, str]:
        """Column -> the score set that has it, of the columns that were asked for."""
        return self.masks.table.sets_of(self._columns, self.masks)

    def _read_texts(self, number: int) -> dict[str, tuple[TokenArray, Integers]]:
        """Tokens of the further text columns of a shard."""
        if self._tokenizer is None:
            return {}
        table = self.masks.kept_columns(number, self._texts)
        texts: dict[str, tuple[TokenArray, Integers]] = {}
        for name in self._texts:
            if not pa.types.is_string(table[name].type):
                raise ValueError(
                    f"captions of {self.pool}/{self.view} name {name!r}, which is no column of text"
                )
            texts[name] = self._tokenizer.encode_all(table[name])
        return texts


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    array = column.combine_chunks()
    return array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)


def open_view(
    pool: str,
    view: str,
    tokenizer: str | CaptionCoder = "clip",
    cached_shards: int = CACHED_SHARDS,
    texts: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> ViewRows:
    """Open POOL/views/VIEW; the columns of `cached_shards` shards stay in memory.

    tokenizer: whose stored tokens are read; or the model's own, which makes them of the captions.
    texts: text columns that captions are drawn from, beside the stored tokens (`caption`). columns:
    of the sidecars and current score sets that `ShardRows.columns` has.

    ValueError, with the remedy, for an unknown or stale view and for missing tokens.
    """
    masks = open_pool(pool).view(view)
    if not isinstance(tokenizer, str):
        return ViewRows(masks, tokenizer.identity, cached_shards, texts, tokenizer, columns)
    tokens = _find_tokens(PoolLayout(pool), tokenizer, masks)
    if tokenizer != TOKENIZER and set(texts) - {CAPTION}:
        raise ValueError(
            f"captions of {pool}/{view} name text columns, which only the tokenizer {TOKENIZER} "
            f"can read, and the run's is {tokenizer}; leave captions out"
        )
    return ViewRows(masks, tokens, cached_shards, texts, columns=columns)


def token_set(pool: str, view: str, tokenizer: str = "clip") -> str:
    """The score set (NAME@ID) with the tokens of POOL/views/VIEW. ValueError as by `open_view`."""
    return _find_tokens(PoolLayout(pool), tokenizer, open_pool(pool).view(view))


def _find_tokens(layout: PoolLayout, tokenizer: str, masks: OpenView) -> str:
    """The score set with the tokens of all shards; of several the one of the highest version."""
    token_sets: dict[str, ScoreSetDocument] = {}
    for name, scores in masks.table.all_score_sets.items():
        if scores.filter_kind == TOKENS:  # under whatever name of an instance
            token_sets[name] = scores
    tokenizers = {str(scores.options.get("tokenizer")) for scores in token_sets.values()}
    if tokenizer not in tokenizers:
        raise ValueError(
            f"{layout.root} has no tokens of tokenizer {tokenizer!r} "
            f"(has: {', '.join(sorted(tokenizers)) or 'none'}); {_tokenize_again(layout)}"
        )
    complete = [
        (scores.version, name)
        for name, scores in token_sets.items()
        if scores.options.get("tokenizer") == tokenizer and masks.covers(scores)
    ]
    if not complete:
        raise ValueError(
            f"the tokens of {layout.root} lack shards that were added or fetched again since; "
            f"{_tokenize_again(layout)}"
        )
    return max(complete)[1]


def _tokenize_again(layout: PoolLayout) -> str:
    return f"run clipmill score {layout} --filters tokens"


# --------------------------------------------------------------------------------------------------
# Numbers of rows that may not be in one batch together: equal uids, or equal groups of
# duplicates.
#
# A pool has every uid once. So the rows of its views are numbered by shard and row, and only the
# masks of the views are read. Views that share no shard cannot collide and cost nothing. The uids
# themselves are read where a blend has several pools, and a column where the blend names one.
#
# In memory are 8 bytes for each kept row of the shards that are being drawn from, whatever the
# size of the pool: 41 MB for a view with 512 shards of 10,000 rows.


UID = "uid"
POOL_SHIFT, SHARD_SHIFT = 52, 20  # a pool has up to 2^32 shards of up to 2^20 rows
# Rows without a value collide with nothing. Their numbers have this bit, which hashes do not have.
NO_VALUE = 1 << 62


class ViewNumbers:
    """Numbers of the kept rows of views; `clipmill.train.mixture.order.RowNumbers`.

    column: `uid`, or any column of the sidecars and of the score sets that a view's rules read.
    cached: shards of a view whose numbers stay in memory.
    """

    def __init__(self, views: Sequence[ViewRows], column: str, cached: int) -> None:
        self.column = column
        self._views = tuple(views)
        self._pools = list(dict.fromkeys(view.pool for view in views))
        self._by_position = column == UID and len(self._pools) == 1
        self.sources = self._colliding()
        self._caches: list[ShardCache[int, Integers]] = []
        for s in range(len(self._views)):
            self._caches.append(ShardCache(cached, self._reader(s)))

    def __call__(self, source: int, shard: Integers, row: Integers) -> Integers:
        """(rows,) numbers ≥ 0 of kept rows of a source; ValueError for a column that is missing."""
        return values_of_rows(self._caches[source], shard, row, np.int64)

    def _colliding(self) -> frozenset[int]:
        """The sources of which a row may collide with another row of the blend."""
        if not self._by_position:
            only_one = len(self._views) == 1 and self.column == UID
            return frozenset() if only_one else frozenset(range(len(self._views)))
        with_rows = [view.shards[np.asarray(view.shard_rows) > 0] for view in self._views]
        shards, counts = np.unique(np.concatenate(with_rows), return_counts=True)
        shared = shards[counts > 1]
        return frozenset(s for s, own in enumerate(with_rows) if np.isin(own, shared).any())

    def _reader(self, source: int) -> Any:
        return lambda number: self._read(self._views[source], number)

    def _read(self, view: ViewRows, number: int) -> Integers:
        """(rows,) the numbers of the kept rows of a shard, which is given by its position."""
        shard = int(view.shards[number])
        first = (self._pools.index(view.pool) << POOL_SHIFT) + (shard << SHARD_SHIFT)
        if self._by_position:
            return first + view.masks.kept_rows(number)
        values = one_array(view.masks.kept_columns(number, [self.column])[self.column])
        numbers = _hashes(values)
        missing = np.asarray(pc.is_null(values))
        numbers[missing] = NO_VALUE | (first + np.flatnonzero(missing))
        return numbers


def values_of_rows(
    of_shard: Callable[[int], Array], shard: Integers, row: Integers, kind: type
) -> Array:
    """(rows,) the values of kept rows; `of_shard` gives those of one shard."""
    values: Array = np.empty(len(shard), kind)
    by_shard = np.argsort(shard, kind="stable")
    different, starts = np.unique(shard[by_shard], return_index=True)
    for number, here in zip(different.tolist(), np.split(by_shard, starts[1:]), strict=True):
        values[here] = of_shard(number)[row[here]]
    return values


def _hashes(values: pa.Array) -> Integers:
    """(rows,) 61 bits of the hash of each value's text; of NULL anything."""
    encoded = pc.dictionary_encode(pc.fill_null(pc.cast(values, pa.string()), ""))
    hashes = []
    for text in encoded.dictionary.to_pylist():
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        hashes.append(int.from_bytes(digest, "big") >> 3)
    indices = encoded.indices.to_numpy()
    numbers: Integers = np.array(hashes, np.int64)[indices]
    return numbers


# --------------------------------------------------------------------------------------------------
# The chances of the rows of balanced views: min(1, limit / column).
#
# The column is read shard by shard, as rows are drawn: 8 bytes for each kept row of the shards
# that are being drawn from. How many candidates a draw looks at follows from a sample of shards,
# which is the same in every start of a run.


SAMPLED_SHARDS = 16


class ViewChances:
    """The chances of kept rows of balanced views; `clipmill.train.mixture.RowChances`.

    rules: view -> its rule. cached: shards of a view whose chances stay in memory. ValueError for a
    column that is missing, or has no number above 0 in a kept row.
    """

    def __init__(
        self,
        views: Sequence[ViewRows],
        names: Sequence[str],
        rules: Mapping[str, Balance],
        cached: int,
    ) -> None:
        self._rules = dict(rules)
        self._caches: dict[int, ShardCache[int, FloatArray]] = {}
        self._samples: dict[int, FloatArray] = {}
        self.candidates: dict[int, int] = {}
        for s, (view, name) in enumerate(zip(views, names, strict=True)):
            if name in rules:
                self._caches[s] = ShardCache(cached, self._reader(view, name))
                self._samples[s] = self._sample(s, view)
                self.candidates[s] = candidates_for(float(self._samples[s].mean()))

    def __call__(self, source: int, shard: Integers, row: Integers) -> FloatArray:
        """(rows,) the chances of kept rows of a balanced source, above 0 and up to 1."""
        return values_of_rows(self._caches[source], shard, row, np.float64)

    def unique(self, source: int, rows: int, drawn: int) -> int:
        """About how many different rows come in so many draws."""
        return min(rows, drawn, round(expected_unique(self._samples[source], rows, drawn)))

    def identity(self) -> dict[str, object]:
        """What decides the chances: {name of the source: its rule}."""
        rules: dict[str, Any] = to_plain(self._rules)
        return rules

    def _sample(self, source: int, view: ViewRows) -> FloatArray:
        """The chances of all kept rows of some shards."""
        with_rows = np.flatnonzero(np.asarray(view.shard_rows))
        chosen = np.linspace(0, len(with_rows) - 1, min(SAMPLED_SHARDS, len(with_rows)))
        read = self._caches[source]
        parts = [read(int(with_rows[int(k)])) for k in chosen]
        return np.concatenate([np.zeros(0), *parts])

    def _reader(self, view: ViewRows, name: str) -> Any:
        rule = self._rules[name]

        def read(number: int) -> FloatArray:
            counts = view.masks.kept_columns(number, [rule.column])[rule.column]
            values = _numbers(counts)
            if values is None or not bool((values > 0).all()):
                shard = shard_name(int(view.shards[number]))
                raise ValueError(
                    f"balance of {name}: column {rule.column!r} has no number above 0 in a kept "
                    f"row of shard {shard}; add the rule {rule.column} > 0 to the view"
                )
            chances: FloatArray = np.minimum(1.0, rule.limit / values)
            return chances

        return read


def _numbers(column: pa.ChunkedArray) -> FloatArray | None:
    """A column of numbers; None for one of another type. NULL is NaN."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return None
    return np.asarray(pc.cast(column, pa.float64()).to_numpy(), np.float64)
