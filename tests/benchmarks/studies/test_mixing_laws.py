"""The study of RegMix's runs: on tables of its form, and its result beside the page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import mixing_laws

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
    ):
        shares_RS = random.dirichlet(np.ones(4), runs).round(3)
        loss_R = shift + np.exp(-np.sqrt(shares_RS) @ [1.0, 0.2, 0.5, 0.0])
        write(tmp_path / "data" / scale / f"{mixtures}.csv", list("abcd"), shares_RS)
        metrics = ["metric/the_pile_arxiv_val_loss", "metric/the_pile_pile_cc_val_loss"]
        write(tmp_path / "data" / scale / f"{losses}.csv", metrics, np.stack([loss_R, loss_R], 1))
    out = tmp_path / "laws.json"
    words = [str(tmp_path / "data"), "--draws", "2", "--runs", "16", "--out", str(out)]
    assert mixing_laws.main(words) == 0
    assert "16 runs, chosen power" in capsys.readouterr().out
    (power_1, chosen) = json.loads(out.read_text())["rows"]
    assert chosen["rho 1B"][0] > 0.99
    assert chosen["regret 1B"][0] <= power_1["regret 1B"][0] < 0.5
    assert mixing_laws.main([str(tmp_path / "laws.json"), "--out", str(out)]) == 2


def test_the_page_has_the_figures_of_the_result() -> None:
    page = (ROOT / "docs" / "blend_search.md").read_text()
    rows = json.loads(mixing_laws.RESULT.read_text())["rows"]
    for power_1, chosen in zip(rows[::2], rows[1::2], strict=True):
        cells = [str(chosen["runs"])]
        for measure in ("regret 1B", "rho 1B"):
            cells += [f"{row[measure][0]:.2f} ± {row[measure][1]:.2f}" for row in (power_1, chosen)]
        assert f"| {' | '.join(cells)} |" in page
    for row in json.loads(mixing_laws.SIMULATED_RESULT.read_text())["rows"]:
        cells = [
            str(row["sources"]),
            str(row["runs"]),
            str(row["noise"]),
            f"{100 * row['held']:.0f} %",
        ]
        cells += [f"{row['regret']:.2f}", f"{row['bound']:.2f}"]
        assert f"| {' | '.join(cells)} |" in page


def test_simulated_swarms_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixing_laws, "SIMULATIONS", 3)
    monkeypatch.setattr(mixing_laws, "SIMULATED", ((3, 12, 0.1),))
    assert mixing_laws.main(["simulated", "--out", str(tmp_path / "regret.json")]) == 0
    (row,) = json.loads((tmp_path / "regret.json").read_text())["rows"]
    assert 0 <= row["regret"] < 0.5
    assert row["held"] in (0, 1 / 3, 2 / 3, 1)
