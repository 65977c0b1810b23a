"""Every message that img2dataset writes has a reason."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from manifests import disk
from tests.support.other_tars import pack, rows, take


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("HTTP Error 503: Service Unavailable", "http_5xx"),
        ("HTTP Error 429: Too Many Requests", "http_429"),
        ("<urlopen error [Errno -2] Name or service not known>", "dns"),
        ("<urlopen error timed out>", "deadline"),
        ("<urlopen error [Errno 111] Connection refused>", "connect"),
        ("<urlopen error [SSL: CERTIFICATE_VERIFY_FAILED]>", "tls"),
        ("[Errno 104] Connection reset by peer", "reset"),
        ("Use of image disallowed by X-Robots-Tag directive", "optout_header"),
        ("image too small", "too_small"),
        ("hash mismatch", "hash_mismatch"),
        (
            "HTTP Error 302: The HTTP server returned a redirect error that would lead to an "
            "infinite loop",
            "redirects",
        ),
        ("HTTP Error 302: Found - Redirection to url 'file:///x' is not allowed", "redirects"),
        (
            "OpenCV(4.14.0) error: (-215:Assertion failed) !buf.empty() in function 'imdecode_'",
            "empty",
        ),
        ("a wording that is new", "http_other"),
    ],
)
def test_messages_of_img2dataset_have_a_reason(tmp_path: Path, message: str, reason: str) -> None:
    status = "failed_to_resize" if reason == "too_small" else "failed_to_download"
    table = pa.Table.from_pylist(
        [{"key": "0", "url": "u", "caption": None, "status": status, "error_message": message}]
    )
    disk.write_parquet(tmp_path / "x.parquet", table)
    [record] = take(tmp_path / "pool", pack(tmp_path / "x.tar", []))
    assert record["reasons"] == {reason: 1}
    assert rows(tmp_path / "pool")[0]["status"] == status
