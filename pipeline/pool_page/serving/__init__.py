"""The page of a pool from a small server: exact counts, all images, a search over all captions."""

from __future__ import annotations

from pipeline.pool_page.serving.answers import Answers
from pipeline.pool_page.serving.server import make_server

__all__ = ["Answers", "make_server"]
