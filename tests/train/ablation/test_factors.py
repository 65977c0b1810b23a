from __future__ import annotations

from typing import Any

import pytest

from manifests import disk
from manifests.schema import Ablation
from tests.support.ablations import TRAIN, three_arms, tiny_ablation
from train.ablation import runner
from train.ablation.arms import arm_config, check_factors, expand_runs
from train.ablation.runner import Outcome

BF16, FP32 = {"precision": "bf16"}, {"precision": "fp32"}


def ablation(arms: dict[str, Any], vary: dict[str, Any] | None = None) -> Ablation:
    baseline = next(iter(arms))
    return three_arms(arms=arms, baseline=baseline, train={"preset": "micro"}, vary=vary or {})


def arm(view: str, train: dict[str, Any]) -> dict[str, Any]:
    return {"view": view, "train": train}


def test_arms_may_differ_in_the_declared_setting() -> None:
    two = ablation({"half": arm("web/raw", BF16), "full": arm("web/raw", FP32)}, {"precision": []})
    check_factors(two)
    assert arm_config(two, "half").precision == "bf16"
    assert arm_config(two, "full").precision == "fp32"


def test_a_full_grid_of_data_and_setting_is_allowed() -> None:
    arms = {}
    for view in ("web/raw", "web/clip"):
        for number, train in enumerate((BF16, FP32)):
            arms[f"{view[4:]}{number}"] = arm(view, train)
    check_factors(ablation(arms, {"precision": []}))
    del arms["clip1"]
    with pytest.raises(ValueError, match="differ in data and in precision"):
        check_factors(ablation(arms, {"precision": []}))


@pytest.mark.parametrize(
    ("arms", "vary", "message"),
    [
        (
            {"a": arm("web/raw", {}), "b": arm("web/raw", FP32)},
            {},
            r"arm 'b' sets precision, which is not the factor .* \(data\)",
        ),
        (
            {"a": arm("web/raw", {"lr": 1e-3}), "b": arm("web/raw", FP32)},
            {"precision": []},
            "arm 'a' sets lr",
        ),
        ({"a": arm("web/raw", {"seed": 3})}, {"seed": []}, "arm 'a' sets seed"),
        (
            {"a": arm("web/raw", FP32), "b": arm("web/raw", {"precision": "fp32"})},
            {"precision": []},
            "all arms have the same value of it",
        ),
        ({"a": arm("web/raw", {"precision": "f"}), "b": "web/raw"}, {"precision": []}, "arm 'a': "),
    ],
)
def test_two_factors_and_undeclared_ones_are_refused(
    arms: dict[str, Any], vary: dict[str, Any], message: str
) -> None:
    plain = {name: {"view": each} if isinstance(each, str) else each for name, each in arms.items()}
    with pytest.raises(ValueError, match=message):
        check_factors(ablation(plain, vary))


def test_controls_have_the_settings_and_ranks_of_their_arm() -> None:
    arms = {"half": {**arm("web/raw", BF16), "ranks": 2}, "full": arm("web/raw", FP32)}
    two = three_arms(
        arms=arms, baseline="full", train={"preset": "micro"}, vary={"precision": []},
        controls={"a_a": "half", "random_like": ["half"]}, ranks=4,
    )  # fmt: skip
    by_arm = {run.arm: run for run in expand_runs(two, "/out", built=False)}
    assert by_arm["a_a"].config.precision == "bf16"
    assert by_arm["random_like_half"].config.precision == "bf16"
    assert by_arm["full"].config.precision == "fp32"
    ranks = {name: run.ranks for name, run in by_arm.items()}
    assert ranks == {"full": 4, "half": 2, "a_a": 2, "random_like_half": 2}


@pytest.mark.slow
def test_a_blend_by_weights_and_a_length_that_varies_are_trained(
    tiny_pool: str, data: str, tmp_path: Any
) -> None:
    views = {"web/all": 0.75, "web/half": 0.25}
    arms = {}
    for samples in (32, 64):
        arms[f"mix-{samples}"] = {"views": views, "train": {"samples_seen": samples}}
    two = tiny_ablation(
        tiny_pool, data, arms=arms, baseline="mix-32", train=TRAIN, vary={"samples_seen": [32, 64]}
    )
    check_factors(two)
    ended: list[Outcome] = []
    runs = [run for run in expand_runs(two, str(tmp_path)) if run.seed == 0]
    runner.run_in_children(runs, two.evaluate, 1, str(tmp_path), ended.append)
    assert [outcome.error for outcome in ended] == ["", ""]
    records = [disk.read_json(f"{run.out}/run.json") for run in runs]
    assert [record["samples"] for record in records] == [32, 64]
    assert records[1]["sources"]["web/all"]["drawn"] == 48
