"""The decoding process: frames on its stdin and stdout, and its end."""

from __future__ import annotations

import io
import json
import signal
import struct
import subprocess
import sys
from typing import Any

import pytest
from PIL import Image

from clipmill import ROOT
from clipmill.manifests.schema import Fetch
from clipmill.pipeline.images.header import Limits
from clipmill.pipeline.images.transform import limits_of

MEMORY_BYTES = 1536 * 2**20


def start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "clipmill.pipeline.images.child", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT)


def frame(body: bytes) -> bytes:
    limits = limits_of(Fetch())
    settings = {name: getattr(limits, name) for name in Limits.__slots__}
    text = json.dumps([settings, [], False]).encode()
    return struct.pack(">II", len(text), len(body)) + text + body


def answers(output: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """The frames that a child wrote, without the first, which only says that it is ready."""
    frames = []
    source = io.BytesIO(output)
    while lengths := source.read(8):
        text, data = struct.unpack(">II", lengths)
        frames.append((json.loads(source.read(text)), source.read(data)))
    assert frames.pop(0) == ({}, b"")
    return frames


def test_images_are_answered_in_order_until_stdin_is_closed() -> None:
    sink = io.BytesIO()
    Image.new("RGB", (40, 30), (200, 30, 30)).save(sink, "PNG")
    with start(str(MEMORY_BYTES), "10") as process:
        output, errors = process.communicate(
            frame(sink.getvalue()) + frame(b"<html>") + frame(sink.getvalue()), timeout=300
        )
    assert (process.returncode, errors) == (0, b"")
    first, rejected, third = answers(output)
    assert first == third
    assert (first[0]["original_width"], first[0]["original_height"]) == (40, 30)
    assert Image.open(io.BytesIO(first[1])).format == "JPEG"
    assert rejected == ({"reason": "not_an_image", "detail": rejected[0]["detail"]}, b"")


def test_a_frame_that_is_cut_off_ends_the_child_without_an_answer() -> None:
    with start(str(MEMORY_BYTES), "10") as process:
        output, _ = process.communicate(b"\0\0\0", timeout=300)
    assert process.returncode == 0
    assert answers(output) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_of_the_terminal_does_not_end_a_child(number: signal.Signals) -> None:
    with start(str(MEMORY_BYTES), "10") as process:
        assert process.stdout is not None
        ready = process.stdout.read(10)
        process.send_signal(number)
        output, _ = process.communicate(frame(b"no image"), timeout=300)
    assert process.returncode == 0
    assert [fields["reason"] for fields, _ in answers(ready + output)] == ["not_an_image"]
