"""What the small web answers: the type of an image by its bytes, and faults as they were named."""

from __future__ import annotations

from typing import Any

import pytest

from examples.miniweb import answers
from examples.miniweb.settings import MINIWEB_FAULTS

IMAGE = b"\xff\xd8" + bytes(range(256)) * 4


def answer(kind: str) -> answers.Answer:
    entry: dict[str, Any] = {"kind": kind}
    return answers.answer_of("a.test", "/go/ab/ab12.jpg", entry, lambda entry: IMAGE)


@pytest.mark.parametrize(
    ("body", "name"),
    [(b"\x89PNG\r\n", "png"), (b"GIF89a", "gif"), (b"RIFF....WEBP", "webp"), (IMAGE, "jpeg")],
)
def test_the_type_is_told_by_the_first_bytes(body: bytes, name: str) -> None:
    assert answers.content_type(body) == f"image/{name}"


def test_every_fault_differs_from_the_image_or_its_headers() -> None:
    whole = answer("clean")
    assert whole.data.endswith(IMAGE)
    # These are told by their page, by robots.txt, by the host's memory and by the file.
    elsewhere = {"optout_page", "robots_txt", "flaky503", "thumbnail"}
    for kind in MINIWEB_FAULTS:
        assert (answer(kind) == whole) == (kind in elsewhere), kind
