"""The images of a page's HTML: a table of cases, charsets, and pages made to be slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clipmill.pipeline.archives import page_images
from tests.support.tables import table
from tests.support.warcs import captions, one

CASES = table("page_images")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_images_of_a_page(case: dict[str, Any], tmp_path: Path) -> None:
    rows, counts = one(tmp_path, case["html"])
    assert [[row["url"], row["caption"]] for row in rows] == case["pairs"]
    reasons = {
        name: n for name, n in counts.items() if name not in ("links", "pairs", "damaged_records")
    }
    assert reasons == case.get("reasons", {})
    assert not counts["damaged_records"]


def test_a_long_attribute_is_no_bomb(tmp_path: Path) -> None:
    html = f"<div data-x='{' word' * 20_000}'><img src=x.jpg alt=c></div><p>{' word' * 20_000}"
    assert captions(one(tmp_path, html)[0]) == ["c"]


# --- charsets -------------------------------------------------------------------------------------

RUSSIAN = "Красивый дом у озера летом, фотография города"  # noqa: RUF001
JAPANESE = "美しい湖のそばの家、夏の写真です。東京の夜景"


@pytest.mark.parametrize(
    ("text", "encoding", "header", "meta"),
    [
        ("é€", "utf-8", "utf-8", ""),
        ("é€", "utf-8", None, ""),
        ("é€", "cp1252", "ISO-8859-1", ""),
        ("é€", "cp1252", None, "<meta charset=latin1>"),
        (RUSSIAN, "cp1251", "windows-1251", "<meta charset=utf-8>"),
        (
            RUSSIAN,
            "koi8-r",
            None,
            "<meta http-equiv=Content-Type content='text/html; charset=KOI8-R'>",
        ),
        (RUSSIAN, "cp1251", None, ""),
        (RUSSIAN, "cp1251", "no-such-charset", "<meta charset=windows-1251>"),
        (JAPANESE, "cp932", "Shift_JIS", ""),
        (JAPANESE, "cp932", None, "<!-- <meta charset=utf-8> --><meta charset=x-sjis>"),
        (JAPANESE, "euc_jp", "EUC-JP", ""),
        ("湖边美丽的房子", "gb18030", "gb2312", ""),
        ("é€", "utf-8", None, "<meta charset=utf-16>"),
        ("é€", "utf-8-sig", "windows-1251", "<meta charset=koi8-r>"),
        ("é€", "utf-16", "windows-1251", ""),
    ],
)
def test_the_charset_of_a_page(
    text: str, encoding: str, header: str | None, meta: str, tmp_path: Path
) -> None:
    html = f"<head>{meta}</head><img src=x.jpg alt='{text}'>".encode(encoding)
    kind = f"text/html; charset={header}" if header else "text/html"
    rows, _ = one(tmp_path, html, kind=kind)
    assert captions(rows) == [text]


def test_bytes_that_no_charset_fits_cost_themselves(tmp_path: Path) -> None:
    rows, _ = one(tmp_path, b"<img src=x.jpg alt='a \xff b'>", kind='text/html; charset="UTF-8"')
    assert captions(rows) == ["a � b"]
    assert page_images.charset_in("text/html; a=b; Charset = 'utf-8'") == "utf-8"
    text = "<p>Schöne Straße</p>"
    assert text.encode("cp1252").decode(page_images._guessed(text.encode("cp1252"))) == text
