from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from manifests import disk
from manifests.schema import Ablation, Blend
from tests.support.ablations import TRAIN, changed, tiny_ablation
from train.ablation import arms
from train.ablation.arms import expand_runs, finished_metrics, stale_because
from train.ablation.runner import Outcome

pytestmark = pytest.mark.slow

RECIPE = """
name: web
source: {kind: files, paths: ["${NOT_SET}/captions.csv"]}
views:
  all: []
  long: [{words: caption_words > 3}]
scales: {debug: {views: {small: []}}}
"""


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


def test_pools_without_a_folder_are_in_the_ablations_folder() -> None:
    tiny = tiny_ablation("x", "x", pools={"web": {"recipe": "web.yaml"}})
    assert expand_runs(tiny, "/out", built=False)[0].blend.pools == {"web": "/out/pools/web"}


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"arms": {"raw": "web"}},
            r"arm 'raw' is 'web'; it must be POOL/VIEW with a pool of \['web'\]",
        ),
        ({"arms": {"raw": "wob/all"}}, "arm 'raw' is 'wob/all'"),
        ({"arms": {"raw": "web/all", "a_a": "web/half"}}, "arm 'a_a': choose a name"),
        ({"arms": {"raw": "web/all", "../x": "web/half"}}, "arm '../x': choose a name"),
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


def test_a_finished_run_is_known_by_its_settings_and_views(
    ran: tuple[Ablation, str, list[Outcome]],
) -> None:
    tiny, out, outcomes = ran
    run = expand_runs(tiny, out)[0]
    assert stale_because(run) == []
    assert finished_metrics(run, tiny.evaluate) == outcomes[0].metrics
    faster = expand_runs(changed(tiny, train={**TRAIN, "lr": 0.1}), out)[0]
    assert stale_because(faster) == ["config.lr: 0.0005 -> 0.1"]
    logs_more = expand_runs(changed(tiny, train={**TRAIN, "log_every": 1}), out)[0]
    assert stale_because(logs_more) == []


def test_a_view_that_was_chosen_anew_makes_its_runs_stale(
    ran: tuple[Ablation, str, list[Outcome]], make_pool: Callable[..., str], tmp_path: Path
) -> None:
    _, out, _ = ran
    other = make_pool(tmp_path / "pool", rows_per_shard=20)
    run = expand_runs(tiny_ablation(other, "x", arms={"raw": "web/all"}), out)[0]
    (reason,) = stale_because(run)
    assert reason.startswith("views.web/all: ")


def test_an_interrupted_run_is_stale_by_its_checkpoint(
    ran: tuple[Ablation, str, list[Outcome]], tmp_path: Path
) -> None:
    tiny, out, _ = ran
    identity = disk.read_json(disk.join(out, "runs/raw/seed-0/run.json"))["identity"]
    run = expand_runs(tiny, str(tmp_path))[0]
    assert stale_because(run) == []
    for step, lr in ((2, 0.0005), (10, 0.1)):
        state = {"identity": {**identity, "config": {**identity["config"], "lr": lr}}}
        disk.write_json(disk.join(run.out, "checkpoints", f"step-{step}", "state.json"), state)
    assert stale_because(run) == ["config.lr: 0.1 -> 0.0005"]
    assert finished_metrics(run, tiny.evaluate) is None


def test_a_stale_run_is_moved_and_never_overwritten(
    ran: tuple[Ablation, str, list[Outcome]], tmp_path: Path
) -> None:
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


def test_a_stale_run_is_moved_in_a_store_too(ran: tuple[Ablation, str, list[Outcome]]) -> None:
    tiny, _, _ = ran
    run = expand_runs(tiny, "memory://abl")[0]
    disk.write_json(disk.join(run.out, "run.json"), {"identity": {"config": {}, "views": {}}})
    target = arms.set_aside(run, "memory://abl")
    assert disk.exists(disk.join(target, "run.json"))
    assert not disk.exists(disk.join(run.out, "run.json"))


def test_missing_seeds_go_by_arm(tiny_pool: str) -> None:
    tiny = tiny_ablation(tiny_pool, "x", controls={"a_a": "raw"})
    runs = expand_runs(tiny, "/out")
    finished = {"raw": {0: 0.1, 1: 0.1}, "half": {1: 0.1}}
    assert arms.missing_seeds(runs, finished) == {"half": (0,), "a_a": (0, 1)}


@pytest.mark.parametrize("init", ["models/base", "local-dir:models/base"])
def test_a_relative_init_is_refused(init):
    message = f"train.init is '{init}', a relative path; write the model's abs"
    with pytest.raises(ValueError, match=message):
        arms._refuse_relative_init(init)
    for accepted in (None, "/models/base", "local-dir:/models/base", "open_clip:ViT-B-32/openai"):
        arms._refuse_relative_init(accepted)


@pytest.mark.parametrize("name", ["..", ".replaced", "-x", "a/b", "../x y", "a b", ""])
def test_an_arm_name_is_a_plain_folder_name(name: str, tiny_pool: str) -> None:
    tiny = tiny_ablation(tiny_pool, "x", arms={"raw": "web/all", name: "web/half"})
    with pytest.raises(ValueError, match="begins with a letter or a digit and that no control has"):
        expand_runs(tiny, "/out")
