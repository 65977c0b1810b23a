"""The study of RegMix's runs: on tables of its form, and its result beside the page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import mixing_laws
from clipmill.verdict.wording import MINUS

ROOT = Path(__file__).resolve().parents[3]


def write(path: Path, columns: list[str], values_NC: np.ndarray) -> None:
    rows = [",".join([str(n), *map(str, row)]) for n, row in enumerate(values_NC)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(["index", *columns]), *rows]) + "\n")


def test_the_study_reads_tables_of_regmix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    for scale, mixtures, losses, runs, shift in (
        ("1m", "train_mixture_1m", "train_pile_loss_1m", 96, 2.0),
        ("1B", "test_mixture_1B", "test_pile_loss_1B", 64, 1.0),
        ("1m", "test_mixture_1m", "test_pile_loss_1m", 40, 2.0),
    ):
        shares_RS = random.dirichlet(np.ones(4), runs).round(3)
        loss_R = shift + np.exp(-np.sqrt(shares_RS) @ [1.0, 0.2, 0.5, 0.0])
        write(tmp_path / "data" / scale / f"{mixtures}.csv", list("abcd"), shares_RS)
        metrics = ["metric/the_pile_arxiv_val_loss", "metric/the_pile_pile_cc_val_loss"]
        write(tmp_path / "data" / scale / f"{losses}.csv", metrics, np.stack([loss_R, loss_R], 1))
    of_60m = tmp_path / "data" / "60m" / "test_pile_loss_60m.csv"
    write(of_60m, metrics, np.stack([loss_R, loss_R / 2], 1))
    out = tmp_path / "laws.json"
    words = [str(tmp_path / "data"), "--draws", "2", "--runs", "16", "--out", str(out)]
    assert mixing_laws.main(words) == 0
    assert "16 runs, chosen power" in capsys.readouterr().out
    document = json.loads(out.read_text())
    (power_1, chosen), (advice,) = document["rows"], document["advice"]
    assert chosen["rho 1B"][0] > 0.99
    assert chosen["regret 1B"][0] <= power_1["regret 1B"][0] < 0.5
    assert advice["gain"] >= 0, "a run that the law prefers is no worse than the best drawn one"
    assert advice["gain of the advice"] >= 0
    assert mixing_laws.main([str(tmp_path / "laws.json"), "--out", str(out)]) == 2


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", MINUS)


def test_simulated_swarms_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixing_laws, "SIMULATIONS", 3)
    cells = [("the law", "", 3, 12, 1, 0.1), ("pairs", "Student's t of 2", 3, 8, 2, 0.3)]
    cells += [("a bowl", "five times with a source", 3, 6, 1, 0.3)]
    monkeypatch.setattr(mixing_laws, "SIMULATED", cells)
    assert mixing_laws.main(["simulated", "--out", str(tmp_path / "regret.json")]) == 0
    rows = json.loads((tmp_path / "regret.json").read_text())["rows"]
    assert [(row["truth"], row["printed"]) for row in rows] == [
        ("the law", 1),
        ("pairs", 1),
        ("a bowl", 0),
    ]
    for row in rows:
        assert row["regret"] >= -1e-3
        assert row["regret_taken"] >= -1e-3
    assert rows[0]["regret"] < 0.5
    assert rows[0]["held"] in (0, 1 / 3, 2 / 3, 1)
    assert (rows[2]["held"], rows[2]["bound"], rows[2]["fits"]) == (None, None, None)


@pytest.mark.parametrize("truth", mixing_laws.TRUTHS)
def test_the_least_true_loss_is_that_of_an_average_of_mixtures(truth: str) -> None:
    random = np.random.default_rng(1)
    loss_at = mixing_laws.TRUTHS[truth](4, random)
    shares_RS = random.dirichlet(np.ones(4), 10)
    least = mixing_laws.least_of(loss_at, shares_RS, random)
    averages_CS = np.random.default_rng(2).dirichlet(np.full(10, 0.3), 20_000) @ shares_RS
    assert least <= loss_at(averages_CS).min() + 1e-3 * np.ptp(loss_at(shares_RS))
    assert least <= loss_at(shares_RS).min()
