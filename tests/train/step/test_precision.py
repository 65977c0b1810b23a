"""Precisions inside their contexts, and the loss scale against torch's GradScaler."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.steps import config_of
from train.step.update import Scaler, matmul_precision, precision_context

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("precision", "inside"),
    [
        ("fp32", "float32"),
        ("tf32", "float32"),
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
    ],
)
def test_a_precision_is_that_of_products_inside_its_context(precision, inside):
    before = torch.get_float32_matmul_precision()
    config = config_of(precision=precision)
    with matmul_precision(config), precision_context(config, torch.device("cpu")):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        assert torch.get_float32_matmul_precision() == ("high" if precision == "tf32" else before)
    assert product.dtype == getattr(torch, inside)
    assert torch.get_float32_matmul_precision() == before


def test_the_loss_scale_is_torchs():
    ours, theirs = Scaler(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD([weight := torch.nn.Parameter(torch.ones(1))], lr=0.0)
    for step in range(2010):
        finite = step not in (0, 1, 5)
        theirs.scale(weight.sum() * (1.0 if finite else math.inf)).backward()
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        ours.record(finite)
        assert ours.scale == theirs.get_scale()
    assert (ours.scale, ours.skipped, ours.in_a_row) == (2.0**14, 3, 0)
