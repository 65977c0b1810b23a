"""Tokens that the trainer makes are those that the filter stores."""

import sys

import pyarrow as pa
import pytest

from clipmill.filters.tokens import Tokens
from clipmill.manifests.clip_tokenizer import CaptionTokenizer

TEXTS = ["a red dog", "Café  & co. — 3x4!", "", None, "  ", "word " * 200, "日本 🦊"]


def test_tokens_are_those_of_the_filter():
    stored = Tokens()
    stored.setup()
    tokens, ends = CaptionTokenizer().encode_all(pa.chunked_array([TEXTS]))
    for k, text in enumerate(TEXTS):
        own = tokens[ends[k] : ends[k + 1]].tolist()
        assert own == ([] if not text or not text.strip() else stored.encode(text).tolist())
    assert tokens.dtype.name == "uint16"
    assert len(tokens[ends[5] : ends[6]]) == 77


def test_without_open_clip_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ValueError, match="pip install open_clip_torch, or train on the stored"):
        CaptionTokenizer()
