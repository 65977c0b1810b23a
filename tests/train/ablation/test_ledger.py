"""The noise of neighbours is the prior of an ablation of the same settings, task and data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from manifests import disk
from manifests.schema import Ablation, Arm, TaskSpec
from train.ablation import ledger
from train.ablation.conclusions import TaskNoise
from train.ablation.ledger import NoiseEntry
from train.stats.model import LedgerEntry

DATA = {"t": "d1"}
ABLATION = Ablation(
    name="new",
    question="?",
    arms={"raw": Arm(view="web/raw")},
    baseline="raw",
    seeds=(0, 1),
    evaluate=(TaskSpec(name="t", kind="classification", data="/eval"),),
    primary="t",
    train={"preset": "micro"},
)


def noise(own_sd: float | None = 0.01, own_df: float = 8.0) -> TaskNoise:
    return TaskNoise(
        task="t",
        metric="accuracy",
        unit="share",
        own_sd=own_sd,
        own_df=own_df,
        prior=None,
        sd=own_sd,
        df=own_df,
        floor_sd=None,
        drawing_sd=None,
        power=None,
    )


def named(name: str, **changes: object) -> Ablation:
    return dataclasses.replace(ABLATION, name=name, **changes)


def leave(ablation: Ablation, out: Path, data: dict[str, str] = DATA) -> tuple[NoiseEntry, ...]:
    """noise.json of a finished ablation in a folder."""
    entries = ledger.own_entries(ablation, [noise()], data)
    ledger.write_ledger(ablation, str(out), (), entries)
    return entries


def test_neighbours_of_the_same_settings_task_and_data_are_the_prior(tmp_path: Path) -> None:
    (entry,) = leave(named("old"), tmp_path / "old")
    leave(named("longer", train={"preset": "micro", "samples_seen": 25600}), tmp_path / "longer")
    leave(named("other"), tmp_path / "other", {"t": "d2"})
    leave(named("new"), tmp_path / "the_same_name")
    (tmp_path / "a_file").write_text("x")
    prior = ledger.read_prior(ABLATION, str(tmp_path / "new"), DATA)
    assert prior == (entry,)
    assert ledger.by_task(prior) == {"t": [LedgerEntry(variance=0.01**2, df=8.0)]}


def test_seeds_are_no_settings(tmp_path: Path) -> None:
    leave(named("old", train={"preset": "micro", "seed": 7, "order_seed": 3}), tmp_path / "old")
    assert len(ledger.read_prior(ABLATION, str(tmp_path / "new"), DATA)) == 1


def test_one_key_switches_it_off(tmp_path: Path) -> None:
    leave(named("old"), tmp_path / "old")
    off = named("new", ledger=False)
    assert ledger.read_prior(off, str(tmp_path / "new"), DATA) == ()
    ledger.write_ledger(off, str(tmp_path / "new"), (), ())
    assert not (tmp_path / "new" / "ledger.json").exists()
    assert (tmp_path / "new" / "noise.json").exists()


def test_what_an_ablation_started_from_stays(tmp_path: Path) -> None:
    out = str(tmp_path / "new")
    leave(named("old"), tmp_path / "old")
    prior = ledger.read_prior(ABLATION, out, DATA)
    ledger.write_ledger(ABLATION, out, prior, ())
    leave(named("later"), tmp_path / "later")
    assert ledger.read_prior(ABLATION, out, DATA) == prior
    longer = named("new", train={"preset": "micro", "samples_seen": 25600})
    assert ledger.read_prior(longer, out, DATA) == ()  # other settings: the neighbours are asked


def test_a_damaged_neighbour_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk.write_json(tmp_path / "bad" / "noise.json", [1])
    (entry,) = leave(named("old"), tmp_path / "old")
    assert ledger.read_prior(ABLATION, str(tmp_path / "new"), DATA) == (entry,)
    assert "noise.json is no NoiseDocument" in caplog.text


def test_a_plan_takes_the_noise_of_neighbours(tmp_path: Path) -> None:
    out = str(tmp_path / "new")
    assert ledger.planned_sd(ABLATION, out) is None
    leave(named("old"), tmp_path / "old", {"t": "other data"})
    assert ledger.planned_sd(ABLATION, out) == pytest.approx(0.01, rel=0.2)
    assert ledger.planned_sd(named("new", ledger=False), out) is None


@pytest.mark.parametrize(("own_sd", "own_df"), [(None, 0.0), (0.0, 8.0), (0.01, 0.0)])
def test_runs_without_noise_leave_no_entry(own_sd: float | None, own_df: float) -> None:
    assert ledger.own_entries(ABLATION, [noise(own_sd, own_df)], DATA) == ()


def test_predictions_of_other_programs_take_no_part(tmp_path: Path) -> None:
    given = named("new", arms={"raw": Arm(predictions="/x/{seed}.parquet")}, train={})
    leave(named("old"), tmp_path / "old")
    assert ledger.read_prior(given, str(tmp_path / "new"), {"t": ""}) == ()
    assert ledger.own_entries(given, [noise()], {"t": ""}) == ()
    ledger.write_ledger(given, str(tmp_path / "new"), (), ())
    assert not (tmp_path / "new").exists()
