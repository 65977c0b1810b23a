"""Results in the files that people have, as one table of measurements.

Long tables (a row for each value), wide ones (a column for each task), JSON of CLIP_benchmark,
lm-eval and DataComp, and results.json of clipmill. A file is read as its content says. Which column
is what is told or guessed; every guess is a note.
"""

from __future__ import annotations

import codecs
import csv
import gc
import gzip
import io
import itertools
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from manifests import disk
from manifests.layout import AblationLayout
from train.config import configure

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
        ("",),  # of pandas
        ("unnamed_0",),
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
COSTS = ("samples_seen", "tokens_seen", "tokens", "compute")  # of the columns of a scale
# Columns of wide tables that describe a run.
SETTINGS = re.compile(
    r"\w*(params|flops|macs|learning_rate|weight_decay|batch_size|runtime|timestamp|stderr)(_\w+)?|"
    r"(\w+_)?(steps?|epochs?|iterations?|created|uuid|image_size|samples_seen|tokens|warmup)|"
    r"index|id|rank|world_size|lr|wd|date|time|layers|(\w+_)?(width|dim)|(unnamed_\d+)?"
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
MORE_IS_BETTER = ("true", "1", "1.0", "max", "maximize", "maximise", "higher", "up", "yes")
LESS_IS_BETTER = ("false", "0", "0.0", "min", "minimize", "minimise", "lower", "down", "no")
# Numbers with commas: 12,345.6 and 12.345,6
GROUPED = re.compile(r"\s*[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?\s*%?\s*")
GROUP_SIGN = r"[.'\s]"
DECIMAL_COMMA = re.compile(rf"\s*[-+]?\d+({GROUP_SIGN}\d{{3}})*,\d+(e[-+]?\d+)?\s*%?\s*", re.I)
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
    """All measurements, the names of the scales, and what was guessed or left out. costs: scales
    are what a run costs, samples or tokens seen.
    """

    rows: tuple[Measurement, ...]
    scales: dict[float, str]
    notes: tuple[str, ...]
    costs: bool = False


def read_results(paths: Sequence[str], columns: Columns = Columns()) -> Results:
    """The measurements of files and folders. ValueError where they are no results, in one line."""
    notes: list[str] = []
    gc.disable()  # of a million rows the collector would take as long as all else
    try:
        records = _chosen(records_of(paths, notes), columns.where)
        roles = _roles(records, columns, notes)
        table = _by_role(records, roles, notes)
        _name(table, columns, notes)
        scales = _scale_numbers(table["scale"])
        _number_seeds(table, notes)
        rows = _measurements(table, scales, notes)
    finally:
        gc.enable()
    return Results(
        rows=tuple(rows),
        scales={number: text for text, number in scales.items()},
        notes=tuple(dict.fromkeys(notes)),
        costs=any(plain_name(name) in COSTS for name in roles.get("scale", ())),
    )


# --- files to records -----------------------------------------------------------------------------


def records_of(paths: Sequence[str], notes: list[str]) -> list[Record]:
    """The rows of all files, each with the key `file`."""
    files = [file for path in paths for file in _files(path)]
    if not files:
        raise ValueError(f"{', '.join(paths)}: no file ends in {', '.join(ENDINGS)}")
    labels = _labels(files)
    sizes = {file: _samples_seen(file) for file in files} if len(files) > 1 else {}
    again = Counter(sizes.values())
    for file, label in zip(files, labels, strict=True):
        if again[sizes.get(file, "")] > 1:  # something else tells them apart
            sizes[file] += f" {label}" if sizes[file] else ""
    records: list[Record] = []
    for file, label in zip(files, labels, strict=True):
        try:
            rows = _rows_of(_bytes_of(file), notes)
        except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
            raise ValueError(f"{file}: {error}") from None
        for row in rows:
            row.setdefault("file", label)
            if samples := sizes.get(file):
                row["samples_seen"] = samples
        records += rows
    if not records:
        raise ValueError(f"{', '.join(paths)}: there is no row")
    return records


def _files(path: str) -> list[str]:
    """The path, or the files of results in its folder."""
    if path.startswith(("http://", "https://")):
        return [path]
    if not disk.exists(path):
        raise ValueError(f"{path} does not exist")
    if not disk.is_url(path) and not disk.local_path(path).is_dir():
        return [path]
    fs, name = disk.filesystem(path)
    if not fs.isdir(name):
        return [path]
    layout = AblationLayout(path)
    if disk.exists(layout.ablation_json) and disk.exists(layout.results_json):
        names = disk.list_names(layout.scales) if disk.exists(layout.scales) else []
        smaller = [AblationLayout(disk.join(layout.scales, n)).results_json for n in names]
        return [*filter(disk.exists, smaller), layout.results_json]
    paths = sorted(
        fs.unstrip_protocol(each) if disk.is_url(path) else each for each in fs.find(name)
    )
    if own := [each for each in paths if _samples_seen(each)]:
        return own  # of ablations, not their other files
    found = [each for each in paths if each.lower().removesuffix(".gz").endswith(ENDINGS)]
    return [each for each in found if not Path(each).name.startswith("samples_")]  # of lm-eval


def _samples_seen(file: str) -> str:
    """The samples that each run of an ablation saw; "" for a file that is no results.json of an
    ablation that states them, and for its null web, which asks something else.
    """
    folder, _, name = file.rpartition("/")
    path = AblationLayout(folder).ablation_json
    if name != "results.json" or folder.endswith("/null") or not disk.exists(path):
        return ""
    settings = disk.read_json(path).get("train")
    return str(configure(settings).samples_seen) if settings else ""


def _bytes_of(file: str) -> bytes:
    """Of a URL, a file or a pipe."""
    data = disk.read_bytes(file) if disk.is_url(file) else disk.local_path(file).read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def _chosen(records: list[Record], where: Sequence[tuple[str, str]]) -> list[Record]:
    """The records that `where` chooses."""
    told: dict[str, set[str | float]] = {}
    for name, value in where:
        if not any(name in row for row in records):
            raise ValueError(f"--where {name}={value}: there is no column {name!r}")
        number = _number(value)
        told.setdefault(name, set()).update([value] if number is None else [value, number])
    for name, values in told.items():
        records = [
            row
            for row in records
            if str(row.get(name)) in values or _number(row.get(name)) in values
        ]
    if not records:
        shown = " ".join(f"{name}={value}" for name, value in where)
        raise ValueError(f"--where {shown} leaves no row")
    return records


def _labels(files: Sequence[str]) -> list[str]:
    """A short name of each file: its path without what all paths begin and end with."""
    parts = []
    for path in (Path(file.removesuffix(".gz")) for file in files):
        parts.append([*path.parts[:-1], path.stem])
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


def _rows_of(data: bytes, notes: list[str]) -> list[Record]:
    """The rows of Parquet, JSON, JSON lines or a text table, as the content says."""
    if data.startswith(b"PAR1"):
        from pyarrow import BufferReader, parquet

        rows: list[Record] = parquet.read_table(BufferReader(data)).to_pylist()
        return [_flat(row) for row in rows]
    text = _text_of(data, notes)
    if not text.lstrip().startswith(("{", "[")):
        return _table_rows(text, notes)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        lines = [line for line in text.split("\n") if line.strip()]
        if error.msg != "Extra data":
            raise
        document = []
        for number, line in enumerate(lines, 1):
            try:
                document.append(json.loads(line))
            except json.JSONDecodeError as inner:
                raise ValueError(f"line {number}: {inner}") from None
    return [_flat(row) for row in _json_rows(document)]


def _text_of(data: bytes, notes: list[str]) -> str:
    """UTF-8, UTF-16 with its mark, or else Windows-1252, which holds Latin-1."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        notes.append("text: read as Windows-1252, as it is not UTF-8")
        return data.decode("cp1252", errors="replace")


def _table_rows(text: str, notes: list[str]) -> list[Record]:
    """The rows of a table of CSV, TSV or Markdown."""
    text = re.sub(r"\A(\s*#[^\n]*\n)+", "", text)
    header = text.lstrip().split("\n", 1)[0]
    delimiter = max(",;\t|", key=header.count)
    csv.field_size_limit(2**31 - 1)
    lines = [
        line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if line
    ]
    names = [name.strip() for name in lines[0]] if lines else []
    if again := [name for name, count in Counter(names).items() if name and count > 1]:
        raise ValueError(f"two columns have the name {again[0]!r}")
    for number, line in enumerate(lines[1:], 2):
        if len(line) > len(names) and any(line[len(names) :]):
            raise ValueError(f"row {number} has more fields than the header")
    rows: list[Record] = [dict(zip(names, line, strict=False)) for line in lines[1:]]
    if "Step" in names and any(TRACKED.match(name) for name in names):
        return _tracked_rows(rows)
    if delimiter != "," or '"' in text:
        for name in names:
            _settle_commas(name, rows, delimiter, notes)
    return rows


def _settle_commas(name: str, rows: list[Record], delimiter: str, notes: list[str]) -> None:
    """Takes the commas out of a column's numbers: they group digits, or are the decimal point."""
    cells = [row for row in rows if "," in row.get(name, "")]
    if not cells:
        return
    if delimiter != ";" and all(GROUPED.fullmatch(row[name]) for row in cells):
        notes.append(f"{name}: its commas group digits")
        for row in cells:
            row[name] = row[name].replace(",", "")
    elif all(DECIMAL_COMMA.fullmatch(row[name]) for row in cells):
        notes.append(f"{name}: its comma is the decimal point")
        for row in cells:
            row[name] = re.sub(GROUP_SIGN, "", row[name]).replace(",", ".")


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
        if wrong := [row for row in document if not isinstance(row, dict)]:
            raise ValueError(f"an item is no object: {str(wrong[0])[:40]!r}")
        return document
    if not isinstance(document, dict):
        raise ValueError("it holds neither an object nor a list of objects")
    if isinstance(document.get("runs"), dict) and "ablation_hash" in document:
        return _own_rows(document["runs"])
    inner = list(document.values())
    if inner and all(isinstance(each, list) for each in inner):  # columns
        return [dict(zip(document, row, strict=True)) for row in zip(*inner, strict=True)]
    if inner and all(isinstance(each, dict) and "0" in each for each in inner):  # pandas' columns
        return [{name: document[name].get(row) for name in document} for row in inner[0]]
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
    several_files = any(row["file"] != records[0]["file"] for row in records)
    for role in ROLES:
        if role in roles:
            continue
        constant: tuple[str, ...] = ()
        for together in SYNONYMS[role]:
            found = tuple(plain[one] for one in together if one in plain)
            if len(found) < len(together) or taken & set(found):
                continue
            if role != "arm" or _tells_arms(records, found):
                roles[role] = found
                break
            constant = constant or found
        if constant and role not in roles and not several_files:
            roles[role] = constant
        taken |= set(roles.get(role, ()))
    if "value" in roles and not any(
        _number(row.get(roles["value"][0])) is not None for row in records
    ):
        example = records[0].get(roles["value"][0])
        notes.append(f"column {roles['value'][0]!r} holds no number, such as {example!r}")
        del roles["value"]
    for role, told in roles.items():
        if role not in columns.names:
            notes.append(f"{role}: column {' + '.join(map(repr, told))}")
    if "arm" not in roles:
        roles["arm"] = ("file",)
        notes.append("arm: the name of the file")
    return roles


def _tells_arms(records: Sequence[Record], names: tuple[str, ...]) -> bool:
    """Whether columns that may name the arm have several values, which are not those of an index
    without a name.
    """
    first = _text(records[0], names)
    if not plain_name(names[0]).removeprefix("unnamed_0") and _number(first) is not None:
        return False
    return any(_text(row, names) != first for row in records)


def _by_role(
    records: Sequence[Record], roles: dict[str, tuple[str, ...]], notes: list[str]
) -> dict[str, list[Any]]:
    """A column for each role, with an item for each value; texts, "" where there is nothing.

    In the wide form each numeric column is a task, or a metric where a column names the task.
    """
    cells: list[tuple[Record, str, Any]] = []  # row, what the value's own name is, value
    what = ""
    if any(isinstance(row.get("metrics"), dict) for row in records):
        what = "metric"
        for row in records:
            metrics = row.get("metrics") or {}
            cells += [(row, name, value) for name, value in metrics.items() if _is_number(value)]
    elif "value" in roles:
        (value,) = roles["value"]
        cells = [(row, "", row.get(value)) for row in records]
    else:
        what = "metric" if "task" in roles else "task"
        names = _value_columns(records, roles, what, notes)
        for row in records:
            cells += [(row, name, row[name]) for name in names if not _is_empty(row.get(name))]
    table: dict[str, list[Any]] = {}
    for role in ROLES:
        of_role = roles.get(role, ())
        table[role] = [_text(row, of_role) for row, _, _ in cells] if of_role else [""] * len(cells)
    if what:
        table[what] = [name for _, name, _ in cells]
    table["value"] = [value for _, _, value in cells]
    if "per_sample" in roles:
        table["per_sample"] = [row.get(roles["per_sample"][0]) for row, _, _ in cells]
    return table


def _value_columns(
    records: Sequence[Record], roles: Mapping[str, tuple[str, ...]], what: str, notes: list[str]
) -> list[str]:
    """The columns of a wide table that hold numbers only, and are no settings."""
    used = {name for told in roles.values() for name in told} | {"file"}
    names = list(dict.fromkeys(key for row in records for key in row if key not in used))
    kept: list[str] = []
    settings: list[str] = []
    for name in names:
        given = [row[name] for row in records if not _is_empty(row.get(name))]
        numbers = [value for value in given if _number(value) is not None]
        if numbers and all(map(_is_not_finite, set(map(str, given)) - set(map(str, numbers)))):
            is_setting = SETTINGS.fullmatch(plain_name(str(name))) is not None
            (settings if is_setting else kept).append(name)
    if not kept:
        raise ValueError(
            "there is no column of values: name it with --value, or the tasks' columns with --task "
            f"({'; '.join([*notes, 'columns: ' + ', '.join(map(str, names[:40]))])})"
        )
    notes.append(f"{what}: each of {len(kept)} numeric columns")
    if settings:
        notes.append(f"left out as settings: {', '.join(map(str, settings))}")
    return kept


# --- arms, seeds and scales -----------------------------------------------------------------------


def _text(row: Record, names: Sequence[str]) -> str:
    """The cells of some columns in one line."""
    texts = []
    for name in names:
        value = row.get(name)
        if not _is_empty(value):
            text = value if isinstance(value, str) else str(value)
            texts.append(text.strip() if text.isprintable() else " ".join(text.split()))
    return " ".join(texts)


def _name(table: dict[str, list[Any]], columns: Columns, notes: list[str]) -> None:
    """Takes seeds and scales from the arms' names, and leaves out values without an arm."""
    if columns.pattern is not None:
        _apply_pattern(table, columns.pattern)
    elif not any(table["seed"]):
        arms = set(table["arm"])
        matches = {arm: match for arm in arms if (match := SEED_IN_NAME.match(arm))}
        if len(matches) == len(arms):
            table["seed"] = [matches[arm]["seed"] for arm in table["arm"]]
            table["arm"] = [matches[arm]["arm"] for arm in table["arm"]]
            notes.append("seed: the end of the arm's name")
    _keep(table, [bool(arm) for arm in table["arm"]])
    if not table["arm"]:
        raise ValueError("no row names an arm: give the column with --arm")


def _keep(table: dict[str, list[Any]], kept: Sequence[bool]) -> None:
    if not all(kept):
        for role, column in table.items():
            table[role] = list(itertools.compress(column, kept))


def _apply_pattern(table: dict[str, list[Any]], pattern: str) -> None:
    """Keeps the values whose arm the pattern matches, and takes its groups."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"--pattern {pattern!r}: {error}") from None
    groups = set(compiled.groupindex)
    if "arm" not in groups or not groups <= {"arm", "arm2", "seed", "scale", "task"}:
        raise ValueError(
            f"--pattern {pattern!r} needs a group (?P<arm>…), and may have arm2, seed, scale, task"
        )
    found: dict[str, dict[str, str]] = {}
    for arm in set(table["arm"]):
        if match := compiled.search(arm):
            found[arm] = {key: value or "" for key, value in match.groupdict().items()}
            if second := found[arm].pop("arm2", ""):
                found[arm]["arm"] += f"_{second}"
    if not found:
        raise ValueError(f"--pattern {pattern!r} matches no arm, such as {table['arm'][0]!r}")
    _keep(table, [arm in found for arm in table["arm"]])
    arms = table["arm"]
    for group in groups - {"arm2"}:
        table[group] = [found[arm][group] for arm in arms]


def _scale_numbers(texts: Iterable[str]) -> dict[str, float]:
    """{text: number} of the scales, in their order: 12.8M, 1e9, small, medium, as they come. Of
    equal numbers with words behind them, the later one is larger by next to nothing.
    """
    seen = list(dict.fromkeys(texts))
    if seen == [""]:
        return {"": 0.0}
    numbers: dict[str, float] = {}
    for text in seen:
        pattern = r"([\d.,_]+(?:e[+-]?\d+)?)\s*([kmbgt]?)\w*( .+)?"
        match = re.fullmatch(pattern, text.strip().lower())
        if match is None or (number := _number(match[1].replace("_", ""))) is None:
            break
        number *= SIZES.get(match[2], 1.0)
        while match[3] and number in numbers.values():
            number *= 1 + 1e-9
        numbers[text] = number
    else:
        return numbers
    if all(text.lower() in WORDS for text in seen):
        seen.sort(key=lambda text: WORDS.index(text.lower()))
    return {text: 10.0**place for place, text in enumerate(seen, 1)}  # each a step, as of sizes


def _number_seeds(table: dict[str, list[Any]], notes: list[str]) -> None:
    """Seeds as whole numbers; without any, the order of the rows."""
    texts = sorted(set(table["seed"]) - {""})
    if texts:
        numbers: dict[str, int] = {}
        for place, text in enumerate(texts):
            number = _number(text)
            if number is None or number != int(number):
                numbers = {each: place for place, each in enumerate(texts)}
                break
            numbers[text] = int(text) if text.isdecimal() else int(number)
        table["seed"] = [numbers.get(text, 0) for text in table["seed"]]
        return
    seen: Counter[tuple[str, ...]] = Counter()
    seeds = []
    for key in zip(*(table[role] for role in ("arm", "task", "metric", "scale")), strict=True):
        seeds.append(seen[key])
        seen[key] += 1
    table["seed"] = seeds
    if max(seen.values()) > 1:
        notes.append(
            "seed: no column says it; rows of one arm are its runs, in their order (--scale file "
            "where files are scales)"
        )


# --- records to measurements ----------------------------------------------------------------------


def _measurements(
    table: Mapping[str, list[Any]], scales: Mapping[str, float], notes: list[str]
) -> list[Measurement]:
    kept: dict[tuple[str, int, str, str, float], Measurement] = {}
    unreadable = again = 0
    directions = {text: _direction(text) for text in set(table["higher_is_better"])}
    sizes = {text: int(_number(text) or 0) for text in set(table["samples"])}
    columns = [table[role] for role in ROLES]
    for arm, seed, task, metric, cell, scale, size, direction, of_samples in zip(
        *columns, strict=True
    ):
        value = _number(cell)
        if value is None:
            unreadable += not _is_empty(cell)
            continue
        is_list = isinstance(of_samples, list)
        samples = sizes[size] if sizes[size] >= 2 else len(of_samples) if is_list else 0
        one = Measurement(
            arm,
            seed,
            task or "task",
            metric or "value",
            value,
            scales[scale],
            samples,
            directions[direction],
            np.asarray(of_samples) if is_list else None,
        )
        key = (arm, seed, one.task, one.metric, one.scale)
        other = kept.setdefault(key, one)
        again += other is not one
        if other.value != value:
            raise ValueError(
                f"{arm} seed {seed} has two values of {one.metric} on {one.task}: "
                f"{other.value:g} and {value:g}; name the column that tells them apart with "
                "--seed, --scale, --arm or --where"
            )
    if unreadable:
        notes.append(f"left out: {unreadable:,} values that are no finite number")
    if again:
        notes.append(f"left out: {again:,} rows that repeat another one")
    if not kept:
        raise ValueError("no value is a finite number")
    return list(kept.values())


def _direction(text: str) -> bool | None:
    word = text.lower()
    return word in MORE_IS_BETTER if word in (*MORE_IS_BETTER, *LESS_IS_BETTER) else None


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _is_not_finite(text: str) -> bool:
    """Whether it is the value of a run that diverged: NaN or infinity."""
    return text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity")


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
