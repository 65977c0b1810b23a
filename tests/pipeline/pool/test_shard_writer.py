"""Shards: the bytes are fixed, nothing is readable before it is committed, and no damage passes for an end."""

from __future__ import annotations

import gc
import io
import itertools
import json
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import webdataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manifests import disk
from manifests.columns import SIDECAR
from pipeline.pool import shard_writer, tars

# Shard 3 of the rows below. A new value needs a new SHARD_VERSION.
GOLDEN_VERSION = 1
GOLDEN_TAR = "4670f4c27c26ab96769049a706124ac5a84c6fd581eb66321d2346168638d579"
GOLDEN_SIDECAR = "44c9bc853a00336e10e6bb7559eb4bd2e2fd47190bb9a62cfcfd3f9ce63a0322"

Row = tuple[dict[str, Any], bytes | None, dict[str, Any]]


def rows(*, fetched_at: int = 1_700_000_000_000) -> list[Row]:
    """Five attempts: three stored, one refused, one that is no picture."""
    found: list[Row] = []
    for i in range(5):
        reason = {1: "robots_txt", 3: "not_an_image"}.get(i)
        record = {
            "url": f"http://host{i}.test/ü{i}.jpg",
            "caption": f"ein Bild, «{i}» 🐱",
            "uid": f"{i:032x}",
            "reason": reason,
            "error_message": reason and f"because of {i}",
            "sha256": None if i == 1 else f"{i:064x}",
            "http_status": None if i == 1 else 200,
            "wat": "crawl.warc.wat.gz",
            "warc_offset": 1000 * i,
            "link": i,
            "fetched_at": fetched_at + i,
            "elapsed_ms": fetched_at % 97,
            "attempts": 1,
        }
        image = None if reason else bytes(range(256)) * i + b"\xff\xd8picture"
        found.append(
            (
                record | ({"width": 8 + i, "height": 9} if image else {}),
                image,
                {"title": None, "anchor": "a"},
            )
        )
    return found


def write(
    pool: str, number: int = 3, order: list[int] | None = None, given: list[Row] | None = None
) -> dict[str, Any]:
    given = given or rows()
    with shard_writer.ShardWriter(pool, number, "task", "0") as writer:
        for i in order or range(len(given)):
            writer.add(i, *given[i])
        return writer.commit(len(given))


def stored(pool: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (pool / "shards").iterdir()}


# --- bytes ---------------------------------------------------------------------------------------------------------


def test_golden_bytes(tmp_path: Path) -> None:
    record = write(str(tmp_path))
    assert shard_writer.SHARD_VERSION == GOLDEN_VERSION
    assert record["tar_sha256"] == GOLDEN_TAR
    assert record["sidecar_sha256"] == GOLDEN_SIDECAR
    assert record["tar_sha256"] == shard_writer.file_hash(tmp_path / "shards/00003.tar")
    assert record["sidecar_file_sha256"] == shard_writer.file_hash(
        tmp_path / "shards/00003.parquet"
    )


def test_neither_the_order_of_arrival_nor_the_clock_changes_the_bytes(tmp_path: Path) -> None:
    first = write(str(tmp_path / "a"))
    for n, order in enumerate(itertools.islice(itertools.permutations(range(5)), 0, None, 17)):
        again = write(
            str(tmp_path / f"b{n}"), order=list(order), given=rows(fetched_at=1_800_000_000_000)
        )
        assert (again["tar_sha256"], again["sidecar_sha256"]) == (
            first["tar_sha256"],
            first["sidecar_sha256"],
        )


def test_one_changed_value_changes_the_hash_of_the_sidecar(tmp_path: Path) -> None:
    first = write(str(tmp_path / "a"))
    changed = rows()
    changed[1][0]["error_message"] = "because of 2"
    again = write(str(tmp_path / "b"), given=changed)
    assert again["sidecar_sha256"] != first["sidecar_sha256"]
    assert again["tar_sha256"] == first["tar_sha256"]


def test_the_sidecar_is_one_row_per_attempt_with_the_places_of_its_members(tmp_path: Path) -> None:
    record = write(str(tmp_path))
    table = shard_writer.read_sidecar(str(tmp_path), 3)
    assert table.schema.equals(SIDECAR)
    assert disk.read_metadata(shard_writer.sidecar_path(str(tmp_path), 3))["count"] == 5
    assert record["count"] == 5 == record["successes"] + sum(record["reasons"].values())
    assert record["reasons"] == {"not_an_image": 1, "robots_txt": 1}
    assert (record["failed_to_download"], record["failed_to_resize"]) == (1, 1)
    assert table["key"].to_pylist() == [f"00003{i:04d}" for i in range(5)]
    assert table["class"].to_pylist() == [None, "refused", None, "permanent", None]
    data = (tmp_path / "shards/00003.tar").read_bytes()
    for row, (told_of, image, extra) in zip(table.to_pylist(), rows(), strict=True):
        if image is None:
            assert row["image_offset"] is None
            assert row["status"] in ("failed_to_download", "failed_to_resize")
            continue
        parts = {
            part: data[row[f"{part}_offset"] :][: row[f"{part}_length"]]
            for part in ("image", "text", "json")
        }
        assert parts["image"] == image
        assert parts["text"].decode() == told_of["caption"]
        told = json.loads(parts["json"])
        assert told["key"] == row["key"]
        assert told["anchor"] == extra["anchor"]
        assert told["exif"] is None, "img2dataset's columns are always there"
        assert not {"fetched_at", "elapsed_ms", "attempts", "title", "image_offset"} & told.keys()


@pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning"
)  # webdataset leaves closing to the collector
def test_a_standard_tar_that_others_read(tmp_path: Path) -> None:
    write(str(tmp_path))
    path = tmp_path / "shards/00003.tar"
    listed = subprocess.run(
        ["tar", "tvf", path], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(listed) == 9
    assert all(line.startswith("-rw-r--r-- 0/0") for line in listed)
    found = {s["__key__"]: s for s in webdataset.WebDataset(str(path), shardshuffle=False)}
    gc.collect()  # while its warning is ignored
    assert list(found) == ["000030000", "000030002", "000030004"]
    for i in (0, 2, 4):
        record, image, _ = rows()[i]
        sample = found[f"00003{i:04d}"]
        assert sample["jpg"] == image
        assert sample["txt"].decode() == record["caption"]
        assert json.loads(sample["json"])["url"] == record["url"]


def test_a_shard_in_which_nothing_was_stored(tmp_path: Path) -> None:
    record = write(str(tmp_path), given=[rows()[1]])
    assert (record["count"], record["successes"], record["tar_bytes"]) == (1, 0, 10240)
    assert tars.index_tar(shard_writer.tar_path(str(tmp_path), record)) == []


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    samples=st.lists(
        st.tuples(st.binary(max_size=2000), st.text(st.characters(exclude_categories=["Cs"])))
    )
)
def test_what_goes_in_comes_out(
    tmp_path_factory: pytest.TempPathFactory, samples: list[tuple[bytes, str]]
) -> None:
    pool = str(tmp_path_factory.mktemp("pool"))
    given_rows: list[Row] = [
        ({"url": "u", "caption": caption}, image, {}) for image, caption in samples
    ]
    with shard_writer.ShardWriter(pool, 0, "task", "0") as writer:
        for i in reversed(range(len(given_rows))):
            writer.add(i, *given_rows[i])
        record = writer.commit(len(given_rows))
    with tarfile.open(shard_writer.tar_path(pool, record)) as tar:
        found = [(tar.extractfile(m) or io.BytesIO()).read() for m in tar.getmembers()]
    assert found[0::3] == [image for image, _ in samples]
    assert [text.decode() for text in found[1::3]] == [caption for _, caption in samples]


# --- what a caller may not do --------------------------------------------------------------------------------------


def test_the_books_of_a_writer_must_balance(tmp_path: Path) -> None:
    record, image, extra = rows()[0]
    with shard_writer.ShardWriter(str(tmp_path), 0, "task", "0") as writer:
        with pytest.raises(AssertionError, match="stored is False"):
            writer.add(0, record, None)
        with pytest.raises(AssertionError, match="stored is True"):
            writer.add(0, record | {"reason": "empty"}, image)
        with pytest.raises(AssertionError, match="colour"):
            writer.add(0, record | {"colour": "red"}, image)
        writer.add(0, record, image, extra)
        with pytest.raises(AssertionError, match="two outcomes"):
            writer.add(0, record, image, extra)
        with pytest.raises(AssertionError, match="1 of 2 outcomes"):
            writer.commit(2)
    assert shard_writer.committed(str(tmp_path)) == {}


# --- commit --------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_at(monkeypatch: pytest.MonkeyPatch, n: int, *, after: bool) -> None:
    """The n-th publication, of a tar, sidecar or commit record, does not happen, or happens and nothing after it."""
    calls = itertools.count(1)

    def deadly(real: Callable[..., None], target: int) -> Callable[..., None]:
        def call(*args: Any) -> None:
            if not str(args[target]).endswith((".tar", ".parquet", ".json")):
                real(*args)  # into a staged file
                return
            now = next(calls)
            if now == n and not after:
                raise Killed
            real(*args)
            if now == n:
                raise Killed

        return call

    monkeypatch.setattr(disk, "publish", deadly(disk.publish, 1))
    monkeypatch.setattr(disk, "write_bytes", deadly(disk.write_bytes, 0))


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_kill_between_any_two_writes_leaves_nothing_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, after: bool, n: int
) -> None:
    pool = str(tmp_path / "pool") if place == "local" else f"memory://{tmp_path.name}-{n}-{after}"
    whole = write(str(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        killed_at(patch, n, after=after)
        with pytest.raises(Killed):
            write(pool)
    expected = {"00003"} if (n, after) == (3, True) else set()
    assert set(shard_writer.committed(pool)) == expected
    shard_writer.clean(pool)
    assert set(shard_writer.committed(pool)) == expected
    assert len(disk.list_names(disk.join(pool, "shards"))) == 3 * len(expected)
    again = write(pool)
    assert {**again, "duration_s": 0} == {**whole, "duration_s": 0}
    assert (
        disk.read_bytes(shard_writer.tar_path(pool, again))
        == (tmp_path / "whole/shards/00003.tar").read_bytes()
    )


def test_a_kill_while_a_file_is_written_leaves_only_what_clean_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process tidies nothing

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr("manifests.disk.os.replace", full)
        with pytest.raises(OSError, match="No space left"):
            write(str(tmp_path))
    assert [name for name in stored(tmp_path) if not name.startswith(".")] == []
    assert len(stored(tmp_path)) > 0
    assert len(shard_writer.clean(str(tmp_path))) > 0
    assert stored(tmp_path) == {}


def test_clean_keeps_what_is_committed_and_refuses_what_is_not_ours(tmp_path: Path) -> None:
    write(str(tmp_path), 0)
    write(str(tmp_path), 1)
    (tmp_path / "shards/00001_stats.json").unlink()
    kept = {name: data for name, data in stored(tmp_path).items() if name.startswith("00000")}
    assert shard_writer.clean(str(tmp_path)) == ["00001.parquet", "00001.tar"]
    assert stored(tmp_path) == kept
    with tarfile.open(tmp_path / "shards/00007.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("000070000.jpg"), None)
        info = tarfile.TarInfo("a.jpg")
        info.mtime = 5
        tar.addfile(info)
    assert shard_writer.clean(str(tmp_path)) == ["00007.tar"]  # begins as ours do
    with tarfile.open(tmp_path / "shards/00007.tar", "w") as tar:
        info = tarfile.TarInfo("holiday.jpg")
        info.mtime = 5
        tar.addfile(info)
    with pytest.raises(ValueError, match=r"00007\.tar was not written by clipmill; move it"):
        shard_writer.clean(str(tmp_path))
    assert (tmp_path / "shards/00007.tar").exists()


def test_a_committed_shard_is_not_written_again(tmp_path: Path) -> None:
    first = write(str(tmp_path))
    before = stored(tmp_path)
    changed = rows()
    changed[0] = (changed[0][0], b"another picture", {})
    assert write(str(tmp_path), given=changed) == first
    assert stored(tmp_path) == before


def test_the_statistics_of_another_program_are_no_commit_record(tmp_path: Path) -> None:
    disk.write_json(
        tmp_path / "shards/00000_stats.json", {"count": 10, "successes": 9, "status_dict": {}}
    )
    (tmp_path / "shards/00000.tar").write_bytes(b"precious")
    for function in (shard_writer.committed, shard_writer.clean, shard_writer.fingerprint):
        with pytest.raises(
            ValueError, match=r"00000_stats\.json is not a commit record.*source of kind shards"
        ):
            function(str(tmp_path))
    assert (tmp_path / "shards/00000.tar").read_bytes() == b"precious"


def test_the_fingerprint_changes_with_every_shard(tmp_path: Path) -> None:
    seen = {shard_writer.fingerprint(str(tmp_path))}
    for number in range(3):
        write(str(tmp_path), number)
        seen.add(shard_writer.fingerprint(str(tmp_path)))
    assert len(seen) == 4
    assert list(shard_writer.committed(str(tmp_path))) == ["00000", "00001", "00002"]


# --- index_tar -----------------------------------------------------------------------------------------------------


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
    assert [(m.name, m.offset, m.length) for m in tars.index_tar(str(path))] == expected
    assert [name for name, _, _ in expected] == names


def test_ustar_prefix_and_a_url(tmp_path: Path) -> None:
    name = "d" * 90 + "/" + "e" * 90
    path = tmp_path / "u.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo(name))
    disk.write_bytes("memory://tars/u.tar", path.read_bytes())
    assert [m.name for m in tars.index_tar("memory://tars/u.tar")] == [name]
    with pytest.raises(ValueError, match=r"memory://tars/none\.tar does not exist"):
        tars.index_tar("memory://tars/none.tar")


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_a_compressed_tar_is_to_be_unpacked(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "c.tar"
    with tarfile.open(path, f"w:{mode}") as tar:  # type: ignore[call-overload]
        tar.addfile(tarfile.TarInfo("a.jpg"))
    with pytest.raises(ValueError, match=r"c\.tar is compressed .* unpack it"):
        tars.index_tar(str(path))


def test_no_cut_passes_for_an_end(tmp_path: Path) -> None:
    whole = packed(
        tmp_path / "whole.tar", ["a.jpg", "b" * 700 + ".txt", "c.json"], tarfile.PAX_FORMAT
    ).read_bytes()
    end = len(whole.rstrip(b"\0"))
    cut = tmp_path / "cut.tar"
    for size in {*range(0, end, 512), *random.Random(0).sample(range(end), 40)}:
        cut.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"cut\.tar is (cut off|damaged)"):
            tars.index_tar(str(cut))


def test_no_flipped_bit_in_a_header_passes_for_an_end(tmp_path: Path) -> None:
    write(str(tmp_path))
    path = tmp_path / "shards/00003.tar"
    whole = path.read_bytes()
    members = tars.index_tar(str(path))
    for member in members:
        for bit in random.Random(member.offset).sample(range(512 * 8), 40):
            flipped = bytearray(whole)
            flipped[member.offset - 512 + bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            try:
                found = tars.index_tar(str(path))
            except ValueError as error:
                assert f"the header at byte {member.offset - 512} is wrong" in str(error)  # noqa: PT017
            else:  # a bit of the checksum's own field that its reading ignores
                assert found == members


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is cut off"),
        (b"<html>" * 200, "is damaged, or no tar"),
        (bytes(1024) + b"more", "goes on behind its end mark"),
        (shard_writer.member_block("a", b"x" * 100)[:600], "needs 100 bytes"),
    ],
)
def test_what_is_no_tar(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        tars.index_tar(str(tmp_path / "x.tar"))


def test_two_tars_in_one_file_are_named(tmp_path: Path) -> None:
    path = packed(tmp_path / "two.tar", ["a.jpg"], tarfile.GNU_FORMAT)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(ValueError, match="two tars in one file"):
        tars.index_tar(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.tar does not exist"):
        tars.index_tar(str(tmp_path / "none.tar"))
