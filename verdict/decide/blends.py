"""The best blend of sources from small runs: an ablation's folder or two tables in, shares with an
interval out, and the files to go on with.

The tables are Olmix's: `ratios` has a row for each run and a column for each source, `metrics` a
row for each run and a column for each metric; a column of both names the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from clipmill.manifests import disk
from clipmill.manifests.arrays import FloatArray
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.metrics import METRICS, deciding_metric
from clipmill.manifests.records import ViewDocument, read_document
from clipmill.manifests.schema import Ablation, Arm
from clipmill.verdict.measurements import Measurements
from clipmill.verdict.stats import mixing
from clipmill.verdict.stats.comparison import ALPHA
from clipmill.verdict.stats.mixing import BlendChoice
from clipmill.verdict.tables.metric_names import name_facts
from clipmill.verdict.tables.reader import Record, Source, records_of
from clipmill.verdict.tables.roles import name_role

ID_COLUMNS = ("run", "run_id", "index", "name")
NO_SOURCES = {*ID_COLUMNS, "", "file"}
SUM_TOLERANCE = 0.01  # of the shares of a run, as in Olmix
LEAST_PERCENT = 1.5  # a share of samples above it is a percentage
MOST_NAMED = 5  # runs in a note
CONFIRMING_SEEDS = 10
CHOICE = "mix.json"
WRITTEN = ("ratios.csv", "blend.yaml", "confirm.yaml", CHOICE)
FOUND, BEST_RUN = "found", "best run"
SHARE_DIGITS = 4
KEPT = ("train", "evaluate", "primary", "equivalence", "jobs", "ranks", "hardware")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """R runs of mixtures of S sources. runs: their names. values_TR: of T metrics, all of one
    direction and unit. higher: more of them is better. left_out: runs without a value.

    rows: what each source holds; None where nobody knows. rivals: trained arms that people named,
    to be compared with the found blend; those that are mixtures of the sources are runs too, and in
    `named` with their shares. measured: the mean of a rival's own runs.
    """

    sources: tuple[str, ...]
    runs: tuple[str, ...]
    shares_RS: FloatArray
    targets: tuple[str, ...]
    values_TR: FloatArray
    higher: bool
    rows: tuple[int, ...] | None
    notes: tuple[str, ...]
    left_out: int = 0
    ablation: Ablation | None = None
    rivals: dict[str, Arm] = field(default_factory=dict)
    named: dict[str, FloatArray] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)


def choose_blend(
    swarm: Swarm, samples: int | None = None, max_repeats: float | None = None
) -> BlendChoice:
    """The blend that a swarm prefers; no source is repeated more than `max_repeats` times in a run
    of `samples` samples. ValueError where that needs rows or samples that are not known.
    """
    sign = -1.0 if swarm.higher else 1.0
    mixtures = mixing.mean_of_seeds(swarm.shares_RS, sign * swarm.values_TR)
    shares_MS, losses_TM = mixtures.shares_MS, mixtures.losses_TM
    rows = None if swarm.rows is None else np.array(swarm.rows, float)
    caps_S = None
    if max_repeats is not None:
        if rows is None or samples is None:
            missing = "--samples-seen" if rows is not None else "the rows of the sources (--rows)"
            raise ValueError(f"--max-repeats needs {missing}")
        caps_S = max_repeats * rows / samples
        if caps_S.sum() < 1:
            raise ValueError(
                f"all sources together have {int(rows.sum()):,} rows: {samples:,} samples repeat "
                f"them {samples / rows.sum():.3g} times, more than --max-repeats {max_repeats:g}"
            )
    if len(shares_MS) >= len(swarm.sources) + mixing.SPARE_RUNS:  # else that is what is wrong
        _check_varies(swarm.targets, swarm.values_TR)
    laws = [mixing.fit_laws(shares_MS, loss_M[None])[0] for loss_M in losses_TM]
    others = {"uniform": np.full(len(swarm.sources), 1 / len(swarm.sources))}
    if rows is not None:
        others["proportional"] = rows / rows.sum()
    others |= swarm.named
    refits = mixing.refitted(laws, shares_MS)
    candidates_CS, losses_BC = mixing.search(
        partial(mixing.losses_of, refits), mixing.candidates_of(shares_MS, caps_S)
    )
    best = int(np.argmin(losses_BC.mean(axis=0)))
    shares = _rounded(candidates_CS[best], caps_S)
    loss_M = losses_TM.mean(axis=0)
    centres = mixing.misfits(refits, mixtures)
    run = best_run(mixtures, caps_S)
    measured, p_better, best_shares = dict(swarm.measured), None, None
    if run is not None:
        best_shares = _rounded(shares_MS[run], None)
        others[BEST_RUN], measured[BEST_RUN] = shares_MS[run], sign * float(loss_M[run])
        p_better = mixing.p_of_better(centres, candidates_CS[best], shares_MS[run])
    p_fit, regrets = mixing.p_of_misfit(laws, mixtures), None
    if p_fit is not None:
        regrets = mixing.regrets(centres, candidates_CS, losses_BC)
    of_others = mixing.losses_of(refits, np.stack(list(others.values()))).mean(axis=0)
    predicted_M = np.mean([law.predicted_R for law in laws], axis=0)
    same_as = [name for name, of in swarm.named.items() if _rounded(of, caps_S) == shares]
    repeats = None
    if rows is not None and samples is not None:
        repeats = tuple(float(n) for n in np.array(shares) * samples / rows)
    choice = BlendChoice(
        sources=swarm.sources,
        shares=shares,
        samples=samples,
        max_repeats=max_repeats,
        repeats=repeats,
        runs=len(swarm.shares_RS),
        mixtures=len(shares_MS),
        targets=swarm.targets,
        found=sign * float(losses_BC[:, best].mean()),
        others=dict(zip(others, map(float, sign * of_others), strict=True)),
        same_as=tuple(same_as),
        measured=measured,
        recommended=FOUND,
        best_run=None if run is None else swarm.runs[int(np.argmax(mixtures.mixture_R == run))],
        best_shares=best_shares,
        best_value=measured.get(BEST_RUN),
        p_better=p_better,
        fits=None if p_fit is None else p_fit >= ALPHA,
        p_fit=p_fit,
        advice=(),
        regret=None if regrets is None else regrets[0],
        regret_high=None if regrets is None else regrets[1],
        skill=float(np.corrcoef(predicted_M, loss_M)[0, 1]),
        p=mixing.p_of_weights(shares_MS, loss_M),
        notes=swarm.notes,
        left_out=swarm.left_out,
    )
    return _with_advice(choice)


def best_run(mixtures: mixing.MixtureMeans, caps_S: FloatArray | None) -> int | None:
    """The number of the mixture with the least mean loss of its runs and of the targets; None where
    no mixture has every source within its cap.
    """
    loss_M = mixtures.losses_TM.mean(axis=0)
    if caps_S is not None:
        loss_M = np.where((mixtures.shares_MS <= caps_S + 1e-9).all(axis=1), loss_M, np.inf)
    return int(np.argmin(loss_M)) if np.isfinite(loss_M).any() else None


def is_found_taken(p_better: float, p_fit: float | None) -> bool:
    """Whether to take the found blend rather than the mixture of the best run, which it is better
    than with a probability of p_better. Where the law does not fit that must be clear; else it must
    be more likely than not. docs/blend_search.md has what other limits would cost.
    """
    fits = p_fit is None or p_fit >= ALPHA
    return p_better >= (0.5 if fits else mixing.CLEAR)


def _with_advice(choice: BlendChoice) -> BlendChoice:
    """The choice with what to take and why."""
    advice, recommended = [], FOUND
    best = f"run {choice.best_run}"
    if choice.best_value is not None:
        best += f", the best that was measured ({choice.best_value:.4g})"
    if choice.fits is False:
        advice.append(f"The law does not fit these runs (p = {choice.p_fit:.2g}).")
    if choice.p_better is None:
        advice.append("No run is within the limit on repeats, to compare the found blend with.")
    elif choice.shares == choice.best_shares:
        advice.append(f"The found blend is that of {best}.")
    elif not is_found_taken(choice.p_better, choice.p_fit):
        recommended = str(choice.best_run)
        advice.append(
            f"The found blend is better than {best}, with a probability of {choice.p_better:.0%} "
            f"only: take the mixture of run {choice.best_run} instead."
        )
    elif choice.p_better < mixing.CLEAR:
        advice.append(
            f"The found blend is not clearly better than {best}: with a probability of "
            f"{choice.p_better:.0%}. Confirm both."
        )
    else:
        advice.append(
            f"The found blend is better than {best}, with a probability of {choice.p_better:.0%}."
        )
    if not choice.matters:
        advice = [
            f"These runs do not show that the shares matter (p = {choice.p:.2g}): take any blend."
        ]
    return replace(choice, recommended=recommended, advice=tuple(advice))


def _rounded(shares_S: FloatArray, caps_S: FloatArray | None) -> tuple[float, ...]:
    """Shares of so many digits whose sum is 1, none above its cap: what rounding down leaves goes
    to the largest source with room for it.
    """
    unit = 10.0**SHARE_DIGITS
    rounded = np.floor(shares_S * unit + 1e-6) / unit
    left = 1 - rounded.sum()
    has_room = np.full(len(rounded), True) if caps_S is None else caps_S - rounded >= left
    rounded[np.argmax(np.where(has_room, rounded, -1))] += left
    return tuple(float(round(share, SHARE_DIGITS)) for share in rounded)


# --- where runs come from -------------------------------------------------------------------------


def swarm_of_study(
    ablation: Ablation, measurements: Measurements, folder: str, metric: str | None = None
) -> Swarm:
    """The trained arms of a study: views with weights, and every seed's value of the primary
    task. The sources are those of `mixtures`, without it all views of arms. ValueError for an
    ablation without such arms, and for a view of `folder` whose rows are needed and not known.
    """
    metric = metric or deciding_metric(ablation.primary_task)
    known_metrics = measurements.metrics(ablation.primary)
    if metric not in known_metrics:
        near = disk.did_you_mean(metric, sorted(known_metrics))
        raise ValueError(f"{ablation.primary} has no metric {metric!r}{near}")
    measured_of = measurements.values(ablation.primary, metric)
    weights = {name: arm.view_weights for name, arm in ablation.arms.items()}
    drawn: Mapping[str, object] = {}
    if ablation.mixtures is None:
        sources = tuple(sorted({view for one in weights.values() for view in one}))
    else:
        sources, drawn = ablation.mixtures.sources, ablation.mixtures.arms()
    rows = {source: _rows_of_view(ablation, folder, source) for source in sources}
    names, shares, values, notes = [], [], [], []
    rivals, named, measured, left_out = {}, {}, {}, 0
    for name, arm in ablation.arms.items():
        of_arm = []
        for seed, value in measured_of.get(name, {}).items():
            if not np.isfinite(value):
                left_out += 1
                notes.append(f"{name} seed {seed} is left out: its {metric} is no number")
            else:
                of_arm.append(value)
        is_rival = bool(drawn) and name not in drawn and arm.is_trained
        if is_rival:
            rivals[name] = arm
            if of_arm:
                measured[name] = float(np.mean(of_arm))
        if not weights[name] or set(weights[name]) - set(sources):
            notes.append(f"arm {name} is no mixture of the sources")
            continue
        if arm.train:
            notes.append(f"arm {name} is left out: it has training settings of its own")
            continue
        share_S = np.array([weights[name].get(source, 0.0) for source in sources])
        if arm.weights == "repeats":
            unknown = [source for source in weights[name] if rows[source] is None]
            if unknown:
                raise ValueError(
                    f"arm {name} repeats rows, but the view {unknown[0]} is not at "
                    f"{ablation.pool_folder(folder, unknown[0].split('/')[0])}"
                )
            share_S *= [rows[source] or 0 for source in sources]
        share_S /= share_S.sum()
        if is_rival:
            named[name] = share_S
        names += [name] * len(of_arm)
        shares += [share_S] * len(of_arm)
        values += of_arm
    if not shares:
        raise ValueError(f"{folder}: no run has a result of a mixture of {', '.join(sources)}")
    known = tuple(n for n in rows.values() if n is not None)
    return Swarm(
        sources=sources,
        runs=tuple(names),
        shares_RS=np.array(shares),
        targets=(f"{ablation.primary} {metric}",),
        values_TR=np.array([values]),
        higher=METRICS[metric].higher_is_better,
        rows=known if len(known) == len(sources) else None,
        notes=tuple(notes),
        left_out=left_out,
        ablation=ablation,
        rivals=rivals,
        named=named,
        measured=measured,
    )


def _rows_of_view(ablation: Ablation, folder: str, source: str) -> int | None:
    pool, view = source.split("/")
    view_json = PoolLayout(ablation.pool_folder(folder, pool)).view_json(view)
    return read_document(view_json, ViewDocument).kept if disk.exists(view_json) else None


def swarm_of_tables(
    of_shares: Source,
    of_values: Source,
    *,
    targets: Sequence[str] = (),
    lower: Sequence[str] = (),
    higher: Sequence[str] = (),
    rows: Mapping[str, int] | None = None,
) -> Swarm:
    """The runs of two tables: the shares of each run, and its values. A run that only one has, or
    without a value, is left out; rows, columns and cells that do not count are noted. `lower`,
    `higher`: metrics of which less or more is better. ValueError for shares that do not sum to 1,
    for cells that are neither numbers nor empty, and for targets of two directions or units.
    """
    notes: list[str] = []
    of_ratios, of_metrics = records_of(of_shares, notes), records_of(of_values, notes)
    ratios = of_shares if isinstance(of_shares, str) else "the table of shares"
    metrics = of_values if isinstance(of_values, str) else "the table of metrics"
    shared = [name for name in of_ratios[0] if name in of_metrics[0] and name != "file"]
    key = next((name for name in ID_COLUMNS if name in shared), shared[0] if shared else None)
    if key is None:
        raise ValueError(f"{ratios} and {metrics} have no column in common that names the run")
    shares_of, measured = _by_run(of_ratios, key, ratios), _by_run(of_metrics, key, metrics)
    sources = tuple(name for name in of_ratios[0] if name not in {key, *NO_SOURCES})
    if len(sources) < 2:
        raise ValueError(f"{ratios} has {len(sources)} columns of sources; a blend needs two")
    if rows is not None and set(rows) != set(sources):
        odd = sorted(set(sources) ^ set(rows))[0]
        raise ValueError(f"--rows must name each source once; {odd!r} is not in both")
    known = [name for name in of_metrics[0] if name not in {key, *NO_SOURCES}]
    for name in (*targets, *lower, *higher):
        if name not in known:
            raise ValueError(f"{metrics} has no metric {name!r}{disk.did_you_mean(name, known)}")
    chosen = tuple(targets) or tuple(name for name in known if not name_role(name))
    if not chosen:
        raise ValueError(f"{metrics} has no column of a metric beside {key!r}")
    notes += [f"the run is column {key!r}", f"{len(sources)} sources, columns of {ratios}"]
    for path, names, used in ((ratios, of_ratios[0], sources), (metrics, of_metrics[0], chosen)):
        unread = [name for name in names if name not in {key, "file", *used}]
        if unread:
            notes.append(f"not read: {', '.join(map(repr, unread))} of {path}")
    runs, shares, values, reasons, empty = [], [], [], {}, 0
    for run, row in shares_of.items():
        share_S = np.array([_cell_number(row, name, ratios) for name in sources])
        total = np.nansum(share_S)
        if abs(total - 1) > SUM_TOLERANCE or np.nanmin(share_S) < 0:
            raise ValueError(
                f"{ratios}: the shares of run {run} sum to {total:.4g}; every column beside the "
                "run must be a share of a source"
            )
        value_T = [_cell_number(measured.get(run, {}), name, metrics) for name in chosen]
        if not np.isfinite(value_T).all():
            reasons[run] = _without(run, measured, chosen[np.argmin(np.isfinite(value_T))])
            continue
        empty += int(np.isnan(share_S).sum())
        runs.append(run)
        shares.append(np.nan_to_num(share_S) / total)
        values.append(value_T)
    notes += _accounted(len(shares), reasons, [run for run in measured if run not in shares_of])
    if empty:
        notes.append(f"cells without a share in {ratios} that count as 0: {empty}")
    if not shares:
        raise ValueError(f"no run of {ratios} has its metrics in {metrics}")
    values_TR = np.array(values).T
    _check_varies(chosen, values_TR)
    is_higher, of_targets = _one_kind(chosen, values_TR, lower, higher)
    return Swarm(
        sources=sources,
        runs=tuple(runs),
        shares_RS=np.array(shares),
        targets=chosen,
        values_TR=values_TR,
        higher=is_higher,
        rows=None if rows is None else tuple(rows[name] for name in sources),
        notes=(*notes, *of_targets),
        left_out=len(reasons),
    )


def _without(run: str, measured: Mapping[str, Record], target: str) -> str:
    """Why a run without a value of a target does not count."""
    if run not in measured:
        return "it has no row of metrics"
    cell = measured[run].get(target)
    return f"its {target} is {cell}" if str(cell or "").strip() else f"it has no {target}"


def _accounted(used: int, reasons: Mapping[str, str], others: Sequence[str]) -> list[str]:
    """What became of each run: a count, the runs that were left out, and those without shares."""
    notes = []
    if reasons:
        notes.append(f"{used + len(reasons)} runs: {used} count, {len(reasons)} are left out")
        notes += [f"run {run} is left out: {reason}" for run, reason in reasons.items()]
    if others:
        names = ", ".join(others[:MOST_NAMED]) + (", …" if len(others) > MOST_NAMED else "")
        notes.append(f"runs with metrics and without shares, which are left out: {names}")
    return notes


def _by_run(records: Sequence[Record], key: str, path: str) -> dict[str, Record]:
    by_run: dict[str, Record] = {}
    for number, row in enumerate(records, 1):
        run = str(row.get(key)).removesuffix(".0")  # 3 and 3.0 are one
        if run in ("", "None", "nan"):
            raise ValueError(f"{path}: row {number} names no run in column {key!r}")
        if run in by_run:
            raise ValueError(f"{path}: two rows have {run!r} in column {key!r}, the run")
        by_run[run] = row
    return by_run


def _check_varies(targets: Sequence[str], values_TR: FloatArray) -> None:
    """ValueError for a metric that has the same value in all runs."""
    for target, value_R in zip(targets, values_TR, strict=True):
        if np.ptp(value_R) == 0:
            others = "; choose others with --target" if len(targets) > 1 else ""
            raise ValueError(
                f"{target} is {value_R[0]:.6g} in all {len(value_R)} runs, which says nothing "
                f"about shares{others}"
            )


def _cell_number(row: Mapping[str, Any], name: str, path: str) -> float:
    """A cell; NaN where it is empty."""
    value = row.get(name)
    if value is None or value == "":
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        text = str(value)[:40]
        raise ValueError(f"{path}: {text!r} in column {name!r} is no number") from None


# --- directions and units of metrics --------------------------------------------------------------


def direction_of(name: str) -> tuple[bool, str]:
    """Whether more of a metric is better, and where that comes from."""
    higher = name_facts(name).higher
    return (True, "a guess") if higher is None else (higher, "by its name")


def unit_of(name: str, value_R: FloatArray) -> str:
    """The unit of a metric by its name, of shares by its values too; `an unknown unit`."""
    unit = name_facts(name).unit
    if unit == "share" and np.abs(value_R).max() > LEAST_PERCENT:
        return "percent"
    return unit or "an unknown unit"


def _one_kind(
    targets: Sequence[str], values_TR: FloatArray, lower: Sequence[str], higher: Sequence[str]
) -> tuple[bool, list[str]]:
    """Whether more of all targets is better, and a note on each. ValueError where targets differ in
    direction or unit, and for a name of `lower` and `higher` that is no target or in both.
    """
    for option, names in (("--lower-is-better", lower), ("--higher-is-better", higher)):
        if unused := [name for name in names if name not in targets]:
            raise ValueError(f"{option} names {unused[0]!r}, which is no --target")
    if both := set(lower) & set(higher):
        raise ValueError(f"{min(both)!r} is in --lower-is-better and in --higher-is-better")
    directions, units, notes = {}, {}, []
    for name, value_R in zip(targets, values_TR, strict=True):
        is_higher, source = direction_of(name)
        if name in (*lower, *higher):
            is_higher, source = name in higher, "as you say"
        directions[name], units[name] = is_higher, unit_of(name, value_R)
        text = f"{'more' if is_higher else 'less'} is better ({source})"
        notes.append(f"{name}: {text}, {units[name]}")
    for what, kinds in (("directions", directions), ("units", units)):
        for note, name in zip(notes, targets, strict=True):
            if kinds[name] != kinds[targets[0]]:
                raise ValueError(
                    f"metrics of two {what} have no mean; {notes[0]}; {note}; choose with --target"
                )
    return directions[targets[0]], notes


# --- what to go on with ---------------------------------------------------------------------------


def write_blend(choice: BlendChoice, swarm: Swarm, folder: str, out: str) -> list[str]:
    """Leave the recommended blend in `out`; the files. mix.json has the choice, and comes last; the
    files of an earlier answer go. ValueError where `out` has files of such names of somebody else,
    as the ratios.csv that was read. Of an ablation:
    blend.yaml for `clipmill train`, and confirm.yaml, an ablation of the found blend against
    uniform and proportional shares, the mixture of the best run and the arms that people named, on
    fresh seeds; an arm that is the found blend would be the same runs. Of tables: ratios.csv with
    the recommended shares, as Olmix reads it.
    """
    import yaml

    there = [name for name in WRITTEN if disk.exists(disk.join(out, name))]
    if there and CHOICE not in there:
        raise ValueError(
            f"{out} has a {there[0]} that `clipmill mix` did not write; name another folder"
        )
    for name in there:
        disk.remove(disk.join(out, name))
    found, best = _views(choice.sources, choice.shares), None
    if choice.best_shares is not None and choice.best_shares != choice.shares:
        best = _views(choice.sources, choice.best_shares)
    recommended = found if choice.recommended == FOUND or best is None else best
    if swarm.ablation is None:
        text = ",".join(["run", *choice.sources]) + "\n"
        shares = (str(recommended.get(name, 0.0)) for name in choice.sources)
        text += ",".join([choice.recommended, *shares]) + "\n"
        disk.write_bytes(disk.join(out, "ratios.csv"), text.encode())
        disk.write_json(disk.join(out, CHOICE), disk.to_plain(choice))
        return [CHOICE, "ratios.csv"]
    ablation = swarm.ablation
    pools = {}
    for name in ablation.pools:
        pools[name] = disk.absolute_path(ablation.pool_folder(folder, name))
    name = f"{ablation.name}_{choice.recommended}"
    blend: dict[str, object] = {"name": name, "pools": pools, "views": recommended}
    if choice.max_repeats is not None:
        blend["max_repeats"] = choice.max_repeats
    arms = {
        "found": {"views": found},
        "uniform": {"views": dict.fromkeys(choice.sources, 1.0)},
        "proportional": {"views": dict.fromkeys(choice.sources, 1.0), "weights": "repeats"},
    }
    if best is not None and choice.best_run is not None:
        arms[choice.best_run] = {"views": best}
    for name, arm in swarm.rivals.items():
        if name not in choice.same_as:
            arms[name] = disk.to_plain(arm, with_defaults=False)
    settings = kept_settings(ablation)
    if choice.samples is not None:
        settings["train"]["samples_seen"] = choice.samples
    first = max(ablation.seeds) + 1
    confirm = {
        "name": f"{ablation.name}_confirm",
        "question": f"Does the blend that {ablation.name} found hold on fresh seeds?",
        "pools": {name: {"out": path} for name, path in pools.items()},
        "arms": arms,
        "baseline": "found",
        "seeds": list(range(first, first + CONFIRMING_SEEDS)),
        **settings,
    }
    for name, document in (("blend.yaml", blend), ("confirm.yaml", confirm)):
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        disk.write_bytes(disk.join(out, name), text.encode())
    disk.write_json(disk.join(out, CHOICE), disk.to_plain(choice))
    return [CHOICE, "blend.yaml", "confirm.yaml"]


def _views(sources: Sequence[str], shares: Sequence[float]) -> dict[str, float]:
    """The shares that are not 0, by source."""
    return {name: share for name, share in zip(sources, shares, strict=True) if share}


def kept_settings(ablation: Ablation) -> dict[str, Any]:
    """The keys that a manifest has of the ablation that it explains or confirms."""
    plain = disk.to_plain(ablation)
    settings = {key: plain[key] for key in KEPT}
    tasks = [disk.to_plain(task, with_defaults=False) for task in ablation.evaluate]
    return settings | {"evaluate": tasks}


# --- as text --------------------------------------------------------------------------------------


def _regret_line(choice: BlendChoice) -> str:
    """How far another average of the mixtures may be from the found one, and where that holds."""
    if choice.regret is None or choice.regret_high is None:
        return (
            "How much better another blend may be is not said: so few runs cannot test the law. "
            "Run more mixtures, or some of them with several seeds."
        )
    return (
        f"The best average of mixtures that were run may be better than the found one: by "
        f"{choice.regret:.2g} in the mean, with 95 % by {choice.regret_high:.2g} at most, if the "
        "law holds but for pairs of sources that need or spoil each other and for the curve of "
        "each source."
    )


def blend_lines(choice: BlendChoice) -> list[str]:
    """A blend for a terminal."""
    width = max(len(name) for name in (*choice.sources, *choice.others, *choice.measured))
    lines = [f"{choice.runs} runs of {choice.mixtures} mixtures; {', '.join(choice.targets)}", ""]
    for n, (name, share) in enumerate(zip(choice.sources, choice.shares, strict=True)):
        repeats = f"  {choice.repeats[n]:8.2f} times" if choice.repeats else ""
        lines.append(f"{name:<{width}}  {share:7.1%}{repeats}")
    lines.append("")
    predicted = {"found": choice.found, **choice.others}
    for name in dict.fromkeys([*predicted, *choice.measured]):
        value, own = predicted.get(name), choice.measured.get(name)
        text = f"{'no mixture' if value is None else f'{value:.4g} predicted':<18}"
        lines.append(
            f"{name:<{width}}  {text}{'' if own is None else f'  {own:.4g} measured'}".rstrip()
        )
    lines.append("")
    if choice.same_as:
        lines.append(f"The found blend is that of {' and '.join(choice.same_as)}.")
    lines += [*choice.advice, _regret_line(choice)]
    lines.append(
        f"Correlation of mixtures that a law had not seen with its prediction: {choice.skill:.2f}"
    )
    lines += ["", "Read as:", *(f"  {note}" for note in choice.notes)] if choice.notes else []
    return lines
