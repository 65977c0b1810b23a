"""Small pools of drawn pictures for the tests that run whole stages."""

from __future__ import annotations

import atexit
import csv
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from PIL import Image, ImageDraw

from clipmill.manifests import ray_runtime

TINY = """
name: tiny
source: {kind: files, paths: [captions.csv]}
fetch: {image_size: 32, rows_per_shard: 20}
filters: [tokens, caption]
views:
  raw: []
  long: [{words: caption_words > 3}]
"""

# The files that take longest, by their seconds. They are started first: a long file that is started
# last leaves every other process without work.
LONGEST_FIRST = (
    "tests/test_nodes.py",
    "tests/chaos/test_kills.py",
    "tests/train/test_run.py",
    "tests/test_ray_kills.py",
    "tests/test_jobs.py",
    "tests/examples/miniweb/test_photographs.py",
    "tests/test_null_web.py",
    "tests/pipeline/test_object_store.py",
    "tests/train/formats/test_parity.py",
    "tests/pipeline/fetch/test_download.py",
    "tests/pipeline/executor/test_stage.py",
    "tests/train/test_ablate.py",
    "tests/train/trainer/test_loop.py",
    "tests/pipeline/test_recipe_run.py",
    "tests/test_layout.py",
    "tests/pipeline/fetch/test_fetcher.py",
    "tests/test_extras.py",
    "tests/study/ablation/test_runner.py",
    "tests/pipeline/crawl/test_dedup.py",
    "tests/pipeline/external/test_img2dataset.py",
)
# A busy machine takes ten times as long: no test fails by its speed.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# What Python itself starts for a process and ends with it.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
MARK = "CLIPMILL_TEST_WORKER"  # in the environment of all that this process starts
os.environ[MARK] = str(os.getpid())
# Ray gives its workers a nice value of 15: beside four processes of tests on two cores, one that
# imports torch would need minutes.
os.environ |= {"RAY_worker_niceness": "0"}
LEFT_S = 300.0  # until a process that was asked to end has ended

# The imports of the tests leave a million objects that live to the end. No collection of garbage
# looks at them while they are made, nor later: that is a tenth of the quick tests.
gc.disable()

# Under nohup every process of the tests would ignore SIGHUP, as it should, and in the background of
# a script SIGINT: those that expect the signal would fail or wait. A handler is reset in each
# program that is started; this process still survives a SIGHUP.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)  # the end of the process collects them as usual
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        name = item.nodeid.split("::")[0]
        return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=rank)  # stable: the other files keep their order


def started_here() -> dict[int, str]:
    """{id: command line} of the processes that this one has started, and that theirs have."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"{MARK}={os.getpid()}".encode() in (folder / "environ").read_bytes()
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended, or is another user's
            continue
        is_ours = marked or int(parent) == os.getpid()
        if is_ours and state != "Z" and int(folder.name) != os.getpid():
            found[int(folder.name)] = line[:200]
    return {one: line for one, line in found.items() if not any(name in line for name in HELPERS)}


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left() -> Iterator[None]:
    """End a Ray that the tests of a module embedded, and forget S3's connections: the next module
    would find their state. AssertionError where a process that a test has started goes on.
    """
    before = started_here()
    yield
    if ray_runtime.is_embedded():
        ray_runtime.disconnect()
    if s3fs := sys.modules.get("s3fs"):
        s3fs.S3FileSystem.clear_instance_cache()
        for protocol in ("s3", "s3a"):
            sys.modules["fsspec.registry"]._registry.pop(protocol, None)
    until = time.monotonic() + LEFT_S
    while (left := started_here().keys() - before.keys()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left, f"processes are left: {started_here()}"


def draw(folder: Path, count: int, shift: int = 0) -> None:
    """`count` pictures with captions.csv; every second caption has six words, the others three."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "captions.csv", "w", newline="") as f:
        table = csv.writer(f)
        table.writerow(["file", "caption"])
        for i in range(count):
            picture = Image.new("RGB", (32, 32), (5 * i % 256, (250 - 3 * i) % 256, shift))
            ImageDraw.Draw(picture).ellipse((4, 4, 8 + i % 20, 20), fill=(i % 256, 40, 200))
            picture.save(folder / f"{i}.jpg", quality=90)
            table.writerow(
                [f"{i}.jpg", f"a shade of the number {i}" if i % 2 else f"shade number {i}"]
            )


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A folder with tiny.yaml, a recipe of kind files over 48 drawn pictures."""
    draw(tmp_path, 48)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path
