from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests import console, disk, identity
from clipmill.manifests.layout import AblationLayout
from clipmill.manifests.schema import Ablation
from clipmill.study import runner
from clipmill.study.collect import collect_report
from clipmill.study.results import Study, collect_results
from clipmill.verdict import wording
from clipmill.verdict.conclusions import FailedRun, conclude
from clipmill.verdict.measurements import SCHEMA, Measurements
from clipmill.verdict.pages.page import render
from tests.support import commands
from tests.support.ablations import Ran, changed

pytestmark = pytest.mark.slow


def ablation_of(out: str) -> Ablation:
    made: Ablation = disk.from_plain(Ablation, disk.read_json(AblationLayout(out).ablation_json))
    return made


def predictions(out: str, run: str) -> str:
    return disk.join(out, "runs", run, "eval", "colours.parquet")


def test_results_hold_every_metric_under_the_runs_own_seed(concluded: str, ran: Ran) -> None:
    study = Study.open(concluded)
    collected, table = study.results, study.measurements
    ablation_hash = identity.ablation_hash(ablation_of(concluded))
    assert (collected.ablation_hash, table.ablation_hash) == (ablation_hash, ablation_hash)
    assert set(table.runs) == {(arm, seed) for arm in ("raw", "half", "a_a") for seed in (0, 1)}
    for outcome in ran[2]:
        arm, seed = outcome.run.arm, outcome.run.seed
        assert outcome.metrics is not None
        assert set(table.metrics("colours")) == set(outcome.metrics["colours"])
        for metric, value in outcome.metrics["colours"].items():
            measured = table.values("colours", metric)[arm][seed]
            assert measured == pytest.approx(value, abs=1e-12)
    assert (collected.tasks["colours"].samples, collected.tasks["colours"].chance) == (8, 0.5)
    assert collected.incomplete == {}
    assert collected.tasks["colours"].a_a is not None
    assert "runs/raw/seed-0/eval/colours.parquet" in table.files


def test_a_scorer_at_chance_is_said_in_the_headline_and_its_score_on_the_page(
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out, asked = folder, tmp_path / "asked.json"
    disk.write_json(asked, changed(ablation_of(out), scorer={"view": "web/all"}))

    def judged() -> dict[str, Any]:
        assert commands.ablate([str(asked), "--out", out]) == 0
        found: dict[str, Any] = disk.read_json(AblationLayout(out).results_json)
        return found

    before = judged()
    assert before["scorer"] is None  # nothing has trained it here
    export = f"{out}/scorer/export"
    shutil.copytree(f"{out}/runs/half/seed-0/export", export)
    found = judged()
    value = Study.open(out).measurements.values("colours", "accuracy")["half"][0]
    of_scorer = (found["scorer"]["value"], found["scorer"]["chance"], found["scorer"]["at_chance"])
    assert of_scorer == (value, 0.5, True)
    caution = (
        f" The scorer is at chance on colours ({100 * value:.1f} % against 50.0 %): what it "
        "filtered says little about CLIP-score filtering."
    )
    assert found["headline"] == before["headline"] + caution
    for key in ("tasks", "average"):
        assert found[key] == before[key]
    assert commands.report([out]) == 0
    fact = f"The scorer, trained on web/all, has accuracy {100 * value:.1f} % on colours"
    assert f"{fact}; chance is 50.0 %." in found["verdict"].splitlines()
    page = Path(out, "report.html").read_text()
    assert fact in page
    assert caution in page

    with monkeypatch.context() as patch:
        patch.setattr(runner, "train_and_evaluate", lambda _: pytest.fail("it is evaluated"))
        assert judged() == found
    for path in Path(export).glob("*.safetensors"):
        path.write_bytes(b"no weights")
    assert judged()["scorer"] is None
    assert "the scorer could not be evaluated on colours: " in caplog.text


def write_correct(path: str, correct: list[bool]) -> None:
    """Predictions with these outcomes, and metadata that agrees with them."""
    table, metadata = disk.read_parquet(path), disk.read_metadata(path)
    column = table.schema.get_field_index("correct")
    table = table.set_column(column, "correct", pa.array(correct))
    metadata["metrics"]["accuracy"] = float(np.mean(correct))
    disk.write_parquet(path, table, metadata)


def test_a_planted_difference_reaches_comparison_and_mcnemar(folder: str) -> None:
    for seed, extra in ((0, 0), (1, 1)):
        raw, half = [True] * extra + [False] * (8 - extra), [True] * (6 + extra) + [False] * 2
        write_correct(predictions(folder, f"raw/seed-{seed}"), raw)
        write_correct(predictions(folder, f"half/seed-{seed}"), half[:8])
    collected = collect_results(ablation_of(folder), folder)
    (row,) = collected.comparisons
    assert row.difference == pytest.approx(6 / 8, abs=1e-12)
    assert collected.tasks["colours"].mcnemar["half"] == pytest.approx(2 / 2**6, abs=1e-12)


def test_one_failed_run_leaves_a_result_with_the_gap_named(folder: str) -> None:
    os.remove(predictions(folder, "half/seed-1"))
    message = r"seed-1/eval/colours.parquet does not exist; run clipmill ablate"
    with pytest.raises(ValueError, match=message):
        collect_results(ablation_of(folder), folder)
    failed = [FailedRun(arm="half", seed=1, error="its process ended with -9")]
    collected = collect_results(ablation_of(folder), folder, failed)
    assert collected.incomplete == {"half": (1,)}
    runs = Measurements.read(AblationLayout(folder).measurements).runs
    assert [seed for arm, seed in runs if arm == "half"] == [0]
    assert "1 of 6 runs ended without a result; the first is half seed 1" in collected.verdict


def test_metrics_that_contradict_the_samples_are_refused(folder: str) -> None:
    path = predictions(folder, "raw/seed-0")
    table, metadata = disk.read_parquet(path), disk.read_metadata(path)
    metadata["metrics"]["accuracy"] = 0.99
    disk.write_parquet(path, table, metadata)
    with pytest.raises(ValueError, match=r"states accuracy 0.99, but its samples give"):
        collect_results(ablation_of(folder), folder)
    metadata["metrics"]["accuracy"] = float("nan")
    disk.write_parquet(path, table, metadata)
    with pytest.raises(ValueError, match="states accuracy nan"):
        collect_results(ablation_of(folder), folder)


def test_results_that_are_not_of_these_runs_are_refused(folder: str) -> None:
    tiny = ablation_of(folder)
    layout = AblationLayout(folder)
    disk.write_json(layout.ablation_json, changed(tiny, question="Another?"))
    message = r"results.json is of another ablation; run clipmill ablate"
    with pytest.raises(ValueError, match=message):
        Study.open(folder)
    disk.write_json(layout.ablation_json, tiny)
    path = Path(predictions(folder, "raw/seed-0"))
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ValueError, match=r"colours.parquet has changed since .*results.json; run"):
        Study.open(folder)
    path.unlink()
    with pytest.raises(ValueError, match=r"colours.parquet is missing; run clipmill"):
        Study.open(folder)
    Measurements.of(()).write(layout.measurements)
    with pytest.raises(ValueError, match=r"measurements.parquet has changed since .*results.json"):
        Study.open(folder)
    os.remove(layout.measurements)  # an older folder has none
    with pytest.raises(ValueError, match=r"measurements.parquet does not exist; run clipmill abl"):
        Study.open(folder)
    os.remove(layout.results_json)
    with pytest.raises(ValueError, match=r"results.json does not exist; run clipmill ablate"):
        Study.open(folder)


def test_results_of_a_view_that_was_chosen_anew_are_refused(folder: str, tmp_path: Path) -> None:
    tiny = ablation_of(folder)
    path = Path(folder, "runs/half/seed-0/run.json")
    record = disk.read_json(path)
    record["identity"]["views"]["web/half"] = "0" * 12
    disk.write_json(path, record)
    collected = collect_results(tiny, folder)
    disk.write_json(AblationLayout(folder).results_json, collected)
    with pytest.raises(ValueError, match=r"half/seed-0 is stale \(views.web/half: 0+ -> "):
        Study.open(folder)


def test_rounds_decide_which_given_predictions_are_read_in(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    for arm, rate in (("raw", 0.5), ("clip", 0.9)):
        for seed in range(5):
            (tmp_path / arm).mkdir(exist_ok=True)
            correct = rng.random(400) < rate
            columns = {
                "sample": np.arange(400),
                "label": labels,
                "predicted": np.where(correct, labels, 1 - labels),
                "correct": correct,
            }
            pq.write_table(pa.table(columns), tmp_path / arm / f"{seed}.parquet")
    os.remove(tmp_path / "clip" / "4.parquet")  # no round asks for it
    fields = {
        "name": "given",
        "question": "?",
        "arms": {
            "raw": {"predictions": f"{tmp_path}/raw/{{seed}}.parquet"},
            "clip": {"predictions": f"{tmp_path}/clip/{{seed}}.parquet"},
        },
        "baseline": "raw",
        "seeds": [0, 1, 2, 3, 4],
        "stop": {"at_least": 3},
        "evaluate": [{"name": "t", "kind": "classification"}],
        "primary": "t",
    }
    out = tmp_path / "out"
    disk.write_json(tmp_path / "given.json", fields)
    assert commands.ablate([str(tmp_path / "given.json"), "--out", str(out)]) == 0
    study = Study.open(str(out))
    read, table = study.results, study.measurements
    (row,) = read.comparisons
    assert (row.verdict, row.rounds) == ("better", 2)
    assert read.rounds[1].seeds == row.n < 5
    assert (read.failed, read.incomplete) == ((), {})
    assert sorted(table.values("t", "accuracy")["clip"]) == list(range(row.n))
    assert not any(path.endswith("clip/4.parquet") for path in table.files)
    page = render(collect_report(str(out)))
    assert "Seeds in rounds" in page
    assert f"{row.n} of 5" in page
    assert "decided: better" in page


def given_study(folder: Path, **fields: Any) -> str:
    """A manifest of predictions of two tasks, whose arms the samples alone hardly tell apart."""
    rng, labels = np.random.default_rng(3), np.arange(300) % 3
    for arm, rate in (("raw", 0.50), ("clip", 0.60), ("basic", 0.51)):
        for task in ("first", "second"):
            for seed in range(3):
                correct = rng.random(300) < rate + 0.01 * seed
                columns = {
                    "sample": np.arange(300),
                    "label": labels,
                    "predicted": np.where(correct, labels, (labels + 1) % 3),
                    "correct": correct,
                }
                pq.write_table(pa.table(columns), folder / f"{arm}-{task}-{seed}.parquet")
    arms = {}
    for arm in ("raw", "clip", "basic"):
        arms[arm] = {"predictions": f"{folder}/{arm}-{{task}}-{{seed}}.parquet"}
    tasks = [{"name": name, "kind": "classification"} for name in ("first", "second")]
    manifest = {
        "name": "given", "question": "?", "arms": arms, "baseline": "raw", "seeds": [0, 1, 2],
        "evaluate": tasks, "primary": "second", **fields,
    }  # fmt: skip
    disk.write_json(folder / "given.json", manifest)
    return str(folder / "given.json")


def said(
    command: Callable[[list[str]], int], words: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[str, Any]:
    """What a command prints, and its JSON."""
    capsys.readouterr()
    assert command([*words, "--json"]) in (0, console.EXIT_INCOMPLETE)
    *lines, last = capsys.readouterr().out.splitlines()
    return "\n".join(lines), json.loads(last)


def assert_alike(out: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, Any]:
    """`decide` and `report` of a folder give the same answers; what `decide` says."""
    text, decision = said(commands.decide, [out], capsys)
    page, report = said(commands.report, [out], capsys)
    results, primary = report["results"], report["ablation"]["primary"]
    assert (decision["task"], decision["result"]) == (primary, results["tasks"][primary])
    assert decision["tasks"] == results["tasks"]
    assert decision["baseline"] == report["ablation"]["baseline"]
    for arm in report["arms"]:
        if arm["arm"] in decision["values"]:
            assert decision["values"][arm["arm"]] == arm["metrics"][primary]["values"]
    assert results["headline"] in text
    assert results["headline"] in page
    for row in results["tasks"][primary]["comparisons"]:
        interval = wording.interval(row["difference"], row["low"], row["high"], row["unit"])
        for shown in (text, page):
            assert re.search(rf"{row['arm']} .*{re.escape(interval)} +{row['verdict']}", shown)
    return text, decision


@pytest.mark.parametrize("fields", [{}, {"stop": {"at_least": 2}, "equivalence": 0.02}])
def test_decide_and_the_report_of_a_study_are_one_verdict(
    fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert commands.ablate([given_study(tmp_path, **fields), "--out", out]) == 0
    text, decision = assert_alike(out, capsys)
    assert ("Seeds were run in rounds" in text) == ("stop" in fields)
    if not fields:
        # the samples decide how much seeds can show: a table without them would say less
        of_table = said(
            commands.decide, [f"{out}/measurements.parquet", "--task", "second"], capsys
        )
        assert of_table[1]["result"]["floor_sd"] is None
        assert decision["result"]["floor_sd"] > 0
    _, first = said(commands.decide, [out, "--task", "first", "--effect", "0.1"], capsys)
    report = disk.read_json(AblationLayout(out).report_json)
    assert first["result"] == report["results"]["tasks"]["first"]
    assert fields or first["seeds_for_effect"] > 1
    text, other = said(commands.decide, [out, "--baseline", "clip"], capsys)
    assert other["baseline"] == "clip"
    assert "the study asked another question" in text


def test_the_table_alone_gives_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert commands.ablate([given_study(tmp_path), "--out", out]) == 0
    study, path = Study.open(out), AblationLayout(out).measurements
    whole = Measurements.read(path, SCHEMA.names)
    assert conclude(study.ablation, whole, runs=9).tasks == study.results.tasks
    assert whole.scores("first", "accuracy").values == study.measurements.values(
        "first", "accuracy"
    )
    (row, *_) = whole.table.to_pylist()
    assert (row["test_samples"], row["chance"], len(row["per_sample"][0])) == (300, 1 / 3, 300)
    assert study.measurements.files[row["source"]] == row["sha256"]
    assert os.path.getsize(path) < 20_000  # a bit for right or wrong of a sample


def test_decide_on_a_study_with_controls_is_its_report_and_refuses_what_has_changed(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, decision = assert_alike(folder, capsys)
    assert decision["result"]["a_a"] is not None
    assert "A/A, equal data in another order: a_a is " in text
    path = Path(predictions(folder, "raw/seed-0"))
    path.write_bytes(path.read_bytes() + b" ")
    assert commands.decide([folder]) == 2
    assert "colours.parquet has changed since " in capsys.readouterr().err
