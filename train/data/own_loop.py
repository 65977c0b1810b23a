"""`clipmill.Loader`: the batches of `clipmill train` for a training loop of one's own.

It is the loader of the trainer (`loader.py`) with a position: a step that is counted as batches are
handed out, saved and loaded. Images are read and decoded ahead, in threads. A transform and a
tokenizer of the caller's run in the thread that asks for the next batch, row after row: the random
generators of Python, NumPy and torch are of the process, so that in another thread they would draw
from those of the training loop. Before each call they are seeded by seed and position, after a
batch they are as the caller left them.

Reads POOL/shards, POOL/views, POOL/scores. Writes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import default_collate

from clipmill.manifests.arrays import Integers, Pixels
from clipmill.manifests.clip_tokenizer import CONTEXT
from clipmill.manifests.pool import names_of
from clipmill.manifests.schema import Blend
from clipmill.train import config, transforms
from clipmill.train.data import damage, loader
from clipmill.train.data.blends import blend_of_views, count_rows, read_blend
from clipmill.train.data.damage import DamagedSample
from clipmill.train.data.view_rows import CAPTION
from clipmill.train.rng import derive_key

MANIFESTS = (".yaml", ".yml", ".json")  # a path that ends so is a blend, another one a view
TRANSFORM, TOKENIZE = 10, 11  # what a random number is for, see train/mixture/order.py
ENDLESS = 2**62  # steps
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The rows of a global batch that a rank trains on: B = batch_size / world."""

    step: int  # its number from the first batch of the training on, which is 0
    image: Any  # (B, height, width, 3) uint8 RGB; of a transform: what it gives, stacked
    tokens: Any  # (B, context_length) int64, padded with 0; of a tokenizer: what it gives
    captions: list[str]  # of the rows; of a blend with several text columns: those that were drawn
    keys: tuple[str, ...]  # POOL/VIEW:KEY of each row
    columns: pa.Table  # (B rows) the columns that were asked for
    damaged: tuple[DamagedSample, ...]  # rows that could not be used, and were replaced


class Loader:
    """Batches of a blend of views: a function of (blend, seed, step) alone, which any number of
    ranks, threads and starts share.

    One `for` goes through an epoch, and the next one goes on where it ended::

        loader = clipmill.Loader("out/pool/basic", batch_size=256, image_size=224)
        for epoch in range(10):
            for batch in loader:
                train(batch.image, batch.tokens)  # (256, 224, 224, 3) uint8, (256, 77) int64

    An epoch has as many samples as the views keep rows, in whole batches; the rows that are left
    come first in the next one. `len` is its number of batches. After a `break` the next `for` goes
    on with the rest of the epoch. One iteration runs at a time: another `for` ends the one before.

    A Loader can be pickled with its position (spawn), and opens its files anew in a forked process.

    step: the number of batches that were handed out: the position.
    """

    step: int

    def __init__(
        self,
        data: str | os.PathLike[str] | Mapping[str, float] | Blend,
        *,
        batch_size: int,
        image_size: int | tuple[int, int] | None = None,
        transform: Callable[..., Any] | None = None,
        tokenizer: Callable[[list[str]], Any] | None = None,
        context_length: int | None = None,
        columns: Sequence[str] = (),
        seed: int = 0,
        epochs: float | None = 1,
        rank: int = 0,
        world: int = 1,
        workers: int = 4,
        lanes: int | None = None,
        window: int = 4,
        crop_min: float | None = None,
        read_cache: str | None = None,
        read_cache_gb: float = 100.0,
        pin_memory: bool = False,
    ) -> None:
        """data: POOL/VIEW, where POOL is a folder or URL; {POOL/VIEW: weight}; or the file of a
        blend.
        batch_size: samples of a step, of all ranks together.
        image_size: side of the images in pixels, or (height, width); a random crop as the trainer
            makes it, whose least share of a picture's area is `crop_min` (0.9).
        transform: in its place, called with each picture as a PIL image (RGB); what it gives is
            stacked. A composition of albumentations is called with an array.
        tokenizer: called with the captions of a batch. Without it the stored tokens of CLIP are
            read, cut or padded to `context_length` (77).
        columns: of sidecars or score sets, to come with each batch.
        seed: of the order, the crops, and the random state that `transform` and `tokenizer` see.
        epochs: length of one `for`; None: it never ends, and there is no `len`.
        rank, world: which share of each batch. workers: threads that decode; 0: the caller does.
        lanes, window, read_cache, read_cache_gb: as the settings of `clipmill train`.
        pin_memory: images and tokens lie in pinned memory, where there is a GPU.

        ValueError for what cannot be: views that are not there or older than their pool, missing
        tokens, ranks that do not divide the batch, too few rows; while it runs, for a column that
        is not there, and where more than 1 sample in 1,000 is damaged. ReadFailed (a RuntimeError)
        where a store does not answer.
        """
        if (transform is None) == (image_size is None):
            raise ValueError("give image_size, in pixels, or a transform of your own: one of them")
        if transform is not None and crop_min is not None:
            raise ValueError("crop_min is of the crop to image_size; leave it out with a transform")
        if tokenizer is not None and context_length is not None:
            raise ValueError(
                "context_length is of the stored tokens; leave it out with a tokenizer"
            )
        context = CONTEXT if context_length is None else context_length
        if context < 3:
            raise ValueError(f"context_length is {context}; it must be at least 3")
        if not 0 <= rank < world:
            raise ValueError(f"rank is {rank}; it must lie in [0, {world}), and world is {world}")
        size = image_size or 0
        self._inputs = _Inputs(
            height_width=size if isinstance(size, tuple) else (size, size),
            context_length=1 if tokenizer is not None else context,
        )
        self._transform, self._tokenizer, self._columns = transform, tokenizer, names_of(columns)
        self._rank, self._world, self._pin = rank, world, pin_memory
        self._blend = _blend_of(data)
        rows = count_rows(self._blend, with_weights=False)
        samples = batch_size if epochs is None else round(epochs * rows)
        if samples < batch_size:
            raise ValueError(
                f"{epochs:g} epochs of {rows:,} rows are fewer samples than a batch of "
                f"{batch_size:,}; lower batch_size, or raise epochs"
            )
        if epochs is None and self._blend.max_repeats is not None:
            raise ValueError(
                f"blend {self._blend.name!r} has max_repeats, and epochs is None: draws without "
                "end; give epochs, or leave max_repeats out"
            )
        settings = {
            "batch_size": batch_size,
            "samples_seen": samples,
            "seed": seed,
            "threads": workers,
            "window": window,
            "read_cache": read_cache,
            "read_cache_gb": read_cache_gb,
            "warmup": 0,
            "device": "cuda" if pin_memory else "cpu",
        }
        settings |= {} if lanes is None else {"lanes": lanes}
        settings |= {} if crop_min is None else {"crop_min": crop_min}
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in settings.items()}
        self._config = config.configure(plain)
        self._is_endless = epochs is None
        self.step = 0
        self._damaged = self._drawn = 0  # samples of this rank, in this process
        self._running: Callable[[], Generator[Batch] | None] = _nothing
        self._open()

    def __len__(self) -> int:
        """Batches of one `for` from its beginning. TypeError where it never ends."""
        if self._is_endless:
            raise TypeError("a Loader with epochs=None has no len")
        return self._config.steps

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the position on, to the end of an epoch or of `epochs` of them."""
        self.close()
        batches = self._batches()
        self._running = weakref.ref(batches)  # a `break` ends it, and its threads
        return batches

    def __repr__(self) -> str:
        share = "" if self._world == 1 else f", rank {self._rank} of {self._world}"
        views = ", ".join(f"{name}: {weight:g}" for name, weight in self._blend.views.items())
        size = self._config.batch_size
        return f"Loader({{{views}}}, batch_size={size}{share}, step {self.step})"

    def state_dict(self) -> dict[str, Any]:
        """The position, after the batch that was handed out last: `step`, the number of batches so
        far, and `order`, what decides what they hold. Plain values, the same on every rank.

        A framework that asks for batches ahead of its steps sets `step` itself: that of a batch is
        `batch.step`.
        """
        return {"step": self.step, "order": self._opened().order.identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the batch `state["step"] - 1`, on any number of ranks. ValueError for the
        state of another order: other views or weights, batch size or seed.
        """
        if lacking := {"step", "order"} - state.keys():
            raise ValueError(f"this is no state of a Loader: it has no {min(lacking)!r}")
        here = self._opened().order.identity()
        there, step = state["order"], int(state["step"])
        if changed := [name for name in {**there, **here} if there.get(name) != here.get(name)]:
            name = changed[0]
            raise ValueError(
                f"the state is of a Loader of another order: its {name} was {there.get(name)} and "
                f"is {here.get(name)}; load it into a Loader of the same views and settings"
            )
        if step < 0:
            raise ValueError(f"the state has step {step}; it must not be negative")
        self.close()
        self.step = step

    def close(self) -> None:
        """End the running iteration with its threads. A later `for` goes on at the position."""
        running = self._running()
        if running is not None and self._pid == os.getpid():
            running.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_inner": None, "_running": _nothing, "_pid": None}

    # --- one batch --------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open the views in this process."""
        texts = {name for shares in self._blend.captions.values() for name in shares}
        self._running = _nothing
        self._pid: int | None = os.getpid()
        self._inner: loader.RunLoader | None = loader.RunLoader(
            self._blend,
            self._config,
            self._inputs,
            self._rank,
            self._world,
            coder=None if self._tokenizer is None else _CaptionMarks(),
            columns=tuple(dict.fromkeys([CAPTION, *sorted(texts), *self._columns])),
            whole=self._transform is not None,
        )

    def _opened(self) -> loader.RunLoader:
        if self._pid != os.getpid():  # handles and threads are not those of a fork
            self._open()
        assert self._inner is not None
        return self._inner

    def _batches(self) -> Generator[Batch]:
        inner, length = self._opened(), self._config.steps
        stop = ENDLESS if self._is_endless else (self.step // length + 1) * length
        if not self._is_endless:
            inner.route.check_repeats(stop)
        with contextlib.closing(inner.batches(self.step, stop)) as batches:
            for batch in batches:
                ready = self._finished(batch, inner)
                self.step = batch.step + 1
                yield ready

    def _finished(self, batch: loader.RunBatch, inner: loader.RunLoader) -> Batch:
        self._count_damage(batch, inner)
        assert batch.columns is not None
        captions = _drawn_captions(batch.columns, batch.texts)
        image: Any = batch.image_BHWC
        tokens: Any = batch.tokens_BT
        seed, first = inner.order.seed, self._rank * len(batch.keys)  # of this rank's rows
        if self._transform is not None or self._tokenizer is not None:
            with _kept_random_state():
                if self._transform is not None:
                    rows = []
                    for r, picture in enumerate(batch.pictures):
                        key = derive_key(seed, TRANSFORM, batch.step, first + r)
                        rows.append(self._transformed(picture, key, batch.keys[r]))
                    image = default_collate(rows)
                if self._tokenizer is not None:
                    _seed_random_state(derive_key(seed, TOKENIZE, batch.step, first))
                    tokens = self._tokenizer(captions)
        return Batch(
            step=batch.step,
            image=image,
            tokens=tokens,
            captions=captions,
            keys=batch.keys,
            columns=batch.columns.select(self._columns),
            damaged=batch.damaged_samples,
        )

    def _transformed(self, picture: Pixels | bytes, key: int, name: str) -> Any:
        """What the caller's transform makes of a picture, with the random state of its position."""
        assert self._transform is not None
        pixels = transforms.decode_image(picture) if isinstance(picture, bytes) else picture
        _seed_random_state(key)
        try:
            if hasattr(self._transform, "set_random_seed"):  # albumentations has generators itself
                self._transform.set_random_seed(key % 2**32)
                return self._transform(image=pixels)["image"]
            return self._transform(Image.fromarray(pixels))
        except Exception as error:
            error.add_note(f"the transform was called with the picture of {name}")
            raise

    def _count_damage(self, batch: loader.RunBatch, inner: loader.RunLoader) -> None:
        """ValueError where too many samples of this rank are damaged."""
        self._damaged += batch.damaged
        self._drawn += len(batch.keys)
        if not batch.damaged:
            return
        last = batch.damaged_samples[-1]
        where = f"key {last.key} of shard {last.shard} of {last.source}: {last.reason}"
        logger.warning("%d samples were replaced; the last is %s", batch.damaged, where)
        if damage.too_many_damaged(self._damaged, self._drawn):
            raise ValueError(
                f"{self._damaged} of {self._drawn:,} samples of rank {self._rank} cannot be used, "
                f"more than 1 in 1,000; the last is {where}; {inner.route.remedy(last.source)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """What the batches are shaped for, without a model."""

    height_width: tuple[int, int]
    context_length: int


class _CaptionMarks:
    """In the place of tokens, which the caller's tokenizer makes: one for each caption there is."""

    identity, pad = "captions", 0

    def encode_all(
        self, texts: pa.ChunkedArray, *, blanks: bool = False
    ) -> tuple[NDArray[np.uint16], Integers]:
        """As `CaptionTokenizer.encode_all`."""
        has_text = pc.is_valid(texts)
        if not blanks:
            words = pc.utf8_trim_whitespace(texts)
            has_text = pc.and_(has_text, pc.fill_null(pc.not_equal(words, ""), False))
        ends = np.concatenate([[0], np.cumsum(has_text.to_numpy(), dtype=np.int64)])
        return np.ones(int(ends[-1]), np.uint16), ends


def _nothing() -> None:
    """The iteration of a Loader that has none."""


def _blend_of(data: str | os.PathLike[str] | Mapping[str, float] | Blend) -> Blend:
    """The blend that a caller names. ValueError for one whose order is not known beforehand."""
    if isinstance(data, Blend):
        blend = data
    elif isinstance(data, Mapping):
        blend = blend_of_views(data)
    elif not isinstance(data, (str, os.PathLike)):
        raise ValueError(
            f"the data are a {type(data).__name__}; give POOL/VIEW, {{POOL/VIEW: weight}} or the "
            "file of a blend"
        )
    else:
        path = os.fspath(data)
        blend = read_blend(path) if path.endswith(MANIFESTS) else blend_of_views({path: 1.0})
    if blend.draws_from != "views":
        raise ValueError(
            f"blend {blend.name!r} has {blend.draws_from}, and a Loader draws from views of "
            "finished pools; clipmill train takes it"
        )
    return blend


def _drawn_captions(columns: pa.Table, texts: Sequence[str | None]) -> list[str]:
    """(rows,) the caption of each, of the text column that was drawn."""
    captions: list[str] = []
    of_column = {name: columns[name].to_pylist() for name in {text or CAPTION for text in texts}}
    for r, text in enumerate(texts):
        captions.append(of_column[text or CAPTION][r])
    return captions


# --------------------------------------------------------------------------------------------------
# The random state of the process: of Python's `random`, of NumPy's old functions, and of torch on
# the CPU. That of a GPU is left alone.


@contextlib.contextmanager
def _kept_random_state() -> Iterator[None]:
    """The random state is afterwards what it was before."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.default_generator
    state = cpu.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        cpu.set_state(state)


def _seed_random_state(key: int) -> None:
    """Seed it by a number of 64 bits."""
    python, numpy, cpu = (derive_key(key, number) for number in range(3))
    random.seed(python)  # seeded alike, the first two would draw the same numbers
    np.random.seed([numpy % 2**32, numpy >> 32])
    torch.default_generator.manual_seed(cpu)
