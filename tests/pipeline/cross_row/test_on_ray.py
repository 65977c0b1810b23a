"""Pool-level filters on Ray: four workers, and workers that are killed in and between the phases,
leave the bytes that one worker leaves.

One kill in each run of the tests, all points where CLIPMILL_CHAOS is set.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from clipmill.manifests import disk, ray_runtime
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline import cross_row
from clipmill.pipeline.executor import tickets
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.scorer import score
from tests.support import self_kills, toy_pool_filters
from tests.support.small_pool import make_pool, rows
from tests.support.trials import EVERYWHERE

pytestmark = [pytest.mark.slow, pytest.mark.ray]
TOYS = Path(toy_pool_filters.__file__)
SHARDS = 4


@pytest.fixture(scope="module")
def on_ray() -> Iterator[None]:
    yield
    ray_runtime.disconnect()


def contents(pool: str) -> dict[str, bytes]:
    """The bundle of each instance."""
    layout = PoolLayout(pool)
    names = disk.list_names(layout.scores)
    return {name.partition("@")[0]: disk.read_bytes(layout.score_bundle(name, 0)) for name in names}


def specs(path: Path, *classes: str) -> list[FilterSpec]:
    return [FilterSpec(name=each.lower(), kind=f"{path}:{each}") for each in classes]


def test_workers_and_killed_workers_leave_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_ray: None
) -> None:
    """The filters come from a file, whose text travels to the workers. A worker that dies once is
    replaced by the same command; where its ticket dies twice, the next command continues."""
    monkeypatch.setattr(cross_row, "PARTITION_BYTES", 2000)
    monkeypatch.setattr(tickets, "RETRY_PAUSE_S", 0.0)
    template = make_pool(tmp_path / "template", rows(16), per_shard=SHARDS)
    whole = str(tmp_path / "whole")
    shutil.copytree(template, whole)
    assert score(PoolWriter(whole), specs(TOYS, "Often", "Near"), engine="inline")["failed"] == {}
    expected = contents(whole)
    assert sorted(expected) == ["near", "often"]
    points = [("publish", 2)]
    if EVERYWHERE:
        points += [(point, 1) for point in self_kills.POINTS]
        points += [("route", 2), ("judge_groups", 2), ("gather", 2)]
    # Without a mark no worker dies: that is the undisturbed run of four workers.
    for point, times in [("nowhere", 0), *points]:
        folder = tmp_path / f"{point}-{times}"
        pool, marks = str(folder / "pool"), folder / "marks"
        shutil.copytree(template, pool)
        self_kills.mark(marks, point, times)
        self_kills.write_filters(folder / "mine.py", TOYS.read_text(), marks)
        classes = ["Near"] if self_kills.of_linked_filters(point) else ["Often"]
        given = specs(folder / "mine.py", *(classes if times else ["Often", "Near"]))
        report = score(PoolWriter(pool), given, engine="ray")
        assert not list(marks.iterdir()), f"no worker came to {point}"
        commands = 1
        if times == 2 and report["failed"]:
            assert all("the worker died" in reason for reason in report["failed"].values())
            report = score(PoolWriter(pool), given, engine="ray")
            commands = 2
        print(f"killed at {point} {times} times: {commands} commands")
        assert report["failed"] == {}, point
        names = {each.name for each in given}
        assert contents(pool) == {
            key: data for key, data in expected.items() if key.partition(" ")[0] in names
        }, point
        assert not (Path(pool) / ".transient").exists()
