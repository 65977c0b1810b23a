"""Adoption: other programs' tars become rows where they lie, every sample is counted, and bad
members and rows cost themselves only."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests import disk
from clipmill.manifests.columns import SIDECAR, with_extra
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Source
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket
from clipmill.pipeline.external.adopt import adopt_tars, group_samples, tar_changed, tar_tickets
from clipmill.pipeline.pool.shard_writer import remove_uncommitted
from clipmill.pipeline.pool.tars import Member
from tests.support import commands
from tests.support.commit_records import read_commit_records
from tests.support.other_tars import Members, adoption, pack, picture, rows, take
from tests.support.sidecars import read_sidecar


def img2dataset_like(folder: Path) -> tuple[Path, Members]:
    """00002.tar in completion order, and 00002.parquet with two rows that failed."""
    members: Members = []
    listed = []
    outcomes = [("success", None), ("failed_to_download", "HTTP Error 404: Not Found")]
    outcomes += [("success", None), ("failed_to_resize", "Image decoding error")]
    unknown = dict.fromkeys(("width", "height", "original_width", "original_height", "exif"))
    for i, (status, message) in enumerate(outcomes):
        key = f"00002{i:04d}"
        row: dict[str, Any] = {"url": f"http://h.test/{i}.jpg", "caption": f"picture {i}"}
        row |= {"key": key, "status": status, "error_message": message, "sha256": None, **unknown}
        if status == "success":
            row |= {"original_width": 60, "original_height": 40, "exif": "{}"}
            row["sha256"] = f"{i:064x}"
            own = [(f"{key}.jpg", picture(6 + i, 4)), (f"{key}.json", json.dumps(row).encode())]
            members = [*own, (f"{key}.txt", row["caption"].encode()), *members]
        listed.append(row)
    path = pack(folder / "00002.tar", members)
    disk.write_parquet(folder / "00002.parquet", pa.Table.from_pylist(listed[::-1]))
    return path, members


def test_img2datasets_tar_keeps_its_failed_rows(tmp_path: Path) -> None:
    path, members = img2dataset_like(tmp_path / "data")
    before = path.read_bytes()
    [record] = take(tmp_path / "pool", path)
    assert (record.tar, record.adopted) == (str(path), True)
    assert (record.count, record.successes) == (4, 2)
    assert record.reasons == {"decode_error": 1, "http_4xx": 1}
    assert (record.failed_to_download, record.failed_to_resize) == (1, 1)
    sha256 = hashlib.sha256(before).hexdigest()
    assert (record.tar_bytes, record.tar_sha256) == (len(before), sha256)
    by_key = rows(tmp_path / "pool")
    assert [row["key"] for row in by_key] == [f"{number:09d}" for number in range(4)]
    # Tar order, then failed
    assert [row["url"] for row in by_key] == [f"http://h.test/{i}.jpg" for i in (2, 0, 3, 1)]
    assert (by_key[0]["image_name"], by_key[0]["sha256"]) == ("000020002.jpg", f"{2:064x}")
    assert (by_key[0]["width"], by_key[0]["height"], by_key[0]["original_width"]) == (8, 4, 60)
    assert by_key[0]["uid"] == disk.uid_of("http://h.test/2.jpg", "picture 2")
    assert by_key[2]["error_message"] == "Image decoding error"
    data = dict(members)
    for row in by_key[:2]:
        for part, extension in {"image": "jpg", "text": "txt", "json": "json"}.items():
            span = slice(row[f"{part}_offset"], row[f"{part}_offset"] + row[f"{part}_length"])
            assert before[span] == data[row["image_name"].replace("jpg", extension)]
    assert path.read_bytes() == before
    assert disk.list_names(tmp_path / "pool/shards") == ["00000.parquet", "00000_stats.json"]
    pack(path, members[3:])
    [record] = take(tmp_path / "other", path)
    assert record.reasons == {"decode_error": 1, "http_4xx": 1, "missing_file": 1}


def test_nothing_adopted_is_ever_cleaned_away(tmp_path: Path) -> None:
    path, _ = img2dataset_like(tmp_path / "data")
    take(tmp_path / "pool", path)
    assert remove_uncommitted(PoolLayout(str(tmp_path / "pool"))) == []
    (tmp_path / "pool/shards/00000_stats.json").unlink()
    assert remove_uncommitted(PoolLayout(str(tmp_path / "pool"))) == ["00000.parquet"]
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

    def changed(pool: Path) -> list[str]:
        return [record.tar for record in read_commits(str(pool)).records() if tar_changed(record)]

    assert changed(pool) == []
    os.utime(path, ns=(5, 5))  # a copy: another time, the same bytes
    assert changed(pool) == []
    assert take(pool, path, other) == first
    size = path.stat().st_size
    pack(path, [("a.jpg", picture(shade=1)), ("a.txt", b"eno")])
    assert path.stat().st_size == size
    assert changed(pool) == [str(path)]
    with pytest.raises(
        ValueError, match=r"0\.tar has changed since it was adopted; give the old t"
    ):
        take(pool, path, other)
    other.unlink()
    assert changed(pool) == [str(path), str(other)]


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
    by_key = {}
    for row in rows(tmp_path / "pool"):
        by_key[row["image_name"] or row["url"].partition("#")[2]] = row
    successes = {name: row for name, row in by_key.items() if row["status"] == "success"}
    stored = {name: (row["caption"], row["width"]) for name, row in successes.items()}
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
    assert (record.count, record.successes) == (15, 6)


def test_folders_patterns_and_urls(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        members = [(f"{name}.jpg", picture()), (f"{name}.txt", name.encode())]
        pack(tmp_path / f"data/{name}.tar", members)
    disk.write_bytes("memory://adopt/a.tar", (tmp_path / "data/a.tar").read_bytes())

    def found(*paths: str) -> list[str]:
        tickets = tar_tickets(Source(kind="shards", paths=paths))
        return [ticket.payload.tar.rpartition("/")[2] for ticket in tickets]

    assert found(str(tmp_path / "data")) == ["a.tar", "b.tar", "c.tar"]
    named = found(str(tmp_path / "data/[!a]*.tar"), str(tmp_path / "data/a.tar"))
    assert named == ["b.tar", "c.tar", "a.tar"]
    [record] = take(tmp_path / "pool", "memory://adopt/*.tar")
    tar = PoolLayout(str(tmp_path / "pool")).tar(record)
    assert record.tar == tar == "memory://adopt/a.tar"
    row = rows(tmp_path / "pool")[0]
    assert disk.read_bytes(tar, row["image_offset"], row["image_length"]) == picture()
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
    source = Source(kind="shards", paths=(str(cut), str(packed), str(whole)))
    todo: list[Ticket] = tar_tickets(source)
    stage = Stage(name="adopt", work=adopt_tars, job=adoption(tmp_path / "pool", source))
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
    ordered = [by_url[f"http://h.test/{i}.jpg"] for i in range(4)]
    assert [row["clip_l14_similarity_score"] for row in ordered] == [0, 0.25, 0.5, 0.75]
    # None: the row failed and has no JSON member
    assert [row["unsafe"] for row in ordered] == [0, None, 2, None]
    assert {row["faces"] for row in ordered} == {None}
    take(tmp_path / "pool", path, extra_columns=columns)
    with pytest.raises(
        ValueError, match=r"adopted with the extra_columns \['clip_l14.*the source now names \[\]"
    ):
        take(tmp_path / "pool", path)


def test_columns_that_are_named_and_limits_that_apply(tmp_path: Path) -> None:
    named = b'{"alt": "words", "src": "http://a.test"}'
    members = [("a.jpg", picture(6, 4)), ("a.json", named)]
    path = pack(tmp_path / "x.tar", [*members, ("b.jpg", picture(40, 2)), ("b.txt", b"wide")])
    columns = {"url_column": "src", "caption_column": "alt"}
    take(tmp_path / "pool", path, **columns, fetch={"max_aspect_ratio": 3.0})
    first, second = rows(tmp_path / "pool")
    assert (first["url"], first["caption"]) == ("http://a.test", "words")
    assert (second["reason"], second["error_message"]) == ("aspect", "40x2 is longer than 3 to 1")


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


def test_samples_need_not_lie_together_and_a_repeated_member_begins_another() -> None:
    names = ["a.jpg", "b.jpg", "a.txt", "b.txt", "a.jpg", "x/.jpg", "noext"]
    samples = group_samples([Member(name=name, offset=i, length=1) for i, name in enumerate(names)])
    assert [(s.name, sorted(s.members)) for s in samples] == [
        ("a", ["jpg", "txt"]),
        ("b", ["jpg", "txt"]),
        ("a", ["jpg"]),
    ]


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (b'{"caption": "half \\ud800"}', "encoding"),
        (b'{"caption": "c", "original_width": 1099511627776}', None),
        (b'{"caption": "c", "original_height": -99999999999}', None),
        (b'{"caption": "c", "x": ' + DEEP + b"}", "no_caption"),
        (b'{"caption": "c", "x": ' + b"9" * 5000 + b"}", "no_caption"),
        (b'{"caption": 5}', "no_caption"),
        (b'{"caption": "c", "url": "http://h.test/\\udfff", "exif": "\\ud800"}', None),
        (b'{"caption": "c", "original_width": true, "label": "\\ud800"}', None),
    ],
)
def test_a_bad_json_member_costs_its_row(member: bytes, reason: str | None, tmp_path: Path) -> None:
    members = [("0.jpg", picture()), ("0.json", b'{"caption": "good", "label": "l"}')]
    members += [("1.jpg", picture()), ("1.json", member)]
    extra = {"label": "string", "everything": "x:json"}
    [record] = take(tmp_path / "pool", pack(tmp_path / "x.tar", members), extra_columns=extra)
    assert record.reasons == ({reason: 1} if reason else {})
    assert record.successes == (1 if reason else 2)


def test_invalid_utf8_in_the_parquet_beside_a_tar_costs_its_row(tmp_path: Path) -> None:
    text = pa.array([b"good", b"caf\xe9"]).view(pa.string())
    table = pa.table({"key": ["0", "1"], "caption": text, "status": ["success", "success"]})
    pq.write_table(table, tmp_path / "x.parquet")
    members = [("0.jpg", picture()), ("1.jpg", picture())]
    [record] = take(tmp_path / "pool", pack(tmp_path / "x.tar", members))
    assert (record.successes, record.reasons) == (1, {"encoding": 1})
    for row in rows(tmp_path / "pool"):
        assert row["uid"] == disk.uid_of(row["url"], row["caption"] or "")


def built(folder: Path, members: Members, table: pa.Table | None = None) -> list[dict[str, Any]]:
    """A build from one tar and the parquet beside it; the rows of the pool. AssertionError with
    what it printed where it failed."""
    pack(folder / "tars" / "x.tar", members)
    if table is not None:
        pq.write_table(table, folder / "tars" / "x.parquet")
    recipe = "name: r\nsource: {kind: shards, paths: [tars], caption_column: null}\n"
    (folder / "r.yaml").write_text(recipe)
    words = [str(folder / "r.yaml"), "--out", str(folder / "pool"), "--engine", "inline"]
    if commands.build([*words, "--until", "fetch"]) != 0:
        return []
    return rows(folder / "pool")


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (1600.0, 1200.0, (1600, 1200)),  # pandas writes doubles where one row is NULL
        ("1600", "1200", (1600, 1200)),
        (99_999_999_999, 1200, (6, 4)),
        (1600, -5, (6, 4)),  # both or none: else their ratio would be of no image
        (True, 1200, (6, 4)),
        (float("nan"), 1200.0, (6, 4)),
        (float("inf"), 1200.0, (6, 4)),
        (1600.5, 1200.0, (6, 4)),
        (None, 1200, (6, 4)),
    ],
)
def test_the_size_beside_a_good_image_is_read_or_left_out(
    width: Any, height: Any, expected: tuple[int, int], tmp_path: Path
) -> None:
    member = json.dumps({"original_width": width, "original_height": height}).encode()
    [row] = built(tmp_path, [("0.jpg", picture(6, 4)), ("0.json", member)])
    assert (row["status"], row["original_width"], row["original_height"]) == ("success", *expected)


@pytest.mark.parametrize(
    "width", [pa.array([1600.0]), pa.array([Decimal("1600.00")]), pa.array(["1600"])]
)
def test_the_columns_of_a_parquet_may_have_other_types(width: pa.Array, tmp_path: Path) -> None:
    """Text as bytes, as some writers leave it, is text; a dictionary is what it stands for."""
    columns = {
        "key": pa.array([b"007"], pa.binary()),
        "url": pa.array([b"http://h.test/7"], pa.binary()),
        "status": pa.array(["success"]).dictionary_encode(),
        "original_width": width,
        "original_height": pa.array([1200], pa.int64()),
    }
    [row] = built(tmp_path, [("007.jpg", picture())], pa.table(columns))
    assert (row["url"], row["status"]) == ("http://h.test/7", "success")
    assert (row["original_width"], row["original_height"]) == (1600, 1200)


TWO_URLS = pa.Table.from_arrays([pa.array(["0"])] * 3, names=["key", "url", "url"])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (TWO_URLS, "x.parquet has two columns 'url'"),
        (pa.array([7, 8]), "lists none of the samples of the tar: its first key is '7'"),
        (pa.array([0.5, 1.0]), "x.parquet, beside the tar, has the key 0.5, of type double"),
        (pa.array(["0", "1"]), "lists none of the samples of the tar: its first key is '0'"),
        (pa.array(["000", None]), "x.parquet, beside the tar, has a row without a key"),
        (pa.array(["001", "001"]), "x.parquet, beside the tar, has two rows of the key '001'"),
    ],
)
def test_keys_of_no_sample_are_refused_by_name(
    keys: pa.Array | pa.Table, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = keys
    if not isinstance(keys, pa.Table):
        table = pa.table({"key": keys, "status": ["success", "success"]})
    assert built(tmp_path, [("000.jpg", picture()), ("001.jpg", picture())], table) == []
    assert message in capsys.readouterr().err
