"""The columns that a rule may read: listed, typed and explained; read in parts, every row once,
from sidecars and scores of the same rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import clipmill
from clipmill.filters import FILTERS, instances_of, make
from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS, SIDECAR
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import FilterSpec, Rule
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring import scorer
from clipmill.pipeline.views import files
from clipmill.pipeline.views.choose import RowBlock, stored_rows_of
from clipmill.pipeline.views.files import (
    JoinedColumns,
    ScoredColumns,
    check_views,
    choose_views,
    column_lines,
    list_columns,
)
from clipmill.pipeline.views.rules import DERIVED
from docs.tools import reference
from tests.support.chosen import recipe, view
from tests.support.small_pool import make_pool, rows, set_name, write_shard

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"
CAPTION = FilterSpec(name="caption")


def column_names(text: str) -> set[str]:
    """The first cells of the tables of columns of a page."""
    names: set[str] = set()
    for lines in re.findall(r"^\| column \| type \|.*\n\|---.*\n((?:\|.*\n)+)", text, re.M):
        names |= set(re.findall(r"^\| `(\w+)`", lines, re.M))
    return names


def filters_that_could_be_scored(lines: list[str]) -> dict[str, set[str]]:
    """The filters at the end of a list of columns -> the columns that each would add."""
    start = next(n for n, line in enumerate(lines) if "not scored in this pool" in line)
    words = [line.replace(",", "").split() for line in lines[start + 1 :]]
    return {name: set(added) for name, *added in words}


def test_columns_of_sidecar_score_sets_and_what_is_derived(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    scorer.score(PoolWriter(pool), [CAPTION], engine="inline")
    columns = {column.name: column for column in list_columns(pool)}
    assert columns["original_width"].type == "int32"
    assert columns["original_width"].source == "sidecar"
    assert columns["aspect"].source == "derived"
    words = columns["caption_words"]
    assert (words.type, words.source) == ("int32", set_name(CAPTION))
    lines = list(column_lines(columns.values()))
    assert lines.index("sidecar:") < lines.index("derived:") < lines.index(f"{words.source}:")
    assert any(line.split()[:3] == ["caption_words", "int32", "words"] for line in lines)
    added = filters_that_could_be_scored(lines)
    assert list(added) == [name for name in FILTERS if name != "caption"]
    assert all(added[name] == set(FILTERS[name].adds) for name in added if name != "table")
    write_shard(pool, 1, list(enumerate(rows(5), start=10)))
    assert "caption_words" not in {column.name for column in list_columns(pool)}, "of older rows"


def test_a_filter_that_is_scored_under_another_name_is_scored(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    scorer.score(
        PoolWriter(pool), [FilterSpec(name="words", kind="caption", options={})], engine="inline"
    )
    assert "caption" not in filters_that_could_be_scored(list(column_lines(list_columns(pool))))


def test_a_rule_can_read_every_listed_column_and_the_reference_lists_them(tmp_path: Path) -> None:
    filters = (
        *(FilterSpec(name=name) for name in ("caption", "picture", "tokens")),
        FilterSpec(name="optout", options={"user_agent": "test/1"}),
    )
    pool = make_pool(tmp_path, rows(10))
    path = PoolLayout(pool).sidecar(0)
    extra = disk.read_parquet(path).append_column("similarity", pa.array([0.1] * 10))
    disk.write_parquet(path, extra)  # a column that this recipe does not name
    scorer.score(PoolWriter(pool), filters, engine="inline")
    listed = [column.name for column in list_columns(pool)]
    rules = [(f"r{i}", f'"{name}" IS NULL OR true') for i, name in enumerate(listed)]
    assert (
        choose_views(PoolWriter(pool), recipe(view("all", *rules), filters=filters))["all"].kept
        == 8
    )
    of_filters = {column for spec in filters for column in make(spec).columns()}
    assert set(listed) == {*SIDECAR.names, *DERIVED, "similarity"} | of_filters
    every = {*SIDECAR.names, *DERIVED} | of_filters
    for filter_class in FILTERS.values():
        every |= filter_class.adds.keys()
    columns = reference.fill((REFERENCE / "columns.md").read_text())
    readable, _, pairs = columns.partition("\n## Pairs")
    assert column_names(readable + reference.fill((REFERENCE / "filters.md").read_text())) == every
    assert column_names(pairs) == set(PAIRS.names)
    for name in set(PAIRS.names) - set(listed):
        with pytest.raises(ValueError, match=f"'{name}' of filter page, which recipe 'r' does not"):
            check_views(recipe(view("v", ("r", f"{name} = 'x'")), filters=filters))


def instances_read(where: str) -> tuple[set[str], list[str]]:
    specs = (CAPTION, FilterSpec(name="long", kind="caption"))
    scored = ScoredColumns(instances_of(specs))
    assert scored.kinds["long_words"] == pa.int32()
    wish = recipe(view("v", ("a", where)), filters=specs)
    return scored.columns_of_view(wish, "v", ["url", "status"])


def test_which_instance_gives_a_column() -> None:
    assert instances_read("long_words > 2") == ({"status", "long_words"}, ["long"])
    assert instances_read("long_words > caption_chars")[1] == ["caption", "long"]
    assert instances_read("url LIKE 'x'") == ({"status", "url"}, [])
    with pytest.raises(ValueError, match="uses column 'entropy' of filter picture, which recipe"):
        instances_read("entropy > 3")
    with pytest.raises(ValueError, match="did you mean 'long_words'"):
        instances_read("long_word > 3")


# --- parts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept_rows", [0, 10**6])
def test_every_row_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_rows: int
) -> None:
    monkeypatch.setattr(files, "KEPT_ROWS", kept_rows)
    monkeypatch.setattr(files, "PART_ROWS", 4)
    monkeypatch.setattr(files, "UNIT_SHARDS", 2)
    commits = read_commits(make_pool(tmp_path, rows(26), per_shard=3))
    source = JoinedColumns(commits, {"uid", "status"}, {})
    assert (source.rows, source.units) == (26, 5)
    uids = []
    for unit in range(source.units):
        for part in source.parts(unit):
            assert part.first_row == len(uids)
            assert sum(part.sizes.values()) == part.table.num_rows
            uids += part.table["uid"].to_pylist()
    expected = []
    for shard in commits.names():
        expected += disk.read_parquet(commits.sidecar(shard), ["uid"])["uid"].to_pylist()
    assert uids == expected
    monkeypatch.setattr(files, "UNIT_ROWS", 1)
    assert JoinedColumns(commits, {"status"}, {}).units == 9, "work for several threads"


def test_a_large_pool_is_read_once_and_once_more_for_each_kind_of_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "KEPT_ROWS", 0)
    pool = make_pool(tmp_path, rows(20), per_shard=5)
    reads: list[int] = []
    read = JoinedColumns._read_unit

    def counted(
        self: JoinedColumns, unit: int, columns: Sequence[str] | None
    ) -> Iterator[RowBlock]:
        reads.append(unit)
        return read(self, unit, columns)

    monkeypatch.setattr(JoinedColumns, "_read_unit", counted)
    wide = view("wide", ("wide", "original_width > 150"))
    top = view("top", ("top", "original_width >= top(original_width, 0.5)"))
    like = view("like", Rule(name="random", random_like="wide"))
    for views, passes in (((wide,), 1), ((top,), 2), ((wide, like), 3)):
        reads.clear()
        choose_views(PoolWriter(pool), recipe(*views))
        Path(pool, "views", f"{views[0].name}.json").unlink()
        assert len(reads) == passes * len(set(reads)) > 0


def test_texts_that_repeat_may_come_as_dictionaries(tmp_path: Path) -> None:
    """What rules make of them is the same, and a table that a person asks for has texts."""
    given = [
        replace(row, more={"page_lang": "de" if i % 3 else None}) for i, row in enumerate(rows(9))
    ]
    pool = make_pool(tmp_path, given, per_shard=4)
    columns = {"status", "page_lang", "caption", "original_width"}
    plain, encoded = (
        pa.concat_tables(part.table for unit in range(source.units) for part in source.parts(unit))
        for source in (
            JoinedColumns(read_commits(pool), columns, {}),
            JoinedColumns(read_commits(pool), columns, {}, encoded=True),
        )
    )
    kinds = {field.name: pa.types.is_dictionary(field.type) for field in encoded.schema}
    assert kinds == {"caption": False, "original_width": False, "page_lang": True, "status": True}
    assert encoded.cast(plain.schema).equals(plain)
    stored = [status == "success" for status in plain["status"].to_pylist()]
    assert stored_rows_of(plain).tolist() == stored_rows_of(encoded).tolist() == stored
    missing = pa.table({"status": pa.array(["success", None, "x"])})
    assert stored_rows_of(missing).tolist() == [True, False, False]
    assert stored_rows_of(missing.slice(0, 0)).tolist() == []
    german = clipmill.open_pool(pool).where("upper(page_lang) = 'DE'", ["page_lang"])
    assert german.schema == pa.schema([("page_lang", pa.string())])
    disk.write_parquet(
        read_commits(pool).sidecar(1),
        disk.read_parquet(read_commits(pool).sidecar(1)).drop_columns(["page_lang"]),
    )
    with pytest.raises(ValueError, match="has no column 'page_lang', unlike the first shard"):
        choose_views(PoolWriter(pool), recipe(view("v", ("german", "page_lang = 'de'"))))


def test_a_damaged_byte_of_a_sidecar_is_never_chosen_by(tmp_path: Path) -> None:
    """A pool whose views are made reads one column: its pages have checksums."""
    commits = read_commits(make_pool(tmp_path, rows(6), per_shard=3))

    def tables() -> list[pa.Table]:
        source = JoinedColumns(commits, {"original_width", "status"}, {})
        return [part.table for part in source.parts(0)]

    expected = tables()
    path = Path(commits.sidecar(1))
    whole = path.read_bytes()
    named = 0
    for position in range(0, len(whole), 23):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        try:
            assert tables() == expected, position
        except ValueError as error:
            named += str(path) in str(error)
    assert named
    path.write_bytes(whole)
    disk.write_parquet(str(path), disk.read_parquet(str(path)).slice(1))
    with pytest.raises(ValueError, match=r"00001\.parquet does not have the rows of its commit"):
        tables()


@pytest.mark.parametrize(
    ("values", "message"),
    [(None, r"00001\.parquet has no column 'extra', unlike the first"), ("x", "'extra' as string")],
)
def test_a_column_that_some_shards_lack_is_named(
    tmp_path: Path, values: str | None, message: str
) -> None:
    pool = make_pool(tmp_path, rows(9), per_shard=3)
    for shard in (0, 1, 2):
        path = PoolLayout(pool).sidecar(shard)
        table = disk.read_parquet(path)
        if shard != 1:
            table = table.append_column("extra", pa.array([1.5] * 3))
        elif values is not None:
            table = table.append_column("extra", pa.array([values] * 3))
        disk.write_parquet(path, table, {})
    source = JoinedColumns(read_commits(pool), ["extra", "status"], {})
    with pytest.raises(ValueError, match=message):
        list(source.parts(0))
