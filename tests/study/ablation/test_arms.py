from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.records import ViewDocument, read_document
from clipmill.manifests.schema import Ablation, Blend
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.views.files import parts_of_views
from clipmill.study import arms, runner
from clipmill.study.arms import (
    check_factors,
    expand_runs,
    finished_metrics,
    stale_because,
)
from clipmill.study.runner import Outcome
from tests.support.ablations import TRAIN, Ran, changed, three_arms, tiny_ablation

RECIPE = """
name: web
source: {kind: files, paths: ["${NOT_SET}/captions.csv"]}
views:
  all: []
  long: [{words: caption_words > 3}]
scales: {debug: {views: {small: []}}}
"""


BAD_NAMES = ("a_a", "..", ".replaced", "-x", "a/b", "../x y", "a b", "")
NAME = r"arm '.*': choose .* begins with a letter or a digit and that no control has"


def test_every_arm_and_control_with_every_seed(tiny_pool: str) -> None:
    tiny = tiny_ablation(tiny_pool, "x", controls={"random_like": ["half"], "a_a": "half"})
    runs = expand_runs(tiny, "/out", built=False)
    assert [(run.arm, run.seed) for run in runs] == [
        ("raw", 0), ("raw", 1), ("half", 0), ("half", 1),
        ("random_like_half", 0), ("random_like_half", 1), ("a_a", 0), ("a_a", 1),
    ]  # fmt: skip
    assert runs[0].blend == Blend(name="raw", pools={"web": tiny_pool}, views={"web/all": 1.0})
    assert runs[6].blend == runs[2].blend
    assert runs[7].out == "/out/runs/a_a/seed-1"
    assert [run.config.seed for run in runs] == [run.seed for run in runs]


def test_each_seed_has_a_random_subset_of_its_own(tiny_pool: str) -> None:
    controls = {"random_like": ["half"], "random_seed": 7}
    runs = expand_runs(tiny_ablation(tiny_pool, "x", controls=controls), "/out", built=False)
    assert [list(run.blend.views) for run in runs[4:]] == [
        ["web/random_like_half.seed-7"],
        ["web/random_like_half.seed-8"],
    ]
    assert [run.blend_name for run in runs[3:]] == [
        "half",
        "random_like_half.seed-0",
        "random_like_half.seed-1",
    ]


def test_an_a_a_run_changes_the_order_and_nothing_else(tiny_pool: str) -> None:
    tiny = tiny_ablation(tiny_pool, "x", controls={"a_a": "raw"})
    runs = expand_runs(tiny, "/out", built=False)
    raw, a_a = runs[1], runs[5]
    assert (raw.arm, a_a.arm, raw.config.order_seed) == ("raw", "a_a", None)
    assert a_a.config == replace(raw.config, order_seed=1001)


def test_an_arm_may_be_a_blend(tmp_path: Path, tiny_pool: str) -> None:
    (tmp_path / "mixed.yaml").write_text(
        f"{{name: mixed, pools: {{p: {tiny_pool}}}, views: {{p/all: 0.7, p/half: 0.3}}, "
        "max_repeats: 9}"
    )
    mixed = {"raw": "web/all", "mixed": {"blend": str(tmp_path / "mixed.yaml")}}
    tiny = tiny_ablation(tiny_pool, "x", arms=mixed)
    runs = expand_runs(tiny, "/out")
    assert runs[2].blend.views == {"p/all": 0.7, "p/half": 0.3}
    assert runs[2].blend.max_repeats == 9
    with pytest.raises(ValueError, match="arm 'mixed' is a blend; only POOL/VIEW"):
        expand_runs(changed(tiny, controls={"random_like": ["mixed"]}), "/out")


def test_the_weights_of_an_arm_may_be_repeats(tiny_pool: str) -> None:
    views = {"web/all": 1, "web/half": 1}
    arms = {"raw": {"views": views}, "twice": {"views": views, "weights": "repeats"}}
    runs = expand_runs(tiny_ablation(tiny_pool, "x", arms=arms), "/out")
    assert [run.blend.weights for run in runs[1:3]] == ["samples", "repeats"]


def test_a_missing_view_is_named_with_the_command_that_makes_it(tiny_pool: str) -> None:
    tiny = tiny_ablation(tiny_pool, "x", controls={"random_like": ["half"], "random_seed": 5})
    message = (
        rf"no view web/random_like_half.seed-5 yet: run clipmill filter random-like "
        rf"{tiny_pool} half --seed 5 6"
    )
    with pytest.raises(ValueError, match=message):
        expand_runs(tiny, "/out")
    with pytest.raises(ValueError, match=r"no view web/none yet: run .* --recipe RECIPE"):
        expand_runs(tiny_ablation(tiny_pool, "x", arms={"raw": "web/none"}), "/out")
    built = changed(tiny, pools={"web": {"recipe": "r.yaml", "out": f"{tiny_pool}/none"}})
    message = "no view web/all yet: run clipmill build ABLATION --out /out, which builds"
    with pytest.raises(ValueError, match=message):
        expand_runs(built, "/out")


def test_every_run_has_a_part_of_its_views(tmp_path: Path, tiny_pool: str) -> None:
    blend = {"name": "b", "pools": {"p": tiny_pool}, "views": {"p/all": 0.7, "p/half": 0.3}}
    given = {**blend, "captions": {"p/half": {"caption": 1.0}}, "max_repeats": 9}
    (tmp_path / "b.json").write_text(json.dumps(given))
    arms = {"raw": "web/all", "half": "web/half", "b": {"blend": str(tmp_path / "b.json")}}
    controls = {"random_like": ["half"], "a_a": "raw", "random_seed": 5}
    tiny = tiny_ablation(tiny_pool, "x", arms=arms, controls=controls)
    runs = expand_runs(replace(tiny, part=0.25), "/out", built=False)
    views = {run.blend_name: run.blend.views for run in runs}
    assert views["half.seed-1"] == {"web/half.part-0.25.seed-6": 1.0}
    assert views["a_a.seed-0"] == views["raw.seed-0"] == {"web/all.part-0.25.seed-5": 1.0}
    like = "web/random_like_half.seed-6.part-0.25.seed-6"
    assert views["random_like_half.seed-1"] == {like: 1.0}
    mixed = runs[4].blend
    assert mixed.views == {"p/all.part-0.25.seed-5": 0.7, "p/half.part-0.25.seed-5": 0.3}
    assert (list(mixed.captions), mixed.max_repeats) == (["p/half.part-0.25.seed-5"], 9)
    whole = expand_runs(tiny, "/out", built=False)
    assert [(run.arm, run.seed, run.config) for run in runs] == [
        (run.arm, run.seed, run.config) for run in whole
    ]
    (tmp_path / "b.json").write_text(json.dumps({**blend, "views": {"p/stored": 1}, "live": True}))
    with pytest.raises(ValueError, match=r"part is 0.25, but the blend 'b' is not of views"):
        expand_runs(replace(tiny, part=0.25), "/out", built=False)
    for part in (0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match=r"part is .* must lie"):
            replace(tiny, part=part)


def test_a_part_of_a_view_as_it_was_before_is_named(tmp_path: Path, tiny_pool: str) -> None:
    pool = str(tmp_path / "pool")
    shutil.copytree(tiny_pool, pool)
    tiny = replace(tiny_ablation(pool, "x"), part=0.5)
    command = rf"run clipmill filter part {pool} all half --share 0.5 --seed 0 1"
    with pytest.raises(ValueError, match=rf"no view web/all.part-0.5.seed-0 yet: {command}"):
        expand_runs(tiny, "/out")
    parts_of_views(PoolWriter(pool), ["all", "half"], 0.5, [0, 1])
    assert expand_runs(tiny, "/out")
    path = PoolLayout(pool).view_json("all")
    document = read_document(path, ViewDocument)
    message = rf"the view web/all.part-0.5.seed-0 is of the rules or the scores as .*: {command}"
    rules = ({"name": "long", "where": "caption_words > 3"},)
    for change in ({"rules": rules}, {"scores": {"clip_score": "clip_score@0123"}}):
        disk.write_json(path, replace(document, **change), sealed=True)
        with pytest.raises(ValueError, match=message):
            expand_runs(tiny, "/out")
    assert expand_runs(replace(tiny, part=None), "/out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"arms": {"raw": "web"}},
            r"arm 'raw' is 'web'; it must be POOL/VIEW with a pool of \['web'\]",
        ),
        ({"arms": {"raw": "wob/all"}}, "arm 'raw' is 'wob/all'"),
        *(({"arms": {"raw": "web/all", name: "web/half"}}, NAME) for name in BAD_NAMES),
        ({"train": {**TRAIN, "init": "models/base"}}, "train.init is 'models/base', a relative"),
        ({"train": {**TRAIN, "init": "local-dir:models/base"}}, "a relative path; write the"),
        ({"train": {"modle": "test"}}, "unknown training setting 'modle'; did you mean 'model'"),
    ],
)
def test_mistakes_are_refused(tiny_pool: str, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand_runs(tiny_ablation(tiny_pool, "x", **change), "/out")


# --- views that a recipe will make ---------------------------------------------------------------


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "web.yaml").write_text(RECIPE)
    return str(tmp_path / "web.yaml")


def test_the_views_of_a_recipe_are_known_before_it_is_built(recipe: str, tmp_path: Path) -> None:
    assert arms.recipe_views(recipe) == ["all", "long", "small"]
    disk.write_json(tmp_path / "web.json", {"views": [{"name": "all"}, {"name": "some"}]})
    assert arms.recipe_views(str(tmp_path / "web.json")) == ["all", "some"]
    (tmp_path / "bare.yaml").write_text("name: bare\nsource: {kind: files, paths: [x]}\n")
    assert arms.recipe_views(str(tmp_path / "bare.yaml")) == ["raw"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"arms": {"raw": "web/all", "long": "web/lnog"}},
            r"arm 'long' is 'web/lnog', but there is no view 'lnog'; did you mean 'long'\? \(/none",
        ),
        ({"scorer": {"view": "web/trusted"}}, "scorer.view is 'web/trusted', but there is no view"),
    ],
)
def test_a_misspelt_view_is_found_before_anything_is_built(
    recipe: str, change: dict[str, object], message: str
) -> None:
    pools = {"web": {"recipe": recipe, "out": "/none"}}
    good = tiny_ablation("x", "x", pools=pools, arms={"raw": "web/all", "long": "web/long"})
    arms.check_views(good, "/out")
    with pytest.raises(ValueError, match=message):
        arms.check_views(changed(good, **change), "/out")


def test_views_that_the_pool_has_are_known_too(recipe: str, tiny_pool: str) -> None:
    pools = {"web": {"recipe": recipe, "out": tiny_pool}}
    arms.check_views(tiny_ablation("x", "x", pools=pools), "/out")  # half is only in the pool
    unknown = tiny_ablation("x", "x", pools={"web": {"out": "/none"}}, arms={"raw": "web/any"})
    arms.check_views(unknown, "/out")  # nothing is known of this pool yet
    with pytest.raises(ValueError, match="there is no view 'any'"):
        arms.check_views(tiny_ablation(tiny_pool, "x", arms={"raw": "web/any"}), "/out")


def test_a_blend_of_an_unbuilt_pool_is_checked_too(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "mixed.yaml").write_text(
        f"{{name: mixed, pools: {{p: {tmp_path}/pool}}, views: {{p/all: 1, p/lon: 1}}}}"
    )
    tiny = tiny_ablation(
        "x",
        "x",
        pools={"web": {"recipe": recipe, "out": f"{tmp_path}/pool"}},
        arms={"raw": "web/all", "mixed": {"blend": str(tmp_path / "mixed.yaml")}},
    )
    with pytest.raises(ValueError, match="arm 'mixed' is 'p/lon', but there is no view 'lon'"):
        arms.check_views(tiny, "/out")


# --- finished and stale runs ---------------------------------------------------------------------


def test_a_finished_run_is_known_by_its_settings_and_views(ran: Ran) -> None:
    tiny, out, outcomes = ran
    run = expand_runs(tiny, out)[0]
    assert stale_because(run) == []
    assert finished_metrics(run, tiny.evaluate) == outcomes[0].metrics
    faster = expand_runs(changed(tiny, train={**TRAIN, "lr": 0.1}), out)[0]
    assert stale_because(faster) == ["config.lr: 0.0005 -> 0.1"]
    logs_more = expand_runs(changed(tiny, train={**TRAIN, "log_every": 1}), out)[0]
    assert stale_because(logs_more) == []


def test_an_interrupted_run_is_stale_by_its_checkpoint(ran: Ran, tmp_path: Path) -> None:
    tiny, out, _ = ran
    identity = disk.read_json(disk.join(out, "runs/raw/seed-0/run.json"))["identity"]
    run = expand_runs(tiny, str(tmp_path))[0]
    assert stale_because(run) == []
    for step, lr in ((2, 0.0005), (10, 0.1)):
        state = {"identity": {**identity, "config": {**identity["config"], "lr": lr}}}
        disk.write_json(disk.join(run.out, "checkpoints", f"step-{step}", "state.json"), state)
    assert stale_because(run) == ["config.lr: 0.1 -> 0.0005"]
    assert finished_metrics(run, tiny.evaluate) is None


def test_a_stale_run_is_moved_and_never_overwritten(ran: Ran, tmp_path: Path) -> None:
    tiny, _, _ = ran
    run = expand_runs(tiny, str(tmp_path))[2]
    targets = []
    for _ in range(2):
        disk.write_json(disk.join(run.out, "run.json"), {"identity": {"config": {}, "views": {}}})
        targets.append(arms.set_aside(run, str(tmp_path)))
        assert not os.path.exists(run.out)
    assert targets[0].startswith(f"{tmp_path}/runs/.replaced/half/seed-0-")
    assert targets[1] == f"{targets[0]}-2"
    assert all(os.path.exists(disk.join(target, "run.json")) for target in targets)


def test_a_stale_run_is_moved_in_a_store_too(ran: Ran) -> None:
    tiny, _, _ = ran
    run = expand_runs(tiny, "memory://abl")[0]
    disk.write_json(disk.join(run.out, "run.json"), {"identity": {"config": {}, "views": {}}})
    target = arms.set_aside(run, "memory://abl")
    assert disk.exists(disk.join(target, "run.json"))
    assert not disk.exists(disk.join(run.out, "run.json"))


BF16, FP32 = {"precision": "bf16"}, {"precision": "fp32"}


def ablation(arms: dict[str, Any], vary: dict[str, Any] | None = None) -> Ablation:
    baseline = next(iter(arms))
    return three_arms(arms=arms, baseline=baseline, train={"preset": "micro"}, vary=vary or {})


def arm(view: str, train: dict[str, Any]) -> dict[str, Any]:
    return {"view": view, "train": train}


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
