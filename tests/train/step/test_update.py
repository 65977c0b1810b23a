from __future__ import annotations

import copy
import math

import pytest
import torch

from tests.support.steps import config_of, model_of
from train.step.update import OVERFLOWS, Update, parameter_groups

pytestmark = pytest.mark.usefixtures("one_thread")


def give(model, step, factor=1.0):
    """Every parameter a gradient that depends on the step alone."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 0.01 * factor


def run(update, steps, rate=1e-2):
    for step in steps:
        give(update.model, step, update.loss_scale())
        update.step(rate, update.grad_norm())


def test_it_is_adamw_with_the_norm_clipped_and_the_logit_scale_clamped():
    config = config_of(grad_clip=0.3)
    model, other = model_of(), model_of()
    update = Update(model, config)
    named = dict(other.named_parameters())
    adamw = torch.optim.AdamW(
        [
            {"params": [named[n] for n in group.names], "weight_decay": group.weight_decay}
            for group in parameter_groups(other, config)
        ],
        lr=1e-2,
        betas=(0.9, 0.98),
        eps=1e-6,
        fused=True,
    )
    for step in range(4):
        give(model, step)
        give(other, step)
        norm = update.grad_norm()
        assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(other.parameters(), 0.3))
        assert norm > 0.3
        update.step(1e-2, norm)
        adamw.step()
        other.logit_scale.data.clamp_(0, math.log(100))
    assert all(p.grad is None for p in model.parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, named[name]), name
    model.logit_scale.data.fill_(9.0)
    run(update, [4])
    assert model.logit_scale.item() == pytest.approx(math.log(100))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_its_state_goes_on_where_it_was_to_the_bit(precision):
    config = config_of(precision=precision)
    update = Update(model_of(), config)
    run(update, range(3))
    if update.scaler is not None:
        update.skip()
    saved = copy.deepcopy(update.state())
    shapes = {name: p.shape for name, p in update.model.named_parameters()}
    assert all(x.shape in (shapes[name], ()) for name in shapes for x in saved[name].values())
    other = Update(model_of(seed=1), config)
    other.model.load_state_dict(update.model.state_dict())
    other.restore(saved)
    for one in (update, other):
        run(one, range(3, 5))
    for name, moments in update.state().items():
        for key, x in moments.items():
            assert torch.equal(x, other.state()[name][key]), (name, key)
    for (name, p), q in zip(update.model.named_parameters(), other.model.parameters(), strict=True):
        assert torch.equal(p, q), name
    assert update.scaler == other.scaler


# --- fp16 -----------------------------------------------------------------------------------------


def test_a_scaled_loss_leaves_the_step_as_it_is():
    updates = [
        Update(model_of(), config_of(precision=precision, grad_clip=0.3))
        for precision in ("fp32", "fp16")
    ]
    for step in range(3):
        for update in updates:
            give(update.model, step, update.loss_scale())
        norms = [update.grad_norm() for update in updates]
        assert torch.equal(*norms), "the factor is a power of two"
        for update, norm in zip(updates, norms, strict=True):
            update.step(1e-2, norm)
    for p, q in zip(*(update.model.parameters() for update in updates), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def test_an_overflow_skips_the_step_and_too_many_in_a_row_are_none():
    update = Update(model_of(), config_of(precision="fp16"))
    before = update.model.visual.proj.detach().clone()
    for count in range(OVERFLOWS):
        assert update.may_skip()
        give(update.model, 0, math.inf)
        assert not torch.isfinite(update.grad_norm())
        update.skip()
        assert update.log_values() == {"loss_scale": 2.0 ** (15 - count), "skipped": count + 1}
    assert not update.may_skip()
    assert torch.equal(update.model.visual.proj, before)
    assert update.model.visual.proj.grad is None
    run(update, [0])
    assert update.may_skip()
    assert not Update(model_of(), config_of()).may_skip()
