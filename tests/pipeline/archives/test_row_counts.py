"""Rows that are no pairs, counted by reason with a printable example."""

from __future__ import annotations

from collections import Counter

from clipmill.pipeline.archives.urls import LONGEST_EXAMPLE, PartCounts, reject, reject_images


def test_the_first_row_of_a_reason_is_its_example() -> None:
    counts, plain = PartCounts(), Counter[str]()
    for number, reason in enumerate(("bad_url", "scheme", "bad_url")):
        reject(counts, reason, f"row {number}")
        reject(plain, reason, f"row {number}")
    assert dict(counts) == dict(plain) == {"bad_url": 2, "scheme": 1}
    assert counts.examples == {"bad_url": "row 0", "scheme": "row 1"}


def test_an_example_is_short_and_printable() -> None:
    counts = PartCounts()
    reject(counts, "bad_url", "\x1b[31m\ud800" + "x" * 1000)
    example = counts.examples["bad_url"]
    assert example.startswith("\\x1b[31m\\ud800xxx")
    assert (len(example), example.isprintable(), example[-1]) == (LONGEST_EXAMPLE, True, "…")


def test_the_link_of_an_image_is_read_only_for_the_first_of_its_reason() -> None:
    counts, asked = PartCounts(), list[int]()
    links = {3: "a.jpg", 5: "b.jpg", 7: "ftp://x/c.jpg"}

    def link(number: int) -> str:
        asked.append(number)
        return links[number]

    reasons = {3: "no_alt", 5: "no_alt", 7: "scheme"}
    reject_images(counts, reasons, "http://page.test/", link)
    assert dict(counts) == {"no_alt": 2, "scheme": 1}
    assert asked == [3, 7]
    assert counts.examples["no_alt"] == "http://page.test/: 'a.jpg'"
