"""A lock on disk, and the rows that it withholds."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clipmill.filters.optout import refuses
from clipmill.manifests import disk
from clipmill.manifests.arrays import Mask
from clipmill.manifests.columns import PAIRS, joined_text, with_extra
from clipmill.manifests.records import Threshold, ViewRule
from clipmill.manifests.schema import ROWS_PER_SHARD_LIMIT
from clipmill.manifests.text import one_line

# --------------------------------------------------------------------------------------------------
# A lock on disk: one Parquet file with a row per row of a pool, and in its footer the head, which
# says what the pool was made from.
#
# Every column has a hash in the head, and the head has one of its own, its id: a damaged byte is
# noticed before a row is used. A shard is never cut by a row group.


FORM = 1  # raised by a change of columns, of the head or of what they mean
VIEW_PREFIX = "view:"  # of the columns that say what a view keeps
DAMAGES = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError)
SHOWN_ID = 12  # digits of an id that a person reads
ROWS = pa.schema(
    [
        ("lock_shard", pa.int32()),  # number of the shard in the pool that was locked
        ("lock_group", pa.int64()),  # its host group
        ("lock_tar_sha256", pa.string()),  # of its tar
        ("lock_outcome", pa.string()),  # stored, withheld or a reason
        *PAIRS,  # NULL where the row is withheld
        ("retry_of", pa.string()),  # key of the row that this one retries
        ("sha256", pa.string()),  # of the bytes as they were received
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedView:
    """A view of the pool, as far as its rows are in the lock."""

    kept: int
    rows_sha256: str  # see `hash_flagged`
    rules: tuple[ViewRule, ...]
    thresholds: dict[str, Threshold]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHead:
    """What a lock says beside its rows."""

    form: int
    name: str  # of the recipe
    images: str  # where the pool had its images from: web, files, rows or tars
    recipe: dict[str, Any]  # source, fetch, filters and views, without what is a lab's own
    extra_columns: dict[str, str]  # name -> type
    fingerprint: str  # of the pool
    shards: int
    groups: int | None  # host groups of the plan
    rows: int
    outcomes: dict[str, int]
    rows_sha256: str  # of the stored rows, see `hash_flagged`
    views: dict[str, LockedView]
    versions: dict[str, str]  # of what decides the bytes of a stored image
    columns: dict[str, str]  # sha256 of the values of each column
    id: str = ""  # of all this

    def with_id(self) -> dict[str, object]:
        """The plain head with its id."""
        plain: dict[str, object] = disk.to_plain(self)
        return plain | {"id": head_id(plain)}


def head_id(plain: Mapping[str, object]) -> str:
    """The id of a plain head: sha256 over all but the id, 64 hex digits."""
    content = {key: value for key, value in plain.items() if key != "id"}
    return disk.plain_hash(content, 64)


def lock_schema(extra_columns: dict[str, str], views: Sequence[str]) -> pa.Schema:
    """The columns of a lock: ROWS, the pool's own columns, and one for each view."""
    of_views = [(VIEW_PREFIX + view, pa.bool_()) for view in views]
    return pa.schema([*with_extra(ROWS, extra_columns), *of_views])


class ColumnHashes:
    """The sha256 of the values of columns, row group by row group."""

    def __init__(self, names: Sequence[str]) -> None:
        self._hashes = {name: hashlib.sha256() for name in names}

    def add(self, table: pa.Table) -> None:
        """Add the values of the next row group: their lengths or validity, then their bytes."""
        for name, content in self._hashes.items():
            column = table[name].combine_chunks()
            if pa.types.is_string(column.type):
                lengths = pc.fill_null(pc.binary_length(column), -1).to_numpy()
                content.update(lengths.astype("<i4").tobytes())
                content.update(joined_text(pc.fill_null(column, "")))
                continue
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            values = pc.fill_null(column, pa.scalar(0).cast(column.type))
            content.update(valid.tobytes())
            content.update(np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).tobytes())

    def hexdigests(self) -> dict[str, str]:
        """64 hex digits by column."""
        return {name: content.hexdigest() for name, content in self._hashes.items()}


class LockFile:
    """An open lock: its head. ValueError, of one line, where the file cannot be used."""

    def __init__(self, path: str) -> None:
        self.path = path
        with self._named():
            footer = disk.read_with(path, pq.read_metadata)
            self.head = _read_head(footer.metadata or {})
            schema = lock_schema(self.head.extra_columns, list(self.head.views))
            if not footer.schema.to_arrow_schema().remove_metadata().equals(schema):
                raise ValueError("its columns are not those of its head")
            if footer.num_rows != self.head.rows:
                raise ValueError(f"it has {footer.num_rows} rows, its head {self.head.rows}")
        self.names: list[str] = schema.names

    @property
    def id(self) -> str:
        """The start of its id, for people."""
        return self.head.id[:SHOWN_ID]

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Its rows, row group by row group: all columns, or some.

        ValueError, after the last row at the latest, where a column is not what its hash says.
        """
        names = list(self.names if columns is None else columns)
        hashes = ColumnHashes(names)
        with self._named(), disk.open_file(self.path) as source:
            with pq.ParquetFile(source, page_checksum_verification=True) as file:
                for number in range(file.num_row_groups):
                    table = file.read_row_group(number, columns=names).select(names)
                    table = table.replace_schema_metadata(None)
                    hashes.add(table)
                    yield table
            digests = hashes.hexdigests()
            for name in names:
                if digests[name] != self.head.columns[name]:
                    raise ValueError(f"the values of its column {name!r} have changed")

    def shards(self, columns: Sequence[str] | None = None) -> Iterator[tuple[int, pa.Table]]:
        """(number in the pool that was locked, its rows) in order, as shards that a build can
        write: one with more than 10,000 rows, as another program may make it, comes in parts.
        """
        names = list(self.names if columns is None else columns)
        for table in self.tables(list(dict.fromkeys(["lock_shard", *names]))):
            shards = table["lock_shard"].to_numpy()
            starts = np.flatnonzero(np.diff(shards, prepend=-1))
            ends = [*starts[1:].tolist(), len(shards)]
            for start, end in zip(starts.tolist(), ends, strict=True):
                for first in range(start, end, ROWS_PER_SHARD_LIMIT):
                    size = min(ROWS_PER_SHARD_LIMIT, end - first)
                    yield int(shards[start]), table.slice(first, size).select(names)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Every problem with the file as a ValueError that names it."""
        try:
            yield
        except FileNotFoundError:
            raise ValueError(f"there is no lock {self.path}") from None
        except DAMAGES as error:
            if getattr(error, "errno", None) in (errno.EACCES, errno.EHOSTDOWN):
                raise  # it names the path, and the store that refuses it or does not answer
            text = one_line(error, 200)
            raise ValueError(
                f"{self.path} is not a lock that can be used: {text or type(error).__name__}"
            ) from None


def _read_head(footer: dict[bytes, bytes]) -> LockHead:
    """The head of a footer. ValueError where it is none, a newer one, or damaged."""
    text = footer.get(b"clipmill")
    plain = None if text is None else json.loads(text)
    if not isinstance(plain, dict) or "form" not in plain:
        raise ValueError("it was not written by `clipmill audit lock`")
    form = plain["form"]
    if type(form) is int and form > FORM:
        raise ValueError(f"it has form {form}, this clipmill reads up to {FORM}; use a newer one")
    head: LockHead = disk.from_plain(LockHead, plain, "head")
    if head.id != head_id(plain):
        raise ValueError("its head has changed: the id is not that of the rest")
    if form != FORM or sum(head.outcomes.values()) != head.rows:
        raise ValueError("its head contradicts itself")
    if head.columns.keys() != set(lock_schema(head.extra_columns, list(head.views)).names):
        raise ValueError("its head does not have a hash for each column")
    return head


# --------------------------------------------------------------------------------------------------
# Which rows are not handed on: what was purged, what is known to be bad, and what a site or page
# asks crawlers to leave alone. Pure.


# Reasons of rows of which nothing is handed on: neither URL nor caption nor uid.
REASONS = (
    "purged",
    "known_bad",
    "robots_txt",
    "optout_header",
    "optout_page",
    "optout_site",
)
COLUMNS = ["uid", "url", "reason", "optout"]  # of the sidecar that decide


def withheld_rows(table: pa.Table, refused_uids: pa.Array, user_agent: str | None) -> Mask:
    """(rows,) True where a row is withheld.

    table: COLUMNS of a sidecar. refused_uids: of rows that another attempt found refused.
    user_agent: the name that opt-out signals are read for, where the pool's own policy did not
    read them; None where it did.
    """
    withheld = pc.is_in(table["reason"], pa.array(REASONS))
    withheld = pc.or_(withheld, pc.is_null(table["url"]))
    withheld = pc.or_(withheld, pc.is_in(table["uid"], refused_uids))
    mask = np.array(withheld.to_numpy(), np.bool_)
    if user_agent is not None:
        mask |= _signalled(table["optout"], user_agent)
    return mask


def _signalled(signals: pa.ChunkedArray, user_agent: str) -> Mask:
    """(rows,) True where a row was stored although its signals refuse it."""
    encoded = signals.combine_chunks().dictionary_encode()
    answers = [_refuses(text, user_agent) for text in encoded.dictionary.to_pylist()]
    by_text = np.array([*answers, False], np.bool_)
    mask: Mask = by_text[pc.fill_null(encoded.indices, len(answers)).to_numpy()]
    return mask


@functools.lru_cache(maxsize=4096)
def _refuses(text: str, user_agent: str) -> bool:
    """Whether stored signals refuse us. What cannot be read is a refusal."""
    try:
        return refuses(json.loads(text), user_agent, "respect")
    except (ValueError, TypeError, AttributeError, RecursionError):
        return True
