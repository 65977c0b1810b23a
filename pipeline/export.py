"""The kept rows of a view for other programs: tables, folders of shards, a card.

`clipmill export POOL VIEW --to X`: the kept rows of a view as files that other programs read.
`docs/interop.md` has the commands.

Reads views, sidecars, score sets and tars of a pool. Writes `X`, outside of the pool: a
`.parquet`, `.csv` or `.npy` with `README.md` beside it, or a folder with `NNNNN.tar`,
`NNNNN.parquet`, `README.md` and `export.json` (`complete` is true when all shards are there).

Invariants:

* Image bytes, caption and key of every kept sample stay what they are, its JSON gets scores and
  loses nothing, and no other sample is in an export: `tests/pipeline/export/test_exports.py`.
* After a kill no half file has the name of the export, and the same command finishes it: the same
  test.
* A file that is not an earlier export is never overwritten:
  `tests/pipeline/export/test_exports.py`.

A new form: an ending in `targets.py`, its writer, and its branch in `exports._write_file`.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import yaml

from clipmill.manifests import disk
from clipmill.manifests.arrays import Bytes, Mask
from clipmill.manifests.commits import read_commits
from clipmill.manifests.folder_lock import locked_folder
from clipmill.manifests.layout import PoolLayout, shard_name, uids_checksum
from clipmill.manifests.pool import Pool
from clipmill.manifests.records import ScoreSetDocument
from clipmill.manifests.schema import SOURCES, Recipe
from clipmill.pipeline.audit.counts import recipe_of_pool
from clipmill.pipeline.metadata_join import uid_records, write_uid_array
from clipmill.pipeline.pool.shard_writer import staged_file
from clipmill.pipeline.pool.tar_copy import copy_tar_with
from clipmill.pipeline.views.choose import map_units
from clipmill.pipeline.views.files import HASHED_ROWS, hash_of
from clipmill.pipeline.views.rules import rule_text

# --------------------------------------------------------------------------------------------------
# The kept rows of a view, shard by shard, with their columns of the sidecar and of the score
# sets.
#
# Few shards are in memory at a time.


logger = logging.getLogger(__name__)


class KeptRows:
    """The rows that a view keeps. ValueError where the pool has no such view, or an old one."""

    def __init__(self, pool: str, view: str) -> None:
        self.pool, self.view = pool, view
        self._pool = Pool.open(pool)
        self.commits = self._pool.commits
        self._view = self._pool.view(view)
        self.document = self._view.document
        self.shards: list[int] = self._view.shards[self._view.kept > 0].tolist()
        if not self.shards:
            raise ValueError(f"view {view!r} of {pool} keeps nothing: its rows were purged")
        self.sidecar_schema = self._pool.schema
        self.score_sets = self._current_sets()
        # column of `schema` -> (score set, its name there); a name that is taken gets @ID
        self.score_columns: dict[str, tuple[str, str]] = {}
        for name, document in self.score_sets.items():
            for column in document.columns:
                is_taken = column in {*self.sidecar_schema.names, *self.score_columns}
                output = f"{column}@{document.id}" if is_taken else column
                self.score_columns[output] = (name, column)

    @functools.cached_property
    def rows_sha256(self) -> str | None:
        """The hash of the rows: that of the document, or computed; None for too many rows."""
        if self.document.rows_sha256 is None and self.document.kept <= HASHED_ROWS:
            return hash_of(self._view)
        return self.document.rows_sha256

    @property
    def schema(self) -> pa.Schema:
        """The columns of the sidecar, then those of the score sets."""
        fields = list(self.sidecar_schema)
        for output, (name, column) in self.score_columns.items():
            fields.append(pa.field(output, self._pool.score_schema(name).field(column).type))
        return pa.schema(fields)

    def check_unchanged(self) -> None:
        """ValueError where the pool has changed since it was opened."""
        if read_commits(self.pool).fingerprint != self.commits.fingerprint:
            raise ValueError(f"{self.pool} changed while it was read; export it again")

    def mask(self, shard: int) -> Mask:
        """(rows,) which rows of a shard are kept."""
        return self._view.kept_mask(shard)

    def sidecar(self, shard: int) -> pa.Table:
        """All rows of a shard with the columns of its sidecar."""
        return self._pool.read(shard, None)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The kept rows of each shard in order: all columns of `schema`, or some of the sidecar."""

        def read(unit: int) -> pa.Table:
            shard = self.shards[unit]
            kept = pa.array(self.mask(shard))
            rows = self._pool.read(shard, columns).filter(kept)
            return rows if columns is not None else self.with_scores(shard, rows, kept)

        yield from map_units(len(self.shards), read, "export")

    def with_scores(self, shard: int, rows: pa.Table, kept: pa.Array) -> pa.Table:
        """The kept rows of a sidecar with the columns of the score sets behind them.

        ValueError for scores of other rows.
        """
        sets = {
            name: self._pool.read(shard, document.columns, dict.fromkeys(document.columns, name))
            for name, document in self.score_sets.items()
        }
        for output, (name, column) in self.score_columns.items():
            rows = rows.append_column(output, sets[name][column].filter(kept))
        return rows

    def _current_sets(self) -> dict[str, ScoreSetDocument]:
        """The complete score sets of the pool as it is now, those of the view's rules first."""
        current, used = self._pool.score_sets, set(self.document.scores.values())
        for name in sorted(self._pool.all_score_sets.keys() - current.keys()):
            logger.warning("score set %s is of an older state of the pool: left out", name)
        return {name: current[name] for name in sorted(current, key=lambda n: (n not in used, n))}


# --------------------------------------------------------------------------------------------------
# Rows to one Parquet or CSV file, row group by row group.


GROUP_ROWS = 20_000  # of a row group, at most
GROUP_BYTES = 64 * 2**20  # embeddings of 768 fp16 values: 30,000 rows
CSV_COLUMNS = ("url", "caption", "uid", "sha256")


def write_rows_parquet(rows: KeptRows, staged: Path) -> int:
    """Write sidecar and score columns of the kept rows; the number of rows."""
    written = 0
    with disk.parquet_writer(staged, rows.schema) as writer:
        for table in _row_groups(rows.tables()):
            writer.write_table(table.cast(rows.schema), row_group_size=GROUP_ROWS)
            written += table.num_rows
    return written


def write_rows_csv(rows: KeptRows, staged: Path) -> int:
    """Write CSV_COLUMNS of the kept rows (RFC 4180: every text in quotes, a quote doubled); the
    number of rows.

    Line breaks inside a caption stay. A caption that a spreadsheet takes for a formula stays too.
    """
    schema = pa.schema([rows.sidecar_schema.field(name) for name in CSV_COLUMNS])
    written = 0
    with disk.csv_writer(staged, schema) as writer:
        for table in rows.tables(CSV_COLUMNS):
            writer.write_table(table)
            written += table.num_rows
    return written


def _row_groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The tables, joined until they have about GROUP_ROWS rows or GROUP_BYTES."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        waiting.append(table)
        rows, size = rows + len(table), size + table.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)


# --------------------------------------------------------------------------------------------------
# The kept samples of a view as a folder of WebDataset shards: NNNNN.tar and NNNNN.parquet.
#
# Images and captions are copied byte for byte; the JSON of each sample gets its scores, but for
# lists such as embeddings. The Parquet file has the columns of the sidecar with the offsets in
# the new tar, and all score columns. Both are what img2dataset writes, with more columns.


SHARD_FILE = re.compile(r"(\d{5,})\.(tar|parquet)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of an export."""

    name: str
    size: int  # bytes
    sha256: str


def write_shard_folder(
    rows: KeptRows, folder: str, check: Callable[[], None] = lambda: None
) -> tuple[tuple[DataFile, ...], int]:
    """Write the shards that are missing or of other rows, and remove those of other shards. (their
    tars, in the order of the shards, rows).

    check: called before a file gets its name. ValueError for a damaged tar of the pool. What is
    there after a kill is not written again.
    """
    shards = rows.shards
    copies = list(
        map_units(len(shards), lambda k: _write_shard(rows, folder, shards[k], check), "export")
    )
    _remove_others(folder, {shard_name(shard) for shard in shards})
    disk.write_json(disk.join(folder, SIZES), {file.name: count for count, file in copies})
    return tuple(file for _, file in copies), sum(count for count, _ in copies)


def _write_shard(
    rows: KeptRows, folder: str, shard: int, check: Callable[[], None]
) -> tuple[int, DataFile]:
    """The kept samples of a shard as a tar, then their rows as its sidecar, whose footer says
    which rows of which tar they are: a shard that is there stays. (rows, the tar)."""
    name = shard_name(shard)
    tar, sidecar = disk.join(folder, f"{name}.tar"), disk.join(folder, f"{name}.parquet")
    kept, record = rows.mask(shard), rows.commits.record(shard)
    table = rows.sidecar(shard)
    made_of = {
        "uids": uids_checksum(table["uid"].filter(pa.array(kept))),
        "source_sha256": record.tar_sha256,
        "scores": " ".join(rows.score_sets),
        "json": "scores",
    }
    metadata = _metadata(sidecar)
    if not (made_of.items() <= metadata.items() and disk.exists(tar)):
        with staged_file(tar) as staged:
            kept_rows = table.filter(pa.array(kept))
            kept_rows = rows.with_scores(shard, kept_rows, pa.array(kept))
            copy = copy_tar_with(
                rows.commits.tar(shard),
                staged,
                table,
                kept,
                record.tar_sha256,
                _scores_of(rows, kept_rows),
            )
            table = copy.moved(kept_rows)
            check()
            disk.publish(staged, tar)
        metadata = {
            **made_of, "rows": len(table), "tar_bytes": copy.bytes, "tar_sha256": copy.sha256
        }  # fmt: skip
        check()
        disk.write_parquet(sidecar, table, metadata)
    file = DataFile(
        name=f"{name}.tar",
        size=int(metadata["tar_bytes"]),
        sha256=str(metadata["tar_sha256"]),
    )
    return int(metadata["rows"]), file


def _metadata(path: str) -> dict[str, Any]:
    """What the footer of a sidecar says; {} where there is none or it is damaged."""
    try:
        return disk.read_metadata(path)
    except (OSError, ValueError, pa.ArrowException):
        return {}


def _scores_of(rows: KeptRows, table: pa.Table) -> list[dict[str, object]]:
    """What the JSON of each sample gets: its scores but for lists, such as embeddings."""
    names = [
        name for name in rows.score_columns if not pa.types.is_nested(rows.schema.field(name).type)
    ]
    if not names:
        return []
    scores = []
    for row in table.select(names).to_pylist():
        scores.append({name: _plain(value) for name, value in row.items()})
    return scores


def _plain(value: object) -> Any:
    """A value that JSON can hold: NaN and infinite numbers, and bytes, are none."""
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def folder_hash(files: tuple[DataFile, ...]) -> str:
    """One hash of the tars of a folder, 64 hex digits."""
    lines = [f"{file.sha256}  {file.name}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _remove_others(folder: str, wanted: set[str]) -> None:
    """Remove the shards of an earlier export of which this view keeps nothing."""
    for name in disk.list_names(folder):
        match = SHARD_FILE.fullmatch(name)
        if match is not None and match[1] not in wanted:
            disk.remove(disk.join(folder, name))


# --------------------------------------------------------------------------------------------------
# Where an export goes: the ending of the path decides what is written.


Kind = Literal["parquet", "csv", "npy", "folder"]
FILE_KINDS: dict[str, Kind] = {".parquet": "parquet", ".csv": "csv", ".npy": "npy"}
# Endings that a person means as a file, and that no export writes.
OTHER_ENDINGS = (
    ".arrow", ".avro", ".bz2", ".db", ".duckdb", ".feather", ".gz", ".h5", ".hdf5", ".html",
    ".json", ".jsonl", ".lance", ".mat", ".md", ".mdb", ".msgpack", ".ndjson", ".npz", ".orc",
    ".parq", ".pickle", ".pkl", ".pq", ".pt", ".sqlite", ".tar", ".tfrecord", ".tgz", ".tsv",
    ".txt", ".xls", ".xlsx", ".xz", ".yaml", ".yml", ".zip", ".zst",
)  # fmt: skip
CARD = "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A file with its card beside it, or a folder of shards that has it inside."""

    kind: Kind
    path: str

    @property
    def folder(self) -> str:
        """The folder that holds the card."""
        return self.path if self.kind == "folder" else self.path.rpartition("/")[0] or "."

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def card(self) -> str:
        """The dataset card, where Hugging Face looks for it."""
        return disk.join(self.folder, CARD)


def target_of(to: str, pool: str) -> Target:
    """The target that `--to` names. ValueError for another ending, and for a path in the pool."""
    path = disk.absolute_path(to).rstrip("/")
    root = disk.absolute_path(pool).rstrip("/")
    if path == root or path.startswith(f"{root}/"):
        raise ValueError(f"--to {to} lies in the pool {pool}; write it elsewhere")
    name = path.rpartition("/")[2]
    if not name:
        raise ValueError(f"--to {to!r} names no file and no folder")
    for ending, kind in FILE_KINDS.items():
        if name.lower().endswith(ending):
            if to.endswith("/"):
                raise ValueError(f"--to {to} ends in {ending} and is a folder; which is it?")
            return Target(kind=kind, path=path)
    if name.lower().endswith(OTHER_ENDINGS):
        raise ValueError(
            f"--to {to}: an export is a .parquet, .csv or .npy file, or a folder of shards (any "
            "other name)"
        )
    if disk.exists(path) and not disk.is_folder(path):
        raise ValueError(f"--to {to} is a file, and without an ending of one a folder is written")
    return Target(kind="folder", path=path)


# --------------------------------------------------------------------------------------------------
# The dataset card of an export: README.md with the YAML header that Hugging Face reads, made from
# the pool's records. The same export gives the same card.


MARK = "<!-- written by clipmill export"  # the rest of the line names the export
POWERS = ["1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T"]  # of ten
CONTENTS = {
    "parquet": "one row a pair: URL, caption, sizes, hashes and scores; no image",
    "csv": "one row a pair: URL, caption, uid and sha256 of the received bytes; no image",
    "npy": "the uids of the pairs, sorted, as pairs of 64-bit integers (DataComp's subset form)",
    "folder": "WebDataset shards with image, caption and JSON of each pair, and a Parquet file "
    "with sizes, hashes and scores beside each shard",
}


def dataset_card(rows: KeptRows, target: Target, name: str, recipe: Recipe | None) -> str:
    """README.md of an export. name: of the dataset."""
    document = rows.document
    header = yaml.safe_dump(_header(rows, target, name), sort_keys=True, allow_unicode=True)
    lines = ["---", header.rstrip(), "---", f"{MARK} {target.name} -->", "", f"# {name}", ""]
    total = document.funnel[0][1]
    funnel = [(step, f"{n:,}", f"{n / max(1, total):.2%}") for step, n in document.funnel]
    lines += [
        f"{document.kept:,} image-caption pairs: the view `{document.name}` of a pool of {total:,} "
        f"rows. It holds {CONTENTS[target.kind]}.",
        "",
        *_table("rows left", ("step", "rows", "share"), funnel),
    ]
    if document.rules:
        rules = [(rule.name, f"`{_cell(rule_text(rule))}`") for rule in document.rules]
        lines += _table("Rules, in order", ("rule", "a row is kept where"), rules)
    if document.thresholds:
        thresholds = [
            (f"`{_cell(call)}`", f"{each.value:.9g}", f"{each.share:.4%}", f"{each.rows:,}")
            for call, each in document.thresholds.items()
        ]
        lines += _table("Thresholds", ("call", "value", "share kept", "of rows"), thresholds)
    if rows.score_sets and target.kind in ("parquet", "folder"):
        lines += _table("Score columns", ("column", "filter", "id", "options"), _scores(rows))
    lines += ["## Where it comes from", "", *_origin(rows, recipe), ""]
    lines += [
        "## Licence",
        "",
        "The licence of the images and captions is not known: each belongs to its owner. Rows that "
        "were purged from the pool after this export are still in it.",
    ]
    return "\n".join(lines) + "\n"


def is_card_of(path: str, target: Target) -> bool:
    """True where the file is the card of an earlier export to this target."""
    mark = f"{MARK} {target.name} -->".encode()
    return mark in disk.read_bytes(path).splitlines()


def _header(rows: KeptRows, target: Target, name: str) -> dict[str, object]:
    kept = rows.document.kept
    power = len(str(kept)) - 4
    size = f"{POWERS[power]}<n<{POWERS[power + 1]}" if power >= 0 else "n<1K"
    header: dict[str, Any] = {
        "license": "unknown",
        "pretty_name": name,
        "size_categories": [size],
        "tags": ["clipmill", "image-text-pairs"],
        "task_categories": ["zero-shot-image-classification", "text-to-image"],
    }
    if target.kind != "npy":
        path = "*.tar" if target.kind == "folder" else target.name
        data_files = [{"split": "train", "path": path}]
        header["configs"] = [{"config_name": "default", "data_files": data_files}]
    return header


def _scores(rows: KeptRows) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for column, (name, _) in rows.score_columns.items():
        document = rows.score_sets[name]
        options = [f"{key}={_without_folder(v)}" for key, v in sorted(document.options.items())]
        lines.append((f"`{column}`", document.name, document.id, _cell(", ".join(options)) or "-"))
    return lines


def _without_folder(value: object) -> Any:
    """An option without the folders of this machine: the id has the hash of the file."""
    if isinstance(value, (list, tuple)):
        return [_without_folder(each) for each in value]
    if not isinstance(value, str):
        return value
    prefix = "local-dir:" if value.startswith("local-dir:") else ""
    path = value.removeprefix(prefix)
    return prefix + (Path(path).name if path.startswith("/") else path)


def _origin(rows: KeptRows, recipe: Recipe | None) -> list[str]:
    document = rows.document
    lines = [f"- fingerprint of the pool: `{document.fingerprint}`"]
    if recipe is not None:
        source = recipe.source
        lines.insert(0, f"- recipe `{recipe.name}`, source of kind `{source.kind}`")
        lines.append(f"- images from: {SOURCES[source.kind].images}")
    if rows.rows_sha256 is not None:
        lines.append(
            f"- hash of the rows: `{rows.rows_sha256}` (`clipmill filter hash POOL "
            f"{document.name}` prints it; equal hashes are the same pairs with the same bytes)"
        )
    return lines


def _table(title: str, head: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> list[str]:
    rows = [f"| {' | '.join(line)} |" for line in lines]
    rule = f"|{'---|' * len(head)}"
    return [f"## {title[0].upper()}{title[1:]}", "", f"| {' | '.join(head)} |", rule, *rows, ""]


def _cell(text: str) -> str:
    """A text inside a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")


# --------------------------------------------------------------------------------------------------
# `clipmill export --to X`: the kept rows of a view for other programs, with a dataset
# card beside them.
#
# A file is written beside its place and gets its name when it is whole. A folder has
# `export.json`, which says whether all of its shards are there; the same command finishes a
# folder after a kill.


UID = "uid"
RECORD = "export.json"
SIZES = "sizes.json"  # samples of each tar, as open_clip and DataComp's resharder read them


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What was written."""

    view: str
    to: str
    kind: str
    rows: int  # of a .npy: different uids
    bytes: int
    sha256: str  # of the file; of a folder, of the list of its tars with their hashes
    files: int
    rows_sha256: str | None  # hash of the view's rows


def export_view(pool: str, view: str, to: str, uid_column: str = UID) -> Export:
    """Write the kept rows of a view. uid_column: whose values a .npy has.

    ValueError for a view that is not there or stale, a path that another file or folder has, a
    column that is missing or holds no uids, and a pool that changes meanwhile.
    """
    target = target_of(to, pool)
    if uid_column != UID and target.kind != "npy":
        raise ValueError(f"--uid-column belongs to a .npy, not to {to}")
    _refuse_purge(pool)
    rows = KeptRows(pool, view)
    if uid_column not in rows.sidecar_schema.names:
        names = rows.sidecar_schema.names
        raise ValueError(
            f"{pool} has no column {uid_column!r}{disk.did_you_mean(uid_column, names)}"
        )
    with _only_writer(target):
        _check_free(target)
        try:
            return _write(rows, target, to, uid_column)
        except (ValueError, FileNotFoundError):  # a file that was replaced meanwhile
            _refuse_purge(pool)
            rows.check_unchanged()
            raise


def _refuse_purge(pool: str) -> None:
    if disk.exists(PoolLayout(pool).purge_json):
        raise ValueError(
            f"rows of {pool} are being purged; export when `clipmill audit purge` has ended, and "
            "run that again if it was killed"
        )


def _write(rows: KeptRows, target: Target, to: str, uid_column: str) -> Export:
    """The data and the card."""
    pool, view = rows.pool, rows.view
    recipe = recipe_of_pool(PoolLayout(pool))
    name = f"{recipe.name if recipe else pool.rstrip('/').rpartition('/')[2]}-{view}"
    if target.kind == "folder":
        files, count = _write_folder(rows, target)
    else:
        disk.write_bytes(target.card, dataset_card(rows, target, name, recipe).encode())
        file, count = _write_file(rows, target, uid_column)
        files = (file,)
    sha256 = folder_hash(files) if target.kind == "folder" else files[0].sha256
    export = Export(
        view=view,
        to=to,
        kind=target.kind,
        rows=count,
        bytes=sum(file.size for file in files),
        sha256=sha256,
        files=len(files),
        rows_sha256=rows.rows_sha256,
    )
    if target.kind == "folder":
        disk.write_bytes(target.card, dataset_card(rows, target, name, recipe).encode())
        record = {**disk.to_plain(export), "to": target.name, "complete": True}
        disk.write_json(disk.join(target.path, RECORD), record, sealed=True)
    return export


def export_line(export: Export) -> str:
    """What was written, for a terminal."""
    tars = "1 tar" if export.files == 1 else f"{export.files:,} tars"
    what = {"npy": "uids", "folder": f"rows in {tars}"}.get(export.kind, "rows")
    return (
        f"view {export.view}: {export.rows:,} {what}, {export.bytes / 1e6:.3g} MB, in {export.to}; "
        "README.md lies beside them"
    )


def _check_free(target: Target) -> None:
    """ValueError where something else than an earlier export to this target is there."""
    if target.kind == "folder":
        names = disk.list_names(target.path)
        if names and RECORD not in names:
            raise ValueError(
                f"{target.path} is a folder with other files ({names[0]}); name a new folder"
            )
        return
    has_card = disk.exists(target.card)
    if has_card and not is_card_of(target.card, target):
        raise ValueError(
            f"{target.card} is not the card of {target.name}; write each export into a folder of "
            "its own"
        )
    if not has_card and disk.exists(target.path):
        raise ValueError(f"{target.path} is there already; remove it or name another file")


def _write_file(rows: KeptRows, target: Target, uid_column: str) -> tuple[DataFile, int]:
    with staged_file(target.path, alone=True) as staged:
        if target.kind == "parquet":
            count = write_rows_parquet(rows, staged)
        elif target.kind == "csv":
            count = write_rows_csv(rows, staged)
        else:
            count = _write_uids(rows, staged, uid_column)
        rows.check_unchanged()
        digest, size = disk.file_sha256(staged), staged.stat().st_size
        disk.publish(staged, target.path)
    return DataFile(name=target.name, size=size, sha256=digest), count


def _write_uids(rows: KeptRows, staged: Path, uid_column: str) -> int:
    def uids() -> Iterator[Bytes]:
        for table in rows.tables([uid_column]):
            try:
                yield uid_records(table[uid_column])
            except ValueError as error:
                raise ValueError(f"column {uid_column!r}: {error}") from None

    return write_uid_array(uids(), staged)


@contextmanager
def _only_writer(target: Target) -> Iterator[None]:
    """ValueError where another process of this machine writes the same export."""
    lock = disk.join(target.folder, f".{target.name}.lock")
    if target.kind == "folder":
        lock = disk.join(target.path, ".export.lock")
    with locked_folder(lock, "an export", "--to"):
        try:
            yield
        finally:
            if not disk.is_url(lock):
                disk.remove(lock)


def _write_folder(rows: KeptRows, target: Target) -> tuple[tuple[DataFile, ...], int]:
    """The shards. Where another export into the folder began later, this one ends: object stores
    have no locks.
    """
    path, claim = disk.join(target.path, RECORD), secrets.token_hex(8)
    with suppress(FileNotFoundError, ValueError):  # none, or a damaged one
        if (old := disk.read_json(path).get("view")) != rows.view:
            logger.warning("the export of the view %s in %s is replaced", old, target.path)
    record = {"view": rows.view, "to": target.name, "complete": False, "claim": claim}
    disk.write_json(path, record, sealed=True)

    def check() -> None:
        if disk.read_json(path).get("claim") != claim:
            raise ValueError(
                f"another export into {target.path} began after this one; wait until it has "
                "ended, or name another folder"
            )

    files, count = write_shard_folder(rows, target.path, check)
    check()
    rows.check_unchanged()
    return files, count
