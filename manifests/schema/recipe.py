"""What a pool is built from: source, fetch settings, filters, views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

# --------------------------------------------------------------------------------------------------
# How images are asked for, checked and stored: the block `fetch` of a recipe.


STRICT: dict[str, str] = {"extra": "forbid"}  # read by pydantic inside reader.py
ROWS_PER_SHARD_LIMIT = 10_000  # keys are {shard:05d}{row:04d}
# The longest side that WebP can store; a square of it is decoded in 0.8 GB.
IMAGE_SIZE_LIMIT = 16_383
PHASH_BITS = 64
HASHES = ("md5", "sha256", "sha512")

# What is checked of an image that is not decoded.
SIZE_LIMITS = ("min_image_size", "max_image_area", "max_aspect_ratio", "max_pixels")
# What decides the bytes of a stored image, and whether it is stored.
STORED_IMAGE_SETTINGS = (
    "image_size",
    "resize_mode",
    "resize_only_if_bigger",
    "upscale_interpolation",
    "downscale_interpolation",
    "encode_format",
    "encode_quality",
    "skip_reencode",
    "disable_all_reencoding",
    *SIZE_LIMITS,
    "bbox_column",
    "extract_exif",
    "compute_hash",
    "verify_hash",
)
# How politely and how patiently images are asked for. These settings decide no byte of a stored
# image and no permanent outcome, so they are not part of a pool's hash and may change while a pool
# is built.
MANNERS = (
    "user_agent",
    "img2dataset_python",
    "connect_to",
    "deadline_s",
    "min_rate",
    "retries",
    "concurrency",
    "per_host",
    "delay_s",
    "patience_s",
)
# What fetch.optout may be, or list: filters/optout.py reads the signals, docs/consent.md explains.
OPTOUT_POLICIES = ("respect", "strict", "ignore")
OPTOUT_SIGNALS = (
    "noai", "noindex", "noarchive", "tdm-reservation", "tdm-policy", "ai.txt", "train-ai",
    "ai-train", "any-use", "license", "other-crawlers", "unread",
)  # fmt: skip
# Settings that are left out of a pool's hash while they have their default.
ADDED_SETTINGS: tuple[str, ...] = ("known_bad", "phash_distance")


Ranges = dict[str, tuple[float, float]]  # key -> its least and its largest number
LARGEST_SIDE = 2**31 - 1  # pixels, also of an area: what the formats and 32-bit columns can hold
LARGEST_SEED = 2**64 - 1  # of xxh3
MANY = 2**63 - 1  # where nothing but the size of an integer is a limit
A_DAY = 86_400.0  # seconds


def check_ranges(value: Any) -> None:
    """ValueError for a number of a dataclass outside of the `ranges` of its class, for NaN and for
    what is no number. Lists and mappings are looked through."""
    for name, (least, most) in type(value).ranges.items():
        for key, number in _leaves(name, getattr(value, name)):
            is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
            if not (is_number and least <= number <= most):
                raise ValueError(f"{key} is {number!r}; it must lie in {least}..{most}")


def _leaves(key: str, value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (tuple, list)):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(f"{key}.{name}", each)
    elif value is not None:
        yield key, value


Interpolation = Literal[
    "nearest", "linear", "bilinear", "cubic", "bicubic", "area", "lanczos", "lanczos4"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """How images are asked for and stored. Names as in img2dataset where it has one."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    ranges: ClassVar[Ranges] = {
        "image_size": (1, IMAGE_SIZE_LIMIT),
        "encode_quality": (0, 100),
        "min_image_size": (0, LARGEST_SIDE),
        "max_image_area": (0, LARGEST_SIDE),
        "max_aspect_ratio": (0, 1e6),
        "max_pixels": (1, LARGEST_SIDE),
        "phash_distance": (0, PHASH_BITS - 1),
        "max_bytes": (1, 2**32),
        "deadline_s": (0.001, A_DAY),
        "min_rate": (0, 2**32),
        "retries": (0, 100),
        "concurrency": (1, 100_000),
        "max_redirects": (0, 100),
        "rows_per_shard": (1, ROWS_PER_SHARD_LIMIT),
        "allow_ports": (1, 65_535),
        "per_host": (1, 10_000),
        "delay_s": (0, A_DAY),
        "patience_s": (0.001, 100 * A_DAY),
    }
    engine: Literal["clipmill", "img2dataset"] = "clipmill"
    # engine img2dataset: the interpreter that has it (default: this one). It is run, so a recipe is
    # code.
    img2dataset_python: str | None = None
    # name and an address to write to; needed as soon as something is fetched from the web
    user_agent: str | None = None
    # the image
    image_size: int = 256
    resize_mode: Literal["no", "border", "keep_ratio", "keep_ratio_largest", "center_crop"] = (
        "keep_ratio"
    )
    resize_only_if_bigger: bool = True
    upscale_interpolation: Interpolation = "lanczos"
    downscale_interpolation: Interpolation = "area"
    encode_format: Literal["jpg", "png", "webp"] = "jpg"
    encode_quality: int = 95  # of jpg and webp 1..100; of png its compression 0..9
    skip_reencode: bool = True  # keep the bytes of an image that needs no change
    # keep the bytes of every image; its header is checked, nothing is decoded
    disable_all_reencoding: bool = False
    min_image_size: int = 0  # pixels of the shorter side
    max_image_area: int = 0  # pixels; 0 = no limit but max_pixels
    max_aspect_ratio: float = 0.0  # 0 = no limit
    max_pixels: int = 33_554_432  # what is decoded at all
    # extra column: JSON list of [left, top, right, bottom] as shares of the sides, blurred
    bbox_column: str | None = None
    extract_exif: bool = False
    compute_hash: Literal["sha256", "md5", "sha512"] = "sha256"  # besides sha256
    verify_hash: tuple[str, str] | None = None  # extra column, and md5, sha256 or sha512
    # file of hashes of content that is never stored: a sha256 or a perceptual hash a line
    known_bad: str | None = None
    phash_distance: int = 4  # bits that a perceptual hash of known_bad may differ by
    # the network
    max_bytes: int = 20 * 2**20
    deadline_s: float = 20.0  # one row's DNS, TLS, redirects, body and all retries
    min_rate: int = 1024  # bytes per second that a body must average after its first 5 s
    retries: int = 2
    concurrency: int = 256
    max_redirects: int = 5
    rows_per_shard: int = ROWS_PER_SHARD_LIMIT
    allow_private: bool = False
    allow_ports: tuple[int, ...] = (80, 443)
    # manners
    per_host: int = 2  # requests at a time per host
    delay_s: float = 0.0  # between the starts of two requests to a host
    patience_s: float = 600.0  # a row that waits longer for its host ends as host_busy
    robots_txt: bool = True
    # files that are asked for once per host
    site_files: tuple[Literal["tdmrep", "ai.txt"], ...] = ("tdmrep", "ai.txt")
    # which signals refuse a row: one of OPTOUT_POLICIES, or some of OPTOUT_SIGNALS; all signals are
    # written down
    optout: str | tuple[str, ...] = "respect"
    # "host or *.suffix" -> "address:port": where to connect for these names (curl --connect-to)
    connect_to: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.allow_ports:
            raise ValueError("allow_ports is []; it must name at least one port")
        names = OPTOUT_POLICIES if isinstance(self.optout, str) else OPTOUT_SIGNALS
        listed = (self.optout,) if isinstance(self.optout, str) else self.optout
        if unknown := sorted(set(listed) - set(names)):
            raise ValueError(
                f"optout has {unknown[0]!r}; it must be {', '.join(OPTOUT_POLICIES)}, "
                f"or a list of some of {', '.join(OPTOUT_SIGNALS)}"
            )
        agent = self.user_agent or ""
        if not (agent.isascii() and agent.isprintable()):
            raise ValueError(
                f"user_agent is {agent!r}; it must be printable ASCII in one line, "
                "because it is sent as an HTTP header"
            )
        lowest, highest = (0, 9) if self.encode_format == "png" else (1, 100)
        if not lowest <= self.encode_quality <= highest:
            raise ValueError(
                f"encode_quality is {self.encode_quality}; "
                f"of {self.encode_format} it must lie in {lowest}..{highest}"
            )
        if self.verify_hash is not None and self.verify_hash[1] not in HASHES:
            raise ValueError(
                f"verify_hash names {self.verify_hash[1]!r}; it must be md5, sha256 or sha512"
            )


# --------------------------------------------------------------------------------------------------
# Where image-caption pairs come from: the block `source` of a recipe, and one line of a table per
# kind.
#
# To add a kind: a line of SOURCES here, and how its files are read in pipeline/crawl (or
# pipeline/external for tars).


TABLE_ENDINGS = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".ndjson")
CAPTION_FILES = "txt"  # image_folder: a text file beside each image, of the same name
CLASS_FOLDERS = "class_folders"  # image_folder: the name of the folder that holds the image
CAPTION_BYTES = 2**16  # of a caption, where the recipe says nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
    """What one kind of source needs and may be told."""

    paths: str  # what `paths` holds; "" where the kind has none
    images: Literal["web", "files", "rows", "tars"]  # where the bytes of the images are
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


# Keys that are left out of a pool's hash while they have their default.
ADDED_KEYS = (
    "captions",
    "file_column",
    "links_outside",
    "columns",
    "image_column",
    "caption_list",
    "delimiter",
    "max_caption_bytes",
    "image_member",
    "caption_member",
)
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
TABLE_KEYS = ("caption_list", "max_caption_bytes", "columns", "delimiter")  # of tables
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
        paths="url lists (parquet, csv, tsv, json, jsonl, txt), patterns or folders of them",
        images="web",
        required=("paths",),
        optional=("url_column", "caption_column", *TABLE_KEYS, "extra_columns"),
    ),
    "files": SourceKind(
        paths="captions lists: tables with the columns file and caption, or other names",
        images="files",
        required=("paths",),
        optional=("file_column", "caption_column", *TABLE_KEYS, "extra_columns"),
        fetch=LOCAL_FETCH,
    ),
    "image_folder": SourceKind(
        paths="folders of images",
        images="files",
        required=("paths", "captions"),
        optional=("file_column", "caption_column", *TABLE_KEYS, "extra_columns", "links_outside"),
        fetch=LOCAL_FETCH,
    ),
    "image_table": SourceKind(
        paths="Parquet files whose rows hold the images, patterns or folders of them",
        images="rows",
        required=("paths",),
        optional=(
            "image_column",
            "caption_column",
            "caption_list",
            "max_caption_bytes",
            "extra_columns",
        ),
        fetch=LOCAL_FETCH,
    ),
    "shards": SourceKind(
        paths="tars (img2dataset's or any of the WebDataset kind), patterns or folders of them",
        images="tars",
        required=("paths",),
        optional=(
            "url_column",
            "caption_column",
            "image_member",
            "caption_member",
            "max_caption_bytes",
            "extra_columns",
        ),
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
    ranges: ClassVar[Ranges] = {
        "sample": (1, 10_000_000),
        "seed": (0, LARGEST_SEED),
        "max_caption_bytes": (1, 2**26),
    }
    kind: Literal[
        "wat",
        "wat_index",
        "warc",
        "warc_index",
        "table",
        "files",
        "image_folder",
        "image_table",
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
    # a row whose caption is a list: a pair for each caption, or for the first one
    caption_list: Literal["all", "first"] = "all"
    max_caption_bytes: int = CAPTION_BYTES  # UTF-8; a longer one is no caption
    columns: tuple[str, ...] = ()  # names of the columns of a .tsv or .csv without a header
    delimiter: str = ","  # of the columns of a .csv
    # shards: what follows the first dot of the name of a sample's picture, and of its caption
    image_member: str | None = None
    caption_member: str | None = None
    image_column: str = "image"  # image_table: bytes, or a struct with `bytes`
    # table, files, image_folder, image_table, shards: name -> TYPE, or COLUMN:TYPE
    extra_columns: dict[str, str] = field(default_factory=dict)
    # image_folder: a table, by its path from each folder (metadata.csv), `txt`, `class_folders`
    captions: str | None = None
    # image_folder: column with an image's path inside its folder; files: `file` where it is not set
    file_column: str = "file_name"
    links_outside: bool = False  # image_folder: symbolic links may lead out of the folder

    def __post_init__(self) -> None:
        check_ranges(self)
        check_extra(self.extra_columns, self.kind)
        if "crawl" in SOURCES[self.kind].required:
            if not self.crawl or not self.sample:
                raise ValueError(
                    f"source of kind {self.kind} needs crawl (CC-MAIN-YYYY-WW) "
                    "and sample (a number of files >= 1)"
                )
        elif not self.paths:
            raise ValueError(f"source of kind {self.kind} needs paths: {SOURCES[self.kind].paths}")
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ValueError(
                f"delimiter is {self.delimiter!r}; it must be the one character that separates the "
                'columns of a .csv, as in ";"'
            )
        if self.kind == "image_folder":
            self._check_captions()
        if self.kind == "files" and self.caption_column is None:
            raise ValueError("caption_column is null; a list of files and captions needs captions")

    def _check_captions(self) -> None:
        if self.captions in (CAPTION_FILES, CLASS_FOLDERS):
            table_keys = {
                "columns": bool(self.columns),
                "delimiter": self.delimiter != ",",
                "caption_list": self.caption_list != "all",
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
                "it is the path of a table from each folder (metadata.csv, metadata.jsonl, "
                f"../annotations/captions.json), {CAPTION_FILES} (a text file beside each image) "
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
    from clipmill.manifests.columns import (
        DERIVED_NAMES,
        EXTRA_TYPES,
        LOCKED,
        PLAN,
        SIDECAR,
        extra_column,
        shared_name,
    )

    own = [*SIDECAR.names, *PLAN.names, *LOCKED.names, *DERIVED_NAMES]
    for name, kind_of_values in columns.items():
        column, type_name = extra_column(name, kind_of_values)
        if type_name not in EXTRA_TYPES:
            raise ValueError(
                f"extra_columns {name}: {type_name!r} is not one of {', '.join(EXTRA_TYPES)}"
            )
        if shared_name([name], own):
            raise ValueError(
                f"extra_columns names {name!r}, which every pool has a column of its own for; "
                f"rename it, as in source_{name}: {column}:{type_name}"
            )
    if shared := shared_name(columns):
        raise ValueError(
            f"extra_columns names {shared[1]!r} and {shared[0]!r}, which are one column to a rule: "
            f"rename one, as in my_{shared[0]}: {shared[0]}:TYPE"
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


# --------------------------------------------------------------------------------------------------
# What a pool is built from: a recipe, its filters and its views.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One image link: a row of PAIRS."""

    uid: str
    url: str
    caption: str
    title: str | None = None
    anchor: str | None = None
    page_url: str | None = None
    page_lang: str | None = None
    robots: str | None = None
    license: str | None = None
    wat: str | None = None
    warc_offset: int | None = None
    link: int | None = None
    extra: dict[str, Any] | None = None  # the source's extra_columns
    # Of a row of a lock: its outcome in the pool that was locked, and the sha256 that its bytes
    # must have. A row with another outcome than STORED is not asked for.
    locked_outcome: str | None = None
    locked_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSpec:
    """One filter of a recipe and its options: `caption` or `{clip_score: {model: …}}`.

    name: that of the instance, which its columns carry. kind: the filter, where it has another
    name: `{clip_l14: {clip_score: {model: …}}}`, or `{mine: {my_filters.py:Sharpness: {}}}`.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    kind: str | None = field(default=None, metadata={"optional": True})  # disk.OPTIONAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One step of a view, one of: an SQL boolean expression, another view's rules, a random subset
    as large as a view, or a share of all rows drawn by xxh3(uid, seed).
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    ranges: ClassVar[Ranges] = {"sample": (0, 1), "seed": (0, LARGEST_SEED)}
    name: str
    where: str | None = None
    view: str | None = None
    random_like: str | None = None
    sample: float | None = None  # share of the rows, in (0, 1)
    seed: int = 0  # of random_like and sample

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError(
                f"a rule is named {self.name!r}; its name is the reason of the rows that it "
                'rejects, as in {words: "caption_words >= 4"}'
            )
        forms = (self.where, self.view, self.random_like, self.sample)
        if sum(form is not None for form in forms) != 1:
            raise ValueError(
                f"rule {self.name!r} must be one of an SQL expression, "
                "a view, random_like or sample"
            )
        if self.sample is not None and not 0 < self.sample < 1:
            raise ValueError(
                f"rule {self.name!r}: sample is {self.sample}; it must lie between 0 and 1, as in "
                "{half: {sample: 0.5, seed: 0}}"
            )
        try:
            check_ranges(self)
        except ValueError as error:
            raise ValueError(f"rule {self.name!r}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A rule list over the columns of a pool. The first rule that fails is a row's reason."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to build."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    source: Source
    fetch: Fetch = field(default_factory=Fetch)
    filters: tuple[FilterSpec, ...] = ()
    views: tuple[View, ...] = (View(name="raw"),)

    def __post_init__(self) -> None:
        doubled = sorted(
            {f.name for f in self.filters if sum(g.name == f.name for g in self.filters) > 1}
        )
        if doubled:
            raise ValueError(f"filters named twice: {', '.join(doubled)}")
        names = [view.name for view in self.views]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"views named twice: {', '.join(twice)}")
        hash_column = self.fetch.compute_hash
        if hash_column in (name.lower() for name in self.source.extra_columns):
            raise ValueError(
                f"extra_columns names {hash_column!r}, the column of fetch.compute_hash; rename "
                f"it, as in source_{hash_column}: {hash_column}:string"
            )
        for what, column in (
            ("bbox_column", self.fetch.bbox_column),
            ("verify_hash", (self.fetch.verify_hash or [None])[0]),
        ):
            if column is not None and column not in self.source.extra_columns:
                raise ValueError(
                    f"fetch.{what} names {column!r}, which is not one of source.extra_columns"
                )

    @property
    def sidecar_extra(self) -> dict[str, str]:
        """Columns of this recipe's sidecars beside SIDECAR, with their types by EXTRA_TYPES."""
        columns = dict(self.source.extra_columns)
        if self.fetch.compute_hash != "sha256":
            columns[self.fetch.compute_hash] = "string"
        return columns

    def view(self, name: str) -> View:
        """The view of that name. ValueError with the names there are."""
        for view in self.views:
            if view.name == name:
                return view
        raise ValueError(
            f"recipe {self.name!r} has no view {name!r}; it has "
            f"{', '.join(v.name for v in self.views)}"
        )
