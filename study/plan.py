"""What an ablation takes before anything is built, and the checks before its first run."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clipmill.manifests import disk
from clipmill.manifests.late import torch
from clipmill.manifests.layout import AblationLayout, PoolLayout, RunLayout
from clipmill.manifests.metrics import METRICS, deciding_metric
from clipmill.manifests.records import RunRecord, ScoreSetDocument, read_document
from clipmill.manifests.schema import Ablation
from clipmill.study.arms import (
    Run,
    check_models,
    check_views,
    expand_runs,
    finished_metrics,
    given_runs,
    model_runs,
    saved_model,
    stale_because,
    trained_on,
)
from clipmill.train.config import TrainConfig, configure, model_config
from clipmill.train.evaluation.overlap import (
    SharedImages,
    count_in_arms,
    find_shared_images,
    overlap_lines,
    refuse_identical,
    refuse_near,
)
from clipmill.train.evaluation.tasks import read_samples
from clipmill.train.sizing.device_fit import (
    GIB,
    Device,
    Fit,
    Speed,
    device_of,
    estimated_speed,
    fit,
    measured_speed,
    remedies,
    sample_flops,
    unfit_message,
    usable_cores,
)
from clipmill.verdict.stats.analysis import TaskScores, analyse
from clipmill.verdict.stats.comparison import StudyNoise
from clipmill.verdict.stats.groups import RUNS_PER_GROUP
from clipmill.verdict.stats.mixing import SPARE_RUNS
from clipmill.verdict.stats.model import Values

# --------------------------------------------------------------------------------------------------
# What can be known before anything is trained: settings, arms, the tasks' data, the pools.


logger = logging.getLogger(__name__)


def check_ablation(ablation: Ablation, out: str) -> None:
    """Everything that needs no pool. ValueError for settings, arms, views and the tasks' data."""
    if ablation.equivalence is not None and not ablation.equivalence > 0:
        raise ValueError(
            f"equivalence is {ablation.equivalence}; it must be above 0 "
            "(a share: 0.005 = 0.5 points)"
        )
    if ablation.train:
        _check_settings("train", ablation.train)
    if ablation.scorer:
        _check_settings("scorer.train", {**ablation.train, **ablation.scorer.train})
        if ablation.scorer.view.partition("/")[0] not in ablation.pools:
            raise ValueError(
                f"scorer.view is {ablation.scorer.view!r}; its pool must be of "
                f"{sorted(ablation.pools)}"
            )
    names = [task.name for task in ablation.evaluate]
    if len(set(names)) < len(names):
        raise ValueError(f"evaluate has two tasks of one name: {', '.join(names)}")
    _check_mixtures(ablation)
    runs = expand_runs(ablation, out, built=False)
    given_runs(ablation)
    check_models(ablation, out)
    check_views(ablation, out)
    models = model_runs(ablation, out)
    new = [run for run in runs if not disk.exists(RunLayout(run.out).run_json)]
    sources = {run.config.init for run in new if run.config.init}
    sources |= {run.source for run in models if saved_model(run) is None}
    if sources:
        from clipmill.train.formats import model_files  # with torch

        for source in sorted(sources):
            model_files.check_reach(source)
    if runs or models:
        for task in ablation.evaluate:
            read_samples(task)


def _check_mixtures(ablation: Ablation) -> None:
    """ValueError for fewer mixtures than what they are drawn for can be fitted to."""
    drawn = ablation.mixtures
    if drawn is None:
        return
    count, sources = drawn.number, set(drawn.sources)
    command, needed = "clipmill why", RUNS_PER_GROUP * len(sources)
    if drawn.draw == "shares":
        command, needed = "clipmill mix", len(sources) + SPARE_RUNS
        views = [arm.view_weights.keys() for arm in ablation.arms.values()]
        count = sum(len(of_arm) > 0 and of_arm <= sources for of_arm in views)
    if count < needed:
        raise ValueError(
            f"mixtures.number is {drawn.number}: {command} needs {needed} runs of different "
            f"mixtures of {len(sources)} sources, and the arms have {count}"
        )


def _check_settings(key: str, changes: Mapping[str, object]) -> None:
    """ValueError, with the key of the manifest, for settings that no run can have."""
    try:
        device = configure(changes).device
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if device.startswith("cuda:") and int(device.removeprefix("cuda:")):
        raise ValueError(
            f"{key}: device is {device!r}, but a run of an ablation sees only the GPUs that it is "
            "given, from cuda:0 on; set device to cuda, and CUDA_VISIBLE_DEVICES to the GPUs that "
            "are used"
        )


def check_pools(ablation: Ablation, out: str) -> SharedImages | None:
    """What the pools show. ValueError for missing or stale views and for too few rows.

    ValueError too for evaluation images among the stored rows, unless their task allows them. All
    shared images are written to overlap.json and returned; None where no pool is known. The pools
    of a model are known if it lies in the folder of a run.
    """
    runs = expand_runs(ablation, out)
    _check_rows(runs)
    pools: set[str] = set()
    for run in runs:
        pools.update(run.blend.pools.values())
    if ablation.scorer:
        pools.add(ablation.pool_folder(out, ablation.scorer.view.partition("/")[0]))
    for model in model_runs(ablation, out):
        pools.update(_known_pools(model.source))
    if not pools:
        return None
    shared = find_shared_images(sorted(pools), ablation.evaluate)
    trained = [(run.arm, [(pool, view) for _, pool, view in run.blend.places()]) for run in runs]
    counts = count_in_arms(shared, ablation.evaluate, trained)
    shared = dataclasses.replace(shared, arms=counts)
    path = AblationLayout(out).overlap_json
    disk.write_json(path, shared)
    refuse_identical(shared, ablation.evaluate, path)
    refuse_near(shared, ablation.evaluate, [view for _, views in trained for view in views])
    for line in overlap_lines(shared, ablation.evaluate, path):
        logger.info("%s", line)
    return shared


def _check_rows(runs: Sequence[Run]) -> None:
    """ValueError for views that are stale or have too few rows, and for arms whose captions were
    tokenized by different versions: they would differ in more than their data.
    """
    if not runs:
        return
    from clipmill.train.data.loader import RunLoader  # with torch

    versions: dict[int, tuple[str, str]] = {}  # version -> the first arm and pool that have it
    for run in {run.blend_name: run for run in runs}.values():
        model = model_config(run.config)
        views = RunLoader(run.blend, run.config, model).views
        if getattr(model, "tokenizer", None) is not None:
            continue  # its tokens are made by its own tokenizer, and none are stored
        for view in views:
            path = PoolLayout(view.pool).score_set_json(view.token_set)
            version = read_document(path, ScoreSetDocument).version
            versions.setdefault(version, (run.arm, view.pool))
    if len(versions) > 1:
        (old, (arm, pool)), *_, (new, (other, _)) = sorted(versions.items())
        raise ValueError(
            f"the captions of arm {arm!r} have tokens of version {old}, those of arm {other!r} of "
            f"version {new}; run clipmill score {pool} --filters tokens"
        )


def _known_pools(source: str) -> list[str]:
    """The pools that a model was trained on, as far as they are known and still there."""
    record = trained_on(source)
    if record is None:
        logger.info("%s has no run.json: its training pools are not known or searched", source)
        return []
    pools = []
    for pool in disk.read_json(record)["blend"]["pools"].values():
        if disk.exists(PoolLayout(pool).shards):
            pools.append(pool)
        else:
            logger.warning("the pool %s is not there: it is not searched for the images", pool)
    return pools


# --------------------------------------------------------------------------------------------------
# What an ablation takes before anything is built: runs, memory, hours, cost, and what it can
# show.
#
# It needs no pool. The memory is that of the largest step, with captions as long as the context;
# the hours are those of training alone, without evaluation, fetching and scoring.


SEEDS = (2, 3, 5, 8, 12)  # for which a budget is shown
YEAR_HOURS = 8766
ASSUMED_SD = 0.01  # of a run where nothing is known: those of measured ablations are 0.009 to 0.032
WORST_VARIANCE = 0.25  # of right or wrong, at 50 %


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetOption:
    """What a number of device-hours buys: with so many seeds, samples seen in each run."""

    seeds: int
    runs: int
    samples_seen: int
    smallest_effect: float | None  # None where no standard deviation was given


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An ablation in numbers. Effects are shares, memory is in bytes, hours are of the wall."""

    name: str
    runs: dict[str, int]  # arms, random, a_a, scorer -> number of runs
    seeds: int
    ranks: int
    jobs: int  # runs at a time
    device: str
    samples: int  # seen by all runs together
    flops: float  # that the result needs
    speed: Speed  # of one run, the slowest
    hours_per_run: float  # of the longest
    hours: float  # of all runs, `jobs` at a time
    device_hours: float
    cost: float | None  # of all device-hours; None without a price
    fit: Fit  # of the largest step on a rank
    problems: tuple[str, ...]  # why it cannot run there
    run_sd: float | None  # standard deviation of one run's result
    run_sd_source: str
    smallest_effect: float | None
    seeds_for_effect: int | None
    budget: tuple[BudgetOption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What an ablation would run on, and by whose word."""

    name: str | None = None  # a device of `device_of`; None: the ablation's, or this machine's
    ranks: int | None = None  # None: the ablation's
    utilisation: float | None = None
    price: float | None = None  # of a device-hour
    here: bool = False  # runs start on this machine, whatever hardware the ablation states


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """Runs that need the same: their settings, their number, memory and speed."""

    config: TrainConfig
    ranks: int
    count: int
    fit: Fit
    speed: Speed

    @property
    def samples(self) -> int:
        return self.config.steps * self.config.batch_size

    @property
    def hours(self) -> float:
        return self.speed.hours(self.samples)


def plan_ablation(
    ablation: Ablation,
    out: str,
    hardware: Hardware,
    *,
    run_sd: float | None = None,
    effect: float | None = None,
    budget_hours: float | None = None,
) -> Plan:
    """The plan of an ablation on some hardware.

    `run_sd`: standard deviation of one run's result, a share; without it that of the finished runs
    in `out` counts, then an assumption. `effect`: a difference that shall be seen.
    `budget_hours`: device-hours to spend. Finished runs with the same settings, ranks and device
    give the speed. ValueError for settings that no run can have.
    """
    _check_numbers(run_sd, effect, budget_hours, hardware)
    runs = expand_runs(ablation, out, built=False)
    if not runs:
        raise ValueError(f"{ablation.name} trains nothing: every arm has predictions")
    known = _earlier_sd(ablation, runs) if run_sd is None else (run_sd, "as given")
    if effect is not None and known is None:
        raise ValueError("--effect needs --sd, the standard deviation of one run's result")
    run_sd, sd_source = known or _assumed_sd(ablation)
    name = hardware.name or (None if hardware.here else ablation.hardware) or "auto"
    ranks = hardware.ranks or ablation.ranks
    device = device_of(name, hardware.utilisation, ranks * ablation.jobs)
    loads = _loads(ablation, runs, hardware, device)
    jobs = _parallel(ablation, hardware)
    arms = max(1, len(ablation.arms) - 1)
    largest = max(loads, key=lambda load: load.fit.needed)
    longest = max(loads, key=lambda load: load.hours)
    hours = max(longest.hours, math.fsum(load.hours * load.count for load in loads) / jobs)
    device_hours = math.fsum(load.hours * load.count * load.ranks for load in loads)
    needed = None
    if effect is not None and run_sd is not None:
        needed = StudyNoise(run_sd=run_sd, seeds=2, arms=arms, df=arms).seeds_for(effect)
    plan = Plan(
        name=ablation.name,
        runs=_kinds(ablation, runs),
        seeds=len(ablation.seeds),
        ranks=longest.ranks,
        jobs=jobs,
        device=device.name,
        samples=sum(load.samples * load.count for load in loads),
        flops=sum(sample_flops(load.config) * load.samples * load.count for load in loads),
        speed=longest.speed,
        hours_per_run=longest.hours,
        hours=hours,
        device_hours=device_hours,
        cost=None if hardware.price is None else hardware.price * device_hours,
        fit=largest.fit,
        problems=(),
        run_sd=run_sd,
        run_sd_source=sd_source,
        smallest_effect=smallest_effect(run_sd, len(ablation.seeds), arms),
        seeds_for_effect=needed,
        budget=tuple(_budgets(ablation, loads, budget_hours, run_sd, arms)),
    )
    return dataclasses.replace(plan, problems=tuple(_problems(ablation, hardware, loads, plan)))


def check_plan(ablation: Ablation, out: str, hardware: Hardware) -> None:
    """ValueError, with all reasons, where the ablation cannot run on its hardware; one that trains
    nothing needs nothing.

    Of a cluster's machines nothing is known where no hardware is stated: then nothing is refused.
    """
    if not hardware.here and hardware.name is None and ablation.hardware is None:
        return
    if not expand_runs(ablation, out, built=False):
        return
    problems = plan_ablation(ablation, out, hardware).problems
    if problems:
        raise ValueError(f"{ablation.name} cannot run as it is: {'. '.join(problems)}")


def _check_numbers(
    run_sd: float | None, effect: float | None, budget_hours: float | None, hardware: Hardware
) -> None:
    if run_sd is not None and not 0 <= run_sd < 1:
        raise ValueError(f"--sd is {run_sd}; it is a share, such as 0.005 for 0.5 points")
    if effect is not None and not 0 < effect < 1:
        raise ValueError(f"--effect is {effect}; it is a share, such as 0.01 for 1 point")
    limits = {"--budget-hours": budget_hours, "--price": hardware.price}
    for name, value in limits.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}; it must be above 0")
    if hardware.ranks is not None and hardware.ranks < 1:
        raise ValueError(f"--ranks is {hardware.ranks}; it must be at least 1")


# --- runs and their load --------------------------------------------------------------------------


def _parallel(ablation: Ablation, hardware: Hardware) -> int:
    """Runs at a time: fewer than `jobs` where this machine's GPUs are too few."""
    gpus = torch.cuda.device_count()
    if not hardware.here or not gpus:
        return ablation.jobs
    return max(1, min(ablation.jobs, gpus // (hardware.ranks or ablation.ranks)))


def _loads(
    ablation: Ablation, runs: Sequence[Run], hardware: Hardware, device: Device
) -> list[_Load]:
    """The runs by what they need. The scorer trains on one rank."""
    counts: dict[str, int] = {}
    settings: dict[str, tuple[TrainConfig, int]] = {}
    for run in runs:
        config = dataclasses.replace(run.config, seed=0, order_seed=None)
        key = disk.content_hash([config, run.ranks])
        settings[key] = (config, hardware.ranks or run.ranks)
        counts[key] = counts.get(key, 0) + 1
    if ablation.scorer:
        config = configure({**ablation.train, **ablation.scorer.train})
        settings["scorer"], counts["scorer"] = (config, 1), 1
    records = [record for record in _finished(runs) if device.is_called(record["device"])]
    loads = []
    for key, (config, ranks) in settings.items():
        needed = fit(config, ranks, device)
        speed = measured_speed(config, ranks, records)
        if speed is None:
            speed = estimated_speed(config, ranks, device, needed)
        loads.append(_Load(config=config, ranks=ranks, count=counts[key], fit=needed, speed=speed))
    return loads


def _finished(runs: Sequence[Run]) -> list[Mapping[str, Any]]:
    """The run.json of the runs that are finished."""
    records = []
    for run in runs:
        path = RunLayout(run.out).run_json
        if disk.exists(path):
            records.append(disk.to_plain(read_document(path, RunRecord)))
    return records


def _kinds(ablation: Ablation, runs: Sequence[Run]) -> dict[str, int]:
    """Number of runs of the arms, the random controls, the A/A arm and the scorer."""
    kinds = {"arms": 0, "random": 0, "a_a": 0, "scorer": 1 if ablation.scorer else 0}
    for run in runs:
        kinds["arms" if run.arm in ablation.arms else ablation.role_of(run.arm)] += 1
    return kinds


# --- what speaks against it -----------------------------------------------------------------------


def _problems(
    ablation: Ablation, hardware: Hardware, loads: Iterable[_Load], plan: Plan
) -> Iterator[str]:
    """Why the ablation cannot run: processes, memory, time."""
    ranks = hardware.ranks or ablation.ranks
    missing = _missing_devices(ablation, ranks) if hardware.here else None
    if missing is not None:
        yield missing
    for load in loads:
        if missing is None and not load.fit.fits:
            ways = remedies(load.config, load.ranks, load.fit.device)
            yield f"{unfit_message(load.fit)}; {'; '.join(ways)}"
    limit = ablation.limit_hours
    if limit is not None and plan.hours > limit:
        speed = f"{plan.speed.samples_per_s:,.0f} samples/s, {plan.speed.source}"
        per_run = f"{_hours(plan.hours_per_run)} for a run of {speed}"
        yield (
            f"{sum(plan.runs.values())} runs take {_hours(plan.hours)} ({per_run}), "
            f"and limit_hours is {limit:g}; clipmill ablate plan ABLATION --out DIR "
            f"--budget-hours {limit * ranks * plan.jobs:g} shows the scale that this buys"
        )


def _missing_devices(ablation: Ablation, ranks: int) -> str | None:
    """Why this machine cannot start so many ranks; None where it can."""
    gpus, cores = torch.cuda.device_count(), usable_cores()
    stated = f" (the ablation is written for {ablation.hardware})" if ablation.hardware else ""
    if gpus and ranks > gpus:
        return f"ranks is {ranks}, but this machine has {gpus} GPUs{stated}"
    if not gpus and ranks > cores:
        return f"ranks is {ranks}, but this machine has no GPU and {cores} cores{stated}"
    return None


# --- effects and budgets --------------------------------------------------------------------------


def smallest_effect(run_sd: float | None, seeds: int, arms: int) -> float | None:
    """The smallest true difference that 80 % of such ablations show, a share.

    None without an SD, and for one seed. `arms` are compared with the baseline. The noise of the
    test set is not in it.
    """
    if run_sd is None or seeds < 2:
        return None
    noise = StudyNoise(run_sd=run_sd, seeds=seeds, arms=arms, df=arms * (seeds - 1))
    return noise.smallest_visible()


def _assumed_sd(ablation: Ablation) -> tuple[float | None, str]:
    """An SD where nothing is known; of shares."""
    task = ablation.primary_task
    if METRICS[deciding_metric(task)].unit != "share":
        return None, ""
    samples = None
    with contextlib.suppress(ValueError, OSError):  # a plan needs no data
        samples = len(read_samples(task).files)
    sd, text = ASSUMED_SD, f"an assumption of {100 * ASSUMED_SD:g} point a run"
    if samples is not None:
        sd = math.sqrt(ASSUMED_SD**2 + WORST_VARIANCE / samples)
        text += f" and the errors of {samples:,} test samples"
    return sd, f"{text}; --sd states it"


def _earlier_sd(ablation: Ablation, runs: Sequence[Run]) -> tuple[float, str] | None:
    """The spread of the runs that are finished, A/A and random subsets among them; and its source.

    It is that of the primary task. Runs that the ablation would do anew do not count. None where
    fewer than two arms have two seeds in common.
    """
    task = ablation.primary_task
    values: Values = {}
    for run in runs:
        metrics = None if stale_because(run) else finished_metrics(run, [task])
        if metrics is not None:
            values.setdefault(run.arm, {})[run.seed] = metrics[task.name][deciding_metric(task)]
    others = [arm for arm in values if arm != ablation.baseline]
    if ablation.baseline not in values or not others:
        return None
    scores = {task.name: TaskScores(values=values)}
    analysis = analyse(scores, ablation.baseline, arms=others, band=0.0)
    noise = analysis.tasks[task.name]
    if noise.sd is None:
        return None
    number = sum(len(by_seed) for by_seed in values.values())
    return noise.sd, f"of {number} finished runs, {noise.df:g} degrees of freedom"


def _budgets(
    ablation: Ablation,
    loads: Sequence[_Load],
    budget_hours: float | None,
    run_sd: float | None,
    arms: int,
) -> Iterator[BudgetOption]:
    """What so many device-hours buy with each number of seeds, all runs cut alike."""
    if budget_hours is None:
        return
    of_arms = [load for load in loads if load.count > 1 or not ablation.scorer]
    once = math.fsum(load.hours * load.count * load.ranks for load in loads if load not in of_arms)
    per_seed = math.fsum(load.hours * load.count * load.ranks for load in of_arms) / len(
        ablation.seeds
    )
    runs = sum(load.count for load in of_arms) // len(ablation.seeds)
    config = of_arms[0].config
    for seeds in sorted({*SEEDS, len(ablation.seeds)}):
        share = max(0.0, budget_hours - once) / (per_seed * seeds)
        steps = int(config.steps * share)
        yield BudgetOption(
            seeds=seeds,
            runs=runs * seeds,
            samples_seen=steps * config.batch_size,
            smallest_effect=smallest_effect(run_sd, seeds, arms),
        )


# --- in words -------------------------------------------------------------------------------------


def plan_lines(plan: Plan) -> list[str]:
    """The plan for a person."""
    kinds = ", ".join(f"{count} {name}" for name, count in plan.runs.items() if count)
    needed, memory, micro_batch = plan.fit.needed, plan.fit.device.memory, plan.fit.micro_batch
    pieces = "" if micro_batch is None else f" in micro-batches of {micro_batch:,}"
    cost = "" if plan.cost is None else f", {plan.cost:,.0f} at the stated price"
    lines = [
        f"{plan.name}: {sum(plan.runs.values())} runs ({kinds}), {plan.seeds} seeds",
        f"samples: {plan.samples:,} in all; {plan.flops:.2e} FLOPs",
        f"device: {plan.device}, {plan.ranks} rank{'s' if plan.ranks > 1 else ''} a run, "
        f"{plan.jobs} run{'s' if plan.jobs > 1 else ''} at a time",
        f"memory: {needed / GIB:,.1f} of {memory / GIB:,.1f} GiB a rank{pieces}",
        f"speed: {plan.speed.samples_per_s:,.0f} samples/s for a run ({plan.speed.source})",
        f"time: {_hours(plan.hours_per_run)} for a run, {_hours(plan.hours)} in all, "
        f"{plan.device_hours:,.1f} device-hours{cost}",
    ]
    if plan.smallest_effect is not None:
        assert plan.run_sd is not None
        text = f"smallest effect that {plan.seeds} seeds show in 80 % of such studies: "
        spread = f"SD of a run {100 * plan.run_sd:.2f} points, {plan.run_sd_source}"
        lines.append(f"{text}{100 * plan.smallest_effect:.2f} points ({spread})")
    if plan.seeds_for_effect is not None:
        lines.append(f"seeds for the wanted effect: {plan.seeds_for_effect}")
    if plan.budget:
        lines += ["what the budget buys:", "  seeds  runs  samples seen  smallest effect"]
    for row in plan.budget:
        smallest = row.smallest_effect
        effect = "-" if smallest is None else f"{100 * smallest:.2f} points"
        lines.append(f"  {row.seeds:>5}  {row.runs:>4}  {row.samples_seen:>12,}  {effect}")
    return [*lines, *(f"it cannot run there: {problem}" for problem in plan.problems)]


def _hours(hours: float) -> str:
    """Hours in the unit that a person reads: minutes, hours, days or years."""
    if hours < 1:
        return f"{60 * hours:.1f} minutes"
    if hours < 100:
        return f"{hours:.1f} hours"
    if hours < YEAR_HOURS:
        return f"{hours / 24:,.1f} days"
    return f"{hours / YEAR_HOURS:,.1f} years"
