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
from clipmill.pipeline.audit.purge import purge_rows, read_criteria
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.views import choose as choosing
from clipmill.pipeline.views import files
from clipmill.pipeline.views.files import choose_views, hash_view, random_like
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
    chosen = choose_views(PoolWriter(first), recipe(WIDE, SAME_ROWS, ALL))
    expected = expected_hash(first, "wide")
    assert chosen["wide"].rows_sha256 == chosen["other"].rows_sha256 == expected
    assert chosen["raw"].rows_sha256 == expected_hash(first, "raw") != expected
    assert read_document(PoolLayout(first).view_json("wide"), ViewDocument) == chosen["wide"]
    monkeypatch.setattr(choosing, "THREADS", 1)
    monkeypatch.setattr(files, "HASH_UNIT_SHARDS", 1)
    second = str(tmp_path / "b")
    for shard, start in enumerate(range(39, -1, -4)):
        write_shard(second, shard, given[start : (start - 4 if start >= 4 else None) : -1])
    assert choose_views(PoolWriter(second), recipe(WIDE))["wide"].rows_sha256 == expected
    assert hash_view(second, "wide") == expected


def test_a_large_pool_has_its_hashes_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, has_hash in (("small", True), ("large", False)):
        pool = make_pool(tmp_path / name, rows(40), per_shard=7)
        stored = read_commits(pool).totals.stored
        monkeypatch.setattr(files, "HASHED_ROWS", stored if has_hash else stored - 1)
        document = choose_views(PoolWriter(pool), recipe(ALL))["raw"]
        drawn = random_like(PoolWriter(pool), "raw", [1])["random_like_raw.seed-1"]
        expected = expected_hash(pool, "raw")
        assert document.rows_sha256 == drawn.rows_sha256 == (expected if has_hash else None)
        assert hash_view(pool, "raw") == expected


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
        hashes.append(choose_views(PoolWriter(pool), recipe(ALL))["raw"].rows_sha256)
    assert len(set(hashes)) == 3


def test_a_row_without_a_hash_counts_and_repeats_count_once(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, [*rows(4), *rows(4)], per_shard=4)
    path = read_commits(pool).sidecar(1)
    table = disk.read_parquet(path)
    column = table.column_names.index("sha256")
    disk.write_parquet(path, table.set_column(column, "sha256", [[None, "", "ab" * 32, "x"]]))
    assert choose_views(PoolWriter(pool), recipe(ALL))["raw"].rows_sha256 == _with_unknown(pool)


def _with_unknown(pool: str) -> str:
    records = set()
    for shard in (0, 1):
        for row in disk.read_parquet(PoolLayout(pool).sidecar(shard)).to_pylist():
            known = len(row["sha256"] or "") == 64
            records.add(bytes.fromhex(row["uid"] + (row["sha256"] if known else "0" * 64)))
    return hashlib.sha256(b"".join(sorted(records))).hexdigest()


def test_the_command_and_a_purge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = make_pool(tmp_path / "pool", rows(20))
    expected = choose_views(PoolWriter(pool), recipe(ALL))["raw"].rows_sha256
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
