from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.trainer.backends import Compiled, CudaGraph, Eager, Unavailable, device_model
from benchmarks.trainer.inference import LIMITS, difference, synthetic_inputs
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


@pytest.mark.parametrize("precision", ["bf16", "bf16_o2"])
def test_bf16_rounds_and_stays_within_its_limit(tmp_path, precision):
    setup = small_setup(tmp_path, precision)
    (request, _) = requests(2)
    ours = Eager(setup)(request.pixels_BHWC, request.token_BT)
    exact = Eager(small_setup(tmp_path))(request.pixels_BHWC, request.token_BT)
    assert ours.image_BE.dtype == np.float32
    assert 1e-5 < difference(ours, exact) <= LIMITS[precision]
    weights = {"bf16": torch.float32, "bf16_o2": torch.bfloat16}[precision]
    assert device_model(setup).text.proj.dtype == weights
    assert setup.model.text.proj.dtype == torch.float32  # the given model stays as it is


def assert_answers_as(backend, eager):
    """For each of two batch sizes, what it was prepared with and other values."""
    for batch in (1, 3):
        first, second = requests(batch)
        backend.prepare(first.pixels_BHWC, first.token_BT)
        for request in (first, second):
            ours = backend(request.pixels_BHWC, request.token_BT)
            assert difference(ours, eager(request.pixels_BHWC, request.token_BT)) <= 1e-5
    backend.close()


@pytest.mark.slow
def test_compiled_answers_as_eager_does_for_each_batch_that_it_prepares(tmp_path):
    setup = small_setup(tmp_path)
    compiled, eager = Compiled(setup), Eager(setup)
    assert_answers_as(compiled, eager)


def test_a_cuda_graph_without_a_gpu_says_so_in_one_line(tmp_path):
    with pytest.raises(Unavailable, match=r"^a CUDA graph needs a GPU$"):
        CudaGraph(small_setup(tmp_path))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_graph_answers_as_eager_does(tmp_path):
    setup = small_setup(tmp_path, device="cuda")
    graph, eager = CudaGraph(setup), Eager(setup)
    assert_answers_as(graph, eager)
