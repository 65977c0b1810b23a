"""`clipmill filter` as a person calls it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.commands import pool as entry
from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Blend, FilterSpec, Recipe, Source, View
from clipmill.pipeline import recipe_run
from clipmill.pipeline.pool import lease
from clipmill.pipeline.pool.lease import PoolWriter, hold_lease
from clipmill.pipeline.pool.shard_writer import ShardWriter
from clipmill.pipeline.scoring import scorer
from clipmill.train.config import TrainConfig, model_config
from clipmill.train.data.loader import RunLoader
from tests.support import commands
from tests.support.audited import image_bytes
from tests.support.bundles import scores_of
from tests.support.sidecars import read_sidecar
from tests.support.small_pool import make_pool, rows

ROOT = Path(__file__).resolve().parents[2]
RECIPE = """
name: r
source: {kind: files, paths: [x.csv]}
filters: [caption]
views:
  raw: []
  long: [{words: caption_words > 2}]
scales:
  strict: {views: {long: [{words: caption_words > 5}]}}
"""


@pytest.fixture
def pool(tmp_path: Path) -> str:
    (tmp_path / "r.yaml").write_text(RECIPE)
    made = make_pool(tmp_path / "pool", rows(10))
    scorer.score(PoolWriter(made), [FilterSpec(name="caption")], engine="inline")
    return made


def test_all_views_and_their_funnels(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.filter_pool([pool, "--recipe", str(tmp_path / "r.yaml")]) == 0
    output = capsys.readouterr().out
    assert "view raw: 8 of 10 rows kept" in output
    assert "view long: 4 of 10 rows kept" in output
    assert [line.split()[:2] for line in output.splitlines() if "words" in line] == [["words", "4"]]


def test_the_hash_of_the_rows_is_printed_and_kept_where_it_is_asked_for(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [pool, "--recipe", str(tmp_path / "r.yaml"), "--views", "long"]
    assert commands.filter_pool(words) == 0
    assert "hash of the rows" not in capsys.readouterr().out
    assert commands.filter_pool([*words, "--hash"]) == 0
    assert commands.filter_pool(["hash", pool, "long"]) == 0
    *_, line, printed = capsys.readouterr().out.splitlines()
    assert line == f"  hash of the rows {printed}"
    assert disk.read_json(f"{pool}/views/long.json")["rows_sha256"] == printed


def test_a_view_that_is_there_loads_neither_duckdb_nor_pandas(pool: str, tmp_path: Path) -> None:
    """Nor pydantic: together they take longer than all the rest."""
    words = [str(ROOT / "clipmill/__main__.py"), "filter", pool, "--recipe", "r.yaml"]
    for is_there in (False, True):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "view long: 4 of 10 rows kept" in done.stdout
        assert {"pyarrow.parquet"} <= loaded
        assert not {"pandas._libs", "pydantic", "rich", "scipy", "jinja2"} & loaded
        assert ("_duckdb" in loaded) != is_there


def test_one_view_at_a_scale_as_json(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [pool, "--recipe", str(tmp_path / "r.yaml"), "--views", "long"]
    assert commands.filter_pool([*words, "--scale", "strict", "--json"]) == 0
    documents = json.loads(capsys.readouterr().out)
    assert {name: document["kept"] for name, document in documents.items()} == {"long": 2}


def test_the_columns_that_a_rule_may_read(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.filter_pool(["columns", pool]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sidecar:"
    assert any(line.split()[:2] == ["caption_words", "int32"] for line in lines)
    assert commands.filter_pool(["columns", pool, "--json"]) == 0
    columns = {column["name"]: column for column in json.loads(capsys.readouterr().out)}
    assert columns["aspect"]["source"] == "derived"
    assert columns["caption_words"]["source"].startswith("caption@")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["POOL", "--recipe", "{}", "--views", "lang"], "has no view 'lang'"),
        (["POOL", "--recipe", "{}", "--scale", "huge"], "has no scale 'huge'; it has strict"),
        (["POOL", "--recipe", "{}", "--seed", "1"], "Unknown option: --seed"),
        (["POOL"], "--recipe is missing"),
        (["random-like", "POOL", "long", "--views", "raw"], "Unknown option: --views"),
        (["random-like", "POOL", "long"], "has no view 'long'; it has none"),
        (["columns", "POOL", "--views", "raw"], "Unknown option: --views"),
    ],
)
def test_mistakes_are_one_line_and_2(
    pool: str, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"POOL": pool, "{}": str(tmp_path / "r.yaml")}
    assert commands.filter_pool([places.get(word, word) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_it_waits_for_another_command_and_then_gives_up(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [pool, "--recipe", str(tmp_path / "r.yaml")]
    monkeypatch.setattr(lease, "POLL_S", 0.02)
    monkeypatch.setattr(entry, "WAIT_S", 0.1)
    with hold_lease(pool):
        assert commands.filter_pool(words) == 2
        assert f"error: {pool} is being written by `" in capsys.readouterr().err
        assert commands.filter_pool(["columns", pool]) == 0  # reading needs no lease
        with monkeypatch.context() as ahead:
            clock = time.time
            ahead.setattr(time, "time", lambda: clock() + 120)
            assert commands.filter_pool(words) == 2, "a clock that is ahead takes no lease"
    monkeypatch.setattr(entry, "WAIT_S", 30.0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_lease(pool))
        timer = threading.Timer(0.3, stack.pop_all().close)
        timer.start()
        assert commands.filter_pool(words) == 0
        timer.join()


SOFT_CAP = """
name: r
source: {kind: files, paths: [x.csv]}
filters:
  - tokens
  - caption
  - mixed: {rank_mean: {of: {caption_words: 1, original_width: -0.5}}}
  - soft_cap: {of: mixed, share: 1.5, temperature: 0.2, most: 3}
views:
  raw: []
  best: [{mixed: "mixed >= top(mixed, 0.25)"}]
  soft_cap_1: [{drawn: soft_cap >= 1}]
  soft_cap_2: [{drawn: soft_cap >= 2}]
  soft_cap_3: [{drawn: soft_cap >= 3}]
"""


def test_a_blend_of_soft_cap_views_draws_each_row_as_often_as_its_column_says(
    tmp_path: Path,
) -> None:
    (tmp_path / "r.yaml").write_text(SOFT_CAP)
    words = [make_pool(tmp_path / "pool", rows(60)), "--recipe", str(tmp_path / "r.yaml")]
    assert commands.score([*words, "--engine", "inline"]) == 0
    assert commands.filter_pool(words) == 0
    names = disk.list_names(PoolLayout(words[0]).scores)
    (soft_cap,) = (name for name in names if name.startswith("soft_cap@"))
    draws: Counter[str] = Counter()
    for shard in read_commits(words[0]).names():
        keys = read_sidecar(words[0], shard, ["key"])["key"].to_pylist()
        counts = scores_of(words[0], soft_cap, shard)["soft_cap"].to_pylist()
        draws.update({key: count or 0 for key, count in zip(keys, counts, strict=True)})
    views = {f"web/soft_cap_{number}": 1.0 for number in (1, 2, 3)}
    blend = Blend(name="b", pools={"web": words[0]}, views=views, weights="repeats")
    assert draws.total() == 72  # of 48 stored rows
    config = TrainConfig(
        model="test", samples_seen=8 * 72, batch_size=8, lanes=2, warmup=0, threads=0, device="cpu"
    )
    loader = RunLoader(blend, config, model_config(config))
    seen = Counter(key.rpartition(":")[2] for batch in loader for key in batch.keys)
    assert seen == {key: 8 * count for key, count in draws.items() if count}


# Rules that a time zone, an order of a set, a locale or a thread could answer in another way.
EVERYWHERE = """
name: r
source: {kind: table, paths: [x.csv], extra_columns: {Score: int, name: string}}
filters: [caption]
views:
  texts: [{r: "fetched_at >= '2024-03-01 06:00:00'"}]
  times: [{r: "fetched_at < TIMESTAMP '2024-03-01 09:00:00'"}]
  hours: [{r: "extract(hour FROM fetched_at) BETWEEN 4 AND 9 AND fetched_at::DATE = '2024-03-01'"}]
  words: [{r: "lower(name) >= 'i' AND strftime(fetched_at, '%A %B %H') LIKE 'Friday March %'"}]
  best: [{b: "score >= top(SCORE, 0.5) AND caption_words > 1"}, {s: {sample: 0.8, seed: 1}}]
  like: [{random_like: best, seed: 2}]
"""
ONE_COMMAND = """
import sys
sys.path.insert(0, sys.argv[1])
from clipmill.pipeline.views import choose as unit_threads
from tests.support import commands
unit_threads.THREADS = int(sys.argv[2])
pool, recipe, *views = sys.argv[3:]
assert commands.filter_pool([pool, "--recipe", recipe]) == 0
for view in views:
    assert commands.filter_pool(["hash", pool, view]) == 0
"""


@pytest.fixture(scope="module")
def timed_pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a pool of 60 rows, fetched 20 minutes apart, with their scores."""
    folder = tmp_path_factory.mktemp("timed")
    (folder / "r.yaml").write_text(EVERYWHERE)
    start = datetime(2024, 3, 1, 0, 7, tzinfo=UTC)
    extra = {"Score": "int", "name": "string"}
    for shard in range(3):
        with ShardWriter(
            PoolWriter(str(folder / "pool")), shard, f"task-{shard}", "0", extra
        ) as writer:
            for row in range(20):
                number = 20 * shard + row
                url = f"https://h{number}.example/"
                size = {"width": 8, "height": 8, "original_width": 8, "original_height": 8}
                values = {
                    "Score": number * 7 % 60,
                    "name": "\u0130I\u0131i\u00dfS\u1e9e"[number % 7] + str(number),
                }
                caption = "dog " * (number % 4)
                named = {"url": url, "caption": caption, "uid": disk.uid_of(url, caption)}
                times = {"fetched_at": start + timedelta(minutes=20 * number)}
                writer.add(row, {**named, **size, **values, **times}, b"picture")
            writer.commit(20)
    scorer.score(PoolWriter(str(folder / "pool")), [FilterSpec(name="caption")], engine="inline")
    return folder


def hashes_in(folder: Path, environment: dict[str, str], threads: int) -> list[str]:
    """The hash of each view of a fresh copy of the pool, as commands in an environment print it."""
    names = ["texts", "times", "hours", "words", "best", "like"]
    with tempfile.TemporaryDirectory(dir=folder) as place:
        pool = shutil.copytree(folder / "pool", Path(place) / "pool")
        words = [str(ROOT), str(threads), str(pool), str(folder / "r.yaml"), *names]
        command = [sys.executable, "-c", ONE_COMMAND, *words]
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=True
        )
        kept = [disk.read_json(pool / "views" / f"{name}.json")["kept"] for name in names]
    assert kept[:3] == [42, 27, 18]
    return [*done.stdout.split()[-len(names) :], *map(str, kept)]


@pytest.mark.slow
@settings(max_examples=3, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    zone=st.sampled_from(["America/Los_Angeles", "Asia/Tokyo", "Pacific/Chatham"]),
    locale=st.sampled_from(["C", "tr_TR.UTF-8", "de_DE.UTF-8", "C.UTF-8"]),
    threads=st.integers(1, 4),
)
def test_the_hash_of_a_view_is_that_of_its_pool_and_rules(
    timed_pool: Path, seed: int, zone: str, locale: str, threads: int
) -> None:
    changed = {"PYTHONHASHSEED": str(seed), "TZ": zone, "LC_ALL": locale}
    usual = hashes_in(timed_pool, {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C"}, 2)
    assert hashes_in(timed_pool, changed, threads) == usual


def test_a_pool_whose_columns_a_rule_cannot_tell_apart_is_refused(
    timed_pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The columns of a joined table beside those of the pool."""
    uid = disk.uid_of("https://h0.example/", "")
    (tmp_path / "t.csv").write_text(f"uid,score\n{uid},1\n")
    (tmp_path / "r.yaml").write_text(
        "name: r\nsource: {kind: files, paths: [x.csv]}\n"
        "filters: [{mine: {table: {paths: [t.csv], take: {score: int}}}}]\n"
        "views: {v: [{r: mine_score > 0}], w: [{r: caption_words > 0}]}\n"
    )
    words = [str(timed_pool / "pool"), "--recipe", str(tmp_path / "r.yaml")]
    capsys.readouterr()
    assert commands.score([*words, "--engine", "inline"]) == 0
    plain = (tmp_path / "r.yaml").read_text().replace("{mine: {table", "{table")
    (tmp_path / "r.yaml").write_text(plain.replace("}}}}]", "}}}]"))
    for main, more in ((commands.filter_pool, []), (commands.score, ["--engine", "inline"])):
        capsys.readouterr()
        assert main([*words, *more]) == 2
        assert "has the column 'score', which the sidecar has too" in capsys.readouterr().err


STRANGE = (
    "../../evil",
    "/abs/olute",
    "a/../../b",
    "C:\\temp",
    "a\nb",
    "a\\back",
    "plain",
    "d/plain",
)


@pytest.mark.parametrize("names", [STRANGE, ("one", "two/one"), ("one", "one", "two")])
def test_names_of_strangers_lead_nowhere(names: tuple[str, ...], tmp_path: Path) -> None:
    """A tar with such names, the same name twice, links, and a member that no row has."""
    source = tmp_path / "theirs.tar"
    with tarfile.open(source, "w", format=tarfile.PAX_FORMAT) as tar:

        def add(name: str, data: bytes, **fields: Any) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in fields.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))

        for number, name in enumerate(names):
            add(f"{number}-link", b"", type=tarfile.SYMTYPE, linkname="/etc")
            add(f"{name}.jpg", image_bytes(64, number))
            add(f"{name}.txt", f"caption {number}".encode())
            add(f"{name}.cls", str(number).encode(), mtime=0.5)
        add("../../stray.sh", b"echo")
    pool = tmp_path / "pool"
    recipe = Recipe(
        name="r", source=Source(kind="shards", paths=(str(source),)), views=(View(name="raw"),)
    )
    recipe_run.build(recipe, str(pool), engine="inline")
    to = tmp_path / "shared"
    assert commands.export([str(pool), "raw", "--to", str(to)]) == 0
    with tarfile.open(to / "00000.tar") as tar:
        members = tar.getmembers()
        contents = {each.name: (tar.extractfile(each) or io.BytesIO()).read() for each in members}
        unpacked = tmp_path / "deep/er/unpacked"
        tar.extractall(unpacked, filter="fully_trusted")
    assert len(contents) == len(members) == 3 * len(names)
    assert all(each.isreg() for each in members)
    files = [path for path in tmp_path.joinpath("deep").rglob("*") if path.is_file()]
    assert sorted(files) == sorted(unpacked / name for name in contents)
    assert not (tmp_path / "evil.jpg").exists()
    if names == ("one", "two/one"):
        assert set(contents) == {f"{n}.{kind}" for n in names for kind in ("jpg", "txt", "cls")}
    data = (to / "00000.tar").read_bytes()
    table = disk.read_parquet(to / "00000.parquet").to_pylist()
    assert [row["caption"] for row in table] == [f"caption {n}" for n in range(len(names))]
    for number, row in enumerate(table):
        image = data[row["image_offset"] :][: row["image_length"]]
        assert image == contents[row["image_name"]] == image_bytes(64, number)
        assert data[row["text_offset"] :][: row["text_length"]] == row["caption"].encode()
        assert contents[row["image_name"].replace(".jpg", ".cls")] == str(number).encode()
