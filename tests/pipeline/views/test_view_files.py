"""Views as files: masks beside the shards, a document that says how they came about, nothing
made twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.aligned import view_shards
from clipmill.manifests.columns import VIEW
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.pool import Pool
from clipmill.manifests.records import ViewDocument, ViewRule, read_document
from clipmill.manifests.schema import FilterSpec, Recipe, Rule, View
from clipmill.pipeline.audit.integrity import verify
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring import scorer
from clipmill.pipeline.views import choose as choosing
from clipmill.pipeline.views import files
from tests.support import chosen
from tests.support.bundles import change_shard, mask_of
from tests.support.chosen import view
from tests.support.commit_records import pool_fingerprint, read_commit_records
from tests.support.folders import make_bundles_small
from tests.support.small_pool import make_pool, rows, set_name, write_shard

FILTERS = (FilterSpec(name="caption"), FilterSpec(name="picture"))
RAW = view("raw")
LONG = view("long", ("words", "caption_words > 3"), ("wide", "aspect < 1.6"))
TOP = view("bright", ("bright", "brightness >= top(brightness, 0.25)"))
ALIKE = view("alike", Rule(name="random", random_like="bright"))
WIDE = view("wide", ("wide", "original_width >= 200"))


def recipe(*wanted: View, filters: tuple[FilterSpec, ...] = FILTERS) -> Recipe:
    return chosen.recipe(*wanted, filters=filters)


@pytest.fixture
def plain_pool(tmp_path: Path) -> str:
    return make_pool(tmp_path, rows(30))


@pytest.fixture
def pool(plain_pool: str) -> str:
    scorer.score(PoolWriter(plain_pool), FILTERS, engine="inline")
    return plain_pool


def masks(pool: str, name: str) -> pa.Table:
    return pa.concat_tables(mask_of(pool, name, number) for number in read_commit_records(pool))


def document_of(pool: str, name: str) -> ViewDocument:
    return read_document(PoolLayout(pool).view_json(name), ViewDocument)


def test_what_a_view_leaves_on_disk(pool: str) -> None:
    half = view("half", Rule(name="half", sample=0.5, seed=3), ("words", "caption_words > 1"))
    made = files.choose_views(PoolWriter(pool), recipe(RAW, LONG, TOP, ALIKE, half))
    assert list(made) == ["raw", "long", "bright", "alike", "half"]
    for name, document in made.items():
        assert document_of(pool, name) == document
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
    assert made["long"].rules[0] == ViewRule(name="words", where="caption_words > 3")
    assert made["half"].rules[0] == ViewRule(name="half", sample=0.5, seed=3)
    assert 0 < made["half"].funnel[2][1] < 24
    expected: list[str | None] = []
    for i in range(30):
        sides = 100 + 10 * i, 200
        wide = "wide" if max(sides) / min(sides) >= 1.6 else None
        expected.append("not_stored" if i % 5 == 4 else "words" if i % 7 < 3 else wide)
    assert masks(pool, "long")["rule"].to_pylist() == expected
    lines = files.funnel_lines({"bright": made["bright"]})
    assert lines[0] == "view bright: 6 of 30 rows kept"
    assert lines[3].split() == ["bright", "6", "20.00%"]
    assert "which keeps 25.0000% of 24 rows" in lines[4]


def test_rules_of_a_view_that_is_there_are_not_parsed(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the words of the rules name columns of the same score sets as before."""
    quoted = view("quoted", ("words", '"CAPTION_words" > 3'), ("text", "caption <> 'brightness'"))
    half = view("half", Rule(name="half", sample=0.5, seed=3), ("words", "caption_words > 1"))
    views = (RAW, LONG, TOP, half)
    made = files.choose_views(PoolWriter(pool), recipe(*views, quoted, ALIKE))
    parsed = []

    def parse(views: object, name: str, known: object) -> set[str]:
        parsed.append(name)
        raise ValueError("parsed")

    with monkeypatch.context() as patch:
        patch.setattr(files, "columns_of", parse)
        again = files.choose_views(PoolWriter(pool), recipe(*views))
        assert again == {name: made[name] for name in again}
        assert not parsed
        words = FilterSpec(name="words", kind="caption")
        for changed in (
            recipe(view("long", ("words", "caption_words > 4"))),  # another rule
            recipe(LONG, filters=FILTERS[1:]),  # a filter that is not listed
            recipe(quoted),  # brightness is a word of a text
            recipe(TOP, ALIKE),  # of another view's columns
            recipe(LONG, filters=(FilterSpec(name="caption", options={"detail": True}),)),
            recipe(view("raw", ("words", "words_words > 1")), filters=(words,)),
        ):
            with pytest.raises(ValueError, match="parsed"):
                files.choose_views(PoolWriter(pool), changed)
        assert parsed == ["long", "long", "quoted", "alike", "long", "raw"]
        masks = Path(PoolLayout(pool).view_bundle("long", 0))
        masks.unlink()
        with pytest.raises(ValueError, match="parsed"):
            files.choose_views(PoolWriter(pool), recipe(LONG))
    assert files.choose_views(PoolWriter(pool), recipe(LONG))["long"] == made["long"]
    assert masks.exists()


def test_a_view_is_made_again_only_when_something_changed(
    pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What changed is told in one line for each view."""
    first = files.choose_views(PoolWriter(pool), recipe(RAW, LONG, ALIKE, TOP))
    stamp = {name: Path(pool, "views", f"{name}.json").stat().st_mtime_ns for name in first}

    def changes(new: Recipe) -> dict[str, str]:
        caplog.clear()
        files.choose_views(PoolWriter(pool), new)
        now = {name: Path(pool, "views", f"{name}.json").stat().st_mtime_ns for name in first}
        changed = {name for name in first if now[name] != stamp[name]}
        stamp.update(now)
        lines = {}
        for record in caplog.records:
            if record.levelname == "WARNING":
                _, name, _, line = record.getMessage().split(" ", 3)
                lines[name] = line
        assert lines.keys() == changed
        return lines

    assert changes(recipe(RAW, LONG, ALIKE, TOP)) == {}
    longer = view("long", ("words", "caption_words > 4"), ("wide", "aspect < 1.6"))
    (line,) = changes(recipe(RAW, longer, ALIKE, TOP)).values()
    assert line.startswith("rule words was (caption_words > 3) and is (caption_words > 4); it kept")
    darker = view("bright", ("bright", "brightness >= top(brightness, 0.5)"))
    lines = changes(recipe(RAW, longer, ALIKE, darker))
    assert (
        "it kept 6 rows and keeps 12; of the rows that were there 0 went out and 6 came in"
        in (lines["bright"])
    )
    assert lines["alike"].startswith("the view that it is random_like has other rules; ")
    for rules, message in [
        (longer.rules[::-1], "the order of its rules; "),
        (longer.rules[1:], "rule words (caption_words > 4) is gone; "),
        (longer.rules, "rule words (caption_words > 4) is new; "),
    ]:
        lines = changes(recipe(RAW, view("long", *rules), ALIKE, darker))
        assert lines["long"].startswith(message)
    write_shard(pool, 3, list(enumerate(rows(5), start=30)))
    scorer.score(PoolWriter(pool), FILTERS, engine="inline")
    lines = changes(recipe(RAW, longer, ALIKE, darker))
    assert lines.keys() == {"raw", "long", "alike", "bright"}
    assert lines["long"].startswith("the pool had 3 shards and has 4; it kept")


def test_cuts_bundles_and_threads_change_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundles_small(monkeypatch)
    top = view("top", ("top", "original_width >= top(original_width, 0.25)"))
    like = view("like", Rule(name="random", random_like="top", seed=1))
    outcomes, content = [], []
    for number, (size, threads) in enumerate([(15, 1), (3, 1), (3, 4)]):
        monkeypatch.setattr(choosing, "THREADS", threads)
        monkeypatch.setattr(files, "UNIT_SHARDS", 1)
        pool = make_pool(tmp_path / str(number), rows(15), per_shard=size)
        made = files.choose_views(PoolWriter(pool), recipe(WIDE, top, like))
        outcomes.append({name: masks(pool, name)["rule"].to_pylist() for name in made})
        for name, document in made.items():
            assert int(view_shards(PoolLayout(pool), document)[1].sum()) == document.kept
            shards = list(Pool.open(pool).scan(["uid"], view=name))
            assert sum(int(shard.kept.sum()) for shard in shards) == document.kept
        assert verify(pool) == []
        folder = Path(pool, "views/top")
        content.append({path.name: path.read_bytes() for path in folder.iterdir()})
        hidden = [path for path in folder.parent.iterdir() if path.name.startswith(".")]
        assert hidden == []
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert content[1] == content[2]
    bundles = sorted(name for name in content[1] if name.startswith("bundle"))
    assert bundles == [f"bundle-0000{number}.parquet" for number in range(3)]


def test_random_views_on_demand(pool: str) -> None:
    """The same as that of a recipe, one for each seed, none of what is not there or is old."""
    with pytest.raises(ValueError, match=r"has no view 'bright'; it has "):
        files.random_like(PoolWriter(pool), "bright")
    files.choose_views(PoolWriter(pool), recipe(TOP, ALIKE))
    (document,) = files.random_like(PoolWriter(pool), "bright").values()
    assert document.name == "random_like_bright"
    assert document.rules == document_of(pool, "alike").rules
    assert masks(pool, "random_like_bright") == masks(pool, "alike")
    names = [f"random_like_bright.seed-{seed}" for seed in (0, 1, 2)]
    assert list(files.random_like(PoolWriter(pool), "bright", [0, 1, 2])) == names
    assert masks(pool, names[0])["kept"] == masks(pool, "alike")["kept"]
    assert masks(pool, names[1])["kept"] != masks(pool, "alike")["kept"]
    stamp = Path(pool, "views", f"{names[1]}.json").stat().st_mtime_ns
    files.random_like(PoolWriter(pool), "bright", [1, 3])
    assert Path(pool, "views", f"{names[1]}.json").stat().st_mtime_ns == stamp
    assert files.views_not_in(recipe(TOP, ALIKE), PoolLayout(pool)) == []
    write_shard(pool, 3, list(enumerate(rows(5), start=30)))
    with pytest.raises(ValueError, match=r"view 'bright' of .* is stale: the pool's shards have"):
        files.random_like(PoolWriter(pool), "bright")


def test_a_part_of_views_on_demand(pool: str) -> None:
    """Rows of the view alone, the same of two views for a seed, others for another seed."""
    with pytest.raises(ValueError, match=r"has no view 'raw'; it has "):
        files.parts_of_views(PoolWriter(pool), ["raw"], 0.5, [0])
    given = recipe(RAW, TOP)
    files.choose_views(PoolWriter(pool), given)
    files.random_like(PoolWriter(pool), "bright", [0])
    views = ["raw", "bright", "random_like_bright.seed-0"]
    made = files.parts_of_views(PoolWriter(pool), views, 0.5, [0, 1])
    kept = {name: np.array(masks(pool, name)["kept"].to_pylist()) for name in [*views, *made]}
    assert list(made) == [f"{name}.part-0.5.seed-{seed}" for name in views for seed in (0, 1)]
    for view_name in views:
        first, second = (f"{view_name}.part-0.5.seed-{seed}" for seed in (0, 1))
        for name in (first, second):
            assert made[name].kept == kept[name].sum()
            assert not (kept[name] & ~kept[view_name]).any()
            of_raw = kept[f"raw.part-0.5.seed-{name[-1]}"]
            assert (kept[name] == kept[view_name] & of_raw).all()
            reasons = masks(pool, name)["rule"].to_pylist()
            before = masks(pool, view_name)["rule"].to_pylist()
            left_out = kept[view_name] & ~kept[name]
            assert reasons == np.where(left_out, "random_part", before).tolist()
            funnel = document_of(pool, view_name).funnel
            assert made[name].funnel == (*funnel, ("random_part", made[name].kept))
    # `random_like` and `sample` draw by the same hash: a part must not be of their smallest.
    assert made["random_like_bright.seed-0.part-0.5.seed-0"].kept < 6
    assert verify(pool) == []
    assert files.views_not_in(given, PoolLayout(pool)) == []
    again = Path(pool, "views", "raw.part-0.5.seed-0.json")
    stamp = again.stat().st_mtime_ns
    assert files.parts_of_views(PoolWriter(pool), ["raw"], 0.5, [0]) == {
        again.stem: made[again.stem]
    }
    assert again.stat().st_mtime_ns == stamp
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match="must lie between 0 and 1"):
            files.parts_of_views(PoolWriter(pool), ["raw"], share, [0])
    with pytest.raises(ValueError, match="keeps nothing: none of the"):
        files.parts_of_views(PoolWriter(pool), ["bright"], 1e-9, [0])
    for seed in (-1, 2**40):
        with pytest.raises(ValueError, match=r"the seeds are \[.*must lie in \[0, 2\^40\)"):
            files.parts_of_views(PoolWriter(pool), ["raw"], 0.5, [seed])
    with pytest.raises(ValueError, match="is a part itself"):
        files.parts_of_views(PoolWriter(pool), ["raw", again.stem], 0.5, [0])
    with pytest.raises(ValueError, match="name the views"):
        files.parts_of_views(PoolWriter(pool), [], 0.5, [0])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (view("v", ("clip", "clip_score > 0.3")), "'clip_score' of filter clip_score, which"),
        (view("v", ("lang", "langage = 'en'")), "no column 'langage'; did you mean 'language'"),
        (view("v", ("w", "caption_words > 99")), "view 'v' keeps nothing: rule 'w' .* of the 24"),
        (view("../v"), "a view cannot be named '../v'"),
    ],
)  # fmt: skip
def test_views_that_cannot_be_made(pool: str, wanted: View, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        files.choose_views(PoolWriter(pool), recipe(wanted))
    assert disk.list_names(disk.join(pool, "views")) == []


def test_a_failed_change_leaves_the_old_view_and_a_damaged_document_is_made_again(
    pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = files.choose_views(PoolWriter(pool), recipe(LONG))["long"]
    with pytest.raises(ValueError, match="keeps nothing"):
        files.choose_views(PoolWriter(pool), recipe(view("long", ("words", "caption_words > 99"))))
    assert document_of(pool, "long") == before
    Path(PoolLayout(pool).view_json("long")).write_text("{}")
    assert files.choose_views(PoolWriter(pool), recipe(LONG))["long"] == before
    assert "view long is made again: " in caplog.text


def test_a_crash_between_masks_and_document_leaves_no_view(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.choose_views(PoolWriter(pool), recipe(LONG))
    publish, moved = disk.publish, []

    def crash_after_the_masks(staged: Path, path: str) -> None:
        moved.append(path)
        publish(staged, path)
        raise KeyboardInterrupt

    longer = recipe(view("long", ("words", "caption_words > 4")))
    with monkeypatch.context() as patched:
        patched.setattr(disk, "publish", crash_after_the_masks)
        with pytest.raises(KeyboardInterrupt):
            files.choose_views(PoolWriter(pool), longer)
    assert moved[0].endswith("views/long/bundle-00000.parquet")
    assert not disk.exists(PoolLayout(pool).view_json("long"))
    document = files.choose_views(PoolWriter(pool), longer)["long"]
    assert sum(masks(pool, "long")["kept"].to_pylist()) == document.kept


def test_a_view_that_lacks_a_file_is_made_again(
    plain_pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundles_small(monkeypatch)
    document = files.choose_views(PoolWriter(plain_pool), recipe(WIDE))["wide"]
    bundle = Path(PoolLayout(plain_pool).view_bundle("wide", 2))
    damaged = bytearray(bundle.read_bytes())
    damaged[40] ^= 1
    bundle.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"bundle-00001\.parquet is damaged"):
        list(Pool.open(plain_pool).scan(["uid"], view="wide"))
    bundle.unlink()
    assert files.choose_views(PoolWriter(plain_pool), recipe(WIDE))["wide"] == document
    assert len(list(Pool.open(plain_pool).scan(["uid"], view="wide"))) == 3


def test_views_that_the_recipe_no_longer_has_are_named(
    pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    files.choose_views(PoolWriter(pool), recipe(RAW, LONG, TOP))
    files.random_like(PoolWriter(pool), "long")
    files.random_like(PoolWriter(pool), "bright")
    (Path(pool) / "views/all (copy of May).json").write_text("{}")  # of a person
    caplog.clear()
    assert list(files.choose_views(PoolWriter(pool), recipe(RAW, LONG, TOP), ["long"])) == ["long"]
    assert "does not have" not in caplog.text
    files.choose_views(PoolWriter(pool), recipe(RAW, LONG))
    assert "views that recipe 'r' does not have stay in the pool: bright, random_like_bright;" in (
        caplog.text
    )
    assert files.views_not_in(recipe(RAW, LONG, TOP), PoolLayout(pool)) == []


@pytest.mark.parametrize("damage", [{"sidecar": "0" * 64}, {"rows": lambda table: table.slice(1)}])
def test_scores_of_other_rows_are_refused(pool: str, damage: dict[str, Any]) -> None:
    change_shard(PoolLayout(pool).score_bundle(set_name(FILTERS[0]), 1), 1, **damage)
    with pytest.raises(ValueError, match=r"00000\.parquet does not have the columns.* remove .*"):
        files.choose_views(PoolWriter(pool), recipe(LONG))
    assert (
        files.choose_views(PoolWriter(pool), recipe(TOP))["bright"].kept == 6
    )  # reads another set


def test_a_filter_that_is_not_scored_yet(plain_pool: str) -> None:
    message = r"scores of filter caption \(caption@\w+\) are not there; run clipmill score"
    with pytest.raises(ValueError, match=message):
        files.choose_views(PoolWriter(plain_pool), recipe(LONG))


NO_NAMES = ["..", "a/b", "", ".hidden", "a b", "/etc/x", "v" * 101, "a.json"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (recipe(RAW, filters=(FilterSpec(name="captoin"),)), "did you mean 'caption'"),
        (recipe(view("v", ("w", "caption_words >"))), "it is no SQL expression"),
        (recipe(view("v", ("w", "language = 'en'"))), "of filter language, which recipe 'r' does"),
        *[(recipe(RAW, view(name)), r"be named '.*': use letters, digits") for name in NO_NAMES],
    ],
)
def test_a_recipe_is_checked_before_there_is_a_pool(wrong: Recipe, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        files.check_views(wrong)


def test_the_names_of_masks_last_before_the_document_is_there(
    plain_pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure must not leave a document without its masks, or an old one with new masks."""
    files.choose_views(PoolWriter(plain_pool), recipe(RAW))
    calls: list[str] = []
    fsync, replace, unlink = os.fsync, os.replace, Path.unlink

    def name(path: Any) -> str:
        return os.path.relpath(path, f"{plain_pool}/views")

    def synced(number: int) -> None:
        calls.append("sync " + name(os.readlink(f"/proc/self/fd/{number}")))
        fsync(number)

    def renamed(source: Any, target: Any) -> None:
        calls.append("rename " + name(target))
        replace(source, target)

    def removed(path: Path, missing_ok: bool = False) -> None:
        calls.append("remove " + name(path))
        unlink(path, missing_ok)

    write_shard(plain_pool, 3, [(30, rows(1)[0])])
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(Path, "unlink", removed)
    files.choose_views(PoolWriter(plain_pool), recipe(RAW))
    first, last = calls.index("remove raw.json"), calls.index("rename raw.json")
    masks = [i for i, call in enumerate(calls) if call.startswith("rename raw/")]
    assert first < calls.index("sync .", first) < min(masks)
    assert max(masks) < calls.index("sync raw", max(masks)) < last


# --- views of rows that a program selects ---------------------------------------------------------


def test_rows_that_a_program_selects_are_a_view(plain_pool: str) -> None:
    commits, out = read_commits(plain_pool), PoolWriter(plain_pool)
    asked: list[tuple[int, int]] = []

    def select(start: int, stop: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        asked.append((start, stop))
        return np.arange(start, stop) % 2 == 0

    where = "in every second row"
    assert files.selected_view(commits, "even", where) is None
    made = files.write_selected_view(out, commits, "even", where, select, "ab" * 32)
    assert (asked[0][0], asked[-1][1]) == (0, 30)
    assert made.funnel == (("attempted", 30), ("stored", 24), ("selected", 12))
    assert made.rows_sha256 == "ab" * 32
    expected = [None if i % 2 == 0 else "selected" for i in range(30)]
    expected[4::5] = ["not_stored"] * 6
    assert masks(plain_pool, "even")["rule"].to_pylist() == expected
    assert sum(masks(plain_pool, "even")["kept"].to_pylist()) == made.kept == 12
    assert files.selected_view(commits, "even", where) == made
    assert files.selected_view(commits, "even", "in another") is None
    named = view("rule", ("selected", "original_width >= 200"))
    by_rule = files.choose_views(PoolWriter(plain_pool), recipe(named), hashed=True)["rule"]
    kept = np.asarray(masks(plain_pool, "rule")["kept"])
    same = files.write_selected_view(out, commits, "same", where, lambda a, b: kept[a:b])
    assert same.rows_sha256 == by_rule.rows_sha256 == files.hash_view(plain_pool, "same")
    assert files.views_not_in(recipe(view("raw")), PoolLayout(plain_pool)) == ["rule"], (
        "that of a recipe"
    )
    with pytest.raises(ValueError, match=r"'none' keeps nothing: no row of the pool is in none"):
        files.write_selected_view(
            out,
            commits,
            "none",
            "in none",
            lambda a, b: kept[a:b] & False,
            "ab",
        )
    assert not disk.exists(PoolLayout(plain_pool).view_json("none"))
    with pytest.raises(ValueError, match=r"a view cannot be named '\.\./x'"):
        files.write_selected_view(out, commits, "../x", where, select, "ab" * 32)
