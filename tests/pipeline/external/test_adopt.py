"""Adoption: other programs' tars become rows where they lie, and every sample is counted."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from manifests import disk
from manifests.columns import SIDECAR, with_extra
from manifests.layout import CommitRecord, PoolLayout, read_commit_records
from manifests.schema import Source
from pipeline.executor.stage import execute
from pipeline.executor.tickets import Stage, Ticket
from pipeline.external.adopt import adopt_tars, changed_tars, tar_tickets
from pipeline.pool.lease import read_sidecar, remove_uncommitted
from tests.support import commands
from tests.support.other_tars import Members, pack, picture, rows, take


def img2dataset_like(folder: Path) -> tuple[Path, Members]:
    """00002.tar in completion order, and 00002.parquet with two rows that failed."""
    members: Members = []
    listed = []
    for i, (status, message) in enumerate(
        [
            ("success", None),
            ("failed_to_download", "HTTP Error 404: Not Found"),
            ("success", None),
            ("failed_to_resize", "Image decoding error"),
        ]
    ):
        key = f"00002{i:04d}"
        row: dict[str, Any] = {
            "url": f"http://h.test/{i}.jpg",
            "caption": f"picture {i}",
            "key": key,
            "status": status,
        }
        row |= {"error_message": message, "width": None, "height": None, "original_width": None}
        row |= {"original_height": None, "exif": None, "sha256": None}
        if status == "success":
            row |= {
                "original_width": 60,
                "original_height": 40,
                "exif": "{}",
                "sha256": f"{i:064x}",
            }
            image = picture(6 + i, 4)
            metadata = json.dumps(row).encode()
            members = [
                (f"{key}.jpg", image),
                (f"{key}.json", metadata),
                (f"{key}.txt", row["caption"].encode()),
                *members,
            ]
        listed.append(row)
    path = pack(folder / "00002.tar", members)
    disk.write_parquet(folder / "00002.parquet", pa.Table.from_pylist(listed[::-1]))
    return path, members


def test_img2datasets_tar_keeps_its_failed_rows(tmp_path: Path) -> None:
    path, members = img2dataset_like(tmp_path / "data")
    before = path.read_bytes()
    [record] = take(tmp_path / "pool", path)
    assert record["tar"] == str(path)
    assert CommitRecord.from_plain(record).adopted
    assert (record["count"], record["successes"]) == (4, 2)
    assert record["reasons"] == {"decode_error": 1, "http_4xx": 1}
    assert (record["failed_to_download"], record["failed_to_resize"]) == (1, 1)
    assert (record["tar_bytes"], record["tar_sha256"]) == (
        len(before),
        hashlib.sha256(before).hexdigest(),
    )
    by_key = rows(tmp_path / "pool")
    assert [row["key"] for row in by_key] == ["000000000", "000000001", "000000002", "000000003"]
    # Tar order, then failed
    assert [row["url"] for row in by_key] == [f"http://h.test/{i}.jpg" for i in (2, 0, 3, 1)]
    assert by_key[0]["image_name"] == "000020002.jpg"
    assert (by_key[0]["width"], by_key[0]["height"], by_key[0]["original_width"]) == (8, 4, 60)
    assert by_key[0]["sha256"] == f"{2:064x}"
    assert by_key[0]["uid"] == disk.uid_of("http://h.test/2.jpg", "picture 2")
    assert by_key[2]["error_message"] == "Image decoding error"
    data = dict(members)
    for row in by_key[:2]:
        for part, extension in {"image": "jpg", "text": "txt", "json": "json"}.items():
            span = slice(row[f"{part}_offset"], row[f"{part}_offset"] + row[f"{part}_length"])
            assert before[span] == data[row["image_name"].replace("jpg", extension)]
    assert path.read_bytes() == before
    assert disk.list_names(tmp_path / "pool/shards") == ["00000.parquet", "00000_stats.json"]


def test_nothing_adopted_is_ever_cleaned_away(tmp_path: Path) -> None:
    path, _ = img2dataset_like(tmp_path / "data")
    take(tmp_path / "pool", path)
    assert remove_uncommitted(str(tmp_path / "pool")) == []
    (tmp_path / "pool/shards/00000_stats.json").unlink()
    assert remove_uncommitted(str(tmp_path / "pool")) == ["00000.parquet"]
    assert path.exists()


def test_adopting_twice_changes_nothing_and_a_changed_list_is_refused(tmp_path: Path) -> None:
    path, _ = img2dataset_like(tmp_path / "data")
    other = pack(tmp_path / "data/00003.tar", [("a.jpg", picture()), ("a.txt", b"one")])
    first = take(tmp_path / "pool", path)
    assert take(tmp_path / "pool", path, other)[0] == first[0]
    with pytest.raises(
        ValueError, match=r"was made of .*00002\.tar, the source now has .*00003\.tar"
    ):
        take(tmp_path / "pool", other, path)
    path.write_bytes(path.read_bytes() + bytes(512))
    with pytest.raises(ValueError, match=r"00002\.tar has changed since it was adopted"):
        take(tmp_path / "pool", path)


def test_a_tar_that_another_program_rewrote_is_noticed(tmp_path: Path) -> None:
    path = pack(tmp_path / "data/0.tar", [("a.jpg", picture(shade=1)), ("a.txt", b"one")])
    other = pack(tmp_path / "data/1.tar", [("b.jpg", picture(shade=2)), ("b.txt", b"two")])
    pool = tmp_path / "pool"
    first = take(pool, path, other)
    assert first[0]["tar_stamp"] == {
        "size": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns
    }  # fmt: skip
    assert changed_tars(str(pool)) == []
    os.utime(path, ns=(5, 5))  # a copy: another time, the same bytes
    assert changed_tars(str(pool)) == []
    assert take(pool, path, other) == first
    size = path.stat().st_size
    pack(path, [("a.jpg", picture(shade=1)), ("a.txt", b"eno")])
    assert path.stat().st_size == size
    assert changed_tars(str(pool)) == [str(path)]
    with pytest.raises(
        ValueError, match=r"0\.tar has changed since it was adopted; give the old t"
    ):
        take(pool, path, other)
    other.unlink()
    assert changed_tars(str(pool)) == [str(path), str(other)]


def test_odd_samples_end_with_a_reason(tmp_path: Path) -> None:
    long = "d" * 120 + "/long"
    members: Members = [
        ("a/same.jpg", picture(5, 5)),
        ("a/same.txt", b"in a"),
        ("b/same.PNG", picture(7, 5, "PNG")),
        ("late.webp", picture(9, 5, "WEBP")),
        (
            "b/same.json",
            b'{"caption": "in b", "url": "http://b.test/x", '
            b'"uid": "0123456789abcdef0123456789abcdef"}',
        ),
        ("late.txt", "späť".encode()),
        (f"{long}.jpeg", picture(3, 3)),
        (f"{long}.txt", b"long name"),
        ("twice.jpg", picture(4, 4)),
        ("twice.txt", b"first"),
        ("twice.jpg", picture(2, 2)),
        ("twice.txt", b"second"),
        ("nopicture.txt", b"words"),
        ("nopicture.seg.png", picture()),
        ("nocaption.jpg", picture()),
        ("blank.jpg", picture()),
        ("blank.txt", b" \n"),
        ("latin.jpg", picture()),
        ("latin.txt", b"caf\xe9"),
        ("html.jpg", b"<html>not found</html>"),
        ("html.txt", b"a page"),
        ("gif.jpg", picture(kind="GIF")),
        ("gif.txt", b"a GIF"),
        ("zero.jpg", b""),
        ("zero.txt", b"nothing"),
        ("cut.jpg", picture()[:30]),
        ("cut.txt", b"cut"),
        ("badjson.jpg", picture()),
        ("badjson.json", b"{"),
        ("README", b"no sample"),
        ("._a.jpg", b"a Mac was here"),
    ]
    path = pack(tmp_path / "odd.tar", members, tarfile.PAX_FORMAT)
    [record] = take(tmp_path / "pool", path)
    by_key = {
        (row["image_name"] or row["url"].partition("#")[2]): row for row in rows(tmp_path / "pool")
    }
    stored = {
        name: (row["caption"], row["width"])
        for name, row in by_key.items()
        if row["status"] == "success"
    }
    assert stored == {
        "a/same.jpg": ("in a", 5), "b/same.PNG": ("in b", 7), "late.webp": ("späť", 9), 
        f"{long}.jpeg": ("long name", 3), "twice.jpg": ("second", 2),
    }  # fmt: skip
    assert by_key["b/same.PNG"]["url"] == "http://b.test/x"
    assert by_key["b/same.PNG"]["uid"] == "0123456789abcdef0123456789abcdef"
    assert by_key["a/same.jpg"]["url"] == f"{path}#a/same.jpg"
    reasons = {name: row["reason"] for name, row in by_key.items() if row["reason"]}
    assert reasons == {
        "nopicture": "missing_file", "nocaption.jpg": "no_caption", "blank.jpg": "no_caption",
        "latin.jpg": "encoding", "html.jpg": "not_an_image", "gif.jpg": "format",
        "zero.jpg": "empty",
        "cut.jpg": "decode_error", "badjson.jpg": "no_caption",
    }  # fmt: skip
    assert (record["count"], record["successes"]) == (15, 6)


def test_a_sample_that_the_parquet_lists_and_the_tar_lacks(tmp_path: Path) -> None:
    path, members = img2dataset_like(tmp_path)
    pack(path, members[3:])
    [record] = take(tmp_path / "pool", path)
    assert record["reasons"] == {"decode_error": 1, "http_4xx": 1, "missing_file": 1}


def test_columns_that_are_named_and_limits_that_apply(tmp_path: Path) -> None:
    path = pack(
        tmp_path / "x.tar",
        [
            ("a.jpg", picture(6, 4)),
            ("a.json", b'{"alt": "words", "src": "http://a.test"}'),
            ("b.jpg", picture(40, 2)),
            ("b.txt", b"wide"),
        ],
    )
    take(
        tmp_path / "pool",
        path,
        url_column="src",
        caption_column="alt",
        fetch={"max_aspect_ratio": 3.0},
    )
    by_key = rows(tmp_path / "pool")
    assert (by_key[0]["url"], by_key[0]["caption"]) == ("http://a.test", "words")
    assert (by_key[1]["reason"], by_key[1]["error_message"]) == (
        "aspect",
        "40x2 is longer than 3 to 1",
    )


def test_folders_patterns_and_urls(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        pack(
            tmp_path / f"data/{name}.tar",
            [(f"{name}.jpg", picture()), (f"{name}.txt", name.encode())],
        )
    disk.write_bytes("memory://adopt/a.tar", (tmp_path / "data/a.tar").read_bytes())

    def found(*paths: str) -> list[str]:
        return [
            t.payload["tar"].rpartition("/")[2]
            for t in tar_tickets(Source(kind="shards", paths=paths))
        ]

    assert found(str(tmp_path / "data")) == ["a.tar", "b.tar", "c.tar"]
    assert found(str(tmp_path / "data/[!a]*.tar"), str(tmp_path / "data/a.tar")) == [
        "b.tar",
        "c.tar",
        "a.tar",
    ]
    [record] = take(tmp_path / "pool", "memory://adopt/*.tar")
    assert record["tar"] == "memory://adopt/a.tar"
    assert (
        PoolLayout(str(tmp_path / "pool")).tar(CommitRecord.from_plain(record))
        == "memory://adopt/a.tar"
    )
    row = rows(tmp_path / "pool")[0]
    assert (
        disk.read_bytes("memory://adopt/a.tar", row["image_offset"], row["image_length"])
        == picture()
    )
    with pytest.raises(ValueError, match=r"there is no tar at .*none\.tar"):
        found(str(tmp_path / "none.tar"))
    with pytest.raises(ValueError, match=r"names .*a\.tar twice"):
        found(str(tmp_path / "data"), str(tmp_path / "data/a.tar"))


def test_a_tar_inside_the_pools_own_folder_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "pool/shards/00000.tar", [("a.jpg", picture())])
    with pytest.raises(ValueError, match="lies where this pool keeps its own shards"):
        take(tmp_path / "pool", path)


def test_a_damaged_tar_fails_its_ticket_by_name_and_the_rest_goes_on(tmp_path: Path) -> None:
    whole, _ = img2dataset_like(tmp_path)
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole.read_bytes()[:1024])
    packed = tmp_path / "packed.tar"
    with tarfile.open(packed, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    todo: list[Ticket] = tar_tickets(
        Source(kind="shards", paths=(str(cut), str(packed), str(whole)))
    )
    stage = Stage(name="adopt", work=adopt_tars, config={"pool": str(tmp_path / "pool")})
    done: list[str] = []
    report = execute(stage, todo, engine="inline", on_done=lambda ticket, _: done.append(ticket))
    assert done == [todo[2].id]
    assert "cut.tar is cut off" in report.failed[todo[0].id]
    assert "packed.tar is compressed (gzip)" in report.failed[todo[1].id]
    assert list(read_commit_records(str(tmp_path / "pool"))) == ["00002"]


@pytest.mark.slow
def test_more_samples_than_a_key_of_four_digits_numbers(tmp_path: Path) -> None:
    members = [(f"{i}.txt", b"x") for i in range(10_001)]
    take(tmp_path / "pool", pack(tmp_path / "many.tar", members, tarfile.USTAR_FORMAT))
    keys = read_sidecar(str(tmp_path / "pool"), 0, ["key"])["key"].to_pylist()
    assert keys == sorted(keys)
    assert len(set(keys)) == 10_001


def test_extra_columns_come_from_the_parquet_or_the_json_member(tmp_path: Path) -> None:
    """DataComp's: its scores are in both, one of a tar that somebody packed by hand only in the
    json.
    """
    path, members = img2dataset_like(tmp_path / "data")
    listed = disk.read_parquet(tmp_path / "data/00002.parquet")
    scores = {f"00002{i:04d}": 0.25 * i for i in range(4)}
    keys = listed["key"].to_pylist()
    listed = listed.append_column(
        "clip_l14_similarity_score", pa.array([scores[k] for k in keys], pa.float32())
    )
    disk.write_parquet(tmp_path / "data/00002.parquet", listed)
    values = [
        (n, json.dumps({**json.loads(d), "punsafe": n[-6]}).encode() if n.endswith("json") else d)
        for n, d in members
    ]
    pack(path, values)
    columns = {"clip_l14_similarity_score": "float", "unsafe": "punsafe:int", "faces": "json"}
    take(tmp_path / "pool", path, extra_columns=columns)
    table = read_sidecar(str(tmp_path / "pool"), 0)
    assert table.schema.equals(with_extra(SIDECAR, columns))
    by_url = {row["url"]: row for row in table.to_pylist()}
    assert [by_url[f"http://h.test/{i}.jpg"]["clip_l14_similarity_score"] for i in range(4)] == [
        0,
        0.25,
        0.5,
        0.75,
    ]
    # None: the row failed and has no JSON member
    assert [by_url[f"http://h.test/{i}.jpg"]["unsafe"] for i in range(4)] == [0, None, 2, None]
    assert {row["faces"] for row in by_url.values()} == {None}
    take(tmp_path / "pool", path, extra_columns=columns)
    with pytest.raises(
        ValueError, match=r"adopted with the extra_columns \['clip_l14.*the source now names \[\]"
    ):
        take(tmp_path / "pool", path)


def test_a_pair_that_lies_in_two_tars_is_stored_twice_under_one_uid(tmp_path: Path) -> None:
    metadata = b'{"url": "http://a.test/x.jpg"}'
    members: Members = [("a.jpg", picture()), ("a.txt", b"same"), ("a.json", metadata)]
    take(tmp_path / "pool", pack(tmp_path / "1.tar", members), pack(tmp_path / "2.tar", members))
    first, second = rows(tmp_path / "pool", 0)[0], rows(tmp_path / "pool", 1)[0]
    assert first["uid"] == second["uid"] == disk.uid_of("http://a.test/x.jpg", "same")
    assert (first["status"], second["status"]) == ("success", "success")


def test_braces_stand_for_the_tars_of_a_recipe(tmp_path: Path) -> None:
    """A name that really has braces is that file's."""
    for name in ("00008", "00009", "00010", "00011", "{a,b}"):
        pack(tmp_path / "tars" / f"{name}.tar", [("0.jpg", picture()), ("0.txt", name.encode())])
    (tmp_path / "r.yaml").write_text(
        "name: r\nsource: {kind: shards, paths: ['tars/{00009..00010}.tar', 'tars/{a,b}.tar']}\n"
    )
    words = [str(tmp_path / "r.yaml"), "--out", str(tmp_path / "pool"), "--engine", "inline"]
    assert commands.build([*words, "--until", "fetch"]) == 0
    captions = [rows(tmp_path / "pool", shard)[0]["caption"] for shard in range(3)]
    assert captions == ["00009", "00010", "{a,b}"]
