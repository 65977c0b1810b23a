"""Sources to deduplicated image-caption pairs."""

from __future__ import annotations

from pipeline.crawl import crawler
from pipeline.crawl.crawler import extract
from pipeline.crawl.urls import LONGEST_URL, ascii_host, trimmed

__all__ = ["LONGEST_URL", "ascii_host", "crawler", "extract", "trimmed"]
