"""Captions that a model of Hugging Face's transformers writes for the images.

A text column beside the captions of the web. A blend draws captions from it (`captions:`).

Invariants:

* Rows of a batch do not influence each other; what is drawn depends on uid and seed only:
  `tests/filters/test_captioner.py`.

A filter that adds a text column is a module here, a name in `__init__.py` and a line in
`FILTERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash
from PIL import Image

from clipmill.filters.base import Batch, Columns, described, require
from clipmill.filters.clip.model import BATCH, LOCAL, ModelFilter, run_batches
from clipmill.manifests import disk
from clipmill.manifests.arrays import FloatArray
from clipmill.manifests.hub import snapshot

if TYPE_CHECKING:
    from torch import Tensor

HUB = "hf:"
# Files of a model of transformers; a hub may have weights in several forms.
FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]


def row_uniforms(uids: Sequence[str], seed: int, count: int) -> FloatArray:
    """(rows, count) numbers in [0, 1) that depend on uid and seed only."""
    numbers = np.zeros((len(uids), count))
    for row, uid in enumerate(uids):
        key = xxhash.xxh3_128_intdigest(f"{seed}\0{uid}".encode())
        numbers[row] = np.random.Generator(np.random.Philox(key=key)).random(count)
    return numbers


def draw(logits_RV: Tensor, temperature: float, uniform_R: FloatArray) -> Tensor:
    """(R,) a token of each row, drawn from softmax(logits / temperature) by its number."""
    import torch

    probabilities_RV = torch.softmax(logits_RV.double() / temperature, dim=-1)
    bounds_RV = probabilities_RV.cumsum(-1)
    levels_R1 = torch.from_numpy(uniform_R)[:, None].to(logits_RV.device) * bounds_RV[:, -1:]
    token_R = torch.searchsorted(bounds_RV, levels_R1, right=True)[:, 0]
    return token_R.clamp_max(logits_RV.shape[1] - 1)


class TransformersWriter:
    """Writes captions by the model in a folder: BLIP, GIT, a vision encoder with a text decoder, or
    a chat model that sees images. ValueError for another one.
    """

    def __init__(self, folder: str, device: str, half: bool, options: Captioner) -> None:
        require("captioner", "transformers", "captions")
        import torch
        import transformers

        self.options, self.device = options, device
        dtype = torch.bfloat16 if half else torch.float32
        logs: Any = transformers.utils.logging
        logs.set_verbosity_error()
        logs.disable_progress_bar()
        try:
            network: Any = transformers.AutoModelForImageTextToText.from_pretrained(
                folder, dtype=dtype, local_files_only=True
            )
            self.processor, self.tokenizer = _processors(transformers, folder)
        except Exception as error:  # of the files, of the many classes of models
            line = " ".join(str(error).split())[:300]
            raise ValueError(
                f"filter captioner: {folder} cannot be loaded as a model that writes captions: "
                f"{line}"
            ) from error
        self.network: Any = network.eval().to(device)
        self.dtype = dtype
        self.is_chat = bool(getattr(self.processor, "chat_template", None))
        self.takes_text = hasattr(self.processor, "tokenizer")
        if options.prompt and not self.takes_text:
            raise ValueError(f"filter captioner: {folder} takes no prompt; leave it out")
        if self.takes_text:
            self.tokenizer.padding_side = "left"  # new tokens follow the prompt

    def write(self, images: Sequence[Image.Image], uniforms: FloatArray | None) -> list[str]:
        """A caption of each image."""
        import torch

        inputs = self._inputs(list(images)).to(self.device)
        for name, value in inputs.items():
            if torch.is_floating_point(value):
                inputs[name] = value.to(self.dtype)
        options = self.options
        processors = [] if uniforms is None else [_Draw(uniforms, options.temperature)]
        with torch.inference_mode():
            tokens = self.network.generate(
                **inputs,
                do_sample=False,
                num_beams=options.beams,
                max_new_tokens=options.max_tokens,
                min_new_tokens=options.min_tokens,
                logits_processor=processors,
            )
        given = inputs.get("input_ids")
        if given is not None and torch.equal(tokens[:, : given.shape[1]], given):
            tokens = tokens[:, given.shape[1] :]  # the prompt is no part of an answer
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [text.strip() for text in texts]

    def _inputs(self, images: list[Image.Image]) -> Any:
        prompt = self.options.prompt
        inputs: dict[str, object] = {"images": images, "return_tensors": "pt"}
        if self.is_chat:
            content = [{"type": "image"}, {"type": "text", "text": prompt}]
            chat = [{"role": "user", "content": content}]
            prompt = self.processor.apply_chat_template(chat, add_generation_prompt=True)
            inputs["images"] = [[image] for image in images]
        if prompt:
            inputs |= {"text": [prompt] * len(images), "padding": True}
        return self.processor(**inputs)


def _processors(transformers: Any, folder: str) -> tuple[Any, Any]:
    """(what makes inputs of images, the tokenizer). A folder may have one object for both."""
    processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True)
    if hasattr(processor, "image_processor"):
        return processor, processor.tokenizer
    images = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    return images, transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


class _Draw:
    """Leaves of each row's logits only the token that its number draws."""

    def __init__(self, uniforms: FloatArray, temperature: float) -> None:
        self.uniforms, self.temperature, self.step = uniforms, temperature, 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        import torch

        token_R = draw(scores, self.temperature, self.uniforms[:, self.step])
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter(1, token_R[:, None], 0.0)


def files_identity(folder: str) -> str:
    """Hash of the files that transformers reads of a folder. ValueError where there are no
    weights."""
    weights = (".safetensors", ".bin")
    endings = (*weights, ".json", ".txt", ".model", ".jinja")
    names = [name for name in sorted(disk.list_names(folder)) if name.endswith(endings)]
    if not any(name.endswith(weights) for name in names):
        raise ValueError(f"filter captioner: there are no weights in {folder}")
    hashes = {name: disk.file_sha256(disk.join(folder, name)) for name in names}
    return disk.content_hash(hashes, 64)


@dataclass(kw_only=True)
class Captioner(ModelFilter):
    """captioner: the caption that a model writes for the image; NULL for a blank one.

    model: any model of transformers that makes text of images, as `hf:ORG/NAME` or
    `local-dir:FOLDER`. prompt: what the caption of a BLIP begins with; what a chat model is asked.
    beams: 1 is greedy. max_tokens, min_tokens: of what is written. temperature: above 0 tokens are
    drawn, by numbers that depend on the row's uid and `seed` only; beams is 1 then. precision: auto
    is bf16 on a GPU and fp32 elsewhere.
    """

    name = "captioner"
    hub = HUB
    needs = frozenset({"image"})
    adds, meanings = described(
        captioner=(pa.string(), "the caption that the filter's model writes"),
    )
    batch_size: int = field(default=32, metadata=BATCH)
    prompt: str = ""
    beams: int = field(default=1, metadata={"least": 1})
    max_tokens: int = field(default=30, metadata={"least": 1})
    min_tokens: int = field(default=1, metadata={"least": 0})
    temperature: float = field(default=0.0, metadata={"least": 0})
    seed: int = 0
    writer: Any = field(default=None, init=False, repr=False, compare=False)
    limits: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def check_model_options(self) -> None:
        super().check_model_options()
        if not self.model.startswith((HUB, LOCAL)):
            raise ValueError(
                f"filter captioner: model is {self.model}; name a model of transformers as "
                "hf:ORG/NAME or local-dir:FOLDER"
            )
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"filter captioner: min_tokens is {self.min_tokens} and max_tokens "
                f"{self.max_tokens}; it must not be larger"
            )
        if self.temperature and self.beams > 1:
            raise ValueError(
                f"filter captioner: temperature is {self.temperature} with {self.beams} beams; it "
                "must be 0 with several beams"
            )
        if self.seed and not self.temperature:
            raise ValueError(
                f"filter captioner: seed is {self.seed}, and nothing is drawn at temperature 0; "
                "leave it out, or set temperature"
            )

    def identity(self) -> str:
        if self.model.startswith(LOCAL):
            return f"transformers {files_identity(self.model.removeprefix(LOCAL))}"
        return f"transformers {self.pinned_model()}"

    def setup(self) -> None:
        device, half = self.place()
        if self.model.startswith(LOCAL):
            folder = self.model.removeprefix(LOCAL)
        else:
            folder = snapshot("filter captioner", self.model.removeprefix(HUB), FILES)
        self.writer = TransformersWriter(folder, device, half, self)

    def score(self, batch: Batch) -> Columns:
        assert batch.images is not None
        assert self.writer is not None
        images = batch.images
        uids = batch.rows["uid"].to_pylist() if self.temperature else []

        def write(numbers: Sequence[int]) -> list[str]:
            uniforms = None
            if self.temperature:
                drawn = [uids[number] for number in numbers]
                uniforms = row_uniforms(drawn, self.seed, self.max_tokens)
            texts: list[str] = self.writer.write([images[number] for number in numbers], uniforms)
            return texts

        batches = run_batches(range(len(images)), self.batch_size, self.limits, "captions", write)
        return {"captioner": [text or None for texts in batches for text in texts]}
