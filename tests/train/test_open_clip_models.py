"""Runs of models that open_clip's own module computes: from the command to the evaluation, killed
and resumed, on other ranks, and beside open_clip's own training loop.
"""

import dataclasses
import io
import json
import shutil

import pytest
import torch
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.layout import PoolLayout
from clipmill.train.config import configure
from clipmill.train.sizing.advice import advise
from clipmill.train.sizing.device_fit import Device, fit, largest_micro_batch, remedies
from tests.support import commands, open_clip_configs
from tests.support.late import open_clip
from tests.support.tasks import class_folders

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
SETTINGS = {
    "samples_seen": "40",
    "batch_size": "8",
    "lanes": "4",
    "warmup": "2",
    "lr": "1e-3",
    "precision": "fp32",
    "threads": "1",
    "log_every": "1",
    "device": "cpu",
    "checkpoint_every": "2",
    "keep_checkpoints": "9",
}
MODELS = {
    name: getattr(open_clip_configs, name) for name in ("resnet", "convnext", "siglip", "bert")
}


def changes(**others):
    return ["--set", *(f"{key}={value}" for key, value in {**SETTINGS, **others}.items())]


def train(pool, out, *words, **settings):
    return commands.train(
        ["--mix", f"{pool}/all=1", "--out", str(out), *words, *changes(**settings)]
    )


def losses(out):
    return [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]


def weights(out):
    from safetensors.torch import load_file

    return load_file(out / "export" / "open_clip_model.safetensors")


def cut_back(out, step):
    disk.remove(out / "run.json")
    for path in (out / "checkpoints").iterdir():
        if path.name != f"step-{step}":
            shutil.rmtree(path)


@pytest.mark.parametrize("name", MODELS)
def test_a_run_is_resumed_to_the_bit_and_open_clip_loads_what_it_exports(name, tiny_pool, tmp_path):
    model = MODELS[name](tmp_path)
    loss = "siglip" if name == "siglip" else "clip"
    one, two = tmp_path / "one", tmp_path / "two"
    assert train(tiny_pool, one, model=model, loss=loss) == 0
    assert train(tiny_pool, two, model=model, loss=loss) == 0
    cut_back(two, 2)
    assert train(tiny_pool, two, model=model, loss=loss) == 0
    assert disk.read_json(two / "run.json")["resumed_at"] == 2
    assert losses(two) == losses(one)
    ours = weights(one)
    assert all(torch.equal(value, ours[key]) for key, value in weights(two).items())
    theirs = open_clip.create_model(f"local-dir:{one / 'export'}").eval()
    state = theirs.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in ours.items())
    tokens = open_clip.get_tokenizer(f"local-dir:{one / 'export'}")(["a photo of something red"])
    from clipmill.train.formats.model_files import load_model

    read = load_model(str(one)).eval()
    with torch.no_grad():
        torch.testing.assert_close(
            read.encode_text(tokens), theirs.encode_text(tokens, normalize=True)
        )


@pytest.mark.parametrize("name", MODELS)
def test_a_run_scores_a_pool_as_open_clip_does(name, tiny_pool, tmp_path):
    """BatchNorm then has its running statistics: a score does not depend on the batch."""
    pool, out = tmp_path / "pool", tmp_path / "run"
    shutil.copytree(tiny_pool, pool)
    loss = "siglip" if name == "siglip" else "clip"
    assert train(str(pool), out, model=MODELS[name](tmp_path), loss=loss) == 0
    options = [f"clip_score.model=local-dir:{out / 'export'}", "clip_score.device=cpu"]
    words = ["--filters", "clip_score", "--set", *options, "--engine", "inline"]
    assert commands.score([str(pool), *words]) == 0
    sets = disk.list_names(PoolLayout(str(pool)).scores)
    (score_set,) = [each for each in sets if each.startswith("clip_score@")]
    scores = AlignedFiles.of_scores(PoolLayout(str(pool)), score_set).read("00001")[0]["clip_score"]
    folder = f"local-dir:{out / 'export'}"
    clip, _, preprocess = open_clip.create_model_and_transforms(folder)
    sidecar = disk.read_parquet(pool / "shards" / "00001.parquet").slice(0, 4).to_pylist()
    members = []
    for row in sidecar:
        place = row["image_offset"], row["image_length"]
        data = disk.read_bytes(pool / "shards" / "00001.tar", *place)
        members.append(preprocess(Image.open(io.BytesIO(data)).convert("RGB")))
    tokens = open_clip.get_tokenizer(folder)([row["caption"] for row in sidecar])
    with torch.no_grad():
        image_BE = clip.eval().encode_image(torch.stack(members), normalize=True)
        cosine_B = (image_BE * clip.encode_text(tokens, normalize=True)).sum(dim=1)
    assert scores.to_pylist()[:4] == pytest.approx(cosine_B.tolist(), abs=2e-3)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("resnet", {}),
        ("resnet", {"dp_shard": 2, "recompute": "full"}),
        ("convnext", {"dp_shard": 2, "recompute": "selective", "micro_batch": 2}),
        ("siglip", {"loss": "siglip", "micro_batch": 3}),
    ],
)
def test_two_ranks_train_as_one_and_one_goes_on_from_their_checkpoint(
    name, settings, tiny_pool, tmp_path
):
    """BatchNorm too: its statistics are of the whole batch, once a step, on any number of ranks."""
    model = MODELS[name](tmp_path)
    loss = {"loss": settings.get("loss", "clip")}
    one, two = tmp_path / "one", tmp_path / "two"
    assert train(tiny_pool, one, model=model, **loss) == 0
    assert train(tiny_pool, two, "--ranks", "2", model=model, **settings) == 0
    cut_back(two, 4)
    assert train(tiny_pool, two, model=model, **loss) == 0
    record = disk.read_json(two / "run.json")
    assert (record["resumed_at"], record["world"]) == (4, 1)
    assert losses(two) == pytest.approx(losses(one), abs=2e-5)
    for key, value in weights(one).items():
        if "running" in key:
            torch.testing.assert_close(weights(two)[key], value, rtol=1e-3, atol=1e-4, msg=key)


# --- beside open_clip's own loop ------------------------------------------------------------------


class Batches:
    """The batches of a run as open_clip's loop wants them."""

    def __init__(self, batches):
        self.batches, self.num_batches = batches, len(batches)
        self.num_samples = sum(len(image) for image, _ in batches)
        self.dataloader = self

    def set_epoch(self, epoch):
        pass

    def __iter__(self):
        return iter(self.batches)


@pytest.mark.parametrize("name", ["resnet", "convnext", "siglip"])
def test_losses_and_weights_are_those_of_open_clips_own_loop(name, tiny_pool, tmp_path):
    from types import SimpleNamespace

    from open_clip.loss import ClipLoss, SigLipLoss
    from open_clip_train.train import train_one_epoch

    from clipmill.train.config import configure, model_config
    from clipmill.train.data.blends import read_blend
    from clipmill.train.data.loader import RunLoader
    from clipmill.train.model.open_clip_model import build_model
    from clipmill.train.step.update import learning_rate
    from clipmill.train.transforms import normalise

    loss = "siglip" if name == "siglip" else "clip"
    model = MODELS[name](tmp_path)
    settings = {**SETTINGS, "model": model, "loss": loss, "decay_groups": "open_clip"}
    assert train(tiny_pool, tmp_path / "run", **settings) == 0
    config = configure(settings)
    ours = model_config(config)
    theirs = build_model(ours, 0).open_clip
    theirs.output_dict = True
    loader = RunLoader(read_blend(str(tmp_path / "run" / "blend.json")), config, ours)
    batches = []
    for batch in loader.batches():
        image = normalise(batch.image_BHWC, ours.image_mean, ours.image_std)
        batches.append((image, batch.tokens_BT.clone()))
    named = list(theirs.named_parameters())

    def spared(key, p):
        return p.ndim < 2 or any(part in key for part in ("bn", "ln", "bias", "logit_scale"))

    optimizer = torch.optim.AdamW(
        [
            {"params": [p for key, p in named if spared(key, p)], "weight_decay": 0.0},
            {"params": [p for key, p in named if not spared(key, p)], "weight_decay": 0.2},
        ],
        lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps,
    )  # fmt: skip
    seen = []

    def scheduler(step):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)

    class Kept(SigLipLoss if loss == "siglip" else ClipLoss):
        def forward(self, *args, **kwargs):
            losses = super().forward(*args, **kwargs)
            seen.append(float(sum(losses.values()).detach()))
            return losses

    args = SimpleNamespace(
        device="cpu", precision="fp32", distill=False, accum_freq=1, skip_scheduler=False,
        horovod=False, grad_clip_norm=None, log_every_n_steps=1, rank=0, local_rank=0,
        batch_size=8, world_size=1, wandb=False, save_logs=False, log_local=False,
    )  # fmt: skip
    data = {"train": Batches(batches)}
    train_one_epoch(theirs, data, Kept(), 0, optimizer, None, scheduler, None, args)
    differences = [abs(a - b) for a, b in zip(losses(tmp_path / "run"), seen, strict=True)]
    state, trained = theirs.state_dict(), weights(tmp_path / "run")
    square = sum(
        float((state[key].double() - x.double()).square().sum()) for key, x in trained.items()
    )
    norm = sum(float(x.double().square().sum()) for x in trained.values())
    print(f"{name}: loss {max(differences):.2g}, weights {(square / norm) ** 0.5:.2g}")
    assert max(differences) < 2e-5
    assert (square / norm) ** 0.5 < 1e-4


# --- what is refused, and the commands around a run -----------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "RN5O"}, "there is no model 'RN5O'; did you mean 'RN50'?"),
        ({"model": "coca_ViT-B-32"}, "a CoCa learns its decoder from a captioning loss"),
        ({"model": "none.json"}, "model is none.json, and there is no such file"),
        ({"tp": "2"}, "tp is 2, which is for the ViTs of this trainer"),
        ({"captions": "packed"}, "captions is packed, which is for the ViTs of this trainer"),
        ({"attention": "varlen"}, "attention is varlen, which is for the ViTs of this trainer"),
        ({"micro_batch": "2"}, "BatchNorm, whose mean and variance are those of all samples"),
        ({"model.image_size": "48"}, "image_size 48 is not a multiple of 32"),
        ({"model.vision_width": "64"}, "model.vision_width changes a ViT of this trainer"),
        ({"model.drop_patch_rate": "0.5"}, "a ResNet has no patches to drop"),
        ({"lock_image": "true"}, "set init, or leave lock_image out"),
    ],
)
def test_what_a_model_makes_impossible_is_refused_with_the_reason(
    settings, message, tiny_pool, tmp_path, capsys
):
    settings = {"model": open_clip_configs.resnet(tmp_path), **settings}
    assert train(tiny_pool, tmp_path / "run", **settings) == 2
    error = capsys.readouterr().err
    assert message in error
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_size_advises_no_micro_batches_of_a_model_with_batch_norm(tmp_path, capsys):
    """Training refuses them; a model without such norms has them."""
    words = ["--device", "cpu", "--batch", "64"]
    model = open_clip_configs.resnet(tmp_path)
    assert commands.size(["--model", model, *words, "--set", "micro_batch=2"]) == 2
    assert "BatchNorm, whose mean and variance" in capsys.readouterr().err
    for name, micro_batch in ((model, None), (open_clip_configs.convnext(tmp_path), 32)):
        config = configure(
            {**SETTINGS, "model": name, "batch_size": 64, "samples_seen": 64, "warmup": 0}
        )
        device = Device(name="host", kind="cpu", memory=1, utilisation=1.0)
        needed = fit(config, 1, device).needed
        config = dataclasses.replace(config, micro_batch="auto")
        small = dataclasses.replace(device, memory=needed)  # less a margin
        advice = advise(config, 1, small, ["precision", "recompute"])
        assert advice.fit.fits == (micro_batch is not None)
        assert advice.config.micro_batch == micro_batch
        assert not any("micro_batch" in way for way in remedies(config, 1, small)) or micro_batch
        assert largest_micro_batch(config, 1, small) == (63 if micro_batch else 0)


def test_a_naflex_model_and_a_missing_tokenizer_are_refused(tiny_pool, tmp_path, capsys):
    text = {**open_clip_configs.TEXT, "hf_tokenizer_name": str(tmp_path / "nowhere")}
    naflex = {"image_size": 32, "timm_model_name": "naflexvit_base_patch16_gap"}
    for changes, message in (
        ({"vision_cfg": naflex}, "a NaFlex ViT reads images of many sizes"),
        ({"text_cfg": text}, "which cannot be loaded: "),
    ):
        model = open_clip_configs.resnet(tmp_path, **changes)
        assert train(tiny_pool, tmp_path / "run", model=model) == 2
        assert message in capsys.readouterr().err


def test_a_run_goes_on_to_evaluation_size_and_other_runs(tiny_pool, tmp_path, capsys):
    """Also in bf16, with images of another size, from its weights, with a tower locked; a
    configuration that changes in place is another run."""
    model, out = open_clip_configs.resnet(tmp_path), tmp_path / "run"
    task = tmp_path / "colours.yaml"
    class_folders(tmp_path / "colours")
    task.write_text(f"name: colours\nkind: classification\ndata: {tmp_path}/colours\n")
    larger = {"model": model, "model.image_size": "64", "precision": "bf16"}
    assert train(tiny_pool, out, **larger) == 0
    assert commands.size(["--model", model, "--device", "cpu", "--batch", "8"]) == 0
    assert "parameters" in capsys.readouterr().out
    locked = {**larger, "init": str(out), "lock_image": "true", "micro_batch": "4"}
    assert train(tiny_pool, tmp_path / "locked", **locked) == 0
    cut_back(tmp_path / "locked", 2)
    assert train(tiny_pool, tmp_path / "locked", **locked) == 0
    words = [str(tmp_path / "locked"), "--task", str(task)]
    assert commands.evaluate([*words, "--device", "cpu"]) == 0
    before, after = weights(out), weights(tmp_path / "locked")
    towers = [key for key in after if key.startswith("visual.")]
    assert all(torch.equal(before[key], after[key]) for key in towers)
    assert not torch.equal(before["text_projection"], after["text_projection"])
    assert commands.evaluate([str(out), "--task", str(task), "--average-last", "2"]) == 2
    assert "averaged weights have the running statistics" in capsys.readouterr().err
    words = [str(out), "--to", str(tmp_path / "hf"), "--format", "huggingface"]
    assert commands.weights(words) == 2
    assert "CLIPModel has other towers" in capsys.readouterr().err
    open_clip_configs.resnet(tmp_path, embed_dim=35)
    disk.remove(out / "run.json")
    assert train(tiny_pool, out, **larger) == 2
    assert "model.settings.embed_dim: 33 -> 35" in capsys.readouterr().err
