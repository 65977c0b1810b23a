"""Every kind of source: what it needs, what it may be told, and that nothing else is accepted."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk, reader
from clipmill.manifests.schema import SOURCES, Fetch, Recipe, Source

SMALLEST: dict[str, dict[str, Any]] = {
    "wat": {"paths": ["a.warc.wat.gz"]},
    "wat_index": {"crawl": "CC-MAIN-2024-51", "sample": 1},
    "warc": {"paths": ["a.warc.gz"]},
    "warc_index": {"crawl": "CC-MAIN-2024-51", "sample": 1},
    "table": {"paths": ["list.csv"]},
    "files": {"paths": ["captions.csv"]},
    "image_folder": {"paths": ["images/"], "captions": "metadata.csv"},
    "image_table": {"paths": ["train.parquet"]},
    "shards": {"paths": ["tars/"]},
    "lock": {"paths": ["pool.lock.parquet"]},
}
VALUES: dict[str, Any] = {
    "paths": ["x"],
    "crawl": "CC-MAIN-2024-51",
    "sample": 1,
    "seed": 0,
    "base": "https://data.commoncrawl.org/",
    "url_column": "url",
    "caption_column": "caption",
    "extra_columns": {},
    "captions": "txt",
    "file_column": "file_name",
    "links_outside": False,
    "columns": [],
    "image_column": "image",
    "caption_list": "all",
    "max_caption_bytes": 65536,
    "delimiter": ",",
    "image_member": "jpg",
    "caption_member": "txt",
}


def read(folder: Path, source: dict[str, Any], fetch: dict[str, Any] | None = None) -> Recipe:
    import yaml

    manifest = {"name": "r", "source": source, **({"fetch": fetch} if fetch is not None else {})}
    (folder / "r.yaml").write_text(yaml.safe_dump(manifest))
    return reader.read_manifest(folder / "r.yaml", Recipe)


def test_the_table_the_type_and_the_examples_have_the_same_kinds() -> None:
    kinds = typing.get_args(typing.get_type_hints(Source)["kind"])
    assert sorted(kinds) == sorted(SOURCES) == sorted(SMALLEST)
    keys = {field.name for field in dataclasses.fields(Source)} - {"kind"}
    assert keys == set(VALUES)
    assert keys == {key for line in SOURCES.values() for key in line.keys}
    settings = {field.name for field in dataclasses.fields(Fetch)}
    for line in SOURCES.values():
        assert set(line.fetch or ()) <= settings


@pytest.mark.parametrize("kind", SOURCES)
def test_the_smallest_source_of_a_kind_is_read(kind: str, tmp_path: Path) -> None:
    source = read(tmp_path, {"kind": kind, **SMALLEST[kind]}).source
    assert source.kind == kind
    assert disk.from_plain(Source, disk.to_plain(source)) == source


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind in SOURCES for key in SOURCES[kind].required]
)
def test_what_a_kind_needs_is_asked_for(kind: str, key: str, tmp_path: Path) -> None:
    source = {name: value for name, value in SMALLEST[kind].items() if name != key}
    with pytest.raises(ValueError, match=rf"r\.yaml: source: .*{key}"):
        read(tmp_path, {"kind": kind, **source})


@pytest.mark.parametrize(
    ("kind", "key"),
    [(kind, key) for kind in SOURCES for key in VALUES if key not in SOURCES[kind].keys],
)
def test_a_key_that_a_kind_ignores_is_refused_even_with_its_default(
    kind: str, key: str, tmp_path: Path
) -> None:
    source = {"kind": kind, **SMALLEST[kind], key: VALUES[key]}
    with pytest.raises(ValueError, match=rf"source\.{key} is not used by a source of kind {kind}"):
        read(tmp_path, source)


@pytest.mark.parametrize("kind", [kind for kind, line in SOURCES.items() if line.fetch is not None])
def test_settings_that_a_kind_ignores_are_refused(kind: str, tmp_path: Path) -> None:
    allowed = SOURCES[kind].fetch or ()
    for key, value in disk.to_plain(Fetch()).items():
        source = {"kind": kind, **SMALLEST[kind]}
        if key in allowed:
            read(tmp_path, source, {key: value})
        else:
            with pytest.raises(
                ValueError, match=rf"fetch\.{key} is not used by a source of kind {kind}"
            ):
                read(tmp_path, source, {key: value})


@pytest.mark.parametrize(
    "setting",
    [
        {"bbox_column": "boxes"},
        {"image_size": 128},
        {"resize_mode": "border"},
        {"encode_format": "webp"},
        {"compute_hash": "md5"},
    ],
)
def test_images_that_stay_in_their_tars_cannot_be_changed(
    setting: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"stay in their tars as they are; leave it out, or"):
        read(
            tmp_path,
            {"kind": "shards", "paths": ["t/"], "extra_columns": {"boxes": "json"}},
            setting,
        )


def test_a_resolved_recipe_is_checked_by_what_differs_from_the_defaults(tmp_path: Path) -> None:
    recipe = Recipe(name="r", source=Source(kind="shards", paths=("t/",)))
    disk.write_json(tmp_path / "r.json", recipe)
    assert reader.read_manifest(tmp_path / "r.json", Recipe) == recipe
    disk.write_json(tmp_path / "r.json", dataclasses.replace(recipe, fetch=Fetch(image_size=64)))
    with pytest.raises(ValueError, match=r"r\.json: fetch\.image_size is not used"):
        reader.read_manifest(tmp_path / "r.json", Recipe)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"captions": "metadata"}, "captions is 'metadata'; of a source of kind image_folder"),
        ({"captions": "metadata.xlsx"}, "metadata.csv, metadata.jsonl, ../annot"),
        ({"captions": "txt", "file_column": "name"}, "leave file_column out"),
        ({"captions": "class_folders", "caption_column": "text"}, "leave caption_column out"),
        ({"captions": "txt", "extra_columns": {"label": "int"}}, "leave extra_columns out"),
        ({"captions": "metadata.csv", "caption_column": None}, "caption_column is null"),
    ],
)
def test_captions_of_an_image_folder(source: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"r\.yaml: source: ") as error:
        read(tmp_path, {"kind": "image_folder", "paths": ["images/"], **source})
    assert message in str(error.value)
