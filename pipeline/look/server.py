"""A small server on 127.0.0.1 for the page of a large pool."""

from __future__ import annotations

import functools
import json
import logging
import re
import threading
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clipmill.filters import make
from clipmill.filters.clip.model import ClipFilter, ClipModel, shared_model
from clipmill.manifests.arrays import Float32Array, Integers, Mask
from clipmill.manifests.pool import Pool
from clipmill.manifests.records import ScoreSetDocument
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline.look.page import NoImage, are_current, image_bytes, image_records, thumbnail
from clipmill.pipeline.look.survey import NumberColumn, Survey, nearest

# --------------------------------------------------------------------------------------------------
# The model that made the embeddings of a score set, for the embedding of a text.
#
# It is loaded with the first text. Without PyTorch and open_clip, or where the model has gone or
# is another one, the answer is a line that says so.


EMBED = "embed"
PACKAGES = ("torch", "open_clip")


class TextModel:
    """The text tower of the model that a score set names."""

    def __init__(self, document: ScoreSetDocument) -> None:
        self._document = document
        self._model: ClipModel | None = None
        self._lock = threading.Lock()

    def embed(self, text: str) -> Float32Array:
        """(width,) of length 1. ValueError where the model cannot be had."""
        with self._lock:
            if self._model is None:
                self._model = self._load()
            return np.asarray(self._model.embed_texts([text], 1)[0], np.float32)

    def _load(self) -> ClipModel:
        document = self._document
        if document.filter_kind != EMBED:
            raise ValueError(
                f"the embeddings are those of the filter {document.filter_kind}, which has no "
                "model for texts; choose an image instead"
            )
        missing = [package for package in PACKAGES if find_spec(package) is None]
        if missing:
            raise ValueError(
                f"a text needs the model of the embeddings, and {missing[0]} is not installed "
                "here: pip install -e '.[score]', or choose an image instead"
            )
        # The filter as it is recorded; the device is this machine's.
        options = {**document.options, "device": "auto"}
        filter_ = make(FilterSpec(name=document.name, kind=document.kind, options=options))
        assert isinstance(filter_, ClipFilter)
        if filter_.identity() != document.identity:
            raise ValueError(
                f"{filter_.model} is not the model any more that made the embeddings; score the "
                "pool again with it"
            )
        return shared_model(filter_)


# --------------------------------------------------------------------------------------------------
# What is most like an image or a text: the nearest embeddings by cosine, over a sample of the
# stored rows.
#
# NumPy multiplies the whole sample, 1 ms per 10,000 rows of 512 values.


MOST_VALUES = 50_000_000  # of all embeddings in memory, 200 MB
MOST_ALIKE = 24


class Alike:
    """Normalised embeddings of some rows. `name`: their score set. `text_model`: its model."""

    def __init__(
        self, name: str, rows: Integers, vectors: Float32Array, text_model: TextModel
    ) -> None:
        self.name, self.rows, self._vectors, self.text_model = name, rows, vectors, text_model

    @classmethod
    def of_survey(cls, survey: Survey) -> Alike | None:
        """The embeddings of images of a pool; None where no score set has some."""
        pool_rows = survey.rows
        pool = Pool(pool_rows.commits)
        for name, document in pool.score_sets.items() if len(pool_rows.shards) else ():
            column = _embedding_column(pool.score_schema(name), document)
            if column is None:
                continue
            numbers: list[Integers] = []
            parts: list[Float32Array] = []
            size = 0
            for position, shard in enumerate(pool_rows.shards.tolist()):
                values = pool.read(shard, [column], {column: name})[column].combine_chunks()
                valid = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
                first = int(pool_rows.first_rows[position])
                valid &= pool_rows.stored[first : first + len(valid)]
                vectors = _normalised(values.filter(pa.array(valid)))
                numbers.append(np.flatnonzero(valid) + first)
                parts.append(vectors)
                size += vectors.size
                if size > MOST_VALUES:
                    break
            return cls(name, np.concatenate(numbers), np.concatenate(parts), TextModel(document))
        return None

    def nearest(self, row: int, most: int = MOST_ALIKE) -> list[int]:
        """The rows that are most like a row, itself left out. ValueError without an embedding."""
        position = int(np.searchsorted(self.rows, row))
        if position == len(self.rows) or self.rows[position] != row:
            raise ValueError("the row is not among those whose embeddings are in memory")
        order = self._order(self._vectors[position], most + 1)
        chosen: list[int] = self.rows[order[order != position]][:most].tolist()
        return chosen

    def nearest_to_text(self, text: str) -> list[int]:
        """The rows whose images are most like a text, the nearest first. ValueError where the model
        of the embeddings cannot be had."""
        wanted = self.text_model.embed(text)
        if len(wanted) != self._vectors.shape[1]:
            raise ValueError(
                f"the model gives {len(wanted)} values for a text, and {self.name} has "
                f"{self._vectors.shape[1]}"
            )
        rows: list[int] = self.rows[self._order(wanted, MOST_ALIKE)].tolist()
        return rows

    def _order(self, wanted: Float32Array, most: int) -> Integers:
        """Positions of the `most` nearest vectors, the nearest first."""
        likeness = self._vectors @ wanted
        some = np.argpartition(-likeness, min(most, len(likeness)) - 1)[:most]
        return some[np.argsort(-likeness[some], kind="stable")]


def _embedding_column(schema: pa.Schema, document: ScoreSetDocument) -> str | None:
    """The first column of fixed-size lists of floats; of two the one of images."""
    able = []
    for field in schema:
        kind = field.type
        if pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
            able.append(field.name)
    able.sort(key=lambda column: "image" not in column)
    return able[0] if able and able[0] in document.columns else None


def _normalised(values: pa.FixedSizeListArray) -> Float32Array:
    """(rows, width) of length 1; a vector of zeros stays one."""
    width = values.type.list_size
    flat = values.flatten().to_numpy(zero_copy_only=False)
    vectors = np.nan_to_num(np.asarray(flat, np.float32).reshape(-1, width))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Float32Array = np.divide(vectors, np.maximum(lengths, 1e-12), dtype=np.float32)
    return scaled


# --------------------------------------------------------------------------------------------------
# What the server answers: counts at a threshold, captions that hold a text, images, neighbours.
#
# Every answer is about rows that are still committed as they were read: where a shard was
# replaced since, by a purge or a repair, nothing of it is given out.


NEAR_THRESHOLD = 6  # images on each side of a threshold
HITS = 60  # images of a search
SIDE = 192  # pixels of an image
LONGEST_TEXT = 200  # of a search, characters
LONGEST_NUMBER = 60
LARGEST_EXPONENT = 300
CACHED_COUNTS = 48  # of a column and a view: 4 bytes a row each


class Changed(ValueError):
    """The pool has changed since it was read."""


class Answers:
    """Answers about one survey, from several threads."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self._below = functools.lru_cache(CACHED_COUNTS)(self._counts_below)
        self.alike = Alike.of_survey(survey)

    def count(self, column: str, view: str, value: str) -> dict[str, object]:
        """Rows of a view's scope below a decimal number, and the nearest images on both sides.

        ValueError for an unknown column or view and for what is no number.
        """
        numbers = self._column(column)
        scope = self._scope(view, column)
        text = _checked_number(value)
        rank = numbers.below(text)
        below, scope_rows = self._below(column, view)
        low, high = nearest(numbers, scope, rank, NEAR_THRESHOLD)
        records = self._records([*low, *high], column)
        return {
            "threshold": text,
            "below": int(below[rank]),
            "values": int(below[-1]),
            "rows": scope_rows,
            "low": records[: len(low)],
            "high": records[len(low) :],
        }

    def search(self, text: str, view: str) -> dict[str, object]:
        """Stored rows of a view whose captions hold a text, whatever the case of its letters."""
        if not text or len(text) > LONGEST_TEXT:
            raise ValueError(f"give a text of 1 to {LONGEST_TEXT} characters")
        rows = self.survey.rows
        hits = pc.match_substring(rows.table["caption"], text, ignore_case=True)
        # 0.05 s for a million captions
        mask = pc.fill_null(hits, False).to_numpy() & self._scope(view, "")
        numbers = np.flatnonzero(mask)
        return {"count": len(numbers), "images": self._records(numbers[:HITS].tolist())}

    def image(self, shard: int, row: int) -> bytes:
        """The image of a stored row as a JPEG. NoImage where there is none, or none any more."""
        number = self.survey.rows.row_at(shard, row)
        if number is None or not are_current(self.survey.rows, [shard]):
            raise NoImage("the pool has no such row")
        return thumbnail(image_bytes(self.survey.rows, number), SIDE)

    def similar(self, shard: int, row: int) -> dict[str, object]:
        """The images whose embeddings are most like that of a row, the nearest first."""
        number = self.survey.rows.row_at(shard, row)
        if self.alike is None or number is None:
            raise ValueError("the row has no embedding in this pool")
        return {"images": self._records(self.alike.nearest(number))}

    def like_text(self, text: str) -> dict[str, object]:
        """The images whose embeddings are most like a text, the nearest first.

        ValueError for a text that is empty or too long, and where the model cannot be had.
        """
        if not text or len(text) > LONGEST_TEXT:
            raise ValueError(f"give a text of 1 to {LONGEST_TEXT} characters")
        if self.alike is None:
            raise ValueError("the pool has no embeddings; add the filter embed to its recipe")
        return {"images": self._records(self.alike.nearest_to_text(text))}

    def _column(self, name: str) -> NumberColumn:
        if name not in self.survey.columns or not len(self.survey.columns[name].values):
            raise ValueError(f"there is no column of numbers {name!r}")
        return self.survey.columns[name]

    def _scope(self, view: str, column: str) -> Mask:
        if view and view not in self.survey.detailed:
            raise ValueError(f"the page has no view {view!r}")
        return self.survey.scope(view, column)

    def _counts_below(self, column: str, view: str) -> tuple[NDArray[np.int32], int]:
        """((values + 1,) rows of the scope before each place in the order of a column, rows of
        the scope)."""
        scope = self._scope(view, column)
        rows = self._column(column).rows
        counts = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(scope[rows], dtype=np.int32, out=counts[1:])
        return counts, int(scope.sum())

    def _records(self, rows: Iterable[int], *columns: str) -> list[dict[str, object]]:
        records = image_records(self.survey, rows, columns)
        if not are_current(self.survey.rows, [record["shard"] for record in records]):
            raise Changed("The pool has changed since it was read: start clipmill look again.")
        return records


def _checked_number(text: str) -> str:
    """A number as a rule may spell it. ValueError for what is none."""
    try:
        number = Decimal(text) if len(text) <= LONGEST_NUMBER else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or abs(number.adjusted()) > LARGEST_EXPONENT:
        raise ValueError(f"{text[:LONGEST_NUMBER]!r} is not a number that a rule can hold")
    return f"{number:f}"


# --------------------------------------------------------------------------------------------------
# A small server on 127.0.0.1 for the page of a large pool.
#
# It answers GET only, and only where the Host header names it, so that no other site can reach it
# through a browser. No part of a request becomes a path of a file: an image is asked for by two
# numbers.


ADDRESS = "127.0.0.1"
SECONDS = 30.0  # until a connection that sends nothing is closed
IMAGE = re.compile(r"/image/(\d{1,18})/(\d{1,7})", re.ASCII)
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
Parameters = dict[str, str]
logger = logging.getLogger(__name__)


def make_server(answers: Answers, page: str, port: int = 0) -> ThreadingHTTPServer:
    """A server that listens; port 0: a free one. The caller calls serve_forever()."""

    class Handler(_Handler):
        pass

    Handler.answers, Handler.page = answers, page.encode()
    server = ThreadingHTTPServer((ADDRESS, port), Handler)
    server.daemon_threads = True
    Handler.hosts = tuple(f"{name}:{server.server_address[1]}" for name in (ADDRESS, "localhost"))
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "clipmill"
    sys_version = ""
    timeout = SECONDS
    answers: Answers
    page: bytes
    hosts: tuple[str, ...]

    def log_message(self, *_: object) -> None:
        """Nothing for each request."""

    def do_GET(self) -> None:
        """The page, or an answer."""
        problem = self._refusal()
        if problem:
            self._send(403, {"error": problem})
            return
        try:
            parts = urlsplit(self.path)
            parameters = dict(parse_qsl(parts.query, max_num_fields=8))
            self._route(parts.path, parameters)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Changed as error:
            self._send(409, {"error": str(error)})
        except NoImage as error:
            self._send(404, {"error": str(error)})
        except (ValueError, KeyError) as error:
            self._send(400, {"error": str(error)})
        except Exception as error:
            logger.error("%s: %s: %s", urlsplit(self.path).path[:60], type(error).__name__, error)
            self._send(500, {"error": "The server could not answer; its log says why."})

    def refuse(self) -> None:
        """Any other method."""
        self.close_connection = True
        self._send(405, {"error": "only GET is answered"})

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD = refuse

    def _refusal(self) -> str:
        """Why a request is not answered; "" where it is."""
        if len(self.headers.get_all("Host") or []) != 1 or self.headers["Host"] not in self.hosts:
            return "the Host header is not that of this server"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "another site asks"
        return ""

    def _route(self, path: str, parameters: Parameters) -> None:
        routes: dict[str, Callable[[Parameters], dict[str, object]]] = {
            "/count": lambda given: self.answers.count(
                given["column"], given.get("view", ""), given["value"]
            ),
            "/search": lambda given: self.answers.search(given["text"], given.get("view", "")),
            "/similar": lambda given: self.answers.similar(
                _whole(given, "shard"), _whole(given, "row")
            ),
            "/like": lambda given: self.answers.like_text(given["text"]),
        }
        image = IMAGE.fullmatch(path)
        if path == "/":
            self._send_bytes(200, "text/html; charset=utf-8", self.page)
        elif image:
            data = self.answers.image(int(image[1]), int(image[2]))
            self._send_bytes(200, "image/jpeg", data)
        elif path in routes:
            self._send(200, routes[path](parameters))
        else:
            self._send(404, {"error": "there is no such page"})

    def _send(self, status: int, answer: dict[str, object]) -> None:
        self._send_bytes(status, "application/json", json.dumps(answer, allow_nan=False).encode())

    def _send_bytes(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _whole(given: Parameters, name: str) -> int:
    """A parameter that is a whole number of at most 18 digits."""
    text = given.get(name, "")
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise ValueError(f"{name} is {text[:20]!r}; it must be a whole number")
    return int(text)
