#!/usr/bin/env python3
"""Make the list of nouns that the filter `synset` reads, from a WordNet database folder.

The folder is the one with index.noun and noun.exc, such as /usr/share/wordnet of Debian's package
wordnet-base, or what WordNet calls dict/. The order of senses in index.noun is that of their counts
in tagged texts, so the first one is the most likely.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from manifests import console, disk

EXAMPLE = """example:
  python filters/wordnet.py /usr/share/wordnet --out nouns.tsv
"""
LEMMA, FORM = "lemma", "form"


def read_lemmas(folder: Path) -> dict[str, str]:
    """Noun -> wnid (n and eight digits) of its most likely synset, from index.noun.

    Words of an entry are joined by `_`, as in the file. ValueError for a line of another form.
    """
    lemmas = {}
    for number, line in enumerate(_lines(folder / "index.noun"), 1):
        if line.startswith(" ") or not line.strip():  # the licence at the top
            continue
        # lemma, part of speech, synsets, pointers, the symbols of the pointers, senses, senses
        # with a count, offsets
        fields = line.split()
        try:
            synsets, pointers = int(fields[2]), int(fields[3])
            offsets = fields[6 + pointers :]
            is_noun = fields[1] == "n" and len(offsets) == synsets > 0
            wnid = f"n{int(offsets[0]):08d}"
        except (IndexError, ValueError):
            is_noun = False
        if not is_noun:
            raise ValueError(
                f"{folder / 'index.noun'}, line {number}: no noun of WordNet: {line!r}"
            )
        lemmas[fields[0]] = wnid
    if not lemmas:
        raise ValueError(f"{folder / 'index.noun'} holds no noun")
    return lemmas


def read_forms(folder: Path, lemmas: dict[str, str]) -> dict[str, str]:
    """Irregular form -> wnid of the first of its base forms that is a noun, "" if none is.

    A form that is a noun itself is not among them.
    """
    forms: dict[str, str] = {}
    for line in _lines(folder / "noun.exc"):
        words = line.split()
        if len(words) < 2 or words[0] in lemmas:
            continue
        known = [lemmas[base] for base in words[1:] if base in lemmas]
        forms.setdefault(words[0], known[0] if known else "")
    return forms


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); give the folder of a WordNet database "
            "with index.noun and noun.exc"
        ) from None


def write_nouns(folder: Path, out: str) -> dict[str, int]:
    """Write `word TAB wnid TAB lemma|form` a line; returns how many of each. ValueError where `out`
    is a file of another kind.
    """
    disk.check_replaceable(out, f"\t{LEMMA}\n".encode(), "--out")
    lemmas = read_lemmas(folder)
    forms = read_forms(folder, lemmas)
    lines = [f"{word}\t{wnid}\t{LEMMA}" for word, wnid in sorted(lemmas.items())]
    lines += [f"{word}\t{wnid}\t{FORM}" for word, wnid in sorted(forms.items())]
    disk.write_bytes(out, ("\n".join(lines) + "\n").encode())
    return {"lemmas": len(lemmas), "forms": len(forms)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="filters/wordnet.py",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="folder with index.noun and noun.exc")
    parser.add_argument("--out", required=True, help="the list to write")
    args = parser.parse_args(argv)

    def run() -> int:
        counts = write_nouns(args.folder, args.out)
        print(f"{args.out}: {counts['lemmas']} nouns and {counts['forms']} irregular forms")
        return 0

    return console.run_command(run)


if __name__ == "__main__":
    sys.exit(main())
