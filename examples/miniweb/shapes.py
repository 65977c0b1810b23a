"""The shapes of the small web's objects, as signed distances.

A shape is its parts in paint order, each the signed distance to its outline (negative inside) and
its colour. x and y reach from -1 to 1 over the object, y points down; a part without a colour has
the colour of the object.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.floating[Any]]  # float32 throughout, which halves the time of an image
Parts = list[tuple[F32, tuple[int, int, int] | None]]


def _reach(x: F32, y: F32) -> F32:
    length: F32 = np.hypot(x, y)
    return length


def least(*distances: F32) -> F32:
    """The union of shapes."""
    union: F32 = np.minimum.reduce(distances)
    return union


def _most(*distances: F32) -> F32:
    """The intersection of shapes."""
    common: F32 = np.maximum.reduce(distances)
    return common


def _disc(x: F32, y: F32, cx: float, cy: float, radius: float) -> F32:
    return _reach(x - np.float32(cx), y - np.float32(cy)) - np.float32(radius)


def _oval(x: F32, y: F32, cx: float, cy: float, rx: float, ry: float) -> F32:
    scaled = _reach((x - np.float32(cx)) / np.float32(rx), (y - np.float32(cy)) / np.float32(ry))
    return (scaled - np.float32(1)) * np.float32(min(rx, ry))


def _box(x: F32, y: F32, cx: float, cy: float, half_width: float, half_height: float) -> F32:
    return _most(
        np.abs(x - np.float32(cx)) - np.float32(half_width),
        np.abs(y - np.float32(cy)) - np.float32(half_height),
    )


def _polygon(x: F32, y: F32, *corners: tuple[float, float]) -> F32:
    """Convex, corners clockwise as seen on the screen."""
    edges = []
    for (x0, y0), (x1, y1) in zip(corners, (*corners[1:], corners[0]), strict=True):
        nx, ny = (
            (y1 - y0) / math.dist((x0, y0), (x1, y1)),
            (x0 - x1) / math.dist((x0, y0), (x1, y1)),
        )
        edges.append(x * np.float32(nx) + y * np.float32(ny) - np.float32(x0 * nx + y0 * ny))
    return _most(*edges)


def _car(x: F32, y: F32) -> Parts:
    cabin = _polygon(x, y, (-0.68, 0.0), (-0.4, -0.52), (0.34, -0.52), (0.66, 0.0))
    windows = _polygon(x, y, (-0.52, -0.06), (-0.32, -0.4), (0.27, -0.4), (0.5, -0.06))
    wheels = least(_disc(x, y, -0.52, 0.46, 0.27), _disc(x, y, 0.52, 0.46, 0.27))
    return [
        (least(_box(x, y, 0, 0.2, 1.0, 0.26), cabin), None),
        (windows, (206, 226, 238)),
        (wheels, (30, 30, 34)),
        (wheels + np.float32(0.16), (170, 172, 176)),
    ]


def _house(x: F32, y: F32) -> Parts:
    return [
        (_box(x, y, 0, 0.38, 0.74, 0.52), None),
        (_polygon(x, y, (-0.98, -0.1), (0, -0.92), (0.98, -0.1)), (84, 62, 64)),
        (_box(x, y, 0.32, 0.55, 0.17, 0.35), (66, 46, 36)),
        (_box(x, y, -0.3, 0.3, 0.19, 0.19), (250, 242, 196)),
    ]


def _boat(x: F32, y: F32) -> Parts:
    hull = _polygon(x, y, (-1.0, 0.3), (1.0, 0.3), (0.62, 0.85), (-0.62, 0.85))
    return [
        (_box(x, y, 0, -0.3, 0.06, 0.62), (96, 70, 48)),
        (_polygon(x, y, (0.12, -0.92), (0.82, 0.16), (0.12, 0.16)), (246, 246, 242)),
        (least(hull, _polygon(x, y, (-0.12, -0.74), (-0.12, 0.16), (-0.72, 0.16))), None),
    ]


def _flower(x: F32, y: F32) -> Parts:
    turns = [2 * math.pi * k / 6 for k in range(6)]
    petals = [_disc(x, y, 0.4 * math.sin(a), -0.3 - 0.4 * math.cos(a), 0.27) for a in turns]
    stem = least(_box(x, y, 0, 0.62, 0.06, 0.44), _oval(x, y, 0.26, 0.72, 0.24, 0.1))
    return [
        (stem, (64, 128, 60)),
        (least(*petals), None),
        (_disc(x, y, 0, -0.3, 0.22), (250, 236, 160)),
    ]


def _fish(x: F32, y: F32) -> Parts:
    eye = _disc(x, y, -0.44, -0.1, 0.17)
    tail = _polygon(x, y, (0.42, 0.0), (1.0, -0.48), (1.0, 0.48))
    return [
        (least(_oval(x, y, -0.18, 0, 0.8, 0.5), tail), None),
        (eye, (248, 248, 246)),
        (eye + np.float32(0.09), (20, 20, 24)),
    ]


def _cup(x: F32, y: F32) -> Parts:
    body = _polygon(x, y, (-0.78, -0.5), (0.5, -0.5), (0.36, 0.8), (-0.64, 0.8))
    handle = np.abs(_disc(x, y, 0.52, 0.08, 0.34)) - np.float32(0.1)
    return [(least(body, handle), None), (_oval(x, y, -0.14, -0.5, 0.64, 0.2), (58, 36, 24))]


def _star(x: F32, y: F32) -> Parts:
    radius, sector = _reach(x, y), math.pi / 5
    angle = np.abs(
        (np.arctan2(x, -y) + np.float32(sector)) % np.float32(2 * sector) - np.float32(sector)
    )
    tip, inner = 1.1, 0.48  # radii of the points and of the corners between them
    ax, ay = inner * math.cos(sector) - tip, inner * math.sin(sector)
    length = math.hypot(ax, ay)
    along, across = radius * np.cos(angle) - np.float32(tip), radius * np.sin(angle)
    away = along * np.float32(ay / length) - across * np.float32(ax / length)
    return [(away, (48, 42, 44)), (away + np.float32(0.14), None)]  # an inked rim


def _heart(x: F32, y: F32) -> Parts:
    ax, half = np.abs(x), 0.62
    square = (ax + np.abs(y - np.float32(0.12))) * np.float32(math.sqrt(0.5)) - np.float32(half)
    lobe = _disc(ax, y, half * math.sqrt(0.5), 0.12 - half * math.sqrt(0.5), half)
    away = least(square, lobe)
    return [(away, (252, 248, 244)), (away + np.float32(0.17), None)]  # a paper rim


SHAPES: dict[str, Callable[[F32, F32], Parts]] = {
    "car": _car,
    "house": _house,
    "boat": _boat,
    "flower": _flower,
    "fish": _fish,
    "cup": _cup,
    "star": _star,
    "heart": _heart,
}
