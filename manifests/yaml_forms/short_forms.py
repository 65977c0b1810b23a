"""The short forms of a manifest as the fields of its dataclass, and its paths as absolute ones."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manifests.schema import Ablation, Blend, Miniweb, Recipe, Suite, TaskSpec
from manifests.yaml_forms.yaml_file import expand_variables, pick_scale, read_yaml

OPEN_CLIP = "open_clip:"
# Options of filters that name files: their paths are relative to the manifest.
FILE_OPTIONS = (
    "against", "captions", "entries", "mapping", "paths", "targets", "weights", "wnids", "words",
)  # fmt: skip
# Options that name weights, by files of these endings or as local-dir:FOLDER, or else by a name.
WEIGHTS_OPTIONS = ("model", "pretrained")
WEIGHTS_FILES = (".bin", ".ftz", ".pt", ".pth", ".safetensors")
PATH_AND_CLASS = re.compile(r"(?s)(.+\.py):([^:/]*)")  # a user's own filter
LOCAL_DIR = "local-dir:"


def shape(raw: Mapping[str, Any], kind: type, folder: Path, where: str) -> dict[str, Any]:
    """The short forms of a manifest as the fields of its dataclass, its paths as absolute ones."""
    shaped = dict(raw)
    if kind is Recipe:
        _shape_recipe(shaped, folder, where)
    elif kind is Blend:
        _shape_blend(shaped, folder)
    elif kind is TaskSpec:
        _shape_task(shaped, folder)
    elif kind is Suite and isinstance(shaped.get("tasks"), list):
        shaped["tasks"] = [_task(task, folder) for task in shaped["tasks"]]
    elif kind is Ablation:
        _shape_ablation(shaped, folder)
    if "miniweb" in shaped:
        shaped["miniweb"] = shape_block(shaped["miniweb"], Miniweb, folder)
    return shaped


def shape_block(block: Any, kind: type, folder: Path) -> Any:
    """One block of a manifest, its paths as absolute ones."""
    if kind is not Miniweb or not isinstance(block, dict):
        return block
    paths = {key: _absolute(block[key], folder) for key in ("photos", "captions") if key in block}
    return {**block, **paths}


def _absolute(path: Any, folder: Path) -> Any:
    """A path relative to the manifest as an absolute one without `..`; URLs and other values as
    they are.
    """
    if not isinstance(path, str) or "://" in path:
        return path
    end = "/" if path.endswith("/") else ""
    return os.path.normpath(folder / path).rstrip("/") + end


def _shape_recipe(shaped: dict[str, Any], folder: Path, where: str) -> None:
    source = shaped.get("source")
    if isinstance(source, dict) and "paths" in source:
        paths = [source["paths"]] if isinstance(source["paths"], str) else source["paths"]
        if isinstance(paths, list):
            shaped["source"] = {**source, "paths": [_absolute(path, folder) for path in paths]}
    fetch = shaped.get("fetch")
    if isinstance(fetch, dict) and "known_bad" in fetch:
        shaped["fetch"] = {**fetch, "known_bad": _absolute(fetch["known_bad"], folder)}
    if isinstance(shaped.get("filters"), list):
        shaped["filters"] = [filter_fields(entry, folder) for entry in shaped["filters"]]
    if isinstance(shaped.get("views"), dict):
        views = []
        for name, rules in shaped["views"].items():
            if rules is not None and not isinstance(rules, list):
                raise ValueError(
                    f"{where}: views.{name} is {rules!r}; it must be a list of named rules, as in "
                    f'{name}: [{{words: "caption_words >= 4"}}]'
                )
            views.append(
                {"name": name, "rules": [rule_fields(r, name, where) for r in rules or []]}
            )
        shaped["views"] = views


def _shape_blend(shaped: dict[str, Any], folder: Path) -> None:
    if isinstance(shaped.get("pools"), dict):
        shaped["pools"] = {k: _absolute(v, folder) for k, v in shaped["pools"].items()}
    if "segments" in shaped:
        shaped["segments"] = _absolute(shaped["segments"], folder)
    if isinstance(shaped.get("streams"), dict):
        streams = {}
        for name, stream in shaped["streams"].items():
            streams[name] = _stream(stream, folder)
        shaped["streams"] = streams


def _stream(stream: Any, folder: Path) -> Any:
    """The fields of a TarStream from these, from one tar or from a list of tars."""
    fields = dict(stream) if isinstance(stream, dict) else {"tars": stream}
    tars = [fields["tars"]] if isinstance(fields.get("tars"), str) else fields.get("tars")
    if isinstance(tars, list):
        absolute = []
        for tar in tars:
            is_other = not isinstance(tar, str) or tar == "-" or tar.startswith("pipe:")
            absolute.append(tar if is_other else _absolute(tar, folder))
        fields["tars"] = absolute
    return fields


def _shape_ablation(shaped: dict[str, Any], folder: Path) -> None:
    if isinstance(shaped.get("pools"), dict):
        pools = {}
        for name, pool in shaped["pools"].items():
            if isinstance(pool, dict):
                pool = {key: _absolute(value, folder) for key, value in pool.items()}
            pools[name] = pool
        shaped["pools"] = pools
    if isinstance(shaped.get("arms"), dict):
        arms = {}
        for name, arm in shaped["arms"].items():
            arms[name] = _arm(arm, folder)
        shaped["arms"] = arms
    expand_arms(shaped)
    if isinstance(shaped.get("evaluate"), list):
        shaped["evaluate"] = [_task(task, folder) for task in shaped["evaluate"]]
    if "evaluate_weights" in shaped:
        shaped["evaluate_weights"] = weights_fields(shaped["evaluate_weights"])
    controls = shaped.get("controls")
    if isinstance(controls, dict) and controls.get("null_web"):
        shaped["controls"] = {**controls, "null_web": _absolute(controls["null_web"], folder)}


def _arm(arm: Any, folder: Path) -> Any:
    """POOL/VIEW as text, or the fields of an Arm with absolute paths."""
    if isinstance(arm, str):
        return {"view": arm}
    if not isinstance(arm, dict):
        return arm
    fields = {}
    for key, value in arm.items():
        if key in ("blend", "predictions"):
            fields[key] = _absolute(value, folder)
        elif key == "model":
            fields[key] = _model(value, folder)
        else:
            fields[key] = value
    return fields


def _model(source: Any, folder: Path) -> Any:
    """A model as train/evaluate.py takes it: a folder as an absolute path, open_clip's names as
    they are.
    """
    if not isinstance(source, str) or not source or source.startswith(OPEN_CLIP):
        return source
    prefix = LOCAL_DIR if source.startswith(LOCAL_DIR) else ""
    return prefix + str(_absolute(source.removeprefix(LOCAL_DIR), folder))


def weights_fields(value: Any) -> Any:
    """`final`, `ema` or {average_last: N} as the fields of Weights."""
    if isinstance(value, str):
        if value not in ("final", "ema"):
            raise ValueError(
                f"evaluate_weights is {value!r}; it must be final, ema or {{average_last: 3}}"
            )
        return {"ema": value == "ema"}
    return value


def _task(task: Any, folder: Path) -> Any:
    """A task of an ablation: its keys, or the path of a file that holds them."""
    if isinstance(task, str) and task.endswith(".yaml"):
        path = _absolute(task, folder)
        raw = expand_variables(pick_scale(read_yaml(path), None, path), path)
        return shape(raw, TaskSpec, Path(path).parent, path)
    if not isinstance(task, dict):
        return task
    shaped = dict(task)
    _shape_task(shaped, folder)
    return shaped


def _shape_task(shaped: dict[str, Any], folder: Path) -> None:
    """Absolute paths, and `classes: imagenet` or `templates: file.txt` as *_from."""
    for key in ("data", "train_data"):
        if key in shaped:
            shaped[key] = _absolute(shaped[key], folder)
    for key in ("classes", "templates"):
        value = shaped.get(key)
        if isinstance(value, str):
            is_file = value.endswith((".txt", ".json"))
            shaped[f"{key}_from"] = _absolute(value, folder) if is_file else value
            del shaped[key]


# --- filters and rules in short form -------------------------------------------------------------


def filter_fields(entry: Any, folder: Path) -> Any:
    """`caption`, `{clip_score: {…}}`, `{clip_l14: {clip_score: {…}}}` or
    `{mine: {my_filters.py:Sharpness: {…}}}` as the fields of FilterSpec.

    `{NAME: {KEY: {…}}}` stays an option KEY of a filter NAME unless KEY names a file: which names
    are filters is known to the package filters only, see `normalised` there.
    """
    if isinstance(entry, str):
        return {"name": entry}
    if not isinstance(entry, dict) or len(entry) != 1:
        return entry
    name, value = next(iter(entry.items()))
    if isinstance(value, str):  # {long: caption}: a filter without options under another name
        return {"name": name, "kind": _kind(value, folder)}
    if isinstance(value, dict) and len(value) == 1:
        kind, options = next(iter(value.items()))
        if isinstance(kind, str) and PATH_AND_CLASS.fullmatch(kind):
            return {"name": name, "kind": _kind(kind, folder), "options": options or {}}
    return {"name": name, "options": _options(value or {}, folder)}


def _options(options: Any, folder: Path) -> Any:
    """Options of a filter, or its kind with options, with the paths of files as absolute ones."""
    if not isinstance(options, dict):
        return options
    shaped: dict[Any, Any] = {}
    for key, value in options.items():
        if key in FILE_OPTIONS and isinstance(value, list):
            shaped[key] = [_absolute(each, folder) for each in value]
        elif key in FILE_OPTIONS:
            shaped[key] = _absolute(value, folder)
        elif key in WEIGHTS_OPTIONS and isinstance(value, str):
            shaped[key] = _weights(value, folder)
        else:
            shaped[key] = _options(value, folder)
    return shaped


def _weights(value: str, folder: Path) -> str:
    """The files that an option names as absolute ones; names of models as they are."""
    if value.startswith(LOCAL_DIR):
        return LOCAL_DIR + str(_absolute(value.removeprefix(LOCAL_DIR), folder))
    if value.endswith(WEIGHTS_FILES) and ":" not in value:
        return str(_absolute(value, folder))
    return value


def _kind(kind: str, folder: Path) -> str:
    """A filter's name as it is; the path of PATH.py:CLASS as an absolute one."""
    match = PATH_AND_CLASS.fullmatch(kind)
    return f"{_absolute(match[1], folder)}:{match[2]}" if match else kind


def rule_fields(entry: Any, view: str, where: str) -> dict[str, Any]:
    """`{english: language = 'en'}`, `{view: basic}`, `{random_like: clip30, seed: 1}` or
    `{half: {sample: 0.5, seed: 0}}` as the fields of Rule."""
    if isinstance(entry, dict):
        if "name" in entry and len(entry) > 1:
            return entry
        if "view" in entry or "random_like" in entry:
            return {"name": str(entry.get("view") or "random"), **entry}
        if len(entry) == 1:
            name, value = next(iter(entry.items()))
            if isinstance(value, dict):
                return {"name": str(name), **value}
            if isinstance(value, str):
                return {"name": str(name), "where": value}
            if isinstance(value, bool):
                return {"name": str(name), "where": str(value).lower()}
    raise ValueError(
        f"{where}: views.{view} has the rule {entry!r}; a rule is one of "
        '{words: "caption_words >= 4"}, {view: basic}, {random_like: clip30, seed: 0}, '
        "{half: {sample: 0.5, seed: 0}}"
    )


# --- the arms of an ablation in compact form ------------------------------------------------------

SWEEP_FORMS = (
    'clip: {view: "web/clip{}", values: [10, 30, 100]} or '
    "mix: {views: {web/clip30: [0.25, 0.5], web/basic: rest}}"
)


def expand_arms(shaped: dict[str, Any]) -> None:
    """Put the arms of `sweep` among the arms of an ablation, and cross them with `vary`."""
    if "sweep" in shaped:
        swept = expand_sweep(shaped.pop("sweep"))
        named = shaped.get("arms") or {}
        if twice := sorted(set(swept) & set(named)):
            raise ValueError(f"arm {twice[0]!r} is in arms and in sweep; name it once")
        shaped["arms"] = {**named, **swept}
    if shaped.get("vary") and isinstance(shaped.get("arms"), dict):
        shaped["arms"] = cross_arms(shaped["arms"], shaped["vary"])


def expand_sweep(sweep: Any) -> dict[str, Any]:
    """The arms of a sweep, as the fields of an Arm by name. ValueError for another form.

    {clip: {view: "web/clip{}", values: [10, 30]}} is clip10: web/clip10 and clip30: web/clip30.
    {mix: {views: {web/a: [0.25, 0.5], web/b: rest}}} is mix-0.25, of which a quarter is web/a, and
    mix-0.5.
    """
    if not isinstance(sweep, Mapping):
        raise ValueError(f"sweep is {sweep!r}; it must be such as {SWEEP_FORMS}")
    arms: dict[str, Any] = {}
    for name, form in sweep.items():
        if isinstance(form, Mapping) and set(form) == {"view", "values"}:
            arms |= _swept_views(str(name), form["view"], form["values"])
        elif isinstance(form, Mapping) and set(form) == {"views"}:
            arms |= _swept_weights(str(name), form["views"])
        else:
            raise ValueError(f"sweep.{name} is {form!r}; it must be such as {SWEEP_FORMS}")
    return arms


def _swept_views(name: str, view: Any, values: Any) -> dict[str, Any]:
    """One arm for each value, which stands for {} in the name of the view."""
    if not isinstance(view, str) or "{}" not in view:
        raise ValueError(f"sweep.{name}.view is {view!r}; write {{}} where a value stands")
    arms = {}
    for value in _plain_values(f"sweep.{name}.values", values):
        arms[f"{name}{value}"] = {"view": view.replace("{}", str(value))}
    return arms


def _swept_weights(name: str, views: Any) -> dict[str, Any]:
    """One arm for each weight of the one view that has a list; `rest` is what is left of 1."""
    lists = []
    rests = []
    fixed: dict[str, float] = {}
    for view, weight in views.items() if isinstance(views, Mapping) else ():
        if isinstance(weight, list):
            lists.append(view)
        elif weight == "rest":
            rests.append(view)
        elif isinstance(weight, (int, float)):
            fixed[view] = float(weight)
    known = len(lists) + len(rests) + len(fixed)
    if len(lists) != 1 or len(rests) != 1 or known != len(views):
        raise ValueError(
            f"sweep.{name}.views is {views!r}; "
            "one view has a list of weights, one is `rest`, all others have a number"
        )
    arms = {}
    for value in _plain_values(f"sweep.{name}.views.{lists[0]}", views[lists[0]]):
        left = round(1 - sum(fixed.values()) - float(value), 10)
        if not 0 < float(value) < 1 or left <= 0:
            raise ValueError(
                f"sweep.{name}.views.{lists[0]} has {value}, which leaves {left:g} for {rests[0]}; "
                "every weight must lie between 0 and 1"
            )
        weights = {**fixed, lists[0]: float(value), rests[0]: left}
        arms[f"{name}-{value}"] = {"views": weights}
    return arms


def cross_arms(arms: Mapping[str, Any], vary: Any) -> dict[str, Any]:
    """Every arm with every value of the setting that varies: raw and {precision: [bf16, fp32]} are
    raw-bf16 and raw-fp32.

    An arm that has a value of its own in its `train`, a model or predictions stay as they are.
    """
    if not isinstance(vary, Mapping) or len(vary) != 1:
        raise ValueError(
            f"vary is {vary!r}; it names one setting and its values, as in "
            "{precision: [bf16, fp32]}"
        )
    (key, values), crossed = next(iter(vary.items())), {}
    values = _plain_values(f"vary.{key}", values)
    for name, arm in arms.items():
        whole = isinstance(arm, Mapping) and not (arm.get("predictions") or arm.get("model"))
        if not whole or key in (arm.get("train") or {}):
            crossed[name] = arm
            continue
        for value in values:
            train = {**(arm.get("train") or {}), key: value}
            crossed[f"{name}-{value}"] = {**arm, "train": train}
    return crossed


def _plain_values(key: str, values: Any) -> list[Any]:
    """A list of different plain values. ValueError for anything else."""
    plain = isinstance(values, list) and all(isinstance(x, (str, int, float)) for x in values)
    if not plain or len(values) < 1 or len({str(value) for value in values}) < len(values):
        raise ValueError(f"{key} is {values!r}; it must be a list of different values")
    return list(values)
