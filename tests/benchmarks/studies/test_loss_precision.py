from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from benchmarks.studies import loss_precision
from clipmill.manifests import disk


def test_the_gradients_are_those_of_cross_entropy():
    image_BE, text_BE = (x.double().requires_grad_() for x in loss_precision.features(12, 8))
    own = loss_precision.ROUNDINGS["fp32"]
    loss, *gradients = loss_precision.loss_and_gradients(
        image_BE[:5].detach(), text_BE.detach(), 14.3, own
    )
    expected = F.cross_entropy(14.3 * image_BE[:5] @ text_BE.T, torch.arange(5))
    wanted = torch.autograd.grad(expected, (image_BE, text_BE))
    assert loss == pytest.approx(expected.item())
    torch.testing.assert_close(gradients[0], wanted[0][:5])
    torch.testing.assert_close(gradients[1], wanted[1])


def test_the_committed_figures_are_what_the_documents_say():
    rows = disk.read_json(str(loss_precision.RESULT))["rows"]
    sizes = {(row["batch"], row["width"], row["scale"]) for row in rows}
    assert len(sizes) == len(loss_precision.SIZES) * len(loss_precision.SCALES)
    for size in sizes:
        errors = {
            row["products"]: max(row["image_gradient_error"], row["text_gradient_error"])
            for row in rows
            if (row["batch"], row["width"], row["scale"]) == size
        }
        assert errors["tf32, truncated"] < errors["features in bf16"] / 10
        assert errors["bf16"] < errors["features in bf16"] / 4
