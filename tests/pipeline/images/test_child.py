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


def frame(*bodies: bytes) -> bytes:
    limits = limits_of(Fetch())
    settings = {name: getattr(limits, name) for name in Limits.__slots__}
    parts = [json.dumps([settings, [], False]).encode(), *bodies]
    lengths = struct.pack(f">{1 + len(parts)}I", len(parts), *map(len, parts))
    return struct.pack(">I", len(lengths) + sum(map(len, parts))) + lengths + b"".join(parts)


def answers(output: bytes) -> list[list[tuple[dict[str, Any], bytes]]]:
    """The frames that a child wrote, without the first, which only says that it is ready."""
    frames = []
    source = io.BytesIO(output)
    while source.read(4):
        (count,) = struct.unpack(">I", source.read(4))
        lengths = struct.unpack(f">{count}I", source.read(4 * count))
        frames.append([source.read(length) for length in lengths])
    assert frames.pop(0) == []
    return [list(zip(json.loads(heads), images, strict=True)) for heads, *images in frames]


def test_images_are_answered_in_order_until_stdin_is_closed() -> None:
    sink = io.BytesIO()
    Image.new("RGB", (40, 30), (200, 30, 30)).save(sink, "PNG")
    with start(str(MEMORY_BYTES), "10") as process:
        output, errors = process.communicate(
            frame(sink.getvalue(), b"<html>") + frame(sink.getvalue()), timeout=900
        )
    assert (process.returncode, errors) == (0, b"")
    (first, rejected), (third,) = answers(output)
    assert first == third
    assert (first[0]["original_width"], first[0]["original_height"]) == (40, 30)
    assert Image.open(io.BytesIO(first[1])).format == "JPEG"
    assert rejected == ({"reason": "not_an_image", "detail": rejected[0]["detail"]}, b"")


def test_a_frame_that_is_cut_off_ends_the_child_without_an_answer() -> None:
    with start(str(MEMORY_BYTES), "10") as process:
        output, _ = process.communicate(b"\0\0\0", timeout=900)
    assert process.returncode == 0
    assert answers(output) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_of_the_terminal_does_not_end_a_child(number: signal.Signals) -> None:
    with start(str(MEMORY_BYTES), "10") as process:
        assert process.stdout is not None
        ready = process.stdout.read(8)
        process.send_signal(number)
        output, _ = process.communicate(frame(b"no image"), timeout=900)
    assert process.returncode == 0
    ((fields, _),) = answers(ready + output)[0]
    assert fields["reason"] == "not_an_image"
