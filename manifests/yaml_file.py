"""A YAML file as plain values: bounded aliases, no repeated keys, scales merged, a stated set of
variables; and the short forms of filters, rules and arms as fields.

yaml is imported where a file is read: a trainer that reads resolved JSON needs none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manifests import disk

if TYPE_CHECKING:
    import yaml

MOST_VALUES = 100_000  # of one file once its aliases stand for what they name
VARIABLE = re.compile(r"\$\{(\w+)\}")
# What `${NAME}` may name in a manifest. A manifest of one's own uses names that begin with
# CLIPMILL_.
VARIABLES = {
    "MINIWEB": "the folder of the demo's web; build.py sets it",
    "MINIWEB_PORT": "the port of the demo's web; build.py sets it",
    "SCORER": "the exported model of an ablation's scorer; build.py sets it",
    "CIFAR": "the folder of the manifests cifar10 and cifar10_clean",
    "DATACOMP": "the folder of DataComp's metadata, for datacomp_small",
    "EVAL": "the folder of evaluation data, for the suite datacomp_38",
    "IMAGENET": "the folder that holds ImageNet's val/CLASS/ folders",
}
OWN_PREFIX = "CLIPMILL_"
# The User-Agent is sent to every server: no other variable may get into it.
AGENT_VARIABLE = "CLIPMILL_USER_AGENT"
KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. ValueError that names the file and the line where it is
    not readable.
    """
    import yaml

    if not disk.exists(path):
        raise ValueError(f"{path} does not exist")
    if not disk.is_url(path) and disk.local_path(path).is_dir():
        raise ValueError(f"{path} is a folder; name a YAML file (a recipe, an ablation, …)")
    try:
        loader = yaml.SafeLoader(disk.read_bytes(path).decode())
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
        return 1
    if id(node) in counts:
        if counts[id(node)] == 0:
            raise ValueError(f"{path}: an alias in line {_line(node)} stands for itself")
        return counts[id(node)]
    counts[id(node)] = 0  # under way
    total = 1
    if isinstance(node, yaml.MappingNode):
        _check_keys(node, path)
        for _, child in node.value:
            total += _count_values(child, path, counts)
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


def pick_scale(raw: dict[str, Any], scale: str | None, path: str) -> dict[str, Any]:
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
    merged: dict[str, Any] = merge(base, scales[scale] or {})
    return merged


def merge(base: Any, change: Any) -> Any:
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


def expand_variables(value: Any, path: str, key: str = "") -> Any:
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
        raise ValueError(f"{path}: {key} names ${{{name}}}, which is not set in the environment")


# --- filters and rules in short form -------------------------------------------------------------


def filter_fields(entry: Any) -> Any:
    """`caption` or `{clip_score: {…}}` as the fields of FilterSpec."""
    if isinstance(entry, str):
        return {"name": entry}
    if isinstance(entry, dict) and len(entry) == 1:
        name, options = next(iter(entry.items()))
        return {"name": name, "options": options or {}}
    return entry


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

    An arm that has a value of its own in its `train`, or predictions, stays as it is.
    """
    if not isinstance(vary, Mapping) or len(vary) != 1:
        raise ValueError(
            f"vary is {vary!r}; it names one setting and its values, as in "
            "{precision: [bf16, fp32]}"
        )
    (key, values), crossed = next(iter(vary.items())), {}
    values = _plain_values(f"vary.{key}", values)
    for name, arm in arms.items():
        whole = isinstance(arm, Mapping) and arm.get("predictions") is None
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
