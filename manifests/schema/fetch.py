"""How images are asked for, checked and stored: the block `fetch` of a recipe."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

STRICT: dict[str, str] = {"extra": "forbid"}  # read by pydantic inside reader.py
ROWS_PER_SHARD_LIMIT = 10_000  # keys are {shard:05d}{row:04d}
# The longest side that WebP can store; a square of it is decoded in 0.8 GB.
IMAGE_SIZE_LIMIT = 16_383
PHASH_BITS = 64
HASHES = ("md5", "sha256", "sha512")

# What is checked of an image that is not decoded.
SIZE_LIMITS = ("min_image_size", "max_image_area", "max_aspect_ratio", "max_pixels")
# What decides the bytes of a stored image, and whether it is stored.
STORED_IMAGE_SETTINGS = (
    "image_size",
    "resize_mode",
    "resize_only_if_bigger",
    "upscale_interpolation",
    "downscale_interpolation",
    "encode_format",
    "encode_quality",
    "skip_reencode",
    "disable_all_reencoding",
    *SIZE_LIMITS,
    "bbox_column",
    "extract_exif",
    "compute_hash",
    "verify_hash",
)
# How politely and how patiently images are asked for. These settings decide no byte of a stored
# image and no permanent outcome, so they are not part of a pool's hash and may change while a pool
# is built.
MANNERS = (
    "user_agent",
    "img2dataset_python",
    "connect_to",
    "deadline_s",
    "min_rate",
    "retries",
    "concurrency",
    "per_host",
    "delay_s",
    "hosts",
    "patience_s",
)
# Settings that came after the first pools were made: left out of a pool's hash while they have
# their default.
ADDED_SETTINGS: tuple[str, ...] = ("known_bad", "phash_distance")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimit:
    """What a host that is named in a recipe allows."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    per_host: int | None = None
    delay_s: float | None = None

    def __post_init__(self) -> None:
        if self.per_host is not None and self.per_host < 1:
            raise ValueError(f"per_host is {self.per_host}; it must be at least 1")
        if self.delay_s is not None and self.delay_s < 0:
            raise ValueError(f"delay_s is {self.delay_s}; it must not be negative")
        if self.delay_s is not None and not math.isfinite(self.delay_s):
            raise ValueError(f"delay_s is {self.delay_s}; it must be a finite number")


Interpolation = Literal[
    "nearest", "linear", "bilinear", "cubic", "bicubic", "area", "lanczos", "lanczos4"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """How images are asked for and stored. Names as in img2dataset where it has one."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    engine: Literal["clipmill", "img2dataset"] = "clipmill"
    # engine img2dataset: the interpreter that has it (default: this one). It is run, so a recipe is
    # code.
    img2dataset_python: str | None = None
    # name and an address to write to; needed as soon as something is fetched from the web
    user_agent: str | None = None
    # the image
    image_size: int = 256
    resize_mode: Literal["no", "border", "keep_ratio", "keep_ratio_largest", "center_crop"] = (
        "keep_ratio"
    )
    resize_only_if_bigger: bool = True
    upscale_interpolation: Interpolation = "lanczos"
    downscale_interpolation: Interpolation = "area"
    encode_format: Literal["jpg", "png", "webp"] = "jpg"
    encode_quality: int = 95  # of jpg and webp 1..100; of png its compression 0..9
    skip_reencode: bool = True  # keep the bytes of an image that needs no change
    # keep the bytes of every image; its header is checked, nothing is decoded
    disable_all_reencoding: bool = False
    min_image_size: int = 0  # pixels of the shorter side
    max_image_area: int = 0  # pixels; 0 = no limit but max_pixels
    max_aspect_ratio: float = 0.0  # 0 = no limit
    max_pixels: int = 33_554_432  # what is decoded at all
    # extra column: JSON list of [left, top, right, bottom] as shares of the sides, blurred
    bbox_column: str | None = None
    extract_exif: bool = False
    compute_hash: Literal["sha256", "md5", "sha512"] = "sha256"  # besides sha256
    verify_hash: tuple[str, str] | None = None  # extra column, and md5, sha256 or sha512
    # file of hashes of content that is never stored: a sha256 or a perceptual hash a line
    known_bad: str | None = None
    phash_distance: int = 4  # bits that a perceptual hash of known_bad may differ by
    # the network
    max_bytes: int = 20 * 2**20
    deadline_s: float = 20.0  # one row's DNS, TLS, redirects, body and all retries
    min_rate: int = 1024  # bytes per second that a body must average after its first 5 s
    retries: int = 2
    concurrency: int = 256
    max_redirects: int = 5
    rows_per_shard: int = ROWS_PER_SHARD_LIMIT
    allow_private: bool = False
    allow_ports: tuple[int, ...] = (80, 443)
    # manners
    per_host: int = 2  # requests at a time per host
    delay_s: float = 0.0  # between the starts of two requests to a host
    hosts: dict[str, HostLimit] = field(default_factory=dict)  # "host or *.suffix" -> its limits
    patience_s: float = 600.0  # a row that waits longer for its host ends as host_busy
    robots_txt: bool = True
    # files that are asked for once per host
    site_files: tuple[Literal["tdmrep", "ai.txt"], ...] = ("tdmrep", "ai.txt")
    # what is done about opt-out signals; all signals are written down
    optout: Literal["respect", "strict", "ignore"] = "respect"
    # "host or *.suffix" -> "address:port": where to connect for these names (curl --connect-to)
    connect_to: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.rows_per_shard <= ROWS_PER_SHARD_LIMIT:
            raise ValueError(
                f"rows_per_shard is {self.rows_per_shard}; it must lie in 1..{ROWS_PER_SHARD_LIMIT}"
            )
        for name in ("image_size", "max_pixels", "max_bytes", "per_host", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.image_size > IMAGE_SIZE_LIMIT:
            raise ValueError(
                f"image_size is {self.image_size}; it must be at most {IMAGE_SIZE_LIMIT}, "
                "the longest side that WebP can store"
            )
        for name in ("deadline_s", "patience_s", "delay_s", "max_aspect_ratio"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a finite number")
        for name in ("deadline_s", "patience_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 seconds")
        for name in (*SIZE_LIMITS, "min_rate", "retries", "delay_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        if not 0 <= self.phash_distance < PHASH_BITS:
            raise ValueError(
                f"phash_distance is {self.phash_distance}; it must lie in 0..{PHASH_BITS - 1}"
            )
        if not self.allow_ports or not all(1 <= port <= 65_535 for port in self.allow_ports):
            raise ValueError(
                f"allow_ports is {list(self.allow_ports)}; "
                "it must name at least one port, each in 1..65535"
            )
        agent = self.user_agent or ""
        if not (agent.isascii() and agent.isprintable()):
            raise ValueError(
                f"user_agent is {agent!r}; it must be printable ASCII in one line, "
                "because it is sent as an HTTP header"
            )
        lowest, highest = (0, 9) if self.encode_format == "png" else (1, 100)
        if not lowest <= self.encode_quality <= highest:
            raise ValueError(
                f"encode_quality is {self.encode_quality}; "
                f"of {self.encode_format} it must lie in {lowest}..{highest}"
            )
        if self.verify_hash is not None and self.verify_hash[1] not in HASHES:
            raise ValueError(
                f"verify_hash names {self.verify_hash[1]!r}; it must be md5, sha256 or sha512"
            )
