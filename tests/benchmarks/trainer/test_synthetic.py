from __future__ import annotations

import torch

from benchmarks.trainer.synthetic import VARIETY, SyntheticLoader
from tests.support.steps import config_of
from train.config import model_config


def test_a_rank_gets_its_share_of_every_step() -> None:
    config = config_of(batch_size=8, samples_seen=48)
    model = model_config(config)
    loader = SyntheticLoader(config, model, 1, 2)
    batches = list(loader.batches())
    assert [batch.step for batch in batches] == list(range(6))
    assert batches[0].image_BHWC.shape == (4, *model.height_width, 3)
    assert batches[0].image_BHWC.dtype == torch.uint8
    assert not torch.equal(batches[0].tokens_BT, batches[1].tokens_BT)
    assert torch.equal(batches[0].tokens_BT, batches[VARIETY].tokens_BT)
    other = next(SyntheticLoader(config, model, 0, 2).batches())
    assert not torch.equal(other.tokens_BT, batches[0].tokens_BT)
    assert not torch.equal(other.image_BHWC, batches[0].image_BHWC)
    assert (loader.order.repeats(3), loader.sources()) == ({}, {})
