"""Views of rows that a program selects: those that locks have in common, or that a list names."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from manifests.columns import VIEW
from manifests.commits import Commits
from manifests.documents import ViewDocument
from manifests.pool_layout import NOT_STORED
from pipeline.pool import check_fence
from pipeline.views.choose import Selection
from pipeline.views.joined_columns import JoinedColumns
from pipeline.views.mask_files import MaskFiles, has_masks
from pipeline.views.outcomes.view_hash import hash_rows
from pipeline.views.steps import SELECTED, selected_rules
from pipeline.views.view_files import Inputs, check_view_name, read_view, write_view


def selected_view(commits: Commits, name: str, where: str) -> ViewDocument | None:
    """The view `name` where `write_selected_view` made it of these shards for this `where`."""
    inputs = _selected_inputs(commits, where)
    document = read_view(commits.pool, name)
    if document is None or document.rows_sha256 is None or not inputs.made(document):
        return None  # a purge has removed some of its rows
    return document if has_masks(commits, name) else None


def write_selected_view(
    commits: Commits,
    name: str,
    where: str,
    selects: Callable[[int, int], NDArray[np.bool_]],
    rows_sha256: str | None = None,
    fence: int | None = None,
) -> ViewDocument:
    """Write the view of the stored rows that a program selects.

    where: what the rows are, in words that begin with "in "; it stands for the rule. selects:
    for rows `start` to `stop` of the pool, counted over all shards, which of them. rows_sha256:
    hash of the rows that it selects, if it is known. ValueError where none of them is stored.
    """
    check_view_name(name)
    source = JoinedColumns(commits, {"status"}, {})
    masks = MaskFiles(source, [name])
    stored_rows = kept_rows = 0
    try:
        for unit in range(source.units):
            with masks.open_sink(name, unit) as sink:
                for part in source.parts(unit):
                    stored = pc.equal(part.table["status"], "success").to_numpy()
                    stop = part.first_row + part.table.num_rows
                    kept = stored & selects(part.first_row, stop)
                    stored_rows, kept_rows = stored_rows + stored.sum(), kept_rows + kept.sum()
                    outcomes = np.where(kept, 0, np.where(stored, 1, 2))
                    names = pa.array([None, SELECTED, NOT_STORED], pa.string())
                    columns = [pa.array(kept), names.take(pa.array(outcomes))]
                    mask = pa.Table.from_arrays(columns, schema=VIEW)
                    start = 0
                    for shard, size in part.sizes.items():
                        sink.add(shard, mask.slice(start, size))
                        start += size
        if not kept_rows:
            raise ValueError(f"view {name!r} keeps nothing: no row of the pool is {where}")
        check_fence(commits.pool, fence)
        steps = (
            ("attempted", source.rows),
            ("stored", int(stored_rows)),
            (SELECTED, int(kept_rows)),
        )
        selection = Selection(thresholds={}, funnel=steps, kept=int(kept_rows))
        inputs = _selected_inputs(commits, where)
        before = read_view(commits.pool, name)
        if rows_sha256 is None:
            kept_by = functools.partial(masks.kept_rows, name)
            rows_sha256 = hash_rows(commits, {name: kept_by})[name]
        return write_view(masks, name, selection, inputs, before, fence, rows_sha256)
    finally:
        masks.remove()


def _selected_inputs(commits: Commits, where: str) -> Inputs:
    return Inputs(rules=selected_rules(where), scores={}, fingerprint=commits.fingerprint)
