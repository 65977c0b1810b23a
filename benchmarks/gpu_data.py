"""A pool of JPEGs as large as photographs, with tokens of captions of realistic lengths."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from clipmill.bench.synthetic import draw_captions
from clipmill.manifests import disk
from clipmill.manifests.aligned import write_view_shards
from clipmill.manifests.columns import SIDECAR, VIEW
from clipmill.manifests.layout import SHARD_VERSION, CommitRecord, PoolLayout, shard_name
from clipmill.manifests.records import ScoreSetDocument, ViewDocument
from tests.support.bundles import write_bundles

SIDE, QUALITY = 256, 90  # of the pool's pictures
SHARDS, ROWS = 8, 96


def picture(seed: int) -> bytes:
    """A JPEG of noise whose strength falls with its frequency, as in photographs: about 26 kB."""
    random = np.random.default_rng(seed)
    pixels = np.zeros((SIDE, SIDE, 3), np.float32)
    for side in (4, 8, 16, 32, 64, 128, 256):
        noise = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
        large = Image.fromarray(noise).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        pixels += (np.asarray(large, np.float32) - 127.5) / side**0.4
    sink = io.BytesIO()
    Image.fromarray(np.clip(127.5 + pixels, 0, 255).astype(np.uint8)).save(
        sink, "JPEG", quality=QUALITY
    )
    return sink.getvalue()


def write_pool(pool: str) -> None:
    """SHARDS shards of ROWS pictures with their tokens, and one view of them all."""
    layout = PoolLayout(pool)
    records: dict[str, str] = {}
    masks: list[tuple[str, pa.Table, dict[str, Any]]] = []
    scores: list[tuple[str, pa.Table, dict[str, Any]]] = []
    for number in range(SHARDS):
        shard = shard_name(number)
        rows, tar = _tar(shard, number * ROWS)
        uids = hashlib.sha256("\n".join(row["uid"] for row in rows).encode()).hexdigest()
        disk.write_bytes(disk.join(layout.shards, f"{shard}.tar"), tar)
        sidecar = pa.Table.from_pylist(rows, schema=SIDECAR)
        disk.write_parquet(layout.sidecar(shard), sidecar, {})
        records[shard] = disk.content_hash(rows, 64)
        record = CommitRecord(
            shard=shard,
            tar=f"{shard}.tar",
            tar_bytes=len(tar),
            tar_sha256=hashlib.sha256(tar).hexdigest(),
            sidecar_bytes=0,
            sidecar_file_sha256=disk.file_sha256(layout.sidecar(shard)),
            sidecar_sha256=records[shard],
            count=ROWS,
            successes=ROWS,
            reasons={},
            failed_to_download=0,
            failed_to_resize=0,
            retries=0,
            task=shard,
            group="0",
            version=SHARD_VERSION,
            duration_s=0.0,
            adopted=False,
        )
        disk.write_json(layout.commit_record(shard), record)
        kept = pa.table(
            {"kept": [True] * ROWS, "rule": pa.array([None] * ROWS, pa.string())}, schema=VIEW
        )
        footer = {"kept": ROWS, "shard": shard, "view": "all"}
        masks.append((shard, kept, footer))
        tokens_BT, length_B = draw_captions(ROWS, 77, 49_408, seed=number)
        tokens = [
            row[:length].tolist() for row, length in zip(tokens_BT, length_B.tolist(), strict=True)
        ]
        column = pa.table({"tokens": pa.array(tokens, pa.list_(pa.uint16()))})
        scores.append((shard, column, {"uids": uids, "sidecar": record.sidecar_sha256}))
    write_bundles(disk.join(layout.views, "all"), VIEW, masks)
    write_bundles(layout.score_set("tokens@bench"), scores[0][1].schema, scores)
    _write_documents(layout, records)


def _write_documents(layout: PoolLayout, records: dict[str, str]) -> None:
    """The score set of the tokens and the view of all rows."""
    scores = ScoreSetDocument(
        name="tokens",
        id="bench",
        version=1,
        options={"tokenizer": "clip"},
        identity="",
        columns=("tokens",),
        fingerprint="",
        rows=SHARDS * ROWS,
        stored=SHARDS * ROWS,
        scored=SHARDS * ROWS,
        seconds=0.0,
    )
    disk.write_json(layout.score_set_json("tokens@bench"), scores)
    view = ViewDocument(
        name="all",
        rules=(),
        thresholds={},
        funnel=(),
        kept=SHARDS * ROWS,
        fingerprint=disk.content_hash(records),
        scores={},
        shards=write_view_shards(layout, "all", np.arange(SHARDS), np.full(SHARDS, ROWS, np.int64)),
    )
    disk.write_json(layout.view_json("all"), view)


def _tar(shard: str, first: int) -> tuple[list[dict[str, Any]], bytes]:
    """The rows of a shard's sidecar, and its tar."""
    sink, rows = io.BytesIO(), []
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for r in range(ROWS):
            data, key = picture(first + r), f"{shard}{r:04d}"
            member = tarfile.TarInfo(f"{key}.jpg")
            member.size = len(data)
            offset = sink.tell() + tarfile.BLOCKSIZE
            tar.addfile(member, io.BytesIO(data))
            rows.append(
                {
                    "url": f"http://127.0.0.1/{key}.jpg",
                    "caption": "noise",
                    "key": key,
                    "status": "success",
                    "uid": hashlib.sha256(key.encode()).hexdigest()[:32],
                    "image_name": f"{key}.jpg",
                    "image_offset": offset,
                    "image_length": len(data),
                }
            )
    return rows, sink.getvalue()
