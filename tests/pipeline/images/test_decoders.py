"""Children that decode: a crash, an endless loop or too much memory costs only its own image."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from PIL import Image

from clipmill.manifests.schema import Fetch
from clipmill.pipeline.images import decoders
from clipmill.pipeline.images.decoders import Decoders
from clipmill.pipeline.images.header import RejectedImage
from clipmill.pipeline.images.transform import DecodedImage, check_and_resize


def drawn(width: int = 80, height: int = 48) -> Image.Image:
    image = Image.new("RGB", (width, height), (220, 30, 40))
    image.paste((40, 60, 210), (width // 2, 0, width, height))
    return image


def saved(image: Image.Image, kind: str = "JPEG", comment: bytes = b"") -> bytes:
    sink = io.BytesIO()
    image.save(sink, kind, comment=comment)
    return sink.getvalue()


def stall(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> None:
    """Children whose JPEG decoder runs `code` first; `body` is the image."""
    script = (
        "import os, signal, sys, time\n"
        "import simplejpeg\n"
        "from clipmill.pipeline.images import decoders\n"
        "decode = simplejpeg.decode_jpeg\n"
        "def bewitched(body, **options):\n"
        f"    {code}\n"
        "    return decode(body, **options)\n"
        "simplejpeg.decode_jpeg = bewitched\n"
        "decoders.serve(int(sys.argv[1]), float(sys.argv[2]))\n"
    )
    path = folder / "child.py"
    path.write_text(script)
    monkeypatch.setattr(decoders, "CHILD", (str(path),))


def sized(side: int) -> bytes:
    return saved(drawn(side, side))


async def decode_all(decoders: Decoders, bodies: list[bytes]) -> list[DecodedImage | RejectedImage]:
    return await asyncio.gather(*(decoders.decode(body, Fetch()) for body in bodies))


@pytest.mark.slow
def test_children_give_what_the_function_gives() -> None:
    bodies = [sized(20 + i) for i in range(30)] + [
        saved(drawn(), "PNG"),
        b"rubbish",
        saved(drawn())[:300],
    ]

    async def go() -> None:
        async with Decoders(2) as decoders:
            results = await decode_all(decoders, bodies)
        for body, end in zip(bodies[:-2], results[:-2], strict=True):
            assert check_and_resize(body, Fetch()) == end
        for body, end in zip(bodies[-2:], results[-2:], strict=True):
            with pytest.raises(RejectedImage) as expected:
                check_and_resize(body, Fetch())
            assert isinstance(end, RejectedImage)
            assert (end.reason, end.detail) == (expected.value.reason, expected.value.detail)

    uvloop.run(go())


def test_settings_and_boxes_go_with_every_image() -> None:
    settings = [Fetch(), Fetch(encode_format="webp"), Fetch(image_size=16, extract_exif=True)]
    tags = Image.Exif()
    tags[0x010F] = "A maker"
    sink = io.BytesIO()
    drawn().save(sink, "JPEG", exif=tags)
    asked = [(s, boxes) for s in (*settings, *settings) for boxes in ((), ((0.1, 0.1, 0.9, 0.9),))]

    async def go() -> list[DecodedImage | RejectedImage]:
        async with Decoders(1) as decoders:
            return await asyncio.gather(
                *(decoders.decode(sink.getvalue(), s, boxes) for s, boxes in asked)
            )

    results = uvloop.run(go())
    assert results == [check_and_resize(sink.getvalue(), s, boxes) for s, boxes in asked]
    decoded = [result for result in results if isinstance(result, DecodedImage)]
    assert len({image.data for image in decoded}) == 6
    assert decoded[-1].exif == '{"Make": "A maker"}'


def test_small_images_of_the_same_settings_share_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[list[int]] = []
    real = decoders._frame

    def recorded(*parts: bytes) -> bytes:
        frames.append([len(body) for body in parts[1:]])
        return real(*parts)

    monkeypatch.setattr(decoders, "_frame", recorded)
    bodies = [sized(20 + i) for i in range(7)]
    bodies.insert(3, bodies[0] + bytes(decoders.FRAME_BYTES))
    settings = [Fetch()] * 5 + [Fetch(image_size=16)] * 3

    async def go() -> list[DecodedImage | RejectedImage]:
        async with Decoders(1) as children:
            asked = zip(bodies, settings, strict=True)
            return await asyncio.gather(*(children.decode(*each) for each in asked))

    results = uvloop.run(go())
    assert results == [check_and_resize(*each) for each in zip(bodies, settings, strict=True)]
    assert frames == [
        [len(body) for body in some] for some in (bodies[:3], bodies[3:4], bodies[4:5], bodies[5:])
    ]


# What Python and libraries do in a forked child may wait for a lock that a thread held at the fork.
FORKS = """
import asyncio, os, uvloop
from clipmill.pipeline.images.decoders import Decoders

os.register_at_fork(after_in_child=lambda: os.write(1, b"forked"))

async def main():
    async with Decoders(2) as children:
        while len(children.pids) < 2:
            await asyncio.sleep(0.01)

uvloop.run(main())
"""


def test_a_child_starts_without_a_copy_of_this_process() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    assert ran.stdout == ""


@pytest.mark.slow
def test_a_crash_costs_one_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stall(monkeypatch, tmp_path, "if b'CRASH' in body: os.kill(os.getpid(), signal.SIGSEGV)")
    bodies = [
        saved(drawn(20 + i, 20), comment=b"CRASH" if i in (3, 4, 17) else b"") for i in range(24)
    ]

    async def go() -> list[DecodedImage | RejectedImage]:
        async with Decoders(2, in_flight=4) as decoders:
            return await decode_all(decoders, bodies)

    results = uvloop.run(go())
    died = {i: end for i, end in enumerate(results) if isinstance(end, RejectedImage)}
    assert sorted(died) == [3, 4, 17]
    assert {(end.reason, end.detail) for end in died.values()} == {
        ("decoder_died", "signal SIGSEGV")
    }
    assert [end.width for end in results if isinstance(end, DecodedImage)] == [
        20 + i for i in range(24) if i not in died
    ]


@pytest.mark.slow
@pytest.mark.parametrize("hang", ["while True: pass", "time.sleep(3600)"])
def test_a_hang_ends_at_the_deadline_and_costs_one_image(
    hang: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(decoders, "PATIENCE", 2 if "sleep" in hang else 200)
    stall(monkeypatch, tmp_path, f"while b'HANG' in body: {hang.removeprefix('while True: ')}")
    bodies = [saved(drawn(20 + i, 20), comment=b"HANG" if i == 2 else b"") for i in range(8)]

    async def go() -> list[DecodedImage | RejectedImage]:
        async with Decoders(1, deadline_s=0.6) as decoders:
            return await decode_all(decoders, bodies)

    results = uvloop.run(go())
    assert [getattr(end, "reason", None) for end in results] == [
        None,
        None,
        "decoder_deadline",
        *[None] * 5,
    ]


def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stall(monkeypatch, tmp_path, "x = bytearray(2**31) if b'HUGE' in body else 0")

    async def go() -> list[DecodedImage | RejectedImage]:
        async with Decoders(1) as decoders:
            return await decode_all(decoders, [saved(drawn(), comment=b"HUGE"), sized(30)])

    refused, fine = uvloop.run(go())
    assert isinstance(refused, RejectedImage)
    assert (refused.reason, refused.detail) == (
        "decode_error",
        "needs more memory than a decoder has",
    )
    assert isinstance(fine, DecodedImage)


@pytest.mark.slow
def test_a_child_killed_between_images_costs_none() -> None:
    async def go() -> None:
        async with Decoders(1) as decoders:
            assert isinstance(await decoders.decode(sized(30), Fetch()), DecodedImage)
            (first,) = decoders.pids
            os.kill(first, signal.SIGKILL)
            while decoders.pids in ([], [first]):
                await asyncio.sleep(0.01)
            assert isinstance(await decoders.decode(sized(31), Fetch()), DecodedImage)

    uvloop.run(go())


@pytest.mark.slow
def test_children_are_replaced_after_so_many_images() -> None:
    async def go() -> None:
        pids = set()
        async with Decoders(1, recycle=3, in_flight=2) as decoders:
            for i in range(3):
                results = await decode_all(decoders, [sized(20 + i)] * 3)
                assert all(isinstance(end, DecodedImage) for end in results)
                pids |= set(decoders.pids)
                while not decoders.pids:
                    await asyncio.sleep(0.01)
                pids |= set(decoders.pids)
        assert len(pids) >= 3
        assert decoders.pids == []

    uvloop.run(go())


def test_children_that_cannot_start_are_not_the_fault_of_an_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoders, "CHILD", ("-c", "raise SystemExit(7)"))

    async def go() -> None:
        async with Decoders(2) as decoders:
            with pytest.raises(RuntimeError, match="exit 7"):
                await decode_all(decoders, [sized(20)] * 5)
            with pytest.raises(RuntimeError, match="exit 7"):
                await decoders.decode(sized(20), Fetch())

    uvloop.run(go())


@pytest.mark.slow
def test_leaving_ends_the_children_even_in_the_middle_of_an_image(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stall(monkeypatch, tmp_path, "time.sleep(3600)")

    async def go() -> list[int]:
        async with Decoders(2, deadline_s=60) as decoders:
            work = asyncio.gather(
                *(decoders.decode(sized(20), Fetch()) for _ in range(9)), return_exceptions=True
            )
            while len(decoders.pids) < 2:
                await asyncio.sleep(0.01)
            pids = decoders.pids
        assert all(isinstance(end, (RejectedImage, asyncio.CancelledError)) for end in await work)
        return pids

    for pid in uvloop.run(go()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
@pytest.mark.parametrize("loop", [uvloop.run, asyncio.run])
def test_leaving_while_a_child_starts_leaves_nothing_open(
    loop: Callable[[Coroutine[Any, Any, None]], None],
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    """A transport that is left open is a warning of the loop that closes: an error of the test."""
    monkeypatch.setattr(decoders, "CHILD", ("-c", "import time; time.sleep(3600)"))
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def recorded(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", recorded)

    async def go() -> None:
        async with Decoders(2):
            while len(started) < 2:
                await asyncio.sleep(0.01)

    loop(go())
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2
    gc.collect()
    assert not recwarn.list


def test_a_child_knows_no_secrets_and_imports_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    out = tmp_path / "seen"
    seen = "repr([sorted(os.environ), sorted(sys.modules)])"
    code = (
        f"import os, sys, clipmill.pipeline.images.decoders; open({str(out)!r}, 'w').write({seen})"
    )
    monkeypatch.setattr(decoders, "CHILD", ("-c", code))

    async def go() -> None:
        async with Decoders(1) as decoders:
            with pytest.raises(RuntimeError, match="exit 0"):
                await decoders.decode(sized(20), Fetch())

    uvloop.run(go())
    seen = out.read_text()
    assert "AWS" not in seen
    assert not any(
        f"'{name}'" in seen for name in ("aiohttp", "pyarrow", "ray", "torch", "manifests")
    )


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries have no such limit"
)
def test_a_child_keeps_its_memory_between_images() -> None:
    """It was 580 pages an image: the kernel gave and cleared them again for each."""
    body = saved(drawn(400, 533))

    async def go() -> int:
        async with Decoders(1) as decoders:
            await decode_all(decoders, [body] * 10)
            before = faults(decoders.pids[0])
            await decode_all(decoders, [body] * 20)
            return faults(decoders.pids[0]) - before

    def faults(pid: int) -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[7])  # minor page faults

    assert uvloop.run(go()) < 20 * 60
