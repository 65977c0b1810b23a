"""What the small web answers for an image: its bytes, or the fault of its link."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clipmill.examples.miniweb.links import CDN
from clipmill.examples.miniweb.scenes import Scene, draw
from clipmill.manifests import disk

HANG_S = 60.0  # a link that hangs is closed after so long
DRIP_S, DRIP_BYTES = 0.25, 240  # a link that drips sends a byte so often, and so many bytes
THUMBNAIL_SIDE = 24  # pixels
PAGE = b"<!doctype html><title>Log in</title><p>Please log in to see this picture.</p>"
OPTOUT_HEADERS = ("noai, noimageai", "max-image-preview:large, noai")
Body = Callable[[dict[str, Any]], bytes]


@dataclass(frozen=True, slots=True)
class Answer:
    """Status line, headers and body, and what becomes of the connection."""

    data: bytes
    closes: bool = False  # after the data
    resets: bool = False  # in place of the data
    wait_s: float = 0.0  # before the data
    drip: bytes = b""  # follows the data, a byte every DRIP_S seconds


def reply(
    status: str, body: bytes, content: str, extra: str = "", length: int | None = None
) -> bytes:
    """An HTTP response. `length` is the promised length where it is not that of the body."""
    head = f"HTTP/1.1 {status}\r\nServer: miniweb\r\nContent-Type: {content}\r\n"
    return (
        f"{head}Content-Length: {len(body) if length is None else length}\r\n{extra}\r\n".encode()
        + body
    )


def drawn_body(entry: dict[str, Any]) -> bytes:
    """The JPEG of a drawn image."""
    shown = disk.from_plain(Scene, entry["scene"])
    return draw(shown, variant=entry["variant"], painted=entry["painted"])


def photo_body(folder: Path) -> Body:
    """The bytes of the photographs in `folder`; a thumbnail is made small."""

    def body_of(entry: dict[str, Any]) -> bytes:
        body = (folder / entry["file"]).read_bytes()
        return _thumbnail(body) if entry["kind"] == "thumbnail" else body

    return body_of


def _thumbnail(body: bytes) -> bytes:
    from PIL import Image

    small = io.BytesIO()
    with Image.open(io.BytesIO(body)) as image:
        image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        image.convert("RGB").save(small, "JPEG", quality=90)
    return small.getvalue()


def content_type(body: bytes) -> str:
    """The media type of an image, by its first bytes."""
    for magic, name in ((b"\x89PNG", "png"), (b"GIF8", "gif"), (b"RIFF", "webp"), (b"BM", "bmp")):
        if body.startswith(magic):
            return f"image/{name}"
    return "image/jpeg"


def answer_of(host: str, path: str, entry: dict[str, Any], body_of: Body) -> Answer:
    """What always comes back for an image of this kind."""
    kind = entry["kind"]
    if kind == "dead_link":
        return Answer(reply("404 Not Found", b"gone", "text/plain"))
    if kind == "error500":
        return Answer(reply("500 Internal Server Error", b"", "text/plain"))
    if kind == "redirect":
        target = f"http://{CDN}{path.replace('/go/', '/img/', 1)}"
        return Answer(reply("302 Found", b"", "text/plain", f"Location: {target}\r\n"))
    if kind == "redirect_loop":
        return Answer(reply("302 Found", b"", "text/plain", f"Location: http://{host}{path}\r\n"))
    if kind == "html":
        return Answer(reply("200 OK", PAGE, "text/html"))
    if kind == "empty":
        return Answer(reply("200 OK", b"", "image/jpeg"))
    if kind == "reset":
        return Answer(b"", resets=True)
    if kind == "hang":
        return Answer(b"", closes=True, wait_s=HANG_S)
    return _image_answer(kind, path, body_of(entry))


def _image_answer(kind: str, path: str, body: bytes) -> Answer:
    """An image, whole or spoilt."""
    content, extra = content_type(body), ""
    if kind == "truncated":
        data = reply("200 OK", body[: len(body) // 2], content, length=len(body))
        return Answer(data, closes=True)
    if kind == "drip":
        head = reply("200 OK", b"", content, length=len(body))
        return Answer(head, closes=True, drip=body[:DRIP_BYTES])
    if kind == "corrupt":  # the beginning that tells the format, then nothing that can be decoded
        body = body[:24] + bytes(len(body) - 24)
    elif kind == "optout_header":
        token = path.rpartition("/")[2][:1]
        extra = f"X-Robots-Tag: {OPTOUT_HEADERS[int(token, 16) % len(OPTOUT_HEADERS)]}\r\n"
    return Answer(reply("200 OK", body, content, extra))
