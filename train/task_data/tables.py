"""Parquet files with one image per row: its bytes, or the path of a file beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from manifests import disk
from manifests.schema import TaskSpec
from train.task_data.images import ImageFiles, ImageSource, TableImages, open_parquet
from train.task_data.samples import RawSamples

# Names that are looked for where the task's `columns` does not name one.
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
    if None in values:
        raise ValueError(
            f"task {task.name!r}: {names[values.index(None)]} of {source} has no {wanted}"
        )
    images = _files(files, tables, image) if as_paths else _bytes(files, image, tuple(names))
    return RawSamples(
        source=source,
        images=images,
        labels=values if needs == "label" else None,
        captions=[_texts(value) for value in values] if needs == "caption" else None,
        groups=joined[group].to_pylist() if group else None,
        class_names=_class_names(schema, wanted) if needs == "label" else None,
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
    texts = [value] if isinstance(value, str) else value
    return [text.strip() for text in texts if text and text.strip()]


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
    return tuple(names) if isinstance(names, list) else None
