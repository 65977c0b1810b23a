"""Results files of public reports, rebuilt small: each ends as a careful reader would have it.

A row is a file in `tables/`: where the form comes from, the input, and the right outcome, which was
written down before the input was read.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.field.spreadsheets import xlsx
from tests.support import commands

ROWS = sorted((Path(__file__).parent / "tables").glob("*.yaml"))
VERDICTS = {"better", "worse", "higher", "lower", "practically equal"}


def write_inputs(row: dict[str, Any], folder: Path) -> None:
    for name, text in row.get("files", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, text in row.get("bytes", {}).items():  # as Python writes them
        (folder / name).write_bytes(
            text.encode("latin-1").decode("unicode_escape").encode("latin-1")
        )
    for name, target in row.get("links", {}).items():
        (folder / name).symlink_to(target)
    for name, cells in row.get("xlsx", {}).items():
        (folder / name).write_bytes(xlsx(cells, row.get("merged", {}).get(name, ())))
    for name, records in row.get("parquet", {}).items():
        pq.write_table(pa.Table.from_pylist(records), folder / name)


def differences(row: dict[str, Any], status: int, out: str, err: str) -> list[str]:
    """What of an answer is not as the row has it."""
    expect = row["expect"]
    wrong = []
    if "exit" in expect and status != expect["exit"]:
        wrong.append(f"exit {status}, not {expect['exit']}: {err.strip()[-300:]}")
    text = f"{out}\n{err}".lower()
    for part in expect.get("says", []):
        if str(part).lower() not in text:
            wrong.append(f"does not say {part!r}")
    for part in (*expect.get("never", []), "Traceback"):
        if str(part).lower() in text:
            wrong.append(f"says {part!r}")
    if status == 2:
        if err.count("\n") > 1:
            wrong.append(f"the message has {err.count(chr(10))} lines")
        return wrong
    answer = json.loads(out.strip().splitlines()[-1])
    verdicts = {one["arm"]: one["verdict"] for one in answer["result"]["comparisons"]}
    clear = {arm for arm, verdict in verdicts.items() if verdict in VERDICTS}
    if expect.get("no_verdict") and clear:
        wrong.append(f"a verdict on {sorted(clear)}")
    for arm, verdict in expect.get("verdict", {}).items():
        found = verdicts.get(str(arm), "none")
        if found != verdict:
            wrong.append(f"{arm} is {found}, not {verdict}")
    if "arms" in expect and set(answer["arms"]) != set(map(str, expect["arms"])):
        wrong.append(f"arms {answer['arms']}, not {expect['arms']}")
    for arm, runs in expect.get("runs", {}).items():
        if len(answer["values"].get(str(arm), {})) != runs:
            wrong.append(f"{len(answer['values'].get(str(arm), {}))} runs of {arm}, not {runs}")
    means = (answer["means"] or {}).get(answer["task"], {})
    for arm, score in expect.get("score", {}).items():  # runs, mean and SD of a mean
        own = means.get(str(arm), {})
        found = [own.get("n"), own.get("mean"), own.get("sd")]
        numbers, wanted = (
            [math.nan if one is None else one for one in listed] for listed in (found, score)
        )
        if numbers != pytest.approx(wanted, rel=1e-6, nan_ok=True):
            wrong.append(f"the score of {arm} is {found}, not {score}")
    many = f"average of {len(answer['tasks'])}" if answer["task"] == "average" else answer["task"]
    headline = f"{many} {answer['metric']}"
    if "headline" in expect and str(expect["headline"]).lower() not in headline.lower():
        wrong.append(f"the headline is {headline!r}, not {expect['headline']!r}")
    for part in expect.get("headline_not", []):
        if str(part).lower() in headline.lower().split():
            wrong.append(f"the headline is {headline!r}")
    facts = answer["account"]["metrics"]
    named = {one["task"] for one in facts} | {one["metric"] for one in facts}
    if bad := named & set(map(str, expect.get("not_metrics", []))):
        wrong.append(f"metrics {sorted(bad)}")
    for name, direction in expect.get("direction", {}).items():
        own = {one["higher_is_better"] for one in facts if name in (one["metric"], one["task"])}
        if own != {direction == "more"}:
            wrong.append(f"direction of {name}: {own or 'none'}, not {direction}")
    for name, unit in expect.get("unit", {}).items():
        own = {one["unit"] for one in facts if name in (one["metric"], one["task"])}
        is_none = unit == "none" and not own & {"share", "percent"}
        if own != {unit} and not (own and is_none):
            wrong.append(f"unit of {name}: {own or 'none'}, not {unit}")
    roles = {one["name"]: one["role"] for one in answer["account"]["columns"]}
    for name, role in expect.get("roles", {}).items():
        if roles.get(name) != role:
            wrong.append(f"role of {name}: {roles.get(name)}, not {role}")
    account = answer["account"]
    for part in ("rows", "cells"):
        left_out = sum(one["number"] for one in account[f"{part}_left_out"])
        if account[part] != account[f"{part}_used"] + left_out:
            wrong.append(f"{part}: {account[part]} are not {account[f'{part}_used']} + {left_out}")
    return wrong


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.stem)
def test_a_reported_file_ends_as_a_careful_reader_would_have_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = yaml.safe_load(path.read_text())
    write_inputs(row, tmp_path)
    monkeypatch.chdir(tmp_path)
    words = [*map(str, row["words"]), "--json"]
    if answer := row.get("answer"):
        status = commands.decide(words)
        question = capsys.readouterr().err
        assert status == 2, f"{row['source']}: no question was asked"
        assert question.count("\n") == 1
        missing = [
            part for part in row.get("asks", []) if str(part).lower() not in question.lower()
        ]
        assert not missing, f"{row['source']}: the question {question!r} lacks {missing}"
        words += map(str, answer)
    status = commands.decide(words)
    out, err = capsys.readouterr()
    wrong = differences(row, status, out, err)
    assert not wrong, f"{row['source']} ({row['why']}): {'; '.join(wrong)}\n{out}{err}"


def test_every_row_has_a_source_and_a_right_outcome() -> None:
    sources = set()
    for path in ROWS:
        row = yaml.safe_load(path.read_text())
        assert {"source", "kind", "form", "why", "words", "expect"} <= set(row), path.name
        assert row["expect"], path.name
        sources.add(row["source"])
    assert len(sources) >= 50
