"""Tars that another program wrote, as streams: bytes, samples, readers, batches."""

from __future__ import annotations

import gzip
import itertools
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from clipmill.manifests.schema import Blend, TarStream
from clipmill.train import store
from clipmill.train.config import model_config
from clipmill.train.data import tar_streams
from clipmill.train.data.damage import StageTimes
from clipmill.train.data.loader import RunLoader
from clipmill.train.data.tar_streams import (
    LISTED,
    BrokenSource,
    Share,
    StreamCounts,
    TarBytes,
    TarReader,
    TarSample,
    expand,
    open_source,
    read_samples,
    readers_of_rank,
    sample_of,
    sum_counts,
    tars_of_reader,
)
from clipmill.train.store import ReadFailed
from tests.support.malformed_tars import cut_in_member, flipped, whole
from tests.support.other_tars import Members, pack, picture
from tests.support.steps import config_of

ROWS = 6


def members_of(number, rows=ROWS):
    """The members of tar `number`; each caption is the key of its sample."""
    members: Members = []
    for row in range(rows):
        key = f"{number}{row:03d}"
        members.append((f"{key}.jpg", picture(40 + row, 32, shade=30 * row)))
        members.append((f"{key}.txt", key.encode()))
    return members


@pytest.fixture
def tars(tmp_path):
    """Four tars of ROWS samples."""
    return [str(pack(tmp_path / f"t-{k}.tar", members_of(k))) for k in range(4)]


# --------------------------------------------------------------------------------------------------


def whole_source(name):
    """All bytes of a source, checked as those of a tar."""
    with open_source(name) as source:
        data = TarBytes(source)
        parts = []
        while part := data.read(700):
            parts.append(part)
        data.finish()
    return b"".join(parts)


@pytest.fixture(scope="module")
def server():
    """A web server without ranges: /tar is whole, /short ends too early, /busy is never there."""
    content = b"x" * 1024 + bytes(1024)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            status = {"/tar": 200, "/short": 200, "/busy": 503}.get(self.path, 404)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content) if status == 200 else 0))
            self.end_headers()
            if status == 200:
                self.wfile.write(content[: 100 if self.path == "/short" else None])

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_a_file_a_command_a_web_server_and_gzip_give_the_same_bytes(tmp_path, server):
    content = b"x" * 1024 + bytes(1024)
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    packed = tmp_path / "a.tgz"
    packed.write_bytes(gzip.compress(content))
    for name in (str(path), f"pipe:cat {path}", f"{server}/tar", str(packed), f"pipe:cat {packed}"):
        assert whole_source(name) == content, name


def test_a_source_that_ends_too_early_is_named_with_the_reason(tmp_path, server):
    path = tmp_path / "a.tar"
    path.write_bytes(b"x" * 1024)  # at the border of a member: tarfile alone would not notice
    cut = tmp_path / "cut.tgz"
    cut.write_bytes(gzip.compress(b"x" * 1024 + bytes(1024))[:-12])
    two = tmp_path / "two.tar"
    two.write_bytes(b"x" * 512 + bytes(1024))
    for name, reason in {
        str(path): "without the end mark of a tar",
        f"pipe:cat {path}; exit 3": "ended with status 3",
        f"pipe:echo lost the line >&2; cat {two}; exit 1": "status 1: lost the line",
        f"pipe:cat {two}; kill -9 $$": "by signal 9",
        str(cut): "end-of-stream",
        f"{server}/short": "1,948 bytes too early",
        f"{server}/none": "404",
        str(tmp_path / "none.tar"): "No such file",
    }.items():
        with pytest.raises(BrokenSource, match=reason):
            whole_source(name)


def test_two_tars_one_after_the_other_are_not_half_read(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(10240) + b"x" * 512 + bytes(1024))
    with open_source(str(path)) as source:
        data = TarBytes(source)
        data.read(10240)  # to the end mark
        with pytest.raises(BrokenSource, match="named by itself"):
            data.finish()


def test_a_server_that_does_not_answer_is_asked_again(server, monkeypatch):
    monkeypatch.setattr(store, "WAITS_S", (0.0, 0.0))
    with pytest.raises(
        ReadFailed,
        match=r"in 3 attempts \(ConnectionError: status 503\); check the connection to the server$",
    ):
        whole_source(f"{server}/busy")


def test_a_command_that_hangs_is_stopped_with_all_that_it_started():
    with open_source("pipe:sleep 100000 | cat") as source:
        timer = threading.Timer(0.1, source.stop)
        timer.start()
        assert source.read(1) == b""
        timer.join()
    assert tar_streams.COMMAND == "pipe:"


# --------------------------------------------------------------------------------------------------


def samples_of(path, caption="txt"):
    stream = TarStream(tars=(str(path),), caption=caption)
    with open_source(str(path)) as source:
        return list(read_samples(str(path), source, stream))


def test_images_with_captions_come_and_others_are_named_by_reason(tmp_path):
    image = picture()
    members: Members = [
        ("a/1.jpg", image),
        ("a/1.txt", "grün".encode()),
        ("a/2.PNG", picture(kind="PNG")),
        ("a/2.json", b'{"caption": "two", "txt": 3}'),
        ("a/3.jpg", image),
        ("a/4.txt", b"no image here"),
        ("a/5.jpg", image),
        ("a/5.txt", b"\xff\xfe"),
        ("a/6.jpg", b""),
        ("a/6.txt", b"an empty image"),
        ("a/7.jpg", image),
        ("a/7.txt", b" \n"),
    ]
    path = pack(tmp_path / "a.tar", members)
    first, *others = samples_of(path)
    assert first == TarSample(tar=str(path), key="a/1", image=image, caption="grün")
    assert others == [
        "no caption", "no caption", "no image", "no caption", "no image", "no caption",
    ]  # fmt: skip
    by_json = samples_of(path, "json:caption")
    assert [each.caption for each in by_json if isinstance(each, TarSample)] == ["two"]


def test_json_that_is_no_caption_is_none():
    for data in (b"[]", b'"text"', b"{", b'{"caption": 5}', b"[" * 100_000, b"\xff"):
        members = {"__key__": "k", "jpg": b"x", "json": data}
        assert sample_of("a.tar", members, "json:caption") == "no caption"


def test_a_broken_member_ends_the_tar_after_what_was_whole(tmp_path):
    damaged = (cut_in_member(tmp_path), flipped(tmp_path, "000002.jpg", 150))
    for number, data in enumerate(damaged):
        path = tmp_path / f"broken-{number}.tar"
        path.write_bytes(data)
        stream = TarStream(tars=(str(path),))
        usable: list[TarSample | str] = []
        with open_source(str(path)) as source:
            samples = read_samples(str(path), source, stream)
            usable += [next(samples), next(samples)][: 2 - number]
            with pytest.raises(BrokenSource, match="damaged") as broken:
                list(samples)
        assert "fileobj" not in str(broken.value)
        assert [isinstance(sample, TarSample) for sample in usable] == [True] * (2 - number)


def test_every_byte_that_is_missing_at_the_end_is_noticed(tmp_path):
    data = whole(tmp_path)
    path = tmp_path / "cut.tar"
    for size in range(0, len(data.rstrip(b"\0")), 512):
        path.write_bytes(data[:size])
        with pytest.raises(BrokenSource):
            samples_of(path)


# --------------------------------------------------------------------------------------------------


@contextmanager
def reader_of(tars, *, reader=0, of=1, **options):
    counts = StreamCounts()
    stream = TarStream(tars=tuple(tars), **options)
    share = Share(name="s", stream=stream, tars=tars, reader=reader, readers=of, seed=3)
    one = TarReader(share, counts, StageTimes())
    try:
        yield one, counts
    finally:
        one.close()
        assert not one._thread.is_alive()


def test_a_pass_gives_every_sample_once_in_another_order(tars):
    with reader_of(tars) as (reader, _):
        passes = [[reader.take().key for _ in range(4 * ROWS)] for _ in range(2)]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(set(passes[0]))
    assert passes[0] != passes[1]
    assert passes[0] != sorted(passes[0])
    with reader_of(tars) as (again, _):
        assert [again.take().key for _ in range(4 * ROWS)] == passes[0]


@pytest.mark.parametrize("readers", [1, 2, 3, 7])
def test_each_pass_reads_every_tar_once_whatever_the_number_of_readers(readers):
    names = [f"{k}.tar" for k in range(7)]
    read: Counter[tuple[int, str]] = Counter()
    for reader in range(readers):
        entries = range(reader, 3 * len(names), readers)  # of three passes
        read.update(itertools.islice(tars_of_reader(names, reader, readers, 5), len(entries)))
    assert read == Counter(itertools.product(range(3), names))


def test_readers_never_outnumber_tars():
    assert readers_of_rank(tars=8, world=8, threads=4) == 1
    assert readers_of_rank(tars=100, world=8, threads=16) == 4
    assert readers_of_rank(tars=100, world=1, threads=2) == 2
    assert readers_of_rank(tars=3, world=1, threads=0) == 1


@pytest.mark.parametrize("dead", ["pipe:exit 7", "pipe:head -c 1500 {}", "pipe:cat {}; exit 7"])
def test_a_dead_pipe_ends_the_run_or_is_counted(tars, dead):
    bad = dead.format(tars[0])
    with (
        reader_of([*tars[1:], bad]) as (reader, _),
        pytest.raises(ReadFailed, match=r"of stream 's' is broken: .*; mend it, or set broken"),
    ):
        [reader.take() for _ in range(20 * ROWS)]
    with reader_of([*tars[1:], bad], broken="count") as (reader, counts):
        keys = {reader.take().key for _ in range(8 * ROWS)}
    assert {f"{k}{row:03d}" for k in (1, 2, 3) for row in range(ROWS)} <= keys
    assert counts.broken
    assert set(counts.reasons) == {bad}


def test_a_source_without_a_usable_sample_is_a_mistake_and_not_a_hang(tmp_path):
    lonely = [str(pack(tmp_path / f"{k}.tar", [(f"{k}.txt", b"text")])) for k in range(3)]
    with (
        reader_of(lonely) as (reader, _),
        pytest.raises(ValueError, match=r"'s' has no usable sample \(\d+ with no image\)"),
    ):
        reader.take()
    with (
        reader_of([str(tmp_path / "none.tar")], broken="count") as (reader, _),
        pytest.raises(ReadFailed, match="no usable sample"),
    ):
        reader.take()


def test_a_reader_that_is_closed_while_it_opens_a_source_ends(monkeypatch):
    opened, go = tar_streams.open_source, threading.Event()

    @contextmanager
    def late(name):
        assert go.wait(900)
        with opened(name) as source:
            yield source

    monkeypatch.setattr(tar_streams, "open_source", late)
    with reader_of(["pipe:sleep 100000"]):
        threading.Timer(0.3, go.set).start()


def test_a_silent_pipe_counts_as_dead(monkeypatch):
    monkeypatch.setattr(tar_streams, "SILENT_S", 0.3)
    monkeypatch.setattr(tar_streams, "LOOK_S", 0.05)
    with (
        reader_of(["pipe:sleep 100000"]) as (reader, _),
        pytest.raises(ReadFailed, match=r"pipe:sleep 100000 of stream 's' gave no sample"),
    ):
        reader.take()


def test_the_counts_of_ranks_are_added_up_and_few_tars_are_named():
    one, other = StreamCounts(), StreamCounts()
    for number in range(2 * LISTED):
        one.end_tar(f"{number}.tar", "cut off")
    other.end_tar("a.tar")
    for counts in (one, other, other):
        counts.skip("no image")
    total = sum_counts([one.to_plain(), other.to_plain()])
    assert len(total.pop("broken_tars")) == LISTED
    assert total == {"tars_read": 2 * LISTED + 1, "skipped": {"no image": 3}, "broken": 2 * LISTED}


# --------------------------------------------------------------------------------------------------


def loader_of(streams, rank=0, world=1, **changes):
    config = config_of(**{"samples_seen": 24, "warmup": 1, "threads": 2, **changes})
    return RunLoader(Blend(name="b", streams=streams), config, model_config(config), rank, world)


def batches_of(loader):
    return list(loader.batches())


def keys_of(batches):
    return [key.rpartition("#")[2] for batch in batches for key in batch.keys]


def test_two_ranks_draw_each_sample_of_a_pass_once(tars):
    stream = {"s": TarStream(tars=tuple(tars))}
    keys: list[str] = []
    for rank in range(2):
        batches = batches_of(loader_of(stream, rank, 2, threads=1))
        assert [len(batch.keys) for batch in batches] == [4, 4, 4]
        keys += keys_of(batches)
    assert len(set(keys)) == 4 * ROWS == 24


def test_each_row_has_its_own_image_and_caption(tars):
    for batch in batches_of(loader_of({"s": TarStream(tars=tuple(tars))})):
        assert batch.image_BHWC.dtype == torch.uint8
        assert not batch.damaged
        for key, image, tokens in zip(batch.keys, batch.image_BHWC, batch.tokens_BT, strict=True):
            row = int(key[-1])
            assert abs(float(image[..., 0].float().mean()) - 30 * row) < 8  # its colour
            assert tokens[0] == 49_406
    assert [int(batch.length_B.min()) > 2 for batch in [batch]] == [True]


def test_the_shares_of_sources_are_exact(tars):
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


def test_an_image_that_cannot_be_decoded_is_replaced_and_counted(tmp_path):
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


def test_what_cannot_be_streamed_is_refused_at_once(tars, tmp_path):
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


def test_braces_stand_for_many_tars():
    assert expand("s", ["w-{00..02}.tar", "pipe:cat {a,b}"]) == [
        "w-00.tar", "w-01.tar", "w-02.tar", "pipe:cat a", "pipe:cat b",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="braces"):
        expand("s", ["w-{00..02.tar"])
