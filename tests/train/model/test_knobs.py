"""Every setting of a model changes what it says, and at its default nothing; what is drawn."""

import dataclasses
import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from clipmill.train.config import configure, model_config
from clipmill.train.model import clip
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP

TEST = dataclasses.replace(MODELS["test"], vocab_size=50, vision_layers=3, text_layers=3)
ROWS = torch.arange(6)
DROPPING = dataclasses.replace(TEST, drop_patch_rate=0.5)


def shapes(**changes):
    with torch.device("meta"):
        return {
            name: list(p.shape)
            for name, p in CLIP(dataclasses.replace(TEST, **changes)).named_parameters()
        }


def given(config=TEST):
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(6, 3, *config.height_width, generator=generator)
    tokens = torch.randint(1, 48, (6, 9), generator=generator)
    tokens[:, -1] = 49
    return image, tokens


def features(model, image, tokens):
    return {"visual": model.encode_image(image), "text": model.encode_text(tokens)}


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"embed_dim": 48}, {"visual.proj": [32, 48], "text.proj": [32, 48]}),
        (
            {"patch_size": 8},
            {"visual.patch.weight": [32, 192], "visual.positional_embedding": [17, 32]},
        ),
        ({"image_size": 48}, {"visual.positional_embedding": [10, 32]}),
        ({"context_length": 20}, {"text.positional_embedding": [20, 32]}),
        ({"vocab_size": 60}, {"text.token_embedding.weight": [60, 32]}),
        ({"logit_bias": True}, {"logit_bias": []}),
    ],
)
def test_a_size_changes_the_parameters_that_it_should_and_no_other(change, changed):
    before, after = shapes(), shapes(**change)
    assert {name: shape for name, shape in after.items() if before.get(name) != shape} == changed
    model = CLIP(dataclasses.replace(TEST, **change))
    for feature in features(model, *given(model.config)).values():
        assert feature.shape == (6, model.config.embed_dim)


# --- what is drawn --------------------------------------------------------------------------------


def test_patches_that_are_left_out_depend_on_seed_and_step_alone_and_never_on_evaluation():
    model, plain = CLIP(DROPPING, seed=1), CLIP(TEST, seed=1)
    with pytest.raises(ValueError, match="call reseed before each forward"):
        features(model, *given())
    state = torch.get_rng_state()
    outputs = []
    for seed, step in ((3, 7), (3, 7), (4, 7), (3, 8)):
        model.reseed(seed, step, ROWS)
        outputs.append(features(model, *given()))
    assert torch.equal(torch.get_rng_state(), state)
    usual = features(plain, *given())
    assert torch.equal(outputs[0]["visual"], outputs[1]["visual"])
    for other in (outputs[2], outputs[3], usual):
        assert (outputs[0]["visual"] - other["visual"]).abs().max() > 1e-3
    assert torch.equal(outputs[0]["text"], usual["text"])
    model.eval()
    assert all(torch.equal(a, usual[k]) for k, a in features(model, *given()).items())


def test_micro_batches_recomputation_and_other_ranks_draw_the_same():
    model = CLIP(DROPPING, seed=1).double()
    image, tokens = given()
    image = image.double()
    model.reseed(3, 7, ROWS)
    whole = features(model, image, tokens)
    for rows in (ROWS[:2], ROWS[2:], torch.tensor([5, 1])):
        model.reseed(3, 7, rows)
        for tower, feature in features(model, image[rows], tokens[rows]).items():
            torch.testing.assert_close(feature, whole[tower][rows], rtol=1e-12, atol=1e-12)
    model.reseed(3, 7, ROWS[:3])
    with pytest.raises(ValueError, match="got 6 samples, but 3 were named"):
        model.encode_image(image)


@pytest.mark.slow
# torch.compile warns about itself
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["recomputed", "compiled"])
def test_a_block_that_is_recomputed_or_compiled_draws_the_same(how):
    image, tokens = given()
    grads = []
    for other in (False, True):
        model = CLIP(DROPPING, seed=1).double()
        for block in [model.visual.blocks[1], model.text.blocks[2]] if other else []:
            if how == "compiled":
                block.compile(backend="aot_eager")
            else:
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        model.reseed(3, 7, ROWS)
        image_BE, text_BE, scale, _ = model(image.double(), tokens)
        model.reseed(9, 9, ROWS)  # what comes later must not change what is recomputed
        (scale * image_BE @ text_BE.T).softmax(-1).diagonal().sum().backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, rtol=1e-10, atol=1e-13)


# --- how they are set -----------------------------------------------------------------------------


def test_a_run_changes_its_model_by_name():
    config = configure(
        {
            "preset": "micro",
            "model.drop_patch_rate": "0.1",
            "model.image_mean": "0.5,0.5,0.5",
            "model.quick_gelu": "true",
        }
    )
    wanted = {"drop_patch_rate": 0.1, "image_mean": (0.5, 0.5, 0.5), "quick_gelu": True}
    assert model_config(config) == dataclasses.replace(MODELS["micro"], **wanted)
    assert model_config(configure({"model.context_length": 40})).context_length == 40


# --------------------------------------------------------------------------------------------------


def test_every_sample_and_key_keeps_patches_of_its_own():
    kept = clip.kept_patches(torch.arange(50), torch.tensor(5), 49, 0.5)
    assert kept.shape == (50, 24)
    assert (kept.diff(dim=1) > 0).all()
    assert len(kept.unique(dim=0)) == 50
    other = clip.kept_patches(torch.arange(50), torch.tensor(6), 49, 0.5)
    assert not (kept == other).all(dim=1).any()
    counts = torch.bincount(clip.kept_patches(torch.arange(400), torch.tensor(5), 49, 0.5).ravel())
    assert (counts / 400).tolist() == pytest.approx([24 / 49] * 49, abs=0.12)
    assert clip.kept_patches(torch.arange(2), torch.tensor(5), 4, 0.99).shape == (2, 1)


def test_golden_numbers():
    assert clip.uniform(torch.tensor(7), torch.tensor([0, 1, 1 << 40])).tolist() == GOLDEN


GOLDEN = [0.5243459343910217, 0.3021389842033386, 0.5452271699905396]
