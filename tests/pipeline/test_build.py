"""`clipmill build`: mistakes in one line, the true error last, where the pool is and what comes
next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.commands import build as entry
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline import recipe_run
from clipmill.pipeline.executor.tickets import Report
from clipmill.pipeline.pool.shard_writer import read_commit_record
from clipmill.train.config import micro
from tests.support import commands
from tests.support.other_tars import pack, picture
from tests.support.wats import INFO, zipped

ROOT = Path(__file__).resolve().parents[2]
WAT = """
name: broken
source: {kind: wat, paths: [crawl.warc.wat.gz]}
fetch: {user_agent: "clipmill-test (+https://clipmill.example/bot)"}
"""
Lines = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Lines:
    def call(*words: object, main: Any = None) -> tuple[int, str, str]:
        capsys.readouterr()
        words = words if main else (*words, "--engine", "inline")
        status = (main or commands.build)([*map(str, words)])
        output, errors = capsys.readouterr()
        return status, output, errors

    return call


def test_without_a_recipe_it_prints_its_help_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLIPMILL_RECIPE", "")
    for words in ([], ["--out", "pool"]):
        assert commands.build(words) == 2
        errors = capsys.readouterr().err
        assert errors.startswith("Usage: clipmill build")
        assert errors.splitlines()[-1].startswith("error: name a recipe or an ablation; the demo")
    assert not list(tmp_path.iterdir())


def options_of_builds(monkeypatch: pytest.MonkeyPatch, status: int = 0) -> list[entry.Options]:
    """A list that gets the options of each build from now on; nothing is built."""
    asked: list[entry.Options] = []

    def note(options: entry.Options, *_: object) -> int:
        asked.append(options)
        return status

    monkeypatch.setattr(entry, "build_manifest", note)
    monkeypatch.setattr(entry, "build_lock", note)
    return asked


def test_a_ray_job_without_a_recipe_builds_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = options_of_builds(monkeypatch, status=3)
    monkeypatch.setattr("clipmill.examples.miniweb.run.variables", contextlib.nullcontext)
    monkeypatch.setenv(entry.RAY_JOB, "{}")
    monkeypatch.delenv("CLIPMILL_RECIPE", raising=False)
    monkeypatch.chdir(tmp_path)
    words = ["--out", str(tmp_path / "demo"), "--json"]
    assert commands.build([*words, "--until", "fetch", "--retry", "transient"]) == 3
    demo = str(ROOT / entry.DEMO_MANIFEST)
    assert asked.pop() == entry.Options(
        manifest=demo, out=words[1], until="fetch", retry="transient", as_json=True, entry=("demo",)
    )
    monkeypatch.setenv("CLIPMILL_RECIPE", "mine.yaml")
    assert commands.build([]) == 3
    assert asked.pop() == entry.Options(manifest="mine.yaml")
    monkeypatch.delenv(entry.RAY_JOB)
    assert commands.build([]) == 3
    assert asked.pop() == entry.Options(manifest="mine.yaml")


@pytest.mark.parametrize(
    ("manifest", "key"),
    [
        ("ablations/demo.yaml", r"demo.yaml: evaluate.data names ${MINIWEB}"),
        ("ablations/cifar10.yaml", r"cifar10.yaml: source.paths names ${MINIWEB}"),  # its recipe
        ("recipes/demo.yaml", r"demo.yaml: source.paths names ${MINIWEB}"),
    ],
)
def test_without_its_web_one_line_says_what_starts_it(
    manifest: str, key: str, run: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MINIWEB", "MINIWEB_PORT", "SCORER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CIFAR", str(tmp_path))
    monkeypatch.setenv("SCORER", "/scorer")  # put back after the command has set it
    path = ROOT / "manifests" / manifest
    status, _, errors = run(path, "--out", "my out", "--scale", "debug")
    assert status == 2
    if manifest.endswith("demo.yaml"):
        assert "has no scale 'debug'" in errors
        status, _, errors = run(path, "--out", "my out")
    assert errors.count("\n") == 1
    assert key in errors
    words = f"{path} --out 'my out'" + ("" if "demo" in manifest else " --scale debug")
    command = f"clipmill demo {words} --engine inline"
    assert errors.endswith(
        f"which is not set in the environment; this starts the small web and sets it: {command}\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_finished_build_names_the_pool_and_the_next_command(
    run: Lines, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = tiny / "pool"
    for stage in ("crawl", "plan"):
        status, output, _ = run(tiny / "tiny.yaml", "--out", pool, "--until", stage)
        assert (status, output.splitlines()[1]) == (0, "  48 of 48 links are pairs")
    status, output, _ = run(tiny / "tiny.yaml", "--out", pool)
    assert status == 0
    lines = output.splitlines()
    assert lines[0] == f"the pool is {pool}"
    assert lines[1] == "  48 of 48 rows are stored"
    assert lines[2] == "  rows of its views: long 24, raw 48"
    assert lines[3] == "next: more rows; a batch of the preset micro takes 128 of a view"
    monkeypatch.chdir(tiny)
    smaller = dataclasses.replace(micro(), batch_size=24, lanes=24)
    monkeypatch.setattr("clipmill.train.config.micro", lambda: smaller)
    status, output, _ = run(tiny / "tiny.yaml", "--out", pool)
    train = "next: clipmill train --mix pool/long=1 --out out/run --preset micro"
    assert output.splitlines()[3] == train
    # `long` has half of the rows: the view that is named has enough
    monkeypatch.setattr(
        "clipmill.train.config.micro", lambda: dataclasses.replace(smaller, batch_size=48, lanes=48)
    )
    status, output, _ = run(tiny / "tiny.yaml", "--out", pool)
    assert output.splitlines()[3] == train.replace("pool/long", "pool/raw")
    status, output, _ = run(tiny / "tiny.yaml", "--out", pool)
    assert status == 0
    first, *_, last = output.splitlines()
    assert first == "the pool is pool (it was complete already; nothing was done)"
    assert last == "or:   clipmill look pool, clipmill audit verify pool"
    status, output, _ = run(tiny / "tiny.yaml", "--out", pool, "--json")
    assert json.loads(output)["complete"] is True


@pytest.mark.parametrize(
    "words",
    [
        ["r.yaml", "--out", "/a b/pool"],
        ["r.yaml", "--out", "/pool", "--scale", "debug", "--engine", "inline"],
        ["--from-lock", "their lock.parquet", "--out", "/pool"],
        ["--from-lock", "x.parquet", "--out", "/pool", "--set", "user_agent=mylab (a@b.example)"],
    ],
)
def test_the_next_command_can_be_given_as_it_is_printed(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has every option that decides what is built; --until and --retry are left out."""
    asked = options_of_builds(monkeypatch)
    monkeypatch.setenv("CLIPMILL_RECIPE", "another.yaml")
    assert commands.build([*words, "--until", "fetch"]) == 0
    options = asked.pop()
    assert options.manifest == ("r.yaml" if "r.yaml" in words else "")
    program, *again = shlex.split(options.command(options.out))
    assert (program, again[0]) == ("clipmill", "build")
    assert commands.run(again[0], again[1:]) == commands.build(words) == 0
    assert asked[0] == asked[1] == dataclasses.replace(options, until="choose")


def test_a_source_without_a_pair_is_told_with_its_losses(run: Lines, tmp_path: Path) -> None:
    path = tmp_path / "crawl.warc.wat.gz"
    path.write_bytes(b"this is not gzip")
    (tmp_path / "r.yaml").write_text(WAT)
    status, _, errors = run(tmp_path / "r.yaml", "--out", tmp_path / "pool")
    assert status == 3
    assert f"{path} is no WAT or WARC: no record begins" in errors.splitlines()[-1]
    path.write_bytes(zipped([INFO]))
    status, _, errors = run(tmp_path / "r.yaml", "--out", tmp_path / "pool")
    assert status == 2
    assert errors.splitlines()[-1].startswith("error: the source has no pairs (0 rows or links, ")


def test_rows_that_are_all_lost_are_told_with_an_example(run: Lines, tiny: Path) -> None:
    for image in tiny.glob("*.jpg"):
        image.unlink()
    status, _, errors = run(tiny / "tiny.yaml", "--out", tiny / "pool")
    assert status == 2
    last = errors.splitlines()[-1]
    assert last.startswith(
        "error: none of the rows is stored: 48 missing_file in fetch, for example"
    )
    assert ".jpg" in last
    (tiny / "own.csv").write_text("url,caption\nhttp://127.0.0.1/dog.jpg,a dog\n")
    (tiny / "own.yaml").write_text(
        "{name: own, source: {kind: table, paths: [own.csv], url_column: url, caption_column: "
        "caption}, fetch: {user_agent: 'clipmill-test (+https://clipmill.example/bot)'}}"
    )
    status, _, errors = run(tiny / "own.yaml", "--out", tiny / "own")
    assert status == 2
    assert "127.0.0.1 is loopback); fetch.allow_private: true permits" in errors.splitlines()[-1]


def test_a_pool_with_a_hole_is_not_complete(
    run: Lines, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a remote store whose listing lacks a commit record that is there."""
    monkeypatch.setattr(recipe_run, "execute", lambda *_, **__: Report())
    words = (tiny / "tiny.yaml", "--out", tiny / "pool")
    status, _, errors = run(*words, "--until", "fetch")
    message = "error: the pool is not complete: 0 of 3 planned shards are committed"
    assert status == 3
    assert errors.splitlines()[-1].startswith(message)
    # A task that failed is why: the first cause is the last line.
    failed = Report(failed={"t": "OSError: No space left"})
    monkeypatch.setattr(recipe_run, "execute", lambda *_, **__: failed)
    status, output, errors = run(*words, "--until", "fetch", "--json")
    assert (status, json.loads(output)["complete"]) == (3, False)
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert lines[-1] == "error: task t ended without an outcome: OSError: No space left"
    assert lines[0].startswith(message)
    monkeypatch.undo()
    assert run(*words, "--until", "fetch")[0] == 0


def test_rows_of_a_site_whose_robots_txt_failed_are_opened_again_by_a_retry(
    web: Any, tmp_path: Path
) -> None:
    (tmp_path / "u.csv").write_text(
        "url,caption\n" + "".join(f"http://a.web.test/picture/{i},number {i}\n" for i in range(3))
    )
    fetch = (
        'user_agent: "t/1 (+http://t.example)", allow_private: true, '
        f'connect_to: {{"*.test": "127.0.0.1:{web.port}"}}'
    )
    (tmp_path / "r.yaml").write_text(
        f"name: r\nsource: {{kind: table, paths: [u.csv]}}\nfetch: {{{fetch}}}\n"
    )
    words = [str(tmp_path / "r.yaml"), "--out", str(tmp_path / "pool"), "--engine", "inline"]
    web.robots["a.web.test"] = (503, b"")
    assert commands.build([*words, "--until", "fetch"]) == 0
    assert read_commit_record(PoolLayout(str(tmp_path / "pool")), 0).reasons == {
        "permission_unknown": 3
    }
    del web.robots["a.web.test"]
    assert commands.build([*words, "--until", "fetch", "--retry", "transient"]) == 0
    assert read_commit_record(PoolLayout(str(tmp_path / "pool")), 1).successes == 3


@pytest.fixture
def in_time() -> Iterator[None]:
    """A build that waits for a pipe ends as an error."""

    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def make_pipe(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(path.parent):
        bound.bind(path.name)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("make", [make_pipe, make_socket, Path.mkdir, "device"])
def test_only_regular_files_are_read_as_images(make: Any, tmp_path: Path, run: Lines) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "good.jpg").write_bytes(picture(1))
    if make == "device":
        (folder / "odd.jpg").symlink_to("/dev/zero")
        make_pipe(folder / "good.txt")
    else:
        make(folder / "odd.jpg")
    (folder / "metadata.csv").write_text("file_name,caption\ngood.jpg,good\nodd.jpg,odd\n")
    (tmp_path / "r.yaml").write_text(
        "name: r\nsource: {kind: image_folder, paths: [photos], captions: metadata.csv, "
        "links_outside: true}\nviews: {raw: []}\n"
    )
    pool = tmp_path / "pool"
    assert run(tmp_path / "r.yaml", "--out", pool, "--until", "fetch")[0] == 0
    record = read_commit_record(PoolLayout(str(pool)), 0)
    assert record is not None
    assert (record.successes, record.reasons) == (1, {"missing_file": 1})


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("u.csv", "{kind: table, paths: [u.csv]}"),
        ("u.parquet", "{kind: table, paths: [u.parquet]}"),
        ("c.csv", "{kind: files, paths: [c.csv]}"),
        ("i.parquet", "{kind: image_table, paths: [i.parquet]}"),
        ("x.warc.wat.gz", "{kind: wat, paths: [x.warc.wat.gz]}"),
        ("tars/0.tar", "{kind: shards, paths: [tars]}"),
        ("lock.parquet", "{kind: lock, paths: [lock.parquet]}"),
        ("photos/metadata.csv", "{kind: image_folder, paths: [photos], captions: metadata.csv}"),
        ("bad.txt", "{kind: table, paths: [u.jsonl]}\nfetch: {known_bad: bad.txt}"),
    ],
)
def test_a_pipe_in_place_of_a_file_of_the_manifest_is_one_line(
    name: str, source: str, tmp_path: Path, run: Lines
) -> None:
    make_pipe(tmp_path / name)
    (tmp_path / "u.jsonl").write_text('{"url": "http://a.test/1.jpg", "caption": "a"}\n')
    fetch = "" if "fetch" in source or "image_folder" in source else "\nfetch: {}"
    if "kind: table" in source or "wat" in source or "lock" in source:
        fetch = '\nfetch: {user_agent: "t/1 (+http://t.example)"}'
    if "known_bad" in source:
        source, fetch = source.replace("{known", '{user_agent: "t/1 (+http://t)", known'), ""
    (tmp_path / "r.yaml").write_text(f"name: r\nsource: {source}{fetch}\nviews: {{raw: []}}\n")
    status, _, err = run(tmp_path / "r.yaml", "--out", tmp_path / "pool")
    assert status == 2
    assert "is a named pipe, not a regular file; give a regular file" in err
    assert name.rpartition("/")[2] in err
    assert "Traceback" not in err


def test_a_recipe_with_another_source_leaves_a_pool_as_it_is(tmp_path: Path, run: Lines) -> None:
    tars = tmp_path / "tars"
    tars.mkdir()
    pack(tars / "0.tar", [("a.jpg", picture(1)), ("a.txt", b"an a")])
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/b.jpg").write_bytes(picture(2))
    (tmp_path / "photos/b.txt").write_text("a b")
    views = "filters: [caption]\nviews: {raw: []}\n"
    one, two, three = (tmp_path / f"{name}.yaml" for name in ("one", "two", "three"))
    one.write_text(f"name: one\nsource: {{kind: shards, paths: [tars]}}\n{views}")
    two.write_text(
        f"name: two\nsource: {{kind: image_folder, paths: [photos], captions: txt}}\n{views}"
    )
    three.write_text(two.read_text().replace("two", "three").replace("txt", "class_folders"))
    for first, others in ((one, (two, three)), (two, (one, three))):
        pool = tmp_path / f"pool of {first.stem}"
        assert run(first, "--out", pool)[0] == 0
        before = {path: path.read_bytes() for path in pool.rglob("*") if path.is_file()}
        for other in others:
            message = f"built from recipe '{first.stem}', and recipe '{other.stem}' has another sou"
            for words in (
                (commands.build, other, "--out", pool, "--engine", "inline"),
                (commands.score, pool, "--recipe", other, "--engine", "inline"),
                (commands.filter_pool, pool, "--recipe", other),
            ):
                status, _, err = run(*map(str, words[1:]), main=words[0])
                assert (status, message in err) == (2, True), err
        after = {path: path.read_bytes() for path in pool.rglob("*") if path.is_file()}
        changed = {
            path.name for path in before.keys() | after if before.get(path) != after.get(path)
        }
        assert all(name.startswith((".lease-", "lease", "progress")) for name in changed)
        status, output, _ = run(first, "--out", pool)
        assert (status, "nothing was done" in output) == (0, True)


def test_a_folder_with_shards_of_another_program_is_left_as_it_is(
    tmp_path: Path, run: Lines
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/b.jpg").write_bytes(picture(2))
    (tmp_path / "photos/b.txt").write_text("a b")
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: r\nsource: {kind: image_folder, paths: [photos], captions: txt}\nviews: {raw: []}\n"
    )
    theirs = tmp_path / "mine/shards/00007.parquet"
    theirs.parent.mkdir(parents=True)
    pq.write_table(pa.table({"url": ["http://a.test/1.jpg"], "key": ["000070000"]}), theirs)
    before = theirs.read_bytes()
    status, _, err = run(recipe, "--out", tmp_path / "mine")
    assert (status, "was not written by clipmill; move it out" in err) == (2, True), err
    assert theirs.read_bytes() == before


def test_a_new_pool_in_a_folder_with_other_files_is_said(
    tmp_path: Path, run: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    photos, recipe = tmp_path / "photos", tmp_path / "r.yaml"
    photos.mkdir()
    for name in "abcd":
        (photos / f"{name}.jpg").write_bytes(picture(2))
        (photos / f"{name}.txt").write_text("a b")
    recipe.write_text(
        "name: r\nsource: {kind: image_folder, paths: [photos], captions: txt}\nviews: {raw: []}\n"
    )
    before = {path: path.read_bytes() for path in photos.iterdir()}
    said = f"{photos} has other files (a.jpg, a.txt, b.jpg …): the new pool is put beside them"
    for is_new, out in ((True, photos), (False, photos), (False, tmp_path / "pool")):
        caplog.clear()
        assert run(recipe, "--out", out)[0] == 0
        assert (said in caplog.text) == is_new
    assert {path: path.read_bytes() for path in before} == before


def test_many_rows_that_were_lost_for_a_moment_are_worth_a_warning() -> None:
    def warning(**reasons: int) -> str | None:
        final = {"stored": 80, "reasons": reasons}
        return recipe_run.transient_warning({"fetch": {"final": final}})

    text = warning(host_busy=15, deadline=3, empty=2)
    assert text is not None
    assert text.startswith("18 of 100 rows ended for reasons that may pass, 15 of them host_busy")
    assert warning(host_busy=8, empty=12) is None
    assert recipe_run.transient_warning({"complete": False}) is None
