"""clipmill evaluate. The evaluation itself is in tests/train/evaluation/."""

import json

import pyarrow as pa
import pytest
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.schema import Blend
from clipmill.train.config import configure
from clipmill.train.formats import open_clip_files
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from clipmill.train.trainer import loop
from tests.support import commands


@pytest.fixture
def task(tmp_path):
    for label, colour in (("dark", (0, 0, 9)), ("light", (250, 250, 240))):
        (tmp_path / "data" / label).mkdir(parents=True)
        Image.new("RGB", (32, 32), colour).save(tmp_path / "data" / label / "0.png")
    path = tmp_path / "task.yaml"
    path.write_text(f"{{name: shades, kind: classification, data: {tmp_path / 'data'}}}")
    return path


def test_predictions_lie_beside_the_model_or_where_out_says(task, tmp_path):
    model = tmp_path / "model"
    open_clip_files.save_export(CLIP(MODELS["test"], seed=0), str(model))
    assert commands.evaluate([str(model), "--task", str(task), "--device", "cpu"]) == 0
    assert len(disk.read_parquet(model / "eval" / "shades.parquet")) == 2
    command = [str(model), "--task", str(task), "--device", "cpu", "--out", str(tmp_path / "x")]
    assert commands.evaluate(command) == 0
    first, second = model / "eval" / "shades.parquet", tmp_path / "x" / "shades.parquet"
    assert disk.read_parquet(first).equals(disk.read_parquet(second))
    data = tmp_path / "data/shades.parquet"
    disk.write_parquet(data, pa.table({"url": ["mine"]}))
    assert commands.evaluate([*command[:-1], str(tmp_path / "data")]) == 2
    assert disk.read_parquet(data)["url"].to_pylist() == ["mine"]


def test_a_model_of_a_list_needs_a_folder_for_the_predictions(task, capsys):
    assert commands.evaluate(["open_clip:ViT-B-32/openai", "--task", str(task)]) == 2
    assert "--out" in capsys.readouterr().err


@pytest.fixture
def trained(tiny_pool, tmp_path):
    """A run that keeps its last three checkpoints."""
    settings = {
        "model": "test", "samples_seen": 32, "batch_size": 8, "lanes": 4, "warmup": 1,
        "precision": "fp32", "threads": 0, "device": "cpu",
        "checkpoint_every": 1, "keep_checkpoints": 3,
    }  # fmt: skip
    blend = Blend(name="tiny", pools={"p": tiny_pool}, views={"p/all": 1.0})
    loop.train(blend, configure(settings), str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_averaged_weights_are_evaluated_under_a_name_of_their_own(task, trained, capsys):
    command = [str(trained), "--task", str(task), "--device", "cpu"]
    for options in ([], ["--average-last", "3"], ["--average-last", "1"]):
        assert commands.evaluate([*command, *options]) == 0
    table = {}
    for name in ("eval", "eval-average-3", "eval-average-1"):
        table[name] = disk.read_parquet(trained / name / "shades.parquet")
    assert table["eval"].equals(table["eval-average-1"])  # the last checkpoint is exported
    assert not table["eval-average-3"].equals(table["eval-average-1"])
    capsys.readouterr()
    assert commands.evaluate([*command, "--average-last", "4"]) == 2
    assert "has 3 checkpoints, not 4" in capsys.readouterr().err


def test_a_suite_says_what_is_missing_and_from_how_many_it_averages(task, tmp_path, capsys):
    open_clip_files.save_export(CLIP(MODELS["test"], seed=0), str(tmp_path / "model"))
    gone = "{name: gone, kind: classification, data: nowhere}"
    bad = f"{{name: bad, kind: classification, data: {tmp_path / 'data'}, templates: [x]}}"
    path = tmp_path / "suite.yaml"
    for tasks, status in ((f"[{task}, {gone}]", 0), (f"[{task}, {bad}]", 3)):
        path.write_text(f"name: s\ntasks: {tasks}\ngroups: {{one: [shades]}}\n")
        command = [str(tmp_path / "model"), "--suite", str(path), "--device", "cpu", "--json"]
        assert commands.evaluate(command) == status
    printed = capsys.readouterr().out
    assert f"gone: missing, there is no {tmp_path}/nowhere" in printed
    assert "bad: failed, task 'bad': template 'x' must contain {} once" in printed
    assert "the mean of 1 tasks" in printed
    assert json.loads(printed.splitlines()[-1])["averages"][0]["group"] == "one"


def test_tasks_are_written_in_the_layout_of_clip_benchmark(task, tmp_path):
    assert commands.evaluate(["benchmark", str(task), "--to", str(tmp_path / "b")]) == 0
    assert (tmp_path / "b" / "shades" / "classnames.txt").read_text() == "dark\nlight\n"
    model = tmp_path / "model"
    open_clip_files.save_export(CLIP(MODELS["test"], seed=0), str(model))
    text = f"{{name: again, kind: classification, data: {tmp_path / 'b' / 'shades'}}}"
    (tmp_path / "again.yaml").write_text(text)
    command = [str(model), "--task", str(task), str(tmp_path / "again.yaml"), "--device", "cpu"]
    assert commands.evaluate(command) == 0
    tables = [disk.read_parquet(model / "eval" / f"{n}.parquet") for n in ("shades", "again")]
    assert tables[0].drop(["sample"]).equals(tables[1].drop(["sample"]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["m", "--task", "t.yaml", "--suite", "s.yaml"], "{--task, --suite}"),
        (["m", "--task", "t.yaml", "--average-last", "0"], "--average-last is 0"),
        (["benchmark", "t.yaml", "--to", "d", "--suite", "s.yaml"], "--suite"),
        (["benchmark", "--to", "d"], "TASKS is missing"),
        (["--task", "t.yaml"], "MODEL is missing"),
        (["m"], "Exactly 1 of {--task, --suite} must be specified"),
    ],
)
def test_options_that_contradict_each_other_are_refused(words, message, capsys):
    assert commands.evaluate(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
