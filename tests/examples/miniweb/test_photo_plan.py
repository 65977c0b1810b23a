"""What a web of photographs holds: as many faults and wrong captions as its settings say."""

from __future__ import annotations

from collections import Counter

import pytest

from examples.miniweb import photo_plan
from examples.miniweb.labelled_photos import LabelledPhoto
from examples.miniweb.links import ROBOTS_HOST, TRUSTED
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


def test_a_duplicate_is_the_same_file_elsewhere() -> None:
    links, _ = photo_plan.plan(PHOTOS, Miniweb(photos="/p", pairs=600, **SHARES, trusted_pairs=0))
    by_url = {link.url: link for link in links}
    copies = [link for link in links if link.kind == "near_duplicate"]
    for copy in copies:
        assert copy.original is not None
        original = by_url[copy.original]
        assert (copy.file, copy.caption) == (original.file, original.caption)
        assert copy.url != original.url
    assert len({copy.original for copy in copies}) == len(copies) == 100


def test_fault_kinds_hosts_and_seed_are_chosen() -> None:
    kinds = ("thumbnail", "robots_txt", "optout_page")
    settings = Miniweb(
        photos="/p", pairs=300, trusted_pairs=10, faults=0.5, noise=0.2, near_duplicates=0,
        fault_kinds=kinds, hosts=2,
    )  # fmt: skip
    links, _ = photo_plan.plan(PHOTOS, settings)
    counts = Counter(link.kind for link in links)
    assert [counts[kind] for kind in kinds] == [50, 50, 50]
    for link in links:
        if link.kind == "robots_txt":
            assert link.host == ROBOTS_HOST
            assert link.path.startswith("/private/")
    assert len({link.host for link in links if link.kind != "robots_txt"}) == 3, "and the CDN"
    assert links == photo_plan.plan(PHOTOS, settings)[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trusted_pairs": 800}, "trusted_pairs is 800, but there are 800 photographs"),
        (
            {"faults": 0.7, "trusted_pairs": 9},
            r"faults 0\.7 and noise 0\.4 are more than 1 together",
        ),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        photo_plan.plan(PHOTOS, Miniweb(photos="/p", **change))
