"""`clipmill audit`: what became of every row of a pool, and what is done about it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

from cyclopts import Parameter

from clipmill.commands.app import Engine, Json, Whole, Words, make_app, print_json
from clipmill.manifests import console, disk
from clipmill.pipeline.audit import repair as repair_module
from clipmill.pipeline.audit.consent import (
    Consent,
    Refresh,
    consent_lines,
    read_consent,
    refresh_consent,
)
from clipmill.pipeline.audit.explain import explain_lines, explain_row, trace_images, trace_lines
from clipmill.pipeline.audit.integrity import audit_lines, audit_plain, audit_pool
from clipmill.pipeline.audit.purge import purge_lines, purge_rows, read_criteria
from clipmill.pipeline.audit.repair import repair_lines, repair_pool
from clipmill.pipeline.audit.watch import watch_pool, watched_lines
from clipmill.pipeline.lock.lock_writer import lock_lines, write_lock
from clipmill.pipeline.lock.rebuild import same_rows_lines, write_same_rows
from clipmill.pipeline.pool.lease import PoolWriter, hold_lease
from clipmill.pipeline.progress.view import shown_progress

AUDIT = make_app(
    "audit",
    """
  clipmill audit out/pool
  clipmill audit verify out/pool --json
  clipmill audit explain out/pool 0123456789abcdef0123456789abcdef
  clipmill audit explain out/pool https://host.example/dog.jpg
  clipmill audit consent out/pool --out consent.parquet
  clipmill audit consent out/pool --refresh --dry-run
  clipmill audit trace out/pool 1000
  clipmill audit repair out/pool
  clipmill audit purge out/pool domain=host.example --used-by out/runs
  clipmill audit watch out/pool
  clipmill audit lock out/pool pool.lock.parquet
  clipmill audit same-rows out/pool our.lock.parquet their.lock.parquet \\
      --view basic
""",
    {
        0: "the pool is complete and nothing is wrong, the row is explained, the index, the lock "
        "or the view is made, the rows are gone, or the command that was watched has ended",
        console.EXIT_INCOMPLETE: "the pool is not complete, a count or a file is wrong, or the "
        "command that was watched failed",
    },
)
Pool = Annotated[str, Parameter(help="The folder or URL of a pool.")]


@AUDIT.default
def counts(pool: Pool, /, *, as_json: Json = False) -> int:
    """Tell what became of every row of a pool: counts of each stage, and what is wrong."""
    return _audit(pool, as_json, verify_files=False, engine="inline")


@AUDIT.command
def verify(pool: Pool, /, *, engine: Engine = "inline", as_json: Json = False) -> int:
    """Read every file too: hashes, offsets of members, alignment of scores and views."""
    return _audit(pool, as_json, verify_files=True, engine=engine)


def _audit(pool: str, as_json: bool, *, verify_files: bool, engine: Engine) -> int:
    result = audit_pool(pool, verify_files=verify_files, engine=engine)
    console.show(*audit_lines(result))
    print_json(audit_plain(result), as_json)
    return 0 if result.is_fine else console.EXIT_INCOMPLETE


@AUDIT.command
def explain(pool: Pool, row: str, /, *, as_json: Json = False) -> int:
    """The history of one row.

    Args:
        row: Its uid, URL, file name or tar key.
    """
    if not row.strip():
        raise ValueError("ROW is empty; give a uid, a URL, a file name or a tar key")
    history = explain_row(pool, row)
    console.show(*explain_lines(history))
    print_json(history, as_json)
    return 0


@AUDIT.command
def consent(
    pool: Pool,
    /,
    *,
    out: str | None = None,
    refresh: bool = False,
    dry_run: bool = False,
    as_json: Json = False,
) -> int:
    """Count which signals of consent were found for the stored images, and which rule let each in.

    Args:
        out: A table (.parquet or .csv) to write, with a row for each stored image.
        refresh: Ask the sites again (headers, robots.txt and the like), and purge what they refuse
            now.
        dry_run: With --refresh: name what it would purge, and change nothing.
    """
    if (dry_run and not refresh) or (out and refresh):
        raise ValueError("--dry-run goes with --refresh only, and --out without it")
    result: Consent | Refresh
    if refresh:
        with nullcontext(PoolWriter(pool)) if dry_run else hold_lease(pool) as writer:
            result = refresh_consent(writer, dry_run=dry_run)
    else:
        result = read_consent(pool, out)
    console.show(*consent_lines(result))
    print_json(result, as_json)
    return 0


@AUDIT.command
def trace(pool: Pool, number: Annotated[int, Whole], /, *, as_json: Json = False) -> int:
    """Follow stored images, drawn at random, from the tar back to the record of the WAT or WARC
    that they were found in, and read it again.

    Args:
        number: How many images.
    """
    result = trace_images(pool, number)
    console.show(*trace_lines(result))
    print_json(result, as_json)
    return console.EXIT_INCOMPLETE if result.problems else 0


@AUDIT.command
def repair(pool: Pool, /, *, engine: Engine = "inline", as_json: Json = False) -> int:
    """Mend what `verify` finds: recompute or fetch again only what is damaged."""
    with hold_lease(pool) as out, shown_progress(pool):
        result = repair_pool(out, engine=engine)
    console.show(*repair_lines(result))
    print_json(result, as_json)
    return console.EXIT_INCOMPLETE if result.left else 0


@AUDIT.command
def purge(
    pool: Pool,
    /,
    *criteria: Annotated[str, Parameter(required=True)],
    used_by: Annotated[list[str], Words] = [],  # noqa: B006  # read only
    dry_run: bool = False,
    as_json: Json = False,
) -> int:
    """Remove rows for good, and name what used them.

    Args:
        criteria: url=URL, domain=HOST, sha256=HEX, uid=HEX, or a file of such lines.
        used_by: Where runs are looked for that used the rows (default: beside POOL).
        dry_run: Count and name what it would remove, and change nothing.
    """
    rows = read_criteria(criteria)
    with nullcontext(PoolWriter(pool)) if dry_run else hold_lease(pool) as out:
        result = purge_rows(out, rows, used_by=used_by, dry_run=dry_run)
    console.show(*purge_lines(result))
    print_json(result, as_json)
    return 0


@AUDIT.command
def watch(pool: Pool, /, *, as_json: Json = False) -> int:
    """Show what the command does that writes into the pool now, until it ends."""
    watched = watch_pool(pool)
    console.show(*watched_lines(pool, watched))
    print_json(watched, as_json)
    return 0 if watched.is_fine else console.EXIT_INCOMPLETE


@AUDIT.command
def lock(
    pool: Pool,
    file: str,
    /,
    *,
    view: Annotated[list[str] | None, Words] = None,
    as_json: Json = False,
) -> int:
    """Write one file (.parquet) from which another lab builds this pool again: rows with hashes,
    recipe, views.

    Args:
        file: The file to write.
        view: The views to write (default: all).
    """
    written = write_lock(pool, file, view)
    console.show(*lock_lines(written))
    head = disk.to_plain(written.head)
    print_json({name: value for name, value in head.items() if name != "columns"}, as_json)
    return 0


@AUDIT.command
def same_rows(
    pool: Pool,
    /,
    *locks: Annotated[str, Parameter(required=True)],
    view: str | None = None,
    name: str | None = None,
    as_json: Json = False,
) -> int:
    """Make a view of the rows that all these locks and the pool have, byte for byte.

    Args:
        locks: Files of `clipmill audit lock`.
        view: Take the rows of this view of the locks.
        name: The name of the new view (default: same_rows, same_rows_VIEW).
    """
    with hold_lease(pool) as out:
        result = write_same_rows(out, locks, view=view, name=name)
    console.show(*same_rows_lines([result]))
    print_json(result, as_json)
    return 0


@AUDIT.command
def reindex(pool: Pool, /, *, as_json: Json = False) -> int:
    """Make the index of the shards anew from their commit records."""
    with hold_lease(pool) as out:
        commits = repair_module.reindex(out)
    console.show(f"{len(commits)} shards indexed")
    print_json({"shards": len(commits)}, as_json)
    return 0
