"""The stages that read the web: WATs to pairs, and images from a web server."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fetching import crawl as wats
from benchmarks.fetching import fetch as images
from benchmarks.fetching import static_web
from benchmarks.fetching.fetch_programs import OURS
from benchmarks.peers.environments import Environment, environment_of
from benchmarks.peers.rows import Row, in_turns, row_of

PAGES, PAGE_TURNS = 4000, 5
FETCHED, FETCH_ROUNDS = 1200, 3
PEER = "img2dataset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every stage gets. `photographs` is a folder of JPEGs, `share` is of the usual sizes."""

    work: Path
    photographs: Path
    share: float = 1.0
    most_turns: int = 100

    def count(self, usual: int, least: int = 1) -> int:
        """A usual number of items, made smaller."""
        return max(least, round(usual * self.share))

    def turns(self, usual: int) -> int:
        """The usual number of turns, or fewer."""
        return min(usual, self.most_turns)


Measured = tuple[list[Row], dict[str, str | None]]  # rows, versions of the peers


def crawl(context: Context) -> Measured:
    """CPU of a page in a WAT, beside cc2dataset's logic and beside reading alone."""
    peer = environment_of("cc2dataset")
    pages = context.count(PAGES, 50)
    wat, folder = context.work / "made.warc.wat.gz", context.work
    wats.make(wat, pages, 0)
    wats.make(folder / "small.warc.wat.gz", 20, 0)

    def way(name: str, python: str | None = None) -> float:
        more = {} if python is None else {"python": python}
        return 1000 * wats.measure(name, str(wat), str(folder), None, **more)["cpu_s"] / pages

    ways = {"clipmill": lambda: way("ours"), "FastWARC": lambda: way("bare")}
    if peer.python is not None:
        ways["cc2dataset"] = lambda: way("cc2dataset", peer.python)
    values = in_turns(ways, context.turns(PAGE_TURNS))
    rows = [
        row_of(
            "WAT to pairs, beside cc2dataset's logic",
            "CPU ms per page",
            1.0,
            "cc2dataset's logic",
            values["clipmill"],
            values.get("cc2dataset", []),
            items=pages,
            missing=peer.reason,
        ),
        row_of(
            "WAT to pairs, beside reading alone",
            "CPU ms per page",
            2.2,
            "FastWARC, records read and dropped",
            values["clipmill"],
            values["FastWARC"],
            items=pages,
        ),
    ]
    return rows, {"cc2dataset's parser": versioned("pysimdjson", peer)}


def versioned(name: str, peer: Environment) -> str | None:
    """Name and version of a peer, None where it is not installed."""
    return None if peer.version is None else f"{name} {peer.version}"


def fetch(context: Context) -> Measured:
    """CPU of a fetched, resized and stored image, beside img2dataset."""
    peer = environment_of("img2dataset")
    args = argparse.Namespace(
        cases=["photographs", "large"],
        peers=[PEER] if peer.python else [],
        peer_python=peer.python,
        count=context.count(FETCHED, 400),  # fewer cost less than the start of a program varies
        concurrency=64,
        threads=64,
    )
    with static_web.serving(context.photographs, context.work) as web:
        rounds = [
            images.one_round(number, web, args, context.work)
            for number in range(context.turns(FETCH_ROUNDS))
        ]
    rows = []
    bars = {"photographs": ("photographs as they are, to 256", 0.65)}
    bars["large"] = ("3 megapixels, to 256", 0.40)
    for case, (title, bar) in bars.items():
        rows.append(
            row_of(
                f"images over HTTP, {title}",
                "CPU ms per image",
                bar,
                "img2dataset, one process",
                [one[case][OURS]["cpu_ms"] for one in rounds],
                [one[case][PEER]["cpu_ms"] for one in rounds if PEER in one[case]],
                items=round(args.count * (1.0 if case == "photographs" else 0.25)),
                missing=peer.reason,
            )
        )
    return rows, {"img2dataset": peer.version, "nginx": static_web.version()}
