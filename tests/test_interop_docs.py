"""The commands and the recipe of docs/interop.md, run on a small pool."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from manifests import disk
from manifests.commits import read_commits
from pipeline import filter as filter_command
from pipeline import score as score_command
from tests.support.datacomp import write_metadata
from tests.support.small_pool import make_pool, rows

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "interop.md").read_text()
ENTRIES = {"pipeline/filter.py": filter_command, "pipeline/score.py": score_command}


def commands(folder: Path) -> list[list[str]]:
    """The shell commands of the page with `out/` in a folder of the test."""
    lines = []
    for block in re.findall(r"^```bash\n(.*?)^```", TEXT, re.M | re.S):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)[1:]
            lines.append([re.sub(r"^out/", f"{folder}/", word) for word in words])
    return lines


def run(words: list[str], folder: Path) -> None:
    words = [str(folder / word) if word == "from_datacomp.yaml" else word for word in words]
    assert ENTRIES[words[0]].main(words[1:]) == 0, words


def test_the_page_from_datacomp_to_its_subsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = make_pool(tmp_path / "pool", rows(30))
    commits = read_commits(pool)
    uids = []
    for shard in commits.shards.tolist():
        uids += disk.read_parquet(commits.sidecar(shard))["uid"].to_pylist()
    write_metadata(tmp_path / "datacomp/metadata", "0000", uids[::-1])
    pairs = [(int(uid[:16], 16), int(uid[16:], 16)) for uid in uids[:12]]
    np.save(tmp_path / "datacomp/basic.npy", np.sort(np.array(pairs, "u8,u8")))
    (recipe,) = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.M | re.S)
    (tmp_path / "from_datacomp.yaml").write_text(recipe)
    monkeypatch.setenv("DATACOMP", str(tmp_path / "datacomp"))
    lines = commands(tmp_path)
    assert [line[0] for line in lines].count("pipeline/filter.py") == 6
    made = [line for line in lines if "--recipe" in line]
    for line in [*made, *(line for line in lines if "--recipe" not in line)]:
        run(line, tmp_path)
    document = disk.read_json(tmp_path / "pool/views/basic.json")
    assert document["rows_sha256"] in capsys.readouterr().out
    table = pq.read_table(tmp_path / "basic/basic.parquet")
    assert table.num_rows == document["kept"] == len(np.load(tmp_path / "uids/basic.npy"))
    assert {"dc_clip_l14", "dc_l14_img", "caption_words"} <= set(table.column_names)
    export = json.loads((tmp_path / "basic_shards/export.json").read_text())
    assert (export["complete"], export["rows"]) == (True, document["kept"])
    listed = disk.read_json(tmp_path / "pool/views/listed.json")
    assert listed["kept"] == sum(1 for number in range(12) if number % 5 != 4)
