"""Every layout and way of computing a step against one process; checkpoints from one layout into
others.

Four processes compute it all once, in 64 bits; `modes.py` says what.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import torch

from tests.support import modes
from train.config import configure
from train.dist import Ranks, parallelism
from train.model import CLIP, MODELS


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modes")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, modes.__file__, str(folder)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    every = [json.loads((folder / f"found-{rank}.json").read_text())["found"] for rank in range(4)]
    whole = {**every[2], **every[0]}
    for values in every:  # ranks that share samples have other gradients where the loss is wrong
        del values["wrong"]
    del every[0]["continued as one process"]
    assert every[0] == every[1], "ranks differ"
    assert every[2] == every[3]
    return whole


@pytest.mark.parametrize(
    "mode",
    [
        f"{layout}: {change}"
        for layout, chosen in modes.CHOSEN.items()
        for change in chosen
        if change != modes.BF16
    ],
)
def test_gradients_losses_and_weights_are_those_of_one_process(results, mode):
    values = results[mode]
    assert values["cosine"] >= 0.999999
    assert values["ratio"] == pytest.approx(1, abs=1e-5)
    assert values["norm"] == pytest.approx(1, abs=1e-5), "the norm that decides about clipping"
    assert values["loss"] < 1e-10
    assert values["weights"] < 1e-10


def test_shards_gathered_in_bf16_train_as_one_process_in_bf16(results):
    values = results[f"fsdp2: {modes.BF16}"]
    assert values["cosine"] >= 0.9995
    assert values["ratio"] == pytest.approx(1, abs=0.01)
    assert values["loss"] < 0.01


def test_what_is_known_to_be_wrong_fails_that_comparison(results):
    assert results["wrong"]["gathered over all, local"]["cosine"] < 0.9
    assert results["wrong"]["gathered over all"]["loss"] == pytest.approx(0.6931471805599453), (
        "ln 2: rows came twice"
    )
    without = results["wrong"]["local without gradient"]
    assert without["loss"] == pytest.approx(0, abs=1e-12), "the loss alone does not show it"
    assert without["cosine"] < 0.9999


@pytest.mark.parametrize("layout", ["fsdp4", "dp2 x tp2", "tp2", "fsdp2", "one process"])
def test_a_checkpoint_of_fsdp2_x_tp2_continues_in_any_layout(results, layout):
    assert results[f"continued as {layout}"] < 1e-12, (
        "weights, moments, average: largest difference to no interruption"
    )


@pytest.mark.parametrize(
    ("recompute", "blocks", "selective"),
    [
        ("none", [], None),
        ("full", [0, 1], False),
        ("selective", [0, 1], True),
        ("every_2", [0], False),
    ],
)
def test_blocks_are_recomputed_as_the_setting_says(monkeypatch, recompute, blocks, selective):
    model = CLIP(dataclasses.replace(MODELS["test"], vision_layers=1, text_layers=1))
    every = [*model.visual.blocks, *model.text.blocks]
    calls = []
    monkeypatch.setattr(
        parallelism,
        "apply_activation_checkpointing",
        lambda block, *, selective: calls.append((every.index(block), selective)),
    )
    alone = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)
    parallelism.parallelize(model, alone, configure({"model": "test", "recompute": recompute}))
    assert calls == [(number, selective) for number in blocks]
