from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.trainer import steps
from benchmarks.trainer.steps import StepPlan, measure_scoring, steps_of
from manifests.schema import Blend
from tests.support.steps import RUN_SETTINGS
from train.config import configure, model_config
from train.data.loader import Loader
from train.model.clip import CLIP
from train.transforms import normalise

CONFIG = configure({**RUN_SETTINGS, "samples_seen": 8 * steps_of(2, 2, 1)})


def test_the_scores_are_the_products_of_both_embeddings(
    tiny_pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blend = Blend(name="b", pools={"p": tiny_pool}, views={"p/all": 1.0})
    taken: list[torch.Tensor] = []
    scores_of = steps._Source._scores

    def record(source: steps._Source, *arguments: object) -> torch.Tensor:
        taken.append(scores_of(source, *arguments))  # type: ignore[arg-type]
        return taken[-1]

    monkeypatch.setattr(steps._Source, "_scores", record)
    measure_scoring(StepPlan(config=CONFIG, blend=blend, iterations=1, warmup=1), str(tmp_path))
    batch = next(Loader(blend, CONFIG, model_config(CONFIG)).batches())
    model = CLIP(model_config(CONFIG), CONFIG.seed).eval()
    mean, std = model.config.image_mean, model.config.image_std
    image_BE, text_BE, _, _ = model(normalise(batch.image_BHWC, mean, std), batch.tokens_BT)
    torch.testing.assert_close(taken[1], (image_BE * text_BE).sum(-1).detach())
