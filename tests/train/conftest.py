"""A small pool on disk, written with tarfile and manifests.disk alone: the trainer's tests need no
pipeline.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import pickle
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.columns import SIDECAR, VIEW
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.records import ViewDocument
from clipmill.study.runner import run_all
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from tests.support import ablations
from tests.support.bundles import write_masks, write_scores
from tests.support.commit_records import write_record
from tests.support.tasks import captions_folder, class_folders, write_score_set

Result = TypeVar("Result")
START, END = 49_406, 49_407  # of a text, in CLIP's vocabulary
COLOURS = {
    "red": (200, 40, 40),
    "green": (40, 170, 60),
    "blue": (40, 70, 200),
    "yellow": (220, 200, 40),
}


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Result]) -> Result:
    """What `make(folder)` returns, for the processes of pytest-xdist together: the first that asks
    makes it, the others wait for it and read it from a pickle.
    """
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of a worker is its own
    pickled = folder / f"{name}.pickle"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not pickled.exists():
            result = make(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder)))
            pickled.write_bytes(pickle.dumps(result))
    restored: Result = pickle.loads(pickled.read_bytes())
    return restored


def picture(colour, size, seed):
    """A JPEG of one colour with some noise, `size` pixels wide and three quarters as high."""
    noise = np.random.default_rng(seed).integers(-30, 30, (size * 3 // 4, size, 3))
    pixels = np.clip(np.array(list(COLOURS.values())[colour]) + noise, 0, 255).astype(np.uint8)
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "JPEG", quality=95)
    return sink.getvalue()


def write_shard(pool, shard, rows):
    """A tar, its sidecar and its commit record. A row without `image` ended as `http_4xx`."""
    name = f"{shard:05d}"
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for r, row in enumerate(rows):
            members = (
                {"jpg": row["image"], "txt": row["caption"].encode(), "json": b"{}"}
                if row["image"]
                else {}
            )
            for extension, data in members.items():
                member = tarfile.TarInfo(f"{name}{r:04d}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    data = sink.getvalue()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        spans = {member.name: (member.offset_data, member.size) for member in tar}
    table = []
    for r, row in enumerate(rows):
        key = f"{name}{r:04d}"
        stored = row["image"] is not None
        offset, length = spans.get(f"{key}.jpg", (None, None))
        table.append(
            {
                "url": f"http://127.0.0.1/{key}.jpg",
                "caption": row["caption"],
                "key": key,
                "status": "success" if stored else "failed_to_download",
                "sha256": hashlib.sha256(row["image"]).hexdigest() if stored else None,
                "uid": hashlib.sha256(f"{pool}{key}".encode()).hexdigest()[:32],
                "reason": None if stored else "http_4xx",
                "image_name": f"{key}.jpg" if stored else None,
                "image_offset": offset,
                "image_length": length,
            }
        )
    folder = disk.join(pool, "shards")
    disk.write_bytes(disk.join(folder, f"{name}.tar"), data)
    disk.write_parquet(
        disk.join(folder, f"{name}.parquet"), pa.Table.from_pylist(table, schema=SIDECAR), {}
    )
    write_record(
        pool,
        shard,
        tar_bytes=len(data),
        tar_sha256=hashlib.sha256(data).hexdigest(),
        sidecar_sha256=disk.content_hash(table, 64),
        count=len(rows),
        successes=sum(row["image"] is not None for row in rows),
    )


def sidecars(pool):
    """The sidecar of every committed shard."""
    folder = disk.join(pool, "shards")
    shards = [name.removesuffix("_stats.json") for name in disk.list_names(folder, "_stats.json")]
    return {shard: disk.read_parquet(disk.join(folder, f"{shard}.parquet")) for shard in shards}


def write_tokens(pool, tokenizer="clip", name="tokens@0123456789ab", version=1):
    """Tokens of every stored row: start, one or more that the caption's words decide, end."""
    shards: dict[int | str, tuple[pa.Table, dict[str, Any]]] = {}
    for shard, table in sidecars(pool).items():
        words = [c.split() if o is not None else None for c, o in zip(
            table["caption"].to_pylist(), table["image_offset"].to_pylist(), strict=True
        )]  # fmt: skip
        tokens = [
            None
            if w is None
            else [START, *(int(hashlib.sha256(x.encode()).hexdigest()[:3], 16) for x in w), END]
            for w in words
        ]
        uids = hashlib.sha256("\n".join(table["uid"].to_pylist()).encode()).hexdigest()
        column = pa.table({"tokens": pa.array(tokens, pa.list_(pa.uint16()))})
        shards[shard] = column, {"uids": uids}
    write_scores(pool, name, shards)
    write_score_set(PoolLayout(pool), name, ("tokens",), version, tokenizer=tokenizer)


def write_view(pool, view="all", keep=1.0):
    """A view of an even share of each shard's rows, or of those that `keep(shard, row)` names."""
    masks: dict[int | str, pa.Table] = {}
    for number, (shard, table) in enumerate(sidecars(pool).items()):
        stored = [offset is not None for offset in table["image_offset"].to_pylist()]
        wanted = [
            keep(number, r) if callable(keep) else int((r + 1) * keep) > int(r * keep)
            for r in range(len(stored))
        ]
        kept = [s and w for s, w in zip(stored, wanted, strict=True)]
        rule = [
            None if k else "chosen" if s else "not_stored"
            for k, s in zip(kept, stored, strict=True)
        ]
        masks[shard] = pa.table({"kept": kept, "rule": pa.array(rule, pa.string())}, schema=VIEW)
    folder = disk.join(pool, "shards")
    hashes = {
        shard: disk.read_json(disk.join(folder, f"{shard}_stats.json"))["sidecar_sha256"]
        for shard in masks
    }
    document = ViewDocument(
        name=view,
        rules=(),
        thresholds={},
        funnel=(),
        kept=sum(sum(mask["kept"].to_pylist()) for mask in masks.values()),
        fingerprint=disk.content_hash(hashes),
        scores={},
        shards=write_masks(pool, view, masks),
    )
    disk.write_json(disk.join(pool, "views", f"{view}.json"), document)


def build_pool(
    folder,
    rows_per_shard=16,
    shards=3,
    keep=1.0,
    *,
    view="all",
    failed=0,
    size=48,
    seed=0,
    tokenizer="clip",
):
    """Write a pool with one view and return its path.

    Each row shows one of four colours and its caption names it. `rows_per_shard` may be one number
    for each shard; the last `failed` rows of each are not stored. `folder` may be a URL
    (memory://…).
    """
    pool = str(folder)
    counts = [rows_per_shard] * shards if isinstance(rows_per_shard, int) else list(rows_per_shard)
    n = 0
    for shard, count in enumerate(counts):
        rows = []
        for r in range(count):
            colour = n % len(COLOURS)
            caption = f"a photo of something {list(COLOURS)[colour]}" + " indeed" * (n % 3)
            rows.append(
                {
                    "image": picture(colour, size, seed + n) if r < count - failed else None,
                    "caption": caption,
                }
            )
            n += 1
        write_shard(pool, shard, rows)
    write_tokens(pool, tokenizer)
    write_view(pool, view, keep)
    return pool


@pytest.fixture(scope="session")
def make_pool():
    """`make_pool(folder, rows_per_shard=16, shards=3, keep=1.0, …)`: see build_pool."""
    return build_pool


@pytest.fixture(scope="session")
def add_view():
    """`add_view(pool, name, keep)`: another view of a pool."""
    return write_view


@pytest.fixture(scope="session")
def tiny_pool(tmp_path_factory):
    """A pool of 3 shards of 16 rows with the views `all` and `half`; for reading only."""

    def make(folder):
        pool = build_pool(folder / "pool")
        write_view(pool, "half", 0.5)
        return pool

    return once(tmp_path_factory, "tiny_pool", make)


@pytest.fixture
def one_thread():
    """Sums on one thread, whose order is always the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """An evaluation folder: two classes of four images."""
    return once(tmp_path_factory, "two_classes", ablations.two_classes)


@pytest.fixture(scope="session")
def ran(tmp_path_factory, tiny_pool, data):
    """An ablation that ran: three arms (one is A/A), two seeds. For reading only."""

    def make(folder):
        tiny = ablations.tiny_ablation(tiny_pool, data, controls={"a_a": "raw"}, jobs=2)
        return tiny, str(folder), run_all(tiny, str(folder))

    return once(tmp_path_factory, "ran", make)


@pytest.fixture(scope="session")
def model():
    return CLIP(MODELS["test"], seed=3)


@pytest.fixture
def colours(tmp_path):
    """Eighteen noisy images of three classes, PNG and JPEG."""
    return class_folders(tmp_path / "colours")


@pytest.fixture
def captioned(tmp_path):
    """Five images: the first has two captions, the last two share one."""
    return captions_folder(tmp_path / "captioned")
