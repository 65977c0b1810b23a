"""Columns of a set are read for the rows that they were made of, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from manifests.aligned import AlignedFiles
from manifests.commits import read_commits
from manifests.schema import FilterSpec
from pipeline.pool.score_columns import ScoreColumns, read_scores
from pipeline.scoring.score_sets import score_set
from pipeline.scoring.scorer import score
from tests.support.small_pool import make_pool, rows, write_shard

CAPTION = FilterSpec(name="caption")


def test_columns_of_the_rows_and_of_others(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "a", rows(20))
    score(pool, [CAPTION], engine="inline")
    name, document = score_set(pool, CAPTION)
    commits = read_commits(pool)
    table = ScoreColumns(commits, name, document).read(1, ["caption_words"])
    files = AlignedFiles.of_scores(pool, name)
    assert read_scores(files, commits.record(1), ["caption_words"]).equals(table)
    assert table.num_rows == 10
    other = read_commits(make_pool(tmp_path / "b", rows(19)))
    with pytest.raises(ValueError, match=r"does not have the columns of shard 00001 as it is"):
        read_scores(files, other.record(1), ["caption_words"])
    (tmp_path / "b" / "scores").symlink_to(tmp_path / "a" / "scores")
    of_others = replace(document, fingerprint=other.fingerprint)
    with pytest.raises(ValueError, match="does not have the columns of shard 00001 as it is"):
        ScoreColumns(other, name, of_others).read(1, ["caption_words"])
    write_shard(pool, 2, list(enumerate(rows(3), start=20)))
    grown = read_commits(pool)
    with pytest.raises(ValueError, match="does not have the columns of shard 00002"):
        read_scores(files, grown.record(2), ["caption_words"])
    with pytest.raises(ValueError, match=f"scores {name} are of other shards; score it again"):
        ScoreColumns(grown, name, document)
