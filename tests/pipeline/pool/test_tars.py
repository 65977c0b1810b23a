"""Offsets of the members of a tar; damage is never taken for the end of the file."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import ShardWriter, member_block
from clipmill.pipeline.pool.tar_copy import copy_tar_without
from clipmill.pipeline.pool.tars import index_tar
from tests.support.five_rows import write_five
from tests.support.sidecars import read_sidecar
from tests.support.small_pool import make_pool, rows


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
    long = "d" * 120 + "/" + "e" * 130 + ".txt"
    names = ["a.jpg", long, "ünï.json", "d/" * 60 + "f.webp", "ü b?w=1&h=2.jpg"]
    path = packed(tmp_path / "odd.tar", names, kind)
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset_data, m.size) for m in tar if m.isreg()]
    assert [(m.name, m.offset, m.length) for m in index_tar(str(path))] == expected
    assert [name for name, _, _ in expected] == names


def test_ustar_prefix_and_a_url(tmp_path: Path) -> None:
    name = "z" * 155 + "/" + "z" * 100  # both fields are full, and the checksum has all its digits
    path = tmp_path / "u.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo(name))
    disk.write_bytes("memory://tars/u.tar", path.read_bytes())
    assert [m.name for m in index_tar("memory://tars/u.tar")] == [name]
    with pytest.raises(ValueError, match=r"memory://tars/none\.tar does not exist"):
        index_tar("memory://tars/none.tar")


def header_of(name: bytes, size: bytes, mtime: bytes, checksum: str) -> bytes:
    """The header of a file, its checksum written by a format of `%`."""
    start = name.ljust(100, b"\0") + b"0000644\0" + b"0001750\0" * 2 + size.ljust(12, b"\0")
    blanked = (start + mtime.ljust(12, b"\0") + b" " * 8 + b"0").ljust(512, b"\0")
    return blanked[:148] + (checksum % sum(blanked)).encode().ljust(8, b"\0") + blanked[156:]


@pytest.mark.parametrize("checksum", ["%06o\0 ", "%07o\0", "%07o ", "%08o", "%6o\0 "])
@pytest.mark.parametrize("size", [b"3", b"         3 ", b"00000000003 ", b"000000000003"])
@pytest.mark.parametrize("mtime", [b"14624240000", b"\xff" * 12])  # of 1978; of 1969, in binary
def test_fields_of_other_writers_may_have_no_end_mark(
    tmp_path: Path, checksum: str, size: bytes, mtime: bytes
) -> None:
    path = tmp_path / "x.tar"
    name = "n" * 100
    header = header_of(name.encode(), size, mtime, checksum)
    path.write_bytes(header + b"abc".ljust(512 + 1024, b"\0"))
    with tarfile.open(path) as tar:
        assert [(m.name, m.size) for m in tar] == [(name, 3)]
    assert [(m.name, m.offset, m.length) for m in index_tar(str(path))] == [(name, 512, 3)]


def test_a_checksum_of_signed_bytes_is_right_and_another_one_is_not(tmp_path: Path) -> None:
    path, end = tmp_path / "x.tar", bytes(1024)
    header = header_of("À\x7f.jpg".encode(), b"0", b"0", "%06o\0 ")
    total = int(header[148:154], 8)
    for other, is_right in ((total - 512, True), (total - 256, False), (total - 768, False)):
        path.write_bytes(header[:148] + b"%06o\0 " % other + header[156:] + end)
        if is_right:
            assert [member.name for member in index_tar(str(path))] == ["À\x7f.jpg"]
        else:
            with pytest.raises(ValueError, match="the header at byte 0 is wrong"):
                index_tar(str(path))


@pytest.mark.parametrize("size", [b"x0000000003", b"3 3", b"1_0", b"-3", b"-1000"])
def test_a_length_that_is_no_number_is_damage(tmp_path: Path, size: bytes) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(header_of(b"a.jpg", size, b"0", "%06o\0 ") + bytes(1536))
    with pytest.raises(ValueError, match="the header at byte 0 is wrong"):
        index_tar(str(path))


@pytest.mark.parametrize("size", ["x", "", "1_0", "-3", "-512"])
def test_a_length_of_an_extended_header_that_is_no_number_is_damage(
    tmp_path: Path, size: str
) -> None:
    path, info = tmp_path / "x.tar", tarfile.TarInfo("a.jpg")
    info.pax_headers = {"size": size}
    path.write_bytes(info.tobuf(tarfile.PAX_FORMAT) + bytes(1536))
    with pytest.raises(ValueError, match="the extended header at byte 0 is wrong"):
        index_tar(str(path))


@pytest.mark.parametrize("size", [2**30, 2**33, 2**33 + 5])  # octal up to 8 GiB, then binary
def test_large_members_of_a_sparse_file(tmp_path: Path, size: int) -> None:
    path, info = tmp_path / "large.tar", tarfile.TarInfo("a.jpg")
    info.size = size
    with open(path, "wb") as f:
        f.write(info.tobuf(tarfile.GNU_FORMAT))
        f.truncate(512 + size + -size % 512 + 1024)
    assert [(m.offset, m.length) for m in index_tar(str(path))] == [(512, size)]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (tarfile.GNUTYPE_SPARSE, {}),
        (tarfile.REGTYPE, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
    ],
)
def test_a_sparse_member_is_to_be_packed_again(
    tmp_path: Path, kind: bytes, fields: dict[str, str]
) -> None:
    path, info = tmp_path / "x.tar", tarfile.TarInfo("a.jpg")
    info.type, info.pax_headers = kind, fields
    path.write_bytes(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    with pytest.raises(ValueError, match=r"has a sparse member at byte \d+; pack it again"):
        index_tar(str(path))


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
        (bytes(20_480), "has 20,480 zeros and no member"),  # of a download that never came
        (b"<html>" * 200, "is damaged, or no tar"),
        (bytes(1024) + b"more", "has more data behind its end mark"),
        (member_block("a", b"x" * 100)[:600], "needs 100 bytes"),
        (member_block("a", b"x" * 100), "it ends at byte 1024 without an end mark"),
    ],
)
def test_what_is_no_tar(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        index_tar(str(tmp_path / "x.tar"))


# --------------------------------------------------------------------------------------------------
# A copy without some samples: every other byte of a member stays, a damaged tar is refused.


PARTS = ("image", "text", "json")


def mask_of(count: int, chosen: list[int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    mask = np.zeros(count, np.bool_)
    mask[chosen] = True
    return mask


def members(path: Path) -> dict[str, bytes]:
    data = path.read_bytes()
    return {m.name: data[m.offset :][: m.length] for m in index_tar(str(path))}


@pytest.mark.parametrize("chosen", [[0], [9], [0, 1, 2], [3, 5, 8], [4], [], list(range(10))])
def test_the_other_members_keep_their_bytes(tmp_path: Path, chosen: list[int]) -> None:
    pool = make_pool(tmp_path / "pool", rows(10))  # rows 4 and 9 are not stored
    tar, table = Path(PoolLayout(pool).shard_tar(0)), read_sidecar(pool, 0)
    before, target = members(tar), tmp_path / "copy.tar"
    mask = mask_of(10, chosen)
    copy = copy_tar_without(str(tar), target, table, mask, disk.file_sha256(tar))
    gone = tuple(f"{row:09d}." for row in chosen)
    assert members(target) == {k: v for k, v in before.items() if not k.startswith(gone or "-")}
    assert (copy.bytes, copy.sha256) == (target.stat().st_size, disk.file_sha256(target))
    with tarfile.open(target) as opened:  # what another reader sees
        assert [m.name for m in opened] == list(members(target))
    data = target.read_bytes()
    moved = copy.moved(table.filter(pa.array(~mask))).to_pylist()
    for row in moved:
        if row["image_name"]:
            assert data[row["image_offset"] :][: row["image_length"]] == before[row["image_name"]]
            text = data[row["text_offset"] :][: row["text_length"]]
            assert text.decode() == row["caption"]
    if not chosen:
        assert data == tar.read_bytes()


# Folders, a long name and members that no sidecar lists.
FOREIGN = ("a/1.jpg", "a/1.txt", "a/1.cls", f"b/{'x' * 150}.jpg", "c/3.jpg", "c/3.extra")


def foreign_tar(path: Path, names: Sequence[str] = FOREIGN) -> list[tuple[str, int, int]]:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    return [(m.name, m.offset, m.length) for m in index_tar(str(path))]


def adopted_rows(listed: list[tuple[str, int, int]]) -> pa.Table:
    columns: dict[str, list[object]] = {"image_name": [name for name, _, _ in listed]}
    for part in PARTS:
        is_image = part == "image"
        columns[f"{part}_offset"] = [offset if is_image else None for _, offset, _ in listed]
        columns[f"{part}_length"] = [length if is_image else None for _, _, length in listed]
    kinds = {name: pa.int64() for name in columns if name != "image_name"}
    return pa.table({n: pa.array(v, kinds.get(n, pa.string())) for n, v in columns.items()})


def test_a_tar_of_another_program_loses_every_member_of_a_sample(tmp_path: Path) -> None:
    source, target = tmp_path / "foreign.tar", tmp_path / "copy.tar"
    images = [each for each in foreign_tar(source) if each[0].endswith(".jpg")]
    table, sha256 = adopted_rows(images), disk.file_sha256(source)
    copy = copy_tar_without(str(source), target, table, mask_of(3, [0]), sha256)
    left = {f"b/{'x' * 150}.jpg", "c/3.jpg", "c/3.extra"}
    assert members(target).keys() == left
    moved = copy.moved(table.slice(1)).to_pylist()
    data = target.read_bytes()
    for row in moved:
        assert data[row["image_offset"] :][: row["image_length"]].decode() == row["image_name"]
    copy_tar_without(str(source), target, table, mask_of(3, [1]), sha256)
    assert members(target).keys() == {"a/1.jpg", "a/1.txt", "a/1.cls", "c/3.jpg", "c/3.extra"}


@pytest.mark.parametrize(("rows_of_it", "left"), [(2, ["a.jpg", "a.txt"]), (1, [])])
def test_a_sample_that_is_there_twice(tmp_path: Path, rows_of_it: int, left: list[str]) -> None:
    """The second one is another row, or no row and the same content: then it goes too."""
    source, target = tmp_path / "twice.tar", tmp_path / "copy.tar"
    images = foreign_tar(source, ["a.jpg", "a.txt"] * 2)[::2]
    table = adopted_rows(images[:rows_of_it])
    removed, sha256 = mask_of(rows_of_it, [0]), disk.file_sha256(source)
    copy = copy_tar_without(str(source), target, table, removed, sha256)
    assert [member.name for member in index_tar(str(target))] == left
    for row in copy.moved(table.slice(1)).to_pylist():
        assert target.read_bytes()[row["image_offset"] :][: row["image_length"]] == b"a.jpg"


@pytest.mark.parametrize("at", [100, 700, -1])
def test_a_damaged_tar_gets_no_new_hash(tmp_path: Path, at: int) -> None:
    pool = str(tmp_path / "pool")
    with ShardWriter(PoolWriter(pool), 0, "task", "0") as writer:
        writer.add(0, {"url": "u", "caption": "c", "uid": "0" * 32}, b"image")
        writer.add(1, {"url": "v", "caption": "d", "uid": "1" * 32}, b"other")
        record = writer.commit(2)
    tar = Path(PoolLayout(pool).shard_tar(0))
    data = bytearray(tar.read_bytes())
    data[at] ^= 1
    tar.write_bytes(data)
    with pytest.raises(ValueError, match=r"damaged"):
        copy_tar_without(
            str(tar), tmp_path / "t", read_sidecar(pool, 0), mask_of(2, [0]), record.tar_sha256
        )
