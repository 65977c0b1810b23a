"""What --data names: a blend, a view of a pool, or a folder of tars."""

from __future__ import annotations

import os

from manifests import disk
from manifests.schema import Blend
from train.trainer import blend_of, count_rows, is_pool, read_blend, stream_of


def read_data(text: str) -> Blend:
    """The blend of a text; its pools and views are there. ValueError for what is none of these."""
    blend = _blend(text)
    count_rows(blend)
    return blend


def _blend(text: str) -> Blend:
    folder, _, _ = text.rstrip("/").rpartition("/")
    if not is_pool(text) and folder and is_pool(folder):
        return blend_of([f"{text.rstrip('/')}=1"])
    if not disk.is_url(text) and os.path.isdir(text) and not is_pool(text):
        tars = disk.list_names(text, ".tar")
        if not tars:
            raise ValueError(
                f"--data {text} is a folder without tars; name a blend, POOL/VIEW, or a folder of "
                "tars"
            )
        return stream_of([disk.join(text, name) for name in tars])
    return read_blend(text)
