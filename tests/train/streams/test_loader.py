from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from manifests.schema import Blend, TarStream
from tests.support.other_tars import pack, picture
from tests.support.steps import config_of
from train.config import model_config
from train.data.loader import Batch, Loader
from train.data.tar_streams import expand

ROWS = 6


def loader_of(
    streams: dict[str, TarStream], rank: int = 0, world: int = 1, **changes: Any
) -> Loader:
    config = config_of(**{"samples_seen": 24, "warmup": 1, "threads": 2, **changes})
    return Loader(Blend(name="b", streams=streams), config, model_config(config), rank, world)


def batches_of(loader: Loader) -> list[Batch]:
    return list(loader.batches())


def keys_of(batches: list[Batch]) -> list[str]:
    return [key.rpartition("#")[2] for batch in batches for key in batch.keys]


def test_two_ranks_draw_each_sample_of_a_pass_once(tars: list[str]) -> None:
    stream = {"s": TarStream(tars=tuple(tars))}
    keys: list[str] = []
    for rank in range(2):
        batches = batches_of(loader_of(stream, rank, 2, threads=1))
        assert [len(batch.keys) for batch in batches] == [4, 4, 4]
        keys += keys_of(batches)
    assert len(set(keys)) == 4 * ROWS == 24


def test_each_row_has_its_own_image_and_caption(tars: list[str]) -> None:
    for batch in batches_of(loader_of({"s": TarStream(tars=tuple(tars))})):
        assert batch.image_BHWC.dtype == torch.uint8
        assert not batch.damaged
        for key, image, tokens in zip(batch.keys, batch.image_BHWC, batch.tokens_BT, strict=True):
            row = int(key[-1])
            assert abs(float(image[..., 0].float().mean()) - 30 * row) < 8  # its colour
            assert tokens[0] == 49_406
    assert [int(batch.length_B.min()) > 2 for batch in [batch]] == [True]


def test_the_shares_of_sources_are_exact(tars: list[str]) -> None:
    streams = {
        "a": TarStream(tars=tuple(tars[:2]), weight=3),
        "b": TarStream(tars=(f"pipe:cat {tars[2]}",), weight=1),
    }
    loader = loader_of(streams)
    batches = batches_of(loader)
    counts = Counter(key.partition(":")[0] for batch in batches for key in batch.keys)
    assert counts == {"a": 18, "b": 6}
    sources = loader.sources()
    assert (sources["a"]["drawn"], sources["b"]["share"]) == (18, 0.25)
    assert loader.order.identity()["streams"]["b"]["tars"] == [f"pipe:cat {tars[2]}"]


def test_an_image_that_cannot_be_decoded_is_replaced_and_counted(tmp_path: Path) -> None:
    members = []
    for row in range(8):
        image = b"\xff\xd8\xffno" if row == 3 else picture(40, 32)
        members += [(f"{row}.jpg", image), (f"{row}.txt", b"text")]
    tar = str(pack(tmp_path / "a.tar", members))
    batches = batches_of(loader_of({"s": TarStream(tars=(tar,))}))
    damaged = [sample for batch in batches for sample in batch.damaged_samples]
    assert [sample.step for sample in damaged] == [0, 1, 2]  # each pass is one batch
    assert {(sample.key, sample.shard) for sample in damaged} == {("3", tar)}
    assert "3" not in keys_of(batches)
    again = batches_of(loader_of({"s": TarStream(tars=(tar,))}, threads=0))
    assert keys_of(again) == keys_of(batches)
    nothing = [(f"{row}.{end}", b"\xff\xd8\xff") for row in range(4) for end in ("jpg", "txt")]
    pack(tmp_path / "b.tar", [(name, b"x" if "txt" in name else data) for name, data in nothing])
    with pytest.raises(ValueError, match=r"16 rows of s in a row cannot be used; .*b\.tar"):
        batches_of(loader_of({"s": TarStream(tars=(str(tmp_path / "b.tar"),))}))


def test_what_cannot_be_streamed_is_refused_at_once(tars: list[str], tmp_path: Path) -> None:
    missing = str(tmp_path / "none.tar")
    for stream, world, message in [
        (TarStream(tars=(missing,)), 1, "there is no tar at .*none.tar"),
        (TarStream(tars=tuple(tars[:1])), 2, "has 1 tars for 2 ranks"),
        (TarStream(tars=("-",)), 1, "write pipe:COMMAND"),
        (TarStream(tars=(tars[0], tars[0])), 1, "twice"),
    ]:
        with pytest.raises(ValueError, match=message):
            loader_of({"s": stream}, 0, world)
    with pytest.raises(ValueError, match="read_cache is /tmp/x, which is for views of finished"):
        loader_of({"s": TarStream(tars=tuple(tars))}, read_cache="/tmp/x")
    with pytest.raises(ValueError, match="leave tokenizer out"):
        loader_of({"s": TarStream(tars=tuple(tars))}, tokenizer="other")


def test_braces_stand_for_many_tars() -> None:
    assert expand("s", ["w-{00..02}.tar", "pipe:cat {a,b}"]) == [
        "w-00.tar", "w-01.tar", "w-02.tar", "pipe:cat a", "pipe:cat b",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="braces"):
        expand("s", ["w-{00..02.tar"])
