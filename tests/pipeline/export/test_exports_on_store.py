"""Exports to an object store: the same bytes as on disk, whole or not there, finished after a
kill, and never of two commands at once.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from clipmill.manifests import disk
from clipmill.pipeline import export
from clipmill.pipeline.export import export_view
from tests.support.exported import exported_pool
from tests.support.s3_server import BUCKET, FaultyProxy, s3_server, s3_variables

pytest.importorskip("localbucket")
ROOT = Path(__file__).resolve().parents[3]
COMMAND = """
    import os, sys
    from pathlib import Path
    Path(sys.argv[3]).write_text(str(os.getpid()))
    from clipmill.pipeline.export import export_view
    export_view(sys.argv[1], "wide", sys.argv[2])
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> str:
    return exported_pool(tmp_path_factory.mktemp("exported") / "pool")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyProxy]:
    folder = tmp_path_factory.mktemp("store")
    with s3_server(folder) as url, pytest.MonkeyPatch.context() as patch:
        proxy = FaultyProxy(url)
        for name, value in s3_variables(proxy.url).items():
            patch.setenv(name, value)
        proxy.pid_file = folder / "pid"
        yield proxy
        proxy.close()


def names(folder: str) -> list[str]:
    return disk.list_names(folder)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["killed/x.parquet", "killed_tars"])
def test_a_killed_process_leaves_no_half_file_and_the_command_finishes_it(
    pool: str, proxy: FaultyProxy, tmp_path: Path, target: str
) -> None:
    to = f"s3://{BUCKET}/{target}"
    words = [sys.executable, "-c", textwrap.dedent(COMMAND), pool, to, str(proxy.pid_file)]
    export_view(pool, "wide", str(tmp_path / target))
    uploads = 0
    for request in range(3, 30, 13):
        proxy.fail_at(request, "kill_before")
        ended = subprocess.run(words, cwd=ROOT, capture_output=True, check=False)
        if ended.returncode == 0:
            break
        uploads += 1
        for path in (tmp_path / target).glob("*.tar"):
            if path.name in names(to):
                assert disk.read_bytes(f"{to}/{path.name}") == path.read_bytes()
    assert uploads
    proxy.fail_at(0, "503")
    export_view(pool, "wide", to)
    if target == "killed_tars":
        assert disk.read_json(f"{to}/export.json")["complete"] is True
        for path in (tmp_path / target).iterdir():
            assert disk.read_bytes(f"{to}/{path.name}") == path.read_bytes()
    else:
        assert disk.read_bytes(to) == (tmp_path / target).read_bytes()


def test_of_two_exports_into_one_folder_the_earlier_ends(
    pool: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = f"s3://{BUCKET}/two"
    write = export.write_shard_folder

    def with_another(*given: object) -> object:
        monkeypatch.setattr(export, "write_shard_folder", write)
        export_view(pool, "wide", to)  # begins later and ends first
        return write(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(export, "write_shard_folder", with_another)
    with pytest.raises(ValueError, match=r"two began after this one; wait until it has ended"):
        export_view(pool, "wide", to)
    assert disk.read_json(f"{to}/export.json")["complete"] is True
