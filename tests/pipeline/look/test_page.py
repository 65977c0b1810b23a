"""The page: its numbers are those of the survey, it asks for nothing, and a caption is text."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import re
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline.look.page import (
    Bounds,
    NoImage,
    are_current,
    data_uris,
    image_bytes,
    page_data,
    render,
    thumbnail,
)
from clipmill.pipeline.look.server import Answers
from clipmill.pipeline.look.survey import Survey, survey_pool
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.views.files import choose_views
from tests.support import audited, looked, plans, s3_server, small_pool
from tests.support.chosen import recipe, view
from tests.support.looked import cells, number


def page_of(survey: Survey, images: int = 0) -> str:
    return render(survey, page_data(survey, Bounds(images=images)))


# --- sections -------------------------------------------------------------------------------------


def test_the_tables_sum_to_the_books(survey: Survey) -> None:
    html = page_of(survey)
    rows = cells(html, "Why 12 links and rows")
    assert [(row[0], row[1], number(row[2])) for row in rows] == [("http_4xx", "permanent", 12)]
    views = {row[0]: number(row[2]) for row in cells(html, "4 views")}
    assert views == {name: one.kept for name, one in survey.counts.views.items()}
    rows = cells(html, "Rows that each rule of basic rejects")
    kept = survey.effects["basic"].kept
    assert [row[0] for row in rows] == ["words", "side", "shape"]
    assert sum(number(row[2]) for row in rows) == 48 - kept
    assert all(number(row[6]) == kept + number(row[5]) for row in rows)
    rows = cells(html, "page_host: 4 values")
    assert sum(number(row[1]) for row in rows) == 60
    assert len(rows[0]) == 3 + len(survey.detailed)


def test_problems_stand_first(survey: Survey) -> None:
    effects = dataclasses.replace(survey.effects["basic"], disagrees=True)
    fetch = dataclasses.replace(survey.counts.fetch, planned=9)
    counts = dataclasses.replace(
        survey.counts, problems=("<b>bad</b>",) * 20, fetch=fetch, complete=False
    )
    rows = dataclasses.replace(survey.rows, whole=False)
    effects_of = {**survey.effects, "basic": effects}
    html = page_of(dataclasses.replace(survey, effects=effects_of, counts=counts, rows=rows))
    assert "&lt;b&gt;bad" in html
    assert "and 9 more" in html
    assert "6 of 9 planned shards" in html
    assert "of a sample: 60 rows in 6 of 6 shards" in html


def test_pools_with_nothing_with_one_row_and_under_construction(tmp_path: Path) -> None:
    none = small_pool.make_pool(tmp_path / "none", [small_pool.Row(caption="a", reason="dns")])
    page = page_of(survey_pool(none))
    assert "0 images in 1 shards" in page
    assert cells(page, "Why 1 links and rows")[0][0] == "dns"
    one = small_pool.make_pool(tmp_path / "one", [small_pool.Row(caption="a")])
    assert "1 images" in page_of(survey_pool(one))
    pool = str(tmp_path / "pool")
    audited.write_pairs(pool, 24)
    tasks = plans.planned(pool, audited.RECIPE)
    audited.write_shard(pool, tasks[0])
    assert f"1 of {len(tasks)} planned shards are committed" in page_of(survey_pool(pool))
    with pytest.raises(ValueError, match="is it the folder of a pool"):
        survey_pool(str(tmp_path))


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """A pool with rows of one page as copies, whose survivors are chosen in two ways."""
    given = small_pool.rows(20)
    for i in (1, 2, 3):
        given[i] = dataclasses.replace(given[i], page="https://same.example/")
    pool = small_pool.make_pool(tmp_path_factory.mktemp("scored") / "pool", given)
    same = {"on": "sha256", "column": "page_url"}
    filters = (
        FilterSpec(name="caption"),
        FilterSpec(name="copies", kind="duplicate", options={"best": "caption_words", **same}),
        FilterSpec(name="twins", kind="duplicate", options=same),
    )
    score(PoolWriter(pool), filters, engine="inline")
    long = view("long", ("half", "caption_chars >= top(caption_chars, 0.5)"))
    choose_views(PoolWriter(pool), recipe(long, filters=filters))
    return survey_pool(pool)


def test_the_slider_begins_at_the_score_and_empty_columns_are_named(scored: Survey) -> None:
    html = page_of(scored)
    first, second = html.index('value="caption_chars"'), html.index('value="caption_words"')
    assert first < second, "a view cuts it by rank"
    sets = dict(scored.rows.sets)
    sets["caption_words"] = dataclasses.replace(sets["caption_words"], kind="clip_score")
    rows = dataclasses.replace(scored.rows, sets=sets)
    html = page_of(dataclasses.replace(scored, rows=rows))
    assert html.index('value="caption_words"') < html.index('value="caption_chars"')
    empty = dataclasses.replace(scored.columns["caption_words"], values=np.zeros(0))
    shown = page_of(dataclasses.replace(scored, columns={**scored.columns, "caption_words": empty}))
    names = "width, height, http_status, elapsed_ms, attempts, caption_words."
    assert f"and not shown: {names}" in shown


def test_copies_say_by_what_their_survivor_was_chosen(scored: Survey) -> None:
    data = page_data(scored, Bounds())
    html = render(scored, data)
    assert "copies: of each group the row with the highest caption_words survives." in html
    assert "twins: of each group the row with the smallest uid survives, which says" in html
    group = next(one for one in data["copies"] if one["title"] == "copies: group 1")
    assert group["images"][0] == group["survivors"][0]
    captions = [data["images"][number]["caption"] for number in group["images"]]
    assert captions[0] == "dog dog dog dog"
    assert len(captions) == 3


# --- the document ---------------------------------------------------------------------------------


def test_the_page_asks_for_nothing_outside_and_a_caption_is_text(survey: Survey) -> None:
    page = page_of(survey, images=400)
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page)
    assert "default-src 'none'" in page
    assert len(page) < 2_000_000
    assert page.count("</script>") == 2, "the data and the program"
    assert "<img src=x" not in page
    text = page[page.index('id="data">') + 10 : page.index("</script>")]
    captions = [image["caption"] for image in json.loads(text)["images"]]
    (hostile,) = [one for one in captions if one.startswith("</script><img src=x onerror=")]
    assert "\\u202e" in hostile, "no direction marks"
    assert "\n" not in hostile


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of botocore
def test_a_pool_in_a_store_gives_the_same_page(
    tmp_path: Path, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("localbucket")
    with s3_server.s3_server(tmp_path) as url:
        for name, value in s3_server.s3_variables(url).items():
            monkeypatch.setenv(name, value)
        for path in Path(pool).rglob("*"):
            if path.is_file():
                target = f"s3://pools/pool/{path.relative_to(pool).as_posix()}"
                disk.write_bytes(target, path.read_bytes())
        survey = survey_pool("s3://pools/pool")
        there = page_of(survey, images=400)
        assert Answers(survey).image(0, 3).startswith(b"\xff\xd8")
        assert Answers(survey).search("dog", "")["images"]
    assert there == page_of(survey_pool(pool), images=400)


# --- data -----------------------------------------------------------------------------------------


def test_every_count_of_sliders_and_histograms_is_exact(survey: Survey) -> None:
    columns = {one["name"]: one for one in page_data(survey, Bounds(images=0))["columns"]}
    width = columns["original_width"]
    values = np.asarray(survey.rows.table["original_width"].fill_null(-1).to_numpy())
    for name, scope in width["scopes"].items():
        mask = survey.scope(name, "original_width")
        assert scope["rows"] == mask.sum()
        below = list(accumulate(scope["steps"]))
        for text, count in zip(width["thresholds"], below, strict=True):
            assert count == (mask & (values < int(text))).sum()
    for column in columns.values():
        assert column["n"] + column["nulls"] + column["nans"] == 48
        if "histogram" in column:
            assert sum(column["histogram"]["counts"]) == column["n"]
            for name, counts in column["histogram"]["kept"].items():
                kept = survey.detailed[name].kept
                assert kept is not None
                valid = survey.rows.table[column["name"]].is_valid().to_numpy()
                assert sum(counts) == (kept & valid).sum()


def test_images_are_bounded_and_every_kind_gets_some(survey: Survey) -> None:
    data = page_data(survey, Bounds(images=30))
    assert len(data["images"]) == 30
    assert all(group["images"] for group in data["groups"] if group["of"])
    assert page_data(survey, Bounds(images=30, image_bytes=1))["images"] == []
    served = page_data(survey)
    assert served["server"]
    assert served["images"], "the groups are listed; the server sends their images"
    assert not any("src" in image for image in served["images"])


# --- images ---------------------------------------------------------------------------------------


def large() -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (400, 200), (200, 30, 30)).save(sink, "PNG")
    return sink.getvalue()


def test_a_thumbnail_is_small_and_has_no_metadata() -> None:
    with Image.open(io.BytesIO(thumbnail(large()))) as image:
        assert (image.size, image.format) == ((96, 48), "JPEG")
        assert not image.getexif()
    for data in (b"", b"\xff\xd8\xff nothing", large()[:60], b"<svg/>"):
        with pytest.raises(NoImage):
            thumbnail(data)


def test_images_are_those_of_the_rows_and_their_bytes_are_bounded(survey: Survey) -> None:
    assert image_bytes(survey.rows, 3) == small_pool.jpeg(3)
    uris = data_uris(survey.rows, [3, 2, 3, 0], 10**6)
    assert list(uris) == [3, 2, 0]
    assert uris[2] == "", "the damaged image"
    data = base64.b64decode(uris[3].removeprefix("data:image/jpeg;base64,"))
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (24, 16)
    with pytest.raises(NoImage, match="not stored"):
        image_bytes(survey.rows, 4)
    rows = [row for row in range(60) if survey.rows.stored[row] and row != 2]
    sizes = [len(uri) for uri in data_uris(survey.rows, rows, 10**6).values()]
    assert list(data_uris(survey.rows, rows, sum(sizes[:5]))) == rows[:5]


def test_a_replaced_shard_is_not_current(tmp_path: Path) -> None:
    pool = looked.make(tmp_path / "pool", 20)
    rows = survey_pool(pool).rows
    assert are_current(rows, [0, 1, 1])
    assert not are_current(rows, [1, 7])
    Path(read_commits(pool).sidecar(0)).with_name("00000_stats.json").unlink()
    assert not are_current(rows, [0])
