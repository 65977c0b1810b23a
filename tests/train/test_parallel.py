from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from train import parallel
from train.loss import Shards
from train.parallel import Ranks


def test_alone_there_is_nothing_to_average():
    ranks = parallel.set_up("cpu")
    assert (ranks.rank, ranks.world, ranks.device.type) == (0, 1, "cpu")
    assert ranks.shards == Shards()
    model = nn.Linear(2, 2)
    assert parallel.wrap(model, ranks) is model
    assert parallel.mean(torch.tensor([1.5, -2.0]), ranks) == [1.5, -2.0]
    parallel.barrier(ranks)
    parallel.close(ranks)
    assert not torch.distributed.is_initialized()


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert parallel.set_up("auto").device.type == "cpu"
    with pytest.raises(ValueError, match="finds no GPU here; set device to cpu or auto"):
        parallel.set_up("cuda")


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match="rank 1 has no GPU: there are 1"):
        parallel.set_up("auto")


def test_a_group_begins_and_ends(monkeypatch, tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 2)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda kind, **_: store.set("kind", kind))
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: store.set("ended", "yes"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    ranks = parallel.set_up("cpu")
    assert (ranks, store.get("kind")) == (Ranks(rank=1, world=2, device=torch.device("cpu"), began=True), b"gloo")
    parallel.close(ranks)
    assert store.get("ended") == b"yes"


def test_ranks_are_started_with_what_they_need_to_find_each_other(tmp_path):
    code = (
        "import os, sys\n"
        "names = ['RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'GLOO_SOCKET_IFNAME']\n"
        "assert os.path.isdir(os.path.dirname(os.environ['CLIPMILL_STORE']))\n"
        f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').write(' '.join(os.environ[n] for n in names))\n"
    )
    assert parallel.start([sys.executable, "-c", code], 3) == 0
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["0 0 3 lo", "1 1 3 lo", "2 2 3 lo"]


def test_a_rank_that_fails_ends_the_others(monkeypatch):
    monkeypatch.setattr(parallel, "GRACE_S", 0.2)
    code = "import os, sys, time\nsys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)"
    assert parallel.start([sys.executable, "-c", code], 2) == 7


def test_sigterm_reaches_every_rank():
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        "if os.environ['RANK'] == '0':\n"
        "    time.sleep(1); os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(60)"
    )
    assert parallel.start([sys.executable, "-c", code], 2) == 75
