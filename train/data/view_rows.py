"""A view of a pool, as a trainer reads it: which rows are kept, their tokens, and the bytes of their pictures.

Opening a view reads JSON only; the columns of a shard are read when its first row is asked for and held while they are
in use, so a view of any size starts at once in bounded memory (about 80 bytes a kept row of the shards held).

Local tars are read with `pread`, not `mmap`: a page fault holds Python's lock, which would stop every decoding thread
for one slow disk, and a tar that was cut short would end the process (SIGBUS) rather than one sample.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from manifests import disk
from manifests.pool_layout import pool_fingerprint, read_commit_records

HELD_SHARDS = 512  # 64 lanes hold windows of 4 shards each, and pass from one window to the next
OPEN_TARS = (
    64  # file handles per view: a process may often have 1,024, and opening anew costs about 10 µs
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRows:
    """The kept rows of one shard, in tar order."""

    name: str
    tar: str
    offset: NDArray[np.int64]  # (rows,) of the picture's bytes in the tar
    length: NDArray[np.int64]  # (rows,)
    tokens: NDArray[np.uint16]  # all rows', one after another
    ends: NDArray[
        np.int64
    ]  # (rows + 1,) row r has tokens[ends[r]:ends[r + 1]]; none where they could not be made
    keys: pa.StringArray

    def tokens_of(self, row: int) -> NDArray[np.uint16]:
        """(length,) start-of-text … end-of-text. Empty where the row has none."""
        return self.tokens[self.ends[row] : self.ends[row + 1]]


class _Held(Generic[T]):
    """The last `most` values that were asked for; safe for threads, and one value is made by one thread only."""

    def __init__(self, most: int, make: Callable[[int], T]) -> None:
        self._most, self._make = most, make
        self._values: OrderedDict[int, T] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, key: int) -> T:
        with self._lock:
            if key not in self._values:
                self._values[key] = self._make(key)
                if len(self._values) > self._most:
                    self._values.popitem(last=False)
            self._values.move_to_end(key)
            return self._values[key]


class _Tar:
    """An open local tar. It closes when nobody holds it: no reader can find its handle closed or reused."""

    __slots__ = ("handle",)

    def __init__(self, path: str) -> None:
        self.handle = os.open(disk.local_path(path), os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            os.close(self.handle)


class ViewRows:
    """An open view. `shards` and `shard_rows` (kept rows of each) go by shard number; made by `open_view`."""

    def __init__(
        self,
        pool: str,
        view: str,
        kept: Mapping[str, int],
        tars: Mapping[str, str],
        tokens: str,
        held: int,
    ) -> None:
        self.pool, self.view = pool, view
        self.shards = tuple(sorted(kept))
        self.shard_rows = tuple(kept[shard] for shard in self.shards)
        self.token_set = tokens
        self._tars = tars
        self.shard = _Held(held, self._read_shard)
        self._tar = _Held(OPEN_TARS, lambda shard: _Tar(self._tars[self.shards[shard]]))

    def read_image(self, shard: int, row: int) -> bytes:
        """The stored bytes of the picture of kept row `row`.

        ValueError where the tar ends before them (a damaged sample); OSError where it cannot be read at all.
        """
        rows = self.shard(shard)
        offset, length = int(rows.offset[row]), int(rows.length[row])
        if disk.is_url(rows.tar):
            data = disk.read_bytes(rows.tar, offset, length)
        else:
            tar = self._tar(shard)
            data = os.pread(tar.handle, length, offset)
        if len(data) != length:
            raise ValueError(f"{rows.tar} ends before byte {offset + length}")
        return data

    def column(self, name: str) -> pa.ChunkedArray:
        """A sidecar column (uid, sha256, url …) of every kept row, shard after shard, in tar order."""
        chunks = []
        for number, shard in enumerate(self.shards):
            table = disk.read_parquet(disk.join(self.pool, "shards", f"{shard}.parquet"), [name])
            chunks += table[name].filter(self._kept(number, len(table))).chunks
        return pa.chunked_array(chunks)

    def _kept(self, number: int, rows: int) -> pa.ChunkedArray:
        """(rows,) which rows of a shard the view keeps."""
        path = disk.join(self.pool, "views", self.view, f"{self.shards[number]}.parquet")
        kept = disk.read_parquet(path, ["kept"])["kept"]
        if len(kept) != rows or (pc.sum(kept).as_py() or 0) != self.shard_rows[number]:
            raise ValueError(f"{path} does not fit its shard or its view; {_remedy(self.pool)}")
        return kept

    def _read_shard(self, number: int) -> ShardRows:
        shard = self.shards[number]
        sidecar = disk.read_parquet(
            disk.join(self.pool, "shards", f"{shard}.parquet"),
            ["key", "uid", "image_offset", "image_length"],
        )
        kept = self._kept(number, len(sidecar))
        path = disk.join(self.pool, "scores", self.token_set, f"{shard}.parquet")
        uids = hashlib.sha256("\n".join(sidecar["uid"].to_pylist()).encode()).hexdigest()
        if disk.read_metadata(path).get("uids") != uids:
            raise ValueError(
                f"{path} was made for other rows than the pool has; {_score(self.pool)}"
            )
        tokens = disk.read_parquet(path, ["tokens"])["tokens"].filter(kept).combine_chunks()
        sidecar = sidecar.filter(kept)
        if sidecar["image_offset"].null_count:
            raise ValueError(
                f"view {self.view!r} keeps rows of shard {shard} that are not stored; {_remedy(self.pool)}"
            )
        lengths = pc.fill_null(pc.list_value_length(tokens), 0).to_numpy(zero_copy_only=False)
        return ShardRows(
            name=shard,
            tar=self._tars[shard],
            offset=sidecar["image_offset"].to_numpy(),
            length=sidecar["image_length"].to_numpy(),
            tokens=tokens.flatten().to_numpy(zero_copy_only=False).astype(np.uint16, copy=False),
            ends=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
            keys=pa.concat_arrays(sidecar["key"].chunks)
            if len(sidecar)
            else pa.array([], pa.string()),
        )


def fingerprint(pool: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """What a view of the pool was chosen for, and the commit record of every shard."""
    records = read_commit_records(pool)
    return pool_fingerprint(records), records


def tar_path(pool: str, record: Mapping[str, Any]) -> str:
    """Where the tar of a commit record lies: inside the pool, or anywhere if it was adopted."""
    tar = str(record["tar"])
    inside = not disk.is_url(tar) and not os.path.isabs(disk.local_path(tar))
    return disk.join(pool, "shards", tar) if inside else tar


def open_view(pool: str, view: str, tokenizer: str = "clip", held: int = HELD_SHARDS) -> ViewRows:
    """Open POOL/views/VIEW; the columns of `held` shards stay in memory.

    ValueError, with what mends it, for an unknown or stale view and for missing tokens.
    """
    views = [
        name.removesuffix(".json") for name in disk.list_names(disk.join(pool, "views"), ".json")
    ]
    if view not in views:
        raise ValueError(
            f"{pool} has no view {view!r}{disk.did_you_mean(view, views)}; it has {', '.join(views) or 'none'}"
        )
    manifest = disk.read_json(disk.join(pool, "views", f"{view}.json"))
    now, records = fingerprint(pool)
    if manifest["fingerprint"] != now or set(manifest["shards"]) != set(records):
        raise ValueError(
            f"view {view!r} of {pool} is stale: the pool's shards have changed; {_remedy(pool)}"
        )
    tars = {shard: tar_path(pool, record) for shard, record in records.items()}
    return ViewRows(
        pool, view, manifest["shards"], tars, _token_set(pool, tokenizer, set(records)), held
    )


def _token_set(pool: str, tokenizer: str, shards: set[str]) -> str:
    """The score set that holds the captions of all shards in this tokenizer; the highest version of several."""
    folder = disk.join(pool, "scores")
    found: list[tuple[int, str, dict[str, Any]]] = []
    for name in disk.list_names(folder):
        path = disk.join(folder, name, "scores.json")
        if name.startswith("tokens@") and disk.exists(path):
            scores = disk.read_json(path)
            found.append((scores.get("version", 0), name, scores))
    fitting = [entry for entry in found if entry[2]["options"].get("tokenizer") == tokenizer]
    if not fitting:
        made = ", ".join(sorted({str(entry[2]["options"].get("tokenizer")) for entry in found}))
        raise ValueError(
            f"{pool} has no tokens of tokenizer {tokenizer!r} (has: {made or 'none'}); {_score(pool)}"
        )
    whole = [
        (version, name) for version, name, scores in fitting if shards <= set(scores["shards"])
    ]
    if not whole:
        raise ValueError(f"the tokens of {pool} lack shards that were added since; {_score(pool)}")
    return max(whole)[1]


def _remedy(pool: str) -> str:
    return f"run python pipeline/filter.py {pool} --recipe RECIPE"


def _score(pool: str) -> str:
    return f"run python pipeline/score.py {pool} --filters tokens"
