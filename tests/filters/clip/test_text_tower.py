"""Captions without their padding: the same embeddings, and only of towers that allow it."""

from __future__ import annotations

from typing import Any

import open_clip
import pytest
import torch
from torch import Tensor

from filters.clip import model

FULL, END, WORDS = 40, 99, 98
VISION = {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16}
TEXT = {"context_length": FULL, "vocab_size": 100, "width": 32, "heads": 2, "layers": 2}


def network(custom: bool = False, **text: Any) -> Any:
    torch.manual_seed(0)
    kind = open_clip.CustomTextCLIP if custom else open_clip.CLIP
    return kind(16, dict(VISION), {**TEXT, **text}).eval()


def tokens_of(lengths: list[int]) -> Tensor:
    """(B, FULL): each ends with END and is padded by 0."""
    random = torch.Generator().manual_seed(1)
    tokens_BT = torch.zeros(len(lengths), FULL, dtype=torch.long)
    for row, length in enumerate(lengths):
        tokens_BT[row, : length - 1] = torch.randint(1, WORDS, (length - 1,), generator=random)
        tokens_BT[row, length - 1] = END
    return tokens_BT


LENGTHS = [2, 7, 8, 9, 16, 17, 33, FULL]


@pytest.mark.parametrize(
    ("custom", "options"),
    [
        (False, {}),
        (True, {}),
        (True, {"pool_type": "eos", "eos_id": END}),
        (False, {"pool_type": "eos", "eos_id": END}),
    ],
)
@torch.inference_mode()
def test_embeddings_are_those_of_the_whole_context(custom: bool, options: dict[str, Any]) -> None:
    clip, tokens_BT = network(custom, **options), tokens_of(LENGTHS)
    expected_BE = clip.encode_text(tokens_BT)
    contexts = model.contexts(clip, tokens_BT).tolist()
    assert contexts == [8, 8, 8, 16, 16, 24, 40, 40]
    for row, context in enumerate(contexts):
        given_1E = model.encode_text(clip, tokens_BT[row : row + 1, :context])
        torch.testing.assert_close(given_1E[0], expected_BE[row], atol=1e-6, rtol=0)
    assert torch.equal(clip.encode_text(tokens_BT), expected_BE)  # nothing of it has changed


@pytest.mark.parametrize(
    "options",
    [
        {"pool_type": "last"},
        {"pool_type": "first"},
        {"no_causal_mask": True},
        {"embed_cls": True},
        {"pool_type": "eos", "eos_id": None},
    ],
)
def test_other_towers_see_every_position(options: dict[str, Any]) -> None:
    clip, tokens_BT = network(True, **options), tokens_of(LENGTHS)
    assert model.contexts(clip, tokens_BT).tolist() == [FULL] * len(LENGTHS)


def test_a_network_of_another_kind_encodes_by_itself() -> None:
    class Other:
        def encode_text(self, tokens_BT: Tensor) -> str:
            return f"encoded {tuple(tokens_BT.shape)}"

    tokens_BT = tokens_of([3, 5])
    assert model.contexts(Other(), tokens_BT).tolist() == [FULL, FULL]
    assert model.encode_text(Other(), tokens_BT) == f"encoded (2, {FULL})"
