"""CLIP's tokenizer as the files that Hugging Face's CLIPTokenizer reads, written from open_clip's
vocabulary.
"""

from __future__ import annotations

from typing import Any

from manifests import disk
from manifests.clip_tokenizer import simple_tokenizer

CLIP_VOCABULARY = 49_408  # tokens, with start and end as the last two
START, END = "<|startoftext|>", "<|endoftext|>"


def save_tokenizer(folder: str, context_length: int) -> bool:
    """Write vocab.json, merges.txt and tokenizer_config.json. False where open_clip is not
    installed.
    """
    try:
        tokenizer = simple_tokenizer()()
    except ImportError:
        return False
    names = list(tokenizer.encoder)
    vocabulary = {name: tokenizer.encoder[name] for name in names[:-2]}
    vocabulary |= {START: CLIP_VOCABULARY - 2, END: CLIP_VOCABULARY - 1}
    merges = ["#version: 0.2", *(" ".join(pair) for pair in tokenizer.bpe_ranks)]
    disk.write_bytes(disk.join(folder, "merges.txt"), ("\n".join(merges) + "\n").encode())
    disk.write_json(disk.join(folder, "vocab.json"), vocabulary)
    disk.write_json(disk.join(folder, "tokenizer_config.json"), _settings(context_length))
    return True


def _settings(context_length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "CLIPTokenizer",
        "bos_token": START,
        "eos_token": END,
        "unk_token": END,
        "pad_token": END,
        "do_lower_case": True,
        "model_max_length": context_length,
    }
