"""The commands, each as a function of its words that gives the exit status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from clipmill.commands.app import main

Command = Callable[[Sequence[str]], int]


def run(name: str, words: Sequence[str]) -> int:
    """`clipmill NAME WORDS` in this process."""
    return main([name, *words])


ablate: Command = partial(run, "ablate")
audit: Command = partial(run, "audit")
build: Command = partial(run, "build")
decide: Command = partial(run, "decide")
demo: Command = partial(run, "demo")
evaluate: Command = partial(run, "evaluate")
export: Command = partial(run, "export")
filter_pool: Command = partial(run, "filter")
look: Command = partial(run, "look")
mix: Command = partial(run, "mix")
report: Command = partial(run, "report")
score: Command = partial(run, "score")
size: Command = partial(run, "size")
train: Command = partial(run, "train")
try_folder: Command = partial(run, "try")
weights: Command = partial(run, "weights")
why: Command = partial(run, "why")
