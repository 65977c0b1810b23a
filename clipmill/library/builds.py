"""Building a pool as a function: what `clipmill build RECIPE` runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clipmill.library.calls import guest
from clipmill.library.pools import Pool, open_pool
from clipmill.manifests import disk, reader
from clipmill.manifests.ray_runtime import Engine
from clipmill.manifests.schema import Recipe
from clipmill.pipeline import recipe_run
from clipmill.pipeline.lock.rebuild import recipe_of_lock

MAX_TASKS = 20  # tasks without an outcome that are named
Until = Literal["crawl", "plan", "fetch", "score", "choose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """How a build ended. path: of the pool. totals: what pool.json says, and beside it `failed`
    tasks and whether anything `changed`. causes: why it is not finished, the first cause first.
    """

    path: str
    recipe: Recipe
    totals: dict[str, Any]
    causes: tuple[str, ...]

    @property
    def pool(self) -> Pool:
        """The pool, opened. ValueError where no shard is committed."""
        return open_pool(self.path)


def build_pool(
    recipe: str | os.PathLike[str] | None = None, /, *, out: str | os.PathLike[str],
    until: Until = "choose", retry: Literal["transient"] | None = None, scale: str | None = None,
    from_lock: str | os.PathLike[str] | None = None, fetch: Mapping[str, object] | None = None,
    engine: Engine = "auto"
) -> Built:  # fmt: skip
    """Build a pool from a recipe. Called again, it goes on where it stopped.

    A recipe is code: with fetch.engine img2dataset it names the program that is run.

    Args:
        recipe: The file of a recipe.
        out: The folder or URL of the pool.
        until: The last stage.
        retry: Ask again for rows that ended with such a reason.
        scale: A block of the manifest's `scales` to merge over it.
        from_lock: Build the pool of a lock again instead of a recipe's.
        fetch: With `from_lock`: keys of `fetch` that are yours, such as user_agent.
        engine: inline works in this process, ray on Ray; auto on a Ray that this process was given,
            else in this process until what is left is worth one.

    Raises:
        ValueError: The recipe cannot be built, or differs from the one that this pool was begun
            with, or another process writes into the pool; in one line, as the command prints it.
    """
    with guest():
        if (recipe is None) == (from_lock is None):
            raise ValueError("give either a recipe or from_lock")
        if from_lock is not None:
            if until == "crawl":
                raise ValueError(
                    "a lock has nothing to crawl: --until plan ends before the first request"
                )
            changes = [f"{key}={value}" for key, value in (fetch or {}).items()]
            read = recipe_of_lock(os.fspath(from_lock), changes)
        else:
            assert recipe is not None
            if fetch:
                raise ValueError(
                    "--set belongs to --from-lock; a recipe has its settings in `fetch`"
                )
            read = reader.read_manifest(os.fspath(recipe), Recipe, scale=scale)
        pool = disk.output_folder(os.fspath(out))
        totals = recipe_run.build(read, pool, engine=engine, until=until, retry=retry)
        causes = tuple(_unfinished(totals, until))
        return Built(path=pool, recipe=read, totals=totals, causes=causes)


def _unfinished(totals: Mapping[str, Any], until: Until) -> list[str]:
    """Why a build is not finished, the first cause first; [] where it is."""
    failed = totals["failed"]
    causes = []
    for task in list(failed)[:MAX_TASKS]:
        causes.append(f"task {task} ended without an outcome: {failed[task]}")
    if len(failed) > MAX_TASKS:
        causes.append(f"{len(failed) - MAX_TASKS} more tasks ended without an outcome")
    causes += totals["problems"]
    if missing := recipe_run.incomplete(totals, until):
        causes.append(missing)
    return causes
