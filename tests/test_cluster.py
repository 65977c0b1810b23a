"""ray_cluster.yaml under the checks that `ray up` makes before it calls a cloud, and
cluster/kuberay.yaml under the schema of a RayJob.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from clipmill.pipeline.executor.tickets import Stage
from clipmill.pipeline.fetch.download import Downloader
from clipmill.pipeline.scoring.worker import ScoreWorker

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "ray_cluster.yaml").read_text())
    return config


def checked(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as `ray up` would go on with it."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    ready = prepare_config(copy.deepcopy(config))
    validate_config(ready)
    return ready


def test_ray_up_accepts_the_file_as_it_is(written: dict[str, Any]) -> None:
    ready = checked(written)
    assert ready["head_node_type"] == "head"
    assert {name: kind["max_workers"] for name, kind in ready["available_node_types"].items()} == {
        "head": 0,
        "fetcher": 32,
        "scorer": 8,
        "trainer": 2,
    }


def test_there_are_nodes_for_what_the_stages_ask(written: dict[str, Any]) -> None:
    kinds = checked(written)["available_node_types"]
    for stage in (
        Stage(name="fetch", work=Downloader),
        Stage(name="score", work=ScoreWorker, gpus=1),
    ):
        fits = [
            name
            for name, kind in kinds.items()
            if kind["max_workers"] > 0
            and kind["resources"].get("CPU", 0) >= stage.cpus
            and kind["resources"].get("GPU", 0) >= stage.gpus
        ]
        assert fits, f"no node has room for a worker of {stage}"
    assert sum(kind["max_workers"] for kind in kinds.values()) <= written["max_workers"]
    assert written["available_node_types"]["head"]["resources"]["CPU"] == 0
    assert "--num-cpus=0" in written["head_start_ray_commands"][-1]


def test_nobody_without_the_token_gets_in(written: dict[str, Any]) -> None:
    for name in ("head_start_ray_commands", "worker_start_ray_commands"):
        start = written[name][-1]
        assert start.index("RAY_AUTH_MODE=token") < start.index("ray start")
    assert "~/.ray/auth_token" in written["file_mounts"]
    assert "--dashboard-host=127.0.0.1" in written["head_start_ray_commands"][-1]
    assert "0.0.0.0" not in (ROOT / "ray_cluster.yaml").read_text()


def test_nodes_install_this_checkout_with_extras_that_exist(written: dict[str, Any]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    kinds = written["available_node_types"].values()
    for commands in (
        written["setup_commands"],
        *(k["worker_setup_commands"] for k in kinds if "GPU" in k["resources"]),
    ):
        asked = re.search(r"\$HOME/clipmill\[([\w,]+)\]", " ".join(commands))
        assert asked
        assert set(asked[1].split(",")) <= set(extras)
        torch = any(
            "torch" in package for extra in asked[1].split(",") for package in extras[extra]
        )
        assert torch == (commands is not written["setup_commands"])
    assert written["file_mounts"]["~/clipmill"] == "."
    assert {".git", ".venv", "out"} <= set(written["rsync_exclude"])


# --- KubeRay --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray_job() -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load((ROOT / "cluster" / "kuberay.yaml").read_text())
    return job


def check_ray_job(job: dict[str, Any]) -> None:
    """Raise jsonschema's error where the RayJob has a field or a type that KubeRay refuses."""
    from jsonschema import validate

    schema = json.loads((ROOT / "tests" / "support" / "rayjob_schema.json").read_text())
    validate(job, schema)


def pod_groups(job: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = job["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def containers(job: dict[str, Any]) -> list[dict[str, Any]]:
    return [group["template"]["spec"]["containers"][0] for group in pod_groups(job)]


def test_kuberay_accepts_the_job(ray_job: dict[str, Any]) -> None:
    check_ray_job(ray_job)
    assert (ray_job["apiVersion"], ray_job["kind"]) == ("ray.io/v1", "RayJob")
    assert len(ray_job["metadata"]["name"]) <= 47
    # What the operator checks beside the schema
    assert ray_job["spec"]["shutdownAfterJobFinishes"]
    cluster = ray_job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert tuple(map(int, cluster["rayVersion"].split("."))) >= (2, 52, 0)
    assert cluster["enableInTreeAutoscaling"]
    for group in pod_groups(ray_job):  # version 2 of the autoscaler wants it
        assert group["template"]["spec"]["restartPolicy"] == "Never"
    for group in cluster["workerGroupSpecs"]:
        assert 0 <= group["minReplicas"] <= group["maxReplicas"]


def test_all_pods_have_the_code_and_the_store(ray_job: dict[str, Any]) -> None:
    """The command and its workers run from /clipmill of one image, with the same credentials."""
    dockerfile = (ROOT / "cluster" / "Dockerfile").read_text()
    assert "COPY . /clipmill" in dockerfile
    version = ray_job["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"rayproject/ray:{version}-" in dockerfile
    python, script, *_ = shlex.split(ray_job["spec"]["entrypoint"])
    assert (python, script) == ("python", "/clipmill/pipeline/build.py")
    for container in containers(ray_job):
        assert container["image"] == containers(ray_job)[0]["image"]
        assert container["envFrom"] == [{"secretRef": {"name": "clipmill-store"}}]
        assert container["resources"]["requests"] == container["resources"]["limits"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    asked = re.search(r"/clipmill\[([\w,]+)\]", dockerfile)
    assert asked
    assert set(asked[1].split(",")) <= set(extras)
    ignored = (ROOT / "cluster" / "Dockerfile.dockerignore").read_text().split()
    assert {".git", ".venv", "out"} <= set(ignored)
