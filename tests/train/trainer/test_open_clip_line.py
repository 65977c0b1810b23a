"""A command line of open_clip's as a run here."""

from __future__ import annotations

import argparse
import json

import pytest

from clipmill.train.config import TrainConfig, configure
from clipmill.train.trainer.open_clip_line import DEFAULTS, KNOWN, NO_VIT, SAME, VIT, translate
from tests.support import commands
from tests.support.other_tars import pack, picture
from tests.support.steps import RUN_SETTINGS

TARS = "--train-data tars/{0..3}.tar --train-num-samples 100000"


def settings_of(line: str, *, has_data: bool = False) -> TrainConfig:
    changes = translate(line, has_data=has_data).changes
    return configure(dict(change.split("=", 1) for change in changes))


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    """open_clip's own parser, with its flags and defaults."""
    params = pytest.importorskip("open_clip_train.params")
    parsers: list[argparse.ArgumentParser] = []
    usual = argparse.ArgumentParser.parse_args

    def kept(self, *words, **more):
        parsers.append(self)
        return usual(self, *words, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", kept)
        params.parse_args([])
    return parsers[0]


def test_every_flag_of_open_clip_is_known_and_no_other(parser):
    flags = {name[2:] for name in parser._option_string_actions if name.startswith("--")}
    assert flags - {"help"} == KNOWN


def test_what_a_line_leaves_out_has_the_default_of_open_clip(parser):
    from open_clip_train.params import get_default_params

    for flag, text in DEFAULTS.items():
        if flag != "lr":
            assert text == str(parser.get_default(flag.replace("-", "_"))), flag
    for model, ours in (("ViT-B-32", VIT), ("RN50", NO_VIT)):
        values = {"lr": DEFAULTS["lr"], **ours}
        assert get_default_params(model) == {name: float(text) for name, text in values.items()}
    # A setting that a line may leave out has the default of open_clip here too, or is written down
    for flag, setting in SAME.items():
        theirs = parser.get_default(flag.replace("-", "_"))
        is_ours = theirs is not None and flag != "device" and not setting.startswith("model.")
        if flag not in DEFAULTS and is_ours:
            assert getattr(TrainConfig(), setting) == theirs, flag


def test_a_published_line_is_the_same_run():
    config = settings_of(
        "torchrun --nproc_per_node=8 -m open_clip_train.main --train-data 'tars/{00000..02175}.tar'"
        " --train-num-samples 10968539 --dataset-type webdataset --batch-size 320 \\\n"
        "--precision amp_bfloat16 --workers 4 --imagenet-val /imagenet --model=ViT-B-32"
        " --warmup 2000 --epochs 30 --lr 1e-3 --wd 0.1 --grad-checkpointing --siglip"
        " --local-loss --gather-with-grad --aug-cfg scale='(0.4, 1.0)' --report-to wandb"
    )
    steps = 30 * 4285  # 10,968,539 / 2,560, rounded up
    assert config == configure(
        {
            "model": "ViT-B-32", "batch_size": 2560, "samples_seen": steps * 2560, "warmup": 2000,
            "lr": 1e-3, "weight_decay": 0.1, "precision": "bf16", "recompute": "full",
            "loss": "siglip", "crop_min": 0.4, "log_to": "wandb", "decay_groups": "open_clip",
        }
    )  # fmt: skip


def test_accumulation_cool_down_and_weights():
    line = (
        f"{TARS} --batch-size 50 --accum-freq 4 --epochs 10 --lr-scheduler const-cooldown "
        "--epochs-cooldown 2 --lr-cooldown-end 1e-5 --model ViT-B-32 --pretrained laion2b_e16 "
        "--warmup 100 --save-frequency 3"
    )
    config = settings_of(line)
    assert (config.batch_size, config.micro_batch, config.steps) == (200, 50, 5000)
    assert (config.schedule, config.cooldown, config.cooldown_end_lr) == (
        "constant_cooldown", 1000, 1e-5,
    )  # fmt: skip
    assert (config.init, config.checkpoint_every) == ("open_clip:ViT-B-32/laion2b_e16", 1500)
    assert settings_of(f"{line} --pretrained logs/a/epoch_1.pt").init == "logs/a/epoch_1.pt"


def test_the_gpus_of_a_line_make_its_batch():
    line = "srun --nodes 2 --ntasks-per-node=4 python -u src/training/main.py " + TARS
    run = translate(line, has_data=False)
    assert (run.ranks, "batch_size=512" in run.changes) == (4, True)
    assert "start `torchrun" in " ".join(run.notes)
    own = translate(line, has_data=False, ranks=2)  # as many here, and the batch of the line
    assert (own.ranks, "batch_size=512" in own.changes) == (2, True)
    plain = translate(TARS, has_data=False, ranks=2)
    assert (plain.ranks, "batch_size=128" in plain.changes) == (2, True)


def test_the_sources_of_a_line_and_their_factors():
    line = f"{TARS} --train-data 'a/{{0..2}}.tar::b.tar' --model ViT-B-32"
    (stream,) = translate(line, has_data=False).blend.streams.values()
    assert [tar.rsplit("/", 2)[-1] for tar in stream.tars] == ["0.tar", "1.tar", "2.tar", "b.tar"]
    weighted = translate(f"{line} --train_data_upsampling_factors 2::3", has_data=False)
    assert [stream.weight for stream in weighted.blend.streams.values()] == [6, 3]
    assert translate(f"{line} --name a", has_data=True).blend is None
    assert translate(f"{line} --name a", has_data=True).out == "logs/a"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--train-dta x", "no flag --train-dta; did you mean 'train-data'"),
        ("--train-data a.tar", "no --train-num-samples"),
        ("--train-num-samples 9", "no --train-data"),
        (f"{TARS} --dataset-type csv", "build a pool of a table first"),
        (f"{TARS} --distill-model ViT-L-14", "--distill-model cannot be done here"),
        (f"{TARS} --opt lion", "AdamW"),
        (f"{TARS} --resume logs/a/epoch_1.pt", "write --pretrained logs/a/epoch_1.pt"),
        (f"{TARS} --aug-cfg color_jitter='(0.1,0.1)'", "--aug-cfg color_jitter"),
        (f"{TARS} --precision int8", "--precision is 'int8'"),
        (f"{TARS} --train-data-upsampling-factors 1::2", "1 sources"),
        (f"torchrun --nproc_per_node=gpu -m training.main {TARS}", "--nproc_per_node is 'gpu'"),
        (f"{TARS} --siglip true", "--siglip takes no value"),
        (f"{TARS} --batch-size 2.5", "--batch-size is '2.5'"),
        ("python train.py --lr 1", "'python' is no flag"),
    ],
)
def test_a_line_that_cannot_be_done_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        translate(words, has_data=False)


def test_the_command_trains_a_line_of_open_clip(one_thread, tmp_path, capsys, caplog, monkeypatch):
    samples = [(f"{row}.jpg", picture(40, 32, shade=9 * row)) for row in range(8)]
    captions = [(f"{row}.txt", b"a text") for row in range(8)]
    members = [member for pair in zip(samples, captions, strict=True) for member in pair]
    pack(tmp_path / "0.tar", members)
    monkeypatch.chdir(tmp_path)
    own = {key: value for key, value in RUN_SETTINGS.items() if key not in ("batch_size", "lanes")}
    line = "--train-data 0.tar --train-num-samples 8 --batch-size 4 --epochs 2 --warmup 1 --lr 1e-4"
    overrides = [f"{key}={value}" for key, value in own.items() if key != "samples_seen"]
    with caplog.at_level("INFO"):
        words = ["--from-open-clip", f"{line} --name run --workers 2", "--json", "--set"]
        assert commands.train([*words, *overrides]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["steps"], record["sources"]["stream"]["drawn"]) == (4, 16)
    assert (tmp_path / "logs" / "run" / "run.json").exists()
    assert "--workers: processes there" in caplog.text
    assert "batch_size=4 samples_seen=16" in caplog.text
