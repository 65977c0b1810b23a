"""Where an export goes: the ending of the path decides what is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from manifests import disk

Kind = Literal["parquet", "csv", "npy", "folder"]
FILE_KINDS: dict[str, Kind] = {".parquet": "parquet", ".csv": "csv", ".npy": "npy"}
# Endings that a person means as a file, and that no export writes.
OTHER_ENDINGS = (
    ".arrow", ".feather", ".gz", ".h5", ".json", ".jsonl", ".ndjson", ".npz", ".pq", ".tar", ".tsv",
    ".txt", ".yaml", ".zip", ".zst",
)  # fmt: skip
CARD = "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A file with its card and metadata beside it, or a folder of shards that has both inside."""

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

    @property
    def croissant(self) -> str:
        """The Croissant metadata."""
        if self.kind == "folder":
            return disk.join(self.path, "croissant.json")
        return f"{self.path}.croissant.json"


def target_of(to: str, pool: str) -> Target:
    """The target that `--to` names. ValueError for another ending, and for a path in the pool."""
    path = to if disk.is_url(to) else str(disk.local_path(to).absolute())
    path = path.rstrip("/")
    root = pool if disk.is_url(pool) else str(disk.local_path(pool).absolute())
    root = root.rstrip("/")
    if path == root or path.startswith(f"{root}/"):
        raise ValueError(f"--to {to} lies in the pool {pool}; write it elsewhere")
    name = path.rpartition("/")[2]
    if not name:
        raise ValueError(f"--to {to!r} names no file and no folder")
    for ending, kind in FILE_KINDS.items():
        if name.endswith(ending):
            if to.endswith("/"):
                raise ValueError(f"--to {to} ends in {ending} and is a folder; which is it?")
            return Target(kind=kind, path=path)
    if name.lower().endswith(OTHER_ENDINGS):
        raise ValueError(
            f"--to {to}: an export is a .parquet, .csv or .npy file, or a folder of shards (any "
            "other name)"
        )
    return Target(kind="folder", path=path)
