"""Arms in compact form: a sweep over views or weights, and one setting of training that varies.

Both become ordinary arms when a manifest is read; the resolved ablation has no `sweep`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMS = (
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
        raise ValueError(f"sweep is {sweep!r}; it must be such as {FORMS}")
    arms: dict[str, Any] = {}
    for name, form in sweep.items():
        if isinstance(form, Mapping) and set(form) == {"view", "values"}:
            arms |= _views(str(name), form["view"], form["values"])
        elif isinstance(form, Mapping) and set(form) == {"views"}:
            arms |= _weights(str(name), form["views"])
        else:
            raise ValueError(f"sweep.{name} is {form!r}; it must be such as {FORMS}")
    return arms


def _views(name: str, view: Any, values: Any) -> dict[str, Any]:
    """One arm for each value, which stands for {} in the name of the view."""
    if not isinstance(view, str) or "{}" not in view:
        raise ValueError(f"sweep.{name}.view is {view!r}; write {{}} where a value stands")
    arms = {}
    for value in _values(f"sweep.{name}.values", values):
        arms[f"{name}{value}"] = {"view": view.replace("{}", str(value))}
    return arms


def _weights(name: str, views: Any) -> dict[str, Any]:
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
    for value in _values(f"sweep.{name}.views.{lists[0]}", views[lists[0]]):
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
    values = _values(f"vary.{key}", values)
    for name, arm in arms.items():
        whole = isinstance(arm, Mapping) and arm.get("predictions") is None
        if not whole or key in (arm.get("train") or {}):
            crossed[name] = arm
            continue
        for value in values:
            train = {**(arm.get("train") or {}), key: value}
            crossed[f"{name}-{value}"] = {**arm, "train": train}
    return crossed


def _values(key: str, values: Any) -> list[Any]:
    """A list of different plain values. ValueError for anything else."""
    plain = isinstance(values, list) and all(isinstance(x, (str, int, float)) for x in values)
    if not plain or len(values) < 1 or len({str(value) for value in values}) < len(values):
        raise ValueError(f"{key} is {values!r}; it must be a list of different values")
    return list(values)
