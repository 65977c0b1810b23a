from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from benchmarks.trainer import steps
from benchmarks.trainer.steps import StepPlan, measure_scoring, steps_of
from manifests.schema import Blend
from tests.support.steps import RUN_SETTINGS
from train.config import configure, model_config
from train.model.clip import CLIP
from train.model.memory import training_flops
from train.parallel.process_group import Ranks
from train.trainer.mix import open_loader
from train.transforms import normalise

CONFIG = configure({**RUN_SETTINGS, "samples_seen": 8 * steps_of(2, 2, 1)})


def test_samples_of_a_blend_are_beside_synthetic_ones(tiny_pool: str, tmp_path: Path) -> None:
    blend = Blend(name="b", pools={"p": tiny_pool}, views={"p/all": 1.0})
    plan = StepPlan(config=CONFIG, blend=blend, iterations=2, repeats=2, warmup=1)
    measured = measure_scoring(plan, str(tmp_path))
    figures = {name: value or 0.0 for name, value in measured.figures.items()}
    assert figures["timed_steps"] == 4
    share = figures["samples_per_s"] / figures["synthetic_samples_per_s"]
    assert figures["share_of_synthetic"] == pytest.approx(share)
    assert 0 < figures["wait_share"] <= 1
    # forward alone is a third of forward and backward, but for the patches
    whole = training_flops(model_config(CONFIG)).sample(4)
    assert 0.2 * whole < figures["model_tflops"] * 1e12 / figures["samples_per_s"] < 0.5 * whole
    assert not list(tmp_path.iterdir())


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
    batch = next(open_loader(blend, CONFIG, model_config(CONFIG)).batches())
    model = CLIP(model_config(CONFIG), CONFIG.seed).eval()
    mean, std = model.config.image_mean, model.config.image_std
    image_BE, text_BE, _, _ = model(normalise(batch.image_BHWC, mean, std), batch.tokens_BT)
    torch.testing.assert_close(taken[1], (image_BE * text_BE).sum(-1).detach())


def test_the_wait_for_batches_that_warm_up_is_not_counted(tmp_path: Path) -> None:
    plan = StepPlan(config=CONFIG, blend=None, iterations=1, warmup=2)
    ranks = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)
    model = CLIP(model_config(CONFIG), CONFIG.seed).eval()
    with contextlib.ExitStack() as opened:
        source = steps._Source(plan, ranks, str(tmp_path), opened, synthetic=True)
        assert len(source.score(model, 2)) == 2 * CONFIG.batch_size
        assert source.counts.waited == 0
        source.timed(model, 1)
        assert 0 < source.counts.waited < sum(source.counts.walls)


def test_synthetic_alone_has_no_share(tmp_path: Path) -> None:
    plan = StepPlan(config=CONFIG, blend=None, iterations=1, warmup=1)
    assert "share_of_synthetic" not in measure_scoring(plan, str(tmp_path)).figures
    config = configure({**RUN_SETTINGS, "device": "cuda"})
    with pytest.raises(ValueError, match="torch finds no GPU here"):
        measure_scoring(StepPlan(config=config, blend=None, iterations=1), str(tmp_path))
