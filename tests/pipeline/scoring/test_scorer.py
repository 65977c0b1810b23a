"""Columns are row-aligned, a bad sample costs one value, and what is scored already is not scored again."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from filters import FILTERS
from filters.base import Batch, Columns
from manifests import disk, ray_runtime
from manifests.pool_layout import uids_checksum
from manifests.schema import FilterSpec, Recipe, Source
from pipeline.pool import shard_writer
from pipeline.scoring import scorer
from tests.support.small_pool import Row, jpeg, make_pool, rows, write_shard


@dataclass(kw_only=True)
class Shade:
    """A filter to watch: the red of each picture's first pixel; it raises on captions that say so."""

    name: ClassVar[str] = "shade"
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[str]] = frozenset({"image", "caption", "row"})
    adds: ClassVar[dict[str, pa.DataType]] = {"red": pa.float32(), "link_of_it": pa.string()}
    device: ClassVar[str] = "cpu"
    setups: ClassVar[int] = 0
    batches: ClassVar[list[int]] = []
    offset: float = 0.0

    def identity(self) -> str:
        return ""

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
    found: dict[str, list[Any]] = disk.read_parquet(
        scorer.scores_path(pool, name, number)
    ).to_pydict()
    return found


def only(report: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    ((name, state),) = report["sets"].items()
    return name, state


def test_columns_stand_beside_the_sidecar_row_for_row(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(23))
    report = scorer.score(pool, [FilterSpec(name="caption"), SHADE], engine="inline")
    assert report["failed"] == {}
    assert [name.partition("@")[0] for name in report["sets"]] == ["caption", "shade"]
    for name, state in report["sets"].items():
        assert (state["rows"], state["stored"], state["scored"]) == (23, 19, 19)
        assert state["name"] + "@" + state["id"] == name
        assert list(state["shards"]) == ["00000", "00001", "00002"]
        for number, checksum in state["shards"].items():
            sidecar = shard_writer.read_sidecar(pool, number)
            values = columns(pool, name, number)
            assert list(values) == state["columns"]
            for i, status in enumerate(sidecar["status"].to_pylist()):
                assert all((v[i] is not None) == (status == "success") for v in values.values())
            if "link_of_it" in values:
                assert all(
                    a is None or a == b
                    for a, b in zip(values["link_of_it"], sidecar["url"].to_pylist(), strict=True)
                )
            notes = disk.read_metadata(scorer.scores_path(pool, name, number))
            assert notes["uids"] == checksum == uids_checksum(sidecar["uid"])
    words = [
        w
        for number in shard_writer.committed(pool)
        for w in columns(pool, scorer.score_set_name(FilterSpec(name="caption")), number)[
            "caption_words"
        ]
    ]
    assert words == [None if i % 5 == 4 else i % 7 + 1 for i in range(23)]


def test_pictures_reach_the_filter_in_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer, "CHUNK", 4)
    pool = make_pool(tmp_path, [Row(caption="x") for _ in range(11)], per_shard=11)
    name, _ = only(scorer.score(pool, [SHADE], engine="inline"))
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
    name, state = only(scorer.score(pool, [SHADE], engine="inline"))
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
    name = scorer.score_set_name(SHADE)
    report = scorer.score(pool, [SHADE], engine="inline")
    assert list(report["failed"]) == ["00000"]
    assert "boom" in report["failed"]["00000"]
    assert scorer.state(pool, name) == report["sets"][name] == {}
    assert disk.exists(scorer.scores_path(pool, name, "00001"))
    with pytest.raises(
        ValueError, match=r"filter shade \(shade@\w+\) are not there; run pipeline/score.py"
    ):
        scorer.score_set(pool, SHADE)


def test_what_is_scored_is_left_alone(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(20))
    name, state = only(scorer.score(pool, [SHADE], engine="inline"))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "scores").rglob("*")}
    assert only(scorer.score(pool, [SHADE], engine="inline")) == (name, state)
    assert Shade.setups == 1
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "scores").rglob("*")} == before


def test_only_what_is_missing_is_scored(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(20))
    name, _ = only(scorer.score(pool, [SHADE], engine="inline"))
    untouched = Path(scorer.scores_path(pool, name, "00000")).stat().st_mtime_ns
    write_shard(pool, 2, list(enumerate(rows(5), start=20)))
    with pytest.raises(ValueError, match="of an older state of the pool"):
        scorer.score_set(pool, SHADE)
    Shade.batches.clear()
    _, state = only(scorer.score(pool, [SHADE], engine="inline"))
    assert Shade.batches == [4]
    assert state["rows"] == 25
    assert list(state["shards"]) == ["00000", "00001", "00002"]
    assert Path(scorer.scores_path(pool, name, "00000")).stat().st_mtime_ns == untouched
    assert scorer.score_set(pool, SHADE) == name


def test_scores_of_another_sidecar_are_not_taken_for_these(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "a", rows(10))
    name, _ = only(scorer.score(pool, [SHADE], engine="inline"))
    other = make_pool(tmp_path / "b", [Row(caption="another") for _ in range(10)])
    (tmp_path / "a" / "scores").rename(tmp_path / "b" / "scores")
    _, state = only(scorer.score(other, [SHADE], engine="inline"))
    assert state["scored"] == 10
    assert (
        disk.read_metadata(scorer.scores_path(other, name, "00000"))["uids"]
        == state["shards"]["00000"]
    )


def test_options_make_sets_of_their_own(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(5))
    shifted = FilterSpec(name="shade", options={"offset": 1000.0})
    first, _ = only(scorer.score(pool, [SHADE], engine="inline"))
    second, state = only(scorer.score(pool, [shifted], engine="inline"))
    assert first != second
    assert state["options"] == {"offset": 1000.0}
    assert columns(pool, second)["red"][0] == columns(pool, first)["red"][0] + 1000


def test_a_far_away_pool(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    far = "memory://scoring-test"
    for path in (tmp_path / "shards").iterdir():
        disk.write_bytes(disk.join(far, "shards", path.name), path.read_bytes())
    near_name, near = only(scorer.score(pool, [SHADE], engine="inline"))
    far_name, found = only(scorer.score(far, [SHADE], engine="inline"))
    assert far_name == near_name
    assert {**found, "seconds": 0} == {**near, "seconds": 0}
    assert columns(far, far_name) == columns(pool, near_name)


@pytest.mark.ray
def test_ray_gives_the_same(tmp_path: Path) -> None:
    pools = [make_pool(tmp_path / engine, rows(20)) for engine in ("inline", "ray")]
    specs = [FilterSpec(name="caption"), FilterSpec(name="picture")]
    inline = scorer.score(pools[0], specs, engine="inline")["sets"]
    try:
        on_ray = scorer.score(pools[1], specs, engine="ray")["sets"]
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
        scorer.score(pool, [spec], engine="inline")
    assert not (tmp_path / "scores").exists()


def test_an_empty_pool(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no committed shard; build it first"):
        scorer.score(str(tmp_path), [SHADE], engine="inline")


# --- which filters -------------------------------------------------------------------------------------------------

RECIPE = Recipe(
    name="r",
    source=Source(kind="files", paths=("x.csv",)),
    filters=(FilterSpec(name="caption"), FilterSpec(name="shade", options={"offset": 1.0})),
)


def test_the_filters_of_a_recipe_some_of_them_and_changes() -> None:
    assert scorer.filter_specs(RECIPE, [], {}) == list(RECIPE.filters)
    assert scorer.filter_specs(RECIPE, ["shade"], {"shade.offset": 2.0}) == [
        FilterSpec(name="shade", options={"offset": 2.0})
    ]
    assert scorer.filter_specs(None, ["tokens"], {}) == [FilterSpec(name="tokens")]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: scorer.filter_specs(RECIPE, ["language"], {}),
            "has no filter 'language'.*; it has caption, shade",
        ),
        (lambda: scorer.filter_specs(None, [], {}), "no filter to score by"),
        (
            lambda: scorer.filter_specs(None, ["tokens"], {"shade.offset": 1}),
            "--set shade.offset: write FILTER.OPTION",
        ),
        (
            lambda: scorer.filter_specs(None, ["tokens"], {"tokens": 1}),
            "--set tokens: write FILTER.OPTION",
        ),
    ],
)
def test_filters_that_cannot_be_meant(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
