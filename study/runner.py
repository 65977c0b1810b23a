"""Gets the runs of an ablation done, here or on Ray."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from clipmill import ROOT
from clipmill.manifests import console, disk, ray_runtime
from clipmill.manifests.layout import AblationLayout, RunLayout
from clipmill.manifests.metrics import Metrics, deciding_metric
from clipmill.manifests.ray_runtime import Engine, settled
from clipmill.manifests.schema import Ablation, TaskSpec
from clipmill.study import arms
from clipmill.study.arms import ModelRun, Run, WorkRun, model_identity, scorer_run
from clipmill.train.evaluation.tasks import evaluate
from clipmill.train.sizing.device_fit import DEVICE_SHARE, usable_cores
from clipmill.verdict import wording
from clipmill.verdict.measurements import RunKey
from clipmill.verdict.rounds import ReadRun, Rounds, replay

# --------------------------------------------------------------------------------------------------
# One run: train it on one rank or several, and evaluate it; in a child process or a Ray task.


logger = logging.getLogger(__name__)


class Request(TypedDict):
    """A run and what to evaluate it on, as plain JSON values."""

    run: dict[str, Any]  # of a `WorkRun`
    tasks: list[dict[str, Any]]
    threads: int  # of all ranks together
    spread: bool  # the ranks are workers of Ray Train, on any machines of the cluster


class Answer(TypedDict, total=False):
    """What became of a run: its metrics by task, or an error."""

    metrics: dict[str, Metrics]
    error: str
    refused: bool  # a ValueError: a second attempt would end in the same way
    seconds: float


class RankFailed(RuntimeError):
    """A run of several ranks that ended without a result."""


def request_of(
    run: WorkRun, tasks: Sequence[TaskSpec], threads: int, *, spread: bool = False
) -> Request:
    """A run for `train_and_evaluate`."""
    return {
        "run": disk.to_plain(run),
        "tasks": disk.to_plain(tasks),
        "threads": threads,
        "spread": spread,
    }


def run_of(request: Request) -> WorkRun:
    """The run of a request."""
    run: WorkRun = disk.from_plain(WorkRun, request["run"], "run")
    return run


def train_and_evaluate(request: Request) -> Answer:
    """Train and evaluate one run, or evaluate a model; it never raises an Exception."""
    started = time.monotonic()
    answer = _answer(request)
    return {**answer, "seconds": time.monotonic() - started}


def _answer(request: Request) -> Answer:
    import torch

    torch.set_num_threads(request["threads"])
    try:
        run = run_of(request)
        if isinstance(run, Run) and request["spread"]:
            _train_on_cluster(run, request)
            return {"metrics": _evaluate_on_cluster(request)}
        if isinstance(run, Run) and run.ranks > 1:
            _train_on_ranks(run, request)
        elif isinstance(run, Run):
            _train(run)
        return {"metrics": evaluate_it(request)}
    except Exception as error:
        logger.exception("a run raised")
        return _error(error)


def _error(error: Exception) -> Answer:
    name = "" if isinstance(error, RankFailed) else f"{type(error).__name__}: "
    return {"error": f"{name}{error}", "refused": isinstance(error, ValueError)}


def _train(run: WorkRun) -> None:
    from clipmill.train.trainer import loop

    assert isinstance(run, Run)
    loop.train(run.blend, run.config, run.out)


def evaluate_it(request: Request) -> dict[str, Metrics]:
    """The metrics of a trained run or of a model that exists, by task. Its predictions are written,
    and model.json of a model.
    """
    from clipmill.train.parallel import checkpoint, process_group

    tasks = [disk.from_plain(TaskSpec, task) for task in request["tasks"]]
    run, identity = run_of(request), None
    layout = RunLayout(run.out)
    if isinstance(run, ModelRun):
        source, device, tokenizer = run.source, run.device, run.tokenizer
        identity = model_identity(source)
        weights = identity.files
    else:
        source, device, tokenizer = run.out, run.config.device, run.config.tokenizer
        weights = checkpoint.hashes_of(source)
    metrics: dict[str, Metrics] = evaluate(
        checkpoint.load_weights(source)[0],
        tasks,
        layout.predictions,
        tokenizer=tokenizer,
        device=process_group.init_distributed(device).device,
        weights=weights,
    )
    if identity:
        disk.write_json(layout.model_json, identity)  # last: the scores are whole
    return metrics


# --- several ranks --------------------------------------------------------------------------------


def _train_on_ranks(run: Run, request: Request) -> None:
    """Train as processes of this machine. ValueError or RankFailed with the message of a rank."""
    from clipmill.train.parallel import process_group

    ranks = run.ranks
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "request.json")
        disk.write_json(path, request)
        command = [sys.executable, "-m", "clipmill.study.child", path]
        threads = str(max(1, request["threads"] // ranks))
        variables = {"PYTHONPATH": ROOT, "OMP_NUM_THREADS": threads}
        variables["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")
        status = process_group.launch_ranks(command, ranks, variables)
        if status == 0:
            return
        if status == console.EXIT_SAVED or status > 128:
            raise SystemExit(status)
        answers = []
        for rank in range(ranks):
            if disk.exists(_answer_path(path, rank)):
                answers.append(disk.read_json(_answer_path(path, rank)))
        for answer in answers:
            if answer["refused"]:
                raise ValueError(answer["error"].removeprefix("ValueError: "))
        if status < 0:
            name = signal.Signals(-status).name
            raise RankFailed(f"one of {ranks} ranks died by {name}")
        raise RankFailed(answers[0]["error"] if answers else f"a rank ended with {status}")


def _answer_path(request_path: str, rank: int) -> str:
    return f"{request_path}.rank-{rank}"


def train_as_rank(path: str) -> int:
    """Train the run of a request file as the rank that the environment names. The exit status."""
    rank = int(os.environ["RANK"])
    console.start_logging(logging.INFO if rank == 0 else logging.ERROR)
    try:
        _train(run_of(disk.read_json(path)))
    except Exception as error:
        logger.exception("rank %d raised", rank)
        disk.write_json(_answer_path(path, rank), _error(error))
        return console.EXIT_MISTAKE if isinstance(error, ValueError) else console.EXIT_INCOMPLETE
    return 0


def _train_on_cluster(run: Run, request: Request) -> None:
    """Train as workers of Ray Train, inside a task of the same cluster."""
    from clipmill.train.parallel import ray_train

    status = ray_train.start(_train_as_ray_worker, [json.dumps(request)], run.out, run.ranks)
    if status:
        raise RankFailed(f"a worker of Ray Train failed (status {status}); its log says why")


def _train_as_ray_worker(arguments: list[str]) -> int:
    _train(run_of(json.loads(arguments[0])))
    return 0


def _evaluate_on_cluster(request: Request) -> dict[str, Metrics]:
    """Evaluate in a task that has a GPU of its own, where the cluster has GPUs."""
    import ray

    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    task = ray.remote(evaluate_it).options(num_cpus=1, num_gpus=gpus)
    metrics: dict[str, Metrics] = ray.get(task.remote(request))
    return metrics


# --- a warm process -------------------------------------------------------------------------------


def serve() -> int:
    """Answer every line of stdin with one line on stdout. All other output goes to stderr.

    The process ends with its parent: a run must not outlive the reader of its answer.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    console.start_logging()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read_requests() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read_requests, daemon=True).start()
    while True:
        answers.write(json.dumps(train_and_evaluate(json.loads(lines.get()))) + "\n")


# --------------------------------------------------------------------------------------------------
# Get the runs of an ablation done: several at a time, in warm child processes or as Ray tasks.
#
# A child imports torch once and keeps the decoded evaluation images, so that eighteen small runs
# do not pay for both eighteen times. The same function is a task on Ray.


ATTEMPTS = 2
PAUSE_S, LONGEST_PAUSE_S = 30.0, 300.0  # between lines of progress
SHOWN_RUNS = 4  # in a line of progress
STOP_SECONDS = 60  # a child that is told to stop saves its run after the present step


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
        finished = f", {len(outcomes)} of them are finished already" if outcomes else ""
        logger.info("%d runs%s", len(runs), finished)

    def report(outcome: Outcome) -> None:
        outcomes[outcome.run.out] = outcome
        _log(outcome, ablation.evaluate, len(outcomes), len(runs))

    if to_do:
        for path in (AblationLayout(out).results_json, AblationLayout(out).measurements):
            disk.remove(path)  # it is of other runs
        work = (to_do, ablation.evaluate, ablation.jobs, out, report)
        with _logged_progress(to_do, outcomes, len(runs)):
            if settled(engine) == "ray":
                run_on_ray(*work)
            elif children is None:
                run_in_children(*work)
            else:
                run_in_children(*work, children)
    return [outcomes[run.out] for run in runs]


def evaluate_scorer(ablation: Ablation, out: str) -> None:
    """Evaluate the scorer that the ablation trained on the primary task, in this process. Nothing
    is done where that was done before, or where there is no scorer. A scorer that cannot be
    evaluated is logged: the runs have their results without it.
    """
    run = scorer_run(ablation, out)
    tasks = [ablation.primary_task]
    if run is None or arms.finished_metrics(run, tasks) is not None:
        return
    answer = train_and_evaluate(request_of(run, tasks, threads_of(1)))
    if "error" in answer:
        text = "the scorer could not be evaluated on %s: %s"
        logger.warning(text, ablation.primary, answer["error"])


@contextlib.contextmanager
def _logged_progress(
    to_do: Sequence[WorkRun], outcomes: Mapping[str, Outcome], total: int
) -> Iterator[None]:
    """While the block runs, log from time to time which step the runs are at, by their log.jsonl.

    The lines come after 30 s and then less and less often, up to every 5 minutes.
    """
    before = {run.out: _last_step(run) for run in to_do}
    ended, started = threading.Event(), time.monotonic()

    def show() -> None:
        while not ended.wait(min(LONGEST_PAUSE_S, max(PAUSE_S, (time.monotonic() - started) / 4))):
            steps = []
            for run in to_do:
                step = _last_step(run) if run.out not in outcomes else None
                if step != before[run.out] and step is not None and isinstance(run, Run):
                    steps.append(f"{run_name(run)}: step {step:,} of {run.config.steps:,}")
            minutes = (time.monotonic() - started) / 60
            text = "%d/%d runs are done after %.1f minutes; %s"
            running = "; ".join(steps[:SHOWN_RUNS]) or "no step of a run is logged yet"
            more = f"; {len(steps) - SHOWN_RUNS} more" if len(steps) > SHOWN_RUNS else ""
            logger.info(text, len(outcomes), total, minutes, running + more)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _last_step(run: WorkRun) -> int | None:
    """The step of the last line of a run's log; None where there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
        line = disk.read_bytes(RunLayout(run.out).log).splitlines()[-1]
        return int(json.loads(line)["step"])
    return None


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
            metric = deciding_metric(task)
            value = outcome.metrics[task.name].get(metric, math.nan)
            values.append(f"{task.name} {metric} {value:.4f}")
        message = ", ".join(values)
    text = "%d/%d %s: %s (%.1f s)"
    logger.log(level, text, number, total, run_name(run), message, outcome.seconds)


def run_name(run: WorkRun) -> str:
    """The arm and the seed of a run, as a line of the log has them."""
    return wording.run_name(run.arm, run.seed)


def _outcome(run: WorkRun, answer: Answer, seconds: float) -> Outcome:
    """`seconds`, with the time in a queue of Ray, count where the answer has none."""
    error = answer.get("error", "")
    seconds = answer.get("seconds", seconds)
    return Outcome(run=run, metrics=answer.get("metrics"), error=error, seconds=seconds)


def _needs_retry(answer: Answer, attempts: int) -> bool:
    return "metrics" not in answer and not answer.get("refused") and attempts < ATTEMPTS


# --- child processes -----------------------------------------------------------------------------


def threads_of(jobs: int) -> int:
    """Threads for each of `jobs` runs at a time on this machine."""
    return max(1, usable_cores() // jobs)


def environment(number: int, jobs: int, gpus: int, ranks: int = 1) -> dict[str, str]:
    """Variables of child `number` of `jobs`: threads, the project's path and its GPUs.

    A child has `ranks` of the GPUs. Children that share GPUs, or the processor, share its memory.
    """
    # Threads that wait must not spin beside other work (see clipmill/__main__.py).
    variables = {"OMP_WAIT_POLICY": "passive", **console.child_variables()}
    variables |= {"OMP_NUM_THREADS": str(threads_of(jobs)), "PYTHONPATH": ROOT}
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

    def ask(self, request: Request) -> Answer:
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
        answer: Answer = json.loads(line)
        return answer

    def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "clipmill.study.child"],
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


@contextlib.contextmanager
def warm_children(runs: Sequence[WorkRun], jobs: int, out: str) -> Iterator[list[Child]]:
    """Children for several calls of `run_all`, of any of the runs; they end with the block. Each
    starts with its first run. None without a run: predictions that are given need no torch.
    """
    children = []
    if runs:
        import torch

        gpus, ranks = torch.cuda.device_count(), max(run.ranks for run in runs)
        logs = Path(tempfile.gettempdir()) / f"clipmill-{os.getpid()}"
        if not disk.is_url(out):
            logs = disk.local_path(out) / "logs"
        for number in range(jobs):
            log = logs / f"worker-{number}.log"
            children.append(Child(environment(number, jobs, gpus, ranks), log))
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
    if children is None:
        jobs = min(jobs, len(to_do))
        with warm_children(to_do, jobs, out) as children:
            return run_in_children(to_do, tasks, jobs, out, report, children)
    waiting = iter(to_do)
    lock = threading.Lock()
    stopped = threading.Event()

    def drive(child: Child) -> None:
        while not stopped.is_set():
            with lock:
                run = next(waiting, None)
            if run is None:
                return
            started, attempts, answer = time.monotonic(), 0, Answer()
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
            if not done:
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


# --- Ray -----------------------------------------------------------------------------------------


def run_on_ray(
    to_do: Sequence[WorkRun], tasks: Sequence[TaskSpec], jobs: int, out: str, report: Report
) -> None:
    """Do the runs as Ray tasks and report each outcome. `out` must be on shared storage."""
    threads = max(threads_of(jobs), *(run.ranks for run in to_do))
    embedded_before = ray_runtime.is_embedded()
    ray_runtime.connect(cpus=jobs * threads)
    try:
        _run_ray_tasks(to_do, tasks, jobs, report)
    finally:
        if not embedded_before:
            ray_runtime.disconnect()


def _run_ray_tasks(
    to_do: Sequence[WorkRun], tasks: Sequence[TaskSpec], jobs: int, report: Report
) -> None:
    import ray

    def submit(run: WorkRun) -> Any:
        nodes = ray.nodes()
        spread = _is_spread(run.ranks, nodes)
        threads, gpus = (run.ranks, 0) if spread else _node_share(run.ranks, jobs, nodes)
        remote = ray.remote(train_and_evaluate).options(
            # Ray Train's workers have the CPUs and GPUs of a spread run; its task only waits.
            num_cpus=0 if spread else threads,
            num_gpus=gpus,
            max_retries=0,
            scheduling_strategy="SPREAD",
        )
        return remote.remote(request_of(run, tasks, threads, spread=spread))

    for ranks in {run.ranks for run in to_do}:  # refused before the first run starts
        if not _is_spread(ranks, ray.nodes()):
            _node_share(ranks, jobs, ray.nodes())
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


def _node_share(ranks: int, jobs: int, nodes: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """CPUs and GPUs that a run asks of one node: a GPU for each rank where the cluster has GPUs,
    and the share of one of `jobs` runs in the CPUs of the largest node that has these GPUs.

    ValueError where no node can ever give them.
    """
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    gpus = ranks if any(each.get("GPU") for each in resources) else 0
    cpus = max((int(n.get("CPU", 0)) for n in resources if n.get("GPU", 0) >= gpus), default=0)
    cores = min(cpus, usable_cores()) if ray_runtime.is_one_machine() else cpus
    threads = max(1, ranks, cores // jobs)
    if threads > cpus:
        raise ValueError(
            f"ranks is {ranks}, and each needs a CPU of the node that runs it, but the largest "
            f"node with {gpus} of the cluster's GPUs offers {cpus}; start its Ray with a larger "
            "--num-cpus, or set fewer ranks"
        )
    return threads, gpus


def _is_spread(ranks: int, nodes: Sequence[Mapping[str, Any]]) -> bool:
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


# --- rounds ---------------------------------------------------------------------------------------


def run_rounds(
    ablation: Ablation, out: str, engine: Engine, read: ReadRun, looks: int = 1
) -> list[Outcome]:
    """Run round after round until no further one is needed. The outcomes of the trained runs.

    read: the score of a run that is finished and not stale. looks: as in `replay`.
    The children are kept from round to round: a start costs seconds of imports.
    """
    outcomes: dict[RunKey, Outcome] = {}
    failed: set[RunKey] = set()
    runs = arms.evaluated_runs(ablation, out)
    with warm_children(runs, ablation.jobs, out) as children:
        while True:
            rounds = replay(ablation, read, failed, looks)
            needed = [key for key in rounds.asked if key not in failed]
            _log_round(rounds)
            for outcome in run_all(ablation, out, engine, needed, children):
                outcomes.setdefault((outcome.run.arm, outcome.run.seed), outcome)
            if rounds.complete:
                return list(outcomes.values())
            failed |= {key for key, outcome in outcomes.items() if outcome.metrics is None}
            failed |= {key for key in needed if key[0] in ablation.arms and read(*key) is None}


def _log_round(rounds: Rounds) -> None:
    if rounds.complete:
        logger.info("all rounds are done")
        return
    seeds = max(rounds.seeds.values())
    arms = ", ".join(arm for arm, of_arm in rounds.seeds.items() if of_arm == seeds)
    logger.info("up to %d seeds of %s", seeds, arms)
