"""Runs whose models exist: evaluated like runs of this ablation, not trained.

A model is what train/evaluate.py takes: a run, a folder with open_clip's or Hugging Face's files,
or open_clip:NAME/TAG. Its predictions lie in runs/ARM/seed-N of the ablation's folder, beside
model.json with the sha256 of its files: when they change, the scores are stale.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import Any

from manifests import disk
from manifests.run_layout import AblationLayout, RunLayout
from manifests.schema import Ablation, Weights
from train.config import configure

NO_SEED = -1  # the seed of an arm that is one model: no other run has it, so nothing is paired
OPEN_CLIP = "open_clip:"
FILE_ENDINGS = (".json", ".safetensors", ".bin", ".pt")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """A run of an arm of which the model exists."""

    arm: str
    seed: int  # NO_SEED where the arm is one model
    source: str
    out: str
    device: str = "auto"
    ranks: int = 1
    weights: Weights = field(default_factory=Weights)  # those of the model as it is

    def predictions(self, task: str) -> str:
        """The file with the predictions of a task."""
        return RunLayout(self.out).task_predictions(task)


def model_runs(ablation: Ablation, out: str) -> tuple[ModelRun, ...]:
    """The runs of every arm that is a model: one for each seed, or a single one."""
    device = configure(ablation.train).device if ablation.train else "auto"
    layout, runs = AblationLayout(out), []
    for name in dict.fromkeys([ablation.baseline, *ablation.arms]):
        arm = ablation.arms[name]
        if arm.model is None:
            continue
        seeds = (NO_SEED,) if arm.is_one_model else ablation.seeds
        for seed in seeds:
            folder = layout.model(name) if arm.is_one_model else layout.run(name, seed)
            source = arm.model.replace("{seed}", str(seed))
            run = ModelRun(arm=name, seed=seed, source=source, out=folder, device=device)
            runs.append(run)
    return tuple(runs)


def check_models(ablation: Ablation, out: str) -> None:
    """ValueError for an arm of which no model exists; a single missing seed is one failed run."""
    of_arms: dict[str, list[ModelRun]] = {}
    for run in model_runs(ablation, out):
        of_arms.setdefault(run.arm, []).append(run)
    for arm, runs in of_arms.items():
        folders = [run_folder(run.source) for run in runs]
        if not any(folder is None or disk.exists(folder) for folder in folders):
            raise ValueError(
                f"arm {arm!r}: none of its models exists, as {runs[0].source}; name a run, a "
                "folder with a model, or open_clip:NAME/TAG"
            )


def run_folder(source: str) -> str | None:
    """The folder of a model; None for one that open_clip fetches."""
    return None if source.startswith(OPEN_CLIP) else source.removeprefix("local-dir:")


def trained_on(source: str) -> str | None:
    """run.json of the run that a model comes from, where that is known."""
    folder = run_folder(source)
    if folder is None:
        return None
    parent = os.path.dirname(folder.rstrip("/"))
    for root in (folder, parent) if folder.rstrip("/").endswith("/export") else (folder,):
        if disk.exists(RunLayout(root).run_json):
            return RunLayout(root).run_json
    return None


def model_identity(source: str) -> Json:
    """What decides the scores of a model: its name, or the sha256 of its files.

    ValueError for a folder that does not exist.
    """
    folder = run_folder(source)
    if folder is None:
        tag = source.partition("/")[2]
        is_file = bool(tag) and not disk.is_url(tag) and os.path.isfile(tag)
        return {"source": source, "files": {tag: _sha256(tag)} if is_file else {}}
    if not disk.exists(folder):
        raise ValueError(f"{folder} does not exist; name a run or a folder with a model")
    export = RunLayout(folder).export
    root = export if disk.exists(export) else folder
    files = {}
    for name in sorted(disk.list_names(root)):
        if name.endswith(FILE_ENDINGS) and name != "run.json":
            files[name] = _sha256(disk.join(root, name))
    return {"source": source, "files": files}


def _sha256(path: str) -> str:
    if disk.is_url(path):
        return hashlib.sha256(disk.read_bytes(path)).hexdigest()
    with open(disk.local_path(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def saved_model(run: ModelRun) -> Json | None:
    """The identity of the model that was evaluated; None where none was."""
    path = RunLayout(run.out).model_json
    if not disk.exists(path):
        return None
    identity: Json = disk.read_json(path)
    return identity


def stale_model(run: ModelRun) -> list[str]:
    """How the model differs from the one that was evaluated, as `file: saved -> now`.

    [] where it does not differ, where nothing was evaluated, and where the model is gone: its
    scores stay those of the model that was there.
    """
    saved = saved_model(run)
    if saved is None:
        return []
    try:
        now = model_identity(run.source)
    except ValueError:
        return []
    files = {**saved["files"], **now["files"]}
    lines = []
    if not files and saved["source"] != now["source"]:
        lines.append(f"model: {saved['source']} -> {now['source']}")
    for name in sorted(files):
        before, after = saved["files"].get(name), now["files"].get(name)
        if before != after:
            lines.append(f"{name}: {str(before)[:12]} -> {str(after)[:12]}")
    return lines
