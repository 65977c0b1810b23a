from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from manifests import disk
from manifests.layout import AblationLayout
from manifests.schema import Ablation
from tests.support import commands
from train.ablation.conclusions import FailedRun
from train.reporting import collect
from train.reporting.collect import collect_report
from train.reporting.page import render
from train.reporting.results import collect_results, read_results
from train.reporting.schema import Report


def test_the_report_shows_what_results_json_says(concluded: str) -> None:
    report = collect_report(concluded)
    ablation = disk.from_plain(Ablation, disk.read_json(AblationLayout(concluded).ablation_json))
    results = read_results(ablation, concluded)
    assert report.results == results
    raw, half, a_a = report.arms
    assert (raw.role, half.role, a_a.role) == ("baseline", "arm", "a_a")
    assert (raw.rows, half.rows, raw.drawn) == (48, 24, 64)
    assert half.repeats == pytest.approx(64 / 24)
    assert (raw.share, half.share) == (1.0, 0.5)
    for seed, value in half.metrics["colours"].values.items():
        assert value == results.runs["half"][seed]["colours"]["accuracy"]
    assert [(curve.arm, curve.seed) for curve in report.curves][:2] == [("raw", 0), ("raw", 1)]
    assert "- clip: clip_score >= top(clip_score, 0.5)" in report.settings["Rules of the views"]
    assert dict(report.provenance.files)["results.json"]


def test_the_hash_of_a_views_rows_is_shown_where_it_is_known(concluded: str) -> None:
    ablation = disk.from_plain(Ablation, disk.read_json(AblationLayout(concluded).ablation_json))
    title, views = "Hashes of the views' rows", []
    for name, rows_sha256 in (("new", "ab" * 32), ("old", None)):
        document = SimpleNamespace(rules=(), thresholds={}, rows_sha256=rows_sha256)
        views.append(SimpleNamespace(pool="web", view=name, document=document))
    settings = collect._settings(ablation, cast(Any, views))
    assert settings[title] == f"web/new: {'ab' * 32}\n"
    assert title not in collect._settings(ablation, cast(Any, views[1:]))


def test_an_arm_without_one_of_its_runs_is_shown_as_incomplete(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = AblationLayout(folder)
    ablation = disk.from_plain(Ablation, disk.read_json(layout.ablation_json))
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
    ablation = disk.from_plain(Ablation, disk.read_json(layout.ablation_json))
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
    ablation = disk.from_plain(Ablation, disk.read_json(layout.ablation_json))
    before = Path(layout.results_json).read_bytes()
    disk.write_json(layout.results_json, collect_results(ablation, folder))
    assert Path(layout.results_json).read_bytes() == before


def test_an_ablation_compared_with_itself_has_no_change(
    concluded: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "compared.html"
    assert commands.report([concluded, concluded, "--page", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "Every verdict is the same." in printed
    assert "No difference changed by more than its noise." in printed
    assert "half" in page.read_text()


def test_a_folder_without_results_is_a_mistake(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.remove(AblationLayout(folder).results_json)
    assert commands.report([folder]) == 2
    assert "results.json does not exist; run clipmill ablate" in capsys.readouterr().err
    assert commands.report([str(tmp_path)]) == 2
    assert "has no ablation.json: give the --out of" in capsys.readouterr().err
