"""Words and their most likely synsets, as DataComp looks them up in a WordNet database."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from clipmill.filters import check_filters, concepts, instances_of
from clipmill.filters.base import Batch, set_id
from clipmill.filters.concepts import Nouns, Synset
from clipmill.manifests.schema import FilterSpec

# The form of WordNet's files; the numbers are ours.
INDEX = """\
  1 This text stands where the licence stands.
  2 n 1 0 1 0 00000001
dog n 2 3 @ ~ %p 2 1 00000001 00000021
domestic_dog n 1 1 @ 1 0 00000001
bus n 1 1 @ 1 0 00000002
loss n 1 0 1 0 00000003
wolf n 1 2 @ ~ 1 1 00000004
church n 1 0 1 0 00000005
man n 1 0 1 0 00000006
fireman n 1 0 1 0 12345678
city n 1 0 1 0 00000008
goods n 1 0 1 0 00000009
good n 1 0 1 0 00000010
box n 1 0 1 0 00000011
ox n 1 0 1 0 00000012
.22 n 1 2 @ ~ 1 0 00000060
"""
EXCEPTIONS = "oxen ox\nbus bus\ngeese goose\ndoes doo\nmice nouse dog\nbroken\n"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "index.noun").write_text(INDEX)
    (tmp_path / "noun.exc").write_text(EXCEPTIONS)
    (tmp_path / "wnids.txt").write_text("n00000001\nn00000012\n")
    return {"nouns": str(tmp_path / "index.noun"), "wnids": str(tmp_path / "wnids.txt")}


def test_nouns_their_endings_and_irregular_forms(files: dict[str, str]) -> None:
    expected = {
        "dog": 1, "DOG": 1, "dogs": 1, "domestic_dog": 1, "buses": 2, "losses": 3, "wolves": 4,
        "churches": 5, "men": 6, "firemen": 12345678, "cities": 8, "boxes": 11, ".22": 60,
        "goods": 9,  # the word itself comes before its endings
        "oxen": 12, "mice": 1,
        "geese": None, "does": None,  # a form of no noun is none, whatever its ending
        "dogss": None,  # one ending is replaced
        "oxens": None,  # irregular forms are not reached by endings
        "dog,": None, "runs": None, "broken": None, "": None, "s": None, "s" * 1_000_000: None,
    }  # fmt: skip
    nouns = Nouns.read(files["nouns"])
    for word, offset in expected.items():
        assert nouns.synset(word) == (None if offset is None else f"n{offset:08d}"), word


def test_captions_with_a_word_of_the_set(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concepts, "CACHED_WORDS", 2)
    filter_ = Synset(**files)
    filter_.setup()
    captions = ["two Dogs run", "a dog, a bus", "oxen\ndrink", "", "city", "dog dog bus man"]
    scores = filter_.score(Batch(captions=captions, images=None, rows=pa.table({})))
    assert scores["synset_match"].tolist() == [True, False, True, False, False, True]


def test_the_id_is_of_the_irregular_forms_too(files: dict[str, str], tmp_path: Path) -> None:
    first = set_id(Synset(**files))
    (tmp_path / "noun.exc").write_text("oxes ox\n")
    assert set_id(Synset(**files)) != first
    (tmp_path / "noun.exc").unlink()
    with pytest.raises(ValueError, match=r"noun\.exc cannot be read"):
        set_id(Synset(**files))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nouns", "dog n 2 0 2 1 00000020\n", r"index\.noun, line 1: no noun of WordNet: 'dog n 2"),
        ("nouns", "dog n 1 0 1 0 1\nrun v 1 0 1 0 20\n", "line 2: no noun of WordNet"),
        ("nouns", "dog", "no noun of WordNet"),
        ("nouns", "  1 a licence alone", "holds no noun"),
        ("wnids", "n00000001\ndog\n", "line 2: 'dog' is no wnid such as n02084071"),
        ("wnids", "", "holds no wnid"),
    ],
)
def test_files_that_mean_nothing(files: dict[str, str], name: str, text: str, message: str) -> None:
    Path(files[name]).write_text(text)
    with pytest.raises(ValueError, match=message):
        check_filters(instances_of([FilterSpec(name="synset", options=dict(files))]))
