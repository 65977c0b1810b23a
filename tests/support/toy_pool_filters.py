"""Small filters that look at the whole pool, one of each form, and what they must give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clipmill.filters.base import Columns, PoolFilter
from clipmill.filters.columns import partition_of


@dataclass(kw_only=True)
class Often(PoolFilter):
    """How often a caption occurs, and its share of all rows: summaries, a state, one partition."""

    name: ClassVar[str] = "often"
    adds: ClassVar[dict[str, pa.DataType]] = {"often": pa.int64(), "often_share": pa.float64()}
    meanings: ClassVar[dict[str, str]] = {"often": "rows with this caption", "often_share": "share"}
    default: ClassVar[dict[str, Any]] = {"often": 0}
    reads = ("caption",)
    least: int = 1

    def summarise(self, rows: pa.Table) -> pa.Table:
        return pa.table({"rows": [rows.num_rows]})

    def combine(self, summaries: pa.Table) -> pa.Table:
        return pa.table({"rows": [sum(summaries["rows"].to_pylist())]})

    def route(
        self, rows: pa.Table, state: Any, partitions: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        known = np.flatnonzero(rows["caption"].is_valid().to_numpy())
        return known, partition_of(rows["caption"], partitions)[known]

    def judge(self, rows: pa.Table, state: Any) -> Columns:
        assert rows["uid"].to_pylist() == sorted(rows["uid"].to_pylist())
        captions = rows["caption"].to_pylist()
        counts = Counter(captions)
        often = [counts[caption] for caption in captions]
        total = state["rows"][0].as_py()
        return {"often": often, "often_share": [count / total for count in often]}


@dataclass(kw_only=True)
class Near(PoolFilter):
    """Rows that share a word: near pairs in a partition for each word, groups over all of them."""

    name: ClassVar[str] = "near"
    adds: ClassVar[dict[str, pa.DataType]] = {
        "near_group": pa.string(),
        "near_size": pa.int32(),
        "near_first": pa.bool_(),
    }
    linked: ClassVar[bool] = True
    reads = ("caption",)
    copies = 3.0

    def route(
        self, rows: pa.Table, state: Any, partitions: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        numbers, words = [], []
        for number, caption in enumerate(rows["caption"].to_pylist()):
            for word in set((caption or "").split()):
                numbers.append(number)
                words.append(word)
        partition = partition_of(pa.array(words, pa.string()), partitions)
        pairs = sorted({*zip(numbers, partition.tolist(), strict=True)})
        both = np.array(pairs, np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def links(self, rows: pa.Table, state: Any) -> pa.Table:
        last: dict[str, str] = {}
        pairs = []
        uids, captions = rows["uid"].to_pylist(), rows["caption"].to_pylist()
        assert uids == sorted(uids)
        for uid, caption in zip(uids, captions, strict=True):
            for word in caption.split():
                if word in last:
                    pairs.append((last[word], uid))
                last[word] = uid
        return pa.table(
            {"uid_a": [a for a, _ in pairs], "uid_b": [b for _, b in pairs]},
            pa.schema([("uid_a", pa.string()), ("uid_b", pa.string())]),
        )

    def judge_groups(self, rows: pa.Table, state: Any) -> Columns:
        groups = rows["group"].to_pylist()
        order = [*zip(groups, rows["uid"].to_pylist(), strict=True)]
        assert order == sorted(order)
        sizes = Counter(groups)
        return {
            "near_group": groups,
            "near_size": [sizes[group] for group in groups],
            "near_first": [group == uid for group, uid in order],
        }


def components(captions: Sequence[tuple[str, str]]) -> dict[str, str]:
    """{uid: smallest uid of its component} of (uid, caption), by union and find."""
    parent = {uid: uid for uid, _ in captions}

    def find(uid: str) -> str:
        while parent[uid] != uid:
            uid = parent[uid]
        return uid

    first: dict[str, str] = {}
    for uid, caption in captions:
        for word in caption.split():
            a, b = sorted((find(uid), find(first.setdefault(word, uid))))
            parent[b] = a
    return {uid: find(uid) for uid in parent}
