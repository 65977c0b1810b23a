"""The influence of groups of training pairs from gradients: against autograd, one pair after
another, and where wrong captions were planted.
"""

import copy
import json

import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.manifests import disk
from clipmill.manifests.clip_tokenizer import CaptionTokenizer
from clipmill.manifests.layout import uids_checksum
from clipmill.study import influence
from clipmill.train.config import TrainConfig, model_config
from clipmill.train.evaluation.tasks import evaluate, read_samples
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from clipmill.train.model.open_clip_model import build_model
from clipmill.train.step.loss import contrastive
from tests.support import ablations, commands, open_clip_configs
from tests.support.bundles import write_scores
from tests.support.tasks import draw
from tests.train.conftest import COLOURS, picture, sidecars, write_shard, write_tokens, write_view

CPU = torch.device("cpu")
BIAS = {"clip": (), "siglip": (torch.tensor(-2.0),)}


def features(seed, pairs, width=5):
    drawn = torch.randn(2, pairs, width, generator=torch.Generator().manual_seed(seed))
    return F.normalize(drawn.double(), dim=-1).unbind(0)


def sum_of_weights(kind, image_BE, text_BE, scale, weight_B, bias=None):
    """The sum of the losses of a batch whose pairs count so often, each as a negative of all others
    and once as its own positive.
    """
    own = torch.eye(len(weight_B), dtype=torch.bool)
    logits_BB = scale * image_BE @ text_BE.T
    column_BB = torch.where(own, 1.0, weight_B.expand_as(logits_BB))
    if kind == "siglip":
        loss_BB = -F.logsigmoid(torch.where(own, 1.0, -1.0) * (logits_BB + bias))
        return (weight_B[:, None] * column_BB * loss_BB).sum()
    both = [
        (column_BB * each.exp()).sum(dim=1).log() - each.diagonal()
        for each in (logits_BB, logits_BB.T)
    ]
    return (weight_B * (both[0] + both[1])).sum() / 2


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 9), st.floats(0.5, 30))
def test_a_pair_has_a_share_of_the_trainers_loss_and_adds_its_derivative_by_the_pairs_weight(
    kind, seed, pairs, scale
):
    outputs = (*features(seed, pairs), torch.tensor(scale))
    own_B, added_B = influence.pair_losses(kind, *outputs, *BIAS[kind])
    loss, _ = contrastive(kind, *outputs, *BIAS[kind])
    torch.testing.assert_close(own_B.mean(), loss)
    weight_B = torch.ones(pairs, dtype=torch.float64, requires_grad=True)
    (expected_B,) = torch.autograd.grad(
        sum_of_weights(kind, *outputs, weight_B, *BIAS[kind]), weight_B
    )
    torch.testing.assert_close(added_B, expected_B)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_in_a_batch_of_many_a_pair_adds_what_is_missing_without_it(kind):
    image_BE, text_BE = features(3, 200, width=64)
    scale, ones = torch.tensor(2.0), torch.ones(200)
    _, added_B = influence.pair_losses(kind, image_BE, text_BE, scale, *BIAS[kind])
    whole = sum_of_weights(kind, image_BE, text_BE, scale, ones, *BIAS[kind])
    for pair in (0, 57, 199):
        others = torch.arange(200) != pair
        left = (image_BE[others], text_BE[others], scale, ones[others], *BIAS[kind])
        missing = whole - sum_of_weights(kind, *left)
        assert added_B[pair].item() == pytest.approx(missing.item(), rel=2e-3)


def models(tmp_path):
    yield "clip", CLIP(MODELS["test"], seed=3)
    sigmoid = model_config(TrainConfig(model="test", loss="siglip"))
    yield "siglip", CLIP(sigmoid, seed=3)
    for name in ("resnet", "convnext", "siglip", "bert"):
        kind = "siglip" if name == "siglip" else "clip"
        path = getattr(open_clip_configs, name)(tmp_path)
        yield kind, build_model(model_config(TrainConfig(model=path, loss=kind)), seed=1)
    path = open_clip_configs.resnet(tmp_path, nonscalar_logit_scale=True)
    yield "clip", build_model(model_config(TrainConfig(model=path)), seed=1)


@pytest.mark.slow
def test_every_pairs_derivative_is_that_of_autograd_for_every_kind_of_model(tmp_path, monkeypatch):
    monkeypatch.setattr(influence, "batch_rows", lambda count: [slice(0, 2), slice(2, count)])
    for kind, model in models(tmp_path):
        model.eval()
        config, generator = model.config, torch.Generator().manual_seed(0)
        shape = (5, *config.height_width, 3)
        image_BHWC = torch.randint(0, 255, shape, generator=generator, dtype=torch.uint8)
        tokens_BT = torch.randint(1, 30, (5, config.context_length), generator=generator)
        own = getattr(config, "tokenizer", None)
        tokens_BT[:, 6] = 31 if own else config.vocab_size - 1
        tokens_BT[:, 7:] = 0
        direction = {
            name: torch.randn(part.shape, generator=generator)
            for name, part in model.named_parameters()
        }
        losses, found = influence.moved_losses(model, kind, direction, image_BHWC, tokens_BT)
        pixels_BCHW = influence._pixels(model, image_BHWC, CPU)
        outputs = [part for part in model(pixels_BCHW, tokens_BT) if part is not None]
        loss_B, added_B = influence.pair_losses(kind, *outputs)
        torch.testing.assert_close(losses, loss_B, rtol=1e-4, atol=1e-4)
        for pair in range(5):
            parts = torch.autograd.grad(
                added_B[pair], list(model.parameters()), retain_graph=True, allow_unused=True
            )
            expected = sum(
                (part * along).sum()
                for part, along in zip(parts, direction.values(), strict=True)
                if part is not None
            )
            assert found[pair].item() == pytest.approx(expected.item(), rel=2e-3, abs=2e-3), config


def test_a_step_along_the_gradient_of_the_metric_moves_it_as_the_gradient_says(
    model, colours, tmp_path
):
    model = copy.deepcopy(model)
    gradient = influence.metric_gradient(model, read_samples(colours), CPU)
    assert set(gradient) == {name for name, _ in model.named_parameters()}
    values = []
    step = 1e-3 / sum((part**2).sum() for part in gradient.values()).sqrt()
    for sign in (1, -2):  # ahead, then from there to the other side
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.add_(sign * step * gradient[name])
        metrics = evaluate(model, [colours], str(tmp_path / f"{sign}"))
        values.append(metrics["colours"]["logprob"])
    squared = sum((part**2).sum() for part in gradient.values())
    assert values[0] - values[1] == pytest.approx((2 * step * squared).item(), rel=0.05)


# --- through the command --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """An ablation that ran, whose baseline has a wrong caption in every second pair."""
    folder = tmp_path_factory.mktemp("planted runs")
    pool, names = str(folder / "a pool"), list(COLOURS)
    rows = []
    for n in range(192):
        colour, shift = n // 2 % 4, (n % 2) * (1 + n // 8 % 3)
        caption = f"a photo of something {names[(colour + shift) % 4]}"
        rows.append({"image": picture(colour, 32, n), "caption": caption})
    write_shard(pool, 0, rows)
    write_tokens(pool)
    (table,) = sidecars(pool).values()
    tokenizer = CaptionTokenizer()
    tokens = [tokenizer.encode(caption) for caption in table["caption"].to_pylist()]
    column = pa.table({"tokens": pa.array(tokens, pa.list_(pa.uint16()))})
    uids = uids_checksum(table["uid"])
    write_scores(pool, "tokens@0123456789ab", {"00000": (column, {"uids": uids})})
    write_view(pool)
    write_view(pool, "right", lambda shard, row: row % 2 == 0)
    write_view(pool, "wrong", lambda shard, row: row % 2 == 1)
    for colour, (name, value) in enumerate(COLOURS.items()):
        for n in range(6):
            draw(folder / "colours" / name / f"{n}.png", value, seed=1000 + 10 * colour + n)
    task = {"name": "colours", "kind": "classification", "data": str(folder / "colours"),
            "templates": ["a photo of something {}"]}  # fmt: skip
    ablation = ablations.tiny_ablation(
        pool,
        "",
        arms={"raw": "web/all", "right": "web/right"},
        controls={"a_a": "raw"},
        train={**ablations.TRAIN, "samples_seen": 1600, "batch_size": 32, "lr": 2e-3},
        evaluate=[task],
    )
    disk.write_json(folder / "planted.json", ablation)
    words = [str(folder / "planted.json"), "--out", str(folder / "out"), "--engine", "inline"]
    assert commands.ablate(words) == 0
    return str(folder / "out")


def answer(folder, capsys, *words):
    words = ["gradients", folder, *words, "--pairs", "384", "--device", "cpu", "--json"]
    assert commands.why(words) == 0
    return json.loads(capsys.readouterr().out)


GROUPS = ["--groups", "web/right", "web/wrong"]


@pytest.mark.slow
def test_wrong_captions_that_were_planted_have_the_gain_of_the_arm_without_them(planted, capsys):
    found = answer(planted, capsys, "right", *GROUPS)
    right, wrong = found["groups"]
    assert right["influence"]["low"] > 0 > wrong["influence"]["high"]
    assert found["gain"]["low"] > 0
    assert right["part"]["value"] + wrong["part"]["value"] == pytest.approx(1)
    assert wrong["part"]["value"] == pytest.approx(1)
    assert [row["base"] for row in found["groups"]] == [0.5, 0.5]
    assert [row["arm"] for row in found["groups"]] == [1, 0]
    assert sum(row["pairs"] for row in found["groups"]) == 2 * 384
    assert found == answer(planted, capsys, "right", *GROUPS)


@pytest.mark.slow
def test_an_a_a_arm_gets_nothing(planted, capsys):
    found = answer(planted, capsys, "a_a", *GROUPS)
    assert found["gain"] is None
    assert all(row["part"] is None for row in found["groups"])
    assert commands.why(["gradients", planted, "a_a", *GROUPS, "--pairs", "64"]) == 0
    assert "nothing is attributed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["right", "--groups", "web/right", "web/all"], "has rows of another group"),
        (["right", "--groups", "web/rihgt", "web/wrong"], "has no view"),
        (["right", "--groups", "wbe/right", "web/wrong"], "is not POOL/VIEW"),
        (["right"], "no ablation of mixtures"),
        (["rihgt", *GROUPS], "is not trained by this ablation; did you mean 'right'?"),
        (["right", *GROUPS, "--pairs", "2"], "draw more"),
        (["right", *GROUPS, "--pairs", "0"], "pairs is 0"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_answered_is_refused_with_the_reason(planted, capsys, words, message):
    assert commands.why(["gradients", planted, *words, "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err
