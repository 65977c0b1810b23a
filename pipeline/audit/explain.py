"""The history of one row: its pair, each attempt, its scores, and what each view decided."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.manifests import disk
from clipmill.manifests.commits import Commits, in_threads, read_commits
from clipmill.manifests.layout import NOT_STORED, PoolLayout, shard_name
from clipmill.manifests.pool import OpenView, Pool
from clipmill.manifests.schema import Source
from clipmill.manifests.text import printable
from clipmill.pipeline.audit.consent import signals_reader
from clipmill.pipeline.audit.counts import recipe_of_pool
from clipmill.pipeline.audit.purge import HEX, PURGED, purge_line, purges_of_name, purges_of_uid
from clipmill.pipeline.audit.row_index import locate
from clipmill.pipeline.crawl.sources import pairs_of_record, reads_records, source_files
from clipmill.pipeline.planning.plan_files import is_planned, rows_of_shard
from clipmill.pipeline.views.choose import rule_outcomes, with_derived

# --------------------------------------------------------------------------------------------------
# From a member of a tar back to the record of the WAT or WARC that its link was read from.
#
# The record is read again at the offset that the member's {key}.json names, and must have the
# same link. So what a pool says about its sources is checked against the sources themselves.


BLOCK = 512  # bytes of a tar header, which lies before its member
NAME = 100  # bytes of it
SHOWN = 20  # problems that are printed
COLUMNS = ["key", "status", "image_name", "image_offset", "json_offset", "json_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """How many stored images were followed back, and one line for each that could not be."""

    asked: int
    traced: int
    archives: int  # files that records were found in
    problems: tuple[str, ...]


def trace_images(pool: str, count: int) -> Trace:
    """Follow `count` stored images, drawn at random, from the tar to their records.

    All images where the pool has fewer. ValueError where the pool was made of no WAT or WARC, or
    their files are not where the recipe names them.
    """
    recipe = recipe_of_pool(PoolLayout(pool))
    if recipe is None:
        raise ValueError(f"{pool} has no recipe.json: no build of it has ended yet")
    if not reads_records(recipe.source):
        raise ValueError(
            f"{pool} was made of a source of kind {recipe.source.kind}: only the images of WATs and"
            " WARCs can be traced to a record"
        )
    if count < 1:
        raise ValueError(f"the number of images is {count}; it must be at least 1")
    files = source_files(recipe.source)
    commits = read_commits(pool)
    drawn = _drawn(commits, count)
    groups = in_threads(lambda item: _members(commits, *item), drawn.items())
    members = list(itertools.chain.from_iterable(groups))

    def look(member: tuple[str, Mapping[str, object], str | None]) -> str | None:
        name, values, problem = member
        problem = problem or _record_problem(recipe.source, files, values)
        return problem and f"{name}: {problem}"

    outcomes = list(in_threads(look, members))
    problems = tuple(problem for problem in outcomes if problem is not None)
    traced = [
        values for (_, values, _), problem in zip(members, outcomes, strict=True) if not problem
    ]
    return Trace(
        asked=len(members),
        traced=len(traced),
        archives=len({values["wat"] for values in traced}),
        problems=problems,
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


def origin_text(layout: PoolLayout, row: Mapping[str, Any]) -> str | None:
    """Which record a row was read from, and whether that record still says so; None of other rows.

    A remote file is named and not read.
    """
    if row.get("wat") is None or row.get("warc_offset") is None:
        return None
    record = f"{row['wat']}, record at byte {row['warc_offset']}, link {row['link']}"
    try:
        recipe = recipe_of_pool(layout)
        if recipe is None or not reads_records(recipe.source) or disk.is_url(row["wat"]):
            return record
        files = source_files(recipe.source)
    except (ValueError, OSError) as error:
        return f"{record}; not read: {error}"
    problem = _record_problem(recipe.source, files, row)
    return f"{record}; {problem or 'read again: it has this link'}"


# --- from the pool --------------------------------------------------------------------------------


def _drawn(commits: Commits, count: int) -> dict[int, list[int]]:
    """{shard: numbers among its stored rows}, drawn without replacement."""
    ends = np.cumsum(commits.column("successes").to_numpy())
    total = int(ends[-1]) if len(ends) else 0
    if not total:
        raise ValueError(f"{commits.pool} has no stored images to trace")
    rng = np.random.default_rng(0)
    numbers = np.sort(rng.choice(total, size=min(count, total), replace=False))
    positions = np.searchsorted(ends, numbers, side="right")
    starts = np.concatenate([[0], ends])[positions]
    drawn = defaultdict(list)
    for shard, number in zip(commits.shards[positions], numbers - starts, strict=True):
        drawn[int(shard)].append(int(number))
    return drawn


def _members(
    commits: Commits, shard: int, numbers: Sequence[int]
) -> list[tuple[str, Mapping[str, Any], str | None]]:
    """What the tar of a shard holds for some of its stored rows: (a name for messages, what its
    {key}.json says, what is wrong with it).
    """
    table = Pool(commits).read(shard, COLUMNS)
    stored = table.filter(pc.equal(table["status"], "success"))
    path = commits.tar(shard)
    members = []
    for row in stored.take(pa.array(numbers, pa.int64())).to_pylist():
        header = disk.read_bytes(path, row["image_offset"] - BLOCK, NAME)
        name = header.rstrip(b"\0").decode("utf-8", "replace")
        values: Mapping[str, Any] = {}
        try:
            values = json.loads(disk.read_bytes(path, row["json_offset"], row["json_length"]))
            is_same = name == row["image_name"] and values.get("key") == row["key"]
            problem = f"the tar has {name} with the JSON of {values.get('key')}"
        except ValueError:
            is_same, problem = False, "its JSON cannot be read"
        members.append((f"{path} member {row['image_name']}", values, None if is_same else problem))
    return members


# --- in the archive -------------------------------------------------------------------------------


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


MANY_SHARDS = 100  # of which all sidecars are read: a line says why
REINDEX_HINT = "; clipmill audit reindex {pool} makes the table anew"
LISTED = 20  # matches that are printed
NAMING_COLUMNS = ("uid", "url", "key", "image_name")  # what a person may name a row by
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A row that fits what was asked for."""

    uid: str
    url: str | None
    shard: str | None  # None: not attempted yet
    row: int
    key: str | None


class Attempt(TypedDict):
    """One attempt at a row: its row of the sidecar, its scores and what each view decided."""

    shard: str
    row: int
    sidecar: dict[str, Any]
    consent: dict[str, Any] | None  # None where it is not stored, or the recipe is damaged
    scores: dict[str, dict[str, Any]]
    views: dict[str, dict[str, Any]]


class RowHistory(TypedDict, total=False):
    """What became of one row; `purged` alone if only a purge names what was asked for, and `name`
    and `matches` if rows of several uids fit."""

    uid: str
    pair: dict[str, Any] | None  # its row of the pairs
    origin: str | None  # the record that it was read from, in words
    attempts: list[Attempt]
    purged: list[dict[str, Any]]  # when, by which kinds of selectors, and with how many others
    name: str
    matches: list[dict[str, Any]]  # uid, url, shard, row, key


def explain_row(pool: str, name: str) -> RowHistory:
    """The history of the row that `name` names: a uid, a URL, a tar key, or a file name (the last
    part of a path). ValueError if no row fits.
    """
    commits = read_commits(pool)
    located = locate(commits, name)
    matches = _attempted_matches(commits, name, located.shards)
    others = commits.shards if located.is_guess and not matches else located.others
    if located.remark and len(others) >= MANY_SHARDS:
        logger.info(
            "%s: %d sidecars are read one by one%s",
            located.remark,
            len(others),
            REINDEX_HINT.format(pool=pool) if "table" in located.remark else "",
        )
    matches += _attempted_matches(commits, name, others.tolist())
    if not matches:
        matches = list(_waiting_matches(commits.layout, name))
    if not matches and name != name.lower() and HEX["uid"].fullmatch(name.lower()):
        return explain_row(pool, name.lower())
    if not matches and (purges := purges_of_name(commits.layout, name)):
        return {"purged": purges}
    if not matches:
        rows = commits.totals.rows
        raise ValueError(
            f"{pool} has no row with uid, URL, key or file name {name!r}, neither among its pairs "
            f"nor among {rows} rows attempted"
        )
    if len({match.uid for match in matches}) > 1:
        return {"name": name, "matches": disk.to_plain(matches)}
    attempts = [_attempt(commits, match) for match in matches if match.shard is not None]
    pair = _pair(commits.layout, matches[0])
    row = pair or (attempts[0]["sidecar"] if attempts else {})
    # A row that waits for its first attempt is no tombstone.
    is_purged = any(attempt["sidecar"]["reason"] == PURGED for attempt in attempts)
    return {
        "uid": matches[0].uid,
        "pair": pair,
        "origin": origin_text(commits.layout, row),
        "attempts": attempts,
        "purged": purges_of_uid(commits.layout, matches[0].uid) if is_purged else [],
    }


def explain_lines(history: Mapping[str, Any]) -> list[str]:
    """What `explain_row` returns, for a terminal. Characters that a terminal would act on are
    escaped."""
    if "matches" in history:
        lines = _match_lines(history)
    elif "attempts" in history:
        lines = _history_lines(history)
    else:
        lines = map(purge_line, history["purged"])
    return [printable(line) for line in lines]


# --- finding rows ---------------------------------------------------------------------------------


def _matches(table: pa.Table, name: str, shard: str | None) -> list[Match]:
    """The rows of a sidecar or a part of the pairs that `name` names."""
    escaped = re.escape(name)  # a value is `name`, or a path or URL whose last part is `name`
    mask = np.zeros(table.num_rows, np.bool_)
    for column in table.column_names:
        fits = pc.match_substring_regex(table[column], f"(^|/){escaped}$|/{escaped}[?#]")
        mask |= np.asarray(pc.fill_null(fits, False).to_numpy(), np.bool_)
    matches = []
    for row in np.flatnonzero(mask).tolist():
        values = table.slice(row, 1).to_pylist()[0]
        matches.append(
            Match(
                uid=values["uid"],
                url=values["url"],
                shard=shard,
                row=row,
                key=values.get("key"),
            )
        )
    return matches


def _attempted_matches(commits: Commits, name: str, shards: Iterable[int]) -> list[Match]:
    """The rows of some shards that `name` names."""

    def look(shard: int) -> list[Match]:
        return _matches(Pool(commits).read(shard, NAMING_COLUMNS), name, shard_name(shard))

    return list(itertools.chain.from_iterable(in_threads(look, shards)))


def _waiting_matches(layout: PoolLayout, name: str) -> Iterator[Match]:
    """Pairs that were not attempted yet."""
    folder = layout.pairs
    for file in disk.list_names(folder, ".parquet"):
        path = disk.join(folder, file)
        available = disk.read_schema(path).names
        columns = [column for column in NAMING_COLUMNS if column in available]
        yield from _matches(disk.read_parquet(path, columns), name, None)


def _pair(layout: PoolLayout, match: Match) -> dict[str, Any] | None:
    """The row of the pairs that was attempted first, or that waits."""
    if match.shard is not None:
        if not is_planned(layout):
            return None
        pair: dict[str, Any] = disk.to_plain(rows_of_shard(layout, int(match.shard))[match.row])
        return pair
    for file in disk.list_names(layout.pairs, ".parquet"):
        table = disk.read_parquet(disk.join(layout.pairs, file))
        rows = table.filter(pc.equal(table["uid"], match.uid)).slice(0, 1).to_pylist()
        if rows:
            return dict(rows[0])
    return None


# --- what is known of a row -----------------------------------------------------------------------


def _attempt(commits: Commits, match: Match) -> Attempt:
    pool, shard = Pool(commits), match.shard
    assert shard is not None
    rows = {"": pool.read(shard, None).slice(match.row, 1)}
    scores: dict[str, dict[str, Any]] = {}
    for name, document in pool.all_score_sets.items():
        scores[name] = {}
        if pool.has_scores(name, shard):
            columns = pool.read(shard, document.columns, dict.fromkeys(document.columns, name))
            rows[name] = columns.slice(match.row, 1)
            scores[name] = _row(columns, match.row)
    sidecar, recipe = _row(rows[""], 0), None
    if sidecar["reason"] is None:
        with contextlib.suppress(ValueError, OSError):  # a damaged recipe: all else is told
            recipe = recipe_of_pool(pool.layout)
    consent = None
    if recipe is not None:
        read_signals = signals_reader(commits.record(shard), recipe)
        consent = disk.to_plain(read_signals(sidecar["optout"], sidecar["warc_offset"] is not None))
    return {
        "shard": shard,
        "row": match.row,
        "sidecar": sidecar,
        "consent": consent,
        "scores": scores,
        "views": {
            name: _decision(OpenView(pool, document), match, rows)
            for name, document in pool.views.items()
        },
    }


def _row(table: pa.Table, row: int) -> dict[str, Any]:
    return dict(table.slice(row, 1).to_pylist()[0])


def _decision(view: OpenView, match: Match, rows: Mapping[str, pa.Table]) -> dict[str, Any]:
    """Whether a view keeps a row, or the first rule that fails; and what each rule says of the
    row, whatever the others say, with the values and thresholds that it compares.

    rows: the row of the sidecar (key "") and of each score set.
    """
    assert match.shard is not None
    if int(match.shard) not in view.shards:
        return {"kept": False, "rule": None, "note": "the view is older than this shard"}
    decision = _row(view.mask(match.shard), match.row)
    if decision["rule"] == NOT_STORED:
        return decision
    document, table = view.document, rows[""]
    for name in document.scores.values():
        for column in rows[name].column_names if name in rows else ():
            if column not in table.column_names:
                table = table.append_column(column, rows[name][column])
    known = {name.lower(): value for name, value in _row(with_derived(table), 0).items()}
    first = (decision["rule"] or "").removesuffix(":missing")
    rules = []
    for outcome in rule_outcomes(table, document):
        state = "rejects" if outcome.name == first else "not known for one row alone"
        if outcome.rejected is not None and outcome.missing is not None:
            state = "rejects" if outcome.rejected[0] else "keeps"
            state = "missing" if outcome.missing[0] else state
        names = sorted(outcome.columns - {"status"})
        values = {column: known[column.lower()] for column in names}
        sql = _without_spaces(outcome.text)
        for call, threshold in document.thresholds.items():
            if _without_spaces(call) in sql:
                values[call] = threshold.value
        rule = {"name": outcome.name, "rule": outcome.text, "outcome": state, "values": values}
        rules.append(rule)
    return {**decision, "rules": rules}


def _without_spaces(sql: str) -> str:
    return "".join(sql.split()).lower()


# --- for a terminal -------------------------------------------------------------------------------


def _match_lines(history: Mapping[str, Any]) -> Iterator[str]:
    matches = history["matches"]
    yield f"{len(matches)} rows fit {history['name']!r}; give one of these uids"
    for match in matches[:LISTED]:
        location = "not attempted"
        if match["shard"]:
            location = f"shard {match['shard']} key {match['key']}"
        yield f"match   {match['uid']}  {location}  {match['url']}"
    if len(matches) > LISTED:
        yield f"        and {len(matches) - LISTED} more"


def _history_lines(history: Mapping[str, Any]) -> Iterator[str]:
    pair, attempts = history["pair"], history["attempts"]
    yield f"uid     {history['uid']}"
    yield from _column_lines("pair", pair or {}, left_out={"uid"})
    yield from map(purge_line, history["purged"])
    if history["origin"]:
        yield f"origin  {history['origin']}"
    if not attempts:
        yield "fetch   not attempted yet"
    for attempt in attempts:
        sidecar = attempt["sidecar"]
        outcome = f"{sidecar['reason']} ({sidecar['class']})" if sidecar["reason"] else "stored"
        yield f"fetch   shard {attempt['shard']} row {attempt['row']}: {outcome}"
        shown_before = {"uid", "status", "reason", "class"}
        if pair:
            shown_before |= pair.keys() & sidecar.keys()
        yield from _column_lines("", sidecar, left_out=shown_before)
        if consent := attempt["consent"]:
            says_no = f"; says no: {consent['says_no']}" if consent["says_no"] else ""
            looked = consent["looked_at"] or "nowhere"
            yield f"consent let in as {consent['let_in']}; looked at: {looked}{says_no}"
        for name, columns in attempt["scores"].items():
            yield from _column_lines("score", columns, title=name)
        for name, decision in attempt["views"].items():
            reason = f": {note}" if (note := decision.get("note")) else f" by {decision['rule']}"
            yield f"view    {name}: {'kept' if decision['kept'] else f'not kept{reason}'}"
            for rule in decision.get("rules", ()):
                facts = [rule["rule"]]
                for column, value in rule["values"].items():
                    facts.append(f"{column} = {'NULL' if value is None else _short(value)}")
                yield f"          {rule['outcome']:<8} {rule['name']}: {'; '.join(facts)}"


def _column_lines(
    head: str, columns: Mapping[str, object], *, title: str = "", left_out: Iterable[str] = ()
) -> list[str]:
    hidden = set(left_out)
    lines = []
    for name, value in columns.items():
        if value is not None and name not in hidden:
            lines.append(f"{name:<16} {_short(value)}")
    if title:
        lines = [title, *(f"  {line}" for line in lines or ["no score"])]
    return [f"{head if i == 0 else '':<8}{line}" for i, line in enumerate(lines)]


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} values"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
