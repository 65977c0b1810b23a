"""Ranks: how they are started, find each other and end; workers of Ray Train."""

import os
import pickle
import signal
import sys
from pathlib import Path

import pytest
import torch

from clipmill.manifests import disk
from clipmill.manifests.folder_lock import locked_folder
from clipmill.manifests.layout import RunLayout
from clipmill.train.config import configure
from clipmill.train.parallel import process_group, ray_train
from clipmill.train.parallel.process_group import Ranks
from tests.support.s3_server import s3_server, s3_variables


def test_the_mesh_says_who_sees_which_samples_and_who_averages():
    def ranks(**layout):
        return Ranks(rank=5, world=8, device=torch.device("cpu"), owns_group=False, **layout)

    for layout, found in (
        ({}, (8, 8, 5, False)),
        ({"tp": 2}, (4, 4, 2, True)),  # DDP cannot: FSDP2 over one rank at a time
        ({"tp": 8}, (1, 1, 0, False)),
        ({"dp_shard": 2, "tp": 2}, (4, 2, 2, True)),
        ({"dp_shard": 8}, (8, 1, 5, True)),
    ):
        here = ranks(**layout)
        assert (here.dp, here.dp_replicate, here.data_parallel.rank, here.fsdp) == found
    assert process_group.build_mesh(ranks(), configure({})) == ranks()
    assert process_group.all_gather_int(
        7, Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)
    ) == [7]


@pytest.mark.parametrize(
    ("device", "gpu"), [("cuda:1", 1), ("cuda", 0), ("auto", 0), ("cuda:2", None)]
)
def test_a_process_alone_computes_on_its_own_gpu_and_makes_it_the_current_one(
    monkeypatch, device, gpu
):
    current = [0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda target: current.append(target.index))
    if gpu is None:
        with pytest.raises(ValueError, match=r"'cuda:2', but torch sees 2 GPUs here, from cuda:0"):
            process_group.init_distributed(device)
        return
    assert process_group.init_distributed(device).device == torch.device("cuda", gpu)
    assert current[1:] == [gpu]


def test_a_group_begins_and_ends(monkeypatch):
    calls = []
    distributed = torch.distributed
    monkeypatch.setattr(
        distributed, "init_process_group", lambda kind, **options: calls.append((kind, options))
    )
    monkeypatch.setattr(
        distributed, "new_group", lambda **options: calls.append(("new", options)) or "group"
    )
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: calls.append(("ended", {})))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", lambda target: calls.append(("gpu", target)))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "5")
    ranks = process_group.init_distributed("cpu")
    assert ranks == Ranks(
        rank=1, world=2, device=torch.device("cpu"), owns_group=True, host_group="group"
    )
    process_group.close(ranks)
    (kind, options), (new, of_host), (ended, _) = calls
    assert (kind, new, ended) == ("gloo", "new", "ended")
    assert options["device_id"] is None
    assert of_host["backend"] == "gloo"
    assert of_host["timeout"] > options["timeout"]
    calls.clear()
    assert process_group.init_distributed("auto").device == torch.device("cuda", 5)
    assert calls[0] == ("gpu", torch.device("cuda", 5))
    assert calls[1][1]["device_id"] == torch.device("cuda", 5)  # not rank 1


@pytest.mark.slow
def test_ranks_wait_longer_for_files_of_rank_0_than_inside_of_a_step(tmp_path):
    script = Path(__file__).resolve().parents[2] / "support" / "waiting_ranks.py"
    run = str(tmp_path / "run")
    with locked_folder(RunLayout(run).lock, "clipmill train"):
        assert process_group.launch_ranks([sys.executable, str(script), run], 2) == 0


# --------------------------------------------------------------------------------------------------


def test_ranks_are_started_with_what_they_need_to_find_each_other(tmp_path):
    code = (
        "import os, sys\n"
        "names = ['RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'GLOO_SOCKET_IFNAME']\n"
        "assert os.path.isdir(os.path.dirname(os.environ['CLIPMILL_STORE']))\n"
        f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').write(' '.join(os.environ[n] for "
        "n in names))\n"
    )
    assert process_group.launch_ranks([sys.executable, "-c", code], 3) == 0
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == [
        "0 0 3 lo",
        "1 1 3 lo",
        "2 2 3 lo",
    ]


def test_a_rank_that_fails_ends_the_others(monkeypatch):
    monkeypatch.setattr(process_group, "GRACE_S", 0.2)
    code = "import os, sys, time\nsys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)"
    assert process_group.launch_ranks([sys.executable, "-c", code], 2) == 7


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_signal_reaches_every_rank(number, tmp_path):
    """SIGHUP of a closed terminal comes twice, and the second kills no rank."""
    again = f"os.kill(os.getppid(), {int(number)})" if number == signal.SIGHUP else "pass"
    code = (
        "import os, signal, sys, time\n"
        f"def stop(*_): {again}; time.sleep(0.3); sys.exit(75)\n"
        f"signal.signal({int(number)}, stop)\n"
        f"ready = {str(tmp_path / 'ready')!r}\n"
        "if os.environ['RANK'] == '1':\n"
        "    open(ready, 'w')\n"
        "else:\n"
        "    while not os.path.exists(ready):\n"
        "        time.sleep(0.01)\n"
        f"    os.kill(os.getppid(), {int(number)})\n"
        "time.sleep(900)"
    )
    assert process_group.launch_ranks([sys.executable, "-c", code], 2) == 75


def test_a_launcher_under_nohup_ignores_sighup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        code = "import os, signal; os.kill(os.getppid(), signal.SIGHUP)"
        assert process_group.launch_ranks([sys.executable, "-c", code], 1) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


# --------------------------------------------------------------------------------------------------


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
