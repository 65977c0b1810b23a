from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from train.loss import Shards, contrastive

ROOT = Path(__file__).resolve().parents[2]
B, E = 8, 6
VARIANTS = [
    (kind, local, gather) for kind, local, gather in itertools.product(("clip", "siglip"), (True, False), (True, False))
    if gather or not local
]  # fmt: skip


def features(count=B):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, count, E, generator=generator, dtype=torch.float64)
    return F.normalize(x, dim=-1)


def test_it_is_the_cross_entropy_of_both_directions():
    image, text = features()
    loss, accuracy = contrastive("clip", image, text, torch.tensor(5.0, dtype=torch.float64))
    logits, own = 5 * image @ text.T, torch.arange(B)
    torch.testing.assert_close(loss, (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2)
    assert accuracy == (logits.argmax(dim=1) == own).float().mean()


def test_the_sigmoid_loss_counts_every_pair_alone():
    image, text = features(3)
    loss, _ = contrastive("siglip", image, text, torch.tensor(5.0), torch.tensor(-1.0))
    wanted = 0.0
    for i, j in itertools.product(range(3), range(3)):
        z = 5 * float(image[i] @ text[j]) - 1
        wanted += math.log1p(math.exp(-z if i == j else z))
    assert loss.item() == pytest.approx(wanted / 3)


def test_perfect_features_are_all_right_and_random_ones_cost_the_logarithm_of_the_batch():
    perfect = torch.eye(B)
    loss, accuracy = contrastive("clip", perfect, perfect, torch.tensor(100.0))
    assert loss < 1e-6
    assert accuracy == 1
    loss, _ = contrastive("clip", perfect, perfect, torch.tensor(0.0))
    assert loss.item() == pytest.approx(math.log(B))


def test_a_local_loss_that_does_not_gather_gradients_is_refused():
    with pytest.raises(ValueError, match="wrong gradient"):
        contrastive("clip", *features(), torch.tensor(1.0), shards=Shards(world=2), gather_with_grad=False)


RANK = """
import json, sys
import torch, torch.distributed as dist
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests/train"]
from test_loss import B, VARIANTS, features
from train.loss import Shards, contrastive
rank, world = int(sys.argv[2]), 2
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=world)
found = {}
for kind, local, gather in VARIANTS:
    whole = features()
    leaf = whole[:, rank * B // world : (rank + 1) * B // world].clone().requires_grad_()
    scale = torch.tensor(7.0, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(-2.0, dtype=torch.float64, requires_grad=True) if kind == "siglip" else None
    loss, accuracy = contrastive(kind, leaf[0], leaf[1], scale, bias, shards=Shards(rank=rank, world=world),
                                 local_loss=local, gather_with_grad=gather)
    loss.backward()
    grad = torch.zeros_like(whole)
    grad[:, rank * B // world : (rank + 1) * B // world] = leaf.grad
    numbers = [loss.detach(), accuracy.double(), scale.grad, torch.zeros(()) if bias is None else bias.grad]
    values = torch.cat([torch.stack([n.double() for n in numbers]), grad.flatten()])
    dist.all_reduce(values)
    found[f"{kind} {local} {gather}"] = (values / world).tolist()
if rank == 0:
    json.dump(found, open(sys.argv[4], "w"))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Loss, accuracy and gradients of every variant, averaged over two processes as data parallelism does."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RANK, str(ROOT)]
    rest = [str(folder / "store"), str(folder / "found.json")]
    ranks = [
        subprocess.Popen([*command, str(rank), *rest], env=environment, stderr=subprocess.PIPE) for rank in range(2)
    ]
    for rank in ranks:
        _, said = rank.communicate(timeout=120)
        assert rank.returncode == 0, said.decode()
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize(("kind", "local", "gather"), VARIANTS)
def test_over_ranks_it_is_the_loss_and_the_gradient_of_the_whole_batch(two_ranks, kind, local, gather):
    whole = features().requires_grad_()
    scale = torch.tensor(7.0, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(-2.0, dtype=torch.float64, requires_grad=True) if kind == "siglip" else None
    loss, accuracy = contrastive(kind, whole[0], whole[1], scale, bias)
    loss.backward()
    numbers = [loss.item(), accuracy.item(), scale.grad.item(), 0.0 if bias is None else bias.grad.item()]
    wanted = torch.tensor([*numbers, *whole.grad.flatten().tolist()], dtype=torch.float64)
    found = torch.tensor(two_ranks[f"{kind} {local} {gather}"], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
