"""The route as a sequence: a recipe through crawl, fetch, score and choose; an ablation as the commands of its stages.

Everything that an ablation does is a command that a person could type; it is printed before it runs.
"""

from __future__ import annotations

import logging
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manifests import disk, ray_runtime, reader
from manifests.pool_layout import read_commit_records, shard_name
from manifests.schema import Ablation, Blend, Controls, Miniweb, Recipe, Scorer
from manifests.sources import SOURCES
from pipeline import accounting, scoring, views
from pipeline.crawl import crawler
from pipeline.executor import Engine, Stage, Ticket, execute
from pipeline.external import adopt, img2dataset_run
from pipeline.fetch import make_downloader, plan
from pipeline.miniweb import small_web
from pipeline.pool import read_sidecar, remove_uncommitted

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("crawl", "fetch", "score", "choose")
SHARDS_AT_ONCE = 6  # that a worker fetches: some wait for their last rows, the others use the network; 25 MB each
logger = logging.getLogger(__name__)


# --- a recipe ------------------------------------------------------------------------------------------------------


def build(
    recipe: Recipe, pool: str, *, engine: Engine, until: str = "choose", retry: str | None = None
) -> dict[str, Any]:
    """Every stage up to `until`, resumed by what is committed. Returns the totals; `failed` has tasks without outcome.

    ValueError where the recipe cannot be built, or differs from the one that this pool was begun with.
    """
    if SOURCES[recipe.source.kind].needs_user_agent and not recipe.fetch.user_agent:
        raise ValueError(
            f"recipe {recipe.name!r} fetches from the web: set fetch.user_agent to a name and an address to write to"
        )
    views.check_views(recipe)
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    steps: list[tuple[str, Callable[[], Mapping[str, str]]]] = [
        ("crawl", lambda: _crawl(recipe, pool, engine)),
        ("fetch", lambda: _fetch(recipe, pool, engine, retry)),
        ("score", lambda: _score(recipe, pool, engine)),
        ("choose", lambda: _choose(recipe, pool)),
    ]
    for name, step in steps[: STAGES.index(until) + 1]:
        started = time.monotonic()
        failed |= step()
        seconds[name] = round(time.monotonic() - started, 2)
        logger.info("%s took %.1f s", name, seconds[name])
        if failed:
            break  # what comes after would be made from a pool with holes
    disk.write_json(disk.join(pool, "recipe.json"), recipe)
    return {**accounting.write_pool_json(pool, recipe, seconds), "failed": failed}


def _crawl(recipe: Recipe, pool: str, engine: Engine) -> Mapping[str, str]:
    if recipe.source.kind == "shards":
        return {}
    failed: Mapping[str, str] = crawler.crawl(recipe.source, pool, engine)["failed"]
    return failed


def _fetch(recipe: Recipe, pool: str, engine: Engine, retry: str | None) -> Mapping[str, str]:
    remove_uncommitted(pool)
    config: dict[str, Any] = {"pool": pool, "fetch": disk.to_plain(recipe.fetch)}
    if recipe.source.kind == "shards":
        if retry:
            raise ValueError(
                "--retry asks the web again; shards that exist already were fetched by another program"
            )
        work = Stage(name="adopt", work=adopt.adopt, config=config)
        return execute(work, adopt.tickets(recipe.source), engine=engine).failed
    tasks = plan.write_plan(pool, recipe)
    if retry:
        tasks += plan.add_retries(pool, recipe, transient(pool))
    done = read_commit_records(pool)
    config["source_kind"] = recipe.source.kind
    if engine == "ray":
        config["decoders"] = (
            1  # there is a worker for each core, and each decodes in a child of its own
        )
    tickets = [
        Ticket(id=task.id, group=str(task.group), payload={"shard": task.shard})
        for task in tasks
        if shard_name(task.shard) not in done
    ]
    logger.info("%d of %d shards are committed already", len(tasks) - len(tickets), len(tasks))
    if recipe.fetch.engine == "img2dataset":
        work = img2dataset_run.stage_of(pool, recipe)
    else:
        config["extra_columns"] = recipe.sidecar_extra
        work = Stage(
            name="fetch",
            work=make_downloader,
            config=config,
            concurrency=SHARDS_AT_ONCE,
        )
    return execute(work, tickets, engine=engine).failed


def transient(pool: str) -> list[str]:
    """Keys of the rows whose newest outcome is transient: what a retry asks for again."""
    keys: list[str] = []
    retried: set[str] = set()
    for name in read_commit_records(pool):
        for row in read_sidecar(pool, name, ["key", "class", "retry_of"]).to_pylist():
            retried.add(row["retry_of"])
            if row["class"] == "transient":
                keys.append(row["key"])
    return [key for key in keys if key not in retried]


def _score(recipe: Recipe, pool: str, engine: Engine) -> Mapping[str, str]:
    if not recipe.filters:
        return {}
    failed: Mapping[str, str] = scoring.score(
        pool, scoring.filter_specs(recipe, [], {}), engine=engine
    )["failed"]
    return failed


def _choose(recipe: Recipe, pool: str) -> Mapping[str, str]:
    views.choose_views(pool, recipe)
    return {}


# --- an ablation ---------------------------------------------------------------------------------------------------


def command(script: str, *words: str) -> list[str]:
    """A command of this project as a person would type it, for `run`."""
    return ["python", script, *words]


def run(words: Sequence[str]) -> None:
    """Print a command and run it from the checkout. CalledProcessError with its exit status where that is not 0."""
    print(f"\n$ {shlex.join(words)}", flush=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(ROOT / words[1]), *words[2:]], check=True, env=environment)


def _export(**variables: str) -> None:
    """Set variables for the commands that follow, and show it."""
    os.environ.update(variables)
    print(
        f"\n$ export {' '.join(f'{k}={shlex.quote(v)}' for k, v in variables.items())}", flush=True
    )


def ablate(manifest: str, out: str, *, engine: Engine, scale: str | None = None) -> None:
    """Build what is missing, train the scorer if one is asked for, run the arms and write the report.

    ValueError for a person's mistake; subprocess.CalledProcessError where a command ended with an error of its own.
    """
    costs: dict[str, float] = {}
    if reader.read_block(manifest, "scorer", Scorer, scale=scale):
        _export(SCORER=disk.join(out, "scorer", "export"))
    with surroundings(out, peek_miniweb(manifest, scale)):
        ablation = reader.read_manifest(manifest, Ablation, scale=scale)
        disk.write_json(disk.join(out, "ablation.json"), ablation)
        again = command(
            "pipeline/build.py", manifest, "--out", out, *(["--scale", scale] if scale else [])
        )
        disk.write_json(disk.join(out, "command.json"), shlex.join(again))
        resolved = disk.join(out, "ablation.json")
        run(command("train/ablate.py", resolved, "--out", out, "--check"))
        with one_ray(engine):
            for name, words in _commands(ablation, resolved, out, engine, scale):
                started = time.monotonic()
                run(words)
                costs[name] = round(costs.get(name, 0.0) + time.monotonic() - started, 2)
                disk.write_json(disk.join(out, "costs.json"), costs)
        if ablation.controls.null_web:
            run(
                command(
                    "pipeline/build.py",
                    ablation.controls.null_web,
                    "--out",
                    disk.join(out, "null"),
                    "--engine",
                    engine,
                )
            )
    run(command("train/report.py", out))


def _commands(
    ablation: Ablation, resolved: str, out: str, engine: Engine, scale: str | None
) -> Iterator[tuple[str, list[str]]]:
    """(stage, command) in order. Recipes are given as the resolved JSON that is written here: same web, same scorer."""
    recipes = {}
    for name, pool in ablation.pools.items():
        if pool.recipe is not None:
            recipes[name] = disk.join(out, "recipes", f"{name}.json")
            known = scale if scale in reader.list_scales(pool.recipe) else None
            disk.write_json(recipes[name], reader.read_manifest(pool.recipe, Recipe, scale=known))
    places = {name: ablation.pool_folder(out, name) for name in ablation.pools}
    for name, path in recipes.items():
        yield (
            f"build {name}",
            command(
                "pipeline/build.py",
                path,
                "--out",
                places[name],
                "--engine",
                engine,
                "--until",
                "fetch",
            ),
        )
    if ablation.scorer:
        yield from _train_scorer(ablation, ablation.scorer, recipes, places, out, engine)
    scored = ablation.scorer.view.split("/")[0] if ablation.scorer else None
    for name, path in recipes.items():
        if name != scored:
            yield (
                f"score {name}",
                command("pipeline/score.py", places[name], "--recipe", path, "--engine", engine),
            )
            yield f"choose {name}", command("pipeline/filter.py", places[name], "--recipe", path)
    for like, view in random_views(ablation.arms, ablation.controls):
        seed = str(ablation.controls.random_seed)
        yield (
            f"choose {like}",
            command("pipeline/filter.py", places[like], "--random-like", view, "--seed", seed),
        )
    yield (
        "train and evaluate",
        command("train/ablate.py", resolved, "--out", out, "--engine", engine),
    )


def _train_scorer(
    ablation: Ablation,
    scorer: Scorer,
    recipes: Mapping[str, str],
    places: Mapping[str, str],
    out: str,
    engine: Engine,
) -> Iterator[tuple[str, list[str]]]:
    pool = scorer.view.partition("/")[0]
    if pool not in places:
        raise ValueError(
            f"scorer.view is {scorer.view!r}; it must be POOL/VIEW with a pool of {sorted(places)}"
        )
    if pool in recipes:
        yield (
            f"score {pool}",
            command(
                "pipeline/score.py", places[pool], "--recipe", recipes[pool], "--engine", engine
            ),
        )
        yield (
            f"choose {pool}",
            command("pipeline/filter.py", places[pool], "--recipe", recipes[pool]),
        )
    blend = disk.join(out, "blends", "scorer.json")
    disk.write_json(
        blend,
        Blend(
            name="scorer", pools={pool: places[pool]}, views={scorer.view: 1.0}, seed=scorer.seed
        ),
    )
    settings = {**ablation.train, **scorer.train, "seed": scorer.seed}
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    yield (
        "train scorer",
        command("train/run.py", blend, "--out", disk.join(out, "scorer"), *changes),
    )


def random_views(arms: Mapping[str, str], controls: Controls) -> list[tuple[str, str]]:
    """(pool, view) of each random control. ValueError where an arm is a blend, which has no one view to be like."""
    found = []
    for arm in controls.random_like:
        pool, _, view = arms[arm].partition("/")
        if arms[arm].endswith((".yaml", ".json")) or not view:
            raise ValueError(
                f"controls.random_like: arm {arm!r} is a blend; only an arm POOL/VIEW has a random control"
            )
        found.append((pool, view))
    return found


# --- what a demo or a debug run needs around it --------------------------------------------------------------------


def peek_miniweb(manifest: str, scale: str | None) -> Miniweb | None:
    """The miniweb block of a manifest, read before the variables of the rest can be set."""
    return reader.read_block(manifest, "miniweb", Miniweb, scale=scale)


@contextmanager
def one_ray(engine: Engine) -> Iterator[None]:
    """One Ray for all commands that run in the block, so that each joins it instead of starting its own."""
    if engine != "ray" or os.environ.get("RAY_ADDRESS"):
        yield
        return
    ray_runtime.connect()
    import ray

    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    try:
        yield
    finally:
        del os.environ["RAY_ADDRESS"]
        ray_runtime.disconnect()


@contextmanager
def surroundings(out: str, settings: Miniweb | None) -> Iterator[None]:
    """The small web of a demo, made and served while the block runs; ${MINIWEB} and ${MINIWEB_PORT} name it."""
    if settings is None:
        yield
        return
    web = disk.join(out, "web")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    before = {name: os.environ.get(name) for name in ("MINIWEB", "MINIWEB_PORT")}
    _export(MINIWEB=web, MINIWEB_PORT=str(port))
    options = [
        f"--{key.replace('_', '-')}={value}" for key, value in disk.to_plain(settings).items()
    ]
    run(command("pipeline/miniweb/small_web.py", "write", "--out", web, *options))
    print(f"\n$ python pipeline/miniweb/small_web.py serve --out {web} --port {port} &", flush=True)
    try:
        with small_web.running(web, port):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
