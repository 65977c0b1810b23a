"""Greedy search, beams and drawing over a small table of probabilities, against all captions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from filters.captioner import Search, draw, row_uniforms, search_tokens

END, WORDS = 0, 4


def toy(seed: int) -> Callable[[Any, Any], Any]:
    """Logits of the next token that depend on the row and the last two tokens."""
    table = torch.randn(3, WORDS, WORDS, WORDS, generator=torch.Generator().manual_seed(seed)) * 2

    def next_logits(tokens: Any, rows: Any) -> Any:
        before = tokens[:, -2] if tokens.shape[1] > 1 else torch.zeros_like(tokens[:, 0])
        return table[rows, before, tokens[:, -1]]

    return next_logits


def search(**options: Any) -> Search:
    given = {"max_tokens": 4, "min_tokens": 0, "beams": 1, "temperature": 0.0, **options}
    return Search(start=[1], end=END, **given)


def log_probability(next_logits: Any, row: int, tokens: list[int], least: int) -> float:
    """Of a caption, with its end, or cut at four tokens."""
    total, given = 0.0, [1]
    for step, token in enumerate([*tokens, END][:4]):
        logits = next_logits(torch.tensor([given]), torch.tensor([row]))[0].clone()
        if step < least:
            logits[END] = -torch.inf
        total += float(logits.log_softmax(-1)[token])
        given.append(token)
    return total


def best_caption(next_logits: Any, row: int, least: int) -> list[int]:
    captions = [
        list(tokens)
        for length in range(least, 5)
        for tokens in itertools.product(range(1, WORDS), repeat=length)
    ]
    return max(
        captions,
        key=lambda c: log_probability(next_logits, row, c, least) / min(4, len(c) + 1),
    )


@pytest.mark.parametrize("least", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_enough_beams_find_the_best_of_all_captions(seed: int, least: int) -> None:
    next_logits = toy(seed)
    found = search_tokens(next_logits, 3, search(beams=100, min_tokens=least), "cpu", None)
    assert found == [best_caption(next_logits, row, least) for row in range(3)]


@pytest.mark.parametrize("beams", [1, 2, 3])
def test_rows_do_not_influence_each_other_and_the_cut_holds(beams: int) -> None:
    for seed in range(5):
        next_logits = toy(seed)
        together = search_tokens(next_logits, 3, search(beams=beams), "cpu", None)
        for row in range(3):

            def alone(tokens: Any, rows: Any, row: int = row, table: Any = next_logits) -> Any:
                return table(tokens, rows + row)

            assert search_tokens(alone, 1, search(beams=beams), "cpu", None) == [together[row]]
        assert all(len(tokens) <= 4 and END not in tokens for tokens in together)


def test_greedy_takes_the_largest_and_keeps_the_least_length() -> None:
    next_logits = toy(1)
    for row, tokens in enumerate(search_tokens(next_logits, 3, search(min_tokens=1), "cpu", None)):
        given = [1]
        for step in range(4):
            logits = next_logits(torch.tensor([given]), torch.tensor([row]))[0]
            token = int(logits[1:].argmax()) + 1 if step == 0 else int(logits.argmax())
            if token == END:
                break
            given.append(token)
        assert tokens == given[1:]


def test_drawn_tokens_have_the_shares_of_the_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 2.0]]).expand(20_000, -1)
    uniform = np.random.default_rng(0).random(20_000)
    shares = np.bincount(draw(logits, 2.0, uniform).numpy(), minlength=4) / 20_000
    expected = torch.softmax(logits[0] / 2, -1).numpy()
    np.testing.assert_allclose(shares, expected, atol=0.01)
    assert shares[2] == 0
    assert draw(logits[:2], 1.0, np.array([0.0, np.nextafter(1, 0)])).tolist() == [0, 3]


def test_numbers_are_of_uid_and_seed() -> None:
    both = row_uniforms(["a", "b"], 7, 5)
    assert np.array_equal(both[1:], row_uniforms(["b"], 7, 5))
    assert not np.array_equal(both, row_uniforms(["a", "b"], 8, 5))
    assert len(np.unique(both)) == 10
