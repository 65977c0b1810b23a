from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
from typing import ClassVar

import pytest
import torch

from benchmarks.trainer import bench, inference
from benchmarks.trainer.backends import BACKENDS, Eager, OnnxRuntime, Unavailable
from benchmarks.trainer.options import BenchOptions
from manifests.layout import RunLayout
from train.formats.onnx_export import OnnxOptions, save_onnx
from train.formats.open_clip_files import save_export
from train.model.architecture import MODELS
from train.model.clip import CLIP
from train.sizing.device_fit import Cell, read_report

GIVEN = BenchOptions(
    mode="infer", models=("test",), batches=(1, 2), iterations=3, repeats=2, warmup=1
)


class Missing(Eager):
    name = "missing"

    def __init__(self, setup):
        raise Unavailable("it needs a moon")


@pytest.fixture(autouse=True)
def few_back_ends():
    """Eager twice, so that nothing is compiled or exported, and one that cannot run."""
    every_back_end = dict(BACKENDS)  # put back in its order, which other tests see
    BACKENDS.clear()
    BACKENDS.update({"eager": Eager, "other": Eager, "missing": Missing})
    yield
    BACKENDS.clear()
    BACKENDS.update(every_back_end)


def arguments(**values):
    return argparse.Namespace(
        **{"backends": None, "cpu_threads": 1, "jpeg": False, "graphs": None, **values}
    )


def test_every_back_end_that_can_run_is_a_cell_of_every_batch(caplog):
    caplog.set_level("INFO")
    cells = list(inference.infer_cells(GIVEN, arguments()))
    assert [(cell.batch, cell.variant) for cell in cells] == [
        (1, "eager"), (1, "other"), (2, "eager"), (2, "other"),
    ]  # fmt: skip
    assert "missing is left out: it needs a moon" in caplog.text
    for cell in cells:
        figures = cell.figures
        assert (figures["calls"], figures["text_length"], figures["threads"]) == (6, 16, 1)
        assert figures["difference"] == 0
        assert figures["latency_s_min"] <= figures["latency_s_p50"] <= figures["latency_s_p99"]
        expected = cell.batch / figures["latency_s_mean"]
        assert figures["samples_per_s"] == pytest.approx(expected)
        assert len(cell.rates) == 2
    assert cells[0].figures["speedup"] == cells[0].figures["cpu_ratio"] == 1
    ratio = cells[2].figures["latency_s_mean"] / cells[3].figures["latency_s_mean"]
    assert cells[3].figures["speedup"] == pytest.approx(ratio)


def test_a_back_end_that_was_named_and_is_missing_ends_with_status_3(tmp_path, capsys):
    path = tmp_path / "report.json"
    words = ["--mode", "infer", "--model", "test", "-b", "1", "-i", "2", "-w", "1"]
    words += ["--backends", "missing", "--text-length", "9", "-o", str(path)]
    assert bench.main(words) == 3
    output = capsys.readouterr()
    assert "missing: it needs a moon" in output.err
    assert output.out.startswith("test, fp32, text length 9\n")
    missing, eager = read_report(path).cells
    assert (missing.state, missing.variant, eager.variant) == ("not run", "missing", "eager")
    assert eager.figures["text_length"] == 9


def cell(batch, variant, mean):
    figures = dict.fromkeys(name for _, name in inference.COLUMNS[2:])
    figures |= {
        "text_length": 64.0,
        "latency_s_mean": mean,
        "samples_per_s": batch / mean,
        "difference": 3e-7,
        "host_bytes": 5 * 2**20,
    }
    return Cell(
        model="ViT-B-32", dtype="fp16", ranks=1, batch=batch, global_batch=batch,
        data="synthetic", variant=variant, figures=figures,
    )  # fmt: skip


def test_the_framework_is_compared_with_the_fastest_back_end():
    cells = [
        cell(1, "eager", 0.032), cell(1, "tensorrt", 0.014), cell(1, "compile", 0.02),
        cell(8, "eager", 0.028), cell(8, "tensorrt", 0.015),
    ]  # fmt: skip
    (title, group), *others = inference.groups(cells)
    assert title == "ViT-B-32, fp16, text length 64"
    assert not others
    table = inference.fastest_table(group)
    assert table[1:] == [
        ["1", "0.0320", "0.0140", "tensorrt", "2.29"],
        ["8", "0.0280", "0.0150", "tensorrt", "1.87"],
    ]
    full = inference.full_table(group)
    assert full[0] == ["batch", "back end", "mean ms", "samples/s", "difference", "host MiB"]
    assert full[1] == ["1", "eager", "32.00", "31.2", "3.0e-07", "5"]
    assert inference.infer_lines(cells)[2].split() == [
        "batch", "framework", "(s)", "fastest", "(s)", "back", "end", "speedup",
    ]  # fmt: skip
    failed = dataclasses.replace(cells[0], state="failed", figures={})
    assert inference.infer_lines([failed]) == []
    assert inference.infer_lines([cells[0]])[2].split()[0] == "batch"  # nothing to compare it with


@pytest.mark.parametrize(
    ("values", "changes", "message"),
    [
        ({"backends": "egger"}, {}, "there is no back end 'egger'; did you mean 'eager'"),
        ({"backends": ""}, {}, "there is no back end ''"),
        ({"cpu_threads": 0}, {}, "cpu-threads is 0; it must be at least 1"),
        ({}, {"data": "x.yaml"}, "mode infer measures synthetic images"),
        ({}, {"text_length": 17}, "context_length is 17"),
        ({}, {"text_length": 0}, "context_length is 0"),
    ],
)
def test_a_mistake_is_refused_before_a_model_is_built(values, changes, message):
    given = dataclasses.replace(GIVEN, **changes)
    with pytest.raises(ValueError, match=message):
        next(inference.infer_cells(given, arguments(**values)))


class Loaded(Eager):
    """Eager, which remembers the model that it was given."""

    models: ClassVar[list[CLIP]] = []

    def __init__(self, setup):
        super().__init__(setup)
        self.models.append(setup.model)


@pytest.fixture
def trained_run(tmp_path):
    """A finished run, and the model of its export."""
    config = dataclasses.replace(MODELS["test"], context_length=12)
    model = CLIP(config, seed=7)
    run = RunLayout(str(tmp_path / "first"))
    save_export(model, run.export)
    (tmp_path / "first" / "run.json").write_text("{}")
    return run.root, model


def test_the_trained_model_of_a_run_is_measured(trained_run, tmp_path, monkeypatch, capsys):
    folder, model = trained_run
    monkeypatch.setitem(BACKENDS, "other", Loaded)
    Loaded.models.clear()
    path = tmp_path / "report.json"
    words = ["--mode", "infer", "-b", "2", "-i", "2", "-w", "1", "-o", str(path)]
    assert bench.main([*words, "--model", f"test,{folder}/"]) == 0
    assert "first, fp32, text length 12\n" in capsys.readouterr().out
    random, trained = Loaded.models
    assert random.config.context_length == 16
    assert torch.equal(trained.visual.proj, model.visual.proj)
    report = read_report(path)
    assert [cell.model for cell in report.cells] == ["test", "test", "first", "first"]
    assert report.options["models"] == ["test", "first"]
    assert report.command.endswith("--model test,first")
    assert str(tmp_path) not in path.read_text()
    assert bench.main([*words, "--model", f"{folder}/export", "--text-length", "5"]) == 0
    eager, _ = read_report(path).cells
    assert (eager.model, eager.figures["text_length"]) == ("first", 5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "{run}/none"], "first/none does not exist: give a finished run"),
        (["--model", "{run}", "--text-length", "13"], "first takes 1 to 12 tokens"),
        (["--model", "{run}", "--set", "model.layers=1"], "leave model.layers out"),
        (["--model", "{run},{run}/export"], "two models of --model are named first"),
        (
            ["--model", "{run}", "--mode", "score"],
            "is a trained model, which mode infer alone measures",
        ),
        (["--model", "open_clip:ViT-B-32"], "open_clip:ViT-B-32 names no weights"),
        (["--model", "first"], "there is no model 'first'"),
    ],
)
def test_a_trained_model_that_cannot_be_measured_is_one_line(words, message, trained_run, capsys):
    folder, _ = trained_run
    given = [word.format(run=folder) for word in words]
    assert bench.main(["--mode", "infer", "-b", "1", *given]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_trained_model_with_nan_is_refused_by_name(tmp_path, capsys):
    model = CLIP(MODELS["test"])
    with torch.no_grad():
        model.logit_scale.fill_(float("nan"))
    save_export(model, str(tmp_path / "broken"))
    assert bench.main(["--mode", "infer", "-b", "1", "--model", str(tmp_path / "broken")]) == 2
    assert "logit_scale of" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("pixels", ["uint8", "normalised"])
def test_stored_graphs_are_measured_and_damaged_ones_refused(pixels, trained_run, tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    folder, model = trained_run
    graphs, path = tmp_path / "graphs", tmp_path / "report.json"
    save_onnx(model, str(graphs), OnnxOptions(text_length=9, pixels=pixels))
    BACKENDS["onnxruntime"] = OnnxRuntime
    words = ["--mode", "infer", "-b", "2", "-i", "2", "-w", "1", "-o", str(path)]
    words += ["--backends", "onnxruntime", "--graphs", str(graphs)]
    assert bench.main([*words, "--model", folder]) == 0
    _, measured = read_report(path).cells
    assert (measured.variant, measured.figures["text_length"]) == ("onnxruntime", 9)
    assert measured.figures["difference"] < 1e-5
    capsys.readouterr()

    def refused(message, *more, status=2, model=folder):
        assert bench.main([*words, "--model", model, *more]) == status
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1

    save_export(CLIP(model.config, seed=8), str(tmp_path / "other"))
    refused("have other weights than other", model=str(tmp_path / "other"))
    refused("--graphs goes with one --model", model="test")
    refused("text-length is 8; the graphs of", "--text-length", "8")
    file, config = graphs / "image.onnx", graphs / "onnx_config.json"
    whole, described = file.read_bytes(), config.read_text()
    file.write_bytes(whole[:-100])
    refused("image.onnx is not as it was written; export the model again")
    file.unlink()
    refused("has no image.onnx; export the model again")

    def replace(data):
        """A file as if it had been written so."""
        file.write_bytes(data)
        files = json.loads(described)
        files["files"]["image.onnx"] = {
            "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
        }  # fmt: skip
        config.write_text(json.dumps(files))

    newer = onnx.load_model_from_string(whole)
    newer.opset_import[0].version = 999
    for data in (newer.SerializeToString(), b"no ONNX", b"", whole[:-100]):
        replace(data)
        refused("onnxruntime: it cannot load image.onnx: ", status=3)
    file.write_bytes(whole)
    for bad in ('"dtype":', '"text_length": 9', '"format": 1', '"bytes":', '"files":', "{"):
        assert bad in described
        config.write_text(described.replace(bad, '"text_length": "x"' if "9" in bad else '"a": 2,'))
        refused(f"{config} is")
    config.unlink()
    refused("has no onnx_config.json; give a local folder of clipmill weights onnx")
