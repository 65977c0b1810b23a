"""The class of open_clip's tokenizer, loaded without the rest of open_clip.

The package imports timm and torchvision, which the tokenizer does not use: they would double the
start of every process that only needs tokens.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any


def simple_tokenizer() -> Any:
    """open_clip's class SimpleTokenizer. ImportError where open_clip is not installed."""
    if sys.modules.get("open_clip") is not None:
        from open_clip.tokenizer import SimpleTokenizer

        return SimpleTokenizer
    package = importlib.util.find_spec("open_clip")
    if package is None or not package.submodule_search_locations:
        raise ImportError("No module named 'open_clip'", name="open_clip")
    return _load(Path(package.submodule_search_locations[0]) / "tokenizer.py").SimpleTokenizer


@functools.cache
def _load(path: Path) -> Any:
    """The module of a file, without the package that it lies in."""
    spec = importlib.util.spec_from_file_location("open_clip_tokenizer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
