"""The nouns: recipes, views, blends and ablations as frozen dataclasses, and the columns of the files on disk.

Standard library and pyarrow only, so that a trainer can import it anywhere. `disk.py` reads these from YAML and checks
types; what a type cannot say (a share between 0 and 1, a view that names itself) is checked here in `__post_init__`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pyarrow as pa

STRICT: dict[str, str] = {"extra": "forbid"}  # read by pydantic inside disk.py

ROWS_PER_SHARD_LIMIT = 10_000  # keys are {shard:05d}{row:04d}

# Every attempt that is not stored ends with exactly one of these. refused: we chose not to; permanent: asking again
# gives the same answer; transient: `--retry transient` may find it.
REASONS: dict[str, Literal["refused", "permanent", "transient"]] = {
    "bad_url": "refused",
    "scheme": "refused",
    "port": "refused",
    "private_address": "refused",
    "robots_txt": "refused",
    "optout_header": "refused",
    "optout_page": "refused",
    "too_many_bytes": "refused",
    "too_many_pixels": "refused",
    "too_small": "refused",
    "aspect": "refused",
    "format": "refused",
    "http_4xx": "permanent",
    "http_other": "permanent",
    "redirects": "permanent",
    "tls": "permanent",
    "encoding": "permanent",
    "empty": "permanent",
    "not_an_image": "permanent",
    "decode_error": "permanent",
    "decoder_died": "permanent",
    "decoder_deadline": "permanent",
    "missing_file": "permanent",
    "no_caption": "permanent",
    "dns": "transient",
    "connect": "transient",
    "reset": "transient",
    "deadline": "transient",
    "truncated": "transient",
    "http_429": "transient",
    "http_5xx": "transient",
}

# Reasons of the decoding half: img2dataset calls them failed_to_resize, all others failed_to_download.
DECODE_REASONS = frozenset(
    {
        "too_many_pixels",
        "too_small",
        "aspect",
        "format",
        "not_an_image",
        "decode_error",
        "decoder_died",
        "decoder_deadline",
    }
)

# One row per image link with alternative text, in document order.
PAIRS = pa.schema(
    [
        ("uid", pa.string()),  # 128-bit xxh3 of url, NUL and caption, 32 hex digits
        ("url", pa.string()),
        ("caption", pa.string()),
        ("title", pa.string()),  # title attribute of the image
        ("anchor", pa.string()),  # text of the link around the image
        ("page_url", pa.string()),
        ("page_lang", pa.string()),
        ("robots", pa.string()),  # the page's robots meta and X-Robots-Tag, raw, as JSON
        ("license", pa.string()),
        ("wat", pa.string()),
        ("warc_offset", pa.int64()),  # of the page's record in `wat`, bytes
        ("link", pa.int32()),  # number of the link on its page
    ]
)

# One row per attempt, in the order of the tar. The first twelve columns are img2dataset's.
SIDECAR = pa.schema(
    [
        ("url", pa.string()),
        ("caption", pa.string()),
        ("key", pa.string()),
        ("status", pa.string()),  # success, failed_to_download, failed_to_resize
        ("error_message", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("original_width", pa.int32()),
        ("original_height", pa.int32()),
        ("exif", pa.string()),
        ("sha256", pa.string()),  # of the bytes as they were received
        ("uid", pa.string()),
        ("reason", pa.string()),  # NULL where the row is stored, else a key of REASONS
        ("class", pa.string()),
        ("http_status", pa.int16()),
        ("final_url", pa.string()),
        ("content_type", pa.string()),
        ("optout", pa.string()),  # every opt-out signal seen, raw, as JSON
        ("retry_of", pa.string()),  # key of the row that this one retries
        ("image_name", pa.string()),  # member name in the tar
        ("image_offset", pa.int64()),  # of the member's bytes in the tar
        ("image_length", pa.int64()),
        ("text_offset", pa.int64()),
        ("text_length", pa.int64()),
        ("json_offset", pa.int64()),
        ("json_length", pa.int64()),
        ("page_url", pa.string()),
        ("page_lang", pa.string()),
        ("wat", pa.string()),
        ("warc_offset", pa.int64()),
        ("link", pa.int32()),
        ("fetched_at", pa.timestamp("ms", tz="UTC")),
        ("elapsed_ms", pa.int32()),
        ("attempts", pa.int16()),
    ]
)
VOLATILE_COLUMNS = ("fetched_at", "elapsed_ms", "attempts")  # what may differ between two builds of the same bytes

VIEW = pa.schema([("kept", pa.bool_()), ("rule", pa.string())])  # rule: NULL if kept, else the first that failed


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where url-text pairs come from.

    wat: WAT files; wat_index: a crawl by name, a seeded sample of its WATs; table: url lists in parquet, csv or jsonl;
    files: a local folder with a captions file; shards: tars that exist already (img2dataset's or any other).
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    kind: Literal["wat", "wat_index", "table", "files", "shards"]
    paths: tuple[str, ...] = ()  # WATs, tables, captions files (columns file, caption) or tars
    crawl: str | None = None  # wat_index: CC-MAIN-YYYY-WW
    sample: int | None = None  # wat_index: how many WATs, drawn without replacement
    seed: int = 0
    base: str = "https://data.commoncrawl.org/"  # wat_index: where crawl-data/ lies
    url_column: str = "url"
    caption_column: str = "caption"

    def __post_init__(self) -> None:
        if self.kind == "wat_index":
            if not self.crawl or not self.sample or self.sample < 1:
                raise ValueError(
                    "source of kind wat_index needs crawl (CC-MAIN-YYYY-WW) and sample (a number of WATs >= 1)"
                )
        elif not self.paths:
            raise ValueError(f"source of kind {self.kind} needs paths")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """How pictures are asked for and stored. Names as in img2dataset where it has one."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    engine: Literal["clipmill"] = "clipmill"
    user_agent: str | None = None  # needed as soon as something is fetched: name and an address to write to
    image_size: int = 256
    resize_mode: Literal["no", "border", "keep_ratio", "keep_ratio_largest", "center_crop"] = "keep_ratio"
    resize_only_if_bigger: bool = True
    encode_quality: int = 95
    min_image_size: int = 0
    max_aspect_ratio: float = 0.0  # 0 = no limit
    max_pixels: int = 33_554_432
    max_bytes: int = 20 * 2**20
    deadline_s: float = 20.0  # one row's DNS, TLS, redirects, body and all retries
    retries: int = 2
    per_host: int = 2  # requests under way at once per host
    concurrency: int = 256
    max_redirects: int = 5
    rows_per_shard: int = ROWS_PER_SHARD_LIMIT
    allow_private: bool = False
    allow_ports: tuple[int, ...] = (80, 443)
    robots_txt: bool = True
    respect_optout: bool = True
    # "host or *.suffix" -> "address:port": where to connect for these names (curl --connect-to); not in a pool's hash
    connect_to: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.rows_per_shard <= ROWS_PER_SHARD_LIMIT:
            raise ValueError(f"rows_per_shard is {self.rows_per_shard}; it must lie in 1..{ROWS_PER_SHARD_LIMIT}")
        for name in ("image_size", "max_pixels", "max_bytes", "per_host", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.deadline_s <= 0:
            raise ValueError(f"deadline_s is {self.deadline_s}; it must be above 0 seconds")


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
            raise ValueError(f"rule {self.name!r} must be one of an SQL expression, a view, or random_like")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A rule list over the columns of a pool. The first rule that fails is a row's reason."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Miniweb:
    """The small web on loopback that a demo or a debug run starts first (see pipeline/miniweb.py)."""

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
        doubled = sorted({f.name for f in self.filters if sum(g.name == f.name for g in self.filters) > 1})
        if doubled:
            raise ValueError(f"filters named twice: {', '.join(doubled)}")

    def view(self, name: str) -> View:
        """The view of that name. ValueError with the names there are."""
        for view in self.views:
            if view.name == name:
                return view
        raise ValueError(f"recipe {self.name!r} has no view {name!r}; it has {', '.join(v.name for v in self.views)}")


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
                raise ValueError(f"blend {self.name!r}: {name!r} is not POOL/VIEW with a pool of {sorted(self.pools)}")
            if not weight > 0:
                raise ValueError(f"blend {self.name!r}: the weight of {name!r} is {weight}; it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """An evaluation: zero-shot classification over class folders, or retrieval over a captions file."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    kind: Literal["classification", "retrieval"]
    data: str  # folder: CLASS/picture…, or captions.csv (columns file, caption) beside its pictures
    classes: tuple[str, ...] = ()  # display names, in the order of the sorted folders; default: the folders' names
    templates: tuple[str, ...] = ("a photo of a {}",)
    allow_overlap: bool = False  # a picture that is in a training pool too is refused unless this says so


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
    random_like: tuple[str, ...] = ()  # arms; each gets a random subset of the baseline's pool, of its size
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
    equivalence: float = 0.005  # differences inside ± this are practically equal (a share: 0.005 = 0.5 points)
    jobs: int = 1  # runs at a time on one machine

    def __post_init__(self) -> None:
        if self.baseline not in self.arms:
            raise ValueError(f"baseline {self.baseline!r} is not one of the arms {sorted(self.arms)}")
        if len(self.seeds) < 2 or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds are {list(self.seeds)}; at least two different ones are needed for an interval")
        if self.primary not in {t.name for t in self.evaluate}:
            raise ValueError(f"primary {self.primary!r} is not one of the tasks {[t.name for t in self.evaluate]}")
        for arm in (*self.controls.random_like, *([self.controls.a_a] if self.controls.a_a else [])):
            if arm not in self.arms:
                raise ValueError(f"control of unknown arm {arm!r}; the arms are {sorted(self.arms)}")

    def place(self, out: str, pool: str) -> str:
        """Where a pool lies: its own `out`, or pools/NAME inside the ablation's folder `out`."""
        return self.pools[pool].out or f"{out.rstrip('/')}/pools/{pool}"
