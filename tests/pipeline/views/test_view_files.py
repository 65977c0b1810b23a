"""Views as files: masks beside the shards, a document that says how they came about, nothing
made twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from filters import make
from manifests import disk, reader
from manifests.columns import VIEW
from manifests.layout import PoolLayout, pool_fingerprint, read_commit_records, uids_checksum
from manifests.records import ScoreSetDocument, ViewDocument, read_document
from manifests.schema import FilterSpec, Recipe, Rule, Source, View
from pipeline.scoring import scorer
from pipeline.views import files
from tests.support.bundles import change_shard, mask_of, write_scores
from tests.support.small_pool import make_pool, rows, set_name, write_shard

FILTERS = (FilterSpec(name="caption"), FilterSpec(name="picture"))


def recipe(*wanted: View, filters: tuple[FilterSpec, ...] = FILTERS) -> Recipe:
    return Recipe(
        name="r", source=Source(kind="files", paths=("x.csv",)), filters=filters, views=wanted
    )


def view(name: str, *rules: tuple[str, str] | Rule) -> View:
    return View(
        name=name,
        rules=tuple(r if isinstance(r, Rule) else Rule(name=r[0], where=r[1]) for r in rules),
    )


RAW = view("raw")
LONG = view("long", ("words", "caption_words > 3"), ("wide", "aspect < 1.6"))
TOP = view("bright", ("bright", "brightness >= top(brightness, 0.25)"))
ALIKE = view("alike", Rule(name="random", random_like="bright"))


@pytest.fixture
def pool(tmp_path: Path) -> str:
    made = make_pool(tmp_path, rows(30))
    scorer.score(made, FILTERS, engine="inline")
    return made


def masks(pool: str, name: str) -> pa.Table:
    return pa.concat_tables(mask_of(pool, name, number) for number in read_commit_records(pool))


def test_what_a_view_leaves_on_disk(pool: str) -> None:
    made = files.choose_views(pool, recipe(RAW, LONG, TOP, ALIKE))
    assert list(made) == ["raw", "long", "bright", "alike"]
    for name, document in made.items():
        assert read_document(PoolLayout(pool).view_json(name), ViewDocument) == document
        table = masks(pool, name)
        assert table.schema.remove_metadata() == VIEW
        assert table.num_rows == 30
        assert sum(table["kept"].to_pylist()) == document.kept
        assert document.funnel[:2] == (("attempted", 30), ("stored", 24))
        assert document.funnel[-1][1] == document.kept
        assert document.fingerprint == pool_fingerprint(read_commit_records(pool))
    assert made["long"].scores == {"caption": set_name(FILTERS[0])}
    assert made["bright"].scores == made["alike"].scores == {"picture": set_name(FILTERS[1])}
    assert made["bright"].thresholds["top(brightness, 0.25)"].rows == 24
    assert made["bright"].kept == made["alike"].kept == 6
    assert made["long"].rules[0] == {"name": "words", "where": "caption_words > 3"}
    expected = [
        "not_stored"
        if i % 5 == 4
        else "words"
        if i % 7 < 3
        else "wide"
        if max(100 + 10 * i, 200) / min(100 + 10 * i, 200) >= 1.6
        else None
        for i in range(30)
    ]
    assert masks(pool, "long")["rule"].to_pylist() == expected


def test_a_view_is_made_again_only_when_something_changed(pool: str) -> None:
    first = files.choose_views(pool, recipe(RAW, LONG, ALIKE, TOP))
    stamp = {name: Path(pool, "views", f"{name}.json").stat().st_mtime_ns for name in first}

    def made_again(new: Recipe) -> set[str]:
        files.choose_views(pool, new)
        now = {name: Path(pool, "views", f"{name}.json").stat().st_mtime_ns for name in first}
        changed = {name for name in first if now[name] != stamp[name]}
        stamp.update(now)
        return changed

    assert made_again(recipe(RAW, LONG, ALIKE, TOP)) == set()
    longer = view("long", ("words", "caption_words > 4"), ("wide", "aspect < 1.6"))
    assert made_again(recipe(RAW, longer, ALIKE, TOP)) == {"long"}
    darker = view("bright", ("bright", "brightness >= top(brightness, 0.5)"))
    assert made_again(recipe(RAW, longer, ALIKE, darker)) == {"alike", "bright"}
    write_shard(pool, 3, list(enumerate(rows(5), start=30)))
    scorer.score(pool, FILTERS, engine="inline")
    assert made_again(recipe(RAW, longer, ALIKE, darker)) == {"raw", "long", "alike", "bright"}


def test_a_view_says_whether_its_rules_can_meet_nan(pool: str) -> None:
    """Also one that is random like such a view. No column of `words` can have NaN."""
    words = view("words", ("words", "caption_words > 3"))
    views = recipe(TOP, words, ALIKE)
    made = files.choose_views(pool, views)
    assert {name: document.nan_is_missing for name, document in made.items()} == {
        "bright": True,
        "words": None,
        "alike": True,
    }
    assert "nan_is_missing" not in Path(pool, "views", "words.json").read_text()


def test_some_views_of_a_recipe(pool: str) -> None:
    assert list(files.choose_views(pool, recipe(RAW, LONG, TOP), ["long"])) == ["long"]
    assert disk.list_names(disk.join(pool, "views"), ".json") == ["long.json"]
    with pytest.raises(ValueError, match="has no view 'short'; it has raw, long, bright"):
        files.choose_views(pool, recipe(RAW, LONG, TOP), ["short"])


@pytest.mark.slow
def test_the_cut_into_shards_changes_no_row(tmp_path: Path) -> None:
    kept = []
    for size in (3, 10, 30):
        pool = make_pool(tmp_path / str(size), rows(30), per_shard=size)
        scorer.score(pool, FILTERS, engine="inline")
        files.choose_views(pool, recipe(LONG, TOP, ALIKE))
        kept.append(
            {name: masks(pool, name)["rule"].to_pylist() for name in ("long", "bright", "alike")}
        )
    assert kept[0] == kept[1] == kept[2]


def test_a_random_view_on_demand_is_the_one_that_a_recipe_makes(pool: str) -> None:
    files.choose_views(pool, recipe(TOP, ALIKE))
    (document,) = files.random_like(pool, "bright").values()
    assert document.name == "random_like_bright"
    assert masks(pool, "random_like_bright") == masks(pool, "alike")
    alike = read_document(PoolLayout(pool).view_json("alike"), ViewDocument)
    assert document.rules == alike.rules
    path = Path(pool, "views", "random_like_bright.json")
    stamp = path.stat().st_mtime_ns
    files.random_like(pool, "bright")
    assert path.stat().st_mtime_ns == stamp


def test_each_seed_has_a_random_view_of_its_own(pool: str) -> None:
    files.choose_views(pool, recipe(TOP, ALIKE))
    names = [f"random_like_bright.seed-{seed}" for seed in (0, 1, 2)]
    documents = files.random_like(pool, "bright", [0, 1, 2])
    assert list(documents) == names
    assert masks(pool, names[0])["kept"] == masks(pool, "alike")["kept"]
    assert masks(pool, names[1])["kept"] != masks(pool, "alike")["kept"]
    assert len({document.kept for document in documents.values()}) == 1
    stamp = Path(pool, "views", f"{names[1]}.json").stat().st_mtime_ns
    files.random_like(pool, "bright", [1, 3])
    assert Path(pool, "views", f"{names[1]}.json").stat().st_mtime_ns == stamp
    assert files.views_not_in(recipe(TOP, ALIKE), pool) == []


def test_a_random_view_of_what_is_not_there_or_is_old(pool: str) -> None:
    with pytest.raises(ValueError, match=r"view 'bright' is not in .*; run clipmill filter"):
        files.random_like(pool, "bright")
    files.choose_views(pool, recipe(TOP))
    write_shard(pool, 3, list(enumerate(rows(5), start=30)))
    with pytest.raises(ValueError, match="view 'bright' is older than the shards"):
        files.random_like(pool, "bright")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            view("v", ("clip", "clip_score > 0.3")),
            "'clip_score' of filter clip_score, which recipe 'r' does not list",
        ),
        (view("v", ("lang", "langage = 'en'")), "no column 'langage'; did you mean 'language'"),
        (
            view("v", ("words", "caption_words > 99")),
            "view 'v' keeps nothing: rule 'words' .* none of the 24 rows",
        ),
        (view("../v"), "a view cannot be named '../v'"),
    ],
)
def test_views_that_cannot_be_made(pool: str, wanted: View, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        files.choose_views(pool, recipe(wanted))
    assert disk.list_names(disk.join(pool, "views")) == []


def test_a_failed_change_leaves_the_old_view(pool: str) -> None:
    before = files.choose_views(pool, recipe(LONG))["long"]
    with pytest.raises(ValueError, match="keeps nothing"):
        files.choose_views(pool, recipe(view("long", ("words", "caption_words > 99"))))
    assert read_document(PoolLayout(pool).view_json("long"), ViewDocument) == before


def test_a_crash_between_masks_and_document_leaves_no_view(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.choose_views(pool, recipe(LONG))
    publish, moved = disk.publish, []

    def crash_after_the_masks(staged: Path, path: str) -> None:
        moved.append(path)
        publish(staged, path)
        raise KeyboardInterrupt

    longer = recipe(view("long", ("words", "caption_words > 4")))
    with monkeypatch.context() as patched:
        patched.setattr(disk, "publish", crash_after_the_masks)
        with pytest.raises(KeyboardInterrupt):
            files.choose_views(pool, longer)
    assert moved[0].endswith("views/long/bundle-00000.parquet")
    assert not disk.exists(PoolLayout(pool).view_json("long"))
    document = files.choose_views(pool, longer)["long"]
    assert sum(masks(pool, "long")["kept"].to_pylist()) == document.kept


@pytest.mark.slow
def test_a_view_that_changed_is_told_in_one_line(
    pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    files.choose_views(pool, recipe(LONG, TOP, ALIKE))
    caplog.clear()
    longer = view("long", ("words", "caption_words > 4"), ("wide", "aspect < 1.6"))
    brighter = view("bright", ("bright", "brightness >= top(brightness, 0.5)"))
    files.choose_views(pool, recipe(longer, brighter, ALIKE))
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 3
    assert lines[0].startswith(
        "view long changed: rule words was (caption_words > 3) and is (caption_words > 4); it kept "
    )
    assert lines[1].startswith("view bright changed: rule bright was (brightness >= top(brigh")
    assert lines[1].endswith("it kept 6 rows and keeps 12")
    assert "view alike changed: the view that it is random_like has other rules" in lines[2]
    write_shard(pool, 3, list(enumerate(rows(5), start=30)))
    scorer.score(pool, FILTERS, engine="inline")
    caplog.clear()
    files.choose_views(pool, recipe(longer))
    assert "view long changed: the pool had 3 shards and has 4; it kept" in caplog.text


def test_rules_that_are_new_gone_or_in_another_order_are_told(
    pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = [("words", "caption_words > 3"), ("wide", "aspect < 1.6")]
    steps = [
        (first[::-1], "view v changed: the order of its rules; it kept "),
        (first[:1], "view v changed: rule wide (aspect < 1.6) is gone; it kept "),
        (first, "view v changed: rule wide (aspect < 1.6) is new; it kept "),
    ]
    files.choose_views(pool, recipe(view("v", *first)))
    for rules, message in steps:
        caplog.clear()
        files.choose_views(pool, recipe(view("v", *rules)))
        assert message in caplog.text


def test_a_damaged_document_is_made_again(pool: str, caplog: pytest.LogCaptureFixture) -> None:
    first = files.choose_views(pool, recipe(LONG))
    Path(PoolLayout(pool).view_json("long")).write_text("{}")
    assert files.choose_views(pool, recipe(LONG)) == first
    assert "view long is made again: " in caplog.text


def test_views_that_the_recipe_no_longer_has_are_named(
    pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    files.choose_views(pool, recipe(RAW, LONG, TOP))
    files.random_like(pool, "long")
    files.random_like(pool, "bright")
    caplog.clear()
    files.choose_views(pool, recipe(RAW, LONG, TOP), ["long"])
    assert "does not have" not in caplog.text
    files.choose_views(pool, recipe(RAW, LONG))
    assert "views that recipe 'r' does not have stay in the pool: bright, random_like_bright;" in (
        caplog.text
    )
    assert files.views_not_in(recipe(RAW, LONG, TOP), pool) == []


@pytest.mark.parametrize("damage", [{"sidecar": "0" * 64}, {"rows": lambda table: table.slice(1)}])
def test_scores_of_other_rows_are_refused(pool: str, damage: dict[str, Any]) -> None:
    change_shard(PoolLayout(pool).score_bundle(set_name(FILTERS[0]), 1), 1, **damage)
    with pytest.raises(ValueError, match=r"00000\.parquet does not have the columns.* remove .*"):
        files.choose_views(pool, recipe(LONG))
    assert files.choose_views(pool, recipe(TOP))["bright"].kept == 6  # reads another set


def test_a_sample_is_written_with_its_share_and_seed(pool: str) -> None:
    half = view("half", Rule(name="half", sample=0.5, seed=3), ("words", "caption_words > 1"))
    document = files.choose_views(pool, recipe(half))["half"]
    assert document.rules[0] == {"name": "half", "sample": 0.5, "seed": 3}
    assert 0 < document.funnel[2][1] < 24


def test_a_filter_that_is_not_scored_yet(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    with pytest.raises(
        ValueError,
        match=r"scores of filter caption \(caption@\w+\) are not there; run clipmill score",
    ):
        files.choose_views(pool, recipe(LONG))
    with pytest.raises(ValueError, match="has no committed shard"):
        files.choose_views(str(tmp_path / "nowhere"), recipe(RAW))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (recipe(RAW, filters=(FilterSpec(name="captoin"),)), "did you mean 'caption'"),
        (recipe(view("v", ("w", "caption_words >"))), "it ends too early, after '>'"),
        (recipe(view("v", ("w", "caption_words"))), "not true or false"),
        (recipe(view("v", ("w", "url > 5"))), "rule 'w'"),
        (
            recipe(view("v", ("w", "language = 'en'"))),
            "of filter language, which recipe 'r' does not list",
        ),
        (recipe(view("v", Rule(name="x", view="nowhere"))), "no view 'nowhere'"),
    ],
)
def test_a_recipe_is_checked_before_there_is_a_pool(wrong: Recipe, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        files.check_views(wrong)


def test_a_good_recipe_passes_the_check() -> None:
    files.check_views(recipe(RAW, LONG, TOP, ALIKE))


# The baselines of DataComp that text, size and CLIP score decide, as a person writes them.
BASELINES: dict[str, tuple[str, str]] = {
    "no_filter": ("[tokens]", "  no_filter: []"),
    "basic": (
        "[caption, language]",
        """  basic:
    - english: language = 'en'
    - length: caption_words > 2 AND caption_chars > 5
    - side: least(original_width, original_height) >= 200
    - shape: aspect <= 3""",
    ),
    "clip_l14_30": (
        "[clip_score: {model: ViT-L-14-quickgelu, pretrained: openai}]",
        '  clip_l14_30: [{clip: "clip_score >= top(clip_score, 0.30)"}]',
    ),
    "laion2b": (
        "[language, clip_score: {model: ViT-B-32-quickgelu, pretrained: openai}]",
        "  laion2b: [{english: language = 'en'}, {clip: clip_score >= 0.28}]",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_datacomps_baselines_are_at_most_six_lines(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters, text = BASELINES[name]
    assert len(text.splitlines()) <= 6
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"name: r\nsource: {{kind: files, paths: [x.csv]}}\nfilters: {filters}\nviews:\n{text}\n"
    )
    wish = reader.read_manifest(path, Recipe)
    files.check_views(wish)
    for spec in wish.filters:
        set_name(spec)
    given = [row for row in rows(40) if row.reason is None]
    pool = make_pool(tmp_path / "pool", given, per_shard=20)
    fill(pool, wish)
    kept = masks(pool, name)["kept"].to_pylist() if files.choose_views(pool, wish) else []
    assert kept == [DECIDED[name](i) for i in range(len(given))]


VALUES: dict[str, Callable[[int], Any]] = {
    "caption_words": lambda i: i,
    "caption_chars": lambda i: 3 * i,
    "language": lambda i: "de" if i % 2 else "en",
    "language_score": lambda i: 1.0,
    "clip_score": lambda i: i / 100,
    "tokens": lambda i: [i],
}


def fill(pool: str, wish: Recipe) -> None:
    """Score sets with the values above for the i-th row of the pool."""
    layout, records = PoolLayout(pool), read_commit_records(pool)
    for spec in wish.filters:
        name, kinds = set_name(spec), make(spec).columns()
        start, shards = 0, {}
        for shard, record in records.items():
            uids = disk.read_parquet(layout.sidecar(shard), ["uid"])["uid"]
            numbers = range(start, start + len(uids))
            arrays = {}
            for column, kind in kinds.items():
                arrays[column] = pa.array([VALUES[column](i) for i in numbers], kind)
            metadata = {"uids": uids_checksum(uids), "sidecar": record.sidecar_sha256}
            shards[int(shard)] = pa.table(arrays), metadata
            start = numbers.stop
        write_scores(pool, name, shards)
        document = ScoreSetDocument(
            name=spec.name,
            id=name.partition("@")[2],
            version=1,
            options={},
            identity="",
            columns=tuple(kinds),
            fingerprint=pool_fingerprint(records),
            rows=start,
            stored=start,
            scored=start,
            seconds=0.0,
        )
        disk.write_json(layout.score_set_json(name), document)


def _side(i: int) -> int:
    return 100 + 10 * (i // 4 * 5 + i % 4)  # original_width of the i-th row that is stored


DECIDED: dict[str, Any] = {
    "no_filter": lambda i: True,
    "basic": lambda i: i % 2 == 0 and i > 2 and _side(i) >= 200 and _side(i) / 200 <= 3,
    "clip_l14_30": lambda i: i >= 32 - 10,  # ceil(0.30 × 32) rows
    "laion2b": lambda i: i % 2 == 0 and i >= 28,
}


def test_the_funnel_for_a_person(pool: str) -> None:
    lines = files.funnel_lines(files.choose_views(pool, recipe(TOP)))
    assert lines[0] == "view bright: 6 of 30 rows kept"
    assert lines[1].split() == ["attempted", "30", "100.00%"]
    assert lines[3].split() == ["bright", "6", "20.00%"]
    assert "which keeps 25.0000% of 24 rows" in lines[4]


def test_a_file_that_a_person_left_beside_the_views_does_no_harm(pool: str) -> None:
    files.choose_views(pool, recipe(RAW))
    (Path(pool) / "views/all (copy of May).json").write_text("{}")
    assert files.views_not_in(recipe(RAW), pool) == []
    files.choose_views(pool, recipe(RAW, LONG))


def test_the_names_of_masks_last_before_the_document_is_there(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure must not leave a document without its masks, or an old one with new masks."""
    files.choose_views(pool, recipe(RAW))
    calls: list[str] = []
    fsync, replace, unlink = os.fsync, os.replace, Path.unlink

    def name(path: Any) -> str:
        return os.path.relpath(path, f"{pool}/views")

    def synced(number: int) -> None:
        calls.append("sync " + name(os.readlink(f"/proc/self/fd/{number}")))
        fsync(number)

    def renamed(source: Any, target: Any) -> None:
        calls.append("rename " + name(target))
        replace(source, target)

    def removed(path: Path, missing_ok: bool = False) -> None:
        calls.append("remove " + name(path))
        unlink(path, missing_ok)

    write_shard(pool, 3, [(30, rows(1)[0])])
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(Path, "unlink", removed)
    files.choose_views(pool, recipe(RAW))
    first, last = calls.index("remove raw.json"), calls.index("rename raw.json")
    masks = [i for i, call in enumerate(calls) if call.startswith("rename raw/")]
    assert first < calls.index("sync .", first) < min(masks)
    assert max(masks) < calls.index("sync raw", max(masks)) < last


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden", "a b", "/etc/x", "v" * 101, "a.json"])
def test_a_view_that_is_no_file_name_is_refused_before_there_is_a_pool(name: str) -> None:
    with pytest.raises(ValueError, match=r"a view cannot be named '.*': use letters, digits"):
        files.check_views(recipe(RAW, view(name)))
