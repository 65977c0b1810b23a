"""benchmarks/growth.py: exponents beside a fixed cost, verdicts, the steps, and its table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import growth
from benchmarks.scaling import growth_fit, growth_page, growth_retry, growth_steps, web

COUNTS = np.array([10.0, 20.0, 40.0, 80.0])


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.2, 2.0])
@pytest.mark.parametrize("fixed", [0.0, 3.0])
def test_the_exponent_is_found_beside_a_fixed_cost(exponent: float, fixed: float) -> None:
    seconds = fixed + 0.5 * (COUNTS / 10) ** exponent
    found, cost = growth_fit.exponent_of(COUNTS, seconds)
    assert found == pytest.approx(exponent, abs=0.011)
    if exponent > 0:
        assert cost == pytest.approx(fixed, abs=0.05)


def result(seconds: np.ndarray, spread: float, *, sort: bool = False) -> dict:
    repeats = {
        int(count): [value * (1 - spread), value, value * (1 + spread)]
        for count, value in zip(COUNTS, seconds, strict=True)
    }
    return {**growth_fit.fitted(repeats), "sort": sort}


def test_a_verdict_needs_repeats_that_agree() -> None:
    steep = COUNTS**1.3
    assert growth_fit.verdict(result(steep, 0.001)) == "ABOVE"
    assert growth_fit.verdict(result(steep, 0.001, sort=True)) == "a sort"
    assert growth_fit.verdict(result(COUNTS**1.0, 0.001)) == "within"
    noisy = result(COUNTS**1.1, 0.4)
    assert noisy["exponent_range"][0] < 1.05 < noisy["exponent_range"][1]
    assert growth_fit.verdict(noisy) == "not decided"
    flat = {**noisy, "plain": 0.1}
    assert growth_fit.verdict(flat) == "a fixed cost hides it"
    # plain is below 1: a fixed cost that is fitted too large could explain the exponent
    assert growth_fit.verdict({**result(steep, 0.001), "plain": 0.9}) == "not decided"


def test_two_sizes_are_too_few() -> None:
    with pytest.raises(ValueError, match="needs three sizes, not 2"):
        growth_fit.fitted({1: [1.0], 2: [2.0]})


def test_the_table_shows_medians_and_the_verdict(tmp_path: Path) -> None:
    step = {
        "stage": "look", "what": "rows", "unit": "rows", "sort": False, "load": 1.5,
        "date": "2026-01-02", "machine": {"cores": 2, "processor": "EPYC"},
        "cpu_s": {"10": [1.0, 3.0, 2.0], "20": [4.0], "40": [8.0], "80": [16.0]},
        "exponent": 1.0, "exponent_range": [0.9, 1.1], "plain": 0.98,
    }  # fmt: skip
    text = "\n".join(growth_page.lines({"steps": {"look": step}}))
    assert (
        "| look | rows | 2 | 4 | 8 | 16 | 80 rows | 1.00 (0.90 to 1.10) | 0.98 | within |" in text
    )
    assert "2026-01-02, 2 cores, EPYC; load 1.5 to 1.5; repeats: 1, 3." in text


def test_the_sizes_of_a_table_are_in_the_order_of_numbers() -> None:
    """A results file has its keys in the order of text: 160 before 20."""
    step = {
        "stage": "s",
        "what": "rows",
        "unit": "rows",
        "plain": 1.0,
        "sort": False,
        "exponent": 1.0,
        "exponent_range": [0.9, 1.0],
        "date": "2026-01-01",
        "load": 0.0,
        "machine": {"cores": 2, "processor": "p"},
        "cpu_s": {"160": [8.0], "20": [1.0], "40": [2.0], "80": [4.0]},
    }
    text = "\n".join(growth_page.lines({"steps": {"rows": step}}))
    assert "| s | rows | 1 | 2 | 4 | 8 | 160 rows |" in text


def test_every_size_is_measured_as_often_and_a_step_that_fails_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[int] = []

    def broken(folder: Path, count: int) -> None:
        raise OSError("no room")

    steps = {
        "good": growth_steps.Step(
            stage="a", what="b", unit="c", base=4, run=lambda folder, count: runs.append(count)
        ),
        "bad": growth_steps.Step(stage="a", what="b", unit="c", base=4, run=broken),
    }
    monkeypatch.setattr(growth, "STEPS", steps)
    out = tmp_path / "growth.json"
    words = ["--steps", "bad", "good", "--repeats", "2", "--out", str(out)]
    assert growth.main(words) == 3
    assert "bad failed: OSError: no room" in capsys.readouterr().err
    assert runs == [4, 32, 16, 8, 4, 4, 8, 16, 32]
    (name, result), *others = growth_page.read_results(out)["steps"].items()
    assert (name, result["share"], result["sizes"], others) == ("good", 1.0, [4, 8, 16, 32], [])
    out.write_text(out.read_text().replace("cpu_s", "cpu"))
    assert growth.main(words) == 2
    assert f"error: {out} cannot be shown: StepResult" in capsys.readouterr().err
    assert len(runs) == 9, "a file that is damaged is refused before anything is measured"
    assert growth.main(["--steps", "x"]) == 2
    assert "there is no step 'x'" in capsys.readouterr().err
    assert growth.main(["--share", "nan"]) == 2
    assert "--share has to be a number above 0" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["row_table", "explain"])
def test_sizes_are_rows_that_are_made(name: str) -> None:
    """A shard of these pools has 10,000 rows."""
    step = growth_steps.STEPS[name]
    assert step.counts(1.0) == [200_000, 400_000, 800_000, 1_600_000]
    assert step.counts(0.125) == [20_000, 40_000, 80_000, 160_000]
    assert step.counts(0.001)[0] == 10_000


def test_the_web_of_a_step_ends_with_the_process_that_started_it() -> None:
    with web.serving(1) as (process, port):
        assert port > 0
        assert process.stdin is not None
        process.stdin.close()  # as the system does where this process is killed
        assert process.wait(60) == 0


def test_rows_that_failed_are_tried_again_and_stored(tmp_path: Path) -> None:
    step, folder = growth_retry.STEPS["retry"], tmp_path / "6"
    folder.mkdir()
    with step.around(tmp_path):
        step.prepare(folder, 6)
        step.reset(folder)
        step.run(folder, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["crawl", "score", "duplicate", "order_ranks", "seeds"])
def test_steps_run_again_and_again(name: str, tmp_path: Path) -> None:
    step = growth_steps.STEPS[name]
    count = {"crawl": 10, "order_ranks": 2, "seeds": 3}.get(name, 500)
    step.prepare(tmp_path, count)
    for _ in range(2):
        step.reset(tmp_path)
        step.run(tmp_path, count)
