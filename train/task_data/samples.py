"""The samples of a task: what a format gives, and how labels become numbers of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from manifests import disk
from manifests.schema import TaskSpec
from train.task_data.images import ImageSource
from train.task_data.names import read_classes, read_templates

DEFAULT_TEMPLATES = ("a photo of a {}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSamples:
    """What a format gives, image by image.

    labels: numbers or texts. captions: one or more per image. groups: what `columns: {group: …}`
    names. class_names and templates: where the data brings its own.
    """

    source: str  # for messages
    images: ImageSource
    labels: Sequence[int | str] | None = None
    captions: Sequence[Sequence[str]] | None = None
    groups: Sequence[int | str] | None = None
    class_names: tuple[str, ...] | None = None
    templates: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The content of a task's data."""

    images: ImageSource
    labels: tuple[int, ...] = ()  # classification: the class of each image
    classes: tuple[str, ...] = ()  # classification: display names
    templates: tuple[str, ...] = ()  # classification: with {} for the class name
    captions: tuple[str, ...] = ()  # retrieval: different texts, in the order of the data
    matches: tuple[tuple[int, int], ...] = ()  # retrieval: (image, caption) that belong together
    groups: tuple[str, ...] = ()  # the group of each image, for metrics of the worst group
    train: Samples | None = None  # linear probe: what it is fitted to

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the images."""
        return self.images.names

    def content(self) -> dict[str, Any]:
        """Names, labels and texts as plain values: equal for equal data in any folder."""
        content: dict[str, Any] = {
            "files": self.files,
            "labels": self.labels,
            "classes": self.classes,
            "captions": self.captions,
            "matches": self.matches,
        }
        if self.groups:
            content["groups"] = self.groups
        return content


# --- classification -------------------------------------------------------------------------------


def labelled_samples(task: TaskSpec, raw: RawSamples) -> Samples:
    """Samples with a class per image.

    Texts are classes in alphabetical order (or in that of the data's own class names), which
    `classes` renames one by one. ValueError for labels that are no class, and for other numbers of
    classes.
    """
    if raw.labels is None:
        raise ValueError(f"task {task.name!r}: {raw.source} has no labels")
    own_names = task_classes(task)
    if all(isinstance(label, int) for label in raw.labels):
        classes, labels = _numbered(task, raw, own_names)
    else:
        classes, labels = _named(task, raw, own_names)
    if len(classes) < 2:
        raise ValueError(f"task {task.name!r}: {raw.source} has {len(classes)} classes, not two")
    return Samples(
        images=raw.images,
        labels=labels,
        classes=classes,
        templates=task_templates(task, raw),
        groups=tuple(str(group) for group in raw.groups or ()),
    )


def _numbered(
    task: TaskSpec, raw: RawSamples, own_names: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    assert raw.labels is not None
    labels = tuple(int(label) for label in raw.labels)
    classes = own_names or raw.class_names or ()
    if not classes:
        raise ValueError(
            f"task {task.name!r}: the labels of {raw.source} are numbers, and it names no classes; "
            "set classes to a list, a file or imagenet"
        )
    if raw.class_names and len(classes) != len(raw.class_names):
        raise ValueError(
            f"task {task.name!r} names {len(classes)} classes, but {raw.source} has "
            f"{len(raw.class_names)}: {', '.join(raw.class_names[:5])} …"
        )
    wrong = [i for i, label in enumerate(labels) if not 0 <= label < len(classes)]
    if wrong:
        raise ValueError(
            f"task {task.name!r}: the label of {raw.images.names[wrong[0]]} is {labels[wrong[0]]}, "
            f"but there are {len(classes)} classes, from 0"
        )
    return classes, labels


def _named(
    task: TaskSpec, raw: RawSamples, own_names: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    assert raw.labels is not None
    texts = [str(label) for label in raw.labels]
    keys = raw.class_names or tuple(sorted(set(texts)))
    number = {key: n for n, key in enumerate(keys)}
    for text, name in zip(texts, raw.images.names, strict=True):
        if text not in number:
            raise ValueError(
                f"task {task.name!r}: the label of {name} is {text!r}"
                f"{disk.did_you_mean(text, keys)} (of {', '.join(keys[:5])} …)"
            )
    if own_names and len(own_names) != len(keys):
        raise ValueError(
            f"task {task.name!r} names {len(own_names)} classes, but {raw.source} has "
            f"{len(keys)}: {', '.join(keys[:5])} …"
        )
    classes = own_names or tuple(key.replace("_", " ") for key in keys)
    return classes, tuple(number[text] for text in texts)


def task_classes(task: TaskSpec) -> tuple[str, ...]:
    """The class names that a task gives, as a list or by name; () where it gives none."""
    if task.classes_from is None:
        return task.classes
    try:
        return read_classes(task.classes_from)
    except ValueError as error:
        raise ValueError(f"task {task.name!r}: {error}") from error


def task_templates(task: TaskSpec, raw: RawSamples) -> tuple[str, ...]:
    """The task's templates, else the data's own, else DEFAULT_TEMPLATES.

    ValueError for none, and for one without {}.
    """
    if task.templates_from is not None:
        try:
            templates = read_templates(task.templates_from)
        except ValueError as error:
            raise ValueError(f"task {task.name!r}: {error}") from error
    elif task.templates is not None:
        templates = task.templates
    else:
        templates = raw.templates or DEFAULT_TEMPLATES
    for template in templates:
        if template.count("{}") != 1:
            raise ValueError(
                f"task {task.name!r}: template {template!r} must contain {{}} once, "
                "where the class name goes"
            )
    if not templates:
        raise ValueError(
            f"task {task.name!r} has no templates; leave the key out for 'a photo of a {{}}'"
        )
    return templates


# --- retrieval ------------------------------------------------------------------------------------


def captioned_samples(task: TaskSpec, raw: RawSamples) -> Samples:
    """Samples with captions. Equal captions are one text that belongs to several images.

    ValueError for fewer than two images and for an image without a caption.
    """
    if raw.captions is None:
        raise ValueError(f"task {task.name!r}: {raw.source} has no captions")
    if len(raw.images.names) < 2:
        raise ValueError(
            f"{raw.source} names {len(raw.images.names)} images; retrieval needs at least two"
        )
    number: dict[str, int] = {}
    matches: dict[tuple[int, int], None] = {}
    for image, captions in enumerate(raw.captions):
        if not captions:
            raise ValueError(
                f"task {task.name!r}: {raw.images.names[image]} of {raw.source} has no caption"
            )
        for caption in captions:
            matches[image, number.setdefault(caption, len(number))] = None
    return Samples(images=raw.images, captions=tuple(number), matches=tuple(matches))
