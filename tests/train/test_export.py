from __future__ import annotations

import json

import open_clip
import pytest
import torch

from train import export
from train.formats.model_files import load_model, weights_sha256
from train.formats.open_clip_files import save_export
from train.model import CLIP, MODELS


@pytest.fixture
def folder(tmp_path):
    save_export(CLIP(MODELS["test"], seed=5), str(tmp_path / "export"))
    return str(tmp_path / "export")


def test_to_hugging_face_and_back_the_weights_are_the_same_bits(folder, tmp_path, capsys):
    there, back = str(tmp_path / "there"), str(tmp_path / "back")
    assert export.main([folder, "--to", there, "--format", "huggingface", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["weights_sha256"] == weights_sha256(load_model(folder).state_dict())
    assert (written["format"], written["to"], written["model"]) == ("huggingface", there, folder)
    names = sorted(path.name for path in (tmp_path / "there").iterdir())
    assert names == [
        "config.json", "merges.txt", "model.safetensors", "preprocessor_config.json",
        "tokenizer_config.json", "vocab.json",
    ]  # fmt: skip
    assert export.main([there, "--to", back, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["weights_sha256"] == written["weights_sha256"]
    theirs = open_clip.create_model(f"local-dir:{back}")
    ours = load_model(folder)
    assert torch.equal(theirs.visual.proj, ours.visual.proj)
    assert again["parameters"] == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--to", "x"], "error: nowhere does not exist: give a finished run"),
        (["{export}", "--to", "{export}"], "exists and is not empty; choose a new folder"),
        (["open_clip:ViT-B-32", "--to", "x"], "error: open_clip:ViT-B-32 names no weights"),
        (["{export}", "--to", "{export}/open_clip_config.json/x"], "error: "),
    ],
)
def test_a_mistake_is_one_line_and_status_2(folder, capsys, arguments, message):
    assert export.main([argument.format(export=folder) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_what_hugging_face_cannot_be_is_refused_before_anything_is_written(tmp_path, capsys):
    import dataclasses

    siglip = dataclasses.replace(MODELS["test"], logit_bias=True)
    save_export(CLIP(siglip), str(tmp_path / "export"))
    to = tmp_path / "there"
    arguments = [str(tmp_path / "export"), "--to", str(to), "--format", "huggingface"]
    assert export.main(arguments) == 2
    assert "cannot have a logit bias" in capsys.readouterr().err
    assert not to.exists()
