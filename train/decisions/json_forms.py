"""Documents of JSON as rows: what evaluation programs, trackers and people write.

lm-eval, MTEB, HELM, CLIP_benchmark, Hugging Face's trainer, every orient of pandas, lists of
results inside of a document, and results keyed by model, seed or task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from train.decisions.frames import Frame, frame_of_records, joined
from train.decisions.metric_names import is_known, plain_name
from train.decisions.roles import BASELINES, SPLITS

Record = dict[str, Any]
SEED_KEY = re.compile(r"(seed|run|rep|repeat|trial|replicate|s)?[-_ ]?\d+", re.I)
SETTINGS = {"config", "params", "args", "hparams", "hyperparameters", "settings"}
SECTIONS = {"config", "metrics", "params", "summary", "args", "hparams", "data", "hyperparameters"}
PER_SAMPLE = {"per_sample", "correct"}
MATRIX = re.compile(r"(\w+[._])?(results?|times?|timings?|runtimes?)", re.I)  # names of values
# A part of a key whose values say something of all records together.
SUMMARY = re.compile(
    r"(\w+_)?(summary|aggregated?|overall|stats|statistics|mean|avg|average|median|std|stdev|sd|sem|"
    r"stderr)|min|max|(mean|avg|average|median|std|overall)_\w+", re.I,
)  # fmt: skip
LISTS = ("results", "runs", "records", "rows", "data", "scores", "evaluations", "experiments",
         "entries", "models", "trials", "history", "log_history", "metrics")  # fmt: skip


# The end of a key that summarises the list of runs beside it, and that of such a list.
SUMMARY = re.compile(
    r"(^|[._/ -])(mean|avg|average|median|std|stdev|sd|var|variance|stderr|sem|min|max|ci\w*|n|"
    r"count|num_?\w*|n_\w+|summary|aggregated?|overall|std_?dev)$", re.I
)  # fmt: skip
RUN_LIST = re.compile(
    r"(^|[._/ -])((per|by|all|each)_?)?(seeds?|runs?|folds?|trials?|reps?|values?|scores?|raw|list|"
    r"all|results?)$", re.I
)  # fmt: skip


def frame_of_json(
    document: Any, *, lines: bool = False, form: str = "", table: str | None = None
) -> Frame:
    """The rows of a document, or of the documents of JSON lines. table: which of its lists of
    objects. ValueError where it has none.
    """
    if isinstance(document, list):
        return _of_list(document, form or ("JSON lines" if lines else "JSON"))
    if not isinstance(document, dict):
        raise ValueError("it holds neither an object nor a list of objects")
    if not document:
        raise ValueError("there is no row")
    for reader in (_own, _split, _schema, _lm_eval, _mteb, _helm, _trainer):
        if (frame := reader(document)) is not None:
            return frame
    if table is not None:
        return _inner_list(document, table) or frame_of_records([], "JSON")
    inner = list(document.values())
    if all(isinstance(each, list) and not _is_objects(each) for each in inner):
        return _of_lists(document)
    if all(isinstance(each, dict) for each in inner):
        if all("0" in each for each in inner) and len(inner[0]) > 0:  # pandas' columns
            rows = [{name: document[name].get(row) for name in document} for row in inner[0]]
            return frame_of_records([flat(row) for row in rows], "JSON, pandas' columns")
        if frame := _keyed(document):
            return frame
    if frame := _inner_list(document):
        return frame
    for name in ("results", "metrics", "scores"):  # beside settings of the whole
        part = document.get(name)
        if isinstance(part, dict) and len(part) > 1 and (frame := _keyed(part)):
            for key, value in _beside(document, name, part.values(), frame.notes).items():
                frame.add(key, value)
            return frame
    return frame_of_records(_exploded(flat(document)), form or "JSON")


def flat(row: Mapping[str, Any]) -> Record:
    """A row without nesting, but for `metrics`: {"config": {"seed": 1}} has the key config.seed."""
    one: Record = {}
    for key, value in row.items():
        if isinstance(value, dict) and key == "metrics":
            one[key] = dict(flat(value).items())
        elif isinstance(value, dict):
            one |= {f"{key}.{inner}": each for inner, each in flat(value).items()}
        else:
            one[key] = value
    return one


def _beside(
    document: Mapping[str, Any], part: str, records: Iterable[Record], notes: list[str]
) -> Record:
    """The single values of a document that stand beside a part of it, also of its settings. Numbers
    that are means of its records, or have the name of one of their values, are left out and noted.
    """
    own = set[str]()
    for row in records:
        for key, value in flat(row).items():
            own.update(plain_name(name.split(".")[-1]) for name in (key, *_keys(value)))
    kept: Record = {}
    left_out: dict[str, None] = {}
    for key, value in flat(document).items():
        path = key.split(".")
        if isinstance(value, list) or f"{key}.".startswith(f"{part}."):
            continue
        is_own = plain_name(path[-1]) in own and is_known(path[-1])
        is_summary = is_own or (is_number(value) and any(map(SUMMARY.fullmatch, path)))
        if isinstance(value, dict) or (is_summary and not set(path) & SETTINGS):
            left_out[path[0]] = None
        else:
            kept[key] = value
    if left_out:
        shown = ", ".join(list(left_out)[:5])
        notes.append(f"not read: {shown}, of all records together; their own values count")
    return kept


def _keys(value: Any) -> Iterable[str]:
    return value if isinstance(value, dict) else ()


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _of_list(document: Sequence[Any], form: str) -> Frame:
    if document and all(isinstance(row, list) for row in document):
        return _of_rows(document)
    if document and all(map(_is_statistic, document)):
        return _helm_stats(document)
    if wrong := [row for row in document if not isinstance(row, dict)]:
        raise ValueError(f"an item is no object: {str(wrong[0])[:40]!r}")
    if document and all(_lm_eval_like(row) for row in document):
        return joined([frame_of_json(row) for row in document])
    rows = [one for row in document for one in _exploded(flat(row))]
    return frame_of_records(rows, form)


def _of_rows(rows: Sequence[Sequence[Any]]) -> Frame:
    """pandas' values: rows of cells, whose first may name the columns."""
    width = max(len(row) for row in rows)
    first = rows[0]
    is_header = all(isinstance(cell, str) for cell in first) and len(rows) > 1
    if is_header and not all(isinstance(cell, str) for cell in rows[1]):
        names, body = list(map(str, first)), rows[1:]
    else:
        names, body = [f"column {n}" for n in range(1, width + 1)], rows
    frame = frame_of_records([dict(zip(names, row, strict=False)) for row in body], "JSON, rows")
    if body is rows:
        frame.notes.append("no row names the columns: they are numbered")
    return frame


def _own(document: Record) -> Frame | None:
    """results.json of clipmill."""
    if not isinstance(document.get("runs"), dict) or "ablation_hash" not in document:
        return None
    rows = [
        {"arm": arm, "seed": seed, "task": task, "metrics": metrics}
        for arm, seeds in document["runs"].items()
        for seed, tasks in seeds.items()
        for task, metrics in tasks.items()
    ]
    return frame_of_records(rows, "results.json of clipmill")


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
        names = list(document)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*document.values(), strict=True)]
        return frame_of_records(rows, "JSON, a list for each column")
    if not (scalar and numbers):
        raise ValueError(
            "its lists have other lengths, or hold lists: give one object for each run"
        )
    rows = [{"key": key, "value": cell} for key, cells in document.items() for cell in cells]
    frame = frame_of_records(rows, "JSON, a list of runs for each key")
    frame.roles["key"] = ("arm", "the key of a list of runs")
    return frame


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _exploded(row: Record) -> list[Record]:
    """The rows of a record all of whose numbers are lists of one length: a row for each place.

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
    }  # fmt: skip
    metrics = row.get("metrics")
    bases = {RUN_LIST.sub("", key) for key in lists}
    summaries = {
        key for key, value in row.items()
        if is_number(value) and SUMMARY.search(key) and SUMMARY.sub("", key) in bases
    }  # fmt: skip
    if not lists or len({len(each) for each in lists.values()}) > 1 or isinstance(metrics, dict):
        return [row]
    if any(is_number(row[key]) and is_known(key) for key in row.keys() - summaries):
        return [row]  # the lists are something else
    rest = {key: value for key, value in row.items() if key not in lists and key not in summaries}
    count = len(next(iter(lists.values())))
    names = {key: (RUN_LIST.sub("", key) or "value") if len(lists) == 1 else key for key in lists}
    return [rest | {names[key]: value[n] for key, value in lists.items()} for n in range(count)]


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
            rows.append(row)
    if not rows:
        raise ValueError("lm-eval's file has no metric of a task")
    frame = frame_of_records(rows, "lm-eval")
    frame.left_out = {reason: count for reason, count in left_out.items() if count}
    frame.roles |= {
        "task": ("task", "of lm-eval"), "metric": ("metric", "of lm-eval"),
        "value": ("value", "of lm-eval"), "n_shot": ("task", "shots are parts of the task"),
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


def _is_statistic(row: Any) -> bool:
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


def _trainer(document: Record) -> Frame | None:
    """trainer_state.json of Hugging Face."""
    log = document.get("log_history")
    if not _is_objects(log):
        return None
    frame = frame_of_records([flat(row) for row in log or ()], "Hugging Face's trainer")
    frame.history = "step" if "step" in frame.columns else "epoch"
    return frame


# --- keyed by something ---------------------------------------------------------------------------


def _is_level(value: Any) -> bool:
    """Whether a dictionary has one entry for each thing, not one for each property."""
    if not isinstance(value, dict) or not value or set(value) & SECTIONS:
        return False
    inner = list(value.values())
    if not all(isinstance(each, dict) and each for each in inner):
        return False
    if len(inner) == 1:
        return _is_level(inner[0]) or bool(SEED_KEY.fullmatch(next(iter(value))))
    shared = set(inner[0]).intersection(*map(set, inner[1:]))
    return bool(shared) or all(_is_level(each) for each in inner)


def _keyed(document: Record) -> Frame | None:
    """Results keyed by model, seed or task, to any depth: each level is a column."""
    if not _is_level(document):
        return None
    rows: list[Record] = []

    def walk(part: Record, path: tuple[str, ...]) -> None:
        if _is_level(part):
            for key, each in part.items():
                walk(each, (*path, str(key)))
        else:
            keys = {f"key {n}" if n > 1 else "key": key for n, key in enumerate(path, 1)}
            for row in _exploded(flat(part)):
                rows.append({**keys, **row})

    walk(document, ())
    pairs = {row["key"]: tuple(row["key"].split("__")) for row in rows}
    sets = [set(parts) for parts in zip(*pairs.values(), strict=False)]
    is_grid = len(sets) == 2 and {len(pair) for pair in pairs.values()} == {2}
    if is_grid and 1.25 * len(pairs) >= len(sets[0]) * len(sets[1]) > max(map(len, sets)):
        for row in rows:  # MODEL__TEST, each with each
            row |= dict(zip(("key", "second part of key"), pairs[row["key"]], strict=True))
    frame = frame_of_records(rows, "JSON, keyed")
    if "second part of key" in frame.columns:
        frame.roles["second part of key"] = ("task", "behind __ in the key, and the same in each")
    numeric_index = all(str(row.get("key", "")).isdigit() for row in rows)
    named = 0
    for name in [each for each in frame.columns if re.fullmatch(r"key( \d+)?", each)]:
        keys = [str(key) for key in frame.columns[name].present()]
        keys = [key for key in keys if not SUMMARY.fullmatch(key)] or keys
        if keys and {key.lower() for key in keys} <= set(SPLITS):
            frame.roles[name] = ("split", "keys that are splits")
            continue
        if keys and all(SEED_KEY.fullmatch(key) for key in keys):
            if name == "key" and numeric_index and "key 2" not in frame.columns:
                frame.roles[name] = ("identifier", "the index of pandas")
                frame.form = "JSON, pandas' index"
            else:
                frame.roles[name] = ("seed", "keys that count runs")
        elif keys and all(is_known(key) for key in keys):
            frame.roles[name] = ("metric", "keys that are names of metrics")
        elif named == 0 and numeric_index and name != "key" and not (
            {key.lower() for key in keys} & set(BASELINES)
        ):  # fmt: skip
            named += 1
            frame.roles[name] = (
                "open",
                f"{name!r} ({', '.join(keys[:4])}) stands below numbers, the keys of rows or runs",
            )
        else:
            named += 1
            if named == 1:
                frame.roles[name] = ("arm", "the first level of keys")
            elif named == 2:
                frame.roles[name] = ("task", "the second level of keys")
    return frame


def _share_keys(lists: Iterable[Sequence[Record]]) -> bool:
    """Whether the objects of all lists have a key in common."""
    keys = [set(row) for rows in lists for row in rows]
    return bool(set.intersection(*keys))


def _inner_list(document: Record, table: str | None = None) -> Frame | None:
    """A list of objects inside of a document, with the single values beside it. table: its key."""
    lists = {key: value for key, value in document.items() if _is_objects(value)}
    if not lists:
        for key, part in document.items():
            if isinstance(part, dict) and not _is_level(part):
                inner = {name: each for name, each in part.items() if _is_objects(each)}
                lists |= {f"{key}.{name}": each for name, each in inner.items()}
    if not lists:
        return None
    chosen = next((key for key in LISTS if key in lists), None)
    if table is not None:
        numbered = dict(zip(map(str, range(1, len(lists) + 1)), lists, strict=True))
        chosen = table if table in lists else numbered.get(table)
        if chosen is None:
            raise ValueError(f"--table {table}: its lists of objects are {', '.join(lists)}")
        lists = {chosen: lists[chosen]}
    if len(lists) > 1 and len(lists) == len(document) and _share_keys(lists.values()):
        rows = [{"key": key, **flat(row)} for key, each in lists.items() for row in each]
        frame = frame_of_records(rows, "JSON, a list of runs for each key")
        frame.roles["key"] = ("arm", "the key of a list of runs")
        return frame
    if chosen is None:
        if len(lists) > 1:
            raise ValueError(
                f"it holds several lists of objects ({', '.join(list(lists)[:8])}): choose one "
                "with --table NAME"
            )
        chosen = next(iter(lists))
    notes: list[str] = []
    beside = _beside(document, chosen, lists[chosen], notes)
    rows = [beside | one for row in lists[chosen] for one in _exploded(flat(row))]
    frame = frame_of_records(rows, f"JSON, the list {chosen!r}")
    frame.notes += notes
    if others := [key for key in lists if key != chosen]:
        frame.notes.append(f"not read: the lists {', '.join(others[:5])}")
    if chosen.endswith("history"):
        frame.history = next((n for n in ("step", "epoch", "iteration") if n in frame.columns), "")
    return frame
