from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import disk
from manifests.schema import TaskSpec
from tests.support.task_data import images_of, task_of
from train.evaluation.metrics import metric_values
from train.evaluation.tasks import ASSOCIATION, evaluate, jaccard_indices, read_samples
from train.model.clip import CLIP


def test_jaccard_by_hand() -> None:
    similarity = np.array([0.9, 0.8, 0.1, 0.7, 0.5, 0.5, 0.2])
    cue = np.array([0, 0, 0, 0, 1, 1, 1])
    right = np.array([True, False, True, False, True, False, False])
    # Cue 0: 0 and 1 are chosen, 0 and 2 are right: 1 of 3. Cue 1: a tie goes to the wrong one.
    indices, candidates, counts = jaccard_indices(similarity, cue, right)
    assert indices.tolist() == pytest.approx([1 / 3, 0])
    assert (candidates.tolist(), counts.tolist()) == ([4, 3], [2, 1])


@pytest.fixture
def associations(colours: TaskSpec, tmp_path: Path) -> TaskSpec:
    """Three cues: ten candidates, then five, then three."""
    images, rows, first = images_of(read_samples(colours)), [], 0
    for cue, count, right in (("Apple", 10, 4), ("night", 5, 2), ("x", 3, 1)):
        names = [f"{cue}{n}" for n in range(count)]
        pictures = [{"bytes": image, "path": None} for image in images[first : first + count]]
        rows.append(
            {
                "cue": cue,
                "candidates": names,
                "associations": names[:right],
                "candidate_images": pictures,
            }
        )
        first += count
    (tmp_path / "w").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "w" / "test-0.parquet", row_group_size=2)
    return task_of(tmp_path / "w", "association")


def test_every_cue_has_its_row(associations: TaskSpec, model: CLIP, tmp_path: Path) -> None:
    metrics = evaluate(model, [associations], str(tmp_path / "out"))["t"]
    table = disk.read_parquet(tmp_path / "out" / "t.parquet")
    assert table["sample"].to_pylist() == ["An apple", "A night", "A x"]
    assert table["candidates"].to_pylist() == [10, 5, 3]
    assert metrics["jaccard"] == pytest.approx(np.mean(table["jaccard"].to_numpy()))
    assert metrics["jaccard_10_12"] == table["jaccard"].to_pylist()[0]
    assert metric_values(table, "jaccard_10_12")[0].tolist() == [metrics["jaccard_10_12"]]
    (correct,) = ASSOCIATION.correct(table)
    assert correct.mean() == metrics["accuracy"]
    metadata = disk.read_metadata(tmp_path / "out" / "t.parquet")
    assert ASSOCIATION.chance(metadata, 3) == pytest.approx((1 / 210 + 1 / 10 + 1 / 3) / 3)
