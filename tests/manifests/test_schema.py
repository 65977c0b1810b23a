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
from manifests.fetch_settings import MANNERS, Fetch, HostLimit
from manifests.schema import (
    Ablation,
    Blend,
    Controls,
    Miniweb,
    PoolRef,
    Recipe,
    Rule,
    Scorer,
    Stop,
    Suite,
    TaskSpec,
    View,
)
from manifests.sources import SOURCES, Source
from manifests.yaml_file import VARIABLES

REFERENCE = (Path(__file__).resolve().parents[2] / "docs" / "manifests.md").read_text()
SECTIONS: dict[str, type] = {
    "A recipe": Recipe,
    "`source`": Source,
    "`fetch`": Fetch,
    "`fetch.hosts`": HostLimit,
    "A rule of a view": Rule,
    "`miniweb`": Miniweb,
    "A blend": Blend,
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


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (Rule, {"name": "x"}, "must be one of an SQL expression, a view, random_like or sample"),
        (Rule, {"name": "x", "where": "a", "view": "b"}, "must be one of"),
        (Rule, {"name": "x", "sample": 1.5}, "sample is 1.5; it must lie between 0 and 1"),
        (Miniweb, {"noise": 1.0}, "noise is 1.0"),
        (PoolRef, {}, "a pool needs a recipe"),
        (
            Recipe,
            {
                "name": "r",
                "source": Source(kind="files", paths=("x.csv",)),
                "views": (View(name="a"), View(name="a")),
            },
            "views named twice: a",
        ),
        (Miniweb, {"pairs": -3}, "miniweb pairs is -3; it must be at least 1"),
        (Blend, {"name": "b", "pools": {}, "views": {}}, "has no views"),
        (TaskSpec, {**TASK, "classes": ("a",), "classes_from": "imagenet"}, "give one of them"),
        (TaskSpec, {**TASK, "columns": {"labels": "x"}}, "columns names 'labels'; it takes image"),
        (TaskSpec, {**TASK, "train_data": "/x"}, "which only the kind linear_probe uses"),
        (Suite, {"name": "s", "tasks": (TaskSpec(**TASK),) * 2}, "has two tasks of one name"),
        (
            Suite,
            {"name": "s", "tasks": (TaskSpec(**TASK),), "groups": {"g": ("u",)}},
            "group 'g' must name different tasks of the suite, not 'u'",
        ),
        (HostLimit, {"per_host": 0}, "per_host is 0"),
        (Fetch, {"encode_format": "png", "encode_quality": 95}, "must lie in 0..9"),
    ],
)
def test_impossible_values_are_refused(make: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make(**values)
