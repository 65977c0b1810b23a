from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manifests import disk
from manifests.schema import Ablation, Blend
from train.ablation import runner
from train.ablation.runner import Child, Outcome, Run

ROOT = Path(__file__).resolve().parents[3]
TRAIN = {
    "model": "test", "samples_seen": 64, "batch_size": 16, "lanes": 4, "threads": 0, "precision": "fp32",
    "device": "cpu", "warmup": 1,
}  # fmt: skip


def ablation(out: str, data: str, **more: object) -> Ablation:
    made: Ablation = disk.from_plain(
        Ablation,
        {
            "name": "tiny",
            "question": "Is half as good as all?",
            "pools": {"web": {"out": out}},
            "arms": {"raw": "web/all", "half": "web/half"},
            "baseline": "raw",
            "seeds": [0, 1],
            "train": TRAIN,
            "evaluate": [{"name": "colours", "kind": "classification", "data": data}],
            "primary": "colours",
            **more,
        },
    )
    return made


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two classes of four pictures."""
    folder = tmp_path_factory.mktemp("eval")
    for c, name in enumerate(("red", "blue")):
        (folder / name).mkdir()
        for i in range(4):
            pixels = (
                np.random.default_rng(10 * c + i).integers(0, 255, (32, 32, 3)).astype(np.uint8)
            )
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return str(folder)


@pytest.fixture(scope="module")
def ran(
    tmp_path_factory: pytest.TempPathFactory, tiny_pool: str, data: str
) -> tuple[Ablation, str, list[Outcome]]:
    """An ablation of three arms (one is A/A) and two seeds, run in two children."""
    out = str(tmp_path_factory.mktemp("ran"))
    tiny = ablation(tiny_pool, data, controls={"a_a": "raw"}, jobs=2)
    return tiny, out, runner.run_all(tiny, out)


# --- which runs there are ------------------------------------------------------------------------------------------


def test_every_arm_and_control_with_every_seed(tiny_pool: str) -> None:
    tiny = ablation(tiny_pool, "x", controls={"random_like": ["half"], "a_a": "half"})
    runs = runner.expand(tiny, "/out", built=False)
    assert [(run.arm, run.seed, run.pair) for run in runs] == [
        ("raw", 0, 0), ("raw", 1, 1), ("half", 0, 0), ("half", 1, 1),
        ("random_like_half", 0, 0), ("random_like_half", 1, 1), ("a_a", 1000, 0), ("a_a", 1001, 1),
    ]  # fmt: skip
    assert runs[0].blend == Blend(name="raw", pools={"web": tiny_pool}, views={"web/all": 1.0})
    assert runs[4].blend.views == {"web/random_like_half": 1.0}
    assert runs[6].blend == runs[2].blend
    assert runs[7].out == "/out/runs/a_a/seed-1001"
    assert [run.config.seed for run in runs] == [run.seed for run in runs]


def test_pools_without_a_place_lie_in_the_ablations_folder() -> None:
    tiny = ablation("x", "x", pools={"web": {"recipe": "web.yaml"}})
    assert runner.expand(tiny, "/out", built=False)[0].blend.pools == {"web": "/out/pools/web"}


def test_an_arm_may_be_a_blend(tmp_path: Path, tiny_pool: str) -> None:
    (tmp_path / "mixed.yaml").write_text(
        f"{{name: mixed, pools: {{p: {tiny_pool}}}, views: {{p/all: 0.7, p/half: 0.3}}, max_repeats: 9}}"
    )
    mixed = {"raw": "web/all", "mixed": str(tmp_path / "mixed.yaml")}
    runs = runner.expand(ablation(tiny_pool, "x", arms=mixed), "/out")
    assert runs[2].blend.views == {"p/all": 0.7, "p/half": 0.3}
    assert runs[2].blend.max_repeats == 9
    with pytest.raises(ValueError, match="arm 'mixed' is a blend; only POOL/VIEW"):
        runner.expand(
            ablation(tiny_pool, "x", arms=mixed, controls={"random_like": ["mixed"]}), "/out"
        )


def test_a_missing_view_is_named_with_the_command_that_makes_it(tiny_pool: str) -> None:
    tiny = ablation(tiny_pool, "x", controls={"random_like": ["half"], "random_seed": 5})
    wanted = rf"web/random_like_half is no view yet: run python pipeline/filter.py {tiny_pool} --random-like half --seed 5"
    with pytest.raises(ValueError, match=wanted):
        runner.expand(tiny, "/out")
    with pytest.raises(ValueError, match=r"web/none is no view yet: run .* --recipe RECIPE"):
        runner.expand(ablation(tiny_pool, "x", arms={"raw": "web/none"}), "/out")


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
        (
            {"seeds": [0, 1000], "controls": {"a_a": "raw"}},
            r"seeds are \[0, 1000\]: A/A runs take each \+ 1000",
        ),
    ],
)
def test_mistakes_are_told(tiny_pool: str, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        runner.expand(ablation(tiny_pool, "x", **change), "/out")


# --- all runs ------------------------------------------------------------------------------------------------------


def test_every_run_ends_with_metrics_in_its_folder(
    ran: tuple[Ablation, str, list[Outcome]],
) -> None:
    tiny, out, outcomes = ran
    assert [o.run for o in outcomes] == list(runner.expand(tiny, out))
    for outcome in outcomes:
        assert outcome.error == ""
        assert not outcome.reused
        record = disk.read_json(disk.join(outcome.run.out, "run.json"))
        assert record["blend_hash"] == disk.content_hash(outcome.run.blend)
        assert record["seed"] == outcome.run.seed
        stored = disk.read_metadata(disk.join(outcome.run.out, "eval", "colours.parquet"))[
            "metrics"
        ]
        assert outcome.metrics == {"colours": stored}
    assert (
        disk.from_plain(Blend, disk.read_json(disk.join(out, "blends", "half.json")))
        == outcomes[2].run.blend
    )


def test_the_same_seed_is_the_same_run_and_another_is_not(
    ran: tuple[Ablation, str, list[Outcome]],
) -> None:
    _, out, _ = ran
    weights = {
        name: Path(out, "runs", name, "export", "open_clip_model.safetensors").read_bytes()
        for name in ("raw/seed-0", "raw/seed-1", "a_a/seed-1000")
    }
    assert len(set(weights.values())) == 3


def no_work(*_: object) -> None:
    pytest.fail("a run was repeated")


def test_what_is_done_is_not_done_again(
    ran: tuple[Ablation, str, list[Outcome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, out, outcomes = ran
    monkeypatch.setattr(runner, "_in_children", no_work)
    again = runner.run_all(tiny, out)
    assert all(o.reused for o in again)
    assert [o.metrics for o in again] == [o.metrics for o in outcomes]


def test_only_what_is_missing_is_done(
    ran: tuple[Ablation, str, list[Outcome]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, out, _ = ran
    shutil.copytree(out, tmp_path / "copy")
    copy = str(tmp_path / "copy")
    os.remove(disk.join(copy, "runs/raw/seed-1/run.json"))
    os.remove(disk.join(copy, "runs/half/seed-0/eval/colours.parquet"))
    asked = []

    def pretend(
        todo: list[Run], tasks: object, jobs: int, out: str, report: Callable[[Outcome], None]
    ) -> None:
        for run in todo:
            asked.append((run.arm, run.seed))
            report(Outcome(run=run, error="not now"))

    monkeypatch.setattr(runner, "_in_children", pretend)
    outcomes = runner.run_all(tiny, copy)
    assert asked == [("raw", 1), ("half", 0)]
    assert [o.error for o in outcomes] == ["", "not now", "not now", "", "", ""]


def test_a_folder_with_another_run_is_refused(
    ran: tuple[Ablation, str, list[Outcome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, out, _ = ran
    monkeypatch.setattr(runner, "_in_children", no_work)
    faster = disk.from_plain(Ablation, {**disk.to_plain(tiny), "train": {**TRAIN, "lr": 0.1}})
    with pytest.raises(
        ValueError, match=r"seed-0 holds another run \(config\.lr: 0\.0005 -> 0\.1\): remove it"
    ):
        runner.run_all(faster, out)
    logs_more = disk.from_plain(
        Ablation, {**disk.to_plain(tiny), "train": {**TRAIN, "log_every": 1}}
    )
    assert all(o.reused for o in runner.run_all(logs_more, out))


def test_a_view_built_anew_is_noticed(
    ran: tuple[Ablation, str, list[Outcome]], make_pool: Callable[..., str], tmp_path: Path
) -> None:
    _, out, _ = ran
    other = make_pool(tmp_path / "pool", rows_per_shard=20)
    tiny = ablation(other, "x", arms={"raw": "web/all"})
    with pytest.raises(ValueError, match=r"holds another run \(views\.web/all: "):
        runner.done(runner.expand(tiny, out)[0], tiny.evaluate)


# --- children ------------------------------------------------------------------------------------------------------


def child(tmp_path: Path) -> Child:
    return Child(runner.environment(0, 1, 0), tmp_path / "log")


def test_a_child_that_dies_answers_with_that_and_is_started_again(
    tmp_path: Path, tiny_pool: str, data: str
) -> None:
    worker = child(tmp_path)
    try:
        answer = worker.ask(
            {"threads": "none"}
        )  # no such request: the process ends with a traceback
        assert answer == {"error": f"its process ended with 1 (see {tmp_path / 'log'})"}
        assert "set_num_threads expects an int" in (tmp_path / "log").read_text()
        tiny = ablation(tiny_pool, data)
        run = runner.expand(tiny, str(tmp_path))[0]
        assert "metrics" in worker.ask(runner.request(run, tiny.evaluate, 1))
    finally:
        worker.end()


def test_a_child_ends_with_its_parent() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "train.ablation.child"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT,
    )  # fmt: skip
    process.communicate(timeout=60)  # closes its stdin
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("answers", "tried", "error"),
    [
        ([{"error": "died"}, {"metrics": {"colours": {"accuracy": 0.5}}}], 2, ""),
        ([{"error": "died"}, {"error": "died again"}], 2, "died again"),
        ([{"error": "ValueError: fewer rows", "refused": True}], 1, "ValueError: fewer rows"),
    ],
)
def test_a_run_is_tried_once_more_unless_a_person_must_act(
    answers: list[dict[str, object]],
    tried: int,
    error: str,
    tiny_pool: str,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def ask(self: Child, request: dict[str, object]) -> dict[str, object]:
        asked.append(request)
        return answers[len(asked) - 1]

    monkeypatch.setattr(Child, "ask", ask)
    tiny = ablation(tiny_pool, data)
    ended: list[Outcome] = []
    runner._in_children(
        runner.expand(tiny, str(tmp_path))[:1], tiny.evaluate, 2, str(tmp_path), ended.append
    )
    assert len(asked) == tried
    assert json.loads(json.dumps(asked[0])) == asked[0]
    assert [o.error for o in ended] == [error]


def test_what_work_raises_is_an_answer(tiny_pool: str, data: str, tmp_path: Path) -> None:
    tiny = ablation(tiny_pool, data, train={**TRAIN, "batch_size": 64})
    answer = runner.work(runner.request(runner.expand(tiny, str(tmp_path))[0], tiny.evaluate, 1))
    assert answer["refused"]
    assert answer["error"].startswith("ValueError: fewer rows than a batch")


def test_children_share_the_processors_and_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert runner.environment(1, 3, 0)["OMP_NUM_THREADS"] == "2"
    assert "CUDA_VISIBLE_DEVICES" not in runner.environment(1, 3, 1)
    assert [runner.environment(n, 3, 2)["CUDA_VISIBLE_DEVICES"] for n in range(3)] == [
        "0",
        "1",
        "0",
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert runner.environment(1, 3, 2)["CUDA_VISIBLE_DEVICES"] == "6"
    assert runner.threads_of(20) == 1


# --- Ray -----------------------------------------------------------------------------------------------------------


@pytest.mark.ray
def test_on_ray_the_same_runs_give_the_same_numbers(
    ran: tuple[Ablation, str, list[Outcome]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, outcomes = ran
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    pool, data = outcomes[0].run.blend.pools["web"], ran[0].evaluate[0].data
    tiny = ablation(pool, data, arms={"raw": "web/all"}, jobs=2)
    on_ray = runner.run_all(tiny, str(tmp_path), engine="ray")
    assert [o.error for o in on_ray] == ["", ""]
    assert [o.metrics for o in on_ray] == [o.metrics for o in outcomes[:2]]
