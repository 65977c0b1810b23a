from __future__ import annotations

import sys

import pytest

from manifests import ray_runtime
from train.dist import ray_train


def never(_):
    raise AssertionError("no worker may start")


def test_without_a_cluster_it_says_how_to_train_here(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(ValueError, match=r"RAY_ADDRESS, and there is none; leave --ray out"):
        ray_train.start(never, [], str(tmp_path), 2)


def test_without_ray_train_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(ray_runtime, "connect", lambda **_: None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"--ray needs Ray Train.*pip install 'ray\[train\]'"):
        ray_train.start(never, [], str(tmp_path), 2)
