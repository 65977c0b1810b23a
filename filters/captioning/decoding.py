"""Search for the tokens of a caption: greedy, by beams, or drawn. Rows do not influence each other.

Shapes: R rows that are not finished, K beams, L tokens so far, V entries of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

# (tokens so far, their rows among the images) -> logits of the next token.
NextLogits = Callable[["Tensor", "Tensor"], "Tensor"]
Uniforms = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How captions are searched for. `start`: tokens that all begin with; `end` finishes one."""

    start: Sequence[int]
    end: int
    max_tokens: int
    min_tokens: int
    beams: int
    temperature: float


def row_uniforms(uids: Sequence[str], seed: int, count: int) -> Uniforms:
    """(rows, count) numbers in [0, 1) that depend on uid and seed only."""
    numbers = np.zeros((len(uids), count))
    for row, uid in enumerate(uids):
        key = xxhash.xxh3_128_intdigest(f"{seed}\0{uid}".encode())
        numbers[row] = np.random.Generator(np.random.Philox(key=key)).random(count)
    return numbers


def draw(logits_RV: Tensor, temperature: float, uniform_R: Uniforms) -> Tensor:
    """(R,) a token of each row, drawn from softmax(logits / temperature) by its number."""
    import torch

    probabilities_RV = torch.softmax(logits_RV.double() / temperature, dim=-1)
    bounds_RV = probabilities_RV.cumsum(-1)
    levels_R1 = torch.from_numpy(uniform_R)[:, None].to(logits_RV.device) * bounds_RV[:, -1:]
    token_R = torch.searchsorted(bounds_RV, levels_R1, right=True)[:, 0]
    return token_R.clamp_max(logits_RV.shape[1] - 1)


def search_tokens(
    next_logits: NextLogits, rows: int, search: Search, device: str, uniforms: Uniforms | None
) -> list[list[int]]:
    """The tokens of each row between start and end.

    uniforms: (rows, max_tokens) where tokens are drawn.
    """
    if search.beams > 1:
        return _beam_search(next_logits, rows, search, device)
    import torch

    done: list[list[int]] = [[] for _ in range(rows)]
    active_R = torch.arange(rows, device=device)
    tokens_RL = torch.tensor([list(search.start)] * rows, device=device)
    for step in range(search.max_tokens):
        if not len(active_R):
            break
        logits_RV = next_logits(tokens_RL, active_R).float()
        if step < search.min_tokens:
            logits_RV[:, search.end] = -torch.inf
        if uniforms is None:
            token_R = logits_RV.argmax(-1)
        else:
            token_R = draw(logits_RV, search.temperature, uniforms[active_R.cpu().numpy(), step])
        goes_on_R = token_R != search.end
        active_R, token_R = active_R[goes_on_R], token_R[goes_on_R]
        tokens_RL = torch.cat([tokens_RL[goes_on_R], token_R[:, None]], dim=1)
        for row, token in zip(active_R.tolist(), token_R.tolist(), strict=True):
            done[row].append(token)
    return done


def _beam_search(
    next_logits: NextLogits, rows: int, search: Search, device: str
) -> list[list[int]]:
    """The tokens with the largest mean log-probability that the beams meet, the end included.

    A row is finished when as many captions as it has beams are.
    """
    import torch

    beams = search.beams
    found: list[list[tuple[float, list[int]]]] = [[] for _ in range(rows)]
    active = list(range(rows))
    tokens_RKL = torch.tensor(list(search.start), device=device).expand(rows, beams, -1)
    score_RK = torch.full((rows, beams), -torch.inf, device=device)
    score_RK[:, 0] = 0  # all beams begin alike: one counts
    for step in range(search.max_tokens):
        if not active:
            break
        source = torch.tensor(active, device=device).repeat_interleave(beams)
        logits = next_logits(tokens_RKL.reshape(len(active) * beams, -1), source).float()
        if step < search.min_tokens:
            logits[:, search.end] = -torch.inf
        vocabulary = logits.shape[1]
        total_RKV = score_RK[..., None] + logits.log_softmax(-1).view(len(active), beams, -1)
        best = total_RKV.view(len(active), -1).topk(min(2 * beams, beams * vocabulary))
        candidates = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        numbers: list[int] = []  # of the rows that go on
        kept: list[tuple[int, float, int]] = []  # beam, score and token of each of their beams
        for number, (scores, indices) in enumerate(candidates):
            ways: list[tuple[int, float, int]] = []
            for score, index in zip(scores, indices, strict=True):
                beam, token = divmod(index, vocabulary)
                if token == search.end and np.isfinite(score):
                    tokens = tokens_RKL[number, beam, len(search.start) :].tolist()
                    found[active[number]].append((score / (step + 1), tokens))
                elif token != search.end and len(ways) < beams:
                    ways.append((beam, score, token))
            if len(found[active[number]]) < beams:
                numbers.append(number)
                kept += ways
        shape = (len(numbers), beams)
        beam_RK = torch.tensor([beam for beam, _, _ in kept], device=device).view(shape)
        score_RK = torch.tensor([score for _, score, _ in kept], device=device).view(shape)
        token_RK = torch.tensor([token for _, _, token in kept], device=device).view(shape)
        active = [active[number] for number in numbers]
        if active:
            going_on = tokens_RKL[numbers]
            index = beam_RK[..., None].expand(-1, -1, going_on.shape[2])
            tokens_RKL = torch.cat([going_on.gather(1, index), token_RK[..., None]], dim=2)
    for number, row in enumerate(active):  # cut at max_tokens
        for beam in range(beams):
            score = float(score_RK[number, beam]) / search.max_tokens
            found[row].append((score, tokens_RKL[number, beam, len(search.start) :].tolist()))
    return [max(captions, key=lambda each: each[0])[1] for captions in found]
