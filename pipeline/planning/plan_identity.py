"""What a plan was made of: the pairs and the recipe, and whether they are the same now."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk, identity
from manifests.pool_layout import PoolLayout
from manifests.schema import Recipe
from pipeline.crawl import UidsDigest


def pairs_hash(parts: pa.Table) -> str:
    """Hash over the uids of all pairs."""
    digest = UidsDigest()
    for column in (parts["uids"], parts["pairs"].cast(pa.string())):
        for chunk in column.chunks:
            digest.update(chunk)
    return digest.hexdigest()[:16]


def first_form_hash(pool: str, parts: pa.Table) -> str:
    """Hash over the uids of all pairs, as a plan of the first form has it."""
    content = hashlib.sha256()
    for part in range(len(parts)):
        uids = disk.read_parquet(PoolLayout(pool).pairs_part(part), ["uid"])["uid"]
        for chunk in uids.chunks:
            joined = pa.LargeListArray.from_arrays([0, len(chunk)], chunk.cast(pa.large_string()))
            text = pc.binary_join(joined, pa.scalar("", pa.large_string()))[0]
            content.update(text.as_buffer())
        content.update(b"\n")
    return content.hexdigest()[:16]


def check_unchanged(
    planned: dict[str, Any], asked: dict[str, Any], recipe: Recipe, pool: str
) -> None:
    """ValueError that names what differs between the plan that is there and the one asked for."""
    remedy = f"give the old value back, or build into another folder than {pool}"
    changes = identity.recipe_changes(planned["recipe"], recipe)
    if changes:
        raise ValueError(
            f"the recipe has changed since this pool was planned ({'; '.join(changes)}): {remedy}"
        )
    if planned["pairs"] != asked["pairs"]:
        raise ValueError(
            f"the pairs in {pool}/pairs are not those that this pool was planned from "
            f"(now {asked['pairs']}, then {planned['pairs']}): {remedy}"
        )
    if planned["version"] != asked["version"]:
        raise ValueError(
            f"{pool} was planned by plan version {planned['version']}, this is version "
            f"{asked['version']}: finish it with the older program, or build into another folder"
        )
