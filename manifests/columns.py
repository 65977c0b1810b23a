"""The columns of the files on disk, and the closed list of reasons.

Standard library, NumPy and pyarrow only, so that a trainer can import it anywhere.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.manifests.arrays import Bytes

# Every attempt that is not stored ends with exactly one of these. refused: we chose not to;
# permanent: another request gives the same answer; transient: `--retry transient` may succeed.
REASONS: dict[str, Literal["refused", "permanent", "transient"]] = {
    "bad_url": "refused",
    "scheme": "refused",
    "port": "refused",
    "private_address": "refused",
    "robots_txt": "refused",
    "optout_header": "refused",
    "optout_page": "refused",
    "optout_site": "refused",
    "too_many_bytes": "refused",
    "too_many_pixels": "refused",
    "too_small": "refused",
    "aspect": "refused",
    "format": "refused",
    "bad_bbox": "refused",
    "long_caption": "refused",
    "known_bad": "refused",
    "purged": "refused",
    "not_locked": "refused",
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
    "hash_mismatch": "permanent",
    "substituted": "permanent",
    "dns": "transient",
    "connect": "transient",
    "reset": "transient",
    "deadline": "transient",
    "too_slow": "transient",
    "host_busy": "transient",
    "permission_unknown": "transient",
    "outcome_lost": "transient",
    "truncated": "transient",
    "http_429": "transient",
    "http_5xx": "transient",
}

# Outcomes of the rows of a lock beside REASONS. Of a row that is withheld nothing is handed on.
STORED, WITHHELD = "stored", "withheld"

# Reasons of the decoding half: img2dataset calls them failed_to_resize, all others
# failed_to_download.
DECODE_REASONS = frozenset(
    {
        "too_many_pixels",
        "too_small",
        "aspect",
        "format",
        "bad_bbox",
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
        ("robots", pa.string()),  # the page's signals for robots and its RSL licences, raw, as JSON
        ("license", pa.string()),
        ("wat", pa.string()),
        ("warc_offset", pa.int64()),  # of the page's record in `wat`, bytes
        ("link", pa.int32()),  # number of the link on its page
    ]
)

# One row per attempt, in the order of the tar. The first eleven columns are img2dataset's.
_SIDECAR: list[tuple[str, pa.DataType, str]] = [  # name, type, meaning
    ("url", pa.string(), "address of the image"),
    ("caption", pa.string(), "text of the pair"),
    ("key", pa.string(), "name of the sample in its tar"),
    (
        "status",
        pa.string(),
        "success, failed_to_download or failed_to_resize; a rule sees stored rows only",
    ),
    ("error_message", pa.string(), "what went wrong; NULL for stored rows"),
    ("width", pa.int32(), "of the stored image, pixels"),
    ("height", pa.int32(), "of the stored image, pixels"),
    ("original_width", pa.int32(), "of the image as received, upright, pixels"),
    ("original_height", pa.int32(), "of the image as received, upright, pixels"),
    ("exif", pa.string(), "EXIF as JSON, if the recipe asks for it"),
    ("sha256", pa.string(), "of the bytes as received"),
    ("uid", pa.string(), "32 hex digits, a hash of url and caption"),
    ("reason", pa.string(), "why a row is not stored; NULL for stored rows"),
    ("class", pa.string(), "permanent, transient or refused; NULL for stored rows"),
    ("http_status", pa.int16(), "status of the last response"),
    ("final_url", pa.string(), "address after redirects"),
    ("content_type", pa.string(), "as the server named it"),
    ("optout", pa.string(), "every opt-out signal, as JSON; the filter optout reads it"),
    ("retry_of", pa.string(), "key of the row that this one retries"),
    ("image_name", pa.string(), "member of the tar"),
    ("image_offset", pa.int64(), "of the image's bytes in the tar"),
    ("image_length", pa.int64(), "bytes of the stored image"),
    ("text_offset", pa.int64(), "of the caption's bytes in the tar"),
    ("text_length", pa.int64(), "bytes of the caption"),
    ("json_offset", pa.int64(), "of the JSON member in the tar"),
    ("json_length", pa.int64(), "bytes of the JSON member"),
    ("page_url", pa.string(), "page that the link was on"),
    ("page_lang", pa.string(), "language that the page declares"),
    ("wat", pa.string(), "file that the pair came from"),
    ("warc_offset", pa.int64(), "of the page's record in that file, bytes"),
    ("link", pa.int32(), "number of the link on its page"),
    ("fetched_at", pa.timestamp("ms", tz="UTC"), "time of the response, UTC"),
    ("elapsed_ms", pa.int32(), "time of the request, milliseconds"),
    ("attempts", pa.int16(), "requests that were made"),
]
SIDECAR = pa.schema([(name, kind) for name, kind, _ in _SIDECAR])
SIDECAR_MEANINGS = {name: meaning for name, _, meaning in _SIDECAR}
# The pairs in the order in which they are fetched.
PLAN = pa.schema(
    [
        *PAIRS,
        ("part", pa.int32()),  # of the pairs
        ("row", pa.int64()),  # in that part
        ("shard", pa.int32()),
        ("position", pa.int16()),  # in the shard
        ("retry_of", pa.string()),  # key of the row that this row fetches again
    ]
)
# Last columns of a plan that was made of a lock; see Pair.
LOCKED = pa.schema([("locked_outcome", pa.string()), ("locked_sha256", pa.string())])
# Columns that rules compute from those of the sidecar.
DERIVED_NAMES = ("aspect", "url_host", "page_host")
# Types of the columns that a recipe carries along from its tables, by the names that it gives them.
EXTRA_TYPES = {
    "string": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "json": pa.string(),  # anything nested, as JSON text
}
# What may differ between two builds of the same bytes.
VOLATILE_COLUMNS = ("fetched_at", "elapsed_ms", "attempts")


def with_extra(schema: pa.Schema, columns: Mapping[str, str]) -> pa.Schema:
    """PAIRS or SIDECAR with a recipe's own columns behind it."""
    return pa.schema(
        [
            *schema,
            *((name, EXTRA_TYPES[extra_column(name, kind)[1]]) for name, kind in columns.items()),
        ]
    )


def extra_column(name: str, kind: str) -> tuple[str, str]:
    """(column in the source, key of EXTRA_TYPES) of an extra column: `TYPE`, or `COLUMN:TYPE` for
    one renamed.
    """
    column, _, type_name = kind.rpartition(":")
    return column or name, type_name


def shared_name(names: Iterable[str], others: Iterable[str] = ()) -> tuple[str, str] | None:
    """The first of `names` that another one of them, or one of `others`, has too, and that other.

    Capitals do not count: DuckDB, which evaluates rules, takes `Score` and `score` for one column.
    """
    before = {name.lower(): name for name in others}
    for name in names:
        if name.lower() in before:
            return name, before[name.lower()]
        before[name.lower()] = name
    return None


def refuse_doubled(path: str, columns: Iterable[str], present: Sequence[str]) -> None:
    """ValueError where a table has one of `columns` more than once."""
    for name in columns:
        if present.count(name) > 1:
            raise ValueError(f"{path} has two columns {name!r}; give one of them another name")


# rule: NULL if kept, else the name of the first rule that failed
VIEW = pa.schema([("kept", pa.bool_()), ("rule", pa.string())])
# The same in the making: a view has few rules. It is stored, and comes back, as VIEW.
RULES = pa.dictionary(pa.int32(), pa.string())
MASK = pa.schema([("kept", pa.bool_()), ("rule", RULES)])


def joined_text(texts: pa.Array, separator: str = "") -> pa.Buffer:
    """The texts of an array without NULL as one, made by Arrow and not row by row."""
    whole = pa.LargeListArray.from_arrays([0, len(texts)], texts.cast(pa.large_string()))
    return pc.binary_join(whole, pa.scalar(separator, pa.large_string()))[0].as_buffer()


def frequencies(column: pa.Array | pa.ChunkedArray) -> dict[str, int]:
    """How often each value of a column of text occurs, in the order of the values."""
    counts = pc.value_counts(column.drop_null())
    values, numbers = counts.field("values").to_pylist(), counts.field("counts").to_pylist()
    return dict(sorted(zip(values, numbers, strict=True)))


def hex_bytes(column: pa.Array | pa.ChunkedArray, width: int, name: str) -> Bytes:
    """(rows, width) of a column of hex digits. ValueError, with the name, for other values."""
    problem = f"a {name} does not have {2 * width} hex digits"
    if column.null_count:
        raise ValueError(f"{problem}: there is none")
    texts = column.cast(pa.binary())
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if not len(texts):
        return np.zeros((0, width), np.uint8)
    fits = pc.equal(pc.binary_length(texts), 2 * width)
    if not pc.all(fits).as_py():
        other = texts.filter(pc.invert(fits))[0].as_py().decode(errors="replace")
        raise ValueError(f"{problem}: {other[:100]!r}")
    fixed = texts.cast(pa.binary(2 * width))
    start = fixed.offset * 2 * width
    digits = memoryview(fixed.buffers()[1])[start : start + len(texts) * 2 * width]
    try:
        content = binascii.unhexlify(digits)
    except binascii.Error:
        raise ValueError(problem) from None
    return np.frombuffer(content, np.uint8).reshape(-1, width)
