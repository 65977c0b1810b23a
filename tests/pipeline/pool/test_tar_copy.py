"""A copy without some samples: every other byte of a member stays, a damaged tar is refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from manifests import disk
from manifests.layout import PoolLayout
from pipeline.pool.lease import read_sidecar
from pipeline.pool.shard_writer import ShardWriter
from pipeline.pool.tar_copy import copy_tar_without
from pipeline.pool.tars import index_tar
from tests.support.small_pool import make_pool, rows

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


def foreign_tar(path: Path) -> list[tuple[str, int, int]]:
    """A tar with folders, a long name and a member that no sidecar lists."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("a/1.jpg", "a/1.txt", "a/1.cls", f"b/{'x' * 150}.jpg", "c/3.jpg", "c/3.extra"):
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


def test_members_behind_the_listed_ones_are_not_cut_off(tmp_path: Path) -> None:
    source, target = tmp_path / "a.tar", tmp_path / "copy.tar"
    with tarfile.open(source, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in ("1.jpg", "2.jpg", "2.cls"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    listed = [(m.name, m.offset, m.length) for m in index_tar(str(source))][:2]
    sha256 = disk.file_sha256(source)
    copy_tar_without(str(source), target, adopted_rows(listed), mask_of(2, [0]), sha256)
    assert members(target).keys() == {"2.jpg", "2.cls"}


@pytest.mark.parametrize("at", [100, 700, -1])
def test_a_damaged_tar_gets_no_new_hash(tmp_path: Path, at: int) -> None:
    pool = str(tmp_path / "pool")
    with ShardWriter(pool, 0, "task", "0") as writer:
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
