"""The nouns: impossible values are refused, and docs/manifests.md has every key with its
default.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from manifests import disk
from manifests.columns import PAIRS, REASONS, SIDECAR
from manifests.schema import (
    MANNERS,
    SOURCES,
    Ablation,
    Blend,
    Controls,
    Fetch,
    HostLimit,
    Miniweb,
    PoolRef,
    Recipe,
    Rule,
    Scorer,
    Source,
    Stop,
    Suite,
    TarStream,
    TaskSpec,
)
from manifests.yaml_forms import VARIABLES

REFERENCE = (Path(__file__).resolve().parents[2] / "docs" / "manifests.md").read_text()
SECTIONS: dict[str, type] = {
    "A recipe": Recipe,
    "`source`": Source,
    "`fetch`": Fetch,
    "`fetch.hosts`": HostLimit,
    "A rule of a view": Rule,
    "`miniweb`": Miniweb,
    "A blend": Blend,
    "`streams` of a blend": TarStream,
    "A task": TaskSpec,
    "A suite": Suite,
    "An ablation": Ablation,
    "`stop` of an ablation": Stop,
    "`pools` of an ablation": PoolRef,
    "`scorer`": Scorer,
    "`controls`": Controls,
}

TASK: dict[str, Any] = {"name": "t", "kind": "classification", "data": "/d"}


def section(title: str) -> str:
    start = REFERENCE.index(f"## {title}\n")
    return REFERENCE[start : REFERENCE.find("\n## ", start)]


@pytest.mark.parametrize("title", SECTIONS)
def test_the_reference_has_every_key_with_its_default(title: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| .+ \|$", section(title).split("| kind |")[0], re.M)
    fields = dataclasses.fields(SECTIONS[title])
    assert [name for name, _ in rows] == [field.name for field in fields]
    for field, (_, shown) in zip(fields, rows, strict=True):
        if field.default is not dataclasses.MISSING:
            expected = f"`{json.dumps(disk.to_plain(field.default))}`"
        elif field.default_factory is not dataclasses.MISSING:
            expected = f"`{json.dumps(disk.to_plain(field.default_factory()))}`"
        else:
            expected = "needed"
        if (title, field.name) not in (("A recipe", "fetch"), ("A recipe", "views")):
            assert shown == expected, field.name


def test_the_reference_has_every_kind_manner_variable_reason_and_column() -> None:
    for kind in SOURCES:
        assert f"| `{kind}` |" in section("`source`")
    for name in MANNERS:
        assert f"`{name}`" in section("`fetch`").partition("Manners")[2]
    for name in VARIABLES:
        assert f"| `{name}` |" in REFERENCE
    for reason, kind in REASONS.items():
        assert f"| `{reason}` | {kind} |" in section("Reasons")
    columns = REFERENCE[REFERENCE.index("## Columns") :]
    for name in [*PAIRS.names, *SIDECAR.names]:
        assert f"`{name}`" in columns
