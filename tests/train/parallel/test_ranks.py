"""Over four processes: the loss and its gradient, accumulation, and updates of parameters on
several meshes.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from tests.support import ranks
from train.step.loss import contrastive


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, ranks.__file__, str(folder / "store"), str(folder / "found.json")]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text())


@functools.cache
def alone(kind):
    """One process with the whole batch, all logits at once."""
    loss_of = functools.partial(contrastive, kind)
    return ranks.numbers_of(kind, ranks.features(), slice(None), loss_of)


def compared(values, kind="clip"):
    """How the gradients lie to those of one process: cosine and ratio of norms."""
    grads, wanted = torch.tensor(values, dtype=torch.float64)[2:], alone(kind)[2:]
    return F.cosine_similarity(grads, wanted, dim=0).item(), (grads.norm() / wanted.norm()).item()


@pytest.mark.parametrize("shape", ["4", "2x2"])
@pytest.mark.parametrize(("kind", "local", "gather", "tile"), ranks.VARIANTS)
def test_over_ranks_it_is_the_loss_and_the_gradient_of_the_whole_batch(
    found, shape, kind, local, gather, tile
):
    values = found["losses"][f"{shape} {kind} {local} {gather} {tile}"]
    torch.testing.assert_close(
        torch.tensor(values, dtype=torch.float64), alone(kind), rtol=1e-9, atol=1e-12
    )
    cosine, ratio = compared(values, kind)
    assert cosine >= 0.999999
    assert ratio == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("shape", ["4", "2x2"])
def test_the_gathers_backward_is_an_all_reduce_up_to_rounding(found, shape):
    difference, largest = found["gather"][shape]
    assert difference <= 4 * torch.finfo(torch.float32).eps * largest
    assert largest > 1


def test_what_is_known_to_be_wrong_fails_that_comparison(found):
    wrong = {name: compared(found["losses"][name]) for name in ranks.WRONG}
    values = {name: found["losses"][name][0] - alone("clip")[0].item() for name in ranks.WRONG}
    cosine, ratio = wrong["local loss without gradient"]
    assert values["local loss without gradient"] == pytest.approx(0, abs=1e-12), (
        "the loss alone does not show it"
    )
    assert cosine < 0.999
    assert abs(ratio - 1) > 1e-3
    cosine, _ = wrong["local loss over all ranks"]
    assert cosine < 0.999
    assert values["global loss over all ranks"] == pytest.approx(torch.tensor(2.0).log().item()), (
        "rows came twice"
    )


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_micro_batches_over_ranks_have_the_gradients_of_one_process_with_the_whole_batch(
    found, kind
):
    cosine, ratio, difference, loss = found["accumulation"][kind]
    assert cosine >= 0.999999
    assert ratio == pytest.approx(1, abs=1e-5)
    assert difference < 1e-10
    assert loss == pytest.approx(
        ranks.gradients(ranks.towers(kind).double(), slice(0, 24), None, kind)[0].item()
    )


def test_an_update_on_mixed_meshes_is_that_of_plain_parameters(found):
    plain, spread, worst, alone = found["meshes"]
    assert spread == pytest.approx(plain, rel=1e-6)
    assert worst < 1e-6
    assert alone == pytest.approx(19**0.5)
