"""A small pool with scores and a view, for the tests of exports."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from clipmill.filters.caption import Caption
from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import FilterSpec, Recipe, Rule, Source, View
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.views.files import choose_views
from tests.support.small_pool import Row, make_pool, rows

COLUMNS = set(Caption.adds)
FILTERS = (FilterSpec(name="caption"),)
WIDE = View(name="wide", rules=(Rule(name="wide", where="original_width >= 200"),))
RECIPE = Recipe(
    name="r", source=Source(kind="files", paths=("x.csv",)), filters=FILTERS, views=(WIDE,)
)
# What a CSV, a spreadsheet or a tar may stumble over.
CAPTIONS = (
    'a "quoted" dog, and a comma', "two\nlines\r\nof text", "=SUM(A1:A9)", "@cmd|' /C calc'!A0",
    "", "Größe: 中文 \U0001f436", "  spaces  ", "a;b\tc",
)  # fmt: skip


def exported_pool(folder: Path) -> str:
    """48 attempts in 6 shards, scored by `caption`, with the view `wide`."""
    given = rows(48)
    for number, caption in enumerate(CAPTIONS):
        given[20 + number] = Row(caption=caption, width=300 + number)
    pool = make_pool(folder, given, per_shard=8)
    score(PoolWriter(pool), FILTERS, engine="inline")
    choose_views(PoolWriter(pool), RECIPE)
    return pool


def kept_samples(pool: str, view: str = "wide") -> dict[str, dict[str, bytes]]:
    """uid -> {ending of a member: its bytes} of the kept rows, read from the pool's tars."""
    samples = {}
    commits = read_commits(pool)
    for shard in commits.shards.tolist():
        mask = (
            AlignedFiles.of_view(PoolLayout(pool), view)
            .read(shard, ["kept"])[0]["kept"]
            .to_pylist()
        )
        members = tar_members(commits.tar(shard))
        for row, kept in zip(
            disk.read_parquet(commits.sidecar(shard)).to_pylist(), mask, strict=True
        ):
            if kept:
                samples[row["uid"]] = members[row["key"]]
    return samples


def without_scores(samples: dict[str, dict[str, bytes]]) -> dict[str, dict[str, Any]]:
    """Exported samples with their JSON as a mapping, less the columns of `caption`."""
    plain: dict[str, dict[str, Any]] = {}
    for name, members in samples.items():
        values = json.loads(members["json"])
        plain[name] = {**members, "json": {k: v for k, v in values.items() if k not in COLUMNS}}
    return plain


def tar_members(path: str) -> dict[str, dict[str, bytes]]:
    """Name of a sample -> {ending: bytes}."""
    samples: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            name, _, ending = member.name.partition(".")
            file = tar.extractfile(member)
            assert file is not None
            samples.setdefault(name, {})[ending] = file.read()
    return samples
