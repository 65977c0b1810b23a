"""The command `clipmill build RECIPE --until plan` over a folder of tables of 1,000 rows each.

Everything that a person waits for is in it: start, reading the tables, deduplication, plan,
pool.json. The bar of the plan holds for it too.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.scaling.plan import HOSTS, ROWS_PER_PART, pairs_of
from clipmill.manifests import console, disk

BASE, UNIT = 1_125_000, "rows"
STEPS = ("build_until_plan", "build_again")


def prepare(folder: Path, count: int) -> None:
    """Tables with URL and caption, and a recipe that names their folder."""
    (folder / "tables").mkdir()
    for part in range(count // ROWS_PER_PART):
        rows = part * ROWS_PER_PART + np.arange(ROWS_PER_PART)
        table = pairs_of(rows, "").select(["url", "caption"])
        pq.write_table(table, folder / "tables" / f"list-{part:05d}.parquet")
    recipe = {
        "name": "scale",
        "source": {"kind": "table", "paths": [str(folder / "tables")]},
        "fetch": {"rows_per_shard": 10_000, "user_agent": "scale/1 (scale@clipmill.example)"},
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))


def build_until_plan(folder: Path, count: int) -> dict[str, Any]:
    """The command, on an embedded Ray, whose start is part of the time."""
    command = console.program(["build", str(folder / "recipe.yaml")])
    command += ["--out", str(folder / "pool"), "--until", "plan"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    document = disk.read_json(folder / "pool/plan/plan.json")
    assert document["rows"] == count, f"{document['rows']} rows are planned of {count}"
    seconds = disk.read_json(folder / "pool/pool.json")["seconds"]
    return {"shards": document["shards"], "stage_s": seconds, "hosts": HOSTS}


def build_again(folder: Path, count: int) -> dict[str, Any]:
    """The same command when everything is there."""
    return build_until_plan(folder, count)
