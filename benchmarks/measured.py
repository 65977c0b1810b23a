#!/usr/bin/env python3
"""The tables of docs/measured.md and of studies, made from benchmarks/results: `make bench-page`.

What stands between `<!-- written by make bench-page: NAME -->` and `<!-- end -->` is made here and
nowhere else.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from benchmarks.peers import page
from benchmarks.scaling import document
from clipmill.manifests import disk

RESULTS = ROOT / "benchmarks/results"
BLOCK = re.compile(r"(<!-- written by make bench-page: ([a-z]+) -->\n).*?(<!-- end -->)", re.S)


def read(name: str) -> Any:
    """A file of results."""
    return disk.read_json(RESULTS / f"{name}.json")


def single_lines() -> Iterator[str]:
    """A row for each figure that stands alone: what it is, its value, its file."""
    yield "| what | measured | file |"
    yield "|---|---|---|"
    for what, value, name in single_figures():
        yield f"| {what} | {value} | [{name}](../benchmarks/results/{name}.json) |"


def single_figures() -> Iterator[tuple[str, str, str]]:
    """(what was measured, its value, the name of its file)."""
    raw = read("fetch")["cases"]["raw"]["programs"]
    rates = [raw[name]["rate"]["median"] for name in ("clipmill", "img2dataset")]
    yield (
        "images a second over HTTPS, bytes as they come, one process: clipmill; img2dataset",
        "; ".join(f"{rate:,.0f}" for rate in rates),
        "fetch",
    )
    parity = read("scoring")["preprocess"]["parity"]
    fast = parity["fast"]
    yield (
        "`resize: fast` beside open_clip's transform: values that differ; at most; cosine distance"
        " of embeddings at most (`exact`: no value differs)",
        f"{fast['share_of_values']:.2%}; {fast['largest_level']} of 255; "
        f"{fast['largest_cosine_distance']:.1e}",
        "scoring",
    )
    memory = read("scoring")["memory"]
    sizes = memory["largest_mib_by_tenth"]
    yield (
        f"memory of a pass of scores over {memory['images']:,} images, by tenths",
        f"{min(sizes):,} to {max(sizes):,} MiB",
        "scoring",
    )
    curves = read("curves")["summary"]
    yield (
        "2,000 steps of `micro` beside open_clip's own loop, photographs, 3 seeds: mean difference"
        " of the loss over the SD between seeds (two equal programs: "
        f"{curves['ratio_if_equal']:.2f}); windows outside 95 %; accuracy of both",
        f"{curves['ratio']:.2f}; {curves['windows_outside_welch']} of {curves['windows']}; "
        f"{_percent(curves['accuracy_ours'])}, {_percent(curves['accuracy_theirs'])}",
        "curves",
    )
    speeds = read("loader")["best_samples_per_cpu_s"]
    yield (
        "samples of the loader a CPU second, 256-pixel JPEGs to 224: local tars; a store with 50 ms"
        " a request; open_clip's pipeline on local tars",
        "; ".join(f"{speeds[name]:,.0f}" for name in ("ours", "remote", "open_clip")),
        "loader",
    )
    bars = {bar["bar"]: bar["measured"] for bar in read("cpu_micro")["bars"]}
    yield (
        "samples a CPU second of `micro`, packed captions, from shards with decoding / open_clip"
        " without",
        f"{bars['micro: packed, from shards, ÷ open_clip of CPU time']:.2f}",
        "cpu_micro",
    )
    batches = read("first_batch")["results"]
    yield (
        "first batch over a pool of 1,000,000 shards: local files; a store with 50 ms a request",
        "; ".join(f"{row['seconds']:.1f} s, {row['mb']:.0f} MB" for row in batches.values()),
        "first_batch",
    )
    yield ("memory of a training step on a CPU: formula / measured", _step_memory(), "step_memory")
    yield from _latency_figures()
    views = read("views")["results"]
    yield (
        "1,000,000 rows: eight columns of metadata joined by uid; a view of twelve columns",
        "; ".join(
            f"{views[name]['cpu_s']:.1f} s of CPU, {views[name]['peak_mib']:,} MiB"
            for name in ("join", "choose")
        ),
        "views",
    )
    (explained,) = read("explain")["results"]
    yield (
        "`audit explain` in 1,000,000 rows: with the table of rows; without",
        f"{explained['with_table']['median_wall_s']:.2f} s; "
        f"{explained['without_table']['median_wall_s']:.1f} s",
        "explain",
    )
    purges = {row["purged"]: row for row in read("purge")["trials"]}
    yield (
        "purge in 1,000,000 rows of small images: a uid; a host; a uid of each of 145 shards",
        "; ".join(
            f"{purges[name]['cpu_s']:.1f} s" for name in ("1 uid", "a host", "a uid of every shard")
        )
        + " of CPU",
        "purge",
    )
    (look,) = read("look")["results"]
    painted = look["browser"]["file"]["painted_ms"]
    yield (
        "threshold over a score of 1,000,000 rows on the page of a pool, until it is painted:"
        " median; 99 %; size of the page",
        f"{painted['median']:.0f} ms; {painted['p99']:.0f} ms; {look['file_mb']:.1f} MB",
        "look",
    )
    why = read("cifar10_why")["commands"][0]["answer"]
    yield (
        "`clipmill why`, 16 groups on CIFAR-10: rank correlation of predicted and measured"
        " accuracy of mixtures that the fit had not seen; what the noise allows",
        f"{why['rank']:.2f}; {why['ceiling']:.2f}",
        "cifar10_why",
    )
    laws = [row for row in read("mixing_laws")["rows"] if row["runs"] == 32]
    chosen = next(row for row in laws if row["law"] != "power 1")
    mean, spread = chosen["regret 1B"]
    yield (
        "`clipmill mix` from 32 of RegMix's small runs: regret among its 64 large ones",
        f"{mean:.2f} ± {spread:.2f} SD",
        "mixing_laws",
    )


def _percent(figure: dict[str, float]) -> str:
    return f"{100 * figure['mean']:.1f} ± {100 * figure['sd']:.1f} %"


def _step_memory() -> str:
    from benchmarks.training import step_memory

    low, high = step_memory.ratios(read("step_memory"))
    return f"{low:.2f} to {high:.2f} of {len(read('step_memory')['cases'])} steps"


def _latency_figures() -> Iterator[tuple[str, str, str]]:
    ratios: dict[str, list[float]] = {}
    for report in read("latency_cpu")["reports"]:
        cells = {(cell["batch"], cell["variant"]): cell["figures"] for cell in report["cells"]}
        for (batch, variant), figures in cells.items():
            if variant == "onnxruntime":
                ratio = cells[batch, "eager"]["cpu_s"] / figures["cpu_s"]
                ratios.setdefault(report["cells"][0]["model"], []).append(ratio)
    yield (
        "eager PyTorch / ONNX Runtime, CPU time of a request of 1 to 8 images and texts: "
        + "; ".join(ratios),
        "; ".join(f"{min(values):.2f} to {max(values):.2f}" for values in ratios.values()),
        "latency_cpu",
    )


def _filters() -> Iterable[str]:
    from benchmarks.filtering import concepts

    return concepts.table_lines(read("concepts")["results"])


def _copies() -> Iterable[str]:
    from benchmarks.filtering import duplicates

    return duplicates.table_lines(read("duplicates"))


def _scores() -> Iterable[str]:
    from benchmarks.filtering import score_quality

    return score_quality.markdown(read("score_quality")).splitlines()


def interval_lines() -> Iterator[str]:
    """How often the intervals of ablations drawn from 24 seeds hold."""
    yield (
        "| seeds | single intervals that hold, % | all of an ablation hold, % (nominal) |"
        " A/A called different, % | half-width, points | smallest visible difference |"
    )
    yield "|---:|---:|---:|---:|---:|---:|"
    for row in read("intervals")["rows"]:
        if row["method"] == "new":
            low, high = row["half_width_5_95"]
            cells = [
                str(row["seeds"]),
                f"{100 * row['held']:.1f}",
                f"{100 * row['held_all']:.1f} ({100 * row['nominal']:.1f})",
                f"{100 * row['a_a_called']:.1f}",
                f"{row['half_width']:.2f} [{low:.2f}, {high:.2f}]",
                f"{row['mde']:.2f}",
            ]
            yield f"| {' | '.join(cells)} |"


def law_lines() -> Iterator[str]:
    """What a law of few of RegMix's small runs chooses among its large ones."""
    yield (
        "| runs of 1M | regret among 64 of 1B, SD | rank correlation | the law fits |"
        " gain of the found blend at 60M, SD | of the advice |"
    )
    yield "|---:|---:|---:|---:|---:|---:|"
    document = read("mixing_laws")
    chosen = [row for row in document["rows"] if row["law"] != "power 1"]
    for law, advice in zip(chosen, document["advice"], strict=True):
        regret, rank = law["regret 1B"], law["rho 1B"]
        fits = "" if advice["fits"] is None else f"{100 * advice['fits']:.0f} %"
        yield (
            f"| {law['runs']} | {regret[0]:.2f} ± {regret[1]:.2f} | {rank[0]:.2f} ± {rank[1]:.2f} |"
            f" {fits} | {advice['gain']:+.2f} | {advice['gain of the advice']:+.2f} |"
        )


def swarm_lines() -> Iterator[str]:
    """What `clipmill mix` says of simulated swarms."""
    names = ("sources", "mixtures", "seeds", "noise")
    shares = ("printed", "held", "fits", "found_taken")
    regrets = ("regret", "regret_best_run", "regret_taken", "bound")
    yield (
        "| truth | sources | mixtures | seeds | noise | bound printed | it holds | the law fits |"
        " found is taken | regret | of the best run | of the advice | bound |"
    )
    yield "|---|" + "---:|" * 12
    for row in read("mixing_regret")["rows"]:
        cells = [", ".join(filter(None, (row["truth"], row["noise_of"])))]
        cells += [str(row[name]) for name in names]
        cells += ["" if row[x] is None else f"{100 * row[x]:.0f} %" for x in shares]
        cells += ["" if row[x] is None else f"{row[x]:.2f}" for x in regrets]
        yield f"| {' | '.join(cells)} |"


def _sizes() -> Iterable[str]:
    from benchmarks.fetching import sizes

    return sizes.markdown(read("fetch_sizes")).splitlines()


def _whole() -> Iterable[str]:
    from benchmarks import whole

    return whole.table_lines(read("whole"))


def _loaders() -> Iterable[str]:
    from benchmarks.reading import loop_table

    return loop_table.loop_table().splitlines()


def _remote() -> Iterable[str]:
    from benchmarks.reading import remote_loops

    return remote_loops.table_lines(read("remote_loops"))


MAKERS: dict[str, Callable[[], Iterable[str]]] = {
    "stages": lambda: page.stage_lines(RESULTS / "bench"),
    "gpu": lambda: page.gpu_lines(RESULTS / "bench"),
    "growth": lambda: page.growth_lines(RESULTS / "bench"),
    "sizes": _sizes,
    "loaders": _loaders,
    "remote": _remote,
    "bars": lambda: document.bar_lines(read("scale")),
    "steps": lambda: document.step_lines(read("scale")),
    "projection": lambda: document.projection_lines(read("scale")),
    "whole": _whole,
    "filters": _filters,
    "copies": _copies,
    "scores": _scores,
    "single": single_lines,
    "intervals": interval_lines,
    "laws": law_lines,
    "swarms": swarm_lines,
}
PAGES = ("docs/measured.md", "docs/statistics.md", "docs/blend_search.md")


def filled() -> dict[Path, str]:
    """Each page with its blocks made anew. ValueError where one of MAKERS is in no page."""
    texts = {ROOT / page: (ROOT / page).read_text() for page in PAGES}
    names = [match[2] for text in texts.values() for match in BLOCK.finditer(text)]
    if sorted(names) != sorted(MAKERS):
        raise ValueError(f"the pages have the blocks {names}; they have all of {', '.join(MAKERS)}")
    return {path: BLOCK.sub(_block, text) for path, text in texts.items()}


def _block(match: re.Match[str]) -> str:
    return match[1] + "\n".join(MAKERS[match[2]]()).strip() + "\n" + match[3]


def write() -> None:
    for path, text in filled().items():
        path.write_text(text)


if __name__ == "__main__":
    write()
