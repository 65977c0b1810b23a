#!/usr/bin/env python3
"""Loss curves of our trainer beside open_clip's own training loop, on the same shards, over several
seeds.

example: python benchmarks/studies/curves.py --pool out/cifar10/pools/web
--peer-python peer/bin/python --test cifar10/test

The pool is that of manifests/ablations/cifar10.yaml: tars of 32-pixel JPEGs with captions, and its
view `raw`, which keeps every stored row. The peer is the package open_clip_train of the
open_clip_torch 3.x wheel, unchanged, in a virtual environment of its own (`python -m venv peer &&
peer/bin/pip install "open_clip_torch[training]"`). Both train the preset `micro` in 32 bits on a
processor, with the same batch size, AdamW, warm-up, cosine and length.

The measure was fixed before the first run: the loss of each step, averaged in windows of 50; a
program's curve is the mean over its seeds; the difference of the curves stands beside the SD
between the seeds of one program. Two programs that draw from one distribution would differ by
sqrt(2 / seeds) * sqrt(2 / pi) of that SD in the mean, 0.65 for 3 seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)


from benchmarks.studies.curve_numbers import (
    DIFFERENCES,
    PROGRAMS,
    compare,
    parse_log,
    table,
    window_means,
)
from clipmill.library.training import settings_of
from clipmill.manifests import console, disk
from clipmill.train.config import TrainConfig, configure, model_config
from clipmill.train.formats import open_clip_files
from clipmill.train.model.clip import CLIP

# Changes to the preset that both programs get
COMMON = ["decay_groups=open_clip", "log_every=1", "device=cpu"]
BATCH = configure({"preset": "micro", **settings_of(COMMON)}).batch_size
VIEW, PICTURES = "raw", (".jpg", ".jpeg", ".png", ".webp")
TEMPLATES = ["a photo of a {}", "a photo of an {}"]
MODEL = "clipmill-micro-ViT"  # the name under which open_clip finds our architecture
# What the peer's python executes: open_clip learns of a folder of architectures, then its own entry
# runs as it is.
PEER = """
import sys, open_clip
open_clip.add_model_config(sys.argv[1])
from open_clip_train.main import main
main(sys.argv[2:])
"""
FUSED = """
import functools, torch
torch.optim.AdamW = functools.partial(torch.optim.AdamW, fused=True)
"""
PEER_VERSIONS = """
import json, platform
from importlib.metadata import version
names = ("open_clip_torch", "torch", "torchvision", "webdataset", "pillow", "timm", "numpy")
print(json.dumps({"python": platform.python_version(), **{name: version(name) for name in names}}))
"""


# --- what both read -------------------------------------------------------------------------------


def tars_of(pool: Path) -> list[Path]:
    """The pool's shards. ValueError where there are none."""
    tars = sorted((pool / "shards").glob("*.tar"))
    if not tars:
        raise ValueError(f"{pool / 'shards'} holds no tars; --pool takes the folder of a pool")
    return tars


def pictures_with_captions(tar: Path) -> int:
    """Samples of a tar that open_clip keeps: a picture and a .txt under one key."""
    with tarfile.open(tar) as file:
        names = file.getnames()
    captions = {name.removesuffix(".txt") for name in names if name.endswith(".txt")}
    return sum(name.endswith(PICTURES) and name.rpartition(".")[0] in captions for name in names)


def count_rows(pool: Path) -> int:
    """Rows that both programs read. ValueError where there is no such view, or the tars hold others
    than it keeps.
    """
    if not (path := pool / "views" / f"{VIEW}.json").exists():
        raise ValueError(f"there is no {path}; the pool needs a view {VIEW!r} of all rows")
    view: dict[str, Any] = disk.read_json(str(path))
    tars = {tar.stem: pictures_with_captions(tar) for tar in tars_of(pool)}
    if sum(tars.values()) != view["kept"]:
        raise ValueError(
            f"the tars hold {tars} samples, the view {VIEW} keeps {view['kept']}; it must keep all"
        )
    return sum(tars.values())


# --- runs -----------------------------------------------------------------------------------------


def execute(command: Sequence[str], folder: Path, threads: int) -> dict[str, float]:
    """Run a program to its end; its seconds. RuntimeError with the last lines of its output where
    it failed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "output.txt"
    began = time.perf_counter()
    with output.open("wb") as file:
        # In the run's folder, so that a module of ours is not found where the peer means one of its
        # own.
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=folder, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = "\n".join(output.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(
            f"{Path(command[0]).name} ended with {process.returncode} in {folder}:\n{tail}"
        )
    wall = time.perf_counter() - began
    return {"wall_s": round(wall, 1), "cpu_s": round(usage.ru_utime + usage.ru_stime, 1)}


def train_ours(changes: Sequence[str], pool: Path, folder: Path, threads: int) -> dict[str, Any]:
    """One run of clipmill train: its curve and seconds. The model lies in folder/model."""
    blend = folder / "blend.json"
    disk.write_json(
        str(blend), {"name": "curves", "pools": {"pool": str(pool)}, "views": {f"pool/{VIEW}": 1.0}}
    )
    command = console.program(["train", str(blend), "--out", str(folder / "run")])
    took = execute([*command, "--preset", "micro", "--set", *changes], folder, threads)
    lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    factor = [math.exp(line["logit_scale"]) for line in lines]
    shutil.copytree(folder / "run" / "export", folder / "model")
    return {
        **took,
        "loss": [line["loss"] for line in lines],
        "lr": [line["lr"] for line in lines],
        "factor": factor,
    }


def peer_arguments(config: TrainConfig, tars: Sequence[Path], logs: Path) -> list[str]:
    """open_clip's command line for a run with our settings: one epoch as long as the run, read pass
    after pass.
    """
    model = model_config(config)
    values: dict[str, Any] = {
        "model": MODEL,
        "train-data": "::".join(map(str, tars)),
        "dataset-type": "webdataset",
        "train-num-samples": config.steps * config.batch_size,
        "epochs": 1,
        "batch-size": config.batch_size,
        "workers": 0,
        "lr": config.lr,
        "beta1": config.beta1,
        "beta2": config.beta2,
        "eps": config.eps,
        "wd": config.weight_decay,
        "warmup": config.warmup,
        "lr-scheduler": "cosine",
        "precision": "fp32",
        "device": "cpu",
        "seed": config.seed,
        "log-every-n-steps": 1,
        "logs": logs,
        "name": "run",
    }
    if config.grad_clip is not None:
        values["grad-clip-norm"] = config.grad_clip
    arguments = [text for key, value in values.items() for text in (f"--{key}", str(value))]
    arguments += [
        "--image-mean",
        *map(str, model.image_mean),
        "--image-std",
        *map(str, model.image_std),
    ]
    return [
        *arguments,
        "--image-interpolation",
        "bicubic",
        "--aug-cfg",
        f"scale=({config.crop_min},1.0)",
    ]


def train_theirs(
    config: TrainConfig, peer: Sequence[str], pool: Path, folder: Path, threads: int
) -> dict[str, Any]:
    """One run of open_clip_train.main: its curve and seconds. The model lies in folder/model, as
    ours does.

    `peer` is the command that its arguments follow.
    """
    model = model_config(config)
    disk.write_json(
        str(folder / "architectures" / f"{MODEL}.json"),
        open_clip_files.open_clip_config(model)["model_cfg"],
    )
    arguments = peer_arguments(config, tars_of(pool), folder / "logs")
    took = execute([*peer, str(folder / "architectures"), *arguments], folder, threads)
    curve = parse_log((folder / "logs" / "run" / "out.log").read_text(), config.batch_size)
    clip = CLIP(model)
    state = open_clip_files.read_state(str(folder / "logs" / "run" / "checkpoints" / "epoch_1.pt"))
    clip.load_state_dict(open_clip_files.from_open_clip(state, model))
    open_clip_files.save_export(clip, str(folder / "model"))
    return {**took, **curve}


def accuracy(folder: Path, test: Path, threads: int) -> float:
    """Zero-shot accuracy of folder/model on a folder of classes, by clipmill evaluate."""
    task = {"name": "test", "kind": "classification", "data": str(test), "templates": TEMPLATES}
    disk.write_json(str(folder / "task.json"), task)
    command = console.program(["evaluate", str(folder / "model"), "--device", "cpu", "--json"])
    execute([*command, "--task", str(folder / "task.json")], folder, threads)
    metrics: dict[str, Any] = json.loads((folder / "output.txt").read_text().splitlines()[-1])
    return float(metrics["test"]["accuracy"])


def measure(program: str, seed: int, args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """One run, or what `--work` already holds of it."""
    changes = [*COMMON, f"samples_seen={args.steps * BATCH}", f"seed={seed}"]
    folder, pool = work / f"{program}-{seed}", Path(args.pool).resolve()
    about = {
        "program": program,
        "seed": seed,
        "changes": changes,
        "threads": args.threads,
        "test": bool(args.test),
    }
    about["peer_fused"] = args.peer_fused
    if (folder / "curve.json").exists():
        stored: dict[str, Any] = disk.read_json(str(folder / "curve.json"))
        if stored["about"] != about:
            raise ValueError(
                f"{folder} holds another run ({stored['about']}); choose another --work"
            )
        return stored
    shutil.rmtree(folder, ignore_errors=True)
    if program == "ours":
        curve = train_ours(changes, pool, folder, args.threads)
    else:
        peer = [args.peer_python, "-c", FUSED + PEER if args.peer_fused else PEER]
        changed = configure({"preset": "micro", **settings_of(changes)})
        curve = train_theirs(changed, peer, pool, folder, args.threads)
    if len(curve["loss"]) != args.steps:
        raise ValueError(f"{PROGRAMS[program]} logged {len(curve['loss'])} steps of {args.steps}")
    curve |= {
        "about": about,
        "accuracy": accuracy(folder, Path(args.test).resolve(), args.threads)
        if args.test
        else None,
    }
    disk.write_json(str(folder / "curve.json"), curve)
    return curve


# --- the result -----------------------------------------------------------------------------------


def conclude(
    runs: Mapping[str, Sequence[dict[str, Any]]], args: argparse.Namespace
) -> dict[str, Any]:
    """Curves in windows, the summary and what was seen in passing."""
    windows = {
        name: [window_means(run["loss"], args.window) for run in measured]
        for name, measured in runs.items()
    }
    summary = compare(windows["ours"], windows["theirs"])
    difference, half = summary.pop("difference"), summary.pop("welch_half")
    pairs = [
        pair
        for o, t in zip(runs["ours"], runs["theirs"], strict=True)
        for pair in zip(o["lr"], t["lr"], strict=True)
    ]
    summary["lr_largest_difference"] = max(abs(a - b) for a, b in pairs)
    passing: dict[str, Any] = {
        "note": "shared cores, no timing claim; a run's seconds hold its start and its end"
    }
    for name, measured in runs.items():
        if args.test:
            shares = [run["accuracy"] for run in measured]
            summary[f"accuracy_{name}"] = {
                "mean": statistics.fmean(shares),
                "sd": statistics.stdev(shares),
                "seeds": shares,
            }
        rates = [len(run["loss"]) * BATCH / run["wall_s"] for run in measured]
        passing[name] = {
            "cpu_s": [run["cpu_s"] for run in measured],
            "wall_s": [run["wall_s"] for run in measured],
            "samples_per_s": [round(rate, 1) for rate in rates],
            "logit_factor_at_end": [round(run["factor"][-1], 3) for run in measured],
        }
    curves: dict[str, Any] = {
        "last_step_of_window": [(w + 1) * args.window for w in range(len(difference))]
    }
    for name, by_seed in windows.items():
        curves[name] = [[round(x, 5) for x in curve] for curve in by_seed]
    curves |= {
        "difference": [round(x, 5) for x in difference],
        "welch_half": [round(x, 5) for x in half],
    }
    return {"summary": summary, "in_passing": passing, "curves": curves}


def described_settings(args: argparse.Namespace, rows: int) -> dict[str, Any]:
    """What both programs were told."""
    changes = settings_of([*COMMON, f"samples_seen={args.steps * BATCH}"])
    config = configure({"preset": "micro", **changes})
    names = (
        "model",
        "batch_size",
        "lr",
        "warmup",
        "beta1",
        "beta2",
        "eps",
        "weight_decay",
        "schedule",
        "grad_clip",
    )
    return {
        **{name: getattr(config, name) for name in (*names, "precision", "crop_min")},
        "context_length": model_config(config).context_length,
        "steps": args.steps,
        "window": args.window,
        "seeds": args.seeds,
        "rows": rows,
        "passes": round(config.samples_seen / rows, 3),
        "threads": args.threads,
        "peer_fused": args.peer_fused,
        "test": TEMPLATES if args.test else None,
    }


def versions(peer: str) -> dict[str, Any]:
    """Of both programs."""
    import platform
    from importlib.metadata import version

    done = subprocess.run([peer, "-c", PEER_VERSIONS], capture_output=True, text=True, check=True)
    mine = {name: version(name) for name in ("torch", "pillow", "simplejpeg", "numpy")}
    return {
        "ours": {"python": platform.python_version(), **mine},
        "theirs": json.loads(done.stdout),
    }


def main(argv: list[str] | None = None) -> int:
    """Returns 0, or 2 for a mistake said in one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pool", required=True, help="the pool, with its view raw and its tokens")
    parser.add_argument(
        "--peer-python", required=True, help="python of the environment that has open_clip_train"
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--window", type=int, default=50, help="steps whose losses are averaged")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1, help="of torch, in both programs")
    parser.add_argument(
        "--peer-fused",
        action="store_true",
        help="give open_clip torch's fused AdamW: the same update but for rounding, in less time",
    )
    parser.add_argument(
        "--test",
        help="a folder of pictures for each class, for the zero-shot accuracy of the models",
    )
    parser.add_argument(
        "--work",
        help="where runs are kept; started again with it, those that are whole are not rerun",
    )
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "curves.json"))
    args = parser.parse_args(argv)
    try:
        window_means([0.0] * args.steps, args.window)
        rows = count_rows(Path(args.pool))
        with tempfile.TemporaryDirectory(prefix="curves-") as temporary:
            work = Path(args.work or temporary).resolve()
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in PROGRAMS}
            for seed in args.seeds:
                for name, title in PROGRAMS.items():
                    runs[name].append(run := measure(name, seed, args, work))
                    print(
                        f"{title}, seed {seed}: last loss {run['loss'][-1]:.4f}, {run['wall_s']} s",
                        flush=True,
                    )
            result = conclude(runs, args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    heading = {
        "versions": versions(args.peer_python),
        "settings": described_settings(args, rows),
        "differences": DIFFERENCES,
    }
    command = "python benchmarks/studies/curves.py --pool POOL --peer-python PYTHON"
    command += f" --steps {args.steps} --window {args.window}"
    command += (
        f" --seeds {' '.join(map(str, args.seeds))} --threads {args.threads}"
        + " --peer-fused" * args.peer_fused
    )
    command += " --test TEST" * bool(args.test)
    disk.write_json(args.out, {"command": command, **heading, **result})
    print(table(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
