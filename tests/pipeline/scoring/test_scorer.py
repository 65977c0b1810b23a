"""Columns are row-aligned, a bad sample costs one value, and what is scored already is not
scored again."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from clipmill.filters import FILTERS
from clipmill.filters.base import FREE, Batch, Columns, Filter, with_options
from clipmill.manifests import disk, ray_runtime
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout, uids_checksum
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline.executor.tickets import Tickets
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring import score_sets, scorer, worker
from tests.support.bundles import scores_of
from tests.support.commit_records import read_commit_records
from tests.support.sidecars import read_sidecar
from tests.support.small_pool import Row, jpeg, make_pool, rows, set_name, write_shard


@dataclass(kw_only=True)
class Shade(Filter):
    """A filter to watch: the red of each picture's first pixel; it raises on captions that say
    so."""

    name: ClassVar[str] = "shade"
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[str]] = frozenset({"image", "caption", "row"})
    adds: ClassVar[dict[str, pa.DataType]] = {"red": pa.float32(), "link_of_it": pa.string()}
    setups: ClassVar[int] = 0
    batches: ClassVar[list[int]] = []
    offset: float = 0.0

    def check(self) -> None:
        if self.offset < 0:
            raise ValueError(f"filter shade: offset is {self.offset}; it must not be negative")

    def setup(self) -> None:
        type(self).setups += 1

    def score(self, batch: Batch) -> Columns:
        assert batch.images is not None
        assert len(batch.captions) == len(batch.images) == batch.rows.num_rows
        self.batches.append(len(batch.images))
        if "boom" in batch.captions:
            raise RuntimeError("boom")
        reds = [float(np.asarray(image)[0, 0, 0]) + self.offset for image in batch.images]
        reds = [
            float("nan") if caption == "nan" else red
            for red, caption in zip(reds, batch.captions, strict=True)
        ]
        return {"red": reds, "link_of_it": batch.rows["url"].to_pylist()}


SHADE = FilterSpec(name="shade")


@pytest.fixture(autouse=True)
def shade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILTERS, "shade", Shade)
    monkeypatch.setattr(Shade, "setups", 0)
    Shade.batches.clear()


def columns(pool: str, name: str, number: str = "00000") -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = scores_of(pool, name, number).to_pydict()
    return values


def only(report: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    ((name, state),) = report["sets"].items()
    return name, state


def test_columns_stand_beside_the_sidecar_row_for_row(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(23))
    report = scorer.score(PoolWriter(pool), [FilterSpec(name="caption"), SHADE], engine="inline")
    assert report["failed"] == {}
    assert [name.partition("@")[0] for name in report["sets"]] == ["caption", "shade"]
    for name, state in report["sets"].items():
        assert (state["rows"], state["stored"], state["scored"]) == (23, 19, 19)
        assert state["name"] + "@" + state["id"] == name
        for number in read_commit_records(pool):
            sidecar = read_sidecar(pool, number)
            values = columns(pool, name, number)
            assert list(values) == state["columns"]
            for i, status in enumerate(sidecar["status"].to_pylist()):
                assert all((v[i] is not None) == (status == "success") for v in values.values())
            if "link_of_it" in values:
                assert all(
                    a is None or a == b
                    for a, b in zip(values["link_of_it"], sidecar["url"].to_pylist(), strict=True)
                )
            metadata = AlignedFiles.of_scores(PoolLayout(pool), name).metadata(number)
            assert metadata["uids"] == uids_checksum(sidecar["uid"])
    words = [
        w
        for number in read_commit_records(pool)
        for w in columns(pool, set_name(FilterSpec(name="caption")), number)["caption_words"]
    ]
    assert words == [None if i % 5 == 4 else i % 7 + 1 for i in range(23)]


def test_pictures_reach_the_filter_in_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "CHUNK", 4)
    pool = make_pool(tmp_path, [Row(caption="x") for _ in range(11)], per_shard=11)
    name, _ = only(scorer.score(PoolWriter(pool), [SHADE], engine="inline"))
    expected = [float(np.asarray(Image.open(io.BytesIO(jpeg(i))))[0, 0, 0]) for i in range(11)]
    assert columns(pool, name)["red"] == expected
    assert len(set(expected)) == 11
    assert Shade.batches == [4, 4, 3]


def test_a_bad_sample_costs_one_value(tmp_path: Path) -> None:
    given = [Row(caption="x") for _ in range(12)]
    given[2] = Row(caption="x", image=b"no picture")
    given[4] = Row(caption="boom")
    given[6] = Row(caption="nan")
    given[8] = Row(caption=None)
    pool = make_pool(tmp_path, given, per_shard=12)
    name, state = only(scorer.score(PoolWriter(pool), [SHADE], engine="inline"))
    red = columns(pool, name)["red"]
    assert [i for i, value in enumerate(red) if value is None] == [2, 4, 6, 8]
    assert (state["stored"], state["scored"]) == (12, 8)


def test_a_filter_that_always_raises_fails_the_shard_and_leaves_no_scores_json(
    tmp_path: Path,
) -> None:
    pool = make_pool(
        tmp_path,
        [Row(caption="boom") for _ in range(8)] + [Row(caption="fine") for _ in range(8)],
        per_shard=8,
    )
    name = set_name(SHADE)
    report = scorer.score(PoolWriter(pool), [SHADE], engine="inline")
    assert list(report["failed"]) == ["00000"]
    assert "boom" in report["failed"]["00000"]
    assert report["sets"][name] == {}
    assert score_sets.read_score_set(PoolLayout(pool), name) is None
    assert score_sets.scored_shards(read_commits(pool), name).tolist() == [False, True]


def test_a_shard_without_a_stored_row_has_columns_of_nulls(tmp_path: Path) -> None:
    failed = [replace(row, reason="dns") for row in rows(20)]
    pool = make_pool(tmp_path, [*failed, *rows(20)], per_shard=20)
    name, state = only(scorer.score(PoolWriter(pool), [SHADE], engine="inline"))
    assert (state["rows"], state["stored"]) == (40, 16)
    assert columns(pool, name)["red"] == [None] * 20


def test_only_what_is_missing_is_scored(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(20))
    name, state = only(scorer.score(PoolWriter(pool), [SHADE], engine="inline"))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "scores").rglob("*")}
    assert only(scorer.score(PoolWriter(pool), [SHADE], engine="inline")) == (name, state)
    assert Shade.setups == 1
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "scores").rglob("*")} == before
    write_shard(pool, 2, list(enumerate(rows(5), start=20)))
    Shade.batches.clear()
    _, state = only(scorer.score(PoolWriter(pool), [SHADE], engine="inline"))
    assert Shade.batches == [4]
    assert state["rows"] == 25
    assert score_sets.scored_shards(read_commits(pool), name).all()
    shifted = FilterSpec(name="shade", options={"offset": 1000.0})
    second, state = only(scorer.score(PoolWriter(pool), [shifted], engine="inline"))
    assert second != name, "options make sets of their own"
    assert state["options"] == {"offset": 1000.0}
    assert columns(pool, second)["red"][0] == columns(pool, name)["red"][0] + 1000


def test_scores_of_another_sidecar_are_not_taken_for_these(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "a", rows(10))
    name, _ = only(scorer.score(PoolWriter(pool), [SHADE], engine="inline"))
    other = make_pool(tmp_path / "b", [Row(caption="another") for _ in range(10)])
    (tmp_path / "a" / "scores").rename(tmp_path / "b" / "scores")
    _, state = only(scorer.score(PoolWriter(other), [SHADE], engine="inline"))
    assert state["scored"] == 10
    uids = uids_checksum(read_sidecar(other, 0)["uid"])
    assert AlignedFiles.of_scores(PoolLayout(other), name).metadata(0)["uids"] == uids


def test_a_far_away_pool(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    far = "memory://scoring-test"
    for path in (tmp_path / "shards").iterdir():
        disk.write_bytes(disk.join(far, "shards", path.name), path.read_bytes())
    near_name, near = only(scorer.score(PoolWriter(pool), [SHADE], engine="inline"))
    far_name, state = only(scorer.score(PoolWriter(far), [SHADE], engine="inline"))
    assert far_name == near_name
    assert {**state, "seconds": 0} == {**near, "seconds": 0}
    assert columns(far, far_name) == columns(pool, near_name)


@pytest.mark.slow
@pytest.mark.ray
def test_ray_gives_the_same(tmp_path: Path) -> None:
    pools = [make_pool(tmp_path / engine, rows(20)) for engine in ("inline", "ray")]
    specs = [FilterSpec(name="caption"), FilterSpec(name="picture")]
    inline = scorer.score(PoolWriter(pools[0]), specs, engine="inline")["sets"]
    try:
        on_ray = scorer.score(PoolWriter(pools[1]), specs, engine="ray")["sets"]
    finally:
        ray_runtime.disconnect()
    for name in inline:
        assert {**inline[name], "seconds": 0} == {**on_ray[name], "seconds": 0}
        assert columns(pools[0], name, "00001") == columns(pools[1], name, "00001")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (FilterSpec(name="shad"), "no filter 'shad'; did you mean 'shade'"),
        (
            FilterSpec(name="shade", options={"ofset": 1}),
            "no option 'ofset'; did you mean 'offset'",
        ),
        (FilterSpec(name="shade", options={"offset": -1.0}), "must not be negative"),
    ],
)
def test_wrong_specs_are_told_before_any_work(
    tmp_path: Path, spec: FilterSpec, message: str
) -> None:
    pool = make_pool(tmp_path, rows(5))
    with pytest.raises(ValueError, match=message):
        scorer.score(PoolWriter(pool), [spec], engine="inline")
    assert not (tmp_path / "scores").exists()


# --- options that depend on the machine -----------------------------------------------------------


@dataclass(kw_only=True)
class Precise(Filter):
    """A filter whose precision is that of the machine, and that writes it down."""

    name: ClassVar[str] = "precise"
    needs: ClassVar[frozenset[str]] = frozenset({"caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {"bits": pa.int32()}
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=FREE)
    precision: Literal["auto", "fp32", "bf16"] = "auto"

    def alternatives(self) -> tuple[Filter, ...]:
        if self.precision != "auto":
            return (self,)
        return tuple(with_options(self, precision=precision) for precision in ("fp32", "bf16"))

    def resolved(self, *, gpu: bool) -> Filter:
        if self.precision != "auto":
            return self
        filter_: Precise = with_options(self, precision="bf16" if gpu else "fp32")
        return filter_

    def score(self, batch: Batch) -> Columns:
        return {"bits": [{"fp32": 32, "bf16": 16}[self.precision]] * len(batch.captions)}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    monkeypatch.setitem(FILTERS, "precise", Precise)
    import torch

    return lambda is_there: monkeypatch.setattr(torch.cuda, "is_available", lambda: is_there)


def test_precision_is_resolved_before_the_id_and_auto_takes_what_another_machine_made(
    tmp_path: Path, gpu: Callable[[bool], None]
) -> None:
    pool, spec = make_pool(tmp_path, rows(5)), FilterSpec(name="precise")
    gpu(True)
    name, document = only(scorer.score(PoolWriter(pool), [spec], engine="inline"))
    assert columns(pool, name)["bits"][0] == 16
    assert document["options"]["precision"] == "bf16"
    gpu(False)
    assert only(scorer.score(PoolWriter(pool), [spec], engine="inline"))[0] == name
    exact = FilterSpec(name="precise", options={"precision": "fp32"})
    exact_name, _ = only(scorer.score(PoolWriter(pool), [exact], engine="inline"))
    assert exact_name != name
    assert columns(pool, exact_name)["bits"][0] == 32


def test_a_device_that_is_named_needs_no_look_at_the_machine(gpu: Callable[[bool], None]) -> None:
    gpu(False)
    assert scorer._has_gpu(Precise(device="cuda"), "inline")
    gpu(True)
    assert not scorer._has_gpu(Precise(device="cpu"), "inline")
    assert scorer._has_gpu(Precise(), "inline")


@pytest.mark.parametrize("damage", ["flipped", "cut off", "another row"])
def test_a_damaged_shard_is_refused_by_name_and_the_others_are_scored(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(tmp_path, rows(20))
    layout = PoolLayout(pool)
    tar = Path(layout.shard_tar(1))
    content = bytearray(tar.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
        tar.write_bytes(content)
    elif damage == "cut off":
        tar.write_bytes(content[:-1024])
    else:
        disk.write_parquet(layout.sidecar(1), read_sidecar(pool, 1).slice(1))
    report = scorer.score(PoolWriter(pool), [SHADE], engine="inline")
    assert list(report["failed"]) == ["00001"]
    assert "shard 00001 is damaged: " in report["failed"]["00001"]
    assert f"clipmill audit repair {pool}" in report["failed"]["00001"]
    scored = score_sets.scored_shards(read_commits(pool), set_name(SHADE))
    assert scored.tolist() == [True, False]


def test_the_tickets_of_a_million_shards_are_made_one_at_a_time(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(40))
    scored = {"a@1": [True, False, True, False], "b@1": [True, True, False, False]}
    lacking = {name: ~np.array(flags) for name, flags in scored.items()}
    tickets = scorer._tickets(read_commits(pool), lacking)
    assert isinstance(tickets, Tickets)
    made = [(ticket.id, ticket.group, ticket.payload) for ticket in tickets]
    assert made == [
        ("00001", "00001", ("a@1",)),
        ("00002", "00002", ("b@1",)),
        ("00003", "00003", ("a@1", "b@1")),
    ]


@pytest.mark.parametrize("text", ["null", "{", "{}"])
def test_a_damaged_document_is_made_again_from_the_columns(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(tmp_path, rows(20))
    first = scorer.score(PoolWriter(pool), [SHADE], engine="inline")
    path = Path(PoolLayout(pool).score_set_json(set_name(SHADE)))
    path.write_text(text)
    setups = Shade.setups
    again = scorer.score(PoolWriter(pool), [SHADE], engine="inline")
    assert again == first
    assert Shade.batches == [8, 8]  # no image was scored again
    assert "is made again" in caplog.text
    assert Shade.setups == setups
