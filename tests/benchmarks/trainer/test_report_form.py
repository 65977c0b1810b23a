from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.trainer.report_form import (
    Cell,
    Layout,
    Machine,
    Report,
    parse_layout,
    read_report,
)
from manifests import disk


def cell(**changes: object) -> Cell:
    values: dict[str, object] = {"model": "test", "dtype": "fp32", "ranks": 2, "batch": 4}
    values |= {
        "global_batch": 8,
        "data": "synthetic",
        "figures": {"samples_per_s": 2.0, "mfu": None},
    }
    return Cell(**{**values, **changes})  # type: ignore[arg-type]


def report(*cells: Cell) -> Report:
    machine = Machine(
        device="a processor",
        kind="cpu",
        gpus=0,
        gpu_memory_bytes=None,
        processor="a processor",
        cores=2,
        memory_bytes=None,
        system="Linux x86_64",
        versions={"torch": "2.8"},
    )
    return Report(
        mode="train",
        date="2026-01-31T12:00:00Z",
        command="clipmill bench",
        commit=None,
        machine=machine,
        options={"ranks": [2]},
        cells=cells,
    )


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = report(cell(rates=(1.0, 2.0)), cell(state="failed", reason="no memory", figures={}))
    disk.write_json(tmp_path / "report.json", written)
    assert read_report(tmp_path / "report.json") == written
    assert cell().label == "test, fp32, 2 ranks, batch 4, synthetic"
    with pytest.raises(FileNotFoundError):
        read_report(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON"),
        (lambda text: "[]", "is no report of clipmill bench"),
        (lambda text: '{"steps": 3}', "is no report of clipmill bench"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "reads version 1"),
        (lambda text: text.replace('"ranks": 2', '"ranks": "two"'), "it must be a whole number"),
        (lambda text: text.replace('"measured"', '"perhaps"'), "state is 'perhaps'"),
        (lambda text: text.replace("2.0", "NaN"), "figure samples_per_s is nan"),
        (lambda text: text.replace('"model": "test",', ""), "no value for 'model'"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    path = tmp_path / "report.json"
    path.write_text(change(json.dumps(disk.to_plain(report(cell())), sort_keys=True)))
    with pytest.raises(ValueError, match=r"report\.json") as error:
        read_report(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_figure_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="must be finite"):
        cell(figures={"mfu": math.inf})


def test_a_layout_is_read_as_it_is_written() -> None:
    assert parse_layout("tp2+fsdp4") == Layout(name="tp2+fsdp4", dp_shard=4, tp=2)
    assert parse_layout("dp").shards(8) == 1
    assert parse_layout("fsdp").shards(8) == 8
    assert parse_layout("fsdp").tp == 1
    for text in ("tp", "tp1", "fsdp2+fsdp4", ""):
        with pytest.raises(ValueError, match="it must be dp, fsdp, fsdpN"):
            parse_layout(text)
    with pytest.raises(ValueError, match="dp stands alone"):
        parse_layout("dp+tp2")
