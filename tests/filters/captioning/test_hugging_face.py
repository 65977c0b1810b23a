"""What transformers' own generate gives is what is stored; chat models get a conversation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from filters.captioner import Captioner, TransformersWriter
from tests.support.caption_models import images, written


@pytest.mark.parametrize("kind", ["blip", pytest.param("encoder_decoder", marks=pytest.mark.slow)])
def test_transformers_writes_what_its_own_generate_gives(
    kind: str, request: pytest.FixtureRequest
) -> None:
    import transformers

    folder = request.getfixturevalue(kind)
    network = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for beams in (1, 2):
        tokens = network.generate(
            **processor(images=images(), return_tensors="pt"),
            max_new_tokens=6, min_new_tokens=1, num_beams=beams, do_sample=False,
        )  # fmt: skip
        texts = [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
        assert written(folder, max_tokens=6, beams=beams) == texts


def test_a_chat_model_is_asked_and_only_its_answer_is_stored() -> None:
    """With a processor that writes down what it gets: a model that chats has no tiny form."""
    asked: dict[str, Any] = {}

    class Inputs(dict[str, Any]):
        def to(self, device: str) -> Inputs:
            return self

    class Processor:
        chat_template, tokenizer = "x", SimpleNamespace()

        def apply_chat_template(self, chat: Any, *, add_generation_prompt: bool) -> str:
            asked.update(chat=chat, generation=add_generation_prompt)
            return "USER: <image> What?"

        def __call__(self, *, images: Any, text: Any, padding: bool, return_tensors: str) -> Inputs:
            asked.update(images=images, text=text, padding=padding)
            return Inputs(input_ids=torch.tensor([[5, 6]] * len(text)), pixels=torch.zeros(2, 3))

    def generate(**given: Any) -> Any:
        asked.update(beams=given["num_beams"], dtype=given["pixels"].dtype)
        return torch.tensor([[5, 6, 7, 8], [5, 6, 9, 9]])

    writer = TransformersWriter.__new__(TransformersWriter)
    writer.options = Captioner(model="hf:a/b", max_tokens=2, beams=2, prompt="What?")
    writer.device, writer.dtype = "cpu", torch.bfloat16
    writer.processor, writer.network = Processor(), SimpleNamespace(generate=generate)
    writer.tokenizer = SimpleNamespace(
        batch_decode=lambda tokens, skip_special_tokens: [f" {each} " for each in tokens.tolist()]
    )
    writer.is_chat, writer.takes_text = True, True
    given = images()[:2]
    assert writer.write(given, None) == ["[7, 8]", "[9, 9]"]
    content = [{"type": "image"}, {"type": "text", "text": "What?"}]
    assert asked["chat"] == [{"role": "user", "content": content}]
    assert asked["generation"]
    assert asked["images"] == [[given[0]], [given[1]]]
    assert asked["text"] == ["USER: <image> What?"] * 2
    assert (asked["beams"], asked["dtype"]) == (2, torch.bfloat16)
