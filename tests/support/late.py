"""Libraries that tests compare with, imported at their first use: every process of the tests
collects all files, and open_clip alone takes four seconds.
"""

from __future__ import annotations

import importlib
from typing import Any


class _Late:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for marks in everything that it collects
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


fft: Any = _Late("scipy.fft")
open_clip: Any = _Late("open_clip")
optimize: Any = _Late("scipy.optimize")
special: Any = _Late("scipy.special")
stats: Any = _Late("scipy.stats")
