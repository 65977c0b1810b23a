"""open_clip's tokenizer: the same numbers, and nothing else of open_clip is imported for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from manifests.clip_tokenizer import simple_tokenizer

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import json, sys
from manifests.clip_tokenizer import simple_tokenizer
captions = ["", "a photo of a dog", "Ünïcode &amp; 🐱 <end_of_text>", "word " * 200]
alone = simple_tokenizer()(context_length=77)(captions)
assert not {"open_clip", "timm", "torchvision"} & set(sys.modules)
from open_clip.tokenizer import SimpleTokenizer
assert alone.equal(SimpleTokenizer(context_length=77)(captions))
assert simple_tokenizer() is SimpleTokenizer
print("done")
"""


def test_the_tokens_are_open_clip_s_and_the_package_is_not_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "done", done.stderr


def test_without_open_clip_it_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    simple_tokenizer()  # what was loaded before does not count
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ImportError, match="No module named 'open_clip'"):
        simple_tokenizer()
