"""The towers are open_clip's, shown in float64: two right programs in 32 bits differ by 1e-5, which
proves nothing.

`python -m pytest tests/train/formats/test_parity.py -s` prints what was measured.
"""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from clipmill.train.formats.open_clip_files import (
    from_open_clip,
    open_clip_config,
    open_clip_name,
    to_open_clip_names,
)
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP

WORDS, CONTEXT = 300, 16
# Widths, heads, MLPs and patches are the models' own; pictures have 2 x 2 patches and towers two
# blocks, but S/32's 12.
SMALL = {"vocab_size": WORDS, "context_length": CONTEXT}
SIZES = {
    name: dataclasses.replace(
        MODELS[name],
        **SMALL,
        image_size=2 * MODELS[name].patch_size,
        **({} if name == "ViT-S-32" else {"vision_layers": 2, "text_layers": 2}),
    )
    for name in (
        "ViT-S-32",
        "ViT-B-32",
        "ViT-B-32-quickgelu",
        "ViT-L-14",
        "ViT-H-14",
        "ViT-g-14",
        "ViT-bigG-14",
        "ViT-e-14",
    )
}
SCALE = 1 / 0.07
BOUND = 1e-9  # of a tensor's gradient: the norm of the difference over the norm


pytestmark = pytest.mark.usefixtures("one_thread")


def pair(config, dtype):
    """open_clip's model and ours with the same weights, which share memory where their order is the
    same.
    """
    from open_clip.model import CLIP as OpenClip

    model = CLIP(config, seed=1).to(dtype)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Biases start at 0 and norms at 1, which would hide a wrong order
            if parameter.ndim == 1:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
            elif "positional" in name:
                parameter *= 4
    with torch.device("meta"):
        theirs = OpenClip(**open_clip_config(config)["model_cfg"])
    theirs.load_state_dict(
        as_theirs({n: p.detach() for n, p in model.named_parameters()}, config), assign=True
    )
    # No parameter: made anew
    theirs.attn_mask = torch.full((CONTEXT, CONTEXT), -torch.inf).triu_(1)
    return theirs.train(), model


def as_theirs(values, config):
    """Under open_clip's names; copied only where the order of the numbers differs."""
    return {
        open_clip_name(name): next(iter(to_open_clip_names({name: value}, config).values()))
        if ".qkv." in name or name == "visual.patch.weight"
        else value
        for name, value in values.items()
    }


def inputs(config, batch, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(batch, 3, *config.height_width, generator=generator).to(dtype)
    tokens = torch.zeros((batch, CONTEXT), dtype=torch.int64)
    for row in range(batch):
        length = 3 + (5 * row + seed) % (CONTEXT - 2)
        tokens[row, :length] = torch.randint(1, WORDS - 1, (length,), generator=generator)
        tokens[row, length - 1] = WORDS - 1
    return image, tokens


def loss_of(image_BE, text_BE, scale):
    logits, own = scale * image_BE @ text_BE.T, torch.arange(len(image_BE))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2, logits


def run(model, image, tokens, ours):
    """Logits, and gradients under open_clip's names."""
    if ours:
        image_BE, text_BE, scale, _ = model(image, tokens)
    else:
        image_BE, text_BE = (
            model.encode_image(image, normalize=True),
            model.encode_text(tokens, normalize=True),
        )
        scale = model.logit_scale.exp()
    loss, logits = loss_of(image_BE, text_BE, scale)
    model.zero_grad(set_to_none=True)
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return logits.detach(), as_theirs(grads, model.config) if ours else grads


def apart(a, b):
    """The norm of the difference over the norm."""
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_logits_and_every_gradient_are_open_clip_s(name):
    config = SIZES[name]
    theirs, model = pair(config, torch.float64)
    image, tokens = inputs(config, 3, torch.float64)
    wanted, their_grads = run(theirs, image, tokens, ours=False)
    ours, our_grads = run(model, image, tokens, ours=True)
    assert model.logit_scale.exp().item() == pytest.approx(SCALE)
    assert set(our_grads) == set(their_grads)
    worst = max((apart(our_grads[n], grad), n) for n, grad in their_grads.items())
    print(f"\n{name}: logits {apart(ours, wanted):.1e}, worst gradient {worst[0]:.1e} ({worst[1]})")
    assert apart(ours, wanted) <= BOUND
    assert worst[0] <= BOUND, worst


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-S-32", "ViT-B-32", "ViT-L-14"])
def test_in_32_bits_the_error_is_no_more_than_twice_open_clip_s(name):
    config = SIZES[name]
    theirs, model = pair(config, torch.float32)
    true = copy.deepcopy(theirs).double()
    image, tokens = inputs(config, 4, torch.float32)
    exact, grads = run(true, image.double(), tokens, ours=False)
    errors = []
    for candidate, ours in ((model, True), (theirs, False)):
        logits, gradients = run(candidate, image, tokens, ours)
        off = sum(((gradients[n].double() - g) ** 2).sum() for n, g in grads.items()).sqrt()
        errors.append(
            (apart(logits, exact), (off / sum((g**2).sum() for g in grads.values()).sqrt()).item())
        )
    print(
        f"\n{name} in 32 bits, ours and open_clip's: logits %.1e %.1e, gradients %.1e %.1e"
        % (errors[0][0], errors[1][0], errors[0][1], errors[1][1])
    )
    assert errors[0][0] <= 2 * errors[1][0]
    assert errors[0][1] <= 2 * errors[1][1]


@pytest.mark.slow
def test_fifty_steps_lead_to_the_same_weights():
    config = dataclasses.replace(SIZES["ViT-S-32"], vision_layers=3, text_layers=3)
    theirs, model = pair(config, torch.float32)
    theirs.load_state_dict(
        {name: value.clone() for name, value in theirs.state_dict().items()}, assign=True
    )

    def optimizer_of(module):
        free = [p for n, p in module.named_parameters() if p.ndim < 2 or "ln" in n or "bias" in n]
        kept = {id(p) for p in free}
        rest = [p for p in module.parameters() if id(p) not in kept]
        groups = [{"params": free, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.2}]
        return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.98), eps=1e-6, fused=True)

    batches = [inputs(config, 4, torch.float32, seed) for seed in range(2)]
    losses = {}
    for ours, module in ((True, model), (False, theirs)):
        optimizer, losses[ours] = optimizer_of(module), []
        for step in range(50):
            image, tokens = batches[step % len(batches)]
            for group in optimizer.param_groups:
                group["lr"] = 1e-4 * min(1, (step + 1) / 10)
            if ours:
                image_BE, text_BE, scale, _ = module(image, tokens)
            else:
                image_BE = module.encode_image(image, normalize=True)
                text_BE, scale = (
                    module.encode_text(tokens, normalize=True),
                    module.logit_scale.exp(),
                )
            loss, _ = loss_of(image_BE, text_BE, scale)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)  # keeps the memory
            with torch.no_grad():
                module.logit_scale.clamp_(0, 4.6052)
            losses[ours].append(loss.item())
    off = max(abs(a - b) for a, b in zip(losses[True], losses[False], strict=True))
    wanted = from_open_clip(theirs.state_dict(), config)
    ours = model.state_dict()
    far = sum(((ours[n].double() - w.double()) ** 2).sum() for n, w in wanted.items()).sqrt()
    size = sum((w.double() ** 2).sum() for w in wanted.values()).sqrt()
    worst = max((apart(ours[n], w), n) for n, w in wanted.items())
    print(
        f"\n50 steps: loss {losses[True][0]:.3f} to {losses[True][-1]:.3f}, apart {off:.1e};"
        f" weights {far / size:.1e}, worst {worst[0]:.1e} ({worst[1]})"
    )
    assert losses[True][-1] < losses[True][0] - 0.5
    assert off <= 1e-4
    assert far / size <= 1e-4
