from __future__ import annotations

import pytest
import torch

from manifests import disk
from manifests.records import CheckpointRecord, DamagedSamples
from train.parallel import checkpoint
from train.parallel.process_group import Ranks

# Said by torch where there is no group.
in_one_process = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
ALONE = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)


def write(folder, value):
    weights = {"w": torch.full((3,), float(value)), "s": torch.tensor(float(value))}
    moments = {"w": {"step": torch.tensor(float(value)), "exp_avg": torch.full((3,), 0.5)}}
    written = checkpoint.begin_write(str(folder), weights, moments, ALONE)
    weights["w"].fill_(-1)  # training goes on
    written.result()
    return checkpoint.own_files(str(folder), ALONE)


@in_one_process
def test_on_a_store_only_the_shards_that_the_record_names_are_read(tmp_path):
    [name] = write(tmp_path / "new", 3)
    write(tmp_path / "old", 1)
    folder = "memory://shards/step-3"
    for source, target in (("new", name), ("old", "shard-00002-model-00001-of-00001.safetensors")):
        disk.write_bytes(f"{folder}/{target}", (tmp_path / source / name).read_bytes())
    record = CheckpointRecord(
        bad=DamagedSamples(count=0, samples=()),
        step=3,
        identity={},
        order="o",
        config_hash="c",
        sha256={name: disk.file_sha256(tmp_path / "new" / name)},
        layout=ALONE.layout,
    )
    disk.write_json(f"{folder}/{checkpoint.STATE_FILE}", record.document())
    weights, _ = checkpoint.read_sharded(folder, {}, ALONE)
    assert torch.equal(weights["w"], torch.full((3,), 3.0))
    with pytest.raises(FileNotFoundError):
        checkpoint.read_sharded("memory://shards/step-4", {}, ALONE)
