#!/usr/bin/env python3
"""What a WAT costs: FastWARC's bare reading of it, cc2dataset's logic, and ours up to the staged
Parquet part.

example: python benchmarks/fetching/crawl.py            or, on a file of Common Crawl's, python
benchmarks/fetching/crawl.py --wat FILE

Without --wat a WAT is made in a temporary folder: per page three metadata records of 20 KB of JSON
together, 8 KB compressed, 109 links of which 19 are images, 10.5 of those with alternative text.
Each way runs in a process of its own, one after the other, in several rounds, and reads a small WAT
before it is timed; what is counted is CPU time. cc2dataset's logic is written from its description:
every record to Python objects with simdjson, urljoin with the base and then the page, an md5 of
text and url. pysimdjson is installed into the temporary folder; where that fails, json takes its
place.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

WAYS = {
    "bare": "FastWARC, bare reading",
    "cc2dataset": "cc2dataset's logic",
    "ours": "ours, to the staged part",
}
PAGES_OF_A_WAT = 39_000
SYLLABLES = (
    "ka", "lo", "mi", "ter", "san", "ver", "ou", "pre", "shi", "ne", "ra", "ton", "gal", "bi",
    "co", "du", "el", "fra", "gu", "hes", "ing", "er", "of", "st", "ré", "ñó", "ść",
)  # fmt: skip
LICENSE = "https://creativecommons.org/licenses/by-sa/4.0/"


# --- a WAT ----------------------------------------------------------------------------------------


class Writer:
    """Draws pages as Common Crawl's writer describes them. Everything follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        words = [
            "".join(self.rng.choices(SYLLABLES, k=self.rng.randint(1, 4))) for _ in range(8000)
        ]
        self.words = self.rng.choices(words, [1 / (n + 20) for n in range(len(words))], k=300_000)
        self.position = 0

    def hexadecimal(self, digits: int) -> str:
        return f"{self.rng.getrandbits(4 * digits):0{digits}x}"

    def text(self, least: int, most: int) -> str:
        self.position = (self.position + most) % (len(self.words) - most)
        return " ".join(self.words[self.position : self.position + self.rng.randint(least, most)])

    def link(self, host: str, ending: str = "") -> str:
        folder = self.rng.choice(
            ["static", "img", "wp-content/uploads", "media", "catalog/product/cache"]
        )
        path = f"{folder}/{self.rng.randint(1, 99)}/{self.hexadecimal(self.rng.randint(20, 48))}"
        slug = "-".join(self.words[self.position : self.position + self.rng.randint(0, 5)])
        path = f"{path}/{slug.encode('ascii', 'ignore').decode()}{ending}"
        start = self.rng.choices(
            [f"{host}/", "/", f"//cdn{self.rng.randint(1, 9)}.example/", ""], [60, 25, 10, 5]
        )[0]
        return start + path

    def image(self, host: str) -> dict[str, str]:
        link = {
            "path": "IMG@/src",
            "url": self.link(host, self.rng.choice([".jpg", ".jpg", ".png", ".jpg?w=300"])),
        }
        drawn = self.rng.random()
        if drawn < 10.5 / 19:
            link["alt"] = self.text(2, 9)
        elif drawn < 0.8:
            link["alt"] = ""
        if self.rng.random() < 0.15:
            link["title"] = self.text(1, 4)
        if self.rng.random() < 0.02:
            link["url"] = "data:image/gif;base64,"
        return link

    def anchor(self, host: str) -> dict[str, str]:
        link = {
            "path": "A@/href",
            "url": self.link(host, ".jpg" if self.rng.random() < 0.03 else ""),
        }
        if self.rng.random() < 0.8:
            link["text"] = f'"{self.text(1, 4)}"' if self.rng.random() < 0.05 else self.text(1, 8)
        if self.rng.random() < 0.1:
            link["rel"] = "nofollow"
        return link

    def links(self, host: str) -> list[dict[str, str]]:
        kinds = ["image"] * 19 + ["anchor"] * 84 + ["style"] * 4 + ["form"] * 2
        self.rng.shuffle(kinds)
        others = {"style": ("STYLE/#text", "href"), "form": ("FORM@/action", "url")}
        links = []
        for kind in kinds:
            if kind in others:
                links.append({"path": others[kind][0], others[kind][1]: self.link(host)})
            else:
                links.append(self.image(host) if kind == "image" else self.anchor(host))
        if self.rng.random() < 0.05:
            links[-1] = {"path": "A@/href", "url": LICENSE, "rel": "license"}
        return links

    def html(self, host: str) -> dict[str, Any]:
        metas = [{"name": "viewport", "content": "width=device-width, initial-scale=1"}]
        metas += [
            {"name": "description", "content": self.text(8, 25)},
            {"property": "og:title", "content": "x"},
        ]
        if self.rng.random() < 0.4:
            metas.append(
                {
                    "name": "robots",
                    "content": self.rng.choice(["index, follow", "noai", "noarchive"]),
                }
            )
        if self.rng.random() < 0.7:
            metas.append({"name": "HTML@/lang", "content": self.rng.choice(["en-US", "de", "fr"])})
        head: dict[str, Any] = {"Title": self.text(3, 9), "Metas": metas}
        head["Link"] = [
            {"path": "LINK@/href", "url": self.link(host), "rel": "stylesheet"} for _ in range(6)
        ]
        head["Scripts"] = [{"path": "SCRIPT@/src", "url": self.link(host, ".js")} for _ in range(8)]
        if self.rng.random() < 0.04:
            head["Base"] = host + "/"
        return {"Head": head, "Links": self.links(host)}

    def page(self, number: int) -> Iterator[bytes]:
        """The request, response and metadata of a page as compressed records."""
        host = f"https://www.{self.hexadecimal(9)}.example"
        section = self.rng.choice(["news", "shop", "blog"])
        url = f"{host}/{section}/{self.hexadecimal(8)}-{number}.html"
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Server": "nginx",
            "Vary": "Accept-Encoding",
        }
        headers |= {
            "Set-Cookie": f"sid={self.hexadecimal(40)}",
            "ETag": f'"{self.hexadecimal(20)}"',
        }
        if self.rng.random() < 0.03:
            headers["X-Robots-Tag"] = "noarchive"
        detected = [
            {
                "code": "en",
                "text-covered": 0.98,
                "score": self.rng.randint(300, 2000),
                "name": "ENGLISH",
            }
        ]
        value = json.dumps({"reliable": self.rng.random() < 0.9, "languages": detected})
        payloads = {
            "request": {
                "HTTP-Request-Metadata": {
                    "Headers": {"Host": host[8:], "Accept": "text/html,*/*;q=0.8"}
                }
            },
            "response": {
                "HTTP-Response-Metadata": {"Headers": headers, "HTML-Metadata": self.html(host)}
            },
            "metadata": {
                "WARC-Metadata-Metadata": {
                    "Metadata-Records": [
                        {"Name": "charset-detected", "Value": "UTF-8"},
                        {"Name": "languages-cld2", "Value": value},
                    ]
                }
            },
        }
        for kind, payload in payloads.items():
            yield self.record(kind, url, payload)

    def record(self, kind: str, url: str, payload: dict[str, Any]) -> bytes:
        container = {
            "Filename": "CC-MAIN-00000.warc.gz",
            "Compressed": True,
            "Offset": str(self.rng.getrandbits(30)),
        }
        headers = {
            "WARC-Type": kind,
            "WARC-Record-ID": f"<urn:uuid:{self.hexadecimal(32)}>",
            "WARC-Target-URI": url,
        }
        payload |= {"Block-Digest": f"sha1:{self.hexadecimal(32)}", "Trailing-Slop-Length": "0"}
        envelope = {
            "Payload-Metadata": payload,
            "Format": "WARC/1.0",
            "WARC-Header-Metadata": headers,
        }
        shell = {"Container": container, "Envelope": envelope}
        body = json.dumps(shell, ensure_ascii=False, separators=(",", ":")).encode()
        head = (
            f"WARC/1.0\r\nWARC-Type: metadata\r\nWARC-Target-URI: {url}\r\nWARC-Date: "
            "2026-02-01T00:00:00Z\r\n"
            f"WARC-Record-ID: <urn:uuid:{self.hexadecimal(32)}>\r\nContent-Type: "
            "application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return gzip.compress(head.encode() + body + b"\r\n\r\n", compresslevel=6, mtime=0)


def make(path: Path, pages: int, seed: int) -> None:
    writer = Writer(seed)
    with path.open("wb") as out:
        for number in range(pages):
            for record in writer.page(number):
                out.write(record)


# --- the three ways -------------------------------------------------------------------------------


def bodies(wat: str) -> Iterator[Any]:
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    with open(wat, "rb") as stream:
        yield from ArchiveIterator(stream, record_types=WarcRecordType.metadata, parse_http=False)


def bare(wat: str, out: str) -> dict[str, Any]:
    """Iterate, read every metadata record. `pages` are counted here for all: every third record."""
    count = 0
    for record in bodies(wat):
        record.reader.read()
        count += 1
    return {"pages": count / 3}


def cc2dataset(wat: str, out: str) -> dict[str, Any]:
    """Every record to Python objects; images with text; a table of all pairs at the end."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    loads, name = parser()
    rows: list[tuple[str, str, str, str]] = []
    for record in bodies(wat):
        envelope = loads(record.reader.read())["Envelope"]
        html = (
            envelope["Payload-Metadata"].get("HTTP-Response-Metadata", {}).get("HTML-Metadata", {})
        )
        page = envelope["WARC-Header-Metadata"].get("WARC-Target-URI", "")
        base = html.get("Head", {}).get("Base", "")
        for link in html.get("Links", []):
            if link.get("path") != "IMG@/src" or len(link.get("alt", "")) == 0:
                continue
            try:
                url = urljoin(
                    page, urljoin(base, link.get("url", "")) if base else link.get("url", "")
                )
            except ValueError:
                continue
            if url.startswith("http"):
                uid = hashlib.md5((link["alt"] + url).encode("utf-8", "replace")).hexdigest()
                rows.append((uid, url, link["alt"], page))
    columns = dict(zip(("uid", "url", "alt", "page_url"), zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), out)
    return {"pairs": len(rows), "parser": name}


def parser() -> tuple[Callable[[bytes], Any], str]:
    try:
        import simdjson
    except ImportError:
        return json.loads, "json"
    return simdjson.loads, f"pysimdjson {importlib.metadata.version('pysimdjson')}"


def ours(wat: str, out: str) -> dict[str, Any]:
    """The stage's own work, as a pool's crawl calls it."""
    from clipmill.manifests.schema import Source
    from clipmill.pipeline.crawl.crawler import ExtractJob, SourceFile, extract
    from clipmill.pipeline.executor.tickets import Ticket
    from clipmill.pipeline.pool.lease import PoolWriter

    source = Source(kind="wat", paths=(wat,))
    file = SourceFile(number=0, path=wat, source_id="benchmark")
    work = extract(ExtractJob(out=PoolWriter(out), source=source))
    return {"pairs": work(Ticket(id="part-00000", group="part-00000", payload=file)).stored}


def child(way: str, wat: str, folder: str) -> dict[str, Any]:
    """One way in this process, which has read a WAT of 20 pages before: a worker reads many."""
    out, small = Path(folder) / f"out-{way}", Path(folder) / "small.warc.wat.gz"
    run = {"bare": bare, "cc2dataset": cc2dataset, "ours": ours}[way]
    run(str(small), f"{out}-small")
    started = time.process_time()
    result = run(wat, str(out))
    cpu = time.process_time() - started
    return {
        "cpu_s": cpu,
        **result,
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def measure(
    way: str, wat: str, folder: str, peer: str | None, python: str = sys.executable
) -> dict[str, Any]:
    """One way in a process of its own, by `python`. `peer` is a folder of packages for the peer."""
    command = [
        python,
        str(Path(__file__).resolve()),
        "--child",
        way,
        "--wat",
        wat,
        "--folder",
        folder,
    ]
    environment = dict(os.environ)
    if way == "cc2dataset" and peer is not None:
        environment["PYTHONPATH"] = peer
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{WAYS[way]} ended with {done.returncode}:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


# --- the table ------------------------------------------------------------------------------------


def summary(runs: list[dict[str, dict[str, Any]]], size: int) -> dict[str, Any]:
    """Medians over the rounds; ratios are taken inside a round."""
    pages = runs[0]["bare"]["pages"]
    rows = {}
    for way in WAYS:
        cpu = statistics.median(run[way]["cpu_s"] for run in runs)
        ratios = [run[way]["cpu_s"] / run["bare"]["cpu_s"] for run in runs]
        rows[way] = {
            "cpu_s": round(cpu, 4),
            "s_per_39k_pages": round(cpu / pages * PAGES_OF_A_WAT, 2),
            "pages_per_s": round(pages / cpu),
            "ratio": round(statistics.median(ratios), 2),
            "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
            "pairs": runs[0][way].get("pairs"),
            "peak_mib": max(run[way]["peak_mib"] for run in runs),
        }
    return {"pages": round(pages), "bytes": size, "rounds": len(runs), "ways": rows}


def table(result: dict[str, Any]) -> str:
    lines = [
        "| way | CPU s | s per 39k pages | pages/s | ÷ bare reading | pairs | peak MiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for way, row in result["ways"].items():
        low, high = row["ratio_range"]
        cells = [
            WAYS[way],
            row["cpu_s"],
            row["s_per_39k_pages"],
            row["pages_per_s"],
            f"{row['ratio']} ({low} to {high})",
        ]
        lines.append(
            "| " + " | ".join(map(str, [*cells, row["pairs"] or "", row["peak_mib"]])) + " |"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=4000)
    parser.add_argument("--wat", help="a WAT to read instead of one that is made")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "crawl.json"))
    parser.add_argument("--child", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(child(args.child, args.wat, args.folder)), flush=True)
        return 0
    with tempfile.TemporaryDirectory(prefix="crawl-") as folder:
        wat, peer = args.wat or str(Path(folder) / "made.warc.wat.gz"), str(Path(folder) / "peer")
        pip = [sys.executable, "-m", "pip", "install", "--quiet"]
        pip += ["--disable-pip-version-check", "--target", peer]
        installed = (
            subprocess.run([*pip, "pysimdjson"], capture_output=True, text=True).returncode == 0
        )
        if not installed:
            print(
                "pysimdjson cannot be installed: cc2dataset's logic runs on json, which is slower",
                flush=True,
            )
        if not args.wat:
            make(Path(wat), args.pages, args.seed)
        make(Path(folder) / "small.warc.wat.gz", 20, args.seed)
        size = Path(wat).stat().st_size
        runs = []
        for _ in range(args.rounds):
            runs.append({way: measure(way, wat, folder, peer) for way in WAYS})
            print(json.dumps(runs[-1]), flush=True)
    source = "--wat FILE" if args.wat else f"--pages {args.pages} --seed {args.seed}"
    names = ("fastwarc", "msgspec", "pyarrow")
    result = {
        "command": f"python benchmarks/fetching/crawl.py {source} --rounds {args.rounds}",
        "versions": {
            "python": platform.python_version(),
            **{n: importlib.metadata.version(n) for n in names},
        },
        "cc2dataset_parser": runs[0]["cc2dataset"]["parser"],
        "cores": os.cpu_count(),
        **summary(runs, size),
    }
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
