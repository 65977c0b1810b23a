#!/usr/bin/env python3
"""The command as a file: what `clipmill` runs, and what a process that a command starts runs, with
the same interpreter and from any folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

if __name__ == "__main__" and not __package__:
    # The checkout, not this folder, whose file names could shadow other modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import clipmill

if not os.path.isdir(os.path.join(clipmill.PACKAGE, "manifests")):
    print(
        f"error: {clipmill.PACKAGE} was copied without its symbolic links, as some zip tools do: "
        "clone the repository, or install it with pip",
        file=sys.stderr,
    )
    sys.exit(2)

from clipmill.manifests import console


def start(*command: str) -> NoReturn:
    """Run the command line of this process, with `command` before its words, and end it."""
    console.end_on_stop_signals()
    sys.argv = ["clipmill", *command, *sys.argv[1:]]  # as a lease and the progress name it
    if sys.argv[1:2] in (["train"], ["bench"]):
        # Set before torch is imported. Threads that spin while they wait are a quarter faster
        # alone, and ten times slower beside other work.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    def run() -> int:
        from clipmill.commands.app import main

        return main(sys.argv[1:])

    console.end_process(run)


if __name__ == "__main__":
    start()
