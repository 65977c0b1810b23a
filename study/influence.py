"""What the training pairs of each group do to a zero-shot task, from gradients of trained models
alone.

A training step moves the weights against the gradient of the loss; the task's metric then moves by
the product of this step with the metric's own gradient (TracIn, Pruthi et al., arXiv 2002.08484, at
the last weights alone). What a pair has of that is the derivative, along the metric's gradient, of
what the pair adds to the loss. Forward-mode differentiation gives it for a whole batch in one pass,
so no gradient of a pair is stored and none is projected, as TRAK does (arXiv 2303.14186).

A pair adds its own loss and is a negative of all other pairs, which the contrastive loss has in
closed form (ECIF, arXiv 2411.11667). Without the second part, wrong captions of a class count as
good for the images of that class, since they make it likelier.

Shapes: B pairs of a batch, E channels of an embedding, G groups.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from clipmill.manifests import disk
from clipmill.manifests.arrays import FloatArray, Integers
from clipmill.manifests.layout import RunLayout
from clipmill.manifests.records import RunRecord, read_document
from clipmill.manifests.schema import Blend, TaskSpec
from clipmill.train.config import TrainConfig
from clipmill.train.data.loader import RunLoader
from clipmill.train.eval_data.images import BATCH_SIZE, batch_rows, decoded_batches
from clipmill.train.eval_data.samples import Samples
from clipmill.train.evaluation.tasks import mean_of_prompts, read_samples
from clipmill.train.formats.model_files import load_model
from clipmill.train.model.open_clip_model import AnyModel, text_tokenizer
from clipmill.train.trainer.loop import lock_towers
from clipmill.train.transforms import normalise
from clipmill.verdict.stats.groups import LinearFit

BATCH = 1024  # most pairs whose loss is computed together: more negatives change little


def group_influence(
    runs: Sequence[str], groups: Blend, task: TaskSpec, *, pairs: int, device: torch.device
) -> tuple[LinearFit, FloatArray, Integers]:
    """What a pair more of each view of `groups`, in the place of a mean one, does to a task's
    log-probability of the right class: the mean over the models of some runs. It is known up to a
    factor: in each run the mean size over the pairs is 1. Then the (G,) mean losses of the groups'
    pairs, and how many were drawn.

    pairs: drawn for each run, in its batches and crops. The covariance holds what the draw of the
    pairs leaves open and, where there are several runs, what their models do. ValueError for fewer
    than two groups, another kind of task, a run that has not finished or is not finite, and a group
    of which fewer than two pairs were drawn.
    """
    if len(groups.views) < 2:
        raise ValueError("one group has no influence but that of the mean pair; name two or more")
    if pairs < 2:
        raise ValueError(f"pairs is {pairs}; it must be at least 2, better some thousands")
    if task.kind != "classification":
        raise ValueError(
            f"task {task.name!r} is of the kind {task.kind}; gradients are taken of the "
            "log-probability of the right class, which only the kind classification has"
        )
    rows = [_of_run(run, groups, task, pairs, device) for run in runs]
    influence_RG, error_RG, loss_RG, pairs_RG = map(np.array, zip(*rows, strict=True))
    count, drawn_G = len(runs), pairs_RG.sum(axis=0)
    worth_G = influence_RG.mean(axis=0)
    variance_G, df = (error_RG**2).mean(axis=0), int(drawn_G.min()) - 1
    free = len(worth_G) - 1  # one less than the groups: the mean pair's is 0
    between = influence_RG.var(axis=0, ddof=1).sum() / free if count > 1 else 0.0
    if between > variance_G.mean():  # models differ by more than their pairs, in all groups alike
        variance_G += between - variance_G.mean()
        df = (count - 1) * free
    covariance_GG = np.diag(variance_G / count)
    fit = LinearFit(worth_G=worth_G, covariance_GG=covariance_GG, df=df)
    return fit, loss_RG.mean(axis=0), drawn_G


def _of_run(
    run: str, groups: Blend, task: TaskSpec, pairs: int, device: torch.device
) -> tuple[FloatArray, FloatArray, FloatArray, Integers]:
    """(G,) of each group: its influence by the model of a run, the standard error of that, the mean
    loss, the number of pairs.
    """
    names = list(groups.views)
    model = load_model(run)
    stored = read_document(RunLayout(run).run_json, RunRecord).config
    config: TrainConfig = disk.from_plain(TrainConfig, {**disk.to_plain(TrainConfig()), **stored})
    lock_towers(model, config)
    model.to(device).eval()
    direction = metric_gradient(model, read_samples(task), device)
    group_of = {name: number for number, name in enumerate(names)}
    parts: list[FloatArray] = []
    group_N: list[int] = []
    for batch in RunLoader(groups, _loading(config, pairs), model.config).batches():
        both = moved_losses(model, config.loss, direction, batch.image_BHWC, batch.tokens_BT)
        parts.append(torch.stack(both).double().cpu().numpy())
        group_N += [group_of[key.rpartition(":")[0]] for key in batch.keys]
    (losses, moves), groups_of_pairs = np.concatenate(parts, axis=1), np.array(group_N)
    counts = np.bincount(groups_of_pairs, minlength=len(names))
    for name, count in zip(names, counts.tolist(), strict=True):
        if count < 2:
            raise ValueError(f"{count} of {pairs} pairs are of group {name}; draw more (--pairs)")
    if not np.isfinite(moves).all():
        raise ValueError(f"the gradients of {run} are not finite; its weights are broken")
    values = moves.mean() - moves  # a step against the gradient
    mean_G = np.bincount(groups_of_pairs, values, len(names)) / counts
    size = float(np.abs(mean_G) @ counts) / len(values)
    squares_G = np.bincount(groups_of_pairs, (values - mean_G[groups_of_pairs]) ** 2)
    loss_G = np.bincount(groups_of_pairs, losses) / counts
    return mean_G / size, np.sqrt(squares_G / (counts - 1) / counts) / size, loss_G, counts


def _loading(config: TrainConfig, pairs: int) -> TrainConfig:
    """The settings of a run as far as they decide what a batch holds."""
    batch = min(config.batch_size, BATCH, pairs)
    return dataclasses.replace(
        config,
        batch_size=batch,
        lanes=math.gcd(batch, config.lanes),
        samples_seen=pairs // batch * batch,
        warmup=0,
        schedule="cosine",
        cooldown=0,
        cooldown_power=1.0,
        cooldown_end_lr=0.0,
        read_cache=None,
    )


# --- what is differentiated -----------------------------------------------------------------------


def metric_gradient(model: AnyModel, samples: Samples, device: torch.device) -> dict[str, Tensor]:
    """The gradient of the mean log-probability of the right class over all images of a zero-shot
    classification: name of each trained parameter -> its part.
    """
    tokenize, most = text_tokenizer(model.config), map(len, samples.own_prompts)
    step = max(1, BATCH_SIZE // max(len(samples.templates), *most, 1))
    chunks = [slice(start, start + step) for start in range(0, len(samples.classes), step)]

    def vectors_of(classes: slice) -> Tensor:
        prompts = [samples.prompts_of(name) for name in samples.classes[classes]]
        texts = [text for of_class in prompts for text in of_class]
        vectors_NE = model.encode_text(tokenize(texts).to(device))
        return mean_of_prompts(vectors_NE, list(map(len, prompts)))

    model.zero_grad()
    with torch.no_grad():
        class_CE = torch.cat([vectors_of(chunk) for chunk in chunks])
    class_CE.requires_grad_()
    label_N = torch.tensor(samples.labels)
    for batch in decoded_batches(samples.images, model.config, batch_rows(len(label_N))):
        image_BE = model.encode_image(_pixels(model, torch.from_numpy(batch.image_BHWC), device))
        logits_BC = model.logit_scale.exp() * image_BE @ class_CE.T
        loss = F.cross_entropy(logits_BC, label_N[batch.rows].to(device), reduction="sum")
        (-loss / len(label_N)).backward()
    assert class_CE.grad is not None
    for chunk in chunks:  # again, with gradients, a chunk at a time: there may be 80,000 prompts
        vectors = vectors_of(chunk)
        if vectors.requires_grad:
            vectors.backward(class_CE.grad[chunk])
    gradient = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is not None
    }
    model.zero_grad()
    return gradient


def moved_losses(
    model: AnyModel,
    kind: Literal["clip", "siglip"],
    direction: Mapping[str, Tensor],
    image_BHWC: Tensor,
    tokens_BT: Tensor,
) -> tuple[Tensor, Tensor]:
    """(B,) the loss of each pair, and the derivative of what it adds along a direction."""
    weights = {name: part.detach() for name, part in model.named_parameters() if name in direction}
    device = model.logit_scale.device

    def outputs(
        weights: dict[str, Tensor], image_BCHW: Tensor, tokens_BT: Tensor
    ) -> tuple[Tensor, ...]:
        computed = functional_call(model, weights, (image_BCHW, tokens_BT))
        return tuple(part for part in computed if part is not None)

    pieces = []
    with torch.no_grad(), _differentiable_attention():
        for rows in batch_rows(len(image_BHWC)):
            image_BCHW = _pixels(model, image_BHWC[rows], device)
            of_rows = partial(outputs, image_BCHW=image_BCHW, tokens_BT=tokens_BT[rows].to(device))
            pieces.append(jvp(of_rows, (weights,), (dict(direction),)))
        whole = []  # the features of all pairs, the scale and the bias; then how they move
        for side in zip(*pieces, strict=True):
            image_bE, text_bE, *rest = zip(*side, strict=True)
            whole.append((torch.cat(image_bE), torch.cat(text_bE), *(each[0] for each in rest)))
        of_pairs = jvp(partial(pair_losses, kind), *whole)  # both losses; then how they move
    return of_pairs[0][0], of_pairs[1][1]


def pair_losses(
    kind: Literal["clip", "siglip"],
    image_BE: Tensor,
    text_BE: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(B,) the share of each pair in the loss of a batch, of which it is the mean; and (B,) what it
    adds to the sum of these: the derivative by its weight, as a pair and as a negative of others.
    """
    logits_BB = scale * image_BE @ text_BE.T
    own_B = logits_BB.diagonal()
    if kind == "siglip":
        assert bias is not None
        loss_BB = F.softplus(logits_BB + bias)
        both_B = loss_BB.sum(dim=0) + loss_BB.sum(dim=1)
        # Its own entry has the other sign. Those with others are shared by halves.
        positive_B = own_B + bias
        return both_B / 2 - positive_B, both_B - loss_BB.diagonal() - positive_B
    loss_B = (logits_BB.logsumexp(dim=1) + logits_BB.logsumexp(dim=0)) / 2 - own_B
    of_row_BB, of_column_BB = logits_BB.softmax(dim=1), logits_BB.softmax(dim=0)
    taken_B = of_row_BB.sum(dim=0) + of_column_BB.sum(dim=1)  # by what others take for it
    taken_B = taken_B - of_row_BB.diagonal() - of_column_BB.diagonal()
    return loss_B, loss_B + taken_B / 2


def _pixels(model: AnyModel, image_BHWC: Tensor, device: torch.device) -> Tensor:
    config = model.config
    return normalise(image_BHWC.to(device), config.image_mean, config.image_std)


@contextlib.contextmanager
def _differentiable_attention() -> Iterator[None]:
    """Kernels of attention that have a forward derivative: the fused ones have none."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            # torch's own, of the derivatives that it compiles by a function that it deprecates
            warnings.filterwarnings("ignore", "`torch.jit.script` is", FutureWarning)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
