from __future__ import annotations

import dataclasses

import pytest

from manifests.schema import TaskSpec
from train.eval_data.images import ImageFiles
from train.eval_data.samples import Samples
from train.evaluation.tasks import TASKS, TaskKind


def test_a_new_kind_needs_its_entry_in_the_table_and_nothing_else(
    colours: TaskSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.evaluation.tasks import read_samples

    one = Samples(images=ImageFiles("", ("a.png",)))
    kind = dataclasses.replace(TASKS["classification"], name="counting", read=lambda task: one)
    monkeypatch.setitem(TASKS, "counting", kind)
    assert read_samples(dataclasses.replace(colours, kind="counting")) == one  # type: ignore[arg-type]


def test_a_kind_without_a_headline_is_impossible() -> None:
    with pytest.raises(TypeError, match="headline"):
        TaskKind(name="x")  # type: ignore[call-arg]
