from __future__ import annotations

import argparse

import pytest

from benchmarks.trainer import options
from benchmarks.trainer.bench import MODES


@pytest.mark.parametrize("name", MODES)
def test_a_mode_keeps_the_contract(name: str) -> None:
    mode = MODES[name]
    assert mode.about.endswith("\n")
    assert mode.lines([]) == []
    parser = argparse.ArgumentParser()
    options.add_shared_options(parser)
    defaults = parser.parse_args([])
    # an option with a default could not be told from one that was stated
    assert {getattr(defaults, name) for name in mode.unused} <= {None}


def test_modes_add_their_options_to_one_parser() -> None:
    parser = argparse.ArgumentParser()
    options.add_shared_options(parser)
    for mode in MODES.values():
        if mode.add_options is not None:
            mode.add_options(parser)
    with pytest.raises(argparse.ArgumentError, match="conflicting"):
        options.add_shared_options(parser)
