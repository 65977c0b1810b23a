from __future__ import annotations

import dataclasses

import pytest

from train.config import configure, model_config
from train.formats.nemo import read
from train.model.architecture import IMAGE_MEAN, MODELS

# The keys and values of the three fragments of NVIDIA's page on CLIP.
GENERAL = """
model:
  output_dim: 512
  local_loss: False
  gather_with_grad: True
"""
VISION = """
vision:
  patch_dim: 16
  img_h: 224
  img_w: 224
  image_mean: null
  image_std: null
  num_channels: 3
  drop_patch_rate: 0.0
  drop_path_rate: 0.0
  global_average_pool: False
  output_dim: ${model.output_dim}
  class_token_length: 8
  encoder_seq_length: 196
  num_layers: 12
  hidden_size: 768
  ffn_hidden_size: 3072
  num_attention_heads: 12
  hidden_dropout: 0.
  attention_dropout: 0.
"""
TEXT = """
text:
  output_dim: ${model.output_dim}
  encoder_seq_length: 77
  num_layers: 12
  hidden_size: 512
  ffn_hidden_size: 2048
  num_attention_heads: 8
  hidden_dropout: 0.
  attention_dropout: 0.
"""


@pytest.fixture
def read_text(tmp_path):
    """`read_text(text, file)`: what `read` returns for a file with this text."""

    def read_text(text, file="clip.yaml"):
        (tmp_path / file).write_text(text)
        return read(str(tmp_path / file))

    return read_text


def inside(*parts):
    return GENERAL + "".join(
        "\n".join("  " + line for line in part.splitlines()) + "\n" for part in parts
    )


@pytest.mark.parametrize("text", [GENERAL + VISION + TEXT, inside(VISION, TEXT)])
def test_nvidia_s_fragments_are_read_as_they_stand(read_text, text):
    config, changes, remarks = read_text(text)
    assert config == dataclasses.replace(MODELS["ViT-B-16"], class_token_length=8)
    assert changes == {
        "local_loss": False,
        "gather_with_grad": True,
        "model": "ViT-B-32",
        "model.patch_size": 16,
        "model.class_token_length": 8,
    }
    run = configure({**changes, "batch_size": 128, "lanes": 32})
    assert model_config(run) == config
    assert (run.local_loss, run.gather_with_grad) == (False, True)
    assert config.image_mean == IMAGE_MEAN
    assert any("vision.image_mean is null" in remark for remark in remarks)
    assert any(
        "makes this a ViT-B/16; NVIDIA's table has the patches of B/32 and B/16 exchanged" in remark
        for remark in remarks
    )
    assert any(
        "class_token_length 8: open_clip and Hugging Face have 1" in remark for remark in remarks
    )
    assert not any(
        "encoder_seq_length" in remark for remark in remarks
    )  # 196 is right for patches of 16


@pytest.mark.parametrize(
    "text", [GENERAL, VISION.replace("${model.output_dim}", "512"), inside(TEXT)]
)
def test_a_fragment_alone_is_completed(read_text, text):
    assert read_text(text)[0].text_width == 512


def test_every_key_reaches_its_setting(read_text):
    changed = VISION
    for key, value in {
        "patch_dim": 8,
        "img_h": 64,
        "img_w": 128,
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.2, 0.2],
        "drop_patch_rate": 0.5,
        "drop_path_rate": 0.1,
        "global_average_pool": True,
        "class_token_length": 2,
        "num_layers": 3,
        "hidden_size": 96,
        "ffn_hidden_size": 200,
        "num_attention_heads": 3,
        "hidden_dropout": 0.2,
        "attention_dropout": 0.3,
        "encoder_seq_length": 128,
    }.items():
        changed = "\n".join(
            f"  {key}: {value}" if line.startswith(f"  {key}:") else line
            for line in changed.split("\n")
        )
    text = (
        TEXT.replace("num_layers: 12", "num_layers: 5")
        .replace("77", "40")
        .replace("hidden_dropout: 0.", "hidden_dropout: 0.4")
    )
    config, _, _ = read_text(GENERAL.replace("512", "256") + changed + text)
    wanted = dataclasses.replace(
        MODELS["ViT-B-32"],
        embed_dim=256,
        patch_size=8,
        image_size=64,
        image_width=128,
        image_mean=(0.5, 0.4, 0.3),
        image_std=(0.2, 0.2, 0.2),
        drop_patch_rate=0.5,
        drop_path_rate=0.1,
        global_average_pool=True,
        class_token_length=2,
        vision_layers=3,
        vision_width=96,
        vision_mlp=200,
        vision_heads=3,
        vision_hidden_dropout=0.2,
        vision_attention_dropout=0.3,
        text_layers=5,
        context_length=40,
        text_hidden_dropout=0.4,
    )
    assert config == wanted


def test_precision_batch_and_relative_references(read_text):
    text = TEXT.replace(
        "encoder_seq_length: 77",
        "encoder_seq_length: 64\n  max_position_embeddings: ${.encoder_seq_length}",
    )
    config, changes, _ = read_text(
        GENERAL.replace("output_dim", "global_batch_size: 32\n  output_dim")
        + text
        + "trainer:\n  precision: bf16\n"
    )
    assert config.context_length == 64
    assert (changes["precision"], changes["batch_size"]) == ("bf16", 32)


def test_contradictions_are_named(read_text):
    table = VISION.replace("class_token_length: 8", "class_token_length: 1")
    with pytest.raises(
        ValueError, match=r"name 'ViT-B-32' means B/32, but vision.patch_dim is 16 \(NVIDIA's table"
    ):
        read_text("name: ViT-B-32\n" + GENERAL + table)
    with pytest.raises(
        ValueError, match=r"name 'megatron_clip_VIT-L-14' means L/14, but vision\.patch_dim is 16"
    ):
        read_text(GENERAL + table, "megatron_clip_VIT-L-14.yaml")
    assert read_text("name: ViT-B-16\n" + GENERAL + table)[0] == MODELS["ViT-B-16"]
    large = table.replace("patch_dim: 16", "patch_dim: 14").replace(
        "num_layers: 12", "num_layers: 32"
    )
    large = large.replace("3072", "5120").replace("768", "1280").replace("heads: 12", "heads: 20")
    _, _, remarks = read_text(GENERAL + large)
    assert any(
        "encoder_seq_length 196 is not used: images of 224 x 224 with patches of 14 x 14 have 256"
        in remark
        for remark in remarks
    )
    assert any(
        "num_attention_heads is 20; published ViT-H-14 checkpoints have 16" in remark
        for remark in remarks
    )
    _, _, remarks = read_text(
        GENERAL + TEXT.replace("  num_layers", "  max_position_embeddings: 99\n  num_layers")
    )
    assert any("only the first 77 positions" in remark for remark in remarks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GENERAL + VISION.replace("drop_path", "drop_pth"),
            "'vision.drop_pth_rate'; did you mean 'drop_path_rate'",
        ),
        (
            GENERAL.replace("local_loss", "locl_loss"),
            "'model.locl_loss'; did you mean 'local_loss'",
        ),
        (GENERAL + "vison:\n  patch_dim: 16\n", "'vison'; did you mean 'vision'"),
        (
            GENERAL + TEXT.replace("model.output_dim", "model.output_dims"),
            "model.output_dims} does not exist",
        ),
        ("model:\n  output_dim: ${model.output_dim}\n", "refers to itself"),
        (
            GENERAL + TEXT.replace("${model.output_dim}", "768"),
            "text.output_dim is 768, but another output_dim is 512",
        ),
        (inside(VISION) + VISION, "vision is written twice"),
        (
            GENERAL + VISION.replace("patch_dim: 16", "patch_dim: 15"),
            "not a multiple of patch_size 15",
        ),
        (GENERAL + VISION.replace("heads: 12", "heads: 11"), "not a multiple of vision_heads 11"),
        (GENERAL + VISION.replace("num_layers: 12", "num_layers: many"), "must be a whole number"),
        (
            GENERAL + TEXT + "  max_position_embeddings: 40\n",
            "max_position_embeddings 40 is less than",
        ),
        (GENERAL + "trainer:\n  precision: fp7\n", "trainer.precision is 'fp7'"),
        ("- 1\n", "has no keys"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_mistake_is_refused_with_the_file_and_the_nearest_name(read_text, text, message):
    with pytest.raises(ValueError, match=r"clip\.yaml") as error:
        read_text(text)
    assert message in str(error.value)


def test_parallelism_o2_and_recomputation_are_read(read_text):
    _, changes, _ = read_text(
        GENERAL
        + "  tensor_model_parallel_size: 2\n  megatron_amp_O2: True\n"
        + "  activations_checkpoint_granularity: selective\n"
    )
    config = configure(changes)
    assert (config.tp, config.precision, config.recompute) == (2, "bf16_o2", "selective")
    _, changes, _ = read_text(
        GENERAL + "  megatron_amp_O2: False\n  activations_checkpoint_granularity: null\n"
    )
    assert not {"precision", "recompute"} & set(changes)
    with pytest.raises(
        ValueError, match=r"megatron_amp_O2 needs bf16, but trainer.precision is '16'"
    ):
        read_text(GENERAL + "  megatron_amp_O2: True\ntrainer:\n  precision: 16\n")
