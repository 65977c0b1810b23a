"""What a row is of: concepts and synsets in captions, and MetaCLIP's balancing.

What a caption or an image is of, and how often that is in the pool. Definitions and figures:
`docs/reference/filters.md`.

They read the files that the options name and write none.

Invariants:

* One automaton finds what a search for each entry finds:
  `tests/filters/concepts/test_concept.py`.
* A row is kept with the probability that MetaCLIP's sampling gives it, whatever the shards,
  partitions and workers: `tests/filters/concepts/test_balance.py`.
* A list that changes changes the id: `tests/filters/concepts/test_concept.py`.

Another filter about content is a module here, a line in `FILTERS` (`filters/__init__.py`) and a
test of the same name.
"""

from __future__ import annotations

import json
import logging
import os
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.filters.base import (
    BETWEEN_0_AND_1,
    FILE,
    FREE,
    Batch,
    Columns,
    Filter,
    PoolFilter,
    described,
    read_text,
    require,
)
from clipmill.filters.columns import route_by_uid
from clipmill.manifests import disk
from clipmill.manifests.arrays import FloatArray, Integers
from clipmill.manifests.hashes import text_hashes

# --------------------------------------------------------------------------------------------------
# MetaCLIP's balancing as arithmetic: counts of entries, their probabilities, those of rows, and a
# draw that depends on the row alone.
#
# An entry with at most t rows is a tail entry and keeps all of them; another one keeps each row
# with probability t / count. A row is kept if any of its entries keeps it: 1 - product of (1 -
# p).


COUNTS = pa.schema([("entry", pa.int32()), ("rows", pa.int64())])


def count_entries(lists: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Rows of each entry in a column of lists, as a table COUNTS by entry; NULL lists count as
    empty."""
    entries = pc.list_flatten(lists)
    return merge_counts(pa.table({"entry": entries, "rows": np.ones(len(entries), np.int64)}))


def merge_counts(tables: pa.Table) -> pa.Table:
    """The rows of several tables COUNTS as one row for each entry, by entry."""
    counts = add_counts(tables)
    entries = np.flatnonzero(counts)
    return pa.table({"entry": entries.astype(np.int32), "rows": counts[entries]}, COUNTS)


def add_counts(tables: pa.Table) -> Integers:
    """(largest entry + 1,) rows of each entry, from the rows of several tables COUNTS."""
    if tables.num_rows == 0:
        return np.zeros(0, np.int64)
    entries, rows = tables["entry"].to_numpy(), tables["rows"].to_numpy()
    counts: Integers = np.zeros(int(entries.max()) + 1, np.int64)
    np.add.at(counts, entries, rows)
    return counts


def tail_share(counts: Integers, t: float) -> float:
    """Share of all matches that belong to entries with fewer than t rows."""
    total = counts.sum()
    return float(counts[counts < t].sum() / total) if total else 0.0


def threshold_for_share(counts: Integers, share: float) -> int:
    """The t whose tail has about `share` of all matches, as MetaCLIP 2 sets it for each language.

    Entries are sorted by count; t is the count of that one at which the running share of all
    matches is nearest to `share`. 1 for a pool without a match.
    """
    ascending = np.sort(counts[counts > 0])
    if not ascending.size:
        return 1
    running = np.cumsum(ascending) / ascending.sum()
    return int(ascending[np.abs(running - share).argmin()])


def entry_probabilities(counts: Integers, t: float) -> FloatArray:
    """(entries,) min(1, t / count)."""
    shares: FloatArray = t / np.maximum(counts, t)
    return shares


def row_probabilities(lists: pa.Array, shares: FloatArray) -> FloatArray:
    """(rows,) 1 - product of (1 - p) over the entries of each list; 0 for an empty one, NaN for
    NULL."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    numbers = pc.list_flatten(lists).to_numpy(zero_copy_only=False)
    misses: FloatArray = np.ones(len(lists))
    filled = np.flatnonzero(lengths)
    if filled.size:
        starts = np.concatenate([[0], np.cumsum(lengths[filled])[:-1]])
        misses[filled] = np.multiply.reduceat(1 - shares[numbers], starts)
    probabilities: FloatArray = 1 - misses
    probabilities[lists.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return probabilities


def draws(uids: Iterable[str], seed: int) -> FloatArray:
    """(rows,) a number in [0, 1) for each row: the upper 53 bits of xxh3_64 of `balance:` and uid.

    The prefix makes it independent of the `sample` of a view with the same seed.
    """
    hashes = text_hashes((f"balance:{uid}" for uid in uids), seed)
    numbers: FloatArray = (hashes >> np.uint64(11)) / 2.0**53
    return numbers


# --------------------------------------------------------------------------------------------------
# MetaCLIP's balancing of a pool: rows of frequent concepts are kept with a lower probability.


logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Balance(PoolFilter):
    """balance_probability: 1 - product of (1 - min(1, t / count)) over the entries of a row, 0
    where there is none. balance_keep: whether the row's draw is below it.

    of: the instance of the filter `concept` whose entries are balanced. t: rows up to which an
    entry keeps all of them; MetaCLIP took 20,000 for 400 million pairs and 170,000 for 2.5 billion.
    tail_share: t follows from the share of all matches that the tail shall have; MetaCLIP 2 gives
    every language that of English, 0.06. There is one draw for a row, a hash of uid and seed: the
    result is the same on any number of machines, and a larger t keeps all that a smaller one keeps.
    A row that was not matched has NULL.
    """

    name = "balance"
    adds, meanings = described(
        balance_probability=(pa.float32(), "probability that one of the row's concepts keeps it"),
        balance_keep=(pa.bool_(), "whether the row is kept by MetaCLIP's balancing"),
    )
    of: str = field(default="concept", metadata=FREE)  # the id of its columns is part of ours
    t: int | None = field(default=None, metadata={"least": 1})
    tail_share: float | None = field(default=None, metadata=BETWEEN_0_AND_1)
    seed: int = field(default=0, metadata={"least": 0, "most": 2**64 - 1})

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.t is None) == (self.tail_share is None):
            raise ValueError(
                "filter balance needs either t or tail_share, as in {balance: {t: 20000}} or "
                "{balance: {tail_share: 0.06}}"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"{self.of}_entries",)

    def summarise(self, rows: pa.Table) -> pa.Table:
        return count_entries(rows[self.reads[0]])

    def merge(self, summaries: pa.Table) -> pa.Table:
        return merge_counts(summaries)

    def combine(self, summaries: pa.Table) -> pa.Table:
        counts = add_counts(summaries)
        t = self.t
        if t is None:
            assert self.tail_share is not None
            t = threshold_for_share(counts, self.tail_share)
        logger.info(
            "balance: t is %d; entries below it have %.4f of %d matches",
            t,
            tail_share(counts, t),
            counts.sum(),
        )
        return pa.table({"share": entry_probabilities(counts, t)})

    def route(self, rows: pa.Table, state: object, partitions: int) -> tuple[Integers, Integers]:
        """Rows that were matched, by their uid."""
        is_known = rows[self.reads[0]].is_valid().to_numpy(zero_copy_only=False)
        return route_by_uid(rows, is_known, partitions)

    def judge(self, rows: pa.Table, state: Any) -> Columns:
        lists = rows[self.reads[0]]
        if isinstance(lists, pa.ChunkedArray):
            lists = lists.combine_chunks()
        probabilities = row_probabilities(lists, state["share"].to_numpy())
        keep = draws(rows["uid"].to_pylist(), self.seed) < probabilities
        return {"balance_probability": probabilities.astype(np.float32), "balance_keep": keep}


# --------------------------------------------------------------------------------------------------
# The list of concepts that captions are matched with, read from a file that the user names.


def read_entries(path: str) -> list[str]:
    """The entries of a JSON list of strings (`.json`), or of a text file with one entry a line.

    The position of an entry is its number in every column. ValueError for another form, for a
    list without an entry, and for an empty or a repeated entry.
    """
    text = read_text(path, "list of entries")
    if path.endswith(".json"):
        try:
            entries = json.loads(text)
        except ValueError as error:
            raise ValueError(f"the list of entries {path} is not JSON: {error}") from None
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise ValueError(f"the list of entries {path} must be a JSON list of strings")
    else:
        entries = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if not entries or entries == [""]:
        raise ValueError(f"the list of entries {path} is empty")
    first: dict[str, int] = {}
    for number, entry in enumerate(entries):
        if not entry.strip():
            raise ValueError(f"the list of entries {path}: entry {number + 1} is empty; remove it")
        if first.setdefault(entry, number) != number:
            raise ValueError(
                f"the list of entries {path}: {entry!r} is entry {first[entry] + 1} and entry "
                f"{number + 1}; remove one of them"
            )
    return entries


# --------------------------------------------------------------------------------------------------
# Which entries of a list occur in a caption, by MetaCLIP's rules about spaces.
#
# Rule `spaces` (MetaCLIP 1): the marks , . ; : ? ! ` get a space on both sides, tab and line ends
# become spaces, and an entry occurs where it stands between two spaces. No other white space is
# joined or removed, upper case counts, and an entry that holds one of the marks beside another
# character can never occur.
#
# Rule `scripts` (MetaCLIP 2): the same, but the first or last character of an entry needs no
# space beside it if it is punctuation or belongs to a script that is written without spaces
# (Chinese characters, Thai, Lao, Burmese, Khmer, Tibetan).


Rule = Literal["spaces", "scripts"]

SPACED_MARKS = ",.;:?!`"
BLANKS = "\t\n\r"

# A mark without a space before or behind it, or a blank that spacing replaces.
CANNOT_OCCUR = re.compile(r"[^ ][,.;:?!`]|[,.;:?!`][^ ]|[\t\n\r]")

# Characters beside which rule `scripts` asks for no space.
UNSPACED_MARKS = frozenset(
    string.punctuation
    # full-width and ideographic marks, quotation marks, brackets, tilde, dash
    + "\uff0c\u3002\u3001\uff1b\uff1a\uff1f\uff01\u201c\u201d\u2018\u2019\uff08"
    "\uff09\u3010\u3011\u300a\u300b\u3008\u3009\u300c\u300d\u300e\u300f\uff5e\u2014"
)
UNSPACED_RANGES = (
    (0x0E00, 0x0E7F),  # Thai
    (0x0E80, 0x0EFF),  # Lao
    (0x0F00, 0x0FFF),  # Tibetan
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # radicals of Chinese characters
    (0x2FF0, 0x2FFF),  # their descriptions
    (0x3400, 0x4DBF),  # Chinese characters, extension A
    (0x4E00, 0x9FFF),  # Chinese characters
    (0xF900, 0xFAFF),  # compatibility characters
    (0x20000, 0x2A6DF),  # extension B
    (0x2A700, 0x2EBEF),  # extensions C to F
)


def spaced(text: str) -> str:
    """A caption as it is searched: a space at both ends and on both sides of each mark."""
    text = f" {text} "
    for mark in SPACED_MARKS:
        text = text.replace(mark, f" {mark} ")
    for blank in BLANKS:
        text = text.replace(blank, " ")
    return text


def needs_no_space(character: str) -> bool:
    """Whether rule `scripts` asks for no space beside this character."""
    code = ord(character)
    in_range = any(first <= code <= last for first, last in UNSPACED_RANGES)
    return in_range or character in UNSPACED_MARKS


def pattern_of(entry: str, rule: Rule) -> str:
    """The text that must occur in the spaced caption."""
    left = right = " "
    if rule == "scripts":
        left = "" if needs_no_space(entry[0]) else " "
        right = "" if needs_no_space(entry[-1]) else " "
    return f"{left}{entry}{right}"


def can_occur(entry: str) -> bool:
    """False for an entry that no spaced caption holds: a mark in it lacks a space on one side, or
    it has a tab or a line end."""
    return not CANNOT_OCCUR.search(f" {entry} ")


class Matcher:
    """All entries of a list in batches of captions, by one Aho-Corasick automaton.

    500,000 entries of 14 characters take about 80 MiB and 2 s of CPU to build.
    """

    def __init__(
        self, entries: Sequence[str], rule: Rule = "spaces", *, ignore_case: bool = False
    ) -> None:
        """entries: at least one, none empty. ignore_case: entries and captions are case-folded; of
        entries that become equal the first one counts.

        ValueError where the package ahocorasick (pyahocorasick) is not installed.
        """
        require("concept", "ahocorasick", "concepts")
        import ahocorasick

        self.ignore_case = ignore_case
        self.automaton = ahocorasick.Automaton(ahocorasick.STORE_INTS)
        for number, entry in enumerate(entries):
            pattern = pattern_of(entry.casefold() if ignore_case else entry, rule)
            if not self.automaton.exists(pattern):
                self.automaton.add_word(pattern, number)
        self.automaton.make_automaton()

    def match(self, captions: Sequence[str]) -> pa.Array:
        """(captions,) list<int32>: numbers of the entries in each caption, ascending."""
        numbers: list[int] = []
        offsets = [0]
        for caption in captions:
            text = spaced(caption.casefold() if self.ignore_case else caption)
            numbers += sorted({number for _, number in self.automaton.iter(text)})
            offsets.append(len(numbers))
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), pa.array(numbers, pa.int32())
        )


# --------------------------------------------------------------------------------------------------
# The concepts of a caption: which entries of the user's list occur in it, as MetaCLIP matches
# them.


@dataclass(kw_only=True)
class Concept(Filter):
    """concept_entries: numbers of the entries that occur in the caption, ascending, from 0.
    concept_count: how many.

    entries: a text file with one entry a line, or a JSON list. rule: `spaces` is MetaCLIP 1's rule,
    `scripts` that of MetaCLIP 2. ignore_case: MetaCLIP compares as it is written.
    """

    name = "concept"
    needs = frozenset({"caption"})
    adds, meanings = described(
        concept_entries=(pa.list_(pa.int32()), "numbers of the caption's entries, from 0"),
        concept_count=(pa.int32(), "how many listed entries occur in the caption"),
    )
    entries: str = field(metadata=FILE)
    rule: Rule = "spaces"
    ignore_case: bool = False
    matcher: Any = field(default=None, init=False, repr=False, compare=False)

    def check(self) -> None:
        require(self.name, "ahocorasick", "concepts")
        read_entries(self.entries)

    def setup(self) -> None:
        entries = read_entries(self.entries)
        if silent := [entry for entry in entries if not can_occur(entry)]:
            logger.warning(
                "%d of %d entries can never occur, such as %r: MetaCLIP's rule puts a space on "
                "both sides of the marks , . ; : ? ! ` of a caption",
                len(silent),
                len(entries),
                silent[0],
            )
        self.matcher = Matcher(entries, self.rule, ignore_case=self.ignore_case)

    def score(self, batch: Batch) -> Columns:
        entries = self.matcher.match(batch.captions)
        return {"concept_entries": entries, "concept_count": pc.list_value_length(entries)}


# --------------------------------------------------------------------------------------------------
# DataComp's text-based filter: captions with a word whose most likely synset is in a given set.


WNID = re.compile(r"n\d{8}")
# Endings of nouns and what takes their place, in WordNet's order (morphy).
ENDINGS = (
    ("s", ""),
    ("ses", "s"),
    ("ves", "f"),
    ("xes", "x"),
    ("zes", "z"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("men", "man"),
    ("ies", "y"),
)
CACHED_WORDS = 2**18  # a crawl brings new words without end


class Nouns:
    """Words and the most likely synset of each."""

    def __init__(self, lemmas: Mapping[str, str], forms: Mapping[str, str]) -> None:
        """lemmas: noun -> wnid, n and eight digits; words are joined by `_`. forms: irregular form
        -> wnid of its first base that is a noun, "" if none is."""
        self.lemmas, self.forms = lemmas, forms

    @classmethod
    def read(cls, path: str) -> Nouns:
        """The nouns of WordNet's `index.noun`, and the irregular forms of `noun.exc` beside it.

        The order of senses in the index is that of their counts in tagged texts, so the first one
        is the most likely. ValueError for a line of another form and for an index without a noun.
        """
        lemmas = {}
        for number, line in enumerate(_lines(path), 1):
            if line.startswith(" "):  # the licence at the top
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
                raise ValueError(f"{path}, line {number}: no noun of WordNet: {line!r}")
            lemmas[fields[0]] = wnid
        if not lemmas:
            raise ValueError(f"{path} holds no noun")
        forms: dict[str, str] = {}
        for form, *bases in map(str.split, _lines(exceptions_beside(path))):
            wnids = [lemmas[base] for base in bases if base in lemmas]
            forms.setdefault(form, wnids[0] if wnids else "")
        return cls(lemmas, forms)

    def synset(self, word: str) -> str | None:
        """The wnid of the most likely noun synset of a word, None if it is no noun.

        The word itself comes first, then its irregular form, then the first of ENDINGS that gives a
        noun. One ending is replaced, as WordNet's morphy does.
        """
        word = word.lower()
        if word in self.lemmas:
            return self.lemmas[word]
        if word in self.forms:
            return self.forms[word] or None
        for ending, other in ENDINGS:
            if word.endswith(ending):
                base = self.lemmas.get(word.removesuffix(ending) + other)
                if base is not None:
                    return base
        return None


def exceptions_beside(path: str) -> str:
    """The list of irregular forms that belongs to an index."""
    return disk.join(os.path.dirname(path), "noun.exc")


def read_wnids(path: str) -> frozenset[str]:
    """The set of a file with one wnid a line. ValueError for another line and for no wnid."""
    wnids = []
    for number, line in enumerate(_lines(path), 1):
        if not WNID.fullmatch(line):
            raise ValueError(f"{path}, line {number}: {line!r} is no wnid such as n02084071")
        wnids.append(line)
    if not wnids:
        raise ValueError(f"{path} holds no wnid")
    return frozenset(wnids)


def _lines(path: str) -> list[str]:
    """The lines that are not blank, without white space at their right."""
    lines = read_text(path, "list").split("\n")
    return [line.rstrip("\r ") for line in lines if line.strip()]


@dataclass(kw_only=True)
class Synset(Filter):
    """synset_match: whether a word of the caption is a noun whose most likely synset is in the set.

    nouns: the file `index.noun` of a WordNet database, with `noun.exc` beside it. wnids: the set,
    one wnid a line; DataComp's is that of ImageNet-21k. Words lie between white space and keep
    their marks: `dog,` is no noun. DataComp compares synsets by offset alone, so that a verb's may
    equal a noun's of the set; here only nouns count.
    """

    name = "synset"
    needs = frozenset({"caption"})
    adds, meanings = described(
        synset_match=(pa.bool_(), "whether a word's most likely synset is in the set"),
    )
    nouns: str = field(metadata=FILE)
    wnids: str = field(metadata=FILE)
    lexicon: Any = field(default=None, init=False, repr=False, compare=False)
    wanted: Any = field(default=None, init=False, repr=False, compare=False)
    known: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def identity(self) -> str:
        forms = read_text(exceptions_beside(self.nouns), "list")
        return f"{disk.content_hash(forms)}:{super().identity()}"

    def check(self) -> None:
        self.setup()

    def setup(self) -> None:
        self.lexicon, self.wanted = Nouns.read(self.nouns), read_wnids(self.wnids)

    def score(self, batch: Batch) -> Columns:
        matches = [any(map(self.is_wanted, caption.split())) for caption in batch.captions]
        return {"synset_match": np.array(matches, np.bool_)}

    def is_wanted(self, word: str) -> bool:
        """Whether the most likely synset of a word is in the set."""
        answer = self.known.get(word)
        if answer is None:
            if len(self.known) >= CACHED_WORDS:
                self.known.clear()
            answer = self.known[word] = self.lexicon.synset(word) in self.wanted
        return answer
