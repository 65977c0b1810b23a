"""CLIP: a vision transformer and a causal text transformer, trained into one space of unit vectors.

The mathematics is open_clip's (`weights.py` carries checkpoints both ways); three things are computed differently and
give the same numbers up to rounding: the last block computes only the token that is pooled, captions are computed
without what follows their end (text attention is causal and the pooled token is the last, so padding never counts), and
patches are embedded by one matrix product. Queries, keys and values come from one product whose rows are ordered head
by head ([heads, 3, head width]), so that a share of its rows is a share of the heads.

Shapes: B samples, T tokens, C channels of a tower, H heads, D channels of a head, E channels of an embedding, N tokens
of packed captions. Activations are BTC, or NC where captions are packed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train.model import noise as draws
from train.model.architecture import ModelConfig
from train.model.attention import (
    Attention,
    AttentionSpec,
    GroupedCaptions,
    PackedCaptions,
    attend,
    attend_packed,
    check_kernel,
    trim,
)
from train.model.noise import Noise
from train.rng import derive_key

LOGIT_SCALE = math.log(1 / 0.07)
SIGLIP_SCALE, SIGLIP_BIAS = math.log(10), -10.0  # where the sigmoid loss starts (Zhai et al. 2023)
NOISE = 5  # what the random numbers of a model are for (order.py has 1 to 3, augment.py 4)


class Linear(nn.Linear):
    """Left empty, and `initialise` fills it: nothing is drawn twice, nor from the global generator."""

    def reset_parameters(self) -> None:
        """Leave it empty."""


class Embedding(nn.Embedding):
    """Left empty, as `Linear`."""

    def reset_parameters(self) -> None:
        """Leave it empty."""


class LayerNorm(nn.LayerNorm):
    """In the type of what it is given: autocast on a GPU computes it in 32 bits, and would leave the stream so."""

    def forward(self, x: Tensor) -> Tensor:
        """As it is given."""
        return super().forward(x).to(x.dtype)


class QKV(Linear):
    """Queries, keys and values by one product; rows [H, 3, D], so H comes from the weight that is there."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, 3 * width)
        self.head_width = width // heads

    def forward(  # type: ignore[override]
        self, h: Tensor, at: tuple[Tensor | slice | int, ...] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """…HD of all tokens; with `at` the queries only of the tokens there."""
        D = self.head_width
        if at is None:
            q, k, v = F.linear(h, self.weight, self.bias).view(*h.shape[:-1], -1, 3, D).unbind(-2)
            return q, k, v
        C = h.shape[-1]
        weight_H3DC, bias_H3D = self.weight.view(-1, 3, D, C), self.bias.view(-1, 3, D)
        H = len(bias_H3D)
        one = h[at]
        q = F.linear(one, weight_H3DC[:, 0].reshape(H * D, C), bias_H3D[:, 0].reshape(H * D)).view(
            -1, H, D
        )
        kv = F.linear(
            h, weight_H3DC[:, 1:].reshape(2 * H * D, C), bias_H3D[:, 1:].reshape(2 * H * D)
        )
        k, v = kv.view(*h.shape[:-1], H, 2, D).unbind(-2)
        return q, k, v


class Block(nn.Module):
    """A pre-norm transformer block: attention, then a two-layer perceptron, each added to the residual stream.

    Under tensor parallelism it holds a share of the heads; `attention_spec.first_head` then is the number of the first of them.
    """

    attention_spec = AttentionSpec()
    dropped = path_dropped = 0.0  # of what a branch adds, shares left out in training

    def __init__(self, width: int, heads: int, mlp: int, *, causal: bool, quick_gelu: bool) -> None:
        super().__init__()
        self.causal, self.quick_gelu = causal, quick_gelu
        self.ln_1 = LayerNorm(width)
        self.qkv = QKV(width, heads)
        self.out = Linear(width, width)
        self.ln_2 = LayerNorm(width)
        self.fc1 = Linear(width, mlp)
        self.fc2 = Linear(mlp, width)

    def forward(
        self,
        x: Tensor,
        *,
        packed: PackedCaptions | None = None,
        noise: Noise | None = None,
        last: bool = False,
        end_B: Tensor | None = None,
    ) -> Tensor:
        """All tokens; with `last` only the pooled one of each sample, BC.

        That is the token at `end_B` (default: the first, or each caption's last where they are packed); a causal block
        sees up to it.
        """
        at: tuple[Tensor | slice | int, ...] | None = None
        if last and packed is not None:
            at = (packed.offset_B1[1:].long() - 1,)
        elif last:
            at = (
                (slice(None), 0)
                if end_B is None
                else (torch.arange(len(x), device=x.device), end_B)
            )
        q, k, v = self.qkv(self.ln_1(x), at=at)
        here = noise if at is None or noise is None else noise.at(*at)
        if packed is not None:
            mixed = attend_packed(q, k, v, self.attention_spec, packed, pooled=last, noise=here)
        elif at is not None:
            seen_B = end_B if self.causal else None
            mixed = attend(
                q[:, None], k, v, self.attention_spec, causal=False, end_B=seen_B, noise=here
            )[:, 0]
        else:
            mixed = attend(q, k, v, self.attention_spec, causal=self.causal, noise=here)
        return self._rest(x if at is None else x[at], mixed.flatten(-2), here)

    def _rest(self, x: Tensor, mixed: Tensor, noise: Noise | None) -> Tensor:
        x = x + self._thinned(self.out(mixed), noise, draws.MIXED, draws.MIXED_PATH)
        hidden = self.fc1(self.ln_2(x))
        added: Tensor = self.fc2(
            hidden * torch.sigmoid(1.702 * hidden) if self.quick_gelu else F.gelu(hidden)
        )
        return x + self._thinned(added, noise, draws.ADDED, draws.ADDED_PATH)

    def _thinned(self, added: Tensor, noise: Noise | None, kind: int, path: int) -> Tensor:
        """What a branch adds, with dropout and stochastic depth."""
        if noise is not None and self.dropped:
            added = draws.dropout(added, self.dropped, noise, kind)
        if noise is not None and self.path_dropped:
            added = draws.drop_path(added, self.path_dropped, noise, path)
        return added


class Vision(nn.Module):
    """The picture tower: class tokens and patches. The first token's last state, or the patches' mean, is projected."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, first = config.vision_width, config.class_token_length
        self.config = config
        self.patch = Linear(config.num_channels * config.patch_size**2, width, bias=False)
        self.class_embedding = nn.Parameter(
            torch.empty(width) if first == 1 else torch.empty(first, width)
        )
        self.positional_embedding = nn.Parameter(torch.empty(config.patches + first, width))
        self.ln_pre = LayerNorm(width)
        self.blocks = nn.ModuleList(
            Block(
                width,
                config.vision_heads,
                config.vision_mlp,
                causal=False,
                quick_gelu=config.quick_gelu,
            )
            for _ in range(config.vision_layers)
        )
        self.ln_post = LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, config.embed_dim))

    def forward(
        self, image_BCHW: Tensor, key: Tensor | None = None, row_B: Tensor | None = None
    ) -> Tensor:
        """Normalised pictures to embeddings BE, not yet unit vectors. `key` and `row_B`: see `CLIP.reseed`."""
        config, first = self.config, self.config.class_token_length
        B, channels, height, width = image_BCHW.shape
        if (channels, height, width) != (config.num_channels, *config.height_width):
            wanted = [config.num_channels, *config.height_width]
            raise ValueError(
                f"pictures of shape {[channels, height, width]}; the model takes {wanted}"
            )
        p = config.patch_size
        grid = image_BCHW.view(B, channels, height // p, p, width // p, p).permute(0, 2, 4, 1, 3, 5)
        x_BTC = self.patch(grid.reshape(B, -1, channels * p * p))
        first_BFC = self.class_embedding.to(x_BTC.dtype).expand(B, first, -1)
        x_BTC = torch.cat([first_BFC, x_BTC], dim=1) + self.positional_embedding.to(x_BTC.dtype)
        noise = None
        if key is not None and row_B is not None:
            x_BTC, noise = self._thinned(x_BTC, draws.noise_of(key, row_B, x_BTC.shape[1]))
        x_BTC = self.ln_pre(x_BTC)
        pooled = (
            len(self.blocks) if config.global_average_pool else len(self.blocks) - 1
        )  # the block that pools
        for depth, block in enumerate(self.blocks):
            x_BTC = block(x_BTC, noise=noise and noise.of_block(depth), last=depth == pooled)
        last_BC: Tensor = self.ln_post(x_BTC)
        if config.global_average_pool:
            last_BC = last_BC[:, first:].mean(dim=1)
        return last_BC @ self.proj

    def _thinned(self, x_BTC: Tensor, noise: Noise) -> tuple[Tensor, Noise]:
        """Some of the patches, and dropout on what is embedded."""
        config, first = self.config, self.config.class_token_length
        if config.vision_hidden_dropout:
            x_BTC = draws.dropout(x_BTC, config.vision_hidden_dropout, noise, draws.EMBEDDED)
        if config.drop_patch_rate:
            row_B = noise.row[:, 0]
            kept_BT = (
                draws.kept_patches(row_B, noise.key, config.patches, config.drop_patch_rate) + first
            )
            always_BF = torch.arange(first, device=x_BTC.device).expand(len(x_BTC), first)
            at = (
                torch.arange(len(x_BTC), device=x_BTC.device)[:, None],
                torch.cat([always_BF, kept_BT], dim=1),
            )
            x_BTC, noise = x_BTC[at], noise.at(*at)
        return x_BTC, noise


class Text(nn.Module):
    """The caption tower: causal, pooled at the end-of-text token (the highest number in a row), then projected."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.text_width
        self.config = config
        self.token_embedding = Embedding(config.vocab_size, width)
        self.row_of: Tensor | None = None  # of each token in a table reduced by `ReducedTokenTable`
        self.positional_embedding = nn.Parameter(torch.empty(config.context_length, width))
        self.blocks = nn.ModuleList(
            Block(
                width, config.text_heads, config.text_mlp, causal=True, quick_gelu=config.quick_gelu
            )
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
        """Token numbers BT, or packed, to embeddings BE, not yet unit vectors. `key`, `row_B`: see `CLIP.reseed`."""
        packed = tokens if isinstance(tokens, PackedCaptions) else None
        number = tokens.token_N if isinstance(tokens, PackedCaptions) else tokens
        rows = number if self.row_of is None else self.row_of[number]
        positional_TC = self.positional_embedding
        noise = end_B = None
        if packed is None:
            end_B = number.argmax(dim=-1)
            x = self.token_embedding(rows) + positional_TC[: number.shape[1]]
            if key is not None and row_B is not None:
                noise = draws.noise_of(key, row_B, number.shape[1])
        else:
            # A look-up's gradient is fast where rows repeat, an index's is not.
            x = self.token_embedding(rows) + F.embedding(packed.position_N, positional_TC)
            if key is not None and row_B is not None:
                row_N = row_B[packed.sample_N]
                noise = Noise(key, row_N, row_N * draws.TOKENS + packed.position_N)
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


class CLIP(nn.Module):
    """Both towers, the logit scale (the logarithm of the factor) and, for the sigmoid loss, the logit bias.

    Initialised from `seed` as open_clip does; the same seed gives the same weights whatever else has been drawn. Under
    `torch.device("meta")` nothing is allocated. A model with a rate or a dropout is told before each forward of its
    training where it is, by `reseed`.
    """

    def __init__(
        self, config: ModelConfig, seed: int = 0, *, attention: Attention = "auto"
    ) -> None:
        super().__init__()
        place = torch.get_default_device()
        self.config = config
        check_kernel(
            attention,
            dropped=bool(config.vision_attention_dropout or config.text_attention_dropout),
        )
        with torch.device("meta" if place.type == "meta" else "cpu"):
            self.visual = Vision(config)
            self.text = Text(config)
            self.logit_scale = nn.Parameter(torch.empty(()))
            self.logit_bias = nn.Parameter(torch.empty(())) if config.logit_bias else None
        self._keys: dict[str, int] = {}
        self._row_B: Tensor | None = None
        _set_blocks(self, attention)
        if place.type != "meta":
            initialise(self, seed)  # in main memory: the same numbers on every device
            self.to(place)

    def reseed(self, seed: int, step: int, row_B: Tensor) -> None:
        """Say which random numbers the next forward takes: those of the samples at `row_B` of step `step`'s batch.

        Call it before every forward, also the second of one micro-batch: the same arguments give the same numbers,
        however a batch is cut into micro-batches and over data-parallel ranks. Tensor-parallel ranks pass the same.
        """
        self._keys = {
            tower: derive_key(seed, NOISE, step, number)
            for number, tower in enumerate(("visual", "text"))
        }
        self._row_B = row_B

    def encode_image(self, image_BCHW: Tensor) -> Tensor:
        """Pictures, normalised per channel, to unit vectors BE."""
        return l2_normalise(
            self.visual(image_BCHW, *self._draws("visual", image_BCHW.device, len(image_BCHW)))
        )

    def encode_text(self, tokens: Tensor | PackedCaptions | GroupedCaptions) -> Tensor:
        """Captions to unit vectors BE: token numbers BT with zeros after the end-of-text token, or `pack_captions`'s, or
        `group_by_length`'."""
        if isinstance(tokens, Tensor):
            return l2_normalise(
                self.text(trim(tokens), *self._draws("text", tokens.device, len(tokens)))
            )
        if isinstance(tokens, PackedCaptions):
            drawn = self._draws("text", tokens.token_N.device, len(tokens.offset_B1) - 1)
            return l2_normalise(self.text(tokens, *drawn))
        key, row_B = self._draws("text", tokens.grouped_index_B.device, len(tokens.grouped_index_B))
        sizes = [len(part) for part in tokens.tokens_BT]
        rows = [None] * len(sizes) if row_B is None else row_B[tokens.row_B].split(sizes)
        found = [
            self.text(part, key, row) for part, row in zip(tokens.tokens_BT, rows, strict=True)
        ]
        return l2_normalise(torch.cat(found)[tokens.grouped_index_B])

    def _draws(
        self, tower: str, device: torch.device, samples: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """The tower's key and the samples' rows; nothing where the model draws no numbers."""
        if not self.training or not self.config.draws:
            return None, None
        if self._row_B is None or len(self._row_B) != samples:
            told = "none were named" if self._row_B is None else f"{len(self._row_B)} were named"
            raise ValueError(
                f"a model with dropout got {samples} samples, but {told}; call reseed before each forward"
            )
        key = self._keys[tower]
        return torch.full((), key - (1 << 64) * (key >> 63), device=device), self._row_B.to(
            device, non_blocking=True
        )

    def forward(
        self, image_BCHW: Tensor, tokens: Tensor | PackedCaptions | GroupedCaptions
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Both embeddings BE, the factor on their products, and the bias of the logits where there is one."""
        return (
            self.encode_image(image_BCHW),
            self.encode_text(tokens),
            self.logit_scale.exp(),
            self.logit_bias,
        )


def _set_blocks(model: CLIP, attention: Attention) -> None:
    """Tell every block its kernel and what it leaves out in training."""
    config = model.config
    for depth, block in enumerate(model.visual.blocks):
        assert isinstance(block, Block)
        block.attention_spec = AttentionSpec(attention, config.vision_attention_dropout)
        block.dropped = config.vision_hidden_dropout
        block.path_dropped = config.drop_path_rate * depth / max(1, config.vision_layers - 1)
    for block in model.text.blocks:
        assert isinstance(block, Block)
        block.attention_spec = AttentionSpec(attention, config.text_attention_dropout)
        block.dropped = config.text_hidden_dropout


def l2_normalise(x_BE: Tensor) -> Tensor:
    """Rows scaled to length 1, in at least 32 bits."""
    return F.normalize(x_BE if x_BE.dtype == torch.float64 else x_BE.float(), dim=-1)


class ReducedTokenTable:
    """A token table reduced, while training, to the tokens that the run reads; the same training at less cost.

    No other row ever has a gradient, so all that AdamW does to it is weight decay: after n steps it is its start times
    the product of (1 - lr x decay). The demo's captions use a few hundred of 49,408 rows.
    """

    def __init__(self, text: Text, used: Tensor) -> None:
        self.start, self.used = (
            text.token_embedding.weight.detach(),
            used.to(text.token_embedding.weight.device),
        )
        text.token_embedding = Embedding.from_pretrained(
            self.start[self.used].clone(), freeze=False
        )
        row_of = torch.full(
            (len(self.start),), -1, device=self.used.device
        )  # -1: an error if it is ever looked up
        row_of[self.used] = torch.arange(len(self.used), device=self.used.device)
        text.row_of = row_of

    def full_table(self, text: Text, decayed: float) -> Tensor:
        """The table of all tokens; `decayed` is the product over the steps so far."""
        table = (self.start.double() * decayed).to(self.start.dtype)
        table[self.used] = text.token_embedding.weight.detach()
        return table

    def restore(self, text: Text, decayed: float) -> None:
        """Give the tower the table of all tokens back."""
        text.token_embedding = Embedding.from_pretrained(
            self.full_table(text, decayed), freeze=False
        )
        text.row_of = None


@torch.no_grad()
def initialise(model: CLIP, seed: int) -> None:
    """Fill every parameter with open_clip's starting distribution for it."""
    generator = torch.Generator().manual_seed(seed)

    def normal(x: Tensor, std: float) -> None:
        x.normal_(0, std, generator=generator)

    def uniform(x: Tensor, bound: float) -> None:
        x.uniform_(-bound, bound, generator=generator)

    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.weight.fill_(1)
            module.bias.zero_()
        elif isinstance(
            module, nn.Linear
        ):  # torch's own start: U(±1/√inputs), for the weight and the bias
            uniform(module.weight, module.in_features**-0.5)
            if module.bias is not None:
                uniform(module.bias, module.in_features**-0.5)
    visual, text = model.visual, model.text
    width = model.config.vision_width
    for parameter in (visual.class_embedding, visual.positional_embedding, visual.proj):
        normal(parameter, width**-0.5)
    for block in visual.blocks:
        assert isinstance(block, Block)
        uniform(
            block.qkv.weight, math.sqrt(6 / (width + 3 * width))
        )  # Xavier over the fused matrix
        block.qkv.bias.zero_()
        block.out.bias.zero_()
    width = model.config.text_width
    normal(text.token_embedding.weight, 0.02)
    normal(text.positional_embedding, 0.01)
    normal(text.proj, width**-0.5)
    for block in text.blocks:
        assert isinstance(block, Block)
        normal(block.qkv.weight, width**-0.5)
        normal(block.out.weight, width**-0.5 * (2 * model.config.text_layers) ** -0.5)
        normal(block.fc1.weight, (2 * width) ** -0.5)
        normal(block.fc2.weight, width**-0.5 * (2 * model.config.text_layers) ** -0.5)
        block.qkv.bias.zero_()
        block.out.bias.zero_()
    model.logit_scale.fill_(LOGIT_SCALE if model.logit_bias is None else SIGLIP_SCALE)
    if model.logit_bias is not None:
        model.logit_bias.fill_(SIGLIP_BIAS)
