"""Tars that exist already become a pool where they lie: a sidecar and a commit record for each, and no copy.

Any tar of the WebDataset kind: img2dataset's, DataComp's, clip-retrieval's. A sample is what shares a name up to the
first dot; it needs a picture (jpg, jpeg, png, webp) and a caption (txt, a json member, or img2dataset's parquet beside
the tar). Rows that img2dataset's parquet lists as failed are failed rows here too, so the books stay whole. Columns
that the recipe names as extra_columns come from the parquet, else from the json member: DataComp's scores, for one.

A pair that lies in two tars is stored twice, under one uid: nothing is dropped here, a filter may tell such rows apart.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from manifests import disk
from manifests.casting import cast_value
from manifests.columns import SIDECAR, extra_column, with_extra
from manifests.pool_layout import CommitRecord, PoolLayout
from manifests.schema import Fetch, Source
from pipeline.executor import Ticket
from pipeline.images import BadPicture, check, limits_of
from pipeline.pool import (
    Member,
    TarFile,
    index_tar,
    local_copy,
    outcome_row,
    publish_shard,
    read_commit_record,
)

PICTURES = ("jpg", "jpeg", "png", "webp")
FORMATS = ("JPEG", "PNG", "WEBP")  # whatever the name says: what the bytes are
SAMPLE = re.compile(r"^((?:.*/)?[^./][^./]*)\.([^/]+)$")
UID = re.compile(r"[0-9a-f]{32}")
TRUTH = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
# What img2dataset and urllib write into error_message, and what it is here; the first that is found counts.
MESSAGES = (
    (r"HTTP Error 429", "http_429"),
    (r"HTTP Error 5\d\d", "http_5xx"),
    (r"HTTP Error 4\d\d", "http_4xx"),
    (r"HTTP Error 3\d\d", "redirects"),
    (r"X-Robots-Tag", "optout_header"),
    (
        r"Name or service not known|getaddrinfo|name resolution|nodename|No address associated",
        "dns",
    ),
    (r"timed out", "deadline"),
    (r"CERTIFICATE|SSL|TLS", "tls"),
    (r"refused|unreachable|No route to host", "connect"),
    (r"reset by peer|closed connection|Remote end closed|RemoteDisconnected", "reset"),
    (r"IncompleteRead", "truncated"),
    (r"hash mismatch", "hash_mismatch"),
    (r"unknown url type|redirection to url .* is not allowed", "scheme"),
    (r"no host given|nonnumeric port|control characters|'ascii' codec", "bad_url"),
    (r"Invalid (IPv6 )?URL|label (empty|too long)", "bad_url"),
    (r"image too small", "too_small"),
    (r"aspect ratio too large", "aspect"),
    (r"image area too large", "too_many_pixels"),
    (r"buf\.empty\(\)", "empty"),  # what OpenCV says to 0 bytes
)


def tickets(source: Source) -> list[Ticket]:
    """One ticket per tar, numbered in the order of `source.paths`; a folder or a pattern stands for its tars by name.

    ValueError where a path leads to no tar, or a tar is named twice.
    """
    tars = [tar for path in source.paths for tar in _expand(path)]
    doubled = sorted({tar for tar in tars if tars.count(tar) > 1})
    if doubled:
        raise ValueError(f"source.paths names {doubled[0]} twice")
    columns: dict[str, Any] = {
        "url_column": source.url_column,
        "caption_column": source.caption_column,
    }
    columns["extra_columns"] = source.extra_columns
    return [
        Ticket(
            id=disk.content_hash([number, tar]),
            group=str(number),
            payload={"shard": number, "tar": tar, **columns},
        )
        for number, tar in enumerate(tars)
    ]


def _expand(path: str) -> list[str]:
    folder, _, last = path.rstrip("/").rpartition("/")
    if "*" in last or "?" in last:
        found = [
            disk.join(folder, name)
            for name in disk.list_names(folder)
            if fnmatch.fnmatch(name, last)
        ]
    elif path.endswith("/") or (not disk.is_url(path) and disk.local_path(path).is_dir()):
        found = [disk.join(path, name) for name in disk.list_names(path, ".tar")]
    else:
        found = [path] if disk.exists(path) else []
    if not found:
        raise ValueError(f"source.paths: there is no tar at {path}")
    return [tar if disk.is_url(tar) else str(disk.local_path(tar).absolute()) for tar in found]


def adopt(config: Mapping[str, Any]) -> Callable[[Ticket], dict[str, Any]]:
    """Factory of the stage: {"pool", "fetch": plain Fetch}; of `fetch` the limits on a picture's size apply."""
    pool = str(config["pool"])
    settings: Fetch = disk.from_plain(Fetch, config.get("fetch", {}))

    def work(ticket: Ticket) -> dict[str, Any]:
        """The commit record of the ticket's tar. ValueError where it is no whole, plain tar."""
        started, number, tar = (
            time.monotonic(),
            int(ticket.payload["shard"]),
            str(ticket.payload["tar"]),
        )
        _refuse_own_folder(pool, tar)
        extra: dict[str, str] = ticket.payload.get("extra_columns") or {}
        schema = with_extra(SIDECAR, extra)
        if (record := read_commit_record(pool, number)) is not None:
            return _unchanged(record, tar, pool, schema.names).to_plain()
        reader = Reader(
            tar, ticket.payload["url_column"], ticket.payload["caption_column"], settings, extra
        )
        with local_copy(tar) as place:
            rows = list(reader.rows(place))
            tar_file = TarFile(name=tar, bytes=place.stat().st_size, sha256=disk.file_sha256(place))
        width = max(
            4, len(str(len(rows) - 1))
        )  # other programs' tars may hold more than 10,000 samples
        for row, values in enumerate(rows):
            values["key"] = f"{number:05d}{row:0{width}d}"
        record = publish_shard(
            pool,
            number,
            rows,
            tar_file,
            task=ticket.id,
            group=ticket.group,
            duration_s=time.monotonic() - started,
            schema=schema,
        )
        return record.to_plain()

    return work


def _refuse_own_folder(pool: str, tar: str) -> None:
    folder = disk.join(pool, "shards")
    same = (
        tar.startswith(folder + "/")
        if disk.is_url(tar)
        else Path(tar).parent.resolve() == Path(folder).resolve()
    )
    if same:
        raise ValueError(
            f"{tar} lies where this pool keeps its own shards; build into another folder"
        )


def _unchanged(record: CommitRecord, tar: str, pool: str, columns: Sequence[str]) -> CommitRecord:
    """The record, if it is of this tar, the tar is as long as it was and its sidecar has these columns."""
    if record.tar != tar:
        raise ValueError(
            f"shard {record.shard} of {pool} was made of {record.tar}, the source now has {tar} there; "
            "give the old list back, or build into another folder"
        )
    if not disk.is_url(tar) and disk.local_path(tar).stat().st_size != record.tar_bytes:
        raise ValueError(
            f"{tar} has changed since it was adopted; build into another folder than {pool}"
        )
    there = disk.read_schema(PoolLayout(pool).sidecar(record.shard)).names
    if list(there) != list(columns):
        raise ValueError(
            f"{pool} was adopted with the extra_columns {there[len(SIDECAR) :]}, the source now names "
            f"{list(columns)[len(SIDECAR) :]}; give the old list back, or build into another folder"
        )
    return record


# --- samples -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Members that share a name up to the first dot, by what follows it."""

    name: str
    members: dict[str, Member]


def samples(members: Sequence[Member]) -> list[Sample]:
    """In the order of their first members, which need not lie together; a repeated member begins another sample.

    Names without a dot, or that begin with one, belong to no sample.
    """
    found: list[Sample] = []
    latest: dict[str, Sample] = {}
    for member in members:
        match = SAMPLE.match(member.name)
        if match is None:
            continue
        name, extension = match[1], match[2].lower()
        if name not in latest or extension in latest[name].members:
            latest[name] = Sample(name=name, members={})
            found.append(latest[name])
        latest[name].members[extension] = member
    return found


class Reader:
    """What a tar and the parquet beside it say about its rows."""

    def __init__(
        self,
        tar: str,
        url_column: str,
        caption_column: str | None,
        settings: Fetch,
        extra: Mapping[str, str],
    ) -> None:
        self.tar, self.settings = tar, settings
        self.schema = with_extra(SIDECAR, extra)
        self.columns = {name: extra_column(name, kind) for name, kind in extra.items()}
        self.url_column, self.caption_column = url_column, caption_column
        self.listed = _listed(tar)

    def rows(self, place: Path) -> Iterator[dict[str, Any]]:
        """Sidecar rows without their keys: samples in the order of the tar, then what is only in the parquet."""
        seen = set()
        with open(place, "rb") as f:
            for sample in samples(index_tar(self.tar, place)):
                key = sample.name.rpartition("/")[2]
                seen.add(key)
                yield self._stored(sample, self.listed.get(key, {}), f)
        for key, told in self.listed.items():
            if key not in seen:
                yield self._lost(key, told)

    def _stored(self, sample: Sample, listed: Mapping[str, Any], f: IO[bytes]) -> dict[str, Any]:
        def read(extension: str) -> bytes | None:
            member = sample.members.get(extension)
            if member is None:
                return None
            f.seek(member.offset)
            return f.read(member.length)

        told = _mapping(read("json")) | {k: v for k, v in listed.items() if v is not None}
        kind = next((extension for extension in PICTURES if extension in sample.members), None)
        name = sample.members[kind].name if kind else sample.name
        record = self._told(told, name)
        try:
            text = read("txt")
            record["caption"] = text.decode() if text is not None else record["caption"]
        except UnicodeDecodeError:
            return self._failed(
                record, "encoding", "the caption is not UTF-8", self._uid(record, told)
            )
        record["uid"] = self._uid(record, told)
        if kind is None:
            return self._failed(
                record, "missing_file", f"no picture, only {', '.join(sorted(sample.members))}"
            )
        if self.caption_column is None:
            record["caption"] = record["caption"] or ""
        elif not (record["caption"] or "").strip():
            return self._failed(record, "no_caption", f"no caption beside {name}")
        image = read(kind) or b""
        try:
            width, height = size_of(image, self.settings)
        except BadPicture as bad:
            return self._failed(record, bad.reason, bad.detail)
        record |= {"width": width, "height": height, "image_name": name}
        record["sha256"] = record["sha256"] or hashlib.sha256(image).hexdigest()
        record["original_width"] = record["original_width"] or width
        record["original_height"] = record["original_height"] or height
        for part, extension in {"image": kind, "text": "txt", "json": "json"}.items():
            if (member := sample.members.get(extension)) is not None:
                record |= {f"{part}_offset": member.offset, f"{part}_length": member.length}
        return outcome_row(record, self.schema, stored=True)

    def _lost(self, key: str, told: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the parquet without a sample in the tar."""
        record = self._told(told, key)
        record["uid"] = self._uid(record, told)
        message = str(told.get("error_message") or "")
        if told.get("status") == "success":
            return self._failed(
                record, "missing_file", f"listed beside the tar as {key}, but not in it"
            )
        reason = reason_of(str(told.get("status")), message)
        return self._failed(record, reason, message or "no reason was given")

    def _told(self, told: Mapping[str, Any], name: str) -> dict[str, Any]:
        return {
            "url": _typed(told, self.url_column, str) or f"{self.tar}#{name}",
            "caption": _typed(told, self.caption_column, str) if self.caption_column else None,
            "original_width": _typed(told, "original_width", int),
            "original_height": _typed(told, "original_height", int),
            "exif": _typed(told, "exif", str),
            "sha256": _typed(told, "sha256", str),
            **{
                name: cast_value(told.get(column), kind)
                for name, (column, kind) in self.columns.items()
            },
        }

    def _uid(self, record: Mapping[str, Any], told: Mapping[str, Any]) -> str:
        """DataComp's own where it is given, else as for any row."""
        given = _typed(told, "uid", str) or ""
        return (
            given if UID.fullmatch(given) else disk.uid_of(record["url"], record["caption"] or "")
        )

    def _failed(
        self, record: Mapping[str, Any], reason: str, detail: str, uid: str | None = None
    ) -> dict[str, Any]:
        more = {"reason": reason, "error_message": detail} | ({"uid": uid} if uid else {})
        return outcome_row({**record, **more}, self.schema, stored=False)


def reason_of(status: str, message: str) -> str:
    """The reason of a row that img2dataset lists as failed_to_download or failed_to_resize with this error_message."""
    unknown = "decode_error" if status == "failed_to_resize" else "http_other"
    return next((reason for words, reason in MESSAGES if re.search(words, message)), unknown)


def _listed(tar: str) -> dict[str, dict[str, Any]]:
    """Rows of img2dataset's parquet beside a tar by their keys; {} where there is none."""
    beside = f"{tar.removesuffix('.tar')}.parquet"
    if not disk.exists(beside):
        return {}
    table = disk.read_parquet(beside)
    return (
        {str(row["key"]): row for row in table.to_pylist()} if "key" in table.column_names else {}
    )


def _mapping(data: bytes | None) -> dict[str, Any]:
    """A json member's keys; {} where it is none, or no mapping."""
    try:
        value = json.loads(data or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _typed(told: Mapping[str, Any], name: str, kind: type) -> Any:
    value = told.get(name)
    return value if isinstance(value, kind) else None


def size_of(image: bytes, settings: Fetch) -> tuple[int, int]:
    """Width and height in pixels from a picture's header. BadPicture where it is none, or outside the limits."""
    if not image:
        raise BadPicture("empty", "the picture has no bytes")
    found = check(image, limits_of(settings))
    if found.kind not in FORMATS:
        raise BadPicture("format", f"{found.kind}, not one of {', '.join(FORMATS)}")
    return found.width, found.height
