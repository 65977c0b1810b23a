"""Results in the files that people have, as one table of measurements.

Long tables (a row for each value), wide ones (a column for each task), JSON of CLIP_benchmark,
lm-eval and DataComp, and results.json of clipmill. Which column is what is told or guessed; every
guess is a note.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Record = dict[str, Any]

ENDINGS = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json")
ROLES = (
    "arm",
    "seed",
    "task",
    "metric",
    "value",
    "scale",
    "samples",
    "higher_is_better",
    "per_sample",
)
# Names of columns, the likeliest first. Two columns may name an arm together.
SYNONYMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "arm": (
        ("arm",),
        ("variant",),
        ("treatment",),
        ("recipe",),
        ("method",),
        ("model", "pretrained"),
        ("name", "pretrained"),
        ("group",),
        ("run_name",),
        ("name",),
        ("run",),
        ("run_id",),
        ("model_name",),
        ("model",),
        ("pretrained",),
        ("index",),
    ),
    "seed": (("seed",), ("random_seed",), ("train_seed",), ("replicate",), ("trial",)),
    "task": (("task_name",), ("dataset",), ("task",), ("benchmark",), ("test_set",), ("key",)),
    "metric": (("metric",), ("metric_name",), ("measure",)),
    "value": (("value",), ("score",), ("result",), ("metric_value",)),
    "scale": (("samples_seen",), ("tokens_seen",), ("scale",), ("tokens",), ("compute",)),
    "samples": (("n_samples",), ("num_samples",), ("test_size",), ("test_samples",), ("n",)),
    "higher_is_better": (("higher_is_better",), ("greater_is_better",), ("direction",)),
    "per_sample": (("per_sample",), ("correct",)),
}
# Columns of wide tables that describe a run.
SETTINGS = re.compile(
    r"(\w+_)?(params|flops|macs|learning_rate|weight_decay|batch_size|runtime|timestamp|stderr)(_\w+)?|"
    r"(\w+_)?(steps?|epochs?|iterations?|created|uuid|image_size|samples_seen|tokens|warmup)|"
    r"index|id|rank|world_size|lr|wd|date|time|width|layers"
)
AVERAGES = re.compile(r"(^|_)(average|avg|mean|macro|overall|aggregated)(_|$)")
LOWER = re.compile(
    r"(^|_)(loss|nll|perplexity|ppl|error|err|bpb|bits|rank|mean_rank|fid|wer|mse|mae|ece)(_|$)"
)
# Metrics that are shares of samples, also where a table has them as percentages.
SHARES = re.compile(
    r"(^|_)(acc|accuracy|acc\d|top_?\d|recall|precision|f1|map|em|exact_match)(_|$)"
)
# Headline metrics, the likeliest first.
HEADLINES = (
    "main_metric",
    "accuracy",
    "acc1",
    "acc",
    "top1",
    "acc_norm",
    "exact_match",
    "mean_recall_at_1",
    "image_retrieval_recall_5",
    "mean_average_precision",
)
SEED_IN_NAME = re.compile(r"^(?P<arm>.+?)[-_./ ]*(?:seed|rng)[-_=]?(?P<seed>\d+)$", re.IGNORECASE)
TRACKED = re.compile(r"^(?P<run>.+) - (?P<metric>.+?)(?<!__MIN)(?<!__MAX)$")
SIZES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
WORDS = ("tiny", "xs", "s", "small", "m", "medium", "l", "large", "xl", "xlarge", "xxl")


class Measurement(NamedTuple):
    """One value of one run. scale: how large the run was, in any unit; 0 where all are alike.

    samples: of the test set, 0 where it is not known. higher: whether more is better, None where
    the file does not say. per_sample: the values whose mean is the value, where the file has them.
    """

    arm: str
    seed: int
    task: str
    metric: str
    value: float
    scale: float = 0.0
    samples: int = 0
    higher: bool | None = None
    per_sample: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What the user says of the columns: names for each role, and a pattern of the arms' names.

    where: (column, value) of the rows that count; several values of one column are alternatives.
    pattern: a regular expression with the groups arm and, as they are there, arm2 (which is joined
    to it), seed, scale and task.
    """

    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    where: tuple[tuple[str, str], ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All measurements, the names of the scales, and what was guessed or left out.

    is_numbered: the seeds are the order of rows.
    """

    rows: tuple[Measurement, ...]
    scales: dict[float, str]
    notes: tuple[str, ...]
    is_numbered: bool


def read_results(paths: Sequence[str], columns: Columns = Columns()) -> Results:
    """The measurements of files and folders. ValueError where they are no results, in one line."""
    notes: list[str] = []
    records = _chosen(_records(paths), columns.where)
    if not records:
        raise ValueError(f"{', '.join(paths)}: there is no row")
    roles = _roles(records, columns, notes)
    long = _lengthen(records, roles, notes)
    named = _named(long, roles, columns, notes)
    scales = _scale_numbers(row["scale"] for row in named)
    is_numbered = _number_seeds(named, notes)
    rows = _measurements(named, scales, notes)
    return Results(
        rows=tuple(rows),
        scales={number: text for text, number in scales.items()},
        notes=tuple(notes),
        is_numbered=is_numbered,
    )


# --- files to records -----------------------------------------------------------------------------


def _records(paths: Sequence[str]) -> list[Record]:
    """The rows of all files, each with the key `file` where there are several."""
    files: list[Path] = []
    for path in paths:
        if os.path.isdir(path):
            there = sorted(one for one in Path(path).rglob("*") if one.suffix in ENDINGS)
            files += [one for one in there if not one.name.startswith("samples_")]  # of lm-eval
        elif os.path.exists(path):
            files.append(Path(path))
        else:
            raise FileNotFoundError(f"{path} does not exist")
    if not files:
        raise ValueError(f"{', '.join(paths)}: no file ends in {', '.join(ENDINGS)}")
    records: list[Record] = []
    for file, label in zip(files, _labels(files), strict=True):
        try:
            rows = _rows_of(file)
        except (ValueError, UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{file}: {error}") from None
        for row in rows:
            flat = _flat(row)
            flat.setdefault("file", label)
            records.append(flat)
    return records


def _chosen(records: list[Record], where: Sequence[tuple[str, str]]) -> list[Record]:
    """The records that `where` chooses."""
    told: dict[str, set[str]] = {}
    for name, value in where:
        if not any(name in row for row in records):
            raise ValueError(f"--where {name}={value}: there is no column {name!r}")
        told.setdefault(name, set()).add(value)
    for name, values in told.items():
        records = [row for row in records if str(row.get(name)) in values]
    return records


def _labels(files: Sequence[Path]) -> list[str]:
    """A short name of each file: its path without what all paths begin and end with."""
    parts = [[*path.parts[:-1], path.stem] for path in files]
    if len(files) == 1:
        return [parts[0][-1]]
    start = _shared(parts)
    end = _shared([each[::-1] for each in parts])
    labels = []
    for each in parts:
        kept = each[start : len(each) - end] or each[-1:]
        labels.append("/".join(kept))
    return labels


def _shared(rows: Sequence[Sequence[str]]) -> int:
    """How many first items all rows have in common."""
    alike = [len(set(items)) == 1 for items in zip(*rows, strict=False)]
    return alike.index(False) if False in alike else len(alike)


def _rows_of(path: Path) -> Iterable[Record]:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        rows: list[Record] = parquet.read_table(path).to_pylist()
        return rows
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix in (".csv", ".tsv"):
        return _csv_rows(text, path.suffix)
    if path.suffix == ".json":
        return _json_rows(json.loads(text))
    return _json_rows([json.loads(line) for line in text.splitlines() if line.strip()])


def _csv_rows(text: str, suffix: str) -> list[Record]:
    header = text.split("\n", 1)[0]
    delimiter = "\t" if suffix == ".tsv" else max(",;\t", key=header.count)
    rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter))
    for number, row in enumerate(rows, 2):
        if None in row:
            raise ValueError(f"row {number} has more fields than the header")
    if rows and "Step" in rows[0] and any(TRACKED.match(name) for name in rows[0]):
        return _tracked_rows(rows)
    if delimiter == ";":  # where a comma is the decimal point
        for row in rows:
            for key, cell in row.items():
                if re.fullmatch(r"\s*-?\d+,\d+\s*", cell or ""):
                    row[key] = cell.replace(",", ".")
    return rows


def _tracked_rows(rows: Sequence[Record]) -> list[Record]:
    """W&B's export of a chart, `RUN - METRIC` by step: the last value of each run and metric."""
    last: dict[str, str] = {}
    for row in rows:
        last |= {name: cell for name, cell in row.items() if not _is_empty(cell)}
    found = [(TRACKED.match(name), cell) for name, cell in last.items()]
    return [{"run": m["run"], "task": m["metric"], "value": cell} for m, cell in found if m]


def _json_rows(document: Any) -> list[Record]:
    """The rows of a document: lm-eval's, clipmill's results.json, a list, or one row."""
    if isinstance(document, list):
        rows = []
        for row in document:
            if not isinstance(row, dict):
                raise ValueError(f"an item is no object: {str(row)[:40]!r}")
            rows.append(row)
        return rows
    if not isinstance(document, dict):
        raise ValueError("it holds neither an object nor a list of objects")
    if isinstance(document.get("runs"), dict) and "ablation_hash" in document:
        return _own_rows(document["runs"])
    results = document.get("results")
    if isinstance(results, dict) and all(isinstance(each, dict) for each in results.values()):
        return _lm_eval_rows(document, results)
    return [document]


def _own_rows(runs: Mapping[str, Any]) -> list[Record]:
    rows = []
    for arm, seeds in runs.items():
        for seed, tasks in seeds.items():
            for task, metrics in tasks.items():
                rows.append({"arm": arm, "seed": seed, "task": task, "metrics": metrics})
    return rows


def _lm_eval_rows(document: Record, results: Mapping[str, Any]) -> list[Record]:
    """One row for each task, metric and filter of lm-eval; its groups are left out."""
    config = document.get("config") or {}  # its random_seed is of the evaluation, not of training
    arm = document.get("model_name") or config.get("model_args")
    directions = document.get("higher_is_better") or {}
    groups = document.get("groups") or {}
    sizes = document.get("n-samples") or {}
    rows = []
    for task, metrics in results.items():
        if task in groups:
            continue
        for name, value in metrics.items():
            metric, _, part = name.partition(",")
            if metric.endswith("_stderr") or not _is_number(value):
                continue
            row = {"task": task, "metric": metric, "value": value}
            row |= {} if part in ("", "none") else {"metric": f"{metric} ({part})"}
            row |= {"arm": str(arm)} if arm else {}
            higher = (directions.get(task) or {}).get(metric)
            row |= {"higher_is_better": higher} if higher is not None else {}
            size = (sizes.get(task) or {}).get("effective")
            row |= {"n_samples": size} if size else {}
            rows.append(row)
    return rows


def _flat(row: Record) -> Record:
    """A row without nesting, but for `metrics`: {"config": {"seed": 1}} has the key config.seed."""
    flat: Record = {}
    for key, value in row.items():
        if isinstance(value, dict) and key != "metrics":
            flat |= {f"{key}.{inner}": each for inner, each in _flat(value).items()}
        else:
            flat[key] = value
    return flat


# --- which column is what -------------------------------------------------------------------------


def plain_name(name: str) -> str:
    """A column's name in lower case, words joined by _, without the prefixes of trackers."""
    text = re.sub(r"^(config|summary|params|hparams|args)[./]", "", name.lower())
    return re.sub(r"[^a-z0-9]+", "_", text).strip("_")


def _roles(
    records: Sequence[Record], columns: Columns, notes: list[str]
) -> dict[str, tuple[str, ...]]:
    """{role: its columns}, as told or guessed."""
    names = list(dict.fromkeys(key for row in records for key in row))
    unknown = [one for told in columns.names.values() for one in told if one not in names]
    if unknown:
        shown = ", ".join(str(name) for name in names[:40])
        raise ValueError(f"there is no column {unknown[0]!r} (of {shown})")
    roles = dict(columns.names)
    taken = {name for told in roles.values() for name in told}
    plain: dict[str, str] = {}
    for name in names:
        plain.setdefault(plain_name(str(name)), name)
    for role in ROLES:
        if role in roles:
            continue
        for together in SYNONYMS[role]:
            found = tuple(plain[one] for one in together if one in plain)
            if len(found) == len(together) and not taken & set(found):
                roles[role] = found
                taken |= set(found)
                break
    several_files = len({row["file"] for row in records}) > 1
    if "arm" not in roles:
        roles["arm"] = ("file",)
    if "value" in roles and not _some_number(records, roles["value"][0]):
        del roles["value"]
    for role, told in roles.items():
        if role not in columns.names:
            notes.append(f"{role}: column {' + '.join(map(repr, told))}")
    if roles["arm"] == ("file",):
        notes[-1:] = [] if "arm" in columns.names else ["arm: the name of the file"]
    elif several_files and len({_text(row, roles["arm"]) for row in records}) == 1:
        notes.append("arm: the name of the file, as its column has one value everywhere")
        roles["arm"] = ("file",)
    return roles


def _some_number(records: Sequence[Record], name: str) -> bool:
    return any(_number(row.get(name)) is not None for row in records)


def _lengthen(
    records: Sequence[Record], roles: dict[str, tuple[str, ...]], notes: list[str]
) -> list[Record]:
    """One record for each value."""
    if any(isinstance(row.get("metrics"), dict) for row in records):
        long = []
        for row in records:
            rest = {key: value for key, value in row.items() if key != "metrics"}
            for metric, value in (row.get("metrics") or {}).items():
                if _is_number(value):
                    long.append(rest | {"metric": metric, "value": value})
        roles |= {"metric": ("metric",), "value": ("value",)}
        return long
    if "value" in roles:
        return list(records)
    return _melt(records, roles, notes)


def _melt(
    records: Sequence[Record], roles: dict[str, tuple[str, ...]], notes: list[str]
) -> list[Record]:
    """Wide tables: each numeric column is a task, or a metric where a column names the task."""
    used = {name for told in roles.values() for name in told} | {"file"}
    names = list(dict.fromkeys(key for row in records for key in row if key not in used))
    kept: list[str] = []
    settings: list[str] = []
    for name in names:
        numbers = [x for row in records if (x := _number(row.get(name))) is not None]
        given = sum(not _is_empty(row.get(name)) for row in records)
        if not numbers or len(numbers) < given:
            continue
        is_setting = SETTINGS.fullmatch(plain_name(str(name))) is not None
        (settings if is_setting else kept).append(name)
    if not kept:
        raise ValueError(
            "there is no column of values: name it with --value, or the tasks' columns with --task "
            f"(columns: {', '.join(map(str, names[:40]))})"
        )
    what = "metric" if "task" in roles else "task"
    notes.append(f"{what}: each of {len(kept)} numeric columns")
    if settings:
        notes.append(f"left out as settings: {', '.join(map(str, settings))}")
    roles |= {what: (what,), "value": ("value",)}
    long = []
    for row in records:
        rest = {key: row[key] for key in used if key in row}
        for name in kept:
            if not _is_empty(row.get(name)):
                long.append(rest | {what: name, "value": row[name]})
    return long


# --- arms, seeds and scales -----------------------------------------------------------------------


def _text(row: Record, names: Sequence[str]) -> str:
    return " ".join(str(row[name]).strip() for name in names if not _is_empty(row.get(name)))


def _named(
    long: Sequence[Record],
    roles: Mapping[str, tuple[str, ...]],
    columns: Columns,
    notes: list[str],
) -> list[Record]:
    """Records with the keys of ROLES as texts; "" where there is nothing."""
    rows = []
    for row in long:
        named: Record = {role: _text(row, roles.get(role, ())) for role in ROLES}
        named["value"] = row[roles["value"][0]]
        named["per_sample"] = row.get(roles["per_sample"][0]) if "per_sample" in roles else None
        rows.append(named)
    if columns.pattern is not None:
        _apply_pattern(rows, columns.pattern)
    elif not any(row["seed"] for row in rows):
        arms = {row["arm"] for row in rows}
        found = {arm: match for arm in arms if (match := SEED_IN_NAME.match(arm))}
        if len(found) == len(arms):
            for row in rows:
                row["seed"], row["arm"] = found[row["arm"]]["seed"], found[row["arm"]]["arm"]
            notes.append("seed: the end of the arm's name")
    if not any(row["arm"] for row in rows):
        raise ValueError("no row names an arm: give the column with --arm")
    return [row for row in rows if row["arm"]]


def _apply_pattern(rows: list[Record], pattern: str) -> None:
    """Keeps the rows whose arm the pattern matches, and takes its groups."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"--pattern {pattern!r}: {error}") from None
    groups = set(compiled.groupindex)
    if "arm" not in groups or not groups <= {"arm", "arm2", "seed", "scale", "task"}:
        raise ValueError(
            f"--pattern {pattern!r} needs a group (?P<arm>…), and may have arm2, seed, scale, task"
        )
    kept = []
    for row in rows:
        if match := compiled.search(row["arm"]):
            found = {key: value or "" for key, value in match.groupdict().items()}
            second = found.pop("arm2", "")
            found["arm"] += f"_{second}" if second else ""
            kept.append(row | found)
    if not kept:
        raise ValueError(f"--pattern {pattern!r} matches no arm, such as {rows[0]['arm']!r}")
    rows[:] = kept


def _scale_numbers(texts: Iterable[str]) -> dict[str, float]:
    """{text: number} of the scales, in their order: 12.8M, 1e9, small, medium, as they come."""
    seen = list(dict.fromkeys(texts))
    if seen == [""]:
        return {"": 0.0}
    numbers = {}
    for text in seen:
        match = re.fullmatch(r"([\d.,_]+(?:e[+-]?\d+)?)\s*([kmbgt]?)\w*", text.strip().lower())
        if match is None or (number := _number(match[1].replace("_", ""))) is None:
            break
        numbers[text] = number * SIZES.get(match[2], 1.0)
    else:
        return numbers
    if all(text.lower() in WORDS for text in seen):
        seen.sort(key=lambda text: WORDS.index(text.lower()))
    return {text: float(place) for place, text in enumerate(seen, 1)}


def _number_seeds(rows: list[Record], notes: list[str]) -> bool:
    """Seeds as whole numbers. Whether they are only the order of the rows."""
    texts = sorted({row["seed"] for row in rows if row["seed"]})
    if texts:
        numbers = [_number(text) for text in texts]
        is_whole = all(number is not None and number == int(number) for number in numbers)
        of_text = {text: int(float(text)) if is_whole else i for i, text in enumerate(texts)}
        for row in rows:
            row["seed"] = of_text.get(row["seed"], 0)
        return False
    seen: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        key = (row["arm"], row["task"], row["metric"], row["scale"])
        row["seed"] = seen[key]
        seen[key] += 1
    is_numbered = max(seen.values()) > 1
    if is_numbered:
        notes.append("seed: no column says it; rows of one arm are its runs, in their order")
    return is_numbered


# --- records to measurements ----------------------------------------------------------------------


def _measurements(
    rows: Sequence[Record], scales: Mapping[str, float], notes: list[str]
) -> list[Measurement]:
    kept: dict[tuple[str, int, str, str, float], Measurement] = {}
    unreadable = 0
    for row in rows:
        value = _number(row["value"])
        if value is None:
            unreadable += not _is_empty(row["value"])
            continue
        samples = _number(row["samples"])
        of_samples = row["per_sample"] if isinstance(row["per_sample"], list) else None
        one = Measurement(
            arm=row["arm"],
            seed=row["seed"],
            task=row["task"] or "task",
            metric=row["metric"] or "value",
            value=value,
            scale=scales[row["scale"]],
            samples=int(samples) if samples and samples >= 2 else len(of_samples or ()),
            higher=_direction(row["higher_is_better"]),
            per_sample=None if of_samples is None else np.asarray(of_samples),
        )
        key = (one.arm, one.seed, one.task, one.metric, one.scale)
        other = kept.setdefault(key, one)
        if other.value != one.value:
            raise ValueError(
                f"{one.arm} seed {one.seed} has two values of {one.metric} on {one.task}: "
                f"{other.value:g} and {one.value:g}; name the seed's column with --seed"
            )
    if unreadable:
        notes.append(f"left out: {unreadable:,} values that are no finite number")
    if not kept:
        raise ValueError("no value is a finite number")
    return list(kept.values())


def _direction(text: str) -> bool | None:
    word = text.strip().lower()
    if word in ("true", "1", "1.0", "max", "maximize", "maximise", "higher", "up", "yes"):
        return True
    if word in ("false", "0", "0.0", "min", "minimize", "minimise", "lower", "down", "no"):
        return False
    return None


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    """A finite number, also from a text; `12.5 %` is 0.125. None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        text = value.strip().replace("\N{MINUS SIGN}", "-")
        try:
            number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            return None
    else:
        try:
            number = float(value)
        except (TypeError, ValueError):
            return None
    return number if math.isfinite(number) else None
