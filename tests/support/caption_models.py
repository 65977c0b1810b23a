"""Tiny models of transformers that write captions, with drawn weights: a BLIP, and a vision encoder
with a text decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from clipmill.filters.base import Batch
from clipmill.filters.captioner import Captioner

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[DEC]", *(f"word{i}" for i in range(40))]


def _tokenizer(transformers: Any, folder: Path) -> Any:
    words = folder / "words.txt"
    words.write_text("\n".join(WORDS) + "\n")
    tokenizer = transformers.BertTokenizer(str(words), bos_token="[DEC]")
    words.unlink()
    return tokenizer


def make_blip(folder: Path) -> Path:
    import transformers

    folder.mkdir()
    size = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "projection_dim": 16,
    }  # fmt: skip
    text = {
        **size, "vocab_size": len(WORDS), "encoder_hidden_size": 32, "bos_token_id": 4,
        "eos_token_id": 2, "sep_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 32,
    }  # fmt: skip
    config = transformers.BlipConfig(
        text_config=text, vision_config={**size, "image_size": 32, "patch_size": 8}
    )
    torch.manual_seed(1)
    model = transformers.BlipForConditionalGeneration(config)
    _spread(model)
    model.save_pretrained(folder)
    images = transformers.BlipImageProcessor(size={"height": 32, "width": 32})
    tokenizer = _tokenizer(transformers, folder)
    transformers.BlipProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def make_encoder_decoder(folder: Path) -> Path:
    import transformers

    folder.mkdir()
    size = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }  # fmt: skip
    encoder = transformers.ViTConfig(**size, image_size=32, patch_size=8)
    decoder = transformers.BertConfig(
        **size, vocab_size=len(WORDS), is_decoder=True, add_cross_attention=True
    )
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, 2
    torch.manual_seed(2)
    model = transformers.VisionEncoderDecoderModel(config)
    model.generation_config.decoder_start_token_id = 1
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = 2
    _spread(model)
    model.save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    _tokenizer(transformers, folder).save_pretrained(folder)
    return folder


def _spread(model: Any) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(100 if "crossattention" in name else 12)


UIDS = [f"{i:032x}" for i in range(7)]


def images() -> list[Image.Image]:
    random = np.random.default_rng(0)
    squares = [random.integers(0, 256, (3, 3, 3), np.uint8) for _ in range(7)]
    return [Image.fromarray(each).resize((40 + 5 * i, 40), 0) for i, each in enumerate(squares)]


def written(folder: Path, count: int = 7, **options: Any) -> list[str | None]:
    filter_ = Captioner(model=f"local-dir:{folder}", device="cpu", **options)
    filter_.setup()
    rows = pa.table({"uid": UIDS[:count]})
    batch = Batch(captions=[""] * count, images=images()[:count], rows=rows)
    return list(filter_.score(batch)["captioner"])
