"""Every shipped recipe runs to its views, on images and captions that were made by hand.

Recipes of a crawl run at `--scale debug`, where they have one, on a web on loopback. A small random
CLIP stands in the place of weights that would be downloaded: its scores mean nothing, so what a
rule of scores keeps is compared with the scores themselves.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clipmill.examples.miniweb import small_web
from clipmill.examples.miniweb.settings import Miniweb
from clipmill.manifests import disk, reader
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Ablation, Recipe
from tests.filters.conftest import clip_folder as clip_folder
from tests.support import commands
from tests.support.other_tars import pack

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).resolve().parents[1] / "manifests" / "recipes"
# (name, width, height, caption). The image of `flat` is of one colour, so it has few bytes; that of
# `again` is a dog's.
IMAGES = [
    ("dog", 256, 256, "a brown dog running over the green grass"),
    ("cat", 256, 240, "two cats sleep on the old blue sofa"),
    ("city", 300, 220, "the city at night with many lights in the windows"),
    ("flat", 250, 250, "a plain red wall without any pictures on it"),
    ("tower", 190, 300, "a tall and narrow tower in the evening light"),
    ("bridge", 210, 640, "a very long wooden bridge over the wide river"),
    ("short", 256, 256, "dogs"),
    ("hund", 256, 256, "ein kleiner Hund spielt mit dem Ball im Garten hinter dem Haus"),
    ("again", 256, 256, "the brown dog is running on the green grass"),
    ("taxi", 256, 256, "yellow taxi"),
]
NAMES = {caption: name for name, _, _, caption in IMAGES}
ALL = set(NAMES.values())
NOT_LONG = {"short", "taxi"}
# Rows that each view keeps by the published rule. Views that are not here read a CLIP score, draw
# rows, or ask a question of language that two words do not answer.
EXPECTED: dict[tuple[str, str], set[str]] = {
    ("laion", "candidates"): ALL - {"flat", "short"},
    ("laion_like", "raw"): ALL,
    ("laion_like", "basic"): ALL - {"short", "hund"},
    ("metaclip", "raw"): ALL,
    ("metaclip", "matched"): {"dog", "cat", "city", "again"},
    ("metaclip", "metaclip"): {"dog", "cat", "city", "again"},
    ("semdedup", "raw"): ALL,
    ("image_folder", "all"): ALL,
    ("image_folder", "long"): ALL - NOT_LONG,
    ("hf_parquet", "all"): ALL,
    ("hf_parquet", "long"): ALL - NOT_LONG,
    ("coco_captions", "all"): ALL,
    ("cifar10_arms", "raw"): ALL,
    ("cifar10_arms", "right"): ALL - {"taxi"},
    ("cifar10_arms", "wrong"): {"taxi"},
    ("cc3m", "all"): ALL,
    ("own_shards", "all"): ALL,
    ("own_shards", "long"): ALL - NOT_LONG,
    ("datacomp_small", "no_filter"): ALL,
    ("datacomp_small", "basic"): ALL - {"short", "hund", "taxi", "bridge"},
    ("commoncrawl_b32", "raw"): ALL,
    ("commoncrawl_b32", "custom"): ALL - {"short", "bridge"},
    ("datacomp_baselines", "no_filter"): ALL,
    ("datacomp_baselines", "basic"): ALL - {"short", "hund", "taxi", "bridge", "tower"},
    ("datacomp_baselines", "text_based"): {"dog", "cat", "again", "short"},  # dogs: WordNet's dog
    ("datacomp_baselines", "image_based"): {"dog", "city"},
    ("datacomp_baselines", "clip_l14_30"): {"dog", "cat", "hund"},
    ("datacomp_baselines", "laion2b"): {"dog", "cat", "city", "flat"},
    ("datacomp_baselines", "image_based_and_clip_l14_30"): {"dog"},
}
# CLIP scores in DataComp's metadata; the others have 0.1.
DATACOMP_SCORES = {"dog": 0.9, "cat": 0.8, "hund": 0.7, "city": 0.6, "flat": 0.5}


def recipe_names() -> list[str]:
    """All but those whose views are sixteen groups or six kinds of hosts: ten rows are too few."""
    names = {path.stem for path in RECIPES.glob("*.yaml")}
    return sorted(names - {"cifar10_why", "cifar10_mix"})


def write_images(folder: Path) -> Path:
    """The images and their captions, as a folder of images and as a CSV for the web."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines, metadata = ["file,caption,label"], ["file_name,caption,label"]
    for name, width, height, caption in IMAGES:
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        if name == "flat":
            pixels[:] = (200, 20, 20)
        if name == "again":
            (folder / "again.jpg").write_bytes((folder / "dog.jpg").read_bytes())
        else:
            Image.fromarray(pixels).save(folder / f"{name}.jpg", quality=90)
        lines.append(f"{name}.jpg,{caption},{name}")
        metadata.append(f"{name}.jpg,{caption},{name}")
    (folder.parent / "captions.csv").write_text("\n".join(lines) + "\n")
    (folder / "metadata.csv").write_text("\n".join(metadata) + "\n")
    return folder


def write_tars(folder: Path, images: Path) -> dict[str, str]:
    """The same as tars; returns the uid of each name."""
    members, uids = [], {}
    for number, (name, _, _, caption) in enumerate(IMAGES):
        uids[name] = disk.uid_of(f"https://x.example/{name}.jpg", caption)
        record = {"uid": uids[name], "url": f"https://x.example/{name}.jpg", "caption": caption}
        members += [
            (f"{number:09d}.jpg", (images / f"{name}.jpg").read_bytes()),
            (f"{number:09d}.txt", caption.encode()),
            (f"{number:09d}.json", json.dumps(record).encode()),
        ]
    pack(folder / "00000.tar", members)
    return uids


def write_data_sets(folder: Path, images: Path) -> None:
    """The same as data sets of others: rows of Parquet files, COCO's annotations, CC3M's list."""
    rows = [{"bytes": (images / f"{name}.jpg").read_bytes(), "path": None} for name, *_ in IMAGES]
    captions = [caption for *_, caption in IMAGES]
    pq.write_table(pa.table({"image": rows, "caption": captions}), folder / "train-0.parquet")
    (folder / "coco/annotations").mkdir(parents=True)
    (folder / "coco/train2017").symlink_to(images)
    document: dict[str, Any] = {"images": [], "annotations": []}
    for number, (name, _, _, caption) in enumerate(IMAGES):
        document["images"].append({"id": number, "file_name": f"{name}.jpg"})
        document["annotations"].append({"image_id": number, "caption": caption})
    disk.write_json(folder / "coco/annotations/captions_train2017.json", document)


def write_datacomp(folder: Path, uids: dict[str, str]) -> None:
    """Metadata in DataComp's form: every image embedding is an axis of its own."""
    folder.mkdir(parents=True)
    images = np.eye(len(IMAGES), 768, dtype=np.float32)
    texts = np.zeros_like(images)
    columns: dict[str, list[Any]] = {"uid": [], "original_width": [], "original_height": []}
    scores = []
    for row, (name, width, height, _) in enumerate(IMAGES):
        score = DATACOMP_SCORES.get(name, 0.1)
        texts[row, row], texts[row, 700] = score, math.sqrt(1 - score * score)
        columns["uid"].append(uids[name])
        columns["original_width"].append(width)
        columns["original_height"].append(height)
        scores.append(float(np.float16(texts[row, row])))
    table = pa.table(columns)
    for model in ("b32", "l14"):
        column = pa.array(scores, pa.float32())
        table = table.append_column(f"clip_{model}_similarity_score", column)
    pq.write_table(table, folder / "0000.parquet")
    halves = {"img": images.astype(np.float16), "txt": texts.astype(np.float16)}
    arrays = {}
    for model in ("b32", "l14"):
        for side, values in halves.items():
            arrays[f"{model}_{side}"] = values
    np.savez(folder / "0000.npz", **arrays)
    targets = images[[0, 2]]  # those of the dog and of the city
    np.save(folder.parent / "targets.npy", targets)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, clip_folder: Path) -> Iterator[None]:
    """What the variables of the recipes name."""
    folder = tmp_path_factory.mktemp("given")
    images = write_images(folder / "images")
    uids = write_tars(folder / "shards", images)
    write_data_sets(folder, images)
    write_datacomp(folder / "datacomp" / "metadata", uids)
    (folder / "entries").write_text("dog\ncats\ncity at night\n")
    nouns = {"dog": "02084071", "cats": "02121620", "sofa": "04256520"}
    lines = [f"{noun} n 1 0 1 0 {offset}\n" for noun, offset in nouns.items()]
    (folder / "nouns").write_text("".join(lines))
    (folder / "noun.exc").touch()
    (folder / "wnids").write_text("n02084071\nn02121620\n")
    captions = str(folder / "captions.csv")
    settings = Miniweb(
        photos=str(images), captions=captions, pairs=len(IMAGES), trusted_pairs=0, noise=0,
        near_duplicates=0, faults=0,
    )  # fmt: skip
    small_web.write(folder / "web", settings)
    pairs = pq.read_table(folder / "web" / "truth.parquet")
    right = pc.not_equal(pairs["caption"], "yellow taxi")  # that of one image is said to be wrong
    place = pairs.column_names.index("right")
    pq.write_table(pairs.set_column(place, "right", right), folder / "web" / "truth.parquet")
    pairs = pairs.select(["caption", "url"])
    lines = ["\t".join(pair.values()) + "\r\n" for pair in pairs.to_pylist()]
    (folder / "cc3m.tsv").write_text("".join(lines), newline="")
    trusted = folder / "web" / "trusted.warc.wat.gz"
    trusted.write_bytes((folder / "web" / "crawl.warc.wat.gz").read_bytes())
    with small_web.running(str(folder / "web")) as port, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "MINIWEB": folder / "web",
            "MINIWEB_PORT": port,
            "SCORER": clip_folder,
            "DATACOMP": folder / "datacomp",
            "CLIPMILL_IMAGES": images,
            "CLIPMILL_PARQUET": folder / "train-*.parquet",
            "CLIPMILL_COCO": folder / "coco",
            "CLIPMILL_TSV": folder / "cc3m.tsv",
            "CLIPMILL_SHARDS": f"{folder}/shards",
            "CLIPMILL_ENTRIES": folder / "entries",
            "CLIPMILL_NOUNS": folder / "nouns",
            "CLIPMILL_WNIDS": folder / "wnids",
            "CLIPMILL_TARGETS": folder / "datacomp" / "targets.npy",
            "CLIPMILL_WAT": folder / "web" / "crawl.warc.wat.gz",
            "CLIPMILL_USER_AGENT": "clipmill-test/1 (+https://clipmill.example/bot)",
        }.items():
            patch.setenv(name, str(value))
        yield


def kept_names(pool: str, view: str, *columns: str) -> list[tuple[Any, ...]]:
    """(name of the image, kept, the values of some columns) of each stored row."""
    commits = read_commits(pool)
    rows: list[tuple[Any, ...]] = []
    for shard in commits.shards.tolist():
        sidecar = disk.read_parquet(commits.sidecar(shard))
        tables = [sidecar]
        for folder in sorted(Path(PoolLayout(pool).root, "scores").iterdir()):
            tables.append(AlignedFiles.of_scores(PoolLayout(pool), folder.name).read(shard)[0])
        mask = AlignedFiles.of_view(PoolLayout(pool), view).read(shard)[0]["kept"].to_pylist()
        values = [[NAMES[caption] for caption in sidecar["caption"].to_pylist()], mask]
        for column in columns:
            (of_table,) = [table for table in tables if column in table.column_names]
            values.append(of_table[column].to_pylist())
        rows += zip(*values, strict=True)
    return rows


def with_time(recipe: Path, folder: Path) -> Path:
    """The recipe as shipped, but that a row has the time that a busy machine takes."""
    copy = folder / recipe.name
    copy.write_text(re.sub(r"deadline_s: \d+", "deadline_s: 300", recipe.read_text()))
    return copy


@pytest.mark.parametrize("name", recipe_names())
def test_a_shipped_recipe_runs_to_its_views(given: None, tmp_path: Path, name: str) -> None:
    path, pool = with_time(RECIPES / f"{name}.yaml", tmp_path), str(tmp_path / "pool")
    scale = "debug" if "debug" in reader.list_scales(path) else None
    words = [str(path), "--out", pool, "--engine", "inline"]
    assert commands.build([*words, "--scale", scale] if scale else words) == 0
    recipe = reader.read_manifest(path, Recipe, scale=scale)
    assert recipe.views
    for view in recipe.views:
        rows = kept_names(pool, view.name)
        assert len(rows) == len(IMAGES), "some image was not stored"
        kept = {each for each, is_kept in rows if is_kept}
        assert kept
        assert kept == EXPECTED.get((name, view.name), kept), view.name
    check_scores(pool, name)


def check_scores(pool: str, name: str) -> None:
    """What views of scores and of duplicates keep, by the columns themselves."""
    if name in ("laion", "commoncrawl_b32"):
        share, before = (0.5, "candidates") if name == "laion" else (0.3, "custom")
        scored = kept_names(pool, "laion400m", "clip_score")
        scores = sorted((score for *_, score in scored), reverse=True)
        threshold = scores[math.ceil(share * len(scores)) - 1]
        allowed = EXPECTED[name, before]
        for each, is_kept, score in scored:
            assert is_kept == (each in allowed and score >= threshold), each
    if name == "coyo":
        kept = {each for each, is_kept in kept_names(pool, "coyo") if is_kept}
        assert kept in ({"dog", "cat", "city"}, {"again", "cat", "city"})  # of two, the survivor
    if name == "semdedup":
        kept = {each for each, is_kept in kept_names(pool, "semdedup") if is_kept}
        assert len(kept & {"dog", "again"}) < 2  # the same image


def test_the_groups_of_cifar10_why_have_every_row_once_and_clip30_is_some_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MINIWEB", "MINIWEB_PORT", "SCORER", "CIFAR"):
        monkeypatch.setenv(name, "1")
    recipe = reader.read_manifest(RECIPES / "cifar10_why.yaml", Recipe)
    ablations = RECIPES.parent / "ablations"
    ablation = reader.read_manifest(ablations / "cifar10_why.yaml", Ablation)
    assert ablation.mixtures is not None
    groups = {source.removeprefix("web/") for source in ablation.mixtures.sources}
    # A clip_score that is the rank of its row: top(clip_score, 0.3) is 0.7.
    rows = "(SELECT i / 1000 AS clip_score, i % 5 < 2 AS caption_right FROM range(1, 1000) t(i))"
    kept = {}
    for view in recipe.views:
        where = " AND ".join(str(rule.where) for rule in view.rules) or "TRUE"
        sql = re.sub(r"top\(clip_score, ([\d.]+)\)", r"(1 - \1)", where)
        numbers = duckdb.sql(f"SELECT clip_score FROM {rows} WHERE {sql}").fetchnumpy()
        kept[view.name] = set(numbers["clip_score"].tolist())
    assert len(groups) == 16
    assert sum(len(kept[name]) for name in groups) == len(kept["raw"]) == 999
    assert set().union(*(kept[name] for name in groups)) == kept["raw"]
    of_clip30 = [name for name in groups if kept[name] & kept["clip30"]]
    assert set().union(*(kept[name] for name in of_clip30)) == kept["clip30"]
    assert sorted(of_clip30) == ["right_10", "right_20", "right_30", "wrong_30"]
    assert kept["without_wrong"] == kept["right"] | kept["clip30"]
    assert kept["without_right"] == (kept["raw"] - kept["right"]) | kept["clip30"]


def test_the_sources_of_cifar10_mix_share_no_row_and_its_parts_are_the_whole_web(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MINIWEB", "MINIWEB_PORT", "SCORER", "CIFAR"):
        monkeypatch.setenv(name, "1")
    recipe = reader.read_manifest(RECIPES / "cifar10_mix.yaml", Recipe)
    hosts = ("gallery", "shop", "craft", "forum", "blog", "archive", "school")
    rows = (  # each combination of host, right caption, kind, label and the first byte of the uid
        "(SELECT uid, label, kind, page_host || '.miniweb.test' AS page_host, n % 2 = 0 AS "
        f"caption_right FROM (SELECT unnest({list(hosts)}) AS page_host), (SELECT unnest(['ship', "
        "'dog']) AS label), (SELECT unnest(['plain', 'near_duplicate']) AS kind), (SELECT n, "
        "lower(printf('%02x', n // 2)) AS uid FROM range(512) t(n)))"
    )
    kept, wrong = {}, {}
    for view in recipe.views:
        if view.name != "clip30":
            where = " AND ".join(f"({rule.where})" for rule in view.rules) or "TRUE"
            found = duckdb.sql(f"SELECT * FROM {rows} WHERE {where}").fetchall()
            kept[view.name] = set(found)
            wrong[view.name] = sum(not right for *_, right in found) / len(found)
    sources = ["gallery", "forum", "spam", "vehicles", "copies"]
    assert sum(len(kept[name]) for name in sources) == len(set().union(*map(kept.get, sources)))
    parts = [name for name in kept if name.startswith("part_")]
    assert sum(len(kept[name]) for name in parts) == len(kept["raw"]) == 7 * 2 * 2 * 512
    assert set().union(*(kept[name] for name in parts)) == kept["raw"]
    assert min(len(kept[name]) for name in parts) > 0.98 * len(kept["raw"]) / 6
    assert wrong["vehicles"] == wrong["copies"] == 0
    assert wrong["gallery"] < wrong["forum"] < wrong["spam"]
