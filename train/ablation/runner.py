"""Get the runs of an ablation done: several at a time, in warm child processes or as Ray tasks.

A child imports torch once and keeps the decoded evaluation images, so that eighteen small runs do
not pay for both eighteen times. The same function is a task on Ray.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from manifests import disk, ray_runtime
from manifests.run_layout import AblationLayout
from manifests.schema import Ablation, TaskSpec
from train.ablation import arms, wording
from train.ablation.arms import Run, WorkRun
from train.ablation.worker import Json, request_of, train_and_evaluate
from train.capacity import DEVICE_SHARE
from train.evaluation import Metrics, kind_of

ROOT = Path(__file__).resolve().parents[2]
ATTEMPTS = 2
STOP_SECONDS = 60  # a child that is told to stop saves its run after the present step
Engine = Literal["inline", "ray"]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: with metrics per task or an error. `reused`: it was finished before."""

    run: WorkRun
    metrics: dict[str, Metrics] | None = None
    error: str = ""
    seconds: float = 0.0
    reused: bool = False


Report = Callable[[Outcome], None]


def run_all(
    ablation: Ablation,
    out: str,
    engine: Engine = "inline",
    only: Collection[tuple[str, int]] | None = None,
    children: Sequence[Child] | None = None,
) -> list[Outcome]:
    """Every run of `evaluated_runs`, `ablation.jobs` at a time; the outcomes are in its order.

    only: (arm, seed) of the runs that are wanted; None for all. children: processes that do the
    runs and stay (see `warm_children`); None: they are started and ended here.
    A finished run is reused. A run of other settings, or of a view that has changed since, is moved
    to runs/.replaced and done anew. A run that raises, or whose process dies, gets a second
    attempt; then its outcome has the error. A ValueError gets no second attempt.
    """
    runs = arms.evaluated_runs(ablation, out)
    if only is not None:
        runs = tuple(run for run in runs if (run.arm, run.seed) in only)
    for run in runs:
        if isinstance(run, Run):
            disk.write_json(AblationLayout(out).blend_json(run.blend_name), run.blend.document())
        replace_stale(run, out)
    outcomes: dict[str, Outcome] = {}
    for run in runs:
        metrics = arms.finished_metrics(run, ablation.evaluate)
        if metrics is not None:
            outcomes[run.out] = Outcome(run=run, metrics=metrics, reused=True)
    to_do = [run for run in runs if run.out not in outcomes]
    if runs:
        logger.info("%d runs, %d of them are finished already", len(runs), len(outcomes))

    def report(outcome: Outcome) -> None:
        outcomes[outcome.run.out] = outcome
        _log(outcome, ablation.evaluate, len(outcomes), len(runs))

    if to_do:
        disk.remove(AblationLayout(out).results_json)  # it is of other runs
        work = (to_do, ablation.evaluate, ablation.jobs, out, report)
        if engine == "ray":
            run_on_ray(*work)
        elif children is None:
            run_in_children(*work)
        else:
            run_in_children(*work, children)
    return [outcomes[run.out] for run in runs]


def replace_stale(run: WorkRun, out: str) -> None:
    """Move a run that is not this one out of the way, and log the reason in one line."""
    reasons = arms.stale_because(run)
    if not reasons:
        return
    target = arms.set_aside(run, out)
    logger.info(
        "%s is %s anew (%s); the old run is kept in %s",
        run_name(run),
        "trained" if isinstance(run, Run) else "evaluated",
        "; ".join(reasons[:3]),
        target,
    )


def _log(outcome: Outcome, tasks: Sequence[TaskSpec], number: int, total: int) -> None:
    run = outcome.run
    message, level = outcome.error, logging.ERROR
    if outcome.metrics is not None:
        level = logging.INFO
        values = []
        for task in tasks:
            metric = kind_of(task).headline
            values.append(f"{task.name} {metric} {outcome.metrics[task.name][metric]:.4f}")
        message = ", ".join(values)
    text = "%d/%d %s: %s (%.1f s)"
    logger.log(level, text, number, total, run_name(run), message, outcome.seconds)


def run_name(run: WorkRun) -> str:
    """The arm and the seed of a run, as a line of the log has them."""
    return wording.run_name(run.arm, run.seed)


def _outcome(run: WorkRun, answer: Json, seconds: float) -> Outcome:
    error = answer.get("error", "")
    return Outcome(run=run, metrics=answer.get("metrics"), error=error, seconds=seconds)


def _needs_retry(answer: Json, attempts: int) -> bool:
    return "metrics" not in answer and not answer.get("refused") and attempts < ATTEMPTS


# --- child processes -----------------------------------------------------------------------------


def threads_of(jobs: int) -> int:
    """Threads for each of `jobs` runs at a time on this machine."""
    return max(1, (os.cpu_count() or 1) // jobs)


def environment(number: int, jobs: int, gpus: int, ranks: int = 1) -> dict[str, str]:
    """Variables of child `number` of `jobs`: threads, the project's path and its GPUs.

    A child has `ranks` of the GPUs. Children that share GPUs, or the processor, share its memory.
    """
    # Threads that wait must not spin beside other work (see run.py).
    variables = {"OMP_WAIT_POLICY": "passive", **os.environ}
    variables |= {"OMP_NUM_THREADS": str(threads_of(jobs)), "PYTHONPATH": str(ROOT)}
    sets = max(1, gpus // ranks)
    if gpus > 1:
        every = ",".join(map(str, range(gpus)))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", every).split(",")
        first = number % sets * ranks
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(visible[first : first + ranks])
    sharing = [other for other in range(jobs) if other % sets == number % sets]
    variables[DEVICE_SHARE] = str(len(sharing))
    return variables


class Child:
    """A warm process that does one run at a time. It starts on request, also after it died."""

    def __init__(self, variables: dict[str, str], log: Path) -> None:
        self.variables, self.log = variables, log
        self.process: subprocess.Popen[str] | None = None
        self._closed = False
        self._starting = threading.Lock()

    def ask(self, request: Json) -> Json:
        """The answer of `train_and_evaluate`, or {"error": …} if the process died over it."""
        with self._starting:
            if self._closed:
                return {"error": "stopped"}
            if self.process is None or self.process.poll() is not None:
                self._release()
                self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line.endswith("\n"):
            code = self.process.wait()
            return {"error": f"its process ended with {code} (see {self.log})"}
        answer: Json = json.loads(line)
        return answer

    def _start(self) -> None:
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
                start_new_session=True,  # Ctrl-C reaches the parent alone, which stops the child
            )

    def stop(self) -> None:
        """Ask the process to save its run and to end. It does so after the present step."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def end(self, wait_s: float = 0.0) -> None:
        """Wait `wait_s` seconds at most for the process to end, then kill it. No other starts."""
        with self._starting:
            self._closed = True
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)
        self._release()

    def _release(self) -> None:
        """Kill the process and close its pipes."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def make_children(jobs: int, ranks: int, out: str) -> list[Child]:
    """`jobs` children for runs of `ranks` processes. Each starts with its first run."""
    import torch

    gpus, logs = torch.cuda.device_count(), _log_folder(out)
    children = []
    for number in range(jobs):
        variables = environment(number, jobs, gpus, ranks)
        children.append(Child(variables, logs / f"worker-{number}.log"))
    return children


@contextlib.contextmanager
def warm_children(runs: Sequence[WorkRun], jobs: int, out: str) -> Iterator[list[Child]]:
    """Children for several calls of `run_all`, of any of the runs; they end with the block."""
    children = make_children(jobs, max((run.ranks for run in runs), default=1), out)
    try:
        yield children
    finally:
        _end(children, 0.0)


def run_in_children(
    to_do: Sequence[WorkRun],
    tasks: Sequence[TaskSpec],
    jobs: int,
    out: str,
    report: Report,
    children: Sequence[Child] | None = None,
) -> None:
    """Do the runs in `jobs` warm child processes and report each outcome.

    children: those that do the runs and stay; None: new ones, which end here. On
    KeyboardInterrupt the children save their runs and end. A second one kills them.
    """
    stay = children is not None
    if children is None:
        jobs = min(jobs, len(to_do))
        children = make_children(jobs, max(run.ranks for run in to_do), out)
    waiting = iter(to_do)
    lock = threading.Lock()
    stopped = threading.Event()

    def drive(child: Child) -> None:
        while not stopped.is_set():
            with lock:
                run = next(waiting, None)
            if run is None:
                return
            started, attempts, answer = time.monotonic(), 0, Json()
            while not stopped.is_set() and (attempts == 0 or _needs_retry(answer, attempts)):
                answer = child.ask(request_of(run, tasks, threads_of(jobs)))
                attempts += 1
            # A run that was stopped has no outcome, unless its answer came in time.
            if not stopped.is_set() or "metrics" in answer:
                with lock:
                    report(_outcome(run, answer, time.monotonic() - started))

    with ThreadPoolExecutor(max_workers=jobs) as threads:
        wait_s, done = 0.0, False
        try:
            for future in [threads.submit(drive, child) for child in children]:
                future.result()
            done = True
        except KeyboardInterrupt:
            wait_s = STOP_SECONDS
            logger.info("stopping: each run is saved after its present step")
            raise
        finally:
            # A thread that waits for the answer of its child ends with the child.
            stopped.set()
            if not (done and stay):
                _end(children, wait_s)


def _end(children: Sequence[Child], wait_s: float) -> None:
    """End all children; those that may save their runs first have `wait_s` seconds together."""
    deadline = time.monotonic() + wait_s
    try:
        if wait_s:
            for child in children:
                child.stop()
            for child in children:
                child.end(max(0.0, deadline - time.monotonic()))
    finally:
        for child in children:
            child.end()


def _log_folder(out: str) -> Path:
    if disk.is_url(out):
        return Path(tempfile.gettempdir()) / f"clipmill-{os.getpid()}"
    return disk.local_path(out) / "logs"


# --- Ray -----------------------------------------------------------------------------------------


def run_on_ray(
    to_do: Sequence[WorkRun], tasks: Sequence[TaskSpec], jobs: int, out: str, report: Report
) -> None:
    """Do the runs as Ray tasks and report each outcome. `out` must be on shared storage."""
    threads = max(threads_of(jobs), *(run.ranks for run in to_do))
    embedded_before = ray_runtime.is_embedded()
    ray_runtime.connect(cpus=jobs * threads)
    try:
        _run_ray_tasks(to_do, tasks, threads, report)
    finally:
        if not embedded_before:
            ray_runtime.disconnect()


def _run_ray_tasks(
    to_do: Sequence[WorkRun], tasks: Sequence[TaskSpec], threads: int, report: Report
) -> None:
    import ray

    def submit(run: WorkRun) -> Any:
        spread = _is_spread(run.ranks, ray.nodes())
        gpus = run.ranks if ray.cluster_resources().get("GPU") else 0
        remote = ray.remote(train_and_evaluate).options(
            # Ray Train's workers have the CPUs and GPUs of a spread run; its task only waits.
            num_cpus=0 if spread else threads,
            num_gpus=0 if spread else gpus,
            max_retries=0,
            scheduling_strategy="SPREAD",
        )
        return remote.remote(request_of(run, tasks, threads, spread=spread))

    started = {run.out: time.monotonic() for run in to_do}
    pending = {submit(run): (run, 1) for run in to_do}
    while pending:
        (reference,), _ = ray.wait(list(pending), num_returns=1)
        run, attempts = pending.pop(reference)
        try:
            answer = ray.get(reference)
        except ray.exceptions.RayError as error:
            answer = {"error": f"its process died: {' '.join(str(error).split())}"}
        if _needs_retry(answer, attempts):
            pending[submit(run)] = (run, attempts + 1)
        else:
            report(_outcome(run, answer, time.monotonic() - started[run.out]))


def _is_spread(ranks: int, nodes: Sequence[Json]) -> bool:
    """Whether a run's ranks need several machines. ValueError where the cluster is too small."""
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    kind = "GPU" if any(each.get("GPU") for each in resources) else "CPU"
    counts = [int(each.get(kind, 0)) for each in resources]
    if ranks > sum(counts):
        raise ValueError(
            f"ranks is {ranks}, but the cluster has {sum(counts)} {kind}s; set ranks to at most "
            "that, or add machines"
        )
    return ranks > max(counts)
