from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manifests import disk
from manifests.schema import Ablation, Blend
from train import ablate
from train.ablation import runner, stats
from train.ablation.runner import Outcome, Run
from train.config import configure

TRAIN = """{model: test, samples_seen: 64, batch_size: 16, lanes: 4, threads: 0, precision: fp32, device: cpu,
        warmup: 1, lr: 1e-3}"""
MANIFEST = """
name: tiny
question: Is half as good as all?
pools: {{web: {{out: {pool}}}}}
arms: {{raw: web/all, half: web/half}}
baseline: raw
controls: {{a_a: raw}}
seeds: [0, 1]
train: {train}
evaluate:
  - {{name: colours, kind: classification, data: {data}/classes}}
  - {{name: captions, kind: retrieval, data: {data}/captions}}
primary: colours
equivalence: 0.01
jobs: 2
scales:
  debug: {{seeds: [0, 1, 2]}}
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two classes of four pictures, and four captioned ones."""
    lines = ["file,caption"]
    for i in range(8):
        pixels = np.random.default_rng(i).integers(0, 255, (32, 32, 3)).astype(np.uint8)
        folder = tmp_path / "data" / "classes" / ("red" if i < 4 else "blue")
        for place in (folder, tmp_path / "data" / "captions"):
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place / f"{i}.png")
        lines.append(f"{i}.png,picture number {i}")
    (tmp_path / "data" / "captions" / "captions.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "data"


def manifest(folder: Path, pool: str, data: Path, **replaced: str) -> str:
    text = MANIFEST.format(pool=pool, data=data, train=replaced.pop("train", TRAIN))
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "tiny.yaml").write_text(text)
    return str(folder / "tiny.yaml")


# --- what came out -------------------------------------------------------------------------------------------------


def plain(**more: object) -> Ablation:
    made: Ablation = disk.from_plain(
        Ablation,
        {
            "name": "n",
            "question": "q",
            "pools": {"web": {"out": "/p"}},
            "arms": {"raw": "web/raw", "clip30": "web/clip30", "basic": "web/basic"},
            "baseline": "raw",
            "seeds": [0, 1, 2],
            "train": {},
            "evaluate": [
                {"name": "other", "kind": "retrieval", "data": "d"},
                {"name": "objects", "kind": "classification", "data": "d"},
            ],
            "primary": "objects",
            **more,
        },
    )
    return made


def outcome(arm: str, seed: int, objects: float | None, recall: float = 0.2) -> Outcome:
    run = Run(
        arm=arm,
        seed=seed,
        pair=seed % 1000,
        blend=Blend(name=arm, pools={"web": "/p"}, views={f"web/{arm}": 1.0}),
        config=configure({}),
        out=f"/o/runs/{arm}/seed-{seed}",
    )
    if objects is None:
        return Outcome(run=run, error="its process ended with -9")
    return Outcome(
        run=run,
        metrics={"objects": {"accuracy": objects}, "other": {"recall@1": recall, "recall@5": 0.5}},
    )


def outcomes(values: Mapping[str, Sequence[float | None]]) -> list[Outcome]:
    return [
        outcome(arm, seed + (1000 if arm == "a_a" else 0), value)
        for arm, found in values.items()
        for seed, value in enumerate(found)
    ]


VALUES: dict[str, list[float]] = {
    "raw": [0.300, 0.310, 0.305],
    "clip30": [0.400, 0.412, 0.404],
    "basic": [0.309, 0.304, 0.306],
    "random_like_clip30": [0.297, 0.301, 0.303],
    "a_a": [0.304, 0.306, 0.307],
}
CONTROLS = {"random_like": ["clip30"], "a_a": "raw"}


def test_the_baseline_meets_every_arm_in_every_task_the_primary_first() -> None:
    found = ablate.concluded(plain(controls=CONTROLS), outcomes(VALUES))
    order = [(row["task"], row["metric"], row["arm"]) for row in found["comparisons"]]
    assert order == [
        (task, metric, arm)
        for task, metric in (("objects", "accuracy"), ("other", "recall@1"))
        for arm in ("clip30", "basic", "random_like_clip30")
    ]
    clip30 = found["comparisons"][0]
    values = {
        arm: dict(enumerate(VALUES[arm]))
        for arm in ("raw", "clip30", "basic", "random_like_clip30")
    }
    assert clip30 == {
        "task": "objects",
        "metric": "accuracy",
        "told": clip30["told"],
    } | disk.to_plain(stats.compare(values, "raw", 0.005)[0])
    assert [row["verdict"] for row in found["comparisons"][:3]] == [
        "better",
        *["not distinguishable"] * 2,
    ]
    assert [row["verdict"] for row in found["comparisons"][3:]] == ["practically equal"] * 3
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_controls_and_a_a_are_told_apart_from_the_arms() -> None:
    found = ablate.concluded(plain(controls=CONTROLS), outcomes(VALUES))
    assert [(c["arm"], c["baseline"], c["verdict"]) for c in found["controls"]] == [
        ("clip30", "random_like_clip30", "better")
    ]
    aa = found["aa"]
    assert (aa["arm"], aa["baseline"], aa["p_holm"]) == ("a_a", "raw", aa["p"])
    assert aa["difference"] == pytest.approx(np.mean([0.004, -0.004, 0.002]), abs=1e-12)
    assert found["verdict"].startswith("clip30 is better than raw on objects: +10.0 points [")
    assert (
        "Against a random subset of its size: clip30 is better than random_like_clip30"
        in found["verdict"]
    )
    assert "A/A, equal data under other seeds: a_a is " in found["verdict"]
    assert "believed" not in found["verdict"]


def test_an_a_a_difference_is_a_warning() -> None:
    values = {**VALUES, "a_a": [0.350, 0.361, 0.355]}
    found = ablate.concluded(plain(controls=CONTROLS), outcomes(values))
    assert found["aa"]["verdict"] == "better"
    assert (
        "As equal data differ, no verdict above should be believed without more seeds."
        in found["verdict"]
    )


def test_runs_that_ended_without_a_result_are_counted_and_told() -> None:
    values: dict[str, Sequence[float | None]] = {
        "raw": VALUES["raw"],
        "clip30": [0.400, None, 0.404],
        "basic": [0.309, None, None],
    }
    found = ablate.concluded(plain(), outcomes(values))
    assert [(row["arm"], row["n"]) for row in found["comparisons"]] == [
        ("clip30", 2),
        ("clip30", 2),
    ]
    assert [(row["arm"], row["seed"]) for row in found["failed"]] == [
        ("clip30", 1),
        ("basic", 1),
        ("basic", 2),
    ]
    assert found["verdict"].endswith(
        "3 of 9 runs ended without a result; the first is clip30 seed 1: its process ended with -9"
    )


def test_without_a_baseline_nothing_is_compared() -> None:
    found = ablate.concluded(
        plain(), outcomes({"raw": [0.3, None, None], "clip30": [0.4, 0.4, 0.4]})
    )
    assert found["comparisons"] == []
    assert found["verdict"].startswith(
        "Nothing can be compared: no arm shares two finished seeds with the baseline."
    )


def test_results_hold_every_metric_under_the_runs_own_seed() -> None:
    tiny = plain(controls={"a_a": "raw"})
    found = ablate.results(tiny, outcomes(VALUES), {"objects": 0, "other": 0})
    assert found["ablation_hash"] == disk.content_hash(tiny)
    assert found["arms"]["clip30"]["runs"]["1"] == {
        "objects": {"accuracy": 0.412},
        "other": {"recall@1": 0.2, "recall@5": 0.5},
    }
    assert list(found["arms"]["a_a"]["runs"]) == ["1000", "1001", "1002"]


# --- the command ---------------------------------------------------------------------------------------------------


def test_an_ablation_from_its_manifest_to_a_verdict(
    tiny_pool: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, out = manifest(tmp_path, tiny_pool, data), tmp_path / "out"
    assert ablate.main([path, "--out", str(out), "--json"]) == 0
    found = disk.read_json(out / "results.json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == found
    assert disk.from_plain(Ablation, disk.read_json(out / "ablation.json")).arms == {
        "raw": "web/all",
        "half": "web/half",
    }
    assert found["overlap"] == {"colours": 0, "captions": 0}
    assert set(found["arms"]["half"]["runs"]["1"]) == {"colours", "captions"}
    assert math.isfinite(found["comparisons"][0]["difference"])

    # Once more, from the resolved file: nothing is trained again, and the answer is the same.
    monkeypatch.setattr(runner, "_in_children", lambda *_: pytest.fail("a run was repeated"))
    assert ablate.main([str(out / "ablation.json"), "--out", str(out)]) == 0
    assert disk.read_json(out / "results.json") == found


def test_a_run_without_a_result_is_exit_status_3(
    tiny_pool: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_ends(
        todo: list[Run], tasks: object, jobs: int, out: str, report: Callable[[Outcome], None]
    ) -> None:
        for run in todo:
            report(Outcome(run=run, error="its process ended with -9"))

    monkeypatch.setattr(runner, "_in_children", none_ends)
    assert ablate.main([manifest(tmp_path, tiny_pool, data), "--out", str(tmp_path / "out")]) == 3
    assert len(disk.read_json(tmp_path / "out" / "results.json")["failed"]) == 6


def test_check_needs_no_pool_and_writes_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifest(tmp_path, "/nowhere/pool", data)
    assert ablate.main([path, "--out", str(tmp_path / "out"), "--check"]) == 0
    assert capsys.readouterr().out.startswith("tiny: 6 runs; nothing is wrong")
    assert (
        ablate.main([path, "--out", str(tmp_path / "out"), "--check", "--json", "--scale", "debug"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["runs"] == 9
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"train": "{modle: test}"}, "unknown training setting 'modle'; did you mean 'model'?"),
        ({"/classes": "/nothing"}, "there is no folder"),
        ({"web/half": "wob/half"}, "arm 'half' is 'wob/half'"),
        ({"primary: colours": "primary: shapes"}, "primary 'shapes' is not one of the tasks"),
        ({"equivalence: 0.01": "equivalence: 0"}, "equivalence is 0.0; it must be above 0"),
        (
            {"name: captions": "name: colours"},
            "evaluate has two tasks of one name: colours, colours",
        ),
        (
            {"jobs: 2": "scorer: {view: wob/all}"},
            "scorer.view is 'wob/all'; its pool must be of ['web']",
        ),
        (
            {"jobs: 2": "scorer: {view: web/all, train: {lr: fast}}"},
            "lr is 'fast'; it must be a number",
        ),
    ],
)
def test_what_check_finds(
    replaced: dict[str, str],
    message: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = manifest(tmp_path, "/nowhere/pool", data, **replaced)
    assert ablate.main([path, "--out", str(tmp_path / "out"), "--check"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"web/half": "web/third"}, "web/third is no view yet: run python pipeline/filter.py"),
        ({"train": TRAIN.replace("batch_size: 16", "batch_size: 64")}, "fewer rows than a batch"),
    ],
)
def test_what_the_pools_tell_is_told_before_anything_is_trained(
    replaced: dict[str, str],
    message: str,
    tiny_pool: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "run_all", lambda *_: pytest.fail("trained"))
    path = manifest(tmp_path, tiny_pool, data, **replaced)
    assert ablate.main([path, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_a_training_picture_in_the_evaluation_is_refused(
    tiny_pool: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "run_all", lambda *_: pytest.fail("trained"))
    row = (
        disk.read_parquet(disk.join(tiny_pool, "shards", "00001.parquet"))
        .slice(2, 1)
        .to_pylist()[0]
    )
    picture = disk.read_bytes(
        disk.join(tiny_pool, "shards", "00001.tar"), row["image_offset"], row["image_length"]
    )
    (data / "classes" / "red" / "9.jpg").write_bytes(picture)
    assert ablate.main([manifest(tmp_path, tiny_pool, data), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "red/9.jpg is also in the pool" in told
    assert row["key"] in told
