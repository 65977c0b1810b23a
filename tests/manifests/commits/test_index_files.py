"""Files of the index: every damage is named, with the command that mends it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from manifests import disk
from manifests.commits import read_commits, rebuild_index, update_index
from manifests.commits.commits import to_table
from manifests.commits.index import (
    IndexDocument,
    newest_rows,
    read_files,
    read_index_document,
    write_document,
    write_file,
)
from tests.support.commit_records import commit_record, write_record

REINDEX = r"run clipmill audit reindex "


@pytest.fixture
def pool(tmp_path: Path) -> str:
    for shard in (0, 1, 2, 3000):
        write_record(str(tmp_path), shard)
    update_index(str(tmp_path))
    return str(tmp_path)


def files(pool: str) -> list[Path]:
    return sorted(Path(pool, "index").glob("*.parquet"))


def test_a_file_is_named_by_its_content(pool: str) -> None:
    (path,) = files(pool)
    assert path.name == f"commits-{disk.file_sha256(path)[:16]}.parquet"
    document = read_index_document(pool)
    assert document is not None
    assert (document.closed, document.shards, len(document.files)) == (True, 4, 1)
    assert document.fingerprint == read_commits(pool).fingerprint


def test_every_bad_byte_of_the_index_is_noticed(pool: str) -> None:
    """Every 3rd byte of index.json, and every 41st of the Parquet file."""
    (batch,) = files(pool)
    for path, step in ((Path(pool, "index/index.json"), 3), (batch, 41)):
        whole = path.read_bytes()
        for at in range(0, len(whole), step):
            damaged = bytearray(whole)
            damaged[at] ^= 0x01
            path.write_bytes(damaged)
            same = path != batch and _same_json(bytes(damaged), whole)
            if not same:
                with pytest.raises(ValueError, match=REINDEX):
                    read_commits(pool)
        path.write_bytes(whole)
    assert len(read_commits(pool)) == 4


def _same_json(text: bytes, other: bytes) -> bool:
    """A space that became another blank changes nothing."""
    try:
        return bool(json.loads(text) == json.loads(other))
    except ValueError:
        return False


def test_a_missing_file_is_named(pool: str) -> None:
    (path,) = files(pool)
    path.unlink()
    with pytest.raises(ValueError, match=rf"{path.name} is not there; {REINDEX}"):
        read_commits(pool)
    assert len(rebuild_index(pool)) == 4
    assert len(read_commits(pool)) == 4


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense"])
def test_an_index_json_that_is_none_is_named(pool: str, text: str) -> None:
    Path(pool, "index/index.json").write_text(text)
    with pytest.raises(ValueError, match=rf"index\.json is damaged: .*; {REINDEX}"):
        read_index_document(pool)


def test_an_index_of_a_newer_program_is_refused(pool: str) -> None:
    document = read_index_document(pool)
    assert document is not None
    write_document(pool, dataclasses.replace(document, version=4))
    with pytest.raises(ValueError, match=r"has version 4; this clipmill reads up to 3"):
        read_index_document(pool)


def test_the_highest_revision_of_a_shard_wins_in_any_order(tmp_path: Path) -> None:
    old, new = commit_record(5), commit_record(5, revision=1, tar="00005.r1.tar")
    for order in ([old, new], [new, old], [new, old, new]):
        table = newest_rows("p", to_table([*order, commit_record(4)]))
        assert table["shard"].to_pylist() == [4, 5]
        assert table["revision"].to_pylist() == [0, 1]


def test_two_records_of_one_shard_that_differ_are_damage(tmp_path: Path) -> None:
    pool = str(tmp_path)
    write_record(pool, 5)
    batches = [to_table([commit_record(5)]), to_table([commit_record(5, count=6, successes=3)])]
    named = tuple(write_file(pool, batch) for batch in batches)
    document = IndexDocument(version=1, closed=False, files=named, shards=2)
    with pytest.raises(ValueError, match=rf"different records of shard 00005; {REINDEX}"):
        read_files(pool, document)
    again = IndexDocument(version=1, closed=False, files=(named[0], named[0]), shards=2)
    assert read_files(pool, again)[1].num_rows == 1


def test_a_file_that_a_writer_merged_meanwhile_is_found_in_the_new_index(pool: str) -> None:
    old = read_index_document(pool)
    assert old is not None
    write_record(pool, 7)
    update_index(pool)
    assert not Path(pool, "index", old.files[0].name).exists()
    read, table = read_files(pool, old)
    assert (read.shards, table.num_rows) == (5, 5)


def test_some_columns(pool: str) -> None:
    document = read_index_document(pool)
    assert document is not None
    _, table = read_files(pool, document, ["tar"])
    assert table.column_names == ["shard", "revision", "tar"]
