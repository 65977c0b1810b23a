"""The benchmarks of reading: the late store, the first batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reading import first_batch
from clipmill.manifests import disk


@pytest.mark.slow
def test_the_first_batch_of_a_large_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    first_batch.main(["--shards", "4000", "--out", str(out)])
    results = disk.read_json(out)["results"]
    local, remote = results["local"], results["store, 50 ms a request"]
    assert local["requests"] == 0
    assert remote["requests_to_open"] < 20
    assert "local: seconds" in capsys.readouterr().out
