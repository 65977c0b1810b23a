"""What is refused before a run begins or ends it: one line, status 2, nothing is left behind."""

import pytest
import yaml

from clipmill.library import ablations, training
from clipmill.manifests import disk
from clipmill.train.formats import model_files
from clipmill.train.parallel import checkpoint
from clipmill.train.trainer import loop
from tests.support import commands
from tests.support.ablations import TRAIN

SETTINGS = ["--set", *(f"{key}={value}" for key, value in TRAIN.items())]


def error_of(capsys):
    """The only line on stderr."""
    error = str(capsys.readouterr().err)
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("ranks", ["1", "2"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "mikro"], "there is no preset 'mikro'; did you mean 'micro'? (of micro, "),
        (["--set", "warmup=200"], "warmup 200, but the run has 4 steps"),
        (["--set", "batch_size=64"], "fewer rows than a batch"),
        (["--set", "init=nowhere"], "init: nowhere does not exist"),
        (["--set", "lanes=5"], "lanes"),
    ],
)
def test_a_refused_run_leaves_nothing(tiny_pool, tmp_path, capsys, arguments, message, ranks):
    out = tmp_path / "out" / "run"
    given = ["--mix", f"{tiny_pool}/all=1", "--out", str(out), "--ranks", ranks]
    assert commands.train([*given, *SETTINGS, *arguments]) == 2
    assert message in error_of(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_restart_costs_nothing(tiny_pool, tmp_path, capsys):
    out = tmp_path / "run"
    command = ["--mix", f"{tiny_pool}/all=1", "--out", str(out), *SETTINGS]
    assert commands.train(command) == 0
    files = [path for path in out.rglob("*") if path.is_file() and path.name != ".lock"]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert out / "blend.json" in before
    capsys.readouterr()
    assert commands.train([*command, "init=nowhere", "--restart"]) == 2
    other = [*command[:1], f"{tiny_pool}/half=1", *command[2:]]
    assert commands.train(other) == 2
    assert "holds another run" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    tiny_pool, tmp_path, capsys, monkeypatch
):
    def no_work(*_, **__):
        raise AssertionError("the folder was checked too late")

    monkeypatch.setattr(loop, "train", no_work)
    monkeypatch.setattr(training, "count_rows", no_work)
    monkeypatch.setattr(checkpoint, "load_weights", no_work)
    monkeypatch.setattr(model_files, "load_model", no_work)
    monkeypatch.setattr(ablations, "check_ablation", no_work)
    task = tmp_path / "task.yaml"
    task.write_text(f"name: colours\nkind: classification\ndata: {tmp_path}\n")
    given = {
        "--out": [
            (commands.train, ["--mix", f"{tiny_pool}/all=1", "--out", "/proc/nope", *SETTINGS]),
            (commands.evaluate, ["run", "--task", str(task), "--out", "/proc/nope"]),
            (commands.ablate, ["missing.yaml", "--out", "/proc/nope"]),
        ],
        "--to": [
            (commands.weights, ["run", "--to", "/proc/nope"]),
            (commands.weights, ["onnx", "run", "--to", "/proc/nope"]),
        ],
    }
    for option, calls in given.items():
        for command, arguments in calls:
            assert command(arguments) == 2
            expected = f"{option} is '/proc/nope', but nothing can be written to /proc ("
            assert expected in error_of(capsys)


def test_a_recipe_or_an_ablation_is_not_a_blend(tmp_path, capsys):
    recipe = {"name": "r", "source": {"kind": "wat", "paths": ["x"]}, "views": {"raw": []}}
    ablation = {"name": "a", "pools": {"web": {"recipe": "r.yaml"}}, "arms": {"raw": "web/raw"}}
    for value, what in ((recipe, "a recipe; build its pool with"), (ablation, "an ablation; run")):
        for path in (tmp_path / "m.yaml", tmp_path / "m.json"):
            if path.suffix == ".json":
                disk.write_json(path, value)
            else:
                path.write_text(yaml.safe_dump(value))
            assert commands.train([str(path), "--out", str(tmp_path / "run"), *SETTINGS]) == 2
            assert f"{path} is {what}" in error_of(capsys)
    assert not (tmp_path / "run").exists()


# --------------------------------------------------------------------------------------------------


DAMAGED_SETTINGS = [
    "model=test",
    "samples_seen=240",
    "batch_size=8",
    "lanes=4",
    "warmup=2",
    "precision=fp32",
    "threads=1",
    "device=cpu",
]
LIMIT = "samples cannot be used, more than 1 in 1,000; the last is key 00002"


def damaged_pool(make_pool, folder):
    """A pool of 48 rows; the images of 6 of them are overwritten."""
    pool = str(make_pool(folder / "pool"))
    sidecar = disk.read_parquet(f"{pool}/shards/00002.parquet")
    with open(f"{pool}/shards/00002.tar", "r+b") as tar:
        for row in range(6):
            tar.seek(sidecar["image_offset"][row].as_py())
            tar.write(b"no image")
    return pool


@pytest.mark.slow
def test_a_run_stops_at_the_same_sample_for_any_number_of_ranks(make_pool, tmp_path, capfd):
    pool = damaged_pool(make_pool, tmp_path)
    errors = []
    for ranks in ("1", "2", "4"):
        out = str(tmp_path / ranks)
        arguments = ["--mix", f"{pool}/all=1", "--out", out, "--set", *DAMAGED_SETTINGS]
        assert commands.train([*arguments, "--ranks", ranks]) == 2
        lines = capfd.readouterr().err.splitlines()
        errors.append({line for line in lines if line.startswith("error: ")})
    assert len(errors[0]) == 1
    assert LIMIT in next(iter(errors[0]))
    assert errors[1] == errors[2] == errors[0]


def test_samples_before_a_resume_count(make_pool, tmp_path, capfd):
    pool = damaged_pool(make_pool, tmp_path)
    out = tmp_path / "run"
    settings = ["--set", *DAMAGED_SETTINGS, "checkpoint_every=1"]
    arguments = ["--mix", f"{pool}/all=1", "--out", str(out), *settings]
    assert commands.train(arguments) == 2
    error = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error")]
    saved = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert saved
    assert commands.train(arguments) == 2  # it resumes after the last checkpoint
    again = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error")]
    assert again == error
