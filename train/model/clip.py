"""CLIP: an image tower and a caption tower, trained into one space of unit vectors.

The mathematics is open_clip's (`train/formats` carries checkpoints both ways).

Shapes: B samples, T tokens, E channels of an embedding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train.model.architecture import ModelConfig
from train.model.attention import (
    Attention,
    AttentionSpec,
    GroupedCaptions,
    PackedCaptions,
    check_kernel,
    trim,
)
from train.model.blocks import Block
from train.model.initialise import LOGIT_SCALE, SIGLIP_BIAS, SIGLIP_SCALE, initialise
from train.model.towers import Text, Vision
from train.rng import derive_key

# What the random numbers of a model are for (order.py has 1 to 3, augment.py 4).
NOISE = 5


class CLIP(nn.Module):
    """Both towers, the logit scale (a logarithm) and, for the sigmoid loss, the logit bias.

    Initialised from `seed` with open_clip's distributions; the same seed gives the same weights,
    whatever else has been drawn. Under `torch.device("meta")` nothing is allocated. A model with a
    rate or a dropout needs `reseed` before each forward of its training.
    """

    def __init__(
        self, config: ModelConfig, seed: int = 0, *, attention: Attention = "auto"
    ) -> None:
        super().__init__()
        device = torch.get_default_device()
        self.config = config
        drops_attention = config.vision_attention_dropout or config.text_attention_dropout
        check_kernel(attention, dropped=bool(drops_attention))
        with torch.device("meta" if device.type == "meta" else "cpu"):
            self.visual = Vision(config)
            self.text = Text(config)
            self.logit_scale = nn.Parameter(torch.empty(()))
            self.logit_bias = nn.Parameter(torch.empty(())) if config.logit_bias else None
        self._keys: dict[str, int] = {}
        self._row_B: Tensor | None = None
        self._configure_blocks(attention)
        if device.type != "meta":
            # In host memory: the same numbers for every device.
            initialise(self.visual, self.text, seed)
            self._initialise_logits()
            self.to(device)

    @torch.no_grad()
    def _initialise_logits(self) -> None:
        self.logit_scale.fill_(LOGIT_SCALE if self.logit_bias is None else SIGLIP_SCALE)
        if self.logit_bias is not None:
            self.logit_bias.fill_(SIGLIP_BIAS)

    def _configure_blocks(self, attention: Attention) -> None:
        """Give every block its kernel and what it leaves out in training."""
        config = self.config
        for depth, block in enumerate(self.visual.blocks):
            assert isinstance(block, Block)
            block.attention_spec = AttentionSpec(attention, config.vision_attention_dropout)
            block.dropout_rate = config.vision_hidden_dropout
            block.drop_path_rate = config.drop_path_rate * depth / max(1, config.vision_layers - 1)
        for block in self.text.blocks:
            assert isinstance(block, Block)
            block.attention_spec = AttentionSpec(attention, config.text_attention_dropout)
            block.dropout_rate = config.text_hidden_dropout

    def reseed(self, seed: int, step: int, row_B: Tensor) -> None:
        """Choose the random numbers of the next forward: of the samples `row_B` of batch `step`.

        Call it before every forward, also before the second one of a micro-batch. The same
        arguments give the same numbers, however a batch is cut into micro-batches and over
        data-parallel ranks. Tensor-parallel ranks pass the same arguments.
        """
        self._keys = {
            "visual": derive_key(seed, NOISE, step, 0),
            "text": derive_key(seed, NOISE, step, 1),
        }
        self._row_B = row_B

    def encode_image(self, image_BCHW: Tensor) -> Tensor:
        """Images, normalised per channel, to unit vectors BE."""
        key, row_B = self._random_numbers("visual", image_BCHW.device, len(image_BCHW))
        return l2_normalise(self.visual(image_BCHW, key, row_B))

    def encode_text(self, tokens: Tensor | PackedCaptions | GroupedCaptions) -> Tensor:
        """Captions to unit vectors BE.

        Captions are token numbers BT with zeros after the end-of-text token, or what
        `pack_captions` or `group_by_length` makes of these.
        """
        if isinstance(tokens, Tensor):
            key, row_B = self._random_numbers("text", tokens.device, len(tokens))
            return l2_normalise(self.text(trim(tokens), key, row_B))
        if isinstance(tokens, PackedCaptions):
            samples = len(tokens.offset_B1) - 1
            key, row_B = self._random_numbers("text", tokens.token_N.device, samples)
            return l2_normalise(self.text(tokens, key, row_B))
        index_B = tokens.grouped_index_B
        key, row_B = self._random_numbers("text", index_B.device, len(index_B))
        sizes = [len(group) for group in tokens.tokens_BT]
        rows = [None] * len(sizes) if row_B is None else row_B[tokens.row_B].split(sizes)
        embedded = []
        for group_BT, group_row_B in zip(tokens.tokens_BT, rows, strict=True):
            embedded.append(self.text(group_BT, key, group_row_B))
        return l2_normalise(torch.cat(embedded)[index_B])

    def _random_numbers(
        self, tower: str, device: torch.device, samples: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """The key of a tower and the rows of the samples; None where the model draws no numbers."""
        if not self.training or not self.config.stochastic:
            return None, None
        if self._row_B is None or len(self._row_B) != samples:
            named = "none were named" if self._row_B is None else f"{len(self._row_B)} were named"
            raise ValueError(
                f"a model with dropout got {samples} samples, but {named}; "
                "call reseed before each forward"
            )
        key = self._keys[tower]
        signed = key - (1 << 64) * (key >> 63)  # 64 bits as torch's int64 holds them
        row_B = self._row_B.to(device, non_blocking=True)
        return torch.full((), signed, device=device), row_B

    def forward(
        self, image_BCHW: Tensor, tokens: Tensor | PackedCaptions | GroupedCaptions
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Both embeddings BE, the factor on their products, and the logit bias or None."""
        image_BE = self.encode_image(image_BCHW)
        text_BE = self.encode_text(tokens)
        return image_BE, text_BE, self.logit_scale.exp(), self.logit_bias


def l2_normalise(x_BE: Tensor) -> Tensor:
    """Rows scaled to length 1, in at least 32 bits."""
    return F.normalize(x_BE if x_BE.dtype == torch.float64 else x_BE.float(), dim=-1)
