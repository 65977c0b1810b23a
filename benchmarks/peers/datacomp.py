#!/usr/bin/env python3
"""DataComp's choice of a subset, measured: its published algorithm in a few lines of our own.

Its code is not a package. The algorithm: read every metadata file with pandas, take the threshold
of a share from the sorted column of the whole pool, mask the rows of each file, keep the uids as
pairs of 64-bit integers, sort them and save them with numpy.

example: python benchmarks/peers/datacomp.py METADATA subset.npy
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

SCORES = [f"score_{number}" for number in range(8)]
COLUMNS = ["uid", "original_width", "original_height", "image_length", "page_lang", *SCORES]
SHARE = 0.80
UID = np.dtype("u8,u8")


def threshold_of(paths: list[Path]) -> float:
    """The value of the first score that SHARE of all rows reach."""
    values = np.concatenate(
        [pd.read_parquet(path, columns=SCORES[:1])[SCORES[0]] for path in paths]
    )
    values = values[~np.isnan(values)]
    return float(np.sort(values)[::-1][int(len(values) * SHARE)])


def kept_uids(path: Path, threshold: float) -> np.ndarray:
    """Uids of the rows of a file that every rule keeps."""
    table = pd.read_parquet(path, columns=COLUMNS)
    mask = np.minimum(table["original_width"], table["original_height"]) >= 100
    mask &= table["image_length"] > 4000
    mask &= table["page_lang"] != "ja"
    mask &= table[SCORES[0]] >= threshold
    for name in SCORES[1:]:
        mask &= table[name] > -1.5
    uids = table["uid"][mask]
    return np.array([(int(uid[:16], 16), int(uid[16:32], 16)) for uid in uids], UID)


def main(folder: str, out: str) -> None:
    """Choose, and print the rows kept and the CPU time."""
    paths = sorted(Path(folder).glob("*.parquet"))
    pd.read_parquet(paths[0], columns=["uid"])  # loads the reader before the clock starts
    started = time.process_time()
    threshold = threshold_of(paths)
    uids = np.concatenate([kept_uids(path, threshold) for path in paths])
    uids.sort()
    np.save(out, uids)
    print(json.dumps({"kept": len(uids), "cpu_s": time.process_time() - started}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
