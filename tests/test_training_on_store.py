"""Blends, runs, checkpoints, evaluations and reports on an S3 server of loopback."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import pytest

from clipmill.manifests import disk
from clipmill.manifests.layout import AblationLayout, RunLayout
from clipmill.train.parallel import checkpoint
from tests.conftest import TINY, draw
from tests.support import commands
from tests.support.ablations import TRAIN, two_classes
from tests.support.s3_server import s3_server, s3_variables

pytest.importorskip("localbucket")
pytest.importorskip("s3fs")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of botocore
]
STEPS = 12
SETTINGS = [f"{key}={value}" for key, value in TRAIN.items() if key != "samples_seen"]
SETTINGS.append(f"samples_seen={STEPS * TRAIN['batch_size']}")


@dataclass(frozen=True, slots=True)
class Pools:
    """The same pool on a local disk and on the store, and a folder of evaluation images."""

    local: str
    store: str
    data: str


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    with s3_server(folder) as url, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_variables(url).items():
            patch.setenv(name, value)
        draw(folder, 48)
        (folder / "tiny.yaml").write_text(TINY)
        for pool in (str(folder / "pool"), "s3://pools/pool"):
            words = [str(folder / "tiny.yaml"), "--out", pool, "--engine", "inline"]
            assert commands.build(words) == 0
        yield Pools(str(folder / "pool"), "s3://pools/pool", two_classes(folder / "eval"))


def train_words(pool, out, *more):
    return ["--mix", f"{pool}/raw=1", "--out", out, "--set", *SETTINGS, *more]


def weights(out):
    """The hash of the exported weights."""
    path = disk.join(RunLayout(out).export, "open_clip_model.safetensors")
    return hashlib.sha256(disk.read_bytes(path)).hexdigest()


@pytest.fixture(scope="module")
def undisturbed(pools, tmp_path_factory):
    """A run of the local pool into a local folder."""
    out = str(tmp_path_factory.mktemp("run") / "run")
    assert commands.train(train_words(pools.local, out, "checkpoint_every=3")) == 0
    return out


def test_a_run_on_a_store_has_the_weights_of_a_local_one(pools, undisturbed, tmp_path):
    out = "s3://pools/runs/whole"
    assert commands.train(train_words(pools.store, out, "checkpoint_every=3")) == 0
    assert weights(out) == weights(undisturbed)
    assert checkpoint.saved_steps(out) == checkpoint.saved_steps(undisturbed)
    lines = [disk.read_bytes(RunLayout(each).log).splitlines() for each in (out, undisturbed)]
    assert [json.loads(line)["loss"] for line in lines[0]] == [
        json.loads(line)["loss"] for line in lines[1]
    ]
    task = tmp_path / "task.yaml"
    task.write_text(f"{{name: colours, kind: classification, data: {pools.data}}}")
    for each in (out, undisturbed):
        assert commands.evaluate([each, "--task", str(task)]) == 0
    predictions = [
        disk.read_bytes(disk.join(each, "eval", "colours.parquet")) for each in (out, undisturbed)
    ]
    assert predictions[0] == predictions[1]


def test_an_ablation_and_its_report_on_a_store(pools, tmp_path):
    fields = {
        "name": "tiny",
        "question": "Do longer captions help?",
        "pools": {"web": {"out": pools.store}},
        "arms": {"raw": "web/raw", "long": "web/long"},
        "baseline": "raw",
        "seeds": [0, 1],
        "train": {key: value for key, value in TRAIN.items() if key != "threads"},
        "evaluate": [{"name": "colours", "kind": "classification", "data": pools.data}],
        "primary": "colours",
    }
    manifest = tmp_path / "ablation.yaml"
    manifest.write_text(json.dumps(fields))
    out = "s3://pools/ablation"
    assert commands.ablate([str(manifest), "--out", out]) == 0
    assert commands.report([out, "--date", "2026-01-31", "--markdown"]) == 0
    layout = AblationLayout(out)
    assert disk.exists(layout.report_json)
    page = disk.read_bytes(layout.report).decode()
    assert "Do longer captions help?" in page
    assert disk.exists(layout.report_markdown)


def test_a_sharded_run_is_saved_on_the_store_and_resumed_by_one_process(pools, undisturbed):
    out = "s3://pools/runs/sharded"
    words = train_words(pools.store, out, "checkpoint_every=3")
    assert commands.train([*words, "dp_shard=2", "--ranks", "2"]) == 0
    last = RunLayout(out).checkpoint(STEPS)
    state = disk.read_json(disk.join(last, checkpoint.STATE_FILE))
    assert state["layout"]["dp_shard"] == 2
    assert sorted(state["sha256"]) == disk.list_names(last, ".safetensors")
    assert len(state["sha256"]) == 2
    disk.remove(RunLayout(out).run_json)
    disk.remove(disk.join(last, checkpoint.STATE_FILE))  # as if the last save had been killed
    assert commands.train(words) == 0
    assert disk.read_json(RunLayout(out).run_json)["resumed_at"] == STEPS - 3
    lines = [disk.read_bytes(RunLayout(each).log).splitlines() for each in (out, undisturbed)]
    losses = [[json.loads(line)["loss"] for line in of_run] for of_run in lines]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
