"""A rank of a measurement that ends as its plan says: `python -m tests.support.bench_rank FOLDER`.

It imports no torch, so that it starts at once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(folder: Path) -> int:
    plan = json.loads((folder / "plan.json").read_text())
    rank = int(os.environ["RANK"])
    if plan["kill"] == rank:
        os.kill(os.getpid(), plan["signal"])
    if plan["fail"] == rank:
        (folder / f"failed-{rank}.json").write_text(json.dumps({"reason": plan["reason"]}))
        return 3
    if plan["stop"] == rank:  # the command that started the ranks is asked to stop
        os.kill(os.getppid(), plan["signal"])
        time.sleep(30)
    if rank == 0:
        ranks = float(os.environ["WORLD_SIZE"])
        result = {"figures": {"samples_per_s": ranks}, "rates": [ranks]}
        (folder / "result.json").write_text(json.dumps(result))
    return plan["status"]


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
