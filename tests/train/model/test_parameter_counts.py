from __future__ import annotations

import dataclasses

import pytest
import torch

from train.model.architecture import MODELS
from train.model.clip import CLIP
from train.model.memory import block_parameters, parameter_count


@pytest.mark.parametrize("name", ["test", "ViT-B-32", "ViT-L-14", "ViT-e-14"])
@pytest.mark.parametrize("logit_bias", [False, True])
def test_parameters_are_those_of_the_model(name: str, logit_bias: bool) -> None:
    config = dataclasses.replace(MODELS[name], logit_bias=logit_bias)
    with torch.device("meta"):
        model = CLIP(config)
    assert parameter_count(config) == sum(p.numel() for p in model.parameters())


def test_a_block_that_is_sharded_keeps_its_norms_and_output_biases_whole() -> None:
    split, rest = block_parameters(8, 32)
    with torch.device("meta"):
        block = torch.nn.TransformerEncoderLayer(8, 2, 32)
    assert split + rest == sum(p.numel() for p in block.parameters())
    assert rest == 2 * 2 * 8 + 2 * 8
