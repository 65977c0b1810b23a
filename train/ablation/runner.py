"""An ablation's runs: which there are, and how they get done, several at a time, in processes that stay warm.

`python -m train.ablation.child` is such a process: it reads one run per line as JSON and answers each with one line. It imports
torch once and keeps the decoded evaluation pictures, so that eighteen small runs do not pay for that eighteen times.
On Ray the same function is a task.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from manifests import disk, reader
from manifests.schema import Ablation, Blend, TaskSpec
from train import loop
from train.config import TrainConfig, configure
from train.dist import process_group
from train.evaluation import HEADLINE, Metrics, zero_shot
from train.formats import open_clip_files
from train.identity import deciding_settings, differences, view_hashes

ROOT = Path(__file__).resolve().parents[2]
A_A = "a_a"
A_A_SEEDS = 1000  # added to the ablation's seeds
TRIES = 2
Engine = Literal["inline", "ray"]
Json = dict[str, Any]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run of an arm. `pair` is the ablation's seed that it stands for (A/A runs have another `seed`)."""

    arm: str
    seed: int
    pair: int
    blend: Blend
    config: TrainConfig
    out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: with metrics per task, or with an error. `reused`: it had been done before."""

    run: Run
    metrics: dict[str, Metrics] | None = None
    error: str = ""
    seconds: float = 0.0
    reused: bool = False


# --- which runs there are ------------------------------------------------------------------------------------------


def expand(ablation: Ablation, out: str, *, built: bool = True) -> tuple[Run, ...]:
    """Every run: arms, then a random subset for each arm that asks for one, then A/A; each with every seed.

    ValueError for an arm that is neither POOL/VIEW nor a blend, for training settings that do not exist and, where
    the pools are `built`, for a view that is missing, with the command that makes it.
    """
    config = configure(ablation.train)
    blends = {arm: _blend(ablation, out, arm) for arm in ablation.arms}
    for arm in ablation.controls.random_like:
        blends[f"random_like_{arm}"] = _random(ablation, out, arm)
    arms = [(arm, blend, 0) for arm, blend in blends.items()]
    if ablation.controls.a_a:
        if {seed + A_A_SEEDS for seed in ablation.seeds} & set(ablation.seeds):
            raise ValueError(
                f"seeds are {list(ablation.seeds)}: A/A runs take each + {A_A_SEEDS}; choose others"
            )
        arms.append((A_A, blends[ablation.controls.a_a], A_A_SEEDS))
    if built:
        for blend in blends.values():
            _views_exist(ablation, blend)
    return tuple(
        Run(
            arm=arm,
            seed=seed + shift,
            pair=seed,
            blend=blend,
            config=replace(config, seed=seed + shift),
            out=disk.join(out, "runs", arm, f"seed-{seed + shift}"),
        )
        for arm, blend, shift in arms
        for seed in ablation.seeds
    )


def _blend(ablation: Ablation, out: str, arm: str) -> Blend:
    """What an arm draws: POOL/VIEW, or a blend read from its file."""
    what = ablation.arms[arm]
    if arm == A_A or arm.startswith("random_like_") or not re.fullmatch(r"[\w.-]+", arm):
        raise ValueError(
            f"arm {arm!r}: choose a name of letters, digits, '.', '_' and '-' that no control has"
        )
    if what.endswith((".yaml", ".yml", ".json")):
        return reader.read_manifest(what, Blend)
    pool, _, view = what.partition("/")
    if not view or pool not in ablation.pools:
        raise ValueError(
            f"arm {arm!r} is {what!r}; it must be POOL/VIEW with a pool of {sorted(ablation.pools)}"
        )
    return Blend(name=arm, pools={pool: ablation.pool_folder(out, pool)}, views={what: 1.0})


def _random(ablation: Ablation, out: str, arm: str) -> Blend:
    """The random subset of an arm's pool that is as large as the arm's view."""
    what = ablation.arms[arm]
    pool, _, view = what.partition("/")
    if pool not in ablation.pools:
        raise ValueError(
            f"controls.random_like: arm {arm!r} is a blend; only POOL/VIEW has a random subset of its size"
        )
    return Blend(
        name=f"random_like_{arm}",
        pools={pool: ablation.pool_folder(out, pool)},
        views={f"{pool}/random_like_{view}": 1.0},
    )


def _views_exist(ablation: Ablation, blend: Blend) -> None:
    for name in blend.views:
        pool, _, view = name.partition("/")
        folder = blend.pools[pool]
        if disk.exists(disk.join(folder, "views", f"{view}.json")):
            continue
        how = (
            f"--recipe {ablation.pools[pool].recipe or 'RECIPE'}"
            if pool in ablation.pools
            else "--recipe RECIPE"
        )
        if view.startswith("random_like_"):
            like = view.removeprefix("random_like_")
            how = f"--random-like {like} --seed {ablation.controls.random_seed}"
        raise ValueError(f"{name} is no view yet: run python pipeline/filter.py {folder} {how}")


# --- one run -------------------------------------------------------------------------------------------------------


def done(run: Run, tasks: Sequence[TaskSpec]) -> dict[str, Metrics] | None:
    """Every task's metrics of a run that has ended before; None where work is left.

    ValueError where the folder holds a run of other settings, or of a view that has been built anew since.
    """
    path = disk.join(run.out, "run.json")
    if not disk.exists(path):
        return None
    record = disk.read_json(path)
    saved = {k: record["identity"][k] for k in ("config", "views")}
    saved["blend"] = {k: record["blend"][k] for k in ("views", "seed")}
    now = {
        "config": deciding_settings(run.config),
        "views": view_hashes(run.blend),
        "blend": {"views": dict(run.blend.views), "seed": run.blend.seed},
    }
    if different := differences(saved, now):
        raise ValueError(
            f"{run.out} holds another run ({'; '.join(different[:3])}): remove it, or choose another --out"
        )
    found = {task.name: zero_shot.measured(disk.join(run.out, "eval"), task) for task in tasks}
    whole = {name: metrics for name, metrics in found.items() if metrics is not None}
    return whole if len(whole) == len(tasks) else None


def request(run: Run, tasks: Sequence[TaskSpec], threads: int) -> Json:
    """A run as plain JSON values, for `work`."""
    return {
        "blend": disk.to_plain(run.blend),
        "config": disk.to_plain(run.config),
        "out": run.out,
        "tasks": disk.to_plain(tasks),
        "threads": threads,
    }


def work(asked: Json) -> Json:
    """Train and evaluate one run. {"metrics": …} or {"error": text, "refused": a person's mistake?}; never raises."""
    import torch

    torch.set_num_threads(asked["threads"])
    config: TrainConfig = disk.from_plain(TrainConfig, asked["config"])
    tasks = [disk.from_plain(TaskSpec, task) for task in asked["tasks"]]
    try:
        loop.train(disk.from_plain(Blend, asked["blend"]), config, asked["out"])
        model = open_clip_files.load_export(disk.join(asked["out"], "export"))
        device = process_group.init_distributed(config.device).device
        folder = disk.join(asked["out"], "eval")
        return {
            "metrics": zero_shot.evaluate(
                model, tasks, folder, tokenizer=config.tokenizer, device=device
            )
        }
    except Exception as error:
        logger.exception("a run raised")
        return {
            "error": f"{type(error).__name__}: {error}",
            "refused": isinstance(error, ValueError),
        }


# --- all runs ------------------------------------------------------------------------------------------------------


def run_all(ablation: Ablation, out: str, engine: Engine = "inline") -> list[Outcome]:
    """Every run of `expand`, `ablation.jobs` at a time, in its order; what is done already is not done again.

    A run that raises, or whose process dies, is tried once more; then its outcome says why. A person's mistake
    (ValueError) is not tried again. ValueError where a run's folder holds another run.
    """
    runs = expand(ablation, out)
    for run in runs:
        disk.write_json(disk.join(out, "blends", f"{run.arm}.json"), run.blend)
    before = {run.out: done(run, ablation.evaluate) for run in runs}
    ended = {
        r.out: Outcome(run=r, metrics=before[r.out], reused=True)
        for r in runs
        if before[r.out] is not None
    }
    todo = [run for run in runs if run.out not in ended]
    logger.info("%d runs, of which %d are done already", len(runs), len(ended))

    def report(outcome: Outcome) -> None:
        ended[outcome.run.out] = outcome
        _log(outcome, ablation.evaluate, len(ended), len(runs))

    if todo:
        go = _on_ray if engine == "ray" else _in_children
        go(todo, ablation.evaluate, ablation.jobs, out, report)
    return [ended[run.out] for run in runs]


def _log(outcome: Outcome, tasks: Sequence[TaskSpec], number: int, of: int) -> None:
    run = outcome.run
    said = outcome.error
    if outcome.metrics is not None:
        said = ", ".join(
            f"{t.name} {HEADLINE[t.kind]} {outcome.metrics[t.name][HEADLINE[t.kind]]:.4f}"
            for t in tasks
        )
    level = logging.INFO if outcome.metrics is not None else logging.ERROR
    logger.log(
        level, "%d/%d %s seed %d: %s (%.1f s)", number, of, run.arm, run.seed, said, outcome.seconds
    )


def _outcome(run: Run, answer: Json, seconds: float) -> Outcome:
    return Outcome(
        run=run, metrics=answer.get("metrics"), error=answer.get("error", ""), seconds=seconds
    )


def _again(answer: Json, tried: int) -> bool:
    return "metrics" not in answer and not answer.get("refused") and tried < TRIES


def threads_of(jobs: int) -> int:
    """Threads for each of `jobs` runs at a time on this machine."""
    return max(1, (os.cpu_count() or 1) // jobs)


def environment(number: int, jobs: int, gpus: int) -> dict[str, str]:
    """Variables of child `number`: its threads, where this project lies and, of several GPUs, the one that it takes."""
    variables = {
        "OMP_WAIT_POLICY": "passive",
        **os.environ,
    }  # see run.py: threads must not spin beside other work
    variables |= {"OMP_NUM_THREADS": str(threads_of(jobs)), "PYTHONPATH": str(ROOT)}
    if gpus > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
        variables["CUDA_VISIBLE_DEVICES"] = visible[number % gpus]
    return variables


class Child:
    """A warm process that does one run at a time; started when asked first, and again after it died."""

    def __init__(self, variables: dict[str, str], log: Path) -> None:
        self.variables, self.log = variables, log
        self.process: subprocess.Popen[str] | None = None

    def ask(self, asked: Json) -> Json:
        """The answer of `work`, or {"error": …} where the process died over it."""
        if self.process is None or self.process.poll() is not None:
            self.end()
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log, "a") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "train.ablation.child"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self.variables,
                    cwd=ROOT,
                    text=True,
                )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line.endswith("\n"):
            code = self.process.wait()
            return {"error": f"its process ended with {code} (see {self.log})"}
        answer: Json = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _in_children(
    todo: Sequence[Run],
    tasks: Sequence[TaskSpec],
    jobs: int,
    out: str,
    report: Callable[[Outcome], None],
) -> None:
    import torch

    jobs = min(jobs, len(todo))
    waiting = iter(todo)
    lock = threading.Lock()
    logs = (
        Path(tempfile.gettempdir()) / f"clipmill-{os.getpid()}"
        if disk.is_url(out)
        else disk.local_path(out) / "logs"
    )
    gpus = torch.cuda.device_count()
    children = [Child(environment(n, jobs, gpus), logs / f"worker-{n}.log") for n in range(jobs)]
    stopped = threading.Event()

    def drive(child: Child) -> None:
        while not stopped.is_set():
            with lock:
                run = next(waiting, None)
            if run is None:
                return
            started, tried, answer = time.monotonic(), 0, Json()
            while not stopped.is_set() and (tried == 0 or _again(answer, tried)):
                answer = child.ask(request(run, tasks, threads_of(jobs)))
                tried += 1
            with lock:
                report(_outcome(run, answer, time.monotonic() - started))

    with ThreadPoolExecutor(max_workers=jobs) as threads:
        try:
            for future in [threads.submit(drive, child) for child in children]:
                future.result()
        finally:  # Ctrl-C too: a thread that waits for its child's answer ends with the child
            stopped.set()
            for child in children:
                child.end()


# --- Ray -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _ray(jobs: int) -> Iterator[Any]:
    """Ray: the cluster that RAY_ADDRESS names (`ray job submit` sets it), or one inside this process for the block."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # Ray's coming default; without it Ray warns
    import ray

    settings: Json = {
        "runtime_env": {"env_vars": {"PYTHONPATH": str(ROOT)}},
        "log_to_driver": False,
        "logging_level": "error",
    }
    folder = None
    if not ray.is_initialized() and not os.environ.get("RAY_ADDRESS"):
        folder = tempfile.mkdtemp(
            prefix="arms-", dir="/tmp"
        )  # short: a socket's path has at most 107 characters
        settings |= {
            "address": "local",
            "num_cpus": jobs * threads_of(jobs),
            "include_dashboard": False,
            "object_store_memory": 128 * 2**20,  # requests and metrics only
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": folder,
        }
    joined = ray.is_initialized()
    if not joined:
        ray.init(**settings)
    try:
        yield ray
    finally:
        if not joined:
            ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _on_ray(
    todo: Sequence[Run],
    tasks: Sequence[TaskSpec],
    jobs: int,
    out: str,
    report: Callable[[Outcome], None],
) -> None:
    threads = threads_of(jobs)
    with _ray(jobs) as ray:
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        task = ray.remote(work).options(
            num_cpus=threads, num_gpus=gpus, max_retries=0, scheduling_strategy="SPREAD"
        )
        started = {run.out: time.monotonic() for run in todo}
        pending = {task.remote(request(run, tasks, threads)): (run, 1) for run in todo}
        while pending:
            (reference,), _ = ray.wait(list(pending), num_returns=1)
            run, tried = pending.pop(reference)
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayError as error:
                answer = {"error": f"its process died: {' '.join(str(error).split())}"}
            if _again(answer, tried):
                pending[task.remote(request(run, tasks, threads))] = (run, tried + 1)
            else:
                report(_outcome(run, answer, time.monotonic() - started[run.out]))


# --- the child -----------------------------------------------------------------------------------------------------


def main() -> int:
    """Answer every line of stdin with one on stdout; what anything else prints goes to stderr. Ends with its parent."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> (
        None
    ):  # a thread: a run must not outlive the parent that would have read its answer
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        answers.write(json.dumps(work(json.loads(lines.get()))) + "\n")
