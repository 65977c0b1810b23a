"""The columns that a rule may read in a pool, with their types and meanings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from filters import FILTERS, Instance
from filters.instances import instance_column
from manifests import disk
from manifests.aligned import AlignedFiles
from manifests.columns import SIDECAR
from manifests.documents import ScoreSetDocument
from manifests.pool_layout import shard_folder
from manifests.schema import Recipe
from pipeline.scoring import complete_score_sets, shards_with_rows
from pipeline.views.rules import columns_of

MEANINGS = {
    "url": "address of the image",
    "caption": "text of the pair",
    "key": "name of the sample in its tar",
    "status": "success, failed_to_download or failed_to_resize; a rule sees stored rows only",
    "error_message": "what went wrong; NULL for stored rows",
    "width": "of the stored image, pixels",
    "height": "of the stored image, pixels",
    "original_width": "of the image as received, upright, pixels",
    "original_height": "of the image as received, upright, pixels",
    "exif": "EXIF as JSON, if the recipe asks for it",
    "sha256": "of the bytes as received",
    "uid": "32 hex digits, a hash of url and caption",
    "reason": "why a row is not stored; NULL for stored rows",
    "class": "permanent, transient or refused; NULL for stored rows",
    "http_status": "status of the last response",
    "final_url": "address after redirects",
    "content_type": "as the server named it",
    "optout": "every opt-out signal, as JSON; the filter optout reads it",
    "retry_of": "key of the row that this one retries",
    "image_name": "member of the tar",
    "image_offset": "of the image's bytes in the tar",
    "image_length": "bytes of the stored image",
    "text_offset": "of the caption's bytes in the tar",
    "text_length": "bytes of the caption",
    "json_offset": "of the JSON member in the tar",
    "json_length": "bytes of the JSON member",
    "page_url": "page that the link was on",
    "page_lang": "language that the page declares",
    "wat": "file that the pair came from",
    "warc_offset": "of the page's record in that file, bytes",
    "link": "number of the link on its page",
    "fetched_at": "time of the response, UTC",
    "elapsed_ms": "time of the request, milliseconds",
    "attempts": "requests that were made",
}
DERIVED_COLUMNS = (
    ("aspect", pa.float64(), "longer over shorter side of the image as received, 1 or more"),
    ("url_host", pa.string(), "host of url, lower case"),
    ("page_host", pa.string(), "host of page_url, lower case"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column that a rule may read."""

    name: str
    type: str
    source: str  # sidecar, recipe, derived, or the score set that holds it
    meaning: str
    filter_kind: str = ""  # of a score set: a key of FILTERS, or PATH.py:CLASS


class ScoredColumns:
    """Columns of the instances of a recipe. Those of filters that it does not list are known too,
    so that a rule that reads one is told which filter gives it."""

    def __init__(self, instances: Mapping[str, Instance]) -> None:
        self.instances = instances
        self.owners: dict[str, str] = {}  # column -> instance, or filter that is not listed
        self.kinds: dict[str, pa.DataType] = {}
        for name, filter_class in FILTERS.items():
            if name not in instances:
                self.owners.update(dict.fromkeys(filter_class.adds, name))
                self.kinds.update(filter_class.adds)
        for name, instance in instances.items():
            columns = instance.columns()
            self.owners.update(dict.fromkeys(columns, name))
            self.kinds.update(columns)

    def columns_of_view(
        self, recipe: Recipe, view: str, in_sidecars: Sequence[str]
    ) -> tuple[set[str], list[str]]:
        """(columns that a view reads, names of the instances that give some of them).

        ValueError for a column of a filter that the recipe does not list.
        """
        columns = columns_of(recipe.views, view, [*in_sidecars, *self.owners])
        used = set()
        for column in sorted(columns & self.owners.keys()):
            owner = self.owners[column]
            if owner not in self.instances:
                raise ValueError(
                    f"view {view!r} uses column {column!r} of filter {owner}, "
                    f"which recipe {recipe.name!r} does not list"
                )
            used.add(owner)
        return columns, sorted(used)


def list_columns(pool: str) -> list[Column]:
    """The columns of the sidecars, what is derived from them, and the columns of each current score
    set.

    ValueError for a pool without stored rows.
    """
    commits = shards_with_rows(pool)
    columns = []
    for field in disk.read_schema(commits.sidecar(int(commits.shards[0]))):
        from_recipe = field.name not in SIDECAR.names
        columns.append(
            Column(
                name=field.name,
                type=str(field.type),
                source="recipe" if from_recipe else "sidecar",
                meaning=MEANINGS.get(field.name, "an extra column of the recipe"),
            )
        )
    for name, kind, meaning in DERIVED_COLUMNS:
        columns.append(Column(name=name, type=str(kind), source="derived", meaning=meaning))
    first = next(commits.names())
    for set_name, document in complete_score_sets(pool).items():
        if document.fingerprint != commits.fingerprint:
            continue  # of an older state of the pool: no view may use it
        columns += _columns_of_set(pool, set_name, document, first)
    return columns


def _columns_of_set(
    pool: str, set_name: str, document: ScoreSetDocument, shard: str
) -> Iterator[Column]:
    """The columns of a score set; their types are those of its file of `shard`."""
    files = AlignedFiles.of_scores(pool, set_name)
    path = files.path(shard)
    schema = files.bundle(shard).schema if shard_folder(shard) else disk.read_schema(path)
    meanings = document.meanings or {}
    if document.filter_kind in FILTERS:
        filter_class = FILTERS[document.filter_kind]
        for name, meaning in filter_class.meanings.items():
            column = instance_column(document.filter_kind, document.name, name)
            meanings = {**meanings, column: meaning}
    for name in document.columns:
        yield Column(
            name=name,
            type=str(schema.field(name).type),
            source=set_name,
            meaning=meanings.get(name, f"a column of the filter {document.filter_kind}"),
            filter_kind=document.filter_kind,
        )


def column_lines(columns: Iterable[Column]) -> Iterator[str]:
    """A line for each column under a line for each source."""
    columns = list(columns)
    width = max(len(column.name) for column in columns)
    kind_width = max(len(column.type) for column in columns)
    source = ""
    for column in columns:
        if column.source != source:
            source = column.source
            yield f"{source}:"
        yield f"  {column.name:<{width}}  {column.type:<{kind_width}}  {column.meaning}"
    scored = {column.filter_kind for column in columns}
    if missing := [name for name in FILTERS if name not in scored]:
        yield f"filters that are not scored in this pool: {', '.join(missing)}"
