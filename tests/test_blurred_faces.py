"""The commands of docs/consent.md that blur faces: one build finds them, the next blurs them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clipmill.manifests.layout import PoolLayout
from tests.filters.test_faces import model
from tests.support import pages
from tests.support.sidecars import read_sidecar
from tests.support.web_files import FileServer

pytest.importorskip("onnxruntime")

SIDE = 64
BOX = [0.25, 0.25, 0.75, 0.5]  # of the detector, in bright images only


def noise(low: int) -> np.ndarray:
    return np.random.default_rng(low).integers(low, low + 56, (SIDE, SIDE, 3), np.uint8)


IMAGES = {"bright": noise(199), "dark": noise(0)}


def png(pixels: np.ndarray) -> bytes:
    body = io.BytesIO()
    Image.fromarray(pixels).save(body, "PNG")
    return body.getvalue()


def stored(pool: str) -> dict[str, tuple[str, np.ndarray]]:
    """{name in the URL: (uid, pixels)} of a pool."""
    layout, images = PoolLayout(pool), {}
    for row in read_sidecar(pool, 0).to_pylist():
        assert row["status"] == "success", row
        tar = Path(layout.root, "shards", "00000.tar").read_bytes()
        data = tar[row["image_offset"] : row["image_offset"] + row["image_length"]]
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), np.int64)
        images[row["url"].rpartition("/")[2].partition(".")[0]] = (row["uid"], pixels)
    return images


@pytest.mark.slow
def test_the_faces_of_one_pool_are_blurred_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scores, boxes = np.zeros((1, 1, 2)), np.array([[BOX]])
    model(tmp_path / "detector.onnx", {"scores": scores, "boxes": boxes}, follows="scores")
    Path("pairs.csv").write_text(
        "url,caption\nhttp://faces.test/bright.png,a face\nhttp://faces.test/dark.png,night\n"
    )
    files = {f"/{name}.png": png(pixels) for name, pixels in IMAGES.items()}
    with FileServer(files, ranges=False) as server:
        address = server.base.removeprefix("http://").rstrip("/")
        local = (
            f", encode_format: png, encode_quality: 9, image_size: {SIDE}"
            ", robots_txt: false, site_files: []"
            f', allow_private: true, connect_to: {{"*.test": "{address}"}}'
        )
        agent = 'user_agent: "mylab/1.0 (+https://mylab.example/bot)"'
        names = pages.write_files("docs/consent.md", tmp_path, {agent: agent + local})
        assert names == ["faces.yaml", "blurred.yaml"]
        lines = pages.runnable("docs/consent.md")
        assert len(lines) == 3
        for line in lines:
            assert pages.run_command(line) == 0, line
    before, after = stored("out/faces"), stored("out/blurred")
    assert {name: uid for name, (uid, _) in before.items()} == {
        name: uid for name, (uid, _) in after.items()
    }
    for name, pixels in IMAGES.items():
        np.testing.assert_array_equal(before[name][1], pixels)
    np.testing.assert_array_equal(after["dark"][1], IMAGES["dark"])  # no face, nothing changes
    left, top, right, bottom = (round(SIDE * share) for share in BOX)
    blurred = after["bright"][1]
    inside = np.s_[top:bottom, left:right]
    assert blurred[inside].std() < 0.25 * IMAGES["bright"][inside].std()
    changed = (blurred != IMAGES["bright"]).any(axis=2)
    assert changed[inside].mean() > 0.9
    # Edges of the mask reach over the box by a quarter of its longer side
    assert not changed[: top - 9].any()
    assert not changed[bottom + 9 :].any()
    assert not changed[:, : left - 9].any()
    assert not changed[:, right + 9 :].any()
