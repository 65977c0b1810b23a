"""clipmill score, filter and audit on what is no pool, or a pool with damaged JSON documents: one
line, exit status 2 (3 where the audit counts the damage), and never a traceback."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from clipmill.manifests import disk
from tests.support import audited, commands

Main = Callable[[list[str]], int]
READERS: tuple[tuple[Main, tuple[str, ...]], ...] = (
    (commands.audit, ("POOL",)),
    (commands.audit, ("verify", "POOL")),
    (commands.audit, ("explain", "POOL", "000000001")),
    (commands.filter_pool, ("columns", "POOL")),
    (commands.filter_pool, ("random-like", "POOL", "words")),
    (commands.score, ("POOL", "--filters", "caption", "--engine", "inline")),
)
AUDIT, VERIFY, EXPLAIN, COLUMNS, RANDOM, SCORE = READERS


def run(
    reader: tuple[Main, Sequence[str]], pool: str | Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[str]]:
    """The exit status of a command and the lines that name a problem."""
    main, words = reader
    capsys.readouterr()
    status = main([str(pool) if word == "POOL" else word for word in words])
    output = capsys.readouterr()
    lines = [line for line in output.out.splitlines() if line.startswith("WRONG")]
    return status, lines + [line for line in output.err.splitlines() if line.startswith("error: ")]


@pytest.fixture(scope="module")
def complete_pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(audited.make(tmp_path_factory.mktemp("complete") / "pool"))


@pytest.fixture
def pool(complete_pool: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(complete_pool, tmp_path / "pool"))


DAMAGE = {
    "truncated": lambda text: text[: len(text) // 2],
    "list": lambda text: "[]",
    "deep": lambda text: "[" * 100_000,
    "no UTF-8": lambda text: text.replace('"', "\udcff", 1),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    ("document", "readers", "status"),
    [
        ("views/words.json", (AUDIT, VERIFY), 3),
        ("views/words.json", (EXPLAIN,), 2),
        ("scores/*/scores.json", (AUDIT, VERIFY), 3),
        ("scores/*/scores.json", (COLUMNS,), 2),
        ("shards/00001_stats.json", (VERIFY,), 3),
        ("shards/00001_stats.json", (AUDIT, EXPLAIN, COLUMNS, RANDOM, SCORE), 2),
    ],
)
def test_a_damaged_document_is_named(
    document: str,
    readers: Sequence[tuple[Main, Sequence[str]]],
    status: int,
    damage: str,
    pool: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = next(pool.glob(document))
    path.write_bytes(DAMAGE[damage](path.read_text()).encode(errors="surrogateescape"))
    for reader in readers:
        result, lines = run(reader, pool, capsys)
        assert result == status, reader[1]
        assert path.name in lines[0]
        assert status == 3 or len(lines) == 1


@pytest.mark.parametrize(
    ("document", "key", "value", "message"),
    [
        ("views/words.json", "kept", "all", "ViewDocument.kept is 'all'; it must be a whole"),
        ("views/words.json", "funnel", [["x", 1, 2]], "a list of 2 values"),
        ("views/words.json", "funnel", [None], "ViewDocument.funnel[0] is None; it must be a list"),
        ("views/words.json", "shards", None, "ViewDocument.shards is None"),
        ("scores/*/scores.json", "rows", None, "ScoreSetDocument.rows is None"),
        ("scores/*/scores.json", "columns", "x", "ScoreSetDocument.columns is 'x'"),
        ("shards/00001_stats.json", "count", "8", "CommitRecord.count is '8'"),
        ("shards/00001_stats.json", "reasons", [], "CommitRecord.reasons is []"),
    ],
)
def test_a_value_of_another_type_is_named(
    document: str,
    key: str,
    value: object,
    message: str,
    pool: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = next(pool.glob(document))
    disk.write_json(path, {**disk.read_json(path), key: value})
    status, lines = run(AUDIT, pool, capsys)
    assert status == (2 if document.startswith("shards") else 3)
    assert message in lines[0]
    assert path.name in lines[0]
