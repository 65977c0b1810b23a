"""What a report says of a manifest that was changed after the first run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from manifests import disk
from manifests.layout import AblationLayout
from manifests.schema import Ablation
from tests.support import commands
from tests.support.ablations import changed
from train.ablation import history

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
    tiny: Ablation = disk.from_plain(Ablation, disk.read_json(f"{folder}/ablation.json"))
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
    tiny: Ablation = disk.from_plain(Ablation, disk.read_json(f"{folder}/ablation.json"))
    asked = changed(tiny, controls={"a_a": "raw", "null_web": f"{folder}/null.yaml"})
    disk.write_json(f"{folder}/asked.json", asked)
    assert commands.ablate([f"{folder}/asked.json", "--out", folder]) == 0
    assert commands.report([folder]) == 3
    (gap,) = disk.read_json(f"{folder}/report.json")["gaps"]
    assert gap.startswith("controls.null_web was not run: ")
    assert gap.endswith("; clipmill build ABLATION runs it")
