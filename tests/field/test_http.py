"""Answers of servers and archived pages of public reports, rebuilt small: each ends as a browser or
curl would have it, or under a reason that names it.

The right outcome of a row was written down before it was run.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import socket
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import brotli
import pytest
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.schema import Source
from clipmill.pipeline.archives.warc import pairs_of_warc_record
from clipmill.pipeline.archives.wat import batches_of_wat
from clipmill.pipeline.crawl.sources import READERS
from clipmill.pipeline.fetch.request import retry_after_s
from tests.support import commands, warcs, wats

STORED = "stored"


def image() -> bytes:
    sink = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").save(sink, "JPEG", quality=95)
    return sink.getvalue()


IMAGE = image()


def reply(body: bytes, *headers: str, length: bool = True) -> bytes:
    lines = ["HTTP/1.1 200 OK", *headers, "Connection: close"]
    lines += [f"Content-Length: {len(body)}"] if length else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def under(status: str, body: bytes, *headers: str) -> bytes:
    """An answer with another status than 200."""
    return reply(body, *headers).replace(b"200 OK", status.encode(), 1)


def moved(location: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


def members(body: bytes, count: int = 3) -> bytes:
    size = -(-len(body) // count)
    return b"".join(gzip.compress(body[i : i + size]) for i in range(0, len(body), size))


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def chunks(body: bytes, end: bytes = b"\r\n", last: bytes = b"0", trailer: bytes = b"") -> bytes:
    half = len(body) // 2
    parts = [b"%X" % half, end, body[:half], end, b"%08x;a=b" % (len(body) - half), end]
    return b"".join([*parts, body[half:], end, last, end, trailer, end])


CHUNKED = "Transfer-Encoding: chunked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An answer and its outcome: `stored`, or a reason; `says` is in its message. The answer comes
    in parts where it is a tuple."""

    source: str
    why: str
    answer: bytes | tuple[bytes, ...]
    outcome: str = STORED
    says: str = ""


def pieces(answer: bytes, first: int) -> tuple[bytes, ...]:
    """An answer whose head comes first, then so many bytes of its body, then the rest."""
    stop = answer.index(b"\r\n\r\n") + 4
    return answer[:stop], answer[stop : stop + first], answer[stop + first :]


def coded(body: bytes, *codings: str) -> bytes:
    return reply(body, *[f"Content-Encoding: {coding}" for coding in codings])


GZIPPED = gzip.compress(IMAGE)
LENGTH = f"Content-Length: {len(IMAGE)}"
ROWS = [
    Row(source="apify/crawlee#976", why="the coding none", answer=coded(IMAGE, "none")),
    Row(source="FFmpeg/FFmpeg#41", why="a charset as coding", answer=coded(IMAGE, "utf-8")),
    Row(source="versitygw/versitygw#2398", why="a coding of a store",
        answer=coded(IMAGE, "aws-chunked")),
    Row(source="LadybirdBrowser/ladybird#11179", why="a coding that nobody knows, on a page",
        answer=coded(b"<html>no</html>", "picture"), outcome="not_an_image"),
    Row(source="ceph/s3-tests#671", why="gzip beside one that is no coding",
        answer=coded(GZIPPED, "aws-chunked, gzip")),
    Row(source="dondai44423/donsetch#290", why="x-deflate",
        answer=coded(zlib.compress(IMAGE), "x-deflate")),
    Row(source="rclone/rclone#8724", why="identity in a list",
        answer=coded(GZIPPED, "identity, gzip")),
    Row(source="pydantic/pydantic-ai#7159", why="gzip of three members",
        answer=coded(members(IMAGE), "gzip")),
    Row(source="pydantic/pydantic-ai#7159 (cut)", why="gzip whose last member is cut off",
        answer=coded(members(IMAGE)[:-9], "gzip"), outcome="truncated"),
    Row(source="tornadoweb/tornado#3654", why="codings in two lines",
        answer=coded(gzip.compress(zlib.compress(IMAGE)), "deflate", "gzip")),
    Row(source="curl/curl#22156", why="the first byte of deflate alone",
        answer=pieces(coded(zlib.compress(IMAGE), "deflate"), 1)),
    Row(source="curl/curl#22156 (raw)", why="the first byte of raw deflate alone",
        answer=pieces(coded(raw_deflate(IMAGE), "deflate"), 1)),
    Row(source="httrack/httrack#855", why="zeros behind gzip",
        answer=coded(GZIPPED + bytes(512), "gzip")),
    Row(source="whatwg/fetch#989", why="br, which was not asked for",
        answer=coded(brotli.compress(IMAGE), "br"), outcome="encoding", says="br"),
    Row(source="whatwg/fetch#989 (gzip)", why="gzip that is none", answer=coded(IMAGE, "gzip"),
        outcome="encoding", says="not gzip"),
    Row(source="aio-libs/aiohttp#1905", why="more bytes than announced",
        answer=reply(IMAGE) + b"and more"),
    Row(source="aio-libs/aiohttp#1905 (late)", why="the same, in a part of their own",
        answer=(reply(IMAGE), b"and more")),
    Row(source="aio-libs/aiohttp#1905 (fewer)", why="fewer bytes than announced",
        answer=reply(IMAGE)[:-9], outcome="truncated"),
    Row(source="dotnet/corefx#21314", why="a blank in a name",
        answer=reply(IMAGE, "Powered By: x")),
    Row(source="aio-libs/aiohttp#2624", why="a line without a colon",
        answer=reply(IMAGE, "X-XSS-Protection=1;")),
    Row(source="aio-libs/aiohttp#2183", why="a line that is folded before the colon",
        answer=reply(IMAGE, "X-Name", " part: of it")),
    Row(source="aio-libs/aiohttp#5269", why="a control character in a value",
        answer=reply(IMAGE, "X-A: a\x01b")),
    Row(source="curl/curl#8601", why="a NUL in a value",
        answer=reply(IMAGE, "X-A: a\0b"), outcome="http_other", says="no HTTP answer"),
    Row(source="curl/curl#8601 (two)", why="the same beside a length that is there twice",
        answer=reply(IMAGE, "X-A: a\0b", LENGTH), outcome="http_other", says="no HTTP answer"),
    Row(source="aio-libs/aiohttp#7494", why="line feeds alone in the head",
        answer=reply(IMAGE, "Pragma: no-cache").replace(b"\r\n", b"\n", 4)),
    Row(source="aio-libs/aiohttp#1689", why="the length twice", answer=reply(IMAGE, LENGTH)),
    Row(source="aio-libs/aiohttp#1689 (list)", why="the length twice in one line",
        answer=reply(IMAGE, f"{LENGTH}, {len(IMAGE)}", length=False)),
    Row(source="aio-libs/aiohttp#1689 (two)", why="two lengths",
        answer=reply(IMAGE, "Content-Length: 7"), outcome="http_other",
        says="Duplicate Content-Length"),
    Row(source="aio-libs/aiohttp#1689 (identity)", why="Transfer-Encoding: identity",
        answer=reply(IMAGE, "Transfer-Encoding: identity")),
    Row(source="aio-libs/aiohttp#1689 (both)", why="chunks, and a length of another count",
        answer=reply(chunks(IMAGE), CHUNKED)),
    Row(source="iipc/jwarc#24", why="a size of eight digits, and an extension",
        answer=reply(chunks(IMAGE, last=b"00000000"), CHUNKED, length=False)),
    Row(source="iipc/jwarc#24 (trailer)", why="a trailer",
        answer=reply(chunks(IMAGE, trailer=b"X-Time: 1\r\n"), CHUNKED, length=False)),
    Row(source="aio-libs/aiohttp#1689 (LF)", why="line feeds alone between chunks",
        answer=pieces(reply(chunks(IMAGE, b"\n"), CHUNKED, length=False), 2)),
    Row(source="iipc/jwarc#24 (cut)", why="chunks without their end",
        answer=reply(chunks(IMAGE)[:-200], CHUNKED, length=False), outcome="truncated"),
    Row(source="scrapy/scrapy#8109", why="an image that was made for the request",
        answer=under("201 Created", IMAGE)),
    Row(source="demsking/image-downloader#19", why="an image that was changed on the way",
        answer=under("203 Non-Authoritative Information", IMAGE)),
    Row(source="scrapy/scrapy#8109 (later)", why="a page in the place of what is not ready",
        answer=under("202 Accepted", b"<html>wait"), outcome="http_other", says="202"),
    Row(source="scrapy/scrapy#8109 (part)", why="a part that nobody asked for",
        answer=under("206 Partial Content", IMAGE[:99], "Content-Range: bytes 0-98/999"),
        outcome="http_other", says="206"),
    Row(source="aio-libs/aiohttp#1689 (none)", why="no HTTP at all",
        answer=b"220 mail.test ready\r\n\r\n", outcome="http_other", says="Bad status line"),
]  # fmt: skip
# Location of the answer to /moved/N -> what is asked for next, or a reason.
MOVED = [
    ("zenphoto/zenphoto#494", "http://other.test\\picture.jpg?a\\b", "/picture.jpg?a%5Cb"),
    ("go-gitea/gitea#19186", "/\\other.test/picture.jpg", "/picture.jpg"),
    ("zenphoto/zenphoto#494 (path)", "\\images\\f.jpg", "/images/f.jpg"),
    ("Norconex/crawler#230", "./a/../picture.jpg", "/moved/picture.jpg"),
    ("0x676e67/wreq#1290", "/caf\u00e9.jpg", "/caf%C3%A9.jpg"),
    ("snoyberg/http-client#83", "/a b.jpg", "/a%20b.jpg"),
    ("us/crw#542 (moved)", "http://robots.test/open/%2e%2E/private/x.jpg", "robots_txt"),
]
# Host, path, reason or what is asked for.
PATHS = [
    ("crawler-commons/crawler-commons#492", "robots.test", "/open/../private/a.jpg", "robots_txt"),
    ("Norconex/crawler#173", "robots.test", "/./private/b.jpg", "robots_txt"),
    ("us/crw#542", "robots.test", "/open/%2e%2E/private/c.jpg", "robots_txt"),
    ("us/crw#542 (half)", "robots.test", "/open/.%2e/private/d.jpg", "robots_txt"),
    ("us/crw#542 (backslash)", "robots.test", "/open\\..\\private\\e.jpg", "robots_txt"),
    ("us/crw#542 (end)", "robots.test", "/private/f/..", "robots_txt"),
    ("us/crw#542 (tdmrep.json)", "tdm.test", "/open/../private/a.jpg", "optout_site"),
    ("us/crw#542 (ai.txt)", "ai.test", "/open/%2e%2e/private/a.jpg", "optout_site"),
    ("demsking/image-downloader#20", "changed.test", "/private/a.jpg", "robots_txt"),
    ("Norconex/crawler#230 (allowed)", "robots.test", "/private/../open/a.jpg", "/open/a.jpg"),
    ("Norconex/crawler#230 (root)", "robots.test", "/../../open/b.jpg", "/open/b.jpg"),
    ("Norconex/crawler#230 (name)", "robots.test", "/open/..b.jpg", "/open/..b.jpg"),
    ("Norconex/crawler#230 (query)", "robots.test", "/open/c.jpg?/../p", "/open/c.jpg?/../p"),
    ("Norconex/crawler#230 (slashes)", "robots.test", "/open//../d.jpg", "/open/d.jpg"),
]
FILES = {
    ("robots.test", "/robots.txt"): b"User-agent: *\nDisallow: /private/\n",
    ("tdm.test", "/.well-known/tdmrep.json"): b'[{"location": "/private/*", "tdm-reservation": 1}]',
    ("ai.test", "/ai.txt"): b"User-Agent: *\nDisallow: /private/\n",
}


def answer_of(host: str, path: str) -> bytes | tuple[bytes, ...]:
    if (body := FILES.get((host, path))) is not None:
        return reply(body)
    if (host, path) == ("changed.test", "/robots.txt"):
        return under("203 Non-Authoritative Information", FILES["robots.test", path])
    if path in ("/robots.txt", "/.well-known/tdmrep.json", "/ai.txt"):
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    if path.startswith("/moved/") and path[7:].isdigit():
        return moved(MOVED[int(path[7:])][1])
    return ROWS[int(path[5:])].answer if path.startswith("/row/") else reply(IMAGE)


class Server:
    """Answers with bytes as they stand, and keeps what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (part := connection.recv(65536)):
                    return
                head += part
            path = head.split(b" ", 2)[1].decode("latin-1")
            host = head.lower().partition(b"\r\nhost: ")[2].split(b"\r\n")[0].decode()
            self.asked.append((host, path))
            answer = answer_of(host, path)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in (answer,) if isinstance(answer, bytes) else answer:
                connection.sendall(part)
                if part is not answer:  # so that the parts arrive alone
                    threading.Event().wait(0.05)


Outcomes = tuple[dict[str, dict[str, Any]], list[tuple[str, str]]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """Caption -> the row of the sidecar, and what was asked for."""
    folder = tmp_path_factory.mktemp("web")
    server = Server()
    port = server.listener.getsockname()[1]
    urls = {row.source: f"http://web.test/row/{number}" for number, row in enumerate(ROWS)}
    urls |= {source: f"http://web.test/moved/{number}" for number, (source, *_) in enumerate(MOVED)}
    urls |= {source: f"http://{host}{path}" for source, host, path, _ in PATHS}
    lines = [json.dumps({"url": url, "caption": source}) + "\n" for source, url in urls.items()]
    (folder / "urls.jsonl").write_text("".join(lines))
    fetch = {
        "user_agent": "field/1 (+https://example.org)",
        "allow_private": True,
        "image_size": 64,
        "retries": 0,
        "per_host": 8,
        "connect_to": {"*.test": f"127.0.0.1:{port}"},
    }
    source = {"kind": "table", "paths": [str(folder / "urls.jsonl")]}
    recipe = {"name": "r", "source": source, "fetch": fetch, "views": {"all": []}}
    (folder / "r.yaml").write_text(json.dumps(recipe))
    words = [str(folder / "r.yaml"), "--out", str(folder / "pool"), "--engine", "inline"]
    assert commands.build([*words, "--until", "fetch"]) == 0
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / "pool" / "shards").glob("*.parquet")):
        found |= {row["caption"]: row for row in disk.read_parquet(path).to_pylist()}
    yield found, server.asked
    server.listener.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.source)
def test_an_answer_of_a_report(row: Row, outcomes: Outcomes) -> None:
    result = outcomes[0][row.source]
    assert (result["reason"] or STORED) == row.outcome, (row.why, result["error_message"])
    assert row.says in (result["error_message"] or "")
    assert result["error_message"] != "no HTTP answer"


@pytest.mark.parametrize(("source", "host", "path", "right"), PATHS, ids=[row[0] for row in PATHS])
def test_a_path_is_resolved_before_sites_are_asked_about_it(
    source: str, host: str, path: str, right: str, outcomes: Outcomes
) -> None:
    found, asked = outcomes
    if right.startswith("/"):
        assert found[source]["reason"] is None
        assert (host, right) in asked
        assert found[source]["final_url"] == f"http://{host}{right}"
    else:
        assert found[source]["reason"] == right
    assert not [each for each in asked if each[1].startswith("/private")]
    assert not [each for each in asked if ".." in each[1].partition("?")[0].split("/")]


@pytest.mark.parametrize(("source", "location", "right"), MOVED, ids=[row[0] for row in MOVED])
def test_a_location_is_read_as_browsers_read_it(
    source: str, location: str, right: str, outcomes: Outcomes
) -> None:
    found, asked = outcomes
    host = "other.test" if "other.test" in location else "web.test"
    if right.startswith("/"):
        assert found[source]["reason"] is None, found[source]["error_message"]
        assert (host, right) in asked
    else:
        assert found[source]["reason"] == right


@pytest.mark.parametrize(
    ("source", "value", "seconds"),
    [
        ("urllib3/urllib3#2861", "0.503", 0.503),
        ("getsentry/sentry#7919", "292.052427053", 292.052427053),
        ("urllib3/urllib3#2861 (unit)", "2s", 2.0),
        ("urllib3/urllib3#2861 (twice)", "3, 3", 3.0),
        ("urllib3/urllib3#2861 (less)", "-1", None),
        ("urllib3/urllib3#2861 (none)", "soon", None),
    ],
)
def test_a_pause_that_a_server_asks_for(source: str, value: str, seconds: float | None) -> None:
    assert retry_after_s(value) == seconds, source


# --- archives ---------------------------------------------------------------------------------

HTML = b"<html lang=en><p>" + b"words " * 400 + b"<img src=/a.jpg alt='a caption'></html>"
ZIPPED = gzip.compress(HTML)
CUT = gzip.compress(HTML + hashlib.shake_128(b"").hexdigest(900).encode())[:-400]
PAGES = [  # source, body, headers, pages that are read, damaged records
    ("iipc/jwarc#24", chunks(HTML, last=b"00000000"), [CHUNKED], 1, 0),
    ("iipc/jwarc#24 (behind)", chunks(HTML) + b"\r\n", [CHUNKED], 1, 0),
    ("httrack/httrack#855", chunks(HTML, trailer=b"X: 1\r\n"), [CHUNKED], 1, 0),
    ("ukwa/webarchive-discovery#232", chunks(ZIPPED), [CHUNKED, "Content-Encoding: gzip"], 1, 0),
    ("webrecorder/pywb#584", HTML[17:], [CHUNKED], 1, 0),
    ("archivesunleashed/aut#493", HTML[17:], ["Content-Encoding: gzip"], 1, 0),
    ("netarchivesuite/solrwayback#58", chunks(HTML, b"\n"), [CHUNKED], 1, 0),
    ("internetarchive/Zeno#372", CUT, ["Content-Encoding: gzip"], 1, 0),
    ("internetarchive/gowarc#138", chunks(HTML)[:-9], [CHUNKED], 1, 0),
    ("httrack/httrack#855 (padding)", ZIPPED + bytes(99), ["Content-Encoding: gzip"], 1, 0),
    ("curl/curl#22156", raw_deflate(HTML), ["Content-Encoding: deflate"], 1, 0),
    ("pydantic/pydantic-ai#7159", members(HTML), ["Content-Encoding: gzip"], 1, 0),
    ("apify/crawlee#976", HTML[17:], ["Content-Encoding: none"], 1, 0),
    ("whatwg/fetch#989", brotli.compress(HTML), ["Content-Encoding: br"], 1, 0),
    ("whatwg/fetch#989 (unknown)", bytes(range(256)), ["Content-Encoding: lzw"], 0, 1),
    (
        "ukwa/webarchive-discovery#232 (damaged)",
        ZIPPED[:40] + b"damage" * 9,
        ["Content-Encoding: gzip"],
        0,
        1,
    ),
    ("iipc/jwarc#24 (damaged)", b"4\r\nabcdefg\r\n\r\n0\r\n\r\n", [CHUNKED], 0, 1),
]


@pytest.mark.parametrize(
    ("source", "body", "headers", "images", "damaged"), PAGES, ids=[row[0] for row in PAGES]
)
def test_a_stored_page_of_a_report(
    source: str, body: bytes, headers: list[str], images: int, damaged: int, tmp_path: Path
) -> None:
    rows, counts = warcs.one(tmp_path, body, *headers)
    assert warcs.captions(rows) == ["a caption"] * images
    assert counts["damaged_records"] == damaged


# Label of a page's charset, what it stands for in browsers, a caption.
LABELS = [
    ("harvard-lil/perma#1216", "x-sjis", "cp932", "猫"),
    ("tox-dev/turbohtml#66", "windows-31j", "cp932", "①猫"),
    ("harvard-lil/perma#1216 (GBK)", "x-gbk", "gb18030", "猫的照片"),
    ("harvard-lil/perma#1216 (Big5)", "X-X-Big5", "big5", "貓"),
    ("tox-dev/turbohtml#66 (Korean)", "windows-949", "cp949", "고양이"),
    ("tox-dev/turbohtml#66 (Thai)", "dos-874", "cp874", "แมว"),
    ("tox-dev/turbohtml#66 (Hebrew)", "iso-8859-8-i", "iso8859-8", "חתול"),
    ("tox-dev/turbohtml#66 (Russian)", "koi8", "koi8-r", "кошка"),
    ("tox-dev/turbohtml#66 (Czech)", "iso88592", "iso8859-2", "kočka"),
    ("tox-dev/turbohtml#66 (Greek)", "sun_eu_greek", "iso8859-7", "γάτα"),
]


@pytest.mark.parametrize("kind", ["text/html; charset={}", "text/html"], ids=["header", "meta"])
@pytest.mark.parametrize(
    ("source", "label", "name", "text"), LABELS, ids=[row[0] for row in LABELS]
)
def test_a_label_that_browsers_know_is_known(
    source: str, label: str, name: str, text: str, kind: str, tmp_path: Path
) -> None:
    html = f'<html><meta charset="{label}"><img src=a.jpg alt="{text}"></html>'
    rows, _ = warcs.one(tmp_path, html.encode(name), kind=kind.format(label))
    assert warcs.captions(rows) == [text]


@pytest.mark.parametrize(
    "kinds",
    ["text/html,text/html", "text/html;charset=utf-8, text/html;charset=utf-8",
     "text/html;charset=utf-8, text/html", "*/*, text/html;charset=utf-8", "x/y, text/html"],
)  # fmt: skip
def test_the_last_of_several_types_is_that_of_a_page(kinds: str, tmp_path: Path) -> None:
    """whatwg/mimesniff#30, jsdom/jsdom#4277: in one line and in lines of their own."""
    html = "<html><img src=a.jpg alt='un café'></html>"
    rows, _ = warcs.one(tmp_path, html, kind=kinds)
    first, *more = kinds.split(",")
    of_lines, _ = warcs.one(tmp_path, html, *(f"Content-Type: {each}" for each in more), kind=first)
    assert warcs.captions(rows) == warcs.captions(of_lines) == ["un café"]


def resource(url: str, kind: str) -> bytes:
    head = f"WARC/1.0\r\nWARC-Type: resource\r\nWARC-Target-URI: {url}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(HTML)}\r\n\r\n".encode() + HTML + b"\r\n\r\n"


@pytest.mark.parametrize("packed", [True, False])
def test_a_page_that_is_a_resource_is_a_page(packed: bool, tmp_path: Path) -> None:
    """arquivo/pwa-technologies#651, webrecorder/pywb#91: no head of a server."""
    records = [
        resource("http://p.test/a", "text/html"),
        resource("urn:X-wpull:log", "text/html"),
        resource("http://p.test/b", "text/plain"),
    ]
    path = tmp_path / "x.warc"
    rows, counts = warcs.read(path, warcs.zipped(records) if packed else b"".join(records))
    assert [row["url"] for row in rows] == ["http://p.test/a.jpg"]
    assert counts == {"links": 1, "pairs": 1}
    assert pairs_of_warc_record(str(path), rows[0]["warc_offset"])[0].caption == "a caption"


def of_type(kind: str, body: bytes = b"x") -> bytes:
    return warcs.zipped([warcs.record(body, kind=each) for each in ("warcinfo", kind)])


PATHS_LIST = b"crawl-data/CC-MAIN-2019-47/segments/1/wat/a.warc.wat.gz\n" * 2
NO_ARCHIVE = [  # source, file, kind of the recipe, words of the refusal
    ("chfoo/warcat-rs#1", b"PK\3\4" + bytes(99), "warc", "is a ZIP, as a WACZ is: unpack it"),
    ("iipc/warc-specifications#69", b"\x5d\x2a\x4d\x18" + bytes(99), "warc", "a dictionary"),
    ("apple/ml-qrecc#7", gzip.compress(PATHS_LIST), "wat", "a list of files: write kind: wat_i"),
    ("apple/ml-qrecc#7 (WET)", of_type("conversion"), "wat", "as a WET has"),
    ("apple/ml-qrecc#7 (WET for WARC)", of_type("conversion"), "warc", "as a WET has"),
    ("apple/ml-qrecc#7 (WARC)", of_type("response", warcs.block(b"")), "wat", "kind: warc"),
    ("apple/ml-qrecc#7 (WAT)", of_type("metadata", b"{}"), "warc", "kind: wat"),
    ("archivesunleashed/aut#493 (ARC)", b"filedesc://a.arc 0.0.0.0", "warc", "is an ARC"),
    ("archivesunleashed/aut#493 (page)", b"<html>404", "warc", "no record begins"),
]


@pytest.mark.parametrize(
    ("source", "data", "kind", "says"), NO_ARCHIVE, ids=[row[0] for row in NO_ARCHIVE]
)
def test_a_file_of_which_nothing_is_read_is_named_for_what_it_is(
    source: str, data: bytes, kind: Any, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(data)
    recipe = Source(kind=kind, paths=(str(path),))
    with pytest.raises(ValueError, match=re.escape(says)):
        list(READERS[kind].batches(str(path), recipe, Counter()))


def test_an_archive_of_pages_without_images_is_read(tmp_path: Path) -> None:
    """webrecorder/pywb#91: no links, and nothing wrong."""
    for kind in ("response", "revisit", "request", "resource"):
        (tmp_path / "x.gz").write_bytes(of_type(kind, warcs.block(b"<p>")))
        recipe = Source(kind="warc", paths=(str(tmp_path / "x.gz"),))
        assert list(READERS["warc"].batches(str(tmp_path / "x.gz"), recipe, Counter())) == []


@pytest.mark.parametrize("key", ["name", "http-equiv", "property"])
@pytest.mark.parametrize("name", ["robots", "X-Robots-Tag", "TDM-Reservation"])
def test_a_signal_of_a_page_is_heard_in_each_attribute(key: str, name: str, tmp_path: Path) -> None:
    """Mojeek/noml-open-letter#13: sites write it where a header would stand."""
    rows, _ = warcs.one(tmp_path, f"<html><meta {key}={name} content=noai><img src=a alt=b></html>")
    body = json.loads(
        wats.response("http://p.test/x", [{"path": "IMG@/src", "url": "a", "alt": "b"}])
    )
    of_page = body["Envelope"]["Payload-Metadata"]["HTTP-Response-Metadata"]["HTML-Metadata"]
    of_page.setdefault("Head", {})["Metas"] = [{key: name, "content": "noai"}]
    path = tmp_path / "x.warc.wat.gz"
    path.write_bytes(gzip.compress(wats.record(json.dumps(body).encode())))
    [batch] = batches_of_wat(str(path), Counter())
    for row in (*rows, *batch.to_pylist()):
        assert ["noai"] in json.loads(row["robots"]).values()


# Images of a page -> what they become.
LAZY = [
    (
        "luis-almeida/filtrify#1",
        "a placeholder whose name says nothing stands for several images",
        "<img src=film.png data-original=m/1.jpg alt=one><img src=film.png data-original=m/2.jpg "
        "alt=two>",
        {"m/1.jpg": "one", "m/2.jpg": "two"},
    ),
    (
        "luis-almeida/filtrify#1 (alone)",
        "right: a name that says nothing, of one image",
        "<img src=film.png data-original=m/1.jpg alt=one>",
        {"film.png": "one"},
    ),
    (
        "luis-almeida/filtrify#1 (words)",
        "a name of nothing but words of placeholders",
        "<img src=t/lazy_placeholder-300x200.gif data-src=big.jpg alt=one>"
        "<img src=loading-dock.jpg data-src=larger.jpg alt=two>"
        "<img src=grey-image.png alt=three>",
        {"big.jpg": "one", "loading-dock.jpg": "two", "grey-image.png": "three"},
    ),
    (
        "kepano/defuddle#327",
        "attributes of other names",
        '<img src="data:," data-actualsrc=/x.jpg alt=one><img data-echo=/z.png?w=9 alt=two>'
        '<img src=blank.gif nitro-lazy-src=/q.webp alt=three><img src="data:," data-name=a.jpg '
        "alt=four>",
        {"/x.jpg": "one", "/z.png?w=9": "two", "/q.webp": "three"},
    ),
    (
        "kepano/defuddle#327 (noscript)",
        "the caption of the copy for browsers without scripts, where the image has none",
        '<img src="data:," data-x=/x.jpg><noscript><img src=/x.jpg alt=one></noscript>',
        {"/x.jpg": "one"},
    ),
    (
        "aFarkas/lazysizes#53",
        "right: a set of addresses",
        '<img src=placeholder.gif data-srcset="1.jpg 1x, 2.jpg 2x" alt=one>',
        {"2.jpg": "one"},
    ),
    (
        "ampproject/amp-wp#2168",
        "AMP's own element, also loaded late; its copy for browsers without scripts",
        "<amp-img src=1.jpg alt=one></amp-img><amp-img src='data:image/gif;base64,R0' "
        "data-src=2.jpg alt=two></amp-img><amp-img src=3.jpg alt=three><noscript><img src=3.jpg "
        "alt=three></noscript></amp-img>",
        {"1.jpg": "one", "2.jpg": "two", "3.jpg": "three"},
    ),
    (
        "ArchiveTeam/wpull#381",
        "right: commas and brackets in addresses, no blanks between candidates",
        "<img srcset='/fit/1x1/f:up():o()/a.jpg 97w,/f:h(1,1):o()/a.jpg 225w,/o.jpg 595w' alt=a>",
        {"/o.jpg": "a"},
    ),
    (
        "flairNLP/fundus#982",
        "right: a candidate without a size",
        "<img srcset='a-320.jpg, a-640.jpg 2x' alt=a>",
        {"a-640.jpg": "a"},
    ),
    (
        "cantino/ruby-readability#53",
        "a placeholder that is named by its colour",
        "<img src=1x1-white.jpg data-original=/m/1.jpg alt=one><noscript><img src=/m/1.jpg>"
        "</noscript><img src=white.jpg data-original=/m/2.jpg alt=two>",
        {"/m/1.jpg": "one", "white.jpg": "two"},
    ),
    (
        "dankito/Readability4J#18",
        "right: an image without an address, its copy, and one caption for both",
        "<figure><img alt='' width=9><noscript><img alt='' src=a.png></noscript><figcaption>parts"
        "</figcaption></figure>",
        {"a.png": "parts"},
    ),
    (
        "Shopify/starter-theme#146",
        "right: an address that is not filled in is none",
        "<img src=p_300x.jpg data-src=p_{width}x.jpg alt=a><img data-src=r_{width}x.jpg alt=b>",
        {"p_300x.jpg": "a"},
    ),
    (
        "hahwul/gori#911",
        "right: references of each form in an address",
        "<img src=/5&amp;v alt=a><img src=/6&#38;v alt=b><img src=/7&#x26;v alt=c>",
        {"/5&v": "a", "/6&v": "b", "/7&v": "c"},
    ),
    (
        "Y2Z/monolith#80",
        "right: two addresses that may both be of the image",
        "<img src=small.jpg data-src=big.jpg alt=one>",
        {"small.jpg": "one"},
    ),
]


@pytest.mark.parametrize(("source", "why", "html", "right"), LAZY, ids=[row[0] for row in LAZY])
def test_an_image_that_is_loaded_late_has_its_own_address(
    source: str, why: str, html: str, right: dict[str, str], tmp_path: Path
) -> None:
    rows, _ = warcs.one(tmp_path, f"<html>{html}</html>")
    found = {row["url"]: row["caption"] for row in rows}
    assert found == {urljoin(warcs.PAGE, url): text for url, text in right.items()}, why


def test_a_page_of_another_answer_than_200_is_a_page(tmp_path: Path) -> None:
    """demsking/image-downloader#20: 203 is what a proxy makes of 200."""
    for status, pages in {"203 Changed": 1, "206 Part": 0, "404 None": 0, "2000 No": 0}.items():
        rows, _ = warcs.one(tmp_path, HTML, status=status)
        assert len(rows) == pages, status


@pytest.mark.parametrize(
    ("date", "url", "caption", "anchor"),
    [
        ("2019-05-26T23:59:59Z", "a.jpg?p=1&v=2&copy=3", "Míchel \"R\" & 'x' &unknown; &", "R & B"),
        (
            "2019-06-15T00:00:00Z",
            "a.jpg?p=1&amp;v=2&copy=3",
            "M&iacute;chel &quot;R&quot; &amp; &#39;x&#x27; &unknown; &",
            "R &amp; B",
        ),
        (None, "a.jpg?p=1&amp;v=2&copy=3", "M&iacute;chel &quot;R&quot; &amp; &#39;x&#x27; "
         "&unknown; &", "R &amp; B"),
    ],
    ids=["before", "since", "unknown"],
)  # fmt: skip
def test_character_references_of_an_old_wat_are_decoded(
    date: str | None, url: str, caption: str, anchor: str, tmp_path: Path
) -> None:
    """commoncrawl/ia-web-commons#14: the writer left them in until CC-MAIN-2019-26."""
    written = "M&iacute;chel &quot;R&quot; &amp; &#39;x&#x27; &unknown; &"
    links = [
        {"path": "IMG@/src", "url": "a.jpg?p=1&amp;v=2&copy=3", "alt": written, "title": "&amp;"},
        {"path": "A@/href", "url": "/big.jpg", "text": "R &amp; B"},
    ]
    body = json.loads(wats.response("http://p.test/x", links))
    if date:
        body["Envelope"]["WARC-Header-Metadata"]["WARC-Date"] = date
    path = tmp_path / "x.warc.wat.gz"
    path.write_bytes(gzip.compress(wats.record(json.dumps(body).encode())))
    [batch] = batches_of_wat(str(path), Counter())
    [row] = batch.to_pylist()
    assert (row["url"], row["caption"]) == (f"http://p.test/{url}", caption)
    assert (row["title"], row["anchor"]) == ("&" if "& B" in anchor else "&amp;", anchor)


def test_damaged_records_are_in_every_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """internetarchive/Zeno#372: nothing says that records were lost."""
    damaged = warcs.record(warcs.block(b"\x1f\x8bno", "Content-Encoding: gzip"))
    whole = warcs.record(warcs.block(HTML), "http://p.test/whole")
    (tmp_path / "a.warc.gz").write_bytes(warcs.zipped([damaged, whole, damaged]))
    source = {"kind": "warc", "paths": [str(tmp_path / "a.warc.gz")]}
    (tmp_path / "r.yaml").write_text(json.dumps({"name": "r", "source": source}))
    words = [str(tmp_path / "r.yaml"), "--out", str(tmp_path / "pool"), "--engine", "inline"]
    words += ["--until", "crawl"]
    assert commands.build(words) == 0
    assert "2 damaged records" in capsys.readouterr().out
    assert commands.build([*words, "--json"]) == 0
    totals = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (totals["crawl"]["damaged_records"], totals["crawl"]["pairs"]) == (2, 1)
    commands.audit([str(tmp_path / "pool")])
    assert "2 damaged records" in capsys.readouterr().out
    commands.audit([str(tmp_path / "pool"), "--json"])
    audited = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert audited["crawl"]["damaged_records"] == 2
