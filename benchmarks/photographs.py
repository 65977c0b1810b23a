"""The photographs of a folder that a person names: one answer for every benchmark."""

from __future__ import annotations

import argparse
from pathlib import Path

ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif")


def paths_of(folder: str | Path) -> list[Path]:
    """The JPEGs in a folder and those below it, by the ending of the name in any case, sorted."""
    paths = Path(folder).rglob("*")
    return sorted(path for path in paths if path.suffix.lower() in ENDINGS and path.is_file())


def folder_option(text: str) -> Path:
    """The value of an option that names a folder of photographs.

    ArgumentTypeError: there is none in it.
    """
    if not paths_of(text):
        raise argparse.ArgumentTypeError(f"{text} has no JPEG ({', '.join(ENDINGS)})")
    return Path(text)
