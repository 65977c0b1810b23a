"""How many numbers a model has, by its configuration: in blocks, outside them, and in all."""

from __future__ import annotations

from train.model.architecture import ModelConfig


def block_parameters(width: int, mlp: int) -> tuple[int, int]:
    """Numbers of a block: in its matrices and the biases beside their rows, and in the rest."""
    split = 3 * width * (width + 1) + width * width + mlp * (width + 1) + width * mlp
    return split, 6 * width  # two norms, and the biases of both outputs


def parameter_count(config: ModelConfig) -> int:
    """Numbers in a model, scale and bias of the logits included."""
    vision = sum(block_parameters(config.vision_width, config.vision_mlp)) * config.vision_layers
    text = sum(block_parameters(config.text_width, config.text_mlp)) * config.text_layers
    return vision + text + outside_vision(config) + outside_text(config)


def outside_vision(config: ModelConfig) -> int:
    """Numbers of the image tower's embeddings, outer norms and projection."""
    width, first = config.vision_width, config.class_token_length
    patch = config.num_channels * config.patch_size**2 * width
    positions = (config.patches + first) * width
    return patch + first * width + positions + 4 * width + width * config.embed_dim


def outside_text(config: ModelConfig) -> int:
    """The same of the caption tower, and the scale and bias of the logits."""
    rows = config.vocab_size + config.context_length + 2 + config.embed_dim
    return rows * config.text_width + (2 if config.logit_bias else 1)


def block_matrices(config: ModelConfig) -> int:
    """Numbers of the blocks' matrices, without biases: what Muon steps."""
    vision = 4 * config.vision_width**2 + 2 * config.vision_width * config.vision_mlp
    text = 4 * config.text_width**2 + 2 * config.text_width * config.text_mlp
    return vision * config.vision_layers + text * config.text_layers
