"""A plain PyTorch loop on one or more ranks, which goes on where it was stopped.

torchrun --nproc-per-node 2 examples/pytorch_loop.py out/pool/basic OUT ViT-B-32 256
"""

import os
import sys
from typing import Any

import open_clip
import torch
import torch.distributed as dist
from open_clip.loss import ClipLoss
from torch.nn.parallel import DistributedDataParallel

import clipmill

EPOCHS, SAVE_EVERY = 2, 2


def main(view: str, out: str, name: str, batch_size: int) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model: Any = open_clip.create_model(name, output_dict=True)
    size, context = model.visual.image_size[0], model.context_length
    loader = clipmill.Loader(
        view,
        batch_size=batch_size,
        image_size=size,
        context_length=context,
        rank=rank,
        world=world,
    )
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loss = ClipLoss(local_loss=True, gather_with_grad=True, rank=rank, world_size=world)
    path = os.path.join(out, "checkpoint.pt")
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    while loader.step < EPOCHS * len(loader):
        for batch in loader:
            image = batch.image.permute(0, 3, 1, 2).float() / 127.5 - 1
            value = loss(**ddp(image, batch.tokens))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            if rank == 0 and (loader.step % SAVE_EVERY == 0 or loader.step % len(loader) == 0):
                parts = {"model": model, "optimizer": optimizer, "loader": loader}
                torch.save({key: part.state_dict() for key, part in parts.items()}, path + ".part")
                os.replace(path + ".part", path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
