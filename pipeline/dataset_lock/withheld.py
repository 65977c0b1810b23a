"""Which rows are not handed on: what was purged, what is known to be bad, and what a site or page
asks crawlers to leave alone. Pure.
"""

from __future__ import annotations

import functools
import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filters.optout import refuses

# Reasons of rows of which nothing is handed on: neither URL nor caption nor uid.
REASONS = (
    "purged",
    "known_bad",
    "robots_txt",
    "optout_header",
    "optout_page",
    "optout_site",
)
COLUMNS = ["uid", "url", "reason", "optout"]  # of the sidecar that decide
Mask = npt.NDArray[np.bool_]


def withheld_rows(table: pa.Table, refused_uids: pa.Array, user_agent: str | None) -> Mask:
    """(rows,) True where a row is withheld.

    table: COLUMNS of a sidecar. refused_uids: of rows that another attempt found refused.
    user_agent: the name that opt-out signals are read for, where the pool's own policy did not
    read them; None where it did.
    """
    withheld = pc.is_in(table["reason"], pa.array(REASONS))
    withheld = pc.or_(withheld, pc.is_null(table["url"]))
    withheld = pc.or_(withheld, pc.is_in(table["uid"], refused_uids))
    mask = np.array(withheld.to_numpy(), np.bool_)
    if user_agent is not None:
        mask |= _signalled(table["optout"], user_agent)
    return mask


def _signalled(signals: pa.ChunkedArray, user_agent: str) -> Mask:
    """(rows,) True where a row was stored although its signals refuse it."""
    encoded = signals.combine_chunks().dictionary_encode()
    answers = [_refuses(text, user_agent) for text in encoded.dictionary.to_pylist()]
    by_text = np.array([*answers, False], np.bool_)
    mask: Mask = by_text[pc.fill_null(encoded.indices, len(answers)).to_numpy()]
    return mask


@functools.lru_cache(maxsize=4096)
def _refuses(text: str, user_agent: str) -> bool:
    """Whether stored signals refuse us. What cannot be read is a refusal."""
    try:
        return refuses(json.loads(text), user_agent, "respect")
    except (ValueError, TypeError, AttributeError, RecursionError):
        return True
