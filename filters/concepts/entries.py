"""The list of concepts that captions are matched with, read from a file that the user names."""

from __future__ import annotations

import json
from pathlib import Path

from manifests import disk


def read_entries(path: str) -> list[str]:
    """The entries of a JSON list of strings (`.json`), or of a text file with one entry a line.

    The position of an entry is its number in every column. ValueError for another form, for a
    list without an entry, and for an empty or a repeated entry.
    """
    file = disk.local_path(path)
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the list of entries {path} cannot be read: {error}") from None
    entries = _from_json(text, path) if str(path).endswith(".json") else text.split("\n")
    if entries and not str(path).endswith(".json"):
        entries = [line.removesuffix("\r") for line in entries]
        if entries[-1] == "":
            entries.pop()
    check_entries(entries, path)
    return entries


def _from_json(text: str, path: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the list of entries {path} is not JSON: {error}") from None
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ValueError(f"the list of entries {path} must be a JSON list of strings")
    return value


def check_entries(entries: list[str], path: str) -> None:
    """ValueError for a list that is empty, and for an empty or a repeated entry."""
    if not entries:
        raise ValueError(f"the list of entries {path} is empty")
    first: dict[str, int] = {}
    for number, entry in enumerate(entries):
        if not entry.strip():
            raise ValueError(f"the list of entries {path}: entry {number + 1} is empty; remove it")
        if first.setdefault(entry, number) != number:
            raise ValueError(
                f"the list of entries {path}: {entry!r} is entry {first[entry] + 1} and entry "
                f"{number + 1}; remove one of them"
            )
