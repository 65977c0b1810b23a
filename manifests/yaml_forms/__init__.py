"""YAML files as plain values, and their short forms as the fields of the schema."""

from __future__ import annotations

from manifests.yaml_forms.short_forms import cross_arms, expand_sweep, shape, shape_block
from manifests.yaml_forms.yaml_file import (
    VARIABLES,
    expand_variables,
    merge,
    pick_scale,
    read_yaml,
)

__all__ = [
    "VARIABLES",
    "cross_arms",
    "expand_sweep",
    "expand_variables",
    "merge",
    "pick_scale",
    "read_yaml",
    "shape",
    "shape_block",
]
