"""The benchmarks of reading: the late store, a point of the grid, the first batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reading import first_batch, read_modes
from manifests import disk
from tests.support import slow_store


def test_a_point_of_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_modes, "ROWS", 300)
    slow_store.register()
    tar = tmp_path / "00000.tar"
    with tar.open("wb") as f:
        f.truncate(300 * 40_000)
    point = read_modes.measure_point(f"slow://{tar}", 0.01, 5.0, 100.0)
    assert point["chosen"] == "ranged"
    assert point["right"]
    assert set(point["seconds"]) == set(point["predicted"]) == {"mask", "ranged", "materialised"}
    assert read_modes.measure_point(f"slow://{tar}", 1.0, 5.0, 800.0)["chosen"] == "mask"
    slow_store.SlowStore.reset()


@pytest.mark.slow
def test_the_first_batch_of_a_large_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    first_batch.main(["--shards", "600", "--out", str(out)])
    results = disk.read_json(out)["results"]
    local, remote = results["local"], results["store, 50 ms a request"]
    assert local["requests"] == 0
    assert remote["requests_to_open"] < 20
    assert "local: seconds" in capsys.readouterr().out
