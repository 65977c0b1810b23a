"""A report as the page shows it, made by hand; and what a pool lacks for a report."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from clipmill.manifests import disk
from clipmill.manifests.commits import Commits, read_commits
from clipmill.manifests.layout import SHARD_VERSION, CommitRecord, PoolLayout, uids_checksum
from clipmill.manifests.records import (
    FetchCounts,
    FinalCounts,
    PoolDocument,
    ScoreSetDocument,
    ShardTable,
    Threshold,
    ViewDocument,
    ViewRule,
    read_document,
)
from clipmill.manifests.schema import Role
from clipmill.study.data import KEPT, ArmView, PoolColumns
from clipmill.verdict.pages import schema
from clipmill.verdict.stats.comparison import Comparison, Verdict
from tests.support.bundles import write_scores

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="


def seed_values(mean: float) -> schema.SeedValues:
    values = {"0": mean - 0.01, "1": mean, "2": mean + 0.01}
    return schema.SeedValues(mean=mean, sd=0.01, values=values)


def arm_report(name: str, role: Role, mean: float) -> schema.ArmReport:
    return schema.ArmReport(
        arm=name,
        role=role,
        view=f"web/{name}",
        rows=1200,
        share=0.3,
        drawn=6400,
        repeats=5.33,
        metrics={"objects": seed_values(mean)},
        missing=(),
        device_seconds=82.0,
    )


def run_row(name: str, seed: int, value: float) -> schema.RunRow:
    return schema.RunRow(
        arm=name,
        seed=seed,
        model="micro",
        batch_size=128,
        samples_seen=6400,
        value=value,
        low=value - 0.02,
        high=value + 0.02,
    )


def comparison(arm: str, baseline: str, verdict: Verdict = "better") -> Comparison:
    return Comparison(
        arm=arm,
        baseline=baseline,
        seeds=(0, 1),
        n=2,
        difference=0.041,
        sd=0.01,
        df=4.0,
        headline="seeds and samples",
        low=0.029,
        high=0.053,
        low90=0.03,
        high90=0.05,
        low_seeds=0.031,
        high_seeds=0.051,
        low_samples=0.029,
        high_samples=0.053,
        p=0.002,
        p_adjusted=0.004,
        adjustment="Dunnett",
        p_equal=0.9,
        band=0.01,
        verdict=verdict,
        task="objects",
        metric="accuracy",
    )


def with_task(report: schema.Report, **changes: object) -> schema.Report:
    """The report with another result of its task."""
    task = dataclasses.replace(report.primary, **changes)  # type: ignore[arg-type]
    return with_results(report, tasks={task.task: task})


def with_results(report: schema.Report, **changes: object) -> schema.Report:
    changed = dataclasses.replace(report.results, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(report, results=changed)


# Every section, with text that must be escaped.
REPORT = """
ablation:
  name: demo
  question: Does it help?
  arms: {raw: {predictions: "raw/{seed}-{task}"}, clip30: {predictions: "clip30/{seed}-{task}"}}
  baseline: raw
  seeds: [0, 1, 2]
  evaluate: [{name: objects, kind: classification}]
  primary: objects
results:
  headline: "On objects, better than raw: clip30 +4.1 [+2.9, +5.3] points."
  verdict: "clip30 is better than raw on objects: +4.1 points."
  tasks:
    objects:
      {task: objects, metric: accuracy, unit: share, own_sd: 0.009, own_df: 4.0, sd: 0.011,
       df: 10.0, floor_sd: 0.004, drawing_sd: 0.002, comparisons: [], controls: [], a_a: null,
       power: {smallest: 0.029, half: 0.0145, seeds_for_half: 11}, samples: 640, chance: 0.015625,
       range: {best: 0.341, near: null, at_chance: false, band: 0.01}, mcnemar: {clip30: 0.01}}
  average: null
  other_metrics: []
  failed: []
  incomplete: {}
  rounds: []
  earlier_looks: []
  scorer: null
  overlap: {objects: 0}
  near_overlap: {objects: 3}
  arm_overlap: {objects: {raw: 3, clip30: 0}}
samples_seen: 6400
arms: []
runs: []
changes:
  - {arm: clip30, task: objects, parts: {class: 64}, gained: 12, lost: 3,
     whole: {kind: all, name: all samples, samples: 640, baseline: 0.3, arm: 0.341},
     changes: [{kind: class, name: red <star>, samples: 16, baseline: 0.25, arm: 0.5, low: 0.1,
                high: 0.4, share: 0.15, verdict: better}],
     confusions: [{label: red <star>, predicted: fish, baseline: 8.0, arm: 2.5}],
     shown: [{sample: star/1.jpg, label: red <star>, arm_answer: red <star>, arm_right: 1.0,
              baseline_answer: red fish, baseline_right: 0.333, image: PIXEL},
             {sample: star/1.jpg, label: red <star>, arm_answer: red <star>, arm_right: 1.0,
              baseline_answer: red fish, baseline_right: 0.333, image: null}]}
gaps: []
curves: [{arm: raw, seed: 0, points: [[128, 4.8, 0.01], [256, 4.1, 0.05]]}]
funnels: [{title: web, steps: [[links, 100], [stored, 80]], reasons: {dns: 20}}]
histograms:
  - {pool: web, column: clip_score, edges: [0.0, 0.1, 0.2], marks: {clip30: 0.1},
     counts: {stored: [10, 20], clip30: [0, 12]}, divergence: {clip30: 1.25}}
contract:
  runs: 9
  config_hash: c0ffee
  rows:
    - {setting: model, value: micro, by_arm: {}, main: true}
    - {setting: lr, value: null, by_arm: {raw: "0.1", clip30: "0.2"}, main: true}
    - {setting: eps, value: "1e-06", by_arm: {}, main: false}
  blends: {raw: b1e4d, clip30: b1e4e}
rules: [{pool: web, view: basic, stored: 80, rules: [[words, 40, 8], [cast, null, null]]}]
categories:
  - {pool: web, column: host of the image, values: 2, labels: [host <a>, all others],
     counts: {stored: [60, 20], clip30: [10, 2]}, divergence: {clip30: 0.02}, sampled_rows: 2000}
duplicates:
  - {pool: web, key: byte for byte, labels: ["1", 2 or more], sampled_rows: 2000,
     groups: {stored: [70, 5], clip30: [12, 0]}}
safety:
  - {pool: web, column: punsafe, meaning: above 0.5, sampled_rows: null,
     counts: {stored: [20, 80], clip30: [0, 12]}}
signals:
  - task: objects
    deciding: accuracy
    rows:
      - &signal
        {metric: accuracy5, arms: 2, seeds: 3, higher_is_better: true, best: clip30, spread: 0.041,
         noise: 0.01, ratio: {value: 6.2, low: 2.0, high: 9.0}, single_agreement: 0.75,
         half_agreement: 1.0}
      - {<<: *signal, metric: accuracy, ratio: {value: 4.1, low: 2.0, high: 9.0}}
scales:
  - {task: objects, metric: logprob_t, truth: [objects, accuracy], small: "3200", large: "12800",
     seeds: 3, cost: 0.25, agreement: &alike {pairs: 6, alike: 5, left_out: 0,
     share: {value: 0.83, low: 0.5, high: 1.0}}, clear: *alike, stated: null, bins: [],
     probability: 0.8, with_shift: true, seeds_for_sure: 9}
gallery:
  - pool: web
    view: clip30
    kept: [&shot {image: PIXEL, caption: a <red> star & more, score: 0.25, rule: clip<1}]
    near: [*shot]
    rejected: [*shot]
overlap: {arms: [raw, clip30], jaccard: [[1.0, 0.3], [0.3, 1.0]]}
null_web: null
costs: [[fetch, 12.5], [train, 100.0]]
settings: {Rules of the views: "web/clip30:\\n- clip: clip_score >= top(clip_score, 0.3)\\n"}
provenance: {facts: {ablation: abc}, files: [[runs/raw/seed-0/run.json, ff]]}
"""
OPTIONAL = (
    "runs", "changes", "costs", "curves", "funnels", "histograms", "gallery", "rules", "categories",
    "duplicates", "safety", "signals", "scales",
)  # fmt: skip


def sample_report() -> schema.Report:
    """A report that fills every section."""
    plain = yaml.safe_load(REPORT.replace("PIXEL", f"'{PIXEL}'"))
    report: schema.Report = disk.from_plain(schema.Report, plain)
    report = dataclasses.replace(
        report,
        arms=(
            arm_report("raw", "baseline", 0.3),
            arm_report("clip30", "arm", 0.341),
            arm_report("random_like_clip30", "random", 0.3),
        ),
        runs=(run_row("raw", 0, 0.29), run_row("clip30", 0, 0.331)),
        changes=(*report.changes, dataclasses.replace(report.changes[0], arm="random_like_clip30")),
    )
    report = with_task(
        report,
        comparisons=(comparison("clip30", "raw"),),
        controls=(comparison("clip30", "random_like_clip30"),),
        a_a=comparison("a_a", "raw", "not distinguishable"),
    )
    null = with_results(report, verdict="null: not distinguishable.")
    return dataclasses.replace(report, null_web=null)


def empty_report() -> schema.Report:
    """The same without controls, curves, images, costs and anything optional."""
    report = with_task(sample_report(), a_a=None, controls=(), power=None)
    absent: dict[str, Any] = dict.fromkeys(OPTIONAL, ())
    arms = tuple(dataclasses.replace(arm, device_seconds=None) for arm in report.arms)
    report = with_results(report, overlap={}, near_overlap={})
    return dataclasses.replace(
        report, **absent, arms=arms, null_web=None, settings={}, contract=None
    )


def given_report() -> schema.Report:
    """A report of which only the predictions are known: no pool, no training."""
    report = empty_report()
    arms = []
    for arm in report.arms[:2]:
        arms.append(dataclasses.replace(arm, view="", rows=0, share=0.0, drawn=None, repeats=None))
    return dataclasses.replace(
        report,
        arms=tuple(arms),
        samples_seen=None,
        overlap=schema.Overlap(arms=(), jaccard=()),
        runs=(dataclasses.replace(run_row("raw", 0, 0.29), model=None),),
    )


# --- views ---------------------------------------------------------------------------------------


def commit_record(rows: int) -> CommitRecord:
    return CommitRecord.from_plain(
        {
            **dict.fromkeys(("tar_sha256", "sidecar_file_sha256", "sidecar_sha256"), "0" * 64),
            "tar": "00000.tar",
            **dict.fromkeys(("tar_bytes", "failed_to_download", "failed_to_resize", "retries"), 0),
            "shard": "00000",
            "count": rows,
            "successes": rows,
            "reasons": {},
            "sidecar_bytes": 0,
            "task": "",
            "group": "",
            "version": SHARD_VERSION,
            "duration_s": 0.0,
            "adopted": False,
        }
    )


def view_by_hand(arm: str, kept: list[bool], path: str = "/p") -> ArmView:
    """A view of one shard whose rows are all stored; its files do not exist."""
    document = ViewDocument(
        name=arm, rules=(), thresholds={}, funnel=(), kept=sum(kept), fingerprint="", scores={},
        shards=ShardTable(file="shards-0.parquet", count=1, sha256=""),
    )  # fmt: skip
    mask = np.array(kept)
    commits = Commits.of_records(path, [commit_record(len(kept))])
    return ArmView(
        arm=arm, pool="web", path=path, view=arm, document=document, kept=mask,
        columns=PoolColumns(path=path, commits=commits),
        stored=np.ones(len(kept), dtype=bool), failed=np.where(mask, KEPT, 0).astype(np.int16),
        outcomes=("x",),
    )  # fmt: skip


# --- a pool --------------------------------------------------------------------------------------


def complete_pool(pool: str, view: str = "half") -> None:
    """Give a trainer's test pool what a report reads: pool.json, a CLIP score, rules of a view."""
    layout = PoolLayout(pool)
    rows = 0
    shards: dict[int | str, tuple[pa.Table, dict[str, Any]]] = {}
    for name in disk.list_names(layout.shards, "_stats.json"):
        shard = name.removesuffix("_stats.json")
        uids = disk.read_parquet(layout.sidecar(shard), ["uid"])["uid"]
        scores = pa.table({"clip_score": pa.array(np.linspace(0.1, 0.4, len(uids)))})
        shards[shard] = scores, {"uids": uids_checksum(uids)}
        rows += len(uids)
    write_scores(pool, "clip_score@ab", shards)
    score_set = ScoreSetDocument(
        name="clip_score",
        id="ab",
        version=1,
        options={},
        identity="",
        columns=("clip_score",),
        fingerprint=read_commits(pool).fingerprint,
        rows=rows,
        stored=rows,
        scored=rows,
        seconds=0.0,
    )
    disk.write_json(layout.score_set_json("clip_score@ab"), score_set)
    document = read_document(layout.view_json(view), ViewDocument)
    threshold = Threshold(value=0.25, asked=0.5, share=0.5, kept=rows // 2, rows=rows)
    document = dataclasses.replace(
        document,
        rules=(ViewRule(name="clip", where="clip_score >= top(clip_score, 0.5)"),),
        thresholds={"top(clip_score, 0.5)": threshold},
        funnel=(("attempted", rows), ("stored", rows), ("clip", document.kept)),
        scores={"clip_score": "clip_score@ab"},
        rows_sha256="ab" * 32,
    )
    disk.write_json(layout.view_json(view), document)
    fetched = FetchCounts(
        shards=len(shards),
        planned=len(shards),
        attempted=rows,
        retries=0,
        stored=rows,
        reasons={},
        classes={},
        final=FinalCounts(stored=rows, reasons={}),
        bytes=0,
    )
    pool_document = PoolDocument(
        crawl=None,
        fetch=fetched,
        scores={},
        views={},
        complete=True,
        problems=(),
        recipe="web",
        recipe_hash="ab",
        source="files",
        fingerprint="",
        seconds={},
        task_seconds=0.0,
        versions={},
    )
    disk.write_json(layout.pool_json, pool_document)
