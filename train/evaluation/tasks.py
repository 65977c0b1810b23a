"""The kinds of tasks and the evaluation of a model on them."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from clipmill.manifests import disk
from clipmill.manifests.arrays import Array, Mask
from clipmill.manifests.late import torch
from clipmill.manifests.metrics import (
    DIRECTIONS,
    METRICS,
    TEMPERATURES,
    TOP,
    Metrics,
    at_best_temperature,
    calibration_error,
    f1_macro,
    mean_of_directions,
    metric_values,
    worst_group,
)
from clipmill.manifests.schema import TaskSpec
from clipmill.train import transforms
from clipmill.train.eval_data.images import ImageSource, batch_rows, decoded_batches, image_hashes
from clipmill.train.eval_data.samples import (
    Samples,
    read_associations,
    read_captioned,
    read_labelled,
    read_probe,
)

if TYPE_CHECKING:
    from torch import Tensor

    from clipmill.train.model.open_clip_model import AnyModel
    from clipmill.train.parallel.process_group import Ranks

# --------------------------------------------------------------------------------------------------
# Batches shared over the ranks of a process group, and their results gathered in order.
#
# Batch b is computed by rank b mod world. Results are the same bits for any number of ranks that
# compute with the same number of threads.


Arrays = dict[str, Array]


def alone() -> Ranks:
    """The ranks of a process that shares its work with no other one."""
    from clipmill.train.parallel.process_group import ALONE

    return ALONE


def on_rank_0(ranks: Ranks, do: Callable[[], None]) -> None:
    """`do` on rank 0, while the others wait. ValueError on every rank where it raised one."""
    error = None
    if ranks.rank == 0:
        try:
            do()
        except ValueError as raised:
            if ranks.world == 1:
                raise
            error = str(raised)
    _raise_anywhere(ranks, error)


def _raise_anywhere(ranks: Ranks, error: str | None) -> None:
    if ranks.world > 1:
        from clipmill.train.parallel import process_group

        errors = [each for each in process_group.all_gather_json(error, ranks) if each is not None]
        if errors:
            raise ValueError(errors[0])


def in_batches(ranks: Ranks, count: int, compute: Callable[[slice], Arrays]) -> Arrays:
    """`compute(rows)` for every batch of `count` rows, joined in order, on every rank.

    A collective. ValueError on every rank where one raised it.
    """
    return gather(ranks, count, lambda batches: (compute(rows) for rows in batches))


def gather(
    ranks: Ranks, count: int, compute: Callable[[Sequence[slice]], Iterator[Arrays]]
) -> Arrays:
    """Like `in_batches`; `compute` gets all batches of this rank and yields a result for each."""
    batches = batch_rows(count)
    own: list[Arrays] = []
    error = None
    try:
        own = list(compute(batches[ranks.rank :: ranks.world]))
    except ValueError as raised:
        if ranks.world == 1:
            raise
        error = str(raised)
    _raise_anywhere(ranks, error)
    parts = {name: np.concatenate([batch[name] for batch in own]) for name in own[0]} if own else {}
    if ranks.world == 1:
        return parts
    kinds: dict[str, object] = {}
    for name, values in parts.items():
        kinds[name] = [values.dtype.str, list(values.shape[1:])]
    from clipmill.train.parallel import process_group

    of_rank_0 = process_group.all_gather_json(kinds, ranks)[0]  # rank 0 has the first batch
    joined = {}
    for name, (dtype, shape) in of_rank_0.items():
        part = parts.get(name, np.zeros((0, *shape), dtype))
        joined[name] = _join(ranks, batches, part)
    return joined


def _join(ranks: Ranks, batches: Sequence[slice], part: Array) -> Array:
    """The rows of all ranks in order; `part` holds those of this rank's batches."""
    rows_of_rank = []
    for rank in range(ranks.world):
        rows_of_rank.append(sum(rows.stop - rows.start for rows in batches[rank :: ranks.world]))
    row_bytes = part.itemsize * int(np.prod(part.shape[1:], dtype=np.int64))
    padded = torch.zeros(max(rows_of_rank) * row_bytes, dtype=torch.uint8)
    flat = torch.from_numpy(np.ascontiguousarray(part).reshape(-1).view(np.uint8).copy())
    padded[: len(flat)] = flat
    received = [torch.empty_like(padded) for _ in range(ranks.world)]
    torch.distributed.all_gather(received, padded, group=ranks.host_group)
    joined = np.empty((batches[-1].stop, *part.shape[1:]), part.dtype)
    for rank, data in enumerate(received):
        values = data[: rows_of_rank[rank] * row_bytes].numpy().view(part.dtype)
        values = values.reshape(-1, *part.shape[1:])
        start = 0
        for rows in batches[rank :: ranks.world]:
            length = rows.stop - rows.start
            joined[rows] = values[start : start + length]
            start += length
    return joined


# --------------------------------------------------------------------------------------------------
# Unit vectors of evaluation images and texts. One that is not finite is an error.


def require_finite(finite_N: Array, names: Sequence[str], task: str, what: str) -> None:
    """ValueError that names the task and the first sample where `finite_N` is false."""
    count = int((~finite_N).sum())
    if count:
        first = names[int(finite_N.argmin())]
        raise ValueError(
            f"task {task!r}: the {what} of {first!r} are not finite, as for {count} of "
            f"{len(names)} samples; the model is broken (NaN or infinite weights), so there are "
            "no metrics"
        )


def finite_rows(values_NX: Tensor) -> Array:
    """(N,) whether a row holds neither NaN nor infinity."""
    return torch.isfinite(values_NX).all(dim=1).numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A model on its device with its tokenizer. All methods are collectives of `ranks`.

    hashes: the sha256 of the images that were embedded, so that no image is read twice.
    """

    model: AnyModel
    device: torch.device
    tokenizer: str = "clip"
    ranks: Ranks = field(default_factory=alone)
    hashes: dict[ImageSource, tuple[str, ...]] = field(default_factory=dict)

    def map_images(
        self, images: ImageSource, task: str, compute: Callable[[Tensor, slice], Arrays]
    ) -> Arrays:
        """`compute(unit vectors (B, E), rows)` for every batch of images, joined in order.

        The vectors are fp32 in host memory, and only those of one batch at a time. ValueError for
        NaN or infinity.
        """
        config = self.model.config

        def batches(own: Sequence[slice]) -> Iterator[Arrays]:
            for batch in decoded_batches(images, config, own):
                pixels_BHWC = torch.from_numpy(np.ascontiguousarray(batch.image_BHWC))
                image_BCHW = transforms.normalise(
                    pixels_BHWC.to(self.device), config.image_mean, config.image_std
                )
                vectors_BE = self.model.encode_image(image_BCHW).detach().float().cpu()
                columns = compute(vectors_BE, batch.rows)
                yield {
                    **columns,
                    "finite": finite_rows(vectors_BE),
                    "sha256": batch.sha256_BX,
                }

        columns = gather(self.ranks, len(images.names), batches)
        require_finite(columns.pop("finite"), images.names, task, "image features")
        digests_NX = columns.pop("sha256")
        self.hashes[images] = tuple(digest.tobytes().hex() for digest in digests_NX)
        return columns

    def images(self, images: ImageSource, task: str) -> Tensor:
        """Unit vectors (N, E) of images, fp32 in host memory. ValueError for NaN or infinity."""
        columns = self.map_images(images, task, lambda vectors_BE, _: {"v": vectors_BE.numpy()})
        return torch.from_numpy(columns["v"])

    def texts(self, texts: Sequence[str], task: str) -> Tensor:
        """Unit vectors (N, E) of texts, fp32 in host memory. Texts are cut at the context length.

        ValueError for an unknown tokenizer and for NaN or infinity.
        """
        if self.tokenizer != "clip":
            raise ValueError(f"there is no tokenizer {self.tokenizer!r}; evaluation knows 'clip'")
        from clipmill.train.model.open_clip_model import text_tokenizer

        tokenize = text_tokenizer(self.model.config)

        def encode(rows: slice) -> Arrays:
            tokens_BT = tokenize(list(texts[rows])).to(self.device)
            return {"v": self.model.encode_text(tokens_BT).detach().float().cpu().numpy()}

        vectors_NE = torch.from_numpy(in_batches(self.ranks, len(texts), encode)["v"])
        require_finite(finite_rows(vectors_NE), texts, task, "text features")
        return vectors_NE

    def classes(self, prompts: Sequence[Sequence[str]], task: str) -> Tensor:
        """Unit vectors (C, E): the mean of each class over its prompts, at length 1 again.

        This is open_clip's `build_zero_shot_classifier` (CLIP paper, section 3.1.4).
        """
        vectors_NE = self.texts([text for of_class in prompts for text in of_class], task)
        return mean_of_prompts(vectors_NE, [len(of_class) for of_class in prompts])


def mean_of_prompts(vectors_NE: Tensor, counts: Sequence[int]) -> Tensor:
    """Unit vectors (C, E) of classes, of which each has so many of the vectors, in their order."""
    from clipmill.train.model.clip import l2_normalise

    if len(set(counts)) == 1:
        return l2_normalise(vectors_NE.unflatten(0, (len(counts), -1)).mean(dim=1))
    return l2_normalise(torch.stack([part.mean(dim=0) for part in vectors_NE.split(list(counts))]))


# --------------------------------------------------------------------------------------------------
# The interface of a task kind: how its folder is read, how a model is scored, what its table
# says.
#
# A new kind is one module with a `TaskKind`, one line in `tasks.TASKS`, and one test.


Columns = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The predictions of a model: columns with a row per sample, metrics, further metadata."""

    columns: Columns
    metrics: Metrics
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """One kind of evaluation task.

    name: the `kind` of a task manifest.
    read: the samples of a task; ValueError names what the folder lacks.
    predict: the columns of the predictions (one row per sample) and the metrics; a collective.
    chance: the headline metric of random guesses, from the metadata and the number of samples.
    """

    name: str
    read: Callable[[TaskSpec], Samples]
    predict: Callable[[Encoder, TaskSpec, Samples], Predicted]
    chance: Callable[[Mapping[str, Any], int], float]


# --------------------------------------------------------------------------------------------------
# The task kind `association`: which of a few images belong to a word, as in WinoGAViL.
#
# As many candidates are chosen as there are right ones, the most similar to the prompt "A WORD"
# or "An WORD". A tie between a right and a wrong candidate counts against the model.


def jaccard_indices(similarity_N: Array, cue_N: Array, right_N: Mask) -> tuple[Array, Array, Array]:
    """Per cue: the Jaccard index of chosen and right candidates, their number, and the right ones.

    `cue_N` rises: the candidates of a cue stand side by side.
    """
    starts = np.flatnonzero(np.diff(cue_N, prepend=-1))
    ends = np.append(starts[1:], len(cue_N))
    indices = np.empty(len(starts), np.float32)
    right_counts = np.empty(len(starts), np.int16)
    for cue, (start, end) in enumerate(zip(starts, ends, strict=True)):
        right = right_N[start:end]
        order = np.lexsort((right, -similarity_N[start:end]))  # of equals the wrong one first
        count = int(right.sum())
        hits = int(right[order[:count]].sum())
        indices[cue], right_counts[cue] = hits / (2 * count - hits), count
    return indices, (ends - starts).astype(np.int16), right_counts


def _predict_association(encoder: Encoder, task: TaskSpec, samples: Samples) -> Predicted:
    image_NE = encoder.images(samples.images, task.name).numpy()
    text_ME = encoder.texts(samples.captions, task.name).numpy()
    cue_N = np.array(samples.labels)
    similarity_N = np.einsum("ne,ne->n", image_NE, text_ME[cue_N])
    right_N = np.zeros(len(cue_N), bool)
    right_N[[image for image, _ in samples.matches]] = True
    indices, candidates, right = jaccard_indices(similarity_N, cue_N, right_N)
    columns = {
        "sample": list(samples.captions),
        "candidates": candidates,
        "right": right,
        "jaccard": indices,
        "correct": indices == 1,
    }
    table, metrics = pa.table(columns), {}
    for name in ("accuracy", "jaccard"):
        metrics[name] = mean_of_directions(metric_values(table, name))
    if (candidates >= 10).any():
        metrics["jaccard_10_12"] = mean_of_directions(metric_values(table, "jaccard_10_12"))
    chance = []
    for total, count in zip(candidates.tolist(), right.tolist(), strict=True):
        chance.append(1 / math.comb(total, count))
    return Predicted(columns=columns, metrics=metrics, details={"chance": float(np.mean(chance))})


def _association_chance(metadata: Mapping[str, Any], samples: int) -> float:
    return float(metadata["chance"])


ASSOCIATION = TaskKind(
    name="association",
    read=read_associations,
    predict=_predict_association,
    chance=_association_chance,
)

# --------------------------------------------------------------------------------------------------
# The task kind `retrieval`: images and captions find each other, in both directions.


MEANS = ("mean_rank", "contrastive_loss", "contrastive_loss_t")
LOSS_BATCH = 256  # most pairs of a batch of the contrastive loss
CANDIDATES = 8192  # compared at once, so that the comparison stays in the cache


def ranks(
    query_NE: Tensor,
    candidate_ME: Tensor,
    matches: Sequence[tuple[int, int]],
    shared_by: Ranks | None = None,
) -> Array:
    """(N,) number of wrong candidates at least as similar as the best right one of each query.

    `matches` are pairs (n, m). A tie counts against the model, and so does a NaN. Memory is
    O(BATCH_SIZE × M). A collective of `shared_by`.
    """
    right = torch.tensor(sorted(set(matches)), dtype=torch.long).reshape(-1, 2)

    def of_batch(rows: slice) -> Arrays:
        similarity_BM = query_NE[rows] @ candidate_ME.T
        start, stop, _ = rows.indices(len(query_NE))
        first, end = torch.searchsorted(right[:, 0].contiguous(), torch.tensor([start, stop]))
        row, column = right[first:end, 0] - start, right[first:end, 1]
        of_right = similarity_BM[row, column]
        best_B = similarity_BM.new_full((stop - start,), -torch.inf)
        best_B.scatter_reduce_(0, row, of_right, "amax")  # a NaN stays the largest
        above_B = torch.zeros(stop - start, dtype=torch.long)
        for part_BC in similarity_BM.split(CANDIDATES, dim=1):
            above_B += (~(part_BC < best_B[:, None])).sum(dim=1)
        above_B -= torch.bincount(row[~(of_right < best_B[row])], minlength=stop - start)
        return {"rank": above_B.int().numpy()}

    return in_batches(shared_by or alone(), len(query_NE), of_batch)["rank"]


def first_captions(samples: Samples) -> list[int]:
    """The first caption of each image."""
    captions: dict[int, int] = {}
    for image, caption in samples.matches:
        captions.setdefault(image, caption)
    return [captions[image] for image in range(len(samples.files))]


def same_texts(samples: Samples) -> list[int]:
    """For each caption the number of the first one with its text."""
    first: dict[str, int] = {}
    return [first.setdefault(text, number) for number, text in enumerate(samples.captions)]


def contrastive_losses(
    image_NE: Tensor, text_ME: Tensor, samples: Samples, scales: Sequence[float]
) -> tuple[Array, Array]:
    """(N, S) and (M, S) cross-entropy in nats of each image and of its first caption, in batches,
    under each of S logit scales.

    The pairs (image, first caption) are dealt out to the fewest batches of at most LOSS_BATCH
    pairs, neighbours to different batches; the sizes of two batches differ by at most 1. Other
    right answers inside a batch, those of an equal text too, are no candidates. A caption that is
    no image's first has NaN.
    """
    captions, texts = torch.tensor(first_captions(samples)), torch.tensor(same_texts(samples))
    by_image = np.full((len(image_NE), len(scales)), np.nan, np.float32)
    by_text = np.full((len(text_ME), len(scales)), np.nan, np.float32)
    texts_of: list[list[int]] = [[] for _ in samples.files]
    for image, caption in samples.matches:
        texts_of[image].append(int(texts[caption]))
    batches = math.ceil(len(image_NE) / LOSS_BATCH)
    for first in range(batches):
        rows = torch.arange(first, len(image_NE), batches)
        similarity_BB = (image_NE[rows] @ text_ME[captions[rows]].T).double()
        texts_B = texts[captions[rows]].tolist()
        for b, other in _other_right_answers(rows.tolist(), texts_B, texts_of):
            similarity_BB[b, other] = -torch.inf
        for number, scale in enumerate(scales):
            logits_BB = scale * similarity_BB
            by_image[rows, number] = -logits_BB.log_softmax(dim=1).diagonal().float().numpy()
            losses_B = -logits_BB.log_softmax(dim=0).diagonal().float().numpy()
            by_text[captions[rows], number] = losses_B
    return by_image, by_text


def _other_right_answers(
    images: Sequence[int], texts: Sequence[int], texts_of: Sequence[Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """(b, other) where the text of pair `other` in the batch belongs to the image of b too."""
    pairs_of_text: dict[int, list[int]] = {}
    for number, text in enumerate(texts):
        pairs_of_text.setdefault(text, []).append(number)
    for b, image in enumerate(images):
        for text in texts_of[image]:
            for other in pairs_of_text.get(text, ()):
                if other != b:
                    yield b, other


def retrieve(
    image_NE: Tensor,
    text_ME: Tensor,
    samples: Samples,
    scale: float,
    shared_by: Ranks | None = None,
) -> tuple[Columns, Metrics]:
    """Columns of the predictions; recall@1/5/10 and median ranks per direction and both, and means.

    `image_to_text_recall@1` is the share of images whose nearest caption is one of theirs, as in
    CLIP_benchmark. A caption finds its own image alone, also where another image has the same text.
    That text ties with the image's own, which CLIP_benchmark decides by chance; here it is not
    counted against the image. `loss` is described at `contrastive_losses`; `loss_t` is the same at
    the temperature that fits all pairs best.
    """
    texts = same_texts(samples)
    captions_of: dict[int, list[int]] = {}
    for caption, text in enumerate(texts):
        captions_of.setdefault(text, []).append(caption)
    right = [(n, m) for n, own in samples.matches for m in captions_of[texts[own]]]
    by_image = ranks(image_NE, text_ME, right, shared_by)
    by_text = ranks(text_ME, image_NE, [(m, n) for n, m in samples.matches], shared_by)
    scales = [scale, *(scale * TEMPERATURES).tolist()]
    losses = np.concatenate(contrastive_losses(image_NE, text_ME, samples, scales))
    columns = {
        "direction": [DIRECTIONS[0]] * len(by_image) + [DIRECTIONS[1]] * len(by_text),
        "sample": [*samples.files, *samples.captions],
        "rank": np.concatenate([by_image, by_text]),
        "loss": pa.array(losses[:, 0], from_pandas=True),  # NaN becomes null
        "loss_t": pa.array(-at_best_temperature(-losses[:, 1:]), from_pandas=True),
    }
    table = pa.table(columns)
    medians = [float(np.median(values) + 1) for values in (by_image, by_text)]
    metrics: Metrics = {}
    for name, metric in METRICS.items():
        if metric.values is not None and ("recall@" in name or name in MEANS):
            metrics[name] = mean_of_directions(metric_values(table, name))
    metrics["median_rank"] = sum(medians) / 2
    for direction, median in zip(DIRECTIONS, medians, strict=True):
        metrics[f"{direction}_median_rank"] = median
    return columns, metrics


def _predict_retrieval(encoder: Encoder, task: TaskSpec, samples: Samples) -> Predicted:
    image_NE = encoder.images(samples.images, task.name)
    text_ME = encoder.texts(samples.captions, task.name)
    scale = encoder.model.logit_scale.exp().item()
    if not math.isfinite(scale):
        raise ValueError(f"task {task.name!r}: the model's logit scale is {scale}; it is broken")
    columns, metrics = retrieve(image_NE, text_ME, samples, scale, encoder.ranks)
    return Predicted(columns=columns, metrics=metrics)


def _retrieval_chance(metadata: Mapping[str, object], samples: int) -> float:
    return 1 / samples


RETRIEVAL = TaskKind(
    name="retrieval",
    read=read_captioned,
    predict=_predict_retrieval,
    chance=_retrieval_chance,
)

# --------------------------------------------------------------------------------------------------
# The task kind `classification`: zero-shot, by the similarity to the names of the classes.


def sample_columns(logits_NC: Tensor, label_N: Tensor, name_C: Tensor | None = None) -> Columns:
    """Columns of the predictions from logits (N, C) and labels (N,).

    name_C: a number of the name of each class, where some are equal. Such classes have equal
    logits, and the first one wins, as in open_clip's argmax.

    An image is correct if the logit of its class is higher than every other logit. A tie counts
    against the model: a model that gives all classes the same logit has accuracy 0, not 1. That is
    the pessimistic rank (Sun et al. 2020, "A Re-evaluation of Knowledge Graph Completion Methods"),
    the same rule as in retrieval. `predicted` is then the best wrong class. `logprob` is of the
    right class, under a softmax over the classes; `margin` is its distance to the best wrong class.
    `top_classes` are the best five in the order of their `top_logprobs`, `predicted` first.
    `logprobs_t` (N, T) is `logprob` at TEMPERATURES, of which `with_best_temperature` makes a
    column: repeats in training make a model too sure, and its mean log-probability then says the
    opposite of its accuracy.
    """
    logprobs_NC = logits_NC.double().log_softmax(dim=1)
    right_N1 = logits_NC.gather(1, label_N[:, None])
    wrong_NC = logits_NC.scatter(1, label_N[:, None], -torch.inf)
    above_NC = wrong_NC >= right_N1
    if name_C is not None:
        is_same_NC = name_C[None] == name_C[label_N][:, None]
        above_NC &= ~(is_same_NC & (torch.arange(len(name_C)) > label_N[:, None]))
    rank_N1 = above_NC.sum(dim=1, keepdim=True)
    logprobs_NT = np.empty((len(label_N), len(TEMPERATURES)), np.float32)
    for number, factor in enumerate(TEMPERATURES.tolist()):
        cooled_NC = (factor * logits_NC).log_softmax(dim=1)
        logprobs_NT[:, number] = cooled_NC.gather(1, label_N[:, None])[:, 0].numpy()
    top = min(TOP, logits_NC.shape[1])
    # The wrong classes in order, with the right one put in at its rank.
    if name_C is None:
        before_NK = wrong_NC.topk(top, dim=1).indices
    else:  # the first of equal ones first
        before_NK = wrong_NC.sort(dim=1, descending=True, stable=True).indices[:, :top]
    after_NK = torch.cat([label_N[:, None], before_NK[:, :-1]], dim=1)
    place_K = torch.arange(top)
    top_NK = torch.where(place_K < rank_N1, before_NK, after_NK)
    top_NK = torch.where(place_K == rank_N1, label_N[:, None], top_NK)
    return {
        "label": label_N.int().numpy(),
        "predicted": top_NK[:, 0].int().numpy(),
        "correct": (rank_N1[:, 0] == 0).numpy(),
        "correct5": (rank_N1[:, 0] < TOP).numpy(),
        "logprob": logprobs_NC.gather(1, label_N[:, None])[:, 0].float().numpy(),
        "margin": (right_N1[:, 0].double() - wrong_NC.amax(dim=1)).float().numpy(),
        "top_classes": top_NK.int().numpy(),
        "top_logprobs": logprobs_NC.gather(1, top_NK).numpy(),
        "logprobs_t": logprobs_NT,
    }


def columns_in_batches(logits_NC: Tensor, label_N: Tensor) -> Columns:
    """`sample_columns` of all N rows, a batch of images at a time: its tables stay small."""
    batches = [sample_columns(logits_NC[rows], label_N[rows]) for rows in batch_rows(len(label_N))]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def with_best_temperature(columns: Columns) -> Columns:
    """The columns of all samples, with `logprob_t` in the place of `logprobs_t`."""
    plain = {name: values for name, values in columns.items() if name != "logprobs_t"}
    return {**plain, "logprob_t": at_best_temperature(columns["logprobs_t"]).astype(np.float32)}


def summarise(columns: Columns, classes: int, ignore_groups: Sequence[str] = ()) -> Metrics:
    """The metrics of classification. There is no accuracy5 with five classes or fewer.

    In mean_class_accuracy and f1_macro every class that has samples has the same weight. The
    metrics of the worst group are there if `columns` has `group`.
    """
    names = ["label", "correct", "correct5", "logprob", "logprob_t", "margin"]
    table = pa.table({name: columns[name] for name in names})
    metrics = {}
    means = ("accuracy", "accuracy5", "mean_class_accuracy", "logprob", "logprob_t", "margin")
    for name in means:
        if name != "accuracy5" or classes > TOP:
            metrics[name] = mean_of_directions(metric_values(table, name))
    confidence_N = np.exp(columns["top_logprobs"][:, 0])
    metrics["calibration_error"] = calibration_error(confidence_N, columns["correct"])
    metrics["f1_macro"] = f1_macro(columns["label"], columns["predicted"])
    if "group" in columns:
        worst = {"worst_group_accuracy": "correct"}
        if classes > TOP:
            worst["worst_group_accuracy5"] = "correct5"
        for name, column in worst.items():
            metrics[name] = worst_group(columns[column], columns["group"], ignore_groups)
    return metrics


def compact(columns: Columns, classes: int) -> Columns:
    """The columns as they are stored: classes as int16 where they fit, top_logprobs as float16."""
    kind = np.int16 if classes <= np.iinfo(np.int16).max else np.int32
    lowest = np.finfo(np.float16).min
    stored = dict(columns)
    for name in ("label", "predicted"):
        stored[name] = columns[name].astype(kind)
    for name, values_NK in (
        ("top_classes", columns["top_classes"].astype(kind)),
        ("top_logprobs", columns["top_logprobs"].clip(min=lowest).astype(np.float16)),
    ):
        flat = pa.array(values_NK.reshape(-1))
        stored[name] = pa.FixedSizeListArray.from_arrays(flat, values_NK.shape[1])
    return stored


def with_groups(columns: Columns, samples: Samples) -> Columns:
    """The columns with the samples' groups, if they have any."""
    if not samples.groups:
        return columns
    return {**columns, "group": np.array(samples.groups)}


def predicted_of(columns: Columns, task: TaskSpec, samples: Samples) -> Predicted:
    """Metrics of `sample_columns`, and the columns as they are stored, with names and groups."""
    columns = with_groups(with_best_temperature(columns), samples)
    classes = len(samples.classes)
    metrics = summarise(columns, classes, task.ignore_groups)
    stored = {"sample": list(samples.files), **compact(columns, classes)}
    return Predicted(columns=stored, metrics=metrics)


def _predict_zero_shot(encoder: Encoder, task: TaskSpec, samples: Samples) -> Predicted:
    names = list(dict.fromkeys(samples.classes))
    class_CE = encoder.classes([samples.prompts_of(name) for name in names], task.name)
    scale = encoder.model.logit_scale.exp().item()
    label_N, name_C = torch.tensor(samples.labels), None
    if len(names) < len(samples.classes):  # of equal names the logits are equal bit for bit
        number = {name: n for n, name in enumerate(names)}
        name_C = torch.tensor([number[name] for name in samples.classes])

    def columns_of(image_BE: Tensor, rows: slice) -> Arrays:
        logits_BC = scale * image_BE @ class_CE.T
        logits_BC = logits_BC if name_C is None else logits_BC[:, name_C]
        columns = sample_columns(logits_BC, label_N[rows], name_C)
        return {**columns, "finite_logits": finite_rows(logits_BC)}

    columns = encoder.map_images(samples.images, task.name, columns_of)
    # The logit scale can overflow where the features are finite.
    require_finite(columns.pop("finite_logits"), samples.files, task.name, "logits")
    return predicted_of(columns, task, samples)


def _zero_shot_chance(metadata: Mapping[str, Any], samples: int) -> float:
    return 1 / len(metadata["classes"])


CLASSIFICATION = TaskKind(
    name="classification",
    read=read_labelled,
    predict=_predict_zero_shot,
    chance=_zero_shot_chance,
)

# --------------------------------------------------------------------------------------------------
# The task kind `linear_probe`: a logistic regression on the frozen features of the images.
#
# The objective is the mean cross-entropy plus half the strength times the squared norm of the
# weights (the bias is free), minimised in float64 by L-BFGS over all samples. It is convex, the
# start is zero and nothing is drawn at random, so the result is a function of the features. The
# strength is the one of STRENGTHS with the most right answers on every fifth training image of
# each class, when the regression is fitted to the others.


STRENGTHS = tuple(10.0**exponent for exponent in range(-6, 2))
HELD_OUT = 5  # one of so many training images of each class is for the choice of the strength
STEPS = 500  # of L-BFGS at most
TOLERANCE = 1e-7  # largest component of the gradient


@dataclass(frozen=True, slots=True)
class Probe:
    """A fitted regression in float64; the logits are features @ weight_EC + bias_C."""

    weight_EC: Tensor
    bias_C: Tensor

    def logits(self, feature_NE: Tensor) -> Tensor:
        """(N, C) float64."""
        return feature_NE.double() @ self.weight_EC + self.bias_C


def fit(
    feature_NE: Tensor, label_N: Tensor, classes: int, strength: float, start: Probe | None = None
) -> Probe:
    """The regression that minimises the objective, from zero or from `start`.

    ValueError where L-BFGS ends with a gradient that is not finite.
    """
    feature_NE = feature_NE.double()
    shape = (feature_NE.shape[1], classes)
    weight_EC = torch.zeros(shape, dtype=torch.float64) if start is None else start.weight_EC
    bias_C = torch.zeros(classes, dtype=torch.float64) if start is None else start.bias_C
    weight_EC = weight_EC.clone().requires_grad_()
    bias_C = bias_C.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight_EC, bias_C],
        max_iter=STEPS,
        history_size=20,
        tolerance_grad=TOLERANCE,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(feature_NE @ weight_EC + bias_C, label_N)
        loss = loss + strength / 2 * weight_EC.square().sum()
        loss.backward()
        return loss

    with torch.inference_mode(False), torch.enable_grad():
        optimizer.step(objective)
    if not torch.isfinite(weight_EC).all():
        raise ValueError(f"the linear probe of strength {strength} did not converge")
    return Probe(weight_EC.detach(), bias_C.detach())


def held_out(labels: Sequence[int]) -> Array:
    """(N,) whether an image is for the choice of the strength: every fifth of its class."""
    seen: dict[int, int] = {}
    chosen = np.zeros(len(labels), bool)
    for index, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        chosen[index] = seen[label] % HELD_OUT == 0
    return chosen


def choose_strength(feature_NE: Tensor, labels: Sequence[int], classes: int) -> float:
    """The strength with the most right answers on the held-out images; of equals the largest.

    ValueError where no class has HELD_OUT images.
    """
    chosen = torch.from_numpy(held_out(labels))
    if not chosen.any():
        raise ValueError(
            f"no class has {HELD_OUT} training images, so none can be held out for the strength "
            "of the regularisation; add training images"
        )
    label_N = torch.as_tensor(labels)
    best, best_hits, probe = STRENGTHS[-1], -1, None
    for strength in sorted(STRENGTHS, reverse=True):
        probe = fit(feature_NE[~chosen], label_N[~chosen], classes, strength, probe)
        predicted_N = probe.logits(feature_NE[chosen]).argmax(dim=1)
        hits = int((predicted_N == label_N[chosen]).sum())
        if hits > best_hits:
            best, best_hits = strength, hits
    return best


def _predict_probe(encoder: Encoder, task: TaskSpec, samples: Samples) -> Predicted:
    assert samples.train is not None
    # Tensors made in inference mode take no part in a backward pass.
    train_NE = encoder.images(samples.train.images, task.name)
    test_NE = encoder.images(samples.images, task.name)
    classes, labels = len(samples.classes), samples.train.labels
    with torch.inference_mode(False):
        train_NE, test_NE = train_NE.clone(), test_NE.clone()
        try:
            strength = choose_strength(train_NE, labels, classes)
            probe = fit(train_NE, torch.tensor(labels), classes, strength)
        except ValueError as error:
            raise ValueError(f"task {task.name!r}: {error}") from error
        logits_NC = probe.logits(test_NE)
    require_finite(finite_rows(logits_NC), samples.files, task.name, "logits")
    label_N = torch.tensor(samples.labels)
    predicted = predicted_of(columns_in_batches(logits_NC, label_N), task, samples)
    details: Mapping[str, object] = {"strength": strength, "train_images": len(labels)}
    return Predicted(columns=predicted.columns, metrics=predicted.metrics, details=dict(details))


LINEAR_PROBE = TaskKind(
    name="linear_probe",
    read=read_probe,
    predict=_predict_probe,
    chance=CLASSIFICATION.chance,
)

# --------------------------------------------------------------------------------------------------
# The table of task kinds, and the evaluation of a model: a row per sample and the metrics.


PREDICTIONS_VERSION = 4  # of predictions; 3: without the preprocessing and equal names of classes
logger = logging.getLogger(__name__)
TASKS: dict[str, TaskKind] = {
    kind.name: kind for kind in (CLASSIFICATION, RETRIEVAL, LINEAR_PROBE, ASSOCIATION)
}


def read_samples(task: TaskSpec) -> Samples:
    """The images of a task with their classes or captions. ValueError names what is missing."""
    kind = TASKS[task.kind]
    if not re.fullmatch(r"[\w.-]+", task.name):
        raise ValueError(
            f"task {task.name!r}: a task name is a file name of letters, digits, '.', '_' and '-'"
        )
    if not task.data:
        raise ValueError(f"task {task.name!r} has no data; only predictions that exist need none")
    return kind.read(task)


def data_hash(samples: Samples, known: Mapping[ImageSource, tuple[str, ...]] | None = None) -> str:
    """Hash of a task's images and annotations: equal for equal data in any folder.

    `known`: the sha256 of images that were read already.
    """
    content = {"samples": samples.content(), "sha256": _hashes(samples.images, known)}
    if samples.train is not None:
        content["train"] = data_hash(samples.train, known)
    return disk.content_hash(content)


def _hashes(
    images: ImageSource, known: Mapping[ImageSource, tuple[str, ...]] | None
) -> tuple[str, ...]:
    if known is not None and images in known:
        return known[images]
    return image_hashes(images)


def evaluate(
    model: AnyModel,
    tasks: Sequence[TaskSpec],
    out: str,
    *,
    tokenizer: str = "clip",
    device: str | torch.device = "cpu",
    ranks: Ranks | None = None,
    weights: Mapping[str, str] | None = None,
) -> dict[str, Metrics]:
    """The metrics of every task. out/TASK.parquet gets one row per sample, and the metrics.

    weights: sha256 of the files that the model was read from; the predictions keep them.

    Every one of `ranks` computes its share of the batches; rank 0 writes. The files are the same,
    byte for byte, for any number of ranks with the same number of threads. ValueError for a task
    whose data cannot be read and for features that are not finite. The model stays on `device` and
    keeps its training mode.
    """
    for task in tasks:
        _check_replaceable(disk.join(out, f"{task.name}.parquet"))
    encoder = Encoder(
        model=model,
        device=torch.device(device),
        tokenizer=tokenizer,
        ranks=ranks or alone(),
    )
    was_training = model.training
    model.to(encoder.device).eval()
    try:
        with torch.inference_mode():
            return {task.name: _evaluate(encoder, task, out, weights or {}) for task in tasks}
    finally:
        model.train(was_training)


def _check_replaceable(path: str) -> None:
    """ValueError where a file that is no predictions has their name: the task's own data, say.

    A damaged Parquet file is nobody's data: it is replaced, and said.
    """
    try:
        is_ours = not disk.exists(path) or "metrics" in disk.read_metadata(path)
    except disk.DamagedTable as error:
        is_ours = disk.read_bytes(path, 0, 4) in (b"", b"PAR1")
        logger.info("%s%s", error, ": it is made anew" if is_ours else "")
    except (ValueError, OSError):
        is_ours = False
    if not is_ours:
        raise ValueError(f"{path} has no predictions of an evaluation; name another --out")


def used_of(model: AnyModel) -> dict[str, object]:
    """What pictures and captions go through before a model: as settings, and in words."""
    from clipmill.train.model.open_clip_model import tokenizer_words

    config = model.config
    preprocess: dict[str, Any] = disk.to_plain(config.preprocess)
    return {
        "images": config.line(config.height_width),
        "captions": tokenizer_words(config),
        "preprocess": {"size": list(config.height_width), **preprocess},
    }


def _evaluate(encoder: Encoder, task: TaskSpec, out: str, weights: Mapping[str, str]) -> Metrics:
    samples = read_samples(task)
    predicted = TASKS[task.kind].predict(encoder, task, samples)
    if encoder.ranks.rank == 0:
        metadata = {
            **predicted.details,
            "version": PREDICTIONS_VERSION,
            "task": task,
            "metrics": predicted.metrics,
            "classes": samples.classes,
            "data_hash": data_hash(samples, encoder.hashes),
            "weights": weights,
            "model": used_of(encoder.model),
            "notes": samples.notes,
        }
        for note in samples.notes:
            logger.info("%s: %s", task.name, note)
        path = disk.join(out, f"{task.name}.parquet")
        disk.write_parquet(path, pa.table(predicted.columns), metadata)
    from clipmill.train.parallel import process_group

    process_group.barrier(encoder.ranks)
    return predicted.metrics


def saved_metrics(
    out: str, task: TaskSpec, weights: Mapping[str, str] | None = None
) -> Metrics | None:
    """The metrics in out/TASK.parquet if they are of this task, of its present images, classes and
    prompts, and of these weights. None: the weights are gone, and they are not compared.

    None, with a line in the log, for predictions of another version: they have other columns.
    """
    path = disk.join(out, f"{task.name}.parquet")
    if not disk.exists(path):
        return None
    try:
        # All of it: else the comparison of the runs is what finds a damaged page.
        metadata = disk.read_with_metadata(path)[1]
    except disk.DamagedTable as error:
        logger.info("%s: it is made anew", error)
        return None
    same_task = metadata.get("task") == disk.to_plain(task)
    if not same_task or metadata.get("data_hash") != data_hash(read_samples(task)):
        what = "images, labels or prompts" if same_task else "settings of the task"
        logger.info("%s is of other %s: it is made anew", path, what)
        return None
    if weights is not None and metadata.get("weights") != dict(weights):
        logger.info("%s is of other weights: it is made anew", path)
        return None
    version = metadata.get("version")
    if version != PREDICTIONS_VERSION:
        logger.info(
            "%s is of version %s, not %d: it is made anew", path, version, PREDICTIONS_VERSION
        )
        return None
    metrics: Metrics = metadata["metrics"]
    return metrics
