from __future__ import annotations

from pathlib import Path

import pytest

from manifests.schema import TarStream
from tests.support.malformed_tars import cut_in_member, flipped, whole
from tests.support.other_tars import Members, pack, picture
from train.data.tar_streams import BrokenSource, TarSample, open_source, read_samples, sample_of


def samples_of(path: Path, caption: str = "txt") -> list[TarSample | str]:
    stream = TarStream(tars=(str(path),), caption=caption)
    with open_source(str(path)) as source:
        return list(read_samples(str(path), source, stream))


def test_images_with_captions_come_and_others_are_named_by_reason(tmp_path: Path) -> None:
    image = picture()
    members: Members = [
        ("a/1.jpg", image),
        ("a/1.txt", "grün".encode()),
        ("a/2.PNG", picture(kind="PNG")),
        ("a/2.json", b'{"caption": "two", "txt": 3}'),
        ("a/3.jpg", image),
        ("a/4.txt", b"no image here"),
        ("a/5.jpg", image),
        ("a/5.txt", b"\xff\xfe"),
        ("a/6.jpg", b""),
        ("a/6.txt", b"an empty image"),
        ("a/7.jpg", image),
        ("a/7.txt", b" \n"),
    ]
    path = pack(tmp_path / "a.tar", members)
    first, *others = samples_of(path)
    assert first == TarSample(tar=str(path), key="a/1", image=image, caption="grün")
    assert others == [
        "no caption", "no caption", "no image", "no caption", "no image", "no caption",
    ]  # fmt: skip
    by_json = samples_of(path, "json:caption")
    assert [each.caption for each in by_json if isinstance(each, TarSample)] == ["two"]


def test_json_that_is_no_caption_is_none() -> None:
    for data in (b"[]", b'"text"', b"{", b'{"caption": 5}', b"[" * 100_000, b"\xff"):
        members = {"__key__": "k", "jpg": b"x", "json": data}
        assert sample_of("a.tar", members, "json:caption") == "no caption"


def test_a_broken_member_ends_the_tar_after_what_was_whole(tmp_path: Path) -> None:
    damaged = (cut_in_member(tmp_path), flipped(tmp_path, "000002.jpg", 150))
    for number, data in enumerate(damaged):
        path = tmp_path / f"broken-{number}.tar"
        path.write_bytes(data)
        stream = TarStream(tars=(str(path),))
        usable: list[TarSample | str] = []
        with open_source(str(path)) as source:
            samples = read_samples(str(path), source, stream)
            usable += [next(samples), next(samples)][: 2 - number]
            with pytest.raises(BrokenSource, match="damaged") as broken:
                list(samples)
        assert "fileobj" not in str(broken.value)
        assert [isinstance(sample, TarSample) for sample in usable] == [True] * (2 - number)


def test_every_byte_that_is_missing_at_the_end_is_noticed(tmp_path: Path) -> None:
    data = whole(tmp_path)
    path = tmp_path / "cut.tar"
    for size in range(0, len(data.rstrip(b"\0")), 512):
        path.write_bytes(data[:size])
        with pytest.raises(BrokenSource):
            samples_of(path)
