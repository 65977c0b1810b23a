"""The history of an ablation: what was asked before its runs and at every verdict, with the date.

history.jsonl in the ablation's folder has one line for each `Look`, the oldest first. Lines are
added and never changed. Verdicts that repeat the last one add nothing.
"""

from __future__ import annotations

import datetime
import itertools
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from clipmill.manifests import disk
from clipmill.manifests.layout import AblationLayout, RunLayout
from clipmill.manifests.metrics import deciding_metric
from clipmill.manifests.records import RunIdentity
from clipmill.manifests.schema import NO_SEED, Ablation
from clipmill.study.arms import all_runs, arm_names, expand_runs, given_runs
from clipmill.train.config import configure
from clipmill.train.evaluation.tasks import data_hash, read_samples
from clipmill.train.identity import differences, run_identity, settings_identity, shared_part
from clipmill.verdict.conclusions import EarlierLook
from clipmill.verdict.measurements import Measurements

ALPHA = 0.05
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One line of history.jsonl.

    date: UTC, such as 2026-01-31T12:00:00Z. state: `begun` before the runs of a manifest that is
    not the last one; else of a verdict: `complete`, or `incomplete` where some run has no result.
    finished: arm -> the seeds that had a result (NO_SEED: an arm that is one model). design: what
    was asked (see `design_of`). results: hash of the metrics of a verdict.
    """

    date: str
    state: Literal["begun", "incomplete", "complete"]
    finished: dict[str, tuple[int, ...]]
    design: dict[str, Any]
    results: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What differs from one manifest of an ablation to the next, after a run had ended."""

    date: str  # UTC
    lines: tuple[str, ...]  # each `key: before -> now`
    runs: int  # that had ended

    @property
    def sentence(self) -> str:
        """The change for a person."""
        day, _, time = self.date.rstrip("Z").partition("T")
        runs = f"{self.runs} runs" if self.runs > 1 else "1 run"
        return (
            f"the design was changed on {day} at {time} UTC, after {runs} had ended: "
            f"{'; '.join(self.lines)}"
        )


def earlier_looks(ablation: Ablation, history: Sequence[Look]) -> tuple[EarlierLook, ...]:
    """The verdicts that were seen before the first one that asked what the ablation asks now.

    Verdicts with other training settings are of other runs and do not count; nor does a verdict
    that was repeated, or one after which runs that had failed were done again.
    """
    settings = _plain_settings(ablation)
    primary = ablation.primary_task
    asked = (tuple(sorted(ablation.seeds)), primary.name, deciding_metric(primary))
    seen: dict[tuple[tuple[int, ...], str, str], EarlierLook] = {}
    for look in history:
        design = look.design
        if look.state == "begun" or design["train"] != settings:
            continue
        task = design["primary"]
        question = (tuple(sorted(design["seeds"])), task, design["tasks"][task]["metric"])
        if question == asked:
            break
        one = EarlierLook(date=look.date, seeds=question[0], task=task, metric=question[2])
        seen.setdefault(question, one)
    return tuple(seen.values())


def _plain_settings(ablation: Ablation) -> dict[str, object]:
    """The training settings of a design, without the seeds."""
    if not ablation.train:
        return {}
    return shared_part(settings_identity(configure(ablation.train)))["config"]


def looks(out: str) -> tuple[Look, ...]:
    """The history of an ablation's folder; empty where there is none. ValueError for a line that
    is no look.
    """
    path = AblationLayout(out).history
    if not disk.exists(path):
        return ()
    lines = []
    for number, text in enumerate(disk.read_bytes(path).decode().splitlines(), 1):
        try:
            value = json.loads(text)
            lines.append(disk.from_plain(Look, value, f"line {number}"))
        except ValueError as error:
            raise ValueError(f"{path}: line {number} is no record of a look: {error}") from None
    return tuple(lines)


def record_begin(ablation: Ablation, out: str) -> None:
    """Add a line before the runs of an ablation, unless the last line has the same design. All
    changes after the first run are logged.
    """
    design, earlier = design_of(ablation, out), looks(out)
    if not earlier or earlier[-1].design != design:
        finished = _ended_runs(ablation, out)
        look = Look(date=_now(), state="begun", finished=finished, design=design)
        _write(out, (*earlier, look))
    for change in changes(looks(out)):
        logger.warning("%s", change.sentence)


def record_look(
    ablation: Ablation, out: str, measurements: Measurements, *, complete: bool
) -> None:
    """Add the line of a verdict on the measurements of the runs with a result.

    A verdict that has the design, the runs and the metrics of the last one adds no line.
    """
    metrics: dict[str, dict[int, dict[str, dict[str, float]]]] = {
        arm: {} for arm in arm_names(all_runs(ablation, out))
    }
    names = ["arm", "seed", "task", "metric", "value"]
    for arm, seed, task, metric, value in measurements.rows(names):
        metrics[arm].setdefault(seed, {}).setdefault(task, {})[metric] = value
    finished = {arm: tuple(sorted(by_seed)) for arm, by_seed in metrics.items() if by_seed}
    look = Look(
        date=_now(),
        state="complete" if complete else "incomplete",
        finished=finished,
        design=design_of(ablation, out),
        results=disk.content_hash(metrics),
    )
    earlier = looks(out)
    if not earlier or replace(earlier[-1], date=look.date) != look:
        _write(out, (*earlier, look))


def design_of(ablation: Ablation, out: str) -> dict[str, object]:
    """What a study has to fix before its runs, as plain values: tasks with their deciding metric
    and the hash of their data, arms and the hashes of their views, seeds, equivalence band,
    controls, training settings with the content of the initial weights, and versions.
    """
    evaluates = any(arm.predictions is None for arm in ablation.arms.values())
    tasks = {}
    for task in ablation.evaluate:
        samples = data_hash(read_samples(task)) if evaluates else ""
        asked = disk.to_plain(task, with_defaults=False)
        tasks[task.name] = {**asked, "metric": deciding_metric(task), "data_hash": samples}
    data: dict[str, Any] = {}
    shared: RunIdentity = {}
    if ablation.train:
        shared = shared_part(settings_identity(configure(ablation.train)))
    for run in expand_runs(ablation, out, built=False):
        if run.arm in ablation.arms and run.seed == ablation.seeds[0]:
            identity = run_identity(run.blend, run.config)
            blend = disk.content_hash(identity["blend"])
            data[run.arm] = {"blend": blend, **identity.get("views", {})}
    design = {
        "arms": disk.to_plain(ablation.arms, with_defaults=False),
        "baseline": ablation.baseline,
        "controls": disk.to_plain(ablation.controls, with_defaults=False),
        "data": data,
        "equivalence": ablation.equivalence,
        "primary": ablation.primary,
        "scorer": disk.to_plain(ablation.scorer, with_defaults=False),
        "seeds": ablation.seeds,
        "stop": disk.to_plain(ablation.stop, with_defaults=False),
        "tasks": tasks,
        "train": shared.pop("config", {}),
        **shared,
    }
    plain: dict[str, object] = json.loads(json.dumps(disk.to_plain(design)))
    return plain


def changes(history: Sequence[Look]) -> tuple[Change, ...]:
    """What was changed after the first run of an ablation had ended, the oldest change first."""
    changed = []
    for before, now in itertools.pairwise(history):
        # Initial weights that are gone are as they were.
        lines = differences(before.design, {**before.design, **now.design})
        ended = max(_count(before), _count(now))
        if lines and ended:
            changed.append(Change(date=now.date, lines=tuple(lines), runs=ended))
    return tuple(changed)


def hashes_of_data(history: Sequence[Look]) -> dict[str, str]:
    """The hash of each task's data at the last verdict; without tasks whose data nobody read, as
    all their predictions were given.
    """
    verdicts = [look for look in history if look.state != "begun"]
    tasks = verdicts[-1].design["tasks"] if verdicts else {}
    return {name: task["data_hash"] for name, task in tasks.items() if task.get("data_hash")}


def metrics_were_fixed(history: Sequence[Look]) -> bool:
    """Whether the tasks, their metrics and the primary task are those from before the first run.

    False too where the history does not reach back to it.
    """
    if not history or history[0].finished:
        return False
    lines = [line for change in changes(history) for line in change.lines]
    return not any(line.startswith(("primary:", "tasks.")) for line in lines)


def _count(look: Look) -> int:
    return sum(map(len, look.finished.values()))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _write(out: str, history: Sequence[Look]) -> None:
    lines = [json.dumps(disk.to_plain(look), sort_keys=True) for look in history]
    disk.write_bytes(AblationLayout(out).history, ("\n".join(lines) + "\n").encode())


def _ended_runs(ablation: Ablation, out: str) -> dict[str, tuple[int, ...]]:
    """The runs that have ended: in the folder, of any manifest, and those that are given."""
    ended: dict[str, set[int]] = {}
    folder = disk.join(out, "runs")
    for arm in disk.list_names(folder):
        for name in disk.list_names(disk.join(folder, arm)):
            layout = RunLayout(disk.join(folder, arm, name))
            if disk.exists(layout.run_json) or disk.exists(layout.model_json):
                number = name.removeprefix("seed-")
                seed = int(number) if number.removeprefix("-").isdigit() else NO_SEED
                ended.setdefault(arm, set()).add(seed)
    for run in given_runs(ablation):
        if all(map(disk.exists, run.files.values())):
            ended.setdefault(run.arm, set()).add(run.seed)
    return {arm: tuple(sorted(seeds)) for arm, seeds in sorted(ended.items())}
