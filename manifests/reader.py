"""Manifests from YAML, checked: unknown keys, wrong types and impossible values are errors that
name the right one.

pydantic and yaml are imported where they are used: a trainer that reads resolved JSON needs
neither.

YAML files as plain values, and what a manifest may write in short as the fields of its dataclass.
`manifests/reader.py` checks the types afterwards.

Reads YAML files; writes nothing. yaml is imported where a file is read.

Invariants:

* Aliases cannot explode, a key is never repeated, only stated variables expand
  (`test_yaml_file.py`).
* A short form and its long form are the same manifest (`test_short_forms.py`).
"""

from __future__ import annotations

import codecs
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipmill import PACKAGE
from clipmill.manifests import console, disk

if TYPE_CHECKING:
    import yaml
import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from clipmill.manifests import identity
from clipmill.manifests.disk import expand_braces
from clipmill.manifests.layout import AblationLayout, PoolLayout
from clipmill.manifests.schema import (
    Ablation,
    Blend,
    Fetch,
    Mixtures,
    Recipe,
    Source,
    Suite,
    TaskSpec,
    refuse_unused,
)

# --------------------------------------------------------------------------------------------------
# A YAML file as plain values: bounded aliases, no repeated keys, scales merged, a stated set of
# variables.
#
# yaml is imported where a file is read: a trainer that reads resolved JSON needs none.


MOST_VALUES = 100_000  # of one file once its aliases stand for what they name
NO_TEXT = re.compile("[\0\ud800-\udfff]")  # NUL, and half of a pair of UTF-16
VARIABLE = re.compile(r"\$\{(\w+)\}")
# What `${NAME}` may name in a manifest. A manifest of one's own uses names that begin with
# CLIPMILL_.
VARIABLES = {
    "MINIWEB": "the folder of a small web on loopback; clipmill demo sets it",
    "MINIWEB_PORT": "the port of that web; clipmill demo sets it",
    "SCORER": "the exported model of an ablation's scorer; clipmill build sets it",
    "CIFAR": "the folder of CIFAR-10 as train/CLASS/ and test/CLASS/",
    "CLOTHING": "the folder of photographs of clothes as train/CLASS/ and test/CLASS/",
    "DATACOMP": "the folder of DataComp's metadata, for datacomp_small",
    "EVAL": "the folder of evaluation data, for the suite datacomp_38",
    "IMAGENET": "the folder that holds ImageNet's val/CLASS/ folders",
}
OWN_PREFIX = "CLIPMILL_"
SHIPPED = ("manifests/", "examples/")
# The User-Agent is sent to every server: no other variable may get into it.
AGENT_VARIABLE = "CLIPMILL_USER_AGENT"
TEXT, BOOLEAN = "tag:yaml.org,2002:str", "tag:yaml.org,2002:bool"
KEY_TAGS = (TEXT, "tag:yaml.org,2002:merge")


def yaml_values(words: Iterable[str]) -> dict[str, Any]:
    """KEY=VALUE … of --set with values as in YAML. ValueError for another text."""
    import yaml

    values = {}
    for key, text in console.key_values(words):
        try:
            values[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ValueError(
                f"--set {key}: {text!r} is not a YAML value; put it in quotes"
            ) from None
    return values


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. ValueError that names the file and the line where it is
    not readable.
    """
    import yaml

    if not disk.exists(path):
        raise ValueError(f"{path} does not exist")
    if not disk.is_url(path) and disk.local_path(path).is_dir():
        raise ValueError(f"{path} is a folder; name a YAML file (a recipe, an ablation, …)")
    if str(path).lower().endswith((".csv", ".tsv", ".parquet", ".jsonl")):
        raise ValueError(
            f"{path} is a table; a recipe reads it: source: {{kind: table, paths: […]}}"
        )
    try:
        data = disk.read_bytes(path)
        is_utf_16 = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # as PowerShell writes
        loader = yaml.SafeLoader(data if is_utf_16 else data.decode())
        loader.name = str(path)
        try:
            node = loader.get_single_node()
            if node is not None:
                _count_values(node, str(path), {})
            value = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{path} is not YAML: {' '.join(reason.split())}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no mapping of keys")
    return value


def _count_values(node: yaml.Node, path: str, counts: dict[int, int]) -> int:
    """How many values a node stands for; ValueError for too many, for a key that is repeated or is
    not text.
    """
    import yaml

    if isinstance(node, yaml.ScalarNode):
        if found := NO_TEXT.search(node.value):
            raise ValueError(
                f"{path}: line {_line(node)} holds {found[0]!r}, which no text and no path may have"
            )
        return 1
    if id(node) in counts:
        if counts[id(node)] == 0:
            raise ValueError(f"{path}: an alias in line {_line(node)} stands for itself")
        return counts[id(node)]
    counts[id(node)] = 0  # under way
    total = 1
    if isinstance(node, yaml.MappingNode):
        _check_keys(node, path)
        for key, child in node.value:
            total += _count_values(child, path, counts)
            _count_values(key, path, counts)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            total += _count_values(child, path, counts)
    if total > MOST_VALUES:
        raise ValueError(
            f"{path}: the aliases in line {_line(node)} stand for more than {MOST_VALUES:,} values"
        )
    counts[id(node)] = total
    return total


def _check_keys(node: yaml.MappingNode, path: str) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if key.tag == BOOLEAN:  # no manifest has a boolean key, and `on` is the name of an option
            key.tag = TEXT
        if key.tag not in KEY_TAGS:
            text = getattr(key, "value", "")
            raise ValueError(
                f"{path}: the key {text!r} in line {_line(key)} is not text to YAML; "
                "put it in quotes"
            )
        if key.value in seen:
            raise ValueError(f"{path}: the key {key.value!r} is repeated in line {_line(key)}")
        seen.add(key.value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def pick_scale(raw: dict[str, object], scale: str | None, path: str) -> dict[str, Any]:
    """The manifest without its block `scales`; the block named `scale` of it is merged over the
    rest.
    """
    scales = raw.get("scales") or {}
    base = {key: value for key, value in raw.items() if key != "scales"}
    if not isinstance(scales, dict):
        raise ValueError(f"{path}: scales is {scales!r}; it must be a mapping of names to changes")
    if scale is None:
        return base
    if scale not in scales:
        names = ", ".join(sorted(scales)) or "none"
        raise ValueError(f"{path} has no scale {scale!r}; it has {names}")
    merged: dict[str, object] = merge(base, scales[scale] or {})
    return merged


def merge(base: object, change: object) -> Any:
    """`change` over `base`: mappings key by key, a null removes its key, everything else is
    replaced.
    """
    if not (isinstance(base, dict) and isinstance(change, dict)):
        return change
    merged = dict(base)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(base.get(key), value)
    return merged


def expand_variables(value: object, path: str, key: str = "") -> Any:
    """`${NAME}` in texts replaced by the environment. ValueError for a name that is not allowed, or
    not set.
    """
    if isinstance(value, dict):
        return {
            name: expand_variables(each, path, f"{key}.{name}" if key else str(name))
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [expand_variables(each, path, key) for each in value]
    if not isinstance(value, str):
        return value
    for name in dict.fromkeys(VARIABLE.findall(value)):
        _check_variable(name, path, key)
        value = value.replace(f"${{{name}}}", os.environ[name])
    return value


class UnsetVariableError(ValueError):
    """A manifest names a variable that the environment does not have."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def _check_variable(name: str, path: str, key: str) -> None:
    if key.rpartition(".")[2] == "user_agent" and name != AGENT_VARIABLE:
        raise ValueError(
            f"{path}: {key} names ${{{name}}}; it is sent to every server, so only "
            f"${{{AGENT_VARIABLE}}} is expanded there"
        )
    if name not in VARIABLES and not name.startswith(OWN_PREFIX):
        raise ValueError(
            f"{path}: {key} names ${{{name}}}; a manifest may use {', '.join(VARIABLES)} and names "
            f"that begin with {OWN_PREFIX}"
        )
    if name not in os.environ:
        raise UnsetVariableError(
            name, f"{path}: {key} names ${{{name}}}, which is not set in the environment"
        )


# --------------------------------------------------------------------------------------------------
# The short forms of a manifest as the fields of its dataclass, and its paths as absolute ones.


OPEN_CLIP = "open_clip:"
# Options of filters that name files: their paths are relative to the manifest.
FILE_OPTIONS = (
    "against", "captions", "entries", "nouns", "paths", "targets", "weights", "wnids", "words",
)  # fmt: skip
# Options that name weights, by files of these endings or as local-dir:FOLDER, or else by a name.
WEIGHTS_OPTIONS = ("model", "pretrained")
WEIGHTS_FILES = (".bin", ".ftz", ".pt", ".pth", ".safetensors")
PATH_AND_CLASS = re.compile(r"(?s)(.+\.py):([^:/]*)")  # a user's own filter
LOCAL_DIR = "local-dir:"


def shape(raw: Mapping[str, Any], kind: type, folder: str, where: str) -> dict[str, Any]:
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
        _shape_ablation(shaped, folder, where)
    return shaped


def _absolute(path: object, folder: str) -> Any:
    """A path relative to the folder of the manifest, which may lie in a store, as an absolute one
    without `..`; `~/` is the home folder. URLs and other values as they are.
    """
    if not isinstance(path, str) or "://" in path:
        return path
    path = disk.expand_home(path)
    end = "/" if path.endswith("/") else ""
    if disk.is_url(folder) and not path.startswith("/"):
        protocol, _, rest = folder.partition("://")
        bucket, _, key = rest.partition("/")  # of a server: its name. No `..` leads out of it
        inside = os.path.normpath(os.path.join("/", key, path))
        return f"{protocol}://{bucket}{inside}".rstrip("/") + end
    return os.path.normpath(os.path.join(folder, path)).rstrip("/") + end


def _folder_of(path: str) -> str:
    """The folder of a manifest, absolute; of one at a URL without its query."""
    if disk.is_url(path):
        return path.partition("?")[0].rpartition("/")[0]
    return str(disk.local_path(path).resolve().parent)


def _expanded(paths: list[object], folder: str) -> list[Any]:
    """Absolute paths; one with braces is what they stand for, unless a file has that name."""
    expanded: list[object] = []
    for path in (_absolute(each, folder) for each in paths):
        is_plain = not isinstance(path, str) or "{" not in path or os.path.exists(path)
        expanded += [path] if is_plain else expand_braces(path)
    return expanded


def _shape_recipe(shaped: dict[str, Any], folder: str, where: str) -> None:
    source = shaped.get("source")
    if isinstance(source, dict) and "paths" in source:
        paths = [source["paths"]] if isinstance(source["paths"], str) else source["paths"]
        if isinstance(paths, list):
            try:
                shaped["source"] = {**source, "paths": _expanded(paths, folder)}
            except ValueError as error:
                raise ValueError(f"{where}: source.paths: {error}") from None
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


def _shape_blend(shaped: dict[str, Any], folder: str) -> None:
    if isinstance(shaped.get("pools"), dict):
        shaped["pools"] = {k: _absolute(v, folder) for k, v in shaped["pools"].items()}
    if "segments" in shaped:
        shaped["segments"] = _absolute(shaped["segments"], folder)
    if isinstance(shaped.get("streams"), dict):
        shaped["streams"] = {k: _stream(v, folder) for k, v in shaped["streams"].items()}


def _stream(stream: Any, folder: str) -> Any:
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


def _shape_ablation(shaped: dict[str, Any], folder: str, where: str) -> None:
    if isinstance(shaped.get("pools"), dict):
        pools = {}
        for name, pool in shaped["pools"].items():
            if isinstance(pool, dict):
                pool = {key: _absolute(value, folder) for key, value in pool.items()}
            pools[name] = pool
        shaped["pools"] = pools
    if isinstance(shaped.get("arms"), dict):
        shaped["arms"] = {name: _arm(arm, folder) for name, arm in shaped["arms"].items()}
    if isinstance(shaped.get("mixtures"), dict):
        mixtures = check_values(shaped["mixtures"], Mixtures, where, ("mixtures",))
        own, drawn = shaped.get("arms") or {}, mixtures.arms()
        if twice := sorted(name for name in drawn if own.get(name, drawn[name]) != drawn[name]):
            raise ValueError(f"{where}: arms.{twice[0]} is an arm of mixtures too; rename it")
        shaped["arms"] = {**own, **drawn}
    if shaped.get("vary") and isinstance(shaped.get("arms"), dict):
        shaped["arms"] = cross_arms(shaped["arms"], shaped["vary"])
    if isinstance(shaped.get("evaluate"), list):
        shaped["evaluate"] = [_task(task, folder) for task in shaped["evaluate"]]
    controls = shaped.get("controls")
    if isinstance(controls, dict) and controls.get("null_web"):
        shaped["controls"] = {**controls, "null_web": _absolute(controls["null_web"], folder)}


def _arm(arm: object, folder: str) -> Any:
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
            fields[key] = _weights(value, folder, of_arm=True)
        else:
            fields[key] = value
    return fields


def _task(task: object, folder: str) -> Any:
    """A task of an ablation: its keys, or the path of a file that holds them."""
    if isinstance(task, str) and task.endswith(".yaml"):
        path = _absolute(task, folder)
        raw = expand_variables(pick_scale(read_yaml(path), None, path), path)
        return shape(raw, TaskSpec, _folder_of(path), path)
    if not isinstance(task, dict):
        return task
    shaped = dict(task)
    _shape_task(shaped, folder)
    return shaped


def _shape_task(shaped: dict[str, object], folder: str) -> None:
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


def filter_fields(entry: object, folder: str) -> Any:
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


def _options(options: object, folder: str) -> Any:
    """Options of a filter, or its kind with options, with the paths of files as absolute ones."""
    if not isinstance(options, dict):
        return options
    shaped: dict[object, object] = {}
    for key, value in options.items():
        if key == "paths" and isinstance(value, (str, list)):
            shaped[key] = _expanded([value] if isinstance(value, str) else value, folder)
        elif key in FILE_OPTIONS and isinstance(value, list):
            shaped[key] = [_absolute(each, folder) for each in value]
        elif key in FILE_OPTIONS:
            shaped[key] = _absolute(value, folder)
        elif key in WEIGHTS_OPTIONS and isinstance(value, str):
            shaped[key] = _weights(value, folder)
        else:
            shaped[key] = _options(value, folder)
    return shaped


def _weights(value: object, folder: str, *, of_arm: bool = False) -> Any:
    """The files and folders that an option names as absolute ones; names of models as they are.

    of_arm: a text is a folder, as `clipmill evaluate` takes it, unless it is one of open_clip's.
    """
    if not isinstance(value, str) or not value:
        return value
    if value.startswith(OPEN_CLIP):
        name, slash, file = value.removeprefix(OPEN_CLIP).partition(".json/")
        if slash:  # its configuration is a file too
            name = f"{_absolute(name, folder)}.json"
        else:
            name, _, file = name.partition("/")
        if not file.endswith(WEIGHTS_FILES):
            return value
        return f"{OPEN_CLIP}{name}/{_absolute(file, folder)}"
    prefix = LOCAL_DIR if value.startswith(LOCAL_DIR) else ""
    is_file = value.endswith(WEIGHTS_FILES) and ":" not in value
    if not (prefix or is_file or of_arm):
        return value
    return f"{prefix}{_absolute(value.removeprefix(prefix), folder)}"


def _kind(kind: str, folder: str) -> str:
    """A filter's name as it is; the path of PATH.py:CLASS as an absolute one."""
    match = PATH_AND_CLASS.fullmatch(kind)
    return f"{_absolute(match[1], folder)}:{match[2]}" if match else kind


def rule_fields(entry: object, view: str, where: str) -> dict[str, Any]:
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
    plain = isinstance(values, list) and all(isinstance(x, (str, int, float)) for x in values)
    if not plain or not values or len({str(value) for value in values}) < len(values):
        raise ValueError(f"vary.{key} is {values!r}; it must be a list of different values")
    for name, arm in arms.items():
        whole = isinstance(arm, Mapping) and not (arm.get("predictions") or arm.get("model"))
        if not whole or key in (arm.get("train") or {}):
            crossed[name] = arm
            continue
        for value in values:
            train = {**(arm.get("train") or {}), key: value}
            crossed[f"{name}-{_in_name(value)}"] = {**arm, "train": train}
    return crossed


def _in_name(value: object) -> str:
    """A value in the name of an arm, which has no `+`: 1e30, where Python writes 1e+30."""
    return str(value).replace("e+", "e") if isinstance(value, float) else str(value)


T = TypeVar("T")
UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "k": 10**3, "m": 10**6, "b": 10**9}
QUANTITY = re.compile(r"^(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|[kKMB])$")
EXACT_FLOAT = 2**53  # whole numbers up to it are floats as they are
UNKNOWN_KEY = {"unexpected_keyword_argument", "extra_forbidden"}
# What a value must be, by the start of pydantic's error type.
EXPECTED = {
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of names to values",
    "mapping": "a mapping of names to values",
    "dataclass": "a mapping of keys to values",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text; put it in quotes",
}
# How a value is written, shown where its type is wrong.
EXAMPLES = {
    "seeds": "seeds: [0, 1, 2]",
    "paths": "paths: [crawl.warc.wat.gz]",
    "source": "source: {kind: wat, paths: [crawl.warc.wat.gz]}",
    "filters": "filters: [caption, {clip_score: {model: ViT-B-32}}]",
    "views": 'views: {long: [{words: "caption_words >= 4"}]}',
    "rules": 'long: [{words: "caption_words >= 4"}]',
    "fetch": "fetch: {image_size: 256}",
    "pools": "pools: {web: {recipe: recipe.yaml}}",
    "tars": "tars: [web-{00000..00099}.tar]",
    "arms": "arms: {raw: web/raw}",
    "evaluate": "evaluate: [{name: objects, kind: classification, data: eval/objects}]",
    "extra_columns": "extra_columns: {score: float}",
    "templates": 'templates: ["a photo of a {}"]',
    "site_files": "site_files: [tdmrep]",
    "allow_ports": "allow_ports: [80, 443]",
    "random_like": "random_like: [clip30]",
}


# The keys by which a kind of manifest is known, in the order in which they are looked for.
KEYS_OF_KIND: dict[Any, set[str]] = {
    Ablation: {"arms"},
    Recipe: {"source"},
    Blend: {"views", "pools"},
    TaskSpec: {"kind", "data"},
}
USE_OF_KIND: dict[Any, str] = {
    Ablation: "an ablation; run it with: clipmill build {path}",
    Recipe: "a recipe; build its pool with: clipmill build {path}",
    Blend: "a blend; train on it with: clipmill train {path} --out RUN",
    TaskSpec: "a task; evaluate with: clipmill evaluate RUN --task {path}",
}


# --- reading -----------------------------------------------------------------------------------


def shipped(path: str | Path) -> str | Path:
    """The path, or that of the shipped manifest or example where there is none: a command finds
    `manifests/recipes/laion.yaml` from any folder, also where clipmill was installed as a wheel.
    """
    name = str(path)
    if name.startswith(SHIPPED) and not disk.exists(name) and Path(PACKAGE, name).exists():
        return str(Path(PACKAGE, name).resolve())
    return path


def read_manifest(path: str | Path, kind: type[T], *, scale: str | None = None) -> T:
    """A recipe, blend, ablation or task; `scale` merges the block of that name under `scales` over
    it.

    Paths inside are relative to the file. `${NAME}` is expanded for the names in
    VARIABLES and those that begin with CLIPMILL_. Text such as 20MiB and 12.8M is a
    number where the field is one. ValueError names the file, the key, the value and the nearest
    right one. A resolved manifest (JSON) is read as it is.
    """
    path = shipped(path)
    where = str(path)
    if where.endswith(".json") and disk.exists(path):
        if scale is not None:
            raise ValueError(f"{path} is resolved already; it has no scale {scale!r}")
        return _read_resolved(where, kind)
    raw = read_yaml(path)
    _refuse_other_kind(raw, kind, where)
    raw = expand_variables(pick_scale(raw, scale, where), where)
    shaped = shape(raw, kind, _folder_of(where), where)
    manifest = check_values(shaped, kind, where)
    if isinstance(manifest, Recipe):
        _refuse_unused(manifest, raw["source"], raw.get("fetch") or {}, where)
    return manifest


def _read_resolved(path: str, kind: type[T]) -> T:
    raw = disk.read_json(path)
    _refuse_other_kind(raw, kind, path)
    try:
        manifest = typing.cast(T, disk.from_plain(kind, raw))
    except ValueError as error:
        prefix = "" if str(error).startswith(path) else f"{path}: "
        raise ValueError(f"{prefix}{error}") from None
    if isinstance(manifest, Recipe):
        source = _changed_keys(manifest.source, Source(kind="wat", paths=("x",)))
        source = [key for key in source if getattr(manifest.source, key)]
        _refuse_unused(manifest, source, _changed_keys(manifest.fetch, Fetch()), path)
    return manifest


def check_scales(scale: str | None, scales: Sequence[str] | None) -> None:
    """ValueError for --scale beside --scales."""
    if scale and scales:
        raise ValueError("--scale runs one scale, --scales some and the manifest: leave one out")


def read_scales(path: str | Path, names: Sequence[str], out: str) -> dict[str, Ablation]:
    """An ablation at some scales, by the folder that each has inside `out`, and itself in `out` at
    the end. All have its pools and its arms.

    ValueError for a scale that compares something else: what it decides would not be comparable.
    """
    whole = read_manifest(path, Ablation)
    pools = {
        name: dataclasses.replace(pool, out=whole.pool_folder(out, name))
        for name, pool in whole.pools.items()
    }
    ablations = {}
    for name in names:
        small = read_manifest(path, Ablation, scale=name)
        for key in ("pools", "scorer", "arms", "baseline", "primary"):
            if getattr(small, key) != getattr(whole, key):
                raise ValueError(
                    f"{path}: scale {name!r} has {key} of its own, so it is no smaller run of the "
                    f"same question: run it alone, with --scale {name}"
                )
        folder = disk.join(AblationLayout(out).scales, name)
        ablations[folder] = dataclasses.replace(small, pools=pools)
    return {**ablations, out: whole}


def read_block(path: str | Path, key: str, kind: type[T], *, scale: str | None = None) -> T | None:
    """One block of a manifest, its paths as they are written, read before the variables of the
    rest are set; None where there is none.
    """
    path = shipped(path)
    raw = _raw(path)
    if not str(path).endswith(".json"):
        raw = pick_scale(raw, scale, str(path))
    block = raw.get(key)
    if block is None:
        return None
    block = expand_variables(block, str(path), key)
    return check_values(block, kind, str(path), (key,))


def manifest_kind(path: str | Path) -> type[Recipe] | type[Ablation]:
    """Whether a YAML or JSON file is a recipe or an ablation, by its keys. ValueError where it is
    neither.
    """
    path = shipped(path)
    raw = _raw(path)
    kind = _kind_by_keys(raw)
    if kind is Ablation or kind is Recipe:
        return kind
    if kind is not None:
        raise ValueError(_what_it_is(path, kind))
    _refuse_misspelt(raw, path)
    raise ValueError(
        f"{path} is neither a recipe (it has no source) nor an ablation (it has no arms)"
    )


def _kind_by_keys(raw: object) -> Any:
    """Recipe, Blend, Ablation or TaskSpec, whichever has these keys; None where none has."""
    for kind, keys in KEYS_OF_KIND.items():
        if isinstance(raw, Mapping) and keys <= raw.keys():
            return kind
    return None


def _what_it_is(path: str | Path, kind: object) -> str:
    """`FILE is a blend; train on it with: …`."""
    return f"{path} is {USE_OF_KIND[kind].format(path=path)}"


def _refuse_other_kind(raw: object, kind: object, path: str) -> None:
    """ValueError where the keys are those of another kind of manifest than `kind`."""
    actual = _kind_by_keys(raw)
    if actual not in (None, kind) and kind in KEYS_OF_KIND:
        raise ValueError(_what_it_is(path, actual))


def _refuse_misspelt(raw: Mapping[str, object], path: str | Path) -> None:
    """ValueError for an unknown key that is nearly `source` or `arms`, which tell the two kinds
    apart.
    """
    known = {field.name for kind in (Recipe, Ablation) for field in dataclasses.fields(kind)}
    for key in raw:
        if key not in known and (close := disk.did_you_mean(key, ["source", "arms"])):
            raise ValueError(f"{path}: unknown key {key!r}{close}")


def list_scales(path: str | Path) -> list[str]:
    """Names of the scales that a manifest knows, for `read_manifest(scale=…)`."""
    scales = _raw(shipped(path)).get("scales") or {}
    return sorted(scales) if isinstance(scales, dict) else []


def _raw(path: str | Path) -> dict[str, Any]:
    if not str(path).endswith(".json"):
        return read_yaml(path)
    raw = disk.read_json(path) if disk.exists(path) else None
    if not isinstance(raw, dict):
        problem = "holds no mapping of keys" if disk.exists(path) else "does not exist"
        raise ValueError(f"{path} {problem}")
    return raw


def _refuse_unused(
    recipe: Recipe, source_keys: Iterable[str], fetch_keys: Iterable[str], where: str
) -> None:
    try:
        refuse_unused(recipe.source.kind, source_keys, fetch_keys)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _changed_keys(value: Any, default: Any) -> list[str]:
    """Fields of a dataclass that differ from those of `default`."""
    names = [field.name for field in dataclasses.fields(value)]
    return [name for name in names if getattr(value, name) != getattr(default, name)]


# --- types -------------------------------------------------------------------------------------


class _Boolean:
    """Stands for true or false where a number is needed: pydantic takes true for 1."""

    def __init__(self, value: bool) -> None:
        self.value = value

    def __repr__(self) -> str:
        return str(self.value).lower()


def with_numbers(value: object, kind: object) -> Any:
    """Text such as 20MiB as a number, where the field that it is for is an int or a float, and a
    whole number as a float where it is for one; true and false there as what pydantic takes for no
    number."""
    wanted = {kind, *typing.get_args(kind)} if isinstance(value, (int, str)) else set()
    if isinstance(value, bool):
        return _Boolean(value) if wanted & {int, float} and bool not in wanted else value
    if isinstance(value, int):
        is_for_float = float in wanted and int not in wanted and abs(value) <= EXACT_FLOAT
        return float(value) if is_for_float else value
    if isinstance(value, str):
        match = QUANTITY.match(value)
        if match is None or not wanted & {int, float}:
            return value
        number = float(match[1]) * UNITS[match[2].lower()]
        return int(number) if number == int(number) else number
    kind = _without_none(kind)
    if isinstance(value, dict) and dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return {key: with_numbers(each, hints.get(key, Any)) for key, each in value.items()}
    arguments = typing.get_args(kind)
    if isinstance(value, dict) and typing.get_origin(kind) is dict:
        return {key: with_numbers(each, arguments[1]) for key, each in value.items()}
    if isinstance(value, list) and typing.get_origin(kind) is tuple:
        return [with_numbers(each, arguments[0]) for each in value]
    return value


def _without_none(kind: object) -> Any:
    """X of `X | None`."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(each for each in typing.get_args(kind) if each is not type(None))
    return kind


def without_pydantic(raw: object, kind: type[T]) -> T | None:
    """Plain values as a dataclass where each has the type of its field, so that pydantic, which
    takes 0.1 s to import, would change none; None where it has to convert one or to say what is
    wrong.
    """
    if not _has_types(raw, kind):
        return None
    try:
        return typing.cast(T, disk.from_plain(kind, raw))
    except ValueError:
        return None


def _has_types(value: object, kind: object) -> bool:
    """Whether a value and all that is in it are of exactly these types."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_has_types(value, each) for each in arguments)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        options = {each.name: hints[each.name] for each in dataclasses.fields(kind) if each.init}
        return isinstance(value, dict) and all(
            key in options and _has_types(each, options[key]) for key, each in value.items()
        )
    if origin is dict:
        return isinstance(value, dict) and all(
            _has_types(key, arguments[0]) and _has_types(each, arguments[1])
            for key, each in value.items()
        )
    if origin is tuple and arguments[1:] == (...,):
        return isinstance(value, list) and all(_has_types(each, arguments[0]) for each in value)
    if origin is typing.Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if kind is str:  # pydantic takes no half of a pair of UTF-16
        return type(value) is str and value == value.encode(errors="ignore").decode()
    return kind is Any or (kind in (int, float, bool, types.NoneType) and type(value) is kind)


def check_values(raw: object, kind: type[T], where: str, prefix: tuple[str, ...] = ()) -> T:
    """Plain values as a manifest, or as the block of one at the keys `prefix`, checked as those of
    a file are. `where` begins the message of the ValueError.
    """
    raw = with_numbers(raw, kind)
    if (known := without_pydantic(raw, kind)) is not None:
        return known
    import pydantic

    try:
        return pydantic.TypeAdapter(kind).validate_python(raw)
    except pydantic.ValidationError as error:
        # An unknown key is named first: a misspelt key also makes one missing.
        first = min(error.errors(), key=lambda each: each["type"] not in UNKNOWN_KEY)
        message = _message(first, raw, kind, prefix)
        raise ValueError(f"{where}: {message}") from None


def _message(error: Any, raw: Any, kind: Any, prefix: tuple[str, ...]) -> str:
    """One plain line for an error of pydantic: key, value, what is expected, an example or the
    nearest name.
    """
    location = tuple(error["loc"])
    key = ".".join([*prefix, *_label(raw, location)])
    last = next((str(step) for step in reversed(location) if isinstance(step, str)), "")
    value, error_type = error["input"], str(error["type"])
    if error_type in UNKNOWN_KEY:
        known = _fields_at(kind, location[:-1])
        if len(location) == 1 and not prefix:
            known.append("scales")  # merged before the keys are checked
        close = disk.did_you_mean(last, known)
        return f"unknown key {key!r}{close}"
    if error_type == "missing":
        example = f", as in {EXAMPLES[last]}" if last in EXAMPLES else ""
        return f"{key} is missing{example}"
    if error_type == "value_error":
        message = error["msg"].removeprefix("Value error, ")
        shown = "" if isinstance(value, (dict, list)) else f" (is {value!r})"
        return f"{key}: {message}{shown}" if key else f"{message}{shown}"
    if error_type == "literal_error":
        allowed = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        close = disk.did_you_mean(str(value), allowed)
        return f"{key} is {value!r}; it must be one of {', '.join(allowed)}{close}"
    expected = EXPECTED.get(error_type.partition("_")[0], error["msg"])
    example = f", as in {EXAMPLES[last]}" if last in EXAMPLES and "list" in expected else ""
    return f"{key} is {value!r}; it must be {expected}{example}"


def _label(raw: object, location: Iterable[object]) -> list[str]:
    """The steps to a value as its reader knows them: views.basic.words instead of
    views.0.rules.1.
    """
    label: list[str] = []
    for step in location:
        if isinstance(step, int) and isinstance(raw, list) and step < len(raw):
            raw = raw[step]
            label.append(str(raw.get("name", step)) if isinstance(raw, dict) else str(step))
            continue
        raw = raw.get(step) if isinstance(raw, dict) else None
        if step not in ("rules", "[key]"):
            label.append(str(step))
    return label


def _type_at(kind: object, location: Iterable[object]) -> Any:
    """The type of what lies at `location` inside `kind`."""
    for step in location:
        kind = _without_none(kind)
        if isinstance(step, str) and dataclasses.is_dataclass(kind) and isinstance(kind, type):
            kind = typing.get_type_hints(kind).get(step, Any)
        elif typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        else:
            kind = next(iter(typing.get_args(kind)), Any)
    return _without_none(kind)


def _fields_at(kind: object, location: Iterable[object]) -> list[str]:
    """Field names of the dataclass that lies at `location` inside `kind`; [] where none does."""
    expected = _type_at(kind, location)
    return (
        [field.name for field in dataclasses.fields(expected)]
        if dataclasses.is_dataclass(expected)
        else []
    )


def refuse_other_source(pool: str, recipe: Recipe) -> None:
    """ValueError where a pool was built from another source than that of the recipe: its plan,
    scores and views would be mixed with those of the other rows. A source may have grown.

    A recipe.json that cannot be read decides nothing; `clipmill audit verify` names it.
    """
    path = PoolLayout(pool).recipe_json
    try:
        stored = read_manifest(path, Recipe) if disk.exists(path) else recipe
    except ValueError:
        return
    before = identity.source_identity(disk.to_plain(stored.source))
    now = identity.source_identity(disk.to_plain(recipe.source))
    keys = [
        key
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
        and not identity.has_grown(key, before.get(key), now.get(key))
    ]
    if before["kind"] == now["kind"] == "shards":
        keys = [key for key in keys if key != "paths"]
    if not keys:
        return
    key = "kind" if "kind" in keys else keys[0]
    raise ValueError(
        f"{pool} was built from recipe {stored.name!r}, and recipe {recipe.name!r} has another "
        f"source (source.{key} was {before.get(key)!r} and is {now.get(key)!r}): build it into "
        "another folder, or give the first recipe, with its --scale if it had one"
    )
