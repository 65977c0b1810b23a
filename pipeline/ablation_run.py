"""An ablation as the commands of its stages: its pools, its scorer, arms × seeds, the report.

Every stage is a command that a person could type; it is printed before it runs. Run again, each
command resumes.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO

from clipmill import ROOT
from clipmill.manifests import console, disk, ray_runtime, reader
from clipmill.manifests.layout import AblationLayout, random_view_name
from clipmill.manifests.ray_runtime import Engine, settled
from clipmill.manifests.schema import Ablation, Arm, Blend, Controls, Recipe, Scorer
from clipmill.pipeline import recipe_run

Command = list[str]
Child = subprocess.Popen[bytes]
NICE = 5  # of a command in the background: downloads have deadlines, it has none
LAST_LINES = 20  # of the log of a command that failed
LAST_S = 10.0  # for the output of a command that has ended
TRAIN_STAGE = "train and evaluate"
SCORER_STAGE = "train scorer"
FETCH_STAGE = "fetch "  # and the name of a pool: what is done while the scorer is trained


# --- commands: the words after `clipmill` -------------------------------------------------------


def shown(words: Sequence[str]) -> str:
    """A command as a person would type it."""
    return shlex.join(["clipmill", *words])


def run(words: Sequence[str]) -> None:
    """Print a command and run it from the checkout. CalledProcessError with its exit status where
    that is not 0.

    A stop signal is passed on once, and the command has the time that it needs to end; a second one
    kills it.
    """
    console.show("", f"$ {shown(words)}")
    wait(start(words), words)


def start(words: Sequence[str], output: IO[str] | int | None = None) -> Child:
    """Start a command from the checkout. With `output`, all that it prints goes there, at once."""
    return subprocess.Popen(
        console.program(words),
        env=console.child_variables(PYTHONPATH=ROOT, PYTHONUNBUFFERED="1"),
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        process_group=0,  # a Ctrl-C of the terminal reaches it through us, once
    )


def run_logged(words: Sequence[str], log: Path, tell: Callable[[str], None]) -> None:
    """Run a command as `run` does, with its output at the end of `log`; `tell` gets each line of it
    in another thread, the command first. Where it fails, the last lines are printed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    child = start(words, subprocess.PIPE)
    assert child.stdout is not None

    def copy(output: IO[bytes]) -> None:
        with open(log, "ab") as file, output:
            for line in chain([f"$ {shown(words)}\n".encode()], output):
                file.write(line)
                tell(line.decode(errors="replace").rstrip())

    thread = threading.Thread(target=copy, args=(child.stdout,), daemon=True)
    thread.start()
    try:
        wait(child, words)
    except subprocess.CalledProcessError:
        thread.join(LAST_S)
        _show_end(log)
        raise
    finally:
        thread.join(LAST_S)


def _show_end(log: Path) -> None:
    console.print_error(*log.read_text(errors="replace").splitlines()[-LAST_LINES:])


def wait(child: Child, words: Sequence[str]) -> None:
    """Wait for a command of `start`, as `run` does."""
    try:
        status = child.wait()
    except KeyboardInterrupt as interrupt:
        number = interrupt.number if isinstance(interrupt, console.Stopped) else signal.SIGINT
        _stop(child, number)
        raise
    if status:
        raise subprocess.CalledProcessError(status, list(words))


def _stop(child: Child, number: int) -> None:
    """Pass a signal on to a command that runs, and wait for it; a second signal kills it."""
    if child.poll() is None:
        os.killpg(child.pid, number)
        with console.on_stop_signal(lambda _: os.killpg(child.pid, signal.SIGKILL)):
            child.wait()


@contextmanager
def running_beside(words: Sequence[str], log: Path) -> Iterator[Callable[[], float]]:
    """Run a command while the block runs. Its output goes to `log`, so that it does not mix with
    that of the commands of the block.

    Yields the function that waits for its end and returns the seconds that it ran, to the last line
    of its log. It raises CalledProcessError, and prints the last lines of the log, where the
    command failed. Where the block is left before, the command is told to stop.
    """
    console.show("", f"$ {shown(words)} > {shlex.quote(str(log))} 2>&1 &")
    started = time.time()
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as output:
        child = start(words, output)
    with contextlib.suppress(ProcessLookupError):  # it may have ended
        os.setpriority(os.PRIO_PROCESS, child.pid, NICE)

    def join() -> float:
        console.show("", "$ wait")
        try:
            wait(child, words)
        except subprocess.CalledProcessError:
            _show_end(log)
            raise
        return log.stat().st_mtime - started

    try:
        yield join
    finally:
        _stop(child, signal.SIGTERM)


def export(**variables: str) -> None:
    """Set variables for the commands that follow, and print them."""
    os.environ.update(variables)
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    console.show("", f"$ export {settings}")


# --- the sequence -----------------------------------------------------------------------------


def ablate(
    manifest: str,
    out: str,
    *,
    engine: Engine,
    scale: str | None = None,
    scales: Sequence[str] = (),
    entry: Sequence[str] = ("build",),
    served: AbstractContextManager[object] | None = None,
    web: str = "",
) -> None:
    """Build what is missing, train the scorer if one is asked for, run the arms, first at smaller
    `scales`, and write the reports.

    `entry` is the command that a person called, with options of its own; it runs the null web, and
    the report names it. `served` is what makes the sources of this ablation in the folder `web` and
    serves them: it is entered after the checks, but for those of filters that read the folder.
    Without it a null web is read where this environment says too.

    ValueError for a person's mistake; subprocess.CalledProcessError where a command ended with an
    error of its own.
    """
    layout = AblationLayout(out)
    if reader.read_block(manifest, "scorer", Scorer, scale=scale):
        export(SCORER=disk.join(layout.scorer, "export"))
    at_scale = ["--scale", scale] if scale else ["--scales", *scales] if scales else []
    ablation = reader.read_manifest(manifest, Ablation, scale=scale)
    smaller = reader.read_scales(manifest, scales, out) if scales else {out: ablation}
    recipes = read_recipes(ablation, scale)
    scorer_export = disk.join(layout.scorer, "export")
    made = [web, scorer_export] if web else [scorer_export]
    check_ablation(ablation, recipes, made)
    if served is None and ablation.controls.null_web:
        check_null_web(ablation.controls.null_web, recipes)
    # Nothing is written into `out` before the checks; those of `clipmill ablate` read the
    # evaluation images, which `served` may make.
    with served or contextlib.nullcontext():
        for recipe in recipes.values() if web else ():
            recipe_run.check_recipe(recipe, made=[scorer_export])
        check = ["ablate", "check", manifest, "--out", out, "--engine", engine]
        run([*check, *at_scale])
        disk.write_json(layout.ablation_json, ablation)
        for name, recipe in recipes.items():
            disk.write_json(layout.recipe_json(name), recipe)
        again = shown([*entry, manifest, "--out", out, *at_scale])
        disk.write_json(layout.command_json, again)
        stages = commands(ablation, sorted(recipes), out, engine)
        if scales:  # one command trains and evaluates at all scales, on the same pools
            seeds = tuple(sorted({seed for each in smaller.values() for seed in each.seeds}))
            every = replace(ablation, seeds=seeds, part=None)
            *before, (name, _) = commands(every, sorted(recipes), out, engine)
            before += [each for one in smaller.values() for each in part_commands(one, out)]
            train = ["ablate", manifest, "--out", out, "--engine", engine, *at_scale]
            stages = iter([*before, (name, train)])
        with one_ray(engine):
            _run_stages(stages, out)
            if ablation.controls.null_web:
                null = [entry[0], ablation.controls.null_web, "--out", layout.null]
                run([*null, "--engine", engine])
    for folder in smaller:
        run(["report", folder])


def _run_stages(stages: Iterator[tuple[str, Command]], out: str) -> None:
    """Run the commands of an ablation in order, and write what each costs, in seconds.

    The scorer is trained on about one core while other pools are fetched, mostly on another.
    """
    costs: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        join: Callable[[], float] | None = None
        for name, words in stages:
            started = time.monotonic()
            if name == SCORER_STAGE and not disk.is_url(out):
                log = disk.local_path(out) / "logs" / "scorer.log"
                join = stack.enter_context(running_beside(words, log))
                continue
            if join is not None and not name.startswith(FETCH_STAGE):
                costs[SCORER_STAGE] = round(join(), 2)
                join = None
                started = time.monotonic()
            try:
                run(words)
            except subprocess.CalledProcessError as error:
                # The report shows the finished runs, names the others and ends with this status.
                if name != TRAIN_STAGE or error.returncode != console.EXIT_INCOMPLETE:
                    raise
            stage = name.replace(FETCH_STAGE, "build ")
            costs[stage] = round(costs.get(stage, 0.0) + time.monotonic() - started, 2)
            disk.write_json(AblationLayout(out).costs_json, costs)


def read_recipes(ablation: Ablation, scale: str | None) -> dict[str, Recipe]:
    """The recipes of the pools that are built, by pool. A recipe that knows the scale is read at
    it.
    """
    recipes = {}
    for name, pool in ablation.pools.items():
        if pool.recipe is not None:
            known = scale if scale in reader.list_scales(pool.recipe) else None
            recipes[name] = reader.read_manifest(pool.recipe, Recipe, scale=known)
    return recipes


def check_ablation(ablation: Ablation, recipes: Mapping[str, Recipe], made: Sequence[str]) -> None:
    """ValueError for what the recipes tell before a pool is built: views of arms, settings,
    filters, weights.

    Filters that read one of the folders `made`, such as that of the scorer, which is trained in
    between, are checked by the build that uses them.
    """
    views = {}
    for name, arm in ablation.arms.items():
        if arm.view is not None:
            views[f"arm {name!r}"] = arm.view
    if ablation.scorer:
        views["scorer.view"] = ablation.scorer.view
    for user, pool_view in views.items():
        pool, _, view = pool_view.partition("/")
        if pool not in ablation.pools or not view:
            raise ValueError(
                f"{user} is {pool_view!r}; "
                f"it must be POOL/VIEW with a pool of {sorted(ablation.pools)}"
            )
        if pool in recipes:
            try:
                recipes[pool].view(view)
            except ValueError as error:
                raise ValueError(f"{user} is {pool_view!r}: {error}") from None
    random_views(ablation.arms, ablation.controls)
    for recipe in recipes.values():
        recipe_run.check_recipe(recipe, made=made)


def check_null_web(manifest: str, recipes: Mapping[str, Recipe]) -> None:
    """ValueError where the null web is read from a source of the ablation itself: a web that is
    served for both shows the same effect twice.
    """
    null = reader.read_manifest(manifest, Ablation)
    sources = [recipe.source for recipe in recipes.values()]
    for name, recipe in read_recipes(null, None).items():
        if recipe.source in sources:
            raise ValueError(
                f"controls.null_web: {manifest} builds its pool {name!r} from a source of this "
                f"ablation ({', '.join(recipe.source.paths)}); it needs data of its own, "
                "as `clipmill demo` makes them"
            )


def commands(
    ablation: Ablation, built: Sequence[str], out: str, engine: Engine
) -> Iterator[tuple[str, Command]]:
    """(stage, command) in order. Recipes are given as the resolved JSON in `out`: the same web, the
    same scorer. The pools that the scorer may judge are fetched while it is trained.
    """
    layout = AblationLayout(out)
    folders = {name: ablation.pool_folder(out, name) for name in ablation.pools}

    def build(pool: str, *until: str) -> tuple[str, Command]:
        words = ["build", layout.recipe_json(pool), "--out", folders[pool]]
        stage = f"{FETCH_STAGE}{pool}" if until else f"build {pool}"
        return stage, [*words, "--engine", engine, *until]

    trusted = ablation.scorer.view.partition("/")[0] if ablation.scorer else None
    if ablation.scorer and trusted:
        if trusted in built:
            yield build(trusted)
        yield SCORER_STAGE, _train_scorer(ablation, ablation.scorer, folders[trusted], layout)
        for pool in built:
            if pool != trusted:
                yield build(pool, "--until", "fetch")
    for pool in built:
        if pool != trusted:
            yield build(pool)
    for pool, view in random_views(ablation.arms, ablation.controls):
        words = ["filter", "random-like", folders[pool], view, "--seed"]
        words += [str(ablation.random_draw(seed)) for seed in ablation.seeds]
        yield f"choose {pool}", words
    yield from part_commands(ablation, out)
    yield TRAIN_STAGE, ["ablate", layout.ablation_json, "--out", out, "--engine", engine]


def part_commands(ablation: Ablation, out: str) -> Iterator[tuple[str, Command]]:
    """(stage, command) that make the parts of the views that arms and controls are trained on."""
    if ablation.part is None:
        return
    draws = [ablation.random_draw(seed) for seed in ablation.seeds]
    pools = {name: ablation.pool_folder(out, name) for name in ablation.pools}
    views: dict[str, dict[str, None]] = {}  # of each folder
    for arm in ablation.arms.values():
        blend = reader.read_manifest(arm.blend, Blend) if arm.blend is not None else None
        folders = pools if blend is None else blend.pools
        for name in blend.views if blend is not None else arm.view_weights:
            pool, _, view = name.partition("/")
            views.setdefault(folders[pool], {})[view] = None
    of_draws = [(folder, list(names), draws) for folder, names in views.items()]
    for pool, view in random_views(ablation.arms, ablation.controls):
        for draw in draws:
            of_draws.append((pools[pool], [random_view_name(view, draw)], [draw]))
    for folder, names, seeds in of_draws:
        words = ["filter", "part", folder, *names, "--share", f"{ablation.part:g}", "--seed"]
        yield "choose parts", [*words, *map(str, seeds)]


def _train_scorer(
    ablation: Ablation, scorer: Scorer, folder: str, layout: AblationLayout
) -> Command:
    pool = scorer.view.partition("/")[0]
    blend = Blend(name="scorer", pools={pool: folder}, views={scorer.view: 1.0}, seed=scorer.seed)
    disk.write_json(layout.blend_json("scorer"), blend.document())
    words = ["train", layout.blend_json("scorer"), "--out", layout.scorer]
    for key, value in {**ablation.train, **scorer.train, "seed": scorer.seed}.items():
        words += ["--set", f"{key}={value}"]
    return words


def random_views(arms: Mapping[str, Arm], controls: Controls) -> list[tuple[str, str]]:
    """(pool, view) of each random control. ValueError where an arm is a blend, which has no one
    view to be like.
    """
    views = []
    for name in controls.random_like:
        pool, view = arms[name].split_view()
        if not view:
            raise ValueError(
                f"controls.random_like: arm {name!r} is a blend; "
                "only an arm POOL/VIEW has a random control"
            )
        views.append((pool, view))
    return views


@contextmanager
def one_ray(engine: Engine) -> Iterator[None]:
    """One Ray for all commands that run in the block, so that each joins it instead of starting its
    own.
    """
    if settled(engine) != "ray" or os.environ.get("RAY_ADDRESS"):
        yield
        return
    ray_runtime.connect()
    import ray

    address = ray.get_runtime_context().gcs_address
    os.environ |= {"RAY_ADDRESS": address, ray_runtime.ONE_MACHINE: address}
    try:
        yield
    finally:
        del os.environ["RAY_ADDRESS"], os.environ[ray_runtime.ONE_MACHINE]
        ray_runtime.disconnect()
