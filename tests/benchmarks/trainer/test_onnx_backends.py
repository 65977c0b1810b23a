from __future__ import annotations

import pytest

from benchmarks.trainer import backends
from benchmarks.trainer.backends import Eager, OnnxRuntime
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
