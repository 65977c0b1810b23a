"""Whether a run in a folder is still the one that is wanted: all commands agree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from clipmill.manifests import disk
from clipmill.manifests.layout import RunLayout
from clipmill.study import runner
from clipmill.study.runner import Outcome, request_of, train_and_evaluate
from clipmill.train.eval_data.samples import write_benchmark
from clipmill.train.evaluation.tasks import read_samples
from clipmill.verdict.measurements import Measurements
from tests.support import commands
from tests.support.ablations import TRAIN, changed
from tests.train.conftest import build_pool, write_tokens, write_view

WEIGHTS = "export/open_clip_model.safetensors"


def in_process(to_do, tasks, jobs, out, report):
    """Instead of `run_in_children`: the same requests, in this process."""
    for each in to_do:
        answer = train_and_evaluate(request_of(each, tasks, 1))
        report(Outcome(run=each, metrics=answer.get("metrics"), error=answer.get("error", "")))


@pytest.fixture
def asked(monkeypatch, caplog):
    """The runs that are not reused, as ARM-SEED; they are done in this process."""
    caplog.set_level("INFO")
    names: list[str] = []

    def note(to_do, *rest):
        names.extend(f"{each.arm}-{each.seed}" for each in to_do)
        in_process(to_do, *rest)

    monkeypatch.setattr(runner, "run_in_children", note)
    return names


def command(ablation, out, *words):
    """The exit status of clipmill ablate; `words` stand before the manifest."""
    path = f"{out}.asked.json"
    disk.write_json(path, ablation)
    return commands.ablate([*words, path, "--out", str(out)])


def edited(path, edit):
    """A JSON file, changed in place."""
    value = disk.read_json(path)
    edit(value)
    disk.write_json(path, value)


def other_weights(run_folder):
    """Other weights of the same shapes, at the same path."""
    path = Path(run_folder) / WEIGHTS
    save_file({name: 2 * value for name, value in load_file(path).items()}, path)


@pytest.fixture
def tiny(ran):
    return changed(ran[0], controls={})


@pytest.fixture
def out(ran, tmp_path):
    """The folder of finished runs of raw and half, seeds 0 and 1, to be changed."""
    shutil.copytree(ran[1], tmp_path / "out")
    return str(tmp_path / "out")


@pytest.mark.slow
def test_initial_weights_that_change_in_place(ran, tiny, tmp_path, asked, capsys, caplog):
    base, out = tmp_path / "base", str(tmp_path / "out")
    shutil.copytree(f"{ran[1]}/runs/raw/seed-0", base)
    train = {**TRAIN, "init": f"{base}/export"}
    tuned = changed(tiny, train=train, arms={"raw": "web/all"})
    assert command(tuned, out) == 0
    before = Measurements.read(f"{out}/measurements.parquet").values("colours", "logprob")["raw"]

    other_weights(base)
    one = RunLayout(f"{out}/runs/raw/seed-0")
    words = [f"{out}/blends/raw.json", "--out", one.root, "--set"]
    words += [f"{key}={value}" for key, value in {**train, "seed": 0}.items()]
    capsys.readouterr()
    assert commands.train(words) == 2
    assert "holds another run (initial_files.open_clip_model.safetensors: " in (
        capsys.readouterr().err
    )
    # The remedy that the message names also removes what was predicted from the old weights.
    assert disk.exists(one.task_predictions("colours"))
    assert commands.train([*words, "--restart"]) == 0
    assert not disk.exists(one.task_predictions("colours"))

    asked.clear()
    assert command(tuned, out) == 0
    assert asked == ["raw-0", "raw-1"]  # evaluated anew; trained anew
    assert "raw seed 1 is trained anew (initial_files." in caplog.text
    after = Measurements.read(f"{out}/measurements.parquet").values("colours", "logprob")["raw"]
    for seed in (0, 1):
        assert after[seed] != before[seed]

    # A base model that is gone is not compared: the runs stay those of the model that was there.
    asked.clear()
    shutil.rmtree(base)
    assert command(tuned, out) == 0
    assert asked == []


def test_a_run_that_removes_its_own_initial_weights_is_refused(out, capsys):
    one = f"{out}/runs/raw/seed-0"
    words = [f"{out}/blends/raw.json", "--out", one, "--restart", "--set", f"init={one}/export"]
    assert commands.train([*words, *(f"{key}={value}" for key, value in TRAIN.items())]) == 2
    assert "the run itself, which --restart removes" in capsys.readouterr().err
    assert disk.exists(f"{one}/run.json")


def words_of(out, blend):
    """The words of clipmill train that resume the run of raw, seed 0."""
    settings = [f"{key}={value}" for key, value in {**TRAIN, "seed": 0}.items()]
    return [blend, "--out", f"{out}/runs/raw/seed-0", "--set", *settings]


def test_weights_that_are_gone_are_written_again_from_the_checkpoint(out, capsys, caplog):
    one, words = RunLayout(f"{out}/runs/raw/seed-0"), words_of(out, f"{out}/blends/raw.json")
    before = Path(one.root, WEIGHTS).read_bytes()
    shutil.rmtree(one.export)
    assert commands.train(words) == 0
    assert Path(one.root, WEIGHTS).read_bytes() == before
    assert "was finished before" not in caplog.text

    shutil.rmtree(one.export)
    shutil.rmtree(one.checkpoints)
    log = Path(one.log).read_bytes()
    assert commands.train(words) == 2
    assert "its checkpoints are gone: copy one of them back" in capsys.readouterr().err
    assert Path(one.log).read_bytes() == log


def test_a_pool_under_another_name_is_told_how_to_go_on(out, tmp_path, capsys):
    blend = disk.read_json(f"{out}/blends/raw.json")
    ((name, folder),) = blend["pools"].items()
    renamed = {"pools": {"moved": folder}, "views": {"moved/all": 1}}
    disk.write_json(f"{tmp_path}/renamed.json", blend | renamed)
    assert commands.train(words_of(out, f"{tmp_path}/renamed.json")) == 2
    assert f"give a blend with pools: {{{name}: moved}}" in capsys.readouterr().err


@pytest.mark.slow
def test_prompts_that_change(tiny, out, asked, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a photo of something {}\n")
    task = {**disk.to_plain(tiny.evaluate[0]), "templates": None, "templates_from": str(prompts)}
    prompted = changed(tiny, evaluate=[task])
    assert command(prompted, out) == 0
    assert len(asked) == 4
    asked.clear()
    assert command(prompted, out) == 0
    assert asked == []
    prompts.write_text("{} blue red indeed\n")
    assert command(prompted, out) == 0
    assert len(asked) == 4, "none keeps the scores of the old prompts"


@pytest.mark.slow
def test_prompts_of_the_data_that_change(tiny, out, asked, tmp_path):
    data = str(tmp_path / "data")
    write_benchmark(read_samples(tiny.evaluate[0]), data, "test")
    other = changed(tiny, evaluate=[disk.to_plain(tiny.evaluate[0]) | {"data": data}])
    assert command(other, out) == 0
    asked.clear()
    Path(data, "zeroshot_classification_templates.txt").write_text("{c} indeed\n")
    assert command(other, out) == 0
    assert len(asked) == 4


def with_identity(edit):
    """A run's record whose identity is edited."""
    return lambda runs: edited(
        f"{runs}/raw/seed-1/run.json", lambda record: edit(record["identity"])
    )


def other_predictions(runs):
    file = "eval/colours.parquet"
    shutil.copy(f"{runs}/raw/seed-0/{file}", f"{runs}/half/seed-1/{file}")


ANEW = "raw seed 1 is trained anew ({}); the old run is kept in"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "again", "reason"),
    [
        (
            with_identity(lambda identity: identity["order"].update(version=1)),
            "raw-1",
            ANEW.format("order.version: 1 -> 2"),
        ),
        (
            with_identity(lambda identity: identity["tokens"].update({"web/all": "tokens@old"})),
            "raw-1",
            ANEW.format("tokens.web/all: tokens@old -> tokens@0123456789ab"),
        ),
        (
            lambda runs: other_weights(f"{runs}/half/seed-0"),
            "half-0",
            "half seed 0 is trained anew (export.open_clip_model.safetensors: ",
        ),
        (
            other_predictions,
            "half-1",
            "seed-1/eval/colours.parquet is of other weights: it is made anew",
        ),
    ],
)
def test_runs_that_are_not_what_they_were_are_made_anew(
    change, again, reason, tiny, out, asked, caplog
):
    change(f"{out}/runs")
    assert command(tiny, out) == 0
    assert asked == [again]
    assert reason in caplog.text


@pytest.mark.slow
def test_an_interrupted_run_of_another_blend_is_moved_aside(tiny, out, tmp_path, asked):
    """Its checkpoint alone says what it was; the trainer would refuse it at every attempt."""
    mixed = {"views": {"web/all": 0.5, "web/half": 0.5}}
    arms = {"raw": "web/all", "mixed": mixed}
    identity = disk.read_json(f"{out}/runs/raw/seed-0/run.json")["identity"]
    blend = {**identity["blend"], "views": {"web/all": 0.25, "web/half": 0.75}}
    state = {"identity": {**identity, "blend": blend}}
    disk.write_json(f"{out}/runs/mixed/seed-0/checkpoints/step-2/state.json", state)
    command(changed(tiny, arms=arms), out)
    assert asked == ["mixed-0", "mixed-1"]
    assert disk.list_names(f"{out}/runs/.replaced/mixed")


def test_a_plan_takes_no_spread_from_runs_of_other_settings(tiny, out, capsys):
    assert command(tiny, out, "plan", "--json") == 0
    plan = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert plan["run_sd_source"].startswith("of 4 finished runs")
    longer = changed(tiny, train={**TRAIN, "samples_seen": 6400})
    assert command(longer, out, "plan", "--json") == 0
    plan = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert plan["run_sd_source"].startswith("an assumption of 1 point a run")


# --- arms differ in data alone --------------------------------------------------------------------


@pytest.mark.parametrize("words", [["check"], ["plan"], []])
def test_arms_that_differ_in_a_setting_are_refused_by_every_command(words, tiny, tmp_path, capsys):
    arms = {"raw": "web/all", "half": {"view": "web/half", "train": {"lr": 0.01}}}
    assert command(changed(tiny, arms=arms), tmp_path / "out", *words) == 2
    assert "arm 'half' sets lr, which is not the factor that the ablation declares (data)" in (
        capsys.readouterr().err
    )
    both = changed(tiny, arms=arms, vary={"lr": [0.01]})
    assert command(both, tmp_path / "out", *words) == 2
    assert "the arms differ in data and in lr" in capsys.readouterr().err


@pytest.mark.slow
def test_arms_whose_pools_have_tokens_of_other_versions_are_refused(tiny, tmp_path, capsys):
    """Otherwise the arms would differ in how captions are tokenized, beside their data."""
    pools = {}
    for version in (1, 2):
        pool = build_pool(tmp_path / f"pool{version}")
        write_view(pool, "half", 0.5)
        write_tokens(pool, name=f"tokens@{version:012}", version=version)
        pools[f"p{version}"] = {"out": pool}
    arms = {"raw": "p1/all", "half": "p2/half"}
    two = changed(tiny, pools=pools, arms=arms)
    assert command(two, tmp_path / "out") == 2
    assert (
        "the captions of arm 'raw' have tokens of version 1, those of arm 'half' of version 2; "
        f"run clipmill score {tmp_path}/pool1 --filters tokens"
    ) in capsys.readouterr().err
