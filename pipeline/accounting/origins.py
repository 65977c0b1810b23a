"""From a member of a tar back to the record of the WAT or WARC that its link was read from.

The record is read again at the offset that the member's {key}.json names, and must have the same
link. So what a pool says about its sources is checked against the sources themselves.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.commits import Commits, read_commits
from manifests.schema import Source
from pipeline.accounting.counts import recipe_of_pool
from pipeline.crawl import pairs_of_record, reads_records, source_files

BLOCK = 512  # bytes of a tar header, which lies before its member
NAME = 100  # bytes of it
READERS = 8  # files that are open at once
SHOWN = 20  # problems that are printed
COLUMNS = ["key", "status", "image_name", "image_offset", "json_offset", "json_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """How many stored images were followed back, and one line for each that could not be."""

    asked: int
    traced: int
    archives: int  # files that records were found in
    problems: tuple[str, ...]


def trace_images(pool: str, count: int, seed: int = 0) -> Trace:
    """Follow `count` stored images, drawn at random, from the tar to their records.

    All images where the pool has fewer. ValueError where the pool was made of no WAT or WARC, or
    their files are not where the recipe names them.
    """
    recipe = recipe_of_pool(pool)
    if recipe is None:
        raise ValueError(f"{pool} has no recipe.json: no build of it has ended yet")
    if not reads_records(recipe.source):
        raise ValueError(
            f"{pool} was made of a source of kind {recipe.source.kind}: only the images of WATs and"
            " WARCs can be traced to a record"
        )
    if count < 1:
        raise ValueError(f"--trace is {count}; it must be at least 1")
    files = source_files(recipe.source)
    commits = read_commits(pool)
    drawn = _drawn(commits, count, seed)
    with ThreadPoolExecutor(READERS) as threads:
        groups = threads.map(lambda item: _members(commits, *item), drawn.items())
        members = [member for group in groups for member in group]
        origins = threads.map(lambda each: _origin(recipe.source, files, each), members)
        outcomes = list(origins)
    return Trace(
        asked=len(members),
        traced=sum(outcome.problem is None for outcome in outcomes),
        archives=len({outcome.file for outcome in outcomes if outcome.problem is None}),
        problems=tuple(outcome.problem for outcome in outcomes if outcome.problem is not None),
    )


def trace_lines(trace: Trace) -> Iterator[str]:
    """What `trace_images` returns, for a terminal."""
    yield (
        f"{trace.traced} of {trace.asked} stored images traced from the tar to a record in "
        f"{trace.archives} {'file' if trace.archives == 1 else 'files'}"
    )
    for problem in trace.problems[:SHOWN]:
        yield f"WRONG   {problem}"
    if len(trace.problems) > SHOWN:
        yield f"        and {len(trace.problems) - SHOWN} more"


def origin_text(pool: str, row: Mapping[str, Any]) -> str | None:
    """Which record a row was read from, and whether that record still says so; None of other rows.

    A remote file is named and not read.
    """
    if row.get("wat") is None or row.get("warc_offset") is None:
        return None
    record = f"{row['wat']}, record at byte {row['warc_offset']}, link {row['link']}"
    try:
        recipe = recipe_of_pool(pool)
        if recipe is None or not reads_records(recipe.source) or disk.is_url(row["wat"]):
            return record
        files = source_files(recipe.source)
    except (ValueError, OSError) as error:
        return f"{record}; not read: {error}"
    problem = _record_problem(recipe.source, files, row)
    return f"{record}; {problem or 'read again: it has this link'}"


# --- from the pool --------------------------------------------------------------------------------


def _drawn(commits: Commits, count: int, seed: int) -> dict[int, list[int]]:
    """{shard: numbers among its stored rows}, drawn without replacement."""
    ends = np.cumsum(commits.column("successes").to_numpy())
    total = int(ends[-1]) if len(ends) else 0
    if not total:
        raise ValueError(f"{commits.pool} has no stored images to trace")
    rng = np.random.default_rng(seed)
    numbers = np.sort(rng.choice(total, size=min(count, total), replace=False))
    positions = np.searchsorted(ends, numbers, side="right")
    starts = np.concatenate([[0], ends])[positions]
    drawn = defaultdict(list)
    for shard, number in zip(commits.shards[positions], numbers - starts, strict=True):
        drawn[int(shard)].append(int(number))
    return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A member of a tar, what its {key}.json says, or what is wrong with it."""

    name: str  # for a message
    values: Mapping[str, Any]
    problem: str | None = None


def _members(commits: Commits, shard: int, numbers: Sequence[int]) -> Iterator[_Member]:
    """What the tar of a shard holds for some of its stored rows."""
    table = disk.read_parquet(commits.sidecar(shard), COLUMNS)
    stored = table.filter(pc.equal(table["status"], "success"))
    path = commits.tar(shard)
    members = []
    for row in stored.take(pa.array(numbers, pa.int64())).to_pylist():
        member = f"{path} member {row['image_name']}"
        header = disk.read_bytes(path, row["image_offset"] - BLOCK, NAME)
        name = header.rstrip(b"\0").decode("utf-8", "replace")
        text = disk.read_bytes(path, row["json_offset"], row["json_length"])
        try:
            values = json.loads(text)
        except ValueError:
            members.append(_Member(name=member, values={}, problem="its JSON cannot be read"))
            continue
        is_same = name == row["image_name"] and values.get("key") == row["key"]
        problem = None if is_same else f"the tar has {name} with the JSON of {values.get('key')}"
        members.append(_Member(name=member, values=values, problem=problem))
    return iter(members)


# --- in the archive -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    file: str | None
    problem: str | None


def _origin(source: Source, files: Mapping[str, Sequence[str]], member: _Member) -> _Outcome:
    problem = member.problem or _record_problem(source, files, member.values)
    file = member.values.get("wat")
    return _Outcome(file=file, problem=None if problem is None else f"{member.name}: {problem}")


def _record_problem(
    source: Source, files: Mapping[str, Sequence[str]], row: Mapping[str, Any]
) -> str | None:
    """What is wrong with the record that a row names; None where it has the row's link."""
    file, offset, link = row.get("wat"), row.get("warc_offset"), row.get("link")
    if file is None or offset is None or link is None:
        return "it names no record"
    if file not in files:
        return f"{file} is not among the files of the source"
    problem = ""
    for path in files[file]:  # local files of several folders may share a name
        try:
            pair = pairs_of_record(source, path, offset).get(link)
        except (ValueError, OSError) as error:
            problem = str(error)
            continue
        if pair is not None and (pair.url, pair.caption) == (row["url"], row["caption"]):
            return None
        problem = f"the record at byte {offset} of {path} has no such link {link}"
    return problem
