"""Lightning on a view. Its checkpoints hold the position of the loader.

python examples/lightning_loop.py out/pool/basic OUT ViT-B-32 256
"""

import os
import sys
from typing import Any

import lightning
import open_clip
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from open_clip.loss import ClipLoss

import clipmill

EPOCHS, SAVE_EVERY = 2, 2


class Clip(lightning.LightningModule):  # type: ignore[misc]  # where it is not installed
    def __init__(self, name: str) -> None:
        super().__init__()
        self.model: Any = open_clip.create_model(name, output_dict=True)
        self.loss = ClipLoss()

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        image = batch.image.to(device).permute(0, 3, 1, 2).float() / 127.5 - 1
        return image, batch.tokens.to(device)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> Any:
        return self.loss(**self.model(*batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


def main(view: str, out: str, name: str, batch_size: int) -> None:
    lightning.seed_everything(0)
    clip = Clip(name)
    size, context = clip.model.visual.image_size[0], clip.model.context_length
    loader = clipmill.Loader(view, batch_size=batch_size, image_size=size, context_length=context)
    saved = ModelCheckpoint(out, save_last=True, every_n_train_steps=SAVE_EVERY)
    trainer = lightning.Trainer(
        default_root_dir=out, max_epochs=EPOCHS, callbacks=[saved], logger=False,
        accelerator="auto", enable_progress_bar=False, log_every_n_steps=1,
    )  # fmt: skip
    path = os.path.join(out, "last.ckpt")
    trainer.fit(clip, loader, ckpt_path=path if os.path.exists(path) else None)
    trainer.save_checkpoint(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
