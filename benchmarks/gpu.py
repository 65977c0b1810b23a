#!/usr/bin/env python3
"""How fast a training step is: ours and open_clip's on one device, in ten minutes, with torch and
little else.

example: python benchmarks/gpu.py --wheels .whl --out results/gpu.json
example: python benchmarks/gpu.py --device cpu --models micro --batch 64 --threads 1

Cells are a model, a program (ours, open_clip with --torchcompile and no checkpointing), captions
padded to the context or packed, pictures in the device's memory or from shards. Each runs in a
process of its own, so that one without memory costs one cell; they run in the order of what they
say, and those that the time does not allow are listed as not run. The batch is the largest that
fits (a model's packed and sharded cells take that of the padded one). Every cell warms up and is
then measured --repeats times; on a processor the cells of a model take turns. Bars are printed as
measured ÷ goal. open_clip and what it needs may lie in --wheels as wheels.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import queue
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BEGAN = time.monotonic()  # before torch is imported: the time that is allowed holds for all of it
ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from benchmarks import gpu_data
from benchmarks.gpu_results import Cell, bars, line_of
from clipmill.manifests import disk
from clipmill.train.model.architecture import MODELS
from clipmill.train.sizing.device_fit import peak_flops

MODELS_MEASURED = ["ViT-B-32", "ViT-L-14", "ViT-H-14", "ViT-g-14"]
ENOUGH_S = 40.0  # a cell is begun with so much time left, on a GPU
# Seconds after which a program is ended; open_clip is compiled as one graph
LONGEST_S = {"ours": 150.0, "open_clip": 300.0}
PROFILE_S = 30.0  # of a cell at most, on a GPU
END_S = 8.0  # kept for the results
MEMORY = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # packed batches differ in size


def plan(models: list[str], programs: list[str]) -> list[Cell]:
    """The cells, what matters most first."""
    order = [("ours", "padded", "memory"), ("open_clip", "padded", "memory")]
    large = [model for model in models if model == "ViT-g-14"]
    rest = [model for model in models if model not in large]
    keys = [(model, *kind) for model in rest for kind in order]
    keys += [(model, *order[0]) for model in large]
    keys += [(model, "ours", "packed", "memory") for model in models[:1]]
    keys += [(model, "ours", "packed", "shards") for model in models[:2]]
    keys += [(model, "ours", "packed", "memory") for model in models[1:]]
    keys += [(model, *order[1]) for model in large]
    keys += [(model, "ours", "packed", "shards") for model in models[2:]]
    names = ("model", "program", "captions", "data")
    return [dict(zip(names, key, strict=True)) for key in keys if key[1] in programs]


class Child:
    """A process that measures one cell. It imports what it needs at once and waits for `ask`."""

    def __init__(self, cell: Cell, job: dict[str, Any], folder: Path, number: int) -> None:
        self.cell, self.began = cell, time.monotonic()
        self.errors = folder / f"{number}.err"
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "benchmarks" / "gpu_step.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
                env={**MEMORY, **os.environ},
            )
        self.answers: queue.Queue[str] = queue.Queue()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()
        self._send(json.dumps({**job, **cell}))

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")  # it has ended

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer will say so
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def ask(self, command: str, limit_s: float) -> dict[str, Any]:
        """The answer. TimeoutError after `limit_s`; RuntimeError with the last words of a process
        that has ended.
        """
        self._send(command)
        try:
            line = self.answers.get(timeout=max(0.0, limit_s))
        except queue.Empty:
            raise TimeoutError(
                f"no answer to {command.split()[0]} within {limit_s:.0f} s"
            ) from None
        if not line:
            words = self.errors.read_text(errors="replace").strip().splitlines()
            raise RuntimeError(
                words[-1][:300] if words else f"ended with status {self.process.wait()}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Stop it, whatever it does."""
        self.process.kill()
        self.process.wait()
        self.listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


# --- measuring ------------------------------------------------------------------------------------


def measure(
    children: list[Child], args: argparse.Namespace, until: float, batches: dict[str, int]
) -> list[Cell]:
    """The cells of these children, a repeat of each in turn."""
    answers: dict[int, list[dict[str, Any]]] = {}
    results: list[Cell] = [{**child.cell, "state": "failed"} for child in children]

    def ask(k: int, command: str, end: float) -> dict[str, Any] | None:
        if "why" in results[k]:
            return None
        try:
            return children[k].ask(command, end - time.monotonic())
        except (TimeoutError, RuntimeError) as error:
            results[k]["why"] = str(error)
            return None

    for k, child in enumerate(children):
        began = time.monotonic()
        limit = min(
            LONGEST_S[child.cell["program"]] if args.device != "cpu" else until - began,
            until - began,
        )
        known = args.batch or (
            0 if child.cell["program"] == "open_clip" else batches.get(child.cell["model"], 0)
        )
        answer = ask(k, f"prepare {limit:.0f} {known}", began + limit)
        if answer is not None:
            results[k] |= {"batch": answer["batch"], "prepared": answer}
            if child.cell["program"] == "ours":
                batches.setdefault(child.cell["model"], answer["batch"])
    for turn in range(args.repeats):
        order = list(range(len(children)))
        for k in order if turn % 2 == 0 else reversed(order):
            answer = ask(k, "repeat", until)
            if answer is not None:
                answers.setdefault(k, []).append(answer)
    for k, child in enumerate(children):
        if k in answers:
            whole = len(answers[k]) == args.repeats
            results[k] |= {"state": "measured" if whole else "partly", **_summary(answers[k], args)}
        if child.cell["program"] == "ours" and not args.no_profile:
            longest = PROFILE_S if args.device != "cpu" else until - time.monotonic()
            results[k]["profile"] = ask(k, "profile", min(until, time.monotonic() + longest))
        results[k]["seconds"] = time.monotonic() - child.began
        child.end()
    return results


def _summary(answers: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """Mean and deviation over the repeats, and what follows from them."""
    last, rates = answers[-1], [answer["samples_per_s"] for answer in answers]
    of_cpu = [answer["samples_per_cpu_s"] for answer in answers]
    mean = statistics.mean(rates)
    flops = statistics.mean(answer["flops_per_sample"] for answer in answers)
    peak = peak_flops(args.device_name, args.precision)
    return {
        "samples_per_s": _spread(rates),
        "samples_per_cpu_s": _spread(of_cpu),
        "gflop_per_sample": flops / 1e9,
        "model_tflops": mean * flops / 1e12,
        "mfu": None if peak is None else mean * flops / peak,
        "peak_memory_gib": None
        if last["peak_memory_bytes"] is None
        else last["peak_memory_bytes"] / 2**30,
        "tokens_per_caption": last["tokens_per_caption"],
        "wait_share": statistics.mean(answer["wait_share"] for answer in answers),
    }


def _spread(rates: list[float]) -> dict[str, Any]:
    sd = statistics.stdev(rates) if len(rates) > 1 else None
    return {"mean": statistics.mean(rates), "sd": sd, "repeats": rates}


def run(args: argparse.Namespace, until: float) -> Iterator[Cell]:
    """All cells: on a GPU one by one, the next one's imports beside; on a processor those of a
    model together.
    """
    cells = [
        cell for cell in plan(args.models, args.programs) if args.shards or cell["data"] == "memory"
    ]
    groups = [[cell] for cell in cells]
    if args.device == "cpu":
        groups = [
            [c for c in cells if c["model"] == model and c["data"] == "memory"]
            for model in args.models
        ]
        groups += [[c] for c in cells if c["data"] == "shards"]
    batches: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = Path(name)
        job = _job(args, folder)
        waiting: list[Child] = []
        for number, group in enumerate(groups):
            if until - time.monotonic() < (ENOUGH_S if args.device != "cpu" else 1):
                yield from ({**cell, "state": "not run", "why": "no time left"} for cell in group)
                continue
            children = waiting or [
                Child(c, job, folder, 100 * number + k) for k, c in enumerate(group)
            ]
            waiting = []
            if args.device != "cpu" and number + 1 < len(groups):
                waiting = [
                    Child(c, job, folder, 100 * (number + 1) + k)
                    for k, c in enumerate(groups[number + 1])
                ]
            yield from measure(children, args, until, batches)
        for child in waiting:
            child.end()


def _job(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What all cells share; wheels are unpacked and the pool is written here."""
    path = []
    for wheels_folder in args.wheels:
        wheels = sorted(Path(wheels_folder).glob("*.whl"))
        path += [] if wheels else [str(Path(wheels_folder).resolve())]
        for wheel in wheels:
            target = folder / "wheels"
            zipfile.ZipFile(wheel).extractall(target)
            path = [*path, *([] if str(target) in path else [str(target)])]
    pool = folder / "pool"
    if args.shards:
        gpu_data.write_pool(str(pool))
    return {
        "path": path,
        "folder": str(folder),
        "pool": str(pool),
        "device": args.device,
        "precision": args.precision,
        "attention": args.attention,
        "compile": args.compile == "yes",
        "threads": args.threads,
        "seconds": args.seconds,
    }


# --- results --------------------------------------------------------------------------------------


def _versions() -> dict[str, str | None]:
    import torch

    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    versions["cuda"] = torch.version.cuda
    for package in ("triton", "numpy", "pillow", "simplejpeg"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.5,
        help="all of it ends within these; a cell that has ended is in --out",
    )
    parser.add_argument(
        "--models", nargs="+", default=MODELS_MEASURED, choices=sorted(MODELS), metavar="MODEL"
    )
    parser.add_argument(
        "--programs", nargs="+", default=["ours", "open_clip"], choices=["ours", "open_clip"]
    )
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument(
        "--precision",
        default=None,
        choices=["bf16", "fp32", "tf32"],
        help="bf16, on a processor fp32",
    )
    parser.add_argument(
        "--attention", default="auto", choices=["auto", "sdpa", "varlen"], help="of ours"
    )
    parser.add_argument(
        "--compile", default=None, choices=["yes", "no"], help="yes, on a processor no"
    )
    parser.add_argument(
        "--batch", type=int, default=0, help="samples a step, for all cells; by default what fits"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a repeat")
    parser.add_argument("--threads", type=int, default=0, help="of torch on a processor")
    parser.add_argument(
        "--wheels", nargs="*", default=[], metavar="DIR", help="folders of wheels, or for sys.path"
    )
    parser.add_argument(
        "--no-shards", dest="shards", action="store_false", help="synthetic pictures only"
    )
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "gpu.json"))
    args = parser.parse_args(argv)
    cpu = args.device == "cpu"
    args.precision = args.precision or ("fp32" if cpu else "bf16")
    args.compile = args.compile or ("no" if cpu else "yes")
    if cpu and not args.batch:
        parser.error("--device cpu needs a --batch: there is no memory to fill")
    return args


def _write(args: argparse.Namespace, command: str, results: list[Cell]) -> list[dict[str, Any]]:
    """What there is so far into --out. The bars."""
    bars_of_goals = bars(results, args.models, args.device == "cpu")
    settings = (
        "minutes",
        "device",
        "precision",
        "attention",
        "compile",
        "repeats",
        "seconds",
        "threads",
    )
    peers = {
        cell["prepared"]["open_clip"] for cell in results if "open_clip" in cell.get("prepared", {})
    }
    written = {
        "command": command,
        "device": args.device_name,
        "cores": os.cpu_count(),
        "versions": _versions() | {"open_clip": ", ".join(sorted(peers)) or None},
        "settings": {name: getattr(args, name) for name in settings},
        "cells": results,
        "bars": bars_of_goals,
    }
    disk.write_bytes(args.out, (json.dumps(written, indent=1) + "\n").encode())
    return bars_of_goals


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    began = BEGAN if argv is None else time.monotonic()
    import torch

    if args.device != "cpu" and not torch.cuda.is_available():
        print(
            "torch finds no GPU here; a processor is measured with --device cpu --batch N",
            file=sys.stderr,
        )
        return 2
    args.device_name = (
        f"{platform.machine()} processor, {args.threads or torch.get_num_threads()} threads"
    )
    if args.device != "cpu":
        args.device_name = torch.cuda.get_device_name()
    command = shlex.join(["python", "benchmarks/gpu.py", *(sys.argv[1:] if argv is None else argv)])
    results: list[Cell] = []
    for result in run(args, began + args.minutes * 60 - END_S):
        results.append(result)
        print(line_of(result), flush=True)
        bars_of_goals = _write(args, command, results)
    print(f"\nmeasured ÷ goal, on {args.device_name}:")
    for bar in bars_of_goals:
        measured = "not measured" if bar["measured"] is None else f"{bar['measured']:,.2f}"
        goal = "" if bar["goal"] is None else f" of {bar['goal']:,g}"
        reached = "" if bar["measured_over_goal"] is None else f" = {bar['measured_over_goal']:.2f}"
        print(f"  {bar['bar']:52} {measured}{goal}{reached}")
    return 0 if any(cell["state"] == "measured" for cell in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
