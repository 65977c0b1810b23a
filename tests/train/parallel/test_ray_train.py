from __future__ import annotations

import os
import pickle

import pytest

from manifests import disk
from tests.support.s3_server import s3_server, s3_variables
from train.parallel import ray_train


@pytest.mark.slow
def test_ray_train_keeps_its_state_on_a_store(monkeypatch, tmp_path):
    """pyarrow's own filesystem puts an object named as a folder, which this server refuses."""
    pytest.importorskip("localbucket")
    storage = pytest.importorskip("ray.train.v2._internal.execution.storage")
    with s3_server(tmp_path) as url:
        for name, value in s3_variables(url).items():
            monkeypatch.setenv(name, value)
        places = ray_train._storage("s3://pools/runs/a")
        places = pickle.loads(pickle.dumps(places))  # as it travels to the workers
        context = storage.StorageContext(experiment_dir_name="workers", **places)
        context._check_validation_file()
        assert disk.exists("s3://pools/runs/a/ray/workers/.validate_storage_marker")
    assert ray_train._storage(str(tmp_path)) == {"storage_path": str(tmp_path / "ray")}


def test_the_interface_of_an_address_is_found():
    assert ray_train.interface_of("127.0.0.1") == "lo"
    assert ray_train.interface_of("203.0.113.7") is None


def test_gloo_gets_the_interface_of_the_node_unless_somebody_chose_one(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    ray_train._choose_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    ray_train._choose_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


@pytest.mark.parametrize(("status", "tried"), [(2, 1), (3, 1), (75, 2), (139, 2)])
def test_a_run_that_failed_by_itself_is_not_started_again(tmp_path, status, tried):
    calls, failed = [], str(tmp_path / "ray" / "failed.json")

    def main(arguments):
        calls.append(arguments)
        return status

    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"ended with status {status}|is not started again"):
            ray_train.run_unless_failed(main, ["--out", "a"], failed)
    assert calls == [["--out", "a"]] * tried
    assert ray_train.run_unless_failed(lambda _: 0, [], str(tmp_path / "other")) is None
