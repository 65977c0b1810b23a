"""Which signals of consent were found for each stored image, when, and which rule let it in.

Everything is read from the sidecars: `fetch` keeps each signal raw beside its row, and the commit
record of a shard says whether anybody was asked. docs/consent.md has the policy.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from filters.optout import refusing_signals, statements
from manifests import disk
from manifests.commits import Commits, in_threads, read_commits
from manifests.layout import CommitRecord
from manifests.schema import Fetch, Recipe
from pipeline.audit.counts import recipe_of_pool
from pipeline.pool.shard_writer import staged_file

LET_IN = {
    "not_looked_for": "nobody was asked: files, tars that were there before",
    "nothing_found": "they were asked and said nothing",
    "nothing_refuses": "something was said, and none of it says no",
    "not_in_policy": "what says no is not among the signals of fetch.optout",
    "against_policy": "fetched by a program, or at a time, that did not heed the signal",
}
REASONS = ("robots_txt", "optout_page", "optout_site", "optout_header")
COLUMNS = ["uid", "url", "fetched_at", "status", "reason", "warc_offset", "optout"]
# One row a stored image.
TABLE = pa.schema(
    [
        ("uid", pa.string()),
        ("url", pa.string()),
        # When the headers were seen; files of a site are kept for a day, the page is the crawl's
        ("fetched_at", pa.timestamp("ms", tz="UTC")),
        ("looked_at", pa.string()),  # where signals were looked for
        ("let_in", pa.string()),  # a key of LET_IN
        ("says_no", pa.string()),  # statements that say no: `train-ai (robots.txt: train-ai=n)`
        ("signals", pa.string()),  # all that was found, raw, as JSON
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """What the stored images of a pool were told, and the rows that were refused."""

    policy: Any  # fetch.optout
    refusing: tuple[str, ...]  # the signals that it stands for
    stored: int
    looked_at: dict[str, int]  # stored images by where signals were looked for
    let_in: dict[str, int]  # stored images by the rule that let them in
    found: dict[str, int]  # stored images by kind of signal, whatever it says
    says_no: dict[str, int]  # stored images by signal that says no
    refused: dict[str, int]  # rows by `reason: signal`
    out: str | None  # the table


@dataclass(frozen=True, slots=True)
class Judged:
    """What the signals of a row say to one policy."""

    looked_at: str
    let_in: str  # a key of LET_IN
    says_no: str
    refusing: str  # the first signal that refuses, "" where none does
    found: frozenset[str]
    signals: frozenset[str]  # that say no


@functools.lru_cache(maxsize=65_536)
def judged(text: str | None, looked: str, user_agent: str, refusing: frozenset[str]) -> Judged:
    """`text`: the signals of a row, see filters.optout. `looked`: where they were looked for."""
    signals = json.loads(text) if text else {}
    found = list(statements(signals, user_agent))
    refusing_one = next((each.signal for each in found if each.signal in refusing), "")
    if found:
        let_in = "against_policy" if refusing_one else "not_in_policy"
    elif signals:
        let_in = "nothing_refuses"
    else:
        let_in = "nothing_found" if looked else "not_looked_for"
    return Judged(
        looked_at=looked,
        let_in=let_in,
        says_no="; ".join(dict.fromkeys(f"{each.signal} ({each.words})" for each in found)),
        refusing=refusing_one,
        found=frozenset(_kinds(signals)),
        signals=frozenset(each.signal for each in found),
    )


def _kinds(signals: Mapping[str, Any]) -> Iterator[str]:
    """`robots.txt: license`, `page: meta`, `x-robots-tag` …"""
    for key, value in signals.items():
        if key == "page":
            yield from (f"page: {name}" for name, texts in value.items() if texts)
        elif key == "site":
            for name, said in (pair for files in value.values() for pair in files.items()):
                yield name
                parts = ("usage", "signal", "license", "unread", "not_asked")
                yield from (f"{name}: {part}" for part in parts if part in said)
        else:
            yield key


def looked_at(record: CommitRecord, fetch: Fetch, *, page: bool) -> str:
    """Where signals of a stored image of a shard were looked for; "" where nobody was asked."""
    places = ["page"] if page else []
    if record.manners is not None and record.engine is not None:
        places.append("X-Robots-Tag (not kept)")
    elif record.manners is not None:
        files = ["robots.txt"] if fetch.robots_txt else []
        files += [{"tdmrep": "tdmrep.json"}.get(name, name) for name in fetch.site_files]
        places += [*files, "headers"]
    return ", ".join(places)


def judge_of(record: CommitRecord, recipe: Recipe) -> Callable[[str | None, bool], Judged]:
    """`judged` for the rows of a shard: (their signals, whether they have a page)."""
    agent = str((record.manners or {}).get("user_agent") or recipe.fetch.user_agent or "")
    refusing = refusing_signals(recipe.fetch.optout)
    looked = [looked_at(record, recipe.fetch, page=page) for page in (False, True)]
    return lambda text, page: judged(text, looked[page], agent, refusing)


def read_consent(pool: str, out: str | None = None) -> Consent:
    """The totals of a pool. `out`: a table (.parquet or .csv) of TABLE.

    ValueError for another ending, and for a pool that no build of a recipe has finished.
    """
    if out is not None and not out.endswith((".parquet", ".csv")):
        raise ValueError(f"--out is {out!r}; the name of the table ends in .parquet or .csv")
    if out is not None and disk.exists(out):
        raise ValueError(f"{out} is there already; remove it or name another file")
    recipe = recipe_of_pool(pool)
    if recipe is None:
        raise ValueError(f"{pool} has no recipe.json: no build of it has ended yet")
    commits = read_commits(pool)
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    with nullcontext() if out is None else _writer(out) as writer:
        for table, kinds in in_threads(
            lambda shard: _of_shard(commits, shard, recipe), commits.shards.tolist()
        ):
            if writer is not None:
                writer.write_table(table)
            for (row, reason), count in kinds.items():
                if reason is not None:
                    signal = "" if row.refusing in ("", reason) else f": {row.refusing}"
                    totals["refused"][reason + signal] += count
                    continue
                totals["looked_at"][row.looked_at] += count
                totals["let_in"][row.let_in] += count
                for name, keys in (("found", row.found), ("says_no", row.signals)):
                    totals[name].update(dict.fromkeys(keys, count))
    names = ("looked_at", "let_in", "found", "says_no", "refused")
    return Consent(
        policy=recipe.fetch.optout,
        refusing=tuple(sorted(refusing_signals(recipe.fetch.optout))),
        stored=totals["let_in"].total(),
        out=out,
        **{name: dict(totals[name].most_common()) for name in names},
    )


def _of_shard(
    commits: Commits, shard: int, recipe: Recipe
) -> tuple[pa.Table, Counter[tuple[Judged, str | None]]]:
    """(TABLE of its stored images, {(what was found, reason): rows})."""
    rows = disk.read_parquet(commits.sidecar(shard), COLUMNS)
    stored = pc.equal(rows["status"], "success")
    rows = rows.filter(pc.or_(stored, pc.is_in(rows["reason"], pa.array(REASONS))))
    judge = judge_of(commits.record(shard), recipe)
    has_page = pc.is_valid(rows["warc_offset"]).to_pylist()
    found = list(map(judge, rows["optout"].to_pylist(), has_page))
    columns = [
        *(rows[name].cast(TABLE.field(name).type) for name in TABLE.names[:3]),
        pa.array([each.looked_at for each in found], pa.string()),
        pa.array([each.let_in for each in found], pa.string()),
        pa.array([each.says_no for each in found], pa.string()),
        rows["optout"],
    ]
    kinds = Counter(zip(found, rows["reason"].to_pylist(), strict=True))
    table = pa.Table.from_arrays(columns, schema=TABLE)
    return table.filter(pc.equal(rows["status"], "success")), kinds


@contextmanager
def _writer(out: str) -> Iterator[Any]:
    """A writer of TABLE, which is published when all is written."""
    with staged_file(out, alone=True) as staged:
        if out.endswith(".parquet"):
            with disk.parquet_writer(staged, TABLE, compression="zstd") as writer:
                yield writer
        else:
            options = pa_csv.WriteOptions(quoting_style="needed", quoting_header="none")
            with (
                disk.CountedFile(staged) as file,
                pa_csv.CSVWriter(file, TABLE, write_options=options) as writer,
            ):
                yield writer
        disk.publish(staged, out)


def consent_lines(consent: Consent) -> Iterator[str]:
    """What `read_consent` returns, for a terminal."""
    policy = consent.policy if isinstance(consent.policy, str) else "a list"
    yield f"policy   optout: {policy}; refuses for {', '.join(consent.refusing) or 'no signal'}"
    yield f"stored   {consent.stored} images"
    for place, count in consent.looked_at.items():
        yield f"looked   {count:>9}  {place or 'nowhere: nobody was asked'}"
    for rule, count in consent.let_in.items():
        yield f"let in   {count:>9}  {rule}: {LET_IN[rule]}"
    for title, counts in (
        ("found", consent.found),
        ("says no", consent.says_no),
        ("refused", consent.refused),
    ):
        for name, count in counts.items():
            yield f"{title:<8} {count:>9}  {name}"
    if consent.out is not None:
        yield f"written  {consent.out}, a row for each stored image"
