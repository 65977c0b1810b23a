"""ONNX: graphs that compute what the model computes, and the folder that they lie in."""

import dataclasses
import importlib.util
import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from clipmill.manifests import disk
from clipmill.manifests.disk import files
from clipmill.train import transforms
from clipmill.train.formats import onnx_export
from clipmill.train.formats.model_files import weights_sha256
from clipmill.train.formats.onnx_export import (
    TOLERANCES,
    OnnxOptions,
    example_inputs,
    require_packages,
    save_onnx,
    write_graphs,
)
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP, l2_normalise


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
    with pytest.raises(ValueError, match=r"onnxscript, which .*pip install .*\[onnx\]"):
        require_packages()


# --------------------------------------------------------------------------------------------------


PLAIN = OnnxOptions()


@pytest.fixture
def model():
    return CLIP(MODELS["test"], seed=5)


@pytest.fixture
def instant(monkeypatch):
    """Two small files for the graphs, and no comparison."""

    def write(model, folder, options, metadata):
        for name in ("image.onnx", "text.onnx"):
            (folder / name).write_text(json.dumps(metadata))

    monkeypatch.setattr(onnx_export, "write_graphs", write)
    monkeypatch.setattr(onnx_export, "_checked", lambda *_: {"image": 0.0, "text": 0.0})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_a_folder_says_what_it_holds_and_large_weights_lie_beside_the_graph(
    model, tmp_path, monkeypatch
):
    monkeypatch.setattr(onnx_export, "MOST_BYTES_INSIDE", 2**20)  # the text tower has 6 MiB
    differences = save_onnx(model, str(tmp_path / "a"), PLAIN, "/home/somebody/out/run")
    assert 0 < max(differences.values()) <= 1e-5
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == [
        "image.onnx", "onnx_config.json", "text.onnx", "text.onnx.data",
    ]  # fmt: skip
    plain = json.loads((tmp_path / "a/onnx_config.json").read_text())
    for name, file in plain.pop("files").items():
        assert disk.file_sha256(tmp_path / "a" / name) == file["sha256"]
        assert (tmp_path / "a" / name).stat().st_size == file["bytes"]
    assert plain["weights_sha256"] == weights_sha256(model.state_dict())
    assert (plain["model"], plain["source"], plain["dtype"]) == ("test", "run", "fp32")
    assert plain["text"]["tokenizer"] == "clip"
    assert plain["image"]["mean"] == list(MODELS["test"].image_mean)
    for name in ("image.onnx", "text.onnx"):
        graph = onnx.load(str(tmp_path / "a" / name), load_external_data=False)
        stored = {entry.key: entry.value for entry in graph.metadata_props}
        assert json.loads(stored["clipmill.config"]) == plain["config"]
        assert json.loads(stored["clipmill.text"]) == plain["text"]
        assert stored["clipmill.weights_sha256"] == plain["weights_sha256"]
        data = (tmp_path / "a" / name).read_bytes()
        assert b"somebody" not in data
        assert b".py" not in data  # the exporter's own source lines
    # It is loaded where it lies, with its data beside it.
    session = onnxruntime.InferenceSession(str(tmp_path / "a/text.onnx"))
    assert session.get_inputs()[0].shape == ["batch", "text_length"]


def test_what_exists_stays(model, instant, tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "mine").write_text("x")
    for taken in (folder, folder / "mine"):
        with pytest.raises(ValueError, match="exists and is not empty; choose a new folder"):
            save_onnx(model, str(taken), PLAIN)
    with pytest.raises(ValueError, match=r"a name that does not end in \.onnx"):
        save_onnx(model, str(tmp_path / "model.onnx"), PLAIN)
    assert names(folder) == ["mine"]
    (folder / "mine").unlink()
    save_onnx(model, str(folder), PLAIN)  # an empty folder is as good as none
    assert names(folder) == ["image.onnx", "onnx_config.json", "text.onnx"]
    assert names(tmp_path) == ["there"]


def test_of_two_exports_one_is_whole_and_the_other_says_so(model, instant, tmp_path, monkeypatch):
    folder = str(tmp_path / "both")
    checked = onnx_export._checked
    first = []

    def other_first(model, staging, options):
        if not first:
            first.append(staging)
            save_onnx(model, folder, PLAIN, "first")
        return checked(model, staging, options)

    monkeypatch.setattr(onnx_export, "_checked", other_first)
    with pytest.raises(ValueError, match="was made by another command in the meantime"):
        save_onnx(model, folder, PLAIN, "second")
    assert disk.read_json(f"{folder}/onnx_config.json")["source"] == "first"
    assert names(tmp_path) == ["both"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_export_that_is_stopped_leaves_nothing(model, instant, tmp_path, monkeypatch, error):
    def stop(*_):
        raise error

    monkeypatch.setattr(onnx_export, "_checked", stop)
    with pytest.raises(error):
        save_onnx(model, str(tmp_path / "a"), PLAIN)
    assert names(tmp_path) == []


def test_a_store_gets_the_description_last(model, instant, monkeypatch):
    published = []
    publish = disk.publish
    monkeypatch.setattr(
        files, "publish", lambda staged, path: (published.append(path), publish(staged, path))
    )
    save_onnx(model, "memory://onnx/a", PLAIN)
    assert [path.rpartition("/")[2] for path in published] == [
        "image.onnx", "text.onnx", "onnx_config.json",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="exists and is not empty"):
        save_onnx(model, "memory://onnx/a", PLAIN)


def test_weights_that_are_not_finite_are_refused_by_name(model, tmp_path):
    with torch.no_grad():
        model.visual.blocks[1].fc1.bias[3] = float("nan")
    with pytest.raises(ValueError, match=r"visual\.blocks\.1\.fc1\.bias holds NaN or infinity"):
        save_onnx(model, str(tmp_path / "a"), PLAIN)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("difference", "dtype", "message"),
    [
        (2e-5, "fp32", r"the text tower differs from PyTorch by 2e-05 in fp32, and 1e-05"),
        (float("nan"), "fp16", r"by nan in fp16, and 0\.001 is the limit; export it in fp32"),
    ],
)
def test_a_graph_that_computes_something_else_is_refused(
    model, tmp_path, monkeypatch, difference, dtype, message
):
    monkeypatch.setattr(onnx_export, "write_graphs", lambda *_: None)
    monkeypatch.setattr(
        onnx_export, "differences_to_torch", lambda *_: {"image": 1e-6, "text": difference}
    )
    with pytest.raises(ValueError, match=message):
        save_onnx(model, str(tmp_path / "a"), OnnxOptions(dtype=dtype))
    assert names(tmp_path) == []
