from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from clipmill.manifests import disk
from clipmill.manifests.layout import AblationLayout
from clipmill.manifests.schema import Ablation
from clipmill.study.arms import expand_runs
from clipmill.study.data import ArmView, open_views
from clipmill.study.results import collect_results
from clipmill.train.config import TrainConfig
from clipmill.train.identity import run_identity
from tests.support.ablations import Ran, changed
from tests.support.reports import complete_pool


@pytest.fixture(scope="session")
def concluded(ran: Ran, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with results.json, on a pool that has all that a report reads. For reading only."""
    tiny, out, outcomes = ran
    folder = tmp_path_factory.mktemp("concluded")
    pool, copy = str(folder / "pool"), str(folder / "out")
    shutil.copytree(outcomes[0].run.blend.pools["web"], pool)
    complete_pool(pool)
    shutil.copytree(out, copy)
    moved = changed(tiny, pools={"web": {"out": pool}})
    for outcome in outcomes:  # the runs are of the completed views
        path = Path(copy, "runs", outcome.run.arm, f"seed-{outcome.run.seed}", "run.json")
        record = disk.read_json(path)
        blend = disk.from_plain(
            type(outcome.run.blend), {**record["blend"], "pools": {"web": pool}}
        )
        for key in ("views", "tokens", "blend"):
            record["identity"][key] = run_identity(blend, TrainConfig())[key]
        disk.write_json(path, record)
    disk.write_json(AblationLayout(copy).ablation_json, moved)
    disk.write_json(AblationLayout(copy).results_json, collect_results(moved, copy))
    return copy


@pytest.fixture
def folder(concluded: str, tmp_path: Path) -> str:
    """A copy of `concluded` that a test may change."""
    shutil.copytree(concluded, tmp_path / "out")
    return str(tmp_path / "out")


@pytest.fixture(scope="session")
def views(concluded: str) -> list[ArmView]:
    """The views of the arms of `concluded`."""
    path = AblationLayout(concluded).ablation_json
    ablation = disk.from_plain(Ablation, disk.read_json(path))
    runs = expand_runs(ablation, concluded, built=False)
    return open_views({run.arm: run.blend for run in runs})
