"""What the arms, controls and seeds of an ablation are called, without any setting of training."""

from __future__ import annotations

from typing import Literal

from clipmill.manifests.schema import Ablation, TaskSpec

NO_SEED = -1  # the seed of an arm that is one model: no other run has it, so nothing is paired
A_A = "a_a"
RANDOM_LIKE = "random_like_"
Role = Literal["baseline", "arm", "random", "a_a"]


def controls_of(ablation: Ablation) -> dict[str, str]:
    """{control: the arm that it is for}: the random subsets, then A/A."""
    controls = {RANDOM_LIKE + arm: arm for arm in ablation.controls.random_like}
    return controls | ({A_A: ablation.controls.a_a} if ablation.controls.a_a else {})


def primary_task(ablation: Ablation) -> TaskSpec:
    """The task that decides."""
    return next(task for task in ablation.evaluate if task.name == ablation.primary)


def role_of(ablation: Ablation, arm: str) -> Role:
    """What an arm or a control is for."""
    if arm in ablation.arms:
        return "baseline" if arm == ablation.baseline else "arm"
    return "a_a" if arm == A_A else "random"
