from __future__ import annotations

import dataclasses
import importlib.util

import onnxruntime
import pytest
import torch

from benchmarks.trainer import backends
from benchmarks.trainer.backends import Eager, OnnxRuntime, TensorRT, Unavailable
from benchmarks.trainer.inference import difference, synthetic_inputs
from tests.support.inference import small_setup
from train.model.architecture import MODELS


@pytest.mark.slow
def test_onnx_runtime_answers_as_eager_does_and_the_graphs_are_written_once(tmp_path, monkeypatch):
    setup = small_setup(tmp_path)
    runtime, eager = OnnxRuntime(setup), Eager(setup)
    for batch in (1, 3):
        for request in synthetic_inputs(MODELS["test"], batch, 9, count=2):
            runtime.prepare(request.pixels_BHWC, request.token_BT)
            ours = runtime(request.pixels_BHWC, request.token_BT)
            assert difference(ours, eager(request.pixels_BHWC, request.token_BT)) <= 1e-5
    monkeypatch.setattr(backends, "write_graphs", None)
    OnnxRuntime(setup)
    assert [path.name for path in tmp_path.iterdir()] == ["fp32"]


@pytest.mark.parametrize(
    ("backend", "precision", "device", "message"),
    [
        (OnnxRuntime, "bf16", "cpu", "its graphs are fp32 or fp16, not bf16"),
        (OnnxRuntime, "fp32", "cuda", "has no CUDAExecutionProvider, only"),
        (TensorRT, "fp32", "cpu", "TensorRT needs a GPU"),
        (TensorRT, "fp32", "cuda", "tensorrt is not installed: pip install tensorrt"),
    ],
)
def test_what_cannot_run_here_is_one_line(tmp_path, backend, precision, device, message):
    if device == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("it can run here")
    setup = dataclasses.replace(small_setup(tmp_path, precision), device=torch.device(device))
    with pytest.raises(Unavailable, match=message) as error:
        backend(setup)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())  # nothing was exported for it


def test_without_its_packages_the_extra_is_named(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name.startswith("onnx") else find(name)
    )
    with pytest.raises(
        Unavailable, match=r"onnxruntime not installed: pip install -e '\.\[onnx\]'"
    ):
        OnnxRuntime(small_setup(tmp_path))
