"""What the small web holds: how much noise and which faults, and words in every language."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from examples.miniweb import small_web, web_plan
from examples.miniweb.scenes import CLASSES, scene
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


def test_a_noisy_caption_names_another_class() -> None:
    for item in web_plan.plan(Miniweb(pairs=400, noise=0.5, seed=2)):
        if item.kind in ("noisy", "text_in_picture"):
            caption = item.caption.lower()
            assert not (item.scene.colour in caption.split() and item.scene.shape in caption), (
                item.caption,
                item.scene.label,
            )
        if item.kind == "text_in_picture":
            assert item.painted == item.caption


def test_the_null_web_keeps_its_other_ills_but_every_caption_is_right() -> None:
    items = web_plan.plan(Miniweb(pairs=600, noise=0, seed=3))
    kinds = {item.kind for item in items}
    assert not kinds & {"noisy", "generic", "text_in_picture"}
    assert kinds >= {"clean", "near_duplicate", "thumbnail", "language", *web_plan.FAULTS}
    assert all(
        item.right and item.caption == item.true_caption and item.painted is None for item in items
    )


@pytest.mark.parametrize("noise", [0.0, 0.97])
@pytest.mark.parametrize("near_duplicates", [0.0, 0.97])
@pytest.mark.parametrize("faults", [0.0, 0.97])
@pytest.mark.parametrize("pairs", [1, 2, 3, 17])
def test_a_web_of_any_size_has_that_many_pairs(
    noise: float, near_duplicates: float, faults: float, pairs: int
) -> None:
    settings = Miniweb(pairs=pairs, noise=noise, near_duplicates=near_duplicates, faults=faults)
    items = web_plan.plan(settings)
    assert len({item.url for item in items}) == len(items) == pairs


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


@pytest.mark.parametrize(
    ("language", "count", "words"),
    [
        ("de", 1, "eine rote Blume"),
        ("de", 2, "zwei rote Blumen"),
        ("fr", 1, "une fleur rouge"),
        ("fr", 3, "trois fleurs rouges"),
        ("es", 1, "una flor roja"),
        ("es", 2, "dos flores rojas"),
        ("pl", 1, "jeden czerwony kwiat"),
        ("pl", 3, "trzy czerwone kwiaty"),
    ],
)
def test_a_caption_in_another_language_agrees_in_gender_and_number(
    language: str, count: int, words: str
) -> None:
    shown = replace(scene(0, "crawl", 0, label="red flower"), count=count)
    assert words in web_plan.translated(shown, language, random.Random(0))


def test_every_class_has_words_in_every_language() -> None:
    for language in web_plan.LANGUAGES:
        captions = {
            web_plan.translated(
                replace(scene(0, "crawl", n, label=label), count=1), language, random.Random(0)
            )
            for n, label in enumerate(CLASSES)
        }
        assert len(captions) == len(CLASSES)
