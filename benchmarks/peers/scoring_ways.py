#!/usr/bin/env python3
"""One way to preprocess or to score, in a process of its own, for `make bench`.

example: python benchmarks/peers/scoring_ways.py exact FOLDER_OF_JPEGS

transform, exact, fast: JPEGs to normalised tensors, by open_clip's transform and by ours.
ours, loop, tensors: a pool's tars with a CLIP of random weights, by our pass, by webdataset and
open_clip, and by the model alone on tensors that lie ready. Prints `items` and `cpu_s`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

from benchmarks.filtering import scoring

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
CHUNK = 256


def preprocess(name: str, folder: Path) -> dict[str, float]:
    """JPEGs of a folder to batches of tensors."""
    from open_clip.transform import image_transform

    way = scoring.programs(image_transform(scoring.SIZE, is_train=False))[
        {"transform": "open_clip"}.get(name, name)
    ]
    jpegs = [path.read_bytes() for path in sorted(folder.iterdir())]
    way(jpegs[:2])
    size = scoring.BATCH
    batches = [jpegs[start : start + size] for start in range(0, len(jpegs), size)]
    spent = scoring.cpu_seconds(lambda: [way(batch) for batch in batches])
    return {"items": len(jpegs), "cpu_s": spent}


def ours(work: Path) -> dict[str, float]:
    """pipeline.scoring over every tar."""
    import pyarrow as pa

    pa.array([0])  # the first array of a process imports pandas; the loop imports before its time
    worker = scoring.worker_of(work / "pool", work / "model")
    shutil.rmtree(worker.layout.score_set(next(iter(worker.filters))), ignore_errors=True)
    warm(next(iter(worker.filters.values())).filter.loaded.network)
    started = time.process_time()
    rows = scoring.run_pass(worker)
    return {"items": rows, "cpu_s": time.process_time() - started}


def warm(network: Any) -> None:
    """One image and one text: the first call of a kernel takes longer."""
    import torch

    with torch.inference_mode():
        network.encode_image(torch.zeros(1, 3, scoring.SIZE, scoring.SIZE))
        network.encode_text(torch.zeros(1, 77, dtype=torch.long))


def loop(work: Path) -> dict[str, float]:
    """webdataset, open_clip's transform and tokenizer, and its model: cosines of all pairs."""
    import open_clip
    import torch
    import webdataset as wds

    path = f"local-dir:{work / 'model'}"
    model, _, transform = open_clip.create_model_and_transforms(path)
    tokenizer = open_clip.get_tokenizer(scoring.MODEL)
    model.eval()
    warm(model)
    tars = [str(tar) for tar in sorted((work / "pool/shards").glob("*.tar"))]
    started = time.process_time()
    dataset = (
        wds.WebDataset(tars, shardshuffle=False)
        .decode("pilrgb")
        .rename(image="jpg;png;jpeg;webp", text="txt")
        .map_dict(image=transform, text=lambda text: tokenizer(text)[0])
        .to_tuple("image", "text")
        .batched(CHUNK, partial=True)
    )
    cosines = []
    with torch.inference_mode():
        for images, texts in dataset:
            image = torch.nn.functional.normalize(model.encode_image(images), dim=-1)
            text = torch.nn.functional.normalize(model.encode_text(texts), dim=-1)
            cosines += (image * text).sum(-1).tolist()
    return {"items": len(cosines), "cpu_s": time.process_time() - started}


def tensors(work: Path) -> dict[str, float]:
    """The model's two towers on tensors and tokens that lie ready, cut as the pass cuts them."""
    import torch

    from clipmill.filters.clip import model as text_tower

    worker = scoring.worker_of(work / "pool", work / "model")
    loaded = next(iter(worker.filters.values())).filter.loaded
    count = len(list((work / "images").glob("*.jpg")))
    images = torch.zeros(count, 3, scoring.SIZE, scoring.SIZE)
    captions = [f"a photo of a thing that has the number {n}" for n in range(count)]
    chunks = []
    for start in range(0, count, CHUNK):
        rows = slice(start, start + CHUNK)
        chunks.append((images[rows], scoring.cut_tokens(loaded, captions[rows])))
    warm(loaded.network)
    started = time.process_time()
    with torch.inference_mode():
        for pixels, tokens in chunks:
            loaded.network.encode_image(pixels)
            for tokens_BT in tokens:
                text_tower.encode_text(loaded.network, tokens_BT)
    return {"items": count, "cpu_s": time.process_time() - started}


PASSES = {"ours": ours, "loop": loop, "tensors": tensors}


def main(name: str, folder: str) -> None:
    import torch

    torch.set_num_threads(1)
    path = Path(folder)
    print(json.dumps(PASSES[name](path) if name in PASSES else preprocess(name, path)))


if __name__ == "__main__":
    main(*sys.argv[1:3])
