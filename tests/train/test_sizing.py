from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Any

import pytest
import torch

from manifests import console, disk
from tests.support import commands
from tests.support.ablations import three_arms
from train.ablation.plan import Hardware, plan_ablation
from train.config import configure
from train.parallel.process_group import Ranks
from train.sizing import device_fit
from train.sizing.device_fit import (
    GIB,
    Device,
    own_sheets,
    resolve_micro_batch,
)

SHEETS = own_sheets()


def sized(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    assert commands.size([*words, "--json"]) == status
    document: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return document


def test_a_model_on_a_device_gets_its_memory_and_a_micro_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--model", "ViT-H-14", "--device", "a100-80gb"]
    assert commands.size([*words, "--json"]) == 0
    *lines, document = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "ViT-H-14, 4,096 samples a rank in micro-batches of 128, on NVIDIA A100 80GB"
    values = json.loads(document)
    fit = values["advice"]["fit"]
    assert fit["micro_batch"] == 128
    assert fit["memory"]["weights"] == 4 * 986_109_441
    assert fit["needed"] < 0.9 * 79.1 * 2**30
    assert any("published runs of ViT-H-14" in line for line in lines)


def test_a_stated_layout_and_batch_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "ViT-L-14", "--device", "h100-80gb", "--ranks", "16", "--batch", "32768"]
    values = sized(capsys, *words, "--samples", "1000000", "--set", "tp=2", "dp_shard=4")
    assert values["parallel"] == "tp2+fsdp4"
    assert values["advice"]["config"]["batch_size"] == 32_768
    assert values["advice"]["fit"]["samples"] == 4096
    assert values["samples"] == 1_000_000
    free = sized(capsys, *words)
    assert free["parallel"] == "dp"


def test_what_does_not_fit_ends_with_status_3_and_what_would(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--preset", "datacomp_small", "--device", "a100-80gb"]
    words += ["--set", "micro_batch=none", "recompute=none", "dp_shard=1", "tp=1"]
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
) -> None:
    sheet = dataclasses.replace(own_sheets()["a100-80gb"], memory_gib=memory)
    monkeypatch.setattr(device_fit, "own_sheets", lambda: {**SHEETS, "a100-80gb": sheet})
    train = {"preset": "datacomp_small", "micro_batch": "auto"}
    words = ["--preset", "datacomp_small", "--set", "recompute=none", "dp_shard=1", "tp=1"]
    values = sized(capsys, *words, "--device", "a100-80gb")["advice"]["fit"]
    plan = plan_ablation(three_arms(train=train), "/out", Hardware(name="a100-80gb"))
    assert disk.to_plain(plan.fit) == values
    # A run asks for what is free on its own device, a GPU by its kind.
    monkeypatch.setattr(device_fit, "free_memory", lambda device, ranks: int(memory * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    gpu = Ranks(rank=0, world=1, device=torch.device("cuda"), owns_group=False)
    assert resolve_micro_batch(configure(train), gpu).micro_batch == values["micro_batch"]


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "ViT-H"], "there is no model 'ViT-H'"),
        (["--device", "a100"], "there is no device 'a100'"),
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
        (["--ranks", "8", "--set", "tp=8"], "tp 8 does not divide vision_heads 12"),
        (["--device", "v100-32gb", "--set", "precision=bf16"], "no products of; set it to one of"),
        (["--utilisation", "1.5"], "utilisation is 1.5"),
        (["--samples", "0"], "--samples is 0"),
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
    assert values["remedies"]
    assert isinstance(device_fit.device_of("cpu"), Device)
