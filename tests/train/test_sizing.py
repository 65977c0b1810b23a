from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from manifests import console, disk
from tests.support import commands
from tests.support.ablations import three_arms
from train.ablation.plan import Hardware, plan_ablation
from train.config import configure
from train.model.architecture import MODELS
from train.model.memory import training_flops
from train.parallel.process_group import Ranks
from train.sizing import device_fit
from train.sizing.device_fit import (
    GIB,
    Cell,
    Device,
    Machine,
    Report,
    own_sheets,
    resolve_micro_batch,
)


def sized(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    assert commands.size([*words, "--json"]) == status
    document: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return document


def test_a_model_on_a_device_gets_its_memory_and_a_micro_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--model", "ViT-H-14", "--device", "a100-80gb", "--price", "2", "--pairs", "1000000"]
    assert commands.size([*words, "--json"]) == 0
    *lines, document = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "ViT-H-14, 4,096 samples a rank in micro-batches of 128, on NVIDIA A100 80GB"
    values = json.loads(document)
    assert values["fits"]
    assert values["micro_batch"] == 128
    assert values["memory"]["weights"] == 4 * 986_109_441
    assert values["needed"] < 0.9 * 79.1 * 2**30
    assert values["cost"] == pytest.approx(2 * values["device_hours"])
    assert values["pool"]["image_size"] == 256
    assert any("published runs of ViT-H-14" in line for line in lines)


def test_a_stated_layout_and_batch_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "ViT-L-14", "--device", "h100-80gb", "--ranks", "16", "--batch", "32768"]
    values = sized(capsys, *words, "--parallel", "tp2+fsdp4", "--samples", "1000000")
    assert (values["parallel"], values["batch_size"]) == ("tp2+fsdp4", 32_768)
    assert values["samples_per_rank"] == 4096
    assert values["samples"] == 1_000_000
    free = sized(capsys, *words)
    assert free["parallel"] == "dp"
    assert free["flops_computed"] <= values["flops_computed"]


def test_what_does_not_fit_ends_with_status_3_and_what_would(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--preset", "datacomp_small", "--device", "a100-80gb", "--parallel", "dp"]
    words += ["--set", "micro_batch=none", "recompute=none"]
    assert commands.size(words) == 3
    assert "it fits with micro_batch: auto" in capsys.readouterr().out


def test_the_commands_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (console.ROOT / "docs" / "sizing.md").read_text()
    block = page.split("```bash\n")[1].split("```")[0]
    for command in block.splitlines():
        assert command.startswith("clipmill size ")
        assert commands.size(shlex.split(command)[2:]) == 0, command
        assert "samples/s" in capsys.readouterr().out


# --- one estimate ---------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [79.1, 24.0, 4.0])
def test_sizing_the_plan_and_a_run_choose_the_same_micro_batch(
    memory: float,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    sheet = dataclasses.replace(own_sheets()["a100-80gb"], memory_gib=memory)
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"devices": {"own": disk.to_plain(sheet)}}))
    train = {"preset": "datacomp_small", "micro_batch": "auto"}
    words = ["--preset", "datacomp_small", "--parallel", "dp", "--set", "recompute=none"]
    values = sized(capsys, *words, "--device", str(path))
    plan = plan_ablation(three_arms(train=train), "/out", Hardware(name=str(path)))
    assert plan.micro_batch == values["micro_batch"]
    assert plan.memory_needed == values["needed"]
    assert plan.memory == values["memory"]
    assert plan.samples_per_s == pytest.approx(values["samples_per_s"])
    # A run asks for what is free on its own device, a GPU by its kind.
    monkeypatch.setattr(device_fit, "free_memory", lambda device, ranks: int(memory * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    gpu = Ranks(rank=0, world=1, device=torch.device("cuda"), owns_group=False)
    assert resolve_micro_batch(configure(train), gpu).micro_batch == values["micro_batch"]


# --- a measured speed -----------------------------------------------------------------------------


def report(
    tmp_path: Path,
    *cells: Cell,
    device: str = "NVIDIA H200",
    mode: str = "train",
    options: dict[str, Any] | None = None,
) -> str:
    machine = Machine(
        device=device,
        kind="cpu" if "Xeon" in device else "cuda",
        gpus=1,
        gpu_memory_bytes=None,
        processor="p",
        cores=2,
        memory_bytes=None,
        system="Linux",
        versions={},
    )
    made = Report(
        mode=mode, date="2026-01-31T12:00:00Z", command="c", commit=None, machine=machine,
        options=options or {}, cells=cells,
    )  # fmt: skip
    path = str(tmp_path / "report.json")
    disk.write_json(path, made)
    return path


def cell(model: str = "ViT-B-32", ranks: int = 1, rate: float = 9000.0, **changes: Any) -> Cell:
    values = {"dtype": "bf16", "batch": 1024, "global_batch": 1024 * ranks, "data": "synthetic"}
    return Cell(model=model, ranks=ranks, rates=(rate - 1, rate + 1), **{**values, **changes})


def test_a_measured_speed_replaces_the_estimate(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--device", "h200-141gb", "--model", "ViT-B-32", "--batch", "8192", "--ranks", "8"]
    path = report(tmp_path, cell(), cell(ranks=8, rate=64_000.0), cell(rate=2.0, dtype="fp32"))
    values = sized(capsys, *words, "--measured", path)
    assert values["samples_per_s"] == 64_000
    assert values["speed_source"] == "measured for ViT-B-32, bf16, 8 ranks, batch 1024, synthetic"
    values = sized(capsys, *words, "--measured", report(tmp_path, cell()))
    assert values["samples_per_s"] == 72_000
    assert values["speed_source"].endswith("times 8/1 ranks")
    other = report(tmp_path, cell(model="ViT-B-16", rate=3000.0))
    values = sized(capsys, *words, "--measured", other)
    b16, b32 = (training_flops(MODELS[name]).sample(77) for name in ("ViT-B-16", "ViT-B-32"))
    assert values["samples_per_s"] == pytest.approx(8 * 3000 * b16 / b32)
    assert "at the same operations a second" in values["speed_source"]


def test_a_cell_of_the_same_text_length_and_layout_is_preferred(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--device", "h200-141gb", "--model", "ViT-B-32", "--batch", "8192", "--ranks", "8"]
    sharded = cell(ranks=8, rate=100.0, parallel="fsdp")
    path = report(tmp_path, sharded, cell(ranks=8, rate=200.0), cell(rate=7.0))
    for parallel, rate in (("fsdp", 100), ("dp", 200)):
        values = sized(capsys, *words, "--parallel", parallel, "--measured", path)
        assert values["samples_per_s"] == rate
    path = report(tmp_path, cell(ranks=8, rate=200.0), options={"text_length": 16})
    short = sized(capsys, *words, "--measured", path)
    assert short["samples_per_s"] < 200
    assert "at the same operations a second" in short["speed_source"]
    assert sized(capsys, *words, "--set", "context_length=16", "--measured", path)[
        "samples_per_s"
    ] == pytest.approx(200)


def test_ranks_of_a_processor_share_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_fit, "free_host_memory", lambda: 64 * GIB)
    path = report(tmp_path, cell(model="test", dtype="fp32"), device="Intel Xeon")
    words = ["--device", "cpu", "--model", "test", "--batch", "64", "--ranks", "2"]
    values = sized(capsys, *words, "--measured", path)
    assert values["samples_per_s"] == 9000
    assert values["speed_source"].endswith(", on Intel Xeon")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "NVIDIA L4"}, "was measured on NVIDIA L4, not on NVIDIA H200"),
        ({"model": "ViT-X"}, "measured a model 'ViT-X', which is not known here"),
        ({"mode": "loader"}, "has no speed of training in bf16 (mode loader)"),
    ],
)
def test_a_report_of_something_else_is_refused(
    changes: dict[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = cell(model=changes.pop("model", "ViT-B-32"))
    path = report(tmp_path, measured, **changes)
    assert commands.size(["--device", "h200-141gb", "--measured", path]) == 2
    assert message in capsys.readouterr().err


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "ViT-H"], "there is no model 'ViT-H'"),
        (["--device", "a100"], "there is no device 'a100'"),
        (["--device", "/nowhere.json"], "/nowhere.json"),
        (["--set", "lr"], "--set 'lr' is not KEY=VALUE"),
        (["--set", "device=cpu"], "device is a setting that --device decides"),
        (["--batch", "64", "--set", "batch_size=32"], "batch_size is set twice"),
        (["--set", "vision_heads=3"], "vision_heads"),
        (["--set", "model.vision_layers=-1"], "vision_layers"),
        (["--batch", "0"], "--batch is 0; it must be at least 1"),
        (["--ranks", "0"], "--ranks is 0; it must be at least 1"),
        (["--ranks", "1000001"], "at most 1,000,000"),
        (["--ranks", "3", "--set", "dp_shard=2"], "does not divide 3 ranks"),
        (["--ranks", "3"], "3 ranks cannot share a batch of 4096 evenly"),
        (["--ranks", "8", "--parallel", "tp8"], "tp 8 does not divide vision_heads 12"),
        (["--parallel", "pp2"], "--parallel is 'pp2'"),
        (["--device", "v100-32gb", "--set", "precision=bf16"], "no products of; set it to one of"),
        (["--utilisation", "1.5"], "utilisation is 1.5"),
        (["--price", "-1"], "--price is -1.0; it must be above 0"),
        (["--samples", "0"], "--samples is 0"),
        (["--image-size", "256"], "--image-size is about a pool; state its pairs"),
        (["--bandwidth", "5"], "--bandwidth is about a pool"),
        (["--pairs", "5", "--image-size", "0"], "image size is 0"),
        (["--measured", "/nowhere.json"], "/nowhere.json"),
        (["--measured", "r.json", "--utilisation", "0.5"], "{--utilisation, --measured}"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = [] if "--device" in words else ["--device", "a100-80gb"]
    assert commands.size([*device, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_processor_without_room_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_fit, "free_host_memory", lambda: GIB // 4)
    values = sized(capsys, "--device", "cpu", "--model", "ViT-B-32", "--batch", "64", status=3)
    assert not values["fits"]
    assert values["remedies"]
    assert isinstance(device_fit.device_of("cpu"), Device)
