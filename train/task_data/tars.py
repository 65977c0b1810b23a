"""Tars in WebDataset's layout: the members of a sample share a key and stand side by side.

A sample has one image, and `cls` (a number or a text), `txt` (captions, one per line), `json` or
`npy`, as the task needs.
"""

from __future__ import annotations

import functools
import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from manifests import disk
from manifests.schema import TaskSpec
from train.task_data.images import TarImages
from train.task_data.samples import RawSamples

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp")
TEXT_EXTENSIONS = ("cls", "txt", "json", "npy")
SMALL_MEMBER = 1 << 20  # bytes of the longest member that is no image and is read while scanning
Member = tuple[int, int]  # offset and length
Scanned = tuple[tuple[str, dict[str, Member], dict[str, bytes]], ...]


def read_tars(task: TaskSpec, tars: Sequence[str], source: str, needs: str) -> RawSamples:
    """The samples of some tars, in their order. `needs` is `label` or `caption`.

    ValueError that names the tar and the key for a sample without an image or without what the task
    needs, for a repeated key and for a compressed or cut tar.
    """
    columns = {"label": "cls", "caption": "txt", **task.columns}
    names: list[str] = []
    members: list[tuple[int, int, int]] = []
    values: list[Any] = []
    groups: list[int | str] = []
    seen: set[str] = set()
    for number, tar in enumerate(tars):
        for key, images, parts in scan_tar(tar, _fingerprint(tar)):
            where = f"task {task.name!r}: {tar}, sample {key}"
            extension = next((each for each in IMAGE_EXTENSIONS if each in images), None)
            if extension is None:
                raise ValueError(f"{where} has no image ({', '.join(IMAGE_EXTENSIONS)})")
            name = f"{key}.{extension}"
            if name in seen:
                raise ValueError(f"{where} is there twice; keys must differ over all tars")
            seen.add(name)
            names.append(name)
            members.append((number, *images[extension]))
            values.append(_value(parts, columns[needs], where, VALUE_OF[needs]))
            if "group" in columns:
                groups.append(_value(parts, columns["group"], where, _as_group))
    if not names:
        raise ValueError(f"task {task.name!r}: {source} has no samples")
    images_of_tars = TarImages(tuple(tars), tuple(names), tuple(members))
    return RawSamples(
        source=source,
        images=images_of_tars,
        labels=_as_labels(values) if needs == "label" else None,
        captions=values if needs == "caption" else None,
        groups=groups or None,
    )


def _fingerprint(path: str) -> tuple[int, int]:
    if disk.is_url(path):
        return 0, 0
    status = os.stat(disk.local_path(path))
    return status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=4096)
def scan_tar(path: str, fingerprint: tuple[int, int]) -> Scanned:
    """(key, images by extension, other members' bytes by extension) of each sample.

    The `fingerprint` is there for the cache. ValueError for what is no plain tar.
    """
    samples: list[tuple[str, dict[str, Member], dict[str, bytes]]] = []
    try:
        with _open(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                folder, _, base = member.name.rpartition("/")
                stem, _, extension = base.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                extension = extension.lower()
                if not samples or samples[-1][0] != key:
                    samples.append((key, {}, {}))
                _, images, parts = samples[-1]
                if extension in IMAGE_EXTENSIONS:
                    images[extension] = (member.offset_data, member.size)
                elif extension in TEXT_EXTENSIONS and member.size <= SMALL_MEMBER:
                    content = tar.extractfile(member)
                    assert content is not None
                    parts[extension] = content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"{path} is no plain tar, or it is cut: {error}") from error
    return tuple(samples)


def _open(path: str) -> BinaryIO:
    if disk.is_url(path):
        return io.BytesIO(disk.read_bytes(path))
    return open(disk.local_path(path), "rb")


# --- members --------------------------------------------------------------------------------------


def _value(parts: dict[str, bytes], column: str, where: str, convert: Callable[[Any], Any]) -> Any:
    """The value of EXTENSION, or of EXTENSION:FIELD of a JSON or npy member."""
    extension, _, field = column.partition(":")
    if extension not in parts:
        listed = ", ".join(parts) or "no other member"
        raise ValueError(f"{where} has no member .{extension} (beside the image: {listed})")
    try:
        data = parts[extension]
        if extension == "json":
            content = json.loads(data)
            return convert(content[field] if field else content)
        if extension == "npy":
            array = np.load(io.BytesIO(data), allow_pickle=False)
            return convert(array.reshape(-1)[int(field)].item() if field else array.item())
        return convert(data.decode())
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{where}: {column} cannot be read ({error!r})") from error


def _as_label(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"a label is a number or a text, not {value!r}")
    return value.strip() if isinstance(value, str) else value


def _as_captions(value: Any) -> list[str]:
    texts = value.splitlines() if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"captions are texts, not {value!r}")
    return [text.strip() for text in texts if text.strip()]


def _as_group(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


VALUE_OF: dict[str, Callable[[Any], Any]] = {"label": _as_label, "caption": _as_captions}


def _as_labels(values: Sequence[int | str]) -> list[int | str]:
    """Texts that are all whole numbers as numbers."""
    if all(isinstance(value, int) or value.isdecimal() for value in values):
        return [int(value) for value in values]
    return list(values)
