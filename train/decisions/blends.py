"""The best blend of sources from small runs: an ablation's folder or two tables in, shares with an
interval out, and the files to go on with.

The tables are Olmix's: `ratios` has a row for each run and a column for each source, `metrics` a
row for each run and a column for each metric; a column with the same values in both joins them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manifests import disk
from manifests.layout import AblationLayout, PoolLayout
from manifests.records import ViewDocument, read_document
from manifests.schema import Ablation
from train.decisions.tables import records_of
from train.stats import mixing
from train.stats.mixing import FloatArray

ID_COLUMNS = ("run", "run_id", "index", "name")
NOT_SOURCES = {*ID_COLUMNS, "", "file"}
SURE = 0.05  # p of the test that the shares matter
CONFIRMING_SEEDS = 10
SHARE_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """R runs of mixtures of S sources. values_TR: of T metrics. higher: more is better.

    rows: what each source holds; None where nobody knows. names: of the runs.
    """

    sources: tuple[str, ...]
    shares_RS: FloatArray
    targets: tuple[str, ...]
    values_TR: FloatArray
    higher: bool
    rows: tuple[int, ...] | None
    names: tuple[str, ...]
    ablation: Ablation | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendChoice:
    """What a swarm says about its sources.

    shares: of the found blend. repeats: of each source's rows in a run of `samples` samples; None
    where rows or samples are not known. value, low, high: predicted mean of the targets, in their
    own direction. others: name -> the same three of mixtures to compare with. regret_high: with
    95 % the found blend is at most so much worse than the best one. skill: correlation of the
    values of the runs with their prediction by laws that had not seen them. p: of such values where
    the shares do not matter.
    """

    sources: tuple[str, ...]
    shares: tuple[float, ...]
    repeats: tuple[float, ...] | None
    runs: int
    mixtures: int
    value: float
    low: float
    high: float
    regret: float
    regret_high: float
    others: dict[str, tuple[float, float, float]]
    skill: float
    p: float
    targets: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def matters(self) -> bool:
        """Whether the runs show that the shares matter at all."""
        return self.p < SURE


def choose_blend(
    swarm: Swarm, samples: int | None = None, max_repeats: float | None = None
) -> BlendChoice:
    """The blend that a swarm prefers; no source is repeated more than `max_repeats` times in a run
    of `samples` samples. ValueError where that needs rows or samples that are not known.
    """
    sign = -1.0 if swarm.higher else 1.0
    losses_TR = sign * swarm.values_TR
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
    laws = [mixing.fit_law(swarm.shares_RS, loss_R) for loss_R in losses_TR]
    resamples = mixing.refitted(laws, swarm.shares_RS, losses_TR)
    best = mixing.best_mixture(resamples, mixing.candidates_of(swarm.shares_RS, caps_S))
    others = {"uniform": np.full(len(swarm.sources), 1 / len(swarm.sources))}
    if rows is not None:
        others["proportional"] = rows / rows.sum()
    predicted_R = np.mean([law.predicted_R for law in laws], axis=0)
    loss_R = losses_TR.mean(axis=0)
    shares = _rounded(best.shares_S)
    repeats = None
    if rows is not None and samples is not None:
        repeats = tuple(float(n) for n in np.array(shares) * samples / rows)
    value, low, high = _in_direction((best.loss, best.low, best.high), sign)
    return BlendChoice(
        sources=swarm.sources,
        shares=shares,
        repeats=repeats,
        runs=len(swarm.shares_RS),
        mixtures=len(np.unique(swarm.shares_RS, axis=0)),
        value=value,
        low=low,
        high=high,
        regret=best.regret,
        regret_high=best.regret_high,
        others={name: _predicted(resamples, shares_S, sign) for name, shares_S in others.items()},
        skill=float(np.corrcoef(predicted_R, loss_R)[0, 1]),
        p=mixing.p_of_weights(swarm.shares_RS, loss_R),
        targets=swarm.targets,
        notes=swarm.notes,
    )


def _predicted(
    resamples: Sequence[Sequence[mixing.MixingLaw]], shares_S: FloatArray, sign: float
) -> tuple[float, float, float]:
    losses = [float(mixing.mean_losses(laws, shares_S[None])[0]) for laws in resamples]
    low, high = np.quantile(losses, [0.025, 0.975])
    return _in_direction((float(np.mean(losses)), float(low), float(high)), sign)


def _in_direction(
    loss_low_high: tuple[float, float, float], sign: float
) -> tuple[float, float, float]:
    loss, low, high = loss_low_high
    return (loss, low, high) if sign > 0 else (-loss, -high, -low)


def _rounded(shares_S: FloatArray) -> tuple[float, ...]:
    """Shares of so many digits whose sum is 1: the largest takes what is left."""
    rounded = np.round(shares_S, SHARE_DIGITS)
    rounded[np.argmax(rounded)] += 1 - rounded.sum()
    return tuple(float(round(share, SHARE_DIGITS)) for share in rounded)


# --- where runs come from -------------------------------------------------------------------------


def swarm_of_ablation(folder: str, metric: str | None = None) -> Swarm:
    """The trained arms of an ablation's folder: views with weights, and every seed's value of the
    primary task. ValueError for a folder without results, and for arms of no views.
    """
    layout = AblationLayout(folder)
    if not disk.exists(layout.results_json):
        raise ValueError(f"{folder} has no results.json; `clipmill ablate` writes it")
    ablation = disk.from_plain(Ablation, disk.read_json(layout.ablation_json))
    results = disk.read_json(layout.results_json)
    task = results["tasks"][ablation.primary]
    metric = metric or str(task["metric"])
    shares, values, names, notes = [], [], [], []
    for name, arm in ablation.arms.items():
        views = arm.views or ({arm.view: 1.0} if arm.view else None)
        if views is None:
            notes.append(f"arm {name} is left out: it is no mixture of views")
            continue
        for seed, tasks in results["runs"].get(name, {}).items():
            measured = tasks[ablation.primary]
            if metric not in measured:
                near = disk.did_you_mean(metric, sorted(measured))
                raise ValueError(f"{ablation.primary} has no metric {metric!r}{near}")
            total = sum(views.values())
            shares.append({view: weight / total for view, weight in views.items()})
            values.append(float(measured[metric]))
            names.append(f"{name} seed {seed}")
    sources = tuple(sorted({view for one in shares for view in one}))
    rows = []
    for source in sources:
        pool, view = source.split("/")
        view_json = PoolLayout(ablation.pool_folder(folder, pool)).view_json(view)
        if disk.exists(view_json):
            rows.append(read_document(view_json, ViewDocument).kept)
    return Swarm(
        sources=sources,
        shares_RS=np.array([[one.get(source, 0.0) for source in sources] for one in shares]),
        targets=(f"{ablation.primary} {metric}",),
        values_TR=np.array([values]),
        higher=_is_higher_better(metric),
        rows=tuple(rows) if len(rows) == len(sources) else None,
        names=tuple(names),
        ablation=ablation,
        notes=tuple(notes),
    )


def swarm_of_tables(
    ratios: str,
    metrics: str,
    *,
    targets: Sequence[str] = (),
    higher: bool = False,
    rows: Mapping[str, int] | None = None,
) -> Swarm:
    """The runs of two tables. ValueError for runs that only one has, shares that do not sum to 1,
    and cells that are no numbers.
    """
    of_ratios, of_metrics = records_of([ratios], []), records_of([metrics], [])
    shared = [name for name in of_ratios[0] if name in of_metrics[0] and name != "file"]
    key = next((name for name in ID_COLUMNS if name in shared), shared[0] if shared else None)
    if key is None:
        raise ValueError(f"{ratios} and {metrics} have no column in common that names the run")
    measured = {str(row[key]): row for row in of_metrics}
    if len(measured) < len(of_metrics):
        raise ValueError(f"{metrics}: two rows have the same {key}")
    sources = tuple(name for name in of_ratios[0] if name not in {key, *NOT_SOURCES})
    known = [name for name in of_metrics[0] if name not in {key, *NOT_SOURCES}]
    for name in targets:
        if name not in known:
            raise ValueError(f"{metrics} has no metric {name!r}{disk.did_you_mean(name, known)}")
    chosen = tuple(targets) or tuple(known)
    missing = [str(row[key]) for row in of_ratios if str(row[key]) not in measured]
    if missing:
        raise ValueError(f"run {missing[0]!r} of {ratios} is not in {metrics}")
    shares_RS = np.array([[_number(row, name, ratios) for name in sources] for row in of_ratios])
    sums_R = shares_RS.sum(axis=1)
    if shares_RS.min() < 0 or (abs(sums_R - 1) > 0.02).any():
        worst = int(np.argmax(abs(sums_R - 1)))
        raise ValueError(
            f"{ratios}: the shares of run {of_ratios[worst][key]} sum to {sums_R[worst]:.3g}; "
            "every column beside the run must be a share of a source"
        )
    values = []
    for name in chosen:
        values.append([_number(measured[str(row[key])], name, metrics) for row in of_ratios])
    if rows is not None and (unknown := sorted(set(sources) - set(rows))):
        raise ValueError(f"--rows does not say how many rows {unknown[0]!r} has")
    return Swarm(
        sources=sources,
        shares_RS=shares_RS / sums_R[:, None],
        targets=chosen,
        values_TR=np.array(values),
        higher=higher,
        rows=None if rows is None else tuple(rows[name] for name in sources),
        names=tuple(str(row[key]) for row in of_ratios),
        notes=(f"run: column {key!r}", f"sources: {len(sources)} columns of {ratios}"),
    )


def _number(row: Mapping[str, Any], name: str, path: str) -> float:
    try:
        value = float(row[name])
    except (KeyError, TypeError, ValueError):
        value = float("nan")
    if not np.isfinite(value):
        raise ValueError(f"{path}: {row.get(name)!r} in column {name!r} is no number")
    return value


def _is_higher_better(metric: str) -> bool:
    from train.evaluation.metrics import METRICS

    return METRICS[metric].higher_is_better


# --- what to go on with ---------------------------------------------------------------------------


def write_blend(choice: BlendChoice, swarm: Swarm, folder: str, out: str) -> list[str]:
    """Leave the found blend in `out`; the files. Of an ablation: blend.yaml for `clipmill train`,
    and confirm.yaml, an ablation of it against proportional and uniform shares on fresh seeds. Of
    tables: ratios.csv with the found shares, as Olmix reads it.
    """
    import yaml

    shares = zip(choice.sources, choice.shares, strict=True)
    found = {name: share for name, share in shares if share}
    if swarm.ablation is None:
        line = ",".join(["found", *map(str, choice.shares)])
        text = ",".join(["run", *choice.sources]) + f"\n{line}\n"
        disk.write_bytes(disk.join(out, "ratios.csv"), text.encode())
        return ["ratios.csv"]
    ablation = swarm.ablation
    pools = {
        name: str(Path(ablation.pool_folder(folder, name)).absolute())
        for name in sorted({source.split("/")[0] for source in choice.sources})
    }
    blend = {"name": f"{ablation.name}_found", "pools": pools, "views": found}
    arms: dict[str, Any] = {"found": {"views": found}}
    sources = choice.sources
    arms["uniform"] = {"views": dict.fromkeys(sources, round(1 / len(sources), 6))}
    baseline = "uniform"
    if swarm.rows is not None:
        arms["proportional"] = {"views": dict(zip(sources, map(float, swarm.rows), strict=True))}
        baseline = "proportional"
    plain = disk.to_plain(ablation)
    first = max(ablation.seeds) + 1
    confirm = {
        "name": f"{ablation.name}_confirm",
        "question": f"Does the blend that {ablation.name} found hold on fresh seeds?",
        "pools": {name: {"out": path} for name, path in pools.items()},
        "arms": arms,
        "baseline": baseline,
        "seeds": list(range(first, first + CONFIRMING_SEEDS)),
        **{key: plain[key] for key in ("train", "evaluate", "primary", "equivalence", "jobs")},
    }
    for name, document in (("blend.yaml", blend), ("confirm.yaml", confirm)):
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        disk.write_bytes(disk.join(out, name), text.encode())
    return ["blend.yaml", "confirm.yaml"]
