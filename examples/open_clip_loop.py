"""open_clip's own `train_one_epoch` on a view, with its transform and its tokenizer.

python examples/open_clip_loop.py out/pool/basic OUT ViT-B-32 256
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import open_clip
import torch
from open_clip_train.train import train_one_epoch

import clipmill

EPOCHS, SAVE_EVERY = 2, 2
OFF = ("distill", "horovod", "wandb", "log_local", "save_logs", "rank", "local_rank")
settings = {"device": "cpu", "precision": "fp32", "accum_freq": 1, "grad_clip_norm": None}
settings |= {"skip_scheduler": 1, "log_every_n_steps": 1, "world_size": 1} | dict.fromkeys(OFF, 0)


class Data:
    """What open_clip asks of `data["train"]`; it saves between two steps."""

    def __init__(self, path: str, loader: clipmill.Loader, size: int, **parts: Any) -> None:
        self.path, self.loader, self.parts = path, loader, {"loader": loader, **parts}
        self.dataloader, self.num_batches, self.num_samples = self, len(loader), len(loader) * size

    def set_epoch(self, epoch: int) -> None:
        """The position of the loader says it."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in self.loader:
            yield batch.image, batch.tokens
            if self.loader.step % SAVE_EVERY == 0 or self.loader.step % len(self.loader) == 0:
                state = {key: part.state_dict() for key, part in self.parts.items()}
                torch.save(state, self.path + ".part")
                os.replace(self.path + ".part", self.path)


def main(view: str, out: str, name: str, size: int) -> None:
    torch.manual_seed(0)
    made: Any = open_clip.create_model_and_transforms(name, output_dict=True)
    model, preprocess, _ = made
    tokenizer, path = open_clip.get_tokenizer(name), os.path.join(out, "checkpoint.pt")
    loader = clipmill.Loader(view, batch_size=size, transform=preprocess, tokenizer=tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data, args = Data(path, loader, size, model=model, optimizer=optimizer), Namespace(**settings)
    args.batch_size = size
    for key, state in (torch.load(path) if os.path.exists(path) else {}).items():
        data.parts[key].load_state_dict(state)
    train: Any = train_one_epoch
    for epoch in range(loader.step // len(loader), EPOCHS):
        train(model, {"train": data}, open_clip.ClipLoss(), epoch, optimizer, *[None] * 3, args)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
