"""The route on a small web: WAT to shards, scores and views, and the same bytes inline and
on Ray.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import webdataset as wds
from PIL import Image

from clipmill.examples.miniweb import small_web
from clipmill.examples.miniweb.settings import Miniweb
from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.pipeline.audit.counts import count_pool
from tests.support import commands
from tests.support.commit_records import read_commit_records
from tests.support.sidecars import read_sidecar

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RECIPE = """
name: small
source: {{kind: wat, paths: ["{web}/crawl.warc.wat.gz"]}}
fetch:
  user_agent: "clipmill-test (+https://clipmill.example/bot)"
  image_size: 64
  rows_per_shard: 60
  per_host: 8
  deadline_s: 8
  allow_private: true
  connect_to: {{"*.miniweb.test": "127.0.0.1:{port}"}}
filters: [tokens, caption, language]
views:
  raw: []
  basic: [{{english: language = 'en'}}, {{words: caption_words > 2}}]
"""


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    folder = tmp_path_factory.mktemp("web")
    small_web.write(str(folder), Miniweb(pairs=260, trusted_pairs=40, faults=0.2, seed=5))
    with small_web.running(str(folder)) as port:
        yield folder, port


@pytest.fixture(scope="module")
def inline(web: tuple[Path, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(web, tmp_path_factory.mktemp("inline"), "inline")


def built(web: tuple[Path, int], folder: Path, engine: str) -> Path:
    recipe = folder / "small.yaml"
    recipe.write_text(RECIPE.format(web=web[0], port=web[1]))
    assert commands.build([str(recipe), "--out", str(folder / "pool"), "--engine", engine]) == 0
    return folder / "pool"


def test_all_counts_are_consistent(inline: Path) -> None:
    crawl = count_pool(read_commits(str(inline))).crawl
    assert crawl is not None
    records = read_commit_records(str(inline))
    assert len(records) > 2
    attempted = sum(r.count for r in records.values())
    stored = sum(r.successes for r in records.values())
    reasons = Counter[str]()
    for record in records.values():
        reasons.update(record.reasons)
    assert attempted == stored + sum(reasons.values())
    assert crawl.links == crawl.pairs + sum(crawl.reasons.values())
    assert crawl.pairs == attempted
    assert commands.audit(["verify", str(inline)]) == 0


def test_every_planted_ill_ends_in_the_reason_it_deserves(
    web: tuple[Path, int], inline: Path
) -> None:
    truth = {row["url"]: row["kind"] for row in pq.read_table(web[0] / "truth.parquet").to_pylist()}
    promised = {
        "dead_link": {"http_4xx"},
        "error500": {"http_5xx"},
        "redirect_loop": {"redirects"},
        "truncated": {"truncated"},
        "html": {"not_an_image"},
        "optout_header": {"optout_header"},
        "optout_page": {"optout_page"},
    }
    seen = Counter[str]()
    for path in sorted((inline / "shards").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            kind = truth.get(row["url"], "junk")
            if kind in promised:
                assert row["reason"] in promised[kind], (kind, row["reason"], row["error_message"])
                seen[kind] += 1
            if kind in ("clean", "noisy", "flaky503", "redirect", "near_duplicate"):
                assert row["status"] == "success", (kind, row["reason"], row["error_message"])
    assert len(seen) >= 5, "the web is too small to show its ills"


# webdataset leaves closing to the collector
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_every_shard_is_read_by_webdataset_itself(inline: Path) -> None:
    for name, record in read_commit_records(str(inline)).items():
        rows = {row["key"]: row for row in read_sidecar(str(inline), name).to_pylist()}
        samples = list(wds.WebDataset(str(inline / "shards" / record.tar), shardshuffle=False))
        assert [s["__key__"] for s in samples] == [
            k for k, row in rows.items() if row["status"] == "success"
        ]
        for sample in samples:
            row = rows[sample["__key__"]]
            assert sample["txt"].decode() == row["caption"]
            assert json.loads(sample["json"])["uid"] == row["uid"]
            with Image.open(io.BytesIO(sample["jpg"])) as picture:
                assert picture.size == (row["width"], row["height"])


@pytest.mark.ray
def test_ray_leaves_the_same_bytes(
    web: tuple[Path, int], inline: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = built(web, tmp_path_factory.mktemp("ray"), "ray")
    ours, theirs = read_commit_records(str(inline)), read_commit_records(str(other))
    assert {k: (v.tar_sha256, v.sidecar_sha256) for k, v in ours.items()} == {
        k: (v.tar_sha256, v.sidecar_sha256) for k, v in theirs.items()
    }
    for name in ("raw", "basic"):
        first, second = (disk.read_json(p / "views" / f"{name}.json") for p in (inline, other))
        assert (first["kept"], first["funnel"], first["fingerprint"]) == (
            second["kept"],
            second["funnel"],
            second["fingerprint"],
        )


def test_a_retry_asks_only_for_what_was_transient(web: tuple[Path, int], tmp_path: Path) -> None:
    pool = built(web, tmp_path, "inline")
    keys = []
    for name in read_commit_records(str(pool)):
        rows = read_sidecar(str(pool), name, ["key", "class"]).to_pylist()
        keys += [row["key"] for row in rows if row["class"] == "transient"]
    assert keys, "the web has no error of a server"
    before = {name: record.tar_sha256 for name, record in read_commit_records(str(pool)).items()}
    words = [
        str(tmp_path / "small.yaml"),
        "--out",
        str(pool),
        "--engine",
        "inline",
        "--retry",
        "transient",
    ]
    assert commands.build(words) == 0
    after = read_commit_records(str(pool))
    assert {name: after[name].tar_sha256 for name in before} == before
    asked = [
        row
        for name in set(after) - set(before)
        for row in read_sidecar(str(pool), name, ["retry_of"]).to_pylist()
    ]
    assert sorted(row["retry_of"] for row in asked) == sorted(keys)
    assert commands.audit(["verify", str(pool)]) == 0


KILLED_AFTER_TWO_COMMITS = """
import os, signal, sys, threading
from clipmill.manifests import disk
from tests.support import commands
commits, create_json, one_at_a_time = [], disk.create_json, threading.Lock()
def killing(path, value, **options):
    with one_at_a_time:
        create_json(path, value, **options)
        if path.endswith("_stats.json"):
            commits.append(path)
        if len(commits) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
disk.create_json = killing
commands.build(sys.argv[1:])
"""


def test_a_folder_of_images_makes_full_shards_and_a_killed_build_is_resumed(
    tmp_path: Path,
) -> None:
    (tmp_path / "images").mkdir()
    for number in range(45):
        path = tmp_path / "images" / f"{number}.png"
        Image.new("RGB", (32, 32), (number, 0, 0)).save(path)
        path.with_suffix(".txt").write_text(f"image {number}")
    recipe = tmp_path / "files.yaml"
    recipe.write_text(
        f"name: files\nsource: {{kind: image_folder, paths: [{tmp_path}/images], captions: txt}}\n"
        "fetch: {image_size: 32, rows_per_shard: 10}\n"
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert commands.build([str(recipe), "--out", str(whole), "--engine", "inline"]) == 0
    records = read_commit_records(str(whole))
    assert [record.count for record in records.values()] == [10, 10, 10, 10, 5]
    assert sum(record.successes for record in records.values()) == 45
    command = [sys.executable, "-c", KILLED_AFTER_TWO_COMMITS, str(recipe), "--out", str(killed)]
    done = subprocess.run([*command, "--engine", "inline"], cwd=ROOT, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert 2 <= len(read_commit_records(str(killed))) < 5
    assert commands.build([str(recipe), "--out", str(killed), "--engine", "inline"]) == 0
    tars = sorted((whole / "shards").glob("*.tar"))
    assert [tar.read_bytes() for tar in tars] == [
        (killed / "shards" / tar.name).read_bytes() for tar in tars
    ]
    assert commands.audit(["verify", str(killed)]) == 0
