#!/usr/bin/env python3
"""Train a CLIP on a blend of views; the same command resumes an interrupted run.

Example: python train/run.py --mix out/pool/all=1 --out out/run --preset micro --set lr=5e-4
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

import os
import signal

from manifests import console

if __name__ == "__main__":
    console.end_on_stop_signals()
# Set before torch is imported. Threads that spin while they wait are a quarter faster alone, and
# ten times slower beside other work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse
import json
import logging
from collections.abc import Sequence
from typing import Any

from manifests import disk
from manifests.folder_lock import FolderInUse, locked_folder
from manifests.layout import RunLayout
from manifests.records import RunRecord, read_document
from manifests.schema import Blend
from train.config import (
    PRESETS,
    TrainConfig,
    check_layout,
    configure,
    format_settings,
    model_config,
    plain_changes,
)
from train.data import ReadFailed
from train.formats import model_files, nemo
from train.parallel import process_group, ray_train
from train.trainer import (
    NonFinite,
    Resume,
    blend_of,
    count_rows,
    is_pool,
    loop,
    open_loader,
    plan_lines,
    read_blend,
    stream_of,
    train,
)

EXAMPLE = """example:
  python train/run.py --mix out/pool/all=1 --out out/run --preset micro --set lr=5e-4

"""
EXIT_STATUS = console.exit_help(
    {
        0: "the run is finished",
        console.EXIT_INCOMPLETE: "the run failed; the last checkpoint stays",
        console.EXIT_SAVED: "stopped by Ctrl-C, SIGTERM or a closed terminal and saved, or another "
        "process trains in the folder; run again to resume",
        128 + signal.SIGHUP: "the terminal was closed before the first step",
        128 + signal.SIGINT: "stopped by Ctrl-C before the first step, or by a second one",
        128 + signal.SIGTERM: "the same by SIGTERM",
    }
)
logger = logging.getLogger("train.run")


def parser() -> argparse.ArgumentParser:
    """The command-line options."""
    parser = argparse.ArgumentParser(
        prog="train/run.py",
        description=__doc__.split("\n")[0],
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("blend", nargs="?", help="BLEND.yaml, or the blend.json of another run")
    parser.add_argument(
        "--mix",
        nargs="+",
        metavar="POOL/VIEW=WEIGHT",
        help="a blend without a file; RUN/blend.json has it afterwards",
    )
    parser.add_argument(
        "--stream",
        nargs="+",
        metavar="TAR",
        help="tars, URLs or pipe:COMMAND that are read while the run trains; it cannot be resumed",
    )
    parser.add_argument("--seed", type=int, help="seed of --mix and --stream: what is drawn when")
    parser.add_argument("--out", help="folder of the run; an interrupted run is resumed")
    parser.add_argument(
        "--preset", metavar="NAME", help=f"settings to start from: {', '.join(PRESETS)}"
    )
    parser.add_argument(
        "--nemo", metavar="YAML", help="NVIDIA's file of a model; --set goes over it"
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change settings (see --list-settings); checkpoint_every=N saves every N steps;"
        " by default a run is saved every 15 minutes, at its end, and when SIGTERM or Ctrl-C stops"
        " it",
    )
    parser.add_argument(
        "--ranks", type=int, default=1, help="processes on this machine; torchrun starts its own"
    )
    parser.add_argument(
        "--ray", action="store_true", help="ranks are workers of Ray Train, anywhere on the cluster"
    )
    parser.add_argument(
        "--list-settings",
        action="store_true",
        help="print all settings with their meaning, and end",
    )
    parser.add_argument("--plan", action="store_true", help="print what would be drawn, and end")
    _add_start(parser)
    parser.add_argument(
        "--json", action="store_true", help="end with run.json as one line on stdout"
    )
    return parser


def _add_start(parser: argparse.ArgumentParser) -> None:
    """The options that say how a run starts."""
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--resume",
        choices=("auto", "required"),
        default="auto",
        help="auto: from the newest checkpoint, or from the start where there is none;"
        " required: end with status 2 where there is none (default: auto)",
    )
    start.add_argument("--restart", action="store_true", help="start again instead of resuming")


def settings(
    preset: str | None,
    changes: Sequence[str],
    nemo_file: str | None = None,
    epoch_samples: int | None = None,
) -> TrainConfig:
    """The preset, then NVIDIA's file, then `KEY=VALUE`; later ones win. ValueError for a text
    without `=`.

    `epoch_samples`, the rows that the blend's views keep, are for the message about `epochs`.
    """
    values: dict[str, Any] = {}
    if nemo_file is not None:
        _, values, remarks = nemo.read(nemo_file)
        for remark in remarks:
            logger.info("%s: %s", nemo_file, remark)
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change!r} is not KEY=VALUE")
        values |= plain_changes({key.strip(): value.strip()})
    changed = values if preset is None else {"preset": preset, **values}
    return configure(changed, epoch_samples)


def blend_from(args: argparse.Namespace) -> Blend:
    """The blend of the command line. ValueError unless exactly one of BLEND, --mix and --stream is
    given.
    """
    given = [each for each in (args.blend, args.mix, args.stream) if each is not None]
    if len(given) != 1:
        raise ValueError("give either BLEND.yaml or --mix POOL/VIEW=WEIGHT, or --stream TAR")
    if args.mix is not None:
        return blend_of(args.mix, args.seed or 0)
    if args.stream is not None:
        return stream_of(args.stream, args.seed or 0)
    if args.seed is not None:
        raise ValueError("--seed goes with --mix; a blend file has its own seed")
    return read_blend(args.blend)


def start_ranks(args: argparse.Namespace, blend: Blend, config: TrainConfig) -> int:
    """The same run as `args.ranks` processes on this machine, or on Ray's. Returns their exit
    status.
    """
    # Mistakes are found here once, and not by every rank.
    open_loader(blend, config, model_config(config), 0, check_layout(config, args.ranks))
    layout = RunLayout(args.out)
    resumes = disk.exists(layout.run_json) or bool(disk.list_names(layout.checkpoints))
    if config.init is not None and (args.restart or not resumes):
        model_files.initial_weights(config.init, model_config(config))
    with locked_folder(layout.lock, "train/run.py", wait_s=loop.LOCK_WAIT_S):
        disk.write_json(layout.blend_json, blend.document())
    arguments = [layout.blend_json, "--out", args.out]
    arguments += ["--preset", args.preset] if args.preset else []
    arguments += ["--nemo", str(Path(args.nemo).absolute())] if args.nemo else []
    arguments += ["--set", *args.set] if args.set else []
    arguments += ["--restart"] if args.restart else ["--resume", args.resume]
    if args.ray:
        status = ray_train.start(main, arguments, args.out, args.ranks)
    else:
        command = [sys.executable, str(Path(__file__).resolve()), *arguments]
        status = process_group.launch_ranks(command, args.ranks)
    known = status in (0, console.EXIT_MISTAKE, console.EXIT_SAVED) or status > 128
    return status if known else console.EXIT_INCOMPLETE


def run(args: argparse.Namespace, rank: int) -> int:
    """Train what the command line says. Exit status 0, 3 (the run failed) or 75 (stopped and
    saved).
    """
    if args.list_settings:
        print(format_settings())
        return 0
    if args.plan:
        return print_plan(args)
    if args.out is None:
        raise ValueError("--out is missing: the folder of the run")
    check_ranks(args)
    args.out = disk.output_folder(args.out)
    if is_pool(args.out):
        raise ValueError(f"--out {args.out} is a pool; choose a folder for the run beside it")
    layout = RunLayout(args.out)
    blend = blend_from(args)
    config = settings(args.preset, args.set, args.nemo, count_rows(blend))
    finished_before = disk.exists(layout.run_json) and not args.restart
    try:
        if args.ranks == 1 and not args.ray:
            record = train(blend, config, args.out, resume=resume_of(args))
        elif status := start_ranks(args, blend, config):
            return status
        else:
            record = read_document(layout.run_json, RunRecord)
    except FolderInUse as error:  # its process may end without this run: a queue tries again
        if rank == 0:
            console.mistake(str(error))
        return console.EXIT_SAVED
    except (NonFinite, ReadFailed, OSError) as error:
        return failed(error)
    if rank == 0:
        log_end(args.out, record, finished_before)
        if args.json:
            print(json.dumps(disk.to_plain(record), sort_keys=True))
    return 0


def check_ranks(args: argparse.Namespace) -> int:
    """The number of ranks of the command line. ValueError for one below 1."""
    ranks: int = args.ranks
    if ranks < 1:
        raise ValueError(f"--ranks is {ranks}; it must be at least 1")
    return ranks


def print_plan(args: argparse.Namespace) -> int:
    """Print what the run of a command line would draw. The exit status 0."""
    blend = blend_from(args)
    config = settings(args.preset, args.set, args.nemo, count_rows(blend))
    ranks = check_layout(config, check_ranks(args))
    loader = open_loader(blend, config, model_config(config), 0, ranks)
    for line in plan_lines(blend, loader.order.repeats(config.steps)):
        print(line)
    return 0


def resume_of(args: argparse.Namespace) -> Resume:
    """How the run starts."""
    resume: Resume = "never" if args.restart else args.resume
    return resume


def failed(error: NonFinite | ReadFailed | OSError) -> int:
    """The exit status of a run that failed. Paths, rights and a full disk are for
    `console.run_command`.
    """
    if isinstance(error, OSError) and error.errno in console.PATH_ERRORS:
        raise error
    console.print_error(f"error: {error}")
    return console.EXIT_INCOMPLETE


def log_end(out: str, record: RunRecord, finished_before: bool) -> None:
    """Say where the result is, and what the next command would be."""
    layout = RunLayout(out)
    if finished_before:
        logger.info("%s was finished before: nothing was trained (--restart trains it anew)", out)
    logger.info(
        "%d steps are done; weights in %s, log in %s", record.steps, layout.export, layout.log
    )
    for name, source in record.sources.items():
        if source.get("skipped") or source.get("broken"):
            logger.warning(
                "stream %s: %d samples without image or caption were skipped, %d tars were broken; "
                "run.json has the counts",
                name,
                sum(source["skipped"].values()),
                source["broken"],
            )
    if record.bad.count:
        logger.warning("%d damaged samples were replaced; run.json names them", record.bad.count)
    logger.info("next: python train/evaluate.py %s --task TASK.yaml", out)


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 trained, 2 a mistake (said in one line), 3 the run failed, 75 stopped and
    saved.
    """
    args = parser().parse_args(argv)
    rank = int(os.environ.get("RANK", "0"))
    console.start_logging(logging.INFO if rank == 0 else logging.ERROR)
    return console.run_command(
        lambda: run(args, rank),
        stopped="the last checkpoint stays; the same command resumes the run",
    )


if __name__ == "__main__":
    console.end_process(main)
