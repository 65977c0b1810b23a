"""A folder of pictures with captions as an ablation: what is in it, what is held back for the test
and for the scorer, and the manifests.

Near copies of a picture are always on one side: shares are drawn of groups of them. The task of the
ablation refuses a view with a near copy of a test picture (`near_overlap`), should one be left.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import yaml
from PIL import Image

from clipmill.filters.near_hashes import near_labels
from clipmill.manifests import disk
from clipmill.manifests.hashes import phash
from clipmill.manifests.schema import CAPTION_FILES, CLASS_FOLDERS, Fetch, Source
from clipmill.manifests.text import printable, valid_text
from clipmill.pipeline.crawl.tables import ImageFolder, is_image, labelled
from clipmill.pipeline.external.adopt import TarReader
from clipmill.pipeline.fetch.download import read_file
from clipmill.pipeline.images.decoders import Decoders
from clipmill.pipeline.images.header import RejectedImage
from clipmill.pipeline.table_files import (
    HEADERS,
    PARQUET,
    PROBE,
    as_text,
    class_names,
    column_names,
    is_table,
    refuse_notation,
    table_ending,
    text_lines,
    unlisted,
    values,
)

# --------------------------------------------------------------------------------------------------
# What a folder holds: pairs of a picture and its caption, whatever their form.
#
# Each way to captions that the folder offers is a `Reading`: text files, a table, or the names of
# folders. Contents decide: the column of files is the one whose values name pictures that are
# there, and numbers are no captions. One reading that is clear is taken; of two, one must be named.

# Usual names of columns, in order. Of columns that name as many pictures the first one counts.
FILE_COLUMNS = (
    "file_name", "file", "filename", "file_path", "filepath", "path", "image", "image_path", "img",
    "img_path", "image_file", "image_name", "image_id", "img_id", "id", "name", "images",
)  # fmt: skip
# A name of an earlier group wins. Of two in one group the user names one.
CAPTION_COLUMNS = (
    ("caption",),
    ("text", "prompt", "title", "description", "alt", "alt_text", "sentence", "comment",
     "conversation", "message"),
    ("label", "class", "category", "class_name", "label_name", "species", "breed"),
)  # fmt: skip
# Words of folders that say what their files are for, and no class.
ROLE = re.compile(
    "train(ing|val)?|test(ing)?|val(id|idation)?|dev|eval|splits?|quer(y|ies)|gallery|jpe?gs?|pngs?|"
    "data|datasets?|raw|processed|originals?|resized|cropped|outputs?|inputs?|results?|samples?|"
    "parts?|batch(es)?|sets?|all|full|small|large|thumb(nail)?s?|folder|new|(up|down)loads?|dcim"
)
WORDNET = re.compile(r"n\d{8}")
NUMBERED = re.compile(r"^(n\d{8}|\d+)[\W_]+")  # in front of the name of a class
OF_PICTURES = re.compile("(jpeg)?images?|imgs?|pics?|pictures?|photos?")  # images_part_1 too
MASK = re.compile(
    "masks?|labels?|annotations?|gt|ground_?truth|segmentation(s|class|object)?|depth",
    re.IGNORECASE,
)
CAPTION_ENDINGS = (CAPTION_FILES, "caption")  # of text files: Kohya's scripts write the second
logger = logging.getLogger(__name__)
MOST_TABLES = 100  # that are looked at
COVERED = 2  # a reading has captions for one in so many of the pictures that the best has, or more
NUMBER = re.compile(r"[-+]?\.?\d[\d.]*([eE][-+]?\d+)?%?")
# What asks for a caption, in a chat about a picture.
ASKS = re.compile(
    r"descri|caption|summar|expla|interpret|depict|narra|account of|what do you see|"
    r"what is (in|this)|what.s happening|描述",
    re.IGNORECASE,
)
PROSE = "it is a text, and no table"
# Pixels of the shorter side that are stored: the model micro sees 32, a CLIP of others 224.
SIDE, SIDE_OF_OTHERS = 64, 224
AT_ONCE = 64  # pictures that are read before the first of them is let go
SHOWN = 3  # folders or captions in a sentence
MOST_NAMES, MOST_SHOWN = 20, 60  # columns, and characters of a value, in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A picture and its caption. `tar`: the picture is `length` bytes of this tar from `offset`.
    The hashes are of its bytes and, perceptual, of what will be stored of it.
    """

    file: str
    caption: str
    sha256: str = ""
    phash: int = 0
    tar: str = ""
    offset: int = 0
    length: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Reading:
    """One way to the captions of a folder: `option` is what --captions takes for it.

    pairs: (picture, caption). lost: the reason of each picture that has no pair. rejected: rows
    that belong to no picture, by reason; `examples` has one of each reason.
    """

    option: str
    form: str
    pairs: list[tuple[str, str]] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)

    def add(self, image: str, texts: Iterable[str], reason: str = "no_caption") -> None:
        """The captions of a picture; those that are numbers are none."""
        for text in texts:
            if _is_numbers(text):
                reason = "numbers"
                self.examples.setdefault(reason, text)
            else:
                self.pairs.append((image, text))
                reason = ""
        if reason:
            self.lost.setdefault(image, reason)
            self.examples.setdefault(reason, image)

    def reject(self, reason: str, example: str) -> None:
        """A row that belongs to no picture."""
        self.rejected[reason] += 1
        self.examples.setdefault(reason, example)

    def close(self, images: Sequence[str]) -> Reading:
        """The reading, where pictures without a pair are lost and those with one are not."""
        captioned = self.images()
        for image in images:
            if image in captioned:
                self.lost.pop(image, None)
            elif image not in self.lost:
                self.add(image, ())
        return self

    def images(self) -> set[str]:
        """The pictures that have a caption."""
        return {image for image, _ in self.pairs}

    def problem(self) -> str:
        """Why its captions cannot be learned from; "" where they can."""
        reasons = Counter(self.lost.values()) + self.rejected
        if 2 * reasons["numbers"] > len(self.images()) + reasons["numbers"]:
            example = _quoted(self.examples["numbers"])
            return f"numbers (boxes or classes) in place of captions, as {example}"
        if not self.pairs:
            reason, _ = reasons.most_common(1)[0] if reasons else ("no_caption", 0)
            example = _quoted(self.examples.get(reason, ""))
            return f"{reasons[reason]:,} {reason}, such as {example}"
        if len(self.pairs) > SHOWN and len({text for _, text in self.pairs}) == 1:
            return f"all {len(self.pairs):,} captions are {_quoted(self.pairs[0][1])}"
        return ""

    def words(self) -> str:
        """What it gives, with examples."""
        return f"{self.form}: {len(self.pairs):,} pairs, such as {'; '.join(self.examples_shown())}"

    def examples_shown(self) -> list[str]:
        """Some pairs, in words."""
        drawn = sorted(self.pairs, key=lambda pair: _draw(pair[0]))[:SHOWN]
        return [f"{image}: {_quoted(text)}" for image, text in drawn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The pairs of a folder, in words where their captions come from, and what is no pair, by
    reason. `drawn_from`: the pairs that there are, of which `pairs` is a sample.

    files: the pictures of the folder. lost: those of them without a pair, by reason; `rejected`
    has these and rows that name no picture. examples: one of a reason. lines: what was found, from
    the third on what is not used. drawn_pairs: some pairs, in words.
    """

    folder: str
    form: str
    pairs: list[Pair]
    rejected: Counter[str]
    drawn_from: int = 0
    files: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    examples: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    drawn_pairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What the user names: `captions` is txt, caption, class_folders, or tables by their paths from
    the folder, with commas between them; and the columns of a table."""

    captions: str | None = None
    file_column: str | None = None
    caption_column: str | None = None


def read_pictures(folder: str, named: Named, most: int) -> Pictures:
    """The pairs of a folder on this machine, `most` of them at most, drawn by their names.

    ValueError where there are no pictures, no captions, or two forms of captions and none is named.
    """
    if disk.is_url(folder) or not disk.local_path(folder).is_dir():
        is_file = not disk.is_url(folder) and disk.local_path(folder).is_file()
        urls = ". A list of URLs becomes a pool by `clipmill build` (docs/start/img2dataset.md)"
        raise ValueError(
            f"{disk.shown_path(folder)} is no folder on this machine; name a folder of pictures"
            f"{urls if is_file else ''}"
        )
    folder = os.path.abspath(disk.local_path(folder))
    inside = ImageFolder(folder, Source(kind="image_folder", paths=(folder,), captions="txt"))
    names = inside.names()
    tars = [os.path.join(folder, name) for name in names if name.endswith(".tar")]
    files = inside.images()
    if tars and not files:
        return _drawn(_pictures_of_tars(folder, tars, most), most)
    images, outside = _usable(inside, files)
    if not images:
        disk.check_not_saved(folder, names)
        raise ValueError(printable(_no_pictures(folder, names, outside)))
    reading, notes = _choose(inside, names, images, named)
    notes += _links(folder, (name for name in outside if os.path.isdir(os.path.join(folder, name))))
    kinds = Counter(os.path.splitext(name)[1].lower() for name in files)
    lost = Counter([*outside.values(), *reading.lost.values()])
    lines = (f"{folder} has {len(files):,} pictures ({_kinds(kinds)})", reading.words(), *notes)
    pictures = Pictures(
        folder=folder,
        form=reading.form,
        pairs=[Pair(file=inside.file(image), caption=text) for image, text in reading.pairs],
        rejected=lost + reading.rejected,
        files=len(files),
        lost=lost,
        examples={**{reason: name for name, reason in outside.items()}, **reading.examples},
        lines=tuple(map(printable, lines)),
        drawn_pairs=tuple(map(printable, reading.examples_shown())),
    )
    return _drawn(pictures, most)


def _no_pictures(folder: str, names: Sequence[str], outside: Mapping[str, str]) -> str:
    """Why a folder has no pictures, and what there is in place of them."""
    problem = f"{disk.shown_path(folder)} has no pictures (.jpg, .png, .webp …) and no tars "
    problem += "with them" if names else "with them; it is empty"
    links = _links(folder, (name for name, why in outside.items() if why == "outside_folder"))
    problem += "".join(f"; {link}" for link in links)
    if tables := [name for name in names if name.lower().endswith(PARQUET)]:
        problem += (
            f"; a recipe with kind: image_table reads pictures in tables ({_listed(tables, SHOWN)})"
        )
    return problem


def _links(folder: str, links: Iterable[str]) -> list[str]:
    """What to do about symbolic links that lead out of the folder."""
    listed = sorted(links)
    words = [
        f"{link} is a symbolic link that leads out of it: copy it into the folder, or give "
        + disk.shown_path(os.path.realpath(os.path.join(folder, link)))
        for link in listed[:SHOWN]
    ]
    more = len(listed) - SHOWN
    return [*words, *([f"{more:,} more symbolic links lead out of it"] if more > 0 else [])]


def _usable(inside: ImageFolder, files: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The pictures that may be used, and the reasons of the others: links that lead outside, names
    that are no text, and masks beside pictures."""
    images, others = [], {}
    for name in files:
        try:
            if valid_text(name) != name:
                raise ValueError("bad_url")
            inside.file(name)
            images.append(name)
        except ValueError as reason:
            others[name] = str(reason)
    masks = {n for n in images if any(map(MASK.fullmatch, n.split("/")[:-1]))}
    masks = set() if len(masks) == len(images) else masks
    return [n for n in images if n not in masks], others | dict.fromkeys(masks, "masks")


def _choose(
    inside: ImageFolder, names: Sequence[str], images: Sequence[str], named: Named
) -> tuple[Reading, list[str]]:
    """The reading of a folder, and lines on what else there is."""
    notes: list[str] = []
    is_table_named = named.captions not in (None, *CAPTION_ENDINGS, CLASS_FOLDERS)
    is_table_named |= bool(named.file_column or named.caption_column)
    readings = []
    for ending in CAPTION_ENDINGS:
        if named.captions == ending or (named.captions is None and not is_table_named):
            readings.append(_text_reading(inside, names, images, ending))
    if named.captions is None or is_table_named:
        tables = _table_names(inside, names, images, named.captions)
        readings += _table_readings(inside, tables, images, named, notes)
    usable = [reading for reading in readings if reading.pairs and not reading.problem()]
    most = max((len(reading.images()) for reading in usable), default=0)
    if named.captions == CLASS_FOLDERS or (
        named.captions is None and not is_table_named and COVERED * most < len(images)
    ):
        readings.append(classes := _class_reading(images, named.captions is not None))
        usable += [] if classes.problem() or not classes.pairs else [classes]
        most = max((len(reading.images()) for reading in usable), default=0)
    clear = [reading for reading in usable if COVERED * len(reading.images()) >= most]
    for reading in readings:
        is_there = reading.pairs or {*reading.lost.values(), *reading.rejected} - {"no_caption"}
        if is_there and reading not in clear:
            notes.append(f"{reading.form}: {reading.problem() or reading.words()}")
    if len(clear) == 1:
        return clear[0], notes
    if clear:
        ways = " | ".join(reading.words() for reading in clear)
        options = [f"--captions {reading.option}" for reading in clear]
        raise ValueError(
            printable(
                f"{disk.shown_path(inside.path)} has captions in {len(clear)} forms ({ways}); name "
                f"one, as in {' or '.join(options)}"
            )
        )
    raise ValueError(printable(_nothing(inside, names, images, named, notes)))


def _nothing(
    inside: ImageFolder,
    names: Sequence[str],
    images: Sequence[str],
    named: Named,
    notes: Sequence[str],
) -> str:
    """Why a folder has no captions, and what it would need."""
    there = f"--captions is {named.captions!r}, which gives none. " if named.captions else ""
    there += f"Found: {'; '.join(notes[: 2 * SHOWN])}. " if notes else ""
    above = os.path.dirname(inside.path)
    if not named.captions and os.path.isdir(above):
        tables = [n for n in sorted(os.listdir(above)) if is_table(n) and not n.startswith(".")]
        if tables:
            there += f"Above the folder is {_listed(tables, SHOWN)}: "
            there += f"--captions ../{tables[0]} reads it. "
    stems = {os.path.splitext(image)[0] for image in images}
    beside = [os.path.splitext(name) for name in names if not is_image(name)]
    endings = Counter(ending for stem, ending in beside if stem in stems)
    if endings:
        there += f"Files beside the pictures: {_kinds(endings)}. "
    return (
        f"{disk.shown_path(inside.path)} has {_pictures(len(images))} and captions must come with "
        "them, from a text file beside each (cat.jpg, cat.txt), a folder for each class, or a "
        "table (.csv, .json, .parquet, captions.txt …) with a column of files and one of captions. "
        f"{there}Columns of "
        "other names are given by --file-column and --caption-column"
    )


# --- text files and folders -----------------------------------------------------------------------


def _text_reading(
    inside: ImageFolder, names: Sequence[str], images: Sequence[str], ending: str
) -> Reading:
    """The text file beside each picture; or, where there are none, the only one of its name in
    another folder."""
    reading = Reading(option=ending, form=f"text files beside them (.{ending})")
    texts = {name.lower(): name for name in names if name.lower().endswith(f".{ending}")}
    found: dict[str, str] = {}
    for image in images:
        for start in (os.path.splitext(image)[0], image):
            if name := texts.get(f"{start}.{ending}".lower()):
                found.setdefault(image, name)
    if texts and not found:
        reading.form = f"text files of their names (.{ending}) in another folder"
        pictures = PictureNames(images)
        for name in texts.values():
            if image := pictures.find(os.path.splitext(os.path.basename(name))[0]) or "":
                found[image] = name
    for image, name in found.items():
        try:
            text = disk.read_bytes(inside.file(name)).decode("utf-8-sig").strip()
            reading.add(image, [text] if text else [])
        except (ValueError, OSError):
            reading.add(image, (), "damaged")
    return reading.close(images)


def _class_reading(images: Sequence[str], is_named: bool) -> Reading:
    """The name of the nearest folder of each picture that may be a class; where the user says that
    folders are classes, any name may be."""
    beside: dict[str, set[str]] = {}  # the folders in each folder
    for image in images:
        parts = image.split("/")[:-1]
        for k, part in enumerate(parts):
            beside.setdefault("/".join(parts[:k]), set()).add(part)
    classes: dict[str, str] = {}
    for image in images:
        parts = image.split("/")[:-1]
        own = [
            part for k, part in enumerate(parts) if not _is_role(part, beside["/".join(parts[:k])])
        ]
        if own or (is_named and parts):
            name = (own or parts)[-1]
            classes[image] = (NUMBERED.sub("", name) or name).replace("_", " ").strip()
    folders = sorted(set(classes.values()))
    form = f"the names of {len(folders)} folders ({_listed(folders, SHOWN)})"
    reading = Reading(option=CLASS_FOLDERS, form=form)
    if is_named or 1 < len(folders) <= len(images) / 2:
        for image, folder in classes.items():
            reading.add(image, [f"a photo of a {folder}"])
    return reading.close(images)


def _is_role(folder: str, beside: Iterable[str] = ()) -> bool:
    """Whether the name of a folder is no class: a split, a role, a size, a number, a WordNet id.
    "train" among names of classes is one of them."""
    name = folder.lower()
    if name == "train" and beside:
        kinds = Counter(_is_role(other) for other in beside if other != folder)
        return kinds[False] <= 1 + kinds[True]
    words = re.findall(r"[^\W\d_]+", re.sub(r"\d+(x\d+|px)", "", name))
    known = [ROLE.fullmatch(word) or MASK.fullmatch(word) for word in words]
    return all(known) or any(map(OF_PICTURES.fullmatch, words)) or bool(WORDNET.fullmatch(name))


# --- tables ---------------------------------------------------------------------------------------

Rows = Callable[[Sequence[str]], Iterable[Sequence[Any] | None]]  # of columns; None: a damaged row


class PictureNames:
    """The pictures of a folder by the names that tables have for them: paths from the table or the
    folder, ends of paths, with the ending of the file or without."""

    def __init__(self, images: Sequence[str]) -> None:
        self.images = frozenset(images)
        self.by_end: dict[str, str] = {}  # "" where it is the end of several
        for image in images:
            parts = image.split("/")
            for start in range(len(parts)):
                end = "/".join(parts[start:])
                for key in (end, os.path.splitext(end)[0]):
                    known = self.by_end.setdefault(key, image)
                    self.by_end[key] = image if known == image else ""

    def find(self, value: object, folder: str = "") -> str | None:
        """The picture that a value of a table in `folder` names; "" where it may be several."""
        value = value.get("path") if isinstance(value, Mapping) else value
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            return None
        name = str(value).strip().replace("\\", "/")
        name = name if name in self.by_end else re.sub(r"#\d+$", "", name)  # Flickr8k's numbers
        for start in (folder, ""):
            if (path := os.path.normpath(os.path.join(start, name))) in self.images:
                return path
        parts = [part for part in name.split("/") if part not in ("", ".", "..")]
        ends = ("/".join(parts[start:]) for start in range(len(parts)))
        return next((self.by_end[end] for end in ends if end in self.by_end), None)


def _table_names(
    inside: ImageFolder, names: Sequence[str], images: Sequence[str], captions: str | None
) -> list[str]:
    """The tables that may have captions, or those that the user names."""
    if captions is None:
        stems = {os.path.splitext(image)[0] for image in images} | set(images)
        own = [n for n in names if is_table(n) and os.path.splitext(n)[0] not in stems]
        return sorted(own, key=lambda name: (name.count("/"), name))
    if os.path.isfile(os.path.join(inside.path, captions)):
        return [captions]
    parts = captions.split(",")
    found = [name for name in names if name in parts or os.path.basename(name) in parts]
    if not found and os.path.isfile(captions):
        found = [os.path.relpath(captions, inside.path)]
    if not found:
        some = _listed(sorted(filter(is_table, names)), SHOWN) or "none"
        raise ValueError(
            f"--captions is {captions!r}, which is no file of {disk.shown_path(inside.path)}; give "
            f"txt, class_folders, or a table by its path from the folder (tables: {some})"
        )
    return found


def _table_readings(
    inside: ImageFolder,
    tables: Sequence[str],
    images: Sequence[str],
    named: Named,
    notes: list[str],
) -> list[Reading]:
    """What tables give. Those of the same columns that name different pictures, as train.csv and
    val.csv do, are one reading."""
    if len(tables) > MOST_TABLES and named.captions is None:
        notes.append(f"{len(tables):,} tables, of which the first {MOST_TABLES} were looked at")
        tables = tables[:MOST_TABLES]
    pictures = PictureNames(images)
    parts: dict[tuple[str, ...], list[Reading]] = {}
    for name in tables:
        try:
            columns, part = _table_reading(inside, name, pictures, named)
        except (ValueError, OSError, csv.Error) as problem:
            text = str(problem).replace(os.path.join(inside.path, name), "").lstrip(": ")
            if named.captions is not None:
                raise ValueError(f"--captions is {named.captions!r}: {name}: {text}") from None
            if text != PROSE:
                notes.append(f"{name}: {text}")
            continue
        if not part.pairs and (named.captions is None or len(tables) > 1):
            notes.append(f"{part.form}: {part.problem()}")
            continue
        for other in parts.setdefault(columns, []):
            if other.images().isdisjoint(part.images()) and not part.problem():
                other.tables.append(name)
                other.pairs += part.pairs
                other.rejected += part.rejected
                other.examples = part.examples | other.examples
                break
        else:
            parts[columns].append(part)
    readings = [reading for group in parts.values() for reading in group]
    for reading in readings:
        files = reading.tables
        if len(files) > 1:
            reading.option = ",".join(files)
            reading.form = reading.form.replace(
                files[0], f"{len(files)} tables ({_listed(files, SHOWN)})", 1
            )
        if len(files) > SHOWN and len({os.path.basename(file) for file in files}) == 1:
            reading.option = os.path.basename(files[0])
        reading.close(images)
    return readings


def _table_reading(
    inside: ImageFolder, name: str, pictures: PictureNames, named: Named
) -> tuple[tuple[str, ...], Reading]:
    """The columns that are read of a table, and what they give. ValueError says why it is none."""
    columns, rows = _open_table(inside.table(name), pictures)
    folder = os.path.dirname(name)

    def find(value: object) -> str | None:
        return pictures.find(value, folder)

    head = [row for row in islice(rows(columns), PROBE) if row is not None]
    first = {column: [row[k] for row in head] for k, column in enumerate(columns)}
    by_name = {column.strip(): column for column in columns}  # Flickr30k's have blanks around them
    for column in filter(None, (named.file_column, named.caption_column)):
        if column not in by_name:
            raise ValueError(f"it has no column {column!r} (it has {_listed(columns)})")
    file = by_name[named.file_column] if named.file_column else _file_column(first, find)
    own = [by_name[c] for c in (named.caption_column,) if c] or _caption_columns(first, file, find)
    for column in own:
        refuse_notation(inside.table(name), column, first[column])
    form = f"{name} (columns {file.strip()} and {_listed(own)})"
    reading = Reading(option=name, form=form, tables=[name])
    for number, row in enumerate(rows([file, *own]), 1):
        if row is None:
            reading.reject("damaged", f"row {number}")
            continue
        is_text = all(valid_text(v) == v for v in row[1:] if isinstance(v, str))
        reason = "no_caption" if is_text else "damaged"
        texts = [text for value in row[1:] for text in _texts(value)]
        for name in _each(row[0]):
            if image := find(name):
                reading.add(image, texts, reason)
            else:
                missing = "missing_file" if image is None else "ambiguous_name"
                reading.reject(missing, as_text(name) or f"row {number}")
    return (file, *own), reading


def _file_column(
    first: Mapping[str, Sequence[object]], find: Callable[[object], str | None]
) -> str:
    """The column whose values name the most pictures that are there."""
    counts = {
        name: len({find(each) for value in own for each in _each(value)} - {None})
        for name, own in first.items()
    }
    best = max(counts.values(), default=0)
    usual = sorted(first, key=_place_of)
    if not best:
        named = next((name for name in usual if _place_of(name) < len(FILE_COLUMNS)), None)
        example = f": {named} is {_quoted(first[named][0])}" if named and first[named] else ""
        raise ValueError(
            f"no column names pictures of the folder (it has {_listed(first)}){example}"
        )
    most = [name for name in usual if 10 * counts[name] >= 9 * best]
    if len(most) > 1 and _place_of(most[0]) == len(FILE_COLUMNS):
        raise ValueError(f"{_listed(most)} name pictures: name one by --file-column {most[0]}")
    return most[0]


def _caption_columns(
    first: Mapping[str, Sequence[object]], file: str, find: Callable[[object], str | None]
) -> list[str]:
    """The columns of captions: of a usual name, as caption, or caption_1 to caption_5."""

    def has_captions(column: str) -> bool:
        texts = [text for value in first[column] for text in _texts(value)]
        numbers = sum(map(_is_numbers, texts))
        named = [text for text in texts if text.endswith(CAPTION_ENDINGS) or find(text)]
        return len(texts) > 2 * numbers and len(named) < len(texts)

    others = [name for name in first if name != file and has_captions(name)]
    if list(first) == ["1", "2"]:  # without a header
        return [name for name in first if name != file]
    words = {name: _usual(name) for name in others}
    for group in CAPTION_COLUMNS:
        own = [name for name in others if words[name] in group]
        if not own and group == CAPTION_COLUMNS[0]:
            own = [name for name in others if set(words[name].split("_")) & set(group)]
        if len({words[name] for name in own}) > 1:
            options = " or ".join(f"--caption-column {name}" for name in own)
            raise ValueError(f"several columns may be captions: name one, as {options}")
        if own:
            return own
    if len(others) == 1 and all(map(str.isdecimal, first)):
        return others
    usual = [name for group in CAPTION_COLUMNS for name in group]
    empty = next((name for name in first if _usual(name) in usual and first[name]), None)
    value = str(first[empty][0]) if empty else ""
    example = f"; {empty} is {_quoted(valid_text(value))}" if empty else ""
    example += ", which is not UTF-8" if valid_text(value) != value else ""
    raise ValueError(
        f"column {file} names pictures, and none of a usual name has captions (it has "
        f"{_listed(first)}){example}: name one by --caption-column"
    )


def _each(value: object) -> Sequence[Any]:
    """The names in a value: a list has one for each picture."""
    return value if isinstance(value, (list, tuple)) and value else [value]


def _usual(column: str) -> str:
    """The name of a column without capitals, numbers at its end and the plural."""
    name = re.sub(r"[\W_]+", "_", column.lower()).strip("_")
    name = re.sub(r"_?\d+$", "", name)
    return name.removesuffix("s") if name not in ("class", "species") else name


def _place_of(column: str) -> int:
    name = re.sub(r"[\W_]+", "_", column.lower()).strip("_")
    return FILE_COLUMNS.index(name) if name in FILE_COLUMNS else len(FILE_COLUMNS)


def _texts(value: Any) -> list[str]:
    """The captions in a value of a table: a text, a list of texts, the answer in a chat."""
    value = unlisted(value)
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(turn, Mapping) for turn in value) and _turn(value[0])[0]:
            return _answer(value)
        return [text for each in value for text in _texts(each)]
    if isinstance(value, Mapping):
        key = next((key for key in ("caption", "raw", "text") if key in value), None)
        return _texts(value[key]) if key else []
    text = as_text(value) if isinstance(value, (str, bytes, int)) else None
    return [text.strip()] if text and text.strip() else []


def _answer(turns: Sequence[Mapping[str, object]]) -> list[str]:
    """The caption in a chat: the one answer to the one question, which asks for a description."""
    talk = [_turn(turn) for turn in turns]
    talk = [turn for turn in talk if turn[0] != "system"]
    if len(talk) != 2:
        return []
    question = re.sub(r"<[^>]*>|Picture \d+:", "", talk[0][1]).strip()
    return [talk[1][1].strip()] if not question or ASKS.search(question) else []


def _turn(turn: Mapping[str, object]) -> tuple[str, str]:
    """Who speaks in a turn of a chat, and what: `from` and `value`, or `role` and `content`."""
    who, what = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if isinstance(what, list):
        what = " ".join(str(p.get("text") or "") for p in what if isinstance(p, Mapping))
    return (str(who), str(what)) if who and what is not None else ("", "")


def _is_numbers(text: str) -> bool:
    """Whether most lines of a text are a number, or boxes as detectors have them."""
    lines = [re.split(r"[\s,;]+", line.strip(" ,;")) for line in text.splitlines() if line.strip()]
    found = 0
    for words in lines:
        numbers = sum(NUMBER.fullmatch(word) is not None for word in words)
        found += numbers == len(words) or (numbers >= 4 and len(words) - numbers <= 2)
    return 2 * found > len(lines)


# --- forms of tables ------------------------------------------------------------------------------


def _open_table(path: str, pictures: PictureNames) -> tuple[list[str], Rows]:
    """The columns of a table, and its rows, as a recipe reads them. ValueError where it is none.

    Of a table of lines without a header the columns are 1, 2 and so on; where the rows differ in
    width they are 1, the name in front, and 2, the rest of the line.
    """
    disk.check_source_file(disk.local_path(path))
    delimiter, header = ",", list[str]()
    if (ending := table_ending(path)) in HEADERS:
        lines = [line for line in islice(text_lines(path), PROBE) if line.strip()]
        delimiter, width = _separator_of(lines, pictures, ending)
        header = [str(number + 1) for number in range(width)]
        if width == 1:
            return ["1", "2"], lambda own: _named_lines(path, delimiter, own)
    names = header or column_names(path, delimiter)
    once = [name for name in names if names.count(name) == 1]
    labels = {name: class_names(path, name) for name in once if ending == PARQUET}

    def rows(own: Sequence[str]) -> Iterator[Sequence[Any] | None]:
        for row in values(path, own, header, delimiter):
            yield row and [labelled(v, labels.get(n)) for n, v in zip(own, row, strict=True)]

    return once, rows


def _named_lines(path: str, delimiter: str, own: Sequence[str]) -> Iterator[Sequence[Any] | None]:
    """The names and the rests of the lines of a list."""
    for line in text_lines(path):
        name, *rest = line.split(delimiter, 1)
        if rest and rest[0].startswith('"'):
            rest = next(csv.reader(rest))
        if line.strip():
            yield [name if c == "1" else rest[0] for c in own] if len(rest) == 1 else None


def _separator_of(lines: Sequence[str], pictures: PictureNames, ending: str) -> tuple[str, int]:
    """What separates the values of a table of lines, and how many each has where the first line is
    a row, as it names a picture: 1 where they differ. 0: the first line is a header."""
    for separator in "\t" if ending == ".tsv" else ("\t", "|", ";", ",", ": ", " "):
        rows = list(csv.reader(lines, delimiter=separator[0]))
        width = len(rows[0]) if rows else 0
        is_text = width > 2 and all(row[-1].startswith(" ") for row in rows)  # its commas
        if separator.endswith(" ") or is_text or {len(row) for row in rows} != {width}:
            rows, width = [line.split(separator)[:1] for line in lines if separator in line], 1
        for place in range(width if rows else 0):
            name = rows[0][place].partition("#")[0].strip()
            if (is_image(name) or (place == 0 and pictures.find(name))) and (
                2 * sum(bool(pictures.find(row[place])) for row in rows) >= len(lines)
            ):
                return "," if ending == ".tsv" else separator, width
    header = lines[0] if lines else ""
    if ending == ".tsv":
        return ",", 0
    separator = max(",;\t|", key=header.count)
    columns = next(csv.reader([header], delimiter=separator), [])
    is_usual = any(_place_of(name) < len(FILE_COLUMNS) for name in columns)
    if ending == ".txt" and not is_usual and not all("\t" in line for line in lines):
        raise ValueError(PROSE)
    return separator, 0


# --- tars and hashes ------------------------------------------------------------------------------


def _pictures_of_tars(folder: str, tars: Sequence[str], most: int) -> Pictures:
    """The pairs of tars in an order of their names' hashes, until there are enough."""
    pairs: list[Pair] = []
    lost: Counter[str] = Counter()
    examples: dict[str, str] = {}
    source = Source(kind="shards", paths=tuple(tars))
    for tar in sorted(tars, key=_draw):
        if len(pairs) >= most:
            break
        for row in TarReader(tar, source, Fetch()).rows(Path(tar)):
            if row["status"] != "success":
                lost[row["reason"]] += 1
                shown = f"{Path(tar).name}: {row['error_message']}"
                examples.setdefault(row["reason"], shown)
                continue
            name = row["sha256"][:32] + Path(row["image_name"]).suffix.lower()
            pair = Pair(
                file=f"unpacked/{name}",
                caption=row["caption"].strip(),
                sha256=row["sha256"],
                tar=tar,
                offset=row["image_offset"],
                length=row["image_length"],
            )
            pairs.append(pair)
    pictures = Pictures(
        folder=folder,
        form="1 tar" if len(tars) == 1 else f"{len(tars):,} tars",
        pairs=pairs,
        rejected=lost,
        files=len({pair.file for pair in pairs}) + lost.total(),
        lost=lost,
        examples=examples,
    )
    if not pairs:
        left = left_out(pictures)
        raise ValueError(
            f"{disk.shown_path(folder)}: its tars have no pictures with captions; left out: {left}"
        )
    return pictures


def _drawn(pictures: Pictures, most: int) -> Pictures:
    """`most` of the pairs, drawn by their names, with the hashes of their pictures."""
    pairs = sorted(set(pictures.pairs), key=lambda pair: (_draw(pair.file), pair.caption))
    drawn = pairs[:most]
    kept, undecoded = asyncio.run(_with_hashes(drawn))
    undrawn = {pair.file for pair in pairs} - {pair.file for pair in drawn}
    decoding = Counter(undecoded.values())
    return replace(
        pictures,
        pairs=kept,
        drawn_from=len(pairs) if undrawn else len(kept),
        rejected=pictures.rejected + decoding,
        lost=pictures.lost + decoding + Counter({"not drawn": len(undrawn)}),
        examples={**{reason: file for file, reason in undecoded.items()}, **pictures.examples},
    )


async def _with_hashes(pairs: Sequence[Pair]) -> tuple[list[Pair], dict[str, str]]:
    """The pairs with the hashes of their pictures, and the reasons of the pictures that cannot be
    read or decoded as the stage fetch does it."""
    settings = Fetch(image_size=SIDE, resize_mode="keep_ratio")
    first = {pair.file: pair for pair in reversed(pairs)}
    files = list(first)
    logger.info("looking at %d pictures", len(files))
    async with Decoders() as decoders:

        async def look(pair: Pair) -> tuple[str, int] | str:
            if pair.tar:
                body: bytes | None = disk.read_bytes(pair.tar, pair.offset, pair.length)
            else:
                fetched = read_file(pair.file, settings.max_bytes)
                body, reason = fetched.body, fetched.reason
            if body is None:
                return str(reason)
            image = await decoders.decode(body, settings)
            if isinstance(image, RejectedImage):
                is_named = image.reason == "format" or "Git LFS" in image.detail
                return f"{image.reason} ({image.detail})" if is_named else image.reason
            with Image.open(io.BytesIO(image.data)) as stored:
                near = phash(stored.convert("RGB"))
            return hashlib.sha256(body).hexdigest(), near

        seen: dict[str, tuple[str, int] | str] = {}
        for start in range(0, len(files), AT_ONCE):
            some = files[start : start + AT_ONCE]
            results = await asyncio.gather(*(look(first[file]) for file in some))
            seen |= zip(some, results, strict=True)
    hashes = {file: found for file, found in seen.items() if not isinstance(found, str)}
    kept = [pair for pair in pairs if pair.file in hashes]
    kept = [replace(p, sha256=hashes[p.file][0], phash=hashes[p.file][1]) for p in kept]
    return kept, {file: reason for file, reason in seen.items() if isinstance(reason, str)}


def _draw(text: str) -> int:
    """The place of a name or a hash in an order that has nothing to do with it."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogateescape"))


def _kinds(endings: Counter[str]) -> str:
    return ", ".join(f"{count:,} {ending or 'links'}" for ending, count in endings.most_common())


def _listed(names: Iterable[str], most: int = MOST_NAMES) -> str:
    """Names such as those of columns, of many the first ones."""
    listed = [printable(name.strip()) for name in names]
    return ", ".join(listed[:most]) + (", …" if len(listed) > most else "")


def _pictures(count: int, kind: str = "") -> str:
    """How many pictures: 1 picture, 2 pictures."""
    return f"{count:,} {kind}picture{'' if count == 1 else 's'}"


def _quoted(value: object) -> str:
    """A value for a sentence, of a long one the beginning."""
    text = " ".join(str(value).split())
    return f'"{text[:MOST_SHOWN]}…"' if len(text) > MOST_SHOWN else f'"{text}"'


# --------------------------------------------------------------------------------------------------
# Which pictures are trained on, which are the test, and which the scorer learns from.

LARGEST_GROUP = 10  # pairs of near copies from which some are drawn for the test or the scorer
# Bits of 64 between near copies: the task refuses up to 4, and another decoder may give others.
RADIUS = 6
SHARE = 5  # one picture of so many is for the test, and one for the scorer
LEAST_TEST, MOST_TEST, MOST_TRUSTED = 100, 500, 2000  # pictures
LEAST_TRAINED = 200  # pairs
REPEATED = 2  # test pictures for each different caption from which on captions count as classes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The pairs of each purpose. `classes`: the test is a classification with so many captions as
    classes; 0: it is a retrieval.
    """

    trained: list[Pair]
    test: list[Pair]
    trusted: list[Pair]
    classes: int = 0


def divide(
    pictures: Pictures,
    test: list[Pair] | None,
    trusted: list[Pair] | None,
    of_task: Sequence[Pair] = (),
) -> Shares:
    """The pairs of a folder by purpose. None: a share of the folder, drawn by content; []: nothing.
    No near copy of a test picture is trained on, nor does the scorer learn from it; `of_task` are
    pictures of a test that is made elsewhere.

    Captions that come again and again are classes. Else each picture and each caption of the test
    is there once, so that a retrieval has one right answer. ValueError where there are too few.
    """
    group_of = _near_groups([*pictures.pairs, *(test or ()), *(trusted or ()), *of_task])

    def of(pairs: Iterable[Pair], groups: Iterable[str]) -> list[Pair]:
        wanted = set(groups)
        return [pair for pair in pairs if group_of[pair.sha256] in wanted]

    sizes = Counter(group_of[pair.sha256] for pair in pictures.pairs)
    # Many near copies of one picture, such as blank ones, are left to the training.
    every = sorted(sizes, key=lambda group: (sizes[group] > LARGEST_GROUP, _draw(group)))
    first = last = 0
    if test is None:
        first = last = min(MOST_TEST, max(LEAST_TEST, len(every) // SHARE))
        test = of(pictures.pairs, every[:first])
    if trusted is None:
        last += min(MOST_TRUSTED, len(every) // SHARE)
        trusted = of(pictures.pairs, every[first:last])
    once = list({group_of[pair.sha256]: pair for pair in test}.values())
    tested = {group_of[pair.sha256] for pair in (*once, *of_task)}
    shares = Shares(
        trained=of(pictures.pairs, set(every[last:]) - tested),
        test=once,
        trusted=of(trusted, set(group_of.values()) - tested),
    )
    if len(shares.trained) < LEAST_TRAINED:
        lost = f"; left out: {left}" if (left := left_out(pictures)) else ""
        found = "; ".join(pictures.lines[1:]) or pictures.form
        others = ", or a test by --test and a scorer by --scorer"
        raise ValueError(
            f"{disk.shown_path(pictures.folder)} has {_pictures(len(every), 'different ')} with "
            f"captions, from {found}{lost}; {len(shares.test):,} for the test, "
            f"{len(shares.trusted):,} for the scorer, and the {len(shares.trained):,} left to "
            f"train on are fewer than {LEAST_TRAINED}: of so few no comparison says anything. "
            f"Give {2 * LEAST_TRAINED} different pictures with captions"
            f"{others if len(every) >= LEAST_TRAINED else ''}"
        )
    texts = Counter(pair.caption for pair in once)
    if len(texts) * REPEATED <= len(once):
        shares = replace(shares, classes=len(texts))
    else:
        shares = replace(shares, test=list({pair.caption: pair for pair in once}.values()))
    if test and (2 * len(shares.test) < LEAST_TEST or len(texts) == 1):
        raise ValueError(
            f"the test has {len(shares.test):,} pictures with {len(texts):,} different captions "
            f"({_listed(texts, SHOWN)}); {LEAST_TEST // 2} pictures and two captions are needed: "
            "name others by --test"
        )
    return shares


def left_out(pictures: Pictures) -> str:
    """What gives no pair, by reason, with an example of each."""
    shown = []
    for reason, count in pictures.rejected.items():
        example = pictures.examples.get(reason)
        shown.append(f"{count:,} {reason}" + (f" ({_quoted(example)})" if example else ""))
    return ", ".join(shown)


def _near_groups(pairs: Sequence[Pair]) -> dict[str, str]:
    """The sha256 of each picture -> the smallest of the pictures that near copies connect it to."""
    hashes = sorted({pair.sha256: pair.phash for pair in reversed(pairs)}.items())
    words = np.array([near for _, near in hashes], np.int64).view(np.uint64).reshape(-1, 1)
    labels = near_labels(words, RADIUS) if hashes else ()
    return {sha256: hashes[int(k)][0] for (sha256, _), k in zip(hashes, labels, strict=True)}


# --------------------------------------------------------------------------------------------------
# The manifests, as a person would write them.


MANIFEST, TEST_POOL = "ablation.yaml", "pools/heldout"
HEADS = {
    "heldout": "The test: pictures that are not trained on.",
    "trusted": "What the scorer learns from.",
    "pictures": "What is trained on: change the rules and thresholds of the views, or add views.",
}


def write_manifests(
    out: str,
    shares: Shares,
    settings: Mapping[str, object],
    *,
    scorer: Mapping[str, str] | None,
    task: Mapping[str, object] | None,
    head: str,
) -> None:
    """The lists, recipes and ablation in `out`; the ablation is written last.

    settings: those of the ablation beside pools, arms and tests. scorer: options of clip_score;
    None: a scorer is trained. task: a test of one's own. head: the comment of the ablation.
    """
    for pair in sorted((*shares.trained, *shares.test, *shares.trusted), key=lambda p: p.offset):
        if pair.tar:
            content = disk.read_bytes(pair.tar, pair.offset, pair.length)
            disk.write_bytes(disk.join(out, pair.file), content)
    if task is None:
        kind = "classification" if shares.classes else "retrieval"
        task = {"name": "heldout", "kind": kind, "data": TEST_POOL, "near_overlap": "refuse"}
        if shares.classes:  # the captions are the classes
            task |= {"columns": {"label": "txt"}, "templates": ["{}"]}
    size = SIDE if scorer is None else SIDE_OF_OTHERS
    score = {"clip_score": dict(scorer or {"model": "local-dir:${SCORER}"})}
    pools = {
        "heldout": (shares.test, ["tokens"], {"all": []}),
        "trusted": (shares.trusted, ["tokens"], {"all": []}),
        "pictures": (
            shares.trained,
            ["tokens", "caption", "picture", score],
            {"raw": [], "clip50": [{"clip": "clip_score >= top(clip_score, 0.50)"}]},
        ),
    }
    for name, (pairs, filters, views) in pools.items():
        if not pairs or (name == "heldout" and task["data"] != TEST_POOL):
            continue
        recipe = {
            "name": name,
            "source": {"kind": "files", "paths": [f"{name}.jsonl"]},
            "fetch": {"image_size": size, "resize_mode": "keep_ratio"},
            "filters": filters,
            "views": views,
        }
        lines = [
            json.dumps({"file": pair.file, "caption": pair.caption}, ensure_ascii=False) + "\n"
            for pair in pairs
        ]
        disk.write_bytes(disk.join(out, f"{name}.jsonl"), "".join(lines).encode())
        _write_yaml(disk.join(out, f"{name}.yaml"), HEADS[name], recipe)
    used = ["pictures", *(["trusted"] if shares.trusted else [])]
    ablation = {
        "name": "tried",
        **settings,
        "pools": {name: {"recipe": f"{name}.yaml"} for name in used},
        **({"scorer": {"view": "trusted/all", "seed": 100}} if shares.trusted else {}),
        "arms": {"raw": "pictures/raw", "clip50": "pictures/clip50"},
        "baseline": "raw",
        "controls": {"random_like": ["clip50"], "a_a": "raw"},
        "evaluate": [task],
        "primary": task["name"],
    }
    _write_yaml(disk.join(out, MANIFEST), head, ablation)


def _write_yaml(path: str, head: str, content: Mapping[str, object]) -> None:
    text = yaml.safe_dump(
        content, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    )
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    disk.write_bytes(path, f"{comment}{text}".encode())
