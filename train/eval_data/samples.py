"""The samples of a task from folders, Parquet, tars and CLIP_benchmark's layout."""

from __future__ import annotations

import ast
import csv
import dataclasses
import functools
import hashlib
import io
import json
import logging
import re
import tarfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa

from clipmill.manifests import disk
from clipmill.manifests.arrays import NUMPY_ERRORS
from clipmill.manifests.schema import TaskSpec
from clipmill.train.eval_data.images import (
    ChosenImages,
    ImageFiles,
    ImageSource,
    TableImages,
    TarImages,
    batch_rows,
    image_suffix,
    map_images,
    open_parquet,
)

# --------------------------------------------------------------------------------------------------
# Class names and templates by name or by file.


# Name -> attribute of open_clip, which is read where it is installed.
CLASSES = {"imagenet": "IMAGENET_CLASSNAMES"}
TEMPLATES = {
    "openai_imagenet": "OPENAI_IMAGENET_TEMPLATES",
    "simple_imagenet": "SIMPLE_IMAGENET_TEMPLATES",
}
FILE_SUFFIXES = (".txt", ".json")
# How a text begins that may be a list or an object in Python or JSON, or its lines.
PYTHON = re.compile(r"""\s*(#.*\s+)*(['"{(\[]|lambda\b|[A-Za-z_]\w*\s*=)""")


def read_classes(name: str) -> tuple[str, ...]:
    """The class names of a list of open_clip's, or of a file: one per line, or a list in JSON or
    Python. A blank line before the last name is a class without a name.

    ValueError for an unknown name, a missing open_clip and a file that holds no list.
    """
    if name.endswith(FILE_SUFFIXES):
        return read_lines(name, blanks=True)
    return tuple(str(each) for each in _from_open_clip(name, CLASSES, "classes"))


def read_templates(name: str) -> tuple[str, ...]:
    """The templates, with {} for the class name. A file may write {c}, as CLIP_benchmark does."""
    if name.endswith(FILE_SUFFIXES):
        return tuple(line.replace("{c}", "{}") for line in read_lines(name))
    return tuple(str(each("{}")) for each in _from_open_clip(name, TEMPLATES, "templates"))


def prompts_of_json(
    path: str, task: str, classes: Sequence[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]] | None:
    """(templates, ()) of a task, or ((), prompts of each class), from a JSON object: templates by
    data set as CLIP_benchmark has them, prompts by class as CuPL, or these by data set. None for a
    file that is no object. ValueError where it has neither.
    """
    document = disk.read_json(path) if path.endswith(".json") else None
    if not isinstance(document, dict):
        return None
    if task in document or len(document) == 1:
        document = document.get(task, next(iter(document.values())))
    if isinstance(document, list) and all(isinstance(each, str) for each in document):
        return tuple(each.replace("{c}", "{}") for each in document), ()
    lists = [document.get(name) for name in classes] if isinstance(document, dict) else [None]
    for name, prompts in zip(classes, lists, strict=False):
        if not isinstance(prompts, list) or not prompts:
            raise ValueError(
                f"{path} has neither templates of {task!r} nor prompts of every class, such as "
                f"{name!r}; name the task or its classes as the file does"
            )
    return (), tuple(tuple(map(str, prompts)) for prompts in lists if prompts)


def read_lines(path: str, *, blanks: bool = False) -> tuple[str, ...]:
    """The lines of a text file that are not blank, or with `blanks` all up to the last that is not;
    or the texts of a JSON list.
    """
    if not disk.exists(path):
        raise ValueError(f"{path} does not exist")
    text = _text_of(path)
    values: Any = None
    if path.endswith(".json"):
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
    elif PYTHON.match(text):
        values = _literal(text)
        if not isinstance(values, dict | list):
            values = _texts_of_python(text, "class" if blanks else "template") or values
    if isinstance(values, dict) and blanks:
        values = _in_order(values, path)
    if path.endswith(".json") or isinstance(values, list):
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise ValueError(f"{path} must hold a JSON list of texts")
        return tuple(values)
    lines = [line.rstrip("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(line if line.strip() else "" for line in lines if blanks or line.strip())


def _literal(text: str) -> Any:
    """The plain value that a text writes in JSON or in Python; None where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return None


def _texts_of_python(text: str, what: str) -> list[str] | None:
    """The texts of a list, of lines with commas behind them, or of functions such as
    `lambda c: f'a photo of a {c}.'`, with {} for what they insert; of several lists that whose name
    has `what`. None where the text is no such Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse("\n".join(map(str.strip, text.splitlines()))).body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    lists = [node for node in body if isinstance(node, ast.Assign)]
    if len(lists) > 1:
        body = [node for node in lists if what in ast.unparse(node.targets[0]).lower()]
    texts: list[str | None] = []
    for node in body:
        value = node.value if isinstance(node, ast.Assign | ast.Expr) else node
        items = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        texts += map(_text_of_node, items)
    known = [each for each in texts if each is not None]
    return known if len(known) == len(texts) > 0 else None


def _text_of_node(node: ast.AST) -> str | None:
    node = node.body if isinstance(node, ast.Lambda) else node
    if isinstance(node, ast.JoinedStr):
        parts = [each if isinstance(each, ast.Constant) else None for each in node.values]
        return "".join(str(each.value) if each else "{}" for each in parts)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _in_order(names: Mapping[object, object], path: str) -> list[str]:
    """The class names of an object in the order of their numbers, such as `{"0": "tench"}`,
    `{"tench": 0}` or `{"0": ["n01440764", "tench"]}`; or with the WordNet ids that are its keys.
    """
    of_key = {str(key): value for key, value in names.items()}
    if all(isinstance(value, int) for value in of_key.values()):
        of_key = {str(value): key for key, value in of_key.items()}
    texts = {
        key: " ".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in of_key.items()
    }
    if all(WORDNET_ID.fullmatch(key) for key in texts):
        return [f"{key} {text}" for key, text in texts.items()]
    keys = sorted(texts, key=lambda key: int(key) if key.isdecimal() else -1)
    first = 1 if keys[:1] == ["1"] else 0
    if len(texts) < 2 or keys != [str(first + number) for number in range(len(keys))]:
        raise ValueError(
            f"{path} must hold a JSON list of texts, or an object that numbers classes from 0 to "
            f"{len(keys) - 1}"
        )
    return [texts[key] for key in keys]


def _text_of(path: str) -> str:
    try:
        return disk.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error


def _from_open_clip(name: str, known: dict[str, str], key: str) -> list[Any]:
    if name not in known:
        raise ValueError(
            f"{key} is {name!r}; it must be a list, a file (*.txt or *.json) or one of "
            f"{', '.join(known)}{disk.did_you_mean(name, known)}"
        )
    try:
        import open_clip
    except ImportError as error:
        raise ValueError(
            f"{key}: {name} needs open_clip ({error}); pip install open_clip_torch, or name a file"
        ) from error
    return list(getattr(open_clip, known[name]))


# --------------------------------------------------------------------------------------------------
# The samples of a task: what a format gives, and how labels become numbers of classes.


DEFAULT_TEMPLATES = ("a photo of a {}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSamples:
    """What a format gives, image by image.

    labels: numbers or texts. captions: one or more per image. groups: what `columns: {group: …}`
    names. class_names and templates: where the data brings its own. notes: what was read as what.
    """

    source: str  # for messages
    images: ImageSource
    labels: Sequence[int | str] | None = None
    captions: Sequence[Sequence[str]] | None = None
    groups: Sequence[int | str] | None = None
    class_names: tuple[str, ...] | None = None
    templates: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The content of a task's data."""

    images: ImageSource
    labels: tuple[int, ...] = ()  # classification: the class of each image
    classes: tuple[str, ...] = ()  # classification: display names
    templates: tuple[str, ...] = ()  # classification: with {} for the class name
    own_prompts: tuple[tuple[str, ...], ...] = ()  # of each class, in the place of templates
    captions: tuple[str, ...] = ()  # retrieval: those of the first image, of the second, …
    matches: tuple[tuple[int, int], ...] = ()  # retrieval: (image, caption) that belong together
    groups: tuple[str, ...] = ()  # the group of each image, for metrics of the worst group
    train: Samples | None = None  # linear probe: what it is fitted to
    notes: tuple[str, ...] = field(default=(), compare=False)  # what was read as what, in words

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the images."""
        return self.images.names

    def prompts_of(self, name: str) -> tuple[str, ...]:
        """The prompts of a class."""
        if self.own_prompts:
            return self.own_prompts[self.classes.index(name)]
        return tuple(template.replace("{}", name) for template in self.templates)

    def content(self) -> dict[str, object]:
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
        if self.templates not in ((), DEFAULT_TEMPLATES):
            content["templates"] = self.templates
        if self.own_prompts:
            content["prompts"] = self.own_prompts
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
    ids, notes = raw.class_names or tuple(sorted({str(each) for each in raw.labels})), raw.notes
    is_text = all(isinstance(label, str) for label in raw.labels)
    own_names = (_names_of_keys(task, ids) if is_text else ()) or task_classes(task)
    if task.classes_from == "imagenet" and all(WORDNET_ID.fullmatch(each) for each in ids):
        own_names = _with_ids(own_names)
    if of_id := _names_by_id(own_names):
        found = [NUMBER_NAME.fullmatch(name) for name in of_id.values()]
        if len({match["number"] for match in found if match}) == len(of_id):  # map_clsloc.txt's
            names = (match["name"] for match in found if match)
            of_id = dict(zip(of_id, names, strict=True))
        ids = ids if set(ids) <= of_id.keys() else tuple(of_id)
        own_names = tuple(of_id[each] for each in ids)
        notes += (f"classes are named by WordNet ids: {ids[0]} is {own_names[0]!r}",)
        if len(ids) < len(of_id):
            notes += (f"{len(ids):,} of the {len(of_id):,} classes are there, and compete",)
    elif task.classes_from and not task.classes_from.endswith(".json"):
        while plain := _without_numbers(own_names):
            notes += (f"numbers beside class names are their order: {own_names[0]!r} is the first",)
            own_names = plain
    if all(isinstance(label, int) for label in raw.labels):
        classes, labels, more = _numbered(task, raw, own_names)
        notes += more
    else:
        classes, labels = _text_labels(task, raw, own_names)
    if len(classes) < 2:
        raise ValueError(f"task {task.name!r}: {raw.source} has {len(classes)} classes, not two")
    templates, own_prompts = task_templates(task, raw, classes)
    return Samples(
        images=raw.images,
        labels=labels,
        classes=classes,
        templates=templates,
        own_prompts=own_prompts,
        groups=tuple(str(group) for group in raw.groups or ()),
        notes=(*notes, *_notes_of_names(classes)),
    )


def _names_of_keys(task: TaskSpec, keys: Sequence[str]) -> tuple[str, ...]:
    """The names that an object in a JSON file has for the folders; () where it has not."""
    path = task.classes_from or ""
    document = disk.read_json(path) if path.endswith(".json") and disk.exists(path) else None
    names = [document.get(key) for key in keys] if isinstance(document, dict) else [None]
    return tuple(map(str, names)) if all(isinstance(name, str) for name in names) else ()


def _with_ids(names: Sequence[str]) -> tuple[str, ...]:
    """The names of ImageNet's 1,000 classes behind their WordNet ids, which are timm's, a part of
    open_clip.
    """
    from timm.data.imagenet_info import ImageNetInfo

    ids = ImageNetInfo("imagenet-1k").label_names()
    return tuple(map(" ".join, zip(ids, names, strict=True)))


def _without_numbers(lines: Sequence[str]) -> tuple[str, ...]:
    """The names of lines such as `0 tench`, `1: goldfish` or `tench 0` in the order of the numbers,
    where these are 0 or 1 and so on, and the names differ; () for others.
    """
    for pattern in (NUMBER_NAME, NAME_NUMBER):
        found = [pattern.fullmatch(line) for line in lines]
        names = {int(match["number"]): match["name"] for match in found if match}
        numbers = sorted(names)
        in_order = numbers in ([*range(len(lines))], [*range(1, len(lines) + 1)])
        if in_order and len(set(names.values())) == len(lines) > 1:
            return tuple(names[number] for number in numbers)
    return ()


def _notes_of_names(classes: Sequence[str]) -> Iterator[str]:
    """What is said of names that several classes have, of classes without one, and of ids."""
    if all(WORDNET_ID.fullmatch(name) for name in classes):
        yield f"classes are WordNet ids, such as {classes[0]}; set classes to their names, in order"
    elif all(BEGINS_WITH_ID.match(name) for name in classes):
        yield (
            f"class names begin with numbers or ids, such as {classes[0]!r}, and so prompts do; "
            "set classes to the names alone, in order"
        )
    inside = [name for name in classes if re.search("[a-z][A-Z]", name)]  # one is a name: iPod
    odd = [name for name in classes if re.search("[_\t]", name.strip())]
    if odd := odd + (inside if len(inside) > 1 else []):
        yield (
            f"{len(odd):,} class names have underscores, tabs or capitals inside, such as "
            f"{odd[0]!r}, and so have prompts; write blanks where these are meant"
        )
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(classes):
        numbers.setdefault(name, []).append(number)
    for name, of_name in numbers.items():
        listed = ", ".join(map(str, of_name[:5]))
        if not name:
            yield f"class {listed}, from 0, has no name (a blank line); its prompts have none"
        if len(of_name) > 1:
            same = f"classes {listed}, from 0, have the same name {name!r}"
            yield f"{same}: of equal logits the first wins, as in open_clip"


def _numbered(
    task: TaskSpec, raw: RawSamples, own_names: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    assert raw.labels is not None
    labels, notes = tuple(int(label) for label in raw.labels), tuple[str, ...]()
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
    if not raw.class_names and min(labels) == 1 and max(labels) == len(classes):
        labels = tuple(label - 1 for label in labels)
        notes = (f"the labels of {raw.source} are numbers from 1: 1 is {classes[0]!r}",)
    elif not raw.class_names and min(labels) == 1 and max(labels) < len(classes):
        read = f"read as numbers from 0: 1 is {classes[1]!r}, and no image is 0, {classes[0]!r}"
        notes = (f"the labels of {raw.source} are {read}",)
    wrong = [i for i, label in enumerate(labels) if not 0 <= label < len(classes)]
    if wrong:
        unknown = " (-1 is that of a split without labels: set split)" if min(labels) < 0 else ""
        raise ValueError(
            f"task {task.name!r}: the label of {raw.images.names[wrong[0]]} is {labels[wrong[0]]}, "
            f"but there are {len(classes)} classes, from 0{unknown}"
        )
    return classes, labels, notes


def _text_labels(
    task: TaskSpec, raw: RawSamples, own_names: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    assert raw.labels is not None
    texts = [str(label) for label in raw.labels]
    keys = raw.class_names or tuple(sorted(set(texts)))
    number = {key: n for n, key in reversed([*enumerate(keys)])}  # the first of equal names
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


def _names_by_id(lines: Sequence[str]) -> dict[str, str]:
    """The name of each WordNet id, of lines such as `n01440764 tench`; {} where one is no such."""
    found = [re.fullmatch(rf"({WORDNET_ID.pattern})[\s,:]+(\S.*)", line) for line in lines]
    return {match[1]: match[2] for match in found if match} if all(found) else {}


def task_classes(task: TaskSpec) -> tuple[str, ...]:
    """The class names that a task gives, as a list or by name; () where it gives none."""
    if task.classes_from is None:
        return task.classes
    try:
        return read_classes(task.classes_from)
    except ValueError as error:
        raise ValueError(f"task {task.name!r}: {error}") from error


def task_templates(
    task: TaskSpec, raw: RawSamples, classes: Sequence[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The task's templates, else the data's own, else DEFAULT_TEMPLATES; or the prompts of each
    class, where the task's file has such.

    ValueError for none, and for one without {}.
    """
    own_prompts: tuple[tuple[str, ...], ...] = ()
    if task.templates_from is not None:
        try:
            if of_json := prompts_of_json(task.templates_from, task.name, classes):
                templates, own_prompts = of_json
            else:
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
    if not templates and not own_prompts:
        raise ValueError(
            f"task {task.name!r} has no templates; leave the key out for 'a photo of a {{}}'"
        )
    return templates, own_prompts


# --- retrieval ------------------------------------------------------------------------------------


def captioned_samples(task: TaskSpec, raw: RawSamples) -> Samples:
    """Samples with captions. Each belongs to one image; as in CLIP_benchmark, a text that several
    images have counts as several.

    ValueError for fewer than two images and for an image without a caption.
    """
    if raw.captions is None:
        raise ValueError(f"task {task.name!r}: {raw.source} has no captions")
    if len(raw.images.names) < 2:
        raise ValueError(
            f"{raw.source} names {len(raw.images.names)} images; retrieval needs at least two"
        )
    texts: list[str] = []
    matches: list[tuple[int, int]] = []
    blank = 0
    for image, of_image in enumerate(raw.captions):
        captions = [caption for caption in of_image if caption.strip()]
        blank += len(of_image) - len(captions)
        if not captions:
            raise ValueError(
                f"task {task.name!r}: {raw.images.names[image]} of {raw.source} has no caption"
            )
        for caption in captions:
            matches.append((image, len(texts)))
            texts.append(caption)
    notes = [f"{blank:,} blank captions of {raw.source} are no queries"] if blank else []
    notes += _shared_texts(texts, matches)
    return Samples(
        images=raw.images,
        captions=tuple(texts),
        matches=tuple(matches),
        notes=(*raw.notes, *notes),
    )


def _shared_texts(texts: Sequence[str], matches: Iterable[tuple[int, int]]) -> list[str]:
    """A note where several images have one text: it finds at most one of them first, so that no
    model reaches a recall@1 of 1."""
    images_of: dict[str, Counter[int]] = {}
    for image, caption in matches:
        images_of.setdefault(texts[caption], Counter())[image] += 1
    shared = {text: images for text, images in images_of.items() if len(images) > 1}
    if not shared:
        return []
    count = sum(images.total() for images in shared.values())
    found = len(texts) - count + sum(max(images.values()) for images in shared.values())
    most = max(shared, key=lambda text: len(shared[text]))
    return [
        f"{count:,} of {len(texts):,} captions have the text of another image too "
        f"({most[:60]!r} that of {len(shared[most]):,}): each finds its own image only, so "
        f"text_to_image_recall@1 is at most {found / len(texts):.3f}, whatever the model"
    ]


# --------------------------------------------------------------------------------------------------
# Parquet files with a cue, candidate images and the right ones of them in each row (WinoGAViL).


COLUMNS = ("cue", "candidates", "associations", "candidate_images")


def read_associations(task: TaskSpec) -> Samples:
    """DATA/*.parquet, or one file, with the columns of Hugging Face's data set of WinoGAViL.

    `candidates` are the names of `candidate_images`, `associations` the right names. The captions
    of the samples are the prompts, the label of an image is the number of its row, and `matches`
    are the right images. ValueError names a missing column and a row that cannot be.
    """
    if not disk.exists(task.data):
        raise ValueError(f"task {task.name!r}: there is no folder {task.data}")
    files = [task.data]
    if disk.is_folder(task.data):
        names = disk.list_names(task.data, ".parquet")
        names, _ = of_split(task, task.data, names, task.split)
        files = [disk.join(task.data, name) for name in names]
    if not files:
        raise ValueError(f"task {task.name!r}: {task.data} has no Parquet files")
    groups: list[tuple[int, int, int, int]] = []
    names_of_images: list[str] = []
    labels: list[int] = []
    prompts: list[str] = []
    matches: list[tuple[int, int]] = []
    for number, file in enumerate(files):
        base = file.rsplit("/", 1)[-1].removesuffix(".parquet")
        with open_parquet(file) as opened:
            _require_columns(task, opened.schema_arrow, file)
            for group in range(opened.metadata.num_row_groups):
                first = len(labels)
                rows = opened.read_row_group(group, columns=list(COLUMNS[:3])).to_pylist()
                for row in rows:
                    right = set(row["associations"])
                    wrong = set(row["candidates"]) - right
                    where = f"{file}, row {len(prompts)}"
                    if not right or not wrong or not right <= set(row["candidates"]):
                        raise ValueError(
                            f"task {task.name!r}: {where} needs right and wrong candidates, and "
                            f"every association among them (cue {row['cue']!r})"
                        )
                    for name in row["candidates"]:
                        if name in right:
                            matches.append((len(labels), len(prompts)))
                        names_of_images.append(f"{base}/{len(prompts)}/{name}")
                        labels.append(len(prompts))
                    prompts.append(prompt_of(row["cue"]))
                groups.append((number, group, first, len(labels) - first))
    images = TableImages(tuple(files), COLUMNS[3], tuple(names_of_images), tuple(groups))
    return Samples(
        images=images, labels=tuple(labels), captions=tuple(prompts), matches=tuple(matches)
    )


def prompt_of(cue: str) -> str:
    """The sentence that DataComp's evaluation makes of a cue."""
    word = cue.lower()
    return f"An {word}" if word[:1] in ("a", "e", "i", "o", "u") else f"A {word}"


def _require_columns(task: TaskSpec, schema: pa.Schema, file: str) -> None:
    for name in COLUMNS:
        if name not in schema.names:
            raise ValueError(
                f"task {task.name!r}: {file} has no column {name!r}"
                f"{disk.did_you_mean(name, schema.names)} (of {', '.join(schema.names)})"
            )


# --------------------------------------------------------------------------------------------------
# Folders of images: one per class, or one with captions.csv.


WORDNET_ID = re.compile(r"n\d{8}")  # of ImageNet's folders
BEGINS_WITH_ID = re.compile(r"(n\d{8}|\d+)\s*[-_.:]\s*\w|n\d{8} \w")
NUMBER_NAME = re.compile(r"\s*(?P<number>\d+)(?:\s*[:.,;)-]\s*|\s+)(?P<name>\S.*)")
NAME_NUMBER = re.compile(r"(?P<name>\S.*?)\s*[\s:,;]\s*(?P<number>\d+)\s*")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
OTHER_SUFFIXES = (  # images that are not read
    ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".jfif", ".jpe", ".jp2",
    ".avif", ".heic", ".heif", ".jxl",
)  # fmt: skip


def read_class_folders(task: TaskSpec, data: str) -> RawSamples:
    """Images and labels from DATA/CLASS/IMAGE, also in folders below that of the class, as
    torchvision reads them; the labels are the folders' names, and the numbers that they name where
    the task has names for these.

    ValueError for fewer than two folders, for images in formats that are not read, and where the
    classes may be the folders below.
    """
    files_of = {}
    empty: list[str] = []
    deeper = 0
    for folder in disk.list_names(data):
        names = disk.names_below(disk.join(data, folder))
        images = _images_of(task, disk.join(data, folder), names)
        if images:
            files_of[folder] = images
        elif disk.is_folder(disk.join(data, folder)):
            empty.append(folder)
        below = sorted({name.partition("/")[0] for name in images if "/" in name})
        deeper += sum("/" in name for name in images)
        if len(below) > 1 and all("/" in name for name in images):
            raise ValueError(
                f"task {task.name!r}: {disk.join(data, folder)} has folders of images, {below[0]}, "
                f"{below[1]} …, and no image of its own; where these are the classes, name it as "
                "data, else put the images of a class into one folder"
            )
    if files_of and all(folder.lower() in SPLITS for folder in files_of):
        raise ValueError(
            f"task {task.name!r}: the folders {', '.join(files_of)} of {data} are splits, and none "
            f"is {task.split!r}; set split, or name one of them as data"
        )
    if len(files_of) < 2 and (of_images := list_in(task, data)):
        return read_list(task, of_images, "label")
    if len(files_of) < 2:
        raise ValueError(
            f"task {task.name!r}: {data} has {len(files_of)} folders of images "
            f"({', '.join(IMAGE_SUFFIXES)}); classification needs one folder per class, "
            "at least two, a list of images with labels, tars, Parquet files or CLIP_benchmark's "
            "layout"
        )
    folders = tuple(files_of)
    notes: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    if deeper:
        more += (f"{deeper:,} images of {data} lie in folders below their class's",)
    if empty:
        listed = ", ".join(empty[:5])
        more += (f"{len(empty):,} folders of {data} have no images and are no classes: {listed}",)
    label_of: dict[str, int] | dict[str, str] = {name: name for name in folders}
    if all(name.isascii() and name.isdecimal() for name in folders):
        folders = tuple(sorted(folders, key=lambda name: (int(name), name)))
        if classes := task_classes(task):
            label_of, notes = _numbers_of_folders(task, data, folders, len(classes))
    files: list[str] = []
    labels: list[int | str] = []
    for folder, images in files_of.items():
        files += [f"{folder}/{name}" for name in images]
        labels += [label_of[folder]] * len(images)
    return RawSamples(
        source=f"{data} (folders)",
        images=ImageFiles(data, tuple(files)),
        labels=labels,
        class_names=folders if isinstance(labels[0], str) else None,
        notes=notes + more,
    )


def _images_of(task: TaskSpec, folder: str, names: Sequence[str]) -> list[str]:
    """Those of the names that are images. ValueError for images in formats that are not read: left
    out, they would make another test set without a word.
    """
    if others := [name for name in names if name.lower().endswith(OTHER_SUFFIXES)]:
        raise ValueError(
            f"task {task.name!r}: {disk.join(folder, others[0])} is one of {len(others)} images "
            f"there that are none of {', '.join(IMAGE_SUFFIXES)}; convert them to PNG, or remove "
            "them"
        )
    return [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]


def _numbers_of_folders(
    task: TaskSpec, data: str, names: Sequence[str], classes: int
) -> tuple[dict[str, int] | dict[str, str], tuple[str, ...]]:
    """The labels of folders whose names are whole numbers, in their order, and what is said of it.

    ValueError where the numbers are no labels and their order is not that of the texts.
    """
    numbers = [int(name) for name in names]
    first = 1 if 0 not in numbers and numbers[-1] == classes else 0
    if len(set(numbers)) == len(numbers) and numbers[-1] - first < classes:
        listed = f"the folders {names[0]} … {names[-1]} of {data} are the labels that they name"
        labels = {name: number - first for name, number in zip(names, numbers, strict=True)}
        return labels, (f"{listed}, from {first}",)
    if list(names) != sorted(names):
        raise ValueError(
            f"task {task.name!r}: {data} has folders that are whole numbers, {names[0]} to "
            f"{names[-1]}, and {classes} class names, so the numbers are no labels; give all "
            "folders as many digits, in the order of the names"
        )
    return {name: name for name in names}, ()


# --------------------------------------------------------------------------------------------------
# Lists of image files with their captions or labels: tables, JSON, lines of NAME#0 and a text, or a
# text file for each image.


LISTS = (".csv", ".tsv", ".json", ".jsonl", ".txt", ".token")
# A line of a list without a header: the file, which of its captions it is, and the rest.
LINE = re.compile(r"(.*?\.(?:jpe?g|png|webp))(?:#\S*)?\s*[\s,;|]\s*(.*)", re.IGNORECASE)
LONGEST_NAME = 1000  # of a column
NO_LABELS = "; several right classes of an image are not evaluated here"
Row = Mapping[str, Any]


def read_list(task: TaskSpec, path: str, needs: str) -> RawSamples:
    """The images that a list names, from its own folder on or from one in it, with their captions
    or labels. A file may be repeated with other captions.

    ValueError names a missing file, column or cell with its line.
    """
    is_json = path.lower().endswith((".json", ".jsonl"))
    of_json = enumerate(_rows_of_json(task, path, needs), 1) if is_json else ()
    notes: list[str] = []
    rows = [*(of_json if is_json else _rows_of_text(path, needs, notes))]
    columns = list(dict.fromkeys(name for _, row in rows for name in row))
    image, wanted = (_listed_column(task, columns, what, path, rows) for what in ("image", needs))
    split = task.split
    if "split" not in columns:  # Hugging Face's lists may have it as the first folder of a path
        parts = [SPLITS.get(str(row.get(image)).partition("/")[0].lower()) for _, row in rows]
        if len({*parts}) > 1 and all(parts):
            split = SPLITS.get(split, split)
            rows = [(n, {**row, "split": of}) for (n, row), of in zip(rows, parts, strict=True)]
    if splits := sorted({str(row["split"]) for _, row in rows if "split" in row}):
        if split not in splits:
            raise ValueError(
                f"task {task.name!r}: {path} has no image of split {task.split!r} (of "
                f"{', '.join(splits)}); set split"
            )
        rows = [(number, row) for number, row in rows if row["split"] == split]
    texts: dict[str, list[str]] = {}
    for number, row in rows:
        file, value = row.get(image), row.get(wanted)
        if not (file and isinstance(file, str)) or value is None or (value == "" and not is_json):
            raise ValueError(
                f"{path} {'row' if is_json else 'line'} {number}: file and {needs} must both be "
                f"given; they are {str(file)[:60]!r} and {str(value)[:60]!r}"
            )
        values = _texts(value) if needs == "caption" and isinstance(value, str) else value
        values = values if isinstance(values, list) else [values]
        if needs == "caption" and not all(isinstance(each, str) for each in values):
            raise ValueError(f"{path}: a caption of {file!r} is no text: {value!r:.80}")
        values = [str(each).strip() for each in values]
        texts[file] = [*texts.get(file, ()), *values]
    folder = path.rpartition("/")[0] or "."
    first = next(iter(texts), "")
    if first.startswith("/"):
        folder, first, texts = "/", first[1:], {file.lstrip("/"): texts[file] for file in texts}
    if _file_of(folder, first) is None:
        above = folder.rpartition("/")[0]  # as of COCO, whose lists are in a folder of their own
        inside = [disk.join(each, name) for each in (folder, above) if each
                  for name in disk.list_names(each)]  # fmt: skip
        places = (each for each in (*inside, above) if each and _file_of(each, first) is not None)
        folder = next(places, folder)
    names: list[str] = []
    for file, of_file in texts.items():
        if (name := _file_of(folder, file)) is None:
            raise ValueError(f"{path}: image {disk.join(folder, file)} does not exist")
        names.append(name)
        if needs == "label" and len({*of_file}) > 1:
            raise ValueError(f"{path}: {file} has the labels {', '.join(of_file[:5])}{NO_LABELS}")
    return RawSamples(
        source=path,
        images=ImageFiles(folder, tuple(names)),
        labels=_as_labels([each[0] for each in texts.values()]) if needs == "label" else None,
        captions=list(texts.values()) if needs == "caption" else None,
        notes=tuple(notes),
    )


def _file_of(folder: str, name: str) -> str | None:
    """The image of a folder that a list names, with or without its suffix; None where there is
    none.
    """
    if disk.exists(disk.join(folder, name)):
        return name
    ends = () if name.lower().endswith(IMAGE_SUFFIXES) else IMAGE_SUFFIXES
    return next((name + end for end in ends if disk.exists(disk.join(folder, name + end))), None)


def list_in(task: TaskSpec, data: str) -> str | None:
    """The list that lies in a folder beside its images, or their folder: captions.csv, the one of
    the split, or the only one. None where there is none; ValueError for several.
    """
    names = disk.list_names(data)
    images = [name for name in names if name.lower().endswith((*IMAGE_SUFFIXES, *OTHER_SUFFIXES))]
    stems = {name.rpartition(".")[0] for name in images}
    lists = [name for name in names if name.lower().endswith(LISTS)]
    lists = [name for name in lists if name.rpartition(".")[0] not in stems]
    of_split = [name for name in lists if name.startswith(task.split)]
    some = [name for name in lists if name == "captions.csv"] or of_split or lists
    if len(some) > 1:
        listed = ", ".join(some[:5])
        raise ValueError(
            f"task {task.name!r}: {data} has several lists, {listed}; name one as data"
        )
    return disk.join(data, some[0]) if some else None


def read_text_files(task: TaskSpec, data: str) -> RawSamples:
    """The images below a folder, and the captions in the text files of their names, a line each."""
    names = disk.names_below(data)
    texts = {name.rpartition("/")[2][:-4]: name for name in names if name.endswith(".txt")}
    images = _images_of(task, data, names)
    stems = [name.rpartition("/")[2].rpartition(".")[0] for name in images]
    if not texts.keys() & {*stems} or len({*stems}) < len(stems):
        raise ValueError(
            f"task {task.name!r}: {data}/captions.csv does not exist; retrieval reads its columns "
            f"file and caption, any one list ({', '.join(LISTS)}; one in another folder is named "
            "as data), a .txt of each image's name, tars, Parquet files or CLIP_benchmark's layout"
        )
    captions = [
        _as_captions(_text_of(disk.join(data, texts[stem]))) if stem in texts else []
        for stem in stems
    ]
    return RawSamples(source=data, images=ImageFiles(data, tuple(images)), captions=captions)


def _rows_of_json(task: TaskSpec, path: str, needs: str) -> Iterator[Row]:
    """The rows of a JSON list of objects, of JSON lines, of a list of PATH, LABEL and NAME for each
    split, of COCO's images and annotations, or of Karpathy's images.
    """
    text, is_lines = _text_of(path), path.lower().endswith(".jsonl")
    first = text.lstrip().partition("\n")[0].strip()
    if is_lines or (isinstance(_literal(first), dict) and first != text.strip()):  # called .json
        try:
            document = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} has a line that is not JSON: {error}") from error
    else:
        document = disk.read_json(path)
    if isinstance(document, dict) and isinstance(document.get(task.split), list):
        document = document[task.split]
    try:
        if isinstance(document, list):
            for each in document:
                named = isinstance(each, dict)
                yield each if named else {"image": each[0], needs: each[-1]}
            return
        images = document["images"]
        if "annotations" in document:
            kinds = {each["id"]: each["name"] for each in document.get("categories", ())}
            file_of = {each["id"]: each["file_name"] for each in images}
            if needs == "caption":  # an image without one is named later
                yield from ({"image": file, needs: []} for file in file_of.values())
            for each in document["annotations"]:
                text = each["caption"] if needs == "caption" else kinds[each["category_id"]]
                yield {"image": file_of[each["image_id"]], needs: text}
            return
        for each in images:
            file = "/".join(filter(None, (each.get("filepath"), each["filename"])))
            captions = [sentence["raw"] for sentence in each["sentences"]]
            yield {"image": file, "caption": captions, "split": each["split"]}
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"task {task.name!r}: {path} is no list of captions of COCO's form (images with id and "
            "file_name, annotations with image_id and caption) or Karpathy's (images with filename,"
            f" split and sentences), nor a list of objects: {error!r}"
        ) from error


def _rows_of_text(path: str, needs: str, notes: list[str]) -> Iterator[tuple[int, Row]]:
    """(line, row) of a table, whose header says how columns are separated, or of lines without.
    What was done to some rows is added to the notes at the end.
    """
    text = _text_of(path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    if LINE.fullmatch(first.strip()):
        for number, line in enumerate(map(str.strip, text.splitlines()), 1):
            if line:
                found = LINE.fullmatch(line)
                rest = found[2] if found else ""
                value = rest if needs == "caption" else re.split(r"[\s,;|]+", rest)[0]
                yield number, {"image": found[1] if found else line, needs: value}
        return
    separator = max(",\t;|", key=first.count)
    quoting: Literal[0, 3] = 0 if separator in ",;" else 3  # csv.QUOTE_MINIMAL, csv.QUOTE_NONE
    stream = io.StringIO(text, newline="")
    skips = separator == "|"  # of Flickr: a blank behind each
    rows = csv.DictReader(stream, delimiter=separator, skipinitialspace=skips, quoting=quoting)
    rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
    joined = 0
    for row in rows:
        if left := row.pop(None, None):  # the last column is a text with the separator
            row[rows.fieldnames[-1]] += separator + separator.join(left)
            joined += 1
        yield rows.line_num, row
    if joined:
        notes.append(
            f"{joined:,} rows of {path} have more than {len(rows.fieldnames)} cells; those behind "
            f"the last column were read as a part of its {rows.fieldnames[-1]!r}"
        )


def _listed_column(
    task: TaskSpec, columns: Sequence[str], what: str, path: str, rows: Sequence[tuple[int, Row]]
) -> str:
    files = ("file", "file_name", "filename", "filepath", "image_name", "image_path", "img_path")
    usual = {"image": files, "caption": ("caption",), "label": ("label",)}[what]
    named = task.columns.get(what)
    there = [name for name in (*usual, *USUAL[what], *MORE.get(what, ())) if name in columns]
    found = named or (there or usual)[0]
    if found not in columns:
        near = disk.did_you_mean(found, columns)
        others = [{str(row.get(name)).strip() for _, row in rows} <= {"0", "1"} for name in columns]
        remedy = f"; name it, as in columns: {{{what}: …}}"
        if what == "label" and sum(others) > 1:
            remedy = NO_LABELS
        if any(len(name) > LONGEST_NAME for name in columns):
            remedy = "; images as text (base64) are not read: write them as files, and name these"
        listed = ", ".join(name[:60] for name in columns[:20])
        raise ValueError(f"{path} has no column {found!r}{near} (of {listed or 'none'}){remedy}")
    return found


# --------------------------------------------------------------------------------------------------
# Parquet files with one image per row: its bytes, or the path of a file beside them.


# Names that are looked for where the task's `columns` does not name one, in lists more of them.
MORE = {
    "caption": ("title", "comment", "sentence", "raw", "prompt"),
    "label": ("class_name", "category", "breed", "species"),
}
USUAL = {
    "image": ("image", "img", "jpg", "png", "webp", "path", "file"),
    "label": ("label", "cls", "class", "fine_label"),
    "caption": ("caption", "captions", "text", "txt", "sentences"),
}


def read_tables(task: TaskSpec, files: Sequence[str], source: str, needs: str) -> RawSamples:
    """The rows of some Parquet files, in their order. `needs` is `label` or `caption`.

    The image column holds bytes, structs with `bytes` (as in Hugging Face's data sets) or paths
    relative to the file's folder. ValueError names a missing column or an empty value.
    """
    schemas = []
    for file in files:
        with open_parquet(file) as opened:
            schemas.append(opened.schema_arrow)
    schema = schemas[0]
    image = _column(task, schema, "image", files[0])
    wanted = _column(task, schema, needs, files[0])
    group = task.columns.get("group")
    if group is not None:
        _column(task, schema, "group", files[0])
    kind = schema.field(image).type
    as_paths = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    columns = [wanted, *([group] if group else []), *([image] if as_paths else [])]
    tables = [disk.read_parquet(file, columns) for file in files]
    names: list[str] = []
    for file, table in zip(files, tables, strict=True):
        base = file.rsplit("/", 1)[-1].removesuffix(".parquet")
        rows = range(len(table))
        names += table[image].to_pylist() if as_paths else [f"{base}/{row}" for row in rows]
    joined = pa.concat_tables([table.select(columns) for table in tables])
    values = joined[wanted].to_pylist()
    if needs == "label":
        values = [
            value[0] if isinstance(value, list) and len(value) == 1 else value for value in values
        ]
    for name, value in zip(names, values, strict=True):
        if value is None:
            raise ValueError(f"task {task.name!r}: {name} of {source} has no {wanted}")
        if needs == "label" and isinstance(value, list):
            raise ValueError(f"task {task.name!r}: {name} has the labels {value}{NO_LABELS}")
    if needs == "label":
        values = [int(x) if isinstance(x, float) and x.is_integer() else x for x in values]
        # Digits are names of classes where the task names none.
        values = _as_labels(values) if task_classes(task) else values
    images = _files(files, tables, image) if as_paths else _bytes(files, image, tuple(names))
    if needs == "caption":
        captions = [_texts(value) for value in values]
        return _one_row_an_image(RawSamples(source=source, images=images, captions=captions))
    return RawSamples(
        source=source,
        images=images,
        labels=values,
        groups=joined[group].to_pylist() if group else None,
        class_names=_class_names(schema, wanted),
    )


def _one_row_an_image(raw: RawSamples) -> RawSamples:
    """Rows of one image and one caption each, of which several may have the same image: that is one
    image with several captions.
    """
    assert raw.captions is not None
    if any(len(texts) != 1 for texts in raw.captions):
        return raw
    keys: Sequence[Any] = raw.images.names
    if isinstance(raw.images, TableImages):
        keys = map_images(raw.images, lambda data: hashlib.sha256(data).digest())
    rows: dict[Any, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    if len(rows) == len(keys):
        return raw
    note = f"{len(keys):,} rows of {raw.source} have {len(rows):,} images, with several captions"
    return dataclasses.replace(
        raw,
        images=ChosenImages(raw.images, tuple(of_image[0] for of_image in rows.values())),
        captions=[[raw.captions[row][0] for row in of_image] for of_image in rows.values()],
        notes=(*raw.notes, note),
    )


def _column(task: TaskSpec, schema: pa.Schema, what: str, path: str) -> str:
    named = task.columns.get(what)
    if named is not None:
        if named in schema.names:
            return named
        raise ValueError(
            f"task {task.name!r}: {path} has no column {named!r}"
            f"{disk.did_you_mean(named, schema.names)} (of {', '.join(schema.names)})"
        )
    for name in USUAL[what]:
        if name in schema.names:
            return name
    raise ValueError(
        f"task {task.name!r}: {path} has no column for the {what} (of {', '.join(schema.names)}); "
        f"name it, as in columns: {{{what}: {schema.names[0]}}}"
    )


def _texts(value: Any) -> list[str]:
    """The captions in a cell, which may be a list as JSON or Python writes it."""
    texts = [value] if isinstance(value, str) else value
    if isinstance(value, str) and re.match(r"\[\s*['\"]", value.strip()):
        listed = _literal(value)
        is_list = isinstance(listed, list) and all(isinstance(each, str) for each in listed)
        texts = listed if is_list else texts
    plain = []
    for text in texts if isinstance(texts, list) else [texts]:
        if isinstance(text, dict):  # as of COCO's sentences
            text = next((text[key] for key in ("raw", "caption", "text") if key in text), text)
        if not isinstance(text, str | None):
            raise ValueError(f"a caption is no text: {value!r:.80}")
        plain.append((text or "").strip())
    return plain


def _files(files: Sequence[str], tables: Sequence[pa.Table], column: str) -> ImageSource:
    """Files that the rows name; all Parquet files must lie in one folder."""
    folders = {file.rpartition("/")[0] for file in files}
    if len(folders) > 1:
        raise ValueError(f"{files[0]} and {files[-1]} name files in different folders")
    names: list[str] = []
    for table in tables:
        names += table[column].to_pylist()
    return ImageFiles(folders.pop(), tuple(names))


def _bytes(files: Sequence[str], column: str, names: tuple[str, ...]) -> ImageSource:
    groups, first = [], 0
    for number, file in enumerate(files):
        with open_parquet(file) as opened:
            for group in range(opened.metadata.num_row_groups):
                count = opened.metadata.row_group(group).num_rows
                groups.append((number, group, first, count))
                first += count
    return TableImages(tuple(files), column, names, tuple(groups))


def _class_names(schema: pa.Schema, column: str) -> tuple[str, ...] | None:
    """The names that Hugging Face's `datasets` writes into the schema of a column of labels."""
    text = (schema.metadata or {}).get(b"huggingface")
    try:
        names = json.loads(text)["info"]["features"][column]["names"] if text else None
    except (ValueError, KeyError, TypeError):
        return None
    # Blanks, as in the names of folders.
    return tuple(str(each).replace("_", " ") for each in names) if isinstance(names, list) else None


# --------------------------------------------------------------------------------------------------
# Tars in WebDataset's layout: the members of a sample share a key and stand side by side.
#
# A sample has one image, and `cls` (a number or a text), `txt` (captions, one per line), `json`
# or `npy`, as the task needs.


IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp")
TEXT_EXTENSIONS = ("cls", "txt", "json", "npy", "label", "class", "caption", "text")
SMALL_MEMBER = 1 << 20  # bytes of the longest member that is no image and is read while scanning
Member = tuple[int, int]  # offset and length
Scanned = tuple[tuple[str, dict[str, Member], dict[str, bytes]], ...]


def read_tars(task: TaskSpec, tars: Sequence[str], source: str, needs: str) -> RawSamples:
    """The samples of some tars, in their order. `needs` is `label` or `caption`.

    ValueError that names the tar and the key for a sample without an image or without what the task
    needs, for a repeated key and for a compressed or cut tar.
    """
    columns = {"label": "cls", "caption": "txt", **task.columns}
    chosen = (columns["image"],) if "image" in columns else IMAGE_EXTENSIONS
    others = {name for what, name in task.columns.items() if what != "image"}
    more = tuple(sorted(name.partition(":")[0] for name in others))
    several = 0
    names: list[str] = []
    members: list[tuple[int, int, int]] = []
    values: list[Any] = []
    groups: list[int | str] = []
    seen: set[str] = set()
    for number, tar in enumerate(tars):
        for key, images, parts in scan_tar(tar, disk.state_of(tar), more):
            where = f"task {task.name!r}: {tar}, sample {key}"
            extension = next((each for each in chosen if each in images), None)
            if extension is None:
                listed = ", ".join(sorted({*images, *parts}))
                raise ValueError(
                    f"{where} has no image ({', '.join(chosen)}), but {listed}; name the image's "
                    "member, as in columns: {image: left.png}, and convert other formats to PNG"
                )
            several += len(set(images) & set(IMAGE_EXTENSIONS)) > 1 and "image" not in columns
            name = f"{key}.{extension}"
            if name in seen:
                raise ValueError(f"{where} is there twice; keys must differ over all tars")
            seen.add(name)
            names.append(name)
            members.append((number, *images[extension]))
            values.append(_value(parts, columns[needs], where, VALUE_OF[needs]))
            if "group" in columns:
                groups.append(_value(parts, columns["group"], where, _as_group))
    if not names:
        raise ValueError(f"task {task.name!r}: {source} has no samples")
    images_of_tars = TarImages(tuple(tars), tuple(names), tuple(members))
    return RawSamples(
        source=source,
        images=images_of_tars,
        labels=_as_labels(values) if needs == "label" else None,
        captions=values if needs == "caption" else None,
        groups=groups or None,
        notes=(
            (f"{several:,} samples of {source} have several images, of which the first of "
             f"{', '.join(IMAGE_EXTENSIONS)} is read; columns: {{image: …}} names another",)
            if several else ()
        ),
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def scan_tar(path: str, state: tuple[int, ...], more: tuple[str, ...] = ()) -> Scanned:
    """(key, images and members of unknown kinds by extension, other members' bytes by extension)
    of each sample; the bytes of `more` extensions too, where they are short.

    The `state` is there for the cache. ValueError for what is no plain tar.
    """
    samples: list[tuple[str, dict[str, Member], dict[str, bytes]]] = []
    try:
        with _open(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                folder, _, base = member.name.rpartition("/")
                stem, _, extension = base.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                extension = extension.lower()
                if not samples or samples[-1][0] != key:
                    samples.append((key, {}, {}))
                _, images, parts = samples[-1]
                if extension not in TEXT_EXTENSIONS:
                    images[extension] = (member.offset_data, member.size)
                if extension in (*TEXT_EXTENSIONS, *more) and member.size <= SMALL_MEMBER:
                    content = tar.extractfile(member)
                    assert content is not None
                    parts[extension] = content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"{path} is no plain tar, or it is cut: {error}") from error
    return tuple(samples)


def _open(path: str) -> BinaryIO:
    if disk.is_url(path):
        return io.BytesIO(disk.read_bytes(path))
    disk.check_regular(disk.local_path(path))
    return open(disk.local_path(path), "rb")


# --- members --------------------------------------------------------------------------------------


def _value(
    parts: dict[str, bytes], column: str, where: str, convert: Callable[[object], object]
) -> Any:
    """The value of EXTENSION, or of EXTENSION:FIELD of a JSON or npy member."""
    extension, _, field = column.partition(":")
    if extension not in parts:
        listed = ", ".join(parts) or "no other member"
        many = NO_LABELS if extension == "cls" and "npy" in parts else ""
        raise ValueError(f"{where} has no member .{extension} (beside the image: {listed}){many}")
    try:
        data = parts[extension]
        if extension == "json":
            content = json.loads(data)
            return convert(content[field] if field else content)
        if extension == "npy":
            array = np.load(io.BytesIO(data), allow_pickle=False)
            return convert(array.reshape(-1)[int(field)].item() if field else array.item())
        return convert(data.decode())
    except (*NUMPY_ERRORS, IndexError, TypeError) as error:
        raise ValueError(f"{where}: {column} cannot be read ({error!r})") from error


def _as_label(value: object) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"a label is a number or a text, not {value!r}")
    return value.strip() if isinstance(value, str) else value


def _as_captions(value: object) -> list[str]:
    texts = value
    if isinstance(value, str):  # a blank line is no caption
        texts = [line for line in value.splitlines() if line.strip()]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"captions are texts, not {value!r}")
    return [text.strip() for text in texts]


def _as_group(value: object) -> Any:
    return value.strip() if isinstance(value, str) else value


VALUE_OF: dict[str, Callable[[Any], Any]] = {"label": _as_label, "caption": _as_captions}


def _as_labels(values: Sequence[int | str]) -> list[int | str]:
    """Texts that are all whole numbers as numbers."""
    if all(isinstance(value, int) or str(value).isdecimal() for value in values):
        return [int(value) for value in values]
    return list(values)


# --------------------------------------------------------------------------------------------------
# CLIP_benchmark's webdataset layout, read and written.
#
# DATA/classnames.txt                          one class per line (classification)
# DATA/zeroshot_classification_templates.txt   one template per line, with {c} for the class
# DATA/dataset_type.txt                        `retrieval`; missing for classification
# DATA/SPLIT/nshards.txt                       the number of tars
# DATA/SPLIT/0.tar …                           {key}.webp|jpg|png with {key}.cls (a number), or
#                                              {key}.txt with one caption per line


CLASSES_FILE = "classnames.txt"
TEMPLATES_FILE = "zeroshot_classification_templates.txt"
TYPE_FILE, COUNT_FILE = "dataset_type.txt", "nshards.txt"
TAR_SAMPLES = 10_000
logger = logging.getLogger(__name__)


def is_benchmark_layout(data: str, split: str) -> bool:
    """Whether a folder is in this layout, be it complete or not."""
    paths = [CLASSES_FILE, TYPE_FILE, TEMPLATES_FILE, f"{split}/{COUNT_FILE}", f"{split}/0.tar"]
    return any(disk.exists(disk.join(data, path)) for path in paths)


def read_benchmark(task: TaskSpec, data: str, split: str, needs: str) -> RawSamples:
    """A split of a folder in this layout.

    ValueError for a missing nshards.txt or tar, a count that is not that of the tars, and for a
    folder of another type than the task.
    """
    type_path = disk.join(data, TYPE_FILE)
    stated = disk.read_bytes(type_path).decode().strip().lower() if disk.exists(type_path) else ""
    kind = stated or "classification"
    expected = "retrieval" if needs == "caption" else "classification"
    if kind != expected:
        raise ValueError(f"task {task.name!r} is for {expected}, but {type_path} says {kind!r}")
    tars = _tars(task, data, split)
    raw = read_tars(task, tars, f"{data} ({split})", needs)
    if needs == "caption":
        return raw
    own = {name: disk.join(data, name) for name in (CLASSES_FILE, TEMPLATES_FILE)}
    return dataclasses.replace(
        raw,
        class_names=read_classes(own[CLASSES_FILE]) if disk.exists(own[CLASSES_FILE]) else None,
        templates=read_templates(own[TEMPLATES_FILE]) if disk.exists(own[TEMPLATES_FILE]) else None,
    )


def _tars(task: TaskSpec, data: str, split: str) -> list[str]:
    folder = disk.join(data, split)
    count_path = disk.join(folder, COUNT_FILE)
    if not disk.exists(folder):
        splits = [name for name in disk.list_names(data) if "." not in name]
        raise ValueError(
            f"task {task.name!r}: {data} has no split {split!r}{disk.did_you_mean(split, splits)} "
            f"(of {', '.join(splits) or 'none'}); set "
            f"{'split' if split == task.split else 'train_split, or train_data'}"
        )
    present = disk.list_names(folder, ".tar")
    if not disk.exists(count_path):
        raise ValueError(
            f"task {task.name!r}: {count_path} is missing; it holds the number of tars "
            f"({len(present)} are there)"
        )
    text = disk.read_bytes(count_path).decode().strip()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{count_path} says {text!r}; it must hold the number of tars")
    tars = [f"{number}.tar" for number in range(int(text))]
    if sorted(tars) != present:
        if packed := disk.list_names(folder, ".tar.gz"):
            raise ValueError(f"task {task.name!r}: {disk.join(folder, packed[0])} must be unpacked")
        wrong = sorted(set(tars) ^ set(present))
        raise ValueError(
            f"task {task.name!r}: {count_path} says {text} tars, but {folder} has {len(present)} "
            f"({wrong[0]} is {'missing' if wrong[0] in tars else 'not counted'}); copy it again"
        )
    return [disk.join(folder, tar) for tar in tars]


# --- writing --------------------------------------------------------------------------------------


def write_benchmark(samples: Samples, out: str, split: str = "test") -> int:
    """Write samples in this layout. Returns the number of images.

    The bytes of the images stay as they are; the keys are s0000000 and so on. nshards.txt is
    written last. ValueError for a folder that is not empty and for images in other formats.
    """
    if disk.list_names(disk.join(out, split)):
        raise ValueError(f"{disk.join(out, split)} exists and is not empty; choose a new folder")
    if samples.captions:
        _write_text(disk.join(out, TYPE_FILE), ["retrieval"])
    elif samples.own_prompts:
        raise ValueError(f"{out}: this layout has no prompts of single classes; set templates")
    else:
        _write_text(disk.join(out, CLASSES_FILE), samples.classes)
        templates = [template.replace("{}", "{c}") for template in samples.templates]
        _write_text(disk.join(out, TEMPLATES_FILE), templates)
    captions_of: list[list[str]] = [[] for _ in samples.files]
    for image, caption in samples.matches:
        captions_of[image].append(samples.captions[caption])
    starts = range(0, len(samples.files), TAR_SAMPLES)
    for number, start in enumerate(starts):
        stop = min(start + TAR_SAMPLES, len(samples.files))
        data = _tar_bytes(samples, captions_of, range(start, stop))
        disk.write_bytes(disk.join(out, split, f"{number}.tar"), data)
    _write_text(disk.join(out, split, COUNT_FILE), [str(len(starts))])
    logger.info("%d images in %d tars: %s", len(samples.files), len(starts), out)
    return len(samples.files)


def _write_text(path: str, lines: list[str] | tuple[str, ...]) -> None:
    for line in lines:
        if "\n" in line or (not line.strip() and line == lines[-1]):
            raise ValueError(f"{path}: {line!r} is not one line of text")
    data = "".join(f"{line}\n" for line in lines).encode()
    if disk.exists(path) and disk.read_bytes(path) != data:
        raise ValueError(f"{path} exists with another content; choose a new folder")
    disk.write_bytes(path, data)


def _tar_bytes(samples: Samples, captions_of: list[list[str]], indices: range) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for rows in batch_rows(len(indices)):
            first, last = indices[rows.start], indices[rows.stop - 1]
            for index, read in enumerate(samples.images.readers(first, last + 1), first):
                data = read()
                try:
                    suffix = image_suffix(data)
                except ValueError as error:
                    raise ValueError(f"{samples.images.path(index)}: {error}") from error
                key = f"s{index:07d}"
                if samples.captions:
                    # A caption with a line break would be read as two.
                    lines = [" ".join(caption.splitlines()) for caption in captions_of[index]]
                    text = (f"{key}.txt", "\n".join(lines).encode())
                else:
                    text = (f"{key}.cls", str(samples.labels[index]).encode())
                for name, content in ((f"{key}.{suffix}", data), text):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return sink.getvalue()


# --------------------------------------------------------------------------------------------------
# The format of a task's data, and its samples.


# Words of names for one split -> its usual name.
SPLITS = {
    "train": "train", "training": "train", "test": "test", "testing": "test", "dev": "validation",
    "val": "validation", "valid": "validation", "validation": "validation",
}  # fmt: skip
SHARD = re.compile(r"(.+)-\d+-of-\d+\.\w+")  # of Hugging Face's files


def split_of(name: str) -> str:
    """The split that a file's or folder's name has; "" where it has none."""
    shard = SHARD.fullmatch(name)
    words = re.split(r"[-_.\d]+", name.lower())
    found = [SPLITS[word] for word in words if word in SPLITS]
    return found[0] if len(set(found)) == 1 else shard[1] if shard else ""


def of_split(
    task: TaskSpec, data: str, names: Sequence[str], split: str
) -> tuple[list[str], tuple[str, ...]]:
    """The names of a split; all where none has one, or all have the same, with a note on another.

    ValueError where names have several splits, and none has this one.
    """
    wanted, splits = SPLITS.get(split.lower(), split), {split_of(name): name for name in names}
    chosen = [name for name in names if split_of(name) == wanted]
    if not chosen and len(splits) > 1:
        listed = ", ".join(sorted(filter(None, splits)))
        key = "split" if split == task.split else "train_split"
        raise ValueError(
            f"task {task.name!r}: {data} has no split {split!r} (of {listed}); set {key}"
        )
    others = [] if chosen else [each for each in splits if each]
    notes = [f"all files of {data} are of the split {each!r}, none of {split!r}" for each in others]
    return chosen or list(names), tuple(notes)


def read_raw(task: TaskSpec, data: str, split: str, needs: str) -> RawSamples:
    """What lies at `data`: a tar or a Parquet file, CLIP_benchmark's layout, a folder of tars (such
    as the shards of a pool) or of Parquet files, or folders of images; of folders that are splits
    that of `split`. `needs` is `label` or `caption`. ValueError names what is missing.
    """
    if not disk.exists(data):
        raise ValueError(f"task {task.name!r}: there is no folder {data}")
    is_file = not disk.is_folder(data)
    if not is_file:
        disk.check_not_saved(data, disk.list_names(data))
    if is_file and data.endswith(".tar"):
        return read_tars(task, [data], data, needs)
    if is_file and data.endswith(".parquet"):
        return read_tables(task, [data], data, needs)
    if is_file and data.lower().endswith(LISTS):
        return read_list(task, data, needs)
    if is_benchmark_layout(data, split):
        return read_benchmark(task, data, split, needs)
    if needs == "caption" and disk.exists(disk.join(data, "captions.csv")):
        return read_list(task, disk.join(data, "captions.csv"), needs)
    for folder in (data, disk.join(data, "shards")):
        if tars := committed_tars(folder):
            names = [tar.rpartition("/")[2] for tar in tars]
            names, notes = of_split(task, folder, names, split)
            raw = read_tars(task, [disk.join(folder, tar) for tar in names], folder, needs)
            return dataclasses.replace(raw, notes=(*raw.notes, *notes))
    if tables := disk.list_names(data, ".parquet"):
        tables, notes = of_split(task, data, tables, split)
        raw = read_tables(task, [disk.join(data, name) for name in tables], data, needs)
        return dataclasses.replace(raw, notes=(*raw.notes, *notes))
    names = disk.list_names(data)
    inner = [name for name in names if SPLITS.get(name.lower()) == SPLITS.get(split, split)]
    lists = [name for name in names if name.lower().endswith((*LISTS, *IMAGE_SUFFIXES))]
    if "data" in names and disk.list_names(disk.join(data, "data"), ".parquet"):
        return read_raw(task, disk.join(data, "data"), split, needs)  # a repository of a hub
    if inner and not lists and all("." in name or name.lower() in SPLITS for name in names):
        return read_raw(task, disk.join(data, inner[0]), split, needs)
    if needs == "label":
        return read_class_folders(task, data)
    of_images = list_in(task, data)
    return read_list(task, of_images, needs) if of_images else read_text_files(task, data)


def committed_tars(folder: str) -> list[str]:
    """The tars of a folder; if one has a commit record (NAME_stats.json), only those with one."""
    names = disk.list_names(folder)
    tars = [name for name in names if name.endswith(".tar")]
    records = {name.removesuffix("_stats.json") for name in names if name.endswith("_stats.json")}
    if records:
        tars = [name for name in tars if name.removesuffix(".tar") in records]
    return [disk.join(folder, name) for name in tars]


def read_labelled(task: TaskSpec) -> Samples:
    """The samples of a classification task."""
    return labelled_samples(task, read_raw(task, task.data, task.split, "label"))


def read_captioned(task: TaskSpec) -> Samples:
    """The samples of a retrieval task."""
    return captioned_samples(task, read_raw(task, task.data, task.split, "caption"))


def read_probe(task: TaskSpec) -> Samples:
    """The samples of a linear probe: those of the test data, with the training data as `train`.

    Both must have the same classes. ValueError where they do not, and where test and training data
    are the same split of the same folder.
    """
    train_data = task.train_data or task.data
    if (train_data, task.train_split) == (task.data, task.split):
        raise ValueError(
            f"task {task.name!r}: test and training data are both {task.split!r} of {task.data}; "
            "set train_data or train_split"
        )
    test = labelled_samples(task, read_raw(task, task.data, task.split, "label"))
    train = labelled_samples(task, read_raw(task, train_data, task.train_split, "label"))
    if test.classes != train.classes:
        different = sorted(set(test.classes) ^ set(train.classes))
        raise ValueError(
            f"task {task.name!r}: {train_data} has other classes than {task.data} "
            f"({', '.join(different[:5]) or 'another order'})"
        )
    return dataclasses.replace(test, train=train)
