"""What differs between the Pythons 3.11, 3.12 and 3.13 in public reports: here it is one outcome.

The right outcome of a row was written down before it was run. Every row runs on whichever Python
runs the tests, so a suite on each of them compares all of them.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import math
import random
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvloop

from clipmill.examples.miniweb import wat_file
from clipmill.manifests import disk, tls
from clipmill.manifests.schema import Fetch, Mixtures, Pair
from clipmill.manifests.text import printable
from clipmill.pipeline.archives import urls
from clipmill.pipeline.archives.urls import ascii_host, host_of
from clipmill.pipeline.fetch import guard
from clipmill.train import store
from clipmill.train.data import tar_streams
from clipmill.verdict.decide import exports
from clipmill.verdict.stats.model import satterthwaite
from clipmill.verdict.tables import forms
from tests.conftest import draw
from tests.support import commands, hostile_server
from tests.support.dns import fake_dns
from tests.support.fetched import fetch_all

ROOT = Path(__file__).resolve().parents[2]

# --- certificates ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    source: str
    why: str
    served: str  # of CERTIFICATES
    trusted: str
    is_taken: bool


CERTIFICATES_OF_SITES = [
    Certificate(source="python/cpython#138193", why="no authority key identifier: curl takes it",
                served="good", trusted="authority", is_taken=True),
    Certificate(source="syncloud/platform#775", why="the same behind an own authority",
                served="good", trusted="authority", is_taken=True),
    Certificate(source="urllib3/urllib3#3665", why="an authority that nobody trusts stays refused",
                served="good", trusted="other", is_taken=False),
    Certificate(source="llnl/certipy#23", why="one that has expired stays refused",
                served="expired", trusted="authority", is_taken=False),
    Certificate(source="fkiene/llmtrim#75", why="one of another host stays refused",
                served="other-host", trusted="authority", is_taken=False),
    Certificate(source="openssl/openssl#28391", why="the certificate itself is trusted, as in curl",
                served="good", trusted="good", is_taken=True),
]  # fmt: skip


class Site(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(b"bytes")

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def served(identity: Path | None, site: type[BaseHTTPRequestHandler] = Site) -> Iterator[int]:
    """The port of a server on loopback, with a certificate or without TLS."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), site)
    if identity is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # of refused handshakes
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def by_fetcher(port: int) -> bytes:
    settings = Fetch(user_agent="pythons/1.0 (+https://crawler.test)", allow_private=True,
                     connect_to={"site.test": f"127.0.0.1:{port}"}, robots_txt=False,
                     site_files=(), retries=0, deadline_s=300.0)  # fmt: skip

    async def run() -> bytes:
        pairs = [Pair(uid="0" * 32, url="https://site.test/a", caption="")]
        [(_, end)] = [item async for item in fetch_all(pairs, settings)]
        assert end.reason in (None, "tls"), (end.reason, end.detail)
        return end.body or b""

    return uvloop.run(run())


def by_store(port: int) -> bytes:
    return disk.read_bytes(f"https://localhost:{port}/a")


def by_stream(port: int) -> bytes:
    with tar_streams.open_source(f"https://localhost:{port}/a") as source:
        return source.read(5)


def by_ranges(port: int) -> bytes:
    connection = store.RangeClient()._connect(("https", f"localhost:{port}"))
    with contextlib.closing(connection):
        connection.request("GET", "/a")
        return connection.getresponse().read()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority = hostile_server.certificate(folder, "authority", "authority.test", None)
    hostile_server.certificate(folder, "other", "another-authority.test", None)
    for host in ("localhost", "site.test"):
        hostile_server.certificate(folder, f"good-{host}", host, authority)
        hostile_server.certificate(folder, f"expired-{host}", host, authority, days=-30)
        hostile_server.certificate(folder, f"other-host-{host}", "elsewhere.test", authority)
    return folder


CLIENTS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "fetch": ("site.test", by_fetcher),
    "https of fsspec": ("localhost", by_store),
    "streams of tars": ("localhost", by_stream),
    "ranges of S3": ("localhost", by_ranges),
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("row", CERTIFICATES_OF_SITES, ids=lambda row: row.source)
def test_a_certificate_is_judged_alike_by_all_clients(
    row: Certificate, client: str, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, ask = CLIENTS[client]
    trusted = row.trusted if row.trusted in ("authority", "other") else f"{row.trusted}-{host}"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / f"{trusted}.pem"))
    for name in store.CERTIFICATES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tar_streams, "WEB_TIMEOUT_S", 300.0)
    monkeypatch.setattr("clipmill.manifests.disk.files.RETRY_S", 0.0)
    fake_dns(monkeypatch, lambda name: ["127.0.0.1"])
    tls.context.cache_clear()
    disk.stores().filesystem("https").clear_instance_cache()
    try:
        with served(certificates / f"{row.served}-{host}.pem") as port:
            if row.is_taken:
                assert ask(port) == b"bytes"
            elif client == "fetch":
                assert ask(port) == b""
            else:
                with pytest.raises((OSError, tar_streams.BrokenSource)):
                    ask(port)
    finally:
        tls.context.cache_clear()
        disk.stores().filesystem("https").clear_instance_cache()


def test_every_client_has_the_one_context() -> None:
    """Nothing else of the product makes a context, or opens fsspec without `disk.stores`."""
    for package in ("clipmill", "manifests", "filters", "pipeline", "train", "verdict", "study"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            name = path.relative_to(ROOT).as_posix()
            assert "create_default_context" not in text or name == "manifests/tls.py", name
            assert "    import fsspec" not in text or name == "manifests/disk/files.py", name
            assert "\nimport fsspec" not in text, name


# --- values ---------------------------------------------------------------------------------------


def refused(function: Callable[..., Any], *given: Any) -> str:
    """The reason of a refusal; "" where there is none."""
    try:
        function(*given)
    except guard.Refused as error:
        return error.reason
    except ValueError as error:
        return str(error)
    return ""


def canonical(url: str) -> str:
    return guard.target(url, Fetch()).url


def address(ip: str) -> str:
    return refused(guard.check_address, ip, Fetch())


def on_page(link: str) -> str:
    return urls.resolve("http://page.test//deep/page.html", link)


def cells(html: str) -> list[list[str]]:
    return forms._HtmlTables(html).grids[0].rows


def csv_of(cell: str) -> str:
    file = exports._Rows()
    csv.writer(file).writerow([cell, "b"])
    return file.getvalue()


def wat_head(_: str) -> str:
    """The header of a member of the small web: gzip without a time, Unix."""
    member = wat_file._record("metadata", "http://a.test/", b"{}", random.Random(1))
    return member[:10].hex()


def shares(_: str) -> list[float]:
    """Arms that are drawn: a function of their numbers alone."""
    sources = tuple(f"s{n}" for n in range(12))
    arms = Mixtures(number=3, sources=sources, concentration=1.0, seed=7).arms()
    return [share for arm in arms.values() for share in arm["views"].values()][:4]


def total(values: str) -> float:
    return satterthwaite([(float(value), 3.0) for value in values.split()])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    source: str
    why: str
    of: Callable[[str], Any]
    given: str
    right: Any


VALUES = [
    Value(source="kellyjonbrazil/jc#582", why="3.13 writes the end of ::ffff: as an IPv4 address",
          of=canonical, given="http://[::ffff:93.184.216.34]/a", right="http://[::ffff:5db8:d822]/a"),
    Value(source="ClickHouse/clickhouse-connect#557", why="the same address, as it is spelled here",
          of=canonical, given="http://[::ffff:5db8:d822]/a", right="http://[::ffff:5db8:d822]/a"),
    Value(source="kellyjonbrazil/jc#604", why="a private address in ::ffff: stays private",
          of=address, given="::ffff:192.168.1.35", right="private_address"),
    Value(source="kellyjonbrazil/jc#572", why="6to4 was global before 3.12.4",
          of=address, given="2002:c000:204::1", right="private_address"),
    Value(source="python/cpython#113179", why="192.0.0.9 is global since 3.12.4, and no site",
          of=address, given="192.0.0.9", right="private_address"),
    Value(source="python/cpython#118177", why="64:ff9b:1:: was global before 3.12.4",
          of=address, given="64:ff9b:1::1", right="private_address"),
    Value(source="ooni/probe-legacy#15", why="carrier-grade NAT is neither private nor global",
          of=address, given="100.64.0.1", right="private_address"),
    Value(source="phihag/ipaddress#14", why="a public address stays public",
          of=address, given="93.184.216.34", right=""),
    Value(source="aio-libs/yarl#876", why="an IPv4 address in brackets, which 3.11.3 took",
          of=lambda url: refused(canonical, url), given="http://[127.0.0.1]/", right="bad_url"),
    Value(source="MozillaSecurity/grizzly#265", why="a bracket without its pair",
          of=lambda url: refused(canonical, url), given="http://[::1/a", right="bad_url"),
    Value(source="yusufkaraaslan/Skill_Seekers#284", why="later releases refuse text at a bracket",
          of=lambda url: refused(canonical, url), given="http://docs[2600::1]/", right="bad_url"),
    Value(source="scrapy/scrapy#1832", why="an address in brackets stays a host",
          of=host_of, given="http://[2600::1]:80/a", right="2600::1"),
    Value(source="fsspec/universal_pathlib#233", why="two slashes in front stay two",
          of=on_page, given="a.jpg", right="http://page.test//deep/a.jpg"),
    Value(source="getsentry/sentry#20466", why="two slashes inside stay two, as browsers ask",
          of=on_page, given="x//../a//b.jpg", right="http://page.test//deep/x/a//b.jpg"),
    Value(source="linkchecker/linkchecker#842", why="http: in front of a relative path",
          of=on_page, given="http:a.jpg", right="http://page.test//deep/a.jpg"),
    Value(source="sissaschool/xmlschema#405", why="a link with a host stays as it is",
          of=on_page, given="//cdn.test/a.jpg", right="http://cdn.test/a.jpg"),
    Value(source="djust-org/djust#2292", why="a letter of Unicode 15: unknown to 3.11",
          of=printable, given="\U00031350", right="\U00031350"),
    Value(source="RustPython/RustPython#7525", why="a letter that all of them know",
          of=printable, given="\u0b55", right="\u0b55"),
    Value(source="hackerb9/ugrep#3", why="a format character of Unicode 15 is escaped everywhere",
          of=printable, given="a\U00013439b", right="a\\U00013439b"),
    Value(source="fonttools/fonttools#3325", why="a letter of Unicode 15 with a mapping, in a host",
          of=ascii_host, given="\U0001e030.example", right="xn--80a.example"),
    Value(source="python/cpython#126181", why="sum() rounds otherwise since 3.12",
          of=total, given="0.1 0.1 0.1 0.1 0.1 0.1 0.1 0.1 0.1 0.1", right=1.0),
    Value(source="python/cpython#111933", why="the exact sum, rounded once",
          of=total, given="1e16 1 1", right=1.0000000000000002e16),
    Value(source="pynucastro/pynucastro#710", why="math.fsum is the same on all",
          of=total, given="0.1 0.2 0.3", right=math.fsum([0.1, 0.2, 0.3])),
    Value(source="benseverndev-oss/goldenmatch#1645", why="shares that are divided by their sum",
          of=shares, given="", right=[0.088, 0.0368, 0.2366, 0.0169]),
    Value(source="webrecorder/pywb#969", why="--!> ends a comment since 3.11.14",
          of=cells, given="<!-- a --!><table><tr><td>1<td>2</table><!-- -->", right=[["1", "2"]]),
    Value(source="python/cpython#135664", why="<!--> is a whole comment",
          of=cells, given="<!--><table><tr><td>1<td>2</table>", right=[["1", "2"]]),
    Value(source="python/cpython#137873", why="a comment without an end hides what follows",
          of=cells, given="<table><tr><td>1</table><!-- <table><tr><td>2</table>", right=[["1"]]),
    Value(source="Python-Markdown/markdown#1537", why="a sign of less that begins no tag is text",
          of=cells, given="<table><tr><td>p < 0.05<td>a &lt; b</table>",
          right=[["p < 0.05", "a < b"]]),
    Value(source="Python-Markdown/markdown#1547", why="a > in an attribute, and spans",
          of=cells, given='<TABLE><tr><th title="a>b" colspan=2>x<tr><td>1<td>2</table>',
          right=[["x", "x"], ["1", "2"]]),
    Value(source="pandas-dev/pandas#68658", why="a lone carriage return needs quotes",
          of=csv_of, given="a\rb", right='"a\rb",b\n'),
    Value(source="python/cpython#128064", why="a line end needs them as ever, a space none",
          of=csv_of, given="a \nb", right='"a \nb",b\n'),
    Value(source="RustPython/RustPython#8302", why="a plain cell has none",
          of=csv_of, given="a b", right="a b,b\n"),
    Value(source="python/cpython#112346", why="gzip.compress writes another system since 3.13",
          of=wat_head, given="", right="1f8b0800000000000003"),
]  # fmt: skip


@pytest.mark.parametrize("row", VALUES, ids=lambda row: row.source)
def test_a_value_is_the_same_on_every_python(row: Value) -> None:
    assert row.of(row.given) == row.right


# --- a pool and a verdict -------------------------------------------------------------------------

RECIPE = """
name: same
source: {kind: table, paths: [pairs.csv]}
fetch:
  image_size: 32
  rows_per_shard: 20
  user_agent: pythons/1.0 (+https://crawler.test)
  robots_txt: false
  site_files: []
  allow_private: true
  deadline_s: 300
  connect_to: {site.test: "127.0.0.1:PORT"}
filters: [tokens, caption]
views:
  raw: []
  long: [{words: caption_words > 3}]
  few: [{part: "caption_words >= top(caption_words, 0.3)"}]
"""
# sha256, the first 16 digits. Another digest on one Python is a fault; a new one on all is a
# change of the bytes, and its commit says why.
POOL = {
    "tars": "91624f0e5ac1c379",
    "rows": "56cec5cdcc5498fa",
    "scores": "13d298cf87e56556",
    "views": "b969c3f03b061426",
}
VERDICT = "0694e1e184094f71"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def values_of(files: list[Path], *left_out: str) -> bytes:
    """The rows of Parquet files, without columns that are times."""
    rows = [row for file in files for row in disk.read_parquet(str(file)).to_pylist()]
    kept = [{key: value for key, value in row.items() if key not in left_out} for row in rows]
    return json.dumps(kept, sort_keys=True, default=str).encode()


class Pictures(Site):
    folder = Path()

    def do_GET(self) -> None:
        data = (self.folder / self.path.removeprefix("/")).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def test_a_pool_is_the_same_on_every_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(tmp_path, 48)
    monkeypatch.setattr(Pictures, "folder", tmp_path)
    text = (tmp_path / "captions.csv").read_text()
    lines = [f"http://site.test/{line}" for line in text.splitlines()[1:]]
    (tmp_path / "pairs.csv").write_text("\n".join(["url,caption", *lines]))
    pool = tmp_path / "pool"
    with served(None, Pictures) as port:
        (tmp_path / "same.yaml").write_text(RECIPE.replace("PORT", str(port)))
        words = [str(tmp_path / "same.yaml"), "--out", str(pool), "--engine", "inline"]
        assert commands.build(words) == 0
    times = ("fetched_at", "elapsed_ms", "wat", "sidecar_sha256")
    made = {
        "tars": b"".join(path.read_bytes() for path in sorted(pool.glob("shards/*.tar"))),
        "rows": values_of(sorted(pool.glob("shards/*.parquet")), *times),
        "scores": values_of(sorted(pool.glob("scores/**/*.parquet")), *times),
        "views": values_of(sorted(pool.glob("views/**/*.parquet")), *times),
    }
    assert {name: digest(data) for name, data in made.items()} == POOL


def test_a_verdict_is_the_same_on_every_python(capsys: pytest.CaptureFixture[str]) -> None:
    table = ROOT / "examples" / "cifar10_sampling.csv"
    assert commands.decide([str(table)]) == 0
    assert digest(capsys.readouterr().out.replace(str(ROOT), "").encode()) == VERDICT
