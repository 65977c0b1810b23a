"""A web of photographs: its sources, its plan, its files and answers, the shipped ablations."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clipmill.examples.miniweb import cifar_archive, labelled_photos, photo_plan, small_web
from clipmill.examples.miniweb.labelled_photos import LabelledPhoto
from clipmill.examples.miniweb.links import TRUSTED
from clipmill.examples.miniweb.settings import MINIWEB_FAULTS, Miniweb
from tests.support.miniwebs import get, truth
from tests.support.photo_folders import make_archive, make_folder


class _Call:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("print('it was called')",)


def test_a_pickle_that_calls_something_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "batches.meta").write_bytes(pickle.dumps(_Call()))
    words = ["cifar10", str(tmp_path), "--out", str(tmp_path / "out")]
    assert small_web.main(words) == 2
    streams = capsys.readouterr()
    assert "batches.meta cannot be read as a pickle of arrays" in streams.err
    assert "builtins.eval" in streams.err
    assert "it was called" not in streams.out


def test_the_first_test_photographs_have_captions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_archive(tmp_path / "cifar-10-python.tar.gz", per_class=3)
    monkeypatch.setattr(cifar_archive, "CAPTIONED", 1)
    counts = cifar_archive.unpack(tmp_path / "cifar-10-python.tar.gz", tmp_path / "cifar")
    lines = (tmp_path / "cifar" / "test" / "captions.csv").read_text().splitlines()
    assert counts["test"] > len(lines) - 1 == 3
    assert lines[1].startswith("apple/0000.png,")
    assert lines[1].endswith("an apple")


def test_the_folder_of_an_image_names_what_it_shows(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", 4)
    (root / "apple" / "notes.txt").write_text("no image")
    (root / "above.jpg").write_bytes(b"in no class")
    photos = labelled_photos.read_photos(root, None, seed=1)
    assert [photo.file for photo in photos[:2]] == ["apple/0000.jpg", "apple/0001.jpg"]
    assert len(photos) == 12
    for photo in photos:
        assert photo.caption.endswith(labelled_photos.named(photo.label))
    assert len({photo.caption for photo in photos if photo.label == "apple"}) > 1
    assert photos == labelled_photos.read_photos(root, None, seed=1)
    assert photos != labelled_photos.read_photos(root, None, seed=2)
    assert labelled_photos.named("apple") == "an apple"
    assert labelled_photos.named("fire_truck") == "a fire truck"


def test_a_csv_has_captions_and_perhaps_labels(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", 1)
    table = tmp_path / "captions.csv"
    table.write_text("file,caption\nsky/0000.jpg,blue above\nfrog/0000.jpg,a green one\n")
    photos = labelled_photos.read_photos(root, table, seed=0)
    assert [(p.file, p.caption, p.label) for p in photos] == [
        ("frog/0000.jpg", "a green one", "a green one"),
        ("sky/0000.jpg", "blue above", "blue above"),
    ]
    table.write_text("file,caption,label\nsky/0000.jpg,blue above,sky\n")
    assert labelled_photos.read_photos(root, table, seed=0)[0].label == "sky"


def test_photographs_are_divided_once_and_for_all(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", 4)
    files = [path.relative_to(root) for path in sorted(root.rglob("*.jpg"))]
    # Files of different folders have the same name.
    rows = [f"{file},{'RED' if 'apple' in str(file) else 'cool'}" for file in files]
    labels = tmp_path / "labels.csv"
    parts = []
    for number, order in enumerate((rows, rows[::-1])):
        labels.write_text("\n".join(["file,label", *order]) + "\n")
        out = tmp_path / f"out{number}"
        with pytest.raises(ValueError, match=r"test is 12; .* names 12 photographs"):
            labelled_photos.divide(root, labels, out, test=12, seed=3)
        assert labelled_photos.divide(root, labels, out, test=5, seed=3) == 7
        parts.append({p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*.jpg")})
    assert parts[0] == parts[1]
    assert len(parts[0]) == 12
    assert sum(name.startswith("test/") for name in parts[0]) == 5
    with pytest.raises(ValueError, match="exists already"):
        labelled_photos.divide(root, labels, tmp_path / "out0", test=4, seed=4)


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


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"), 40, suffix=".png")


def settings_for(photos: Path, **changes: Any) -> Miniweb:
    return Miniweb(
        photos=str(photos), pairs=220, trusted_pairs=20, near_duplicates=0.1, faults=0.4,
        fault_kinds=MINIWEB_FAULTS, **{"seed": 3, **changes},
    )  # fmt: skip


@pytest.fixture(scope="module")
def photo_web(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    small_web.write(folder, settings_for(photos))
    return folder


@pytest.fixture(scope="module")
def photo_port(photo_web: Path) -> Iterator[int]:
    with small_web.running(photo_web) as port:
        yield port


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
