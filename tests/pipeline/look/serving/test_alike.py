from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from manifests import disk
from manifests.aligned import AlignedFiles
from manifests.commits import read_commits
from manifests.layout import PoolLayout
from manifests.records import ScoreSetDocument, read_document
from pipeline.look.server import Alike
from pipeline.look.survey import survey_pool
from pipeline.scoring.score_sets import score_set_names
from tests.support import looked
from tests.support.bundles import write_scores


def with_embeddings(pool: str) -> np.ndarray:
    """Adds a column of embeddings to the pool's score set; (rows, 4) what they are."""
    (name,) = score_set_names(pool)
    layout = PoolLayout(pool)
    vectors = np.random.default_rng(3).normal(size=(20, 4)).astype(np.float16)
    files, shards = AlignedFiles.of_scores(pool, name), {}
    for shard in (0, 1):
        table, metadata = files.read(shard)
        flat = pa.array(vectors[10 * shard : 10 * shard + 10].reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(flat, 4)
        shards[shard] = table.append_column("embed_image", column), metadata
    write_scores(pool, name, shards)
    path = layout.score_set_json(name)
    document = read_document(path, ScoreSetDocument).document()
    document["columns"] = [*document["columns"], "embed_image"]
    disk.write_json(path, document, sealed=True)
    return vectors


@pytest.mark.parametrize("has_faiss", [False, True])
def test_the_nearest_by_cosine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_faiss: bool
) -> None:
    if has_faiss:
        pytest.importorskip("faiss")
    else:
        monkeypatch.setitem(sys.modules, "faiss", None)
    pool = looked.make(tmp_path / "pool", 20)
    assert Alike.of_survey(survey_pool(pool)) is None
    vectors = with_embeddings(pool).astype(np.float64)
    survey = survey_pool(pool)
    alike = Alike.of_survey(survey)
    assert alike is not None
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    stored = np.flatnonzero(survey.rows.stored)
    for row in stored.tolist():
        likeness = unit[stored] @ unit[row]
        expected = [int(one) for one in stored[np.argsort(-likeness)] if one != row]
        assert alike.nearest(row, 5) == expected[:5]
    with pytest.raises(ValueError, match="not among those"):
        alike.nearest(4)
    assert len(alike.nearest(0, 100)) == 15
    assert read_commits(pool).totals.stored == 16
