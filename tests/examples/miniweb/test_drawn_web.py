"""The small web of drawn pictures: what it holds, its WAT, its server, its command."""

from __future__ import annotations

import hashlib
import io
import json
import random
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clipmill.examples.miniweb import answers, scenes, server, small_web, web_plan
from clipmill.examples.miniweb.scenes import CLASSES, draw, scene
from clipmill.examples.miniweb.settings import MINIWEB_FAULTS, Miniweb
from clipmill.manifests import disk
from tests.support.miniwebs import SETTINGS, get, image_links, truth


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    small_web.write(folder, SETTINGS)
    return folder


@pytest.fixture(scope="module")
def port(web: Path) -> Iterator[int]:
    with small_web.running(web) as port:
        yield port


def test_a_scene_and_its_words_are_what_version_1_drew() -> None:
    """Raise DRAW_VERSION with this test: images of webs already written change with it."""
    assert scenes.DRAW_VERSION == 1
    drawn = [scene(0, "crawl", number) for number in range(3)]
    assert [(s.count, s.texture, s.colour, s.shape, s.background) for s in drawn] == GOLDEN_SCENES
    assert [web_plan.caption(s, random.Random(s.key[2])) for s in drawn] == GOLDEN_CAPTIONS


GOLDEN_SCENES = [
    (3, "striped", "purple", "flower", "checkered"),
    (1, "plain", "red", "fish", "cloudy"),
    (1, "plain", "purple", "star", "messy"),
]
GOLDEN_CAPTIONS = [
    "three purple flowers, seen at the market",
    "a small red fish in the garden",
    "a photo of a purple star on a messy desk",
]


@pytest.mark.parametrize("label", [CLASSES[9 * k] for k in range(7)])
@pytest.mark.parametrize("texture", list(scenes.TEXTURES))
def test_every_scene_can_be_drawn_and_shows_its_colour(label: str, texture: str) -> None:
    for number, background in enumerate(scenes.BACKGROUNDS):
        plain = replace(
            scene(1, "crawl", number, label=label), texture=texture, background=background
        )
        data = draw(plain)
        assert data == draw(plain), "same scene, same bytes"
        with Image.open(io.BytesIO(data)) as image:
            assert (image.format, image.mode, image.size) == (
                "JPEG",
                "RGB",
                (plain.width, plain.height),
            )
            pixels = np.asarray(image, np.float32)
        away = np.linalg.norm(pixels - np.asarray(scenes.COLOURS[plain.colour], np.float32), axis=2)
        assert (away < 100).mean() > 0.01, f"no {plain.colour} in number {number}"


def test_a_near_duplicate_is_other_bytes_that_look_the_same() -> None:
    items = {item.url: item for item in web_plan.plan(SETTINGS)}
    copies = [item for item in items.values() if item.kind == "near_duplicate"]
    assert copies
    for item in copies:
        original = items[item.original or ""]
        assert item.caption == original.caption
        assert item.url != original.url
        first, second = draw(original.scene), draw(item.scene, variant=item.variant)
        assert first != second
        with Image.open(io.BytesIO(first)) as a, Image.open(io.BytesIO(second)) as b:
            small = [np.asarray(i.resize((8, 8), Image.Resampling.BOX), np.float32) for i in (a, b)]
        assert np.abs(small[0] - small[1]).mean() < 25


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
    assert all(item.kind == "clean" and item.right for item in web_plan.trusted(SETTINGS))
    for item in items:
        assert item.right == (item.caption == item.true_caption)
        assert item.kind != "language" or item.language != "en"


def test_every_pair_of_the_truth_is_in_the_wat_once_and_in_its_order(web: Path) -> None:
    rows = truth(web)
    assert len(rows) == SETTINGS.pairs
    assert image_links(web / "crawl.warc.wat.gz") == [
        (r["url"], r["caption"], r["page_url"]) for r in rows
    ]
    assert len({r["url"] for r in rows}) == len(rows)
    assert [r["uid"] for r in rows] == [disk.uid_of(r["url"], r["caption"]) for r in rows]
    listed = pq.read_table(web / "pairs.parquet").to_pylist()
    assert [(r["url"], r["text"]) for r in listed] == [(r["url"], r["caption"]) for r in rows]


IMAGE = b"\xff\xd8" + bytes(range(256)) * 4


def answer(kind: str) -> answers.Answer:
    entry: dict[str, Any] = {"kind": kind}
    return answers.answer_of("a.test", "/go/ab/ab12.jpg", entry, lambda entry: IMAGE)


def test_every_fault_differs_from_the_image_or_its_headers() -> None:
    whole = answer("clean")
    assert whole.data.endswith(IMAGE)
    # These are told by their page, by robots.txt, by the host's memory and by the file.
    elsewhere = {"optout_page", "robots_txt", "flaky503", "thumbnail"}
    for kind in MINIWEB_FAULTS:
        assert (answer(kind) == whole) == (kind in elsewhere), kind


def urls(web: Path, kind: str) -> list[str]:
    urls = [r["url"] for r in truth(web) if r["kind"] == kind]
    assert urls, f"no {kind} on this web"
    return urls


@pytest.mark.parametrize(
    "kind", ["clean", "noisy", "generic", "near_duplicate", "thumbnail", "language", "optout_page"]
)
def test_a_picture_is_served_as_drawn(web: Path, port: int, kind: str) -> None:
    url = urls(web, kind)[0]
    planned = next(item for item in web_plan.plan(SETTINGS) if item.url == url)
    status, headers, body = get(port, url)
    assert (status, headers["content-type"]) == (200, "image/jpeg")
    assert body == draw(planned.scene, variant=planned.variant, painted=planned.painted)
    assert get(port, url)[2] == body
    sides = Image.open(io.BytesIO(body)).size
    assert (max(sides) <= 24) == (kind == "thumbnail")


def test_a_connection_is_kept_and_its_requests_are_counted(web: Path) -> None:
    clean = urls(web, "clean")
    host = urlsplit(clean[0]).netloc
    paths = [urlsplit(u).path for u in clean if urlsplit(u).netloc == host][:3]
    with (
        small_web.running(web) as port,
        socket.create_connection(("127.0.0.1", port), timeout=900) as one,
    ):
        # All requests at once on one connection: answered in order, one after the other.
        one.sendall(
            b"".join(f"GET {p}?x=1 HTTP/1.1\r\nHost: {host}:80\r\n\r\n".encode() for p in paths)
        )
        one.sendall(f"GET /_stats HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        received = b""
        while chunk := one.recv(65536):
            received += chunk
    assert received.count(b"HTTP/1.1 200 OK") == len(paths) + 1
    stats = json.loads(received.rpartition(b"\r\n\r\n")[2])
    assert stats["hosts"] == {host: {"requests": len(paths), "connections": 1, "peak": 1}}
    assert stats["requests"] == len(paths)


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
    words = ["write", "--out", str(tmp_path / "web"), "--pairs", "30", "--trusted-pairs", "0"]
    assert small_web.main([*words, "--noise=0", "--json"]) == 0
    totals = json.loads(capsys.readouterr().out)
    assert (totals["pairs"], totals["right"], totals["trusted_pairs"]) == (30, 30, 0)
    assert image_links(tmp_path / "web/trusted.warc.wat.gz") == []
