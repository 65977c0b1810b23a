"""The noise ledger: how much runs varied in the ablations whose folders lie beside this one.

Every ablation leaves noise.json in its folder. A new ablation takes the entries of its neighbours
with the same training settings, task, test data and metric as the prior of its own noise. What it
took is kept in its ledger.json, so that the same command gives the same verdict later. `ledger:
false` in the manifest switches it off. Predictions of other programs have no entry: their settings
are not known.
"""

from __future__ import annotations

import logging
import math
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from manifests import disk
from manifests.layout import AblationLayout
from manifests.records import read_document
from manifests.schema import Ablation
from train.ablation.conclusions import TaskNoise
from train.config import configure
from train.evaluation.tasks import data_hash, deciding_metric, read_samples
from train.identity import settings_identity, shared_part
from train.stats.model import LedgerEntry, fit_prior

LEAST_VARIANCE = 1e-18  # a smaller one comes of a metric too coarse to vary
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseEntry:
    """The noise of one run on one task of an ablation.

    settings: hash of the training settings without seeds. data: hash of the task's samples.
    variance, df: of one run's residual, in the squared unit of the metric.
    """

    ablation: str
    settings: str
    task: str
    data: str
    metric: str
    variance: float
    df: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseDocument:
    """noise.json, and ledger.json with the settings that it was made for."""

    entries: tuple[NoiseEntry, ...]
    settings: str = ""


def is_trained(ablation: Ablation) -> bool:
    """Whether at least one arm is trained here."""
    return any(arm.is_trained for arm in ablation.arms.values())


def settings_hash(ablation: Ablation) -> str:
    """Hash of what all runs share beside their data: settings, initial weights and versions; and
    which weights are evaluated.
    """
    shared = shared_part(settings_identity(configure(ablation.train)))
    averaged = {"weights": ablation.evaluate_weights} if ablation.evaluate_weights.suffix else {}
    return disk.content_hash({**shared, **averaged})


def own_entries(
    ablation: Ablation, noise: Sequence[TaskNoise], data: Mapping[str, str]
) -> tuple[NoiseEntry, ...]:
    """What an ablation leaves for others: its own noise, without prior and floor.

    data: {task: hash of its samples}. Tasks without degrees of freedom or without any noise have
    no entry.
    """
    if not is_trained(ablation):
        return ()
    settings = settings_hash(ablation)
    entries = []
    for one in noise:
        variance = (one.own_sd or 0.0) ** 2
        if one.own_df > 0 and variance > LEAST_VARIANCE:
            entries.append(
                NoiseEntry(
                    ablation=ablation.name,
                    settings=settings,
                    task=one.task,
                    data=data[one.task],
                    metric=one.metric,
                    variance=variance,
                    df=one.own_df,
                )
            )
    return tuple(entries)


def read_prior(ablation: Ablation, out: str, data: Mapping[str, str]) -> tuple[NoiseEntry, ...]:
    """The entries that are the prior of an ablation: those of its ledger.json, or else those of
    its neighbours that have its settings, tasks, data and metrics, and another name.

    Empty with `ledger: false` and where nothing is trained. A noise.json that cannot be read is
    passed over with a warning.
    """
    layout = AblationLayout(out)
    if not ablation.ledger or not is_trained(ablation):
        return ()
    settings = settings_hash(ablation)
    if disk.exists(layout.ledger_json):
        document = read_document(layout.ledger_json, NoiseDocument)
        if document.settings == settings:
            return document.entries
    wanted = {(task.name, data[task.name], deciding_metric(task)) for task in ablation.evaluate}
    entries = []
    for entry in _neighbours(out):
        known = (entry.task, entry.data, entry.metric) in wanted and entry.settings == settings
        if known and entry.ablation != ablation.name:
            entries.append(entry)
    return tuple(entries)


def kept_prior(ablation: Ablation, out: str) -> tuple[NoiseEntry, ...]:
    """The entries in the folder's ledger.json, from which an ablation in rounds started."""
    if not ablation.ledger or not is_trained(ablation):
        return ()
    path = AblationLayout(out).ledger_json
    if not disk.exists(path):
        return ()
    document = read_document(path, NoiseDocument)
    return document.entries if document.settings == settings_hash(ablation) else ()


def prior_of_rounds(ablation: Ablation, out: str) -> LedgerEntry | None:
    """The prior on the primary task, fixed in ledger.json before the first round. None without."""
    if not ablation.ledger or not is_trained(ablation):
        return None
    data = {task.name: data_hash(read_samples(task)) for task in ablation.evaluate}
    entries = read_prior(ablation, out, data)
    document = NoiseDocument(entries=tuple(entries), settings=settings_hash(ablation))
    disk.write_json(AblationLayout(out).ledger_json, document)
    return primary_prior(ablation, entries)


def primary_prior(ablation: Ablation, entries: Sequence[NoiseEntry]) -> LedgerEntry | None:
    """The prior of the primary task from the entries of all tasks."""
    return fit_prior(by_task(entries).get(ablation.primary, ()))


def planned_sd(ablation: Ablation, out: str) -> float | None:
    """The SD of one run on the primary task as neighbours of the same settings tell it, for a plan.

    None where no neighbour does. The test data are not compared: they need not be there yet.
    """
    if not ablation.ledger or not is_trained(ablation):
        return None
    settings = settings_hash(ablation)
    task = next(task for task in ablation.evaluate if task.name == ablation.primary)
    entries = []
    for entry in _neighbours(out):
        if (entry.settings, entry.task, entry.metric) == (
            settings,
            task.name,
            deciding_metric(task),
        ):
            entries.append(LedgerEntry(variance=entry.variance, df=entry.df))
    prior = fit_prior(entries)
    return None if prior is None else math.sqrt(prior.variance)


def write_ledger(
    ablation: Ablation, out: str, prior: Sequence[NoiseEntry], own: Sequence[NoiseEntry]
) -> None:
    """Write noise.json, and ledger.json with what the verdict started from."""
    if not is_trained(ablation):
        return
    layout, settings = AblationLayout(out), settings_hash(ablation)
    if ablation.ledger:
        document = NoiseDocument(entries=tuple(prior), settings=settings)
        disk.write_json(layout.ledger_json, document)
    disk.write_json(layout.noise_json, NoiseDocument(entries=tuple(own), settings=settings))


def by_task(entries: Sequence[NoiseEntry]) -> dict[str, list[LedgerEntry]]:
    """The entries as the statistics take them."""
    ledger: dict[str, list[LedgerEntry]] = {}
    for entry in entries:
        one = LedgerEntry(variance=entry.variance, df=entry.df)
        ledger.setdefault(entry.task, []).append(one)
    return ledger


def _neighbours(out: str) -> Iterator[NoiseEntry]:
    """All entries of the folders beside `out`, in the order of their names."""
    parent, own = posixpath.split(out.rstrip("/"))
    for name in disk.list_names(parent):
        path = AblationLayout(disk.join(parent, name)).noise_json
        if name == own or not disk.exists(path):
            continue
        try:
            yield from read_document(path, NoiseDocument).entries
        except (ValueError, OSError) as error:
            logger.warning("the noise of a neighbour is passed over: %s", error)
