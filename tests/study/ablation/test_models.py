"""Arms that are models that exist: evaluated, not trained; judged with the trained ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from clipmill.manifests import disk
from clipmill.manifests.layout import AblationLayout
from clipmill.manifests.schema import NO_SEED, Ablation
from clipmill.study import runner
from clipmill.study.arms import (
    ModelRun,
    all_runs,
    check_models,
    model_identity,
    model_runs,
    stale_because,
    trained_on,
)
from clipmill.study.collect import collect_report
from clipmill.study.influence import explain_by_gradients
from clipmill.study.plan import check_ablation, check_pools
from clipmill.study.results import Study, collect_results
from clipmill.study.runner import run_all
from clipmill.verdict import wording
from clipmill.verdict.measurements import Measurements
from tests.support.ablations import Ran, changed, in_process


def with_models(ran: Ran, **models: str) -> Ablation:
    tiny = ran[0]
    arms = {**disk.to_plain(tiny.arms), **{name: {"model": m} for name, m in models.items()}}
    return changed(tiny, arms=arms, controls={})


def copied(ran: Ran, tmp_path: Path) -> str:
    """The folder of the finished ablation, to be changed."""
    shutil.copytree(ran[1], tmp_path / "ran")
    return str(tmp_path / "ran")


def test_models_are_evaluated_beside_trained_runs(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run_in_children", in_process)
    out = copied(ran, tmp_path)
    ablation = with_models(
        ran,
        again=f"{ran[1]}/runs/half/seed-{{seed}}",
        one=f"local-dir:{ran[1]}/runs/half/seed-0/export",
    )
    check_ablation(ablation, out)
    outcomes = run_all(ablation, out)
    assert [o.error for o in outcomes] == [""] * len(outcomes)
    assert [o.reused for o in outcomes if not isinstance(o.run, ModelRun)] == [True] * 4
    disk.write_json(AblationLayout(out).ablation_json, ablation)
    results = collect_results(ablation, out)
    # The same weights give the same scores; the single model counts as one run, without a seed.
    values = Measurements.read(AblationLayout(out).measurements).values("colours", "logprob")
    assert values["again"] == values["half"]
    assert values["one"] == {NO_SEED: values["half"][0]}
    by_arm = {row.arm: row for row in results.comparisons}
    assert (by_arm["half"].n, by_arm["again"].n, by_arm["one"].n) == (2, 2, 0)
    assert by_arm["again"].difference == pytest.approx(by_arm["half"].difference)
    if by_arm["one"].low is not None and by_arm["one"].high is not None:
        assert "one model, as if another would vary like a run of raw" in wording.describe(
            by_arm["one"]
        )
    monkeypatch.setattr(runner, "run_in_children", None)
    assert all(o.reused for o in run_all(ablation, out))


def test_other_weights_make_the_scores_stale(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run_in_children", in_process)
    model = tmp_path / "model"
    shutil.copytree(f"{ran[1]}/runs/half/seed-0/export", model)
    out = copied(ran, tmp_path)
    ablation = with_models(ran, one=str(model))
    run_all(ablation, out)
    (one,) = model_runs(ablation, out)
    assert stale_because(one) == []
    weights = "open_clip_model.safetensors"
    shutil.copy(f"{ran[1]}/runs/half/seed-1/export/{weights}", model / weights)
    assert stale_because(one)[0].startswith(f"{weights}: ")
    second = next(o for o in run_all(ablation, out) if o.run == one)
    assert not second.reused
    assert stale_because(one) == []
    assert len(disk.list_names(disk.join(out, "runs", ".replaced", "one"))) == 1
    # A model that is gone leaves its scores, of which it is known what they are of.
    shutil.rmtree(model)
    assert stale_because(one) == []
    assert next(o for o in run_all(ablation, out) if o.run == one).reused


def test_the_pools_of_a_model_are_searched_where_they_are_known(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = f"{ran[1]}/runs/raw/seed-0"
    assert trained_on(run) == trained_on(f"local-dir:{run}/export") == f"{run}/run.json"
    assert trained_on("open_clip:ViT-B-32/openai") is None
    tiny = ran[0]
    arms = {
        "a": {"model": f"{ran[1]}/runs/raw/seed-{{seed}}/export"},
        "b": {"model": f"{ran[1]}/runs/half/seed-0"},
    }
    only = changed(tiny, arms=arms, baseline="a", pools={}, train={}, controls={})
    out = str(tmp_path)
    shared = check_pools(only, out)
    assert shared is not None
    assert disk.exists(AblationLayout(out).overlap_json)

    monkeypatch.setattr(runner, "run_in_children", in_process)
    assert [o.error for o in run_all(only, out)] == ["", "", ""]
    disk.write_json(AblationLayout(out).ablation_json, only)
    disk.write_json(AblationLayout(out).results_json, collect_results(only, out, (), shared))
    report = collect_report(out)
    assert [(arm.arm, list(arm.metrics["colours"].values)) for arm in report.arms] == [
        ("a", ["0", "1"]),
        ("b", [str(NO_SEED)]),
    ]


def test_a_seed_without_a_model_is_one_failed_run(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run_in_children", in_process)
    shutil.copytree(f"{ran[1]}/runs/half/seed-0/export", tmp_path / "m-0")
    ablation = with_models(ran, some=str(tmp_path / "m-{seed}"))
    out = copied(ran, tmp_path)
    check_ablation(ablation, out)
    failed = [o for o in run_all(ablation, out) if o.metrics is None]
    assert [(o.run.arm, o.run.seed) for o in failed] == [("some", 1)]
    assert "m-1 does not exist" in failed[0].error
    none = with_models(ran, some=str(tmp_path / "x-{seed}"))
    with pytest.raises(ValueError, match=r"arm 'some': none of its models exists, as .*x-0"):
        check_models(none, out)


def test_an_identity_is_of_the_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing-here does not exist"):
        model_identity(str(tmp_path / "nothing-here"))
    tag = tmp_path / "weights.pt"
    tag.write_bytes(b"1")
    first = model_identity(f"open_clip:ViT-B-32/{tag}")
    tag.write_bytes(b"2")
    assert model_identity(f"open_clip:ViT-B-32/{tag}") != first
    assert model_identity("open_clip:ViT-B-32/openai").files == {}


def test_an_arm_of_models_alone_has_no_trained_run(ran: Ran, tmp_path: Path) -> None:
    arms = {"a": {"model": "open_clip:ViT-B-32/x-{seed}"}, "b": {"model": "open_clip:ViT-B-32/y"}}
    models = changed(ran[0], arms=arms, baseline="a", pools={}, train={}, controls={})
    runs = all_runs(models, str(tmp_path))
    assert [(run.arm, run.seed) for run in runs] == [("a", 0), ("a", 1), ("b", NO_SEED)]
    assert runs[2].predictions("t") == f"{tmp_path}/runs/b/model/eval/t.parquet"


@pytest.mark.parametrize("pools", [{"pools": {}}, {}])
def test_what_models_saw_is_not_explained(
    ran: Ran, tmp_path: Path, pools: dict[str, object]
) -> None:
    out = copied(ran, tmp_path)
    results = collect_results(ran[0], out)
    arms = {name: {"model": f"{ran[1]}/runs/{name}/seed-{{seed}}"} for name in ("raw", "half")}
    of_models = changed(ran[0], arms=arms, controls={}, **pools)
    measurements = Measurements.read(AblationLayout(out).measurements)
    study = Study(folder=out, ablation=of_models, measurements=measurements, results=results)
    with pytest.raises(ValueError, match=r"nothing says what it saw: try `clipmill why .* half`$"):
        explain_by_gradients(study, "half", (), pairs=8, device=torch.device("cpu"))
