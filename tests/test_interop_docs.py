"""The commands of docs/interop.md and docs/look.md, run on a small pool."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from manifests import disk
from tests.support import commands, pages
from tests.support.small_pool import make_pool, rows

RECIPE = """
name: r
source: {kind: shards, paths: [shards]}
views: {basic: [{first: "original_width < 300"}]}
"""


def test_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_pool(tmp_path / "out/pool", rows(30))
    Path("r.yaml").write_text(RECIPE)
    assert commands.filter_pool(["out/pool", "--recipe", "r.yaml"]) == 0
    lines = pages.runnable("docs/interop.md")
    assert len(lines) == 5
    lines += pages.runnable("docs/look.md")
    assert len(lines) == 7
    for line in lines:
        assert pages.run_command(line) == 0, line
    assert Path("basic.html").stat().st_size > 10_000
    document = disk.read_json("out/pool/views/basic.json")
    assert document["rows_sha256"] in capsys.readouterr().out
    table = pq.read_table("out/basic/basic.parquet")
    assert table.num_rows == document["kept"] == len(np.load("out/uids/basic.npy")) == 16
    assert Path("out/urls/basic.csv").read_text().count("https://") >= 16
    export = json.loads(Path("out/basic_shards/export.json").read_text())
    assert (export["complete"], export["rows"]) == (True, document["kept"])
