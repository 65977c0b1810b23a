"""The opt-out signals of a row, kept raw, and the one place that says whether they refuse the row.

The signals are one JSON object, the sidecar column `optout`. filters/optout.py holds the grammars
and applies another policy to the same column later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from filters.optout import LIKE_US, product, refusal

__all__ = ["LIKE_US", "OptoutPolicy", "product", "signals"]

HEADERS = ("x-robots-tag", "tdm-reservation", "tdm-policy", "content-usage")
LONGEST_VALUE = 2000  # characters of one header that are kept


def signals(headers: Iterable[tuple[str, str]], page_robots: str | None) -> dict[str, Any]:
    """Every signal of the headers of a response and of the page, raw; {} where there is none.

    `page_robots` is the JSON that crawl keeps: {"meta": […], "x-robots-tag": […]}.
    """
    raw: dict[str, Any] = {}
    for name, value in headers:
        if name.lower() in HEADERS:
            raw.setdefault(name.lower(), []).append(value[:LONGEST_VALUE])
    if page_robots:
        raw["page"] = json.loads(page_robots)
    return raw


class OptoutPolicy:
    """The policy of a recipe (`fetch.optout`), applied to the name that the crawler uses."""

    def __init__(self, user_agent: str, policy: str) -> None:
        self.user_agent = user_agent
        self.policy = policy
        self.names = (product(user_agent), *LIKE_US)  # by which sites address us

    def refusal(self, raw: Mapping[str, Any]) -> tuple[str, str] | None:
        """(reason, the words that refuse) for the signals of a row, or None where it may stay."""
        return refusal(raw, self.user_agent, self.policy)
