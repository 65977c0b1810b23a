"""One pass over a pool with a model, its embeddings, and what is computed of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from clipmill.filters.clip import model as models
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.scorer import score
from tests.support.bundles import scores_of
from tests.support.small_pool import Row, make_pool, rows


def column(pool: str, sets: dict[str, Any], instance: str, name: str) -> list[Any]:
    (folder,) = (folder for folder in sets if folder.startswith(f"{instance}@"))
    tables = [scores_of(pool, folder, shard) for shard in (0, 1)]
    return pa.concat_tables(tables)[name].to_pylist()


def test_a_pass_runs_a_model_once_for_all_that_need_it(
    clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[models.ClipModel] = []
    load = models._load

    def counted(*arguments: Any) -> models.ClipModel:
        loaded.append(load(*arguments))
        return loaded[-1]

    monkeypatch.setattr(models, "_load", counted)
    given = rows(14)
    given[1] = Row(caption=None)
    given[2] = Row(caption="x", image=b"no picture")
    pool = make_pool(tmp_path / "pool", given)
    head = str(tmp_path / "head.pth")
    torch.save(nn.Linear(16, 1).state_dict(), head)
    model = {"model": f"local-dir:{clip_folder}", "device": "cpu"}
    specs = [
        FilterSpec(name="mine", kind="embed", options=model),
        FilterSpec(name="clip_score", options=model),
        FilterSpec(name="stored", kind="clip_score", options={"on": "mine"}),
        FilterSpec(name="aesthetic", kind="head", options={"weights": head, "on": "mine"}),
        FilterSpec(name="clip_loss", options={"on": "mine", "temperature": 0.5}),
    ]
    report = score(PoolWriter(pool), specs, engine="inline")
    assert report["failed"] == {}
    # Two shards; a row without a caption is an image of its own for `embed` only. The captions of
    # one shard are of two context lengths.
    assert [each.forwards for each in loaded] == [{"image": 2, "text": 3}]

    sets = report["sets"]
    lacking = [row.reason is not None for row in given]
    images = column(pool, sets, "mine", "mine_image")
    texts = column(pool, sets, "mine", "mine_text")
    assert [value is None for value in images] == [i == 2 or bad for i, bad in enumerate(lacking)]
    assert [value is None for value in texts] == [
        i in (1, 2) or bad for i, bad in enumerate(lacking)
    ]
    direct, stored = (column(pool, sets, name, name) for name in ("clip_score", "stored"))
    assert [value is None for value in direct] == [value is None for value in texts]
    assert [value is None for value in stored] == [value is None for value in texts]
    both = np.array([pair for pair in zip(direct, stored, strict=True) if None not in pair])
    np.testing.assert_allclose(both[:, 0], both[:, 1], atol=1e-3)
    heads = column(pool, sets, "aesthetic", "aesthetic")
    assert [value is None for value in heads] == [value is None for value in images]

    losses = column(pool, sets, "clip_loss", "clip_loss")
    assert [value is None for value in losses] == [value is None for value in texts]
    again = score(PoolWriter(pool), specs, engine="inline")
    assert list(again["sets"]) == list(sets)
    assert len(loaded) == 1
