"""Batches: what they hold, the same for any ranks and threads, and damaged pictures."""

from __future__ import annotations

import dataclasses
import json
import os

import numpy as np
import pyarrow as pa
import pytest
import torch

from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Blend
from clipmill.train.config import TrainConfig, model_config
from clipmill.train.data import loader as loader_module
from clipmill.train.data.damage import DamageCounts, DamagedSample, sum_damage, too_many_damaged
from clipmill.train.data.loader import RunLoader, copy_tokens
from tests.support.bundles import change_shard


def settings(**changes):
    base = TrainConfig(
        model="test",
        samples_seen=8 * 16,
        batch_size=16,
        lanes=8,
        window=2,
        threads=0,
        device="cpu",
        warmup=0,
    )
    return dataclasses.replace(base, **changes)


def model():
    return model_config(settings())


def blend_of(pool, seed=0, **views):
    weights = {f"web/{view}": weight for view, weight in views.items()}
    return Blend(name="test", pools={"web": pool}, views=weights, seed=seed)


def assert_equal(one, other):
    assert one.step == other.step
    assert one.keys == other.keys
    assert one.substituted == other.substituted
    for name in ("image_BHWC", "tokens_BT", "length_B"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def damage(pool, key):
    """Overwrite the picture of one row of a local pool with zeros."""
    shard = key[:5]
    table = disk.read_parquet(disk.join(pool, "shards", f"{shard}.parquet"))
    row = table["key"].to_pylist().index(key)
    with open(disk.join(pool, "shards", f"{shard}.tar"), "r+b") as f:
        f.seek(table["image_offset"][row].as_py())
        f.write(b"\0" * table["image_length"][row].as_py())


# --- what a batch holds


def test_a_batch_holds_pictures_with_their_own_tokens(tiny_pool):
    loader = RunLoader(blend_of(tiny_pool, all=1), settings(), model())
    batches = list(loader)
    assert [batch.step for batch in batches] == list(range(8))
    assert len(loader) == 8
    colours: dict[int, set[tuple[float, ...]]] = {}
    for batch in batches:
        assert batch.image_BHWC.shape == (16, 32, 32, 3)
        assert batch.image_BHWC.dtype == torch.uint8
        assert batch.tokens_BT.shape == (16, 16)
        assert batch.tokens_BT.dtype == batch.length_B.dtype == torch.int64
        assert batch.substituted == 0
        means = batch.image_BHWC.float().mean((1, 2)).round(decimals=-2)
        for b in range(16):
            tokens = batch.tokens_BT[b, : int(batch.length_B[b])]
            assert tokens[0] == 49_406
            assert tokens[-1] == 49_407
            assert not batch.tokens_BT[b, int(batch.length_B[b]) :].any()
            colours.setdefault(int(tokens[5]), set()).add(tuple(means[b].tolist()))
    assert len(colours) == 4  # the fifth word names the colour, and a colour is one mean
    assert all(len(means) == 1 for means in colours.values())


@pytest.mark.parametrize(
    ("length", "context", "expected"),
    [
        (3, 5, [7, 8, 9, 0, 0]),
        (5, 5, [7, 8, 9, 10, 11]),
        (9, 5, [7, 8, 9, 10, 15]),
        (3, 3, [7, 8, 9]),
        (0, 6, [49_406, 320, 49_407, 0, 0, 0]),  # the caption has an end-of-text token as text
        (0, 3, [49_406, 320, 49_407]),
    ],
)
def test_tokens_that_do_not_fit_are_cut_before_the_last(length, context, expected):
    rows, held = np.zeros((3, context), np.int64), np.zeros(3, np.int64)
    tokens = list(range(7, 7 + length)) or [49_406, 320, 49_407, 9, 49_407]
    captions = [np.array(row, np.uint16) for row in ([1, 2], tokens, range(1, 100))]
    copy_tokens(captions, rows, held)
    assert (held[1], rows[1].tolist()) == (len(expected) - expected.count(0), expected)
    assert rows[0].tolist() == [1, 2, *[0] * (context - 2)]
    assert rows[2].tolist() == [*range(1, context), 99]


# --- the same batches


@pytest.mark.parametrize(
    ("world", "threads", "start"),
    [(1, 1, 0), (1, 3, 0), (2, 0, 0), (4, 1, 0), (8, 2, 0), (1, 0, 5), (2, 2, 7), (1, 2, 8)],
)
def test_ranks_threads_and_the_step_that_a_run_goes_on_at_change_nothing(
    tiny_pool, world, threads, start
):
    blend = blend_of(tiny_pool, all=2, half=1)
    whole = list(RunLoader(blend, settings(), model()))[start:]
    ranks = [
        RunLoader(blend, settings(threads=threads), model(), rank, world).batches(start)
        for rank in range(world)
    ]
    steps = list(zip(*ranks, strict=True))
    assert len(steps) == 8 - start
    for expected, parts in zip(whole, steps, strict=True):
        assert {part.step for part in parts} == {expected.step}
        for name in ("image_BHWC", "tokens_BT", "length_B"):
            joined = torch.cat([getattr(part, name) for part in parts])
            assert torch.equal(joined, getattr(expected, name))
        assert sum((part.keys for part in parts), ()) == expected.keys


def test_both_seeds_decide_the_order_and_an_epoch_is_cropped_anew(tiny_pool):
    first = [
        next(iter(RunLoader(blend_of(tiny_pool, seed, all=1), settings(seed=run), model())))
        for seed, run in ((0, 0), (0, 1), (1, 0))
    ]
    assert len({batch.keys for batch in first}) == 3
    loader = RunLoader(blend_of(tiny_pool, all=1), settings(samples_seen=96), model())
    seen: dict[str, torch.Tensor] = {}
    different = 0
    for batch in loader:
        for key, image in zip(batch.keys, batch.image_BHWC, strict=True):
            different += key in seen and not torch.equal(seen[key], image)
            seen[key] = image
    assert different > 24  # of 48; a crop is often the whole picture


def test_the_order_seed_takes_the_place_of_the_seed(tiny_pool):
    def first(**changes):
        return next(iter(RunLoader(blend_of(tiny_pool, all=1), settings(**changes), model())))

    assert_equal(first(seed=0, order_seed=5), first(seed=5))
    assert_equal(first(seed=3, order_seed=5), first(seed=5))
    assert first(seed=0, order_seed=5).keys != first(seed=0).keys


@pytest.mark.parametrize("threads", [0, 2])
def test_memory_is_used_again_when_nothing_of_a_batch_is_left(tiny_pool, threads):
    config = settings(threads=threads, samples_seen=16 * 40)
    loader, places, kept = RunLoader(blend_of(tiny_pool, all=1), config, model()), set(), []
    for batch in loader:
        places.add(batch.image_BHWC.data_ptr())
        if batch.step < 3:  # a tensor, a part of one, and an array keep the memory
            part = (batch.image_BHWC, batch.image_BHWC[3:5], batch.image_BHWC[2].numpy())
            kept.append((part[batch.step], part[batch.step] + 0))
    assert len(places) < 40
    for part, before in kept:
        assert (part == before).all()


def test_only_so_many_batches_are_under_way(tiny_pool, monkeypatch):
    loader = RunLoader(
        blend_of(tiny_pool, all=1), settings(threads=1, samples_seen=16 * 100), model()
    )
    planned: list[int] = []
    plan = loader._plan

    def noted(samples):
        planned.append(samples.step)
        return plan(samples)

    monkeypatch.setattr(loader, "_plan", noted)
    batches = loader.batches()
    for step in range(20):
        next(batches)
        assert max(planned) <= step + loader_module.PREFETCH
    batches.close()
    monkeypatch.setattr(loader_module, "PREFETCH_BYTES", 1)
    assert loader._ahead() == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_for_a_gpu_lie_in_pinned_memory(tiny_pool):
    batch = next(
        iter(RunLoader(blend_of(tiny_pool, all=1), settings(device="cuda", threads=2), model()))
    )
    assert batch.image_BHWC.is_pinned()
    assert batch.tokens_BT.is_pinned()
    plain = next(iter(RunLoader(blend_of(tiny_pool, all=1), settings(), model())))
    assert_equal(batch, plain)


# --- damaged pictures


@pytest.mark.parametrize("threads", [0, 2])
def test_a_damaged_picture_is_replaced_and_counted(make_pool, tmp_path, threads):
    pool = make_pool(tmp_path / "pool")
    blend, config = blend_of(pool, all=1), settings(samples_seen=96, threads=threads)
    sound = list(RunLoader(blend, config, model()))
    damage(pool, "000010003")
    loader = RunLoader(blend, config, model())
    batches = list(loader)
    damaged = [sample for batch in batches for sample in batch.damaged_samples]
    assert len(damaged) == 2  # once an epoch
    assert [(bad.source, bad.shard, bad.key) for bad in damaged] == [
        ("web/all", "00001", "000010003")
    ] * 2
    changed = [
        (batch.step * 16 + b, batch.keys[b])
        for batch, before in zip(batches, sound, strict=True)
        for b in range(16)
        if batch.keys[b] != before.keys[b]
        or not torch.equal(batch.image_BHWC[b], before.image_BHWC[b])
    ]
    assert [n for n, _ in changed] == [bad.step * 16 + bad.position for bad in damaged]
    assert all(key != "web/all:000010003" for _, key in changed)
    assert sum(batch.substituted for batch in batches) == 2
    for one, other in zip(RunLoader(blend, config, model(), 0, 1), batches, strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("distinct", [None, "uid"])
def test_a_substitute_is_not_in_the_batch_whatever_ranks_and_threads(
    make_pool, add_view, tmp_path, distinct
):
    pool = make_pool(tmp_path / "pool")
    for key in ("000000004", "000000005", "000010003", "000020006"):
        damage(pool, key)
    add_view(pool, "half", 0.5)
    views = {"all": 1.0} if distinct is None else {"all": 1.0, "half": 1.0}
    blend = dataclasses.replace(blend_of(pool, **views), distinct=distinct)
    config = settings(samples_seen=8 * 60, batch_size=8)
    batches = list(RunLoader(blend, config, model()))
    assert sum(batch.substituted for batch in batches) > 10
    assert max(batch.substituted for batch in batches) > 1
    for batch in batches:
        keys = [key if distinct is None else key.rpartition(":")[2] for key in batch.keys]
        assert len(set(keys)) == len(keys)
    for world, threads in ((2, 0), (4, 1)):
        shares = [
            RunLoader(blend, dataclasses.replace(config, threads=threads), model(), rank, world)
            for rank in range(world)
        ]
        for batch, *parts in zip(batches, *shares, strict=True):
            assert batch.keys == tuple(key for part in parts for key in part.keys)


def test_a_row_without_tokens_is_replaced(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 16, 1)

    def without_one(table):
        tokens = table["tokens"].to_pylist()
        tokens[4] = None
        return pa.table({"tokens": tokens}, schema=table.schema)

    change_shard(PoolLayout(pool).score_bundle("tokens@0123456789ab", 0), 0, without_one)
    loader = RunLoader(blend_of(pool, all=1), settings(samples_seen=16), model())
    (batch,) = loader
    assert batch.substituted == 1
    assert "web/all:000000004" not in batch.keys
    assert batch.damaged_samples[0].reason == "it has no tokens"


def test_a_source_of_damaged_pictures_ends_the_run(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 16, 1)
    for row in range(16):
        damage(pool, f"00000{row:04d}")
    with pytest.raises(ValueError, match="rows of web/all in a row cannot be used"):
        next(iter(RunLoader(blend_of(pool, all=1), settings(), model())))


@pytest.mark.parametrize("threads", [0, 2])
def test_a_tar_that_cannot_be_read_ends_the_run_by_name(make_pool, tmp_path, threads):
    pool = make_pool(tmp_path / "pool")
    os.remove(tmp_path / "pool/shards/00001.tar")
    with pytest.raises(ValueError, match=r"00001\.tar cannot be read at step 0"):
        list(RunLoader(blend_of(pool, all=1), settings(threads=threads), model()))


# --- what is refused before the first step


def test_too_many_repeats_are_refused(tiny_pool):
    blend = dataclasses.replace(blend_of(tiny_pool, half=1), max_repeats=2)
    assert len(RunLoader(blend, settings(samples_seen=48), model())) == 3
    with pytest.raises(
        ValueError, match=r"web/half would be repeated 5\.3 times .* at most 48 samples"
    ):
        RunLoader(blend, settings(samples_seen=128), model())


# --------------------------------------------------------------------------------------------------


def damaged_sample(step, position):
    return DamagedSample(
        step=step, position=position, source="web/all", shard="00001", key="000010003", reason="no"
    )


def test_ranks_add_up_in_the_order_of_the_run_and_the_first_are_listed(monkeypatch):
    monkeypatch.setattr("clipmill.train.data.damage.LISTED", 3)
    ranks = [DamageCounts(), DamageCounts()]
    ranks[0].add([damaged_sample(0, 1), damaged_sample(4, 0)])
    ranks[1].add([damaged_sample(0, 0)])
    ranks[1].add([])
    ranks[1].add([damaged_sample(2, 5), damaged_sample(2, 7), damaged_sample(2, 9)])
    assert [len(of_rank.samples) for of_rank in ranks] == [2, 3]
    total = sum_damage(json.loads(json.dumps(disk.to_plain(ranks))))
    assert total["count"] == 6
    assert [(s["step"], s["position"]) for s in total["samples"]] == [(0, 0), (0, 1), (2, 5)]
    assert sum_damage([]) == {"count": 0, "samples": []}


@pytest.mark.parametrize(
    ("drawn", "count", "limit_passed"),
    [(10, 10, False), (11, 11, True), (10_000, 10, False), (20_000, 20, False), (19_999, 20, True)],
)
def test_ten_are_free_and_then_one_in_a_thousand(drawn, count, limit_passed):
    assert too_many_damaged(count, drawn) is limit_passed
