"""Known-bad content never reaches a disk or a log: 50 of 50 images, by their bytes and by their
look."""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.hashes import phash
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline import recipe_run
from clipmill.pipeline.planning.plan_files import plan_json
from tests.support.commit_records import read_commit_records
from tests.support.sidecars import read_sidecar

BAD, GOOD = 50, 12
NEEDLE = 48  # bytes of an image that are looked for, from its end, behind the tables


def drawn(seed: int, side: int = 48) -> Image.Image:
    """Smooth noise: no two are alike, and all survive JPEG."""
    cells = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(cells).resize((side, side), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, "JPEG", **options)
    return sink.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every temporary file stays here, under a name, also what is unlinked while it is used."""
    kept = tmp_path / "searched" / "tmp"
    kept.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(kept))
    monkeypatch.setattr(tempfile, "tempdir", str(kept))
    names = iter(range(1000))

    def named(*_: Any, **__: Any) -> Any:
        return (kept / f"spool-{next(names)}").open("w+b")

    monkeypatch.setattr(tempfile, "TemporaryFile", named)
    return tmp_path / "searched"


def build(folder: Path, bodies: list[bytes], lines: list[str], **settings: Any) -> str:
    """A pool of bodies, whose files lie beside the folder, with a list of known-bad content."""
    source = folder.parent / "source"
    source.mkdir(exist_ok=True)
    for i, body in enumerate(bodies):
        (source / f"{i}.jpg").write_bytes(body)
    rows = "\n".join(f"{i}.jpg,image {i}" for i in range(len(bodies)))
    (source / "captions.csv").write_text(f"file,caption\n{rows}\n")
    (folder / "bad.txt").write_text("\n".join(lines))
    recipe = Recipe(
        name="watched",
        source=Source(kind="files", paths=(str(source / "captions.csv"),)),
        fetch=Fetch(known_bad=str(folder / "bad.txt"), **settings),
    )
    pool = str(folder / "pool")
    recipe_run.build(recipe, pool, engine="inline", until="fetch")
    return pool


def rows_of(pool: str) -> dict[str, dict[str, Any]]:
    rows = {}
    for shard in read_commit_records(pool):
        for row in read_sidecar(pool, shard).to_pylist():
            rows[row["caption"]] = row
    return rows


def traces(folder: Path, text: str, body: bytes) -> list[str]:
    """Files, and "log", that hold a part of an image: its bytes, base64 or hex."""
    start = (len(body) - NEEDLE - 4) // 3 * 3  # base64 of a part from there is part of the whole
    part = body[start : start + NEEDLE]
    needles = [part, base64.b64encode(part), part.hex().encode()]
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and any(needle in path.read_bytes() for needle in needles):
            found.append(str(path))
    return found + ["log" for needle in needles if needle in text.encode()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sha256", "perceptual", "perceptual as it is"])
def test_no_known_bad_image_is_written(
    folder: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    caplog.set_level(logging.DEBUG)
    images = [drawn(i) for i in range(BAD + GOOD)]
    if kind == "sha256":
        bodies = [encoded(image) for image in images]
        lines = [hashlib.sha256(body).hexdigest() for body in bodies[:BAD]]
        settings: dict[str, Any] = {"image_size": 32}
    else:  # listed from the drawing, and found in a larger copy of low quality
        bodies = [encoded(image.resize((90, 90)), quality=60) for image in images]
        lines = [f"{phash(image) % 2**64:016x}" for image in images[:BAD]]
        settings = {"disable_all_reencoding": kind.endswith("as it is"), "phash_distance": 8}
    pool = build(folder, bodies, lines, **settings)
    rows = rows_of(pool)
    outcomes = [rows[f"image {i}"] for i in range(BAD + GOOD)]
    assert [row["reason"] for row in outcomes] == ["known_bad"] * BAD + [None] * GOOD
    assert {row["class"] for row in outcomes[:BAD]} == {"refused"}
    assert not any(row["sha256"] or row["width"] for row in outcomes[:BAD])
    captured = capfd.readouterr()
    text = caplog.text + captured.out + captured.err
    assert sum(bool(traces(folder, text, body)) for body in bodies[:BAD]) == 0
    whole = bodies[BAD:] if kind != "perceptual" else []
    if kind == "perceptual as it is":  # the search finds what is there
        assert all(traces(folder, text, body) for body in whole)


def test_the_list_is_part_of_what_the_pool_is(folder: Path) -> None:
    bodies = [encoded(drawn(i)) for i in range(3)]
    lines = [hashlib.sha256(bodies[0]).hexdigest()]
    pool = build(folder, bodies, lines)
    moved = build(folder, bodies, ["# the same list", *lines])
    assert moved == pool
    stored = disk.read_bytes(plan_json(PoolLayout(pool).plan_round(0))).decode()
    assert "known_bad" in stored
    assert "bad.txt" not in stored
    with pytest.raises(ValueError, match=r"fetch\.known_bad was .* and is "):
        build(folder, bodies, [*lines, "0" * 64])


def test_a_damaged_list_is_refused_before_anything_is_read(folder: Path) -> None:
    with pytest.raises(ValueError, match="line 1 is 'nonsense'"):
        build(folder, [encoded(drawn(0))], ["nonsense"])
    assert not list(folder.glob("pool/shards/*.tar"))
