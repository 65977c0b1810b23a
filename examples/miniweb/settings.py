"""The settings of a small web, and how they are read from webs/NAME.yaml."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from clipmill.manifests import reader
from clipmill.manifests.schema.recipe import MANY, STRICT, Ranges, check_ranges

# What a link of the small web may suffer from; examples/miniweb/__init__.py says what each one does
MINIWEB_FAULTS = (
    "dead_link", "error500", "flaky503", "redirect", "redirect_loop", "html", "truncated",
    "corrupt", "empty", "reset", "hang", "drip", "thumbnail",
    "optout_header", "optout_page", "robots_txt",
)  # fmt: skip
WEBS = Path(__file__).parent / "webs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Miniweb:
    """A small web of drawn images, or of a folder of labelled photographs (see
    examples/miniweb/small_web.py).
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    ranges: ClassVar[Ranges] = {
        "pairs": (1, 1_000_000_000),
        "trusted_pairs": (0, 1_000_000_000),
        "noise": (0, 1),
        "near_duplicates": (0, 1),
        "faults": (0, 1),
        "seed": (0, MANY),
        "hosts": (1, 100_000),
    }
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
        check_ranges(self)
        for kind in self.fault_kinds:
            if kind not in MINIWEB_FAULTS:
                raise ValueError(
                    f"miniweb fault_kinds has {kind!r}; known are {', '.join(MINIWEB_FAULTS)}"
                )
        if self.captions is not None and self.photos is None:
            raise ValueError(
                "miniweb captions is given without photos; drawn images have their own captions"
            )


def web_of(manifest: str) -> Path:
    """The file of the web that a manifest is run on: webs/NAME.yaml with the manifest's own name.
    ValueError where there is none.
    """
    path = WEBS / f"{Path(manifest).stem}.yaml"
    if not path.exists():
        names = ", ".join(sorted(each.stem for each in WEBS.glob("*.yaml")))
        raise ValueError(
            f"there is no web for {manifest}: name one with --web, a YAML file of yours or "
            f"examples/miniweb/webs/NAME.yaml with one of the names {names}"
        )
    return path


def read_web(path: str | Path, scale: str | None = None) -> Miniweb:
    """The settings in a file, which are checked as those of a manifest are. Its block `scales` may
    have the scale. Paths are relative to the file.
    """
    known = scale if scale in reader.list_scales(path) else None
    settings = reader.read_manifest(path, Miniweb, scale=known)
    folder = Path(path).resolve().parent
    paths = {}
    for key in ("photos", "captions"):
        if value := getattr(settings, key):
            paths[key] = os.path.normpath(folder / value)
    return dataclasses.replace(settings, **paths)
