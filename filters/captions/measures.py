"""What can be counted in captions, a whole batch at a time. Arrow's own functions count characters
and search by regular expression (RE2); Python counts words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Counts = np.ndarray[Any, np.dtype[np.int32]]
FloatArray = np.ndarray[Any, np.dtype[np.float32]]

# fastText parts words at these and at nothing else, and counts each line end as a word of its own.
FASTTEXT_WORD = r"[^\x00\t\n\x0b\f\r ]+"
# No letter, combining mark, digit or white space.
SPECIAL = r"[^\p{L}\p{M}\p{N}\p{Z}\s]"
NO_WORD_CHARACTERS = r"[^\p{L}\p{M}\p{N}]+"
URL = (
    r"(?i)(?:\bhttps?:|\bftp:)//[^\s]"
    r"|\bwww\.[\p{L}\p{N}-]+\."
    r"|\b[a-z0-9-]+\.(?:com|net|org|info|biz|edu|gov|io|co\.uk|de|fr|es|it|nl|pl|ru|cn|jp|br|eu)"
    r"(?:[/?#:]|\b[^.\w@-]|\.?$)"
)
EXTENSIONS = "jpe?g|jpe|jfif|png|gif|webp|avif|bmp|tiff?|svg|heic|heif|ico|raw|cr2|nef|dng|psd"
NOUNS = (
    "image|img|photo|foto|photograph|picture|pic|slide|figure|fig|page|view|gallery|thumbnail|"
    "thumb|item|product|bild|imagen|immagine|no|nr"
)
CAMERAS = "img|imag|image|dsc[nf]?|dcim|pxl|mvi|pict|gopr|cimg|sam|wp|p|vlcsnap|fb_img|received"
# The first form that fits counts. `^` and `$` are the ends of the trimmed caption.
BOILERPLATE = {
    "file_name": (
        rf"(?i)[\p{{L}}\p{{N}})_\]-]\.(?:{EXTENSIONS})$"
        rf"|^(?:{CAMERAS})[ _-]?\d{{3,}}(?:[ _-][\w()]+)*$"
        r"|^(?:screen ?shot|whatsapp image|unnamed|untitled)[ _-]*\d[\d .:_()-]*"
        r"(?:at [\d .:apm]+)?$"
        r"|^[0-9a-f]{16,}$"
        r"|^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
        r"|^[a-z]*\d[\da-z]*(?:_[\da-z]+){1,}$"
    ),
    "counter": (
        rf"(?i)^(?:{NOUNS})?[ #_.:(-]*\d+[)]?(?:\s*(?:of|/|von|de|sur|di)\s*\d+)?[.)]?$"
        rf"|^(?:{NOUNS}) (?:\d+|one|two|three) (?:of|from|/) .{{0,40}}$"
    ),
    "placeholder": (
        r"(?i)^(?:untitled|no title|unnamed|undefined|null|none|nan|n/?a|alt|alt[ -]?text|default|"
        r"placeholder|blank|spacer|pixel|loading|advertisement|ad|banner|logo|icon|avatar|"
        r"image|img|photo|picture|pic|thumbnail|thumb|featured image|post image|product image|"
        r"cover image|main image|hero image|profile (?:picture|photo|image)|user avatar|"
        r"(?:no|missing) (?:image|photo|picture)(?: available)?|"
        r"(?:image|photo|picture) (?:not available|unavailable|not found|coming soon)|"
        r"(?:click|tap) (?:here|to (?:enlarge|zoom|view|expand))(?: .{0,30})?|"
        r"(?:view|see) (?:larger|full[ -]?size|bigger)(?: image)?|"
        r"image may contain.{0,80}|read more|learn more|share this|"
        r"(?:image|photo) (?:credit|courtesy|by|via)(?: .{0,40})?)[ .!:…-]*$"
    ),
}


def count_words(captions: Sequence[str]) -> tuple[Counts, FloatArray, FloatArray]:
    """(words, top word share, top 3-gram share) of each caption; words lie between white space.

    The share of a word is its count by the number of words, that of three consecutive words their
    count by the number of such runs; capitals do not count. A share is 0 where nothing is repeated.
    """
    words, top_words, top_runs = [], [], []
    for caption in captions:
        pieces = caption.lower().split()
        words.append(len(pieces))
        if len(set(pieces)) == len(pieces):
            top_words.append(0.0)
            top_runs.append(0.0)
            continue
        top_words.append(max(Counter(pieces).values()) / len(pieces))
        runs = Counter(zip(pieces, pieces[1:], pieces[2:], strict=False))
        largest = max(runs.values(), default=0)
        top_runs.append(largest / runs.total() if largest > 1 else 0.0)
    shares = np.array(top_words, np.float32), np.array(top_runs, np.float32)
    return np.array(words, np.int32), *shares


def fasttext_words(captions: pa.Array) -> pa.Array:
    """(captions,) number of tokens as fastText's tokenizer counts them, int32."""
    words = pc.count_substring_regex(captions, FASTTEXT_WORD)
    return pc.cast(pc.add(words, pc.count_substring(captions, "\n")), pa.int32())


def special_share(captions: pa.Array) -> pa.Array:
    """(captions,) share of the characters that are no letter, mark, digit or white space; 0 for an
    empty caption."""
    special = pc.cast(pc.count_substring_regex(captions, SPECIAL), pa.float32())
    length = pc.max_element_wise(pc.utf8_length(captions), 1)
    return pc.divide(special, pc.cast(length, pa.float32()))


def has_url(captions: pa.Array) -> pa.Array:
    """(captions,) whether a web address stands in it."""
    return pc.match_substring_regex(captions, URL)


def boilerplate(captions: pa.Array) -> pa.Array:
    """(captions,) the key of BOILERPLATE that the whole caption fits, "" where none does."""
    trimmed = pc.utf8_trim_whitespace(captions)
    kinds = list(BOILERPLATE)
    answer = pa.array([""] * len(captions), pa.string())
    for kind in reversed(kinds):
        fits = pc.match_substring_regex(trimmed, BOILERPLATE[kind])
        answer = pc.if_else(fits, kind, answer)
    return answer


def as_word_runs(captions: pa.Array) -> pa.Array:
    """(captions,) the words alone, in lower case, with a space between two.

    What is no letter, mark or digit parts words.
    """
    return pc.replace_substring_regex(pc.utf8_lower(captions), NO_WORD_CHARACTERS, " ")
