"""The block `miniweb`: the small web on loopback that a demo or an ablation starts first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from manifests.schema.fetch import STRICT

# What a link of the small web may suffer from; pipeline/miniweb/README.md says what each one does
MINIWEB_FAULTS = (
    "dead_link", "error500", "flaky503", "redirect", "redirect_loop", "html", "truncated",
    "corrupt", "empty", "reset", "hang", "drip", "thumbnail",
    "optout_header", "optout_page", "robots_txt",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Miniweb:
    """A small web of drawn images, or of a folder of labelled photographs (see
    pipeline/miniweb/small_web.py).
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    pairs: int = 6000
    trusted_pairs: int = 1500
    noise: float = 0.4
    near_duplicates: float = 0.1
    faults: float = 0.08
    seed: int = 0
    photos: str | None = None  # a folder of labelled photographs; None: the images are drawn
    captions: str | None = None  # a CSV with file, caption; None: from the names of the folders
    fault_kinds: tuple[str, ...] = ()  # of MINIWEB_FAULTS; (): the usual ones
    hosts: int = 7  # that show images, beside a CDN and the trusted host

    def __post_init__(self) -> None:
        for name in ("noise", "near_duplicates", "faults"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"miniweb {name} is {getattr(self, name)}; it must lie in [0, 1)")
        for name, least in (("pairs", 1), ("trusted_pairs", 0), ("seed", 0), ("hosts", 1)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"miniweb {name} is {getattr(self, name)}; it must be at least {least}"
                )
        for kind in self.fault_kinds:
            if kind not in MINIWEB_FAULTS:
                raise ValueError(
                    f"miniweb fault_kinds has {kind!r}; known are {', '.join(MINIWEB_FAULTS)}"
                )
        if self.captions is not None and self.photos is None:
            raise ValueError(
                "miniweb captions is given without photos; drawn images have their own captions"
            )
