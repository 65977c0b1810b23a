from __future__ import annotations

import json
import sys
from itertools import pairwise

import open_clip
import pytest

from train.formats import hf
from train.formats.hf import save_tokenizer
from train.model.architecture import MODELS
from train.model.clip import CLIP

CAPTIONS = ["a photo of a cat", "naïve café, 3 items!", "", "the   spaced OUT words"]


def encoded(word, vocabulary, merges):
    """The tokens of one word by byte-pair encoding, from the two files alone."""
    parts = [*word[:-1], word[-1] + "</w>"]
    while len(parts) > 1:
        pairs = list(pairwise(parts))
        best = min(pairs, key=lambda pair: merges.get(pair, len(merges)))
        if best not in merges:
            break
        merged = []
        while parts:
            if tuple(parts[:2]) == best:
                merged.append("".join(parts[:2]))
                parts = parts[2:]
            else:
                merged.append(parts.pop(0))
        parts = merged
    return [vocabulary[part] for part in parts]


@pytest.mark.slow
def test_the_files_encode_as_open_clip_does(tmp_path):
    assert save_tokenizer(str(tmp_path), 77)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    lines = (tmp_path / "merges.txt").read_text().splitlines()
    assert lines[0].startswith("#version")
    merges = {tuple(line.split(" ")): rank for rank, line in enumerate(lines[1:])}
    assert sorted(vocabulary.values()) == list(range(49_408))
    assert (vocabulary["<|startoftext|>"], vocabulary["<|endoftext|>"]) == (49_406, 49_407)
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    for word in ("cat", "photograph", "clipmill", "x"):
        expected = tokenizer([word])[0]
        assert encoded(word, vocabulary, merges) == expected[1 : expected.argmax()].tolist()
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (settings["tokenizer_class"], settings["model_max_length"]) == ("CLIPTokenizer", 77)


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
