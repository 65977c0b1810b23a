"""What a web of photographs holds: as many faults and wrong captions as its settings say."""

from __future__ import annotations

from collections import Counter

import pytest

from examples.miniweb import photo_plan
from examples.miniweb.labelled_photos import LabelledPhoto
from examples.miniweb.links import TRUSTED
from examples.miniweb.settings import Miniweb

PHOTOS = [
    LabelledPhoto(file=f"{label}/{n:03d}.PNG", caption=f"a photo of a {label}", label=label)
    for label in ("cat", "dog", "frog", "ship")
    for n in range(200)
]
# Those of manifests/ablations/cifar10.yaml
SHARES = {"noise": 0.4, "near_duplicates": 0.2, "faults": 0.1}


def test_shares_are_those_of_the_settings() -> None:
    settings = Miniweb(photos="/p", pairs=1200, trusted_pairs=100, **SHARES)
    links, trusted = photo_plan.plan(PHOTOS, settings)
    kinds = Counter(link.kind for link in links)
    assert len(links) == 1200
    assert kinds["near_duplicate"] == 200
    assert sum(kinds[kind] for kind in photo_plan.FAULTS) == 100
    assert {kinds[kind] for kind in photo_plan.FAULTS} == {7, 8}
    assert kinds["noisy"] + kinds["generic"] == 400
    assert kinds["generic"] == 80
    assert len({link.url for link in [*links, *trusted]}) == 1300
    for link in [*links, *trusted]:
        if link.kind in ("clean", *photo_plan.FAULTS):
            assert link.right
        assert link.path.endswith(".png")
        assert link.right == (link.caption == link.true_caption), "one caption a class here"
    noisy = [link for link in links if link.kind == "noisy"]
    assert sum(link.right for link in noisy) / len(noisy) == pytest.approx(0.25, abs=0.08)


def test_the_trusted_photographs_are_not_on_the_web() -> None:
    settings = Miniweb(photos="/p", pairs=1600, trusted_pairs=200, **SHARES)
    links, trusted = photo_plan.plan(PHOTOS, settings)
    files = {link.file for link in trusted}
    assert len(files) == 200
    assert {(link.host, link.kind) for link in trusted} == {(TRUSTED, "clean")}
    assert not files & {link.file for link in links}
    first = Counter(link.file for link in links if link.original is None)
    assert len(first) == 600, "every other photograph"
    assert set(first.values()) == {2, 3}, "in rounds: 1,333 links"
