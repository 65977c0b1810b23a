"""`clipmill why plan`, the ablation that it writes, and what `clipmill why` says of its runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from clipmill.manifests import disk, reader
from clipmill.manifests.layout import AblationLayout, PoolLayout
from clipmill.manifests.records import Threshold, ViewDocument, read_document
from clipmill.manifests.schema import Ablation
from clipmill.study import runner
from tests.support import ablations, commands
from tests.support.reports import complete_pool
from tests.train.conftest import data as data
from tests.train.conftest import tiny_pool as tiny_pool
from tests.train.conftest import write_view

pytestmark = pytest.mark.slow


@pytest.fixture
def studied(tmp_path: Path, tiny_pool: str, data: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of an ablation that ran, with a pool of its own."""
    monkeypatch.setattr(runner, "run_in_children", ablations.in_process)
    pool = str(tmp_path / "a pool")
    shutil.copytree(tiny_pool, pool)
    for number in range(3):
        path = PoolLayout(pool).sidecar(f"{number:05}")
        table = disk.read_parquet(path)
        place = table.schema.get_field_index("original_width")
        widths = pa.array(range(100, 116), table.schema.field(place).type)
        disk.write_parquet(path, table.set_column(place, "original_width", widths), {})
    write_view(pool, "half", lambda _, row: row >= 8)
    complete_pool(pool)
    path = PoolLayout(pool).view_json("half")
    threshold = Threshold(value=108, asked=0.5, share=0.5, kept=24, rows=48)
    half = read_document(path, ViewDocument)
    disk.write_json(path, replace(half, thresholds={"top(original_width, 0.5)": threshold}))
    tiny = ablations.tiny_ablation(pool, data, train={**ablations.TRAIN, "batch_size": 8})
    manifest = tmp_path / "tiny.json"
    disk.write_json(str(manifest), tiny)
    assert commands.ablate([str(manifest), "--out", str(tmp_path / "out")]) == 0
    return str(tmp_path / "out")


def test_groups_are_planned_run_and_explained(
    studied: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to, runs = tmp_path / "to here", str(tmp_path / "runs")
    words = [studied, "half", "--by", "original_width", "--to", str(to), "--groups", "5"]
    assert commands.why(["plan", *words, "--mixtures", "12", "--samples-seen", "32"]) == 0
    text = capsys.readouterr().out
    assert "tiny_why: 30 runs (28 arms, 2 a_a), 2 seeds" in text
    planned = reader.read_manifest(str(to / "why.yaml"), Ablation)
    assert planned.mixtures is not None
    folder = planned.pools["web"].out
    assert folder is not None
    documents = [
        read_document(PoolLayout(folder).view_json(name.partition("/")[2]), ViewDocument)
        for name in planned.mixtures.sources
    ]
    assert len(documents) == 5
    whole = read_document(PoolLayout(folder).view_json("all"), ViewDocument)
    half = read_document(PoolLayout(folder).view_json("half"), ViewDocument)
    assert sum(document.kept for document in documents) == whole.kept
    assert sum(document.kept for document in documents[3:]) == half.kept, "a border moved there"
    assert "original_width" in str(documents[0].rules[0].where)
    # The same again leaves everything as it is; a manifest that was edited is not overwritten.
    before = (to / "why.yaml").read_bytes()
    assert commands.why(["plan", *words, "--mixtures", "12", "--samples-seen", "32"]) == 0
    assert (to / "why.yaml").read_bytes() == before
    assert commands.why(["plan", *words, "--mixtures", "12"]) == 2
    assert "says something else" in capsys.readouterr().err
    assert commands.ablate([str(to / "why.yaml"), "--out", runs]) == 0
    assert "mix00" not in capsys.readouterr().out, "mixtures are no question"
    # The command runs again from what it has written, and nothing is trained twice.
    assert commands.ablate([AblationLayout(runs).ablation_json, "--out", runs]) == 0
    capsys.readouterr()

    confirm = str(tmp_path / "confirm.yaml")
    assert commands.why([runs, "--confirm-to", confirm]) == 0
    text = capsys.readouterr().out
    assert text.startswith("half against raw on colours by 5 groups of pairs: accuracy of 12 mix")
    assert f"to confirm: clipmill ablate {confirm} --out DIR" in text
    assert commands.why([runs, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert sum(one["base"] for one in answer["effects"]) == pytest.approx(1)
    (removed, kept) = (
        [one for one in answer["effects"] if bool(one["arm"]) is is_kept]
        for is_kept in (False, True)
    )
    assert (len(removed), len(kept)) == (3, 2)
    total = sum(one["gain"]["value"] for one in answer["effects"])
    of_arm, of_a_a = answer["arms"]
    assert of_arm["predicted"]["value"] == pytest.approx(total)
    assert (of_a_a["arm"], of_a_a["predicted"]) == ("a_a", {"value": 0.0, "low": 0.0, "high": 0.0})
    confirming = reader.read_manifest(confirm, Ablation)
    assert len(confirming.seeds) == 8
    assert min(confirming.seeds) > max(planned.seeds)
    assert commands.ablate(["check", confirm, "--out", str(tmp_path / "confirmed")]) == 0
    # Runs of the same arms elsewhere stand in the place of these.
    assert commands.why([runs, "half", "--confirmed", studied, "--json"]) == 0
    other = json.loads(capsys.readouterr().out.splitlines()[-1])
    for one, same in zip(other["effects"], answer["effects"], strict=True):
        assert {**one, "share": None} == {**same, "share": None}
    assert other["arms"][0]["measured"] != of_arm["measured"]

    assert commands.report([runs]) == 0
    page = Path(AblationLayout(runs).report).read_text()
    assert "Groups of training pairs" in page
    assert "mix00" not in page.split("Groups of training pairs")[0]


def test_what_cannot_be_divided_is_refused_in_one_line(
    studied: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ["--to", str(tmp_path / "to")]
    for words, message in (
        (
            ["half", "--by", "original_widt"],
            "has no column 'original_widt'; did you mean 'original_width'?",
        ),
        (["hal", "--by", "host"], "there is no arm 'hal'; did you mean 'half'?"),
        (["half", "--by", "rule", "original_width", "--groups", "2"], "2 groups cannot be divided"),
        (["half", "--by", "original_width", "--mixtures", "31"], "16 groups need 32 at least"),
        (["half", "--by", "status"], "all rows are in one group, 'status = success'"),
    ):
        assert commands.why(["plan", studied, *words, *to]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "to").exists()
    for words, message in (
        (["--confirmed", studied], "an ablation of no mixtures, which --confirmed is not for"),
        (["--clusters", "4"], "the ablation has no scorer"),
    ):
        assert commands.why([studied, *words]) == 2
        assert message in capsys.readouterr().err
