"""What decides the rows and bytes of a pool, as plain values and as a hash.

Views, scores and manners decide no byte, and a folder may move: they are left out, so they may
change while a pool is built. Keys of ADDED_KEYS and ADDED_SETTINGS are left out while they have
their default.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from clipmill.manifests import disk
from clipmill.manifests.hashes import KnownBad
from clipmill.manifests.schema import (
    ADDED_KEYS,
    ADDED_SETTINGS,
    CAPTION_BYTES,
    MANNERS,
    Ablation,
    Fetch,
    Recipe,
)

DEFAULTS: dict[str, object] = disk.to_plain(Fetch())
ADDED_DEFAULTS: dict[str, object] = {
    "captions": None,
    "file_column": "file_name",
    "links_outside": False,
    "columns": [],
    "image_column": "image",
    "caption_list": "all",
    "delimiter": ",",
    "max_caption_bytes": CAPTION_BYTES,
    "image_member": None,
    "caption_member": None,
}
ABSOLUTE = re.compile(r"^(file://)?/")


def fetch_identity(fetch: Fetch) -> dict[str, object]:
    """The settings that decide bytes or permanent outcomes; manners have their defaults.

    Of the list of known-bad content the hash of what it lists stands for its path.
    """
    plain = disk.to_plain(fetch)
    if fetch.known_bad is not None:
        plain["known_bad"] = KnownBad.read(fetch.known_bad, fetch.phash_distance).identity
    settings = {**plain, **{name: DEFAULTS[name] for name in MANNERS}}
    return _without_added(settings, ADDED_SETTINGS, DEFAULTS)


def manners_of(fetch: Fetch) -> dict[str, object]:
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


def recipe_changes(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """What decides bytes and differs between two recipes, of which `recipe_identity` gave these; []
    where nothing does.

    Each line reads `fetch.image_size was 256 and is 512`.
    A source that has grown has not changed.
    """
    changes = []
    for block, settings in asked.items():
        for key in sorted(settings.keys() | stored[block].keys()):
            old, new = stored[block].get(key), settings.get(key)
            if old != new and not (block == "source" and has_grown(key, old, new)):
                changes.append(f"{block}.{key} was {old!r} and is {new!r}")
    return changes


def _without_added(
    settings: Mapping[str, object], added: Collection[str], defaults: Mapping[str, object]
) -> dict[str, object]:
    """Settings without those of `added` that have their default."""
    return {
        name: value
        for name, value in settings.items()
        if name not in added or value != defaults[name]
    }


def source_identity(source: Mapping[str, Any]) -> dict[str, object]:
    """A source as plain values without what decides no row. Of local paths only the names stay."""
    # A lock is known by its content: the plan that is made of it names its id.
    is_lock = source["kind"] == "lock"
    identity = {**source, "paths": [] if is_lock else [_name(path) for path in source["paths"]]}
    return _without_added(identity, ADDED_KEYS, ADDED_DEFAULTS)


def has_grown(key: str, old: Any, new: Any) -> bool:
    """Whether a key of a source names all that it named before, and more. Of two samples of a crawl
    the larger has the smaller in it."""
    if key == "paths":
        return bool(old) and not Counter(old) - Counter(new)
    return key == "sample" and None not in (old, new) and bool(old < new)


def _name(path: str) -> str:
    """The last component of a local path; a URL as it is."""
    return path.rstrip("/").rpartition("/")[2] if ABSOLUTE.match(path) else path


def ablation_hash(ablation: Ablation) -> str:
    """Hash of an ablation's manifest, without the keys that have their default."""
    return disk.content_hash(disk.to_plain(ablation, with_defaults=False))
