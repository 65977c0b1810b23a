"""A SigLIP loop: the sigmoid loss, torchvision's transforms, captions as a tokenizer reads them.

python examples/siglip_loop.py out/pool/basic OUT ViT-B-16-SigLIP 256
"""

import os
import sys
from typing import Any

import open_clip
import torch
from open_clip.loss import SigLipLoss
from torchvision.transforms import v2

import clipmill

EPOCHS, SAVE_EVERY = 2, 2


def main(view: str, out: str, name: str, batch_size: int) -> None:
    torch.manual_seed(0)
    model: Any = open_clip.create_model(name, init_logit_bias=-10, output_dict=True)
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(model.visual.image_size, scale=(0.5, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.2, 0.2, 0.2),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )
    tokenizer, path = open_clip.get_tokenizer(name), os.path.join(out, "checkpoint.pt")
    loader = clipmill.Loader(
        view, batch_size=batch_size, transform=transform, tokenizer=tokenizer, epochs=EPOCHS
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loss = SigLipLoss()
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    if os.path.exists(path):
        state = torch.load(path)
        for key, part in parts.items():
            part.load_state_dict(state[key])
    if loader.step == len(loader):
        return
    for batch in loader:  # to the end of the last epoch
        value = loss(**model(batch.image, batch.tokens))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if loader.step % SAVE_EVERY == 0 or loader.step == len(loader):
            torch.save({key: part.state_dict() for key, part in parts.items()}, path + ".part")
            os.replace(path + ".part", path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
