"""What test_ranks.py runs as four processes: `python ranks.py RANK STORE OUT`. Rank 0 writes OUT, a
JSON of numbers.

The ranks stand for data parallelism over four, or for two of it times two of another kind (ranks 0
and 2 share one place of that kind, 1 and 3 the other; those of one row, 0 and 1, see the same
samples).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.support.forked_ranks import fork_ranks
from train.config import configure
from train.model.architecture import MODELS
from train.model.clip import CLIP
from train.step import accumulate
from train.step.loss import DataParallel, _Gather, contrastive
from train.step.update import Update, total_norm

WORLD, B, E = 4, 16, 6
VARIANTS = [
    (kind, local, gather, tile)
    for kind, local, gather, tile in itertools.product(
        ("clip", "siglip"), (True, False), (True, False), (None, 3)
    )
    if gather or not local
]
WRONG = ["local loss without gradient", "local loss over all ranks", "global loss over all ranks"]


def features():
    generator = torch.Generator().manual_seed(0)
    return F.normalize(torch.randn(2, B, E, generator=generator, dtype=torch.float64), dim=-1)


def numbers_of(kind, whole, own, loss_of):
    """Loss, accuracy and the gradients to scale, bias and the features of the rows `own`, zeros
    elsewhere."""
    leaf = whole[:, own].clone().requires_grad_()
    scale = torch.tensor(7.0, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(-2.0, dtype=torch.float64, requires_grad=True) if kind == "siglip" else None
    loss, accuracy = loss_of(leaf[0], leaf[1], scale, bias)
    loss.backward()
    grad = torch.zeros_like(whole)
    grad[:, own] = leaf.grad
    of_bias = torch.zeros((), dtype=torch.float64) if bias is None else bias.grad
    return torch.cat(
        [torch.stack([loss.detach(), accuracy.double(), scale.grad, of_bias]), grad.flatten()]
    )


def mean(values):
    dist.all_reduce(values)
    return (values / WORLD).tolist()


def without_gradient(image_bE, text_bE, scale, bias, *, data_parallel):
    """The mistake that `contrastive` refuses: own rows against features that were gathered without
    their gradient."""
    both = [
        torch.empty(2, *image_bE.shape, dtype=image_bE.dtype) for _ in range(data_parallel.world)
    ]
    dist.all_gather(both, torch.stack([image_bE, text_bE]).detach(), group=data_parallel.group)
    image_BE, text_BE = torch.cat(both, dim=1)
    own = torch.arange(len(image_bE)) + data_parallel.rank * len(image_bE)
    loss = F.cross_entropy(scale * image_bE @ text_BE.T, own) + F.cross_entropy(
        scale * text_bE @ image_BE.T, own
    )
    return loss / 2, torch.zeros(())


def losses(rank, groups):
    """Every variant of the loss over four ranks, and over two in a world of four; and what is known
    to be wrong."""
    results = {}
    for shape, data_parallel in groups.items():
        own = slice(
            data_parallel.rank * B // data_parallel.world,
            (data_parallel.rank + 1) * B // data_parallel.world,
        )
        for kind, local, gather, tile in VARIANTS:
            options = {"local_loss": local, "gather_with_grad": gather, "tile": tile}
            loss_of = functools.partial(contrastive, kind, data_parallel=data_parallel, **options)
            results[f"{shape} {kind} {local} {gather} {tile}"] = mean(
                numbers_of(kind, features(), own, loss_of)
            )
    data_parallel = groups["4"]
    own = slice(rank * B // WORLD, (rank + 1) * B // WORLD)
    results[WRONG[0]] = mean(
        numbers_of(
            "clip",
            features(),
            own,
            functools.partial(without_gradient, data_parallel=data_parallel),
        )
    )
    row = groups["2x2"].rank
    own = slice(row * B // 2, (row + 1) * B // 2)
    # Rows come twice, and are looked for where they would be among the ranks of data parallelism.
    for name, local in zip(WRONG[1:], (True, False), strict=True):
        data_parallel = DataParallel(rank=row if local else rank, world=WORLD)
        loss_of = functools.partial(
            contrastive, "clip", data_parallel=data_parallel, local_loss=local
        )
        results[name] = mean(numbers_of("clip", features(), own, loss_of))
    return results


def scattered_and_reduced(rank, groups):
    """Of each group: the largest difference, in fp32, between the gather's backward and the rows of
    an all-reduce, which it was before; and whether it received other ranks' rows."""
    results = {}
    for shape, data_parallel in groups.items():
        world, b = data_parallel.world, 6
        generator = torch.Generator().manual_seed(rank)
        x_nbE = torch.randn(2, b, 5, generator=generator, requires_grad=True)
        grad_nBE = torch.randn(2, world * b, 5, generator=generator)
        _Gather.apply(x_nbE, data_parallel, True).backward(grad_nBE)
        dist.all_reduce(grad_nBE, group=data_parallel.group)
        own = slice(data_parallel.rank * b, (data_parallel.rank + 1) * b)
        results[shape] = [
            float((x_nbE.grad - grad_nBE[:, own]).abs().max()),
            float(grad_nBE.abs().max()),
        ]
    return results


def towers(kind):
    return CLIP(dataclasses.replace(MODELS["test"], vocab_size=99, logit_bias=kind == "siglip"), 0)


def samples():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 98, (24, 16), generator=generator)
    tokens[:, 12:] = 0
    tokens[:, 11] = 98
    return torch.randn(24, 3, 32, 32, generator=generator, dtype=torch.float64), tokens


def gradients(model, rows, data_parallel, kind, **options):
    image, tokens = (x[rows] for x in samples())
    loss_of = functools.partial(contrastive, kind, data_parallel=data_parallel)
    result = accumulate.backward(
        model, lambda piece: (image[piece], tokens[piece]), len(image), loss_of, **options
    )
    grads = [
        torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
        for p in model.parameters()
    ]
    return result.loss, torch.cat(grads)


def accumulation(rank):
    """Gradients of DDP in micro-batches of 2 of a rank's 6 samples, against one process and the
    whole batch of 24."""
    results = {}
    for kind in ("clip", "siglip"):
        _, wanted = gradients(towers(kind).double(), slice(0, 24), DataParallel(), kind)
        wrapped = DistributedDataParallel(towers(kind).double(), gradient_as_bucket_view=True)
        rows = slice(6 * rank, 6 * rank + 6)
        loss, grads = gradients(
            wrapped, rows, DataParallel(rank=rank, world=WORLD), kind, micro_batch=2
        )
        dist.all_reduce(loss)
        results[kind] = [
            F.cosine_similarity(grads, wanted, dim=0).item(),
            (grads.norm() / wanted.norm()).item(),
            (grads - wanted).norm().item() / wanted.norm().item(),
            loss.item() / WORLD,
        ]
    return results


def meshes():
    """An update of parameters that are plain, sharded over one mesh and over two, against the same
    all plain."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    config = configure(
        {
            "model": "test",
            "grad_clip": 0.05,
            "precision": "fp32",
            "lr": 1e-2,
            "warmup": 0,
        }
    )
    plain, spread = towers("clip"), towers("clip")
    del plain.visual, spread.visual  # half is enough
    for name, parameter in list(spread.named_parameters()):
        where, leaf = spread.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        if "qkv.weight" in name or "fc1" in name:
            over, placements = mesh, [Shard(0), Shard(parameter.ndim - 1)]
        elif "fc2" in name:
            over, placements = mesh, [Replicate(), Shard(0)]
        elif "blocks" in name or "token_embedding" in name:
            over, placements = mesh["dp"], [Shard(0)]
        else:
            continue
        setattr(
            where, leaf, torch.nn.Parameter(distribute_tensor(parameter.detach(), over, placements))
        )
    updates, worst, norms = [Update(model, config) for model in (plain, spread)], 0.0, []
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        for (_, p), (_, q) in zip(plain.named_parameters(), spread.named_parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
            if isinstance(q, DTensor):
                q.grad = distribute_tensor(p.grad.clone(), q.device_mesh, q.placements)
        norms = [update.grad_norm() for update in updates]
        for update, norm in zip(updates, norms, strict=True):
            update.step(1e-2, norm)
    kept = copy.deepcopy(updates[1].state())
    for name, moments in updates[0].state().items():
        for key, x in {**moments, "weights": dict(plain.named_parameters())[name].detach()}.items():
            y = (
                dict(spread.named_parameters())[name].detach()
                if key == "weights"
                else kept[name][key]
            )
            worst = max(
                worst, (x - (y.full_tensor() if isinstance(y, DTensor) else y)).abs().max().item()
            )
    alone = total_norm(
        [torch.ones(4), distribute_tensor(torch.ones(3, 5), mesh, [Shard(0), Replicate()])]
    )
    return [norms[0].item(), norms[1].item(), worst, alone.item()]


def work(rank, store, out):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    groups = {
        "4": DataParallel(rank=rank, world=WORLD),
        "2x2": DataParallel(rank=rank // 2, world=2, group=columns[rank % 2]),
    }
    results = {
        "losses": losses(rank, groups),
        "accumulation": accumulation(rank),
        "meshes": meshes(),
        "gather": scattered_and_reduced(rank, groups),
    }
    if rank == 0:
        Path(out).write_text(json.dumps(results))
    dist.destroy_process_group()


def main():
    # Imported by the first mesh and by FSDP2 otherwise, in each rank.
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel

    torch.set_num_threads(1)
    return 1 if any(fork_ranks(WORLD, lambda rank: work(rank, *sys.argv[1:]))) else 0


if __name__ == "__main__":
    sys.exit(main())
