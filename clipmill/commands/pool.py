"""`clipmill score`, `filter`, `export` and `look`: what is done with a pool that is there.

What a command needs is imported when it runs: a help that is read, or a view that is there already,
costs less than the imports of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.validators import MutuallyExclusive

from clipmill.commands.app import (
    MORE,
    Engine,
    Json,
    Scale,
    Whole,
    Words,
    make_app,
    print_json,
    print_result,
    wholes,
)
from clipmill.manifests import console

if TYPE_CHECKING:
    from clipmill.manifests.records import ViewDocument
    from clipmill.pipeline.pool.lease import PoolWriter

WAIT_S = 60.0  # for another command that writes into the pool
PAGE = "pool.html"
# Rows above which the page is served by default. At a million rows it takes 8 s of CPU and 0.9 GiB
# (docs/look.md), twice as much here; beyond that a file's 400 images say little.
FILE_ROWS = 2_000_000
MOST_IMAGES = 5_000

# --- score ----------------------------------------------------------------------------------------

SCORE = make_app(
    "score",
    """
  clipmill score out/pool --recipe manifests/recipes/laion_like.yaml
  clipmill score out/pool --recipe recipe.yaml --filters clip_l14 \\
      --set clip_l14.batch_size=64
  clipmill score out/pool --filters caption language
  clipmill score out/pool --filters clip_score \\
      --set clip_score.model=ViT-B-32 clip_score.pretrained=laion2b_s34b_b79k
""",
    {
        0: "all shards are scored",
        console.EXIT_INCOMPLETE: "a shard could not be scored; run it again",
    },
)


@SCORE.default
def score(
    pool: str,
    /,
    *,
    recipe: str | None = None,
    filters: Annotated[list[str], Words] = [],  # noqa: B006  # read only
    changes: Annotated[list[str], Parameter("--set"), Words] = [],  # noqa: B006
    engine: Engine = "auto",
    scale: Scale = None,
    as_json: Json = False,
) -> int:
    """Score the rows of a pool: every filter adds columns, none drops a row. What is scored already
    is left as it is.

    Args:
        pool: The folder or URL of a pool.
        recipe: Its filters, with their options.
        filters: Only these, by the names that the recipe gives them (default: all of the recipe).
        changes: Change options of filters: NAME.OPTION=VALUE.
    """
    from clipmill.manifests import disk, reader
    from clipmill.manifests.schema import Recipe
    from clipmill.pipeline.pool.lease import hold_lease
    from clipmill.pipeline.progress.view import shown_progress
    from clipmill.pipeline.scoring import scorer
    from clipmill.pipeline.scoring.score_sets import filter_specs

    pool = disk.absolute_path(pool)
    if scale and not recipe:
        raise ValueError("--scale picks a block of a recipe; name the recipe with --recipe")
    read = None
    if recipe:
        read = reader.read_manifest(recipe, Recipe, scale=scale)
        reader.refuse_other_source(pool, read)
    specs = filter_specs(read, filters, reader.yaml_values(changes))
    with hold_lease(pool) as out, shown_progress(pool):
        report = scorer.score(out, specs, engine=engine, recipe=read)
    for name, state in report["sets"].items():
        if state and not as_json:
            counts = f"{state['scored']} of {state['stored']} stored rows"
            console.show(f"{name}: {counts} scored in {state['seconds']:.1f} s")
    for shard, reason in report["failed"].items():
        what = f"shard {shard} was not scored" if shard.isdigit() else f"{shard} failed"
        console.print_error(f"error: {what}: {reason}")
    print_json(report, as_json)
    return console.EXIT_INCOMPLETE if report["failed"] else 0


# --- filter ---------------------------------------------------------------------------------------

FILTER_STATUSES = {0: "the views are made, the columns listed or a hash printed"}
FILTER = make_app(
    "filter",
    """
  clipmill filter out/pool --recipe manifests/recipes/laion_like.yaml
  clipmill filter out/pool --recipe manifests/recipes/laion_like.yaml \\
      --views basic clip30
  clipmill filter random-like out/pool clip30 --seed 0 1 2
  clipmill filter part out/pool clip30 raw --share 0.0625 --seed 0 1 2
  clipmill filter freeze out/pool clip30 clip30_june
  clipmill filter columns out/pool
  clipmill filter hash out/pool clip30
""",
    FILTER_STATUSES,
)


@FILTER.default
def choose(
    pool: str,
    /,
    *,
    recipe: str,
    only: Annotated[list[str] | None, Parameter("--views"), Words] = None,
    hashed: Annotated[bool, Parameter("--hash")] = False,
    scale: Scale = None,
    as_json: Json = False,
) -> int:
    """Make the views of a recipe from a pool's columns: a mask per row, no copy of a picture.
    Prints how many rows each rule leaves.

    Args:
        pool: The folder or URL of a pool that is scored.
        recipe: Its views.
        only: Only these views of the recipe.
        hashed: Print and keep the hash of the rows of each view, as a build does.
    """
    from clipmill.manifests import reader
    from clipmill.manifests.schema import Recipe
    from clipmill.pipeline.views import files

    read = reader.read_manifest(recipe, Recipe, scale=scale)
    reader.refuse_other_source(pool, read)

    def make(out: PoolWriter) -> dict[str, ViewDocument]:
        documents = files.choose_views(out, read, only)
        return files.add_hashes(out, documents) if hashed else documents

    return _views(pool, make, as_json)


def _views(pool: str, make: Callable[[PoolWriter], dict[str, ViewDocument]], as_json: bool) -> int:
    """Make views under the lease of their pool, and print what they keep."""
    from clipmill.pipeline.pool.lease import hold_lease
    from clipmill.pipeline.progress.view import shown_progress
    from clipmill.pipeline.views.files import funnel_lines

    with hold_lease(pool, WAIT_S) as out, shown_progress(pool):
        documents = make(out)
    return print_result(funnel_lines(documents), documents, as_json)


@FILTER.command
def random_like(
    pool: str,
    view: str,
    /,
    *,
    seed: Annotated[list[int] | None, Words, Parameter(converter=wholes)] = None,
    as_json: Json = False,
) -> int:
    """Make random_like_VIEW: a random subset as large as VIEW.

    Args:
        pool: The folder or URL of a pool.
        view: The view.
        seed: One random_like_VIEW.seed-N each (default: random_like_VIEW, drawn with seed 0).
    """
    from clipmill.pipeline.views import files

    return _views(pool, lambda out: files.random_like(out, view, seed), as_json)


@FILTER.command
def part(
    pool: str,
    /,
    *views: str,
    share: float,
    seed: Annotated[list[int] | None, Words, Parameter(converter=wholes)] = None,
    as_json: Json = False,
) -> int:
    """Make VIEW.part-SHARE.seed-N: a random part of each view, for a smaller run of an ablation.

    Args:
        pool: The folder or URL of a pool.
        views: The views.
        share: Of the rows of each, between 0 and 1. With the same seed views share as many rows.
        seed: One part each (default: 0).
    """
    from clipmill.pipeline.views import files

    seeds = seed or [0]
    return _views(pool, lambda out: files.parts_of_views(out, views, share, seeds), as_json)


@FILTER.command
def freeze(pool: str, view: str, name: str, /, *, as_json: Json = False) -> int:
    """Make a view of the rows that VIEW keeps now. It stays as it is when the pool grows: a run on
    it can be resumed.

    Args:
        pool: The folder or URL of a pool.
        view: The view.
        name: The name of the new one.
    """
    from clipmill.pipeline.views import files

    return _views(pool, lambda out: files.freeze(out, view, name), as_json)


@FILTER.command
def columns(pool: str, /, *, as_json: Json = False) -> int:
    """List the columns that a rule may read.

    Args:
        pool: The folder or URL of a pool.
    """
    from clipmill.pipeline.views.files import column_lines, list_columns

    listed = list_columns(pool)
    return print_result(column_lines(listed), listed, as_json)


@FILTER.command(name="hash")
def hash_of(pool: str, view: str, /, *, as_json: Json = False) -> int:
    """Print the hash of the rows that a view keeps. Who has the same pairs with the same bytes has
    the same hash, whatever the shards, the machines and the rules.

    Args:
        pool: The folder or URL of a pool.
        view: The view.
    """
    from clipmill.pipeline.views.files import hash_view

    rows_sha256 = hash_view(pool, view)
    return print_result([rows_sha256], {"view": view, "rows_sha256": rows_sha256}, as_json)


# --- export ---------------------------------------------------------------------------------------

EXPORT = make_app(
    "export",
    """
  clipmill export out/pool clip30 --to out/clip30/clip30.parquet
  clipmill export out/pool clip30 --to s3://bucket/clip30
""",
    {0: "the export is written"},
)


@EXPORT.default
def export(
    pool: str,
    view: str,
    /,
    *,
    to: str,
    uid_column: Annotated[str, Parameter(group=MORE)] = "uid",
    as_json: Json = False,
) -> int:
    """Write the kept rows of a view for other programs, with a dataset card.

    Args:
        pool: The folder or URL of a pool.
        view: The view.
        to: A .parquet (sidecar and score columns), a .csv (URLs and captions), a .npy (uids as in a
            DataComp subset), or a folder (WebDataset shards); a path or a URL.
        uid_column: Of a .npy: the column whose uids are written.
    """
    from clipmill.pipeline.export import export_line, export_view

    written = export_view(pool, view, to, uid_column)
    return print_result([export_line(written)], written, as_json)


# --- look -----------------------------------------------------------------------------------------

LOOK = make_app(
    "look",
    """
  clipmill look out/pool
  clipmill look out/pool --view basic --out basic.html
  clipmill look out/pool --serve --port 8080
""",
    {0: "the page is written"},
)
WHERE = Group("Where", validator=MutuallyExclusive(), sort_key=2)


@LOOK.default
def look(
    pool: str,
    /,
    *,
    view: str | None = None,
    out: Annotated[str | None, Parameter(group=WHERE)] = None,
    serve: Annotated[bool, Parameter(group=WHERE)] = False,
    port: Annotated[int | None, Whole, Parameter(group=MORE)] = None,
    images: Annotated[int, Whole, Parameter(group=MORE)] = 400,
    megabytes: Annotated[float, Parameter(group=MORE)] = 6.0,
    as_json: Json = False,
) -> int:
    """A pool as a page to look at: what became of its links, what each rule of each view does, a
    threshold to move over any column of numbers, and the images. One HTML file, or a small server.

    Args:
        pool: The folder or URL of a pool; it may be under construction.
        view: Only this view (default: all).
        out: Write one file that opens from disk (default: pool.html for a pool of at most 2,000,000
            rows).
        serve: Answer on 127.0.0.1 until Ctrl-C. The page then has all images and searches all
            captions.
        port: Serve at this port (default: a free one).
        images: Images of the file, of at most 96 pixels; at most 5,000.
        megabytes: Of all images of the file together.
    """
    from clipmill.manifests import disk
    from clipmill.manifests.web_page import MARK, pages_beside
    from clipmill.pipeline.look.page import Bounds, page_data, render
    from clipmill.pipeline.look.survey import survey_pool

    if not 0 <= images <= MOST_IMAGES:
        raise ValueError(f"--images is {images}; it must lie in 0..{MOST_IMAGES}")
    if not 0 <= megabytes <= 1000:
        raise ValueError(f"--megabytes is {megabytes:g}; it must lie in 0..1000")
    if port is not None and not 0 <= port <= 65_535:
        raise ValueError(f"--port is {port}; a port lies in 0..65535")
    serve = serve or port is not None
    if out is not None and not out.lower().endswith((".html", ".htm")):
        raise ValueError(f"--out is {out!r}; the page is HTML, and its name ends in .html")
    if not serve:
        disk.check_replaceable(out or PAGE, MARK.encode(), "--out")
    survey = survey_pool(pool, view)
    is_large = survey.counts.fetch.attempted > FILE_ROWS
    if serve or (out is None and is_large):
        return _serve(survey, port or 0, as_json)
    bounds = Bounds(images=images, image_bytes=int(megabytes * 2**20))
    path = out or PAGE
    page = render(survey, page_data(survey, bounds), pages_beside(path)).encode()
    disk.write_bytes(path, page)  # whole or not at all, into a folder that may not be there yet
    text = f"{path}: {len(page) / 1e6:.3g} MB; open it in a browser"
    return print_result([text], {"file": path, "bytes": len(page)}, as_json)


def _serve(survey: Any, port: int, as_json: bool) -> int:
    """Answer until the process is stopped."""
    from clipmill.pipeline.look.page import page_data, render
    from clipmill.pipeline.look.server import Answers, make_server

    answers = Answers(survey)
    data = page_data(survey, similar=answers.alike is not None)
    with make_server(answers, render(survey, data), port) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        print_result([f"{url} shows the pool until Ctrl-C"], {"url": url}, as_json)
        server.serve_forever()
    return 0
