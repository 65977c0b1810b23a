"""Commands on one pool, and what its readers see, for the state machine of `tests/chaos`.

The functions run in children of `forked_commands`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.audit.counts import count_pool
from clipmill.pipeline.audit.integrity import verify
from tests.support.chaos_pools import RECIPE, command, flip, visible_problems

ROWS = 8
MISSING = 3  # this file is not there
OFFLINE = (1, 5)  # these cannot be reached at first
# What is damaged: the first file of the pattern.
TARGETS = {
    "tar": "shards/*.tar",
    "sidecar": "shards/*.parquet",
    "record": "shards/*_stats.json",
    "index": "index/*.parquet",
    "scores": "scores/caption@*/*.parquet",
    "mask": "views/long/*.parquet",
}


def write_inputs(inputs: str) -> None:
    from tests.conftest import draw

    folder = Path(inputs)
    draw(folder, ROWS)
    (folder / f"{MISSING}.jpg").unlink()
    (folder / "offline").write_text(" ".join(f"{i}.jpg" for i in OFFLINE))
    (folder / "recipe.yaml").write_text(RECIPE.format(captions=folder / "captions.csv"))


def uids(inputs: str) -> dict[int, str]:
    """{number of a row: its uid}."""
    numbers = {}
    for i in range(ROWS):
        caption = f"a shade of the number {i}" if i % 2 else f"shade number {i}"
        numbers[i] = disk.uid_of(f"{inputs}/{i}.jpg", caption)
    return numbers


def act(name: str, inputs: str, pool: str, row: int = 0) -> int:
    """The exit status of a command."""
    build = (f"{inputs}/recipe.yaml", "--out", pool, "--engine", "inline")
    if name == "build":
        return command("build", *build)
    if name == "retry":
        return command("build", *build, "--retry", "transient")
    if name == "repair":
        status = command("audit", "repair", pool)
        return command("build", *build) if status in (0, 3) else status
    assert name == "purge", name
    return command("audit", "purge", pool, f"uid={uids(inputs)[row]}")


def damage(pool: str, target: str, position: int) -> str | None:
    """Flip a bit of the first file of a kind; its name, or None where there is none."""
    paths = sorted(path for path in Path(pool).glob(TARGETS[target]) if path.name[0] != ".")
    if not paths:
        return None
    flip(paths[0], position % paths[0].stat().st_size)
    return str(paths[0].relative_to(pool))


def look(inputs: str, pool: str) -> dict[str, Any]:
    """What readers see: {"visible": what is broken, "outcomes": {row: its newest reason},
    "attempts": rows of first attempts, "complete", "problems", "purged_content"}.
    """
    rows = {uid: i for i, uid in uids(inputs).items()}
    result: dict[str, Any] = {"visible": visible_problems(pool), "outcomes": {}, "attempts": 0}
    result |= {"complete": False, "problems": [], "content": []}
    if result["visible"]:
        return result
    commits = read_commits(pool)
    for name in commits.names():
        for row in disk.read_parquet(commits.sidecar(name)).to_pylist():
            number = rows[row["uid"]]
            result["attempts"] += row["retry_of"] is None
            known = result["outcomes"].get(number, "unknown")
            if known is not None or row["retry_of"] is not None:
                result["outcomes"][number] = row["reason"]
            if row["url"] is not None:
                result["content"].append(number)
    if disk.exists(PoolLayout(pool).pool_json):
        counts = count_pool(read_commits(pool))
        result["complete"], result["problems"] = counts.complete, list(counts.problems)
        result["problems"] += verify(pool)
    return result
