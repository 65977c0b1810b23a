"""`clipmill build` and `clipmill demo`: a pool from a recipe, or a whole ablation."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from clipmill.commands.app import (
    MORE,
    Engine,
    Json,
    Scale,
    Scales,
    Words,
    make_app,
    print_json,
    print_result,
    root_app,
)
from clipmill.library import builds
from clipmill.manifests import console, disk, reader
from clipmill.manifests.layout import AblationLayout
from clipmill.manifests.records import DriftDocument
from clipmill.manifests.schema import Recipe
from clipmill.pipeline import ablation_run, recipe_run
from clipmill.pipeline.lock.rebuild import drift_lines

DEMO_MANIFEST = "manifests/ablations/demo.yaml"
RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray in the entry of a job, and nowhere else
WEB = "MINIWEB"  # and what begins with it: variables that `clipmill demo` sets
HIDDEN = Parameter(parse=False)
STATUSES = {
    0: "the stages are finished and every planned shard is committed; rows that failed are "
    "outcomes too",
    console.EXIT_INCOMPLETE: "a task ended without an outcome, a planned shard is missing, or "
    "a count is wrong; the last line says why first",
}
Until = Literal["crawl", "plan", "fetch", "score", "choose"]
BUILD = make_app(
    "build",
    """
  clipmill build manifests/ablations/own_shards.yaml
  clipmill build manifests/recipes/datacomp_small.yaml \\
      --out /data/datacomp --until fetch
  clipmill build --from-lock their.lock.parquet --out /data/theirs \\
      --set user_agent='mylab (crawler@mylab.example)'
  ray job submit --working-dir . -- \\
      python pipeline/build.py manifests/recipes/laion_like.yaml \\
          --out /data/pool
""",
    STATUSES,
)
DEMO = make_app(
    "demo",
    """
  clipmill demo
  clipmill demo manifests/ablations/datacomp_small.yaml --scale debug
  clipmill demo my_ablation.yaml --web my_web.yaml --out out/mine
""",
    STATUSES,
)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of building a manifest, whichever command is called."""

    out: Annotated[
        str | None, Parameter(help="Where to build (default: $CLIPMILL_OUT/NAME, else out/NAME).")
    ] = None
    until: Annotated[Until, Parameter(help="The last stage of a recipe.")] = "choose"
    retry: Annotated[
        Literal["transient"] | None,
        Parameter(help="Ask again for rows that ended with such a reason.", group=MORE),
    ] = None
    scale: Scale = None
    scales: Scales = None
    engine: Engine = "auto"
    as_json: Json = False
    manifest: Annotated[str, HIDDEN] = ""
    entry: Annotated[tuple[str, ...], HIDDEN] = ("build",)  # as a person called it
    lock: Annotated[str | None, HIDDEN] = None
    fetch: Annotated[tuple[str, ...], HIDDEN] = ()  # KEY=VALUE, with `lock`

    @property
    def folder(self) -> str:
        """The folder or URL that the manifest or the lock is built into."""
        name = Path(self.manifest).stem
        if self.lock:  # not the name of the recipe, which another lab has written
            name = Path(self.lock).name.partition(".")[0] or "lock"
        return disk.output_folder(
            self.out or disk.join(os.environ.get("CLIPMILL_OUT", "out"), name)
        )

    def command(self, out: str | None) -> str:
        """The command that goes on with this pool to the last stage."""
        words = [*self.entry, *(["--from-lock", self.lock] if self.lock else [self.manifest])]
        words += ["--out", out] if out else []
        words += ["--scale", self.scale] if self.scale else []
        words += ["--scales", *self.scales] if self.scales else []
        words += ["--engine", self.engine] if self.engine != "auto" else []
        words += ["--set", *self.fetch] if self.fetch else []
        return shlex.join(["clipmill", *words])


DEFAULTS = Options()


@BUILD.default
def build(
    manifest: str | None = None,
    /,
    *,
    options: Options = DEFAULTS,
    from_lock: Annotated[str | None, Parameter(group=MORE)] = None,
    changes: Annotated[list[str], Parameter("--set", group=MORE), Words] = [],  # noqa: B006
) -> int:
    """Build a pool from a recipe, or run a whole ablation: pools, scorer, arms × seeds, report. Run
    again, it goes on where it stopped.

    A recipe is code: with fetch.engine img2dataset it names the program that is run.

    Args:
        manifest: A recipe or an ablation (default: $CLIPMILL_RECIPE; in a Ray job, else the demo).
        from_lock: Build the pool of a lock again (see `clipmill audit lock`) instead of a recipe's.
        changes: With --from-lock: keys of `fetch` that are yours, such as user_agent=… per_host=2.
    """
    if not manifest and not from_lock:
        manifest = os.environ.get("CLIPMILL_RECIPE") or None
    options = dataclasses.replace(
        options, manifest=manifest or "", lock=from_lock, fetch=tuple(changes)
    )
    if from_lock:
        return build_lock(options)
    if changes:
        raise ValueError("--set belongs to --from-lock; a recipe has its settings in `fetch`")
    if manifest is None and RAY_JOB in os.environ:
        return demo(options=options)
    if manifest is None:  # the demo would take ten minutes and write here
        root_app("build").help_print(["build"], console=Console(stderr=True))
        raise ValueError("name a recipe or an ablation; the demo is `clipmill demo`")
    try:
        return build_manifest(options)
    except reader.UnsetVariableError as error:
        if not error.name.startswith(WEB):
            raise
        words = dataclasses.replace(options, entry=("demo",)).command(options.out)
        raise ValueError(f"{error}; this starts the small web and sets it: {words}") from None


@DEMO.default
def demo(
    manifest: str | None = None, /, *, web: str | None = None, options: Options = DEFAULTS
) -> int:
    """Run an ablation or a recipe on a small web, which is made in OUT/web and served on loopback
    meanwhile. The manifest finds it by ${MINIWEB}, its folder, and ${MINIWEB_PORT}.

    Args:
        manifest: An ablation or a recipe (default: manifests/ablations/demo.yaml).
        web: The settings of the web (default: those that are shipped for the manifest's name).
    """
    # The one place where the product imports an example.
    from clipmill.examples.miniweb.run import served, variables
    from clipmill.examples.miniweb.settings import read_web, web_of

    if manifest is None:
        manifest = str(reader.shipped(DEMO_MANIFEST))
    entry = ("demo", "--web", web) if web else ("demo",)
    options = dataclasses.replace(options, manifest=manifest, entry=entry)
    reader.manifest_kind(manifest)
    settings = read_web(web or web_of(manifest), options.scale)
    folder = disk.join(options.folder, "web")
    with variables(folder) as port:
        return build_manifest(options, served(folder, settings, port), folder)


def build_manifest(
    options: Options, served: AbstractContextManager[object] | None = None, web: str = ""
) -> int:
    """Build a recipe or run an ablation; the exit status. `served` makes its sources in the folder
    `web` and serves them; it is entered after the checks.
    """
    reader.check_scales(options.scale, options.scales)
    if reader.manifest_kind(options.manifest) is Recipe:
        if options.scales:
            raise ValueError("--scales are of an ablation; of a recipe, give one --scale")
        return build_recipe(options, served, web)
    if options.until != recipe_run.STAGES[-1] or options.retry:
        raise ValueError("--until and --retry are for a recipe; an ablation runs all of its stages")
    return build_ablation(options, served, web)


def build_ablation(
    options: Options, served: AbstractContextManager[object] | None = None, web: str = ""
) -> int:
    """Run the commands of an ablation. Where one fails, its own error is the last line."""
    out = options.folder
    try:
        ablation_run.ablate(
            options.manifest,
            out,
            engine=options.engine,
            scale=options.scale,
            scales=tuple(options.scales or ()),
            entry=options.entry,
            served=served,
            web=web,
        )
    except subprocess.CalledProcessError as error:
        return ended_with(error)
    layout = AblationLayout(out)
    results = disk.read_json(layout.results_json)
    return print_result([f"the report is {layout.report}"], results, options.as_json)


def ended_with(error: subprocess.CalledProcessError) -> int:
    """The exit status where a command of `ablation_run.run` failed, which said why itself."""
    if error.returncode > 0:
        return error.returncode
    name, words = console.signal_name(-error.returncode), ablation_run.shown(error.cmd)
    console.print_error("", f"{words} was ended by {name}: run the command again to resume")
    return 128 - error.returncode


def build_lock(options: Options) -> int:
    """Build the pool of a lock again; the exit status."""
    if options.manifest or options.scale:
        raise ValueError("--from-lock takes the place of a manifest; leave one of them out")
    return print_end(options, builds.build_pool(
        from_lock=options.lock, fetch=dict(console.key_values(options.fetch)), out=options.folder,
        until=options.until, retry=options.retry, engine=options.engine
    ))  # fmt: skip


def build_recipe(options: Options, served: AbstractContextManager[object] | None, web: str) -> int:
    """Run the stages of a recipe; the exit status."""
    if served is not None:
        recipe = reader.read_manifest(options.manifest, Recipe, scale=options.scale)
        recipe_run.check_recipe(recipe, options.until, options.retry, made=[web])
    with served or nullcontext():
        built = builds.build_pool(
            options.manifest, out=options.folder, until=options.until, retry=options.retry,
            scale=options.scale, engine=options.engine
        )  # fmt: skip
    return print_end(options, built)


# --- how a build ended ----------------------------------------------------------------------------


def print_end(options: Options, built: builds.Built) -> int:
    """Print how a build ended; the exit status."""
    print_json(built.totals, options.as_json)
    if not (options.as_json or built.causes):
        console.show(*summary(built.recipe, options, built.totals))
    for cause in reversed(built.causes):
        console.print_error(f"error: {cause}")
    return console.EXIT_INCOMPLETE if built.causes else 0


def summary(recipe: Recipe, options: Options, totals: dict[str, Any]) -> list[str]:
    """The last lines of a build: the pool, what it holds, the next command."""
    out = disk.shown_path(options.folder)
    folder = shlex.quote(out)
    state = "" if totals["changed"] else " (it was complete already; nothing was done)"
    lines = [f"the pool is {out}{state}"]
    crawl = totals.get("crawl") or {}
    if damaged := crawl.get("damaged_records"):
        lines.append(f"  {damaged:,} damaged records of the source are left out")
    if options.until in ("crawl", "plan"):
        if crawl:
            lines.append(f"  {crawl['pairs']:,} of {crawl['links']:,} links are pairs")
    else:
        final = totals["fetch"]["final"]
        rows = final["stored"] + sum(final["reasons"].values())
        lines.append(f"  {final['stored']:,} of {rows:,} rows are stored")
        if strays := totals["fetch"].get("strays"):
            lines.append(f"  {strays:,} members of its tars are no part of a sample")
    if "drift" in totals:
        drift = disk.from_plain(DriftDocument, totals["drift"])
        lines += drift_lines(drift)
    if options.until != recipe_run.STAGES[-1]:
        return [*lines, f"next: {options.command(out)}"]
    kept = {name: view["kept"] for name, view in totals["views"].items()}
    counts = ", ".join(f"{name} {rows:,}" for name, rows in kept.items())
    lines.append(f"  rows of its views: {counts or 'none'}")
    view = recipe.views[-1].name if recipe.views else next(iter(kept), "VIEW")
    scored = {name.partition("@")[0] for name in totals["scores"]}
    kinds = {"tokens": "tokens", **{spec.name: spec.kind or spec.name for spec in recipe.filters}}
    if not any(kinds.get(name) == "tokens" for name in scored):
        following = f"next: clipmill score {folder} --filters tokens (training needs it)"
    elif kept and max(kept.values()) < (batch := _batch_of_micro()):
        following = f"next: more rows; a batch of the preset micro takes {batch} of a view"
    else:
        if kept and kept[view] < batch:  # the last view of a recipe is often its smallest
            view = max(kept, key=kept.__getitem__)
        following = f"next: clipmill train --mix {folder}/{view}=1 --out out/run --preset micro"
    return [*lines, following, f"or:   clipmill look {folder}, clipmill audit verify {folder}"]


def _batch_of_micro() -> int:
    """Rows of a batch of the preset micro."""
    from clipmill.train.config import micro  # a build starts without the trainer's settings

    return micro().batch_size
