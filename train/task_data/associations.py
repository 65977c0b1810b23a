"""Parquet files with a cue, candidate images and the right ones of them in each row (WinoGAViL)."""

from __future__ import annotations

import pyarrow as pa

from manifests import disk
from manifests.schema import TaskSpec
from train.task_data.images import TableImages, open_parquet
from train.task_data.samples import Samples

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
    if not task.data.endswith(".parquet"):
        names = disk.list_names(task.data, ".parquet")
        of_split = [name for name in names if name.startswith(f"{task.split}-")]
        files = [disk.join(task.data, name) for name in of_split or names]
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
