"""A folder of pictures with captions as an ablation: what is in it, what is held back for the test
and for the scorer, and the manifests.

Near copies of a picture are always on one side: shares are drawn of groups of them. The task of the
ablation refuses a view with a near copy of a test picture (`near_overlap`), should one be left.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import yaml
from PIL import Image

from filters.near_hashes import near_labels
from manifests import disk
from manifests.hashes import phash
from manifests.schema import CAPTION_FILES, CLASS_FOLDERS, TABLE_ENDINGS, Fetch, Source
from manifests.text import printable
from pipeline.crawl.tables import ImageFolder, is_image, rows_of_folder
from pipeline.external.adopt import TarReader
from pipeline.fetch.download import read_file
from pipeline.images.decoders import Decoders
from pipeline.images.header import RejectedImage
from pipeline.table_files import MissingColumn, values

# --------------------------------------------------------------------------------------------------
# What a folder holds: pairs of a picture and its caption, whatever their form.

# Columns that are looked for in a table of captions: the first that is there counts.
FILE_COLUMNS = (
    "file_name", "file", "filename", "file_path", "filepath", "path", "image", "image_path", "img",
)  # fmt: skip
CAPTION_COLUMNS = ("caption", "text", "title", "description", "alt", "label", "class", "category")
# Pixels of the shorter side that are stored: the model micro sees 32, a CLIP of others 224.
SIDE, SIDE_OF_OTHERS = 64, 224
AT_ONCE = 64  # pictures that are read before the first of them is let go
SHOWN = 3  # folders or captions in a sentence


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The pairs of a folder, in words where their captions come from, and what is no pair, by
    reason. `drawn_from`: the pairs that there are, of which `pairs` is a sample.
    """

    folder: str
    form: str
    pairs: list[Pair]
    drawn_from: int
    rejected: Counter[str]


def read_pictures(folder: str, captions: str | None, most: int) -> Pictures:
    """The pairs of a folder on this machine, `most` of them at most, drawn by their names.

    captions: txt, class_folders, or the name of a table in the folder; None: what is there.
    ValueError where there are no pictures or no captions.
    """
    if disk.is_url(folder) or not disk.local_path(folder).is_dir():
        raise ValueError(f"{folder} is no folder on this machine; name a folder of pictures")
    folder = os.path.abspath(disk.local_path(folder))
    source = Source(kind="image_folder", paths=(folder,), captions=CAPTION_FILES)
    names = ImageFolder(folder, source).names()
    images = [name for name in names if is_image(name)]
    tars = [os.path.join(folder, name) for name in names if name.endswith(".tar")]
    counts: Counter[str] = Counter()
    if tars and not images:
        form, pairs = f"{len(tars)} tars", _pairs_of_tars(tars, most, counts)
    else:
        source, form = _source_of(source, names, images, captions)
        pairs = []
        for _, file, text, *_ in rows_of_folder(folder, source, counts):
            if source.captions == CLASS_FOLDERS:
                text = f"a photo of a {text.replace('_', ' ')}"
            pairs.append(Pair(file=file, caption=text.strip()))
    pairs = sorted(set(pairs), key=lambda pair: (_draw(pair.file), pair.caption))
    kept = asyncio.run(_with_hashes(pairs[:most], counts))
    del counts["links"], counts["pairs"]
    total = len(pairs) if len(pairs) > most else len(kept)
    return Pictures(folder=folder, form=form, pairs=kept, drawn_from=total, rejected=counts)


def _source_of(
    source: Source, names: Sequence[str], images: Sequence[str], captions: str | None
) -> tuple[Source, str]:
    """How the captions of a folder are read, and that in words."""
    (folder,) = source.paths
    if not images:
        raise ValueError(f"{folder} has no pictures (.jpg, .png, .webp …) and no tars with them")
    tables = {}
    for name in names:
        if "/" not in name and name.endswith(TABLE_ENDINGS):
            columns = [_column(folder, name, each) for each in (FILE_COLUMNS, CAPTION_COLUMNS)]
            if all(columns):
                tables[name] = columns
    stems = {name.removesuffix(".txt") for name in names}
    captioned = sum(os.path.splitext(name)[0] in stems for name in images)
    classes = sorted({os.path.dirname(name) for name in images})
    if captions is None and len(tables) > 1:
        raise ValueError(
            f"{folder} has {len(tables)} tables of files and captions ({_some(tables)}); name one, "
            f"as in --captions {next(iter(tables))}"
        )
    if captions is None and tables:
        captions = next(iter(tables))
    elif captions is None and 2 * captioned >= len(images):
        captions = CAPTION_FILES
    elif captions is None and len(classes) > 1 and "" not in classes:
        captions = CLASS_FOLDERS
    if captions == CAPTION_FILES:
        return source, "text files beside them"
    if captions == CLASS_FOLDERS:
        form = f"the names of {len(classes)} folders ({_some(classes)})"
        return replace(source, captions=captions), form
    if captions not in tables:
        there = f"--captions is {captions!r}, which is none of these" if captions else "none"
        raise ValueError(
            f"{folder} has {len(images):,} pictures and captions must come with them, from a text "
            "file beside each (cat.jpg, cat.txt), a folder for each class, or a table in the "
            f"folder with a column of files ({', '.join(FILE_COLUMNS)}) and one of captions "
            f"({', '.join(CAPTION_COLUMNS)}): {there}"
        )
    file, caption = tables[captions]
    assert file
    source = replace(source, captions=captions, file_column=file, caption_column=caption)
    return source, f"{captions} (columns {file} and {caption})"


def _column(folder: str, table: str, names: Sequence[str]) -> str | None:
    """The first of some columns that a table has."""
    for name in names:
        with suppress(MissingColumn):
            next(values(os.path.join(folder, table), [name]), None)
            return name
    return None


def _pairs_of_tars(tars: Sequence[str], most: int, counts: Counter[str]) -> list[Pair]:
    """The pairs of tars in an order of their names' hashes, until there are enough."""
    pairs: list[Pair] = []
    for tar in sorted(tars, key=_draw):
        if len(pairs) >= most:
            break
        for row in TarReader(tar, "url", "caption", Fetch(), {}).rows(Path(tar)):
            if row["status"] != "success":
                counts[row["reason"]] += 1
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
    return pairs


async def _with_hashes(pairs: Sequence[Pair], counts: Counter[str]) -> list[Pair]:
    """The pairs with the hashes of their pictures. Those that cannot be read or decoded, as the
    stage fetch does it, are counted by their reasons.
    """
    settings = Fetch(image_size=SIDE, resize_mode="keep_ratio")
    logger.info("looking at %d pictures", len(pairs))
    async with Decoders() as decoders:

        async def look(pair: Pair) -> Pair | str:
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
            return replace(pair, sha256=hashlib.sha256(body).hexdigest(), phash=near)

        kept = []
        for start in range(0, len(pairs), AT_ONCE):
            for pair in await asyncio.gather(*map(look, pairs[start : start + AT_ONCE])):
                if isinstance(pair, Pair):
                    kept.append(pair)
                else:
                    counts[pair] += 1
    return kept


def _draw(text: str) -> int:
    """The place of a name or a hash in an order that has nothing to do with it."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogateescape"))


def _some(names: Iterable[str]) -> str:
    """The first of some names, for a sentence."""
    listed = list(names)
    return printable(", ".join(listed[:SHOWN])) + (", …" if len(listed) > SHOWN else "")


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


def divide(pictures: Pictures, test: list[Pair] | None, trusted: list[Pair] | None) -> Shares:
    """The pairs of a folder by purpose. None: a share of the folder, drawn by content; []: nothing.
    No near copy of a test picture is trained on, nor does the scorer learn from it.

    Captions that come again and again are classes. Else each picture and each caption of the test
    is there once, so that a retrieval has one right answer. ValueError where there are too few.
    """
    group_of = _near_groups([*pictures.pairs, *(test or ()), *(trusted or ())])

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
    tested = {group_of[pair.sha256] for pair in once}
    shares = Shares(
        trained=of(pictures.pairs, set(every[last:]) - tested),
        test=once,
        trusted=of(trusted, set(group_of.values()) - tested),
    )
    if len(shares.trained) < LEAST_TRAINED:
        lost = "".join(f", {count:,} {name}" for name, count in pictures.rejected.items())
        raise ValueError(
            f"{pictures.folder} has {len(every):,} different pictures with captions{lost}; "
            f"{len(shares.test):,} are for the test, {len(shares.trusted):,} for the scorer, and "
            f"the {len(shares.trained):,} that are left are fewer than {LEAST_TRAINED}: of so few "
            f"no comparison says anything. Give {2 * LEAST_TRAINED} pictures, or a test by --test "
            "and a scorer by --scorer"
        )
    texts = Counter(pair.caption for pair in once)
    if len(texts) * REPEATED <= len(once):
        shares = replace(shares, classes=len(texts))
    else:
        shares = replace(shares, test=list({pair.caption: pair for pair in once}.values()))
    if test and (2 * len(shares.test) < LEAST_TEST or len(texts) == 1):
        raise ValueError(
            f"the test has {len(shares.test):,} pictures with {len(texts):,} different captions "
            f"({_some(texts)}); {LEAST_TEST // 2} pictures and two captions are needed: name "
            "others by --test"
        )
    return shares


def _near_groups(pairs: Sequence[Pair]) -> dict[str, str]:
    """The sha256 of each picture -> the smallest of the pictures that near copies connect it to."""
    hashes = sorted({(pair.sha256, pair.phash) for pair in pairs})
    words = np.array([near for _, near in hashes], np.int64).view(np.uint64).reshape(-1, 1)
    labels = near_labels(words, RADIUS) if hashes else ()
    return {sha256: hashes[int(k)][0] for (sha256, _), k in zip(hashes, labels, strict=True)}


# --------------------------------------------------------------------------------------------------
# The manifests, as a person would write them.

logger = logging.getLogger(__name__)
MANIFEST, TEST_POOL = "ablation.yaml", "pools/heldout"
HEADS = {
    "heldout": "The test: pictures that are not trained on.",
    "trusted": "What the scorer learns from.",
    "pictures": "What is trained on: change the rules and thresholds of the views, or add views.",
}


def write_manifests(
    out: str,
    shares: Shares,
    settings: Mapping[str, Any],
    *,
    scorer: Mapping[str, str] | None,
    task: Mapping[str, Any] | None,
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
            "fetch": {
                "image_size": SIDE if scorer is None else SIDE_OF_OTHERS,
                "resize_mode": "keep_ratio",
            },
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


def _write_yaml(path: str, head: str, content: Mapping[str, Any]) -> None:
    text = yaml.safe_dump(
        content, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    )
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    disk.write_bytes(path, f"{comment}{text}".encode())
