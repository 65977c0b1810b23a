from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from manifests import disk
from tests.support.other_tars import Members, pack, picture
from train import bench
from train.data import retry

SMALL = ["--model", "test", "-b", "8", "--threads", "1", "-w", "1", "-i", "3"]


@pytest.fixture
def blend(tiny_pool: str, tmp_path: Path) -> str:
    path = tmp_path / "blend.yaml"
    path.write_text(yaml.safe_dump({"name": "b", "pools": {"p": tiny_pool}, "views": {"p/all": 1}}))
    return str(path)


def test_a_blend_is_measured_and_the_parts_add_up(
    blend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--mode", "loader", "--data", blend, *SMALL, "--json"]) == 0
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    result = json.loads(output)
    assert (result["mode"], result["samples"], result["threads"]) == ("loader", 24, 1)
    assert result["samples_per_s"] == pytest.approx(24 / result["wall_s"])
    cost = result["ms_per_sample"]
    assert set(cost) == {"read", "fetch", "decode", "resize", "collate", "other", "wait"}
    assert min(cost["decode"], cost["resize"], cost["read"], cost["collate"]) > 0
    cpu_ms = sum(value for stage, value in cost.items() if stage != "wait")
    assert cpu_ms >= 1000 * result["cpu_s"] / 24 - 1e-6


def test_a_person_reads_a_table(blend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--mode", "loader", "--data", blend, *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("blend b: 24 samples of test with 1 threads")
    assert "samples/s" in lines[1]
    assert len(lines) == 9


def test_streams_are_measured_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members: Members = []
    for row in range(8):
        members += [(f"{row}.jpg", picture(40, 32)), (f"{row}.txt", b"text")]
    pack(tmp_path / "a.tar", members)
    blend = tmp_path / "blend.yaml"
    blend.write_text(yaml.safe_dump({"name": "s", "streams": {"a": "a.tar"}}))
    assert bench.main(["--mode", "loader", "--data", str(blend), *SMALL, "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["ms_per_sample"]
    assert min(cost["fetch"], cost["decode"], cost["resize"], cost["collate"]) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-i", "0"], "error: iterations is 0; it must be at least 1"),
        (["--set", "read_mode=materialised"], "error: read_mode is materialised, but view"),
        (["--set", "lr"], "error: --set 'lr' is not KEY=VALUE"),
        (["--model", "ViT-B-23"], "error: there is no model 'ViT-B-23'; did you mean"),
        (["--data", "none.yaml"], "error: none.yaml does not exist"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    blend: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert bench.main(["--mode", "loader", "--data", blend, *SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_only_what_is_there_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--mode", "train", "--data", "x"])
    assert ended.value.code == 2
    assert "choose from" in capsys.readouterr().err


def test_a_dead_source_is_status_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "WAITS_S", ())
    blend = tmp_path / "blend.yaml"
    blend.write_text(yaml.safe_dump({"name": "s", "streams": {"a": "pipe:exit 4"}}))
    assert bench.main(["--mode", "loader", "--data", str(blend), *SMALL]) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: pipe:exit 4 of stream 'a' is broken")
    assert disk.list_names(str(tmp_path)) == ["blend.yaml"]
