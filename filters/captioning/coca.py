"""Captions by a CoCa of open_clip. The image goes through its tower once, whatever the search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from filters.captioning.decoding import Search, Uniforms, search_tokens
from filters.clip import ClipModel, Pixels


class CocaWriter:
    """Writes captions by a loaded model. ValueError for a model or a tokenizer that cannot."""

    def __init__(self, model: ClipModel, search: dict[str, Any], prompt: str) -> None:
        """search: the fields of Search but start and end. prompt: what captions begin with."""
        self.model, coder = model, model.tokenizer
        if not hasattr(model.network, "text_decoder"):
            raise ValueError("filter captioner: the model has no text decoder; it must be a CoCa")
        if not hasattr(coder, "sot_token_id"):
            raise ValueError("filter captioner: the model's tokenizer is not that of CLIP")
        start = [coder.sot_token_id, *coder.encode(prompt)]
        self.search = Search(start=start, end=coder.eot_token_id, **search)
        self.prompt = [*start[1:]]
        longest = int(model.network.text.context_length)
        if len(start) + self.search.max_tokens > longest:
            raise ValueError(
                f"filter captioner: prompt and max_tokens are {len(start) - 1} and "
                f"{self.search.max_tokens} tokens, and the model has {longest - 1}; "
                "lower max_tokens"
            )

    def write(self, pixels: Sequence[Pixels], uniforms: Uniforms | None) -> list[str]:
        """A caption of each preprocessed image."""
        import torch

        model, network = self.model, self.model.network
        autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=model.half)
        with torch.inference_mode(), autocast:
            batch = model.preprocess.normalised(pixels).to(model.device)
            seen = network(batch)
            latent, embeddings = seen["image_features"], seen["image_embs"]

            def next_logits(tokens_RL: Any, row_R: Any) -> Any:
                inputs = {"image_latent": latent[row_R], "image_embs": embeddings[row_R]}
                outputs = network(None, tokens_RL, **inputs, output_labels=False)
                return outputs["logits"][:, -1]

            found = search_tokens(
                next_logits, len(pixels), self.search, str(model.device), uniforms
            )
        coder = model.tokenizer
        return [coder.decode([*self.prompt, *tokens]).strip() for tokens in found]
