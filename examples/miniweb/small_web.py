#!/usr/bin/env python3
"""A small web on loopback, for demos, ablations and tests: `write` makes it, `serve` answers for
its hosts.

Its pages are a WAT file as Common Crawl writes them. Its images are drawn when they are requested,
or are those of a folder of labelled photographs (--photos). truth.parquet has what is wrong with
each pair. `cifar10` and `divide` make such folders.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:
    # The folder of the package clipmill, not this one: of a checkout, of a wheel, or of the link
    sys.path[0] = next(
        str(p) for p in Path(__file__).resolve().parents if (p / "clipmill").is_dir()
    )

from clipmill.examples.miniweb import cifar_archive, labelled_photos
from clipmill.examples.miniweb.drawn_web import write_drawn
from clipmill.examples.miniweb.photo_web import write_photos
from clipmill.examples.miniweb.server import load, running, serve, start, stop
from clipmill.examples.miniweb.settings import MINIWEB_FAULTS, Miniweb
from clipmill.manifests import console

__all__ = ["main", "running", "start", "stop", "write"]

EXAMPLE = """example:
  python examples/miniweb/small_web.py write --out out/web --pairs 600 --noise 0.4 --seed 1
  python examples/miniweb/small_web.py serve --out out/web --port 8700
  curl --connect-to ::127.0.0.1:8700 http://gallery.miniweb.test/_stats

  python examples/miniweb/small_web.py cifar10 cifar-10-python.tar.gz --out data/cifar
  python examples/miniweb/small_web.py write --photos data/cifar/train --out out/web \\
      --pairs 50000 --trusted-pairs 5000 --noise 0.4 --near-duplicates 0.2 --faults 0.1 --serve
"""
logger = logging.getLogger("clipmill.examples.miniweb.small_web")


def write(out: str | Path, settings: Miniweb) -> dict[str, Any]:
    """Leave a web in `out`: two WATs, truth.parquet, pairs.parquet and site.json; of drawn images
    eval/ too. Returns what it holds.
    """
    return write_drawn(out, settings) if settings.photos is None else write_photos(out, settings)


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="examples/miniweb/small_web.py",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=kind,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=text, epilog=EXAMPLE, formatter_class=kind)

    writing = verb("write", "make a web in a folder")
    _add_settings(writing)
    writing.add_argument("--serve", action="store_true", help="then answer for its hosts")
    serving = verb("serve", "answer for the hosts of a web")
    serving.add_argument("--out", required=True, help="the folder that `write` left")
    for each in (writing, serving):
        each.add_argument(
            "--port", type=int, default=0, help="on 127.0.0.1; 0 takes a free one (default: 0)"
        )
    serving.add_argument("--attached", action="store_true", help="stop when standard input ends")
    unpacking = verb("cifar10", "unpack CIFAR-10's python archive as train/CLASS/ and test/CLASS/")
    unpacking.add_argument("archive", help="cifar-10-python.tar.gz, or the folder it unpacks to")
    dividing = verb("divide", "copy labelled photographs as train/LABEL/ and test/LABEL/")
    dividing.add_argument("--photos", required=True, help="the folder of the photographs")
    dividing.add_argument("--labels", required=True, help="a CSV with the columns file, label")
    dividing.add_argument("--test", type=int, required=True, help="photographs for the test")
    dividing.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    for each in (unpacking, dividing):
        each.add_argument("--out", required=True, help="the folder")
    for each in (writing, unpacking, dividing):
        each.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    return parser.parse_args(argv)


def _add_settings(writing: argparse.ArgumentParser) -> None:
    """The options of `write` that are keys of the block `miniweb` of a manifest."""
    default = Miniweb()

    def number(name: str, text: str) -> None:
        value = getattr(default, name)
        words = f"{text} (default: {value})"
        flag = f"--{name.replace('_', '-')}"
        writing.add_argument(flag, type=type(value), default=value, help=words)

    writing.add_argument("--out", required=True, help="the folder")
    number("pairs", "of the crawl")
    number("trusted_pairs", "of the trusted host")
    number("noise", "share of captions that are wrong")
    number("near_duplicates", "share of images shown again")
    number("faults", "share of pairs that cannot simply be fetched")
    number("seed", "what everything follows from")
    writing.add_argument("--photos", help="a folder of photographs (default: images are drawn)")
    writing.add_argument(
        "--captions",
        help="a CSV with the columns file, caption and perhaps label "
        "(default: photos/CLASS/NAME.jpg, captions such as 'a photo of a CLASS')",
    )
    writing.add_argument(
        "--fault-kinds",
        type=lambda text: tuple(text.split(",")),
        default=(),
        metavar="KIND,KIND…",
        help=f"which faults, in equal shares, of {', '.join(MINIWEB_FAULTS)}",
    )
    number("hosts", "that show images, beside a CDN")


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: run(args), stopped="run the command again")


def run(args: argparse.Namespace) -> int:
    """Do what the verb says. Returns the exit status."""
    if args.verb == "serve":
        asyncio.run(serve(load(args.out), args.port, attached=args.attached))
        return 0
    totals: dict[str, Any]
    if args.verb == "cifar10":
        totals = dict(cifar_archive.unpack(args.archive, args.out))
    elif args.verb == "divide":
        train = labelled_photos.divide(args.photos, args.labels, args.out, args.test, args.seed)
        totals = {"train": train, "test": args.test}
    else:
        totals = write(args.out, settings_of(args))
    if args.verb == "write":
        holds = f"a web, made in {totals['seconds']:.1f} s: {totals['kinds']}"
    else:
        holds = f"{totals['train']} photographs for training, {totals['test']} for the test"
    logger.info("%s holds %s", args.out, holds)
    if args.json:
        print(json.dumps(totals, sort_keys=True), flush=True)
    if args.verb == "write" and args.serve:
        port = args.port or "PORT"
        logger.info("for a recipe: export MINIWEB=%s MINIWEB_PORT=%s", args.out, port)
        asyncio.run(serve(load(args.out), args.port))
    return 0


def settings_of(args: argparse.Namespace) -> Miniweb:
    """The settings of `write`. ValueError for an impossible one."""
    return Miniweb(
        pairs=args.pairs,
        trusted_pairs=args.trusted_pairs,
        noise=args.noise,
        near_duplicates=args.near_duplicates,
        faults=args.faults,
        seed=args.seed,
        photos=args.photos,
        captions=args.captions,
        fault_kinds=args.fault_kinds,
        hosts=args.hosts,
    )


if __name__ == "__main__":
    console.end_process(main)
