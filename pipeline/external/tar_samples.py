"""The samples of another program's tar as rows of a sidecar.

A sample is what shares a name up to the first dot. It needs an image (jpg, jpeg, png, webp) and a
caption (txt, a json member, or img2dataset's parquet beside the tar). Rows that the parquet lists
as failed are failed rows here too, so that the counts add up.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from manifests import disk
from manifests.casting import cast_value
from manifests.columns import REASONS, SIDECAR, extra_column, with_extra
from manifests.schema import Fetch
from manifests.text import valid_text
from pipeline.crawl import python_values
from pipeline.external.error_messages import reason_of
from pipeline.images import RejectedImage, check, limits_of
from pipeline.pool import Member, index_tar, outcome_row

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp")
FORMATS = ("JPEG", "PNG", "WEBP")  # of the bytes, whatever the name says
SAMPLE = re.compile(r"^((?:.*/)?[^./][^./]*)\.([^/]+)$")
UID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Members that share a name up to the first dot, by what follows it."""

    name: str
    members: dict[str, Member]

    @property
    def image_extension(self) -> str | None:
        """The extension of its image; None where it has none."""
        return next((name for name in IMAGE_EXTENSIONS if name in self.members), None)

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
        self.listed = _listed_rows(tar)

    def rows(self, path: Path) -> Iterator[dict[str, Any]]:
        """Sidecar rows without their keys: samples in the order of the tar, then what is only in
        the parquet. `path`: the tar on this machine."""
        seen = set()
        with open(path, "rb") as tar:
            for sample in group_samples(index_tar(self.tar, path)):
                key = sample.name.rpartition("/")[2]
                seen.add(key)
                yield self._sample_row(sample, self.listed.get(key, {}), tar)
        for key, values in self.listed.items():
            if key not in seen:
                yield self._row_without_sample(key, values)

    def _sample_row(
        self, sample: Sample, listed: Mapping[str, Any], tar: IO[bytes]
    ) -> dict[str, Any]:
        values = json_object(sample.read(tar, "json"))
        values |= {name: value for name, value in listed.items() if value is not None}
        extension = sample.image_extension
        name = sample.members[extension].name if extension else sample.name
        record = self._record(values, name)
        try:
            text = sample.read(tar, "txt")
            caption = record["caption"] if text is None else text.decode()
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
            members = ", ".join(sorted(sample.members))
            return self._failed(record, "missing_file", f"no picture, only {members}")
        if self.caption_column is None:
            record["caption"] = record["caption"] or ""
        elif not (record["caption"] or "").strip():
            return self._failed(record, "no_caption", f"no caption beside {name}")
        image = sample.read(tar, extension) or b""
        try:
            width, height = size_of(image, self.settings)
        except RejectedImage as bad:
            return self._failed(record, bad.reason, bad.detail)
        record |= {"width": width, "height": height, "image_name": name}
        record["sha256"] = record["sha256"] or hashlib.sha256(image).hexdigest()
        record["original_width"] = record["original_width"] or width
        record["original_height"] = record["original_height"] or height
        for part, ending in {"image": extension, "text": "txt", "json": "json"}.items():
            if (member := sample.members.get(ending)) is not None:
                record |= {f"{part}_offset": member.offset, f"{part}_length": member.length}
        return outcome_row(record, self.schema, stored=True)

    def _row_without_sample(self, key: str, values: Mapping[str, Any]) -> dict[str, Any]:
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

    def _record(self, values: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The columns of a row that the json member or the parquet gives."""
        caption = _typed(values, self.caption_column, str) if self.caption_column else None
        record: dict[str, Any] = {
            "url": valid_text(_typed(values, self.url_column, str) or f"{self.tar}#{name}"),
            "caption": caption,
        }
        for column in ("original_width", "original_height"):
            record[column] = _typed(values, column, int)
        for column in ("exif", "sha256"):
            record[column] = _typed(values, column, str)
        for extra, (column, kind) in self.columns.items():
            record[extra] = cast_value(values.get(column), kind)
        return record

    def _uid(self, record: Mapping[str, Any], values: Mapping[str, Any]) -> str:
        """DataComp's own where it is given, else as for any row."""
        given = _typed(values, "uid", str) or ""
        if UID.fullmatch(given):
            return str(given)
        return disk.uid_of(record["url"], record["caption"] or "")

    def _failed(self, record: Mapping[str, Any], reason: str, detail: str) -> dict[str, Any]:
        failure = {**record, "reason": reason, "error_message": detail}
        return outcome_row(failure, self.schema, stored=False)


def _listed_rows(tar: str) -> dict[str, dict[str, Any]]:
    """Rows of img2dataset's parquet beside a tar by their keys; {} where there is none."""
    path = f"{tar.removesuffix('.tar')}.parquet"
    if not disk.exists(path):
        return {}
    try:
        table = disk.read_parquet(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}, beside the tar, cannot be read: {error}") from None
    if "key" not in table.column_names:
        return {}
    names = table.column_names
    lists = [python_values(column) for column in table.columns]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]
    return {str(row["key"]): row for row in rows}


def json_object(data: bytes | None) -> dict[str, Any]:
    """A json member's values; {} where it is not there, not JSON, nested too deep, or no object."""
    try:
        value = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _typed(values: Mapping[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    fits = isinstance(value, kind) and not isinstance(value, bool)  # True is an int to Python
    return value if fits else None


def size_of(image: bytes, settings: Fetch) -> tuple[int, int]:
    """Width and height in pixels from an image's header. RejectedImage where it is none, or outside
    the limits."""
    if not image:
        raise RejectedImage("empty", "the picture has no bytes")
    header = check(image, limits_of(settings))
    if header.kind not in FORMATS:
        raise RejectedImage("format", f"{header.kind}, not one of {', '.join(FORMATS)}")
    return header.width, header.height
