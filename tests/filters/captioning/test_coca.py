"""A CoCa's captions are those of a loop over its own forward; a caption fits its context."""

from __future__ import annotations

from pathlib import Path

import open_clip
import torch

from tests.support.caption_models import images, written


def test_a_coca_writes_what_a_loop_over_its_forward_writes(coca: Path) -> None:
    network, _, transform = open_clip.create_model_and_transforms(f"local-dir:{coca}")
    network = network.eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{coca}")
    expected = []
    for image in images():
        tokens = [tokenizer.sot_token_id]
        for step in range(5):
            with torch.inference_mode():
                given = (transform(image)[None], torch.tensor([tokens]))
                logits = network(*given, output_labels=False)["logits"][0, -1].clone()
                if step < 2:
                    logits[tokenizer.eot_token_id] = -torch.inf
            tokens.append(int(logits.argmax()))
            if tokens[-1] == tokenizer.eot_token_id:
                break
        expected.append(tokenizer.decode([t for t in tokens if t < 49406]).strip())
    assert written(coca, max_tokens=5, min_tokens=2) == expected
    assert len(set(expected)) > 2  # images differ
