"""Captions by a model of Hugging Face's transformers that makes text of images."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from PIL import Image

from filters.captioning.decoding import Search, Uniforms, draw
from manifests import disk

NEEDED = "filter captioner needs the package transformers for {}: pip install -e '.[captions]'"


class TransformersWriter:
    """Writes captions by the model in a folder: BLIP, GIT, a vision encoder with a text decoder, or
    a chat model that sees images. ValueError for another one.
    """

    def __init__(self, folder: str, device: str, half: bool, search: Search, prompt: str) -> None:
        if find_spec("transformers") is None:
            raise ValueError(NEEDED.format(folder))
        import torch
        import transformers

        self.search, self.prompt, self.device = search, prompt, device
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
        if prompt and not self.takes_text:
            raise ValueError(f"filter captioner: {folder} takes no prompt; leave it out")
        if self.takes_text:
            self.tokenizer.padding_side = "left"  # new tokens follow the prompt

    def write(self, images: Sequence[Image.Image], uniforms: Uniforms | None) -> list[str]:
        """A caption of each image."""
        import torch

        inputs = self._inputs(list(images)).to(self.device)
        for name, value in inputs.items():
            if torch.is_floating_point(value):
                inputs[name] = value.to(self.dtype)
        search, options = self.search, dict[str, Any]()
        if uniforms is not None:
            options["logits_processor"] = [_Draw(uniforms, search.temperature)]
        with torch.inference_mode():
            tokens = self.network.generate(
                **inputs,
                do_sample=False,
                num_beams=search.beams,
                max_new_tokens=search.max_tokens,
                min_new_tokens=search.min_tokens,
                **options,
            )
        given = inputs.get("input_ids")
        if given is not None and torch.equal(tokens[:, : given.shape[1]], given):
            tokens = tokens[:, given.shape[1] :]  # the prompt is no part of an answer
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [text.strip() for text in texts]

    def _inputs(self, images: list[Image.Image]) -> Any:
        if not self.takes_text:
            return self.processor(images=images, return_tensors="pt")
        if self.is_chat:
            content = [{"type": "image"}, {"type": "text", "text": self.prompt}]
            chat = [{"role": "user", "content": content}]
            text = self.processor.apply_chat_template(chat, add_generation_prompt=True)
            return self.processor(
                images=[[image] for image in images],
                text=[text] * len(images),
                padding=True,
                return_tensors="pt",
            )
        if self.prompt:
            texts = [self.prompt] * len(images)
            return self.processor(images=images, text=texts, padding=True, return_tensors="pt")
        return self.processor(images=images, return_tensors="pt")


def _processors(transformers: Any, folder: str) -> tuple[Any, Any]:
    """(what makes inputs of images, the tokenizer). A folder may have one object for both."""
    processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True)
    if hasattr(processor, "image_processor"):
        return processor, processor.tokenizer
    images = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    return images, transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


class _Draw:
    """Leaves of each row's logits only the token that its number draws."""

    def __init__(self, uniforms: Uniforms, temperature: float) -> None:
        self.uniforms, self.temperature, self.step = uniforms, temperature, 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        import torch

        token_R = draw(scores, self.temperature, self.uniforms[:, self.step])
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter(1, token_R[:, None], 0.0)


def files_identity(folder: str) -> str:
    """Hash of the files that transformers reads of a folder. ValueError where there are no
    weights."""
    paths = {name: disk.join(folder, name) for name in disk.list_names(folder)}
    endings = (".safetensors", ".bin", ".json", ".txt", ".model", ".jinja")
    chosen = {name: path for name, path in paths.items() if name.endswith(endings)}
    if not any(name.endswith((".safetensors", ".bin")) for name in chosen):
        raise ValueError(f"filter captioner: there are no weights in {folder}")
    return disk.content_hash({name: disk.file_sha256(chosen[name]) for name in sorted(chosen)}, 64)
