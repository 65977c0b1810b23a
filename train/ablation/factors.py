"""What differs between the arms: data, or one declared setting of training; all else is equal."""

from __future__ import annotations

from typing import Any

from manifests import disk
from manifests.schema import Ablation, Arm
from train.config import TrainConfig, configure

NEVER = ("preset", "seed", "order_seed")  # a preset is many settings; seeds are the ablation's


def arm_config(ablation: Ablation, arm: str) -> TrainConfig:
    """The settings of an arm: the ablation's, with the arm's own over them.

    ValueError, with the name of the arm, for settings that no run can have.
    """
    own = ablation.arms[arm].train
    if not own:
        return configure(ablation.train)
    try:
        return configure({**ablation.train, **own})
    except ValueError as error:
        raise ValueError(f"arm {arm!r}: {error}") from None


def check_factors(ablation: Ablation) -> None:
    """ValueError where arms differ in a setting that `vary` does not declare, or in two factors.

    Arms may have one value of the setting and differ in data; one view or blend and differ in the
    setting; or be a grid, every data with every value. In anything else, a difference from the
    baseline would be of both factors together.
    """
    trained = [name for name, arm in ablation.arms.items() if arm.is_trained]
    declared = next(iter(ablation.vary), None)
    for name in trained:
        for key in ablation.arms[name].train:
            if key in NEVER or key != declared:
                raise ValueError(
                    f"arm {name!r} sets {key}, which is not the factor that the ablation declares"
                    f" ({declared or 'data'}); "
                    f"write vary: {{{key}: [...]}}, or set {key} in train for all arms"
                )
    if declared is None:
        return
    values: dict[str, list[str]] = {}  # data -> values of the setting
    for name in trained:
        value = disk.content_hash(_setting(arm_config(ablation, name), declared))
        values.setdefault(_data(ablation.arms[name]), []).append(value)
    every = {value for of_data in values.values() for value in of_data}
    is_grid = all(sorted(of_data) == sorted(every) for of_data in values.values())
    if len(values) > 1 and len(every) > 1 and not is_grid:
        raise ValueError(
            f"the arms differ in data and in {declared}, and not every data has every value of "
            f"{declared}: a difference from the baseline would be of both; "
            f"give every data every value, or all arms the same data"
        )
    if trained and len(every) == 1:
        raise ValueError(f"vary names {declared}, but all arms have the same value of it")


def _setting(config: TrainConfig, key: str) -> Any:
    """The value of a setting, as training uses it."""
    if key.startswith("model."):
        return config.model_changes.get(key.removeprefix("model."))
    return getattr(config, key)


def _data(arm: Arm) -> str:
    """What an arm trains on, as text."""
    return disk.content_hash([arm.view, arm.blend, arm.views])
