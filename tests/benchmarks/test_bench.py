"""benchmarks/bench.py: what is refused, drawn images, a stage that fails, DataComp's algorithm."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def test_datacomps_algorithm_keeps_what_the_rules_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    datacomp = pytest.importorskip("benchmarks.peers.datacomp")
    rng = np.random.default_rng(0)
    rows = 101
    columns = {
        "uid": [rng.bytes(16).hex() for _ in range(rows)],
        "original_width": rng.integers(50, 300, rows),
        "original_height": rng.integers(50, 300, rows),
        "image_length": rng.integers(3000, 9000, rows),
        "page_lang": rng.choice(["en", "ja"], rows),
        **{name: rng.standard_normal(rows) for name in datacomp.SCORES},
    }
    table = pa.table(columns)
    folder = tmp_path / "metadata"
    folder.mkdir()
    for number in range(2):
        pq.write_table(table.slice(60 * number, 60), folder / f"{number}.parquet")
    datacomp.main(str(folder), str(tmp_path / "subset.npy"))
    best = np.sort(columns["score_0"])[::-1][: int(rows * 0.8) + 1]
    keep = np.minimum(columns["original_width"], columns["original_height"]) >= 100
    keep &= (columns["image_length"] > 4000) & (columns["page_lang"] != "ja")
    keep &= np.isin(columns["score_0"], best)
    for name in datacomp.SCORES[1:]:
        keep &= columns[name] > -1.5
    expected = sorted(uid for uid, kept in zip(columns["uid"], keep, strict=True) if kept)
    uids = np.load(tmp_path / "subset.npy")
    assert [f"{high:016x}{low:016x}" for high, low in uids.tolist()] == expected
    assert json.loads(capsys.readouterr().out)["kept"] == len(expected) > 0
