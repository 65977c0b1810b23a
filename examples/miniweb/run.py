#!/usr/bin/env python3
"""Run an ablation or a recipe on a small web: the web is made in OUT/web and served on loopback
while pipeline/build.py runs the manifest.

The manifest finds the web by ${MINIWEB}, its folder, and ${MINIWEB_PORT}. Its settings are those of
examples/miniweb/webs/NAME.yaml with the name of the manifest, or of --web.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    # The checkout, not this folder, whose file names could shadow other modules.
    sys.path[0] = str(ROOT)

from manifests import console

if __name__ == "__main__":
    console.end_on_stop_signals()

import argparse
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from examples.miniweb.server import running
from examples.miniweb.settings import Miniweb, read_web, web_of
from manifests import disk, reader
from pipeline import ablation_run, build

ENTRY = "examples/miniweb/run.py"
SMALL_WEB = "examples/miniweb/small_web.py"
EXAMPLE = """example:
  python examples/miniweb/run.py manifests/ablations/demo.yaml
  python examples/miniweb/run.py manifests/ablations/datacomp_small.yaml --scale debug
  python examples/miniweb/run.py my_ablation.yaml --web my_web.yaml --out out/mine

"""


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=ENTRY,
        description=__doc__,
        epilog=EXAMPLE + build.EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("manifest", help="an ablation or a recipe")
    parser.add_argument(
        "--web",
        metavar="FILE",
        help="the settings of the web (default: webs/NAME.yaml with the name of the manifest)",
    )
    build.add_options(parser)
    args = parser.parse_args(argv)
    args.entry = [ENTRY, "--web", args.web] if args.web else [ENTRY]
    args.from_lock, args.set = None, []
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: run(args))


def run(args: argparse.Namespace) -> int:
    """Serve the web while the manifest is built; the exit status."""
    reader.manifest_kind(args.manifest)
    settings = read_web(args.web or web_of(args.manifest), args.scale)
    web = disk.join(build.output_of(args), "web")
    with variables(web) as port:
        return build.build_manifest(args, served(web, settings, port))


@contextmanager
def variables(web: str) -> Iterator[int]:
    """${MINIWEB} and ${MINIWEB_PORT} of a web while the block runs. Gives its port, a free one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    before = {name: os.environ.get(name) for name in build.WEB_VARIABLES}
    ablation_run.export(MINIWEB=web, MINIWEB_PORT=str(port))
    try:
        yield port
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def served(web: str, settings: Miniweb, port: int) -> Iterator[None]:
    """The web, made and served while the block runs."""
    words = []
    for key, value in disk.to_plain(settings).items():
        text = ",".join(value) if isinstance(value, list) else value
        if text not in (None, ""):
            words.append(f"--{key.replace('_', '-')}={text}")
    ablation_run.run(ablation_run.command(SMALL_WEB, "write", "--out", web, *words))
    print(f"\n$ python {SMALL_WEB} serve --out {web} --port {port} &", flush=True)
    with running(web, port):
        yield


if __name__ == "__main__":
    console.end_process(main)
