"""A table of DataComp's metadata as a score set, and rules over its columns."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from clipmill.filters.table import CaptionFile, Table
from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline.metadata_join import MatchCounts
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.scorer import match_line, score
from clipmill.pipeline.views.files import choose_views
from tests.support.chosen import recipe, view
from tests.support.datacomp import write_metadata
from tests.support.small_pool import make_pool, rows, write_shard


def uids_of(pool: str) -> list[str]:
    commits = read_commits(pool)
    tables = [disk.read_parquet(commits.sidecar(int(shard))) for shard in commits.shards]
    return [uid for table in tables for uid in table["uid"].to_pylist()]


def test_scores_and_a_subset_of_datacomp_as_rules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(tmp_path / "pool", rows(30))
    uids = uids_of(pool)
    write_metadata(tmp_path / "meta", "0", uids[::-1])
    listed = sorted(uids[::3])
    pairs = [(int(uid[:16], 16), int(uid[16:], 16)) for uid in [*listed, "ff" * 16]]
    np.save(tmp_path / "subset.npy", np.array(pairs, "u8,u8"))
    take = {"l14": "clip_l14_similarity_score:float", "l14_img": "fp16[8]"}
    specs = (
        FilterSpec(name="dc", kind="table", options={"paths": [f"{tmp_path}/meta"], "take": take}),
        FilterSpec(
            name="small_basic",
            kind="table",
            options={"paths": [f"{tmp_path}/subset.npy"], "take": {"listed": "bool"}},
        ),
    )
    with caplog.at_level(logging.INFO):
        report = score(PoolWriter(pool), specs, engine="inline")
    assert not report["failed"]
    assert "uids are not stored" in caplog.text
    name = next(name for name in report["sets"] if name.startswith("dc@"))
    assert report["sets"][name]["scored"] == report["sets"][name]["stored"] == 24
    best = view("best", ("clip", "dc_l14 >= top(dc_l14, 0.5)"))
    in_list = view("listed", ("listed", "small_basic_listed"))
    documents = choose_views(PoolWriter(pool), recipe(best, in_list, filters=specs))
    assert documents["best"].kept == 12
    expected = sum(1 for number in range(0, 30, 3) if number % 5 != 4)
    assert documents["listed"].kept == expected
    before = AlignedFiles.of_scores(PoolLayout(pool), name).read(1)[0]
    assert score(PoolWriter(pool), specs, engine="inline")["sets"] == report["sets"]
    write_shard(pool, 3, list(enumerate(rows(5), start=30)))
    after = score(PoolWriter(pool), specs, engine="inline")["sets"][name]
    assert (after["rows"], after["stored"], after["scored"]) == (35, 28, 24)
    assert AlignedFiles.of_scores(PoolLayout(pool), name).read(1)[0] == before


def test_the_line_names_what_is_missing() -> None:
    counts = MatchCounts(
        table_rows=12, keys=10, pool_rows=20, matched_rows=8, missing=2,
        missing_keys=["aa" * 16, "bb" * 16],
    )  # fmt: skip
    table = Table(paths=("x.parquet",), take={"text": "string"})
    line = match_line("dc@1", counts, table)
    assert "8 of 20 stored rows have one of the 10 uids" in line
    assert "2 table rows repeat a uid" in line
    assert f"2 uids are not stored in these shards ({'aa' * 16}, {'bb' * 16} …)" in line


def test_the_line_says_how_urls_are_spelled() -> None:
    """hypothesis/h#2413: what was joined by URLs has other spellings of them."""
    counts = MatchCounts(table_rows=3, keys=3, pool_rows=3, matched_rows=2, missing=1)
    line = match_line("new@1", counts, CaptionFile(paths=("x.csv",), by="url"))
    assert "1 urls are not stored in these shards in this spelling" in line
    assert "spelling" not in match_line("n@1", counts, CaptionFile(paths=("x.csv",), by="sha256"))


def test_a_table_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", rows(6))
    write_metadata(tmp_path / "meta", "0", uids_of(pool))
    path = tmp_path / "meta" / "0.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    spec = FilterSpec(
        name="dc", kind="table", options={"paths": [str(path)], "take": {"text": "string"}}
    )
    with pytest.raises(OSError, match=r"0\.parquet is damaged"):
        score(PoolWriter(pool), (spec,), engine="inline")
