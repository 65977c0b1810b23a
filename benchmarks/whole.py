#!/usr/bin/env python3
"""The whole route at size: a made web of millions of pictures from WAT to report, through Ray, with
processes that are killed in every stage.

example: make bench-whole WHOLE="--folder /data/whole --pictures 2000000"

A web on loopback (benchmarks/scaling/web.py) knows what every link must become: five of a hundred
fail, one shows an earlier picture, one pair stands on two pages, three captions of ten are wrong.
The steps run through the commands: crawl, plan, fetch, scores and duplicates, views, lock, verify,
one run, an ablation with its report; then the pool moves to an S3 server and grows by a tenth. In
each, when a part of its files is there, a worker, the driver, a raylet or the web is killed, and
the same command is given again.

After it, every row must have the outcome that the web made, and the pictures of one row of a
hundred must equal, byte for byte, those of a pool that nothing disturbed. Memory is that of the
process tree, looked at twice a second.

A folder keeps what is done: the same command goes on with the next step, and stops before a step
after --minutes. Results, also of a part, go to benchmarks/results/whole.json and docs/measured.md.
Hours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import measured
from benchmarks.peers.rows import machine_kind
from benchmarks.scaling import processes, web
from clipmill.examples.miniweb import wat_file
from clipmill.examples.miniweb.links import Link
from clipmill.manifests import console, disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.pool import Pool
from tests.support.processes import is_alive
from tests.support.s3_server import BUCKET, s3_server, s3_variables

RESULTS = ROOT / "benchmarks/results/whole.json"
FILES, MORE_FILES = 20, 2  # WATs of the pool, and those by which it grows
HOSTS = 200
TRUSTED = 6400  # pictures with right captions, of which the scorer learns
CLASS_PICTURES = 10  # of each class of the task
SAMPLE = 100  # one row of so many is compared byte for byte
WEB_PAUSE_S = 15.0  # for which a killed web is away
INTERVAL_S = 0.5
OF_RAY = ("worker", "driver", "raylet")

RECIPE = """
name: whole
source: {{kind: wat, paths: ["{folder}/wats"]}}
fetch:
  user_agent: "whole/1 (whole@clipmill.example)"
  image_size: 64
  resize_mode: keep_ratio
  rows_per_shard: 5000
  per_host: 8
  allow_private: true
  connect_to: {{"*.whole.test": "127.1.0.1:{port}"}}
filters:
  - tokens
  - caption
  - picture
  - clip_score: {{model: "local-dir:{folder}/scorer/export"}}
  - duplicate: {{best: clip_score, on: perceptual, column: phash, radius: 0}}
views:
  raw: []
  clip30: [{{clip: "clip_score >= top(clip_score, 0.30)"}}]
  unique: [{{view: clip30}}, {{unique: duplicate_survivor}}]
"""
TRUSTED_RECIPE = """
name: whole_trusted
source: {{kind: image_folder, paths: ["{folder}/trusted"], captions: txt}}
fetch: {{image_size: 64}}
filters: [tokens]
views: {{all: []}}
"""
ABLATION = """
name: whole
question: Do the pairs that the CLIP score keeps train a better model than all pairs?
pools: {{web: {{out: "{folder}/pool"}}}}
arms: {{raw: web/raw, clip30: web/clip30, unique: web/unique}}
baseline: raw
seeds: [0, 1, 2]
train: {{preset: micro, samples_seen: 64k}}
evaluate:
  - {{name: colours, kind: classification, data: "{folder}/task"}}
primary: colours
equivalence: 0.01
jobs: 2
"""


# --- the web and its truth ------------------------------------------------------------------------


def kind_of(number: int) -> str:
    """What the web answers for a picture: one of web.KINDS, `drawn` or `copy`."""
    kind = web.path_of(number).split("/")[1]
    if kind != "ok":
        return kind
    return "copy" if number % 50 == 49 else "drawn"


def caption_of(number: int) -> str:
    """What the page says; a copy has the words of its original, which are right."""
    shown = web.original_of(number) if kind_of(number) == "copy" else number
    return f"{web.colours(shown)[1]}, picture {number}"


def outcome_of(kind: str) -> str:
    """`stored`, or the reason of a row that the web answers so."""
    reasons = {"gone": "http_4xx", "text": "not_an_image", "cut": "decode_error"}
    return reasons.get(kind, "stored")


def links(first: int, count: int) -> Iterator[Link]:
    """The links of one file. Of a hundred one stands there twice."""
    for number in range(first, first + count):
        link = Link(
            kind="clean",
            host=f"site{number % HOSTS}.whole.test",
            path=f"/{kind_of(number)}/{number}.jpg",
            caption=caption_of(number),
            true_caption="",
            right=True,
        )
        yield from [link, link] if number % 100 == 17 else [link]


def write_wat(folder: Path, file: int, count: int) -> int:
    """One WAT of `count` pictures; the bytes that it has."""
    items = list(links(file * count, count))
    content = wat_file.wat(wat_file.pages_of(items, seed=file), seed=file)
    target = folder / f"{file:05d}.warc.wat.gz"
    disk.write_bytes(str(target), content)
    return len(content)


class Web:
    """The web, which may be killed and is there again."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._stack = contextlib.ExitStack()
        self.start()

    def start(self) -> None:
        self.process, self.port = self._stack.enter_context(web.serving(1, self.port))

    def kill(self) -> None:
        """Gone for WEB_PAUSE_S, in the middle of its answers."""
        self.process.kill()
        self.process.wait()
        time.sleep(WEB_PAUSE_S)
        self.start()

    def close(self) -> None:
        self._stack.close()


# --- a command that is disturbed ------------------------------------------------------------------


@dataclass(slots=True)
class Disturbed:
    """A command with its kills, and what all its runs cost."""

    command: Sequence[str]
    log: Path
    done: Callable[[], float]  # the part of its work that is on disk, 0 to 1
    kills: Sequence[tuple[float, str]]  # at which part, and whom
    web: Web
    variables: Mapping[str, str] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)

    def run(self, most: int = 8) -> dict[str, Any]:
        """Give the command until it ends with 0. RuntimeError after `most` times."""
        started, waiting = time.perf_counter(), list(self.kills)
        cpu_s, longest, largest = 0.0, processes.Tree(0), 0
        while True:
            tree = self._run_once(waiting)
            cpu_s += sum(each.cpu_s for each in tree.seen.values())
            longest = max(longest, tree, key=lambda each: len(each.resident))
            largest = max(largest, *(each.peak_mib for each in tree.seen.values()))
            if self.statuses[-1] == 0:
                break
            if len(self.statuses) == most or self.statuses[-1] == 2:  # a mistake
                raise RuntimeError(f"{' '.join(self.command)}: {self.statuses}, see {self.log}")
        return {
            "wall_s": round(time.perf_counter() - started, 1),
            "cpu_s": round(cpu_s, 1),
            "driver_mib": longest.over_time(),  # of the longest run
            "largest_mib": largest,
            "killed": self.killed,
            "not_killed": [whom for _, whom in waiting],
            "statuses": self.statuses,
        }

    def _run_once(self, waiting: list[tuple[float, str]]) -> processes.Tree:
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=console.child_variables(**self.variables),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        tree = processes.Tree(process.pid)
        while process.poll() is None:
            tree.look()
            if waiting and self.done() >= waiting[0][0] and self._kill(waiting[0][1], tree):
                self.killed.append(waiting.pop(0)[1])
            time.sleep(INTERVAL_S)
        _wait_for_descendants(tree)
        self.statuses.append(process.returncode)
        return tree

    def _kill(self, whom: str, tree: processes.Tree) -> bool:
        """False where there is no such process yet."""
        if whom == "web":
            self.web.kill()
            return True
        if whom == "driver":
            os.kill(tree.pid, signal.SIGKILL)
            return True
        ids = [pid for pid, _ in tree.seen if pid != tree.pid and _is(pid, whom)]
        if ids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.Random(len(ids)).choice(sorted(ids)), signal.SIGKILL)
        return bool(ids)


def _is(pid: int, whom: str) -> bool:
    """Whether a process is of that kind: `rank` is any other Python child."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    if whom == "rank":
        return "python" in line and "ray" not in line
    if whom == "worker":
        return line.startswith("ray::Worker")  # the death of an agent ends its node
    return "ray/raylet/raylet" in line


def _wait_for_descendants(tree: processes.Tree, seconds: float = 120.0) -> None:
    """Wait until nothing of a command is left. RuntimeError where something stays."""
    until = time.monotonic() + seconds
    while left := [pid for pid, _ in tree.seen if is_alive(pid)]:
        if time.monotonic() > until:
            raise RuntimeError(f"processes stay after their command: {left}")
        time.sleep(INTERVAL_S)


def files_done(folder: Path, pattern: str, expected: int) -> Callable[[], float]:
    """The part of the expected files of a stage that is there."""
    return lambda: sum(1 for _ in folder.glob(pattern)) / expected


def samples_done(log: Path, expected: int) -> Callable[[], float]:
    """The part of the samples of a run that its log has; the line at its end may be cut."""

    def done() -> float:
        lines = log.read_bytes().splitlines()[:-1] if log.exists() else []
        return json.loads(lines[-1]).get("samples", 0) / expected if lines else 0.0

    return done


# --- the steps ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Whole:
    """The folder of a run, and its web."""

    folder: Path
    pictures: int
    web: Web

    @property
    def pool(self) -> Path:
        return self.folder / "pool"

    @property
    def each(self) -> int:
        """Pictures of a WAT."""
        return self.pictures // FILES

    def disturbed(
        self,
        name: str,
        words: Sequence[str],
        done: Callable[[], float] = lambda: 0.0,
        kills: Sequence[tuple[float, str]] = (),
        variables: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        log = self.folder / "logs" / f"{name}.log"
        return Disturbed(console.program(words), log, done, kills, self.web, variables or {}).run()

    def build(self, until: str, pattern: str, expected: int, *whom: str) -> dict[str, Any]:
        """A stage of the pool, killed at equal parts of its files."""
        parts = [(number / (len(whom) + 1), each) for number, each in enumerate(whom, 1)]
        words = ["build", str(self.folder / "recipe.yaml"), "--out", str(self.pool)]
        words += ["--engine", "ray", "--until", until]
        return self.disturbed(until, words, files_done(self.pool, pattern, expected), parts)

    # steps in their order; each returns its figures

    def wats(self) -> dict[str, Any]:
        """The WATs, the trusted pictures, the task and the recipes."""
        started = time.perf_counter()
        for name in ("wats", "later", "trusted", "logs"):
            (self.folder / name).mkdir(exist_ok=True)
        with ProcessPoolExecutor() as pool:
            jobs = [
                pool.submit(
                    write_wat, self.folder / ("wats" if n < FILES else "later"), n, self.each
                )
                for n in range(FILES + MORE_FILES)
            ]
            size = sum(job.result() for job in jobs)
        numbers = iter(range(10**9, 2 * 10**9))
        for number in (next(numbers) for _ in range(TRUSTED)):
            shown = web.colours(number)[0]
            (self.folder / f"trusted/{number}.jpg").write_bytes(web.drawn(number))
            (self.folder / f"trusted/{number}.txt").write_text(f"{shown}, picture {number}")
        classes: Counter[str] = Counter()
        while classes.total() < CLASS_PICTURES * len(web.COLOURS) ** 2:
            shown = web.colours(number := next(numbers))[0]
            if classes[shown] < CLASS_PICTURES:
                folder = self.folder / "task" / shown
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{classes[shown]:03d}.jpg").write_bytes(web.drawn(number))
                classes[shown] += 1
        values = {"folder": self.folder, "port": self.web.port}
        texts = {"recipe": RECIPE, "trusted": TRUSTED_RECIPE, "ablation": ABLATION}
        for name, text in texts.items():
            (self.folder / f"{name}.yaml").write_text(text.format(**values))
        return {"wall_s": round(time.perf_counter() - started, 1), "mib": size >> 20}

    def scorer(self) -> dict[str, Any]:
        """A small CLIP that has learned from right captions."""
        pool = self.folder / "trusted_pool"
        figures = self.disturbed(
            "trusted", ["build", str(self.folder / "trusted.yaml"), "--out", str(pool)]
        )
        words = ["train", "--mix", f"{pool}/all=1", "--out", str(self.folder / "scorer")]
        more = self.disturbed("scorer", [*words, "--preset", "micro", "--set", "samples_seen=64k"])
        return {key: round(figures[key] + more[key], 1) for key in ("wall_s", "cpu_s")}

    def crawl(self) -> dict[str, Any]:
        return self.build("crawl", "pairs/.extracted/*", FILES, *OF_RAY)

    def plan(self) -> dict[str, Any]:
        return self.build("plan", "pairs/part-*.parquet", FILES, *OF_RAY)

    def fetch(self) -> dict[str, Any]:
        """The pictures; rows that ended while the web was away are asked for again."""
        shards = -(-self.pictures // 5000)
        pattern = "shards/*_stats.json"
        figures = self.build("fetch", pattern, shards, "worker", "driver", "web", "raylet")
        before = dict(read_commits(str(self.pool)).totals.reasons)
        words = ["build", str(self.folder / "recipe.yaml"), "--out", str(self.pool)]
        words += ["--engine", "ray", "--until", "fetch", "--retry", "transient"]
        again = self.disturbed("retry", words)
        return {**figures, "reasons": before, "retry": again} | self.outcomes()

    def outcomes(self) -> dict[str, Any]:
        """What became of every link, against what the web made."""
        last: dict[str, tuple[int, str]] = {}  # url -> the last attempt
        rows = 0
        for sidecar in sorted((self.pool / "shards").glob("*.parquet")):
            table = pq.read_table(sidecar, columns=["url", "reason"])
            rows += len(table)
            for url, reason in zip(*(column.to_pylist() for column in table), strict=True):
                last[url] = (int(sidecar.stem.split(".")[0]), reason or "stored")
        wrong = Counter(
            f"{url.split('/')[3]}: {outcome}"
            for url, (_, outcome) in last.items()
            if outcome != outcome_of(url.split("/")[3])
        )
        return {"links": len(last), "attempts": rows, "wrong": dict(wrong)}

    def score(self) -> dict[str, Any]:
        """Columns of every filter, and the groups of equal pictures."""
        bundles = 4 * (-(-self.pictures // 5000))
        figures = self.build("score", "scores/*/*/*.parquet", bundles, *OF_RAY)
        return figures | self.duplicates()

    def duplicates(self) -> dict[str, Any]:
        """Of how many pictures shown twice both rows are in one group, and at most one survives."""
        pool, rows = Pool.open(str(self.pool)), {}
        columns = ["url", "duplicate_group", "duplicate_survivor"]
        sets = pool.sets_of(columns)
        for shard in pool.commits.shards.tolist():
            table = pool.read(shard, columns, sets)
            for url, group, survives in zip(*(c.to_pylist() for c in table), strict=True):
                number = int(url.rpartition("/")[2].partition(".")[0])
                if group is not None and (number % 50 in (47, 49)):
                    rows[number] = (group, survives)
        pairs = [(rows[n], rows[n - 2]) for n in rows if n % 50 == 49 and n - 2 in rows]
        wrong = sum(a[0] != b[0] or (a[1] and b[1]) for a, b in pairs)
        return {"shown_twice": len(pairs), "shown_twice_wrong": wrong}

    def choose(self) -> dict[str, Any]:
        return self.build("choose", "views/*.json", 3, "driver")

    def lock(self) -> dict[str, Any]:
        target = self.folder / "pool.lock.parquet"
        figures = self.disturbed("lock", ["audit", "lock", str(self.pool), str(target)])
        return {**figures, "mib": target.stat().st_size >> 20}

    def verify(self) -> dict[str, Any]:
        return self.disturbed("verify", ["audit", "verify", str(self.pool), "--engine", "ray"])

    def sample(self) -> dict[str, Any]:
        """One row of a hundred, fetched again into a pool that nothing disturbs: equal bytes?"""
        numbers = range(0, self.pictures, SAMPLE)
        urls = {}
        for number in numbers:
            path = f"{kind_of(number)}/{number}.jpg"
            urls[f"http://site{number % HOSTS}.whole.test/{path}"] = caption_of(number)
        table = pa.table({"url": list(urls), "caption": list(urls.values())})
        pq.write_table(table, self.folder / "sample.parquet")
        text = (self.folder / "recipe.yaml").read_text().partition("filters:")[0]
        text = text.replace("kind: wat", "kind: table").replace("/wats", "/sample.parquet")
        (self.folder / "sample.yaml").write_text(text)
        pool = self.folder / "sample"
        words = ["build", str(self.folder / "sample.yaml"), "--out", str(pool)]
        figures = self.disturbed("sample", [*words, "--engine", "inline"])
        ours = dict(_pictures(self.pool, set(urls)))
        theirs = dict(_pictures(pool, set(urls)))
        differ = sum(ours.get(url) != content for url, content in theirs.items())
        return {**figures, "compared": len(theirs), "differ": differ + len(ours) - len(theirs)}

    def train(self) -> dict[str, Any]:
        """One run that sees as many samples as there are pictures, on two ranks."""
        steps = self.pictures // 256
        words = ["train", "--mix", f"{self.pool}/unique=1", "--out", str(self.folder / "run")]
        words += ["--preset", "micro", "--ranks", "2", "--set", f"samples_seen={self.pictures}"]
        words += ["batch_size=256", f"checkpoint_every={max(1, steps // 20)}"]
        done = samples_done(self.folder / "run/log.jsonl", self.pictures)
        kills = [(0.3, "rank"), (0.6, "driver")]
        figures = self.disturbed("train", words, done, kills)
        task = self.folder / "task.yaml"
        task.write_text(f"name: colours\nkind: classification\ndata: {self.folder}/task\n")
        words = ["evaluate", str(self.folder / "run"), "--task", str(task)]
        evaluated = self.disturbed("evaluate", words)
        return {**figures, "evaluate": evaluated}

    def report(self) -> dict[str, Any]:
        """Three arms of three seeds, and the page."""
        out = self.folder / "study"
        words = ["build", str(self.folder / "ablation.yaml"), "--out", str(out)]
        done = files_done(out, "runs/*/*/eval/*.parquet", 9)
        return self.disturbed("report", words, done, [(0.3, "driver")])

    def move(self) -> dict[str, Any]:
        """The pool in a bucket: a copy of its files, and nothing else."""
        started = time.perf_counter()
        shutil.copytree(self.pool, self.folder / "s3" / BUCKET / "whole", dirs_exist_ok=True)
        return {"wall_s": round(time.perf_counter() - started, 1)}

    def grow(self) -> dict[str, Any]:
        """A tenth more links, in the bucket."""
        for path in (self.folder / "later").iterdir():
            shutil.copy2(path, self.folder / "wats" / path.name)
        with s3_server(self.folder / "s3") as url:
            variables = s3_variables(url) | {"AWS_MAX_ATTEMPTS": "3"}
            pool = f"s3://{BUCKET}/whole"
            words = ["build", str(self.folder / "recipe.yaml"), "--out", pool, "--engine", "ray"]
            shards = self.folder / "s3" / BUCKET / "whole" / "shards"
            before = sum(1 for _ in shards.glob("*_stats.json"))
            more = -(-self.each * MORE_FILES // 5000)

            def done() -> float:
                return (sum(1 for _ in shards.glob("*_stats.json")) - before) / more

            kills = [(0.2, "worker"), (0.4, "driver"), (0.6, "raylet")]
            figures = self.disturbed("grow", words, done, kills, variables)
            verified = self.disturbed("verify_s3", ["audit", "verify", pool], variables=variables)
        return {**figures, "verify": verified}


STEPS = (
    "wats",
    "scorer",
    "crawl",
    "plan",
    "fetch",
    "score",
    "choose",
    "lock",
    "verify",
    "sample",
    "train",
    "report",
    "move",
    "grow",
)


def _pictures(pool: Path, urls: set[str]) -> Iterator[tuple[str, bytes]]:
    """The stored bytes of some URLs."""
    columns = ["url", "image_offset", "image_length"]
    for sidecar in sorted((pool / "shards").glob("*.parquet")):
        rows = pq.read_table(sidecar, columns=columns).to_pylist()
        rows = [row for row in rows if row["image_length"] and row["url"] in urls]
        with open(sidecar.with_suffix(".tar"), "rb") as tar:
            for row in rows:
                tar.seek(row["image_offset"])
                yield row["url"], tar.read(row["image_length"])


# --- the page -------------------------------------------------------------------------------------

WHAT = {
    "crawl": "pairs of the WATs",
    "plan": "shards of the pairs",
    "fetch": "every picture, Ray",
    "score": "tokens, caption, picture, CLIP score, duplicates",
    "choose": "three views",
    "lock": "the lock file",
    "verify": "every file read again",
    "train": "one run, two ranks",
    "report": "three arms of three seeds, the page",
    "grow": "a tenth more, the pool in a bucket",
}


def table_lines(state: Mapping[str, Any]) -> Iterator[str]:
    """Each step that ran as a command, then what its rows must be and are."""
    steps = state["steps"]
    yield "| step | what | wall, s | CPU, s | killed | driver over time, MiB | largest, MiB |"
    yield "|---|---|---:|---:|---|---|---:|"
    for name, what in WHAT.items():
        if name in steps:
            each = steps[name]
            killed = ", ".join(each["killed"])
            memory = " ".join(map(str, each["driver_mib"]))
            yield (
                f"| {name} | {what} | {each['wall_s']:,.0f} | {each['cpu_s']:,.0f} | {killed} |"
                f" {memory} | {each['largest_mib']:,} |"
            )
    yield ""
    fetch, score, sample = steps["fetch"], steps["score"], steps["sample"]
    yield (
        f"Of {fetch['links']:,} links {sum(fetch['wrong'].values()):,} ended otherwise than the "
        f"web made them end, in {fetch['attempts']:,} attempts: rows that ended while the web was "
        "away were asked for again by `--retry transient`. Of "
        f"{score['shown_twice']:,} pictures shown twice {score['shown_twice_wrong']:,} are not in "
        f"one group with one survivor. Of {sample['compared']:,} pictures fetched again in peace "
        f"{sample['differ']:,} differ in a byte."
    )
    yield ""
    machine = state["machine"]
    yield (
        f"[Results](../benchmarks/results/whole.json): {state['date']}, {state['pictures']:,} "
        f"pictures, {machine['cores']} cores, {machine['processor']}."
    )


# --- the command ----------------------------------------------------------------------------------


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "out/whole", help="goes on there")
    parser.add_argument("--pictures", type=int, default=20_000, help="a multiple of 20,000")
    parser.add_argument("--minutes", type=float, default=150, help="begin no step after them")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv)
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "state.json"
    state = disk.read_json(str(path)) if path.exists() else {"pictures": args.pictures, "steps": {}}
    if state["pictures"] != args.pictures:
        raise SystemExit(f"error: {folder} is of --pictures {state['pictures']}")
    whole = Whole(folder, args.pictures, Web(state.get("port", 0)))
    state["port"] = whole.web.port
    until = time.monotonic() + 60 * args.minutes
    try:
        for step in STEPS:
            if step in state["steps"]:
                continue
            if time.monotonic() > until:
                print(f"{step} waits for the next start")
                return 0
            figures = getattr(whole, step)()
            figures["load"] = round(os.getloadavg()[0], 1)
            state["steps"][step] = figures
            disk.write_json(str(path), state)
            print(step, json.dumps(figures), flush=True)
    finally:
        whole.web.close()
        if "sample" in state["steps"]:
            kept = {key: state[key] for key in ("pictures", "steps")}
            kept |= {"date": datetime.now(UTC).date().isoformat(), "machine": machine_kind()}
            disk.write_json(str(args.out), kept)
            measured.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
