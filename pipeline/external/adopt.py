"""Tars that exist already become a pool where they lie."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from clipmill.manifests import disk
from clipmill.manifests.columns import REASONS, SIDECAR, extra_column, refuse_doubled, with_extra
from clipmill.manifests.commits import Commits, in_threads
from clipmill.manifests.content import file_stamp, has_stamp
from clipmill.manifests.layout import CommitRecord
from clipmill.manifests.pool import Pool
from clipmill.manifests.schema import Fetch, Source
from clipmill.manifests.text import valid_text
from clipmill.pipeline.crawl.sources import paths_at
from clipmill.pipeline.executor.tickets import Ticket, Work
from clipmill.pipeline.images import header
from clipmill.pipeline.images.header import RejectedImage
from clipmill.pipeline.images.transform import limits_of
from clipmill.pipeline.pool.shard_writer import (
    RowColumns,
    ShardJob,
    TarFile,
    outcome_row,
    publish_shard,
    read_commit_record,
)
from clipmill.pipeline.pool.tars import Member, index_tar, local_copy
from clipmill.pipeline.shuffle import THREADS
from clipmill.pipeline.table_files import (
    CASTS,
    MOST_NAMES,
    as_int,
    as_json,
    python_values,
    require_columns,
    utf_16,
)

# --------------------------------------------------------------------------------------------------
# Error messages of img2dataset as reasons.


# What img2dataset and urllib write into error_message, and its reason; the first match counts.
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


def reason_of(status: str, message: str) -> str:
    """The reason of a row that img2dataset lists as failed_to_download or failed_to_resize with
    this error_message."""
    unknown = "decode_error" if status == "failed_to_resize" else "http_other"
    return next((reason for words, reason in MESSAGES if re.search(words, message)), unknown)


# --------------------------------------------------------------------------------------------------
# The samples of another program's tar as rows of a sidecar.
#
# A sample is what shares a name up to the first dot. It needs an image (jpg, jpeg, png, webp, or
# the member that the recipe names) and a caption (txt or the named member, a json member, or
# img2dataset's parquet beside the tar). A caption_column other than the usual one is that of the
# json member or the parquet, and no text member stands in for it. Rows that the parquet lists as
# failed are failed rows here too, so that the counts add up.


IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp")
# Of images too: the bytes decide what they are.
OTHER_EXTENSIONS = (
    "jpe", "jfif", "gif", "avif", "bmp", "tif", "tiff", "heic", "heif", "jxl", "jp2", "svg", "ico",
    "psd",
)  # fmt: skip
COLUMNS = ("url", "caption")  # usual names: a tar may do without
FORMATS = ("JPEG", "PNG", "WEBP")  # of the bytes, whatever the name says
SAMPLE = re.compile(r"^((?:.*/)?[^./][^./]*)\.([^/]+)$")
ORIGINAL_SIZE = ("original_width", "original_height")
LONGEST_SIDE = 2**31 - 1  # pixels; the columns have 32 bits
UID = re.compile(r"[0-9a-f]{32}")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Members that share a name up to the first dot, by what follows it."""

    name: str
    members: dict[str, Member]

    @property
    def key(self) -> str:
        """Its name without the folder, as the column `key` beside a tar has it."""
        return self.name.rpartition("/")[2]

    @property
    def image_extension(self) -> str | None:
        """The extension of its image; None where it has none."""
        names = (*IMAGE_EXTENSIONS, *OTHER_EXTENSIONS)
        return next((name for name in names if name in self.members), None)

    @property
    def dotted_images(self) -> list[str]:
        """Extensions of images of other samples, whose keys have dots: 05.png beside 05.txt."""
        stems = {stem for stem, dot, ending in self._parted() if dot and ending in ("txt", "json")}
        return [
            f"{stem}.{ending}"
            for stem, _, ending in self._parted()
            if stem in stems and ending in (*IMAGE_EXTENSIONS, *OTHER_EXTENSIONS)
        ]

    def _parted(self) -> list[tuple[str, str, str]]:
        return [name.rpartition(".") for name in self.members]

    def read(self, tar: IO[bytes], extension: str) -> bytes | None:
        """The bytes of a member; None where it has no such member."""
        member = self.members.get(extension)
        if member is None:
            return None
        tar.seek(member.offset)
        return tar.read(member.length)


def group_samples(members: Sequence[Member]) -> list[Sample]:
    """In the order of their first members, which need not lie together; a repeated member begins
    another sample. Names without a dot, or that begin with one, belong to no sample.
    """
    samples: list[Sample] = []
    latest: dict[str, Sample] = {}
    for member in members:
        match = SAMPLE.match(member.name)
        if match is None:
            continue
        name, extension = match[1], match[2].lower()
        if name not in latest or extension in latest[name].members:
            latest[name] = Sample(name=name, members={})
            samples.append(latest[name])
        latest[name].members[extension] = member
    return samples


class TarReader:
    """What a tar and the parquet beside it say about its rows."""

    def __init__(self, tar: str, source: Source, settings: Fetch) -> None:
        self.tar, self.source, self.settings = tar, source, settings
        self.caption_column, extra = source.caption_column, source.extra_columns
        self.image_member = source.image_member and source.image_member.lower().lstrip(".")
        self.text_member = (source.caption_member or "txt").lower().lstrip(".")
        # Else the captions are those of a column.
        has_texts = self.caption_column in (None, COLUMNS[1])
        self.reads_text = source.caption_member is not None or has_texts
        self.present: set[str] = set()  # names of values that some sample or row has
        self.schema = with_extra(SIDECAR, extra)
        self.row_columns = RowColumns.of(self.schema)
        self.columns = {name: extra_column(name, kind) for name, kind in extra.items()}
        self.listed = _listed_rows(tar)
        self.linked: dict[str, Sample] = {}  # of members that are links
        self.strays = 0  # members of no sample

    def rows(self, path: Path) -> Iterator[dict[str, Any]]:
        """Sidecar rows without their keys: samples in the order of the tar, then what is only in
        the parquet. `path`: the tar on this machine. ValueError for a parquet of other keys, and
        for a column or a member that is named and not there."""
        links: list[Member] = []
        members = index_tar(self.tar, path, links)
        samples = group_samples(members)
        strays = [each.name for each in members if not SAMPLE.match(each.name)]
        if strays:
            what = "members are no part of a sample, such as"
            logger.warning("%s: %d %s %s", self.tar, len(strays), what, strays[0])
        self.strays = len(strays)
        self.linked = {linked.name: linked for linked in group_samples(links)}
        names = {sample.name for sample in samples}
        alone = [each for each in self.linked.values() if each.name not in names]
        samples += [Sample(name=each.name, members={}) for each in alone if self._image(each)]
        matched = self._matched(samples)
        kept = [key for key, row in self.listed.items() if row.get("status") in (None, "success")]
        if samples and kept and not any(matched.get(key) for key in kept):
            raise ValueError(
                f"{_beside(self.tar)} lists none of the samples of the tar: its first key is "
                f"{kept[0]!r}, and the first sample is {samples[0].name!r}; write the keys as text "
                "with their leading zeros, or move the file away"
            )
        self._require_members(samples)
        listed = {name: self.listed[key] for key, name in matched.items()}
        with open(path, "rb") as tar:
            for sample in samples:
                for extension in sample.dotted_images if not self._image(sample) else ():
                    yield self._dotted_row(sample, extension)
                if self._image(sample) or not sample.dotted_images:
                    yield self._sample_row(sample, listed.get(sample.name, {}), tar)
        for key, values in self.listed.items():
            self.present.update(values)
            if key not in matched:
                yield self._row_without_sample(key, values)
        named = [self.source.url_column, self.caption_column]
        columns = [name for name in named if name and name not in COLUMNS]
        if samples and columns:
            require_columns(self.tar, columns, sorted(self.present))

    def _matched(self, samples: Sequence[Sample]) -> dict[str, str]:
        """{key of the parquet: name of its sample}: by folder and name, else by the name, else by
        the number, where that is the key of one sample only. ValueError for a key that may be that
        of several, and for two keys of one sample."""
        names = {sample.name.removeprefix("./"): sample.name for sample in samples}
        of_key: dict[str, set[str]] = {}
        of_number: dict[str, set[str]] = {}
        for sample in samples:
            of_key.setdefault(sample.key, set()).add(sample.name)
            if sample.key.isdecimal():
                of_number.setdefault(str(int(sample.key)), set()).add(sample.name)
        matched: dict[str, str] = {}
        owner: dict[str, str] = {}
        for key, row in self.listed.items():
            several = of_key if isinstance(row["key"], (str, bytes)) else of_number
            name = names.get(key.removeprefix("./"))
            fits = {name} if name and several is of_key else several.get(key, set())
            if len(fits) > 1:
                raise ValueError(
                    f"{_beside(self.tar)}: the key {row['key']!r} may be that of "
                    f"{' or '.join(sorted(fits)[:2])}; write the keys with their folders, as text"
                )
            for name in fits:
                if name in owner:
                    raise ValueError(
                        f"{_beside(self.tar)}: the keys {owner[name]!r} and {key!r} are both that "
                        f"of {name}; keep one"
                    )
                matched[key], owner[name] = name, key
        return matched

    def _image(self, sample: Sample) -> str | None:
        """The extension of the image of a sample: that which the recipe names, else a usual one."""
        if self.image_member is None:
            return sample.image_extension
        return self.image_member if self.image_member in sample.members else None

    def _require_members(self, samples: Sequence[Sample]) -> None:
        named = {"image_member": self.image_member}
        if self.text_member != "txt":
            named["caption_member"] = self.text_member
        present = {extension for sample in samples for extension in sample.members}
        for option, extension in named.items():
            if samples and extension and extension not in present:
                raise ValueError(
                    f"{option} is {extension!r}, which no sample of {self.tar} has; they have "
                    f"{', '.join(sorted(present)[:MOST_NAMES])}"
                )

    def _link(self, sample: Sample, ending: str | None) -> str | None:
        """What to do where a link stands in the place of a member of a sample, with its picture's
        or this ending."""
        linked = self.linked.get(sample.name)
        if linked is None or (ending := ending or self._image(linked)) not in linked.members:
            return None
        return (
            f"{linked.members[ending].name} is a link, which has no bytes: pack the tar again with "
            "the files themselves (tar --dereference --hard-dereference)"
        )

    def _without_caption(self, sample: Sample, values: Mapping[str, Any]) -> str:
        """What a sample has in the place of a caption, and which option may name it."""
        image = self._image(sample) or ""
        if (value := values.get(self.caption_column or "")) not in (None, "", []):
            return f"its {self.caption_column} is no text: {as_json(value)}"[:200]
        others = sorted(sample.members.keys() - {image, self.text_member, "json"})
        hint = f"no caption beside {sample.members[image].name}"
        if others:
            hint += f", only {', '.join(others)[:100]}; a text may be named as caption_member"
        if values:
            names = ", ".join(sorted(values)[:MOST_NAMES])[:200]
            hint += f"; its JSON has {names}: a text may be named as caption_column"
        return hint

    def _dotted_row(self, sample: Sample, extension: str) -> dict[str, object]:
        name = sample.members[extension].name
        record = self._record({}, name)
        record["uid"] = self._uid(record, {})
        return self._failed(
            record,
            "missing_file",
            f"the key of {name} has a dot: a sample is what shares a name up to the first dot, so "
            "pack the tar again with keys without dots",
        )

    def _sample_row(
        self, sample: Sample, listed: Mapping[str, object], tar: IO[bytes]
    ) -> dict[str, object]:
        values = json_object(sample.read(tar, "json"))
        values |= {name: value for name, value in listed.items() if value is not None}
        self.present.update(values)
        extension = self._image(sample)
        name = sample.members[extension].name if extension else sample.name
        record = self._record(values, name)
        try:
            text = sample.read(tar, self.text_member) if self.reads_text else None
            if utf_16(text or b""):  # without a mark it would be UTF-8 with NULs
                raise ValueError("UTF-16")
            caption = record["caption"] if text is None else text.decode("utf-8-sig")
            if caption is not None and valid_text(caption) != caption:
                raise ValueError("half of a surrogate pair")
        except ValueError:  # UnicodeDecodeError is one
            if record["caption"] is not None and valid_text(record["caption"]) != record["caption"]:
                record["caption"] = None
            record["uid"] = self._uid(record, values)
            return self._failed(record, "encoding", "the caption is not valid UTF-8 text")
        record["caption"] = caption
        record["uid"] = self._uid(record, values)
        if extension is None:
            if link := self._link(sample, None):
                return self._failed(record, "missing_file", link)
            members = ", ".join(sorted(sample.members))
            hint = ""
            if any(ending in IMAGE_EXTENSIONS for _, _, ending in sample._parted()):
                hint = "; name the end of the picture's name as source.image_member"
            return self._failed(record, "missing_file", f"no picture, only {members}{hint}")
        image = sample.read(tar, extension) or b""
        try:
            width, height = size_of(image, self.settings)
        except RejectedImage as bad:
            return self._failed(record, bad.reason, bad.detail)
        if self.caption_column is None:
            record["caption"] = record["caption"] or ""
        elif not (record["caption"] or "").strip():
            hint = self._link(sample, self.text_member) or self._without_caption(sample, values)
            return self._failed(record, "no_caption", hint)
        most = self.source.max_caption_bytes
        if len((record["caption"] or "").encode()) > most:
            record["caption"] = None
            return self._failed(record, "long_caption", f"more than {most} bytes")
        record |= {"width": width, "height": height, "image_name": name}
        record["sha256"] = record["sha256"] or hashlib.sha256(image).hexdigest()
        if record["original_width"] is None:
            record |= {"original_width": width, "original_height": height}
        text_member = self.text_member if self.reads_text else ""
        for part, ending in {"image": extension, "text": text_member, "json": "json"}.items():
            if (member := sample.members.get(ending)) is not None:
                record |= {f"{part}_offset": member.offset, f"{part}_length": member.length}
        return outcome_row(record, self.row_columns, stored=True)

    def _row_without_sample(self, key: str, values: Mapping[str, object]) -> dict[str, object]:
        """A row of the parquet that the tar has no sample of."""
        record = self._record(values, key)
        record["caption"] = None if record["caption"] is None else valid_text(record["caption"])
        record["uid"] = self._uid(record, values)
        message = str(values.get("error_message") or "")
        if values.get("status") == "success":
            missing = f"listed beside the tar as {key}, but not in it"
            return self._failed(record, "missing_file", missing)
        reason = values.get("reason")  # of a sidecar of ours
        if not (isinstance(reason, str) and reason in REASONS):
            reason = reason_of(str(values.get("status")), message)
        return self._failed(record, reason, message or "no reason was given")

    def _record(self, values: Mapping[str, object], name: str) -> dict[str, Any]:
        """The columns of a row that the json member or the parquet gives."""
        caption = _first_text(values, self.caption_column) if self.caption_column else None
        record: dict[str, Any] = {
            "url": valid_text(_text(values, self.source.url_column) or f"{self.tar}#{name}"),
            "caption": caption,
        }
        sizes = [_side(values.get(column)) for column in ORIGINAL_SIZE]
        record |= dict(zip(ORIGINAL_SIZE, sizes if all(sizes) else (None, None), strict=True))
        for column in ("exif", "sha256"):
            record[column] = _text(values, column)
        for extra, (column, kind) in self.columns.items():
            record[extra] = CASTS[kind](values.get(column))
        return record

    def _uid(self, record: Mapping[str, Any], values: Mapping[str, object]) -> str:
        """DataComp's own where it is given, else as for any row."""
        given = _text(values, "uid") or ""
        if UID.fullmatch(given):
            return given
        return disk.uid_of(record["url"], record["caption"] or "")

    def _failed(self, record: Mapping[str, object], reason: str, detail: str) -> dict[str, object]:
        failure = {**record, "reason": reason, "error_message": detail}
        return outcome_row(failure, self.row_columns, stored=False)


def _beside(tar: str) -> str:
    """img2dataset's parquet beside a tar."""
    return f"{tar[:-4] if tar.lower().endswith('.tar') else tar}.parquet"


def _listed_rows(tar: str) -> dict[str, dict[str, Any]]:
    """Rows of img2dataset's parquet beside a tar by their keys; {} where there is none.

    ValueError for keys that are neither text nor whole numbers, for a row without a key, and for
    two rows of one key.
    """
    path = _beside(tar)
    if not disk.exists(path):
        return {}
    try:
        names = disk.read_schema(path).names
        refuse_doubled(path, names, names)
        table = disk.read_parquet(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}, beside the tar, cannot be read: {error}") from None
    if "key" not in names:
        return {}
    lists = [python_values(column) for column in table.columns]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]
    listed: dict[str, dict[str, object]] = {}
    for row in rows:
        key = _key(row["key"])
        if key is None:
            kind = table.schema.field("key").type
            state = (
                "a row without a key"
                if row["key"] is None
                else f"the key {row['key']!r}, of type {kind}"
            )
            raise ValueError(
                f"{path}, beside the tar, has {state}; each row has a key, the text that its "
                "sample is named by, as in '000000003'"
            )
        if key in listed:
            raise ValueError(f"{path}, beside the tar, has two rows of the key {key!r}; keep one")
        listed[key] = row
    return listed


def json_object(data: bytes | None) -> dict[str, object]:
    """A json member's values; {} where it is not there, not JSON, nested too deep, or no object."""
    try:
        value = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _key(value: object) -> str | None:
    """A key as text, also that of a column of numbers, which has lost its leading zeros."""
    number = None if isinstance(value, (str, bytes, bool)) else as_int(value)
    return _text({"key": value}, "key") if number is None else str(number)


def _first_text(values: Mapping[str, object], name: str) -> str | None:
    """A text; of a list of texts the first that is not blank."""
    value = values.get(name)
    for each in value if isinstance(value, list) else []:
        if (text := _text({name: each}, name)) and text.strip():
            return text
    return _text(values, name)


def _text(values: Mapping[str, object], name: str) -> str | None:
    """A text, also one that Parquet holds as bytes; None for any other value."""
    value = values.get(name)
    if isinstance(value, bytes):
        value = value.decode(errors="surrogateescape")
    return value if isinstance(value, str) else None


def _side(value: object) -> int | None:
    """A number of pixels, also as a double, a decimal or text; None for what can be none."""
    pixels = None if isinstance(value, bool) else as_int(value)
    return pixels if pixels is not None and 0 < pixels <= LONGEST_SIDE else None


def size_of(image: bytes, settings: Fetch) -> tuple[int, int]:
    """Width and height in pixels from an image's header. RejectedImage where it is none, or outside
    the limits."""
    if not image:
        raise RejectedImage("empty", "the picture has no bytes")
    kind = header.sniff(image)
    if kind not in FORMATS:
        raise RejectedImage("format", f"{kind}, not one of {', '.join(FORMATS)}")
    with header.rejections(), header.opened(image, limits_of(settings)) as opened:
        return opened.size


# --------------------------------------------------------------------------------------------------
# Tars that exist already become a pool where they lie: a sidecar and a commit record for each,
# and no copy.
#
# Any tar of the WebDataset kind: img2dataset's, DataComp's, clip-retrieval's. Columns that the
# recipe names as extra_columns come from img2dataset's parquet, else from the json member:
# DataComp's scores, for one. A pair that lies in two tars is stored twice, under one uid: nothing
# is dropped here, a filter may tell such rows apart.


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedTar:
    """The payload of a ticket: a tar and the shard that it is."""

    shard: int
    tar: str


PACKED_TAR = re.compile(r"(?i)\.(?:tar\.\w+|tgz|tbz2?|txz|tzst)$")


def tar_tickets(source: Source, adopted: Mapping[str, int] | None = None) -> list[Ticket]:
    """One ticket per tar, numbered in the order of `source.paths`; a folder or a pattern stands for
    its tars by name. A tar that is `adopted` (tar -> shard) keeps its number, and new ones take
    those that are left, unless one of the adopted is gone.

    ValueError where a path leads to no tar, or a tar is named twice.
    """
    tars: list[str] = []
    for path in source.paths:
        tars += _tars_at(path)
    twice = sorted(tar for tar, count in Counter(tars).items() if count > 1)
    if twice:
        raise ValueError(f"source.paths names {twice[0]} twice")
    numbers = dict(adopted or {})
    if numbers.keys() - set(tars):
        numbers = {}
    taken = set(numbers.values())
    left = (number for number in itertools.count() if number not in taken)
    for tar in tars:
        if tar not in numbers:
            numbers[tar] = next(left)
    tickets = []
    for tar, number in sorted(numbers.items(), key=lambda item: item[1]):
        ticket_id, numbered = disk.content_hash([number, tar]), NumberedTar(shard=number, tar=tar)
        tickets.append(Ticket(id=ticket_id, group=str(number), payload=numbered))
    return tickets


def _tars_at(path: str) -> list[str]:
    names: list[str] = []
    if path.endswith("/") or (not disk.is_url(path) and disk.local_path(path).is_dir()):
        names = disk.list_names(path)
        tars = [disk.join(path, name) for name in names if name.lower().endswith(".tar")]
    else:
        tars = paths_at(path)
        tars = tars if tars != [path] or disk.exists(path) else []
    if not tars:
        packed = next(filter(PACKED_TAR.search, names), None)
        hint = f"; {packed} is compressed: unpack it" if packed else ""
        raise ValueError(f"source.paths: there is no tar at {path}{hint}")
    for tar in tars:
        if not disk.is_url(tar):
            disk.check_source_file(disk.local_path(tar))
    return [disk.absolute_path(tar) for tar in tars]


def adopt_tars(job: ShardJob) -> Work:
    """Factory of the stage; of the settings of `fetch` the limits on an image's size apply."""
    out, source, settings = job.out, job.recipe.source, job.recipe.fetch
    schema = with_extra(SIDECAR, source.extra_columns)

    def work(ticket: Ticket) -> CommitRecord:
        """The commit record of the ticket's tar. ValueError where it is no whole, plain tar, or
        changed since it was adopted."""
        started = time.monotonic()
        numbered: NumberedTar = ticket.payload
        number, tar = numbered.shard, numbered.tar
        _refuse_own_folder(out.layout.shards, tar)
        if (existing := read_commit_record(out.layout, number)) is not None:
            _require_same(existing, ticket, out.pool, schema.names)
            return existing
        reader = TarReader(tar, source, settings)
        stamp = file_stamp(tar)
        with local_copy(tar) as path:
            rows = list(reader.rows(path))
            size, sha256 = path.stat().st_size, disk.file_sha256(path)
        # Tars of other programs may hold more than the 10,000 samples of a key's four digits.
        width = max(4, len(str(len(rows) - 1)))
        for row, values in enumerate(rows):
            values["key"] = f"{number:05d}{row:0{width}d}"
        return publish_shard(
            out,
            number,
            rows,
            TarFile(name=tar, bytes=size, sha256=sha256, stamp=stamp),
            task=ticket.id,
            group=ticket.group,
            duration_s=time.monotonic() - started,
            schema=schema,
            strays=reader.strays,
        )

    return work


def _refuse_own_folder(folder: str, tar: str) -> None:
    if disk.is_url(tar):
        same = tar.startswith(folder + "/")
    else:
        same = Path(tar).parent.resolve() == Path(folder).resolve()
    if same:
        raise ValueError(
            f"{tar} lies where this pool keeps its own shards; build into another folder"
        )


def _require_same(record: CommitRecord, ticket: Ticket, pool: str, columns: Sequence[str]) -> None:
    """ValueError where the record is not of this tar as it is now, with these columns.

    After a purge the pool has a tar of its own, without some samples; its task is still this one.
    """
    tar = ticket.payload.tar
    was_copied = not record.adopted and record.task == ticket.id
    if record.tar != tar and not was_copied:
        raise ValueError(
            f"shard {record.shard} of {pool} was made of {record.tar}, the source now has {tar} "
            "there; give the old list back, or build into another folder"
        )
    if not was_copied and tar_changed(record):
        raise ValueError(
            f"{tar} has changed since it was adopted; "
            f"give the old tar back, or build into another folder than {pool}"
        )
    present = Pool(Commits.of_records(pool, [record])).schema.names
    if list(present) != list(columns):
        raise ValueError(
            f"{pool} was adopted with the extra_columns {present[len(SIDECAR) :]}, "
            f"the source now names {list(columns)[len(SIDECAR) :]}; "
            "give the old list back, or build into another folder"
        )


def check_adopted(commits: Commits, source: Source, tickets: Sequence[Ticket]) -> None:
    """ValueError where a shard that is committed is not of its ticket's tar as it is now.

    Only a person can mend that: no further try of the stage would end otherwise.
    """
    columns = with_extra(SIDECAR, source.extra_columns).names

    def problem(ticket: Ticket) -> str | None:
        record = commits.get(ticket.payload.shard)
        if record is None:
            return None
        try:
            _require_same(record, ticket, commits.pool, columns)
        except ValueError as error:
            return str(error)
        return None

    problems = [text for text in in_threads(problem, tickets, THREADS) if text is not None]
    if problems:
        others = f" (so it is with {len(problems) - 1} more tars)" if len(problems) > 1 else ""
        raise ValueError(problems[0] + others)


def tar_changed(record: CommitRecord) -> bool:
    """True where an adopted tar is gone, or another program rewrote it.

    A tar with the size and time of its adoption is not read. One of the same size with another time
    is hashed: a copy passes.
    """
    if disk.is_url(record.tar):
        return not has_stamp(record.tar, record.tar_stamp or {})
    path = disk.local_path(record.tar)
    if not path.is_file() or path.stat().st_size != record.tar_bytes:
        return True
    if not record.tar_stamp or has_stamp(record.tar, record.tar_stamp):
        return False
    return disk.file_sha256(path) != record.tar_sha256
