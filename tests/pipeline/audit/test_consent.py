"""What was found for each stored image and which rule let it in: on a web that says it in every
way, for files that nobody was asked for, and for rows of another program.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.columns import REASONS
from clipmill.pipeline.audit import consent
from clipmill.pipeline.audit.consent import LET_IN, TABLE, read_consent
from tests.support import commands
from tests.support.loopback_server import serving

RSL = '<https://rsl.test/l.xml>; rel="license"; type="application/rsl+xml"'
ROBOTS = {
    "usage.test": "User-agent: *\nContent-Usage: train-ai=n\nContent-Usage: /free/ train-ai=y\n",
    "signal.test": "User-agent: *\nContent-Signal: search=yes,ai-train=no\nAllow: /\n",
    "rsl.test": "License: https://rsl.test/l.xml\n\nUser-agent: *\nAllow: /\n",
    "shut.test": "User-agent: *\nDisallow: /\n",
    "open.test": "User-agent: *\nAllow: /\n",
}
TDMREP = {"tdm.test": '[{"location": "/", "tdm-reservation": 1}]'}
URLS = (
    "http://quiet.test/a.jpg", "http://open.test/a.jpg", "http://usage.test/a.jpg",
    "http://usage.test/free/a.jpg", "http://signal.test/a.jpg", "http://rsl.test/a.jpg",
    "http://shut.test/a.jpg", "http://tdm.test/a.jpg", "http://quiet.test/noai.jpg",
    "http://quiet.test/rsl.jpg", "http://quiet.test/commons.jpg", "http://quiet.test/moved.jpg",
)  # fmt: skip
HEADERS = {
    "/noai.jpg": {"X-Robots-Tag": "NoAI"},
    "/rsl.jpg": {"Link": f"</x.css>; rel=preload, {RSL}"},
    "/commons.jpg": {"Link": "<https://creativecommons.org/licenses/by/4.0/>; rel=license"},
}


def jpeg() -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (40, 40), (90, 10, 10)).save(sink, "JPEG")
    return sink.getvalue()


class Web(BaseHTTPRequestHandler):
    down: ClassVar[set[str]] = set()  # hosts whose robots.txt cannot be had now

    def do_GET(self) -> None:
        host = self.headers["Host"].split(":")[0]
        body, headers, status = jpeg(), dict(HEADERS.get(self.path, {})), 200
        files = {"/robots.txt": ROBOTS, "/.well-known/tdmrep.json": TDMREP, "/ai.txt": {}}
        if self.path in files:
            text = files[self.path].get(host)
            body, status = (text or "").encode(), 200 if text else 404
            status = 503 if self.path == "/robots.txt" and host in self.down else status
        elif self.path == "/moved.jpg":
            headers, status = {"Location": "http://signal.test/b.jpg"}, 302
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(Web) as number:
        yield number


def built(folder: Path, port: int, optout: str = "respect") -> str:
    pool = str(folder / "a pool")
    rows = pa.table({"url": list(URLS), "caption": [f"picture {i}" for i in range(len(URLS))]})
    disk.write_parquet(folder / "urls.parquet", rows)
    (folder / "r.yaml").write_text(f"""
name: asked
source: {{kind: table, paths: ["{folder}/urls.parquet"]}}
fetch: {{user_agent: "clipmill-test (+https://x.example)", allow_private: true, optout: {optout},
  image_size: 16, connect_to: {{"*.test": "127.0.0.1:{port}"}}}}
""")
    words = [str(folder / "r.yaml"), "--out", pool, "--engine", "inline"]
    assert commands.build(words) == 0
    return pool


def consent_of(pool: str, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert commands.audit(["consent", pool, "--json", *words]) == 0
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


def test_every_stored_image_has_its_rule_and_every_refused_row_its_signal(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool, out = built(tmp_path, port), str(tmp_path / "consent.parquet")
    result = consent_of(pool, capsys, "--out", out)
    assert result["refused"] == {
        "optout_site: ai-train": 2,  # the redirect's host counts too
        "optout_site: train-ai": 1, "optout_site: license": 1, "optout_site: tdm-reservation": 1,
        "optout_header: noai": 1, "optout_header: license": 1, "robots_txt": 1,
    }  # fmt: skip
    assert result["let_in"] == {"nothing_refuses": 3, "nothing_found": 1}
    assert (result["stored"], result["says_no"]) == (4, {})
    assert result["looked_at"] == {"robots.txt, tdmrep.json, ai.txt, headers": 4}
    assert result["found"] == {"robots.txt": 2, "robots.txt: usage": 1, "license": 1}
    rows = {row["url"]: row for row in disk.read_parquet(out, None).to_pylist()}
    free = rows["http://usage.test/free/a.jpg"]
    said = json.loads(free["signals"])["site"]["http://usage.test"]["robots.txt"]
    assert said["usage"] == ["/free/ train-ai=y"]
    assert free["fetched_at"].year > 2020
    assert rows["http://quiet.test/a.jpg"]["signals"] is None
    # What is there is never written over
    assert commands.audit(["consent", pool, "--out", out]) == 2
    assert "is there already" in capsys.readouterr().err
    assert commands.audit(["consent", pool, "--out", str(tmp_path / "x.json")]) == 2


def test_a_list_refuses_for_what_it_names_and_the_rest_is_told(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool, out = built(tmp_path, port, "[ai-train, noai]"), str(tmp_path / "consent.csv")
    result = consent_of(pool, capsys, "--out", out)
    assert result["let_in"] == {"not_in_policy": 4, "nothing_refuses": 3, "nothing_found": 1}
    assert result["says_no"] == {"license": 2, "train-ai": 1, "tdm-reservation": 1}
    refused = {"optout_site: ai-train": 2, "optout_header: noai": 1, "robots_txt": 1}
    assert result["refused"] == refused
    table = pa_csv.read_csv(out)
    assert (table.column_names, table.num_rows) == (TABLE.names, 8)
    says_no = dict(zip(table["url"].to_pylist(), table["says_no"].to_pylist(), strict=True))
    assert says_no["http://usage.test/a.jpg"] == "train-ai (robots.txt: train-ai=n)"
    assert (
        says_no["http://rsl.test/a.jpg"] == "license (robots.txt: license https://rsl.test/l.xml)"
    )
    assert commands.audit(["consent", pool]) == 0
    text = capsys.readouterr().out
    assert "let in           4  not_in_policy: what says no is not among the signals" in text
    assert commands.audit(["explain", pool, "http://usage.test/a.jpg", "--json"]) == 0
    line, *_, last = [x for x in capsys.readouterr().out.splitlines() if "train-ai" in x][1:]
    assert line == (
        "consent let in as not_in_policy; looked at: robots.txt, tdmrep.json, ai.txt, headers; "
        "says no: train-ai (robots.txt: train-ai=n)"
    )
    assert json.loads(last)["attempts"][0]["consent"]["refusing"] == ""


def test_a_row_that_is_asked_for_again_counts_once(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Web, "down", {"usage.test", "open.test"})
    pool = built(tmp_path, port)
    before = consent_of(pool, capsys)
    assert (before["stored"], before["refused"].get("optout_site: train-ai")) == (2, None)
    monkeypatch.setattr(Web, "down", set())
    again = [str(tmp_path / "r.yaml"), "--out", pool, "--engine", "inline", "--retry", "transient"]
    assert commands.build(again) == 0
    result = consent_of(pool, capsys)
    assert (result["stored"], result["refused"]["optout_site: train-ai"]) == (4, 1)
    assert result["let_in"] == {"nothing_refuses": 3, "nothing_found": 1}


def test_files_were_not_asked_for(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = str(tiny / "pool")
    assert commands.audit(["consent", pool]) == 2
    assert "no build of it has ended yet" in capsys.readouterr().err
    words = [str(tiny / "tiny.yaml"), "--out", pool, "--engine", "inline", "--until", "fetch"]
    assert commands.build(words) == 0
    result = consent_of(pool, capsys)
    assert result["let_in"] == {"not_looked_for": 48}
    assert result["looked_at"] == {"": 48}
    adopted = str(tiny / "adopted")
    (tiny / "tars.yaml").write_text(
        f'name: t\nsource: {{kind: shards, paths: ["{pool}/shards"]}}\n'
    )
    words = [str(tiny / "tars.yaml"), "--out", adopted, "--engine", "inline"]
    assert commands.build(words) == 0
    assert consent_of(adopted, capsys)["let_in"] == {"not_looked_for": 48}


@pytest.mark.parametrize(
    ("text", "looked", "let_in"),
    [
        (None, "", "not_looked_for"),
        (None, "headers", "nothing_found"),
        ('{"x-robots-tag": ["all"]}', "headers", "nothing_refuses"),
        ('{"page": {"meta": ["noarchive"]}}', "page", "not_in_policy"),
        ('{"page": {"meta": ["noai"]}}', "", "against_policy"),
    ],
)
def test_rules_of_a_row(text: str | None, looked: str, let_in: str) -> None:
    refusing = frozenset({"noai", "robots_txt"})
    row = consent.signals_of(text, looked, "x/1", refusing)
    assert row.let_in == let_in in LET_IN
    assert row.refusing == ("noai" if let_in == "against_policy" else "")


def test_reasons_are_those_of_refused_rows() -> None:
    assert {REASONS[reason] for reason in consent.REASONS} == {"refused"}
    optouts = {reason for reason in REASONS if reason.startswith(("optout", "robots"))}
    assert set(consent.REASONS) == optouts


def test_a_pool_without_rows_has_no_counts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no recipe\.json"):
        read_consent(str(tmp_path))
