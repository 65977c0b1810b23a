from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest
import torch

from clipmill.manifests import disk, reader
from clipmill.manifests.layout import RunLayout
from clipmill.manifests.records import RunRecord, read_document
from clipmill.manifests.schema import Ablation
from clipmill.study import plan
from clipmill.study.arms import expand_runs
from clipmill.study.plan import (
    Hardware,
    Plan,
    check_ablation,
    check_plan,
    check_pools,
    plan_ablation,
    plan_lines,
)
from clipmill.train.config import configure
from clipmill.train.sizing.device_fit import GIB, sample_flops
from clipmill.verdict.stats.comparison import StudyNoise
from tests.support.ablations import TRAIN, Ran, changed, three_arms, tiny_ablation, two_classes

SHIPPED = Path(__file__).resolve().parents[3] / "manifests" / "ablations"
A100 = Hardware(name="a100-80gb", utilisation=0.2)


TASK = {"name": "colours", "kind": "classification", "data": "d"}


def shipped(name: str, monkeypatch: pytest.MonkeyPatch, scale: str | None = None) -> Ablation:
    monkeypatch.setenv("IMAGENET", "/images")
    monkeypatch.setenv("MINIWEB", "/web")
    return reader.read_manifest(SHIPPED / f"{name}.yaml", Ablation, scale=scale)


def small(**changes: object) -> Ablation:
    """Three arms, three seeds, of DataComp's small scale."""
    train = {"preset": "datacomp_small", "micro_batch": "auto"}
    return three_arms(train=train, **changes)


def test_runs_samples_and_hours_are_counted() -> None:
    two = small(controls={"random_like": ["clip30"], "a_a": "raw"}, jobs=2)
    made = plan_ablation(two, "/out", A100)
    assert made.runs == {"arms": 9, "random": 3, "a_a": 3, "scorer": 0}
    assert made.samples == 15 * 12_800_000
    config = configure(two.train)
    assert made.flops == pytest.approx(15 * 12_800_000 * sample_flops(config))
    assert made.speed.samples_per_s == pytest.approx(0.2 * 312e12 / (sample_flops(config) * 4 / 3))
    assert made.hours_per_run == pytest.approx(12_800_000 / made.speed.samples_per_s / 3600)
    assert made.device_hours == pytest.approx(15 * made.hours_per_run)
    assert made.hours == pytest.approx(made.device_hours / 2)
    assert made.cost is None
    assert made.fit.micro_batch == 2048
    assert made.fit.fits
    assert not made.problems


def test_a_price_utilisation_and_ranks_are_those_that_are_stated() -> None:
    hardware = Hardware(name="h100-80gb", ranks=8, utilisation=0.4, price=2.5)
    made = plan_ablation(small(), "/out", hardware)
    rate = 8 * 0.4 * 989.4e12 / sample_flops(configure(small().train))
    assert made.speed.samples_per_s == pytest.approx(rate)
    assert made.fit.micro_batch is None
    assert made.device_hours == pytest.approx(8 * made.hours)
    assert made.cost == pytest.approx(2.5 * made.device_hours)


def test_the_scorer_is_a_run_on_one_rank() -> None:
    scorer = {"view": "web/all", "train": {"samples_seen": 6_400_000}}
    without = plan_ablation(small(ranks=4), "/out", A100)
    made = plan_ablation(small(ranks=4, scorer=scorer), "/out", A100)
    assert made.runs["scorer"] == 1
    assert made.samples == without.samples + 6_400_000 // 4096 * 4096
    assert made.device_hours > without.device_hours


def test_the_smallest_effect_and_the_seeds_are_those_of_the_statistics() -> None:
    made = plan_ablation(small(), "/out", A100, run_sd=0.004, effect=0.01)
    wanted = StudyNoise(run_sd=0.004, seeds=3, arms=2, df=4).smallest_visible()
    assert made.smallest_effect == pytest.approx(wanted)
    assert made.seeds_for_effect is not None
    enough = plan.smallest_effect(0.004, made.seeds_for_effect, 2)
    too_few = plan.smallest_effect(0.004, made.seeds_for_effect - 1, 2)
    assert enough is not None
    assert too_few is not None
    assert enough <= 0.01 < too_few


def test_a_budget_buys_runs_that_cost_it() -> None:
    made = plan_ablation(small(), "/out", A100, run_sd=0.004, budget_hours=30.0)
    per_sample = made.device_hours / made.samples
    assert [row.seeds for row in made.budget] == [2, 3, 5, 8, 12]
    for row in made.budget:
        assert row.runs == 3 * row.seeds
        assert row.samples_seen % 4096 == 0
        spent = row.samples_seen * row.runs * per_sample
        assert 29 < spent <= 30
    effects = [row.smallest_effect for row in made.budget]
    assert effects == sorted(effects, reverse=True)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run_sd": 1.5}, r"--sd is 1.5; it is a share"),
        ({"effect": 0.01}, "--effect needs --sd"),
        ({"run_sd": 0.1, "effect": 2.0}, r"--effect is 2.0; it is a share"),
        ({"budget_hours": 0.0}, "--budget-hours is 0.0; it must be above 0"),
    ],
)
def test_impossible_numbers_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_ablation(small(), "/out", A100, **options)


# --- refusals -------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    whole = small()
    whole = changed(whole, train={"preset": "datacomp_small"})
    with pytest.raises(
        ValueError, match=r"n cannot run as it is: .*it fits with micro_batch: auto"
    ):
        check_plan(whole, "/out", A100)


def test_what_takes_longer_than_the_limit_is_refused_with_the_hours() -> None:
    with pytest.raises(
        ValueError, match=r"9 runs take 28.1 hours \(3.1 hours for a run .*limit_hours is 10; "
    ):
        check_plan(small(limit_hours=10), "/out", A100)
    check_plan(small(limit_hours=29), "/out", A100)


@pytest.mark.parametrize("name", ["datacomp_small", "nvidia_question"])
def test_what_is_shipped_runs_on_the_hardware_that_it_states(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ablation = shipped(name, monkeypatch)
    made = plan_ablation(ablation, "/out", Hardware())
    assert not made.problems
    assert ablation.limit_hours is not None
    assert made.hours < ablation.limit_hours
    without_ranks = changed(ablation, ranks=1, train={"preset": ablation.train["preset"]})
    assert "GiB" in plan_ablation(without_ranks, "/out", Hardware()).problems[0]


def test_on_a_machine_without_gpus_the_flagship_is_refused_with_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("clipmill.study.plan.usable_cores", lambda: 2)
    ablation = shipped("nvidia_question", monkeypatch)
    with pytest.raises(ValueError, match="cannot run") as refused:
        check_plan(ablation, "/out", Hardware(here=True))
    message = str(refused.value)
    assert "ranks is 64, but this machine has no GPU and 2 cores" in message
    assert "the ablation is written for h100-80gb" in message
    assert "12 runs take" in message
    assert "years" in message


@pytest.mark.parametrize("name", ["datacomp_small", "nvidia_question", "demo_null"])
def test_the_debug_scale_runs_on_any_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ablation = shipped(name, monkeypatch, "debug")
    assert (ablation.ranks, ablation.hardware) == (1, None)
    made = plan_ablation(ablation, "/out", Hardware(here=True))
    assert not made.problems
    assert made.hours < 1


def test_a_cluster_of_unknown_machines_is_not_refused() -> None:
    whole = changed(small(), train={"preset": "datacomp_small"})
    check_plan(whole, "/out", Hardware())
    with pytest.raises(ValueError, match="it fits with micro_batch: auto"):
        check_plan(changed(whole, hardware="a100-80gb"), "/out", Hardware())


def test_predictions_that_exist_need_nothing(tmp_path: Path) -> None:
    given = {"predictions": str(tmp_path / "{seed}-{task}.parquet")}
    judged = three_arms(arms={"raw": given, "clip30": given}, pools={}, train={})
    check_plan(judged, "/out", A100)
    with pytest.raises(ValueError, match="n trains nothing"):
        plan_ablation(judged, "/out", A100)


# --- speed and words ------------------------------------------------------------------------------


def test_finished_runs_give_the_speed(ran: Ran) -> None:
    tiny, out, outcomes = ran
    made = plan_ablation(tiny, out, Hardware(name="cpu"))
    records = []
    for outcome in outcomes:
        records.append(read_document(f"{outcome.run.out}/run.json", RunRecord).samples_per_s)
    assert made.speed.source == "measured in 6 finished runs"
    assert made.speed.samples_per_s == pytest.approx(sum(records) / 6)
    other = changed(tiny, train={**TRAIN, "model": "micro"})
    assert made.run_sd is not None
    assert made.run_sd_source.startswith("of 6 finished runs, ")
    assert made.smallest_effect == plan.smallest_effect(made.run_sd, 2, 1)
    assert plan_ablation(tiny, out, A100, run_sd=0.01).run_sd_source == "as given"
    assert "of the peak of cpu" in plan_ablation(other, out, Hardware(name="cpu")).speed.source
    assert plan_ablation(tiny, out, A100).speed.source == "20% of the peak of NVIDIA A100 80GB"


def test_the_lines_name_every_number_and_the_document_is_json() -> None:
    hardware = dataclasses.replace(A100, price=2.0)
    made = plan_ablation(small(), "/out", hardware, run_sd=0.004, effect=0.01, budget_hours=30)
    text = "\n".join(plan_lines(made))
    for words in (
        "n: 9 runs (9 arms), 3 seeds",
        "115,200,000 in all",
        "of 79.1 GiB a rank in micro-batches of 2,048",
        "3.1 hours for a run, 28.1 hours in all, 28.1 device-hours, 56 at the stated price",
        "smallest effect that 3 seeds show",
        "what the budget buys",
    ):
        assert words in text
    document = json.loads(json.dumps(disk.to_plain(made)))
    assert disk.from_plain(Plan, document) == made
    assert made.fit.memory.activations > 10 * GIB


def test_a_tiny_ablation_takes_seconds(tiny_pool: str, data: str) -> None:
    made = plan_ablation(tiny_ablation(tiny_pool, data), "/out", Hardware(here=True))
    assert not made.problems
    assert made.hours < 0.01
    assert any("minutes" in line for line in plan_lines(made))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"equivalence": 0.0}, r"equivalence is 0.0; it must be above 0"),
        ({"scorer": {"view": "wob/all"}}, r"scorer.view is 'wob/all'; its pool must be of"),
        (
            {"scorer": {"view": "web/all", "train": {"lr": "fast"}}},
            "lr is 'fast'; it must be a number",
        ),
        ({"train": {**TRAIN, "warmup": 5}}, "^train: warmup 5, but the run has 4 steps"),
        (
            {"scorer": {"view": "web/all", "train": {"warmup": 9}}},
            "^scorer.train: warmup 9, but the run has 4 steps",
        ),
        (
            {"scorer": {"view": "web/all", "train": {"samples_seen": 16, "warmup": 2}}},
            "^scorer.train: warmup 2, but the run has 1 steps",
        ),
        ({"arms": {"raw": "web/all", "half": "web/hlaf"}}, "no view 'hlaf'; did you mean 'half'"),
        ({"evaluate": [TASK, TASK]}, "two tasks of one name: colours, colours"),
    ],
)
def test_what_can_be_known_without_a_pool(
    tiny_pool: str, data: str, change: dict[str, object], message: str
) -> None:
    tiny = tiny_ablation(tiny_pool, data)
    check_ablation(tiny, "/out")
    with pytest.raises(ValueError, match=message):
        check_ablation(changed(tiny, **change), "/out")


@pytest.mark.slow
@pytest.mark.parametrize("finished", [False, True])
def test_weights_that_no_run_could_load_are_refused_before_the_first(
    tiny_pool: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    init = "open_clip:ViT-B-32/laion2b_s34b_b79k"
    tiny = changed(tiny_ablation(tiny_pool, data), train={**TRAIN, "init": init})
    if finished:
        for run in expand_runs(tiny, str(tmp_path), built=False):
            disk.write_json(RunLayout(run.out).run_json, {})
        check_ablation(tiny, str(tmp_path))
        return
    with pytest.raises(ValueError, match=rf"{init}: ViT-B-32/.* cannot be downloaded: no route"):
        check_ablation(tiny, str(tmp_path))


def test_pools_are_checked_and_searched(tiny_pool: str, data: str, tmp_path: Path) -> None:
    tiny, out = tiny_ablation(tiny_pool, data), str(tmp_path / "out")
    shared = check_pools(tiny, out)
    assert shared.images == ()
    assert disk.read_json(tmp_path / "out" / "overlap.json") == disk.to_plain(shared)
    with pytest.raises(ValueError, match="fewer rows than a batch"):
        check_pools(changed(tiny, train={**TRAIN, "batch_size": 64}), out)


def test_a_training_image_in_the_evaluation_is_refused(tiny_pool: str, tmp_path: Path) -> None:
    data = two_classes(tmp_path / "data")
    sidecar = disk.read_parquet(disk.join(tiny_pool, "shards", "00001.parquet"))
    row = sidecar.slice(2, 1).to_pylist()[0]
    tar = disk.join(tiny_pool, "shards", "00001.tar")
    image = disk.read_bytes(tar, row["image_offset"], row["image_length"])
    (Path(data) / "red" / "9.jpg").write_bytes(image)
    tiny, out = tiny_ablation(tiny_pool, data), str(tmp_path)
    with pytest.raises(ValueError, match=rf"red/9.jpg is also in the pool .* {row['key']}"):
        check_pools(tiny, out)
    allowed = [dataclasses.replace(task, allow_overlap=True) for task in tiny.evaluate]
    shared = check_pools(dataclasses.replace(tiny, evaluate=tuple(allowed)), out)
    assert shared.arms[tiny.primary].keys() == {"raw", "half"}
    assert shared.arms[tiny.primary]["raw"] == 1
    assert disk.read_json(tmp_path / "overlap.json")["arms"] == shared.arms
