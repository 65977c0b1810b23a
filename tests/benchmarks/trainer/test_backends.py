from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.trainer.backends import Compiled, CudaGraph, Eager
from benchmarks.trainer.inference import difference, synthetic_inputs
from tests.support.inference import small_setup
from train.model.architecture import MODELS
from train.transforms import normalise


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
