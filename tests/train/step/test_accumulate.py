import functools
import itertools

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from clipmill.train.step import accumulate
from clipmill.train.step.loss import contrastive

COUNT, WIDE = 24, 12


pytestmark = pytest.mark.usefixtures("one_thread")


class Pair(nn.Module):
    """Two towers with dropout; the bias only for the sigmoid loss."""

    def __init__(self, kind, dropout=0.0, dtype=torch.float64):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.image, self.text = (
            nn.Sequential(nn.Linear(WIDE, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 8))
            for _ in range(2)
        )
        self.logit_scale = nn.Parameter(torch.tensor(2.0))
        self.logit_bias = nn.Parameter(torch.tensor(-3.0)) if kind == "siglip" else None
        for parameter in [*self.image.parameters(), *self.text.parameters()]:
            parameter.data = torch.randn(parameter.shape, generator=generator) / 4
        self.to(dtype)

    def forward(self, image, text):
        units = (nn.functional.normalize(x, dim=-1) for x in (self.image(image), self.text(text)))
        return *units, self.logit_scale.exp(), self.logit_bias


def inputs(count=COUNT, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, count, WIDE, generator=generator).to(dtype)


def run(kind, micro_batch, *, data=None, tile=None, **options):
    """The result, and each parameter's gradient."""
    model, (image, text) = Pair(kind), inputs() if data is None else data
    loss_of = functools.partial(contrastive, kind, tile=tile)
    loss = accumulate.backward(
        model,
        lambda piece: (image[piece], text[piece]),
        len(image),
        loss_of,
        micro_batch=micro_batch,
        **options,
    )
    return loss, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("micro_batch", [1, 5, 6, 23, 24, 100])
def test_micro_batches_have_the_loss_and_the_gradients_of_the_whole_batch(kind, micro_batch):
    whole, wanted = run(kind, None)
    loss, grads = run(kind, micro_batch)
    torch.testing.assert_close(loss.loss, whole.loss, rtol=1e-12, atol=0)
    assert loss.accuracy == whole.accuracy
    torch.testing.assert_close(loss.image_bE, whole.image_bE)
    for name, grad in grads.items():
        assert (grad - wanted[name]).norm() <= 1e-10 * wanted[name].norm(), name


def test_a_loss_scale_is_a_factor_on_the_gradients_alone():
    whole, wanted = run("clip", None)
    for micro_batch in (None, 7):
        loss, grads = run("clip", micro_batch, loss_scale=1024.0)
        torch.testing.assert_close(loss.loss, whole.loss)
        for name, grad in grads.items():
            torch.testing.assert_close(grad / 1024, wanted[name])


def test_random_layers_draw_the_same_in_both_passes():
    seen = []
    model, (image, text) = Pair("clip", dropout=0.5), inputs()
    model.image[2].register_forward_hook(lambda module, given, out: seen.append(out == 0))
    loss_of = functools.partial(contrastive, "clip")
    accumulate.backward(
        model, lambda piece: (image[piece], text[piece]), COUNT, loss_of, micro_batch=8
    )
    first, second = seen[:3], seen[3:]
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])


def test_both_passes_are_in_the_precision_that_was_asked_for():
    dtypes = []
    model, (image, text) = Pair("clip", dtype=torch.float32), inputs(dtype=torch.float32)
    model.image[0].register_forward_hook(lambda module, given, out: dtypes.append(out.dtype))
    accumulate.backward(
        model,
        lambda piece: (image[piece], text[piece]),
        COUNT,
        functools.partial(contrastive, "clip"),
        micro_batch=12,
        precision=lambda: torch.autocast("cpu", torch.bfloat16),
    )
    assert dtypes == [torch.bfloat16] * 4
    half = {name: p.grad for name, p in model.named_parameters()}
    whole = run("clip", None)[1]
    for name, grad in half.items():
        assert (grad.double() - whole[name]).norm() <= 0.05 * whole[name].norm(), name


def most(count, micro_batch):
    """The most bytes that a backward pass over so many samples held at once."""
    data = inputs(count)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run("clip", micro_batch, data=data, tile=128)
    events = (e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]")
    live_bytes = itertools.accumulate(
        e.nbytes() for e in sorted(events, key=lambda event: event.start_ns())
    )
    return max(live_bytes)


def test_memory_grows_with_the_features_alone():
    pieces, whole = (most(1024, micro_batch) - most(256, micro_batch) for micro_batch in (32, None))
    features = 2 * 8 * 8 * (1024 - 256)  # both towers' in 64 bits
    # In pieces, joined, their gradients, and what each row keeps of the loss
    assert pieces < 5 * features
    assert whole > 2 * pieces
