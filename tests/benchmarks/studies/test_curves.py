"""The parts of benchmarks/studies/curves.py that compute: log lines, windows, intervals,
tars; nothing is trained.
"""

from __future__ import annotations

import io
import json
import math
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.studies import curve_numbers, curves
from clipmill.train import settings


def line(step: int, loss: float, *, of: int = 3, batch: int = 128) -> str:
    """As open_clip_train 3.3 writes it."""
    return (
        f"2026-01-02,03:04:05 | INFO | Train Epoch: 0 [{step * batch:>4}/{of * batch} "
        f"({100 * step / of:.0f}%)] "
        "Data (t): 0.320 Batch (t): 1.767, 72.4469/s, 72.4469/s/gpu "
        f"LR: {step * 5e-5:5f} Logit Scale: 14.286 Contrastive_loss: {loss:#.5g} (4.8000) Loss: "
        f"{loss:#.5g} (4.8000)"
    )


def test_the_log_gives_the_losses_of_steps_and_not_their_means() -> None:
    text = "\n".join(
        ["2026-01-02,03:04:05 | INFO | Start epoch 0", line(1, 4.9286), line(2, 4.5), line(3, 12.0)]
    )
    log = curve_numbers.parse_log(text, 128)
    assert log == {
        "loss": [4.9286, 4.5, 12.0],
        "lr": [5e-5, 1e-4, 1.5e-4],
        "factor": [14.286] * 3,
    }


@pytest.mark.parametrize("steps", [[1, 3], [2, 3], [1, 1]])
def test_a_step_that_the_log_lacks_or_has_twice_is_an_error(steps: list[int]) -> None:
    with pytest.raises(ValueError, match="goes on with step"):
        curve_numbers.parse_log("\n".join(line(step, 4.5) for step in steps), 128)


def test_windows_are_means_of_whole_windows() -> None:
    assert curve_numbers.window_means([1, 3, 5, 9], 2) == [2, 7]
    for losses in ([1.0, 2.0, 3.0], []):
        with pytest.raises(ValueError, match="whole number of windows"):
            curve_numbers.window_means(losses, 2)


def test_a_comparison_gives_the_difference_beside_the_spread_of_seeds() -> None:
    ours = [[4.0, 3.0], [4.2, 3.0], [4.4, 3.0]]
    theirs = [[4.1, 2.0], [4.3, 2.0], [4.5, 2.0]]
    comparison = curve_numbers.compare(ours, theirs)
    assert comparison["difference"] == pytest.approx([-0.1, 1.0])
    assert comparison["mean_absolute_difference"] == pytest.approx(0.55)
    assert comparison["mean_signed_difference"] == pytest.approx(0.45)
    assert comparison["seed_sd"] == pytest.approx(
        0.1
    )  # 0.2 in the first window, none in the second
    assert comparison["ratio"] == pytest.approx(5.5)
    assert (comparison["windows"], comparison["windows_outside_welch"]) == (2, 1)
    assert comparison["ratio_if_equal"] == pytest.approx(0.6515, abs=1e-4)
    with pytest.raises(ValueError, match="at least 2"):
        curve_numbers.compare(ours[:1], theirs)


def test_the_interval_is_scipys() -> None:
    random = np.random.default_rng(0)
    ours, theirs = random.normal(4, 0.1, (3, 5)), random.normal(4, 0.3, (4, 5))
    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert curve_numbers.welch_half(ours, theirs) == pytest.approx(
        (interval.high - interval.low) / 2
    )


def test_equal_programs_differ_by_the_share_of_the_spread_that_is_said() -> None:
    random = np.random.default_rng(1)
    ours, theirs = random.normal(size=(2, 3, 20_000))
    comparison = curve_numbers.compare(ours.tolist(), theirs.tolist())
    # The SD of 3 seeds, pooled over two programs, is 0.94 of the true one in the mean: a little
    # above the share.
    assert comparison["ratio"] == pytest.approx(comparison["ratio_if_equal"] / 0.94, rel=0.02)
    assert comparison["windows_outside_welch"] / comparison["windows"] < 0.06


def tar_of(path: Path, names: list[str]) -> None:
    with tarfile.open(path, "w") as file:
        for name in names:
            file.addfile(tarfile.TarInfo(name), io.BytesIO())


def test_rows_are_counted_in_tars_and_must_be_those_of_the_view(tmp_path: Path) -> None:
    for folder in ("shards", "views"):
        (tmp_path / folder).mkdir()
    tar_of(
        tmp_path / "shards" / "00000.tar",
        ["a.jpg", "a.txt", "a.json", "b.png", "b.txt", "c.jpg", "d.txt"],
    )
    (tmp_path / "views" / "raw.json").write_text(json.dumps({"shards": {"00000": 2}}))
    assert curves.count_rows(tmp_path) == 2
    (tmp_path / "views" / "raw.json").write_text(json.dumps({"shards": {"00000": 3}}))
    with pytest.raises(ValueError, match="the view raw keeps"):
        curves.count_rows(tmp_path)
    (tmp_path / "shards" / "00000.tar").unlink()
    with pytest.raises(ValueError, match="holds no tars"):
        curves.count_rows(tmp_path)
    with pytest.raises(ValueError, match="needs a view 'raw'"):
        curves.count_rows(tmp_path / "views")


def test_the_peer_is_told_our_settings(tmp_path: Path) -> None:
    config = settings("micro", [*curves.COMMON, "samples_seen=256000", "seed=2"])
    arguments = curves.peer_arguments(config, [Path("a.tar"), Path("b.tar")], tmp_path)
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    assert options["--train-data"] == "a.tar::b.tar"
    assert (
        int(options["--train-num-samples"]) // int(options["--batch-size"]) == 2000 == config.steps
    )
    assert (options["--lr"], options["--eps"], options["--wd"], options["--seed"]) == (
        "0.001",
        "1e-06",
        "0.2",
        "2",
    )
    assert "--grad-clip-norm" not in options
    clipped = curves.peer_arguments(settings("micro", ["grad_clip=1.5"]), [], tmp_path)
    assert clipped[clipped.index("--grad-clip-norm") + 1] == "1.5"


def test_no_spread_and_no_difference_is_no_ratio() -> None:
    comparison = curve_numbers.compare([[1.0], [1.0]], [[1.0], [1.0]])
    assert (comparison["ratio"], comparison["windows_outside_welch"]) == (0.0, 0)
    assert math.isinf(curve_numbers.compare([[1.0], [1.0]], [[2.0], [2.0]])["ratio"])
