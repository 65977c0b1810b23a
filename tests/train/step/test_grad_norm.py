"""The norm of gradients, also of 16 bits; a partial sum is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from train.step.update import total_norm

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_norm_of_numbers_of_16_bits_has_32():
    parts = [torch.full((1001,), 1.0, dtype=torch.bfloat16), torch.zeros((), dtype=torch.float32)]
    # 31.64; in 16 bits it would be 31.625
    assert total_norm(parts).item() == pytest.approx(1001**0.5, rel=1e-6)


def test_a_gradient_that_is_a_partial_sum_is_refused():
    grad = SimpleNamespace(
        device_mesh="mesh", placements=[SimpleNamespace(is_partial=lambda: True)]
    )
    with pytest.raises(ValueError, match="still a partial sum over a mesh"):
        total_norm([grad])
