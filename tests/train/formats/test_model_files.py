import dataclasses
import json

import pytest
import torch

from clipmill.manifests import disk
from clipmill.train.formats import model_files
from clipmill.train.formats.model_files import (
    initial_weights,
    load_model,
    save_model,
    source_files,
    weights_sha256,
)
from clipmill.train.formats.open_clip_files import open_clip_config, save_export, to_open_clip
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from tests.support.late import open_clip

SMALL = dataclasses.replace(
    MODELS["test"], vocab_size=60, embed_dim=24, vision_layers=1, text_layers=1
)


@pytest.fixture
def model():
    return CLIP(SMALL, seed=3)


@pytest.fixture
def listed(tmp_path, model):
    """A model of open_clip's list, and a file with its weights."""
    settings = open_clip_config(SMALL)["model_cfg"]
    (tmp_path / "clipmill-small.json").write_text(json.dumps(settings))
    open_clip.add_model_config(str(tmp_path / "clipmill-small.json"))
    path = tmp_path / "weights.pt"
    torch.save({"state_dict": to_open_clip(model)}, path)
    return f"open_clip:clipmill-small/{path}"


def assert_same(one, other):
    assert one.config == other.config
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("format_name", ["open_clip", "huggingface"])
def test_a_model_goes_through_every_format_bit_for_bit(tmp_path, model, format_name):
    folder = str(tmp_path / "a" / "b")
    save_model(model, folder, format_name)
    assert_same(load_model(folder), model)
    assert_same(load_model(f"local-dir:{folder}"), model)
    back = str(tmp_path / "back")
    save_model(load_model(folder), back, "open_clip")
    assert_same(load_model(back), model)


def test_a_run_is_read_when_it_has_finished(tmp_path, model):
    run = tmp_path / "run"
    save_export(model, str(run / "export"))
    disk.write_bytes(run / "log.jsonl", b"")
    with pytest.raises(ValueError, match=r"run is a run that has not finished; start it again"):
        load_model(str(run))
    disk.write_json(run / "run.json", {})
    assert_same(load_model(str(run)), model)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "open_clip:ViT-B-32",
            "names no weights; write open_clip:NAME/TAG, like open_clip:ViT-B-32/",
        ),
        (
            "open_clip:ViT-B-23/openai",
            "open_clip has no model 'ViT-B-23'; did you mean 'ViT-B-32'?",
        ),
        ("open_clip:ViT-B-32/laion2b_s34b_b79", "no weights .*; did you mean 'laion2b_s34b_b79k'?"),
        (
            "open_clip:ViT-B-32/openai",
            "another activation than .*write open_clip:ViT-B-32-quickgelu/openai",
        ),
        ("open_clip:RN50/openai", "RN50"),
    ],
)
def test_a_name_that_open_clip_cannot_load_is_refused_before_a_download(source, message):
    with pytest.raises(ValueError, match=message):
        load_model(source)


def test_a_damaged_file_for_a_listed_model_is_one_line(tmp_path, listed):
    (tmp_path / "weights.pt").write_bytes(b"no weights")
    with pytest.raises(
        ValueError, match=r"^open_clip cannot load open_clip:clipmill-small/"
    ) as error:
        load_model(listed)
    assert "\n" not in str(error.value)


def test_nothing_is_written_over(tmp_path, model):
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ValueError, match="exists and is not empty; choose a new folder"):
            save_model(model, str(path), "open_clip")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_of_two_commands_one_writes_the_folder_and_the_other_says_so(tmp_path, model, monkeypatch):
    """Not open_clip's files and Hugging Face's in one folder."""
    folder = str(tmp_path / "both")
    slow = model_files.FORMATS["huggingface"]

    def other_first(model, staging):
        save_model(model, folder, "open_clip")
        slow(model, staging)

    monkeypatch.setitem(model_files.FORMATS, "huggingface", other_first)
    with pytest.raises(ValueError, match="both was made by another command in the meantime"):
        save_model(model, folder, "huggingface")
    assert_same(load_model(folder), model)
    assert not (tmp_path / "both" / "config.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["both"]


def test_a_folder_that_reads_back_differently_is_noticed(tmp_path, model, monkeypatch):
    def save_other(_, folder):
        save_export(CLIP(SMALL, seed=4), folder)

    monkeypatch.setitem(model_files.FORMATS, "open_clip", save_other)
    with pytest.raises(OSError, match="differs after"):
        save_model(model, str(tmp_path / "x"), "open_clip")
    assert not list(tmp_path.iterdir())


def test_initial_weights_are_those_of_the_source(tmp_path, model, listed):
    weights = initial_weights(listed, SMALL)
    for name, value in model.state_dict().items():
        assert torch.equal(weights[name], value)
    trained_with_dropout = dataclasses.replace(SMALL, drop_patch_rate=0.5)
    assert initial_weights(listed, trained_with_dropout).keys() == weights.keys()
    siglip = dataclasses.replace(SMALL, logit_bias=True)
    assert "logit_bias" not in initial_weights(listed, siglip)
    save_export(CLIP(siglip), str(tmp_path / "siglip"))
    with pytest.raises(ValueError, match=r"has a logit bias.*set loss to siglip"):
        initial_weights(str(tmp_path / "siglip"), SMALL)


def test_another_architecture_is_one_line_with_the_settings_that_fit(listed):
    wide = dataclasses.replace(SMALL, embed_dim=32, quick_gelu=True, vision_layers=3)
    with pytest.raises(ValueError, match="is another model than the run's") as error:
        initial_weights(listed, wide)
    message = str(error.value)
    assert (
        "embed_dim 24 (here 32), vision_layers 1 (here 3), quick_gelu False (here True)" in message
    )
    assert message.endswith("--set model.embed_dim=24 model.vision_layers=1 model.quick_gelu=false")
    with pytest.raises(ValueError, match=r"^init: nowhere does not exist"):
        initial_weights("nowhere", SMALL)


def test_the_hash_of_weights_knows_every_bit_name_and_shape(model):
    weights = model.state_dict()
    before = weights_sha256(weights)
    assert weights_sha256(dict(reversed(weights.items()))) == before
    changed = {**weights, "visual.proj": weights["visual.proj"].clone()}
    changed["visual.proj"][0, 0] += 1e-6
    assert weights_sha256(changed) != before
    renamed = {**weights, "visual.porj": weights["visual.proj"]}
    del renamed["visual.proj"]
    assert weights_sha256(renamed) != before
    turned = {**weights, "visual.proj": weights["visual.proj"].reshape(24, -1)}
    assert weights_sha256(turned) != before


def test_the_files_of_a_source_are_those_that_are_loaded(tmp_path):
    run = tmp_path / "run"
    written = save_export(CLIP(SMALL, seed=4), str(run / "export"))
    assert source_files(str(run)) == source_files(f"local-dir:{run}/export") == written
    (run / "export" / "notes.json").write_text("{}")  # decides nothing
    assert source_files(str(run)) == written
    (run / "export" / "tokenizer.json").write_text("{}")  # decides what a text is
    own = source_files(str(run))
    assert set(own) == {*written, "tokenizer.json"}
    elsewhere, config = tmp_path / "a tokenizer", run / "export" / "open_clip_config.json"
    elsewhere.mkdir()
    (elsewhere / "vocab.txt").write_text("a")
    text = config.read_text()
    plain = json.loads(text)
    plain["model_cfg"]["text_cfg"]["hf_tokenizer_name"] = str(elsewhere)
    config.write_text(json.dumps(plain))
    named = source_files(str(run))
    (elsewhere / "vocab.txt").write_text("b")
    assert source_files(str(run)) != named, "a tokenizer that is named by its folder"
    config.write_text(text)
    (run / "export" / "tokenizer.json").unlink()
    save_export(CLIP(SMALL, seed=5), str(run / "export"))
    changed = source_files(str(run))
    assert changed["open_clip_model.safetensors"] != written["open_clip_model.safetensors"]
    assert changed["open_clip_config.json"] == written["open_clip_config.json"]
    assert source_files("open_clip:ViT-B-32/openai") == {}
    weights = run / "export" / "open_clip_model.safetensors"
    assert source_files(str(weights)) == {weights.name: changed[weights.name]}
    with pytest.raises(ValueError, match="nowhere does not exist; name a run or a folder"):
        source_files(str(tmp_path / "nowhere"))
