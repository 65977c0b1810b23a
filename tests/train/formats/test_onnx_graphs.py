from __future__ import annotations

import dataclasses
import importlib.util

import numpy as np
import onnxruntime
import pytest
import torch

from train import transforms
from train.formats.onnx_export import (
    TOLERANCES,
    OnnxOptions,
    example_inputs,
    require_packages,
    write_graphs,
)
from train.model.architecture import MODELS
from train.model.clip import CLIP, l2_normalise


def tiny(name, **changes):
    """A named architecture with its embedding, patch and head widths, its activation and its MLP
    ratio, and little else.
    """
    config = MODELS[name]
    towers = {}
    for tower in ("vision", "text"):
        width, mlp = getattr(config, f"{tower}_width"), getattr(config, f"{tower}_mlp")
        head = width // getattr(config, f"{tower}_heads")
        towers[f"{tower}_width"] = 2 * head
        towers[f"{tower}_heads"] = towers[f"{tower}_layers"] = 2
        towers[f"{tower}_mlp"] = 2 * head * mlp // width
    patch = config.patch_size
    return dataclasses.replace(
        config, vocab_size=99, context_length=12, image_size=2 * patch,
        **{**towers, **changes},
    )  # fmt: skip


SIGLIP = tiny(
    "ViT-S-16", logit_bias=True, image_mean=(0.4, 0.5, 0.6), drop_patch_rate=0.2,
)  # fmt: skip


def perturbed(config, seed):
    """A model whose biases, norms and logit scale are not the numbers of a start."""
    model = CLIP(config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


class Graph:
    """One file, loaded once."""

    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]

    def __call__(self, **inputs):
        arrays = {name: value.numpy() for name, value in inputs.items()}
        return dict(zip(self.outputs, self.session.run(None, arrays), strict=True))


@torch.no_grad()
def assert_equal_to_torch(model, folder, options):
    """Both graphs against the model's own methods, over batches and text lengths."""
    config = model.config
    image_graph, text_graph = Graph(folder / "image.onnx"), Graph(folder / "text.onnx")
    lengths = [options.text_length or config.context_length]
    lengths += [1, 5] if options.text_length is None else []
    for batch in (1, 3, 8):
        for length in lengths:
            image, tokens = example_inputs(config, batch, length, options.pixels, seed=batch)
            prepared = image
            if options.pixels == "uint8":
                prepared = transforms.normalise(image, config.image_mean, config.image_std)
            seen = image_graph(image=image)["image_embedding"]
            read = text_graph(tokens=tokens)
            for ours, theirs in (
                (seen, model.encode_image(prepared)),
                (read["text_embedding"], l2_normalise(model.text(tokens))),
            ):
                assert ours.dtype == np.float32
                difference = np.abs(ours - theirs.numpy()).max()
                assert difference <= TOLERANCES[options.dtype], (batch, length)
            assert read["logit_scale"] == pytest.approx(float(model.logit_scale.exp()), rel=1e-6)
            assert ("logit_bias" in read) == config.logit_bias
            if config.logit_bias:
                assert read["logit_bias"] == pytest.approx(float(model.logit_bias), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "options"),
    [
        (tiny("ViT-e-14-quickgelu"), OnnxOptions()),
        (SIGLIP, OnnxOptions(dtype="fp16", pixels="uint8", text_length=7)),
    ],
    ids=["quickgelu", "siglip-fp16-uint8"],
)
def test_the_graphs_compute_what_the_model_computes(config, options, tmp_path):
    model = perturbed(config, seed=3)
    write_graphs(model, tmp_path, options, {})
    assert_equal_to_torch(model, tmp_path, options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dtype": "bf16"}, "dtype is 'bf16'; ONNX is written with fp32 or fp16"),
        ({"pixels": "float"}, "pixels is 'float'; ONNX is written with normalised or uint8"),
        ({"text_length": 0}, "text length is 0; the model takes 1 to 16 tokens"),
        ({"text_length": 17}, "text length is 17; the model takes 1 to 16 tokens"),
    ],
)
def test_what_no_graph_can_be_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        OnnxOptions(**values).check(MODELS["test"])


def test_without_the_exporters_packages_the_extra_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name)
    )
    with pytest.raises(ValueError, match=r"onnxscript, which .* pip install -e '\.\[onnx\]'"):
        require_packages()
