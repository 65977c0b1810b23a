"""Lists of entries as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from filters.concepts import read_entries


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.txt", "dog\nnew york\n犬 \n"),
        ("list.txt", "\ufeffdog\r\nnew york\r\n犬 "),
        ("list.json", '["dog", "new york", "犬 "]'),
    ],
)
def test_an_entry_a_line_or_a_json_list(tmp_path: Path, name: str, text: str) -> None:
    assert read_entries(written(tmp_path, name, text)) == ["dog", "new york", "犬 "]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("list.txt", "", "is empty"),
        ("list.json", "[]", "is empty"),
        ("list.txt", "dog\n\ncat\n", "entry 2 is empty; remove it"),
        ("list.json", '["dog", "  "]', "entry 2 is empty"),
        ("list.txt", "dog\ncat\ndog\n", "'dog' is entry 1 and entry 3; remove one"),
        ("list.json", '{"dog": 1}', "must be a JSON list of strings"),
        ("list.json", '["dog", 1]', "must be a JSON list of strings"),
        ("list.json", "dog", "is not JSON"),
    ],
)
def test_lists_that_mean_nothing(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_entries(written(tmp_path, name, text))


def test_a_list_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read: .*No such file"):
        read_entries(str(tmp_path / "nowhere.txt"))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match=r"cannot be read: .*utf-8"):
        read_entries(str(tmp_path / "latin.txt"))
