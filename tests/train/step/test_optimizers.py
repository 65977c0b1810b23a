"""Which parameters decay: open_clip's groups, and a step of the optimizer to the bit."""

from __future__ import annotations

import pytest
import torch

from tests.support.steps import config_of, model_of
from train.formats.open_clip_files import to_open_clip
from train.step.update import build_optimizer, parameter_groups, step_eagerly

pytestmark = pytest.mark.usefixtures("one_thread")


def test_only_matrices_decay_and_positions_by_convention():
    model = model_of()
    main, old = (
        {g.weight_decay: set(g.names) for g in parameter_groups(model, config_of(decay_groups=c))}
        for c in ("open_clip_main", "open_clip")
    )
    assert config_of().decay_groups == "open_clip_main"
    positions = {"visual.positional_embedding", "text.positional_embedding"}
    matrices = {
        "visual.proj",
        "text.token_embedding.weight",
        "text.blocks.0.qkv.weight",
        "visual.patch.weight",
    }
    assert matrices <= main[0.2]
    assert {
        "logit_scale",
        "visual.class_embedding",
        "visual.ln_pre.weight",
        "text.blocks.1.fc2.bias",
    } <= main[0.0]
    assert positions <= main[0.0]
    assert old == {0.2: main[0.2] | positions, 0.0: main[0.0] - positions}
    assert main[0.2] | main[0.0] == {name for name, _ in model.named_parameters()}


def test_the_groups_hold_as_many_numbers_as_open_clips():
    model = model_of()
    theirs = to_open_clip(model)
    kept = [
        n
        for n, p in theirs.items()
        if p.ndim < 2 or "bn" in n or "ln" in n or "bias" in n or "logit_scale" in n
    ]
    by_decay = {
        group.weight_decay: group
        for group in parameter_groups(model, config_of(decay_groups="open_clip"))
    }
    assert by_decay[0.0].numbers == sum(theirs[name].numel() for name in kept)
    assert by_decay[0.2].numbers == sum(p.numel() for n, p in theirs.items() if n not in kept)


def test_a_step_without_decorators_has_the_bits_of_a_step():
    ends = []
    for step in (step_eagerly, lambda optimizer: optimizer.step()):
        torch.manual_seed(0)
        matrix, bias = torch.nn.Parameter(torch.randn(8, 6)), torch.nn.Parameter(torch.randn(6))
        optimizer = build_optimizer({(True, None): [matrix], (False, None): [bias]}, config_of())
        for number in range(3):
            for parameter in (matrix, bias):
                parameter.grad = torch.sin(3 * parameter.detach() + number)
            step(optimizer)
        ends.append((matrix.detach(), bias.detach()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])
