"""From gradients to new weights: norm, groups that decay, precision, schedules, the step."""

import copy
import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

from clipmill.train.config import configure
from clipmill.train.formats.open_clip_files import to_open_clip
from clipmill.train.step.update import (
    OVERFLOWS,
    Scaler,
    Update,
    build_optimizer,
    decay_factor,
    learning_rate,
    matmul_precision,
    parameter_groups,
    precision_context,
    step_eagerly,
    total_norm,
)
from tests.support.steps import config_of, model_of

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_norm_of_numbers_of_16_bits_has_32():
    parts = [torch.full((1001,), 1.0, dtype=torch.bfloat16), torch.zeros((), dtype=torch.float32)]
    # 31.64; in 16 bits it would be 31.625
    assert total_norm(parts).item() == pytest.approx(1001**0.5, rel=1e-6)


def test_a_gradient_that_is_a_partial_sum_is_refused():
    grad = SimpleNamespace(
        device_mesh="mesh", placements=[SimpleNamespace(is_partial=lambda: True)]
    )
    with pytest.raises(ValueError, match="still a partial sum over a mesh"):
        total_norm([grad])


def test_only_matrices_decay_and_positions_by_convention():
    model = model_of()
    main, old = (
        {g.weight_decay: set(g.names) for g in parameter_groups(model, config_of(decay_groups=c))}
        for c in ("open_clip_main", "open_clip")
    )
    assert config_of().decay_groups == "open_clip_main"
    positions = {"visual.positional_embedding", "text.positional_embedding"}
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


@pytest.mark.parametrize(
    ("precision", "inside"),
    [("fp32", "float32"), ("tf32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")],
)
def test_a_precision_is_that_of_products_inside_its_context(precision, inside):
    before = torch.get_float32_matmul_precision()
    config = config_of(precision=precision)
    with matmul_precision(config), precision_context(config, torch.device("cpu")):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        assert torch.get_float32_matmul_precision() == ("high" if precision == "tf32" else before)
    assert product.dtype == getattr(torch, inside)
    assert torch.get_float32_matmul_precision() == before


def test_the_loss_scale_is_torchs():
    ours, theirs = Scaler(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD([weight := torch.nn.Parameter(torch.ones(1))], lr=0.0)
    for step in range(2010):
        finite = step not in (0, 1, 5)
        theirs.scale(weight.sum() * (1.0 if finite else math.inf)).backward()
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        ours.record(finite)
        assert ours.scale == theirs.get_scale()
    assert (ours.scale, ours.skipped, ours.in_a_row) == (2.0**14, 3, 0)


def give(model, step, factor=1.0):
    """Every parameter a gradient that depends on the step alone."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 0.01 * factor


def run(update, steps, rate=0.01):
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


# --------------------------------------------------------------------------------------------------


SETTINGS = {"model": "test", "samples_seen": 80, "batch_size": 8, "lanes": 4, "warmup": 4}


def schedule_of(**changes):
    return configure({**SETTINGS, "lr": 1e-2, **changes})


def test_the_learning_rate_rises_and_falls():
    config = schedule_of(lr=1.0)
    rates = [learning_rate(config, step) for step in range(10)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[7] == pytest.approx(0.5)
    assert rates[9] == pytest.approx(0.5 * (1 + math.cos(math.pi * 5 / 6)))
    assert learning_rate(dataclasses.replace(config, schedule="constant"), 9) == 1.0


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_the_cooldown_is_open_clips(power):
    scheduler = pytest.importorskip("open_clip_train.scheduler")
    changes = {
        "schedule": "constant_cooldown",
        "cooldown": 5,
        "cooldown_power": power,
        "cooldown_end_lr": 0.1,
    }
    config = schedule_of(lr=1.0, warmup=3, **changes)
    theirs = scheduler.const_lr_cooldown(
        SimpleNamespace(param_groups=[]), 1.0, 3, config.steps, 5, power, 0.1
    )
    rates = [learning_rate(config, step) for step in range(config.steps)]
    assert rates == pytest.approx([theirs(step) for step in range(config.steps)])
    assert rates[4] == 1.0
    assert rates[9] < rates[6] < 1.0


def test_the_decay_factor_is_what_adamw_makes_of_a_weight_without_gradient():
    config = schedule_of(weight_decay=0.3, lr=0.5)
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], weight_decay=config.weight_decay)
    for step in range(7):
        weight.grad = torch.zeros_like(weight)
        optimizer.param_groups[0]["lr"] = learning_rate(config, step)
        optimizer.step()
    assert weight.item() == pytest.approx(decay_factor(config, 7), rel=1e-12)
    assert decay_factor(config, 0) == 1
