"""A WordNet folder of seven nouns becomes a list."""

from __future__ import annotations

from pathlib import Path

import pytest

from filters.concepts import Nouns
from filters.wordnet import main, read_forms, read_lemmas

# The form of WordNet's files; the numbers are ours.
INDEX = """\
  1 This text stands where the licence stands.
  2 n 1 0 1 0 00000001
dog n 2 3 @ ~ %p 2 1 00000020 00000021
domestic_dog n 1 1 @ 1 0 00000020
ox n 1 0 1 0 00000030
bus n 1 1 @ 1 0 00000040
wolf n 1 2 @ ~ 1 1 00000050
.22 n 1 2 @ ~ 1 0 00000060
fireman n 1 0 1 0 12345678
"""
EXCEPTIONS = "oxen ox\nwolves wolf\nbus bus\ngeese goose\nmice nouse dog\nbroken\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "index.noun").write_text(INDEX)
    (tmp_path / "noun.exc").write_text(EXCEPTIONS)
    return tmp_path


def test_the_first_sense_of_each_noun(folder: Path) -> None:
    lemmas = read_lemmas(folder)
    assert lemmas["dog"] == lemmas["domestic_dog"] == "n00000020"
    assert (lemmas[".22"], lemmas["fireman"], len(lemmas)) == ("n00000060", "n12345678", 7)
    forms = read_forms(folder, lemmas)
    assert forms == {
        "oxen": "n00000030", "wolves": "n00000050", "geese": "", "mice": "n00000020",
    }  # fmt: skip


def test_the_list_is_what_the_filter_reads(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "nouns.tsv"
    assert main([str(folder), "--out", str(out)]) == 0
    (folder / "mine.tsv").write_text("my own list")
    assert main([str(folder), "--out", str(folder / "mine.tsv")]) == 2
    assert (folder / "mine.tsv").read_text() == "my own list"
    assert capsys.readouterr().out == f"{out}: 7 nouns and 4 irregular forms\n"
    assert main([str(folder), "--out", str(out)]) == 0, "it replaces its own list"
    nouns = Nouns.read(str(out))
    assert nouns.lemmas == read_lemmas(folder)
    assert nouns.forms == read_forms(folder, nouns.lemmas)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dog n 2 0 2 1 00000020", r"index\.noun, line 1: no noun of WordNet: 'dog n 2"),
        ("run v 1 0 1 0 00000020", "no noun of WordNet"),
        ("dog", "no noun of WordNet"),
        ("  1 a licence alone", r"index\.noun holds no noun"),
    ],
)
def test_files_of_another_form(
    folder: Path, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "index.noun").write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        read_lemmas(folder)
    assert main([str(folder), "--out", str(folder / "x")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_folder_without_a_database(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No such file .*give the folder of a WordNet database"):
        read_lemmas(tmp_path)
