"""The nouns: recipes, views, blends and ablations as frozen dataclasses.

Nothing but the standard library and columns.py, so that a trainer can import it anywhere. `disk.py` reads these from
YAML and checks types; what a type cannot say (a share between 0 and 1, a view that names itself) is checked here in
`__post_init__`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from manifests.columns import EXTRA_TYPES, PAIRS, SIDECAR, extra_column

STRICT: dict[str, str] = {"extra": "forbid"}  # read by pydantic inside disk.py

ROWS_PER_SHARD_LIMIT = 10_000  # keys are {shard:05d}{row:04d}


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


def check_extra(columns: dict[str, str], kind: str) -> None:
    """ValueError for a type that is not one of EXTRA_TYPES, a name that is taken, or a source that has no columns."""
    for name, kind_of_values in columns.items():
        column, type_name = extra_column(name, kind_of_values)
        if type_name not in EXTRA_TYPES:
            raise ValueError(
                f"extra_columns {name}: {type_name!r} is not one of {', '.join(EXTRA_TYPES)}"
            )
        if name.lower() in {taken.lower() for taken in [*SIDECAR.names, *PAIRS.names]}:
            raise ValueError(
                f"extra_columns names {name!r}, which every pool has a column of its own for; "
                f"rename it, as in source_{name}: {column}:{type_name}"
            )
    if columns and kind not in ("table", "shards"):
        raise ValueError(
            f"extra_columns come from tables and shards; a source of kind {kind} has none"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where url-text pairs come from.

    wat, warc: files of a crawl, the page's links as Common Crawl extracted them or the page itself; wat_index,
    warc_index: a crawl by name, a seeded sample of its files; table: url lists in parquet, csv, tsv, json, jsonl or
    txt; files: a local folder with a captions file; shards: tars that exist already (img2dataset's or any other).
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    kind: Literal["wat", "wat_index", "warc", "warc_index", "table", "files", "shards"]
    paths: tuple[
        str, ...
    ] = ()  # WATs, WARCs, tables, captions files (columns file, caption) or tars
    crawl: str | None = None  # *_index: CC-MAIN-YYYY-WW
    sample: int | None = None  # *_index: how many files, drawn without replacement
    seed: int = 0
    base: str = "https://data.commoncrawl.org/"  # *_index: where crawl-data/ lies
    url_column: str = "url"
    caption_column: str | None = "caption"  # table: null where there are no captions
    extra_columns: dict[str, str] = field(
        default_factory=dict
    )  # table, shards: name -> TYPE, or COLUMN:TYPE

    def __post_init__(self) -> None:
        check_extra(self.extra_columns, self.kind)
        if self.kind in ("wat_index", "warc_index"):
            if not self.crawl or not self.sample or self.sample < 1:
                raise ValueError(
                    f"source of kind {self.kind} needs crawl (CC-MAIN-YYYY-WW) and sample (a number of files >= 1)"
                )
        elif not self.paths:
            raise ValueError(f"source of kind {self.kind} needs paths")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimit:
    """What a host that is named in a recipe allows."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    per_host: int | None = None
    delay_s: float | None = None

    def __post_init__(self) -> None:
        if self.per_host is not None and self.per_host < 1:
            raise ValueError(f"per_host is {self.per_host}; it must be at least 1")
        if self.delay_s is not None and self.delay_s < 0:
            raise ValueError(f"delay_s is {self.delay_s}; it must not be negative")


Interpolation = Literal[
    "nearest", "linear", "bilinear", "cubic", "bicubic", "area", "lanczos", "lanczos4"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """How pictures are asked for and stored. Names as in img2dataset where it has one."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    engine: Literal["clipmill", "img2dataset"] = "clipmill"
    img2dataset_python: str | None = (
        None  # engine img2dataset: the interpreter that has it; default: this one
    )
    user_agent: str | None = (
        None  # needed as soon as something is fetched: name and an address to write to
    )
    # the picture
    image_size: int = 256
    resize_mode: Literal["no", "border", "keep_ratio", "keep_ratio_largest", "center_crop"] = (
        "keep_ratio"
    )
    resize_only_if_bigger: bool = True
    upscale_interpolation: Interpolation = "lanczos"
    downscale_interpolation: Interpolation = "area"
    encode_format: Literal["jpg", "png", "webp"] = "jpg"
    encode_quality: int = 95  # of jpg and webp 1..100; of png its compression 0..9
    skip_reencode: bool = True  # keep the bytes of a picture that nothing has to be done to
    disable_all_reencoding: bool = (
        False  # keep the bytes of every picture; its header is checked, nothing is decoded
    )
    min_image_size: int = 0  # of the shorter side
    max_image_area: int = 0  # pixels; 0 = no limit but max_pixels
    max_aspect_ratio: float = 0.0  # 0 = no limit
    max_pixels: int = 33_554_432  # what is decoded at all
    bbox_column: str | None = (
        None  # extra column: JSON list of [left, top, right, bottom] as shares, blurred
    )
    extract_exif: bool = False
    compute_hash: Literal["sha256", "md5", "sha512"] = (
        "sha256"  # sha256 always; another one besides
    )
    verify_hash: tuple[str, str] | None = None  # extra column and md5, sha256 or sha512
    # the network
    max_bytes: int = 20 * 2**20
    deadline_s: float = 20.0  # one row's DNS, TLS, redirects, body and all retries
    min_rate: int = 1024  # bytes per second that a body must average once it has had 5 s
    retries: int = 2
    concurrency: int = 256
    max_redirects: int = 5
    rows_per_shard: int = ROWS_PER_SHARD_LIMIT
    allow_private: bool = False
    allow_ports: tuple[int, ...] = (80, 443)
    # manners
    per_host: int = 2  # requests under way at once per host
    delay_s: float = 0.0  # between the starts of two requests to a host
    hosts: dict[str, HostLimit] = field(
        default_factory=dict
    )  # "host or *.suffix" -> what it allows
    patience_s: float = 600.0  # a row whose host has not had time for it by then ends as host_busy
    robots_txt: bool = True
    site_files: tuple[Literal["tdmrep", "ai.txt"], ...] = (
        "tdmrep",
        "ai.txt",
    )  # asked for once per host
    optout: Literal["respect", "strict", "ignore"] = (
        "respect"  # what is done about the signals; all are written down
    )
    # "host or *.suffix" -> "address:port": where to connect for these names (curl --connect-to); not in a pool's hash
    connect_to: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.rows_per_shard <= ROWS_PER_SHARD_LIMIT:
            raise ValueError(
                f"rows_per_shard is {self.rows_per_shard}; it must lie in 1..{ROWS_PER_SHARD_LIMIT}"
            )
        for name in ("image_size", "max_pixels", "max_bytes", "per_host", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("deadline_s", "patience_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 seconds")
        for name in (
            "min_image_size",
            "max_image_area",
            "max_aspect_ratio",
            "min_rate",
            "retries",
            "delay_s",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        lowest, highest = (0, 9) if self.encode_format == "png" else (1, 100)
        if not lowest <= self.encode_quality <= highest:
            raise ValueError(
                f"encode_quality is {self.encode_quality}; of {self.encode_format} it must lie in {lowest}..{highest}"
            )
        if self.verify_hash is not None and self.verify_hash[1] not in ("md5", "sha256", "sha512"):
            raise ValueError(
                f"verify_hash names {self.verify_hash[1]!r}; it must be md5, sha256 or sha512"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSpec:
    """One filter of a recipe and its options: `caption` or `{clip_score: {model: …}}`."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One step of a view: an SQL boolean expression, another view's rules, or a random subset as large as a view."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    where: str | None = None
    view: str | None = None
    random_like: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if sum(x is not None for x in (self.where, self.view, self.random_like)) != 1:
            raise ValueError(
                f"rule {self.name!r} must be one of an SQL expression, a view, or random_like"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A rule list over the columns of a pool. The first rule that fails is a row's reason."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Miniweb:
    """The small web on loopback that a demo or a debug run starts first (see pipeline/miniweb/small_web.py)."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    pairs: int = 6000
    trusted_pairs: int = 1500
    noise: float = 0.4
    near_duplicates: float = 0.1
    faults: float = 0.08
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("noise", "near_duplicates", "faults"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"miniweb {name} is {getattr(self, name)}; it must lie in [0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to build."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    source: Source
    fetch: Fetch = field(default_factory=Fetch)
    filters: tuple[FilterSpec, ...] = ()
    views: tuple[View, ...] = (View(name="raw"),)
    miniweb: Miniweb | None = None

    def __post_init__(self) -> None:
        doubled = sorted(
            {f.name for f in self.filters if sum(g.name == f.name for g in self.filters) > 1}
        )
        if doubled:
            raise ValueError(f"filters named twice: {', '.join(doubled)}")
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
            f"recipe {self.name!r} has no view {name!r}; it has {', '.join(v.name for v in self.views)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """What a run draws: views of pools with their weights."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    pools: dict[str, str]  # name -> folder or URL
    views: dict[str, float]  # "pool/view" -> weight
    seed: int = 0
    max_repeats: float | None = None  # mean repeats of a view's rows above which a run is refused

    def __post_init__(self) -> None:
        if not self.views:
            raise ValueError(f"blend {self.name!r} has no views")
        for name, weight in self.views.items():
            pool, _, view = name.partition("/")
            if not view or pool not in self.pools:
                raise ValueError(
                    f"blend {self.name!r}: {name!r} is not POOL/VIEW with a pool of {sorted(self.pools)}"
                )
            if not weight > 0:
                raise ValueError(
                    f"blend {self.name!r}: the weight of {name!r} is {weight}; it must be above 0"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """An evaluation: zero-shot classification over class folders, or retrieval over a captions file."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    kind: Literal["classification", "retrieval"]
    data: str  # folder: CLASS/picture…, or captions.csv (columns file, caption) beside its pictures
    classes: tuple[
        str, ...
    ] = ()  # display names, in the order of the sorted folders; default: the folders' names
    templates: tuple[str, ...] = ("a photo of a {}",)
    allow_overlap: bool = (
        False  # a picture that is in a training pool too is refused unless this says so
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRef:
    """A pool of an ablation: its recipe, and where it lies once built (default: inside the ablation's folder)."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    recipe: str | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        if self.recipe is None and self.out is None:
            raise ValueError("a pool needs a recipe (to build) or out (where it lies), or both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A CLIP trained before anything is scored (a data filtering network): filters read it as local-dir:${SCORER}."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    view: str  # POOL/VIEW
    train: dict[str, Any] = field(default_factory=dict)  # changes to the ablation's own `train`
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """Arms that tell an effect from its imitations."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    random_like: tuple[
        str, ...
    ] = ()  # arms; each gets a random subset of the baseline's pool, of its size
    random_seed: int = 0
    a_a: str | None = None  # an arm run again under other seeds
    null_web: str | None = None  # another ablation, on data where no effect is planted


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """Arms × seeds under one training preset."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    question: str
    pools: dict[str, PoolRef]
    arms: dict[str, str]  # arm -> POOL/VIEW, or the path of a blend (*.yaml)
    baseline: str
    seeds: tuple[int, ...]
    train: dict[str, Any]
    evaluate: tuple[TaskSpec, ...]
    primary: str  # the task that the verdict is about
    controls: Controls = field(default_factory=Controls)
    scorer: Scorer | None = None
    miniweb: Miniweb | None = None
    equivalence: float = (
        0.005  # differences inside ± this are practically equal (a share: 0.005 = 0.5 points)
    )
    jobs: int = 1  # runs at a time on one machine

    def __post_init__(self) -> None:
        if self.baseline not in self.arms:
            raise ValueError(
                f"baseline {self.baseline!r} is not one of the arms {sorted(self.arms)}"
            )
        if len(self.seeds) < 2 or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(
                f"seeds are {list(self.seeds)}; at least two different ones are needed for an interval"
            )
        if self.primary not in {t.name for t in self.evaluate}:
            raise ValueError(
                f"primary {self.primary!r} is not one of the tasks {[t.name for t in self.evaluate]}"
            )
        for arm in (
            *self.controls.random_like,
            *([self.controls.a_a] if self.controls.a_a else []),
        ):
            if arm not in self.arms:
                raise ValueError(
                    f"control of unknown arm {arm!r}; the arms are {sorted(self.arms)}"
                )

    def pool_folder(self, out: str, pool: str) -> str:
        """Where a pool lies: its own `out`, or pools/NAME inside the ablation's folder `out`."""
        return self.pools[pool].out or f"{out.rstrip('/')}/pools/{pool}"
