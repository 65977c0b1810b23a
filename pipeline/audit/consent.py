"""Which signals of consent were found for each stored image, when, and which rule let it in.

Everything is read from the sidecars: `fetch` keeps each signal raw beside its row, and the commit
record of a shard says whether anybody was asked. docs/consent.md has the policy. A refresh asks
again, for headers and the files of sites, and purges what says no now.
"""

from __future__ import annotations

import copy
import functools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pyarrow as pa
import pyarrow.compute as pc
import uvloop

from clipmill.filters.optout import refusing_signals, statements
from clipmill.manifests import disk
from clipmill.manifests.commits import Commits, in_threads, read_commits
from clipmill.manifests.layout import CommitRecord
from clipmill.manifests.pool import Pool
from clipmill.manifests.schema import Fetch, Pair, Recipe
from clipmill.pipeline.archives.codings import is_whole
from clipmill.pipeline.audit.counts import recipe_of_pool
from clipmill.pipeline.audit.purge import Purge, purge_lines, purge_rows
from clipmill.pipeline.fetch.fetcher import Fetcher
from clipmill.pipeline.fetch.request import Answer, Requests, signals
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import staged_file

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """What sites say now about the stored images of a pool."""

    answers: dict[str, int]  # `says no: REASON: SIGNAL`, `no answer: REASON` or `allowed`: rows
    purge: Purge | None  # of the rows that say no


@dataclass(frozen=True, slots=True)
class Signals:
    """What the signals of a row say to one policy."""

    looked_at: str
    let_in: str  # a key of LET_IN
    says_no: str
    refusing: str  # the first signal that refuses, "" where none does
    found: frozenset[str]
    signals: frozenset[str]  # that say no


@functools.lru_cache(maxsize=65_536)
def signals_of(text: str | None, looked: str, user_agent: str, refusing: frozenset[str]) -> Signals:
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
    return Signals(
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
                parts = ("usage", "signal", "training", "license", "unread", "not_asked")
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


def signals_reader(record: CommitRecord, recipe: Recipe) -> Callable[[str | None, bool], Signals]:
    """`signals_of` for the rows of a shard: (their signals, whether they have a page)."""
    agent = str((record.manners or {}).get("user_agent") or recipe.fetch.user_agent or "")
    refusing = refusing_signals(recipe.fetch.optout)
    looked = [looked_at(record, recipe.fetch, page=page) for page in (False, True)]
    return lambda text, page: signals_of(text, looked[page], agent, refusing)


def read_consent(pool: str, out: str | None = None) -> Consent:
    """The totals of a pool. `out`: a table (.parquet or .csv) of TABLE.

    ValueError for another ending, and for a pool that no build of a recipe has finished.
    """
    if out is not None and not out.endswith((".parquet", ".csv")):
        raise ValueError(f"--out is {out!r}; the name of the table ends in .parquet or .csv")
    if out is not None and disk.exists(out):
        raise ValueError(f"{out} is there already; remove it or name another file")
    recipe, commits = _pool_of(pool)
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


def _pool_of(pool: str) -> tuple[Recipe, Commits]:
    commits = read_commits(pool)
    if (recipe := recipe_of_pool(commits.layout)) is None:
        raise ValueError(f"{pool} has no recipe.json: no build of it has ended yet")
    return recipe, commits


def _of_shard(
    commits: Commits, shard: int, recipe: Recipe
) -> tuple[pa.Table, Counter[tuple[Signals, str | None]]]:
    """(TABLE of its stored images, {(what was found, reason): rows})."""
    rows = Pool(commits).read(shard, COLUMNS)
    stored = pc.equal(rows["status"], "success")
    rows = rows.filter(pc.or_(stored, pc.is_in(rows["reason"], pa.array(REASONS))))
    read_signals = signals_reader(commits.record(shard), recipe)
    has_page = pc.is_valid(rows["warc_offset"]).to_pylist()
    found = list(map(read_signals, rows["optout"].to_pylist(), has_page))
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
            writing = disk.parquet_writer(staged, TABLE, write_page_checksum=False)
        else:
            writing = disk.csv_writer(staged, TABLE)
        with writing as writer:
            yield writer
        disk.publish(staged, out)


def consent_lines(consent: Consent | Refresh) -> Iterator[str]:
    """What `read_consent` or `refresh_consent` returns, for a terminal."""
    if isinstance(consent, Refresh):
        yield f"asked    {sum(consent.answers.values())} stored images again"
        yield from (f"answer   {count:>9}  {answer}" for answer, count in consent.answers.items())
        yield from purge_lines(consent.purge) if consent.purge is not None else ()
        return
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


# --- asked again ----------------------------------------------------------------------------------


class HeaderRequests(Requests):
    """Asks for the headers of images: by HEAD, and where that fails by a GET that is closed when
    its head is there. The fetcher waits for the host before the second one as before a repeat.
    """

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._failed: set[int] = set()  # rows whose HEAD failed, by the address of their signals
        self._heads = copy.copy(self)
        self._heads._session = cast("Any", SimpleNamespace(get=self._session.head))

    async def image(self, url: str, row_signals: dict[str, Any], *, last: bool) -> Answer:
        if id(row_signals) in self._failed:
            self._failed.remove(id(row_signals))
            return await super().image(url, row_signals, last=last)
        answer = await Requests.image(self._heads, url, row_signals, last=False)
        if answer.reason in ("http_4xx", "http_5xx", "http_other") and answer.status != 503:
            self._failed.add(id(row_signals))
            return replace(answer, stale=True)
        return answer

    async def _read(self, response: aiohttp.ClientResponse, row_signals: dict[str, Any]) -> Answer:
        if not is_whole(response.status):
            return await super()._read(response, row_signals)
        row_signals.update(signals(response.headers.items(), None))
        reason, detail = self._policy.refusal(row_signals) or (None, "")
        body = None if reason else b""
        return Answer(status=response.status, body=body, reason=reason, detail=detail)


def refresh_consent(out: PoolWriter, *, dry_run: bool = False) -> Refresh:
    """Ask again what sites say about the stored images, and purge those that they refuse now. No
    picture is requested. A dry run changes nothing.

    ValueError for a pool that no build of a recipe has finished, and without a user agent.
    """
    answers, uids = uvloop.run(_ask_again(*_pool_of(out.pool)))
    purge = purge_rows(out, {"uid": uids}, dry_run=dry_run) if uids else None
    return Refresh(answers=dict(answers.most_common()), purge=purge)


async def _ask_again(recipe: Recipe, commits: Commits) -> tuple[Counter[str], set[str]]:
    """The answers of a Refresh, and the uids of the rows that say no. Where no answer comes, what
    was found before counts.
    """
    answers, uids = Counter[str](), set[str]()
    fetcher = Fetcher(recipe.fetch, requests=HeaderRequests)
    refusing, agent = refusing_signals(recipe.fetch.optout), fetcher.policy.user_agent
    try:
        for shard in commits.shards.tolist():
            table = Pool(commits).read(shard, COLUMNS)
            stored = pc.and_(pc.equal(table["status"], "success"), pc.is_valid(table["url"]))
            rows = table.filter(stored).to_pylist()
            pages = [json.loads(row["optout"] or "{}").get("page") for row in rows]
            pairs = [
                Pair(uid=row["uid"], url=row["url"], caption="", robots=page and json.dumps(page))
                for row, page in zip(rows, pages, strict=True)
            ]
            async for number, fetched in fetcher.fetch(pairs):
                row, reason = rows[number], fetched.reason
                has_answer = reason is None or reason in REASONS
                text = fetched.optout if has_answer else row["optout"]
                if signal := signals_of(text, "", agent, refusing).refusing:
                    uids.add(row["uid"])
                    answers[f"says no: {reason if has_answer else 'before'}: {signal}"] += 1
                else:
                    answers["allowed" if has_answer else f"no answer: {reason}"] += 1
    finally:
        await fetcher.close()
    return answers, uids
