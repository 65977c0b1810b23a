"""What a run of img2dataset left, as outcomes of the rows that it was asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from manifests import disk
from manifests.schema import Fetch
from pipeline.external.error_messages import reason_of
from pipeline.external.tar_samples import group_samples
from pipeline.images import RejectedImage, as_it_is
from pipeline.pool import index_tar

SIZES = ("width", "height", "original_width", "original_height")
# Columns of the sidecar, the bytes of the image, and its extension.
Outcome = tuple[dict[str, Any], bytes | None, str]


def outcomes(folder: Path, settings: Fetch, rows: int) -> Iterator[tuple[int, Outcome]]:
    """Position in the list and outcome for each of the `rows` that were asked for.

    RuntimeError where the tool's parquet does not have each of them once.
    """
    path = folder / "out/00000.tar"
    listed = disk.read_parquet(folder / "out/00000.parquet").to_pylist()
    positions = sorted(_position(row["key"]) for row in listed)
    if positions != list(range(rows)):
        raise RuntimeError(
            f"img2dataset lists {len(set(positions))} of {rows} rows, {len(listed)} in all"
        )
    samples = {_position(sample.name): sample for sample in group_samples(index_tar(str(path)))}
    with open(path, "rb") as tar:
        for row in listed:
            position = _position(row["key"])
            message = str(row["error_message"] or "")
            if row["status"] != "success":
                yield position, (failure(str(row["status"]), message), None, "")
                continue
            sample = samples.get(position)
            image = sample.read(tar, settings.encode_format) if sample else None
            if image is None:
                missing = {"reason": "missing_file", "error_message": "stored, but not in the tar"}
                yield position, (missing, None, "")
            else:
                yield position, success(image, row, settings)


def failure(status: str, message: str) -> dict[str, Any]:
    """Columns of a row that the tool did not store."""
    http = re.match(r"HTTP Error (\d{3})", message)
    return {
        "reason": reason_of(status, message),
        "error_message": " ".join(message.split()) or "no reason was given",
        "http_status": int(http[1]) if http else None,
    }


def success(image: bytes, row: Mapping[str, Any], settings: Fetch) -> Outcome:
    """Columns, bytes and extension of a row that the tool stored.

    With disable_all_reencoding it stores whatever came, a page of HTML too, and measures nothing:
    then our own check of the header decides.
    """
    columns = {name: row.get(name) for name in ("sha256", "exif", settings.compute_hash, *SIZES)}
    if not settings.disable_all_reencoding:
        return columns, image, settings.encode_format
    try:
        kept = as_it_is(image, settings)
    except RejectedImage as bad:
        return columns | {"reason": bad.reason, "error_message": bad.detail}, None, ""
    return columns | {name: getattr(kept, name) for name in SIZES}, image, kept.extension


def _position(name: str) -> int:
    """The row that a key or a sample's name numbers in its last four digits."""
    return int(name[-4:])
