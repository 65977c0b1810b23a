"""A trained model that answers: back ends with one contract, and their latency.

A trained model that answers: back ends with one contract, and their latency. `train/bench.py
--mode infer` runs it.

Writes graphs to the folder that the caller gives, and nothing else.

Invariants:

* A back end is timed only if its outputs are eager's: 1e-5 in fp32, 1e-3 in fp16 and TF32, 1e-2
  in bf16 (tests/train/inference/test_latency.py, tests/train/inference/test_backends.py).
* A back end that is missing or fails is one line, and the others go on
  (tests/train/inference/test_latency.py, tests/train/inference/test_onnx_backends.py).
* Every text of a request has all its tokens: no back end can compute fewer
  (tests/train/inference/test_inputs.py).

To extend: a back end is a subclass of `Backend` with a name, and an entry in `BACKENDS`.
"""

from __future__ import annotations

from train.inference.backends import Backend, Outputs, Setup, Unavailable
from train.inference.inputs import Inputs, synthetic_inputs
from train.inference.latency import (
    BACKENDS,
    LIMITS,
    REQUESTS,
    Schedule,
    Timing,
    measure_batch,
    reference,
    start,
)

__all__ = [
    "BACKENDS",
    "LIMITS",
    "REQUESTS",
    "Backend",
    "Inputs",
    "Outputs",
    "Schedule",
    "Setup",
    "Timing",
    "Unavailable",
    "measure_batch",
    "reference",
    "start",
    "synthetic_inputs",
]
