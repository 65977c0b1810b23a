"""Every path of a training run and of an ablation, spelled once.

Paths are local paths or fsspec URLs. A layout is a view of a folder: it opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from manifests import disk
from manifests.schema import Weights


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The files of a training run."""

    root: str

    @property
    def run_json(self) -> str:
        """Written last: the run is whole."""
        return disk.join(self.root, "run.json")

    @property
    def log(self) -> str:
        return disk.join(self.root, "log.jsonl")

    @property
    def checkpoints(self) -> str:
        return disk.join(self.root, "checkpoints")

    @property
    def blend_json(self) -> str:
        """The blend as resolved."""
        return disk.join(self.root, "blend.json")

    def checkpoint(self, step: int) -> str:
        """The folder of the checkpoint after `step` steps."""
        return disk.join(self.checkpoints, f"step-{step}")

    @property
    def segments(self) -> str:
        """The folder of what a run on a pool that was being built drew from."""
        return disk.join(self.root, "segments")

    def segment(self, number: int) -> str:
        """One segment of such a run."""
        return disk.join(self.segments, f"{number:05d}.json")

    def nonfinite_json(self, rank: int) -> str:
        """Where a NaN or an infinity appeared on `rank`."""
        return disk.join(self.root, f"nonfinite-{rank}.json")

    @property
    def export(self) -> str:
        """The folder that open_clip loads."""
        return disk.join(self.root, "export")

    @property
    def predictions(self) -> str:
        """The folder with one Parquet file per evaluation task."""
        return disk.join(self.root, "eval")

    def predictions_of(self, weights: Weights) -> str:
        """The folder of the predictions of these weights: averages have one of their own."""
        return self.predictions + weights.suffix

    @property
    def model_json(self) -> str:
        """Of a model that was not trained here: which one its predictions are of."""
        return disk.join(self.root, "model.json")

    @property
    def until(self) -> str:
        """The folder of the evaluations of a run that trains until a target."""
        return disk.join(self.root, "until")

    @property
    def target_json(self) -> str:
        """What these evaluations were."""
        return disk.join(self.until, "target.json")

    def task_predictions(self, task: str, weights: Weights | None = None) -> str:
        """The predictions on a task, of these weights; None: those after the last step."""
        folder = self.predictions if weights is None else self.predictions_of(weights)
        return disk.join(folder, f"{task}.parquet")


@dataclass(frozen=True, slots=True)
class AblationLayout:
    """The files of an ablation."""

    root: str

    @property
    def ablation_json(self) -> str:
        """The ablation as resolved."""
        return disk.join(self.root, "ablation.json")

    @property
    def command_json(self) -> str:
        return disk.join(self.root, "command.json")

    @property
    def costs_json(self) -> str:
        return disk.join(self.root, "costs.json")

    @property
    def results_json(self) -> str:
        return disk.join(self.root, "results.json")

    @property
    def lock(self) -> str:
        """Held by the command that runs the ablation."""
        return disk.join(self.root, ".lock")

    @property
    def noise_json(self) -> str:
        """The noise of its runs, for the ablations beside it."""
        return disk.join(self.root, "noise.json")

    @property
    def ledger_json(self) -> str:
        """The noise of other ablations that it started from."""
        return disk.join(self.root, "ledger.json")

    @property
    def overlap_json(self) -> str:
        """Every evaluation image that a pool stores too."""
        return disk.join(self.root, "overlap.json")

    @property
    def report_json(self) -> str:
        return disk.join(self.root, "report.json")

    @property
    def report_markdown(self) -> str:
        """The summary of the report for a pull request."""
        return disk.join(self.root, "report.md")

    def recipe_json(self, pool: str) -> str:
        return disk.join(self.root, "recipes", f"{pool}.json")

    def blend_json(self, arm: str) -> str:
        return disk.join(self.root, "blends", f"{arm}.json")

    def run(self, arm: str, seed: int) -> str:
        """The folder of one run."""
        return disk.join(self.root, "runs", arm, f"seed-{seed}")

    def model(self, arm: str) -> str:
        """The folder of an arm that is one model."""
        return disk.join(self.root, "runs", arm, "model")

    @property
    def scorer(self) -> str:
        """The run that trains the scorer."""
        return disk.join(self.root, "scorer")

    @property
    def report(self) -> str:
        """The report as one page of HTML."""
        return disk.join(self.root, "report.html")

    @property
    def null(self) -> str:
        """The ablation on data where no effect is planted."""
        return disk.join(self.root, "null")

    @property
    def web(self) -> str:
        """The small web of a demo."""
        return disk.join(self.root, "web")
