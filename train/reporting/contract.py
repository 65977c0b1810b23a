"""What all runs of an ablation share: settings, model, device, versions. And what they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manifests import disk
from manifests.documents import RunRecord, read_document
from manifests.run_layout import RunLayout
from train.ablation import Run
from train.reporting.schema import Contract, ContractRow

# Settings that a reader asks for first, with their names on the page.
MAIN = {
    "model": "model",
    "parameters": "parameters",
    "samples_seen": "samples seen of a run",
    "steps": "steps",
    "batch_size": "batch size",
    "lr": "learning rate",
    "schedule": "schedule",
    "warmup": "warm-up steps",
    "weight_decay": "weight decay",
    "precision": "precision",
    "tokenizer": "tokenizer",
    "init": "initial weights",
    "device": "device",
    "world": "processes of a run",
}
SEEDS = ("seed", "order_seed")  # differ by design


def collect_contract(runs: Sequence[Run]) -> Contract | None:
    """The settings of the finished runs; None without a run."""
    records: dict[str, list[RunRecord]] = {}
    for run in runs:
        record = read_document(RunLayout(run.out).run_json, RunRecord)
        records.setdefault(run.arm, []).append(record)
    if not records:
        return None
    by_arm = {}
    for arm, of_arm in records.items():
        by_arm[arm] = [_facts(record) for record in of_arm]
    hashes = set()
    for of_arm in records.values():
        hashes |= {disk.content_hash(_without_seeds(record.config)) for record in of_arm}
    names = list(dict.fromkeys([*MAIN, *sorted(_all_names(by_arm))]))
    rows = [_row(name, by_arm) for name in names]
    return Contract(
        runs=sum(len(of_arm) for of_arm in records.values()),
        config_hash=hashes.pop() if len(hashes) == 1 else None,
        rows=tuple(row for row in rows if row is not None),
        blends={arm: of_arm[0].blend_hash for arm, of_arm in records.items()},
    )


def _without_seeds(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in SEEDS}


def _facts(record: RunRecord) -> dict[str, Any]:
    """The settings of a run, and what it ran on."""
    facts = _without_seeds(record.config)
    facts["device"] = record.device
    facts |= {"world": record.world, "parameters": record.parameters, "steps": record.steps}
    for name, version in record.versions.items():
        facts[f"version of {name}"] = version
    return facts


def _all_names(by_arm: Mapping[str, Sequence[Mapping[str, Any]]]) -> set[str]:
    names: set[str] = set()
    for of_arm in by_arm.values():
        for facts in of_arm:
            names |= set(facts)
    return names


def _row(name: str, by_arm: Mapping[str, Sequence[Mapping[str, Any]]]) -> ContractRow | None:
    """A setting over all runs; None where no run names a value."""
    texts: dict[str, str] = {}
    for arm, of_arm in by_arm.items():
        values = dict.fromkeys(_text(facts.get(name)) for facts in of_arm)
        texts[arm] = ", ".join(values)
    different = set(texts.values())
    if different == {""}:
        return None
    same = len(different) == 1
    return ContractRow(
        setting=MAIN.get(name, name),
        value=different.pop() if same else None,
        by_arm={} if same else {arm: text or "none" for arm, text in texts.items()},
        main=name in MAIN or not same,
    )


def _text(value: Any) -> str:
    """A value for a person to read; empty for none."""
    if value is None or value == {} or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
