"""`clipmill demo`: a web around a manifest, its variables, what is refused before it is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from examples.miniweb import run
from examples.miniweb.settings import Miniweb
from manifests import disk
from tests.support import commands

ROOT = Path(__file__).resolve().parents[3]
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
