"""Stored images are followed back to the records that they came from, and what does not fit is
named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline.audit.explain import explain_row, trace_images, trace_lines
from clipmill.pipeline.crawl import crawler
from clipmill.pipeline.planning.plan_files import rows_of_shard
from clipmill.pipeline.pool.lease import PoolWriter
from tests.support import audited, commands, plans, wats

PAGES = 60


def recipe_of(folder: Path) -> Recipe:
    return Recipe(
        name="traced",
        source=Source(kind="wat", paths=tuple(str(path) for path in wat_paths(folder))),
        fetch=Fetch(rows_per_shard=50, user_agent="x/1"),
    )


def wat_paths(folder: Path) -> list[Path]:
    """Two folders whose WATs share a name, and one of another name."""
    return [folder / "a/x.warc.wat.gz", folder / "b/x.warc.wat.gz", folder / "c/y.warc.wat.gz"]


@pytest.fixture
def pool(tmp_path: Path) -> str:
    """A pool of three WATs of 120 pairs each; some rows of it failed."""
    for number, path in enumerate(wat_paths(tmp_path)):
        path.parent.mkdir()
        records = [wats.INFO]
        for page in range(PAGES):
            links = [
                wats.image("/without.gif"),
                wats.image(f"/{number}/{page}-a.jpg", f"first of {page}"),
                wats.image(f"/{number}/{page}-b.jpg", f"second of {page}"),
            ]
            records += wats.page(f"http://p{page}.test/", links)
        path.write_bytes(wats.zipped(records))
    folder = str(tmp_path / "pool")
    recipe = recipe_of(tmp_path)
    assert crawler.crawl(recipe.source, PoolWriter(folder), "inline")["pairs"] == 3 * 2 * PAGES
    for task in plans.planned(folder, recipe):
        audited.write_shard(folder, task)
    disk.write_json(PoolLayout(folder).recipe_json, recipe)
    return folder


def test_every_stored_image_leads_to_its_record(
    pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = trace_images(pool, 1000)
    assert trace.problems == ()
    assert trace.traced == trace.asked > PAGES
    assert trace.archives == 2, "names of files"
    assert commands.audit(["trace", pool, "20", "--json"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "20 of 20 stored images traced from the tar to a record in 2 files"
    assert json.loads(out[-1])["traced"] == 20


def test_an_explanation_names_the_record_and_reads_it(
    tmp_path: Path, pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [pair] = rows_of_shard(PoolLayout(pool), 0)[:1]
    record = f"{pair.wat}, record at byte {pair.warc_offset}, link {pair.link}"
    assert explain_row(pool, pair.uid)["origin"] == f"{record}; read again: it has this link"
    assert commands.audit(["explain", pool, pair.uid]) == 0
    assert f"origin  {record}" in capsys.readouterr().out
    for path in wat_paths(tmp_path):
        path.unlink()
    assert explain_row(pool, pair.uid)["origin"].startswith(f"{record}; not read: source.paths")
    Path(PoolLayout(pool).recipe_json).unlink()
    assert explain_row(pool, pair.uid)["origin"] == record


def test_other_records_are_noticed(
    tmp_path: Path, pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A WAT that another program wrote again, with the same pages in another order."""
    pages = [wats.INFO]
    for page in reversed(range(PAGES)):
        links = [wats.image(f"/2/{page}-a.jpg", f"first of {page}")]
        pages += wats.page(f"http://p{page}.test/", links)
    wat_paths(tmp_path)[2].write_bytes(wats.zipped(pages))
    trace = trace_images(pool, 1000)
    assert 0 < len(trace.problems) == trace.asked - trace.traced
    assert all("y.warc.wat.gz" in problem for problem in trace.problems)
    assert commands.audit(["trace", pool, "1000"]) == 3
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith("WRONG   ")
    assert out[-1] == f"        and {len(trace.problems) - 20} more"
    assert len(list(trace_lines(trace))) == 22


def test_a_tar_with_other_members_is_noticed(pool: str) -> None:
    first, second = sorted(Path(pool, "shards").glob("*.tar"))[:2]
    first.write_bytes(second.read_bytes())
    trace = trace_images(pool, 1000)
    assert any(str(first) in problem for problem in trace.problems)


def test_mistakes(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = PoolLayout(pool).recipe_json

    def message(count: str) -> str:
        assert commands.audit(["trace", pool, count]) == 2
        return capsys.readouterr().err

    assert "of images is 0; it must be at least 1" in message("0")
    disk.write_json(path, Recipe(name="t", source=Source(kind="table", paths=("list.parquet",))))
    assert "made of a source of kind table: only the images of WATs" in message("5")
    Path(path).unlink()
    assert "has no recipe" in message("5")
