"""The other engine: what img2dataset leaves becomes our shard, whatever it does.

A stand-in with its layout takes its place, so that no package is needed; one test runs the real one
where it is.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import sys
import tarfile
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline import recipe_run
from clipmill.pipeline.external import img2dataset
from clipmill.pipeline.external.img2dataset import outcomes, success
from tests.support.commit_records import read_commit_records
from tests.support.loopback_server import serving
from tests.support.other_tars import pack, picture, rows, take
from tests.support.sidecars import read_sidecar

AGENT = "tester/1.0 (+https://example.org/bot)"
STAND_IN = """
import io, json, os, signal, sys, tarfile, time
import pyarrow as pa, pyarrow.parquet as pq

STATUS = {"404": "HTTP Error 404: Not Found", "late": "timed out",
          "odd": "OpenCV: !buf.empty()\\n in x"}

def download(
    url_list, output_folder, encode_format="jpg", number_sample_per_shard=10000,
    compute_hash="sha256", **more
):
    rows = pq.read_table(url_list).to_pylist()
    options = {"encode_format": encode_format, "compute_hash": compute_hash, **more}
    with open(os.environ["STAND_IN_LOG"], "a") as log:
        call = {"rows": rows, "options": options, "samples": number_sample_per_shard}
        log.write(json.dumps(call) + "\\n")
    names = [row["url"].rpartition("/")[2] for row in rows]
    print("taking", len(rows), "rows")
    if "hang" in names:
        print("a worker died", flush=True)
        time.sleep(600)
    if "crash" in names:
        raise MemoryError("out of memory")
    os.makedirs(output_folder)
    if "nothing" in names:
        return
    table = []
    with tarfile.open(output_folder + "/00000.tar", "w") as tar:
        for i, (row, name) in reversed(list(enumerate(zip(rows, names)))):
            key = f"{i:09d}"
            told = {"url": row["url"], "key": key, "status": "success", "error_message": None,
                    compute_hash: "ab" * 32}
            told |= {"width": None, "height": None, "original_width": None, "original_height": None}
            if name in STATUS:
                told |= {"status": "failed_to_resize" if name == "odd" else "failed_to_download"}
                told |= {"error_message": STATUS[name], compute_hash: None}
            elif name != "untold":
                with open(os.environ["STAND_IN_PICTURES"] + "/" + name, "rb") as f:
                    data = f.read()
                if not more.get("disable_all_reencoding"):
                    told |= {"width": 6, "height": 4, "original_width": 60, "original_height": 40}
                info = tarfile.TarInfo(f"{key}.{encode_format}")
                info.size, info.mtime, info.uname = len(data), int(time.time()), "bigdata"
                if name != "lost.jpg":
                    tar.addfile(info, io.BytesIO(data))
            if name != "untold":
                table.append(told)
    columns = ["width", "height", "original_width", "original_height"]
    schema = pa.schema([("url", pa.string()), ("key", pa.string()), ("status", pa.string()),
        ("error_message", pa.string()), (compute_hash, pa.string()), *((c,
        pa.int32()) for c in columns)])
    pq.write_table(pa.Table.from_pylist(table, schema), output_folder + "/00000.parquet")
    with open(output_folder + "/00000_stats.json", "w") as f:
        json.dump({"count": len(rows)}, f)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter that has a package img2dataset 1.47.0 of our making."""
    package = tmp_path / "other/img2dataset"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    about = tmp_path / "other/img2dataset-1.47.0.dist-info/METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: img2dataset\nVersion: 1.47.0\n")
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    files = {"a.jpg": picture(shade=1), "b.jpg": picture(shade=2), "g.gif": picture(kind="GIF")}
    for name, data in (files | {"lost.jpg": b"x", "page.jpg": b"<html>gone</html>"}).items():
        (pictures / name).write_bytes(data)
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log.jsonl"))
    monkeypatch.setenv("STAND_IN_PICTURES", str(pictures))
    python = tmp_path / "other/python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{package.parent}" exec "{sys.executable}" "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return str(python)


def recipe(folder: Path, python: str | None, rows: list[dict[str, Any]], **fetch: Any) -> Recipe:
    extra = {"boxes": "json", "wanted": "string"} if "boxes" in rows[0] else {}
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    disk.write_bytes(folder / "list.jsonl", lines.encode())
    source = Source(kind="table", paths=(str(folder / "list.jsonl"),), extra_columns=extra)
    manners = {"allow_private": True, "robots_txt": False, "site_files": (), "user_agent": AGENT}
    settings = Fetch(engine="img2dataset", img2dataset_python=python, **(manners | fetch))
    return Recipe(name="t", source=source, fetch=settings)


def build(
    folder: Path, python: str, *names: str, **fetch: Any
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Totals, and the rows of the sidecars by the last part of their url, or the url itself where
    it was given whole.
    """
    rows = []
    for name in names:
        url = name if ":" in name else f"http://h.test/{name}"
        rows.append({"url": url, "caption": f"of {name}"})
    asked = recipe(folder, python, rows, **fetch)
    totals = recipe_run.build(asked, str(folder / "pool"), engine="inline", until="fetch")
    return totals, read(folder / "pool")


def read(pool: Path) -> dict[str, dict[str, Any]]:
    tables = [read_sidecar(str(pool), name).to_pylist() for name in read_commit_records(str(pool))]
    return {row["url"].removeprefix("http://h.test/"): row for table in tables for row in table}


def calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_its_shards_become_ours(tmp_path: Path, stand_in: str) -> None:
    """What we refuse is never given to it. The same answers make the same bytes."""
    asked = ["a.jpg", "404", "b.jpg", "late", "odd", "lost.jpg"]
    refused = {"http://h.test:22/x.jpg": "port", "http://169.254.169.254/x": "private_address"}
    totals, by_url = build(tmp_path, stand_in, *asked, *refused)
    assert totals["failed"] == {}
    reasons = {name: row["reason"] for name, row in by_url.items()}
    assert reasons == refused | {
        "a.jpg": None, "b.jpg": None, "404": "http_4xx", "late": "deadline", "odd": "empty",
        "lost.jpg": "missing_file",
    }  # fmt: skip
    [record] = read_commit_records(str(tmp_path / "pool")).values()
    assert (record.engine, record.engine_version) == ("img2dataset", "1.47.0")
    assert record.count == record.successes + sum(record.reasons.values()) == len(reasons)
    failed = by_url["404"]
    assert (failed["http_status"], failed["error_message"]) == (404, "HTTP Error 404: Not Found")
    assert by_url["odd"]["error_message"] == "OpenCV: !buf.empty() in x"
    row = by_url["b.jpg"]
    assert (row["width"], row["original_width"], row["sha256"]) == (6, 60, "ab" * 32)
    uid = disk.uid_of("http://h.test/b.jpg", "of b.jpg")
    assert (row["caption"], row["uid"]) == ("of b.jpg", uid)
    tar = tmp_path / "pool/shards/00000.tar"
    with tarfile.open(tar) as opened:
        members = opened.getmembers()
    samples = sorted(by_url[name]["key"] for name in ("a.jpg", "b.jpg"))
    assert [m.name[:9] for m in members] == [key for key in samples for _ in range(3)]
    assert {(m.mtime, m.uname) for m in members} == {(0, "")}
    assert tar.read_bytes()[row["image_offset"] :][: row["image_length"]] == picture(shade=2)
    [call] = calls(tmp_path)
    in_order = sorted((by_url[name] for name in asked), key=lambda r: str(r["key"]))
    assert [r["url"] for r in call["rows"]] == [r["url"] for r in in_order]
    assert call["samples"] == 10_000
    (tmp_path / "two").mkdir()
    build(tmp_path / "two", stand_in, *asked, *refused)
    [second] = read_commit_records(str(tmp_path / "two/pool")).values()
    assert second.tar_sha256 == record.tar_sha256
    # `wat` is the list's name, which is the same; fetched_at is not part of the hash
    assert second.sidecar_sha256 == record.sidecar_sha256


@pytest.mark.slow
def test_options_go_by_name(tmp_path: Path, stand_in: str) -> None:
    fetch: dict[str, Any] = {
        "image_size": 64, "resize_mode": "border", "resize_only_if_bigger": False,
        "upscale_interpolation": "cubic",
        "downscale_interpolation": "linear", "encode_format": "webp", "encode_quality": 80,
        "skip_reencode": False,
        "min_image_size": 3, "max_image_area": 5000, "max_aspect_ratio": 4.0,
        "extract_exif": True, "retries": 3,
        "compute_hash": "md5", "concurrency": 17, "deadline_s": 7.5,
    }  # fmt: skip
    build(tmp_path, stand_in, "a.jpg", **fetch)
    [call] = calls(tmp_path)
    given = call["options"]
    renamed = {"thread_count": fetch.pop("concurrency"), "timeout": fetch.pop("deadline_s")}
    assert fetch.items() | renamed.items() <= given.items()
    assert given["user_agent_token"] == "tester"
    refusals = {"noai", "noimageai", "noindex", "noimageindex"}
    assert set(given["disallowed_header_directives"]) > refusals
    assert (given["output_format"], given["processes_count"]) == ("webdataset", 1)
    row = read(tmp_path / "pool")["a.jpg"]
    assert (row["image_name"], row["md5"], row["sha256"]) == ("000000000.webp", "ab" * 32, None)


@pytest.mark.slow
def test_boxes_and_hashes_travel_beside_the_url(tmp_path: Path, stand_in: str) -> None:
    asked = [("a.jpg", [[0, 0, 0.5, 0.5]], " AB "), ("b.jpg", None, None), ("404", [[3]], "cd")]
    rows = []
    for name, boxes, wanted in asked:
        row = {"url": f"http://h.test/{name}", "caption": "c", "boxes": boxes, "wanted": wanted}
        rows.append(row)
    made = recipe(tmp_path, stand_in, rows, bbox_column="boxes", verify_hash=("wanted", "sha256"))
    recipe_run.build(made, str(tmp_path / "pool"), engine="inline", until="fetch")
    [call] = calls(tmp_path)
    assert sorted(call["rows"], key=lambda r: str(r["url"])) == [
        {"url": "http://h.test/a.jpg", "bbox": [[0.0, 0.0, 0.5, 0.5]], "expected": "ab"},
        {"url": "http://h.test/b.jpg", "bbox": [], "expected": ""},
    ]
    assert call["options"]["bbox_col"] == "bbox"
    assert call["options"]["verify_hash"] == ["expected", "sha256"]
    inputs = read(tmp_path / "pool")
    assert inputs["404"]["reason"] == "bad_bbox"
    assert inputs["a.jpg"]["wanted"] == " AB "


@pytest.mark.slow
def test_what_it_stores_unread_is_looked_at(tmp_path: Path, stand_in: str) -> None:
    _, by_url = build(tmp_path, stand_in, "a.jpg", "page.jpg", "g.gif", disable_all_reencoding=True)
    assert {name: row["reason"] for name, row in by_url.items()} == {
        "a.jpg": None, "page.jpg": "not_an_image", "g.gif": None,
    }  # fmt: skip
    assert (by_url["a.jpg"]["width"], by_url["a.jpg"]["original_height"]) == (6, 4)
    assert by_url["g.gif"]["image_name"].endswith(".gif")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hang", r"was ended after 9 s for 1 rows; its last lines: taking 1 rows \| a worker died"),
        ("crash", r"left no shard and ended with status 1; .*MemoryError: out of memory"),
        ("nothing", r"left no shard and ended with status 0; its last lines: taking 1 rows"),
        ("untold", r"img2dataset lists 0 of 1 rows, 0 in all"),
    ],
)
def test_a_run_that_leaves_no_shard_fails_its_ticket(
    tmp_path: Path, stand_in: str, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setattr(img2dataset, "START_S", 9.0 if name == "hang" else 60.0)
    totals, by_url = build(tmp_path, stand_in, name, retries=0, deadline_s=0.1)
    [problem] = totals["failed"].values()
    assert by_url == {}
    assert re.search(message, problem), problem


def test_a_recipe_that_asks_too_much_is_told_all_of_it() -> None:
    with pytest.raises(
        ValueError,
        match=r"less than this recipe asks; set allow_private: true \(.*robots_txt: false \(",
    ):
        img2dataset.check_img2dataset(Fetch(user_agent=AGENT), "table")
    done = {"allow_private": True, "robots_txt": False, "site_files": ()}
    img2dataset.check_img2dataset(Fetch(user_agent=AGENT, **done), "table")
    for more, message in (
        ({"delay_s": 1.0}, r"delay_s: 0\.0 \(it waits"),
        ({"connect_to": {"a.test": "127.0.0.1:1"}}, r"connect_to: \{\} \("),
        ({"optout": "strict"}, r"optout: respect \("),
        ({"optout": ("train-ai",)}, r"optout: respect \("),
        ({"verify_hash": ("x", "md5")}, r"compute_hash: md5 \("),
    ):
        with pytest.raises(ValueError, match=message):
            img2dataset.check_img2dataset(Fetch(user_agent=AGENT, **done, **more), "wat")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a source of kind files has none"):
        img2dataset.check_img2dataset(Fetch(**done), "files")


def test_without_the_package_one_line_says_what_to_do(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    for program in (str(python), str(tmp_path / "none")):
        with pytest.raises(
            ValueError,
            match=rf"{program} has no img2dataset: pip install .* or name its interpreter",
        ):
            img2dataset.version_of(program)


# --- the real one ---------------------------------------------------------------------------------


def test_the_real_one(tmp_path: Path) -> None:
    python = os.environ.get("CLIPMILL_IMG2DATASET_PYTHON")
    if not python:
        pytest.skip("CLIPMILL_IMG2DATASET_PYTHON names no interpreter that has img2dataset")
    sink = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").resize((400, 300)).save(sink, "JPEG")
    bodies = {"/a.jpg": sink.getvalue(), "/page.jpg": b"<html></html>", "/empty.jpg": b""}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args: object) -> None: ...

    with serving(Handler) as port:
        names = ["a.jpg", "page.jpg", "empty.jpg", "gone.jpg"]
        urls = [f"http://127.0.0.1:{port}/{name}" for name in names]
        _, by_url = build(tmp_path, python, *urls, image_size=64, allow_ports=(port,), retries=0)
    rows = [by_url[url] for url in urls]
    assert [row["reason"] for row in rows] == [None, "decode_error", "empty", "http_4xx"]
    assert (rows[0]["width"], rows[0]["height"], rows[0]["original_width"]) == (85, 64, 400)
    assert rows[0]["sha256"] == hashlib.sha256(sink.getvalue()).hexdigest()


def test_every_row_has_one_outcome(tmp_path: Path) -> None:
    pack(tmp_path / "out/00000.tar", [("000000000.jpg", b"zero"), ("000000002.jpg", b"two")])
    table = []
    for number in (2, 0, 1, 3):
        row = {"key": f"{number:09d}", "status": "success", "error_message": None, "width": 3}
        if number == 1:
            row |= {"status": "failed_to_download", "error_message": "HTTP Error 404:\nNot Found"}
        table.append(row)
    disk.write_parquet(tmp_path / "out/00000.parquet", pa.Table.from_pylist(table))
    by_row = dict(outcomes(tmp_path, Fetch(), 4))
    assert [by_row[k][1] for k in range(4)] == [b"zero", None, b"two", None]
    assert by_row[1][0] == {
        "reason": "http_4xx", "error_message": "HTTP Error 404: Not Found", "http_status": 404,
    }  # fmt: skip
    assert by_row[3][0]["reason"] == "missing_file"
    assert by_row[0][0]["width"] == 3


def test_bytes_that_nobody_decoded_are_checked_here() -> None:
    settings = Fetch(disable_all_reencoding=True)
    columns, image, extension = success(picture(6, 4, "PNG"), {}, settings)
    assert (columns["width"], columns["height"], extension) == (6, 4, "png")
    assert image == picture(6, 4, "PNG")
    columns, image, _ = success(b"<html>", {}, settings)
    assert (columns["reason"], image) == ("not_an_image", None)


MESSAGES = [
    ("HTTP Error 503: Service Unavailable", "http_5xx"),
    ("HTTP Error 429: Too Many Requests", "http_429"),
    ("<urlopen error [Errno -2] Name or service not known>", "dns"),
    ("<urlopen error timed out>", "deadline"),
    ("<urlopen error [Errno 111] Connection refused>", "connect"),
    ("<urlopen error [SSL: CERTIFICATE_VERIFY_FAILED]>", "tls"),
    ("[Errno 104] Connection reset by peer", "reset"),
    ("Use of image disallowed by X-Robots-Tag directive", "optout_header"),
    ("image too small", "too_small"),
    ("hash mismatch", "hash_mismatch"),
    (
        "HTTP Error 302: The HTTP server returned a redirect error that would lead to",
        "redirects",
    ),
    ("HTTP Error 302: Found - Redirection to url 'file:///x' is not allowed", "redirects"),
    ("OpenCV(4.14.0) error: (-215:Assertion failed) !buf.empty() in function 'imdecode_'", "empty"),
    ("a wording that is new", "http_other"),
]


def test_messages_of_img2dataset_have_a_reason(tmp_path: Path) -> None:
    listed = []
    for number, (message, reason) in enumerate(MESSAGES):
        status = "failed_to_resize" if reason == "too_small" else "failed_to_download"
        row = {"key": f"{number}", "url": f"u{number}", "caption": None, "status": status}
        listed.append(row | {"error_message": message})
    disk.write_parquet(tmp_path / "x.parquet", pa.Table.from_pylist(listed))
    take(tmp_path / "pool", pack(tmp_path / "x.tar", []))
    left = rows(tmp_path / "pool")
    assert [(row["error_message"], row["reason"]) for row in left] == MESSAGES
    assert [row["status"] for row in left] == [row["status"] for row in listed]
