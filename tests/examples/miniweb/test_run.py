"""Settings of a web, and `clipmill demo`: a web around a manifest, and its variables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from clipmill.examples.miniweb import run
from clipmill.examples.miniweb.settings import WEBS, Miniweb, read_web, web_of
from clipmill.manifests import disk, reader
from clipmill.pipeline import ablation_run
from tests.support import commands


def test_paths_are_relative_to_the_file_and_a_scale_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIFAR", "cifar")
    path = tmp_path / "web.yaml"
    path.write_text(
        "photos: ${CIFAR}/train\ncaptions: ../c.csv\npairs: 2k\nscales: {debug: {pairs: 60}}\n"
    )
    photos, captions = str(tmp_path / "cifar/train"), str(tmp_path.parent / "c.csv")
    assert read_web(path) == Miniweb(photos=photos, captions=captions, pairs=2000)
    assert read_web(path, "debug").pairs == 60
    assert read_web(path, "big").pairs == 2000  # a scale of the manifest alone


@pytest.mark.parametrize("path", sorted(WEBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_web_is_that_of_an_ablation(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CIFAR", "CLOTHING"):
        monkeypatch.setenv(name, f"/given/{name.lower()}")
    manifest = Path(__file__).resolve().parents[3] / "manifests" / "ablations" / path.name
    assert web_of(str(manifest)) == path
    for scale in [None, *reader.list_scales(manifest)]:
        assert read_web(path, scale).pairs > 0
    assert set(reader.list_scales(path)) <= set(reader.list_scales(manifest))


RECIPE = """
name: small
source: {kind: wat, paths: ["${MINIWEB}/crawl.warc.wat.gz"]}
fetch:
  user_agent: "clipmill-test (+https://clipmill.example/bot)"
  image_size: 32
  rows_per_shard: 60
  allow_private: true
  connect_to: {"*.miniweb.test": "127.0.0.1:${MINIWEB_PORT}"}
filters: [caption]
views: {raw: []}
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIWEB", "before")
    monkeypatch.delenv("MINIWEB_PORT", raising=False)
    monkeypatch.setenv("SCORER", "before")  # put back after an ablation has set it


@pytest.mark.slow
def test_a_web_lends_its_variables_and_takes_them_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web = tmp_path / "web"
    settings = Miniweb(pairs=30, trusted_pairs=10, fault_kinds=("html", "dead_link"))
    with run.variables(str(web)) as port:
        assert os.environ["MINIWEB"] == str(web)
        assert int(os.environ["MINIWEB_PORT"]) == port > 0
        assert not web.exists()
        with run.served(str(web), settings, port):
            assert (web / "crawl.warc.wat.gz").exists()
    assert os.environ["MINIWEB"] == "before"
    assert "MINIWEB_PORT" not in os.environ
    output = capsys.readouterr().out
    assert f"small_web.py write --out {web} --pairs=30 --trusted-pairs=10" in output
    assert "--seed=0 --fault-kinds=html,dead_link --hosts=7\n" in output


@pytest.mark.slow
def test_a_recipe_is_built_from_a_web_of_ones_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe, web, out = tmp_path / "small.yaml", tmp_path / "web.yaml", tmp_path / "out"
    recipe.write_text(RECIPE)
    web.write_text("{pairs: 40, trusted_pairs: 0, faults: 0}")
    words = [str(recipe), "--web", str(web), "--out", str(out), "--engine", "inline"]
    assert commands.demo([*words, "--until", "fetch"]) == 0
    assert disk.read_json(out / "web" / "site.json")["settings"]["pairs"] == 40
    again = f"next: clipmill demo --web {web} {recipe} --out {out} --engine inline"
    assert capfd.readouterr().out.splitlines()[-2:] == ["  40 of 40 rows are stored", again]


TRUTH = """filters:
  - table: {paths: ["${MINIWEB}/truth.parquet"], take: {caption_right: "right:bool"}}
views: {right: [{right: caption_right}]}
"""
ABLATION = """
name: small
question: Are right captions better?
pools: {web: {recipe: small.yaml}}
arms: {right: web/right}
baseline: right
seeds: [0, 1]
train: {model: test}
evaluate: [{name: objects, kind: classification, data: "${MINIWEB}/eval/classification"}]
primary: objects
"""


@pytest.mark.slow
def test_a_recipe_joins_what_the_web_says_of_its_pairs(tmp_path: Path) -> None:
    """The filter is checked before the web is there, and again as soon as it is."""
    recipe, web, out = tmp_path / "small.yaml", tmp_path / "web.yaml", tmp_path / "out"
    recipe.write_text(RECIPE.partition("filters:")[0] + TRUTH)
    web.write_text("{pairs: 40, trusted_pairs: 0, faults: 0, noise: 0.5}")
    words = [str(recipe), "--web", str(web), "--out", str(out), "--engine", "inline"]
    assert commands.demo(words) == 0
    kept = disk.read_json(out / "pool.json")["views"]["right"]["kept"]
    assert kept == sum(pq.read_table(out / "web" / "truth.parquet")["right"].to_pylist()) > 0


def test_an_ablation_checks_what_its_filters_read_of_the_web_once_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands_run: list[str] = []

    def pretend(words: Sequence[str]) -> None:
        commands_run.append(words[0])
        disk.write_json(out / "results.json", {})

    monkeypatch.setattr(ablation_run, "run", pretend)
    monkeypatch.setattr(ablation_run, "_run_stages", lambda *_: None)
    recipe, web, out = tmp_path / "small.yaml", tmp_path / "web.yaml", tmp_path / "out"
    (tmp_path / "ablation.yaml").write_text(ABLATION)
    web.write_text("{pairs: 40, trusted_pairs: 0, faults: 0}")
    words = [str(tmp_path / "ablation.yaml"), "--web", str(web), "--engine", "inline", "--out"]
    recipe.write_text(RECIPE.partition("filters:")[0] + TRUTH)
    assert commands.demo([*words, str(out)]) == 0
    assert commands_run == ["ablate", "report"]
    recipe.write_text(RECIPE.partition("filters:")[0] + TRUTH.replace("take", "tkae"))
    assert commands.demo([*words, str(tmp_path / "other")]) == 2
    assert not (tmp_path / "other").exists(), "options are checked before the web is made"
    recipe.write_text(RECIPE.partition("filters:")[0] + TRUTH.replace("truth.p", "trust.p"))
    assert commands.demo([*words, str(tmp_path / "third")]) == 2
    assert f"there is no table at {tmp_path}/third/web/trust.parquet" in capsys.readouterr().err
    assert commands_run == ["ablate", "report"]
