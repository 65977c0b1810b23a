"""Tiny models of open_clip's form that a processor trains in seconds: configurations as files, and
a tokenizer and a BERT that are made here, since nothing is downloaded in tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXT = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
RESNET = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 32}
CONVNEXT = {
    "image_size": 64, "timm_model_name": "test_convnext", "timm_pool": "", "timm_proj": "linear",
}  # fmt: skip
VIT = {"image_size": 32, "patch_size": 16, "width": 32, "layers": 2, "head_width": 16}
WORDS = ["a", "photo", "of", "something", "red", "green", "blue", "yellow", "indeed"]


def write(folder: Path, name: str, document: dict[str, Any]) -> str:
    """A configuration as a file; its path."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return str(path)


def resnet(folder: Path, **changes: Any) -> str:
    """A ModifiedResNet with BatchNorm; its embeddings have an odd width."""
    return write(
        folder, "resnet", {"embed_dim": 33, "vision_cfg": RESNET, "text_cfg": TEXT} | changes
    )


def convnext(folder: Path, **changes: Any) -> str:
    """timm's ConvNeXt."""
    document = {"embed_dim": 32, "vision_cfg": CONVNEXT, "text_cfg": TEXT, "custom_text": True}
    return write(folder, "convnext", document | changes)


def siglip(folder: Path) -> str:
    """As SigLIP: captions that see all of their context, pooled at its last token."""
    text = {
        "context_length": 12, "vocab_size": 32, "width": 32, "heads": 2, "layers": 2,
        "no_causal_mask": True, "pool_type": "last", "proj_bias": True,
        "norm_kwargs": {"eps": 1e-6}, "act_kwargs": {"approximate": "tanh"},
        "hf_tokenizer_name": tokenizer(folder), "tokenizer_kwargs": {"clean": "canonicalize"},
    }  # fmt: skip
    document = {"embed_dim": 32, "init_logit_bias": -10, "custom_text": True}
    return write(folder, "siglip", {**document, "vision_cfg": VIT, "text_cfg": text})


def bert(folder: Path) -> str:
    """A caption tower of Hugging Face with dropout, and its tokenizer."""
    name = folder / "bert"
    name.mkdir(exist_ok=True)
    config = {
        "model_type": "bert", "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 16,
        "pad_token_id": 0, "hidden_dropout_prob": 0.1,
    }  # fmt: skip
    (name / "config.json").write_text(json.dumps(config))
    text = {
        "hf_model_name": str(name), "hf_tokenizer_name": tokenizer(folder), "context_length": 12,
        "hf_pooler_type": "mean_pooler", "hf_proj_type": "linear",
    }  # fmt: skip
    return write(folder, "bert", {"embed_dim": 32, "vision_cfg": VIT, "text_cfg": text})


def tokenizer(folder: Path) -> str:
    """A tokenizer of Hugging Face with a word for each of WORDS; its folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    target = folder / "own tokenizer"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(target)  # fmt: skip
    return str(target)
