#!/usr/bin/env python3
"""Fetching against img2dataset, side by side in one run: CPU per picture, pictures per second,
fidelity.

example: python benchmarks/fetching/fetch.py --pictures photographs/

A folder of JPEGs is served by nginx on loopback, each under many URLs. Both programs take the same
list in turns, with the same settings: ours by its route (clipmill build, crawl before the clock
starts), img2dataset by its function `download`, in a virtual environment of its own. CPU is user
and system time of the program and all processes that it started; a run over one picture (over one
per process of img2dataset's) is subtracted, so start-up is not in it. The rate of img2dataset is by
its own clock, which runs while it works on a shard.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import numpy as np
import pyarrow.parquet as pq

from benchmarks.fetching import fidelity, static_web
from benchmarks.fetching.fetch_programs import (
    CASES,
    DEFAULTS,
    OURS,
    PEERS,
    PICTURE,
    SAME,
    Run,
    program,
)
from benchmarks.photographs import folder_option
from clipmill.manifests.schema import Fetch
from clipmill.pipeline.external.img2dataset import version_of
from clipmill.pipeline.images.transform import check_and_resize

FLOOR_PICTURES = {"small": 200, "large": 24}
FIDELITY_PICTURES = {"small": 200, "large": 24}


# --- figures --------------------------------------------------------------------------------------


def figures(whole: Run, start: Run) -> dict[str, float]:
    """What a picture costs once the program has started."""
    pictures = whole.pictures - start.pictures
    cpu_s, wall_s = whole.cpu_s - start.cpu_s, whole.busy_s or whole.wall_s - start.wall_s
    if min(cpu_s, wall_s) <= 0:
        raise RuntimeError(
            f"{whole} is not longer than its start-up {start}: take more pictures "
            "(--count, or SHARE of make bench)"
        )
    return {
        "cpu_ms": 1000 * cpu_s / pictures,
        "rate": (whole.pictures if whole.busy_s else pictures) / wall_s,
        "rate_per_core": pictures / cpu_s,
        "start_cpu_s": start.cpu_s,
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def one_round(number: int, web: static_web.Web, args: Any, folder: Path) -> dict[str, Any]:
    """Each case by each program, in an order that turns from round to round."""
    results: dict[str, Any] = {}
    for name in args.cases:
        case = CASES[name]
        programs = [OURS, *(who for who in case.peers if who in args.peers)]
        results[name] = {}
        for who in programs[number % len(programs) :] + programs[: number % len(programs)]:
            share = case.share if who == OURS else case.peer_share
            out = folder / f"round{number}-{name}-{who.replace(', ', '-').replace(' ', '-')}"
            start = program(who, web, case, PEERS.get(who, 1), args, out / "start")
            whole = program(who, web, case, max(20, round(args.count * share)), args, out / "whole")
            results[name][who] = {**figures(whole, start), "runs": [asdict(start), asdict(whole)]}
            cpu_ms = results[name][who]["cpu_ms"]
            print(f"round {number + 1}: {case.title}: {who}: {cpu_ms:.2f} ms CPU", flush=True)
    return results


def floor(web: static_web.Web, kind: str) -> float:
    """Milliseconds of CPU for decoding, resizing and encoding a picture, and nothing else, in this
    process.
    """
    paths = sorted((web.folder / "web" / kind).iterdir())[: FLOOR_PICTURES[kind]]
    bodies = [path.read_bytes() for path in paths]
    settings = Fetch(**PICTURE)
    check_and_resize(bodies[0], settings)
    started = time.process_time()
    for body in bodies:
        check_and_resize(body, settings)
    return 1000 * (time.process_time() - started) / len(bodies)


def summary(rounds: list[dict[str, Any]], floors: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, ranges, ratios and bars of all cases."""
    cases: dict[str, Any] = {}
    for name in rounds[0]:
        case = CASES[name]
        programs = tuple(rounds[0][name])
        keys = ("cpu_ms", "rate", "rate_per_core", "start_cpu_s")
        numbers = {
            who: {key: spread([r[name][who][key] for r in rounds]) for key in keys}
            for who in programs
        }
        best = min(
            (who for who in programs[1:] if who != DEFAULTS),
            key=lambda who: numbers[who]["cpu_ms"]["median"],
        )
        ratio = spread([r[name][OURS]["cpu_ms"] / r[name][best]["cpu_ms"] for r in rounds])
        measured_value = (
            ratio["median"] if case.goal_of == "cpu" else numbers[OURS]["rate"]["median"]
        )
        cases[name] = {
            "title": case.title,
            "programs": numbers,
            "against": best,
            "cpu_ratio": ratio,
        }
        cases[name]["bar"] = {
            "of": "CPU per picture, ours / img2dataset's, at most"
            if case.goal_of == "cpu"
            else "pictures/s, at least",
            "goal": case.goal,
            "measured": measured_value,
            "measured_over_goal": measured_value / case.goal,
        }
        if not case.raw:
            least = statistics.median(floors[case.kind])
            cases[name]["floor"] = {"ms": least, "share": least / numbers[OURS]["cpu_ms"]["median"]}
    return cases


# --- fidelity -------------------------------------------------------------------------------------


def stored_by_us(folder: Path) -> Iterator[tuple[str, bytes]]:
    """(url, stored JPEG) of a pool."""
    for sidecar in sorted((folder / "pool/shards").glob("*.parquet")):
        with open(sidecar.with_suffix(".tar"), "rb") as f:
            for row in pq.read_table(
                sidecar, columns=["url", "image_offset", "image_length"]
            ).to_pylist():
                f.seek(row["image_offset"])
                yield row["url"], f.read(row["image_length"])


def stored_by_peer(folder: Path) -> Iterator[tuple[str, bytes]]:
    """(url, stored JPEG) of img2dataset's shards."""
    import tarfile

    for sidecar in sorted((folder / "out").glob("*.parquet")):
        urls = {
            row["key"]: row["url"]
            for row in pq.read_table(sidecar, columns=["key", "url"]).to_pylist()
        }
        with tarfile.open(sidecar.with_suffix(".tar")) as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    opened = tar.extractfile(member)
                    assert opened is not None
                    yield urls[member.name.removesuffix(".jpg")], opened.read()


def fidelities(web: static_web.Web, folder: Path, cases: list[str]) -> dict[str, Any]:
    """PSNR of what both stored in the first round, by case."""
    images: dict[str, Any] = {}
    for name in cases:
        case = CASES[name]
        if case.raw:
            continue
        whole = {who: folder / f"round0-{name}-{who}" / "whole" for who in (OURS, "img2dataset")}
        stored = {
            OURS: dict(stored_by_us(whole[OURS])),
            "img2dataset": dict(stored_by_peer(whole["img2dataset"])),
        }
        urls = [
            url for url in web.urls(case.kind, len(stored[OURS])) if url in stored["img2dataset"]
        ]
        images[name] = fidelity.compare(
            (
                (static_web.picture_of(web, url), {who: stored[who][url] for who in stored})
                for url in urls
            ),
            FIDELITY_PICTURES[case.kind],
            PICTURE["image_size"],
        )
    return images


# --- the command ----------------------------------------------------------------------------------


def table(results: dict[str, Any]) -> str:
    """One table of everything."""
    rows = []
    for name, case in results["cases"].items():
        rows.append(case["title"])
        for who, numbers in case["programs"].items():
            cpu, rate = numbers["cpu_ms"], numbers["rate"]
            rows.append(
                f"  {who:26} {cpu['median']:7.2f} ms CPU/picture "
                f"({cpu['least']:.2f}..{cpu['most']:.2f})"
                f" {rate['median']:7.0f}/s ({rate['least']:.0f}..{rate['most']:.0f})"
                f" {numbers['rate_per_core']['median']:7.0f}/s/core"
            )
        ratio, bar = case["cpu_ratio"], case["bar"]
        rows.append(
            f"  CPU, ours / {case['against']}: {ratio['median']:.3f} "
            f"({ratio['least']:.3f}..{ratio['most']:.3f})"
        )
        rows.append(
            f"  bar: {bar['of']} {bar['goal']:g}: {bar['measured']:.3g}, measured/goal "
            f"{bar['measured_over_goal']:.2f}"
        )
        if "floor" in case:
            rows.append(
                f"  decode + resize + encode alone: {case['floor']['ms']:.2f} ms, "
                f"{case['floor']['share']:.0%} of ours"
            )
        for who, psnr in results["fidelity"].get(name, {}).get("psnr_db", {}).items():
            rows.append(
                f"  PSNR, {who:28} mean {psnr['mean']:.2f} dB, 5th percentile {psnr['p5']:.2f} dB"
            )
    return "\n".join(rows)


def peer_environment(folder: Path) -> str:
    """The interpreter of a new virtual environment with img2dataset."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "peer")], check=True)
    python = str(folder / "peer/bin/python")
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "img2dataset>=1.47",
    ]
    subprocess.run(install, check=True)
    return python


def versions(python: str) -> dict[str, str]:
    import PIL
    import simplejpeg

    theirs = "import platform, cv2; print(platform.python_version(), cv2.__version__)"
    interpreter, opencv = subprocess.run(
        [python, "-c", theirs], capture_output=True, text=True
    ).stdout.split()
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "simplejpeg": simplejpeg.__version__,
        "img2dataset": version_of(python),
        "img2dataset's python": interpreter,
        "img2dataset's opencv": opencv,
        "nginx": static_web.version(),
    }


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pictures",
        required=True,
        type=folder_option,
        help="a folder of JPEGs of about 500x400",
    )
    parser.add_argument(
        "--peer-python", help="an interpreter that has img2dataset (default: a new environment)"
    )
    parser.add_argument("--count", type=int, default=4000, help="URLs of the first case")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--concurrency", type=int, default=64, help="our requests under way at once"
    )
    parser.add_argument("--threads", type=int, default=64, help="img2dataset's thread_count")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/fetch.json")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nginx ends too
    with tempfile.TemporaryDirectory(prefix="clipmill-bench-") as name:
        folder = Path(name)
        try:
            args.peer_python = args.peer_python or peer_environment(folder)
            versions_found = versions(args.peer_python)
            with static_web.serving(args.pictures, folder) as web:
                rounds, floors = [], {kind: [floor(web, kind)] for kind in FLOOR_PICTURES}
                for number in range(args.rounds):
                    rounds.append(one_round(number, web, args, folder))
                    for kind, values in floors.items():
                        values.append(floor(web, kind))
                fidelity_found = fidelities(web, folder, args.cases)
                certificates = web.certificates
        except (RuntimeError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    results = {
        "command": "python benchmarks/fetching/fetch.py --pictures DIR "
        f"--count {args.count} --rounds {args.rounds} "
        f"--concurrency {args.concurrency} --threads {args.threads} --cases {' '.join(args.cases)}",
        "cores": os.cpu_count(),
        "certificates_in_the_bundle": certificates,
        "settings": SAME,
        "versions": versions_found,
        "cases": summary(rounds, floors),
        "fidelity": fidelity_found,
        "rounds": rounds,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
