"""The blend of a run: read from a file, or of views with weights; a check of its pools; and the
plan: what a run will draw.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from clipmill.manifests import disk, reader
from clipmill.manifests.aligned import view_names
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.records import ViewDocument, read_document
from clipmill.manifests.schema import Blend, TarStream
from clipmill.train.data.tar_streams import COMMAND, StreamDraws
from clipmill.train.mixture.order import Repeats


def read_blend(path: str) -> Blend:
    """The blend of a YAML or JSON file. ValueError for a pool in its place, with the command that
    trains on it.
    """
    layout = PoolLayout(path)
    if disk.exists(layout.shards):
        views = view_names(layout)
        listed = f"; its views: {', '.join(views)}" if views else "; it has no view yet"
        raise ValueError(
            f"{path} is a pool, not a blend: "
            f"write --mix {path.rstrip('/')}/{(views or ['VIEW'])[0]}=1 instead of it{listed}"
        )
    if not disk.is_url(path) and os.path.isdir(path):
        raise ValueError(f"{path} is a folder; give the YAML file of a blend, or --mix POOL/VIEW=1")
    return reader.read_manifest(path, Blend)


def blend_of(mix: Sequence[str], seed: int = 0) -> Blend:
    """A blend from texts POOL/VIEW=WEIGHT, where POOL is a folder or URL. ValueError for a text of
    another form.
    """
    weights: dict[str, float] = {}
    for text in mix:
        path, _, weight = text.rpartition("=")
        folder, _, view = path.rpartition("/")
        if path and not folder and is_pool(path):
            raise ValueError(_view_is_missing(PoolLayout(path), weight))
        if not folder or not view:
            raise ValueError(f"--mix {text!r} is not POOL/VIEW=WEIGHT, like out/pool/all=0.7")
        if path in weights:
            raise ValueError(_named_twice(path))
        try:
            number = float(weight)
        except ValueError:
            raise ValueError(f"--mix {text!r}: the weight {weight!r} is no number") from None
        weights[path] = number
    return blend_of_views(weights, seed)


def blend_of_views(weights: Mapping[str, float], seed: int = 0) -> Blend:
    """A blend of views POOL/VIEW with their weights, where POOL is a folder or URL. ValueError for
    a name of another form.
    """
    pools: dict[str, str] = {}
    views: dict[str, float] = {}
    for path, weight in weights.items():
        folder, _, view = path.rpartition("/")
        if not folder and is_pool(path):
            raise ValueError(_view_is_missing(PoolLayout(path)))
        if not folder or not view:
            raise ValueError(f"{path!r} is not POOL/VIEW, like out/pool/all")
        source = f"{_pool_name(pools, folder)}/{view}"
        if source in views:
            raise ValueError(_named_twice(path))
        views[source] = weight
    return Blend(name="mix", pools=pools, views=views, seed=seed)


def _named_twice(path: str) -> str:
    return f"{path} is named twice; add its weights up"


def stream_of(tars: Sequence[str], seed: int = 0) -> Blend:
    """A blend of one stream of tars, whose local paths become absolute."""
    paths = []
    for tar in tars:
        is_path = not tar.startswith(COMMAND) and tar != "-"
        paths.append(disk.absolute_path(tar) if is_path else tar)
    stream = TarStream(tars=tuple(paths))
    return Blend(name="stream", streams={"stream": stream}, seed=seed)


def count_rows(blend: Blend, *, with_weights: bool = True) -> int:
    """Rows that the views of a blend keep. ValueError for a pool that does not exist, or has no
    such view; with_weights: messages write a view as POOL/VIEW=WEIGHT.
    """
    rows = 0
    if blend.draws_from == "streams":  # of a tar nothing is known before it is read
        return rows
    if blend.draws_from != "views":  # the rows to come are not known
        for pool, folder in blend.pools.items():
            if not disk.exists(folder):
                raise ValueError(f"pool {pool!r} of the blend does not exist: {folder}")
        return rows
    for name in blend.views:
        pool, _, view = name.partition("/")
        layout = PoolLayout(blend.pools[pool])
        try:  # asked for at once: a far store answers late, and a view is missing seldom
            rows += read_document(layout.view_json(view), ViewDocument).kept
        except (FileNotFoundError, NotADirectoryError):
            weight = f"{blend.views[name]:g}" if with_weights else None
            raise ValueError(_why_no_view(pool, layout, view, weight)) from None
    return rows


def _why_no_view(pool: str, layout: PoolLayout, view: str, weight: str | None) -> str:
    """What is wrong with POOL/VIEW, whose document is not there."""
    if not disk.exists(layout.root):
        return f"pool {pool!r} of the blend does not exist: {layout.root}"
    if is_pool(disk.join(layout.root, view)):
        return _view_is_missing(PoolLayout(disk.join(layout.root, view)), weight)
    if not is_pool(layout.root):
        return (
            f"{layout.root} is not a pool: it has neither pool.json nor shards/; a view is named "
            "POOL/VIEW, like out/pool/all"
        )
    views = view_names(layout)
    return (
        f"pool {layout.root} has no view {view!r}{disk.did_you_mean(view, views)} (it has "
        f"{', '.join(views) or 'none'})"
    )


def plan_lines(blend: Blend, sources: Mapping[str, Repeats | StreamDraws]) -> list[str]:
    """What a run draws of each source, as the lines of a table: share of the samples, samples; of a
    view rows, different rows and repeats, of a stream its tars; then the captions of views with
    several text columns.
    """
    if blend.draws_from in ("live", "segments"):
        # What was drawn is known from step to step alone; log.jsonl has it.
        return [f"blend {blend.name}: every stored row of the shards that are committed by then"]
    samples = sum(source.drawn for source in sources.values())
    title = f"blend {blend.name}: {samples:,} samples"
    if blend.streams:
        title += " from streams of tars: not resumable, and the number of rows is not known"
    table: dict[str, list[str]] = {}
    captions = []
    for name, source in sources.items():
        first = {"stream" if blend.streams else "view": name, "share": f"{source.share:.3f}"}
        cells = source.cells(name in blend.balance)
        for column, cell in {**first, "samples": f"{source.drawn:,}", **cells}.items():
            table.setdefault(column, [column]).append(cell)
        drawn = source.captions if isinstance(source, Repeats) else None
        for column, count in (drawn or {}).items():
            captions.append(f"{name}: {count:,} captions of column {column}")
    widths = [max(map(len, cells)) for cells in table.values()]
    lines = [title]
    for of_source, *others in zip(*table.values(), strict=True):
        right = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([f"{of_source:<{widths[0]}}", *right]))
    return [*lines, *captions]


def _view_is_missing(layout: PoolLayout, weight: str | None = None) -> str:
    """The message for a path that is a pool, where POOL/VIEW is wanted."""
    views = view_names(layout)
    form, given = ("", "") if weight is None else ("=WEIGHT", f"={weight}")
    return (
        f"{layout} is a pool, and the view is missing: write POOL/VIEW{form}, like "
        f"{layout}/{(views or ['VIEW'])[0]}{given} (its views: {', '.join(views) or 'none yet'})"
    )


def is_pool(folder: str) -> bool:
    """Whether a folder is a pool, built or in the making."""
    layout = PoolLayout(folder)
    return disk.exists(layout.pool_json) or disk.exists(layout.shards)


def _pool_name(pools: dict[str, str], folder: str) -> str:
    """The name of a folder among the pools; a new one is called by its last part, and gets a number
    if that is taken.
    """
    path = disk.absolute_path(folder)
    for name, known in pools.items():
        if known == path:
            return name
    name = base = path.rstrip("/").rpartition("/")[2] or "pool"
    while name in pools:
        name = f"{base}-{len(pools) + 1}"
    pools[name] = path
    return name
