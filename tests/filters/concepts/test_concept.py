"""Entries of a user's list in captions: the rules about spaces, against a search for each alone."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clipmill.filters import check_filters, instances_of
from clipmill.filters.base import Batch
from clipmill.filters.concepts import (
    Concept,
    Matcher,
    Rule,
    can_occur,
    pattern_of,
    read_entries,
    spaced,
)
from clipmill.manifests.schema import FilterSpec

RULES: tuple[Rule, ...] = ("spaces", "scripts")


def by_search(entries: list[str], caption: str, rule: Rule) -> list[int]:
    """The definition: each entry is searched for by itself."""
    text = spaced(caption)
    return [n for n, entry in enumerate(entries) if pattern_of(entry, rule) in text]


ENTRIES = ["dog", "new york", "york city", "U.S.", "c++", "犬", "caf\u00e9", "🐶", "(x", "[a-z]+"]


def matched(caption: str, rule: Rule, *, ignore_case: bool = False) -> list[str]:
    matcher = Matcher(ENTRIES, rule, ignore_case=ignore_case)
    return [ENTRIES[number] for number in matcher.match([caption])[0].as_py()]


def test_metaclips_first_rule() -> None:
    expected: dict[str, list[str]] = {
        "a dog in new york city": ["dog", "new york", "york city"],
        "Dog, dogs and a hotdog": [],  # upper case counts; a part of a word is no match
        "dog.": ["dog"],
        "dog\tnew\nyork": ["dog", "new york"],
        "new  york": [],  # two spaces stay two
        "new, york": [],
        "the U.S.": [],  # spaced as `U . S .`
        "a c++ book": ["c++"],
        "": [],
        " ": [],
        "犬が好き": [],  # no spaces around it
        "犬 が": ["犬"],
        "cafe\u0301 caf\u00e9": ["caf\u00e9"],  # code points are compared as they are
        "🐶 dog🐶": ["🐶"],
        "(x [a-z]+ .* dog$": ["(x", "[a-z]+"],
        "dog\0dog dog": ["dog"],
    }
    for caption, entries in expected.items():
        assert matched(caption, "spaces") == entries, caption


def test_metaclips_second_rule_asks_for_no_space_beside_some_scripts() -> None:
    expected: dict[str, list[str]] = {
        "犬が好き": ["犬"],
        "dogs dog": ["dog"],
        "a U.S. dog": ["dog"],
        "lisp (xs)": [],  # `(x` needs a space on its right
        "lisp((x y)": ["(x"],
        "use[a-z]+now": ["[a-z]+"],
        "c++11 lisp++": ["c++"],
    }
    for caption, entries in expected.items():
        assert matched(caption, "scripts") == entries, caption


def test_case_may_be_ignored() -> None:
    assert matched("A DOG in New York", "spaces", ignore_case=True) == ["dog", "new york"]
    assert Matcher(["Dog", "dog"], ignore_case=True).match(["DOG"]).to_pylist() == [[0]]


letters = st.text("ab .,\n犬\0", max_size=12)


@given(
    st.lists(letters.filter(str.strip), min_size=1, max_size=8, unique=True),
    st.lists(letters, max_size=6),
    st.sampled_from(RULES),
)
@example(["a", "a b", "b"], ["a b", "a\nb", "a  b"], "spaces")
@example(["a\0b", "b"], ["a\0b", "b"], "spaces")
def test_one_automaton_gives_what_a_search_for_each_entry_gives(
    entries: list[str], captions: list[str], rule: Rule
) -> None:
    matches = Matcher(entries, rule).match(captions)
    assert matches.to_pylist() == [by_search(entries, caption, rule) for caption in captions]


@given(letters.filter(str.strip), letters)
def test_an_entry_that_cannot_occur_does_not(entry: str, caption: str) -> None:
    assert can_occur("a , b")
    assert not can_occur("a, b")
    assert not can_occur("a\tb")
    inside = f"{caption} {entry} {caption}"
    if not can_occur(entry):
        assert f" {entry} " not in spaced(inside)


def test_a_caption_of_a_megabyte() -> None:
    matches = Matcher(["a", "a a", "b"]).match(["a " * 500_000, "b"])
    assert matches.to_pylist() == [[0, 1], [2]]


def concept(folder: Path, *entries: str) -> Concept:
    (folder / "entries.txt").write_text("\n".join(entries))
    return Concept(entries=str(folder / "entries.txt"))


def test_numbers_and_counts(tmp_path: Path) -> None:
    filter_ = concept(tmp_path, "dog", "new york", "Dog")
    filter_.setup()
    captions = ["a dog in new york", "", "Dog dog"]
    scores = filter_.score(Batch(captions=captions, images=None, rows=pa.table({})))
    assert scores["concept_entries"].to_pylist() == [[0, 1], [], [0, 2]]
    assert scores["concept_count"].to_pylist() == [2, 0, 2]
    for column, kind in filter_.adds.items():
        assert scores[column].type == kind


def test_entries_that_can_never_occur_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        concept(tmp_path, "dog", "U.S.", "St. Ives").setup()
    assert "2 of 3 entries can never occur, such as 'U.S.'" in caplog.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.txt", "dog\nnew york\n犬 \n"),
        ("list.txt", "\ufeffdog\r\nnew york\r\n犬 "),
        ("list.json", '["dog", "new york", "犬 "]'),
    ],
)
def test_an_entry_a_line_or_a_json_list(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_entries(str(tmp_path / name)) == ["dog", "new york", "犬 "]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("list.txt", b"", "is empty"),
        ("list.txt", b"\n", "is empty"),
        ("list.json", b"[]", "is empty"),
        ("list.txt", b"dog\n\ncat\n", "entry 2 is empty; remove it"),
        ("list.json", b'["dog", "  "]', "entry 2 is empty"),
        ("list.txt", b"dog\ncat\ndog\n", "'dog' is entry 1 and entry 3; remove one"),
        ("list.json", b'{"dog": 1}', "must be a JSON list of strings"),
        ("list.json", b'["dog", 1]', "must be a JSON list of strings"),
        ("list.json", b"dog", "is not JSON"),
        ("list.txt", b"caf\xe9\n", "cannot be read: .*utf-8"),
    ],
)
def test_lists_that_mean_nothing(tmp_path: Path, name: str, text: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(text)
    options = {"entries": str(tmp_path / name)}
    with pytest.raises(ValueError, match=message):
        check_filters(instances_of([FilterSpec(name="concept", options=options)]))
