"""A web of photographs: its files, every answer of its server, and the shipped ablations on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from examples.miniweb import small_web
from examples.miniweb.settings import MINIWEB_FAULTS, Miniweb
from tests.support.miniwebs import get, image_links, truth
from tests.support.photo_folders import make_archive, make_folder

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"), 40, suffix=".png")


def settings_for(photos: Path, **changes: Any) -> Miniweb:
    values: dict[str, Any] = {
        "photos": str(photos),
        "pairs": 220,
        "trusted_pairs": 20,
        "near_duplicates": 0.1,
        "faults": 0.4,
        "fault_kinds": MINIWEB_FAULTS,
        "seed": 3,
    }
    return Miniweb(**{**values, **changes})


@pytest.fixture(scope="module")
def photo_web(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    small_web.write(folder, settings_for(photos))
    return folder


@pytest.fixture(scope="module")
def photo_port(photo_web: Path) -> Iterator[int]:
    with small_web.running(photo_web) as port:
        yield port


def test_the_crawl_finds_what_the_truth_says(photo_web: Path) -> None:
    rows = truth(photo_web)
    links = image_links(photo_web / "crawl.warc.wat.gz")
    assert links == [(row["url"], row["caption"], row["page_url"]) for row in rows]
    trusted = image_links(photo_web / "trusted.warc.wat.gz")
    assert len(trusted) == 20
    assert {urlsplit(url).netloc for url, _, _ in trusted} == {"museum.miniweb.test"}


def test_the_same_settings_give_the_same_bytes(
    photos: Path, photo_web: Path, tmp_path: Path
) -> None:
    small_web.write(tmp_path / "again", settings_for(photos))
    small_web.write(tmp_path / "other", settings_for(photos, seed=4))
    for name in ("crawl.warc.wat.gz", "trusted.warc.wat.gz", "truth.parquet", "site.json"):
        expected = (photo_web / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == expected
        assert (tmp_path / "other" / name).read_bytes() != expected


def row_of(web: Path, kind: str) -> dict[str, Any]:
    return next(row for row in truth(web) if row["kind"] == kind)


@pytest.mark.parametrize("kind", ["clean", "noisy", "generic", "near_duplicate", "optout_page"])
def test_a_photograph_is_served_as_it_lies_there(
    kind: str, photos: Path, photo_web: Path, photo_port: int
) -> None:
    row = row_of(photo_web, kind)
    status, headers, body = get(photo_port, row["url"])
    assert (status, headers["content-type"]) == (200, "image/png")
    assert body == (photos / row["file"]).read_bytes()


def test_a_redirect_leads_to_the_photograph(photos: Path, photo_web: Path, photo_port: int) -> None:
    row = row_of(photo_web, "redirect")
    target = get(photo_port, row["url"])[1]["location"]
    assert get(photo_port, target)[2] == (photos / row["file"]).read_bytes()


def test_opt_outs_are_told(photo_web: Path, photo_port: int) -> None:
    assert "noai" in get(photo_port, row_of(photo_web, "optout_header")["url"])[1]["x-robots-tag"]
    url = urlsplit(row_of(photo_web, "robots_txt")["url"])
    assert url.path.startswith("/private/")
    assert b"Disallow: /private/" in get(photo_port, f"http://{url.netloc}/robots.txt")[2]


@pytest.mark.slow
def test_write_can_serve_at_once(photos: Path, tmp_path: Path) -> None:
    words = ["write", "--photos", str(photos), "--out", str(tmp_path / "web"), "--serve"]
    words += ["--pairs", "60", "--trusted-pairs", "5", "--fault-kinds", "html,dead_link"]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "examples/miniweb/small_web.py"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready = process.stdout.readline().split()
    kinds = Counter(row["kind"] for row in truth(tmp_path / "web"))
    status, _, _ = get(int(ready[1]), row_of(tmp_path / "web", "clean")["url"])
    process.terminate()
    _, errors = process.communicate(timeout=20)
    assert (ready[0], status, process.returncode) == ("ready", 200, 0)
    assert {"html", "dead_link"} < set(kinds)
    assert "MINIWEB=" in errors


@pytest.mark.slow
def test_the_shipped_ablation_of_photographs_runs_as_its_guide_says(tmp_path: Path) -> None:
    """The commands of docs/photographs.md, at the scale debug and without Ray."""
    make_archive(tmp_path / "cifar-10-python.tar.gz", per_class=20)
    data, out = tmp_path / "cifar", tmp_path / "out"
    environment = {k: v for k, v in os.environ.items() if k not in ("SCORER", "RAY_ADDRESS")}
    archive = tmp_path / "cifar-10-python.tar.gz"
    unpack = f"examples/miniweb/small_web.py cifar10 {archive} --out {data}"
    build = f"clipmill demo manifests/ablations/cifar10.yaml --out {out} --scale debug"
    for words in (unpack.split(), [*build.split(), "--engine", "inline"]):
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**environment, "CIFAR": str(data)},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((out / "report.json").read_text())
    assert {arm["arm"] for arm in report["arms"]} == {"raw", "clip30", "trusted"} | {
        "random_like_clip30"
    }
    kinds = Counter(row["kind"] for row in truth(out / "web"))
    assert kinds["noisy"] + kinds["generic"] == 200
    counts = json.loads((out / "pools/web/pool.json").read_text())["fetch"]
    spoilt = sum(kinds[kind] for kind in MINIWEB_FAULTS)
    assert (
        sum(counts["final"]["reasons"].values()) == spoilt - kinds["flaky503"] - kinds["redirect"]
    )
    assert counts["final"]["stored"] == 600 - sum(counts["final"]["reasons"].values())
