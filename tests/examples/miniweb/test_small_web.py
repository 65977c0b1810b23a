"""The small web as a command, and the held-out sets that it writes."""

from __future__ import annotations

import hashlib
import json
import socket
from pathlib import Path

import pytest

from examples.miniweb import server, small_web, web_plan
from examples.miniweb.scenes import CLASSES, draw
from manifests import disk
from tests.support.miniwebs import SETTINGS, image_links


@pytest.mark.slow
def test_held_out_pictures_are_in_no_training_pair(web: Path) -> None:
    served = {
        hashlib.sha256(draw(item.scene, variant=item.variant, painted=item.painted)).hexdigest()
        for item in [*web_plan.plan(SETTINGS), *web_plan.trusted(SETTINGS)]
    }
    held_out = [hashlib.sha256(p.read_bytes()).hexdigest() for p in (web / "eval").rglob("*.jpg")]
    assert len(set(held_out)) == len(held_out) > len(CLASSES)
    assert not served & set(held_out)


def test_a_taken_port_and_another_version_are_refused(
    web: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match="did not start"):
            small_web.start(web, taken.getsockname()[1])
    assert "cannot be served" in capfd.readouterr().err
    site = disk.read_json(web / "site.json")
    disk.write_json(tmp_path / "site.json", {**site, "version": 0})
    with pytest.raises(ValueError, match="version 0"):
        server.load(tmp_path)


def test_write_ends_with_one_json_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "write",
        "--out",
        str(tmp_path / "web"),
        "--pairs",
        "30",
        "--trusted-pairs",
        "0",
        "--noise=0",
        "--json",
    ]
    assert small_web.main(words) == 0
    totals = json.loads(capsys.readouterr().out)
    assert (totals["pairs"], totals["right"], totals["trusted_pairs"]) == (30, 30, 0)
    assert image_links(tmp_path / "web/trusted.warc.wat.gz") == []
