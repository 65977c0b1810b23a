"""Every filter through the commands, over pools and by classes of a user that are made to break it:
an exit status, one line, and no set of columns that is not whole."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.executor import tickets
from tests.support import commands
from tests.support.commit_records import read_commit_records
from tests.support.small_pool import Row, jpeg, make_pool
from tests.support.trials import EVERYWHERE

RECIPE = """
name: hostile
source: {kind: files, paths: [x.csv]}
filters:
  - {caption: {detail: true, words: words.txt}}
  - language
  - {picture: {detail: true}}
  - {optout: {user_agent: mine}}
  - page
  - tokens
  - pdq
  - {embed: {model: "local-dir:CLIP", device: cpu}}
  - {clip_score: {on: embed}}
  - {clip_loss: {on: embed}}
  - {head: {weights: head.pth, on: embed}}
  - {concept: {entries: words.txt}}
  - {balance: {t: 2}}
  - {synset: {nouns: index.noun, wnids: wnids.txt}}
  - {targets: {targets: targets.npy, clusters: 3}}
  - {exact: {duplicate: {on: sha256}}}
  - {near: {duplicate: {on: perceptual, best: clip_score}}}
  - {like: {duplicate: {on: embedding}}}
  - {caption_file: {paths: captions.csv}}
  - {again: {table: {paths: captions.csv, take: {again: "caption:string"}}}}
views: {all: []}
"""
OF_CAPTIONS = ("caption", "language", "tokens", "concept", "balance", "synset", "clip_score")
OF_IMAGES = ("picture", "pdq", "embed", "head", "targets", "near", "like", "clip_loss")
LONG = 10_000_000 if EVERYWHERE else 500_000


@pytest.fixture(scope="module")
def recipe(clip_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "words.txt").write_text("dog\nred car\n")
    (folder / "index.noun").write_text("dog n 1 0 1 0 02084071\n")
    (folder / "noun.exc").touch()
    (folder / "wnids.txt").write_text("n02084071\n")
    (folder / "captions.csv").write_text(f"uid,caption\n{'0' * 32},text\n")
    np.save(folder / "targets.npy", np.eye(16, dtype=np.float32)[:3])
    torch.save(nn.Linear(16, 1).state_dict(), folder / "head.pth")
    (folder / "recipe.yaml").write_text(RECIPE.replace("CLIP", str(clip_folder)))
    return folder / "recipe.yaml"


def run(
    main: Callable[[list[str]], int], words: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any], str]:
    """(exit status, the JSON line, the lines of errors); stdout has nothing else."""
    capsys.readouterr()
    status = main([*words, "--json"])
    printed = capsys.readouterr()
    errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in printed.err
    return status, json.loads(printed.out) if printed.out else {}, "\n".join(errors)


def scored(report: dict[str, Any]) -> dict[str, int]:
    """{instance: rows with all of its columns}."""
    return {name.partition("@")[0]: state["scored"] for name, state in report["sets"].items()}


# --- pools ----------------------------------------------------------------------------------------


def encoded(mode: str, size: tuple[int, int], kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind)
    return buffer.getvalue()


def odd_rows() -> list[Row]:
    images = [b"", b"no image", jpeg(1)[:200], b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"]
    decoded = [encoded("RGB", (1, 9000), "PNG"), encoded("I;16", (40, 30), "PNG"), jpeg(2)]
    decoded += [encoded("CMYK", (9, 9), "JPEG"), encoded("1", (1, 1), "PNG")]
    captions = ["", "\0", "\n" * 99, "\u202e", "&#0;", "e\u0301" * 99]
    captions += ["red dog " * (LONG // 8), "x" * LONG]
    rows = [Row(caption="a dog", image=image) for image in [*images, *decoded]]
    return [*rows, *(Row(caption=caption) for caption in captions)]


POOLS: dict[str, tuple[list[Row], int, int]] = {  # rows, stored with captions, with images
    "one stored row behind a shard without": (
        [Row(caption="dog", reason="dns")] * 10 + [Row(caption="dog", image=jpeg(1))],
        1,
        1,
    ),
    "captions that are NULL": ([Row(caption=None)] * 11, 0, 11),
    "odd captions and images": (odd_rows(), 18, 13),
    "no image that decodes": ([Row(caption="dog", image=b"no image")] * 11, 11, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POOLS)
def test_every_filter_over_a_pool(
    name: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, captions, images = POOLS[name]
    pool = make_pool(tmp_path, given)
    words = [pool, "--recipe", str(recipe)]
    status, report, errors = run(commands.score, [*words, "--engine", "inline"], capsys)
    assert (status, report["failed"], errors) == (0, {}, "")
    counts = scored(report)
    both = min(captions, images)
    expected = dict.fromkeys(OF_CAPTIONS, captions) | dict.fromkeys(OF_IMAGES, images)
    expected |= {"clip_score": both, "clip_loss": both}
    if captions and not images:
        expected["clip_score"] = 0
    stored = sum(row.reason is None for row in given)
    expected |= {"optout": stored, "page": stored, "caption_file": 0, "again": 0, "exact": 0}
    if not captions:  # `embed` has a column for each tower, and a row needs both
        expected["embed"] = 0
    assert counts == expected
    status, views, errors = run(commands.filter_pool, words, capsys)
    assert (status, errors) == (0, "")
    assert views["all"]["kept"] == stored


def test_a_shard_that_lacks_a_column_is_scored_by_the_columns_that_it_has(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only a filter that reads the column says so."""
    pool = make_pool(tmp_path, [Row(caption="a dog", image=jpeg(i)) for i in range(12)])
    layout = PoolLayout(pool)
    path = layout.sidecar(1)
    metadata = disk.read_metadata(path)
    table = disk.read_parquet(path).drop_columns(["sha256"]).replace_schema_metadata(None)
    disk.write_parquet(path, table, metadata)
    record = read_commit_records(pool)["00001"]
    record = replace(record, sidecar_sha256=disk.file_sha256(path))
    disk.write_json(layout.commit_record(1), record, sealed=True)
    words = [pool, "--recipe", str(recipe), "--engine", "inline", "--filters"]
    status, report, errors = run(
        commands.score, [*words, "caption", "pdq", "embed", "like"], capsys
    )
    assert (status, errors) == (0, "")
    assert set(scored(report).values()) == {12}
    status, report, errors = run(commands.score, [*words, "exact"], capsys)
    assert status in (2, 3)
    assert "sha256" in errors, errors
    assert "00001" in errors, errors


# --- a user's filter ------------------------------------------------------------------------------

USER = """
import os, sys, time
from dataclasses import dataclass
import numpy as np
import pyarrow as pa
from clipmill.filters.base import Filter

@dataclass(kw_only=True)
class Mine(Filter):
    needs = frozenset({"caption"})
    adds = {"mine": pa.int32()}

    def SETUP(self):
        raise OSError("no\\nmodel")

    def score(self, batch):
        captions = batch.captions
        rows = [len(caption) for caption in captions]
        BODY
"""
ALL = "filter mine raised for each of 10 rows: "
KIND = ALL + "ValueError: filter mine: the values of mine are not of type int32: "
# What `score` does, the exit status, the rows with a value, and the error.
BODIES: dict[str, tuple[str, int, int | None, str]] = {
    "whole": ("return {'mine': rows}", 0, 20, ""),
    "prints": ("print('{'); sys.stdout.write('x'); return {'mine': rows}", 0, 20, ""),
    "forks": ("os.fork(); return {'mine': rows}", 0, 20, ""),
    "ends": ("sys.exit(0)", 3, None, ALL + "Mine.score called sys.exit(0) (mine.py, line 19)"),
    "raises": (
        "return captions[len(captions)]",
        3,
        None,
        ALL + "Mine.score raised IndexError: list index out of range (mine.py, line 19)",
    ),
    "raises on some": ("return {'mine': [1 // (n - 3) for n in rows]}", 0, 15, ""),
    "too few": ("return {'mine': rows[1:]}", 3, None, "gave 9 values of mine for 10 rows"),
    "another": ("return {'other': rows}", 3, None, "must give the columns mine; it gave other"),
    "nothing": ("pass", 3, None, "must give the columns mine; it gave <class 'NoneType'>"),
    "texts": ("return {'mine': captions}", 3, None, KIND + "Could not convert 'xx"),
    "fractions": ("return {'mine': [n + 0.5 for n in rows]}", 3, None, KIND + "Float value"),
    "NaN": ("return {'mine': np.full(len(rows), np.nan)}", 0, 0, ""),
    "some NaN": ("return {'mine': [n if n > 3 else float('nan') for n in rows]}", 0, 10, ""),
    "no model": ("SETUP", 2, None, "Mine.setup raised OSError: no model (mine.py, line 14)"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_filter_of_a_user(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tickets, "RETRY_PAUSE_S", 0)
    body, expected_status, rows, message = BODIES[name]
    text = USER.replace("SETUP", "setup") if body == "SETUP" else USER.replace("SETUP", "unused")
    (tmp_path / "mine.py").write_text(text.replace("BODY", body.replace("SETUP", "pass")))
    (tmp_path / "recipe.yaml").write_text(
        "name: r\nsource: {kind: files, paths: [x.csv]}\n"
        "filters: [{mine: {mine.py:Mine: {}}}, caption]\nviews: {all: []}\n"
    )
    captions = [Row(caption="x" * (i % 4 + 2), image=jpeg(1)) for i in range(20)]
    pool = make_pool(tmp_path / "pool", captions)
    words = [pool, "--recipe", str(tmp_path / "recipe.yaml"), "--engine", "inline"]
    status, report, errors = run(commands.score, words, capfd)
    assert (status, len(errors.splitlines()) > 0) == (expected_status, bool(message)), errors
    assert message in errors
    sets = disk.list_names(PoolLayout(pool).scores)
    complete = [each for each in sets if disk.exists(PoolLayout(pool).score_set_json(each))]
    if rows is None:
        assert complete == []  # the next command continues with `caption`
        if expected_status == 3:
            (of_caption,) = [each for each in sets if each.startswith("caption@")]
            assert disk.exists(PoolLayout(pool).score_part(of_caption, 0))
            assert [each for each in sets if each.startswith("mine@")] == []
    else:
        assert sorted(complete) == sorted(sets)
        assert scored(report) == {"mine": rows, "caption": 20}
