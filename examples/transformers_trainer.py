"""Hugging Face's Trainer with a CLIPModel on a view; a resume needs its checkpoints alone.

python examples/transformers_trainer.py out/pool/basic OUT CONFIG_FOLDER 256
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from transformers import CLIPConfig, CLIPModel, Trainer, TrainingArguments

import clipmill

EPOCHS, SAVE_EVERY = 2, 2


class Batches:
    """An epoch of batches as the model's arguments, from the trainer's step on."""

    def __init__(self, loader: clipmill.Loader, trainer: Trainer) -> None:
        self.loader, self.trainer = loader, trainer

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        step = self.trainer.state.global_step
        self.loader.load_state_dict(self.loader.state_dict() | {"step": step})
        for batch in self.loader:
            image = batch.image.permute(0, 3, 1, 2).float() / 127.5 - 1
            yield {"pixel_values": image, "input_ids": batch.tokens, "return_loss": True}


class PoolTrainer(Trainer):
    def __init__(self, loader: clipmill.Loader, **more: Any) -> None:
        super().__init__(**more)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        return Batches(self.loader, self)


def main(view: str, out: str, folder: str, batch_size: int) -> None:
    torch.manual_seed(0)
    config: Any = CLIPConfig.from_pretrained(folder)
    size, context = config.vision_config.image_size, config.text_config.max_position_embeddings
    loader = clipmill.Loader(view, batch_size=batch_size, image_size=size, context_length=context)
    args = TrainingArguments(
        out, num_train_epochs=EPOCHS, per_device_train_batch_size=batch_size, report_to=[],
        save_steps=SAVE_EVERY, logging_steps=1, ignore_data_skip=True,
    )  # fmt: skip
    trainer = PoolTrainer(loader, model=CLIPModel(config), args=args)
    is_saved = any(name.startswith("checkpoint-") for name in os.listdir(out))
    trainer.train(resume_from_checkpoint=is_saved)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
