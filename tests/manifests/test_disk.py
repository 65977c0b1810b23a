"""Manifests in, files out: what a person may write wrongly, and what a reader may rely on."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import disk, identity, reader
from manifests.schema import Ablation, Blend, Recipe, TaskSpec

RECIPE = """
name: small
source: {kind: wat, paths: [crawl.warc.wat.gz]}
fetch: {max_bytes: 1MiB, user_agent: "clipmill (me@example.org)"}
filters: [caption, {clip_score: {model: ViT-B-32}}]
views:
  raw: []
  basic:
    - words: caption_words > 2
  both: [{view: basic}, {clip: "clip_score >= top(clip_score, 0.30)"}]
  control: [{random_like: both, seed: 3}]
scales: {debug: {fetch: {max_bytes: 2KiB}, filters: [caption]}}
"""

ABLATION = """
name: question
question: Does it help?
pools: {web: {recipe: small.yaml}}
arms: {raw: web/raw, basic: web/basic, mixed: {blend: mixed.yaml}}
baseline: raw
controls: {random_like: [basic], a_a: raw}
seeds: [0, 1, 2]
train: {preset: micro, samples_seen: 12.8k}
evaluate: [{name: objects, kind: classification, data: eval}]
primary: objects
"""


def write(folder: Path, text: str, name: str = "small.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_recipe_with_all_short_forms(tmp_path: Path) -> None:
    recipe = reader.read_manifest(write(tmp_path, RECIPE), Recipe)
    assert recipe.source.paths == (str(tmp_path / "crawl.warc.wat.gz"),)
    assert recipe.fetch.max_bytes == 2**20
    assert [f.name for f in recipe.filters] == ["caption", "clip_score"]
    assert recipe.filters[1].options == {"model": "ViT-B-32"}
    assert recipe.view("both").rules[0].view == "basic"
    assert recipe.view("control").rules[0].random_like == "both"
    assert recipe.view("control").rules[0].seed == 3
    assert disk.from_plain(Recipe, disk.to_plain(recipe)) == recipe


def test_a_scale_is_merged_key_by_key(tmp_path: Path) -> None:
    debug = reader.read_manifest(write(tmp_path, RECIPE), Recipe, scale="debug")
    assert debug.fetch.max_bytes == 2048
    assert debug.fetch.user_agent == "clipmill (me@example.org)"
    assert [f.name for f in debug.filters] == ["caption"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("max_bytes: 1MiB", "max_bytez: 1"),
            "unknown key 'fetch.max_bytez'; did you mean 'max_bytes'?",
        ),
        (("max_bytes: 1MiB", "image_size: big"), "fetch.image_size"),
        (
            ("max_bytes: 1MiB", "rows_per_shard: 20000"),
            "rows_per_shard is 20000; it must lie in 1..10000",
        ),
        (("max_bytes: 1MiB", "deadline_s: 0"), "deadline_s is 0"),
        (("name: small", "nom: small"), "unknown key 'nom'"),
        (("kind: wat", "kind: wet"), "source.kind"),
        (("[caption, ", "[caption, caption, "), "filters named twice: caption"),
        (("name: small", "name: [small"), "is not YAML"),
        (("crawl.warc.wat.gz", "'${NOWHERE_SET}/crawl.gz'"), "${NOWHERE_SET} is not set"),
    ],
)
def test_a_mistake_names_file_key_and_value(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    path = write(tmp_path, RECIPE.replace(*change))
    with pytest.raises(ValueError, match=r"small\.yaml") as error:
        reader.read_manifest(path, Recipe)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file_and_missing_scale(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\.yaml does not exist"):
        reader.read_manifest(tmp_path / "nothing.yaml", Recipe)
    with pytest.raises(ValueError, match="no scale 'huge'; it has debug"):
        reader.read_manifest(write(tmp_path, RECIPE), Recipe, scale="huge")


def test_variables_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB", "/data/web")
    recipe = reader.read_manifest(
        write(tmp_path, RECIPE.replace("crawl.warc.wat.gz", "'${WEB}/crawl.warc.wat.gz'")), Recipe
    )
    assert recipe.source.paths == ("/data/web/crawl.warc.wat.gz",)


def test_ablation(tmp_path: Path) -> None:
    ablation = reader.read_manifest(write(tmp_path, ABLATION), Ablation)
    assert ablation.pools["web"].recipe == str(tmp_path / "small.yaml")
    assert ablation.arms["mixed"] == str(tmp_path / "mixed.yaml")
    assert ablation.train["samples_seen"] == 12_800
    assert disk.from_plain(Ablation, disk.to_plain(ablation)) == ablation
    assert reader.manifest_kind(tmp_path / "small.yaml") is Ablation


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("baseline: raw", "baseline: row"), "baseline 'row' is not one of the arms"),
        (("seeds: [0, 1, 2]", "seeds: [0]"), "at least two different ones"),
        (("primary: objects", "primary: imagenet"), "primary 'imagenet' is not one of the tasks"),
        (("random_like: [basic]", "random_like: [clip]"), "control of unknown arm 'clip'"),
        (("recipe: small.yaml", "recept: small.yaml"), "did you mean 'recipe'?"),
    ],
)
def test_an_ablation_that_cannot_be(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r"small\.yaml") as error:
        reader.read_manifest(write(tmp_path, ABLATION.replace(*change)), Ablation)
    assert message in str(error.value)


def test_blend_and_task(tmp_path: Path) -> None:
    blend = reader.read_manifest(
        write(
            tmp_path, "name: b\npools: {web: ./pool}\nviews: {web/clip30: 0.7, web/basic: 0.3}\n"
        ),
        Blend,
    )
    assert blend.pools == {"web": str(tmp_path / "pool")}
    with pytest.raises(ValueError, match="not POOL/VIEW"):
        Blend(name="b", pools={"web": "x"}, views={"lake/raw": 1.0})
    with pytest.raises(ValueError, match="must be above 0"):
        Blend(name="b", pools={"web": "x"}, views={"web/raw": 0.0})
    task = reader.read_manifest(
        write(tmp_path, "name: t\nkind: retrieval\ndata: pictures\n"), TaskSpec
    )
    assert task.data == str(tmp_path / "pictures")


def test_json_is_read_without_checks_but_with_the_nearest_name(tmp_path: Path) -> None:
    blend = Blend(name="b", pools={"web": "x"}, views={"web/raw": 1.0}, seed=4)
    disk.write_json(tmp_path / "b.json", blend)
    assert reader.read_manifest(tmp_path / "b.json", Blend) == blend
    with pytest.raises(ValueError, match="did you mean 'seed'"):
        disk.from_plain(
            Blend, {"name": "b", "pools": {"w": "x"}, "views": {"w/raw": 1.0}, "sed": 1}
        )
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(ValueError, match=r"c\.json is not JSON"):
        disk.read_json(tmp_path / "c.json")


def test_kind_of_neither(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a recipe"):
        reader.manifest_kind(write(tmp_path, "name: x"))


@pytest.mark.parametrize("root", ["local", "memory://pool"])
def test_files_behave_the_same_locally_and_by_url(tmp_path: Path, root: str) -> None:
    pool = str(tmp_path) if root == "local" else root
    path = disk.join(pool, "shards", "00000.bin")
    disk.write_bytes(path, b"0123456789")
    assert disk.read_bytes(path) == b"0123456789"
    assert disk.read_bytes(path, 3, 4) == b"3456"
    assert disk.list_names(disk.join(pool, "shards"), ".bin") == ["00000.bin"]
    assert disk.list_names(disk.join(pool, "nothing")) == []
    table = pa.table({"uid": ["a", "b"]})
    disk.write_parquet(disk.join(pool, "t.parquet"), table, {"count": 2})
    assert disk.read_parquet(disk.join(pool, "t.parquet")).equals(table)
    assert disk.read_metadata(disk.join(pool, "t.parquet")) == {"count": 2}
    disk.remove(path)
    disk.remove(path)
    assert not disk.exists(path)


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_a_staged_file_is_published_whole_and_read_in_part(tmp_path: Path, scheme: str) -> None:
    staged, path = tmp_path / "staged.parquet", f"{scheme}{tmp_path}/pool/x.parquet"
    schema = disk.with_metadata(pa.schema([("shard", pa.int32())]), {"rows": 4})
    with pq.ParquetWriter(staged, schema) as writer:
        for shard in (0, 1):
            writer.write_table(pa.table({"shard": pa.array([shard] * 2, pa.int32())}).cast(schema))
    disk.publish(staged, path)
    assert disk.read_metadata(path) == {"rows": 4}
    assert disk.read_parquet(path, ["shard"], where=[("shard", "=", 1)])["shard"].to_pylist() == [
        1,
        1,
    ]
    assert disk.list_names(f"{scheme}{tmp_path}/pool") == ["x.parquet"]
    with pytest.raises(FileNotFoundError):
        disk.publish(tmp_path / "none", path)


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    disk.write_json(path, {"n": 1})

    def fail(fd: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        disk.write_json(path, {"n": 2})
    assert disk.read_json(path) == {"n": 1}
    assert disk.list_names(tmp_path) == ["record.json"]


def test_hashes_are_pinned() -> None:
    assert disk.uid_of("http://a/b.jpg", "a cat") == "f89428b805e63d706f158e1dc5842bb0"
    assert disk.content_hash({"b": 1, "a": [1, 2]}) == "94a786c3662b"
    assert disk.content_hash({"b": 1, "a": [1, 2]}) == disk.content_hash({"a": (1, 2), "b": 1})
    assert len(disk.uid_of("u", "c")) == 32
    assert disk.uid_of("ab", "c") != disk.uid_of("a", "bc")


def test_recipe_hash_ignores_what_does_not_change_the_bytes(tmp_path: Path) -> None:
    recipe = reader.read_manifest(write(tmp_path, RECIPE), Recipe)
    other = reader.read_manifest(
        write(tmp_path, RECIPE.replace("me@example.org", "you@example.org")), Recipe
    )
    smaller = reader.read_manifest(write(tmp_path, RECIPE.replace("1MiB", "2MiB")), Recipe)
    assert identity.recipe_hash(recipe) == identity.recipe_hash(other)
    assert identity.recipe_hash(recipe) != identity.recipe_hash(smaller)


def test_a_relative_folder_under_a_submitted_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "runtime_resources" / "working_dir_files"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    with pytest.raises(ValueError, match="lost with the job; give an absolute path"):
        disk.output_folder("out")
    assert disk.output_folder("/abs/out") == "/abs/out"
    assert disk.output_folder("s3://bucket/out") == "s3://bucket/out"
    monkeypatch.chdir(tmp_path)
    assert disk.output_folder("out") == str(tmp_path / "out")
