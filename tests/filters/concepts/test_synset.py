"""Words and their most likely synsets, as DataComp looks them up."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from filters import check_filters, concepts, make
from filters.base import Batch, set_id
from filters.concepts import Nouns, Synset, read_wnids
from manifests.schema import FilterSpec

LEMMAS = {
    "dog": "n00000001",
    "bus": "n00000002",
    "loss": "n00000003",
    "wolf": "n00000004",
    "church": "n00000005",
    "man": "n00000006",
    "fireman": "n00000007",
    "city": "n00000008",
    "goods": "n00000009",
    "good": "n00000010",
    "domestic_dog": "n00000001",
    "box": "n00000011",
}
FORMS = {"oxen": "n00000012", "feet": "n00000013", "does": ""}


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("dog", "dog"),
        ("DOG", "dog"),
        ("dogs", "dog"),
        ("dog,", None),
        ("buses", "bus"),
        ("losses", "loss"),
        ("wolves", "wolf"),
        ("churches", "church"),
        ("firemen", "fireman"),
        ("men", "man"),
        ("cities", "city"),
        ("boxes", "box"),
        ("goods", "goods"),  # the word itself comes before its endings
        ("dogss", None),  # one ending is replaced
        ("domestic_dog", "domestic_dog"),
        ("runs", None),
        ("feets", None),  # irregular forms are not reached by endings
        ("", None),
        ("s", None),
        ("s" * 1_000_000, None),
    ],
)
def test_nouns_and_their_endings(word: str, found: str | None) -> None:
    expected = None if found is None else LEMMAS[found]
    assert Nouns(LEMMAS, FORMS).synset(word) == expected


def test_irregular_forms() -> None:
    nouns = Nouns({**LEMMAS, "doe": "n00000014"}, FORMS)
    assert [nouns.synset(word) for word in ("oxen", "feet", "does")] == [
        "n00000012", "n00000013", None,
    ]  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    lines = [f"{word}\t{wnid}" for word, wnid in LEMMAS.items()]
    lines += [f"{word}\t{wnid}\tform" for word, wnid in FORMS.items()]
    (tmp_path / "nouns.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "wnids.txt").write_text("n00000001\nn00000012\n")
    return {"mapping": str(tmp_path / "nouns.tsv"), "wnids": str(tmp_path / "wnids.txt")}


def test_captions_with_a_word_of_the_set(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concepts, "CACHED_WORDS", 2)
    filter_ = Synset(**files)
    filter_.setup()
    captions = ["two Dogs run", "a dog, a bus", "oxen\ndrink", "", "city", "dog dog bus man"]
    scores = filter_.score(Batch(captions=captions, images=None, rows=pa.table({})))
    assert scores["synset_match"].tolist() == [True, False, True, False, False, True]


def test_the_id_is_that_of_both_files(files: dict[str, str], tmp_path: Path) -> None:
    first = set_id(Synset(**files))
    (tmp_path / "copy.tsv").write_text(Path(files["mapping"]).read_text())
    assert set_id(Synset(mapping=str(tmp_path / "copy.tsv"), wnids=files["wnids"])) == first
    Path(files["wnids"]).write_text("n00000001\n")
    assert set_id(Synset(**files)) != first


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mapping", "dog 00000001\n", r"line 1: 'dog 00000001' is not `word TAB wnid`; make the"),
        ("mapping", "dog\tn1\n", "is not `word TAB wnid`"),
        ("mapping", "dog\tn00000001\tverb\n", "is not `word TAB wnid`"),
        ("mapping", "dog\t\tlemma\n", "is not `word TAB wnid`"),
        ("mapping", "\n", "holds no noun"),
        ("wnids", "n00000001\ndog\n", "line 2: 'dog' is no wnid such as n02084071"),
        ("wnids", "", "holds no wnid"),
    ],
)
def test_files_that_mean_nothing(files: dict[str, str], name: str, text: str, message: str) -> None:
    Path(files[name]).write_text(text)
    with pytest.raises(ValueError, match=message):
        check_filters([FilterSpec(name="synset", options=dict(files))])


def test_files_that_are_not_there(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file /nowhere/nouns"):
        make(FilterSpec(name="synset", options={**files, "mapping": "/nowhere/nouns.tsv"}))
    with pytest.raises(ValueError, match="cannot be read"):
        read_wnids(str(tmp_path / "nowhere"))
