"""Every key of the JSON of a decision is documented, and no other one."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from clipmill.manifests import disk
from clipmill.verdict.decide.exports import COLUMNS, FAILURES
from clipmill.verdict.decide.verdicts import Question, decide
from clipmill.verdict.tables.reader import read_results
from clipmill.verdict.tables.roles import Options
from docs.tools import reference
from tests.verdict.decisions.test_exports import two_tasks
from tests.verdict.decisions.test_page import with_account

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/verdict_json.md").read_text()


def documented(section: str) -> dict[str, set[str]]:
    """{kind: keys} of the tables below the headings `### `Kind`` of a section."""
    keys = {}
    for part in section.split("\n### ")[1:]:
        head, _, table = part.partition("\n")
        cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
        keys[head.split("`")[1]] = set(re.findall(r"`([^`]+)`", " ".join(cells)))
    return keys


def keys_of(value: object, plain: object) -> Iterator[tuple[str, set[str]]]:
    """(kind, keys) of each object of a JSON document that was a dataclass."""
    if dataclasses.is_dataclass(value):
        assert isinstance(plain, dict)
        yield type(value).__name__, set(plain)
        parts = [(getattr(value, name), each) for name, each in plain.items()]
    elif isinstance(value, dict):
        assert isinstance(plain, dict)
        parts = list(zip(value.values(), plain.values(), strict=True))
    elif isinstance(value, (list, tuple)):
        assert isinstance(plain, list)
        parts = list(zip(value, plain, strict=True))
    else:
        parts = []
    for one, of_one in parts:
        yield from keys_of(one, of_one)


def test_every_key_of_the_json_is_documented_and_no_other_one(tmp_path: Path) -> None:
    runs = decide(read_results([str(ROOT / "examples/cifar10_120_runs.parquet")]), Question())
    pattern = r"(?P<arm>datacomp|commonpool)_(?P<scale>[sl])_(?P<arm2>\w+_)?s"
    scales = decide(
        read_results([str(ROOT / "examples/datacomp_scales.csv")], Options(pattern=pattern)),
        Question(noise=0.002),
    )
    keys: dict[str, set[str]] = defaultdict(set)
    blocks = tmp_path / "blocks.csv"
    rows = [
        f"{arm},{lr},{seed},{value + sign * (lr - 0.2) + seed / 100}"
        for arm, value, sign in (("raw", 0.4, 0), ("b", 0.4, 1))
        for lr in (0.1, 0.3)
        for seed in range(3)
    ]
    blocks.write_text("\n".join(["arm,lr,seed,acc", *rows]))
    crossed = decide(read_results([str(blocks)], Options(names={"block": ("lr",)})), Question())
    summary = tmp_path / "means.csv"
    summary.write_text("arm,acc_mean,acc_std,n_runs\nraw,0.41,0.01,3\nb,0.45,0.01,3\n")
    means = decide(read_results([str(summary)]), Question())
    for decision in map(with_account, (runs, scales, two_tasks(), crossed, means)):
        for kind, own in keys_of(decision, json.loads(json.dumps(disk.to_plain(decision)))):
            keys["Decision" if kind == "Read" else kind] |= own
    assert {"Decision", "TaskResult", "Comparison", "Account", "ScaleDecision"} <= set(keys)
    assert keys == documented(reference.fill(PAGE))


def test_every_column_and_word_of_an_export_is_documented() -> None:
    columns = PAGE.partition("## Columns of the CSV")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in columns.splitlines() if line.startswith("| `")]
    assert tuple(re.findall(r"`([^`]+)`", " ".join(cells))) == COLUMNS
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| `--fail-on")]
    assert set(FAILURES) <= set(re.findall(r"`([a-z]+)`", row))
