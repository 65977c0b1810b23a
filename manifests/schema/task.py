"""What a model is evaluated on: tasks, and suites of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from manifests.schema.fetch import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """An evaluation: zero-shot classification, retrieval or a linear probe.

    In a manifest `classes` and `templates` may be a name or a file, which is `classes_from` and
    `templates_from` here.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    kind: Literal["classification", "retrieval", "linear_probe", "association"]
    # Folder, tar or Parquet file (train/task_data/README.md); not needed for given predictions
    data: str = ""
    split: str = "test"  # of CLIP_benchmark's layout
    classes: tuple[str, ...] = ()  # display names, in the order of the labels
    classes_from: str | None = None
    templates: tuple[str, ...] | None = None  # default: the data's own, or "a photo of a {}"
    templates_from: str | None = None
    columns: dict[str, str] = field(default_factory=dict)  # image, label, caption, group
    ignore_groups: tuple[str, ...] = ()  # left out of metrics of the worst group
    train_data: str | None = None  # of a linear probe; default: `data`
    train_split: str = "train"
    metric: str | None = None  # the metric that decides; default: the kind's own
    allow_overlap: bool = False  # an image that a training pool has too is otherwise refused
    # What is done about near duplicates in a view that is trained on
    near_overlap: Literal["list", "refuse", "drop"] = "list"

    def __post_init__(self) -> None:
        for name in ("classes", "templates"):
            if getattr(self, name) and getattr(self, f"{name}_from") is not None:
                raise ValueError(f"task {self.name!r} has {name} and {name}_from; give one of them")
        unknown = sorted(set(self.columns) - {"image", "label", "caption", "group"})
        if unknown:
            raise ValueError(
                f"task {self.name!r}: columns names {unknown[0]!r}; it takes image, label, caption "
                "and group"
            )
        if self.kind != "linear_probe" and self.train_data is not None:
            raise ValueError(
                f"task {self.name!r} has train_data, which only the kind linear_probe uses"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Tasks that are evaluated together, and groups of them that are averaged."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    tasks: tuple[TaskSpec, ...]
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # group -> names of tasks

    def __post_init__(self) -> None:
        names = [task.name for task in self.tasks]
        if len(set(names)) < len(names):
            raise ValueError(f"suite {self.name!r} has two tasks of one name")
        for group, members in self.groups.items():
            unknown = sorted(set(members) - set(names))
            if unknown or not members or len(set(members)) < len(members):
                raise ValueError(
                    f"suite {self.name!r}: group {group!r} must name different tasks of the suite"
                    + (f", not {unknown[0]!r}" if unknown else "")
                )
