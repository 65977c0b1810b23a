"""What a report says of a manifest that was changed after the first run."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import clipmill
from clipmill.manifests import disk
from clipmill.manifests.layout import AblationLayout, RunLayout
from clipmill.manifests.schema import Ablation, TaskSpec
from clipmill.study import changes, collect, history
from clipmill.study.arms import GivenRun, Run, all_runs, expand_runs
from clipmill.study.collect import collect_report
from clipmill.study.results import FileHashes, Study, collect_results
from clipmill.verdict.conclusions import FailedRun
from clipmill.verdict.pages.page import render
from clipmill.verdict.pages.schema import Contract, Report
from tests.support import commands
from tests.support.ablations import changed, measured, two_classes
from tests.support.reports import empty_report, sample_report


def test_the_report_shows_what_results_json_says(concluded: str) -> None:
    report = collect_report(concluded)
    study = Study.open(concluded)
    assert report.results == study.results
    raw, half, a_a = report.arms
    assert (raw.role, half.role, a_a.role) == ("baseline", "arm", "a_a")
    assert (raw.rows, half.rows, raw.drawn) == (48, 24, 64)
    assert half.repeats == pytest.approx(64 / 24)
    assert (raw.share, half.share) == (1.0, 0.5)
    for seed, value in half.metrics["colours"].values.items():
        assert value == study.measurements.values("colours", "accuracy")["half"][int(seed)]
    assert [(curve.arm, curve.seed) for curve in report.curves][:2] == [("raw", 0), ("raw", 1)]
    assert "- clip: clip_score >= top(clip_score, 0.5)" in report.settings["Rules of the views"]
    assert report.settings["Hashes of the views' rows"] == f"web/half: {'ab' * 32}\n"
    assert {"results.json", "measurements.parquet"} < dict(report.provenance.files).keys()


def test_an_arm_without_one_of_its_runs_is_shown_as_incomplete(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = AblationLayout(folder)
    ablation = ablation_of(folder)
    os.remove(Path(folder, "runs/half/seed-1/eval/colours.parquet"))
    os.remove(Path(folder, "runs/half/seed-1/run.json"))
    failed = [FailedRun(arm="half", seed=1, error="RuntimeError: it <broke>")]
    disk.write_json(layout.results_json, collect_results(ablation, folder, failed))
    assert commands.report([folder]) == 3
    assert "(without seed 1)" in capsys.readouterr().out
    report = disk.from_plain(Report, disk.read_json(layout.report_json))
    assert report.gaps == (
        "half seed 1 ended without a result: RuntimeError: it <broke>",
        "half is incomplete: without seed 1",
    )
    half = report.arms[1]
    assert (half.missing, report.difference("half")) == ((1,), None)
    assert half.metrics["colours"].sd is None
    page = Path(layout.report).read_text()
    assert "half seed 1 ended without a result: RuntimeError: it &lt;broke&gt;" in page
    assert "(without seed 1)" in page


def test_results_are_reported_where_the_pool_is_gone(folder: str) -> None:
    layout = AblationLayout(folder)
    whole = collect_report(folder)
    ablation = disk.read_json(layout.ablation_json)
    pool = Path(ablation["pools"]["web"]["out"])
    aside = pool.with_name("aside")
    pool.rename(aside)
    try:
        report = collect_report(folder)
    finally:
        aside.rename(pool)
    assert report.results == whole.results
    assert not report.funnels
    assert "the view web/half is gone, so the data of half are not shown" in report.gaps
    assert "the view web/half is gone" in render(report)


def test_an_arm_without_any_run_is_shown_too(folder: str) -> None:
    layout = AblationLayout(folder)
    ablation = ablation_of(folder)
    failed = [FailedRun(arm="half", seed=seed, error="x") for seed in (0, 1)]
    disk.write_json(layout.results_json, collect_results(ablation, folder, failed))
    half = collect_report(folder).arms[1]
    assert (half.rows, half.drawn, half.repeats) == (24, None, None)
    assert half.metrics["colours"].mean is None


def test_the_command_writes_both_files_and_names_them(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.report([folder]) == 0
    printed = capsys.readouterr().out
    layout = AblationLayout(folder)
    assert printed.endswith(f"report: {layout.report}\n")
    first = Path(layout.report_json).read_bytes()
    assert commands.report([folder, "--date", "2026-01-31", "--markdown"]) == 0
    assert Path(layout.report_json).read_bytes() == first, "the JSON has no date"
    page, summary = Path(layout.report).read_bytes(), Path(layout.report_markdown).read_bytes()
    assert b"Written on 2026-01-31." in page
    assert commands.report([folder, "--date", "2026-01-31", "--markdown"]) == 0
    assert Path(layout.report).read_bytes() == page
    assert Path(layout.report_markdown).read_bytes() == summary


def test_results_written_again_have_the_same_bytes(folder: str) -> None:
    layout = AblationLayout(folder)
    ablation = ablation_of(folder)
    before = Path(layout.results_json).read_bytes()
    disk.write_json(layout.results_json, collect_results(ablation, folder))
    assert Path(layout.results_json).read_bytes() == before


def test_an_ablation_compared_with_itself_has_no_change(
    concluded: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "compared.html"
    assert commands.report([concluded, concluded, "--page", str(page)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(clipmill.compare(concluded, Path(concluded)).text)
    assert "Every verdict is the same." in printed
    assert "No difference changed by more than its noise." in printed
    assert "half" in page.read_text()


def with_history(folder: str, to: Path, data_hash: str) -> str:
    """A copy of the folder, whose history ends with a verdict on data of this hash."""
    shutil.copytree(folder, to)
    table = measured(ablation_of(folder), {"colours": {"raw": [0.5]}})
    history.record_look(ablation_of(folder), str(to), table, complete=True)
    (look,) = history.looks(str(to))
    look.design["tasks"]["colours"]["data_hash"] = data_hash
    begun = dataclasses.replace(look, state="begun", design={"tasks": {}})
    lines = [json.dumps(disk.to_plain(one)) for one in (look, begun)]
    Path(AblationLayout(str(to)).history).write_text("\n".join(lines) + "\n")
    return str(to)


def test_test_sets_of_other_content_are_not_compared(
    concluded: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = with_history(concluded, tmp_path / "one", "a" * 64)
    other = with_history(concluded, tmp_path / "other", "b" * 64)
    assert commands.report([one, other]) == 2
    assert capsys.readouterr().err == (
        "error: 'tiny' and 'tiny' are not comparable: the test set of 'colours' has the hash "
        "aaaaaaaaaaaa in the one and bbbbbbbbbbbb in the other\n"
    )
    same = with_history(concluded, tmp_path / "same", "a" * 64)
    assert commands.report([one, same]) == 0
    assert "could not be compared" not in capsys.readouterr().out


def test_runs_know_the_content_of_their_test_set_where_no_history_does(
    folder: str, concluded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not history.looks(folder)
    runs = [run for run in all_runs(ablation_of(folder), folder) if isinstance(run, Run)]
    known = collect_report(concluded).test_data["colours"]
    for data_hash, status, message in (
        ("b" * 64, 2, f"has the hash {known[:12]} in the one and bbbbbbbbbbbb in the other"),
        ("", 0, "Whether colours has the same content in both could not be compared: no hash of"),
    ):
        for run in runs:
            path = run.predictions("colours")
            table, metadata = disk.read_parquet(path), disk.read_metadata(path)
            disk.write_parquet(path, table, {**metadata, "data_hash": data_hash})
        results_json = AblationLayout(folder).results_json
        disk.write_json(results_json, collect_results(ablation_of(folder), folder))
        assert commands.report([concluded, folder]) == status
        assert message in "".join(capsys.readouterr())


def test_a_folder_without_results_is_a_mistake(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.remove(AblationLayout(folder).results_json)
    assert commands.report([folder]) == 2
    assert "results.json does not exist; run clipmill ablate" in capsys.readouterr().err
    assert commands.report([str(tmp_path)]) == 2
    assert "has no ablation.json: give the --out of" in capsys.readouterr().err


@pytest.mark.parametrize("report", [sample_report(), empty_report()], ids=["full", "empty"])
def test_a_report_survives_its_json(report: Report) -> None:
    plain = json.loads(json.dumps(disk.to_plain(report), allow_nan=False))
    assert disk.from_plain(Report, plain) == report


def ablation_of(folder: str) -> Ablation:
    made: Ablation = disk.from_plain(Ablation, disk.read_json(AblationLayout(folder).ablation_json))
    return made


def runs_of(folder: str) -> list[Run]:
    return list(expand_runs(ablation_of(folder), folder, built=False))


def contract_of(folder: str) -> Contract:
    contract = collect.collect_contract(collect.read_records(runs_of(folder)))
    assert contract is not None
    return contract


def test_equal_settings_are_one_value_for_all_runs(concluded: str) -> None:
    contract = contract_of(concluded)
    assert contract.runs == 6
    assert contract.config_hash is not None
    rows = {row.setting: row for row in contract.rows}
    assert rows["samples seen of a run"].value == "64"
    assert rows["model"].main
    assert not rows["eps"].main
    assert "seed" not in rows
    assert set(contract.blends) == {"raw", "half", "a_a"}


def test_a_setting_that_differs_names_its_arms(folder: str) -> None:
    path = RunLayout(next(run for run in runs_of(folder) if run.arm == "half").out).run_json
    record = disk.read_json(path)
    for settings in (record["config"], record["identity"]["config"]):
        settings["eps"] = 1e-3
    disk.write_json(path, record)
    contract = contract_of(folder)
    assert contract.config_hash is None
    (row,) = (row for row in contract.rows if row.setting == "eps")
    assert row.value is None
    assert row.main, "what differs is never folded"
    assert row.by_arm["half"].startswith("0.001, ")


def test_initial_weights_are_known_by_content_and_versions_are_shared(folder: str) -> None:
    """The same path may have other weights; and seeds may differ where the arms do not."""
    for run in runs_of(folder):
        path = RunLayout(run.out).run_json
        record = disk.read_json(path)
        record["config"]["init"] = "/models/base"
        record["identity"]["initial_weights"] = ("a" if run.arm == "raw" else "b") * 64
        record["identity"]["pixels"] = 1 + run.seed
        disk.write_json(path, record)
    contract = contract_of(folder)
    assert contract.config_hash is None
    rows = {row.setting: row for row in contract.rows}
    assert rows["initial weights"].by_arm["raw"] == "/models/base (sha256 aaaaaaaaaaaa)"
    assert rows["initial weights"].by_arm["half"] == "/models/base (sha256 bbbbbbbbbbbb)"
    assert rows["version of the order"].value == "2"
    assert rows["version of the pixels"].value is None
    assert rows["version of the pixels"].by_arm["half"] == "1, 2"


@pytest.mark.slow
def test_a_run_has_its_settings_and_the_interval_of_its_samples(concluded: str) -> None:
    ablation = ablation_of(concluded)
    measurements = Study.open(concluded).measurements
    rows = collect.run_rows(runs_of(concluded), measurements, ablation.evaluate[0])
    assert len(rows) == 6
    first = rows[0]
    assert (first.arm, first.model, first.batch_size, first.samples_seen) == ("raw", "test", 16, 64)
    assert first.low is not None
    assert first.high is not None
    assert first.low < first.value < first.high
    assert first.high - first.low > 0.3, "eight samples say little"


@pytest.mark.slow
def test_device_seconds_are_the_mean_of_the_runs_times_their_processes(folder: str) -> None:
    for seed, seconds, world in ((0, 10.0, 2), (1, 4.0, 1)):
        path = Path(folder, f"runs/half/seed-{seed}/run.json")
        record = json.loads(path.read_text())
        record["seconds"]["whole"], record["world"] = seconds, world
        disk.write_json(str(path), record)
    assert collect.device_seconds(collect.read_records(runs_of(folder))["half"]) == 12.0


@pytest.mark.slow
def test_curves_are_read_where_there_is_a_log(folder: str) -> None:
    Path(folder, "runs/raw/seed-0/log.jsonl").unlink()
    curves = collect.read_curves(runs_of(folder), FileHashes(folder=folder))
    assert (curves[0].arm, curves[0].seed) == ("raw", 1)
    assert len(curves) == 5


def test_costs_that_are_no_numbers_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    assert collect.costs_of(str(path)) == ()
    path.write_text('{"fetch": 1.5}')
    assert collect.costs_of(str(path)) == (("fetch", 1.5),)
    path.write_text('{"fetch": "long"}')
    with pytest.raises(ValueError, match="long"):
        collect.costs_of(str(path))


TASK = TaskSpec(name="t", kind="classification", data="")
LABELS = ["cat", "cat", "dog", "dog"]


def given(folder: Path, arm: str, seed: int, predicted: list[str], **columns: object) -> GivenRun:
    """A run with these predictions of four samples."""
    path = str(folder / f"{arm}-{seed}.parquet")
    correct = [label == answer for label, answer in zip(LABELS, predicted, strict=True)]
    plain = {
        "sample": ["a", "b", "c", "d"],
        "label": LABELS,
        "predicted": predicted,
        "correct": correct,
    }
    disk.write_parquet(path, pa.table({**plain, **columns}), {})
    return GivenRun(arm=arm, seed=seed, files={"t": path})


def two_arms(folder: Path) -> list[GivenRun]:
    return [
        given(folder, "raw", 0, ["dog", "dog", "dog", "cat"]),
        given(folder, "raw", 1, ["dog", "cat", "dog", "cat"]),
        given(folder, "half", 0, ["cat", "cat", "cat", "cat"]),
        given(folder, "half", 1, ["cat", "dog", "cat", "cat"]),
    ]


def test_classes_confusions_and_samples_by_hand(tmp_path: Path) -> None:
    (change,) = changes.collect_changes(two_arms(tmp_path), TASK, "raw")
    assert (change.arm, change.parts, change.gained, change.lost) == ("half", {"class": 2}, 1, 1)
    cat, dog = change.changes
    assert (cat.name, cat.samples, cat.baseline, cat.arm) == ("cat", 2, 0.25, 0.75)
    assert (dog.name, dog.baseline, dog.arm) == ("dog", 0.5, 0.0)
    pairs = {(one.label, one.predicted): (one.baseline, one.arm) for one in change.confusions}
    assert pairs == {("cat", "dog"): (1.5, 0.5), ("dog", "cat"): (1.0, 2.0)}
    gained, lost = change.shown
    assert (gained.sample, gained.arm_answer, gained.baseline_answer) == ("a", "cat", "dog")
    assert (gained.arm_right, gained.baseline_right, gained.image) == (1.0, 0.0, None)
    assert (lost.sample, lost.arm_right, lost.baseline_right) == ("c", 0.0, 1.0)


def test_rows_in_another_order_are_put_in_order(tmp_path: Path) -> None:
    runs = two_arms(tmp_path)
    path = runs[2].files["t"]
    disk.write_parquet(path, disk.read_parquet(path).take([3, 1, 0, 2]), {})
    (change,) = changes.collect_changes(runs, TASK, "raw")
    assert [shown.sample for shown in change.shown] == ["a", "c"]


def test_a_dozen_samples_at_most_is_drawn_with_a_fixed_seed(tmp_path: Path) -> None:
    wide = pa.table(
        {
            "sample": [str(i) for i in range(100)],
            "label": ["x"] * 100,
            "predicted": ["x"] * 50 + ["y"] * 50,
            "correct": [True] * 50 + [False] * 50,
        }
    )
    runs = []
    for arm, order in (("raw", 1), ("half", -1)):
        path = str(tmp_path / f"{arm}.parquet")
        columns = {name: wide[name].to_pylist()[::order] for name in ("predicted", "correct")}
        for name, values in columns.items():
            wide = wide.set_column(wide.schema.get_field_index(name), name, pa.array(values))
        disk.write_parquet(path, wide, {})
        runs.append(GivenRun(arm=arm, seed=0, files={"t": path}))
    (change,) = changes.collect_changes(runs, TASK, "raw")
    assert (change.gained, change.lost, len(change.shown)) == (50, 50, 12)
    assert changes.collect_changes(runs, TASK, "raw") == (change,)


def test_images_come_from_the_data_of_the_task(tmp_path: Path) -> None:
    task = TaskSpec(name="t", kind="classification", data=two_classes(tmp_path / "data"))
    names = pa.array(["red/0.png", "red/1.png", "blue/0.png", "gone.png"])
    predicted = {"raw": ["dog", "dog", "dog", "cat"], "half": ["cat", "cat", "cat", "dog"]}
    runs = [given(tmp_path, arm, 0, answers, sample=names) for arm, answers in predicted.items()]
    (change,) = changes.collect_changes(runs, task, "raw")
    images = {shown.sample: shown.image for shown in change.shown}
    assert images.pop("gone.png") is None
    assert all(str(image).startswith("data:image/png;base64,") for image in images.values())
    elsewhere = TaskSpec(name="t", kind="classification", data=str(tmp_path / "nothing"))
    (change,) = changes.collect_changes(runs, elsewhere, "raw")
    assert {shown.image for shown in change.shown} == {None}


@pytest.mark.parametrize("column", ["sample", "label"])
def test_runs_of_other_samples_or_labels_have_no_changes(tmp_path: Path, column: str) -> None:
    runs = two_arms(tmp_path)
    other = {column: ["a", "b", "c", "x"] if column == "sample" else ["dog"] * 4}
    runs[3] = given(tmp_path, "half", 1, ["dog"] * 4, **other)
    assert changes.collect_changes(runs, TASK, "raw") == ()


def test_a_task_without_labels_or_a_baseline_has_none(tmp_path: Path) -> None:
    runs = two_arms(tmp_path)
    assert changes.collect_changes(runs, TASK, "nothing") == ()
    assert changes.collect_changes([], TASK, "raw") == ()
    path = runs[0].files["t"]
    disk.write_parquet(path, disk.read_parquet(path).drop_columns(["label"]), {})
    assert changes.collect_changes(runs, TASK, "raw") == ()


FIXED = "The metric that decides is in bold; it was fixed before the runs."


def page_after(ablation: Ablation, folder: str) -> str:
    """The page after both commands, in a folder whose runs are finished."""
    disk.write_json(f"{folder}/asked.json", ablation)
    assert commands.ablate([f"{folder}/asked.json", "--out", folder]) == 0
    assert commands.report([folder, "--markdown"]) == 0
    return Path(AblationLayout(folder).report).read_text()


@pytest.mark.slow
def test_a_metric_that_was_changed_after_the_runs_is_said(
    folder: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiny = ablation_of(folder)
    page = page_after(tiny, folder)
    assert "<b>accuracy</b>" in page
    assert FIXED not in page, "the runs were there before the history: nothing is known"

    (tmp_path / "new").mkdir()
    history.record_begin(tiny, str(tmp_path / "new"))  # before any run
    shutil.copy(tmp_path / "new" / "history.jsonl", folder)
    page = page_after(tiny, folder)
    assert FIXED in page
    assert "the design was changed" not in page

    task = {**disk.to_plain(tiny.evaluate[0]), "metric": "logprob"}
    capsys.readouterr()
    page = page_after(changed(tiny, evaluate=[task]), folder)
    (change,) = history.changes(history.looks(folder))
    sentence = (
        f"the design was changed on {change.date[:10]} at {change.date[11:19]} UTC, after 6 runs "
        "had ended: tasks.colours.metric: accuracy -> logprob"
    )
    assert FIXED not in page
    for text in (capsys.readouterr().out, caplog.text, Path(folder, "report.md").read_text()):
        assert sentence in text
    assert sentence.replace(">", "&gt;") in page


@pytest.mark.slow
def test_a_null_web_that_was_not_run_is_missing(folder: str) -> None:
    tiny = ablation_of(folder)
    asked = changed(tiny, controls={"a_a": "raw", "null_web": f"{folder}/null.yaml"})
    disk.write_json(f"{folder}/asked.json", asked)
    assert commands.ablate([f"{folder}/asked.json", "--out", folder]) == 0
    assert commands.report([folder]) == 3
    (gap,) = disk.read_json(f"{folder}/report.json")["gaps"]
    assert gap.startswith("controls.null_web was not run: ")
    assert gap.endswith("; clipmill build ABLATION runs it")
