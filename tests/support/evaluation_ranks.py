"""What test_tasks.py runs as several processes: `python evaluation_ranks.py FOLDER`.

The environment names the world and the store, as under torchrun. The ranks are forked.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from clipmill.manifests import disk
from clipmill.manifests.schema import TaskSpec
from clipmill.train.eval_data import images
from clipmill.train.evaluation.tasks import evaluate
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from clipmill.train.parallel import process_group
from tests.support.forked_ranks import fork_ranks

BATCH = 5  # of 18 images: three batches of 5 and one of 3


def evaluated(tasks, out):
    """Evaluate the tasks of a JSON file; the message of a ValueError is printed, with status 2."""
    images.BATCH_SIZE = BATCH
    specs = [disk.from_plain(TaskSpec, task) for task in json.loads(Path(tasks).read_text())]
    ranks = process_group.init_distributed("cpu")
    try:
        evaluate(CLIP(MODELS["test"], seed=3), specs, out, ranks=ranks)
    except ValueError as error:
        print(error)
        return 2
    finally:
        process_group.close(ranks)
    return 0


def main(folder):
    """FOLDER/tasks.json into FOLDER/out on WORLD_SIZE ranks; their statuses and what each printed
    are in FOLDER/ended.json.
    """
    torch.set_num_threads(1)
    world = int(os.environ["WORLD_SIZE"])

    def work(rank):
        os.environ["RANK"] = str(rank)
        sys.stdout = open(Path(folder, f"output-{rank}"), "w")  # noqa: SIM115
        return evaluated(f"{folder}/tasks.json", f"{folder}/out")

    statuses = fork_ranks(world, work)
    outputs = [Path(folder, f"output-{rank}").read_text() for rank in range(world)]
    Path(folder, "ended.json").write_text(json.dumps(list(zip(statuses, outputs, strict=True))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
