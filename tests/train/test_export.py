import json
import logging

import pytest
import torch

from clipmill.train.formats.model_files import load_model, weights_sha256
from clipmill.train.formats.open_clip_files import save_export
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from tests.support import commands
from tests.support.late import open_clip


@pytest.fixture
def folder(tmp_path):
    save_export(CLIP(MODELS["test"], seed=5), str(tmp_path / "export"))
    return str(tmp_path / "export")


def test_to_hugging_face_and_back_the_weights_are_the_same_bits(folder, tmp_path, capsys, caplog):
    caplog.set_level(logging.INFO)
    there, back = str(tmp_path / "there"), str(tmp_path / "back")
    assert commands.weights([folder, "--to", there, "--format", "huggingface", "--json"]) == 0
    assert "tokenizer does not clean texts as open_clip's does: call html.unescape" in caplog.text
    assert "some pictures are cropped one pixel apart" in caplog.text
    written = json.loads(capsys.readouterr().out)
    assert written["weights_sha256"] == weights_sha256(load_model(folder).state_dict())
    assert (written["format"], written["to"], written["model"]) == ("huggingface", there, folder)
    names = sorted(path.name for path in (tmp_path / "there").iterdir())
    assert names == [
        "config.json", "merges.txt", "model.safetensors", "preprocessor_config.json",
        "tokenizer_config.json", "vocab.json",
    ]  # fmt: skip
    caplog.clear()
    assert commands.weights([there, "--to", back, "--json"]) == 0
    assert "some pictures are cropped one pixel apart" in caplog.text  # open_clip's format
    caplog.clear()
    assert commands.weights([back, "--to", str(tmp_path / "third")]) == 0
    assert "one pixel apart" not in caplog.text
    again = json.loads(capsys.readouterr().out)
    assert again["weights_sha256"] == written["weights_sha256"]
    theirs = open_clip.create_model(f"local-dir:{back}")
    ours = load_model(folder)
    assert torch.equal(theirs.visual.proj, ours.visual.proj)
    assert again["parameters"] == sum(p.numel() for p in theirs.parameters())


@pytest.mark.slow
def test_onnx_is_both_towers_and_its_differences_are_reported(folder, tmp_path, capsys):
    to = tmp_path / "graphs"
    assert commands.weights(["onnx", folder, "--to", str(to), "--text-length", "9", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["format"], written["dtype"], written["text_length"]) == ("onnx", "fp32", 9)
    assert 0 < max(written["differences"].values()) <= 1e-5
    assert written["weights_sha256"] == weights_sha256(load_model(folder).state_dict())
    names = sorted(path.name for path in to.iterdir())
    assert names == ["image.onnx", "onnx_config.json", "text.onnx"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere does not exist: give a finished run"),
        (["{export}", "--to", "{export}"], "exists and is not empty; choose a new folder"),
        (["open_clip:ViT-B-32"], "open_clip:ViT-B-32 names no weights"),
        (["{export}", "--to", "{export}/open_clip_config.json/x"], ""),
        (["{export}", "--dtype", "fp16"], "Unknown option: --dtype"),
        (["onnx", "{export}", "--format", "open_clip"], "Unknown option: --format"),
        (["onnx", "{export}", "--dtype", "int8"], 'Invalid value "int8" for --dtype'),
        (["onnx", "{export}", "--text-length", "0"], "text length is 0; the model takes 1"),
        (["onnx", "{export}", "--text-length", "17"], "text length is 17; the model takes"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(folder, tmp_path, capsys, arguments, message):
    given = [argument.format(export=folder) for argument in arguments]
    assert (
        commands.weights(given if "--to" in given else [*given, "--to", str(tmp_path / "x")]) == 2
    )
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()
