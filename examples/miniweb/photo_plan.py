"""What a web of photographs holds: each link, its words, and what is wrong with it. Pure and
seeded.

How many links are wrong in which way is fixed by the settings: chance decides only which ones.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from clipmill.examples.miniweb.labelled_photos import LabelledPhoto
from clipmill.examples.miniweb.links import CDN, ROBOTS_HOST, TRUSTED, Link, hosts_of
from clipmill.examples.miniweb.settings import Miniweb

FAULTS = (
    "dead_link", "error500", "flaky503", "redirect", "redirect_loop", "html", "truncated",
    "corrupt", "reset", "optout_header", "empty", "hang", "drip",
)  # fmt: skip
GENERIC_SHARE = 0.2  # of the wrong captions: words that describe nothing
CDN_SHARE = 0.15  # of the images: on another host than their page
GENERIC = (
    "image", "photo", "logo", "untitled", "thumbnail", "picture {n}", "IMG_{n}.jpg", "DSC{n}",
    "click to enlarge", "buy now, free shipping",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotoLink(Link):
    """A link to a photograph."""

    file: str
    label: str


def plan(
    photos: Sequence[LabelledPhoto], settings: Miniweb
) -> tuple[list[PhotoLink], list[PhotoLink]]:
    """The links of the crawl, in no order, and those of the trusted host, whose photographs the
    crawl does not have.

    Of n links, n ÷ (1 + near_duplicates) are first ones. Of these, the shares `faults` and `noise`
    are spoilt or have wrong captions. The others are the same file again under another URL, with
    the caption of the first one. ValueError where too few photographs are there.
    """
    if settings.trusted_pairs >= len(photos):
        raise ValueError(
            f"miniweb trusted_pairs is {settings.trusted_pairs}, but there are {len(photos)} "
            "photographs, and the crawl needs some too"
        )
    if settings.faults + settings.noise > 1:
        raise ValueError(
            f"miniweb faults {settings.faults} and noise {settings.noise} are more than 1 together"
        )
    rng = random.Random(f"trusted/{settings.seed}")
    shuffled = rng.sample(photos, len(photos))
    trusted, others = shuffled[: settings.trusted_pairs], shuffled[settings.trusted_pairs :]
    return _crawled(others, settings), _trusted(trusted, settings.seed)


def _trusted(photos: Sequence[LabelledPhoto], seed: int) -> list[PhotoLink]:
    links = []
    for number, photo in enumerate(photos):
        links.append(_link(photo, "clean", TRUSTED, _path(photo, seed, f"trusted/{number}")))
    return links


def _crawled(photos: Sequence[LabelledPhoto], settings: Miniweb) -> list[PhotoLink]:
    number_first = max(1, round(settings.pairs / (1 + settings.near_duplicates)))
    rng = random.Random(f"photos/{settings.seed}")
    shown: list[LabelledPhoto] = []
    while len(shown) < number_first:  # every photograph once before one is shown again
        shown += rng.sample(photos, min(len(photos), number_first - len(shown)))
    kinds = _kinds(number_first, settings)
    hosts = hosts_of(settings.hosts)
    first = []
    for number, (photo, kind) in enumerate(zip(shown, kinds, strict=True)):
        host, folder = rng.choice(hosts) if rng.random() >= CDN_SHARE else CDN, "img"
        if kind == "robots_txt":
            host, folder = ROBOTS_HOST, "private"
        elif kind == "redirect":
            host, folder = rng.choice(hosts), "go"
        link = _link(photo, kind, host, _path(photo, settings.seed, str(number), folder))
        first.append(_with_caption(link, photos, rng))
    return first + _copies(first, settings, hosts)


def _kinds(number: int, settings: Miniweb) -> list[str]:
    """The kind of each first link, in no order."""
    fault_kinds = settings.fault_kinds or FAULTS
    faults, wrong = round(settings.faults * number), round(settings.noise * number)
    wrong = min(wrong, number - faults)
    generic = round(GENERIC_SHARE * wrong)
    kinds = [fault_kinds[i % len(fault_kinds)] for i in range(faults)]
    kinds += ["generic"] * generic + ["noisy"] * (wrong - generic)
    kinds += ["clean"] * (number - len(kinds))
    random.Random(f"kinds/{settings.seed}").shuffle(kinds)
    return kinds


def _link(photo: LabelledPhoto, kind: str, host: str, path: str) -> PhotoLink:
    return PhotoLink(
        kind=kind,
        host=host,
        path=path,
        caption=photo.caption,
        true_caption=photo.caption,
        right=True,
        file=photo.file,
        label=photo.label,
    )


def _path(photo: LabelledPhoto, seed: int, key: str, folder: str = "img") -> str:
    token = hashlib.sha256(f"{seed}/photo/{key}".encode()).hexdigest()[:16]
    return f"/{folder}/{token[:2]}/{token}{PurePosixPath(photo.file).suffix.lower()}"


def _with_caption(
    link: PhotoLink, photos: Sequence[LabelledPhoto], rng: random.Random
) -> PhotoLink:
    """A noisy link has the caption of a photograph drawn from all: now and then a right one."""
    if link.kind == "generic":
        text = rng.choice(GENERIC).format(n=rng.randint(1000, 9999))
        return replace(link, caption=text, right=False)
    if link.kind == "noisy":
        other = rng.choice(photos)
        return replace(link, caption=other.caption, right=other.label == link.label)
    return link


def _copies(first: Sequence[PhotoLink], settings: Miniweb, hosts: Sequence[str]) -> list[PhotoLink]:
    """Photographs of the web again, byte for byte, under another URL."""
    rng = random.Random(f"copies/{settings.seed}")
    copies = []
    for number, link in enumerate(rng.sample(first, settings.pairs - len(first))):
        token = hashlib.sha256(f"{settings.seed}/copy/{number}".encode()).hexdigest()[:16]
        path = f"/copies/{token[:2]}/{token}{PurePosixPath(link.file).suffix.lower()}"
        host = rng.choice((*hosts, CDN))
        copies.append(replace(link, kind="near_duplicate", host=host, path=path, original=link.url))
    return copies
