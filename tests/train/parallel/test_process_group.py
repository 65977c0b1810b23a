from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from manifests.folder_lock import locked_folder
from manifests.layout import RunLayout
from train.config import configure
from train.parallel import process_group
from train.parallel.process_group import Ranks
from train.step.loss import DataParallel


def test_alone_there_is_nothing_to_average():
    ranks = process_group.init_distributed("cpu")
    assert (ranks.rank, ranks.world, ranks.device.type) == (0, 1, "cpu")
    assert ranks.data_parallel == DataParallel()
    model = nn.Linear(2, 2)
    assert process_group.apply_ddp(model, ranks) is model
    assert process_group.mean(torch.tensor([1.5, -2.0]), ranks).tolist() == [1.5, -2.0]
    process_group.barrier(ranks)
    process_group.close(ranks)
    assert not torch.distributed.is_initialized()


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
