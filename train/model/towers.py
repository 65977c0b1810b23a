"""The image tower and the caption tower: embeddings, blocks, pooling, projection.

The last block computes only the token that is pooled, captions are computed without what follows
their end (text attention is causal and the pooled token is the last, so padding never counts), and
patches are embedded by one matrix product. The results are open_clip's up to rounding.

Shapes: B samples, T tokens, C channels of a tower, F class tokens, E channels of an embedding,
N tokens of packed captions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train.model import noise as draws
from train.model.architecture import ModelConfig
from train.model.attention import PackedCaptions
from train.model.blocks import Block, Embedding, LayerNorm, Linear
from train.model.noise import Noise


class Vision(nn.Module):
    """The image tower: class tokens, then patches.

    The first token's last state is projected, or the mean of the patches.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, first = config.vision_width, config.class_token_length
        self.config = config
        self.patch = Linear(config.num_channels * config.patch_size**2, width, bias=False)
        class_shape = (width,) if first == 1 else (first, width)
        self.class_embedding = nn.Parameter(torch.empty(class_shape))
        self.positional_embedding = nn.Parameter(torch.empty(config.patches + first, width))
        self.ln_pre = LayerNorm(width)
        heads, mlp, quick_gelu = config.vision_heads, config.vision_mlp, config.quick_gelu
        self.blocks = nn.ModuleList(
            Block(width, heads, mlp, causal=False, quick_gelu=quick_gelu)
            for _ in range(config.vision_layers)
        )
        self.ln_post = LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, config.embed_dim))

    def forward(
        self, image_BCHW: Tensor, key: Tensor | None = None, row_B: Tensor | None = None
    ) -> Tensor:
        """Normalised images to embeddings BE, not yet unit vectors.

        `key` and `row_B` say which random numbers are drawn, see `CLIP.reseed`. ValueError for
        images of another shape.
        """
        config, first = self.config, self.config.class_token_length
        B, channels, height, width = image_BCHW.shape
        expected = [config.num_channels, *config.height_width]
        if [channels, height, width] != expected:
            raise ValueError(
                f"images of shape {[channels, height, width]}; the model takes {expected}"
            )
        p = config.patch_size
        grid = image_BCHW.view(B, channels, height // p, p, width // p, p).permute(0, 2, 4, 1, 3, 5)
        x_BTC = self.patch(grid.reshape(B, -1, channels * p * p))
        first_BFC = self.class_embedding.to(x_BTC.dtype).expand(B, first, -1)
        x_BTC = torch.cat([first_BFC, x_BTC], dim=1) + self.positional_embedding.to(x_BTC.dtype)
        noise = None
        if key is not None and row_B is not None:
            x_BTC, noise = self._dropped(x_BTC, draws.noise_of(key, row_B, x_BTC.shape[1]))
        x_BTC = self.ln_pre(x_BTC)
        # With average pooling no block computes the pooled token alone.
        pooling = len(self.blocks) if config.global_average_pool else len(self.blocks) - 1
        for depth, block in enumerate(self.blocks):
            x_BTC = block(x_BTC, noise=noise and noise.of_block(depth), last=depth == pooling)
        last_BC: Tensor = self.ln_post(x_BTC)
        if config.global_average_pool:
            last_BC = last_BC[:, first:].mean(dim=1)
        return last_BC @ self.proj

    def _dropped(self, x_BTC: Tensor, noise: Noise) -> tuple[Tensor, Noise]:
        """The embedded tokens after dropout, and without the patches that are left out."""
        config, first = self.config, self.config.class_token_length
        if config.vision_hidden_dropout:
            x_BTC = draws.dropout(x_BTC, config.vision_hidden_dropout, noise, draws.EMBEDDED)
        if config.drop_patch_rate:
            row_B, B = noise.row[:, 0], len(x_BTC)
            patch_BT = draws.kept_patches(row_B, noise.key, config.patches, config.drop_patch_rate)
            class_BF = torch.arange(first, device=x_BTC.device).expand(B, first)
            sample_B1 = torch.arange(B, device=x_BTC.device)[:, None]
            at = (sample_B1, torch.cat([class_BF, patch_BT + first], dim=1))
            x_BTC, noise = x_BTC[at], noise.at(*at)
        return x_BTC, noise


class Text(nn.Module):
    """The caption tower: causal, pooled at the end-of-text token, then projected.

    The end-of-text token is the highest number of a caption.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.text_width
        self.config = config
        self.token_embedding = Embedding(config.vocab_size, width)
        # Row of each token in a table that `ReducedTokenTable` has reduced.
        self.row_of: Tensor | None = None
        self.positional_embedding = nn.Parameter(torch.empty(config.context_length, width))
        heads, mlp, quick_gelu = config.text_heads, config.text_mlp, config.quick_gelu
        self.blocks = nn.ModuleList(
            Block(width, heads, mlp, causal=True, quick_gelu=quick_gelu)
            for _ in range(config.text_layers)
        )
        self.ln_final = LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, config.embed_dim))

    def forward(
        self,
        tokens: Tensor | PackedCaptions,
        key: Tensor | None = None,
        row_B: Tensor | None = None,
    ) -> Tensor:
        """Token numbers BT, or packed, to embeddings BE, not yet unit vectors.

        `key` and `row_B` say which random numbers are drawn, see `CLIP.reseed`.
        """
        if isinstance(tokens, PackedCaptions):
            x, noise = self._embed_packed(tokens, key, row_B)
            packed, end_B = tokens, None
        else:
            x, noise = self._embed_padded(tokens, key, row_B)
            packed, end_B = None, tokens.argmax(dim=-1)
        if noise is not None and self.config.text_hidden_dropout:
            x = draws.dropout(x, self.config.text_hidden_dropout, noise, draws.EMBEDDED)
        for depth, block in enumerate(self.blocks):
            last = depth == len(self.blocks) - 1
            x = block(
                x,
                packed=packed,
                noise=noise and noise.of_block(depth),
                last=last,
                end_B=end_B if last else None,
            )
        last_BC: Tensor = self.ln_final(x)
        return last_BC @ self.proj

    def _embed_padded(
        self, token_BT: Tensor, key: Tensor | None, row_B: Tensor | None
    ) -> tuple[Tensor, Noise | None]:
        T = token_BT.shape[1]
        x_BTC = self.token_embedding(self._rows(token_BT)) + self.positional_embedding[:T]
        noise = None
        if key is not None and row_B is not None:
            noise = draws.noise_of(key, row_B, T)
        return x_BTC, noise

    def _embed_packed(
        self, packed: PackedCaptions, key: Tensor | None, row_B: Tensor | None
    ) -> tuple[Tensor, Noise | None]:
        # F.embedding and not an index: its gradient is fast where rows repeat.
        position_NC = F.embedding(packed.position_N, self.positional_embedding)
        x_NC = self.token_embedding(self._rows(packed.token_N)) + position_NC
        noise = None
        if key is not None and row_B is not None:
            row_N = row_B[packed.sample_N]
            noise = Noise(key, row_N, row_N * draws.TOKENS + packed.position_N)
        return x_NC, noise

    def _rows(self, token: Tensor) -> Tensor:
        """Rows of the token table."""
        return token if self.row_of is None else self.row_of[token]
