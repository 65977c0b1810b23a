"""A pool with hostile captions, numbers of every kind and views, for the tests of its page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.records import ViewDocument
from clipmill.manifests.schema import FilterSpec, Recipe, Rule, Source, View
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring import scorer
from clipmill.pipeline.views.files import choose_views
from tests.support import small_pool

HOSTILE = '</script><img src=x onerror="document.title=1"> a\nnew line \u202eright to left <b>'
ROWS = 60
VIEWS = (
    View(name="raw"),
    View(
        name="basic",
        rules=(
            Rule(name="words", where="caption_words > 2"),
            Rule(name="side", where="original_width >= 200"),
            Rule(name="shape", where="aspect <= 3 AND page_lang IS NULL"),
        ),
    ),
    View(
        name="top", rules=(Rule(name="wide", where="original_width >= top(original_width, 0.3)"),)
    ),
    View(name="drawn", rules=(Rule(name="random", random_like="basic", seed=1),)),
)


def recipe(views: tuple[View, ...] = VIEWS) -> Recipe:
    source = Source(kind="wat", paths=("x",))
    return Recipe(name="r", source=source, filters=(FilterSpec(name="caption"),), views=views)


def rows(count: int = ROWS) -> list[small_pool.Row]:
    given = small_pool.rows(count)
    if count > 2:
        given[1] = small_pool.Row(caption=HOSTILE, width=333)
        given[2] = small_pool.Row(caption="a damaged image of a cat", image=b"\xff\xd8\xff nothing")
    return given


def make(folder: Path, count: int = ROWS, views: tuple[View, ...] = VIEWS) -> str:
    """A pool of `count` attempts in shards of 10, scored by `caption`, with views."""
    pool = small_pool.make_pool(folder, rows(count))
    choose(pool, views)
    return pool


def choose(pool: str, views: tuple[View, ...] = VIEWS) -> dict[str, ViewDocument]:
    scorer.score(PoolWriter(pool), recipe().filters, engine="inline")
    return choose_views(PoolWriter(pool), recipe(views))


def sidecars(pool: str) -> pa.Table:
    commits = read_commits(pool)
    paths = [commits.sidecar(shard) for shard in commits.shards.tolist()]
    return pa.concat_tables([disk.read_parquet(path) for path in paths])


def cells(html: str, caption: str) -> list[list[str]]:
    """The cells of the table with a caption, as text without tags."""
    start = html.index(f"<caption>{caption}")
    body = html[html.index("<tbody>", start) : html.index("</table>", start)]
    lines = re.findall(r"<tr>(.*?)</tr>", body)
    return [[re.sub(r"<.*?>", "", c) for c in re.findall(r"<td.*?>(.*?)</td>", x)] for x in lines]


def number(text: Any) -> int:
    return int(str(text).replace(",", ""))
