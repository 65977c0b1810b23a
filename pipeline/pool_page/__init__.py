"""A pool as a page: one HTML file, or a small server."""

from __future__ import annotations

from pipeline.pool_page.document import render
from pipeline.pool_page.page_data import Bounds, page_data
from pipeline.pool_page.serving import Answers, make_server
from pipeline.pool_page.survey import Survey, survey_pool

__all__ = ["Answers", "Bounds", "Survey", "make_server", "page_data", "render", "survey_pool"]
