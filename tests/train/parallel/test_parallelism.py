"""Every layout and way of computing a step against one process; checkpoints from one layout into
others.

Four processes compute it all once, in 64 bits; `modes.py` says what.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys

import pytest
import torch

from clipmill.train.config import configure
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from clipmill.train.parallel import parallelism
from clipmill.train.step import accumulate, feed
from clipmill.train.step.loss import contrastive
from tests.support import modes


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_shards_gathered_in_bf16_train_as_one_process_in_bf16(results):
    values = results[f"fsdp2: {modes.BF16}"]
    assert values["cosine"] >= 0.9995
    assert values["ratio"] == pytest.approx(1, abs=0.01)
    assert values["loss"] < 0.01


@pytest.mark.slow
def test_what_is_known_to_be_wrong_fails_that_comparison(results):
    assert results["wrong"]["gathered over all, local"]["cosine"] < 0.9
    assert results["wrong"]["gathered over all"]["loss"] == pytest.approx(0.6931471805599453), (
        "ln 2: rows came twice"
    )
    without = results["wrong"]["local without gradient"]
    assert without["loss"] == pytest.approx(0, abs=1e-12), "the loss alone does not show it"
    assert without["cosine"] < 0.9999


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["fsdp4", "dp2 x tp2", "tp2", "fsdp2", "one process"])
def test_a_checkpoint_of_fsdp2_x_tp2_continues_in_any_layout(results, layout):
    assert results[f"continued as {layout}"] < 1e-12, (
        "weights, moments, average: largest difference to no interruption"
    )


# --- compiled blocks ------------------------------------------------------------------------------


class Graphs:
    """A compiler that changes nothing. For each graph: of which tower, and whether it is for any
    size of the activations.
    """

    def __init__(self):
        self.made: list[tuple[str, bool]] = []

    def __call__(self, graph, inputs):
        values = {node.name: node.meta.get("example_value") for node in graph.graph.nodes}
        x = values["l_x_"]
        tower = "image" if x.shape[-1] == 32 else "text"
        symbolic = any(isinstance(size, torch.SymInt) for size in x.shape)
        self.made.append((tower, symbolic))
        return graph.forward


def captions_of(longest):
    """Eight captions of different lengths, one of them the longest."""
    length_B = (torch.arange(8) * 5 + longest) % longest + 1
    length_B[longest % 8] = longest
    tokens_BT = (torch.arange(longest) < length_B[:, None]).long()
    tokens_BT[torch.arange(8), length_B - 1] = 9
    return tokens_BT, length_B


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("captions", ["padded", "packed"])
def test_micro_batches_of_any_caption_length_are_compiled_once(captions):
    """Fifty lengths, and micro-batches of two sizes: no graph is added after the first steps, and
    no graph of images is for any size.
    """
    torch._dynamo.reset()
    graphs, config = Graphs(), configure({"captions": captions, "model": "test", "micro_batch": 3})
    size = {"vocab_size": 10, "context_length": 64, "text_width": 16}
    layers = {"vision_layers": 1, "text_layers": 1}
    model = CLIP(dataclasses.replace(MODELS["test"], **size, **layers))
    parallelism.apply_compile(model, graphs)
    image_BCHW = torch.zeros(8, 3, 32, 32)
    totals = []
    for longest in range(5, 55):
        tokens_BT, length_B = captions_of(longest)

        def inputs(rows, tokens_BT=tokens_BT, length_B=length_B):
            arranged = feed.arrange_captions(config, tokens_BT[rows], length_B[rows])
            return image_BCHW[rows], arranged

        loss_of = functools.partial(contrastive, "clip")
        accumulate.backward(model, inputs, 8, loss_of, micro_batch=3)
        totals.append(len(graphs.made))
    assert totals[-1] == totals[2]
    assert ("image", True) not in graphs.made
    # Two sizes of micro-batches, with gradient or without
    assert graphs.made.count(("image", False)) == 4
