"""Where image-caption pairs come from: the block `source` of a recipe, and one line of a table per
kind.

To add a kind: a line of SOURCES here, and how its files are read in pipeline/crawl (or
pipeline/external for tars).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from manifests.schema.fetch import SIZE_LIMITS, STORED_IMAGE_SETTINGS, STRICT, Fetch

TABLE_ENDINGS = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".ndjson")
CAPTION_FILES = "txt"  # image_folder: a text file beside each image, of the same name
CLASS_FOLDERS = "class_folders"  # image_folder: the name of the folder that holds the image


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
    """What one kind of source needs and may be told."""

    paths: str  # what `paths` holds; "" where the kind has none
    images: Literal["web", "files", "tars"]  # where the bytes of the images are
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    fetch: tuple[str, ...] | None = None  # keys of `fetch` that apply; None = all

    @property
    def keys(self) -> frozenset[str]:
        """Keys of `source` beside `kind`."""
        return frozenset([*self.required, *self.optional])

    @property
    def needs_user_agent(self) -> bool:
        """True where images are asked for from other people's servers."""
        return self.images == "web"


# Keys that came after the first pools were made: left out of a pool's hash while they have their
# default.
ADDED_KEYS = ("captions", "file_column")
LOCAL_FETCH = (
    "user_agent",
    *STORED_IMAGE_SETTINGS,
    "known_bad",
    "phash_distance",
    "max_bytes",
    "rows_per_shard",
)
TAR_FETCH = ("user_agent", *SIZE_LIMITS)
# A lock has its shards already, and the hashes of its rows are compared by our own fetcher.
NOT_OF_LOCKS = ("engine", "img2dataset_python", "rows_per_shard")
LOCK_FETCH = tuple(key.name for key in fields(Fetch) if key.name not in NOT_OF_LOCKS)
SOURCES: dict[str, SourceKind] = {
    "wat": SourceKind(paths="WAT files", images="web", required=("paths",)),
    "wat_index": SourceKind(
        paths="", images="web", required=("crawl", "sample"), optional=("seed", "base")
    ),
    "warc": SourceKind(paths="WARC files", images="web", required=("paths",)),
    "warc_index": SourceKind(
        paths="", images="web", required=("crawl", "sample"), optional=("seed", "base")
    ),
    "table": SourceKind(
        paths="url lists (parquet, csv, tsv, json, jsonl, txt) or folders of them",
        images="web",
        required=("paths",),
        optional=("url_column", "caption_column", "extra_columns"),
    ),
    "files": SourceKind(
        paths="captions lists: tables with the columns file and caption",
        images="files",
        required=("paths",),
        optional=("extra_columns",),
        fetch=LOCAL_FETCH,
    ),
    "image_folder": SourceKind(
        paths="folders of images",
        images="files",
        required=("paths", "captions"),
        optional=("file_column", "caption_column", "extra_columns"),
        fetch=LOCAL_FETCH,
    ),
    "shards": SourceKind(
        paths="tars (img2dataset's or any of the WebDataset kind), patterns or folders of them",
        images="tars",
        required=("paths",),
        optional=("url_column", "caption_column", "extra_columns"),
        fetch=TAR_FETCH,
    ),
    "lock": SourceKind(
        paths="the lock file of another pool",
        images="web",
        required=("paths",),
        optional=("extra_columns",),
        fetch=LOCK_FETCH,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where image-caption pairs come from. SOURCES says which keys a kind has."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    kind: Literal[
        "wat",
        "wat_index",
        "warc",
        "warc_index",
        "table",
        "files",
        "image_folder",
        "shards",
        "lock",
    ]
    paths: tuple[str, ...] = ()
    crawl: str | None = None  # *_index: CC-MAIN-YYYY-WW
    sample: int | None = None  # *_index: how many files, drawn without replacement
    seed: int = 0
    base: str = "https://data.commoncrawl.org/"  # *_index: where crawl-data/ lies
    url_column: str = "url"
    caption_column: str | None = "caption"  # table: null where there are no captions
    # table, files, image_folder, shards: name -> TYPE, or COLUMN:TYPE
    extra_columns: dict[str, str] = field(default_factory=dict)
    # image_folder: a table inside each folder (metadata.csv), `txt`, or `class_folders`
    captions: str | None = None
    file_column: str = "file_name"  # image_folder: column with an image's path inside its folder

    def __post_init__(self) -> None:
        check_extra(self.extra_columns, self.kind)
        if "crawl" in SOURCES[self.kind].required:
            if not self.crawl or not self.sample or self.sample < 1:
                raise ValueError(
                    f"source of kind {self.kind} needs crawl (CC-MAIN-YYYY-WW) "
                    "and sample (a number of files >= 1)"
                )
        elif not self.paths:
            raise ValueError(f"source of kind {self.kind} needs paths: {SOURCES[self.kind].paths}")
        if self.kind == "image_folder":
            self._check_captions()

    def _check_captions(self) -> None:
        if self.captions in (CAPTION_FILES, CLASS_FOLDERS):
            table_keys = {
                "file_column": self.file_column != "file_name",
                "caption_column": self.caption_column != "caption",
                "extra_columns": bool(self.extra_columns),
            }
            for name, is_set in table_keys.items():
                if is_set:
                    raise ValueError(
                        f"captions is {self.captions!r}, which has no columns: "
                        f"leave {name} out, or name a table such as captions: metadata.csv"
                    )
        elif self.captions is None or not self.captions.endswith(TABLE_ENDINGS):
            raise ValueError(
                f"captions is {self.captions!r}; of a source of kind image_folder "
                "it is the name of a table inside each folder (metadata.csv, metadata.jsonl, "
                f"metadata.parquet), {CAPTION_FILES} (a text file beside each image) "
                f"or {CLASS_FOLDERS} (the folder's name is the caption)"
            )
        elif self.caption_column is None:
            raise ValueError("caption_column is null; an image_folder needs captions")


def check_extra(columns: dict[str, str], kind: str) -> None:
    """ValueError for a type that is not one of EXTRA_TYPES, a name that is taken, or a source
    without columns.
    """
    if not columns:
        return
    # Imported here: a command installs its stop signals before PyArrow is imported.
    from manifests.columns import EXTRA_TYPES, PAIRS, SIDECAR, extra_column

    taken_names = {name.lower() for name in [*SIDECAR.names, *PAIRS.names]}
    for name, kind_of_values in columns.items():
        column, type_name = extra_column(name, kind_of_values)
        if type_name not in EXTRA_TYPES:
            raise ValueError(
                f"extra_columns {name}: {type_name!r} is not one of {', '.join(EXTRA_TYPES)}"
            )
        if name.lower() in taken_names:
            raise ValueError(
                f"extra_columns names {name!r}, which every pool has a column of its own for; "
                f"rename it, as in source_{name}: {column}:{type_name}"
            )
    if "extra_columns" not in SOURCES[kind].keys:
        with_columns = [name for name, line in SOURCES.items() if "extra_columns" in line.keys]
        raise ValueError(
            f"extra_columns come from {', '.join(with_columns)}; a source of kind {kind} has none"
        )


def refuse_unused(kind: str, source_keys: Iterable[str], fetch_keys: Iterable[str]) -> None:
    """ValueError for a key of `source` or `fetch` that a source of this kind would ignore."""
    line = SOURCES[kind]
    for key in source_keys:
        if key != "kind" and key not in line.keys:
            users = [name for name, other in SOURCES.items() if key in other.keys]
            raise ValueError(
                f"source.{key} is not used by a source of kind {kind}, only by {', '.join(users)}; "
                "leave it out"
            )
    for key in fetch_keys:
        if line.fetch is not None and key not in line.fetch:
            raise ValueError(
                f"fetch.{key} is not used by a source of kind {kind}: {_reason(line, key)}"
            )


def _reason(line: SourceKind, key: str) -> str:
    if line.images == "tars" and key in STORED_IMAGE_SETTINGS:
        return (
            "its images stay in their tars as they are; leave it out, or read the images from "
            "files (kind: files or image_folder) to change them"
        )
    if line.images == "web":
        return "the lock decides its shards, and our own fetcher compares the hashes; leave it out"
    return "nothing is asked for from the web; leave it out"
