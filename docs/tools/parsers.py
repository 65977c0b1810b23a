"""The parsers of the commands, taken from the commands themselves."""

from __future__ import annotations

import argparse
import contextlib
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
# In the order of a build. The documents of each say what it does.
COMMANDS = (
    "pipeline/build.py",
    "pipeline/score.py",
    "pipeline/filter.py",
    "pipeline/look.py",
    "pipeline/audit.py",
    "train/run.py",
    "train/evaluate.py",
    "train/export.py",
    "train/ablate.py",
    "train/report.py",
    "train/sizing.py",
)


class _ParserIsThereError(Exception):
    """Ends a command at the moment when it would read its arguments."""


def parser_of(script: str) -> argparse.ArgumentParser:
    """The parser that a script of the checkout builds. Nothing of the script runs after that.

    ValueError if it reads no arguments.
    """
    parsers: list[argparse.ArgumentParser] = []

    def keep(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        parsers.append(parser)
        raise _ParserIsThereError

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_known_args", keep),
        mock.patch.object(argparse.ArgumentParser, "parse_args", keep),
        mock.patch.object(sys, "argv", [script]),
        mock.patch.object(sys, "path", sys.path[:]),
        contextlib.suppress(_ParserIsThereError, SystemExit),
    ):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    if not parsers:
        raise ValueError(f"{script} read no arguments")
    return parsers[0]
