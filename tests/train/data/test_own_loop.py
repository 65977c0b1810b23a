"""`clipmill.Loader`: the trainer's batches in a loop of one's own, from any position."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

import clipmill
from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Blend
from clipmill.train.config import TrainConfig
from clipmill.train.data import loader as loader_module
from clipmill.train.trainer import loop
from tests.support import pages
from tests.support.bundles import write_scores
from tests.support.tasks import write_score_set
from tests.train.data.test_loader import damage

ROOT = Path(__file__).resolve().parents[3]


def small(pool, view="all", **changes):
    settings = {"batch_size": 16, "image_size": 32, "workers": 0, "lanes": 8, "window": 2}
    if "transform" in changes:
        del settings["image_size"]
    return clipmill.Loader(f"{pool}/{view}", **{**settings, **changes})


def assert_equal(one, other):
    assert (one.step, one.keys, one.captions) == (other.step, other.keys, other.captions)
    assert torch.equal(one.image, other.image)
    assert torch.equal(one.tokens, other.tokens)
    assert one.columns.to_pydict() == other.columns.to_pydict()


def in_parts(parts):
    """The batch of which these are the shares of ranks."""
    first = parts[0]
    assert {part.step for part in parts} == {first.step}
    return dataclasses.replace(
        first,
        image=torch.cat([part.image for part in parts]),
        tokens=torch.cat([part.tokens for part in parts]),
        captions=[caption for part in parts for caption in part.captions],
        keys=tuple(key for part in parts for key in part.keys),
        columns=pa.concat_tables([part.columns for part in parts]),
    )


def noisy(image):
    """A transform that draws from all three generators of the process."""
    assert isinstance(image, Image.Image)
    drawn = [random.random(), np.random.random(), float(torch.rand(()))]
    mean = float(np.asarray(image).mean())
    return torch.tensor([*drawn, mean], dtype=torch.float64)


# --- what the trainer sees


@pytest.mark.parametrize(("world", "workers"), [(1, 0), (2, 2)])
def test_the_batches_are_those_that_a_run_trains_on(
    tiny_pool, tmp_path, monkeypatch, world, workers
):
    seen = []

    class Noted(loader_module.RunLoader):
        def batches(self, *numbers):
            for batch in super().batches(*numbers):
                seen.append(batch)
                yield batch

    monkeypatch.setattr(loop, "RunLoader", Noted)
    path = tmp_path / "blend.json"
    blend = Blend(
        name="b", pools={"web": tiny_pool}, views={"web/all": 2.0, "web/half": 1.0}, seed=5
    )
    disk.write_json(str(path), blend.document())
    config = TrainConfig(
        model="test",
        samples_seen=16 * 6,
        batch_size=16,
        lanes=8,
        window=2,
        seed=3,
        threads=1,
        warmup=0,
        device="cpu",
        precision="fp32",
    )
    loop.train(blend, config, str(tmp_path / "run"))
    settings = {"batch_size": 16, "image_size": 32, "context_length": 16, "lanes": 8, "window": 2}
    ranks = [
        clipmill.Loader(
            path, **settings, seed=3, epochs=None, rank=rank, world=world, workers=workers
        )
        for rank in range(world)
    ]
    batches = [iter(rank) for rank in ranks]
    assert len(seen) == 6
    for expected in seen:
        batch = in_parts([next(of_rank) for of_rank in batches])
        assert torch.equal(batch.image, expected.image_BHWC)
        assert torch.equal(batch.tokens, expected.tokens_BT)
        assert batch.keys == expected.keys
    for rank in ranks:
        rank.close()


def test_a_mapping_names_views_with_weights(tiny_pool):
    blend = {f"{tiny_pool}/all": 3, f"{tiny_pool}/half": 1}
    loader = clipmill.Loader(blend, batch_size=16, image_size=32, workers=0)
    assert len(loader) == (48 + 24) // 16
    views = [key.rpartition(":")[0] for batch in loader for key in batch.keys]
    assert {view: views.count(view) for view in views} == {"pool/all": 48, "pool/half": 16}
    assert repr(loader) == "Loader({pool/all: 3, pool/half: 1}, batch_size=16, step 4)"


# --- epochs and the position


def test_an_epoch_goes_on_where_the_one_before_ended(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 13)  # 39 rows: 4 batches of 8, 7 rows are left
    loader = small(pool, batch_size=8, lanes=4)
    endless = iter(small(pool, batch_size=8, lanes=4, epochs=None))
    assert len(loader) == 4
    epochs = [list(loader) for _ in range(3)]
    assert [[batch.step for batch in epoch] for epoch in epochs] == [
        list(range(4)),
        list(range(4, 8)),
        list(range(8, 12)),
    ]
    batches = [batch for epoch in epochs for batch in epoch]
    for batch in batches:
        assert_equal(batch, next(endless))
    keys = [key for batch in batches for key in batch.keys]
    assert len(set(keys[:32])) == 32
    assert len(set(keys[:40])) == 39  # the fifth batch begins the second epoch with one row
    assert len(small(pool, batch_size=8, lanes=4, epochs=2.5)) == round(2.5 * 39) // 8
    with pytest.raises(TypeError, match="epochs=None has no len"):
        len(small(pool, batch_size=8, lanes=4, epochs=None))


@pytest.mark.parametrize(("first", "then"), [((1, 0), (2, 1)), ((4, 1), (1, 0)), ((2, 0), (8, 2))])
def test_a_state_is_resumed_by_any_number_of_ranks(tiny_pool, first, then):
    whole = list(small(tiny_pool, epochs=2, columns=["uid"]))
    before = [
        small(tiny_pool, epochs=2, rank=rank, world=first[0], workers=first[1])
        for rank in range(first[0])
    ]
    for loader in before:
        for batch in loader:
            if batch.step == 3:
                break
    states = [json.loads(json.dumps(loader.state_dict())) for loader in before]
    assert states[1:] == states[:-1]
    assert states[0]["step"] == 4
    after = [
        small(tiny_pool, epochs=2, columns=["uid"], rank=rank, world=then[0], workers=then[1])
        for rank in range(then[0])
    ]
    for loader in after:
        loader.load_state_dict(states[0])
    resumed = [in_parts(parts) for parts in zip(*after, strict=True)]
    assert len(resumed) == 2
    for batch, expected in zip(resumed, whole[4:], strict=True):
        assert_equal(batch, expected)


def test_a_break_and_a_new_for_go_on_with_the_rest_of_the_epoch(tiny_pool):
    loader = small(tiny_pool, workers=2)
    first = next(iter(loader))
    rest = list(loader)
    assert [first.step, *[batch.step for batch in rest]] == [0, 1, 2]
    assert len(loader) == 3


def test_the_state_of_another_order_is_refused_by_what_differs(tiny_pool):
    state = small(tiny_pool, seed=1).state_dict()
    with pytest.raises(ValueError, match="its seed was 1 and is 0"):
        small(tiny_pool).load_state_dict(state)
    with pytest.raises(ValueError, match=r"its sources was .*pool/half"):
        small(tiny_pool).load_state_dict(small(tiny_pool, "half", seed=0).state_dict())
    with pytest.raises(ValueError, match="step -1; it must not be negative"):
        small(tiny_pool).load_state_dict({**small(tiny_pool).state_dict(), "step": -1})


# --- a transform and a tokenizer of one's own


def test_a_transform_sees_the_random_state_of_its_position(tiny_pool):
    whole = list(small(tiny_pool, transform=noisy))
    drawn = torch.cat([batch.image[:, :3] for batch in whole])
    assert drawn.unique().numel() == 48 * 3
    assert (drawn.min() >= 0) & (drawn.max() < 1)
    assert torch.cat([batch.image[:, 3] for batch in whole]).std() > 1
    ranks = [small(tiny_pool, transform=noisy, rank=r, world=2, workers=1) for r in range(2)]
    ranks[0].load_state_dict(small(tiny_pool, transform=noisy).state_dict() | {"step": 1})
    ranks[1].load_state_dict(ranks[0].state_dict())
    for parts, expected in zip(zip(*ranks, strict=True), whole[1:], strict=True):
        assert_equal(in_parts(parts), expected)
    others = list(small(tiny_pool, transform=noisy, seed=1))
    assert not torch.equal(others[0].image[:, 0], whole[0].image[:, 0])


def test_the_random_state_of_the_caller_stays_what_it_is(tiny_pool):
    def draws():
        return [random.random(), float(np.random.random()), float(torch.rand(()))]

    def seeded():
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seeded()
    expected = draws() + draws()
    seeded()
    found = []
    batches = iter(small(tiny_pool, transform=noisy, tokenizer=list, workers=2))
    for _ in range(2):
        next(batches)
        found += draws()
    assert found == expected

    def fails(image):
        random.seed(9)
        raise KeyError("no such thing")

    seeded()
    with pytest.raises(KeyError, match="no such thing") as failed:
        next(iter(small(tiny_pool, transform=fails)))
    assert failed.value.__notes__[0].startswith("the transform was called with the picture of pool")
    assert draws() == expected[:3]


def test_a_composition_of_albumentations_is_seeded_and_called_in_its_way(tiny_pool):
    class Composition:
        def set_random_seed(self, seed):
            self._random = random.Random(seed)

        def __call__(self, *, image):
            assert image.dtype == np.uint8
            assert image.shape[2] == 3
            return {"image": image[:4, :4] * 0 + self._random.randrange(256)}

    whole = list(small(tiny_pool, transform=Composition()))
    assert whole[0].image.shape == (16, 4, 4, 3)
    assert whole[0].image.float().mean((1, 2, 3)).unique().numel() > 8
    (last,) = list(small(tiny_pool, transform=Composition(), workers=1))[2:]
    assert_equal(last, whole[2])


def test_pictures_for_a_transform_stay_encoded_where_memory_is_short(tiny_pool, monkeypatch):
    whole = list(small(tiny_pool, transform=noisy))
    monkeypatch.setattr(loader_module, "PREFETCH_BYTES", 2 * 5 * 48 * 36 * 3)
    inner = small(tiny_pool, transform=noisy)._opened()
    kept = [isinstance(picture, bytes) for picture in next(inner.batches()).pictures]
    assert kept == [False] * 5 + [True] * 11
    for batch, expected in zip(small(tiny_pool, transform=noisy), whole, strict=True):
        assert_equal(batch, expected)


def test_a_tokenizer_reads_captions_of_a_pool_without_tokens(make_pool, tmp_path, tiny_pool):
    pool = make_pool(tmp_path / "pool", tokenizer="other")
    with pytest.raises(ValueError, match="has no tokens of tokenizer 'clip'"):
        small(pool)

    def lengths(captions):
        return torch.tensor([len(caption) for caption in captions])

    (batch, *_) = small(pool, tokenizer=lengths)
    assert batch.tokens.tolist() == [len(caption) for caption in batch.captions]
    (stored, *_) = small(tiny_pool, columns=["caption"])
    assert stored.captions == batch.captions == stored.columns["caption"].to_pylist()
    assert stored.tokens.shape == (16, 77)


def test_a_row_without_caption_is_replaced_where_a_tokenizer_reads_it(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool", 16, 1)
    path = PoolLayout(pool).sidecar(0)
    table = disk.read_parquet(path)
    captions = [None if r == 4 else text for r, text in enumerate(table["caption"].to_pylist())]
    at = table.column_names.index("caption")
    disk.write_parquet(path, table.set_column(at, "caption", pa.array(captions, pa.string())), {})
    (batch,) = small(pool, tokenizer=list)
    assert [bad.key for bad in batch.damaged] == ["000000004"]
    assert None not in batch.captions


# --- columns


def test_columns_of_sidecars_and_of_current_scores_come_with_each_row(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool")
    add_scores(pool, "clip_score@0123456789ab", "clip_score", 0.0)
    loader = small(pool, columns=["clip_score", "uid", "url"], workers=1)
    for batch in loader:
        assert batch.columns.column_names == ["clip_score", "uid", "url"]
        for key, row in zip(batch.keys, batch.columns.to_pylist(), strict=True):
            name = key.rpartition(":")[2]
            assert row["url"] == f"http://127.0.0.1/{name}.jpg"
            assert row["clip_score"] == float(name)
    add_scores(pool, "clip_score@ba9876543210", "clip_score", 0.5)
    with pytest.raises(ValueError, match=r"'clip_score' in the score sets .* reads neither"):
        next(iter(small(pool, columns=["clip_score"])))
    with pytest.raises(ValueError, match=r"has no column 'capton'; did you mean 'caption'\?"):
        next(iter(small(pool, columns=["capton"])))


def add_scores(pool, name, column, more):
    """A score of every row: the number of its key, and `more`."""
    shards, folder = {}, os.path.join(pool, "shards")
    for file in disk.list_names(folder, ".parquet"):
        table = disk.read_parquet(os.path.join(folder, file))
        values = [float(key) + more for key in table["key"].to_pylist()]
        sidecar = disk.read_json(os.path.join(folder, file.replace(".parquet", "_stats.json")))
        shards[file[:5]] = pa.table({column: values}), {"sidecar": sidecar["sidecar_sha256"]}
    write_scores(pool, name, shards)
    write_score_set(PoolLayout(pool), name, (column,), 1)


def test_the_caption_is_that_of_the_text_column_that_was_drawn(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool")
    blend = Blend(
        name="b",
        pools={"web": pool},
        views={"web/all": 1.0},
        captions={"web/all": {"caption": 1.0, "url": 1.0}},
    )
    settings = {"batch_size": 16, "image_size": 32, "workers": 0}
    batches = list(clipmill.Loader(blend, **settings, columns=["url", "caption"]))
    texts = [text for batch in batches for text in batch.captions]
    assert sum(text.startswith("http") for text in texts) == 24
    for batch in batches:
        table = batch.columns.to_pylist()
        assert all(
            text in (row["url"], row["caption"])
            for text, row in zip(batch.captions, table, strict=True)
        )
    own = list(clipmill.Loader(blend, **settings, tokenizer=list))
    assert [batch.tokens for batch in own] == [batch.captions for batch in batches]


# --- processes, threads, ends


def keys_of(loader):
    return [batch.keys for batch in loader]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_loader_goes_on_in_another_process(tiny_pool, method):
    loader = small(tiny_pool, workers=1)
    assert next(iter(loader)).step == 0
    with multiprocessing.get_context(method).Pool(1) as processes:
        there = processes.apply_async(keys_of, (loader,)).get(timeout=900)
    assert there == keys_of(loader)
    assert len(there) == 2


def test_a_pickle_has_the_position_and_no_open_file(tiny_pool):
    loader = small(tiny_pool, transform=noisy)
    next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    for batch, expected in zip(copy, loader, strict=True):
        assert_equal(batch, expected)


@pytest.fixture
def names_of_threads():
    """The threads of a loader that are there now, without those that earlier tests have left."""
    others = set(threading.enumerate())
    names = ("plan", "decode", "read", "columns")

    def now():
        threads = set(threading.enumerate()) - others
        return sorted(t.name for t in threads if t.name.startswith(names))

    return now


def test_threads_end_with_a_break_a_close_an_error_and_the_end(tiny_pool, names_of_threads):
    loader = small(tiny_pool, workers=2)
    for _ in loader:
        assert names_of_threads()
        break
    assert names_of_threads() == []
    with loader:
        batches = iter(loader)
        next(batches)
        assert names_of_threads()
    assert names_of_threads() == []
    assert list(batches) == []
    assert [batch.step for batch in loader] == [2]
    assert names_of_threads() == []
    old = iter(loader)
    next(old)
    assert next(iter(loader)).step == 4  # another `for` ends the one before
    assert list(old) == []


def test_an_interrupted_batch_comes_again(tiny_pool, names_of_threads):
    calls = []

    def interrupted(image):
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return noisy(image)

    loader = small(tiny_pool, transform=interrupted, workers=1)
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the loop is what is interrupted
        for batch in loader:
            steps.append(batch.step)
    assert names_of_threads() == []
    rest = list(loader)
    assert [*steps, *[batch.step for batch in rest]] == [0, 1, 2]
    for batch, expected in zip(rest, list(small(tiny_pool, transform=noisy))[1:], strict=True):
        assert_equal(batch, expected)


def test_the_package_is_imported_without_what_its_names_need():
    code = (
        "import sys, clipmill\n"
        "assert 'Loader' in dir(clipmill)\n"
        "heavy = {'torch', 'ray', 'duckdb', 'numpy', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "for name in ('ray', 'duckdb', 'open_clip'): sys.modules[name] = None\n"
        "print(clipmill.Loader.__module__)\n"
        "clipmill.Lodaer"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.stdout.strip() == "clipmill.train.data.own_loop"
    assert "AttributeError: module 'clipmill' has no attribute 'Lodaer'" in done.stderr


def test_the_code_of_the_page_works(make_pool, tmp_path, monkeypatch):
    pytest.importorskip("torchvision")
    make_pool(tmp_path / "out/pool", view="basic")
    monkeypatch.chdir(tmp_path)
    texts = [text for _, text in pages.blocks("docs/from_python.md") if "Loader(" in text]
    names: dict[str, object] = {}
    for text in texts:
        exec(text.replace("256", "16"), names)  # our own page
    assert len(texts) == 4
    assert names["half"].step == names["state"]["step"] == 6
    assert names["batch"].image.shape == (16, 3, 224, 224)
    assert names["batch"].tokens == names["batch"].captions


# --- damage and refusals


def test_damage_is_in_the_batch_and_too_much_of_it_ends_the_loop(make_pool, tmp_path, caplog):
    pool = make_pool(tmp_path / "pool", 100)
    damage(pool, "000010003")
    damaged = [bad for batch in small(pool, workers=1) for bad in batch.damaged]
    assert [(bad.key, bad.source) for bad in damaged] == [("000010003", "pool/all")]
    assert "1 samples were replaced; the last is key 000010003 of shard 00001" in caplog.text
    for row in range(20):
        damage(pool, f"00000{row:04d}")
    with pytest.raises(ValueError, match=r"11 of \d+ samples of rank 0 cannot be used, more than"):
        list(small(pool))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": None}, "give image_size, in pixels, or a transform"),
        ({"transform": noisy, "image_size": 32}, "one of them"),
        ({"transform": noisy, "crop_min": 0.5}, "leave it out with a transform"),
        ({"tokenizer": list, "context_length": 16}, "leave it out with a tokenizer"),
        ({"context_length": 2}, "context_length is 2; it must be at least 3"),
        ({"rank": 2, "world": 2}, r"rank is 2; it must lie in \[0, 2\)"),
        ({"world": 3}, "3 ranks cannot share a batch of 16 evenly"),
        ({"lanes": 3}, "batch_size 16 is no multiple of lanes 3"),
        ({"epochs": 0.1}, "0.1 epochs of 48 rows are fewer samples than a batch of 16"),
        ({"batch_size": 64}, "lower batch_size, or raise epochs"),
        ({"crop_min": 0.0}, r"crop_min is 0.0; it must lie in \(0, 1\]"),
    ],
)
def test_what_cannot_be_is_refused(tiny_pool, changes, message):
    settings = {"batch_size": 16, "image_size": 32, "workers": 0, **changes}
    if "transform" in changes and "image_size" not in changes:
        del settings["image_size"]
    with pytest.raises(ValueError, match=message):
        clipmill.Loader(f"{tiny_pool}/all", **settings)


def test_what_is_no_view_is_refused_with_the_way_out(tiny_pool, tmp_path, monkeypatch):
    def refused(data):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is looked at below
            clipmill.Loader(data, batch_size=16, image_size=32)
        return str(error.value)

    missing = f"{tiny_pool} is a pool, and the view is missing: write POOL/VIEW, like "
    assert refused(tiny_pool).startswith(f"{missing}{tiny_pool}/all (its views: all, half)")
    monkeypatch.chdir(Path(tiny_pool).parent)
    assert "write POOL/VIEW, like pool/all (its" in refused("pool")
    assert "has no view 'al'" in refused(f"{tiny_pool}/al")
    assert refused({"all": 1.0}) == "'all' is not POOL/VIEW, like out/pool/all"
    assert "is named twice" in refused({"pool/all": 1.0, f"{tiny_pool}/all": 1.0})
    blend = Blend(name="b", pools={"p": tiny_pool}, views={"p/stored": 1.0}, live=True)
    assert "blend 'b' has live, and a Loader draws from views of finished pools" in refused(blend)
    most = Blend(name="b", pools={"p": tiny_pool}, views={"p/all": 1.0}, max_repeats=2)
    loader = clipmill.Loader(most, batch_size=16, image_size=32, workers=0)
    assert len(list(loader) + list(loader)) == 6
    with pytest.raises(ValueError, match=r"p/all would be repeated 3\.0 times"):
        list(loader)
    with pytest.raises(ValueError, match="has max_repeats, and epochs is None"):
        clipmill.Loader(most, batch_size=16, image_size=32, epochs=None)
