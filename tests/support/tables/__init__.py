"""Tables of cases: NAME.json holds what it is about and its cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def table(name: str) -> list[dict[str, Any]]:
    """The cases of a table."""
    cases: list[dict[str, Any]] = json.loads(
        (Path(__file__).parent / f"{name}.json").read_text("utf-8")
    )["cases"]
    return cases
