"""Parquet files whose rows hold the images, as Hugging Face's data sets do: built through the
command, each row with its bytes and its captions or with a reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.pipeline import table_files
from clipmill.pipeline.planning.planner import row_keys
from clipmill.pipeline.table_files import image_rows, row_addresses, row_of_address
from tests.support import commands
from tests.support.hub_server import hub_of
from tests.support.other_tars import picture as picture_of

picture = partial(picture_of, kind="PNG")  # of each shade another file
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
Lines = Callable[..., tuple[int, str]]


def in_structs(images: list[Any]) -> pa.Array:
    """As `datasets` writes them."""
    return pa.array(
        [{"bytes": image, "path": f"{n}.jpg"} for n, image in enumerate(images)], STRUCT
    )


FORMS: dict[str, Callable[[list[Any]], pa.Array]] = {
    "struct": in_structs,
    "large struct": lambda images: pa.array(
        [{"path": "ä", "bytes": image} for image in images],
        pa.struct([("path", pa.string()), ("bytes", pa.large_binary())]),
    ),
    "binary": lambda images: pa.array(images, pa.binary()),
    "large_binary": lambda images: pa.array(images, pa.large_binary()),
    "dictionary": lambda images: pa.array(images, pa.binary()).dictionary_encode(),
}


def write(path: Path, images: pa.Array, captions: Any, rows: int = 3, **columns: Any) -> bytes:
    """A table in row groups of `rows`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"image": images, "caption": captions, **columns})
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table, path, row_group_size=rows, **options)
    return path.read_bytes()


@pytest.fixture
def build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Lines:
    """`clipmill build` of a recipe with this source; the status and the last line of errors."""

    def call(pool: str = "pool", **source: Any) -> tuple[int, str]:
        recipe = {
            "name": "r",
            "source": {"kind": "image_table", **source},
            "fetch": {"disable_all_reencoding": True, "max_bytes": 2000, "rows_per_shard": 10},
            "views": {"raw": []},
        }
        (tmp_path / "r.yaml").write_text(json.dumps(recipe))
        words = [str(tmp_path / "r.yaml"), "--out", str(tmp_path / pool), "--engine", "inline"]
        status = commands.build(words)
        return status, capsys.readouterr().err.strip().rpartition("\n")[2]

    return call


def stored(pool: Path) -> dict[tuple[str, str], bytes | str]:
    """(file and row, caption) of each row -> the bytes of its image, or its reason."""
    commits, rows = read_commits(str(pool)), {}
    for shard in commits.shards.tolist():
        tar = Path(commits.tar(shard)).read_bytes()
        for row in disk.read_parquet(commits.sidecar(shard)).to_pylist():
            start, length = row["image_offset"], row["image_length"]
            value = row["reason"] or tar[start : start + length]
            rows[
                row["url"].rpartition("/")[0].rpartition("/")[2] + f":{row['link']}", row["caption"]
            ] = value
    return rows


@pytest.mark.parametrize("form", FORMS)
def test_the_images_of_rows_become_shards(form: str, tmp_path: Path, build: Lines) -> None:
    images = [picture(shade=shade) for shade in range(25)]
    captions = pa.array([f"größe {n}" for n in range(25)]).dictionary_encode()
    write(tmp_path / "my data/a#1.parquet", FORMS[form](images), captions, rows=4)
    assert build(paths=["my data/*.parquet"])[0] == 0
    rows = stored(tmp_path / "pool")
    assert {key[1]: value for key, value in rows.items()} == {
        f"größe {n}": image for n, image in enumerate(images)
    }
    assert ("a#1.parquet#6:24", "größe 24") in rows
    assert commands.audit(["verify", str(tmp_path / "pool")]) == 0


def test_every_row_has_one_outcome(tmp_path: Path, build: Lines) -> None:
    images = [picture(), None, b"", b"no image", b"x" * 2001, picture(shade=1), picture(shade=2)]
    captions = ["good", "null", "empty", "other", "large", None, ""]
    write(tmp_path / "a.parquet", in_structs(images), pa.array(captions), rows=2)
    write(tmp_path / "b.parquet", in_structs([]), pa.array([], pa.string()))  # no row
    assert build(paths=["a.parquet", "b.parquet"])[0] == 0
    assert {key[1]: value for key, value in stored(tmp_path / "pool").items()} == {
        "good": images[0],
        "null": "missing_file",
        "empty": "empty",
        "other": "not_an_image",
        "large": "too_many_bytes",
    }
    totals = disk.read_json(tmp_path / "pool/pool.json")
    assert totals["crawl"]["reasons"] == {"no_alt": 1, "empty_alt": 1}


def test_a_list_of_captions_is_a_pair_each_or_one(tmp_path: Path, build: Lines) -> None:
    images = [picture(shade=n) for n in range(5)]
    captions = [["a cat", "ein Kater", "a cat"], [None, " ", "a dog"], [], None, ["last"]]
    write(tmp_path / "a.parquet", in_structs(images), pa.array(captions, pa.list_(pa.string())))
    assert build(paths=["a.parquet"])[0] == 0
    cat, dog, last = images[0], images[1], images[4]
    assert {key[1]: value for key, value in stored(tmp_path / "pool").items()} == {
        "a cat": cat, "ein Kater": cat, "a dog": dog, "last": last,
    }  # fmt: skip
    reasons = disk.read_json(tmp_path / "pool/pool.json")["crawl"]["reasons"]
    assert reasons == {"duplicate_pair": 1, "no_alt": 3, "empty_alt": 1}
    assert build("first", paths=["a.parquet"], caption_list="first")[0] == 0
    assert {key[1]: value for key, value in stored(tmp_path / "first").items()} == {
        "a cat": cat, "a dog": dog, "last": last,
    }  # fmt: skip
    assert disk.read_json(tmp_path / "first/pool.json")["crawl"]["reasons"] == {"no_alt": 2}
    message = build(paths=["a.parquet"], caption_list="first")[1]
    assert "source.caption_list was None and is 'first'" in message


def test_images_without_captions_and_extra_columns(tmp_path: Path, build: Lines) -> None:
    images = [picture(shade=n) for n in range(3)]
    write(tmp_path / "a.parquet", in_structs(images), [1, 2, 3], rows=2)
    assert build(paths=["a.parquet"], caption_column=None)[0] == 0
    assert set(stored(tmp_path / "pool").values()) == set(images)
    assert build("n", paths=["a.parquet"], extra_columns={"n": "caption:int"})[0] == 0
    commits = read_commits(str(tmp_path / "n"))
    table = disk.read_parquet(commits.sidecar(0))
    assert sorted(zip(table["n"].to_pylist(), table["caption"].to_pylist(), strict=True)) == [
        (1, "1"), (2, "2"), (3, "3"),
    ]  # fmt: skip


def test_the_names_of_labels_are_captions(tmp_path: Path, build: Lines) -> None:
    images = in_structs([picture(shade=n) for n in range(4)])
    features = {"caption": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"image": images, "caption": [1, 0, 1, -1]})
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
    assert build(paths=["a.parquet"], extra_columns={"label": "caption:int"})[0] == 0
    sidecar = disk.read_parquet(read_commits(str(tmp_path / "pool")).sidecar(0))
    pairs = zip(*(sidecar[name].to_pylist() for name in ("link", "caption", "label")), strict=True)
    assert sorted(pairs) == [(0, "dog", 1), (1, "cat", 0), (2, "dog", 1)]
    assert disk.read_json(tmp_path / "pool/pool.json")["crawl"]["reasons"] == {"no_alt": 1}


def test_what_holds_no_images_is_refused_in_one_line(tmp_path: Path, build: Lines) -> None:
    texts = pa.array(["http://a.test/1.jpg"])
    write(tmp_path / "urls.parquet", texts, texts)
    write(tmp_path / "paths.parquet", in_structs([None, None]), ["a", "b"])
    (tmp_path / "list.csv").write_text("image,caption\na,b\n")
    for source, message in [
        ({"paths": ["urls.parquet"]}, "'image' is of type string; image_column holds the bytes"),
        ({"paths": ["urls.parquet"], "image_column": "images"}, "did you mean 'image'?"),
        ({"paths": ["paths.parquet"]}, "no row has the bytes of an image in 'image.bytes'. Where"),
        ({"paths": ["paths.parquet"], "caption_column": "text"}, "has no column 'text'"),
        ({"paths": ["list.csv"]}, "list.csv is no .parquet file, which a source of kind image_ta"),
        ({"paths": ["none-*.parquet"]}, "there is no file"),
        ({"paths": ["none.parquet"]}, "which does not exist"),
    ]:
        status, line = build(**source)
        assert (status, message in line) == (2, True), line
    write(tmp_path / "good.parquet", in_structs([picture()]), ["a"])
    status, line = build(paths=["good.parquet", "urls.parquet"])
    assert (status, "'image' is of type string" in line) == (3, True), line


def test_a_damaged_page_costs_the_rest_of_its_row_group(tmp_path: Path, build: Lines) -> None:
    images = [picture(shade=n) for n in range(12)]
    path = tmp_path / "a.parquet"
    data = bytearray(write(path, in_structs(images), [f"c{n}" for n in range(12)], rows=4))
    assert data.count(images[5]) == 1
    data[data.index(images[5])] ^= 0xFF  # of the second row group
    path.write_bytes(data)
    assert build(paths=["a.parquet"])[0] == 0
    rows = {key[1]: value for key, value in stored(tmp_path / "pool").items()}
    assert Counter(type(value) for value in rows.values()) == {bytes: 8, str: 4}
    assert all(rows[f"c{n}"] == "missing_file" for n in range(4, 8))


def test_a_row_group_that_unpacks_to_too_much_has_that_reason(tmp_path: Path, build: Lines) -> None:
    images = pa.array([picture(), b"\0" * 40 * 2**20, picture(shade=1), picture(shade=2)])
    table = pa.table({"image": images, "caption": list("abcd")})
    options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2, **options)
    assert build(paths=["a.parquet"])[0] == 0
    rows = {key[1]: value for key, value in stored(tmp_path / "pool").items()}
    assert [rows[name] for name in "ab"] == ["too_many_bytes"] * 2
    assert all(isinstance(rows[name], bytes) for name in "cd")


def test_a_file_that_was_replaced_is_noticed(tmp_path: Path, build: Lines) -> None:
    images = [picture(shade=n) for n in range(6)]
    path = tmp_path / "a.parquet"
    write(path, in_structs(images), [f"c{n}" for n in range(6)])
    assert build(paths=["a.parquet"])[0] == 0
    assert build(paths=["a.parquet"])[0] == 0
    write(path, in_structs(images[::-1]), [f"c{n}" for n in range(6)])
    status, line = build(paths=["a.parquet"])
    assert (status, "build into another folder" in line) == (2, True), line


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    rows=st.integers(1, 6),
    batch=st.integers(1, 40),
    wanted=st.sets(st.integers(0, 14)),
)
def test_rows_of_any_layout_have_their_own_bytes(
    sizes: list[int], rows: int, batch: int, wanted: set[int]
) -> None:
    images = [bytes([n]) * size if size else None for n, size in enumerate(sizes)]
    path = "memory://layouts/a#0/1.parquet"
    with fsspec.open(path, "wb") as file:
        pq.write_table(pa.table({"image": in_structs(images)}), file, row_group_size=rows)
    addresses = list(row_addresses(path, "image"))
    assert len(addresses) == len(images)
    asked: dict[int, list[int]] = {}
    for number in wanted:
        asked.setdefault(number // rows, []).append(number % rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "BATCH_BYTES", batch)
        read = {}
        for group, batch_of_images in image_rows(path, "image", asked):
            assert isinstance(batch_of_images, dict)
            for row, data in batch_of_images.items():
                read[f"{path}#{group}/{row}"] = data
    assert read == {addresses[n]: images[n] for n in wanted if n < len(images)}


def test_the_rows_of_a_row_group_stay_together_in_a_shuffled_plan() -> None:
    addresses = [
        f"/d/{f}.parquet#{group}/{row}" for f in "ab" for group in range(50) for row in range(7)
    ]
    order = np.argsort(row_keys(pa.array(addresses)), kind="stable")
    planned = [row_of_address(addresses[n]) for n in order]
    groups = [planned[first][:2] for first in range(0, len(planned), 7)]
    assert [each[:2] for each in planned] == [group for group in groups for _ in range(7)]
    assert [each[2] for each in planned] == [*range(7)] * 100
    assert len(set(groups)) == 100
    assert groups != sorted(groups)


def test_a_data_set_of_the_hub_is_read_by_ranges(
    tmp_path: Path, build: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [picture(shade=n) for n in range(30)]
    noise = np.random.default_rng(0).bytes(1 << 20)  # another column, which nobody reads
    files = {}
    for number in range(2):
        own = slice(15 * number, 15 * number + 15)
        data = write(
            tmp_path / f"train-0000{number}-of-00002.parquet",
            in_structs(images[own]),
            [[f"c{n}", f"d{n}"] for n in range(30)[own]],
            rows=5,
            other=[noise[n:-n] for n in range(1, 16)],
        )
        files[f"me/set/data/train-0000{number}-of-00002.parquet"] = data
    with hub_of(files, monkeypatch) as hub:
        hub.failures = 2
        assert build(paths=["hf://datasets/me/set/data/train-*.parquet"])[0] == 0
        rows = stored(tmp_path / "pool")
        assert len(rows) == 60
        assert {key[1]: value for key, value in rows.items()} == {
            f"{letter}{n}": image for n, image in enumerate(images) for letter in "cd"
        }
        ranges = [range_.removeprefix("bytes=").split("-") for _, range_ in hub.asked if range_]
        assert (
            sum(int(last) + 1 - int(first) for first, last in ranges)
            < sum(map(len, files.values())) / 10
        )
        assert build(paths=["hf://datasets/me/set/data/train-*.parquet"])[0] == 0  # nothing to do
        for path, message in [
            ("hf://datasets/me/none/data/*.parquet", "there is no file hf://datasets/me/none/data"),
            ("hf://datasets/me/set/none.parquet", "set/none.parquet, which does not exist"),
        ]:
            status, line = build("other", paths=[path])
            assert (status, message in line) == (2, True), line


def test_a_missing_package_is_named(build: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise ImportError("Install huggingface_hub to access HfFileSystem")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    status, line = build(paths=["hf://datasets/me/set/*.parquet"])
    assert (status, "install the package huggingface_hub (pip install" in line) == (2, True), line
