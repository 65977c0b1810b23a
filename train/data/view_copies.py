"""The tars of a view's own, where `pipeline/filter.py POOL --materialise VIEW` has written some."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from manifests import disk
from manifests.documents import ViewCopyDocument, ViewDocument
from manifests.pool_layout import PoolLayout
from train.data.retry import read_with_retries
from train.data.view_columns import load_columns, load_document

logger = logging.getLogger(__name__)


class ViewCopy:
    """Tars with the kept samples of a view, one for each of its shards."""

    def __init__(self, pool: str, view: str) -> None:
        self._layout, self._pool, self._view = PoolLayout(pool), pool, view

    def tar(self, shard: int | str) -> str:
        """The path or URL of the tar of a shard."""
        return self._layout.view_copy_tar(self._view, shard)

    def offsets(
        self, shard: int | str, keys: pa.ChunkedArray
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """((rows,) offset, (rows,) length) of the images of the kept rows `keys` in that tar.

        ValueError where it has other rows.
        """
        path = self._layout.view_copy_sidecar(self._view, shard)
        try:
            table = load_columns(path, ["key", "image_offset", "image_length"])
        except FileNotFoundError:
            raise ValueError(f"{path} is missing; {self._write_again()}") from None
        if not table["key"].equals(keys) or table["image_offset"].null_count:
            raise ValueError(f"{path} has other rows than the view keeps; {self._write_again()}")
        return table["image_offset"].to_numpy(), table["image_length"].to_numpy()

    def _write_again(self) -> str:
        path = self._layout.view_copy_json(self._view)
        return (
            f"remove {path}, or run python pipeline/filter.py {self._pool} "
            f"--materialise {self._view}"
        )


def open_copy(pool: str, document: ViewDocument) -> ViewCopy | None:
    """The tars of a view's own; None where there are none, or they are of an earlier view."""
    path = PoolLayout(pool).view_copy_json(document.name)
    if not read_with_retries(lambda: disk.exists(path), path):
        return None
    if load_document(path, ViewCopyDocument).view_hash != disk.content_hash(document):
        logger.warning(
            "the tars in %s are of an earlier view %s and are not read; run python "
            "pipeline/filter.py %s --materialise %s",
            PoolLayout(pool).view_copies,
            document.name,
            pool,
            document.name,
        )
        return None
    return ViewCopy(pool, document.name)
