"""Sizes of a CLIP: widths, layers, patch dropout, image statistics; and the named models."""

from __future__ import annotations

from dataclasses import dataclass

# Mean and deviation of each channel of the images that OpenAI trained on. Every CLIP checkpoint
# expects images that are normalised with them.
IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
CHANNELS = 3  # red, green and blue


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Both towers of a CLIP: widths in channels, images in pixels, context in tokens.

    ValueError for sizes that do not fit together.
    """

    embed_dim: int
    image_size: int  # side of a square image, or height of another
    patch_size: int
    vision_width: int
    vision_layers: int
    vision_heads: int
    vision_mlp: int
    text_width: int
    text_layers: int
    text_heads: int
    text_mlp: int
    context_length: int
    vocab_size: int = 49408
    quick_gelu: bool = False
    logit_bias: bool = False  # a learned offset of the logits, for the SigLIP loss
    image_mean: tuple[float, ...] = IMAGE_MEAN  # per channel, of pixels from 0 to 1
    image_std: tuple[float, ...] = IMAGE_STD
    drop_patch_rate: float = 0.0  # share of an image's patches left out in training, in [0, 1)

    def __post_init__(self) -> None:
        for name in SIZES:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.image_size < 1 or self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}"
            )
        for tower in ("vision", "text"):
            width, heads = getattr(self, f"{tower}_width"), getattr(self, f"{tower}_heads")
            if heads < 1 or width % heads:
                raise ValueError(
                    f"{tower}_width {width} is not a multiple of {tower}_heads {heads}"
                )
        if self.context_length < 3:
            raise ValueError(
                f"context_length is {self.context_length}; it must be at least 3 (start, a word, "
                "end)"
            )
        if not 0 <= self.drop_patch_rate < 1:
            raise ValueError(f"drop_patch_rate is {self.drop_patch_rate}; it must lie in [0, 1)")
        for name in ("image_mean", "image_std"):
            values = getattr(self, name)
            if len(values) != CHANNELS:
                raise ValueError(
                    f"{name} has {len(values)} values; images have {CHANNELS} channels"
                )
        if min(self.image_std) <= 0:
            raise ValueError(f"image_std is {list(self.image_std)}; every value must be above 0")

    @property
    def height_width(self) -> tuple[int, int]:
        """Height and width of the model's images, in pixels."""
        return self.image_size, self.image_size

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2


SIZES = (
    "embed_dim",
    "patch_size",
    "vision_width",
    "vision_layers",
    "vision_mlp",
    "text_width",
    "text_layers",
    "text_mlp",
    "vocab_size",
)


def _clip(
    embed_dim: int,
    patch_size: int,
    vision: tuple[int, int, int, int],
    text: tuple[int, int, int],
    *,
    image_size: int = 224,
    context_length: int = 77,
    quick_gelu: bool = False,
) -> ModelConfig:
    """vision = (width, layers, heads, mlp), text = (width, layers, heads).

    The hidden width of the caption tower's MLP is four times its width.
    """
    return ModelConfig(
        embed_dim=embed_dim,
        image_size=image_size,
        patch_size=patch_size,
        vision_width=vision[0],
        vision_layers=vision[1],
        vision_heads=vision[2],
        vision_mlp=vision[3],
        text_width=text[0],
        text_layers=text[1],
        text_heads=text[2],
        text_mlp=4 * text[0],
        context_length=context_length,
        quick_gelu=quick_gelu,
    )


def _published(*, quick_gelu: bool) -> dict[str, ModelConfig]:
    """Names and numbers as in open_clip.

    H, g, bigG and e have 16 vision heads: head widths of 80, 88, 104 and 112.
    """
    base, large = (768, 12, 12, 3072), (1024, 24, 16, 4096)
    small = (384, 12, 6, 1536)
    sizes: dict[str, tuple[int, int, tuple[int, int, int, int], tuple[int, int, int]]] = {
        "ViT-B-32": (512, 32, base, (512, 12, 8)),
        "ViT-B-16": (512, 16, base, (512, 12, 8)),
        "ViT-L-14": (768, 14, large, (768, 12, 12)),
        "ViT-L-14-336": (768, 14, large, (768, 12, 12)),
        "ViT-H-14": (1024, 14, (1280, 32, 16, 5120), (1024, 24, 16)),
        "ViT-g-14": (1024, 14, (1408, 40, 16, 6144), (1024, 24, 16)),
        "ViT-bigG-14": (1280, 14, (1664, 48, 16, 8192), (1280, 32, 20)),
        "ViT-e-14": (1280, 14, (1792, 56, 16, 15360), (1280, 36, 20)),
        "ViT-S-32": (384, 32, small, (384, 12, 6)),
        "ViT-S-16": (384, 16, small, (384, 12, 6)),
    }
    models = {}
    for name, size in sizes.items():
        if quick_gelu and name.startswith("ViT-S"):
            continue
        image_size = 336 if name.endswith("336") else 224
        model = _clip(*size, image_size=image_size, quick_gelu=quick_gelu)
        models[name + "-quickgelu" if quick_gelu else name] = model
    return models


MODELS: dict[str, ModelConfig] = {
    **_published(quick_gelu=False),
    **_published(quick_gelu=True),
    # For a CPU: the demo's model, and a smaller one for tests.
    "micro": _clip(128, 8, (128, 4, 2, 512), (128, 2, 2), image_size=32, context_length=16),
    "test": _clip(32, 16, (32, 2, 2, 128), (32, 2, 2), image_size=32, context_length=16),
}


def group_count(layers: int) -> int:
    """The groups of a tower with so many blocks."""
    return layers + 2


def trained_blocks(layers: int, groups: int | None) -> int:
    """How many of a tower's last blocks are trained, with so many trained groups; None: all."""
    return layers if groups is None else min(layers, max(0, groups - 1))
