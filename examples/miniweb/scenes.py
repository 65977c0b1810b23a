"""Draws the images of the small web: pure functions of (seed, stream, number).

A scene is one to three objects of one shape and one colour before a background. It is drawn like a
poor photograph (light, shadow, blur, sensor noise, JPEG), hard enough that a small CLIP does not
reach the ceiling. Nothing here reads a file, a clock or a global random state, so an image has the
same bytes whenever it is asked for.
"""

from __future__ import annotations

import io
import math
import random
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from clipmill.examples.miniweb.shapes import F32, SHAPES, least

DRAW_VERSION = 1  # raised whenever an image or a caption of the same seed changes
STREAMS = {"crawl": 0, "trusted": 1, "objects": 2, "retrieval": 3}  # no two streams share an image
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (200, 32, 38),
    "orange": (238, 126, 24),
    "yellow": (240, 212, 44),
    "green": (44, 148, 62),
    "blue": (36, 84, 200),
    "purple": (122, 48, 164),
    "pink": (242, 138, 184),
    "brown": (112, 68, 36),
}
# Muted grounds of walls, tables, skies and lawns; an object stands before one that is far enough
# from its own colour.
GROUNDS = (
    (226, 219, 204), (206, 204, 198), (186, 206, 220), (196, 212, 192), (222, 204, 176),
    (230, 212, 218), (204, 196, 216), (234, 230, 200), (240, 240, 236), (214, 222, 224),
    (198, 182, 164), (176, 178, 182),
    (120, 122, 126), (70, 76, 84), (98, 118, 92), (150, 110, 84), (92, 112, 140),
)  # fmt: skip
TEXTURES = {"plain": 0.56, "striped": 0.12, "dotted": 0.11, "checkered": 0.09, "speckled": 0.12}
BACKGROUNDS = {
    "plain": 0.26,
    "faded": 0.2,
    "cloudy": 0.18,
    "striped": 0.1,
    "dotted": 0.08,
    "checkered": 0.08,
    "messy": 0.1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What an image shows. `key` is (seed, stream, number), from which everything that is not
    named here is drawn.
    """

    key: tuple[int, int, int]
    shape: str
    colour: str
    count: int
    texture: str
    background: str
    size: float  # radius of one object as a share of the short side
    width: int  # px
    height: int

    @property
    def label(self) -> str:
        """The class of the image: "red star"."""
        return f"{self.colour} {self.shape}"


def scene(
    seed: int, stream: str, number: int, *, label: str | None = None, thumbnail: bool = False
) -> Scene:
    """The scene of that number. `label` fixes its class; a thumbnail has sides of 16 to 24 px."""
    rng = random.Random(f"{DRAW_VERSION}/{seed}/{stream}/{number}")
    colour, shape = (
        label.split() if label else (rng.choice(list(COLOURS)), rng.choice(list(SHAPES)))
    )
    count = rng.choices((1, 2, 3), (0.88, 0.08, 0.04))[0]
    texture = rng.choices(list(TEXTURES), list(TEXTURES.values()))[0]
    background = rng.choices(list(BACKGROUNDS), list(BACKGROUNDS.values()))[0]
    size = rng.uniform(*((0.37, 0.47), (0.22, 0.27), (0.19, 0.23))[count - 1])
    width = height = 64
    if thumbnail:
        width, height = rng.randint(16, 24), rng.randint(16, 24)
    elif rng.random() < 0.15:
        width, height = 8 * rng.randint(9, 16), 8 * rng.randint(9, 16)
    return Scene(
        key=(seed, STREAMS[stream], number), shape=shape, colour=colour, count=count,
        texture=texture, background=background, size=size, width=width, height=height,
    )  # fmt: skip


# Where one, two or three objects have room, as shares of width and height.
SPOTS = (((0.5, 0.5),), ((0.29, 0.34), (0.7, 0.64)), ((0.27, 0.3), (0.73, 0.32), (0.5, 0.72)))
CLASSES = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)


# --- pixels ---------------------------------------------------------------------------------------


def draw(scene: Scene, *, variant: int = 0, painted: str | None = None) -> bytes:
    """The image as JPEG bytes. A variant is the same scene cropped, lit and encoded a little
    differently.
    """
    rng = np.random.default_rng([DRAW_VERSION, *scene.key])
    canvas = _background(scene, rng)
    colour = _jitter(COLOURS[scene.colour], rng, 22)
    for centre in _centres(scene, rng):
        _put(canvas, scene, colour, centre, rng)
    y, x = _grid(scene.width, scene.height)
    slope = rng.uniform(-0.22, 0.22, 2)
    canvas *= (rng.uniform(0.86, 1.1) + np.float32(slope[0]) * x + np.float32(slope[1]) * y)[
        :, :, None
    ]
    image = Image.fromarray(np.clip(canvas, 0, 255).astype(np.uint8))
    if (radius := rng.uniform(-0.4, 0.9) * min(scene.width, scene.height) / 64) > 0.15:
        image = image.filter(ImageFilter.GaussianBlur(radius))
    noise = rng.standard_normal((scene.height, scene.width, 3), dtype=np.float32) * np.float32(
        rng.uniform(2, 10)
    )
    quality = int(rng.integers(40, 93))
    if painted:
        image = _paint(image, painted)
    if variant:
        image, quality = _vary(image, np.random.default_rng([DRAW_VERSION, *scene.key, variant]))
    image = Image.fromarray(np.clip(np.asarray(image, np.float32) + noise, 0, 255).astype(np.uint8))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()


@cache
def _grid(width: int, height: int) -> tuple[F32, F32]:
    """Columns (height, 1) and rows (1, width) from -1 to 1."""
    return (
        np.linspace(-1, 1, height, dtype=np.float32)[:, None],
        np.linspace(-1, 1, width, dtype=np.float32)[None, :],
    )


def _jitter(colour: tuple[int, int, int], rng: np.random.Generator, amount: float) -> F32:
    return np.clip(np.asarray(colour, np.float32) + rng.uniform(-amount, amount, 3), 4, 250).astype(
        np.float32
    )


def _pattern(name: str, u: F32, v: F32, period: float) -> F32:
    """1 on the dark parts of a pattern and 0 between them; u and v in px."""
    step = np.float32(2 * math.pi / period)
    across, along = np.sin(u * step), np.sin(v * step)
    if name == "striped":
        dark = across > 0
    elif name == "checkered":
        dark = across * along > 0
    else:  # dotted
        dark = across + along > 0.9
    pattern: F32 = dark.astype(np.float32)
    return pattern


def _clouds(rng: np.random.Generator, width: int, height: int, cells: int, amount: float) -> F32:
    """Soft blotches around 0 of about ± amount, (height, width, 3)."""
    light, tint = (
        rng.uniform(-amount, amount, (cells, cells, 1)),
        rng.uniform(-amount, amount, (cells, cells, 3)),
    )
    coarse = (128 + 0.6 * light + 0.5 * tint).astype(np.uint8)
    fine = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(fine, np.float32) - np.float32(128)


def _grounds(colour: str, rng: np.random.Generator) -> tuple[F32, F32]:
    """Two colours for a background, far enough from the object's own (90 of 441 in RGB)."""
    own = COLOURS[colour]
    usable = [ground for ground in GROUNDS if math.dist(ground, own) > 90]
    first = int(rng.integers(len(usable)))
    second = (first + 1 + int(rng.integers(len(usable) - 1))) % len(usable)
    return _jitter(usable[first], rng, 14), _jitter(usable[second], rng, 14)


def _background(scene: Scene, rng: np.random.Generator) -> F32:
    width, height, kind = scene.width, scene.height, scene.background
    first, second = _grounds(scene.colour, rng)
    y, x = _grid(width, height)
    canvas = np.empty((height, width, 3), np.float32)
    canvas[:] = first
    angle = rng.uniform(0, 2 * math.pi)
    if kind in ("faded", "messy"):
        ramp = np.float32(math.cos(angle)) * x + np.float32(math.sin(angle)) * y
        canvas += (np.clip(ramp, -1, 1) * np.float32(0.5) + np.float32(0.5))[:, :, None] * (
            second - first
        )
    elif kind in ("striped", "dotted", "checkered"):
        u, v = x * np.float32(width / 2), y * np.float32(height / 2)
        cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
        dark = _pattern(
            kind, u * cos + v * sin, v * cos - u * sin, rng.uniform(9, 20) * min(width, height) / 64
        )
        canvas += dark[:, :, None] * (second - first) * np.float32(rng.uniform(0.35, 0.8))
    cells, amount = (int(rng.integers(3, 9)), 75) if kind == "cloudy" else (4, 16)
    canvas += _clouds(rng, width, height, cells, amount)
    if kind == "messy" or rng.random() < 0.25:
        canvas = _clutter(canvas, scene.colour, rng)
    return canvas


def _clutter(canvas: F32, colour: str, rng: np.random.Generator) -> F32:
    """Lines and blots in muted colours behind the objects."""
    image = Image.fromarray(np.clip(canvas, 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(3, 9))):
        ink = tuple(int(c) for c in _grounds(colour, rng)[0])
        x0, y0, x1, y1 = (float(p) for p in rng.uniform(-0.1, 1.1, 4) * (image.size * 2))
        if rng.random() < 0.65:
            pen.line((x0, y0, x1, y1), fill=ink, width=int(rng.integers(1, 4)))
        else:
            radius = float(rng.uniform(2, 7))
            pen.ellipse((x0 - radius, y0 - radius, x0 + radius, y0 + radius), fill=ink)
    return np.array(image, np.float32)


def _centres(scene: Scene, rng: np.random.Generator) -> list[tuple[float, float]]:
    """Centres of the objects in px, 1.8 radii apart and 0.8 from the edge; SPOTS where six rounds
    of draws find no room.
    """
    radius = scene.size * min(scene.width, scene.height)
    for draws in rng.normal(0.5, (0.06, 0.2, 0.24)[scene.count - 1], (6, 16, 2)) * (
        scene.width,
        scene.height,
    ):
        centres: list[tuple[float, float]] = []
        for x, y in draws.tolist():
            edge = min(x, y, scene.width - x, scene.height - y)
            if edge > 0.8 * radius and all(
                math.dist((x, y), other) > 1.8 * radius for other in centres
            ):
                centres.append((x, y))
            if len(centres) == scene.count:
                return centres
    return [(x * scene.width, y * scene.height) for x, y in SPOTS[scene.count - 1]]


def _put(
    canvas: F32, scene: Scene, colour: F32, centre: tuple[float, float], rng: np.random.Generator
) -> None:
    """Paint one object with its shadow and texture into the canvas."""
    cx, cy = centre
    radius = scene.size * min(scene.width, scene.height) * rng.uniform(0.92, 1.08)
    stretch, turn = rng.uniform(0.88, 1.14), rng.normal(0, 0.15)
    reach = 1.35 * radius + 3
    left, right = max(int(cx - reach), 0), min(int(cx + reach) + 1, scene.width)
    top, bottom = max(int(cy - reach), 0), min(int(cy + reach) + 1, scene.height)
    x = (np.arange(left, right, dtype=np.float32) - np.float32(cx))[None, :]
    y = (np.arange(top, bottom, dtype=np.float32) - np.float32(cy))[:, None]
    cos, sin = np.float32(math.cos(turn)), np.float32(math.sin(turn))
    mirrored = np.float32(rng.integers(2) * 2 - 1)
    u, v = (x * cos + y * sin) * mirrored, y * cos - x * sin
    parts = SHAPES[scene.shape](u / np.float32(radius * stretch), v / np.float32(radius / stretch))
    box = canvas[top:bottom, left:right]
    outline = least(*(away for away, _ in parts)) * np.float32(radius)
    shift = tuple(int(s) for s in rng.integers(1, 4, 2))
    shade = np.roll(np.clip(np.float32(0.5) - outline * np.float32(0.5), 0, 1), shift, (0, 1))
    box *= (1 - np.float32(rng.uniform(0.15, 0.5)) * shade)[:, :, None]
    # From above left
    light = (1 - np.float32(0.22) * (x * np.float32(0.7) + y) / np.float32(radius))[:, :, None]
    for away, own in parts:
        cover = np.clip(np.float32(0.5) - away * np.float32(radius), 0, 1)[:, :, None]
        fill = (
            _textured(scene.texture, colour, u, v, radius, rng)
            if own is None
            else _jitter(own, rng, 18)
        )
        box += cover * (fill * light - box)


def _textured(
    texture: str, colour: F32, u: F32, v: F32, radius: float, rng: np.random.Generator
) -> F32:
    if texture == "plain":
        return colour
    if texture == "speckled":
        grain = rng.standard_normal(np.broadcast_shapes(u.shape, v.shape), dtype=np.float32)
        return colour + grain[:, :, None] * np.float32(32)
    dark = _pattern(texture, u, v, max(radius * rng.uniform(0.5, 0.8), 4))
    other: F32 = colour * np.float32(0.5)
    if rng.random() < 0.4:
        other = colour * np.float32(0.45) + np.float32(135)
    return colour + dark[:, :, None] * (other - colour) * np.float32(0.8)


def _vary(image: Image.Image, rng: np.random.Generator) -> tuple[Image.Image, int]:
    """A near duplicate: up to 4 % cut from each edge, up to 8 % brighter or darker, another JPEG
    quality.
    """
    width, height = image.size
    left, top, right, bottom = (float(c) for c in rng.uniform(0, 0.04, 4))
    box = (left * width, top * height, (1 - right) * width, (1 - bottom) * height)
    image = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
    gain = float(rng.uniform(0.92, 1.08))
    return image.point([min(int(level * gain), 255) for level in range(256)] * 3), int(
        rng.integers(35, 96)
    )


def _paint(image: Image.Image, text: str) -> Image.Image:
    """White words on dark bars across the image, as on shared images with a slogan."""
    image = image.copy()
    font, pen = _font(max(9, image.width // 8)), ImageDraw.Draw(image)
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > image.width - 4:
            lines.append(word)
        else:
            lines[-1] = longer
    step = int(font.size) + 3
    for number, line in enumerate(lines):
        y = image.height - step * (len(lines) - number)
        pen.rectangle((0, y, image.width, y + step), fill=(24, 24, 28))
        pen.text((2, y), line, fill=(250, 250, 246), font=font)
    return image


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)  # the one inside Pillow: no file of this machine
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    return font
