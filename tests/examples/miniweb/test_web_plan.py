"""What the small web holds: how much noise and which faults, and words in every language."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from examples.miniweb import small_web, web_plan
from examples.miniweb.settings import Miniweb
from tests.support.miniwebs import SETTINGS, image_links


def test_the_trusted_host_has_right_captions_and_no_ills(web: Path) -> None:
    links = image_links(web / "trusted.warc.wat.gz")
    planned = {item.url: item for item in web_plan.trusted(SETTINGS)}
    assert sorted(url for url, _, _ in links) == sorted(planned)
    for url, alt, page in links:
        assert urlsplit(url).netloc == urlsplit(page).netloc == "museum.miniweb.test"
        assert alt == planned[url].true_caption
        assert planned[url].kind == "clean"


def test_noise_is_the_share_of_wrong_captions_among_pairs_without_fault() -> None:
    items = web_plan.plan(Miniweb(pairs=2000, noise=0.4, near_duplicates=0.1, faults=0.08, seed=1))
    kinds = Counter(item.kind for item in items)
    assert sum(kinds[k] for k in web_plan.FAULTS) == 160
    assert all(kinds[k] == 16 for k in web_plan.FAULTS)
    others = [item for item in items if item.kind not in web_plan.FAULTS]
    assert kinds["near_duplicate"] == 184
    assert sum(not item.right for item in others) == round(0.4 * 1840)
    assert kinds["generic"] / (
        kinds["generic"] + kinds["noisy"] + kinds["text_in_picture"]
    ) == pytest.approx(0.2, abs=0.01)
    for item in items:
        assert item.right == (item.caption == item.true_caption)
        assert item.kind != "language" or item.language != "en"


def test_the_null_web_keeps_its_other_ills_but_every_caption_is_right() -> None:
    items = web_plan.plan(Miniweb(pairs=600, noise=0, seed=3))
    kinds = {item.kind for item in items}
    assert not kinds & {"noisy", "generic", "text_in_picture"}
    assert kinds >= {"clean", "near_duplicate", "thumbnail", "language", *web_plan.FAULTS}
    assert all(
        item.right and item.caption == item.true_caption and item.painted is None for item in items
    )


@pytest.mark.slow
def test_everything_follows_from_the_seed(web: Path, tmp_path: Path) -> None:
    def hashes(folder: Path) -> dict[str, str]:
        files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
        return {
            str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
        }

    small_web.write(tmp_path / "same", SETTINGS)
    small_web.write(tmp_path / "other", replace(SETTINGS, seed=6))
    first, same, other = hashes(web), hashes(tmp_path / "same"), hashes(tmp_path / "other")
    assert first == same
    assert set(first) == set(other)
    assert not [name for name in first if first[name] == other[name]]
