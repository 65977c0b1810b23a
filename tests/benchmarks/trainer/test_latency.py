from __future__ import annotations

import numpy as np
import pytest
import torch

from clipmill.bench.backends import Compiled, CudaGraph, Eager, Outputs, Setup
from clipmill.bench.inference import (
    Schedule,
    difference,
    measure_batch,
    reference,
    synthetic_inputs,
)
from clipmill.train.config import configure
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from clipmill.train.transforms import normalise


def small_setup(folder, device="cpu"):
    """The model `test` with texts of 9 tokens."""
    sizes = {"batch_size": 8, "lanes": 8, "samples_seen": 8, "warmup": 0}
    config = configure({"model": "test", "precision": "fp32", **sizes})
    return Setup(
        model=CLIP(MODELS["test"], seed=4).eval(),
        config=config,
        device=torch.device(device),
        text_length=9,
        threads=1,
        folder=folder,
    )


class Scripted(Eager):
    """Eager with a mistake, that records its calls."""

    def __init__(self, setup, name, calls, mistake=0.0):
        super().__init__(setup)
        self.label, self.calls, self.mistake = name, calls, mistake

    def __call__(self, pixels_BHWC, token_BT):
        self.calls.append((self.label, int(token_BT[0, 0])))
        answer = super().__call__(pixels_BHWC, token_BT)
        return Outputs(answer.image_BE, answer.text_BE + np.float32(self.mistake))


class Failing(Scripted):
    def prepare(self, pixels_BHWC, token_BT):
        raise RuntimeError("no compiler was found\nsecond line")


@pytest.fixture
def setup(tmp_path):
    return small_setup(tmp_path)


def test_wrong_and_failing_back_ends_are_not_timed_and_the_others_take_turns(setup):
    calls = []
    backends = {
        "a": Scripted(setup, "a", calls),
        "wrong": Scripted(setup, "wrong", calls, mistake=2e-5),
        "nan": Scripted(setup, "nan", calls, mistake=float("nan")),
        "failing": Failing(setup, "failing", calls),
        "b": Scripted(setup, "b", calls, mistake=2e-6),
    }
    config = MODELS["test"]
    requests = synthetic_inputs(config, 2, 9, count=4)
    schedule = Schedule(warmup=2, iterations=3, repeats=2)
    timings = measure_batch(
        backends, reference(setup), requests, lambda r: r.decoded(config), schedule, setup
    )
    assert timings["wrong"].reason == "its outputs differ from eager's by 2e-05; 1e-05 is allowed"
    assert timings["nan"].reason == "its outputs differ from eager's by inf; 1e-05 is allowed"
    assert timings["failing"].reason == "RuntimeError: no compiler was found"
    for name in ("a", "b"):
        timing = timings[name]
        assert timing.reason is None
        assert (len(timing.wall_s), len(timing.repeat_s)) == (6, 2)
        assert timing.repeat_s[0] == pytest.approx(sum(timing.wall_s[:3]) / 3)
        assert timing.cpu_s > 0
    assert timings["a"].difference == 0
    assert 1e-6 < timings["b"].difference <= 1e-5
    assert not timings["wrong"].wall_s
    # Four calls to compare; then two to warm up and three that count, in every repeat.
    timed = "".join(label for label, _ in calls if label in "ab")
    assert timed == "aaaa" + "bbbb" + 2 * ("aaaaa" + "bbbbb")
    first_tokens = [token for label, token in calls if label == "a"][4:9]
    assert len(set(first_tokens[:4])) == 4  # different requests, in turn


# --- backends


def requests(batch):
    return synthetic_inputs(MODELS["test"], batch, 9, count=2)


def test_eager_is_the_models_own_answer(tmp_path):
    setup = small_setup(tmp_path)
    (request, other) = requests(3)
    answer = Eager(setup)(request.pixels_BHWC, request.token_BT)
    with torch.no_grad():
        image_BE = setup.model.encode_image(normalise(request.pixels_BHWC))
        text_BE = setup.model.encode_text(request.token_BT)
    assert np.array_equal(answer.image_BE, image_BE.numpy())
    assert np.array_equal(answer.text_BE, text_BE.numpy())
    assert difference(answer, Eager(setup)(other.pixels_BHWC, other.token_BT)) > 0.01


def assert_answers_as(backend, eager):
    """What it was prepared with, and other values."""
    first, second = requests(3)
    backend.prepare(first.pixels_BHWC, first.token_BT)
    for request in (first, second):
        ours = backend(request.pixels_BHWC, request.token_BT)
        assert difference(ours, eager(request.pixels_BHWC, request.token_BT)) <= 1e-5
    backend.close()


@pytest.mark.slow
def test_compiled_answers_as_eager_does(tmp_path):
    setup = small_setup(tmp_path)
    compiled, eager = Compiled(setup), Eager(setup)
    assert_answers_as(compiled, eager)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_graph_answers_as_eager_does(tmp_path):
    setup = small_setup(tmp_path, device="cuda")
    graph, eager = CudaGraph(setup), Eager(setup)
    assert_answers_as(graph, eager)
