from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeline.look.page import Bounds, page_data, render
from pipeline.look.survey import survey_pool
from tests.support import looked


@pytest.fixture(scope="module")
def page(pool: str) -> str:
    survey = survey_pool(pool)
    return render(survey, page_data(survey, Bounds()))


def test_the_page_asks_for_nothing_outside(page: str) -> None:
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page)
    assert "default-src 'none'" in page
    assert len(page) < 2_000_000


def test_a_caption_cannot_end_the_script(page: str) -> None:
    assert page.count("</script>") == 2, "the data and the program"
    assert "<img src=x" not in page
    text = page[page.index('id="data">') + 10 : page.index("</script>")]
    captions = [image["caption"] for image in json.loads(text)["images"]]
    assert any(caption.startswith("</script><img src=x onerror=") for caption in captions)


def test_pools_with_nothing_and_with_one_row(tmp_path: Path) -> None:
    from tests.support import small_pool

    none = small_pool.make_pool(tmp_path / "none", [small_pool.Row(caption="a", reason="dns")])
    survey = survey_pool(none)
    page = render(survey, page_data(survey, Bounds()))
    assert "0 images in 1 shards" in page
    assert looked.cells(page, "Why 1 links and rows")[0][0] == "dns"
    one = small_pool.make_pool(tmp_path / "one", [small_pool.Row(caption="a")])
    survey = survey_pool(one)
    assert "1 images" in render(survey, page_data(survey, Bounds()))
