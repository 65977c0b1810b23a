"""The stages that work on a pool: scoring, choosing, near-duplicates."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.filtering import scoring as scorers
from benchmarks.peers import scoring_ways
from benchmarks.peers.environments import Environment, environment_of
from benchmarks.peers.rows import Row, in_turns, row_of
from benchmarks.peers.web_stages import Context, Measured
from benchmarks.photographs import paths_of
from benchmarks.pools import views as pools

FOLDER = Path(__file__).resolve().parent
PREPROCESSED, SCORED, SCORE_TURNS = 300, 64, 3
ROWS, CHOOSE_TURNS = (200_000, 1_000_000), 5
HASHED, SEARCHED, DUPLICATE_TURNS = 400, 10_000, 3


def answer_of(python: str | None, *words: str | Path) -> dict[str, Any]:
    """The last line that a program prints, as JSON; it runs in one thread."""
    done = subprocess.run(
        [python or sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        env={**scoring_ways.ONE_THREAD},
    )
    if done.returncode != 0:
        raise RuntimeError(f"{Path(words[0]).name} ended with {done.returncode}: {done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _rate(python: str | None, *words: str | Path) -> Callable[[], float]:
    """Samples for a second of the processor, of a program that prints `items` and `cpu_s`."""

    def run() -> float:
        answer = answer_of(python, *words)
        return float(answer["items"] / answer["cpu_s"])

    return run


def scoring(context: Context) -> Measured:
    """Samples per CPU second: preprocessing and a whole pass, beside open_clip's, and beside the
    model alone.
    """
    peer = environment_of("open_clip")
    program = FOLDER / "scoring_ways.py"
    source = context.photographs
    jpegs, work = context.work / "jpegs", context.work / "scored"
    for folder in (jpegs, work):
        folder.mkdir()
    count = context.count(PREPROCESSED, 32)
    for number, data in enumerate(scorers.jpegs_of(source, count)):
        (jpegs / f"{number:06d}.jpg").write_bytes(data)
    ways = {
        "fast": _rate(None, program, "fast", jpegs),
        "exact": _rate(None, program, "exact", jpegs),
    }
    if peer.python is not None:
        ways["transform"] = _rate(peer.python, program, "transform", jpegs)
    steps = in_turns(ways, context.turns(SCORE_TURNS))
    scored = context.count(SCORED, 8)
    scorers.build_pool(work, scorers.jpegs_of(source, scored), scored)
    scorers.random_model(work / "model", scorers.large_config())
    ways = {name: _rate(None, program, name, work) for name in ("ours", "tensors")}
    if peer.python is not None:
        ways["loop"] = _rate(peer.python, program, "loop", work)
    passes = in_turns(ways, context.turns(SCORE_TURNS))
    rows = []
    for name in ("exact", "fast"):
        rows.append(
            row_of(
                f"JPEG to a normalised tensor, {name}",
                "images per CPU second",
                2.0,
                "open_clip's transform (Pillow)",
                steps[name],
                steps.get("transform", []),
                items=len(list(jpegs.iterdir())),
                at_least=True,
                missing=peer.reason,
            )
        )
    for way, bar, title in (
        ("loop", 1.0, "webdataset and open_clip, same tars and model"),
        ("tensors", 0.85, "the model alone, tensors and tokens in memory"),
    ):
        rows.append(
            row_of(
                "clip_score over tars, ViT-B-32",
                "pairs per CPU second",
                bar,
                title,
                passes["ours"],
                passes.get(way, []),
                items=scored,
                at_least=True,
                missing=peer.reason if way == "loop" else None,
            )
        )
    return rows, {"open_clip_torch": peer.version}


# --- choose ---------------------------------------------------------------------------------------


def metadata_of(pool: Path, out: Path) -> None:
    """The stored rows as metadata files of 50,000 rows with every column that the rules read."""
    from benchmarks.peers import datacomp  # it imports pandas, for its own process

    tables = []
    for path in sorted((pool / "shards").glob("*.parquet")):
        table = pq.read_table(path, columns=["status", *datacomp.COLUMNS[:5]])
        tables.append(table)
    rows = pa.concat_tables(tables)
    scores = pa.concat_tables(pq.read_table(p) for p in sorted(pool.parent.glob("metadata/*")))
    order = pc.index_in(rows["uid"], scores["uid"])
    scores = scores.select(datacomp.SCORES).take(order)
    for name in datacomp.SCORES:
        rows = rows.append_column(name, scores[name])
    rows = rows.filter(pc.equal(rows["status"], "success")).select(datacomp.COLUMNS)
    out.mkdir()
    for number, start in enumerate(range(0, len(rows), pools.FILE_ROWS)):
        pq.write_table(rows.slice(start, pools.FILE_ROWS), out / f"{number:04d}.parquet")


def choose(context: Context) -> Measured:
    """CPU of a view over twelve columns, beside DataComp's algorithm on the same rows."""
    peer = environment_of("datacomp")
    rows, versions = [], {"pandas": peer.version}
    for usual in ROWS:
        count = context.count(usual // pools.SHARD_ROWS) * pools.SHARD_ROWS
        folder = context.work / f"choose-{count}"
        folder.mkdir()
        row, joined_s, hashed_s = _choose(folder, count, peer, context.turns(CHOOSE_TURNS))
        rows.append(row)
        text = f"{joined_s:.2f} CPU s per million rows, once for all views, not in the ratio"
        versions[f"join of the scores ({count:,} rows)"] = text
        text = f"{hashed_s:.2f} CPU s per million rows, where it is asked for, not in the ratio"
        versions[f"canonical hash of the rows ({count:,} rows)"] = text
        shutil.rmtree(folder)
    return rows, versions


def _choose(folder: Path, count: int, peer: Environment, turns: int) -> tuple[Row, float, float]:
    """The row of one size, and the CPU seconds of the join and of the hash per million rows.

    RuntimeError: the two keep different rows. One row may differ, where the share is a whole number
    of rows.
    """
    pools.prepare(folder, count)
    joined = answer_of(None, pools.__file__, "--step", "join", "--folder", folder)
    metadata_of(folder / "pool", folder / "datacomp")
    kept = {}

    def ours() -> float:
        answer = answer_of(None, pools.__file__, "--step", "choose_again", "--folder", folder)
        kept["clipmill"] = answer["kept"]
        return float(1e6 * answer["cpu_s"] / count)

    def theirs() -> float:
        words = (folder / "datacomp", folder / "subset.npy")
        answer = answer_of(peer.python, FOLDER / "datacomp.py", *words)
        kept["DataComp"] = answer["kept"]
        return float(1e6 * answer["cpu_s"] / count)

    ways = {"clipmill": ours} if peer.python is None else {"clipmill": ours, "DataComp": theirs}
    values = in_turns(ways, turns)
    if max(kept.values()) - min(kept.values()) > 1:
        raise RuntimeError(f"the rules keep different rows: {kept}")
    row = row_of(
        f"a view by rules over twelve columns, {kept['clipmill']:,} of {count:,} rows kept by both",
        "CPU s per million rows",
        1.0,
        "DataComp's algorithm, re-measured on pandas and numpy",
        values["clipmill"],
        values.get("DataComp", []),
        items=count,
        missing=peer.reason,
    )
    hashed = answer_of(None, pools.__file__, "--step", "hash", "--folder", folder)
    return row, 1e6 * joined["cpu_s"] / count, 1e6 * hashed["cpu_s"] / count


# --- near-duplicates ------------------------------------------------------------------------------


def dedup(context: Context) -> Measured:
    """CPU of hashing an image, and of a search among hashes, beside imagededup."""
    peer = environment_of("imagededup")
    program = FOLDER / "duplicate_ways.py"
    paths = paths_of(context.photographs)[: context.count(HASHED, 20)]
    listed = context.work / "photographs.json"
    listed.write_text(json.dumps([str(path) for path in paths]))
    searched = context.count(SEARCHED, 1000)
    results = []
    for step, argument, items, unit, title in (
        ("hash", listed, len(paths), 1000, "CPU ms per image"),
        ("search", searched, searched, 1, f"CPU s for {searched:,} hashes"),
    ):

        def run(way: str, python: str | None, step: str = step, argument: Any = argument) -> float:
            answer = answer_of(python, program, way, step, str(argument))
            return float(answer["cpu_s"])

        ways = {"clipmill": lambda run=run: run("ours", None)}
        if peer.python is not None:
            ways["imagededup"] = lambda run=run: run("imagededup", peer.python)
        values = in_turns(ways, context.turns(DUPLICATE_TURNS))
        scale = unit / items if step == "hash" else 1.0
        results.append(
            row_of(
                "perceptual hash of a JPEG file"
                if step == "hash"
                else "pairs within 10 of 64 bits",
                title,
                1.0,
                "imagededup, PHash",
                (np.array(values["clipmill"]) * scale).tolist(),
                (np.array(values.get("imagededup", [])) * scale).tolist(),
                items=items,
                missing=peer.reason,
            )
        )
    return results, {"imagededup": peer.version}
