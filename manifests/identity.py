"""What decides the rows and bytes of a pool, as plain values and as a hash.

Views, scores and manners decide no byte, and a folder may move: they are left out, so they may
change while a pool is built. A setting that came after the first pools is left out while it has its
default, so old pools keep their hash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from manifests import disk
from manifests.hashes import KnownBad
from manifests.schema import ADDED_KEYS, ADDED_SETTINGS, MANNERS, Ablation, Fetch, Recipe

DEFAULTS: dict[str, Any] = disk.to_plain(Fetch())
ADDED_DEFAULTS: dict[str, Any] = {
    "captions": None,
    "file_column": "file_name",
    "links_outside": False,
}
ABSOLUTE = re.compile(r"^(file://)?/")


def fetch_identity(fetch: Fetch) -> dict[str, Any]:
    """The settings that decide bytes or permanent outcomes; manners have their defaults.

    Of the list of known-bad content the hash of what it lists stands for its path.
    """
    plain = disk.to_plain(fetch)
    if fetch.known_bad is not None:
        plain["known_bad"] = KnownBad.read(fetch.known_bad, fetch.phash_distance).identity
    return _fetch_identity(plain)


def manners_of(fetch: Fetch) -> dict[str, Any]:
    """The manners of a fetch, which each shard records. Paths of this machine are left out."""
    plain = disk.to_plain(fetch)
    return {name: plain[name] for name in MANNERS if name != "img2dataset_python"}


def recipe_identity(recipe: Recipe) -> dict[str, Any]:
    """`source` and `fetch` of a recipe without what decides no byte. Of local paths only the names
    stay.
    """
    return {
        "source": source_identity(disk.to_plain(recipe.source)),
        "fetch": fetch_identity(recipe.fetch),
    }


def recipe_hash(recipe: Recipe) -> str:
    """Hash of `recipe_identity`, 12 hex digits."""
    return disk.content_hash(recipe_identity(recipe))


def recipe_changes(stored: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """What decides bytes and differs between a stored identity and a recipe; [] where nothing does.

    `stored` is what `recipe_identity` gave, now or in an earlier version, which had absolute paths
    and manners. Each line reads `fetch.image_size was 256 and is 512`.
    """
    now = recipe_identity(recipe)
    before = {
        "source": source_identity(stored["source"]),
        "fetch": _fetch_identity(stored["fetch"]),
    }
    changes = []
    for block, settings in now.items():
        for key in sorted(settings.keys() | before[block].keys()):
            old, new = before[block].get(key), settings.get(key)
            if old != new:
                changes.append(f"{block}.{key} was {old!r} and is {new!r}")
    return changes


def _fetch_identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    identity = {**settings, **{name: DEFAULTS[name] for name in MANNERS}}
    for name in ADDED_SETTINGS:
        if identity.get(name) == DEFAULTS[name]:
            identity.pop(name, None)
    return identity


def source_identity(source: Mapping[str, Any]) -> dict[str, Any]:
    """A source as plain values without what decides no row. Of local paths only the names stay."""
    # A lock is known by its content: the plan that is made of it names its id.
    is_lock = source["kind"] == "lock"
    identity = {**source, "paths": [] if is_lock else [_name(path) for path in source["paths"]]}
    for name in ADDED_KEYS:
        if identity.get(name) == ADDED_DEFAULTS[name]:
            identity.pop(name, None)
    return identity


def _name(path: str) -> str:
    """The last component of a local path; a URL as it is."""
    return path.rstrip("/").rpartition("/")[2] if ABSOLUTE.match(path) else path


def ablation_hash(ablation: Ablation) -> str:
    """Hash of an ablation's manifest, without the keys that have their default."""
    return disk.content_hash(disk.without_defaults(ablation))
