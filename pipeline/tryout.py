"""A folder of pictures with captions as an ablation: what is in it, what is held back for the test
and for the scorer, and the manifests.

Pictures of equal bytes are always on one side: shares are drawn by the hash of a picture's content.
Near copies of a test picture are left out by a rule of the views, and the task refuses any that are
left (`near_overlap`).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash
import yaml

from manifests import disk
from manifests.schema import CAPTION_FILES, CLASS_FOLDERS, TABLE_ENDINGS, Fetch, Source
from manifests.text import printable
from pipeline.crawl.tables import ImageFolder, is_image, rows_of_folder
from pipeline.external.adopt import TarReader
from pipeline.table_files import MissingColumn, values

# --------------------------------------------------------------------------------------------------
# What a folder holds: pairs of a picture and its caption, whatever their form.

# Columns that are looked for in a table of captions: the first that is there counts.
FILE_COLUMNS = (
    "file_name", "file", "filename", "file_path", "filepath", "path", "image", "image_path", "img",
)  # fmt: skip
CAPTION_COLUMNS = ("caption", "text", "title", "description", "alt", "label", "class", "category")
SHOWN = 3  # folders or captions in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A picture and its caption. `tar`: the picture is `length` bytes of this tar from `offset`."""

    file: str
    caption: str
    sha256: str = ""
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
    kept = list(_with_hashes(pairs[:most], counts))
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


def _with_hashes(pairs: Iterable[Pair], counts: Counter[str]) -> Iterator[Pair]:
    """The pairs with the hashes of their pictures; those whose file cannot be read are counted."""
    for pair in pairs:
        try:
            if not pair.sha256:
                disk.check_regular(pair.file)
                pair = replace(pair, sha256=disk.file_sha256(Path(pair.file)))
            yield pair
        except FileNotFoundError:
            counts["missing_file"] += 1
        except (ValueError, OSError):
            counts["damaged"] += 1


def _draw(text: str) -> int:
    """The place of a name or a hash in an order that has nothing to do with it."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogateescape"))


def _some(names: Iterable[str]) -> str:
    """The first of some names, for a sentence."""
    listed = list(names)
    return printable(", ".join(listed[:SHOWN])) + (", …" if len(listed) > SHOWN else "")


# --------------------------------------------------------------------------------------------------
# Which pictures are trained on, which are the test, and which the scorer learns from.

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
    No picture of the test is trained on, nor does the scorer learn from it.

    Captions that come again and again are classes. Else each picture and each caption of the test
    is there once, so that a retrieval has one right answer. ValueError where there are too few.
    """
    every = sorted({pair.sha256 for pair in pictures.pairs}, key=_draw)
    size, first = len(every) // SHARE, 0
    if test is None:
        first = min(MOST_TEST, max(LEAST_TEST, size))
        test = _of(pictures.pairs, every[:first])
    last = first
    if trusted is None:
        last = first + min(MOST_TRUSTED, size)
        trusted = _of(pictures.pairs, every[first:last])
    once = list({pair.sha256: pair for pair in test}.values())
    tested = {pair.sha256 for pair in once}
    shares = Shares(
        trained=_of(pictures.pairs, set(every[last:]) - tested),
        test=once,
        trusted=[pair for pair in trusted if pair.sha256 not in tested],
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


def _of(pairs: Iterable[Pair], hashes: Iterable[str]) -> list[Pair]:
    wanted = set(hashes)
    return [pair for pair in pairs if pair.sha256 in wanted]


# --------------------------------------------------------------------------------------------------
# The manifests, as a person would write them.

MANIFEST, TEST_POOL = "ablation.yaml", "pools/heldout"
# Pixels of the shorter side that are stored: the model micro sees 32, a CLIP of others 224.
SIDE, SIDE_OF_OTHERS = 64, 224
# Bits of 64 that a near copy of a test picture has at most: the task refuses up to 4, and another
# decoder may give another bit or two.
RADIUS = 6
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
    near: list[Any] = ["tokens", "picture"]
    raw: list[Any] = []
    if task is None:
        near += [{"decontaminate": {"against": TEST_POOL, "column": "phash", "radius": RADIUS}}]
        raw = [{"apart": f"decontaminate_distance > {RADIUS}"}]  # no near copy of a test picture
        kind = "classification" if shares.classes else "retrieval"
        task = {"name": "heldout", "kind": kind, "data": TEST_POOL, "near_overlap": "refuse"}
        if shares.classes:  # the captions are the classes
            task |= {"columns": {"label": "txt"}, "templates": ["{}"]}
    score = {"clip_score": dict(scorer or {"model": "local-dir:${SCORER}"})}
    clip50 = [{"view": "raw"}, {"clip": "clip_score >= top(clip_score, 0.50)"}]
    pools = {
        "heldout": (shares.test, ["picture"], {"all": []}),
        "trusted": (shares.trusted, near, {"all": raw}),
        "pictures": (shares.trained, [*near, "caption", score], {"raw": raw, "clip50": clip50}),
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
