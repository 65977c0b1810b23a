from __future__ import annotations

import argparse
import re

import pytest

from benchmarks.trainer import options
from benchmarks.trainer.options import BenchOptions
from benchmarks.trainer.report_form import Layout

FLAGS = ("--iterations", "--repeats", "--global-batch", "-b")


def read(*words: str) -> BenchOptions:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    options.add_shared_options(parser)
    args, rest = parser.parse_known_args(words)
    args.mode = "train"
    return options.read_options(args, [*rest], FLAGS)


def test_unknown_options_are_settings_of_the_trainer() -> None:
    given = read("--lr", "1e-3", "--micro-batch=4", "--model.vision_layers", "2", "--set", "seed=3")
    assert given.changes == {
        "lr": "1e-3",
        "micro_batch": "4",
        "model.vision_layers": "2",
        "seed": "3",
    }
    config = given.config("micro", "fp32", 48, Layout(name="fsdp", dp_shard=0), 4, 5)
    assert (config.lr, config.micro_batch, config.seed) == (1e-3, 4, 3)
    assert (config.steps, config.lanes, config.dp_shard, config.precision) == (5, 16, 4, "fp32")
    assert (
        read("--text-length", "9")
        .config("micro", "bf16", 8, Layout(name="dp"), 1, 1)
        .context_length
        == 9
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-n 0", "ranks is 0; it must be at least 1"),
        ("-n 1,,2", "has an empty value"),
        ("-n two", "ranks is two; it must be at least 1"),
        ("-n 99999999", "no machine has so many"),
        ("-b -4", "batch is -4; it must be at least 1"),
        ("-i 0", "iterations is 0; it must be at least 1"),
        ("-e 0", "repeats is 0; it must be at least 1"),
        ("--num-examples 0", "num_examples is 0; it must be at least 1"),
        ("--dtype fp23", "there is no dtype 'fp23'; did you mean 'fp32'?"),
        ("--dtype fp16 --device cpu", "dtype is fp16, which processors do not compute in"),
        ("--model ViT-B-23", "there is no model 'ViT-B-23'; did you mean"),
        ("--iteratons 5", "there is no option --iteratons, and no setting of that name; did you"),
        ("--learning-rate 5", "there is no option --learning-rate"),
        ("--lr", "--lr has no value; write --lr VALUE"),
        ("--lr --seed 3", "--lr has no value"),
        ("stray", "'stray' belongs to no option"),
        ("--set lr", "--set 'lr' is not KEY=VALUE"),
        ("--samples-seen 5", "samples_seen is a setting that -i and -e decides"),
        ("--parallel tp", "--parallel is 'tp'; it must be"),
        ("--parallel tp1", "--parallel is 'tp1'; it must be"),
        ("--parallel dp+tp2", "--parallel is 'dp+tp2'; dp stands alone"),
        ("--parallel dp3", "--parallel is 'dp3'; it must be"),
    ],
)
def test_mistakes_are_refused(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read(*words.split())
