"""The hash of a view's rows: the same for the same rows and bytes, whatever else differs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.records import ViewDocument, read_document
from clipmill.pipeline import recipe_run
from clipmill.pipeline.audit.purge import purge_rows, read_criteria
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.views import choose as choosing
from clipmill.pipeline.views import files
from clipmill.pipeline.views.files import (
    add_hashes,
    choose_views,
    freeze,
    hash_view,
    parts_of_views,
    random_like,
)
from tests.support import commands
from tests.support.bundles import mask_of
from tests.support.chosen import recipe, view
from tests.support.small_pool import make_pool, rows, write_shard

WIDE = view("wide", ("wide", "original_width >= 200"))
SAME_ROWS = view("other", ("at_least", "original_width > 199"))
ALL = view("raw")


def expected_hash(pool: str, view: str) -> str:
    """A plain program for the canonical hash."""
    records = set()
    commits = read_commits(pool)
    for shard in commits.shards.tolist():
        sidecar = disk.read_parquet(commits.sidecar(shard)).to_pylist()
        mask = mask_of(pool, view, shard)["kept"].to_pylist()
        for row, kept in zip(sidecar, mask, strict=True):
            if kept:
                records.add(bytes.fromhex(row["uid"] + (row["sha256"] or "0" * 64)))
    return hashlib.sha256(b"".join(sorted(records))).hexdigest()


def test_other_shards_orders_names_and_rules_give_the_same_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list(enumerate(rows(40)))
    first = make_pool(tmp_path / "a", rows(40), per_shard=7)
    chosen = choose_views(PoolWriter(first), recipe(WIDE, SAME_ROWS, ALL), hashed=True)
    expected = expected_hash(first, "wide")
    assert chosen["wide"].rows_sha256 == chosen["other"].rows_sha256 == expected
    assert chosen["raw"].rows_sha256 == expected_hash(first, "raw") != expected
    assert read_document(PoolLayout(first).view_json("wide"), ViewDocument) == chosen["wide"]
    monkeypatch.setattr(choosing, "THREADS", 1)
    monkeypatch.setattr(files, "HASH_UNIT_SHARDS", 1)
    second = str(tmp_path / "b")
    for shard, start in enumerate(range(39, -1, -4)):
        write_shard(second, shard, given[start : (start - 4 if start >= 4 else None) : -1])
    made = choose_views(PoolWriter(second), recipe(WIDE), hashed=True)
    assert made["wide"].rows_sha256 == hash_view(second, "wide") == expected


def test_a_hash_is_made_when_it_is_asked_for(tmp_path: Path) -> None:
    """And written beside masks that are there; what is made of a view has one where that has."""
    pool = make_pool(tmp_path, rows(40), per_shard=7)
    out = PoolWriter(pool)
    assert choose_views(out, recipe(ALL, WIDE))["raw"].rows_sha256 is None
    expected = expected_hash(pool, "raw")
    assert hash_view(pool, "raw") == expected
    assert random_like(out, "raw", [1])["random_like_raw.seed-1"].rows_sha256 is None
    assert parts_of_views(out, ["raw"], 0.5, [1])["raw.part-0.5.seed-1"].rows_sha256 is None
    assert freeze(out, "raw", "cold")["cold"].rows_sha256 is None
    masks = Path(PoolLayout(pool).view_bundle("raw", 0))
    before = masks.stat()
    there = choose_views(out, recipe(ALL), hashed=True)
    assert there["raw"].rows_sha256 is None, "it was not made"
    hashed = add_hashes(out, there)["raw"]
    assert hashed.rows_sha256 == expected
    assert read_document(PoolLayout(pool).view_json("raw"), ViewDocument) == hashed
    assert masks.stat().st_mtime_ns == before.st_mtime_ns
    assert choose_views(out, recipe(ALL, WIDE))["raw"] == hashed
    drawn = random_like(out, "raw", [2])["random_like_raw.seed-2"]
    part = parts_of_views(out, ["raw"], 0.5, [2])["raw.part-0.5.seed-2"]
    frozen = freeze(out, "raw", "warm")["warm"]
    assert drawn.rows_sha256 == frozen.rows_sha256 == expected
    assert part.rows_sha256 == expected_hash(pool, "raw.part-0.5.seed-2") != expected
    mixed = parts_of_views(out, ["raw", "wide"], 0.5, [3])
    assert {document.rows_sha256 for document in mixed.values()} == {None}


def test_a_build_writes_hashes_up_to_a_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(tmp_path, rows(40), per_shard=7)
    stored = read_commits(pool).totals.stored
    for most in (stored - 1, stored):
        monkeypatch.setattr(recipe_run, "HASHED_ROWS", most)
        Path(PoolLayout(pool).view_json("raw")).unlink(missing_ok=True)
        recipe_run.Build(recipe(ALL), PoolWriter(pool), "inline", None).choose()
        document = read_document(PoolLayout(pool).view_json("raw"), ViewDocument)
        assert document.rows_sha256 == (expected_hash(pool, "raw") if most == stored else None)


def test_a_view_that_a_failure_leaves_behind_has_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not made again, so what comes later would be missing for ever."""
    pool = make_pool(tmp_path, rows(40), per_shard=7)
    out = PoolWriter(pool)
    whole = choose_views(out, recipe(ALL, WIDE), hashed=True)
    for name in whole:
        Path(PoolLayout(pool).view_json(name)).unlink()
    write = PoolWriter.write_json

    def full(writer: PoolWriter, path: str, *words: object, **named: bool) -> None:
        if path == PoolLayout(pool).view_json("wide"):
            raise OSError("no space left")
        write(writer, path, *words, **named)

    with monkeypatch.context() as patched:
        patched.setattr(PoolWriter, "write_json", full)
        with pytest.raises(OSError, match="no space"):
            choose_views(out, recipe(ALL, WIDE), hashed=True)
    assert read_document(PoolLayout(pool).view_json("raw"), ViewDocument) == whole["raw"]
    assert choose_views(out, recipe(ALL, WIDE), hashed=True) == whole


def test_another_row_or_another_byte_is_another_hash(tmp_path: Path) -> None:
    given = rows(20)
    hashes = []
    for name, number in (("a", 0), ("b", 12), ("c", 3)):
        pool = make_pool(tmp_path / name, given)
        path = read_commits(pool).sidecar(0)
        table = disk.read_parquet(path)
        if number:
            hexes = table["sha256"].to_pylist()
            hexes[number % 10] = "ab" * 32
            table = table.set_column(table.column_names.index("sha256"), "sha256", [hexes])
            disk.write_parquet(path, table)
        choose_views(PoolWriter(pool), recipe(ALL))
        hashes.append(hash_view(pool, "raw"))
    assert len(set(hashes)) == 3


def test_a_row_without_a_hash_counts_and_repeats_count_once(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, [*rows(4), *rows(4)], per_shard=4)
    path = read_commits(pool).sidecar(1)
    table = disk.read_parquet(path)
    column = table.column_names.index("sha256")
    disk.write_parquet(path, table.set_column(column, "sha256", [[None, "", "ab" * 32, "x"]]))
    choose_views(PoolWriter(pool), recipe(ALL))
    assert hash_view(pool, "raw") == _with_unknown(pool)


def _with_unknown(pool: str) -> str:
    records = set()
    for shard in (0, 1):
        for row in disk.read_parquet(PoolLayout(pool).sidecar(shard)).to_pylist():
            known = len(row["sha256"] or "") == 64
            records.add(bytes.fromhex(row["uid"] + (row["sha256"] if known else "0" * 64)))
    return hashlib.sha256(b"".join(sorted(records))).hexdigest()


def test_the_command_and_a_purge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = make_pool(tmp_path / "pool", rows(20))
    choose_views(PoolWriter(pool), recipe(ALL))
    expected = expected_hash(pool, "raw")
    assert commands.filter_pool(["hash", pool, "raw"]) == 0
    assert capsys.readouterr().out == f"{expected}\n"
    uid = disk.read_parquet(read_commits(pool).sidecar(0))["uid"][0].as_py()
    purge_rows(PoolWriter(pool), read_criteria([f"uid={uid}"]))
    assert commands.filter_pool(["hash", pool, "raw", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)["rows_sha256"]
    assert after == expected_hash(pool, "raw") != expected
    for words in (["none"], ["raw", "--seed", "1"]):
        assert commands.filter_pool(["hash", pool, *words]) == 2
    assert "has no view 'none'; it has raw" in capsys.readouterr().err
