from __future__ import annotations

import argparse
import dataclasses

import pytest

from clipmill.bench import bench, inference
from clipmill.bench.backends import BACKENDS, Eager, OnnxRuntime, Unavailable
from clipmill.bench.options import BenchOptions
from clipmill.bench.report_form import read_report
from clipmill.manifests.layout import RunLayout
from clipmill.train.formats.onnx_export import OnnxOptions, save_onnx
from clipmill.train.formats.open_clip_files import save_export
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP

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


@pytest.fixture
def trained_run(tmp_path):
    """A finished run, and the model of its export."""
    config = dataclasses.replace(MODELS["test"], context_length=12)
    model = CLIP(config, seed=7)
    run = RunLayout(str(tmp_path / "first"))
    save_export(model, run.export)
    (tmp_path / "first" / "run.json").write_text("{}")
    return run.root, model


@pytest.mark.slow
def test_stored_graphs_are_measured_and_damaged_ones_refused(trained_run, tmp_path, capsys):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    folder, model = trained_run
    graphs, path = tmp_path / "graphs", tmp_path / "report.json"
    save_onnx(model, str(graphs), OnnxOptions(text_length=9, pixels="uint8"))
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
    file.write_bytes(file.read_bytes()[:-100])
    refused("image.onnx is not as it was written; export the model again")
    file.unlink()
    refused("has no image.onnx; export the model again")
    config.unlink()
    refused("has no onnx_config.json; give a local folder of clipmill weights onnx")
