"""What img2dataset leaves: every row once, with a reason or with its bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from manifests import disk
from manifests.schema import Fetch
from pipeline.external.img2dataset import outcomes, success
from tests.support.other_tars import pack, picture


def leave(folder: Path, *rows: tuple[str, str, str | None]) -> None:
    """A tar with the samples 0 and 2, and a parquet with rows (key, status, error_message)."""
    pack(folder / "out/00000.tar", [("000000000.jpg", b"zero"), ("000000002.jpg", b"two")])
    table = [{"key": k, "status": s, "error_message": m, "width": 3} for k, s, m in rows]
    disk.write_parquet(folder / "out/00000.parquet", pa.Table.from_pylist(table))


def test_every_row_has_one_outcome(tmp_path: Path) -> None:
    leave(
        tmp_path,
        ("000000002", "success", None),
        ("000000000", "success", None),
        ("000000001", "failed_to_download", "HTTP Error 404:\nNot Found"),
        ("000000003", "success", None),
    )
    by_row = dict(outcomes(tmp_path, Fetch(), 4))
    assert [by_row[k][1] for k in range(4)] == [b"zero", None, b"two", None]
    assert by_row[1][0] == {
        "reason": "http_4xx", "error_message": "HTTP Error 404: Not Found", "http_status": 404,
    }  # fmt: skip
    assert by_row[3][0]["reason"] == "missing_file"
    assert by_row[0][0]["width"] == 3


def test_bytes_that_nobody_decoded_are_checked_here() -> None:
    settings = Fetch(disable_all_reencoding=True)
    columns, image, extension = success(picture(6, 4, "PNG"), {}, settings)
    assert (columns["width"], columns["height"], extension) == (6, 4, "png")
    assert image == picture(6, 4, "PNG")
    columns, image, _ = success(b"<html>", {}, settings)
    assert (columns["reason"], image) == ("not_an_image", None)
