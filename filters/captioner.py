"""Captions that a model writes for the images.

Text columns beside the captions of the web. A blend draws captions from them (`captions:`).

Reads files of captions through `pipeline/foreign_columns`, and weights. Writes nothing.

Invariants:

* A text goes to the rows that its key names, whatever the form of the file:
  `tests/filters/captioning/test_caption_file.py`.
* Rows of a batch do not influence each other; what is drawn depends on uid and seed only:
  `tests/filters/captioning/test_decoding.py`, `tests/filters/captioning/test_captioner.py`.

A filter that adds a text column is a module here, a name in `__init__.py` and a line in
`FILTERS`.
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
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from PIL import Image

from filters.base import FREE, Batch, Columns
from filters.clip.model import (
    HUB,
    LOCAL,
    ClipFilter,
    ClipModel,
    Pixels,
    model_config,
    run_batches,
    takes_gpu,
)
from manifests import disk, hub

# --------------------------------------------------------------------------------------------------
# Search for the tokens of a caption: greedy, by beams, or drawn. Rows do not influence each
# other.
#
# Shapes: R rows that are not finished, K beams, L tokens so far, V entries of the vocabulary.


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


# --------------------------------------------------------------------------------------------------
# Captions by a CoCa of open_clip. The image goes through its tower once, whatever the search.


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


# --------------------------------------------------------------------------------------------------
# Captions by a model of Hugging Face's transformers that makes text of images.


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


# --------------------------------------------------------------------------------------------------
# Captions that a model writes for the images: a text column.


TRANSFORMERS = "hf:"
# Files of a model of transformers; a hub may have weights in several forms.
FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]


@dataclass(kw_only=True)
class Captioner(ClipFilter):
    """captioner: the caption that a model writes for the image; NULL for a blank one.

    model: a CoCa of open_clip (a name with `pretrained`, or `hf-hub:ORG/NAME`), any model of
    transformers that makes text of images (`hf:ORG/NAME`), or `local-dir:FOLDER` with the files of
    one or the other. prompt: what the caption of a CoCa or a BLIP begins with; what a chat model is
    asked. beams: 1 is greedy. max_tokens, min_tokens: of what is written. temperature: above 0
    tokens are drawn, by numbers that depend on the row's uid and `seed` only; beams is 1 then.
    precision: see ClipFilter.
    """

    name: ClassVar[str] = "captioner"
    needs: ClassVar[frozenset[str]] = frozenset({"image"})
    adds: ClassVar[dict[str, pa.DataType]] = {"captioner": pa.string()}
    meanings: ClassVar[dict[str, str]] = {"captioner": "the caption that the filter's model writes"}
    batch_size: int = field(default=32, metadata=FREE)
    prompt: str = ""
    beams: int = 1
    max_tokens: int = 30
    min_tokens: int = 1
    temperature: float = 0.0
    seed: int = 0
    writer: Any = field(default=None, init=False, repr=False, compare=False)
    limits: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def check_model_options(self) -> None:
        if self.model.startswith(TRANSFORMERS):
            if self.pretrained is not None:
                raise ValueError(
                    f"filter captioner: {self.model} brings its own weights; leave pretrained out"
                )
        else:
            super().check_model_options()
        for option, least in (("beams", 1), ("max_tokens", 1), ("min_tokens", 0)):
            if getattr(self, option) < least:
                raise ValueError(
                    f"filter captioner: {option} is {getattr(self, option)}; "
                    f"it must be at least {least}"
                )
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"filter captioner: min_tokens is {self.min_tokens} and max_tokens "
                f"{self.max_tokens}; it must not be larger"
            )
        if self.temperature < 0 or (self.temperature and self.beams > 1):
            raise ValueError(
                f"filter captioner: temperature is {self.temperature} with {self.beams} beams; it "
                "must be at least 0, and 0 with several beams"
            )
        if self.seed and not self.temperature:
            raise ValueError(
                f"filter captioner: seed is {self.seed}, and nothing is drawn at temperature 0; "
                "leave it out, or set temperature"
            )

    @property
    def is_transformers(self) -> bool:
        """True for a model of transformers, false for one of open_clip."""
        if self.model.startswith(LOCAL):
            folder = Path(self.model.removeprefix(LOCAL))
            is_open_clip = (folder / "open_clip_config.json").is_file()
            return not is_open_clip and (folder / "config.json").is_file()
        return self.model.startswith(TRANSFORMERS)

    def pinned_model(self) -> str:
        if self.model.startswith(TRANSFORMERS):
            name = self.model.removeprefix(TRANSFORMERS)
            return TRANSFORMERS + hub.pinned("filter captioner", name)
        return super().pinned_model()

    def identity(self) -> str:
        if not self.is_transformers:
            return super().identity()
        if self.resize != "exact":
            raise ValueError("filter captioner: resize is for models of open_clip; leave it out")
        if self.model.startswith(LOCAL):
            return f"transformers {files_identity(self.model.removeprefix(LOCAL))}"
        return f"transformers {self.pinned_model()}"

    def check(self) -> None:
        """That a model of open_clip is a CoCa. A folder that is not there yet is not checked."""
        if self.is_transformers or find_spec("open_clip") is None:
            return
        super().check()
        is_here = Path(self.model.removeprefix(LOCAL), "open_clip_config.json").is_file()
        if self.model.startswith(HUB) or (self.model.startswith(LOCAL) and not is_here):
            return
        if "multimodal_cfg" not in model_config(self.name, self.model):
            raise ValueError(
                f"filter captioner: {self.model} writes no captions; name a CoCa, such as "
                "coca_ViT-L-14, or a model of transformers as hf:ORG/NAME"
            )

    def check_reach(self) -> None:
        if self.model.startswith(TRANSFORMERS):
            hub.check_repository("filter captioner", self.model.removeprefix(TRANSFORMERS))
        elif not self.is_transformers:
            super().check_reach()

    def setup(self) -> None:
        search: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "beams": self.beams,
            "temperature": self.temperature,
        }
        if not self.is_transformers:
            super().setup()
            self.writer = CocaWriter(self.loaded, search, self.prompt)
            return
        on_gpu = takes_gpu(self)
        half = self.precision == "bf16" or (self.precision == "auto" and on_gpu)
        if self.model.startswith(LOCAL):
            folder = self.model.removeprefix(LOCAL)
        else:
            name = self.model.removeprefix(TRANSFORMERS)
            folder = hub.snapshot("filter captioner", name, FILES)
        self.writer = TransformersWriter(
            folder,
            "cuda" if on_gpu else "cpu",
            half,
            Search(start=[], end=-1, **search),
            self.prompt,
        )

    def prepare(self, image: Image.Image) -> None:
        if self.loaded is not None:
            super().prepare(image)

    def score(self, batch: Batch) -> Columns:
        assert batch.images is not None
        assert self.writer is not None
        uids = batch.rows["uid"].to_pylist() if self.temperature else []

        def write(numbers: Sequence[int]) -> list[str]:
            assert batch.images is not None
            given: list[Any] = [batch.images[number] for number in numbers]
            if self.loaded is not None:
                given = self.loaded.pixels_of(given)
            uniforms = None
            if self.temperature:
                drawn = [uids[number] for number in numbers]
                uniforms = row_uniforms(drawn, self.seed, self.max_tokens)
            texts: list[str] = self.writer.write(given, uniforms)
            return texts

        numbers = range(len(batch.images))
        batches = run_batches(numbers, self.batch_size, self.limits, "captions", write)
        texts = [text or None for texts in batches for text in texts]
        return {"captioner": texts}
