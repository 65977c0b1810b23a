"""A build whose lease is taken over in the middle of a stage: it publishes nothing more, says so,
and the next build ends with the same pool."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Recipe, Rule, Source, View
from clipmill.pipeline import recipe_run
from clipmill.pipeline.audit.integrity import verify
from clipmill.pipeline.crawl.crawler import crawl
from clipmill.pipeline.pool.lease import LeaseLost, LeaseRecord, PoolWriter, hold_lease
from tests.support import audited

# Stage, module and name of what does the work of a ticket, or all work of the stage.
PLACES = (
    ("crawl", "clipmill.pipeline.crawl.crawler", "extract"),
    ("crawl", "clipmill.pipeline.crawl.crawler", "scatter"),
    ("crawl", "clipmill.pipeline.crawl.crawler", "gather"),
    ("crawl", "clipmill.pipeline.crawl.crawler", "write"),
    ("plan", "clipmill.pipeline.planning.planner", "sort_pairs"),
    ("plan", "clipmill.pipeline.planning.planner", "merge_runs"),
    ("fetch", "clipmill.pipeline.recipe_run", "Downloader"),
    ("score", "clipmill.pipeline.scoring.scorer", "ScoreWorker"),
    ("choose", "clipmill.pipeline.views.files", "choose_parts"),
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    view = View(name="wide", rules=(Rule(name="wide", where="original_width > 32"),))
    return audited.local_recipe(tmp_path_factory.mktemp("local"), 7, views=(view,))


@pytest.fixture(scope="module")
def undisturbed(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    whole = str(tmp_path_factory.mktemp("whole") / "pool")
    recipe_run.build(recipe, whole, engine="inline")
    return comparable(whole)


def take_over(pool: str) -> None:
    """What another command leaves that found the lease too old."""
    path = PoolLayout(pool).lease_json
    record: LeaseRecord = disk.from_plain(LeaseRecord, disk.read_json(path))
    taken = dataclasses.replace(record, fence=record.fence + 1, expires=time.time() + 60)
    disk.write_json(path, taken)


def give_back(pool: str) -> None:
    path = PoolLayout(pool).lease_json
    record: LeaseRecord = disk.from_plain(LeaseRecord, disk.read_json(path))
    disk.write_json(path, dataclasses.replace(record, owner=None, expires=0.0))


def files(pool: str) -> dict[str, bytes]:
    """Every file that is not scratch space, without the lease and progress.json, which is no part
    of the pool.
    """
    found = {}
    for path in Path(pool).rglob("*"):
        name = str(path.relative_to(pool))
        if path.is_file() and not name.startswith(("lease", "progress", ".")) and "/." not in name:
            found[name] = path.read_bytes()
    return found


def comparable(pool: str) -> dict[str, Any]:
    """Names of the files, and the hashes that commit records have of rows and images."""
    records = [(r.tar_sha256, r.sidecar_sha256, r.tar) for r in read_commits(pool).records()]
    names = [name for name in files(pool) if not name.startswith("index")]
    return {"names": sorted(names), "records": records}


class Thief:
    """Takes the lease over when the work that it stands for begins, once."""

    real: Callable[..., Any]
    pool = ""
    before: dict[str, bytes] | None = None  # the files at that moment

    @classmethod
    def take(cls) -> None:
        if cls.before is None:
            take_over(cls.pool)
            cls.before = files(cls.pool)


class StolenWork:
    """The work of a ticket, begun with a lease that is lost then."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.work = Thief.real(config)

    def __call__(self, ticket: Any) -> Any:
        Thief.take()
        return self.work(ticket)

    def close(self) -> None:
        if hasattr(self.work, "close"):
            self.work.close()


def stolen_choice(*args: Any, **options: Any) -> Any:
    result = Thief.real(*args, **options)
    Thief.take()
    return result


@pytest.mark.parametrize(("stage", "module", "name"), PLACES)
def test_nothing_is_published_after_the_lease_is_lost(
    recipe: Recipe,
    undisturbed: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    module: str,
    name: str,
) -> None:
    pool = str(tmp_path / "pool")
    with monkeypatch.context() as patch:
        place = importlib.import_module(module)
        patch.setattr(Thief, "real", staticmethod(getattr(place, name)), raising=False)
        patch.setattr(Thief, "pool", pool)
        patch.setattr(Thief, "before", None)
        patch.setattr(place, name, stolen_choice if stage == "choose" else StolenWork)
        with pytest.raises(LeaseLost, match="was taken over"):
            recipe_run.build(recipe, pool, engine="inline")
        assert Thief.before is not None, "the stage did not run"
        assert files(pool) == Thief.before
    give_back(pool)
    recipe_run.build(recipe, pool, engine="inline")
    assert verify(pool) == []
    assert comparable(pool) == undisturbed


def test_the_same_content_is_published_twice_and_another_one_is_not(tmp_path: Path) -> None:
    pool, path = str(tmp_path / "pool"), str(tmp_path / "pool/file")
    staged = tmp_path / "staged"
    staged.write_bytes(b"content")
    with hold_lease(pool, create=True) as out:
        out.publish_new(staged, path)
        staged.write_bytes(b"what is staged next")
        assert disk.read_bytes(path) == b"content"
        out.publish_new(b"content", path)
        with pytest.raises(FileExistsError, match="another content"):
            out.publish_new(b"other", path)
        take_over(pool)
        with pytest.raises(LeaseLost):
            out.publish_new(b"content", path)


def test_parts_that_an_unfinished_crawl_of_other_pairs_left_are_replaced(
    tmp_path: Path,
) -> None:
    pool = str(tmp_path / "pool")
    for part, text in enumerate(("a", "b")):
        (tmp_path / f"{part}.csv").write_text(f"url,caption\nhttp://h.test/{text}.jpg,{text}\n")
    source = Source(kind="table", paths=tuple(str(tmp_path / f"{i}.csv") for i in range(2)))
    crawl(source, PoolWriter(pool), "inline")
    Path(PoolLayout(pool).pairs_part(1)).unlink()
    Path(PoolLayout(pool).parts).unlink()
    path = PoolLayout(pool).pairs_part(0)
    disk.write_parquet(
        path, disk.read_parquet(path), {**disk.read_metadata(path), "job": "another"}
    )
    assert crawl(source, PoolWriter(pool), "inline")["pairs"] == 2
    assert disk.read_metadata(path)["job"] != "another"


def test_columns_that_another_worker_wrote_meanwhile_stay(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = str(tmp_path / "pool")
    recipe_run.build(recipe, pool, engine="inline", until="fetch")
    create, written = disk.create_bytes, []

    def second(path: Any, data: bytes) -> None:
        if "/scores/" in str(path) and path not in written:
            # The same columns, written at another moment: `seconds` is another one
            create(path, data)
            table, metadata = disk.read_parquet(path), disk.read_metadata(path)
            disk.write_parquet(path, table, {**metadata, "seconds": 12345.0})
            written.append(path)
        create(path, data)

    monkeypatch.setattr(disk, "create_bytes", second)
    recipe_run.build(recipe, pool, engine="inline", until="score")
    assert len(written) == 2
    (name,) = disk.list_names(PoolLayout(pool).scores)
    columns = AlignedFiles.of_scores(PoolLayout(pool), name)
    assert [columns.metadata(shard)["seconds"] for shard in (0, 1)] == [12345.0, 12345.0]
    assert verify(pool) == []
