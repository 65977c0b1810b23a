from __future__ import annotations

import re
from typing import Any

import pytest

from manifests.schema import Suite, TaskSpec

TASK: dict[str, Any] = {"name": "t", "kind": "classification", "data": "/d"}


def test_a_group_names_tasks_of_its_suite() -> None:
    suite = Suite(name="s", tasks=(TaskSpec(**TASK),), groups={"g": ("t",)})
    assert suite.groups["g"] == (suite.tasks[0].name,)


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (TaskSpec, {**TASK, "classes": ("a",), "classes_from": "imagenet"}, "give one of them"),
        (TaskSpec, {**TASK, "columns": {"labels": "x"}}, "columns names 'labels'; it takes image"),
        (TaskSpec, {**TASK, "train_data": "/x"}, "which only the kind linear_probe uses"),
        (Suite, {"name": "s", "tasks": (TaskSpec(**TASK),) * 2}, "has two tasks of one name"),
        (
            Suite,
            {"name": "s", "tasks": (TaskSpec(**TASK),), "groups": {"g": ("u",)}},
            "group 'g' must name different tasks of the suite, not 'u'",
        ),
    ],
)
def test_impossible_values_are_refused(make: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make(**values)
