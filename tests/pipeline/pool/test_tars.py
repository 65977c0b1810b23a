"""Offsets of the members of a tar; damage is never taken for the end of the file."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

import pytest

from manifests import disk
from pipeline.pool.shard_writer import member_block
from pipeline.pool.tars import index_tar
from tests.support.five_rows import write_five


def packed(path: Path, names: list[str], kind: int) -> Path:
    with tarfile.open(path, "w", format=kind) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.uid, info.uname, info.mtime = len(name), 10**7, "somebody", 1.5  # type: ignore[assignment]
            tar.addfile(info, io.BytesIO(name.encode("utf-8", "replace")))
        folder = tarfile.TarInfo("folder/")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for kind_of_link in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo("link.jpg")
            link.type, link.linkname = kind_of_link, "x" * 150
            tar.addfile(link)
    return path


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_both_kinds_are_read_like_tarfile_reads_them(
    tmp_path: Path, kind: int
) -> None:
    names = ["a.jpg", "d" * 120 + "/" + "e" * 130 + ".txt", "ünï.json", "d/" * 60 + "f.webp"]
    path = packed(tmp_path / "odd.tar", names, kind)
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset_data, m.size) for m in tar if m.isreg()]
    assert [(m.name, m.offset, m.length) for m in index_tar(str(path))] == expected
    assert [name for name, _, _ in expected] == names


def test_ustar_prefix_and_a_url(tmp_path: Path) -> None:
    name = "d" * 90 + "/" + "e" * 90
    path = tmp_path / "u.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo(name))
    disk.write_bytes("memory://tars/u.tar", path.read_bytes())
    assert [m.name for m in index_tar("memory://tars/u.tar")] == [name]
    with pytest.raises(ValueError, match=r"memory://tars/none\.tar does not exist"):
        index_tar("memory://tars/none.tar")


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_a_compressed_tar_is_to_be_unpacked(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "c.tar"
    with tarfile.open(path, f"w:{mode}") as tar:  # type: ignore[call-overload]
        tar.addfile(tarfile.TarInfo("a.jpg"))
    with pytest.raises(ValueError, match=r"c\.tar is compressed .* unpack it"):
        index_tar(str(path))


def test_no_cut_passes_for_an_end(tmp_path: Path) -> None:
    whole = packed(
        tmp_path / "whole.tar", ["a.jpg", "b" * 700 + ".txt", "c.json"], tarfile.PAX_FORMAT
    ).read_bytes()
    end = len(whole.rstrip(b"\0"))
    cut = tmp_path / "cut.tar"
    for size in {*range(0, end, 512), *random.Random(0).sample(range(end), 40)}:
        cut.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"cut\.tar is (cut off|damaged)"):
            index_tar(str(cut))


def test_no_flipped_bit_in_a_header_passes_for_an_end(tmp_path: Path) -> None:
    write_five(str(tmp_path))
    path = tmp_path / "shards/00003.tar"
    whole = path.read_bytes()
    members = index_tar(str(path))
    for member in members:
        for bit in random.Random(member.offset).sample(range(512 * 8), 40):
            flipped = bytearray(whole)
            flipped[member.offset - 512 + bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            try:
                listed = index_tar(str(path))
            except ValueError as error:
                assert f"the header at byte {member.offset - 512} is wrong" in str(error)  # noqa: PT017
            else:  # a bit of the checksum's own field that its reading ignores
                assert listed == members


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is cut off"),
        (b"<html>" * 200, "is damaged, or no tar"),
        (bytes(1024) + b"more", "has more data behind its end mark"),
        (member_block("a", b"x" * 100)[:600], "needs 100 bytes"),
    ],
)
def test_what_is_no_tar(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        index_tar(str(tmp_path / "x.tar"))


def test_two_tars_in_one_file_are_named(tmp_path: Path) -> None:
    path = packed(tmp_path / "two.tar", ["a.jpg"], tarfile.GNU_FORMAT)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(ValueError, match="two tars in one file"):
        index_tar(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.tar does not exist"):
        index_tar(str(tmp_path / "none.tar"))
