"""Rows of a view: images, tokens, columns, numbers that collide, chances, and reads again."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import shutil
import tarfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clipmill.filters.tokens import Tokens
from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.pool import Pool
from clipmill.manifests.records import ScoreSetDocument, ViewDocument, read_document
from clipmill.manifests.schema import Balance, Blend
from clipmill.train.data import view_rows
from clipmill.train.data.loader import RunLoader
from clipmill.train.data.view_rows import (
    ViewChances,
    ViewNumbers,
    open_pool,
    open_view,
)
from tests.support.bundles import change_shard, mask_of, scores_of, write_masks, write_scores
from tests.train.data.test_loader import model, settings


def members(pool, shard):
    with tarfile.open(disk.join(pool, "shards", f"{shard:05d}.tar")) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def assert_reads_its_members(rows, pool):
    for shard in range(len(rows.shards)):
        spans = members(pool, shard)
        of = rows.shard(shard)
        for row in range(rows.shard_rows[shard]):
            assert rows.read_image(of, row) == spans[f"{of.keys[row]}.jpg"]


def test_a_view_gives_the_bytes_and_tokens_of_its_kept_rows(make_pool, tmp_path):
    pool = make_pool(
        tmp_path / "pool", [6, 4, 5], keep=lambda shard, row: (shard + row) % 2 == 0, failed=1
    )
    rows = open_view(pool, "all")
    assert rows.shards.tolist() == [0, 1, 2]
    assert rows.shard_rows.tolist() == [3, 1, 2]
    assert rows.shard(0).keys.to_pylist() == ["000000000", "000000002", "000000004"]
    assert rows.shard(1).keys.to_pylist() == ["000010001"]
    assert_reads_its_members(rows, pool)
    captions = kept(pool, "all", "caption")
    tokens = [rows.shard(s).tokens_of(r) for s, n in enumerate(rows.shard_rows) for r in range(n)]
    assert [len(t) for t in tokens] == [len(c.split()) + 2 for c in captions]
    assert all(t[0] == 49_406 and t[-1] == 49_407 for t in tokens)


def test_a_tar_may_lie_elsewhere(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 4, 1)
    rows = open_view(pool, "all")
    expected = rows.read_image(rows.shard(0), 2)
    tar, record = tmp_path / "pool/shards/00000.tar", tmp_path / "pool/shards/00000_stats.json"
    tar.rename(tmp_path / "elsewhere.tar")
    disk.write_json(record, {**disk.read_json(record), "tar": str(tmp_path / "elsewhere.tar")})
    rows = open_view(pool, "all")
    assert rows.read_image(rows.shard(0), 2) == expected


def open_tars(pool):
    """Number of tars of a pool that this process has open; other threads may open other files."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists this folder
            target = os.readlink(descriptor)
            count += target.startswith(os.path.realpath(pool)) and target.endswith(".tar")
    return count


@pytest.mark.slow
def test_only_so_many_shards_and_tars_are_held(tiny_pool, monkeypatch):
    monkeypatch.setattr(view_rows, "OPEN_TARS", 1)
    rows = open_view(tiny_pool, "all", cached_shards=1)
    first = rows.shard(0)
    assert rows.shard(0) is first
    rows.shard(1)
    assert rows.shard(0) is not first
    gc.collect()  # views of earlier tests
    before = open_tars(tiny_pool)
    for _ in range(3):
        assert_reads_its_members(rows, tiny_pool)
    assert open_tars(tiny_pool) == before + 1
    del rows
    gc.collect()
    assert open_tars(tiny_pool) == before


def test_threads_may_read_while_tars_are_closed_and_opened(tiny_pool, monkeypatch):
    monkeypatch.setattr(view_rows, "OPEN_TARS", 1)
    rows = open_view(tiny_pool, "all")
    asked = [(k % 3, k % 16) for k in range(300)]

    def read(span):
        return rows.read_image(rows.shard(span[0]), span[1])

    expected = {span: read(span) for span in asked}
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda span: read(span) == expected[span], asked))


def test_an_unknown_view_is_named_with_the_nearest(tiny_pool, tmp_path):
    with pytest.raises(ValueError, match="no view 'haf'; did you mean 'half'\\?; it has all, half"):
        open_view(tiny_pool, "haf")
    with pytest.raises(ValueError, match="it has none"):
        open_view(str(tmp_path / "nowhere"), "all")


def test_a_view_of_an_older_pool_is_refused_with_what_mends_it(make_pool, add_view, tmp_path):
    pool = make_pool(tmp_path / "pool", 4, 2)
    record = disk.join(pool, "shards", "00001_stats.json")
    disk.write_json(record, {**disk.read_json(record), "sidecar_sha256": "0" * 64})
    with pytest.raises(ValueError, match=rf"stale.*clipmill filter {pool} --recipe RECIPE"):
        open_view(pool, "all")
    add_view(pool, "all")
    with pytest.raises(ValueError, match=rf"fetched again since.*clipmill score {pool}"):
        open_view(pool, "all")
    name = "tokens@0123456789ab"
    write_scores(pool, name, {shard: (scores_of(pool, name, shard), {}) for shard in range(2)})
    assert open_view(pool, "all").shard_rows.tolist() == [4, 4]


def test_a_view_must_fit_its_shard(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 4, 2)
    change_shard(PoolLayout(pool).view_bundle("all", 0), 0, lambda mask: mask.slice(0, 3))
    with pytest.raises(ValueError, match="does not fit its shard"):
        open_view(pool, "all").shard(0)


def test_a_view_may_not_keep_rows_that_are_not_stored(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 4, 1, failed=1)
    mask = mask_of(pool, "all", 0).set_column(0, "kept", [[True] * 4])
    shards = disk.to_plain(write_masks(pool, "all", {0: mask}))
    manifest = PoolLayout(pool).view_json("all")
    disk.write_json(manifest, {**disk.read_json(manifest), "shards": shards})
    with pytest.raises(ValueError, match="keeps rows of shard 00000 that are not stored"):
        open_view(pool, "all").shard(0)


def test_tokens_of_another_tokenizer_do_not_do(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 4, 1, tokenizer="other")
    with pytest.raises(
        ValueError,
        match=r"no tokens of tokenizer 'clip' \(has: other\).*clipmill score .* --filters tokens",
    ):
        open_view(pool, "all", "clip")
    assert open_view(pool, "all", "other").shard_rows.tolist() == [4]


def test_of_several_token_sets_the_highest_version_is_read(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 4, 1)
    layout = PoolLayout(pool)
    for name, version in (("tokens@ffff", 2), ("tokens@0000", 10), ("tokens@5555", 9)):
        for file in ("bundle-00000.parquet", "scores.json"):
            source = disk.join(layout.score_set("tokens@0123456789ab"), file)
            disk.write_bytes(disk.join(layout.score_set(name), file), disk.read_bytes(source))
        scores = read_document(layout.score_set_json(name), ScoreSetDocument)
        scores = dataclasses.replace(scores, version=version, id=name.partition("@")[2])
        disk.write_json(layout.score_set_json(name), scores)
    assert open_view(pool, "all").token_set == "tokens@0000"
    disk.remove(layout.score_bundle("tokens@0000", 0))
    assert open_view(pool, "all").token_set == "tokens@5555"  # the newest that is complete


def test_tokens_that_lack_a_shard_or_were_made_for_other_rows_are_refused(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 4, 2)
    name = "tokens@0123456789ab"
    change_shard(PoolLayout(pool).score_bundle(name, 1), 1, uids="0" * 64)
    rows = open_view(pool, "all")
    assert len(rows.shard(0).keys) == 4
    with pytest.raises(ValueError, match="does not have the columns of shard 00001 as it is"):
        rows.shard(1)
    write_scores(pool, name, {0: (scores_of(pool, name, 0), {})})
    with pytest.raises(ValueError, match="lack shards that were added or fetched again since"):
        open_view(pool, "all")


# --------------------------------------------------------------------------------------------------


def kept(pool, view, name):
    values: list[Any] = []
    for shard in open_pool(pool).scan([name], view=view):
        values += shard.kept_rows()[name].to_pylist()
    return values


def test_columns_of_the_kept_rows_come_in_tar_order(tiny_pool):
    assert len(kept(tiny_pool, "all", "sha256")) == 48
    assert kept(tiny_pool, "half", "uid") == kept(tiny_pool, "all", "uid")[1::2]
    half = open_view(tiny_pool, "half")
    keys = [key for s in range(3) for key in half.shard(s).keys.to_pylist()]
    assert kept(tiny_pool, "half", "key") == keys


def test_every_row_of_a_view_has_its_outcome(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 4, 2, keep=lambda shard, row: row == 1, failed=1)
    shards = list(open_pool(pool).scan(["caption", "key"], view="all"))
    assert [shard.shard for shard in shards] == ["00000", "00001"]
    for shard in shards:
        assert shard.table.column_names == ["caption", "key"]
        assert len(shard.table) == 4
        assert shard.kept.tolist() == [False, True, False, False]
        assert shard.rule.to_pylist() == ["chosen", None, "chosen", "not_stored"]
        assert len(shard.kept_rows()) == 1


def test_without_a_view_a_row_is_kept_where_it_is_stored(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 4, 1, failed=2)
    (shard,) = open_pool(pool).scan(["key"])
    assert shard.kept.tolist() == [True, True, False, False]
    assert shard.rule.to_pylist() == [None, None, "not_stored", "not_stored"]
    assert shard.kept_rows()["key"].to_pylist() == ["000000000", "000000001"]
    (bare,) = open_pool(pool).scan([], view="all")
    assert bare.table.num_rows == 4
    assert bare.kept.dtype == np.bool_


def test_a_column_may_come_from_a_score_set_of_the_view(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 3, 2)
    layout = PoolLayout(pool)
    tokens = read_document(layout.score_set_json("tokens@0123456789ab"), ScoreSetDocument)
    scores = dataclasses.replace(tokens, name="clip_score", columns=("clip_score",))
    disk.write_json(layout.score_set_json("clip_score@ab"), scores)
    values = pa.table({"clip_score": [0.1, None, 0.3]})
    write_scores(pool, "clip_score@ab", {0: (values, {}), 1: (values, {})})
    view = read_document(layout.view_json("all"), ViewDocument)
    view = dataclasses.replace(view, scores={"clip_score": "clip_score@ab"})
    disk.write_json(layout.view_json("all"), view)
    with pytest.raises(ValueError, match="was made of other rows or pictures than the view 'all'"):
        next(open_pool(pool).scan(["clip_score"], view="all"))
    scores = dataclasses.replace(scores, fingerprint=view.fingerprint)
    disk.write_json(layout.score_set_json("clip_score@ab"), scores)
    first, _ = open_pool(pool).scan(["clip_score", "key"], view="all")
    assert first.table.column_names == ["clip_score", "key"]
    assert first.table["clip_score"].to_pylist() == [0.1, None, 0.3]
    write_scores(pool, "clip_score@ab", {0: (values.slice(1), {})})
    with pytest.raises(ValueError, match="does not have the columns of shard 00000 as it is"):
        next(open_pool(pool).scan(["clip_score"], view="all"))


@pytest.mark.parametrize("view", [None, "all"])
def test_an_unknown_column_is_named_with_the_nearest(tiny_pool, view):
    with pytest.raises(ValueError, match="no column 'capton'; did you mean 'caption'"):
        next(open_pool(tiny_pool).scan(["key", "capton"], view=view))


def test_one_shard_is_read_at_a_time(tiny_pool, monkeypatch):
    paths: list[str] = []
    read = disk.read_with

    def counted(path, *rest):
        paths.append(path)
        return read(path, *rest)

    monkeypatch.setattr(disk, "read_with", counted)
    shards = open_pool(tiny_pool).scan(["key"], view="all")
    assert paths == []
    next(shards)
    of_rows = [path for path in paths if "/shards/" in path]
    assert [path.endswith("shards/00000.parquet") for path in of_rows] == [True]


# --------------------------------------------------------------------------------------------------


def every_number(numbers, source, rows):
    found = {}
    for shard, count in enumerate(rows):
        for number, row in zip(
            numbers(source, np.full(count, shard), np.arange(count)).tolist(),
            range(count),
            strict=True,
        ):
            found[number] = shard, row
    return found


def test_rows_of_one_pool_are_numbered_without_reading_uids(tiny_pool, monkeypatch):
    views = [open_view(tiny_pool, "all"), open_view(tiny_pool, "half")]
    numbers = ViewNumbers(views, "uid", 4)
    assert numbers.sources == {0, 1}
    read: list[str] = []
    read_lazily = Pool.read_lazily

    def reading(pool, shard, columns):
        read.extend(columns)
        return read_lazily(pool, shard, columns)

    monkeypatch.setattr(Pool, "read_lazily", reading)
    every, half = every_number(numbers, 0, [16] * 3), every_number(numbers, 1, [8] * 3)
    assert len(every) == 48
    assert read == []  # of sidecars: the masks are enough
    # `half` keeps every second row: its row r is row 2r + 1 of `all`.
    assert {every[number]: place for number, place in half.items()} == {
        (shard, 2 * row + 1): (shard, row) for shard in range(3) for row in range(8)
    }


def test_views_that_share_no_shard_cost_nothing(make_pool, add_view, tmp_path):
    pool = make_pool(tmp_path / "pool")
    add_view(pool, "early", lambda shard, row: shard == 0)
    add_view(pool, "late", lambda shard, row: shard == 2)
    add_view(pool, "both", lambda shard, row: shard < 2)
    views = [open_view(pool, name) for name in ("early", "late", "both")]
    assert ViewNumbers(views, "uid", 4).sources == {0, 2}
    assert ViewNumbers(views[:2], "uid", 4).sources == frozenset()
    assert ViewNumbers(views[:1], "uid", 4).sources == frozenset()
    assert ViewNumbers(views[:1], "caption", 4).sources == {0}


def test_uids_are_compared_over_pools_and_rows_without_a_value_never_collide(tiny_pool, tmp_path):
    shutil.copytree(tiny_pool, tmp_path / "copy")
    views = [open_view(tiny_pool, "all"), open_view(str(tmp_path / "copy"), "half")]
    numbers = ViewNumbers(views, "uid", 4)
    every, half = every_number(numbers, 0, [16] * 3), every_number(numbers, 1, [8] * 3)
    assert {every[number] for number in half} == {
        (s, 2 * r + 1) for s in range(3) for r in range(8)
    }
    nothing = ViewNumbers(views, "page_url", 4)  # NULL in every row
    assert len(every_number(nothing, 0, [16] * 3) | every_number(nothing, 1, [8] * 3)) == 72
    assert min(every_number(nothing, 0, [16] * 3)) >= 0
    with pytest.raises(ValueError, match="has no column 'dup_group'"):
        every_number(ViewNumbers(views, "dup_group", 4), 0, [16])


@pytest.mark.parametrize("copied", [False, True])
def test_a_batch_of_a_blend_holds_no_uid_twice(tiny_pool, tmp_path, copied):
    other = tiny_pool
    if copied:
        other = str(tmp_path / "copy")
        shutil.copytree(tiny_pool, other)
    pools = {"web": tiny_pool, "more": other} if copied else {"web": tiny_pool}
    views = {"web/all": 0.5, "more/half" if copied else "web/half": 0.5}

    def batches(distinct):
        blend = Blend(name="b", pools=pools, views=views, distinct=distinct)
        loader = RunLoader(blend, settings(samples_seen=16 * 20), model())
        return [[key.partition(":")[2] for key in batch.keys] for batch in loader]

    assert any(len(set(keys)) < 16 for keys in batches(None))
    assert all(len(set(keys)) == 16 for keys in batches("uid"))


def test_captions_are_kept_apart_by_their_column(tiny_pool):
    views, pools = {"web/all": 1.0}, {"web": tiny_pool}
    blend = Blend(name="b", pools=pools, views=views, distinct="caption")
    loader = RunLoader(blend, settings(batch_size=8, samples_seen=8 * 40, lanes=4), model())
    for batch in loader:
        captions = {tuple(tokens) for tokens in batch.tokens_BT.tolist()}
        assert len(captions) == 8  # of 12 different ones


# --------------------------------------------------------------------------------------------------


@pytest.fixture
def counted_pool(make_pool, tmp_path):
    """A pool of 2 shards of 64 rows with the columns `entry_count` and `synthetic`."""
    pool: str = make_pool(tmp_path / "pool", 64, 2, size=24)
    for shard in range(2):
        path = disk.join(pool, "shards", f"{shard:05d}.parquet")
        table = disk.read_parquet(path)
        counts = [1000 if r % 2 else 10 for r in range(64)]
        texts = [None if shard == 1 and r == 5 else f"synthetic {shard} {r}" for r in range(64)]
        table = table.append_column("entry_count", pa.array(counts, pa.int64()))
        table = table.append_column("synthetic", pa.array(texts, pa.string()))
        disk.write_parquet(path, table, {})
    return pool


def balanced_blend(pool, **keys):
    return Blend(name="b", pools={"web": pool}, views={"web/all": 1.0}, **keys)


def test_chances_are_the_limit_over_the_column(counted_pool):
    rule = {"web/all": Balance(column="entry_count", limit=100)}
    chances = ViewChances([open_view(counted_pool, "all")], ["web/all"], rule, 4)
    shard, row = np.array([1, 0, 1]), np.array([3, 2, 4])
    assert chances(0, shard, row).tolist() == [0.1, 1.0, 1.0]
    assert chances.candidates == {0: 6}  # of the mean chance 0.55
    assert chances.unique(0, 128, 10**6) == 128
    assert chances.identity() == {"web/all": {"column": "entry_count", "limit": 100}}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("caption", r"column 'caption' has no number above 0 in a kept row of shard 00000; add"),
        ("warc_offset", "add the rule warc_offset > 0 to the view"),  # NULL in every row
        ("entry_counts", "has no column 'entry_counts'; did you mean 'entry_count'"),
    ],
)
def test_a_column_that_is_no_count_is_refused(counted_pool, column, message):
    rule = {"web/all": Balance(column=column, limit=100)}
    with pytest.raises(ValueError, match=message):
        ViewChances([open_view(counted_pool, "all")], ["web/all"], rule, 4)


def test_a_run_draws_balanced_rows_and_says_how_many(counted_pool):
    blend = balanced_blend(
        counted_pool, balance={"web/all": Balance(column="entry_count", limit=100)}
    )
    loader = RunLoader(blend, settings(samples_seen=8 * 150, batch_size=8, lanes=2), model())
    seen = Counter(key for batch in loader for key in batch.keys)
    rare = sum(count for key, count in seen.items() if int(key[-4:]) % 2 == 0)
    assert abs(rare / 1200 - 1 / 1.1) < 0.04
    source = loader.sources()["web/all"]
    assert source["drawn"] == 1200
    assert abs(source["unique"] - len(seen)) < 15


def test_captions_come_from_the_columns_by_their_shares(counted_pool):
    blend = balanced_blend(counted_pool, captions={"web/all": {"caption": 0.25, "synthetic": 0.75}})
    loader = RunLoader(blend, settings(samples_seen=8 * 32, batch_size=8, lanes=2), model())
    tokens = Tokens()
    tokens.setup()
    kinds: Counter[str] = Counter()
    damaged = 0
    for batch in loader:
        damaged += batch.damaged
        for key, row, length in zip(batch.keys, batch.tokens_BT, batch.length_B, strict=True):
            text = f"synthetic {int(key[-9:-4])} {int(key[-4:])}"
            own = row[: int(length)].tolist()
            kinds["synthetic" if own == tokens.encode(text).tolist() else "caption"] += 1
    # The row without a synthetic caption was replaced by another row, with one.
    assert kinds == loader.sources()["web/all"]["captions"] == {"caption": 64, "synthetic": 192}
    assert damaged > 0
    wrong = balanced_blend(counted_pool, captions={"web/all": {"entry_count": 1}})
    with pytest.raises(ValueError, match="name 'entry_count', which is no column of text"):
        list(RunLoader(wrong, settings(), model()))
