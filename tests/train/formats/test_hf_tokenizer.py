from __future__ import annotations

import sys

import pytest

from tests.support.late import open_clip
from train.formats import hf
from train.formats.hf import save_tokenizer
from train.model.architecture import MODELS
from train.model.clip import CLIP

CAPTIONS = ["a photo of a cat", "naïve café, 3 items!", "", "the   spaced OUT words"]


def test_transformers_tokenizes_as_open_clip_does(tmp_path):
    transformers = pytest.importorskip("transformers")
    save_tokenizer(str(tmp_path), 77)
    theirs = transformers.CLIPTokenizer.from_pretrained(str(tmp_path))
    for caption, row in zip(CAPTIONS, open_clip.get_tokenizer("ViT-B-32")(CAPTIONS), strict=True):
        assert theirs(caption)["input_ids"] == row[: row.argmax() + 1].tolist()


def test_without_open_clip_the_folder_has_no_tokenizer_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    monkeypatch.setitem(sys.modules, "open_clip.tokenizer", None)
    assert not save_tokenizer(str(tmp_path), 77)
    assert not list(tmp_path.iterdir())
    hf.save_hf(CLIP(MODELS["test"]), str(tmp_path))
    assert "has no tokenizer files" in caplog.text
    assert not (tmp_path / "vocab.json").exists()
