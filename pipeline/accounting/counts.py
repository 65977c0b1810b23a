"""Says what became of every row of a pool: the books of each stage, whether each file is whole, one row's history."""

from __future__ import annotations

import importlib.metadata
import logging
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.compute as pc

from manifests import disk, identity, reader
from manifests.columns import REASONS
from manifests.pool_layout import (
    NOT_STORED,
    CommitRecord,
    PoolLayout,
    pool_fingerprint,
    read_commit_records,
    shard_name,
)
from manifests.schema import Recipe, Rule, View
from pipeline.external import adopt
from pipeline.fetch import plan
from pipeline.pool import read_sidecar
from pipeline.views import columns_of

LIBRARIES = (
    "aiohttp",
    "duckdb",
    "fastwarc",
    "numpy",
    "pillow",
    "pyarrow",
    "simplejpeg",
)  # what rows and bytes hang on
READERS = 8
logger = logging.getLogger(__name__)


# --- books ---------------------------------------------------------------------------------------------------------


def count_pool(pool: str) -> dict[str, Any]:
    """Counts and reasons of each stage, from footers and commit records alone.

    {"crawl", "fetch", "scores", "views", "complete", "problems"}: `problems` has a line for each sum that does not add
    up; `complete` is whether every planned shard is there. Of a row that was asked for again, fetch.final counts the
    newest outcome alone. ValueError where there is no pool.
    """
    records = read_commit_records(pool)
    problems: list[str] = []
    crawled = _crawl_books(pool, problems)
    if crawled is None and not records:
        raise ValueError(
            f"{pool} has neither pairs nor committed shards; is it the folder of a pool?"
        )
    fetched = _fetch_books(pool, records, problems)
    complete = fetched["shards"] == fetched["planned"] > 0
    first = fetched["attempted"] - fetched["retries"]
    if crawled and complete and crawled["pairs"] != first:
        problems.append(
            f"all shards are there, and {crawled['pairs']} pairs are not {first} rows attempted"
        )
    views = {name: _view_books(pool, name) for name in _views(pool)}
    return {
        "crawl": crawled,
        "fetch": fetched,
        "scores": _score_books(pool),
        "views": views,
        "complete": complete,
        "problems": problems,
    }


def _crawl_books(pool: str, problems: list[str]) -> dict[str, Any] | None:
    files = disk.list_names(disk.join(pool, "pairs"), ".parquet")
    parts = {name: disk.read_metadata(disk.join(pool, "pairs", name)) for name in files}
    for name, notes in parts.items():
        dropped = sum(notes["reasons"].values())
        if notes["links"] != notes["pairs"] + dropped:
            problems.append(
                f"pairs/{name}: {notes['links']} links are not {notes['pairs']} pairs + {dropped} dropped"
            )
    if not parts:
        return None
    sums = {key: sum(notes[key] for notes in parts.values()) for key in ("links", "pairs")}
    return {
        "parts": len(parts),
        **sums,
        "reasons": _total(notes["reasons"] for notes in parts.values()),
    }


def _fetch_books(
    pool: str, records: Mapping[str, CommitRecord], problems: list[str]
) -> dict[str, Any]:
    for name, record in records.items():
        count, stored, lost = record.count, record.successes, sum(record.reasons.values())
        if count != stored + lost:
            problems.append(
                f"shards/{name}: {count} attempted are not {stored} stored + {lost} with a reason"
            )
        if lost != record.failed_to_download + record.failed_to_resize:
            problems.append(
                f"shards/{name}: its two kinds of failure are not its {lost} rows with a reason"
            )
    planned = _planned(pool, records, problems)
    reasons = _total(record.reasons for record in records.values())
    stored = sum(record.successes for record in records.values())
    again = _total(_asked_again(pool, records, problems))
    return {
        "shards": len(records),
        "planned": planned,
        "attempted": sum(record.count for record in records.values()),
        "retries": sum(record.retries for record in records.values()),
        "stored": stored,
        "reasons": reasons,
        "classes": _total({REASONS[reason]: count} for reason, count in reasons.items()),
        "final": {
            "stored": stored,
            "reasons": {r: n - again.get(r, 0) for r, n in reasons.items() if n > again.get(r, 0)},
        },
        "bytes": sum(record.tar_bytes for record in records.values()),
    }


def _asked_again(
    pool: str, records: Mapping[str, CommitRecord], problems: list[str]
) -> Iterator[Mapping[str, int]]:
    """The reasons of the rows that a later row retries, shard by shard."""
    keys: dict[str, set[str]] = {}
    for name, record in records.items():
        if record.retries:
            for key in read_sidecar(pool, name, ["retry_of"])["retry_of"].drop_null().to_pylist():
                keys.setdefault(shard_name(key[:-4]), set()).add(key)
    for name, retried in keys.items():
        rows = read_sidecar(pool, name, ["key", "reason"]).to_pylist()
        reasons = Counter(row["reason"] for row in rows if row["key"] in retried)
        if kept := reasons.pop(None, 0):
            problems.append(f"shards/{name}: {kept} rows are stored and were asked for again")
        yield reasons


def _planned(pool: str, records: Mapping[str, CommitRecord], problems: list[str]) -> int:
    """How many shards there are to be, 0 before they are planned; shards that are not the plan's are problems."""
    if disk.list_names(disk.join(pool, "pairs"), ".parquet") and not disk.exists(
        disk.join(pool, "plan.parquet")
    ):
        return 0
    if not disk.exists(disk.join(pool, "plan.parquet")):
        return _tars(pool, records, problems)
    tasks = {shard_name(task.shard): task for task in plan.read_plan(pool)}
    for name, record in records.items():
        task = tasks.get(name)
        if task is None:
            problems.append(f"shards/{name}: the plan has {len(tasks)} shards and not this one")
        elif (record.task, record.count) != (task.id, task.size):
            problems.append(f"shards/{name}: {record.count} rows of task {record.task}; "
                            f"the plan has {task.size} of task {task.id}")  # fmt: skip
    return len(tasks)


def _tars(pool: str, records: Mapping[str, CommitRecord], problems: list[str]) -> int:
    """The number of tars of the recipe that this pool was built by, if it is there and adopts tars."""
    path = disk.join(pool, "recipe.json")
    recipe = reader.read_manifest(path, Recipe) if disk.exists(path) else None
    if recipe is None or recipe.source.kind != "shards":
        return len(records)
    try:
        return len(adopt.tickets(recipe.source))
    except ValueError as error:
        problems.append(str(error))
        return len(records)


def _score_books(pool: str) -> dict[str, Any]:
    paths = {name: disk.join(pool, "scores", name, "scores.json") for name in _sets(pool)}
    found = {name: disk.read_json(path) for name, path in paths.items()}
    return {
        name: {key: scores[key] for key in ("rows", "stored", "scored")}
        for name, scores in found.items()
    }


def _view_books(pool: str, name: str) -> dict[str, Any]:
    view = disk.read_json(disk.join(pool, "views", f"{name}.json"))
    return {key: view[key] for key in ("kept", "funnel", "thresholds")}


def _sets(pool: str) -> list[str]:
    """The complete score sets of a pool."""
    folders = [name for name in disk.list_names(disk.join(pool, "scores")) if "@" in name]
    return [name for name in folders if disk.exists(disk.join(pool, "scores", name, "scores.json"))]


def _views(pool: str) -> list[str]:
    return [
        name.removesuffix(".json") for name in disk.list_names(disk.join(pool, "views"), ".json")
    ]


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    summed: Counter[str] = Counter()
    for count in counts:
        summed.update(count)
    return dict(sorted(summed.items()))


def write_pool_json(pool: str, recipe: Recipe, seconds: Mapping[str, float]) -> dict[str, Any]:
    """POOL/pool.json from what is committed, which is returned. `seconds`, the time of this build's stages, is added to
    that of the builds before it; all else can be made again at any time."""
    path = disk.join(pool, "pool.json")
    found, records = count_pool(pool), read_commit_records(pool)
    before = disk.read_json(path)["seconds"] if disk.exists(path) else {}
    parts = [
        disk.join(pool, "pairs", name)
        for name in disk.list_names(disk.join(pool, "pairs"), ".parquet")
    ]
    sources = [disk.read_metadata(part)["source_id"] for part in parts] or [
        r.tar_sha256 for r in records.values()
    ]
    summary = {
        "recipe": recipe.name,
        "recipe_hash": identity.recipe_hash(recipe),
        "source": disk.content_hash(sources),
        "fingerprint": pool_fingerprint(records),
        **found,
        "seconds": {
            name: round(before.get(name, 0.0) + seconds.get(name, 0.0), 2)
            for name in {*before, *seconds}
        },
        "task_seconds": round(sum(record.duration_s for record in records.values()), 2),
        "versions": {
            "shard": sorted({record.version for record in records.values()}),
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in LIBRARIES},
        },
    }
    for problem in found["problems"]:
        logger.error("%s", problem)
    disk.write_json(path, summary)
    return summary


# --- one row -------------------------------------------------------------------------------------------------------


def explain_row(pool: str, uid: str) -> dict[str, Any]:
    """{"uid", "pair": its row of the pairs or None, "attempts": […]}: each attempt with its row of the sidecar, its
    scores and what each view said. ValueError where no row has that uid."""
    records = read_commit_records(pool)
    with ThreadPoolExecutor(READERS) as threads:
        found = threads.map(lambda name: _rows_with(PoolLayout(pool).sidecar(name), uid), records)
        places = [(name, row) for name, rows in zip(records, found, strict=True) for row in rows]
    pair = None
    if places and disk.exists(disk.join(pool, "plan.parquet")):
        name, row = places[0]
        pair = disk.to_plain(plan.rows_of_shard(pool, int(name))[row])
    elif not places:
        pair = _waiting(pool, uid)
    if pair is None and not places:
        rows = sum(record.count for record in records.values())
        raise ValueError(
            f"{pool} has no row with uid {uid!r}, neither among its pairs nor among {rows} rows attempted"
        )
    return {
        "uid": uid,
        "pair": pair,
        "attempts": [_attempt(pool, name, row) for name, row in places],
    }


def _rows_with(path: str, uid: str) -> list[int]:
    uids = disk.read_parquet(path, ["uid"])["uid"]
    return [int(row) for row in pc.indices_nonzero(pc.equal(uids, uid)).to_pylist()]


def _waiting(pool: str, uid: str) -> dict[str, Any] | None:
    """The pair of that uid whether it was attempted or not."""
    for name in disk.list_names(disk.join(pool, "pairs"), ".parquet"):
        path = disk.join(pool, "pairs", name)
        for row in _rows_with(path, uid):
            pair: dict[str, Any] = disk.read_parquet(path).slice(row, 1).to_pylist()[0]
            return pair
    return None


def _attempt(pool: str, name: str, row: int) -> dict[str, Any]:
    sidecar = read_sidecar(pool, name).slice(row, 1).to_pylist()[0]
    scores = {}
    for folder in _sets(pool):
        path = disk.join(pool, "scores", folder, f"{name}.parquet")
        scores[folder] = (
            disk.read_parquet(path).slice(row, 1).to_pylist()[0] if disk.exists(path) else {}
        )
    views = {view: _verdict(pool, view, name, row, sidecar, scores) for view in _views(pool)}
    return {"shard": name, "row": row, "sidecar": sidecar, "scores": scores, "views": views}


def _verdict(
    pool: str,
    view: str,
    name: str,
    row: int,
    sidecar: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Whether a view keeps a row; if not, the first rule that fails, with what it looked at."""
    path = disk.join(pool, "views", view, f"{name}.parquet")
    if not disk.exists(path):
        return {"kept": False, "rule": None, "note": "the view is older than this shard"}
    found = disk.read_parquet(path).slice(row, 1).to_pylist()[0]
    document = disk.read_json(disk.join(pool, "views", f"{view}.json"))
    if found["kept"] or found["rule"] == NOT_STORED:
        return dict(found)
    failed = found["rule"].removesuffix(":missing")
    rule = next(rule for rule in document["rules"] if rule["name"] == failed)
    if rule.get("where") is None:
        return {
            **found,
            "note": f"not among those drawn at random, as many as {rule['random_like']} keeps",
        }
    values = dict(sidecar)
    for folder in document["scores"].values():
        values |= scores.get(folder, {})
    alone = [View(name=view, rules=(Rule(name=failed, where=rule["where"]),))]
    used = sorted(columns_of(alone, view, values) - {"status"})
    asked = "".join(rule["where"].split()).lower()
    thresholds = {
        k: t["value"]
        for k, t in document["thresholds"].items()
        if "".join(k.split()).lower() in asked
    }
    return {
        **found,
        "where": rule["where"],
        "thresholds": thresholds,
        "values": {c: values[c] for c in used},
    }


# --- for a person --------------------------------------------------------------------------------------------------


def count_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What `books` says."""
    if crawled := found["crawl"]:
        yield f"crawl   {crawled['links']} links of {crawled['parts']} parts = {crawled['pairs']} pairs + dropped"
        yield from _reason_lines(crawled["reasons"], {})
    fetched = found["fetch"]
    yield f"fetch   {fetched['shards']} of {fetched['planned']} shards, {fetched['bytes']:,} bytes of tar"
    again = f" ({fetched['retries']} of them again)" if fetched["retries"] else ""
    yield f"        {fetched['attempted']} attempted{again} = {fetched['stored']} stored + without a picture"
    yield from _reason_lines(fetched["reasons"], REASONS)
    for name, scores in found["scores"].items():
        yield f"score   {name}: {scores['scored']} of {scores['stored']} stored rows"
    for name, view in found["views"].items():
        steps = " → ".join(f"{step} {left}" for step, left in view["funnel"])
        yield f"view    {name}: {steps}"
    yield from (f"WRONG   {problem}" for problem in found["problems"])


def _reason_lines(reasons: Mapping[str, int], classes: Mapping[str, str]) -> Iterator[str]:
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        yield f"          {reason:<20}{count:>10}  {classes.get(reason, '')}".rstrip()


def explain_lines(history: Mapping[str, Any]) -> Iterator[str]:
    """What `explain` says."""
    pair, attempts = history["pair"], history["attempts"]
    yield f"uid     {history['uid']}"
    yield from _column_lines("pair", pair or {}, left_out={"uid"})
    if not attempts:
        yield "fetch   not attempted yet"
    for attempt in attempts:
        sidecar = attempt["sidecar"]
        ended = f"{sidecar['reason']} ({sidecar['class']})" if sidecar["reason"] else "stored"
        yield f"fetch   shard {attempt['shard']} row {attempt['row']}: {ended}"
        known = {"uid", "status", "reason", "class"} | (
            pair.keys() & sidecar.keys() if pair else set()
        )
        yield from _column_lines("", sidecar, left_out=known)
        for name, columns in attempt["scores"].items():
            yield from _column_lines("score", columns, title=name)
        for name, verdict in attempt["views"].items():
            yield f"view    {name}: {_verdict_text(verdict)}"


def _column_lines(
    head: str, columns: Mapping[str, Any], *, title: str = "", left_out: Iterable[str] = ()
) -> list[str]:
    left_out = set(left_out)
    shown = [
        f"{k:<16} {_short(v)}" for k, v in columns.items() if v is not None and k not in left_out
    ]
    if title:
        shown = [title, *(f"  {line}" for line in shown or ["no score"])]
    return [f"{head if i == 0 else '':<8}{line}" for i, line in enumerate(shown)]


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} values"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _verdict_text(verdict: Mapping[str, Any]) -> str:
    if verdict["kept"]:
        return "kept"
    if "where" not in verdict:
        return f"not kept: {verdict.get('note') or verdict['rule']}"
    facts = [f"{k} = {'NULL' if v is None else _short(v)}" for k, v in verdict["values"].items()]
    facts += [f"{k} = {_short(v)}" for k, v in verdict["thresholds"].items()]
    return f"not kept by {verdict['rule']}: {verdict['where']}; {', '.join(facts)}"


def count_if_readable(pool: str, damaged: list[str]) -> dict[str, Any]:
    """The books. Where files are damaged they may not be readable, and the names of those files must still come."""
    try:
        return count_pool(pool)
    except Exception as error:
        if not damaged:
            raise
        return {"complete": False, "problems": [f"the books cannot be read: {error}"]}


def conclusion(found: Mapping[str, Any], verified: bool) -> str:
    if wrong := len(found["damaged"]) + len(found["problems"]):
        return f"{wrong} thing{'s are' if wrong > 1 else ' is'} wrong"
    if not found["complete"] and not found["fetch"]["planned"]:
        return "what is there adds up; nothing is planned yet: run pipeline/build.py with its recipe again"
    if not found["complete"]:
        missing = found["fetch"]["planned"] - found["fetch"]["shards"]
        return f"what is there adds up; {missing} shards are missing: run pipeline/build.py with its recipe again"
    return "every sum adds up" + (" and every file is whole" if verified else "")
