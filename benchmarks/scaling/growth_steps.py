"""The steps of benchmarks/growth.py: what is made before the clock starts, and what is timed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.fetching import crawl as wats
from benchmarks.filtering import pool_scores
from benchmarks.filtering import scoring as scorers
from benchmarks.pools import explain, look
from benchmarks.scaling import index as indexes
from clipmill.manifests.commits import Commits, read_commits, update_index
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import FilterSpec, Recipe, Rule, Source, View
from clipmill.pipeline.audit import row_index
from clipmill.pipeline.audit.integrity import audit_pool
from clipmill.pipeline.export import export_view
from clipmill.pipeline.look.page import Bounds, page_data, render
from clipmill.pipeline.look.survey import survey_pool
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.views.files import choose_views
from clipmill.train.mixture.order import Order
from clipmill.train.mixture.schedule import SourceRows
from clipmill.verdict.stats import comparison
from clipmill.verdict.stats.analysis import TaskScores, analyse

Run = Callable[[Path, int], object]
SIZES = (1, 2, 4, 8)
POOL_ROWS = 200_000  # where rules and views grow, and rows do not
SAMPLES = 500  # of a task, where seeds and arms grow


def nothing(folder: Path, count: int = 0) -> None:
    """No input has to be made, nothing has to be removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One kind of work. `base` is 1x, `multiple` what every size is a multiple of.

    `reset` removes what an earlier run has left. `around` is open while all sizes are made and
    measured; it gets the folder that their folders lie in.
    """

    stage: str
    what: str
    unit: str
    base: int
    run: Run
    prepare: Run = nothing
    reset: Callable[[Path], object] = nothing
    around: Callable[[Path], AbstractContextManager[object]] = nullcontext
    sort: bool = False
    multiple: int = 1

    def counts(self, share: float) -> list[int]:
        """The sizes at 1x, 2x, 4x and 8x of a share of the usual work."""
        least = max(1, round(self.base * share / self.multiple)) * self.multiple
        return [least * size for size in SIZES]


# --- crawl ----------------------------------------------------------------------------------------


def make_wat(folder: Path, count: int) -> None:
    wats.make(folder / "pages.warc.wat.gz", count, 0)


def extract(folder: Path, count: int) -> None:
    wats.ours(str(folder / "pages.warc.wat.gz"), str(folder / "out"))


def remove_output(folder: Path) -> None:
    for name in ("out", "out.parquet", "out.npy", "out.json", "README.md"):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


# --- scores ---------------------------------------------------------------------------------------


def make_scored(folder: Path, count: int) -> None:
    """Sidecars with captions and sha256, and a list of entries that the captions have."""
    pool_scores.make_pool(str(folder / "pool"), count)
    entries = [f"thing {number}" for number in range(1000)] + ["a photo", "photo of"]
    (folder / "entries.txt").write_text("\n".join(entries) + "\n")


def forget_scores(folder: Path) -> None:
    shutil.rmtree(Path(PoolLayout(str(folder / "pool")).score_set("x")).parent, ignore_errors=True)


def score_by(spec: FilterSpec, folder: Path) -> None:
    report = score(PoolWriter(str(folder / "pool")), [spec], engine="inline")
    assert not report["failed"], report["failed"]


def caption(folder: Path, count: int) -> None:
    score_by(FilterSpec(name="caption"), folder)


def duplicate(folder: Path, count: int) -> None:
    score_by(FilterSpec(name="duplicate", options={"on": "sha256"}), folder)


def concept(folder: Path, count: int) -> None:
    score_by(FilterSpec(name="concept", options={"entries": str(folder / "entries.txt")}), folder)


def make_matched(folder: Path, count: int) -> None:
    make_scored(folder, count)
    concept(folder, count)


def forget_balance(folder: Path) -> None:
    root = Path(PoolLayout(str(folder / "pool")).score_set("x")).parent
    for path in root.glob("balance@*"):
        shutil.rmtree(path)


def balance(folder: Path, count: int) -> None:
    score_by(FilterSpec(name="balance", options={"t": 20}), folder)


# --- views, page, export --------------------------------------------------------------------------


def make_pool(folder: Path, count: int) -> None:
    look.make_pool(folder, count)


def make_fixed_pool(folder: Path, count: int) -> None:
    look.make_pool(folder, POOL_ROWS)


def forget_views(folder: Path) -> None:
    shutil.rmtree(Path(PoolLayout(str(folder / "pool")).view_json("x")).parent)


def choose(folder: Path, views: tuple[View, ...]) -> None:
    recipe = Recipe(name="look", source=Source(kind="wat", paths=("x",)), views=views)
    choose_views(PoolWriter(str(folder / "pool")), recipe)


def views_of_rows(folder: Path, count: int) -> None:
    choose(folder, look.VIEWS)


def rules(folder: Path, count: int) -> None:
    chosen = tuple(
        Rule(name=f"rule_{n}", where=f"score_{n % look.SCORES} > {-0.5 - n / 1000}")
        for n in range(count)
    )
    choose(folder, (View(name="many", rules=chosen),))


def many_views(folder: Path, count: int) -> None:
    chosen = []
    for n in range(count):
        rule = Rule(name="rule", where=f"score_{n % look.SCORES} > {0.2 + n / 1000}")
        chosen.append(View(name=f"view_{n}", rules=(rule,)))
    choose(folder, tuple(chosen))


def page(folder: Path, count: int) -> None:
    survey = survey_pool(str(folder / "pool"))
    text = render(survey, page_data(survey, Bounds()))
    assert "<html" in text


def export_parquet(folder: Path, count: int) -> None:
    export_view(str(folder / "pool"), "basic", str(folder / "out.parquet"))


def export_uids(folder: Path, count: int) -> None:
    export_view(str(folder / "pool"), "basic", str(folder / "out.npy"))


# --- rows and shards of a pool --------------------------------------------------------------------


def make_rows(folder: Path, count: int) -> None:
    pool = str(folder / "pool")
    explain.make_pool(pool, count // explain.ROWS_PER_SHARD)
    update_index(pool)


def forget_rows(folder: Path) -> None:
    shutil.rmtree(folder / "pool/index/rows", ignore_errors=True)


def row_table(folder: Path, count: int) -> None:
    row_index.MIN_ROWS = 0
    commits = read_commits(str(folder / "pool"))
    row_index.extend_row_index(
        PoolWriter(commits.pool), Commits.of_records(commits.pool, commits.records())
    )


def make_indexed_rows(folder: Path, count: int) -> None:
    make_rows(folder, count)
    row_table(folder, count)


def look_up(folder: Path, count: int) -> None:
    explain.look_up(str(folder / "pool"), count // explain.ROWS_PER_SHARD, 30)


def make_photos(folder: Path, count: int) -> None:
    jpegs = scorers.jpegs_of(None, 16, 64)
    scorers.build_pool(folder, jpegs, count)


def verify(folder: Path, count: int) -> None:
    counts = audit_pool(str(folder / "pool"), verify_files=True).counts
    assert counts is not None
    assert counts.fetch.stored == count


# --- blends ---------------------------------------------------------------------------------------


def sources(count: int, shards: int) -> list[SourceRows]:
    rows = np.random.default_rng(0).integers(5_000, 10_000, shards)
    return [SourceRows(name=f"p{n}/all", weight=1.0, shard_rows=rows) for n in range(count)]


def order_of_shards(folder: Path, count: int) -> None:
    order = Order(sources(2, count), 4096)
    order.batch(0)
    order.fingerprint()


def order_of_ranks(folder: Path, count: int) -> None:
    """What one rank of `count` computes for 64 steps of 24 samples a rank."""
    order = Order(sources(2, 20_000), 24 * count, lanes=8)
    for step in range(64):
        order.batch(step, range(24))


def order_of_lanes(folder: Path, count: int) -> None:
    order = Order(sources(2, 20_000), 8192, lanes=count)
    for step in range(16):
        order.batch(step)


def order_of_sources(folder: Path, count: int) -> None:
    order = Order(sources(count, 500), 8192)
    for step in range(16):
        order.batch(step)


# --- statistics -----------------------------------------------------------------------------------


def analysis(arms: int, seeds: int) -> None:
    random = np.random.default_rng(0)
    names = ["baseline", *(f"arm_{n}" for n in range(arms))]
    samples = {
        name: {seed: random.random(SAMPLES) < 0.4 for seed in range(seeds)} for name in names
    }
    values = {
        name: {seed: float(right.mean()) for seed, right in of.items()}
        for name, of in samples.items()
    }
    groups = {name: {seed: [right] for seed, right in of.items()} for name, of in samples.items()}
    tasks = {"task": TaskScores(values=values, samples=groups)}
    analyse(tasks, "baseline", arms=names[1:], band=0.005)


def forget_integrals(folder: Path) -> None:
    """A repeat computes the quantiles of Dunnett's distribution as the first run does."""
    for value in vars(comparison).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def seeds_of_study(folder: Path, count: int) -> None:
    analysis(6, count)


def arms_of_study(folder: Path, count: int) -> None:
    analysis(count, 5)


STEPS = {
    "crawl": Step(
        stage="crawl", what="pages of a WAT", unit="pages", base=1_000,
        prepare=make_wat, run=extract, reset=remove_output,
    ),
    "score": Step(
        stage="score", what="rows, filter `caption`", unit="rows", base=50_000,
        prepare=make_scored, run=caption, reset=forget_scores,
    ),
    "concept": Step(
        stage="score", what="rows, filter `concept`", unit="rows", base=50_000,
        prepare=make_scored, run=concept, reset=forget_scores,
    ),
    "duplicate": Step(
        stage="score", what="rows, filter `duplicate` over the pool", unit="rows", base=100_000,
        prepare=make_scored, run=duplicate, reset=forget_scores, sort=True,
    ),
    "balance": Step(
        stage="score", what="rows, filter `balance` over the pool", unit="rows", base=100_000,
        prepare=make_matched, run=balance, reset=forget_balance,
    ),
    "views": Step(
        stage="choose", what="rows", unit="rows", base=200_000,
        prepare=make_pool, run=views_of_rows, reset=forget_views,
    ),
    "rules": Step(
        stage="choose", what="rules of a view", unit="rules", base=24,
        prepare=make_fixed_pool, run=rules, reset=forget_views,
    ),
    "many_views": Step(
        stage="choose", what="views", unit="views", base=6,
        prepare=make_fixed_pool, run=many_views, reset=forget_views,
    ),
    "look": Step(
        stage="look", what="rows, the page", unit="rows", base=200_000, prepare=make_pool, run=page,
    ),
    "export": Step(
        stage="export", what="rows, Parquet", unit="rows", base=100_000,
        prepare=make_pool, run=export_parquet, reset=remove_output,
    ),
    "export_uids": Step(
        stage="export", what="rows, uids as .npy", unit="rows", base=200_000,
        prepare=make_pool, run=export_uids, reset=remove_output, sort=True,
    ),
    "row_table": Step(
        stage="explain", what="rows, the table of rows", unit="rows", base=200_000,
        prepare=make_rows, run=row_table, reset=forget_rows, sort=True,
        multiple=explain.ROWS_PER_SHARD,
    ),
    "explain": Step(
        stage="explain", what="rows, 30 look-ups", unit="rows", base=200_000,
        prepare=make_indexed_rows, run=look_up, multiple=explain.ROWS_PER_SHARD,
    ),
    "read_index": Step(
        stage="pool", what="shards, index read", unit="shards", base=100_000,
        prepare=indexes.prepare, run=indexes.read_index,
    ),
    "pool_json": Step(
        stage="pool", what="shards, counts and pool.json", unit="shards", base=100_000,
        prepare=indexes.prepare, run=indexes.pool_json,
    ),
    "audit": Step(
        stage="audit", what="shards, counts only", unit="shards", base=100_000,
        prepare=indexes.prepare, run=indexes.audit,
    ),
    "verify": Step(
        stage="audit", what="images, every file read", unit="images", base=1_000,
        prepare=make_photos, run=verify,
    ),
    "open_view": Step(
        stage="loader", what="shards, a view opened", unit="shards", base=100_000,
        prepare=indexes.prepare, run=indexes.open_view,
    ),
    "order_shards": Step(
        stage="blend", what="shards, order and first batch", unit="shards", base=200_000,
        run=order_of_shards,
    ),
    "order_ranks": Step(
        stage="blend", what="ranks, positions of one rank", unit="ranks", base=125,
        run=order_of_ranks,
    ),
    "order_lanes": Step(
        stage="blend", what="lanes, 16 batches", unit="lanes", base=32, run=order_of_lanes,
    ),
    "order_sources": Step(
        stage="blend", what="sources, 16 batches", unit="sources", base=8, run=order_of_sources,
    ),
    "seeds": Step(
        stage="statistics", what="seeds of 6 arms", unit="seeds", base=80, run=seeds_of_study,
        reset=forget_integrals,
    ),
    "arms": Step(
        stage="statistics", what="arms of 5 seeds", unit="arms", base=32, run=arms_of_study,
        reset=forget_integrals,
    ),
}  # fmt: skip
