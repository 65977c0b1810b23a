"""Sources to deduplicated image-caption pairs."""

from __future__ import annotations

from pipeline.crawl import crawler
from pipeline.crawl.crawler import extract
from pipeline.crawl.tables import cast

__all__ = ["cast", "crawler", "extract"]
