"""A head and two nodes as machines of their own, the pool on an S3 server of a fourth.

The commands are those of docs/cluster.md. Then all of it is lost in turn, in the middle of a build:
the store for some time, a node, a raylet, the driver. With CLIPMILL_CHAOS=1 also the head.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import console
from clipmill.manifests.ray_runtime import free_ports
from tests.support.clusters import BIN, Cluster, Store, running_cluster, start_store
from tests.support.machines import Machine, laboratory
from tests.support.processes import MARK, marked, new_mark
from tests.support.trials import EVERYWHERE

pytest.importorskip("localbucket")
pytest.importorskip("s3fs")
pytestmark = [pytest.mark.ray, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[1]
PYTHON = str(BIN / "python")
PAIRS = 200
STORE_IS_GONE_S = 30 if EVERYWHERE else 8
# Every image is asked for alone, after a pause: a build takes long enough to be disturbed.
RECIPE = """
name: nodes
source: {kind: wat, paths: ["s3://pools/web/crawl.warc.wat.gz"]}
fetch:
  user_agent: "clipmilltest/1.0 (+http://clipmill.example/bot)"
  image_size: 32
  rows_per_shard: 12
  per_host: 1
  delay_s: DELAY
  allow_private: true
  connect_to: {"*.miniweb.test": "127.0.0.1:PORT"}
filters: [tokens, caption]
views:
  all: []
  long: [{words: caption_words > 3}]
"""
TRAINING = "model=test samples_seen=128 batch_size=16 lanes=8 warmup=2 precision=fp32"


@dataclass(frozen=True, slots=True)
class Lab:
    """The machines, the store, and where a recipe lies on the head."""

    cluster: Cluster
    store: Store
    nodes: list[Machine]
    recipes: dict[str, str]  # quick and slow
    spare: Machine
    recipe_text: str  # of quick
    tars: dict[str, str]  # shard -> sha256 of its tar, of a build that nothing disturbed
    rows: dict[str, Any]  # how its rows ended

    @property
    def runtime(self) -> str:
        """What goes with a job: the variables of the store."""
        return json.dumps({"env_vars": self.store.variables})

    def on_head(self, *words: str, seconds: float = 1200) -> subprocess.CompletedProcess[str]:
        """A command on the head, without Ray."""
        return self.on_machine(self.cluster.head, *words, seconds=seconds)

    def on_machine(
        self, machine: Machine, *words: str, seconds: float = 1200
    ) -> subprocess.CompletedProcess[str]:
        """A command on a machine, without Ray."""
        environment = {**self.cluster.environment, **self.store.variables}
        return machine.run(words, environment, cwd=str(ROOT), seconds=seconds)


def documented_jobs() -> list[list[str]]:
    """The words of each `ray job submit` of docs/cluster.md, after `submit`."""
    text = (ROOT / "docs" / "cluster.md").read_text()
    block = re.search(r"```\n(STORE=.*?)```", text, re.DOTALL)
    assert block
    lines = block[1].splitlines()[1:]
    return [shlex.split(line)[3:] for line in lines]


def put_text(machine: Machine, path: str, text: str, environment: dict[str, str]) -> None:
    done = machine.run(["sh", "-c", 'printf %s "$1" > "$2"', "sh", text, path], environment)
    assert done.returncode == 0, done.stderr


def committed(lab: Lab, pool: str, on: Machine | None = None) -> dict[str, str]:
    """Shard -> sha256 of its tar, as the commit records on the store say."""
    code = (
        "import json, sys; from tests.support.commit_records import read_commit_records as read\n"
        "print(json.dumps({s: r.tar_sha256 for s, r in read(sys.argv[1]).items()}))"
    )
    machine = on or lab.cluster.head
    done = lab.on_machine(machine, PYTHON, "-W", "ignore", "-c", code, pool)
    assert done.returncode == 0, done.stderr
    records: dict[str, str] = json.loads(done.stdout)
    return records


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    names = ["store", "head", "node1", "node2", "spare"]
    with laboratory(names) as (store_machine, head, *nodes, spare):
        store = start_store(store_machine)
        with running_cluster(head, nodes) as cluster:
            yield prepare(cluster, store, nodes, spare)


def prepare(cluster: Cluster, store: Store, nodes: list[Machine], spare: Machine) -> Lab:
    """A web on every machine, and a build without Ray to compare with."""
    head, [port] = cluster.head, free_ports(1)
    environment = {**cluster.environment, **store.variables}
    script = str(ROOT / "examples" / "miniweb" / "small_web.py")

    def web(machine: Machine) -> None:
        if machine.holder or machine is head:  # one loopback network has one web
            words = [PYTHON, script, "serve", "--out", "s3://pools/web", "--port", str(port)]
            machine.start(words, environment)
            wait = (
                "import socket, sys, time\n"
                "for _ in range(600):\n"
                "    with socket.socket() as s:\n"
                "        if s.connect_ex(('127.0.0.1', int(sys.argv[1]))) == 0: sys.exit()\n"
                "    time.sleep(0.2)\n"
                "sys.exit('the web did not start')"
            )
            done = machine.run([PYTHON, "-c", wait, str(port)], environment)
            assert done.returncode == 0, done.stderr

    recipes = {}
    text = RECIPE.replace("PORT", str(port))
    for name, delay in (("quick", "0.0"), ("slow", "0.1")):
        recipes[name] = f"{head.folder}/{name}.yaml"
        put_text(head, recipes[name], text.replace("DELAY", delay), environment)
    lab = Lab(cluster, store, nodes, recipes, spare, text.replace("DELAY", "0.0"), {}, {})
    write = ["write", "--out", "s3://pools/web", "--pairs", str(PAIRS), "--faults", "0"]
    done = lab.on_head(PYTHON, script, *write, "--trusted-pairs", "8")
    assert done.returncode == 0, done.stderr
    for machine in (head, *nodes):
        web(machine)
    build = ["clipmill/__main__.py", "build", recipes["quick"], "--out", "s3://pools/inline"]
    words = [PYTHON, *build, "--engine", "inline", "--until", "fetch"]
    done = lab.on_head(*words)
    assert done.returncode == 0, done.stderr
    lab.tars.update(committed(lab, "s3://pools/inline"))
    lab.rows.update(read_json(lab, "s3://pools/inline/pool.json")["fetch"]["final"])
    assert lab.rows["stored"] >= PAIRS // 2
    assert len(lab.tars) >= PAIRS // 12
    return lab


def test_the_documented_commands_build_and_train_on_two_nodes(lab: Lab) -> None:
    names = {
        "RECIPE": lab.recipes["quick"],
        "s3://BUCKET/POOL": "s3://pools/pool",
        "s3://BUCKET/POOL/VIEW=1": "s3://pools/pool/all=1",
        "s3://BUCKET/RUN": "s3://pools/run",
        "$STORE": lab.runtime,
    }
    jobs = [job for job in documented_jobs() if "train/evaluate.py" not in job]
    assert len(jobs) == 5
    for job in jobs:
        words = [names.get(word, word) for word in job]
        if "train/run.py" in words:
            words += ["--set", *TRAINING.split(), "checkpoint_every=3"]
        done = lab.cluster.submit(*words, seconds=1800)
        assert done.returncode == 0, f"{words}\n{done.stdout[-6000:]}{done.stderr[-3000:]}"
    assert committed(lab, "s3://pools/pool") == lab.tars
    assert nodes_of_actors(lab, "Worker") == {"node1", "node2"}
    assert nodes_of_actors(lab, "RayTrainWorker") == {"node1", "node2"}
    record = read_json(lab, "s3://pools/run/run.json")
    assert (record["world"], record["steps"]) == (2, 8)
    assert read_json(lab, "s3://pools/pool/views/all.json")["kept"] == lab.rows["stored"]


def read_json(lab: Lab, path: str, on: Machine | None = None) -> Any:
    code = "import sys; from clipmill.manifests import disk;"
    code += "print(disk.read_bytes(sys.argv[1]).decode())"
    machine = on or lab.cluster.head
    done = lab.on_machine(machine, PYTHON, "-W", "ignore", "-c", code, path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def nodes_of_actors(lab: Lab, class_name: str) -> set[str]:
    """Names of the nodes on which actors of a class have run."""
    code = (
        "import json, ray, sys; from ray.util.state import list_actors\n"
        "names = {n['NodeID']: n['NodeName'] for n in ray.nodes()}\n"
        "found = list_actors(address=sys.argv[1], limit=1000, raise_on_missing_output=False)\n"
        "print(json.dumps([names.get(a.node_id) for a in found if a.class_name == sys.argv[2]]))"
    )
    code = f"import ray; ray.init(logging_level='error', log_to_driver=False)\n{code}"
    environment = {**lab.cluster.environment, "RAY_ADDRESS": lab.cluster.gcs_address}
    words = [PYTHON, "-c", code, lab.cluster.address, class_name]
    done = lab.cluster.head.run(words, environment)
    assert done.returncode == 0, done.stderr
    addresses = {machine.address: machine.name for machine in lab.nodes}
    return {addresses.get(each, each) for each in json.loads(done.stdout.splitlines()[-1]) if each}


def test_a_gpu_that_these_nodes_do_not_have_is_refused_in_one_line(lab: Lab) -> None:
    code = (
        "from clipmill.manifests import console\n"
        "from clipmill.pipeline.executor.stage import execute\n"
        "from clipmill.pipeline.executor.tickets import Stage, Ticket\n"
        "from tests.support.bombs import hungry\n"
        "stage = Stage(name='score', work=hungry, gpus=1)\n"
        "execute_all = lambda: execute(stage, [Ticket(id='t', group='g')], engine='ray').failures\n"
        "raise SystemExit(console.run_command(execute_all))"
    )
    environment = {**lab.cluster.environment, "RAY_ADDRESS": lab.cluster.gcs_address}
    done = lab.cluster.head.run([PYTHON, "-c", code], environment, cwd=str(ROOT), seconds=900)
    assert done.returncode == console.EXIT_MISTAKE, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: stage score asks for 1 GPU per worker; the cluster has 2 nodes")


def build_words(lab: Lab, recipe: str, pool: str, **variables: str) -> list[str]:
    """What `ray job submit` gets for a build to the end of fetch."""
    runtime = json.dumps({"env_vars": {**lab.store.variables, **variables}})
    words = ["--working-dir", ".", "--runtime-env-json", runtime, "--"]
    words += ["python", "pipeline/build.py", recipe, "--out", pool]
    return [*words, "--until", "fetch"]


def check_whole(lab: Lab, pool: str, on: Machine | None = None) -> None:
    """The pool has the rows and bytes of a build that nothing disturbed."""
    assert committed(lab, pool, on) == lab.tars
    document = read_json(lab, f"{pool}/pool.json", on)
    assert document["complete"]
    assert document["fetch"]["final"] == lab.rows
    words = [PYTHON, "clipmill/__main__.py", "audit", "verify", pool]
    done = lab.on_machine(on or lab.cluster.head, *words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_build_loses_the_store_two_nodes_and_its_driver(lab: Lab, tmp_path: Path) -> None:
    """All in one build; it goes on, and after the driver's death the same command ends it."""
    pool, mark = "s3://pools/disturbed", new_mark()
    words = build_words(lab, lab.recipes["slow"], pool, **{MARK: mark})
    first, second = lab.nodes
    whole = len(lab.tars)
    with open(tmp_path / "first.log", "wb") as log:
        job = lab.cluster.start_job(words, log)
        try:
            wait_for_shards(lab, pool, 1, job)
            lab.store.cut_off([lab.cluster.head, *lab.nodes], STORE_IS_GONE_S)
            wait_for_shards(lab, pool, whole // 4, job)
            second.end()
            wait_for_shards(lab, pool, whole // 2, job)
            lab.cluster.kill_raylet(first)
            lab.cluster.add_node(first)
            wait_for_shards(lab, pool, whole * 3 // 4, job)
            os.kill(driver_of(mark), signal.SIGKILL)
            assert job.wait(900) != 0
        except BaseException:
            print((tmp_path / "first.log").read_text()[-6000:])
            raise
    # Counted, not read: a worker may be writing a record, and this server shows half of it.
    count = lab.store.count("disturbed", "_stats.json")
    assert count < whole, "the build had ended before its driver was killed"
    words = build_words(lab, lab.recipes["quick"], pool)  # its manners may change
    done = lab.cluster.submit(*words, seconds=1800)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    check_whole(lab, pool)


@pytest.mark.skipif(not EVERYWHERE, reason="minutes of waiting: with CLIPMILL_CHAOS=1")
def test_a_build_loses_its_head(lab: Lab, tmp_path: Path) -> None:
    """The driver dies with it. The nodes end by themselves, and a new head resumes the build."""
    pool, mark = "s3://pools/headless", new_mark()
    node = lab.nodes[0]
    with open(tmp_path / "first.log", "wb") as log:
        words = build_words(lab, lab.recipes["slow"], pool, **{MARK: mark})
        job = lab.cluster.start_job(words, log)
        wait_for_shards(lab, pool, len(lab.tars) // 4, job)
    lab.cluster.head.end()
    ended, shards = time.monotonic(), []
    raylet = lab.cluster.processes[node.name]
    while raylet.poll() is None:
        shards.append(lab.store.count("headless", "_stats.json"))
        assert time.monotonic() - ended < 900
        time.sleep(1)
    print(json.dumps({"head": "lost", "node_ended_s": round(time.monotonic() - ended)}))
    print(json.dumps({"committed after the head's death": shards}))
    assert shards[-1] < len(lab.tars)
    with running_cluster(lab.spare, [node]) as cluster:
        recipe = f"{lab.spare.folder}/quick.yaml"
        put_text(lab.spare, recipe, lab.recipe_text, cluster.environment)
        words = build_words(lab, recipe, pool)
        statuses = []
        while (done := cluster.submit(*words, seconds=1800)).returncode:
            statuses.append(done.stdout[-300:])
            assert "another command" in done.stdout, done.stdout
            assert len(statuses) < 20
            time.sleep(5)
        print(json.dumps({"resumed_s": round(time.monotonic() - ended), "refused": statuses}))
        check_whole(lab, pool, lab.spare)


def driver_of(mark: str) -> int:
    """The Python process of a job, and not the shell that Ray started it with."""
    processes = marked(mark, "pipeline/build.py", "--until")
    names = {process: Path(f"/proc/{process}/comm").read_text().strip() for process in processes}
    (driver,) = [process for process, name in names.items() if name.startswith("python")]
    return driver


def wait_for_shards(lab: Lab, pool: str, count: int, job: subprocess.Popen[bytes]) -> None:
    """Wait until a build that is running has committed so many shards."""
    until = time.monotonic() + 900
    while lab.store.count(pool.removeprefix("s3://pools/"), "_stats.json") < count:
        assert job.poll() is None, "the job ended"
        assert time.monotonic() < until, f"{count} shards were not committed within 900 s"
        time.sleep(0.2)
