"""A YAML file as plain values: bounded aliases, no repeated keys, scales merged, a stated set of
variables.

yaml is imported where a file is read: a trainer that reads resolved JSON needs none.
"""

from __future__ import annotations

import os
import re
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
    "CIFAR": "the folder of CIFAR-10 as train/CLASS/ and test/CLASS/",
    "CLOTHING": "the folder of photographs of clothes as train/CLASS/ and test/CLASS/",
    "DATACOMP": "the folder of DataComp's metadata, for datacomp_small",
    "EVAL": "the folder of evaluation data, for the suite datacomp_38",
    "IMAGENET": "the folder that holds ImageNet's val/CLASS/ folders",
}
OWN_PREFIX = "CLIPMILL_"
# The User-Agent is sent to every server: no other variable may get into it.
AGENT_VARIABLE = "CLIPMILL_USER_AGENT"
TEXT, BOOLEAN = "tag:yaml.org,2002:str", "tag:yaml.org,2002:bool"
KEY_TAGS = (TEXT, "tag:yaml.org,2002:merge")


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
