"""Running an ablation as a function: what `clipmill ablate` runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clipmill.library.calls import guest
from clipmill.manifests import disk, reader
from clipmill.manifests.folder_lock import locked_folder
from clipmill.manifests.layout import AblationLayout
from clipmill.manifests.ray_runtime import Engine, settled
from clipmill.manifests.schema import Ablation
from clipmill.study import history
from clipmill.study.plan import Hardware, check_ablation, check_plan, check_pools
from clipmill.study.results import collect_results, saved_scores, scale_decisions
from clipmill.study.runner import evaluate_scorer, run_all, run_rounds
from clipmill.verdict import wording
from clipmill.verdict.conclusions import FailedRun, StudyResults
from clipmill.verdict.decide.page import MOST_SCALES
from clipmill.verdict.measurements import Measurements


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationRun:
    """An ablation whose runs have ended. path: its folder. results: as in results.json; `failed`
    has the runs without a result. text: the verdict.
    """

    path: str
    results: StudyResults
    text: str

    @property
    def results_json(self) -> str:
        """Where the results are."""
        return AblationLayout(self.path).results_json

    def __str__(self) -> str:
        return self.text


def run_ablation(
    ablation: str | os.PathLike[str],
    /,
    *,
    out: str | os.PathLike[str],
    engine: Engine = "inline",
    scale: str | None = None,
    scales: Sequence[str] | None = None,
) -> AblationRun:
    """Run the arms of an ablation with every seed, evaluate them, and compare them. The pools must
    have been built. Called again, it does what is missing. Runs are processes of their own.

    Args:
        ablation: A manifest, or ablation.json as `clipmill build` resolves it.
        out: The folder of the runs and of results.json.
        engine: ray sends the runs to the cluster that RAY_ADDRESS names, or to this machine.
        scale: A block of the manifest's `scales` to merge over it.
        scales: Blocks to run before it, each in OUT/scales/NAME on the same pools.

    Raises:
        ValueError: The manifest, a pool or a task is not as it must be, or another process runs
            the ablation; in one line, as the command prints it.
    """
    with guest():
        *_, last = runs_of(os.fspath(ablation), os.fspath(out), engine, scale, scales)
        return last


def runs_of(
    path: str, out: str, engine: Engine, scale: str | None, scales: Sequence[str] | None
) -> Iterator[AblationRun]:
    """The ablation at each scale, the smaller ones first, each when its runs have ended."""
    read_at = checked(path, out, engine, scale, scales)
    with contextlib.ExitStack() as locks:
        for folder in read_at:
            locks.enter_context(locked_folder(AblationLayout(folder).lock, "clipmill ablate"))
        for folder, read in read_at.items():
            yield _run(read, folder, engine)


def checked(
    path: str, out: str, engine: Engine, scale: str | None, scales: Sequence[str] | None
) -> dict[str, Ablation]:
    """Ablations by their folders, the smaller scales first, after the checks that need no pool."""
    folder = disk.output_folder(out)
    reader.check_scales(scale, scales)
    read_at = {folder: reader.read_manifest(path, Ablation, scale=scale)}
    if scales:
        read_at = reader.read_scales(path, scales, folder)
    on_cluster = settled(engine) == "ray" and bool(os.environ.get("RAY_ADDRESS"))
    for where, read in read_at.items():
        check_ablation(read, where)
        check_plan(read, where, Hardware(here=not on_cluster))
    return read_at


def _run(ablation: Ablation, out: str, engine: Engine) -> AblationRun:
    """All runs and the verdict of an ablation that passed the checks."""
    layout = AblationLayout(out)
    shared = check_pools(ablation, out)
    history.record_begin(ablation, out)
    disk.write_json(layout.ablation_json, ablation)
    if ablation.stop is None:
        outcomes = run_all(ablation, out, engine)
    else:
        looks = 1 + len(history.earlier_looks(ablation, history.looks(out)))
        outcomes = run_rounds(ablation, out, engine, saved_scores(ablation, out), looks)
    evaluate_scorer(ablation, out)
    failed = []
    for outcome in outcomes:
        if outcome.metrics is None:
            arm, seed = outcome.run.arm, outcome.run.seed
            failed.append(FailedRun(arm=arm, seed=seed, error=outcome.error))
    results = collect_results(ablation, out, failed, shared)
    disk.write_json(layout.results_json, results)
    measurements = Measurements.read(layout.measurements)
    complete = not results.failed and not results.incomplete
    history.record_look(ablation, out, measurements, complete=complete)
    lines = results.verdict.split("\n")
    decisions, without = scale_decisions(ablation, out)
    if decisions:
        lines += ["", *"\n".join(wording.scale_texts(decisions, MOST_SCALES)).split("\n")]
    if without:
        lines += ["", *without]
    return AblationRun(path=out, results=results, text="\n".join(lines))
