"""open_clip's tokenizer: the same numbers, and nothing else of open_clip is imported for it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from clipmill.manifests.clip_tokenizer import LONG_WORD, merged, simple_tokenizer, with_long_words

ROOT = Path(__file__).resolve().parents[2]
CAPTIONS = ["", "a photo of a dog", "Ünïcode &amp; 🐱 <end_of_text>", "word " * 200]
CODE = f"""
import json, sys
from clipmill.manifests.clip_tokenizer import simple_tokenizer
tokens = simple_tokenizer()(context_length=77)({CAPTIONS!r}).tolist()
assert not {{"open_clip", "timm", "torchvision"}} & set(sys.modules)
print(json.dumps(tokens))
"""


def test_the_tokens_are_open_clip_s_and_the_package_is_not_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    from open_clip.tokenizer import SimpleTokenizer

    assert json.loads(done.stdout) == SimpleTokenizer(context_length=77)(CAPTIONS).tolist()
    assert simple_tokenizer() is SimpleTokenizer


def words(tokenizer: Any) -> list[str]:
    """Words of 2 to 60 symbols, and longer ones: of few letters, of parts of words, Chinese."""
    draw = random.Random(0)
    parts = [part.removesuffix("</w>") for part in tokenizer.encoder]
    drawn = []
    for number in range(240):
        count = draw.randint(2, 60) if number % 8 else LONG_WORD + number
        if number % 3 == 0:
            letters = draw.choice(["a", "ab", "thsein", "abcdefghijklmnopqrstuvwxyz"])
            drawn.append("".join(draw.choices(letters, k=count)))
        elif number % 3 == 1:
            drawn.append("".join(draw.choices(parts, k=count // 4 + 2)))
        else:
            text = "".join(chr(draw.randint(0x4E00, 0x9FFF)) for _ in range(count // 3 + 1))
            drawn.append("".join(tokenizer.byte_encoder[byte] for byte in text.encode()))
    return drawn


def test_the_code_of_long_words_is_open_clips() -> None:
    tokenizer = simple_tokenizer()(context_length=77)
    for word in words(tokenizer):
        expected = tokenizer.bpe(word).split(" ")
        assert merged([*word[:-1], f"{word[-1]}</w>"], tokenizer.bpe_ranks) == expected, word


def test_a_caption_of_one_endless_word_is_coded_and_not_remembered() -> None:
    tokenizer = with_long_words(simple_tokenizer()(context_length=77))
    known = len(tokenizer.cache)
    letters = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=100_000))
    inside = tokenizer.encode(letters)  # four minutes by open_clip's own loop
    assert tokenizer.decode(inside).strip() == letters
    assert len(tokenizer.cache) == known
    assert tokenizer.encode("a dog") == simple_tokenizer()(context_length=77).encode("a dog")
    assert with_long_words(str) is str  # a tokenizer of another kind
