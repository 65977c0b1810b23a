"""CLIP: a vision transformer and a causal text transformer, trained into one space of unit vectors.

The mathematics is open_clip's (`weights.py` carries checkpoints both ways); three things are computed differently and
give the same numbers up to rounding: the last block computes only the token that is pooled, captions are cut to the
longest of the batch (text attention is causal and the pooled token is the last, so padding never counts), and patches
are embedded by one matrix product. Queries, keys and values come from one product whose rows are ordered head by head
([heads, 3, head width]), so that a share of its rows is a share of the heads.

Shapes: B samples, T tokens, C channels of a tower, H heads, D channels of a head, E channels of an embedding.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train.config import ModelConfig

LOGIT_SCALE = math.log(1 / 0.07)
SIGLIP_SCALE, SIGLIP_BIAS = math.log(10), -10.0  # where the sigmoid loss starts (Zhai et al. 2023)


class Linear(nn.Linear):
    """Left empty, and `initialise` fills it: nothing is drawn twice, nor from the global generator."""

    def reset_parameters(self) -> None:
        """Leave it empty."""


class Embedding(nn.Embedding):
    """Left empty, as `Linear`."""

    def reset_parameters(self) -> None:
        """Leave it empty."""


class Block(nn.Module):
    """A pre-norm transformer block: attention, then a two-layer perceptron, each added to the residual stream."""

    def __init__(self, width: int, heads: int, mlp: int, *, causal: bool, quick_gelu: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.quick_gelu = heads, causal, quick_gelu
        self.ln_1 = nn.LayerNorm(width)
        self.qkv = Linear(width, 3 * width)  # rows [H, 3, D]
        self.out = Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.fc1 = Linear(width, mlp)
        self.fc2 = Linear(mlp, width)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """All tokens."""
        B, T, C = x_BTC.shape
        qkv_BTH3D = self.qkv(self.ln_1(x_BTC)).view(B, T, self.heads, 3, C // self.heads)
        q_BHTD, k_BHTD, v_BHTD = (x.transpose(1, 2) for x in qkv_BTH3D.unbind(3))
        mixed_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=self.causal)
        return self._rest(x_BTC, mixed_BHTD.transpose(1, 2).reshape(B, T, C))

    def pooled(self, x_BTC: Tensor, index_B: Tensor | None = None) -> Tensor:
        """Only the token at `index_B` (default: the first) of each sample, BC. A causal block sees up to that token."""
        B, T, C = x_BTC.shape
        H, D = self.heads, C // self.heads
        h_BTC = self.ln_1(x_BTC)
        weight_H3DC, bias_H3D = self.qkv.weight.view(H, 3, D, C), self.qkv.bias.view(H, 3, D)
        at = (slice(None), 0) if index_B is None else (torch.arange(B, device=x_BTC.device), index_B)
        token_BC, one_BC = x_BTC[at], h_BTC[at]
        q_BHD = F.linear(one_BC, weight_H3DC[:, 0].reshape(C, C), bias_H3D[:, 0].reshape(C)).view(B, H, D)
        kv_BTC2 = F.linear(h_BTC, weight_H3DC[:, 1:].reshape(2 * C, C), bias_H3D[:, 1:].reshape(2 * C))
        k_BHTD, v_BHTD = (x.transpose(1, 2) for x in kv_BTC2.view(B, T, H, 2, D).unbind(3))
        seen_B11T = None
        if index_B is not None and self.causal:
            seen_B11T = (torch.arange(T, device=x_BTC.device) <= index_B[:, None])[:, None, None]
        mixed_BH1D = F.scaled_dot_product_attention(q_BHD[:, :, None], k_BHTD, v_BHTD, attn_mask=seen_B11T)
        return self._rest(token_BC, mixed_BH1D.reshape(B, C))

    def _rest(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.out(mixed)
        hidden = self.fc1(self.ln_2(x))
        added: Tensor = self.fc2(hidden * torch.sigmoid(1.702 * hidden) if self.quick_gelu else F.gelu(hidden))
        return x + added


class Vision(nn.Module):
    """The picture tower: patches and a class token, whose last state is projected."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, self.patch_size = config.vision_width, config.patch_size
        patches = (config.image_size // config.patch_size) ** 2
        self.patch = Linear(3 * config.patch_size**2, width, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.positional_embedding = nn.Parameter(torch.empty(patches + 1, width))
        self.ln_pre = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            Block(width, config.vision_heads, config.vision_mlp, causal=False, quick_gelu=config.quick_gelu)
            for _ in range(config.vision_layers)
        )
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, config.embed_dim))

    def forward(self, image_BCHW: Tensor) -> Tensor:
        """Normalised pictures to embeddings BE, not yet unit vectors."""
        B, _, height, width = image_BCHW.shape
        p = self.patch_size
        grid = image_BCHW.view(B, 3, height // p, p, width // p, p).permute(0, 2, 4, 1, 3, 5)
        x_BTC = self.patch(grid.reshape(B, -1, 3 * p * p))
        first_B1C = self.class_embedding.to(x_BTC.dtype).expand(B, 1, -1)
        x_BTC = torch.cat([first_B1C, x_BTC], dim=1) + self.positional_embedding.to(x_BTC.dtype)
        x_BTC = self.ln_pre(x_BTC)
        for block in self.blocks[:-1]:
            x_BTC = block(x_BTC)
        pooled_BC: Tensor = self.blocks[-1].pooled(x_BTC)  # type: ignore[operator]
        last_BC: Tensor = self.ln_post(pooled_BC)
        return last_BC @ self.proj


class Text(nn.Module):
    """The caption tower: causal, pooled at the end-of-text token (the highest number in a row), then projected."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.text_width
        self.token_embedding = Embedding(config.vocab_size, width)
        self.row_of: Tensor | None = None  # of each token in a table reduced by `UsedTokens`
        self.positional_embedding = nn.Parameter(torch.empty(config.context_length, width))
        self.blocks = nn.ModuleList(
            Block(width, config.text_heads, config.text_mlp, causal=True, quick_gelu=config.quick_gelu)
            for _ in range(config.text_layers)
        )
        self.ln_final = nn.LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, config.embed_dim))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Token numbers to embeddings BE, not yet unit vectors."""
        end_B = tokens_BT.argmax(dim=-1)
        rows_BT = tokens_BT if self.row_of is None else self.row_of[tokens_BT]
        x_BTC = self.token_embedding(rows_BT) + self.positional_embedding[: tokens_BT.shape[1]]
        for block in self.blocks[:-1]:
            x_BTC = block(x_BTC)
        pooled_BC: Tensor = self.blocks[-1].pooled(x_BTC, end_B)  # type: ignore[operator]
        last_BC: Tensor = self.ln_final(pooled_BC)
        return last_BC @ self.proj


class CLIP(nn.Module):
    """Both towers, the logit scale (the logarithm of the factor) and, for the sigmoid loss, the logit bias.

    Initialised from `seed` as open_clip does; the same seed gives the same weights whatever else has been drawn. Under
    `torch.device("meta")` nothing is allocated.
    """

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        place = torch.get_default_device()
        self.config = config
        with torch.device("meta" if place.type == "meta" else "cpu"):
            self.visual = Vision(config)
            self.text = Text(config)
            self.logit_scale = nn.Parameter(torch.empty(()))
            self.logit_bias = nn.Parameter(torch.empty(())) if config.logit_bias else None
        if place.type != "meta":
            initialise(self, seed)  # in main memory: the same numbers on every device
            self.to(place)

    def encode_image(self, image_BCHW: Tensor) -> Tensor:
        """Pictures, normalised per channel, to unit vectors BE."""
        return unit(self.visual(image_BCHW))

    def encode_text(self, tokens_BT: Tensor) -> Tensor:
        """Token numbers, zeros after the end-of-text token, to unit vectors BE."""
        return unit(self.text(trim(tokens_BT)))

    def forward(self, image_BCHW: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Both embeddings BE, the factor on their products, and the bias of the logits where there is one."""
        return self.encode_image(image_BCHW), self.encode_text(tokens_BT), self.logit_scale.exp(), self.logit_bias


def unit(x_BE: Tensor) -> Tensor:
    """Rows scaled to length 1, in at least 32 bits."""
    return F.normalize(x_BE if x_BE.dtype == torch.float64 else x_BE.float(), dim=-1)


def trim(tokens_BT: Tensor) -> Tensor:
    """The columns up to the last end-of-text token of a batch that lies in main memory.

    On an accelerator the length would have to be waited for: trim before the batch is copied there.
    """
    if tokens_BT.device.type != "cpu":
        return tokens_BT
    return tokens_BT[:, : int(tokens_BT.argmax(dim=-1).max()) + 1]


class UsedTokens:
    """A token table reduced, while training, to the tokens that the run reads; the same training at less cost.

    No other row ever has a gradient, so all that AdamW does to it is weight decay: after n steps it is its start times
    the product of (1 - lr x decay). The demo's captions use a few hundred of 49,408 rows.
    """

    def __init__(self, text: Text, used: Tensor) -> None:
        self.start, self.used = text.token_embedding.weight.detach(), used.to(text.token_embedding.weight.device)
        text.token_embedding = Embedding.from_pretrained(self.start[self.used].clone(), freeze=False)
        row_of = torch.full((len(self.start),), -1, device=self.used.device)  # -1: an error if it is ever looked up
        row_of[self.used] = torch.arange(len(self.used), device=self.used.device)
        text.row_of = row_of

    def whole(self, text: Text, decayed: float) -> Tensor:
        """The table of all tokens; `decayed` is the product over the steps so far."""
        table = (self.start.double() * decayed).to(self.start.dtype)
        table[self.used] = text.token_embedding.weight.detach()
        return table

    def restore(self, text: Text, decayed: float) -> None:
        """Give the tower the table of all tokens back."""
        text.token_embedding = Embedding.from_pretrained(self.whole(text, decayed), freeze=False)
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
        elif isinstance(module, nn.Linear):  # torch's own start: U(±1/√inputs), for the weight and the bias
            uniform(module.weight, module.in_features**-0.5)
            if module.bias is not None:
                uniform(module.bias, module.in_features**-0.5)
    visual, text = model.visual, model.text
    width = model.config.vision_width
    for parameter in (visual.class_embedding, visual.positional_embedding, visual.proj):
        normal(parameter, width**-0.5)
    for block in visual.blocks:
        assert isinstance(block, Block)
        uniform(block.qkv.weight, math.sqrt(6 / (width + 3 * width)))  # Xavier over the fused matrix
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
