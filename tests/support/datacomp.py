"""DataComp's metadata as its downloads have it: NNNN.parquet with an .npz of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

WIDTH = 8


def unit(rows: int, seed: int) -> npt.NDArray[np.float16]:
    values = np.random.default_rng(seed).normal(size=(rows, WIDTH))
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(values / lengths, np.float16)


def write_metadata(
    folder: Path, name: str, uids: Sequence[str], seed: int = 0, group: int = 7
) -> dict[str, npt.NDArray[np.float16]]:
    """The files of some uids; returns the arrays of the .npz."""
    folder.mkdir(parents=True, exist_ok=True)
    image, text = unit(len(uids), seed), unit(len(uids), seed + 1)
    scores = (image.astype(np.float32) * text.astype(np.float32)).sum(axis=1)
    boxes = [[[0.1, 0.2, 0.3, 0.4]] if row % 3 == 0 else [] for row in range(len(uids))]
    table = pa.table(
        {
            "uid": list(uids),
            "url": [f"https://x.example/{uid}.jpg" for uid in uids],
            "text": [f"a text {uid[:4]}" for uid in uids],
            "original_width": pa.array([200 + row for row in range(len(uids))], pa.int64()),
            "original_height": pa.array([300] * len(uids), pa.int64()),
            "clip_b32_similarity_score": pa.array(scores, pa.float32()),
            "clip_l14_similarity_score": pa.array(scores, pa.float32()),
            "face_bboxes": boxes,
            "sha256": [uid * 2 for uid in uids],
        }
    )
    pq.write_table(table, folder / f"{name}.parquet", row_group_size=group)
    arrays = {"b32_img": image, "b32_txt": text, "l14_img": image, "l14_txt": text}
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    return arrays
