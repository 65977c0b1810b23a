from __future__ import annotations

import copy
import math

import pytest
import torch

from tests.support.steps import config_of, model_of
from train.step.update import OVERFLOWS, Update, parameter_groups

pytestmark = pytest.mark.usefixtures("one_thread")


def give(model, step, factor=1.0):
    """Every parameter a gradient that depends on the step alone, in the parameter's own
    precision."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = (torch.randn(parameter.shape, generator=generator) * 0.01 * factor).to(
            parameter.dtype
        )


def run(update, steps, rate=1e-2):
    for step in steps:
        give(update.model, step, update.loss_scale())
        update.step(step, rate, update.grad_norm())


def test_it_is_adamw_with_the_norm_clipped_and_the_logit_scale_clamped():
    config = config_of(grad_clip=0.3, logit_scale_max=2.7)
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
        update.step(step, 1e-2, norm)
        adamw.step()
        other.logit_scale.data.clamp_(0, 2.7)
    assert all(p.grad is None for p in model.parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, named[name]), name
    model.logit_scale.data.fill_(9.0)
    run(update, [4])
    assert model.logit_scale.item() == pytest.approx(2.7)


KINDS = [
    {},
    {"ema": 0.9},
    {"precision": "bf16_o2", "ema": 0.9},
    {"precision": "fp16"},
    {"optimizer": "muon"},
    {"optimizer": "muon", "precision": "bf16_o2"},
]


@pytest.mark.parametrize("changes", KINDS)
def test_its_state_goes_on_where_it_was_to_the_bit(changes):
    config = config_of(**changes)
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


def test_state_without_masters_or_an_average_starts_from_the_weights():
    update = Update(model_of(), config_of())
    run(update, range(2))
    other = Update(model_of(seed=1), config_of(ema=0.5, precision="bf16_o2"))
    other.model.load_state_dict(update.model.state_dict())
    other.restore(update.state())
    state, weights = other.state(), dict(other.model.named_parameters())
    for name in ("visual.proj", "text.ln_final.bias"):
        assert torch.equal(state[name]["master"], weights[name].float())
        assert torch.equal(state[name]["ema"], weights[name].float())
        assert torch.equal(state[name]["exp_avg"], update.state()[name]["exp_avg"])


def test_masters_of_32_bits_gather_what_16_bits_would_lose():
    config = config_of(precision="bf16_o2", weight_decay=0.0)
    exact = {name: p.detach().clone() for name, p in model_of().named_parameters()}
    update = Update(model_of(), config)
    dtypes = {
        p.dtype for name, p in update.model.named_parameters() if not name.startswith("logit")
    }
    assert dtypes == {torch.bfloat16}
    assert update.model.logit_scale.dtype == torch.float32
    # All ones: the next number below is 1 - 2^-8
    before = update.model.visual.ln_pre.weight.detach().clone()
    for step in range(10):
        for parameter in update.model.parameters():
            parameter.grad = torch.full_like(parameter, 0.01)
        update.step(step, 5e-4, update.grad_norm())
        if step == 0:
            assert torch.equal(update.model.visual.ln_pre.weight, before), (
                "one step is lost in 16 bits"
            )
    moved = exact["visual.ln_pre.weight"] - update.state()["visual.ln_pre.weight"]["master"]
    torch.testing.assert_close(moved, torch.full_like(moved, 10 * 5e-4), rtol=1e-3, atol=0)
    assert (update.model.visual.ln_pre.weight < before).all()
    weight = update.model.visual.proj
    assert torch.equal(weight, update.state()["visual.proj"]["master"].bfloat16())
    with update.averaged():
        assert update.model.visual.proj.dtype == torch.float32
    assert update.model.visual.proj.dtype == torch.bfloat16


def test_the_average_follows_fast_at_first_and_is_what_is_exported():
    update = Update(model_of(), config_of(ema=0.5))
    wanted = update.model.visual.proj.detach().clone()
    for step in range(12):
        run(update, [step])
        keep = min(0.5, (1 + step) / (10 + step))
        wanted = keep * wanted + (1 - keep) * update.model.visual.proj.detach()
    torch.testing.assert_close(update.state()["visual.proj"]["ema"], wanted)
    now = update.model.visual.proj.detach().clone()
    with update.averaged():
        torch.testing.assert_close(update.model.visual.proj.detach(), wanted)
    assert torch.equal(update.model.visual.proj, now)


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
            update.step(step, 1e-2, norm)
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


# --- Muon -----------------------------------------------------------------------------------------


def test_muon_takes_the_blocks_matrices_and_each_of_q_k_v_is_orthogonal_by_itself():
    config = config_of(optimizer="muon", weight_decay=0.0)
    model = model_of()
    groups = {
        group.optimizer: group
        for group in parameter_groups(model, config)
        if group.optimizer == "Muon"
    }
    kinds = {name.split(".", 3)[-1] for name in groups["Muon"].names}
    assert kinds == {"qkv.weight", "out.weight", "fc1.weight", "fc2.weight"}
    update = Update(model, config)
    for name in ("visual.blocks.0.qkv.weight", "text.blocks.1.out.weight"):
        parameter = dict(model.named_parameters())[name]
        before = parameter.detach().clone()
        give(model, 7)
        update.step(0, 1e-2, update.grad_norm())
        # Matched to the size of AdamW's steps
        moved = (before - parameter.detach()) / (1e-2 * 0.2 * math.sqrt(32))
        parts = moved.view(2, 3, 16, 32).unbind(1) if "qkv" in name else [moved]
        for part in parts:
            values = torch.linalg.svdvals(part.reshape(-1, 32))
            assert values.median() > 0.65  # of three orthogonal together it would be 0.58
            assert values.max() < 1.6
