"""Documents of JSON as rows: what evaluation programs, trackers and people write.

lm-eval, MTEB, HELM, CLIP_benchmark, Hugging Face's trainer, every orient of pandas, lists of
results inside of a document, and results keyed by model, seed or task.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from clipmill.verdict.tables.frames import (
    Frame,
    SeveralTables,
    frame_of_records,
    joined,
    shared_start,
    text_of,
)
from clipmill.verdict.tables.metric_names import is_known, plain_name
from clipmill.verdict.tables.roles import (
    ARM_WORDS,
    BASELINES,
    COUNTER,
    DATA_SETS,
    SPLITS,
    TWO_LEVELS,
    role_of_name,
)

Record = dict[str, Any]
Lists = Mapping[str, Sequence[Any]]
Path = tuple[str, ...]
SEED_KEY = re.compile(r"(seed|run|rep|repeat|trial|replicate|s)?[-_ ]?\d+", re.I)
SETTINGS = {"config", "params", "best_params", "args", "hparams", "hyperparameters", "settings"}
SECTIONS = {"config", "metrics", "params", "summary", "args", "hparams", "data", "hyperparameters"}
LEAST_PAIRS = 8  # of two numbers, that in runs are by chance in one order in 1 of 128 files
FALLS_OF = 200  # values of a list at most that tell whether it falls: their pairs are looked at
SCALAR_FORM = "TensorBoard's scalar"
SCALARS = ("Wall time", "Step", "Value")  # of TensorBoard
PER_SAMPLE = {"per_sample", "correct"}
MATRIX = re.compile(r"(\w+[._])?(results?|times?|timings?|runtimes?)", re.I)  # names of values
LISTS = ("results", "runs", "records", "rows", "data", "scores", "evaluations", "experiments",
         "entries", "models", "trials", "history", "log_history", "metrics")  # fmt: skip


# A key that summarises the runs beside it, that of a list of runs, and that of lists of any kind.
SUMMARY = re.compile(
    r"(^|[._/ -])(mean|avg|average|median|std|stdev|sd|var|variance|stderr|sem|min|max|ci\w*|n|"
    r"count|num_?\w*|n_\w+|summary|aggregated?|overall|std_?dev|stats|statistics)$|"
    r"^(mean|avg|average|median|std|stdev|stderr|sem|summary|aggregated?|overall|ci\d*)[._/ -]",
    re.I,
)  # fmt: skip
RUN_LIST = re.compile(
    r"(^|[._/ -])((per|by|all|each)_?)?(seeds?|runs?|folds?|trials?|reps?|values?|scores?|raw|list|"
    r"all|results?)$|^(all_)?(seeds|runs|folds?(?=_[a-z])|trials|reps)[._/ -]", re.I
)  # fmt: skip
HELD_OUT = re.compile(r"(^|_)(val|valid|validation|eval|dev|test)(_|$)")  # of other data
OF_ARMS = {*BASELINES, "naive", "proposed", "ours", "random", "vanilla", "original"}  # keys
MEANS = re.compile(r"(mean|avg|average)s?([._/ -]|$)", re.I)
ONE_SEED = re.compile(r"(\w+_)?seeds?(_runs?|_used)?", re.I)
SEED_LIST = re.compile(
    r"((per|by|each|cv)_)?(\w+_)?(seeds?(_\w+)?|folds?|runs?|trials?|repeats?)", re.I
)


def frame_of_json(
    document: object, *, lines: bool = False, form: str = "", table: str | None = None,
    baseline: str | None = None,
) -> Frame:  # fmt: skip
    """The rows of a document, or of the documents of JSON lines. table: which of its lists of
    objects. baseline: an arm, so that keys beside it are arms. ValueError where it has none.
    """
    if isinstance(document, list):
        return _of_list(document, form or ("JSON lines" if lines else "JSON"), baseline)
    if not isinstance(document, dict):
        raise ValueError("it holds neither an object nor a list of objects")
    if not document:
        raise ValueError("there is no row")
    for reader in (_split, _schema, _lm_eval, _mteb, _helm, _trainer):
        if (frame := reader(document)) is not None:
            return frame
    inner = list(document.values())
    if all(isinstance(each, list) and not _is_objects(each) for each in inner):
        return _of_lists(document)
    is_columns = all(isinstance(each, dict) and "0" in each for each in inner)
    if is_columns and len(inner[0]) > 0:  # pandas' columns
        rows = [{name: document[name].get(row) for name in document} for row in inner[0]]
        return frame_of_records([flat(row) for row in rows], "JSON, pandas' columns")
    return _Tree(form or "JSON", table, baseline).frame(document)


def flat(row: Mapping[str, object]) -> Record:
    """A row without nesting, but for `metrics`: {"config": {"seed": 1}} has the key config.seed."""
    one: Record = {}
    for key, value in row.items():
        if isinstance(value, dict) and key == "metrics":
            one[key] = dict(flat(value).items())
        elif isinstance(value, dict):
            one |= {f"{key}.{inner}": each for inner, each in flat(value).items()}
        elif isinstance(value, list) and len(value) == 1 and ONE_SEED.fullmatch(key):
            one[key] = value[0]  # of a run that one seed made
        else:
            one[key] = value
    return one


def _is_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _of_list(document: Sequence[Any], form: str, baseline: str | None) -> Frame:
    if document and all(isinstance(row, list) for row in document):
        return _of_rows(document)
    if document and all(map(_is_statistic, document)):
        return _helm_stats(document)
    if wrong := [row for row in document if not isinstance(row, dict)]:
        raise ValueError(f"an item is no object: {str(wrong[0])[:40]!r}")
    if document and all(_lm_eval_like(row) for row in document):
        return joined([frame_of_json(row) for row in document])
    if document and all("benchmark" in row and "primaryMetric" in row for row in document):
        return _jmh(document, baseline)
    return _Tree(form, None, baseline).frame(document)


def _of_rows(rows: Sequence[Sequence[object]]) -> Frame:
    """pandas' values: rows of cells, whose first may name the columns."""
    width = max(len(row) for row in rows)
    first = rows[0]
    is_header = all(isinstance(cell, str) for cell in first) and len(rows) > 1
    if is_header and not all(isinstance(cell, str) for cell in rows[1]):
        names, body = list(map(str, first)), rows[1:]
    else:
        names, body = [f"column {n}" for n in range(1, width + 1)], rows
        if _are_scalars(rows):
            names = list(SCALARS)
    frame = frame_of_records([dict(zip(names, row, strict=False)) for row in body], "JSON, rows")
    if names == list(SCALARS):
        frame.form, frame.history = SCALAR_FORM, "Step"
    elif body is rows:
        frame.notes.append("no row names the columns: they are numbered")
    return frame


def _are_scalars(rows: Sequence[Sequence[Any]]) -> bool:
    """Whether rows are those of TensorBoard: seconds since 1970, a whole step, a value."""
    return all(len(row) == len(SCALARS) and all(map(is_number, row)) and row[0] > 1e8
               and row[1] == int(row[1]) for row in rows)  # fmt: skip


def _split(document: Record) -> Frame | None:
    """pandas' split."""
    names, data = document.get("columns"), document.get("data")
    if not isinstance(names, list) or not isinstance(data, list):
        return None
    texts = ["/".join(map(str, name)) if isinstance(name, list) else str(name) for name in names]
    if any(not isinstance(row, list) or len(row) != len(texts) for row in data):
        raise ValueError("JSON of pandas (split): a row of `data` has not the cells of `columns`")
    rows = [dict(zip(texts, row, strict=True)) for row in data]
    index = document.get("index")
    labels = index if isinstance(index, list) and len(index) == len(rows) else []
    if any(isinstance(label, str) for label in labels):
        rows = [{"": label, **row} for label, row in zip(labels, rows, strict=True)]
    return frame_of_records(rows, "JSON, pandas' split")


def _schema(document: Record) -> Frame | None:
    """pandas' table."""
    if "schema" not in document or not _is_objects(document.get("data")):
        return None
    return frame_of_records([flat(row) for row in document["data"]], "JSON, pandas' table")


def _of_lists(document: Record) -> Frame:
    """Columns as lists; of unequal length: a list of runs for each key."""
    sizes = {len(each) for each in document.values()}
    scalar = not any(isinstance(cell, list | dict) for each in document.values() for cell in each)
    numbers = all(is_number(cell) for each in document.values() for cell in each)
    if len(sizes) == 1 and scalar:
        is_training = numbers and _is_training(document)
        columns = document | ({"_step": range(*sizes)} if is_training else {})
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return frame_of_records(rows, "JSON, a list for each column")
    if not (scalar and numbers):
        raise ValueError(
            "its lists have other lengths, or hold lists: give one object for each run"
        )
    rows = [{"key": key, "value": cell} for key, cells in document.items() for cell in cells]
    frame = frame_of_records(rows, "JSON, a list of runs for each key")
    frame.roles["key"] = ("arm", "the key of a list of runs")
    return frame


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _exploded(row: Record, above: Mapping[str, Sequence[object]] | None = None) -> list[Record]:
    """The rows of a record all of whose numbers are lists of one length, or of the length of a list
    of seeds beside or above it: a row for each place. above: {name: a list of cells}.

    ValueError where its values are a matrix, whose places say nothing of runs and tasks.
    """
    for key in filter(MATRIX.fullmatch, row):
        lines = row[key] if isinstance(row[key], list) else []
        if len(lines) > 1 and all(isinstance(x, list) and any(map(is_number, x)) for x in lines):
            raise ValueError(
                f"{key!r} holds {len(lines)} lists of {len(lines[0])} numbers: write a row for "
                "each number, with its two places as columns (--task-column, --seed)"
            )
    lists = {
        key: value
        for key, value in row.items()
        if isinstance(value, list) and all(map(is_number, value))
        and len(value) > (RUN_LIST.search(key) is None)
        and key not in PER_SAMPLE
        and not (len(value) == 2 and SUMMARY.search(key))  # the ends of an interval
    }  # fmt: skip
    seeds = {key: cells for key, cells in (above or {}).items() if SEED_LIST.fullmatch(key)}
    sizes = {len(each) for each in lists.values()}
    of_seeds = next((len(cells) for cells in seeds.values() if len(cells) in sizes), 0)
    lists = {key: each for key, each in lists.items() if len(each) == of_seeds or not of_seeds}
    stems = [RUN_LIST.sub("", key) for key in lists]
    bases = {base for key in (*lists, *stems) for base in (key, *_singular(key))} - {*lists}
    summaries = {
        key for key, value in row.items()
        if is_number(value) and ((SUMMARY.search(key) and SUMMARY.sub("", key) in bases)
                                 or (of_seeds and is_known(key)))
    }  # fmt: skip
    if not lists or len(set(map(len, lists.values()))) > 1 or isinstance(row.get("metrics"), dict):
        return [row]
    others = {key for key in row.keys() - summaries if is_number(row[key]) and is_known(key)}
    are_means = bool(summaries) and all(map(SUMMARY.search, others))
    if others and not are_means:
        return [row]  # the lists are something else
    rest = {key: value for key, value in row.items() if key not in lists and key not in summaries}
    rest |= {key: f"of all runs: {row[key]}" for key in others}
    count = len(next(iter(lists.values())))
    names = {key: key for key in lists}
    summarised = {SUMMARY.sub("", key) for key in summaries}
    for key, stem in zip(list(lists), stems, strict=True):
        base = stem or "value"
        if len(lists) > 1 and (stems.count(stem) > 1 or stem not in summarised):
            continue
        names[key] = base if is_known(base) else next(filter(is_known, _singular(base)), base)
    columns: dict[str, Sequence[Any]] = {names[key]: each for key, each in lists.items()}
    columns |= {"_step": range(count)} if not of_seeds and _is_training(lists) else {}
    columns |= {key: cells for key, cells in (above or {}).items() if len(cells) == count}
    return [rest | {key: each[n] for key, each in columns.items()} for n in range(count)]


def _singular(name: str) -> list[str]:
    """`acc` of `accs`, `accuracy` of `accuracies`, `loss` of `losses`."""
    return [name[: -len(end)] + own for end, own in (("ies", "y"), ("es", ""), ("s", ""))
            if name.endswith(end)]  # fmt: skip


def _is_training(lists: Lists) -> bool:
    """Whether lists are the steps of one training: losses that fall, and metrics of other data."""
    plain = {plain_name(key): each for key, each in lists.items()}
    losses = [
        each for key, each in plain.items()
        if re.search(r"(^|_)loss(es)?$", key) and not HELD_OUT.search(key)
    ]  # fmt: skip
    are_steps = bool(losses) and all(map(_falls, losses)) and not {"step", "epoch"} & plain.keys()
    return are_steps and any(map(HELD_OUT.search, plain))


def _falls(values: Sequence[float]) -> bool:
    """Whether numbers fall: each below the one before, of many of them most pairs."""
    values = values[:: -(-len(values) // FALLS_OF)]
    pairs = [(one, two) for n, one in enumerate(values) for two in values[n + 1 :]]
    falling = sum(two < one for one, two in pairs)
    return len(values) > 3 and falling >= len(pairs) * (0.8 if len(values) > 7 else 1)


# --- evaluation programs --------------------------------------------------------------------------


def _lm_eval_like(document: Any) -> bool:
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, dict) or not results:
        return False
    if not all(isinstance(each, dict) for each in results.values()):
        return False
    marks = {"configs", "versions", "n-shot", "config", "lm_eval_version", "group_subtasks"}
    keys = {key for each in results.values() for key in each}
    return bool(marks & set(document)) or any("," in key for key in keys)


def _lm_eval(document: Record) -> Frame | None:
    """One row for each task, metric and filter of lm-eval. Groups are left out, and keys without a
    filter where others have one: lengths and names.
    """
    if not _lm_eval_like(document):
        return None
    results: dict[str, Record] = document["results"]
    config = document.get("config") or {}  # its random_seed is of the evaluation, not of training
    arm = document.get("model_name") or config.get("model_args") or config.get("model")
    directions = document.get("higher_is_better") or {}
    subtasks = document.get("group_subtasks") or {}
    groups = {*(document.get("groups") or {}), *(name for name, of in subtasks.items() if of)}
    shots, sizes = document.get("n-shot") or {}, document.get("n-samples") or {}
    has_filters = any("," in key for each in results.values() for key in each)
    rows, left_out = [], {"groups of lm-eval, whose tasks count": 0}
    for task, metrics in results.items():
        if task in groups:
            left_out["groups of lm-eval, whose tasks count"] += 1
            continue
        for name, value in metrics.items():
            metric, comma, part = name.partition(",")
            is_length = has_filters and not comma
            if is_length or metric.endswith("_stderr") or name in ("alias", "name"):
                continue
            row: Record = {"task": task, "metric": metric, "value": value}
            row |= {} if part in ("", "none") else {"metric": f"{metric} ({part})"}
            row |= {"arm": str(arm)} if arm else {}
            higher = (directions.get(task) or {}).get(metric)
            row |= {"higher_is_better": higher} if higher is not None else {}
            size = (sizes.get(task) or {}).get("effective")
            row |= {"n_samples": size} if size else {}
            few = shots.get(task, config.get("num_fewshot"))
            row |= {"n_shot": few} if few is not None else {}
            version = (document.get("versions") or {}).get(task)
            row |= {"version": version} if version is not None else {}
            rows.append(row)
    if not rows:
        raise ValueError("lm-eval's file has no metric of a task")
    frame = frame_of_records(rows, "lm-eval")
    frame.left_out = {reason: count for reason, count in left_out.items() if count}
    frame.roles |= {
        "task": ("task", "of lm-eval"), "metric": ("metric", "of lm-eval"),
        "value": ("value", "of lm-eval"), "n_shot": ("task", "shots are parts of the task"),
        "version": ("setting", "of lm-eval's task"),
    }  # fmt: skip
    return frame


def _mteb(document: Record) -> Frame | None:
    """MTEB's file of a task: the main score of each split and subset."""
    task = document.get("task_name") or document.get("mteb_dataset_name")
    scores = document.get("scores")
    if not isinstance(task, str):
        return None
    rows = []
    if isinstance(scores, dict):
        for split, parts in scores.items():
            for part in parts if isinstance(parts, list) else []:
                row = {"task": task, "split": split, "subset": part.get("hf_subset"),
                       "metric": "main_score", "value": part.get("main_score")}  # fmt: skip
                rows.append(row)
    else:
        splits = {key: each for key, each in document.items() if isinstance(each, dict)}
        for split, part in splits.items():
            if "main_score" in part:
                rows.append({"task": task, "split": split, "metric": "main_score",
                             "value": part["main_score"]})  # fmt: skip
        if not rows:
            raise ValueError(
                f"MTEB's file of {task} has no main_score: name its metric in a table, or evaluate "
                "it with a newer mteb"
            )
    frame = frame_of_records(rows, "MTEB")
    frame.roles |= {"metric": ("metric", "MTEB's main score"), "value": ("value", "of MTEB")}
    frame.roles |= {"subset": ("task", "a subset is a part of the task")}
    return frame


def _helm(document: Record) -> Frame | None:
    """HELM's table of a group: header and rows of {"value": …}."""
    header, rows = document.get("header"), document.get("rows")
    if not isinstance(header, list) or not isinstance(rows, list) or not rows:
        return None
    if not all(isinstance(each, dict) and "value" in each for each in header):
        return None
    names = [str(each["value"]) for each in header]
    lower = {str(each["value"]): each.get("lower_is_better") for each in header}
    records = []
    for row in rows:
        cells = [cell.get("value") if isinstance(cell, dict) else cell for cell in row]
        records.append(dict(zip(names, cells, strict=False)))
    frame = frame_of_records(records, "HELM")
    for name, is_lower in lower.items():
        if isinstance(is_lower, bool):
            frame.roles[f"direction of {name}"] = ("lower" if is_lower else "higher", "of HELM")
    frame.roles[names[0]] = ("arm", "the first column of HELM's table")
    return frame


def _is_statistic(row: object) -> bool:
    return isinstance(row, dict) and isinstance(row.get("name"), dict) and "mean" in row


def _helm_stats(document: Sequence[Record]) -> Frame:
    """HELM's stats.json: the mean of each statistic of a run; those of perturbed inputs are
    others.
    """
    rows = []
    for one in document:
        name = one["name"]
        more = name.get("perturbation")
        row = {"metric": name.get("name"), "split": name.get("split"), "value": one.get("mean")}
        row |= {"perturbation": str(more.get("name"))} if isinstance(more, dict) else {}
        rows.append(row)
    frame = frame_of_records(rows, "HELM's statistics of a run")
    frame.roles |= {
        "metric": ("metric", "of HELM"), "value": ("value", "the mean"),
        "perturbation": ("task", "a perturbation is a part of the task"),
    }  # fmt: skip
    return frame


def jmh_of_table(frame: Frame, baseline: str | None) -> Frame:
    """JMH's CSV as its JSON, with the score of all iterations and no forks."""
    columns = {plain_name(name): column for name, column in frame.columns.items()}
    params = {name: name.partition(":")[2].strip() for name in frame.columns if "Param:" in name}
    scores, documents = columns["score"].numbers().tolist(), list[Record]()
    for row, score in enumerate(scores):
        cells = {
            name: text_of(column.at(row))
            for name, column in (*columns.items(), *frame.columns.items())
        }
        documents.append({
            "benchmark": cells["benchmark"], "mode": cells["mode"], "threads": cells["threads"],
            "primaryMetric": {"score": None if math.isnan(score) else score,
                              "scoreUnit": cells["unit"]},
            "params": {own: cells[name] for name, own in params.items()},
        })  # fmt: skip
    return _jmh(documents, baseline)


def _jmh(document: Sequence[Record], baseline: str | None) -> Frame:
    """JMH's results: a row for each fork, which is a run, with the mean of its iterations; where
    the file has no forks, one for all of them. The parts of a benchmark's name, its class and its
    method, are two levels, and its parameters parts of the task.
    """
    rows, left_out = list[Record](), 0
    for one in document:
        owner, _, method = str(one["benchmark"]).rpartition(".")
        primary = one["primaryMetric"]
        row = {f"params.{name}": value for name, value in (one.get("params") or {}).items()}
        row |= {"class": owner.rpartition(".")[2], "method": method, "threads": one.get("threads")}
        row |= {"metric": f"{one.get('mode', 'score')}, {primary.get('scoreUnit', '')}".strip(", "),
                "higher_is_better": one.get("mode") == "thrpt"}  # fmt: skip
        forks = primary.get("rawData") or [
            [value for value, count in pairs for _ in range(count)]
            for fork in primary.get("rawDataHistogram") or () for pairs in fork
        ] or [[primary.get("score")]]  # fmt: skip
        for number, values in enumerate(forks):
            numbers = [value for value in values if is_number(value)]
            mean = sum(numbers) / len(numbers) if numbers else None
            rows.append(row | {"fork": number, "value": mean})
        left_out += len(one.get("secondaryMetrics") or ())
    _name_methods(rows)
    frame = frame_of_records(rows, "JMH")
    why = "of JMH"
    frame.roles |= {
        "metric": ("metric", why), "value": ("value", "the mean of a fork's iterations"),
        "fork": ("seed", COUNTER), "class": ("task", why), "method": ("arm", why),
    }  # fmt: skip
    frame.roles |= {
        name: ("task", "a parameter of JMH") for name in frame.columns if name.startswith("params.")
    }
    classes, methods = ({str(row[name]) for row in rows} for name in ("class", "method"))
    pairs = {(row["class"], row["method"]) for row in rows}
    if baseline in classes or len(methods) < 2:
        frame.roles |= {"class": ("arm", why), "method": ("task", why)}
    elif baseline not in methods and len(classes) > 1 and len(pairs) > len(methods):
        shown = [f"{name!r} ({', '.join(sorted(own)[:4])})"
                 for name, own in (("class", classes), ("method", methods))]  # fmt: skip
        reason = f"{TWO_LEVELS}, {' and '.join(shown)}"
        frame.roles |= {name: ("open", f"{reason}; {name!r}") for name in ("class", "method")}
    frame.notes.append("scoreError and scorePercentiles are of all forks together and not read")
    if not any({"rawData", "rawDataHistogram"} & one["primaryMetric"].keys() for one in document):
        frame.notes.append("JMH's forks are its runs, and this file lacks them: its JSON has them")
    if left_out:
        frame.notes.append(f"not read: {left_out} secondary metrics")
    return frame


def _name_methods(rows: Sequence[Record]) -> None:
    """Methods without what all of their class begin or end with, where these rests are the same in
    each class: jacksonRead and kryoRead, jacksonWrite and kryoWrite.
    """
    classes: dict[str, list[str]] = {}
    for row in rows:
        classes.setdefault(row["class"], []).append(row["method"])
    if len(set(map(frozenset, classes.values()))) == 1:
        return  # they are the same as they stand
    rests: dict[str, dict[str, str]] = {}
    for name, methods in classes.items():
        start = shared_start(methods)
        end = shared_start([method[:start:-1] for method in methods])
        rests[name] = {method: method[start : len(method) - end] for method in methods}
    same = [set(own.values()) for own in rests.values()]
    if len(same) > 1 and len(same[0]) > 1 and all(own == same[0] for own in same) and all(same[0]):
        for row in rows:
            row["method"] = rests[row["class"]][row["method"]]


def _trainer(document: Record) -> Frame | None:
    """trainer_state.json of Hugging Face."""
    log = document.get("log_history")
    if not _is_objects(log):
        return None
    frame = frame_of_records([flat(row) for row in log or ()], "Hugging Face's trainer")
    frame.history = "step" if "step" in frame.columns else "epoch"
    return frame


# --- trees ----------------------------------------------------------------------------------------


def _is_level(value: object) -> bool:
    """Whether a dictionary has one entry for each thing, not one for each property: all of them
    objects, or lists of objects, that have a key in common.
    """
    if not isinstance(value, dict) or not value or set(value) & SECTIONS:
        return False
    inner = list(value.values())
    if all(map(_is_objects, inner)) and len(inner) > 1:
        return bool(set.intersection(*(set(row) for rows in inner for row in rows)))
    if not all(isinstance(each, dict) and each for each in inner):
        return False
    if len(inner) == 1:
        return _is_level(inner[0]) or bool(SEED_KEY.fullmatch(next(iter(value))))
    shared = set(inner[0]).intersection(*map(set, inner[1:]))
    return bool(shared) or all(_is_level(each) for each in inner)


def _are_lists_of_runs(part: Record) -> bool:
    """Whether an object has a list of as many numbers for each thing, none of them a metric."""
    is_open = not any(is_known(key) or RUN_LIST.search(key) or SUMMARY.search(key) for key in part)
    are_lists = all(isinstance(each, list) and all(map(is_number, each)) for each in part.values())
    sizes = {len(each) for each in part.values()} if are_lists else set()
    return is_open and len(part) > 1 and len(sizes) == 1 and max(sizes) > 1


def _are_results(value: object) -> bool:
    """Whether two things or more of a level share most keys, with a metric below these."""
    inner = list(value.values()) if isinstance(value, dict) else []
    if len(inner) < 2 or not all(isinstance(each, dict) for each in inner):
        return False
    shared = set.intersection(*map(set, inner))
    is_most = 2 * len(shared) > max(map(len, inner))
    return is_most and any(map(is_known, _names_in({key: inner[0][key] for key in shared})))


def _is_of_runs(value: object, name: str) -> bool:
    """Whether a number, or an object, stands below each key that counts runs."""
    return (
        isinstance(value, dict) and len(value) > 1 and SEED_LIST.fullmatch(name) is not None
        and all(map(SEED_KEY.fullmatch, value))
    )  # fmt: skip


def _holds_runs(value: object, name: str = "") -> bool:
    """Whether runs stand below a key: in lists, or each below its seed."""
    if isinstance(value, list):
        least = RUN_LIST.search(name) is None  # one value is a run where the key says so
        return _is_objects(value) or (len(value) > least and all(map(is_number, value)))
    if not isinstance(value, dict):
        return False
    return _is_of_runs(value, name) or any(_holds_runs(each, key) for key, each in value.items())


def _are_runs(value: object, lists: Lists) -> bool:
    """Whether an object has a list for each thing, of the length of a list of seeds."""
    sizes = {len(cells) for key, cells in lists.items() if SEED_LIST.fullmatch(key)}
    return (
        isinstance(value, dict) and len(value) > 1 and not any(map(is_known, value))
        and all(isinstance(each, list) and len(each) in sizes for each in value.values())
    )  # fmt: skip


def _level_name(depth: int) -> str:
    return f"key {depth + 1}" if depth else "key"


def _at(part: Any, path: Sequence[str]) -> Any:
    return _at(part[path[0]], path[1:]) if path else part


def _names_in(value: object) -> set[str]:
    """The plain last names of all keys below a place."""
    if isinstance(value, list):
        return set().union(*map(_names_in, value))
    if not isinstance(value, dict):
        return set()
    own = {plain_name(key.split(".")[-1]) for key in value}
    return own.union(*map(_names_in, value.values()))


class _Tree:
    """The rows of a document of any depth. A level whose keys stand over alike objects is a column
    (`key`, `key 2` …), as is what stands beside a part and holds for all of it; lists of numbers
    are runs. Means beside the runs are left out and said.

    rows: those found so far. above: {level: the name of the key over it}. melted: the level of keys
    over single numbers, which may be arms. of_lists: levels over lists of objects. seeds: lists of
    them. label: of values without a name. left_out: {part: its numbers} that summarise others.
    others: lists that are not read. baseline: an arm, "" where none is told.
    """

    def __init__(self, form: str, table: str | None, baseline: str | None) -> None:
        self.form, self.table, self.baseline = form, table, baseline or ""
        self.rows: list[Record] = []
        self.above: dict[str, str] = {}
        self.melted, self.label = "", "values"
        self.of_lists, self.seeds = set[str](), set[str]()
        self.left_out: dict[str, int] = {}
        self.others: list[str] = []
        self.falls: list[bool] = []  # of lists of two numbers: whether the second is smaller

    def frame(self, document: Any) -> Frame:
        self.walk(document, {}, {}, "", is_top=isinstance(document, dict))
        if len(self.falls) >= LEAST_PAIRS and len({*self.falls}) == 1 and not self.seeds:
            raise ValueError(
                f"its {len(self.falls)} lists have two numbers, of which the second one is "
                f"{'smaller' if self.falls[0] else 'larger'} in all, so that they are no runs: "
                "give what each is (test and train, a mean and its spread) as keys or columns"
            )
        frame = frame_of_records(self.rows, "JSON, keyed" if self.above else self.form)
        self.give_roles(frame)
        if self.left_out:
            shown = ", ".join(list(self.left_out)[:5])
            count = sum(self.left_out.values())
            frame.notes.append(
                f"not read: {shown}, of all records together ({count} numbers); their own values "
                "count"
            )
        if self.others:
            frame.notes.append(
                f"not read: the lists {', '.join(list(dict.fromkeys(self.others))[:5])}"
            )
        if "_step" in frame.columns:
            frame.history = "_step"
        if self.form.endswith("history'"):
            steps = ("step", "epoch", "iteration")
            frame.history = next((name for name in steps if name in frame.columns), "")
        return frame

    def walk(
        self, part: Any, cells: Record, lists: Lists, name: str, depth: int = 0, *,
        is_top: bool = False,
    ) -> None:  # fmt: skip
        """Adds the rows of a part below the key `name` and `depth` levels. cells: what all of them
        have. lists: of cells, beside a part or above it.
        """
        if _is_objects(part):
            for row in part:
                self.walk(row, cells, lists, name, depth)
        elif not isinstance(part, dict):
            if isinstance(part, list) and len(part) == 2 and all(map(is_number, part)):
                self.falls += [part[1] < part[0]] if part[0] != part[1] else []
            self.rows += [cells | one for one in _exploded({self.label: part}, lists)]
        elif level := self.level(part, lists, name, depth, is_top=is_top):
            if len(level) < len(part):
                cells, lists = self.beside(part, level, cells, lists)
            means = [key for key in level if MEANS.match(key)]
            if len(means) == 1 < len(level) and all(map(SUMMARY.search, level)):
                self.count_out(key for key in level if key not in means)
                return self.walk(level[means[0]], cells, lists, means[0], depth)
            self.above.setdefault(_level_name(depth), name)
            if all(map(_is_objects, level.values())):
                self.of_lists.add(_level_name(depth))
            for key, each in level.items():
                own = cells | {_level_name(depth): str(key)}
                self.walk(each, own, lists, "", depth + 1)
        elif path := self.chosen(part, lists, is_top=is_top):
            inner = _at(part, path)
            cells, lists = self.beside(part, {".".join(path): inner}, cells, lists)
            is_task = path[-1] in ("metrics", "scores", "results") and not is_top
            is_task &= not any(role_of_name(key)[0] == "task" for key in cells)
            self.walk(inner, cells, lists, "task" if is_task else path[-1], depth)
        else:
            self.rows += [cells | row for row in _exploded(flat(part), lists)]
        return None

    def count_out(self, names: Iterable[str]) -> None:
        for name in names:
            self.left_out[name] = self.left_out.get(name, 0) + 1

    def level(self, part: Record, lists: Lists, name: str, depth: int, *, is_top: bool) -> Record:
        """The entries of an object that has one for each thing; {} where it has none."""
        if is_top and self.table and any(self.parts(part, lists)):
            return {}
        if _is_level(part) or _is_of_runs(part, name):
            return part
        is_below = depth > 0 and SEED_LIST.fullmatch(self.above[_level_name(depth - 1)])
        are_numbers = len(part) > 1 and all(map(is_number, part.values()))
        if _are_runs(part, lists) or (is_below and are_numbers and not any(map(is_known, part))):
            self.melted = _level_name(depth)
            return part
        objects = {key: each for key, each in part.items() if isinstance(each, dict)}
        alike = {key: each for key, each in objects.items() if key not in SECTIONS | SETTINGS}
        if self.are_arms(alike) and _are_results(alike):
            return alike
        if depth and _are_lists_of_runs(part):
            self.melted = _level_name(depth)
            return part
        objects = {key: each for key, each in objects.items() if _holds_runs(each)}
        rest = [each for key, each in part.items() if key not in objects]
        is_mixed = len(objects) > 1 and not any(_is_level(x) or _is_objects(x) for x in rest)
        keys = [set(each) for each in objects.values()]
        return objects if is_mixed and all(each == keys[0] for each in keys) else {}

    def are_arms(self, keys: Iterable[str], name: str = "") -> bool:
        """Whether one of the keys is the told baseline, or else is called like one, or the name
        over them says that they are arms.
        """
        names = {self.baseline} if self.baseline else OF_ARMS
        is_base = any(key in names or key.lower() in names for key in keys)
        return is_base or _word_role(name) == "arm"

    def chosen(self, part: Record, lists: Lists, *, is_top: bool) -> Path:
        """The path from an object to the part that holds its rows; () where it is a row itself."""
        found: dict[str, tuple[int, Path]] = {}
        for path, value in self.parts(part, lists):
            if not is_top and not (path[-1] in LISTS or RUN_LIST.search(path[-1])):
                continue
            depth, is_list = len(path) - 1, _is_objects(value)
            rank = LISTS.index(path[-1]) if path[-1] in LISTS and is_list else len(LISTS)
            is_named = path[-1] in ("results", "metrics", "scores")
            if not is_list and (is_named or self.are_arms(value, path[-1])) and _are_results(value):
                rank -= 1
            elif not is_list and not (is_named and len(value) > 1) and not _holds_runs(
                value, path[-1]
            ):  # fmt: skip
                if not is_top or len(value) < 3 or not _are_results(value):
                    continue
                rank += 1  # of any name, where it is the only one
            found[".".join(path)] = (rank + 100 * depth, path)
        if not found:
            return ()
        if is_top and self.table is not None:
            numbered = dict(zip(map(str, range(1, len(found) + 1)), found, strict=True))
            name = self.table if self.table in found else numbered.get(self.table)
            if name is None:
                raise ValueError(f"--table {self.table}: its parts are {', '.join(found)}")
        else:
            best = min(rank for rank, _ in found.values())
            names = [name for name, (rank, _) in found.items() if rank == best]
            if len(names) > 1 and best % 100 > len(LISTS):
                return ()
            if len(names) > 1:
                summaries = [
                    key for key, each in part.items()
                    if SUMMARY.search(key) and _is_level(each) and _are_results(each)
                ]  # fmt: skip
                names = [*summaries, *names]
                text = f"it holds several lists of objects ({', '.join(names[:8])})"
                raise SeveralTables(text, names)
            name = names[0]
        path = found[name][1]
        if not is_top:
            own = {key for key, each in part.items() if is_number(each) and is_known(key)}
            inner = _at(part, path)
            if any(plain_name(key) not in _names_in(inner) and not SUMMARY.search(key)
                   for key in own):  # fmt: skip
                return ()  # a row, with details in lists
        else:
            self.others += [each for each in found if each != name]
            self.form = f"JSON, the list {name!r}"
            is_generic = path[-1] in LISTS or RUN_LIST.search(path[-1]) or _word_role(path[-1])
            self.label = "values" if is_generic else path[-1]
        return path

    def parts(self, part: Record, lists: Lists, path: Path = ()) -> Iterator[tuple[Path, Any]]:
        """The lists of objects and levels inside of an object, but for settings and, unless one is
        told, summaries.
        """
        lists = {**lists, **{key: each for key, each in part.items() if isinstance(each, list)}}
        for key, value in part.items():
            here = (*path, key)
            is_told = self.table == ".".join(here)
            if (SUMMARY.search(key) and not is_told) or key in SETTINGS or key in PER_SAMPLE:
                continue
            is_level = _is_level(value) or _is_of_runs(value, key) or _are_runs(value, lists)
            if is_level or _is_objects(value):
                yield here, value
            elif isinstance(value, dict):
                yield from self.parts(value, lists, here)

    def beside(
        self, part: Record, kept: Record, cells: Record, lists: Lists
    ) -> tuple[Record, Lists]:
        """The cells and lists of cells that stand beside some parts, also of its settings. Numbers
        that summarise, or have the name of a value of these parts, are left out.
        """
        rest = flat({key: each for key, each in part.items() if key not in kept})
        rest = {key: each for key, each in rest.items()
                if not any(f"{key}.".startswith(f"{own}.") for own in kept)}  # fmt: skip
        own = set().union(*map(_names_in, kept.values()))
        cells, lists = dict(cells), dict(lists)
        for key, value in rest.items():
            path = key.split(".")
            if isinstance(value, list):
                is_axis = len(path) == 1 and not is_known(key)
                if is_axis and not any(isinstance(x, list | dict) for x in value):
                    lists[key] = value
                    self.seeds |= {key} if SEED_LIST.fullmatch(key) else set()
                else:
                    self.others += [path[0]]
                continue
            is_other = len(path) > 1 and role_of_name(path[-1])[0] in ("", "metric", "value")
            is_own = is_known(path[-1]) and (
                plain_name(path[-1]) in own or (is_number(value) and any(map(is_known, own)))
            )
            is_summary = is_own or (
                is_number(value) and (is_other or any(map(SUMMARY.search, path)))
            )
            if isinstance(value, dict) or (is_summary and not set(path) & SETTINGS):
                self.count_out(path[:1])
            else:
                cells[key] = value
        return cells, lists

    def give_roles(self, frame: Frame) -> None:
        """What each level of keys is, by its keys and the name over it: splits, runs, metrics,
        else the first one the arms and the second one the tasks.
        """
        for name in self.seeds & frame.columns.keys():
            frame.roles[name] = ("seed", "a list beside the runs")
        if not self.above:
            return
        pairs = {row["key"]: tuple(row["key"].split("__")) for row in self.rows if "key" in row}
        sets = [set(parts) for parts in zip(*pairs.values(), strict=False)]
        is_grid = len(sets) == 2 and {len(pair) for pair in pairs.values()} == {2}
        if is_grid and 1.25 * len(pairs) >= len(sets[0]) * len(sets[1]) > max(map(len, sets)):
            column = frame.columns["key"]  # MODEL__TEST, each with each
            frame.columns["second part of key"] = column.mapped(lambda key: pairs[key][1])
            frame.columns["key"] = column.mapped(lambda key: pairs[key][0])
            reason = "behind __ in the key, and the same in each"
            frame.roles["second part of key"] = ("task", reason)
        is_counted = all(str(row.get("key", "")).isdigit() for row in self.rows)
        words = dict[str, str]()  # {level: what the name over it says}
        keys = {name: [str(key) for key in frame.columns[name].present()] for name in self.above}
        deepest = [*self.above][2:][-1:]  # below arms and tasks
        for name, own in keys.items():
            own = [key for key in own if not SUMMARY.fullmatch(key)] or own
            if {key.lower() for key in own} <= set(SPLITS):
                frame.roles[name] = ("split", "keys that are splits")
            elif name in self.of_lists and not SEED_LIST.fullmatch(self.above[name]):
                words[name] = "arm"
            elif all(map(SEED_KEY.fullmatch, own)):
                is_index = is_counted and name == "key" and len(self.above) == 1
                if is_index and not SEED_LIST.fullmatch(self.above[name]):
                    frame.roles[name] = ("identifier", "the index of pandas")
                    frame.form = "JSON, pandas' index"
                else:
                    frame.roles[name] = ("seed", "keys that count runs")
            elif all(map(is_known, own)) or (name in deepest and any(map(is_known, own))):
                frame.roles[name] = ("metric", "keys that are names of metrics")
            else:
                words[name] = _word_role(self.above[name])
        told = [name for name in words if self.baseline in keys[name]]
        data = [name for name, own in keys.items() if name in words and 2 * sum(
            DATA_SETS.search(plain_name(key)) is not None for key in own) > len(own)]  # fmt: skip
        rest = [name for name in words if name not in data]
        arm = next((name for name, word in words.items() if word == "arm"), "")
        arm = told[0] if len(told) == 1 else arm or (rest[0] if rest and data else "")
        arm = arm or next((name for name, word in words.items() if word != "task"), "")
        first = next(iter(words), "")
        tasks = [name for name in words if name != arm]
        if arm:
            below = "" if words[arm] or arm != first else "the first level of keys"
            below = "it has the baseline" if told == [arm] else below
            frame.roles[arm] = ("arm", below or f"keys below {self.above[arm]!r}")
        if tasks and told == [self.melted]:  # what all of them repeat is no task
            frame.roles[tasks[0]] = ("text", "")
        elif tasks:
            frame.roles[tasks[0]] = ("task", "the second level of keys")
        has_baseline = any(key.lower() in OF_ARMS for key in keys.get(arm, ()))
        shown = {name: f"{name!r} ({', '.join(keys[name][:4])})" for name in words}
        if is_counted and arm and arm != "key" and not words[arm] and not has_baseline:
            reason = f"{shown[arm]} stands below numbers, the keys of rows or runs"
            frame.roles[arm] = ("open", reason)
        others = [
            name for name in tasks
            if not (words[name] or words[arm] or has_baseline or data or told)
            and not any(re.search(r"[a-z]{3,}[-_ ]?\d{2,4}$", key, re.I) for key in keys[name])
        ] if arm else []  # fmt: skip
        if others:
            reason = f"{TWO_LEVELS}, {shown[arm]} and {shown[others[0]]}"
            for name in [arm, others[0]] if others[0] != self.melted else others[:1]:
                frame.roles[name] = ("open", f"{reason}; {name!r}")


def _word_role(name: str) -> str:
    """`arm` or `task` where the name over a level of keys says that they are; else ""."""
    plain = re.sub(r"^(per|by|each)_", "", plain_name(name))
    forms = {plain, plain.removesuffix("s")}
    if forms & set(ARM_WORDS) and plain != "data" and not SEED_LIST.fullmatch(plain):
        return "arm"
    return "task" if any(role_of_name(form)[0] == "task" for form in forms) else ""
