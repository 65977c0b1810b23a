"""The cosine of a pair less what its image and its caption score with other pairs (s-CLIPLoss)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from filters.base import FREE, Columns, PoolFilter
from filters.clip.embed import stored_embeddings

BLOCK = 4  # batches of rows that are loaded together: 268 MB of fp16 at a width of 512
STRIPE = 1 << 24  # similarities computed at a time, 64 MB

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(kw_only=True)
class ClipLoss(PoolFilter):
    """clip_loss: cosine - temperature / 2 * (log-sum-exp of the image's similarities with the
    captions of a batch + that of the caption's similarities with its images), where a similarity is
    a cosine / temperature. The mean over `rounds` random batches. Larger is better; a caption that
    fits every image scores low.

    Wang et al. 2024, "CLIPLoss and Norm-Based Data Selection Methods for Multimodal Contrastive
    Learning", with their batch of 32,768 and temperature of 0.01. on: an `embed` instance with both
    towers. Batches are drawn by a hash of uid and seed. A pool without a batch of rows is one
    batch. Rows without both embeddings have none.
    """

    name: ClassVar[str] = "clip_loss"
    adds: ClassVar[dict[str, pa.DataType]] = {"clip_loss": pa.float32()}
    meanings: ClassVar[dict[str, str]] = {
        "clip_loss": "cosine less the log-sum-exp over random batches (s-CLIPLoss), at most 0"
    }
    on: str = field(metadata=FREE)  # the id of the set that is read counts
    batch: int = 32768
    rounds: int = 5
    temperature: float = 0.01
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=FREE)

    def __post_init__(self) -> None:
        for option, least in (("batch", 2), ("rounds", 1)):
            if getattr(self, option) < least:
                raise ValueError(
                    f"filter clip_loss: {option} is {getattr(self, option)}; "
                    f"it must be at least {least}"
                )
        if not self.temperature > 0:
            raise ValueError(
                f"filter clip_loss: temperature is {self.temperature}; it must be positive"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.on,)

    def summarise(self, rows: pa.Table) -> pa.Table:
        return pa.table({"rows": pa.array([len(self._there(rows))], pa.int64())})

    def merge(self, summaries: pa.Table) -> pa.Table:
        return pa.table({"rows": pa.array([pc.sum(summaries["rows"]).as_py()], pa.int64())})

    def combine(self, summaries: pa.Table) -> int:
        """The number of blocks of the pool."""
        total = int(np.sum(summaries["rows"].to_numpy()))
        return max(1, math.ceil(total / (BLOCK * self.batch)))

    def route(self, rows: pa.Table, state: int, partitions: int) -> tuple[Integers, Integers]:
        row_numbers = self._there(rows)
        uids = rows["uid"].take(row_numbers).to_pylist()
        return row_numbers, self._blocks(uids, state) % partitions

    def judge(self, rows: pa.Table, state: int) -> Columns:
        image_BE, _ = stored_embeddings(_columns(rows), self.on, "image")
        text_BE, _ = stored_embeddings(_columns(rows), self.on, "text")
        uids = rows["uid"].to_pylist()
        blocks = self._blocks(uids, state)
        scores = np.zeros(len(uids), np.float32)
        for block in np.unique(blocks):
            members = np.flatnonzero(blocks == block)
            rounds = self._rounds(len(members))
            for numbers in self.batches([uids[row] for row in members]):
                chosen = members[numbers]
                losses = pair_losses(
                    image_BE[chosen], text_BE[chosen], self.temperature, self.device
                )
                scores[chosen] += losses / rounds
        return {"clip_loss": scores}

    def batches(self, uids: list[str]) -> list[Integers]:
        """Row numbers of each batch of a block: every round cuts the rows in a random order of its
        own into equal parts of about `batch`."""
        count = max(1, round(len(uids) / self.batch))
        parts: list[Integers] = []
        for number in range(self._rounds(len(uids))):
            order = np.argsort(_hashes(uids, self.seed, number + 1), kind="stable")
            parts.extend(np.array_split(order.astype(np.int64), count))
        return parts

    def _rounds(self, rows: int) -> int:
        """One if all rows are in the same batch anyway."""
        return self.rounds if round(rows / self.batch) > 1 else 1

    def _blocks(self, uids: Iterable[str], count: int) -> Integers:
        return (_hashes(uids, self.seed, 0) % np.uint64(count)).astype(np.int64)

    def _there(self, rows: pa.Table) -> Integers:
        """Row numbers of the rows with both embeddings."""
        there = np.ones(rows.num_rows, bool)
        for tower in ("image", "text"):
            name = f"{self.on}_{tower}"
            if name not in rows.column_names:
                raise ValueError(
                    f"filter clip_loss: {self.on} has no column {name}; "
                    "it must be an embed filter with towers: [image, text]"
                )
            there &= np.asarray(rows[name].is_valid())
        return np.flatnonzero(there).astype(np.int64)


def _columns(rows: pa.Table) -> dict[str, Any]:
    return {name: rows[name] for name in rows.column_names}


def _hashes(uids: Iterable[str], seed: int, number: int) -> NDArray[np.uint64]:
    """(rows,) independent for each number of a round."""
    suffix = f"/{seed}/{number}"
    values = [xxhash.xxh3_64_intdigest((uid + suffix).encode()) for uid in uids]
    return np.array(values, np.uint64)


def pair_losses(
    image_BE: Floats, text_BE: Floats, temperature: float, device: str = "cpu"
) -> Floats:
    """(B,) cosine less half the temperature times both log-sum-exps over the batch.

    Similarities are computed in stripes of STRIPE values, in fp32 without TF32. The text side is
    accumulated from stripe to stripe with a running maximum.
    """
    import torch

    on_gpu = device != "cpu" and torch.cuda.is_available()
    place = torch.device("cuda" if on_gpu else "cpu")
    images, texts = (torch.from_numpy(array).to(place) for array in (image_BE, text_BE))
    rows = len(images)
    stripe = max(1, STRIPE // max(1, rows))
    of_images = torch.empty(rows, device=place)
    cosines = (images * texts).sum(-1)
    of_texts = torch.full((rows,), -torch.inf, device=place)
    for start in range(0, rows, stripe):
        similarities = images[start : start + stripe] @ texts.T / temperature
        of_images[start : start + stripe] = torch.logsumexp(similarities, dim=1)
        of_texts = torch.logaddexp(of_texts, torch.logsumexp(similarities, dim=0))
    losses = cosines - temperature / 2 * (of_images + of_texts)
    scores: Floats = losses.cpu().numpy()
    return scores
