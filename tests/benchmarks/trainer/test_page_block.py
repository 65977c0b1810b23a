from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.trainer.comparison import replace_block

PAGE = "a\n<!-- written by x.py -->\nold\n<!-- end -->\nb\n<!-- written by y.py -->\n<!-- end -->\n"


def test_only_the_block_of_the_command_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    replace_block(str(path), "x.py", ["new"])
    text = path.read_text()
    assert text == PAGE.replace("\nold\n", "\n\n```text\nnew\n```\n\n")
    replace_block(str(path), "x.py", ["new"])
    assert path.read_text() == text


@pytest.mark.parametrize("page", ["", PAGE.replace("<!-- end -->", ""), PAGE])
def test_a_page_without_the_block_is_refused_and_stays(tmp_path: Path, page: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(page)
    command = "z.py" if page == PAGE else "x.py"
    with pytest.raises(ValueError, match=f"has no lines <!-- written by {command} -->"):
        replace_block(str(path), command, ["new"])
    assert path.read_text() == page
