"""The benchmarks of reading: the late store, the first batch."""

from __future__ import annotations

import time
from pathlib import Path

import fsspec
import pytest

from benchmarks.reading import first_batch, loader
from manifests import disk


def test_the_late_store_is_an_s3_store_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs")
    folder = tmp_path / "pools" / "a b"
    (folder / "inner").mkdir(parents=True)
    (folder / "x&y.bin").write_bytes(bytes(range(200)))
    (folder / "inner" / "z").write_bytes(b"")
    with loader.late_store(tmp_path) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        url = "s3://pools/a b/x&y.bin"
        assert disk.read_bytes(url) == bytes(range(200))
        started = time.perf_counter()
        assert disk.read_bytes(url, 10, 5) == bytes(range(10, 15))
        assert time.perf_counter() - started >= loader.WAIT_MS / 1e3
        assert disk.read_bytes(url, 190, 50) == bytes(range(190, 200))
        assert disk.list_names("s3://pools/a b") == ["inner", "x&y.bin"]
        assert disk.exists(url)
        assert not disk.exists("s3://pools/a b/nothing")
        with pytest.raises(FileNotFoundError):
            disk.read_bytes("s3://pools/a b/nothing")
        with disk.open_file(url) as file:
            file.seek(100)
            assert file.read(3) == bytes([100, 101, 102])
        fsspec.get_filesystem_class("s3").clear_instance_cache()


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
