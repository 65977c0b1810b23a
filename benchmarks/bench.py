#!/usr/bin/env python3
"""Every stage beside its peer, in one run, as a ratio with its bar: `make bench`.

example: python benchmarks/bench.py --stages crawl choose --photographs FOLDER

The two programs of a row take turns, each in a process of its own with one thread, on the same
input. What is counted is CPU time (user and system), which other programs on the machine change
little. Peers run in environments of their own (benchmarks/peers/environments.py), which are made
where they are missing. A peer that cannot be installed leaves its cells empty, with the reason.
Without --photographs, images are drawn. A stage that fails is named, the others are measured, and
the exit status is 3. Each stage writes benchmarks/results/bench/STAGE.json, and the tables of
docs/measured.md are made from these files (benchmarks/measured.py).
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from benchmarks import measured
from benchmarks.filtering.scoring import images_of
from benchmarks.peers import page, pool_stages, rows, training_stages, web_stages
from benchmarks.peers.web_stages import Context, Measured
from benchmarks.photographs import folder_option, paths_of

STAGES: dict[str, Callable[[Context], Measured]] = {
    "crawl": web_stages.crawl,
    "fetch": web_stages.fetch,
    "loader": training_stages.loader,
    "scoring": pool_stages.scoring,
    "choose": pool_stages.choose,
    "dedup": pool_stages.dedup,
    "training": training_stages.training,
}
WITH_IMAGES = ("fetch", "loader", "scoring", "dedup")
DRAWN = 400


def photographs_of(given: Path | None, work: Path) -> tuple[Path, str]:
    """A folder of JPEGs and what they are: those that are given, or drawn ones."""
    if given is not None:
        return given, f"{len(paths_of(given)):,} photographs"
    folder = work / "drawn"
    folder.mkdir()
    for number, image in enumerate(images_of(None, DRAWN)):
        image.save(folder / f"{number:06d}.jpg", "JPEG", quality=90)
    return folder, f"{DRAWN} drawn images"


def measure(stage: str, args: argparse.Namespace) -> None:
    """Run one stage and write its file."""
    print(f"{stage}:", flush=True)
    with tempfile.TemporaryDirectory(prefix="clipmill-bench-") as name:
        work = Path(name)
        images: str | None = None
        photographs = work
        if stage in WITH_IMAGES:
            photographs, images = photographs_of(args.photographs, work)
        found, versions = STAGES[stage](
            Context(work=work, photographs=photographs, share=args.share, most_turns=args.turns)
        )
    given = " --photographs FOLDER" if images and args.photographs else ""
    share = "" if args.share == 1 else f" --share {args.share:g}"
    turns = "" if args.turns == 100 else f" --turns {args.turns}"
    command = f"python benchmarks/bench.py --stages {stage}{given}{share}{turns}"
    rows.write_stage(args.results, stage, found, images, versions, command)
    for row in found:
        print("  " + page.line_of(row), flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks/bench.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stages", nargs="+", default=list(STAGES), metavar="STAGE")
    parser.add_argument(
        "--photographs", type=folder_option, help="a folder of JPEGs; drawn ones otherwise"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of items")
    parser.add_argument("--turns", type=int, default=100, help="of each program, at most")
    parser.add_argument("--results", type=Path, default=rows.RESULTS, help="folder of the JSON")
    args = parser.parse_args(argv)
    failed = []
    try:
        unknown = [stage for stage in args.stages if stage not in STAGES]
        if unknown:
            raise ValueError(f"there is no stage {unknown[0]!r}; there are {', '.join(STAGES)}")
        if not 0 < args.share < math.inf:
            raise ValueError(f"--share {args.share:g}: it has to be a number above 0")
        if args.turns < 1:
            raise ValueError(f"--turns {args.turns}: it has to be at least 1")
        for stage in args.stages:
            try:
                measure(stage, args)
            except Exception as error:  # the other stages are measured, whatever this one meets
                failed.append(stage)
                if not isinstance(error, RuntimeError):
                    traceback.print_exc()
                    print(getattr(error, "stderr", None) or "", file=sys.stderr)  # of a child
                print(f"{stage} was not measured: {error}", file=sys.stderr, flush=True)
        if args.results == rows.RESULTS:
            measured.write()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 3 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
