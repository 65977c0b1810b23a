#!/usr/bin/env python3
"""Filters of captions and concepts on one core: rows per CPU second, memory, time to load.

example:
  python benchmarks/filtering/concepts.py --captions captions.txt --out results.json

--captions is a file of real captions, one a line. They are spliced to --rows captions. The entries
are their most frequent runs of one to three words, filled up with drawn ones to --entries. Each
part runs in a process of its own. ahocorasick_rs and rapidocr are measured where they are
installed.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import numpy as np
import pyarrow as pa
import xxhash
from PIL import Image

from clipmill.filters.base import Batch, Filter
from clipmill.filters.caption import Caption
from clipmill.filters.concepts import SPACED_MARKS, Balance, Concept, Synset, pattern_of, spaced
from clipmill.filters.picture import Picture
from clipmill.filters.targets import Targets
from clipmill.filters.text_overlap import TextOverlap

ROWS_PER_SHARD = 10_000
MARKS = frozenset(SPACED_MARKS)
LETTERS = "abcdefghiklmnoprstuv"


def spliced(captions: list[str], rows: int) -> list[str]:
    """As many captions as asked for: the given ones, and beginnings of some with ends of others."""
    draw = random.Random(0)
    made = captions[:rows]
    while len(made) < rows:
        first, second = draw.choice(captions).split(" "), draw.choice(captions).split(" ")
        cut, other = draw.randrange(1, len(first) + 1), draw.randrange(len(second) + 1)
        made.append(" ".join(first[:cut] + second[other:]))
    draw.shuffle(made)
    return made


def make_entries(captions: list[str], count: int) -> list[str]:
    """The most frequent runs of one to three words, then drawn ones."""
    draw = random.Random(1)
    runs: Counter[str] = Counter()
    for caption in captions:
        words = spaced(caption).split()
        for length in (1, 2, 3):
            for start in range(len(words) - length + 1):
                run = words[start : start + length]
                if not MARKS.intersection(run):  # an entry with a mark inside cannot occur
                    runs[" ".join(run)] += 1
    entries = [run for run, _ in runs.most_common(count * 3 // 5)]
    known = set(entries)
    words = [entry for entry in entries if " " not in entry]
    while len(entries) < count:
        if draw.random() < 0.8:
            entry = " ".join(draw.choices(words, k=draw.choice((2, 2, 3))))
        else:
            entry = "".join(draw.choices(LETTERS, k=draw.randrange(4, 12)))
        if entry not in known:
            known.add(entry)
            entries.append(entry)
    return entries


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def batches(captions: list[str]) -> list[Batch]:
    """Batches as a scorer gives them to a filter without images: one a shard."""
    parts = []
    for start in range(0, len(captions), ROWS_PER_SHARD):
        part = captions[start : start + ROWS_PER_SHARD]
        parts.append(Batch(captions=part, images=None, rows=pa.table({})))
    return parts


def measure(filter_: Filter, captions: list[str]) -> dict[str, Any]:
    """Time and memory to load, and rows per CPU second."""
    parts = batches(captions)
    before, started = resident_mib(), time.process_time()
    filter_.setup()
    loaded = time.process_time()
    memory = resident_mib() - before
    filter_.score(parts[0])  # what is done once, such as imports, is not measured
    loaded_and_warm = time.process_time()
    rows = sum(len(next(iter(filter_.score(batch).values()))) for batch in parts)
    seconds = time.process_time() - loaded_and_warm
    return {
        "rows": rows,
        "load_cpu_s": round(loaded - started, 2),
        "load_mib": round(memory),
        "rows_per_cpu_s": round(rows / seconds),
    }


def concept(folder: Path, captions: list[str], rule: str) -> dict[str, Any]:
    filter_ = Concept(entries=str(folder / "entries.json"), rule=rule)  # type: ignore[arg-type]
    result = measure(filter_, captions)
    counts = filter_.score(batches(captions)[0])["concept_count"]
    return {**result, "entries_per_row": round(float(np.mean(np.asarray(counts))), 2)}


def other_matcher(folder: Path, captions: list[str]) -> dict[str, Any]:
    """The same matches by ahocorasick_rs."""
    import ahocorasick_rs

    entries = json.loads((folder / "entries.json").read_text())
    before, started = resident_mib(), time.process_time()
    automaton = ahocorasick_rs.AhoCorasick(
        [pattern_of(entry, "spaces") for entry in entries],
        matchkind=ahocorasick_rs.MatchKind.Standard,
        store_patterns=False,
        implementation=ahocorasick_rs.Implementation.ContiguousNFA,
    )
    loaded = time.process_time()
    memory = resident_mib() - before
    for caption in captions:
        matches = automaton.find_matches_as_indexes(spaced(caption), overlapping=True)
        sorted({number for number, _, _ in matches})
    seconds = time.process_time() - loaded
    return {
        "version": version("ahocorasick_rs"),
        "rows": len(captions),
        "load_cpu_s": round(loaded - started, 2),
        "load_mib": round(memory),
        "rows_per_cpu_s": round(len(captions) / seconds),
    }


def balance(folder: Path, captions: list[str]) -> dict[str, Any]:
    """Summarise, combine and judge, shard by shard."""
    concept = Concept(entries=str(folder / "entries.json"))
    concept.setup()
    shards = []
    for number, batch in enumerate(batches(captions)):
        uids = []
        for row in range(len(batch.captions)):
            uids.append(xxhash.xxh3_128_hexdigest(f"{number}/{row}".encode()))
        lists = concept.score(batch)["concept_entries"]
        shards.append(pa.table({"uid": uids, "concept_entries": lists}))
    filter_ = Balance(tail_share=0.06)
    started = time.process_time()
    state = filter_.combine(pa.concat_tables([filter_.summarise(rows) for rows in shards]))
    kept, expected = 0, 0.0
    for rows in shards:
        columns = filter_.judge(rows, state)
        kept += int(np.sum(columns["balance_keep"]))
        expected += float(np.sum(np.asarray(columns["balance_probability"], np.float64)))
    seconds = time.process_time() - started
    return {
        "rows": len(captions),
        "rows_per_cpu_s": round(len(captions) / seconds),
        "kept": kept,
        "kept_expected": round(expected, 1),
    }


def nouns(folder: Path, captions: list[str]) -> dict[str, Any]:
    """The filter synset with every frequent word of the captions as a noun."""
    entries = json.loads((folder / "entries.json").read_text())
    words = [entry.lower() for entry in entries if " " not in entry and entry.isalpha()]
    lines = [f"{word} n 1 0 1 0 {number:08d}" for number, word in enumerate(dict.fromkeys(words))]
    (folder / "index.noun").write_text("\n".join(lines))
    (folder / "noun.exc").touch()
    wnids = [f"n{number:08d}" for number in range(0, len(lines), 7)]
    (folder / "wnids.txt").write_text("\n".join(wnids))
    files = {"nouns": str(folder / "index.noun"), "wnids": str(folder / "wnids.txt")}
    return measure(Synset(**files), captions)


def caption(folder: Path, captions: list[str], **options: Any) -> dict[str, Any]:
    if "words" in options:
        (folder / "words.txt").write_text("\n".join(options["words"]))
        options["words"] = str(folder / "words.txt")
    return measure(Caption(**options), captions)


def images(count: int) -> list[Image.Image]:
    """Images of 256 × 256 with all frequencies."""
    generator = np.random.default_rng(0)
    made = []
    for _ in range(count):
        small = generator.integers(0, 256, (32, 32, 3)).astype(np.uint8)
        made.append(Image.fromarray(small).resize((256, 256), Image.Resampling.BICUBIC))
    return made


def picture(detail: bool, count: int = 400) -> dict[str, Any]:
    batch = Batch(captions=[""] * count, images=images(count), rows=pa.table({}))
    started = time.process_time()
    Picture(detail=detail).score(batch)
    return {"rows": count, "rows_per_cpu_s": round(count / (time.process_time() - started))}


def text_overlap(count: int = 20) -> dict[str, Any]:
    batch = Batch(captions=["a dog"] * count, images=images(count), rows=pa.table({}))
    filter_ = TextOverlap()
    started = time.process_time()
    filter_.setup()
    loaded = time.process_time()
    filter_.score(batch)
    seconds = time.process_time() - loaded
    return {
        "version": version("rapidocr"),
        "rows": count,
        "load_cpu_s": round(loaded - started, 2),
        "rows_per_cpu_s": round(count / seconds, 2),
    }


def targets(folder: Path, rows: int, clusters: int, width: int) -> dict[str, Any]:
    """k-means on a tenth of the rows, then the nearest cluster of every row."""
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(rows, width)).astype(np.float16)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), width)
    uids = [xxhash.xxh3_128_hexdigest(str(number).encode()) for number in range(rows)]
    table = pa.table({"uid": uids, "embed_image": lists})
    np.save(folder / "targets.npy", vectors[:50].astype(np.float32))
    path = str(folder / "targets.npy")
    filter_ = Targets(targets=path, clusters=clusters, sample=0.1)
    started = time.process_time()
    state = filter_.combine(filter_.summarise(table))
    trained = time.process_time()
    columns = filter_.judge(table, state)
    seconds = time.process_time() - trained
    return {
        "rows": rows,
        "width": width,
        "clusters": clusters,
        "train_cpu_s": round(trained - started, 2),
        "rows_per_cpu_s": round(rows / seconds),
        "in_target": int(np.sum(columns["targets_in_target"])),
    }


def _call(work: Callable[..., dict[str, Any]], args: Any, options: Any) -> dict[str, Any]:
    gc.freeze()  # the captions of the parent are not traversed by each collection
    return work(*args, **options)


def in_process(work: Callable[..., dict[str, Any]], *args: Any, **options: Any) -> dict[str, Any]:
    """The result of a part, from a process that has done nothing else."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_call, (work, args, options))


def run(captions: list[str], entries: int, rows: int) -> dict[str, Any]:
    """All parts. The captions are made once and shared with the processes of the parts."""
    made = spliced(captions, rows)
    listed = make_entries(captions, entries)
    characters = sum(map(len, made)) / len(made)
    results: dict[str, Any] = {
        "corpus": {
            "real_captions": len(captions),
            "captions": len(made),
            "characters_per_caption": round(characters, 1),
            "entries": len(listed),
        }
    }
    few = made[: max(1, rows // 5)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "entries.json").write_text(json.dumps(listed))
        results["concept"] = in_process(concept, folder, made, "spaces")
        results["concept_scripts"] = in_process(concept, folder, few, "scripts")
        if find_spec("ahocorasick_rs") is not None:
            results["concept_by_ahocorasick_rs"] = in_process(other_matcher, folder, few)
        results["balance"] = in_process(balance, folder, few)
        results["synset"] = in_process(nouns, folder, few)
        results["caption"] = in_process(caption, folder, few)
        results["caption_detail"] = in_process(caption, folder, few, detail=True)
        words = ["sale", "free shipping", "buy", "discount", "promo code"]
        results["caption_words"] = in_process(caption, folder, few, detail=True, words=words)
        results["picture"] = in_process(picture, False)
        results["picture_detail"] = in_process(picture, True)
        if find_spec("faiss") is not None:
            results["targets"] = in_process(targets, folder, min(rows, 100_000), 500, 256)
        if find_spec("rapidocr") is not None:
            results["text_overlap"] = in_process(text_overlap)
    return results


def table_lines(results: dict[str, Any]) -> list[str]:
    """The table of docs/measured.md."""
    lines = [
        "| filter | rows | rows a CPU second | CPU s to load | MiB to load |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, result in results.items():
        if name == "corpus":
            continue
        rate = result["rows_per_cpu_s"]
        load = f"{result['load_cpu_s']}" if "load_cpu_s" in result else "-"
        memory = f"{result['load_mib']}" if "load_mib" in result else "-"
        lines.append(f"| `{name}` | {result['rows']:,} | {rate:,} | {load} | {memory} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--captions", required=True, help="a file of captions, one a line")
    parser.add_argument("--entries", type=int, default=500_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--out", help="write the results as JSON")
    args = parser.parse_args()
    lines = Path(args.captions).read_text(encoding="utf-8").split("\n")
    captions = [line for line in lines if line.strip()]
    document = {
        "command": " ".join(["python", "benchmarks/filtering/concepts.py", *sys.argv[1:]]),
        "load_average_before": round(os.getloadavg()[0], 1),
        "pyahocorasick": version("pyahocorasick"),
        "results": run(captions, args.entries, args.rows),
    }
    document["load_average_after"] = round(os.getloadavg()[0], 1)
    text = json.dumps(document, indent=1)
    print(text)
    if args.out:
        Path(args.out).write_text(text + "\n")


if __name__ == "__main__":
    main()
