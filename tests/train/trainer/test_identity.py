from __future__ import annotations

import dataclasses

import pytest

from manifests import disk
from manifests.schema import Blend
from train.config import TrainConfig
from train.identity import (
    INCIDENTAL,
    check_same_run,
    deciding_settings,
    differences,
    view_hashes,
)


def test_differences_are_named_by_their_path():
    saved = {"config": {"lr": 1.0, "seed": 0}, "views": {"a": "x"}}
    now = {"config": {"lr": 2.0, "seed": 0}, "views": {"a": "x", "b": "y"}, "order": 1}
    assert differences(saved, now) == [
        "config.lr: 1.0 -> 2.0",
        "order: None -> 1",
        "views.b: None -> y",
    ]
    assert differences(saved, saved) == []


def test_settings_of_memory_and_speed_do_not_decide():
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    assert set(INCIDENTAL) <= names
    deciding = deciding_settings(TrainConfig())
    assert set(deciding) == names - set(INCIDENTAL)
    assert {"lr", "seed", "init", "precision", "lanes"} <= set(deciding)
    other = TrainConfig(micro_batch=8, loss_tile=64, dp_shard=2, threads=9)
    assert deciding_settings(other) == deciding


def test_the_hash_of_initial_weights_comes_from_the_saved_run():
    config = deciding_settings(TrainConfig(init="somewhere"))
    saved = {"config": config, "initial_weights": "abc"}
    assert check_same_run(saved, {"config": config}, "out") == saved
    scratch = {"config": deciding_settings(TrainConfig())}
    with pytest.raises(ValueError, match=r"config.init: somewhere -> None"):
        check_same_run(saved, scratch, "out")


def test_a_view_that_changes_has_another_hash(make_pool, tmp_path, add_view):
    pool = make_pool(tmp_path / "pool")
    blend = Blend(name="b", pools={"p": pool}, views={"p/all": 1.0})
    before = view_hashes(blend)
    assert view_hashes(blend) == before
    add_view(pool, "all", 0.5)
    assert view_hashes(blend) != before
    disk.remove(f"{pool}/views/all.json")
    with pytest.raises(FileNotFoundError):
        view_hashes(blend)
