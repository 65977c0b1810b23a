from __future__ import annotations

import json

import pytest

from train import sizing


def test_a_model_on_a_device_gets_its_memory_and_a_micro_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sizing.main(["--model", "ViT-H-14", "--device", "a100-80gb", "--json"]) == 0
    *lines, document = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "ViT-H-14, 4,096 samples a rank in micro-batches of 128, on NVIDIA A100 80GB"
    values = json.loads(document)
    assert values["fits"]
    assert values["micro_batch"] == 128
    assert values["memory"]["weights"] == 4 * 986_109_441
    assert values["needed"] < 0.9 * 79.1 * 2**30
    assert any("GFLOP a sample" in line for line in lines)


def test_what_does_not_fit_ends_with_status_3_and_what_would(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--preset", "datacomp_small", "--device", "a100-80gb", "--set", "micro_batch=none"]
    assert sizing.main(words) == 3
    assert "it fits with micro_batch: auto" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "ViT-H"], "there is no model 'ViT-H'"),
        (["--device", "a100"], "there is no device 'a100'"),
        (["--set", "lr"], "--set 'lr' is not KEY=VALUE"),
        (["--ranks", "0"], "--ranks is 0; it must be at least 1"),
        (["--ranks", "3", "--set", "dp_shard=2"], "does not divide 3 ranks"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sizing.main(words) == 2
    assert message in capsys.readouterr().err
