#!/usr/bin/env python3
"""Train a CLIP on a blend of views; started again, it goes on where it was.

Example: python train/run.py blends/mostly_clip.yaml --out out/run --preset datacomp_small --set lr=1e-3 --ranks 4
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

import os

# Before torch: threads that spin while they wait are a quarter faster alone, and ten times slower beside other work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse
import json
import logging
from collections.abc import Sequence
from typing import Any

from manifests import disk, reader
from manifests.schema import Blend
from train.config import PRESETS, TrainConfig, check_layout, configure, model_config
from train.data import Loader
from train.dist import launch, ray_train
from train.formats import nemo
from train.loop import STOPPED, NonFinite, train

logger = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """What can be said on the command line."""
    parser = argparse.ArgumentParser(
        prog="train/run.py",
        description=__doc__.split("\n")[0],
        epilog="example: python train/run.py blends/mostly_clip.yaml --out out/run --preset micro --set lr=5e-4",
    )
    parser.add_argument("blend", help="BLEND.yaml, or the blend.json of another run")
    parser.add_argument(
        "--out", required=True, help="folder of the run; one that was stopped is gone on with"
    )
    parser.add_argument("--preset", choices=sorted(PRESETS), help="named settings to start from")
    parser.add_argument(
        "--nemo", metavar="YAML", help="NVIDIA's file of a model; --set goes over it"
    )
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change settings"
    )
    parser.add_argument(
        "--ranks",
        type=int,
        default=1,
        help="processes on this machine; under torchrun each is one of its own",
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="the ranks are workers of Ray Train, anywhere on the cluster",
    )
    parser.add_argument("--restart", action="store_true", help="begin again instead of going on")
    parser.add_argument(
        "--json", action="store_true", help="end with the run's run.json as one line on stdout"
    )
    return parser


def settings(
    preset: str | None, changes: Sequence[str], nemo_file: str | None = None
) -> TrainConfig:
    """The preset, over it NVIDIA's file, over it `KEY=VALUE`. ValueError for what is no such pair."""
    read: dict[str, Any] = {}
    if nemo_file is not None:
        _, read, notes = nemo.read(nemo_file)
        for note in notes:
            logger.info("%s: %s", nemo_file, note)
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change!r} is not KEY=VALUE")
        read[key.strip()] = value.strip()
    return configure(read if preset is None else {"preset": preset, **read})


def start_ranks(args: argparse.Namespace, blend: Blend, config: TrainConfig) -> int:
    """The same run as `args.ranks` processes on this machine, or on Ray's. Returns their exit status."""
    Loader(
        blend, config, model_config(config), 0, check_layout(config, args.ranks)
    )  # mistakes are met once, here
    arguments = [disk.join(args.out, "blend.json"), "--out", args.out]
    arguments += ["--preset", args.preset] if args.preset else []
    arguments += ["--nemo", str(Path(args.nemo).absolute())] if args.nemo else []
    arguments += ["--set", *args.set] if args.set else []
    arguments += ["--restart"] if args.restart else []
    if args.ray:
        status = ray_train.start(main, arguments, args.out, args.ranks)
    else:
        status = launch.launch_ranks(
            [sys.executable, str(Path(__file__).resolve()), *arguments], args.ranks
        )
    return status if status in (0, 2, 3, STOPPED) else 3


def main(argv: list[str] | None = None) -> int:
    """Returns 0 (trained), 2 (a mistake, said in one line), 3 (the run failed) or 75 (stopped by SIGTERM, saved)."""
    args = parser().parse_args(argv)
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.ERROR,
        format="%(levelname)s %(name)s %(message)s",
    )
    try:
        if args.ranks < 1:
            raise ValueError(f"--ranks is {args.ranks}; it must be at least 1")
        config = settings(args.preset, args.set, args.nemo)
        blend = reader.read_manifest(args.blend, Blend)
        if rank == 0 and args.blend != disk.join(args.out, "blend.json"):
            disk.write_json(disk.join(args.out, "blend.json"), blend)
        if args.ranks > 1 or args.ray:
            status = start_ranks(args, blend, config)
            if status:
                return status
            done = disk.read_json(disk.join(args.out, "run.json"))
        else:
            done = train(blend, config, args.out, resume=not args.restart)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except NonFinite as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    if args.json and rank == 0:
        print(json.dumps(done, sort_keys=True))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
