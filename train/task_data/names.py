"""Class names and templates by name or by file."""

from __future__ import annotations

import json
from typing import Any

from manifests import disk

# Name -> attribute of open_clip, which is read where it is installed.
CLASSES = {"imagenet": "IMAGENET_CLASSNAMES"}
TEMPLATES = {
    "openai_imagenet": "OPENAI_IMAGENET_TEMPLATES",
    "simple_imagenet": "SIMPLE_IMAGENET_TEMPLATES",
}
FILE_SUFFIXES = (".txt", ".json")


def read_classes(name: str) -> tuple[str, ...]:
    """The class names of a list of open_clip's, or of a file: one per line, or a JSON list.

    ValueError for an unknown name, a missing open_clip and a file that holds no list.
    """
    if name.endswith(FILE_SUFFIXES):
        return read_lines(name)
    return tuple(str(each) for each in _from_open_clip(name, CLASSES, "classes"))


def read_templates(name: str) -> tuple[str, ...]:
    """The templates, with {} for the class name. A file may write {c}, as CLIP_benchmark does."""
    if name.endswith(FILE_SUFFIXES):
        return tuple(line.replace("{c}", "{}") for line in read_lines(name))
    return tuple(str(each("{}")) for each in _from_open_clip(name, TEMPLATES, "templates"))


def read_lines(path: str) -> tuple[str, ...]:
    """The lines of a text file that are not empty, or the texts of a JSON list."""
    if not disk.exists(path):
        raise ValueError(f"{path} does not exist")
    try:
        text = disk.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error
    if path.endswith(".json"):
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise ValueError(f"{path} must hold a JSON list of texts")
        return tuple(values)
    lines = [line.rstrip("\r") for line in text.split("\n")]
    return tuple(line for line in lines if line.strip())


def _from_open_clip(name: str, known: dict[str, str], key: str) -> list[Any]:
    if name not in known:
        raise ValueError(
            f"{key} is {name!r}; it must be a list, a file (*.txt or *.json) or one of "
            f"{', '.join(known)}{disk.did_you_mean(name, known)}"
        )
    try:
        import open_clip
    except ImportError as error:
        raise ValueError(
            f"{key}: {name} needs open_clip ({error}); pip install open_clip_torch, or name a file"
        ) from error
    return list(getattr(open_clip, known[name]))
