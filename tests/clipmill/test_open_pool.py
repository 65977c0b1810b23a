"""`clipmill.open_pool`: what a pool holds, its rows as tables, its images, one rule on it; from a
folder and from a store.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import clipmill
from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.records import ViewRule
from clipmill.pipeline.audit.explain import explain_row
from clipmill.pipeline.export import KeptRows
from tests.support.exported import exported_pool, kept_samples
from tests.support.s3_server import BUCKET, s3_server, s3_variables

NAME = r"caption@[0-9a-f]{12}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return exported_pool(tmp_path_factory.mktemp("opened") / "pool")


@pytest.fixture(scope="module")
def url(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same pool in a bucket."""
    pytest.importorskip("localbucket")
    with (
        s3_server(tmp_path_factory.mktemp("store")) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in s3_variables(server).items():
            patch.setenv(name, value)
        target = f"s3://{BUCKET}/pool"
        for path in Path(folder).rglob("*"):
            if path.is_file():
                place = path.relative_to(folder).as_posix()
                disk.write_bytes(disk.join(target, place), path.read_bytes())
        yield target


@pytest.fixture(scope="module")
def pool(folder: str) -> clipmill.Pool:
    return clipmill.open_pool(folder)


def test_its_text_says_what_is_there(pool: clipmill.Pool, folder: str) -> None:
    kept = len(kept_samples(folder))
    (name,) = pool.score_sets
    assert repr(pool) == (
        f"Pool({folder!r}): 48 rows, 40 stored\nviews: wide ({kept})\nscore sets: {name}"
    )
    assert pool.fingerprint == read_commits(folder).fingerprint
    assert pool.views["wide"].rules == (ViewRule(name="wide", where="original_width >= 200"),)


def test_columns_have_a_name_a_type_a_meaning_and_a_source(pool: clipmill.Pool) -> None:
    columns = {column.name: column for column in pool.columns}
    assert columns["caption"].source == "sidecar"
    assert columns["caption"].meaning == "text of the pair"
    words = columns["caption_words"]
    assert (words.source, words.type) == (next(iter(pool.score_sets)), "int32")
    assert words.meaning
    assert columns["aspect"].source == "derived"
    assert "\n  caption " in repr(pool.columns)
    assert pool.table(list(columns)).num_rows == 48


def test_a_table_has_the_rows_of_its_view_in_the_order_of_the_shards(
    pool: clipmill.Pool, folder: str
) -> None:
    table = pool.table(["uid", "caption_words", "caption"], view="wide")
    assert table.column_names == ["uid", "caption_words", "caption"]
    exported = pa.concat_tables(KeptRows(folder, "wide").tables())
    assert table.equals(exported.select(table.column_names))
    every = pool.table()
    assert every.column_names == pool.schema.names
    assert every.num_rows == 48
    assert every.filter(pc.is_valid(every["image_offset"])).num_rows == 40


def test_a_scan_gives_a_shard_at_a_time_with_scores_and_the_choice_of_a_view(
    pool: clipmill.Pool, folder: str
) -> None:
    columns = ["caption_words", "uid", "aspect"]
    parts = list(pool.scan(columns, view="wide"))
    assert [part.shard for part in parts] == list(pool.commits.names())
    assert all(part.table.column_names == columns for part in parts)
    assert pa.concat_tables(part.table for part in parts).equals(pool.table(columns))
    kept = pa.concat_tables(part.kept_rows() for part in parts)
    assert kept.equals(pool.table(columns, view="wide"))
    assert kept["uid"].to_pylist() == list(kept_samples(folder))
    assert {rule for part in parts for rule in part.rule.to_pylist()} == {
        None, "wide", "not_stored",
    }  # fmt: skip
    names = [part.shard for part in pool.scan(shards=["00004", 2])]
    assert names == ["00004", "00002"]
    stored = [part.kept for part in pool.scan(["caption_words"])]
    assert int(np.concatenate(stored).sum()) == 40
    with pytest.raises(ValueError, match="wide has no shard 00006"):
        list(pool.scan(["uid"], view="wide", shards=[6]))


def test_a_score_is_of_the_set_that_the_view_reads_or_of_the_only_current_one(
    folder: str, tmp_path: Path
) -> None:
    copied = shutil.copytree(folder, tmp_path / "pool")
    (document,) = copied.glob("scores/*/scores.json")
    other = document.parent.with_name("caption@0123456789ab")
    shutil.copytree(document.parent, other)
    disk.write_json(other / "scores.json", {**disk.read_json(document), "id": "0123456789ab"})
    with pytest.raises(ValueError, match=f"in the score sets {other.name} and {NAME}") as error:
        clipmill.open_pool(copied).table(["caption_words"], view="wide")
    assert "view 'wide' reads neither" in str(error.value)
    with pytest.raises(ValueError, match=r"in the score sets .* and .*: name it in a rule"):
        clipmill.open_pool(copied).where("caption_words > 3")
    wide = copied / "views/wide.json"
    disk.write_json(wide, {**disk.read_json(wide), "scores": {"caption": other.name}})
    of_view = clipmill.open_pool(copied).table(["caption_words"], view="wide")
    assert of_view.equals(clipmill.open_pool(folder).table(["caption_words"], view="wide"))


def test_a_score_of_an_older_state_is_not_read(folder: str, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "pool")
    (document,) = copied.glob("scores/*/scores.json")
    changes = {"fingerprint": "0" * 64, "whole_pool": True}
    disk.write_json(document, {**disk.read_json(document), **changes})
    with pytest.raises(ValueError, match=f"in the score set {NAME}, which is of an older state"):
        next(clipmill.open_pool(copied).scan(["uid", "caption_words"]))


def test_a_damaged_view_is_refused_by_name_and_shown(folder: str, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "pool")
    (copied / "views/wide.json").write_text("[]")
    damaged = clipmill.open_pool(copied)
    with pytest.raises(ValueError, match=r"wide\.json"):
        damaged.views  # noqa: B018
    assert "48 rows, 40 stored\nerror: " in repr(damaged)
    assert "wide.json" in repr(damaged)
    assert damaged.table(["uid"]).num_rows == 48


def test_pandas_polars_and_duckdb_take_a_table(pool: clipmill.Pool) -> None:
    rows = pool.table(["uid", "original_width"], view="wide")
    widest = pc.max(rows["original_width"]).as_py()
    assert rows.to_pandas()["original_width"].max() == widest
    assert duckdb.sql("select max(original_width) from rows").fetchall() == [(widest,)]
    polars = pytest.importorskip("polars")
    assert polars.from_arrow(rows)["original_width"].max() == widest


def test_datasets_takes_a_table_and_the_images(pool: clipmill.Pool, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = pool.table(["uid", "caption_words"], view="wide")
    made = datasets.Dataset(rows)
    assert made.features["caption_words"].dtype == "int32"
    assert made[:] == rows.to_pydict()
    pairs = datasets.Dataset.from_generator(
        lambda: ({**row, "image": {"bytes": data}} for row, data in pool.images("wide", ["uid"])),
        cache_dir=str(tmp_path),
    )
    shown = pairs.cast_column("image", datasets.Image())
    assert shown["uid"] == rows["uid"].to_pylist()
    assert [one["bytes"] for one in pairs["image"]] == [data for _, data in pool.images("wide")]
    assert all(image.width > 1 for image in shown["image"])


def test_images_are_the_bytes_of_the_tar(pool: clipmill.Pool, folder: str) -> None:
    expected = kept_samples(folder)
    seen = {row["uid"]: data for row, data in pool.images("wide", ["uid"])}
    assert seen == {uid: members["jpg"] for uid, members in expected.items()}
    assert len(list(pool.images())) == 40
    keys = [row["key"] for row, _ in pool.images(shards=[3, 1])]
    assert list(dict.fromkeys(key[:5] for key in keys)) == ["00003", "00001"]


def test_where_keeps_what_a_view_of_the_rule_would(pool: clipmill.Pool) -> None:
    wide = pool.where("original_width >= 200", ["uid"])
    assert wide.equals(pool.table(["uid"], view="wide"))
    best = pool.where("caption_words >= top(caption_words, 0.25) and aspect > 0", ["caption_words"])
    stored = pool.where("true", ["caption_words"])
    values = np.sort(stored["caption_words"].to_numpy())[::-1]
    threshold = values[int(np.ceil(len(values) / 4)) - 1]
    assert best["caption_words"].to_pylist() == [
        value for value in stored["caption_words"].to_pylist() if value >= threshold
    ]
    assert pool.where("original_width > 1e6").num_rows == 0


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("original_widht > 3", "no column 'original_widht'"),
        ("original_width", "it gives INTEGER, not true or false"),
        ("read_text('/etc/passwd') = ''", "read_text"),
        ("1 = (select 1)", "where"),
        ("random() < 0.5", "random"),
    ],
)
def test_where_is_the_sandbox_of_rules(pool: clipmill.Pool, sql: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as error:
        pool.where(sql)
    assert message in str(error.value)


def test_a_row_is_explained(pool: clipmill.Pool, folder: str) -> None:
    uid = pool.table(["uid"], view="wide")["uid"][0].as_py()
    history = pool.explain(uid)
    assert history == explain_row(folder, uid)
    assert uid in str(history)
    with pytest.raises(ValueError, match="has no row with uid"):
        pool.explain("nobody")


def test_a_mistake_is_one_line(pool: clipmill.Pool, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no view 'wid'; did you mean 'wide'\?"):
        pool.table(["uid"], view="wid")
    with pytest.raises(ValueError, match="has no column 'captoin'; did you mean 'caption'"):
        pool.table(["captoin"])
    with pytest.raises(ValueError, match="has no shard 00099"):
        list(pool.images(shards=[99]))
    with pytest.raises(ValueError, match="is no pool: it has no committed shard"):
        clipmill.open_pool(tmp_path)


def test_a_tar_that_is_cut_is_named(folder: str, tmp_path: Path) -> None:
    cut = clipmill.open_pool(exported_pool(tmp_path / "pool"))
    tar = Path(cut.commits.tar(0))
    tar.write_bytes(tar.read_bytes()[:600])
    with pytest.raises(ValueError, match=r"shard 00000 is damaged: .* shorter than its sidecar"):
        list(cut.images())


@pytest.mark.slow
def test_a_pool_in_a_bucket_gives_the_same(pool: clipmill.Pool, url: str) -> None:
    stored = clipmill.open_pool(url)
    assert repr(stored) == repr(pool).replace(repr(pool.path), repr(url))
    assert stored.columns == pool.columns
    columns = ["uid", "caption_words", "aspect"]
    assert stored.table(columns, view="wide").equals(pool.table(columns, view="wide"))
    assert list(stored.images("wide")) == list(pool.images("wide"))
    assert stored.where("caption_words > 3").equals(pool.where("caption_words > 3"))
