"""The best blend of sources from small runs: an ablation's folder or two tables in, shares with an
interval out, and the files to go on with.

The tables are Olmix's: `ratios` has a row for each run and a column for each source, `metrics` a
row for each run and a column for each metric; a column of both names the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from manifests import disk
from manifests.layout import PoolLayout
from manifests.records import ViewDocument, read_document
from manifests.schema import Ablation, Arm
from train.decisions.tables import Record, records_of
from train.stats import mixing
from train.stats.mixing import BlendChoice, FloatArray

if TYPE_CHECKING:
    from train.ablation.conclusions import Results

ID_COLUMNS = ("run", "run_id", "index", "name")
NO_SOURCES = {*ID_COLUMNS, "", "file"}
SUM_TOLERANCE = 0.01  # of the shares of a run, as in Olmix
CONFIRMING_SEEDS = 10
SHARE_DIGITS = 4
KEPT = ("train", "evaluate", "primary", "equivalence", "jobs", "ranks", "hardware")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """R runs of mixtures of S sources. values_TR: of T metrics. higher: more is better.

    rows: what each source holds; None where nobody knows. rivals: trained arms that people named,
    to be compared with the found blend; those that are mixtures of the sources are runs too, and in
    `named` with their shares. measured: the mean of a rival's own runs.
    """

    sources: tuple[str, ...]
    shares_RS: FloatArray
    targets: tuple[str, ...]
    values_TR: FloatArray
    higher: bool
    rows: tuple[int, ...] | None
    notes: tuple[str, ...]
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
    shares_MS, losses_TM = mixing.mean_of_seeds(swarm.shares_RS, sign * swarm.values_TR)
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
    laws = [mixing.fit_laws(shares_MS, loss_M[None])[0] for loss_M in losses_TM]
    others = {"uniform": np.full(len(swarm.sources), 1 / len(swarm.sources))}
    if rows is not None:
        others["proportional"] = rows / rows.sum()
    others |= swarm.named
    refits = mixing.refitted(laws, shares_MS)
    candidates_CS, losses_BC = mixing.search(refits, mixing.candidates_of(shares_MS, caps_S))
    best = int(np.argmin(losses_BC.mean(axis=0)))
    regrets_B = losses_BC[:, best] - losses_BC.min(axis=1)
    of_others = mixing.losses_of(refits, np.stack(list(others.values()))).mean(axis=0)
    predicted_M = np.mean([law.predicted_R for law in laws], axis=0)
    loss_M = losses_TM.mean(axis=0)
    shares = _rounded(candidates_CS[best], caps_S)
    same_as = [name for name, of in swarm.named.items() if _rounded(of, caps_S) == shares]
    repeats = None
    if rows is not None and samples is not None:
        repeats = tuple(float(n) for n in np.array(shares) * samples / rows)
    return BlendChoice(
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
        measured=swarm.measured,
        regret=float(regrets_B.mean()),
        regret_high=float(np.quantile(regrets_B, 0.95)),
        skill=float(np.corrcoef(predicted_M, loss_M)[0, 1]),
        p=mixing.p_of_weights(shares_MS, loss_M),
        notes=swarm.notes,
    )


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


def swarm_of_ablation(
    ablation: Ablation, results: Results, folder: str, metric: str | None = None
) -> Swarm:
    """The trained arms of an ablation: views with weights, and every seed's value of the primary
    task. The sources are those of `mixtures`, without it all views of arms. ValueError for an
    ablation without such arms, and for a view of `folder` whose rows are needed and not known.
    """
    from train.evaluation.metrics import METRICS

    metric = metric or results.tasks[ablation.primary].metric
    weights = {name: arm.view_weights for name, arm in ablation.arms.items()}
    drawn: Mapping[str, Any] = {}
    if ablation.mixtures is None:
        sources = tuple(sorted({view for one in weights.values() for view in one}))
    else:
        sources, drawn = ablation.mixtures.sources, ablation.mixtures.arms()
    rows = {source: _kept(ablation, folder, source) for source in sources}
    shares, values, notes = [], [], []
    rivals, named, measured = {}, {}, {}
    for name, arm in ablation.arms.items():
        of_arm = []
        for seed, tasks in results.runs.get(name, {}).items():
            value = _metric_of(tasks[ablation.primary], ablation.primary, metric)
            if value is None or not np.isfinite(value):
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
        shares += [share_S] * len(of_arm)
        values += of_arm
    if not shares:
        raise ValueError(f"{folder}: no run has a result of a mixture of {', '.join(sources)}")
    known = tuple(n for n in rows.values() if n is not None)
    return Swarm(
        sources=sources,
        shares_RS=np.array(shares),
        targets=(f"{ablation.primary} {metric}",),
        values_TR=np.array([values]),
        higher=METRICS[metric].higher_is_better,
        rows=known if len(known) == len(sources) else None,
        notes=tuple(notes),
        ablation=ablation,
        rivals=rivals,
        named=named,
        measured=measured,
    )


def _kept(ablation: Ablation, folder: str, source: str) -> int | None:
    pool, view = source.split("/")
    view_json = PoolLayout(ablation.pool_folder(folder, pool)).view_json(view)
    return read_document(view_json, ViewDocument).kept if disk.exists(view_json) else None


def _metric_of(measured: Mapping[str, Any], task: str, metric: str) -> float | None:
    if metric not in measured:
        raise ValueError(
            f"{task} has no metric {metric!r}{disk.did_you_mean(metric, sorted(measured))}"
        )
    return None if measured[metric] is None else float(measured[metric])


def swarm_of_tables(
    ratios: str,
    metrics: str,
    *,
    targets: Sequence[str] = (),
    higher: bool = False,
    rows: Mapping[str, int] | None = None,
) -> Swarm:
    """The runs of two tables; a run that only one has, or without a value, is left out and noted.
    ValueError for shares that do not sum to 1, and cells that are neither numbers nor empty.
    """
    of_ratios, of_metrics = records_of([ratios], []), records_of([metrics], [])
    shared = [name for name in of_ratios[0] if name in of_metrics[0] and name != "file"]
    key = next((name for name in ID_COLUMNS if name in shared), shared[0] if shared else None)
    if key is None:
        raise ValueError(f"{ratios} and {metrics} have no column in common that names the run")
    measured = _by_run(of_metrics, key, metrics)
    sources = tuple(name for name in of_ratios[0] if name not in {key, *NO_SOURCES})
    if len(sources) < 2:
        raise ValueError(f"{ratios} has {len(sources)} columns of sources; a blend needs two")
    known = [name for name in of_metrics[0] if name not in {key, *NO_SOURCES}]
    for name in targets:
        if name not in known:
            raise ValueError(f"{metrics} has no metric {name!r}{disk.did_you_mean(name, known)}")
    chosen = tuple(targets) or tuple(known)
    notes = [f"the run is column {key!r}", f"{len(sources)} sources, columns of {ratios}"]
    shares, values = [], []
    for run, row in _by_run(of_ratios, key, ratios).items():
        share_S = np.array([_number(row, name, ratios) for name in sources])
        total = np.nansum(share_S)
        if abs(total - 1) > SUM_TOLERANCE or np.nanmin(share_S) < 0:
            raise ValueError(
                f"{ratios}: the shares of run {run} sum to {total:.4g}; every column beside the "
                "run must be a share of a source"
            )
        value_T = [_number(measured.get(run, {}), name, metrics) for name in chosen]
        if not np.isfinite(value_T).all():
            notes.append(
                f"run {run} is left out: it has no {chosen[np.argmin(np.isfinite(value_T))]}"
            )
            continue
        shares.append(np.nan_to_num(share_S) / total)
        values.append(value_T)
    if not shares:
        raise ValueError(f"no run of {ratios} has its metrics in {metrics}")
    if rows is not None and set(rows) != set(sources):
        odd = sorted(set(sources) ^ set(rows))[0]
        raise ValueError(f"--rows must name each source once; {odd!r} is not in both")
    return Swarm(
        sources=sources,
        shares_RS=np.array(shares),
        targets=chosen,
        values_TR=np.array(values).T,
        higher=higher,
        rows=None if rows is None else tuple(rows[name] for name in sources),
        notes=tuple(notes),
    )


def _by_run(records: Sequence[Record], key: str, path: str) -> dict[str, Record]:
    by_run = {str(row.get(key)).removesuffix(".0"): row for row in records}  # 3 and 3.0 are one
    if len(by_run) < len(records):
        raise ValueError(f"{path}: two rows have the same {key}")
    return by_run


def _number(row: Mapping[str, Any], name: str, path: str) -> float:
    """A cell; NaN where it is empty."""
    value = row.get(name)
    if value is None or value == "":
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        text = str(value)[:40]
        raise ValueError(f"{path}: {text!r} in column {name!r} is no number") from None


# --- what to go on with ---------------------------------------------------------------------------


def write_blend(choice: BlendChoice, swarm: Swarm, folder: str, out: str) -> list[str]:
    """Leave the found blend in `out`; the files. mix.json has the choice. Of an ablation:
    blend.yaml for `clipmill train`, and confirm.yaml, an ablation of it against uniform and
    proportional shares and the arms that people named, on fresh seeds; an arm that is the found
    blend would be the same runs. Of tables: ratios.csv with the found shares, as Olmix reads it.
    """
    import yaml

    disk.write_json(disk.join(out, "mix.json"), disk.to_plain(choice))
    pairs = zip(choice.sources, choice.shares, strict=True)
    found = {name: share for name, share in pairs if share}
    if swarm.ablation is None:
        text = ",".join(["run", *choice.sources]) + "\n"
        text += ",".join(["found", *map(str, choice.shares)]) + "\n"
        disk.write_bytes(disk.join(out, "ratios.csv"), text.encode())
        return ["mix.json", "ratios.csv"]
    ablation = swarm.ablation
    pools = {}
    for name in ablation.pools:
        pools[name] = disk.absolute_path(ablation.pool_folder(folder, name))
    blend: dict[str, Any] = {"name": f"{ablation.name}_found", "pools": pools, "views": found}
    if choice.max_repeats is not None:
        blend["max_repeats"] = choice.max_repeats
    arms = {
        "found": {"views": found},
        "uniform": {"views": dict.fromkeys(choice.sources, 1.0)},
        "proportional": {"views": dict.fromkeys(choice.sources, 1.0), "weights": "repeats"},
    }
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
    return ["mix.json", "blend.yaml", "confirm.yaml"]


def kept_settings(ablation: Ablation) -> dict[str, Any]:
    """The keys that a manifest has of the ablation that it explains or confirms."""
    plain = disk.to_plain(ablation)
    settings = {key: plain[key] for key in KEPT}
    tasks = [disk.to_plain(task, with_defaults=False) for task in ablation.evaluate]
    return settings | {"evaluate": tasks}
