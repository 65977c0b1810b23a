"""benchmarks/growth.py: exponents beside a fixed cost, verdicts, the steps, and its table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import growth
from benchmarks.scaling import growth_fit, growth_page, growth_steps

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
    assert (
        f"error: {out} cannot be shown: GrowthResults.steps['good'] has no 'cpu'"
        in capsys.readouterr().err
    )
    assert len(runs) == 9, "a file that is damaged is refused before anything is measured"
    assert growth.main(["--steps", "x"]) == 2
    assert "there is no step 'x'" in capsys.readouterr().err
    assert growth.main(["--share", "nan"]) == 2
    assert "--share has to be a number above 0" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["crawl", "score", "duplicate", "order_ranks", "seeds"])
def test_steps_run_again_and_again(name: str, tmp_path: Path) -> None:
    step = growth_steps.STEPS[name]
    count = {"crawl": 10, "order_ranks": 2, "seeds": 3}.get(name, 500)
    step.prepare(tmp_path, count)
    for _ in range(2):
        step.reset(tmp_path)
        step.run(tmp_path, count)
