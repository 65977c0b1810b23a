"""Starting values of a model's parameters: open_clip's distributions, from one seed."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from train.model.blocks import Block
from train.model.towers import Text, Vision

LOGIT_SCALE = math.log(1 / 0.07)
# Where the sigmoid loss starts (Zhai et al. 2023).
SIGLIP_SCALE, SIGLIP_BIAS = math.log(10), -10.0


@torch.no_grad()
def initialise(visual: Vision, text: Text, seed: int) -> None:
    """Fill every parameter of both towers. The order of the draws decides the values."""
    generator = torch.Generator().manual_seed(seed)
    for tower in (visual, text):
        for module in tower.modules():
            _fill_layer(module, generator)
    _fill_vision(visual, generator)
    _fill_text(text, generator)


def _normal(x: Tensor, std: float, generator: torch.Generator) -> None:
    x.normal_(0, std, generator=generator)


def _uniform(x: Tensor, bound: float, generator: torch.Generator) -> None:
    x.uniform_(-bound, bound, generator=generator)


def _fill_layer(module: nn.Module, generator: torch.Generator) -> None:
    """Norms: 1 and 0. Linear layers as in torch: U(±1/√inputs) for the weight and the bias."""
    if isinstance(module, nn.LayerNorm):
        module.weight.fill_(1)
        module.bias.zero_()
    elif isinstance(module, nn.Linear):
        _uniform(module.weight, module.in_features**-0.5, generator)
        if module.bias is not None:
            _uniform(module.bias, module.in_features**-0.5, generator)


def _fill_vision(visual: Vision, generator: torch.Generator) -> None:
    width = visual.config.vision_width
    for parameter in (visual.class_embedding, visual.positional_embedding, visual.proj):
        _normal(parameter, width**-0.5, generator)
    for block in visual.blocks:
        assert isinstance(block, Block)
        # Xavier's bound for the fused matrix.
        _uniform(block.qkv.weight, math.sqrt(6 / (width + 3 * width)), generator)
        block.qkv.bias.zero_()
        block.out.bias.zero_()


def _fill_text(text: Text, generator: torch.Generator) -> None:
    width = text.config.text_width
    residual_std = width**-0.5 * (2 * text.config.text_layers) ** -0.5
    _normal(text.token_embedding.weight, 0.02, generator)
    _normal(text.positional_embedding, 0.01, generator)
    _normal(text.proj, width**-0.5, generator)
    for block in text.blocks:
        assert isinstance(block, Block)
        _normal(block.qkv.weight, width**-0.5, generator)
        _normal(block.out.weight, residual_std, generator)
        _normal(block.fc1.weight, (2 * width) ** -0.5, generator)
        _normal(block.fc2.weight, residual_std, generator)
        block.qkv.bias.zero_()
        block.out.bias.zero_()
