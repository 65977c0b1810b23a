"""What test_parallelism.py runs as four processes: `python modes.py FOLDER`. Each writes
FOLDER/found-RANK.json. They are forked from one that has imported everything: an import takes 4 s.

First all four are one world; then ranks 0 and 1, and 2 and 3, are two worlds of two. A mode is a
layout, changes to the settings and a loss; its gradients, loss and, for some, weights after two
steps are compared with those of one process.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
import torch.nn.functional as F

from clipmill.manifests.records import CheckpointRecord, DamagedSamples
from clipmill.train.config import configure
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP, pack_captions
from clipmill.train.parallel import checkpoint as saver
from clipmill.train.parallel import checkpoint as sharded_checkpoint
from clipmill.train.parallel import process_group
from clipmill.train.parallel.parallelism import parallelize
from clipmill.train.parallel.process_group import Ranks
from clipmill.train.step import accumulate
from clipmill.train.step.loss import DataParallel, contrastive
from clipmill.train.step.update import Update, precision_context
from clipmill.train.trainer.loop import lock_towers
from tests.support.forked_ranks import fork_ranks

B = 16
BF16 = "bf16"  # in 32 bits with autocast, where all other modes compute in 64 bits
STEPPED = ("clip", "accumulated", "locked")  # of these the weights after two steps are compared too
BASE = {
    "model": "test",
    "batch_size": B,
    "lanes": 4,
    "samples_seen": 1600,
    "precision": "fp32",
    "warmup": 0,
    "lr": 1e-3,
    "grad_clip": 0.5,
    "device": "cpu",
}
LAYOUTS = {
    4: {
        "dp4": {},
        "dp2 x tp2": {"tp": 2},
        "fsdp2 x tp2": {"dp_shard": 2, "tp": 2},
        "fsdp4": {"dp_shard": 4},
        "dp2 x fsdp2": {"dp_shard": 2},
    },
    2: {"dp2": {}, "tp2": {"tp": 2}, "fsdp2": {"dp_shard": 2}},
}
LOSSES = {"clip": {}, "siglip": {"loss": "siglip"}, "clip, tiled": {"loss_tile": 3}}
CHANGES = {  # beside the losses
    "accumulated": {"micro_batch": 2},
    "packed": {"captions": "packed"},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "every other": {"recompute": "every_2"},
    BF16: {"precision": "bf16"},
    "locked": {
        "init": "weights",
        "lock_image": True,
        "lock_image_unlocked_groups": 2,
        "lock_text": True,
        "micro_batch": 4,
    },
    "compiled": {"compile": "aot_eager", "model.text_layers": 1, "model.vision_layers": 1},
    "dropped": {
        "micro_batch": 4,
        "recompute": "full",
        "captions": "packed",
        "model.drop_patch_rate": 0.25,
    },
}
# What is tried where: all losses and changes where they could interfere, one of each kind
# elsewhere.
CHOSEN = {
    "dp4": [*LOSSES, "accumulated", "locked"],
    "dp2 x tp2": [*LOSSES, "accumulated", "packed"],
    "fsdp2 x tp2": [*LOSSES, *(change for change in CHANGES if change not in ("compiled", BF16))],
    "fsdp4": ["clip", "siglip", "accumulated"],
    "dp2 x fsdp2": ["clip", "accumulated"],
    "dp2": ["clip", "packed"],
    "tp2": ["clip", "accumulated", "packed", "selective", "dropped", "locked"],
    "fsdp2": ["clip", "packed", "selective", "compiled", "locked", BF16],
}


def settings(layout, change):
    return configure({**BASE, **layout, **LOSSES.get(change, {}), **CHANGES.get(change, {})})


def fresh(config):
    model = dataclasses.replace(MODELS["test"], vocab_size=99, logit_bias=config.loss == "siglip")
    made = CLIP(dataclasses.replace(model, **config.model_changes), 0)
    return made if config.precision == "bf16" else made.double()


def samples(step):
    generator = torch.Generator().manual_seed(step)
    length = torch.randint(3, 17, (B,), generator=generator)
    tokens = torch.randint(1, 98, (B, 16), generator=generator)
    at = torch.arange(16)
    tokens[at >= length[:, None]] = 0
    tokens[at == length[:, None] - 1] = 98
    return torch.randn(B, 3, 32, 32, generator=generator, dtype=torch.float64), tokens


def backward(model, wrapped, config, data_parallel, step):
    """The gradients of this rank's share of batch `step`; returns the loss."""
    image, tokens = samples(step)
    image = image.to(model.logit_scale.dtype)
    count = B // data_parallel.world
    first = data_parallel.rank * count

    def take(rows):
        at = slice(first + rows.start, first + rows.stop)
        model.reseed(config.seed, step, torch.arange(at.start, at.stop))
        captions = {"padded": lambda x: x, "packed": pack_captions}[config.captions]
        return image[at], captions(tokens[at])

    loss_of = functools.partial(
        contrastive, config.loss, data_parallel=data_parallel, tile=config.loss_tile
    )
    precision = functools.partial(precision_context, config, torch.device("cpu"))
    return accumulate.backward(
        wrapped, take, count, loss_of, micro_batch=config.micro_batch, precision=precision
    ).loss


def flat(tensors):
    return torch.cat(
        [(x.full_tensor() if hasattr(x, "full_tensor") else x).detach().flatten() for x in tensors]
    )


@functools.cache
def alone(change):
    """One process with the whole batch: gradients, loss and the weights after the steps."""
    of_model = ("model.", "init", "lock_", "precision")
    plain = {k: v for k, v in CHANGES.get(change, {}).items() if k.startswith(of_model)}
    config = configure({**BASE, **LOSSES.get(change, {}), **plain})
    model = fresh(config)
    lock_towers(model, config)
    update, grads, losses = Update(model, config), None, []
    for step in range(2 if change in STEPPED else 1):
        losses.append(backward(model, model, config, DataParallel(), step).item())
        if step == 0:
            grads = flat([p.grad for p in model.parameters() if p.requires_grad])
        update.step(config.lr, update.grad_norm())
    return grads, losses, flat(model.parameters())


ARRANGED: dict[tuple[int, ...], Ranks] = {}


def build(ranks, config):
    key = (ranks.world, config.dp_shard, config.tp)
    if key not in ARRANGED:  # every mesh is made of new groups, which take longer than these steps
        ARRANGED[key] = process_group.build_mesh(ranks, config)
    ranks = ARRANGED[key]
    model = fresh(config)
    parallelize(model, ranks, config)
    lock_towers(model, config)
    update = Update(model, config)
    return ranks, model, process_group.apply_ddp(model, ranks), update


def compared(ranks, layout, change):
    """Cosine, ratio of norms and largest difference of the gradients; of the losses and weights the
    difference."""
    config = settings(layout, change)
    ranks, model, wrapped, update = build(ranks, config)
    losses, norm = [], 0.0
    for step in range(2 if change in STEPPED else 1):
        losses.append(
            process_group.mean(
                backward(model, wrapped, config, ranks.data_parallel, step)[None], ranks
            )[0].item()
        )
        if step == 0:
            grads = flat([p.grad for p in model.parameters() if p.requires_grad])
            norm = update.grad_norm().item()
        update.step(config.lr, update.grad_norm())
    end = flat(model.parameters())
    wanted, wanted_losses, wanted_end = alone(change)
    return {
        "cosine": F.cosine_similarity(grads, wanted, dim=0).item(),
        "ratio": (grads.norm() / wanted.norm()).item(),
        "norm": norm / wanted.norm().item(),
        "loss": max(abs(a - b) for a, b in zip(losses, wanted_losses, strict=True)),
        "weights": ((end - wanted_end).norm() / wanted_end.norm()).item(),
    }


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


def wrong(ranks):
    """Losses and gradients of mistakes: features gathered over all ranks though those of a tp group
    see the same samples, with labels by the row of the mesh or by the rank; and features gathered
    without their gradient."""
    differences = {}
    for name, layout, local in (
        ("gathered over all, local", {"tp": 2}, True),
        ("gathered over all", {"tp": 2}, False),
        ("local without gradient", {}, None),
    ):
        here, model, wrapped, _ = build(ranks, settings(layout, "clip"))
        data_parallel = here.data_parallel
        image, tokens = samples(0)
        own = slice(
            data_parallel.rank * B // data_parallel.world,
            (data_parallel.rank + 1) * B // data_parallel.world,
        )
        image_bE, text_bE, scale, _ = wrapped(image[own], tokens[own])
        if local is None:
            loss, _ = without_gradient(image_bE, text_bE, scale, None, data_parallel=data_parallel)
        else:
            world = DataParallel(rank=data_parallel.rank if local else here.rank, world=here.world)
            loss, _ = contrastive("clip", image_bE, text_bE, scale, data_parallel=world)
        loss.backward()
        grads = flat([p.grad for p in model.parameters()])
        differences[name] = {
            "loss": process_group.mean(loss.detach()[None], here)[0].item() - alone("clip")[1][0],
            "cosine": F.cosine_similarity(grads, alone("clip")[0], dim=0).item(),
        }
    return differences


# --- checkpoints ----------------------------------------------------------------------------------


def train_on(ranks, model, wrapped, update, config, first, last):
    for step in range(first, last):
        backward(model, wrapped, config, ranks.data_parallel, step)
        update.step(config.lr, update.grad_norm())


def written(ranks, run, layout):
    """Three steps in `layout`; saved after the second, while the third already changes the
    weights."""
    config = configure({**BASE, **layout})
    ranks, model, wrapped, update = build(ranks, config)
    train_on(ranks, model, wrapped, update, config, 0, 2)
    saving = saver.Saver(run, ranks)
    record = CheckpointRecord(
        bad=DamagedSamples(count=0, samples=()),
        step=2,
        identity={},
        order="",
        config_hash="",
        sha256={},
    )
    saving.save(model.state_dict(), update.state(), record)
    train_on(ranks, model, wrapped, update, config, 2, 3)
    saving.finish()


def continued(ranks, run, layout):
    """The third step from what `run` holds: how far weights and moments are from one process's that
    never stopped."""
    config = configure({**BASE, **layout})
    whole = fresh(config)
    wanted = Update(whole, config)
    train_on(
        Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False),
        whole,
        whole,
        wanted,
        config,
        0,
        3,
    )
    ranks, model, wrapped, update = build(ranks, config)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    checkpoint = sharded_checkpoint.newest(run, ranks)
    sharded_checkpoint.restore(checkpoint, model, update, None, ranks)
    train_on(ranks, model, wrapped, update, config, checkpoint.step, 3)
    state, worst = update.state(), 0.0
    for name, parts in {
        **wanted.state(),
        "": {n: p.detach() for n, p in whole.named_parameters()},
    }.items():
        own = state[name] if name else {n: p.detach() for n, p in model.named_parameters()}
        assert own.keys() == parts.keys()
        for part, x in parts.items():
            y = own[part].full_tensor() if hasattr(own[part], "full_tensor") else own[part]
            worst = max(worst, (x - y).abs().max().item())
    return worst


def work(rank, folder):
    results, times = {}, {}
    run = str(folder / "run")

    def begin(name, own, world):
        method = f"file://{folder}/{name}"
        dist.init_process_group("gloo", init_method=method, rank=own, world_size=world)
        return Ranks(rank=own, world=world, device=torch.device("cpu"), owns_group=True)

    def modes(ranks, layouts):
        for name in layouts:
            for change in CHOSEN[name]:
                began = time.perf_counter()
                results[f"{name}: {change}"] = compared(ranks, LAYOUTS[ranks.world][name], change)
                times[f"{name}: {change}"] = time.perf_counter() - began

    ranks = begin("four", rank, 4)
    modes(ranks, LAYOUTS[4])
    results["wrong"] = wrong(ranks)
    written(ranks, run, LAYOUTS[4]["fsdp2 x tp2"])
    results["continued as fsdp4"] = continued(ranks, run, LAYOUTS[4]["fsdp4"])
    results["continued as dp2 x tp2"] = continued(ranks, run, LAYOUTS[4]["dp2 x tp2"])
    dist.destroy_process_group()
    ranks = begin(f"two-{rank // 2}", rank % 2, 2)
    modes(ranks, ["dp2", "tp2"] if rank < 2 else ["fsdp2"])
    if rank < 2:
        results["continued as tp2"] = continued(ranks, run, {"tp": 2})
    else:
        results["continued as fsdp2"] = continued(ranks, run, {"dp_shard": 2})
    dist.destroy_process_group()
    if rank == 0:
        results["continued as one process"] = continued(
            dataclasses.replace(ranks, world=1), run, {}
        )
    (folder / f"found-{rank}.json").write_text(json.dumps({"found": results, "times": times}))


def main():
    """Fork the four ranks; the exit status is 0 where all of them end with 0."""
    # Imported by the first mesh and by FSDP2 otherwise, in each rank.
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel

    torch.set_num_threads(1)
    return 1 if any(fork_ranks(4, lambda rank: work(rank, Path(sys.argv[1])))) else 0


if __name__ == "__main__":
    sys.exit(main())
