"""A study as a table: what each finished run measured on each task, by every metric.

STUDY/measurements.parquet is what the verdict is made of. The report, `decide`, `mix` and `why`
read the values of runs from it and from nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from clipmill.manifests import disk
from clipmill.manifests.arrays import Array
from clipmill.manifests.metrics import METRICS
from clipmill.verdict.stats.analysis import TaskScores
from clipmill.verdict.stats.model import Values

RunKey = tuple[str, int]  # arm, seed
SCHEMA = pa.schema(
    {
        "arm": pa.string(),
        "seed": pa.int64(),
        "scale": pa.int64(),
        "task": pa.string(),
        "metric": pa.string(),
        "value": pa.float64(),
        "test_samples": pa.int64(),
        "chance": pa.float64(),
        "per_sample": pa.list_(pa.list_(pa.float64())),
        "source": pa.string(),
        "sha256": pa.string(),
    }
)
PLAIN = [name for name in SCHEMA.names if name != "per_sample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A metric of a run on a task: one row.

    value: None where it is no number. scale: samples that a run of the study sees; None where only
    predictions are known. chance: the metric of random answers; None where it is not known.
    per_sample: values whose mean is the metric, an array for each direction of a search; known of
    the metric that decides and of the headline of the task's kind. source: the file with the
    predictions, as a path inside of the study's folder; sha256: of that file.
    """

    arm: str
    seed: int
    task: str
    metric: str
    value: float | None
    scale: int | None = None
    test_samples: int = 0
    chance: float | None = None
    per_sample: tuple[Array, ...] | None = None
    source: str = ""
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """The measurements of a study: a table with the columns of SCHEMA, the arms in order.

    ablation_hash: of the ablation that the runs are of. files: {path inside of the study's folder:
    sha256} of all files that a number was read from.
    """

    table: pa.Table
    ablation_hash: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Measurement], **content: Any) -> Measurements:
        """The table of some rows. content: `ablation_hash` and `files`."""
        listed = list(rows)
        columns = {name: [getattr(row, name) for row in listed] for name in SCHEMA.names}
        return cls(table=pa.table(columns, SCHEMA), **content)

    @classmethod
    def read(cls, path: str, columns: list[str] = PLAIN) -> Measurements:
        """A file of measurements. Without the values per sample, which are most of its bytes,
        unless all columns of SCHEMA are asked for.
        """
        table, metadata = disk.read_with_metadata(path, columns)
        return cls(table=table, **metadata)

    def write(self, path: str) -> None:
        """Write the file whole. Parquet writes each distinct value once, so that right or wrong of
        a sample takes a bit.
        """
        content = {"ablation_hash": self.ablation_hash, "files": self.files}
        disk.write_parquet(path, self.table, content)

    def rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """The cells of some columns."""
        return list(zip(*(self.table[name].to_pylist() for name in columns), strict=True))

    @cached_property
    def runs(self) -> dict[RunKey, None]:
        """The runs that have a result, in order."""
        return dict.fromkeys(self.rows(["arm", "seed"]))

    @cached_property
    def _places(self) -> dict[tuple[str, str], dict[RunKey, int]]:
        """{(task, metric): {run: its row}}."""
        places: dict[tuple[str, str], dict[RunKey, int]] = {}
        for row, (arm, seed, *key) in enumerate(self.rows(["arm", "seed", "task", "metric"])):
            places.setdefault((key[0], key[1]), {})[arm, seed] = row
        return places

    def metrics(self, task: str) -> list[str]:
        """The metrics that some run has on a task."""
        return [metric for of_task, metric in self._places if of_task == task]

    @cached_property
    def _values(self) -> list[float]:
        values: list[float] = self.table["value"].to_numpy().tolist()  # NaN for NULL
        return values

    def values(self, task: str, metric: str) -> Values:
        """{arm: {seed: value}} of the runs that have the metric; NaN where it is no number."""
        values: Values = {}
        for (arm, seed), row in self._places.get((task, metric), {}).items():
            values.setdefault(arm, {})[seed] = self._values[row]
        return values

    def scores(self, task: str, metric: str) -> TaskScores:
        """The same for the analysis: with the values per sample that the table has, and with what
        is known of the metric.
        """
        kind, places = METRICS[metric], self._places.get((task, metric), {})
        samples: dict[str, dict[int, list[Array]]] = {}
        if "per_sample" in self.table.column_names:
            column = self.table["per_sample"].combine_chunks()
            for (arm, seed), row in places.items():
                if lists := column[row].values:
                    arrays = [one.values.to_numpy() for one in lists]
                    samples.setdefault(arm, {})[seed] = arrays
        facts: dict[str, Any] = {}
        for row in list(places.values())[:1]:
            facts = {name: self.table[name][row].as_py() for name in ("test_samples", "chance")}
        return TaskScores(
            values=self.values(task, metric),
            samples=samples,
            metric=metric,
            unit=kind.unit,
            higher_is_better=kind.higher_is_better,
            limit=1.0 if kind.unit == "share" else math.inf,
            **facts,
        )
