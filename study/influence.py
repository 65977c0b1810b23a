"""What groups of training pairs do to a zero-shot task, from gradients of trained models alone: a
folder of an ablation in, with no run more, a table of groups out, and how well it ranks the runs
that exist.

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
from dataclasses import dataclass
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
from clipmill.manifests.metrics import METRICS, deciding_metric
from clipmill.manifests.records import RunRecord, read_document
from clipmill.manifests.schema import Blend, TaskSpec
from clipmill.study.arms import Run, all_runs
from clipmill.study.pair_groups import PairGroup, group_shares, read_groups
from clipmill.study.results import Study
from clipmill.train.config import TrainConfig
from clipmill.train.data.loader import RunLoader
from clipmill.train.eval_data.images import BATCH_SIZE, batch_rows, decoded_batches
from clipmill.train.eval_data.samples import Samples
from clipmill.train.evaluation.tasks import mean_of_prompts, read_samples
from clipmill.train.formats.model_files import load_model
from clipmill.train.model.open_clip_model import AnyModel, text_tokenizer
from clipmill.train.trainer.loop import lock_towers
from clipmill.train.transforms import normalise
from clipmill.verdict.stats.groups import Estimate, LinearFit, parts_of_gain, spearman
from clipmill.verdict.stats.model import Values, fit_additive

BATCH = 1024  # most pairs whose loss is computed together: more negatives change little
METRIC = "logprob"  # of the right class: the metric that is differentiated
FEWEST = 5  # arms whose order says something
DRAWS = 2000  # of the bootstrap over arms


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGradient:
    """A group by the gradients.

    base, arm: its share of the samples of the baseline and of the arm. influence: of a pair of it
    in the place of a mean one, where the mean size over all pairs is 1. part: its
    share of what the gradients say the arm gained; None where that is not clearly other than 0.
    loss: the mean of its pairs, of which `pairs` were drawn.
    """

    group: PairGroup
    base: float
    arm: float
    influence: Estimate
    part: Estimate | None
    loss: float
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAgreement:
    """How well the arms that were run are ranked: Spearman's correlation of predicted and measured
    metric, with an interval from a bootstrap over the arms.

    by_loss: the prediction that a group is worth the less, the higher the mean loss of its pairs:
    that knows nothing of the task.
    """

    metric: str
    by_gradients: Estimate
    by_loss: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientAnswer:
    """Why an arm differs from the baseline, by the gradients of the baseline's runs.

    gain: predicted, in the unit of the influences; None where the arm has the baseline's shares of
    the groups, which leaves nothing to attribute. judges: for log-probability and the metric that
    decides, over `others`, the arms beside the baseline that were run; none for fewer than FEWEST.
    outside: the shares of the samples of baseline and arm that are in no group.
    """

    arm: str
    baseline: str
    task: str
    runs: int
    groups: tuple[GroupGradient, ...]
    gain: Estimate | None
    others: int
    judges: tuple[RankAgreement, ...]
    outside: tuple[float, float]


def explain_by_gradients(
    study: Study,
    arm: str,
    views: Sequence[str],
    *,
    pairs: int,
    device: torch.device,
) -> GradientAnswer:
    """What the groups have of the gain of an arm on the baseline.

    views: the groups, as POOL/VIEW; none: the sources of the ablation's `mixtures`. pairs: drawn
    for each run. ValueError for an arm that is not trained, for groups that have a row in common,
    and where no run of the baseline has finished.
    """
    ablation, folder = study.ablation, study.folder
    runs = [run for run in all_runs(ablation, folder) if isinstance(run, Run)]
    blends = {run.arm: run.blend for run in runs}
    for name in (arm, ablation.baseline):
        if name not in blends:
            hint = disk.did_you_mean(name, list(blends))
            if name in ablation.arms:
                hint = f", and nothing says what it saw: try `clipmill why {folder} {name}`"
            raise ValueError(f"arm {name!r} is not trained by this ablation{hint}")
    groups = read_groups(ablation, folder, views)
    finished = [
        run.out
        for run in runs
        if run.arm == ablation.baseline and disk.exists(RunLayout(run.out).run_json)
    ]
    if not finished:
        raise ValueError(f"no run of the baseline {ablation.baseline!r} has finished in {folder}")
    whole = group_shares(groups, blends)
    inside = {
        name: shares_G / shares_G.sum() for name, shares_G in whole.items() if shares_G.sum() > 0
    }
    for name in (arm, ablation.baseline):
        if name not in inside:
            raise ValueError(f"no sample of {name!r} is in a group; name others with --groups")
    task = ablation.primary_task
    blend = Blend(
        name="groups",
        pools={group.name.partition("/")[0]: group.folder for group in groups},
        views={group.name: 1.0 for group in groups},
        weights="repeats",
    )
    fit, loss_G, drawn_G = group_influence(finished, blend, task, pairs=pairs, device=device)
    base_G, arm_G = inside[ablation.baseline], inside[arm]
    change_G = arm_G - base_G
    gain = fit.estimates(change_G[None])[0] if np.abs(change_G).max() > 1e-9 else None
    parts_GG = parts_of_gain(base_G, arm_G)
    mean_GG = np.eye(len(groups)) - base_G  # each group in the place of the baseline's mean pair
    rows = []
    for number, influence in enumerate(fit.estimates(mean_GG)):
        clear = gain is not None and gain.is_clear
        rows.append(
            GroupGradient(
                group=groups[number],
                base=float(whole[ablation.baseline][number]),
                arm=float(whole[arm][number]),
                influence=influence,
                part=fit.ratio(parts_GG[number], change_G) if clear else None,
                loss=float(loss_G[number]),
                pairs=int(drawn_G[number]),
            )
        )
    with_runs = dict.fromkeys(name for name, _ in study.measurements.runs)
    others = [name for name in with_runs if name in inside and name != ablation.baseline]
    judges: list[RankAgreement] = []
    for metric in dict.fromkeys((METRIC, deciding_metric(task))):
        if len(others) >= FEWEST:
            of_all = study.measurements.values(task.name, metric)
            values = {name: of_all[name] for name in others}
            judges.append(_rank_agreement(metric, values, inside, fit.worth_G, -loss_G))
    return GradientAnswer(
        arm=arm,
        baseline=ablation.baseline,
        task=task.name,
        runs=len(finished),
        groups=tuple(rows),
        gain=gain,
        others=len(others),
        judges=tuple(judges),
        outside=(float(1 - whole[ablation.baseline].sum()), float(1 - whole[arm].sum())),
    )


def _rank_agreement(
    metric: str,
    values: Values,
    shares: Mapping[str, FloatArray],
    *worths: FloatArray,
) -> RankAgreement:
    level = fit_additive(values)
    measured_N = level.effects if METRICS[metric].higher_is_better else -level.effects
    shares_NG = np.array([shares[arm] for arm in level.arms])
    drawn = np.random.default_rng(0).integers(0, len(measured_N), (DRAWS, len(measured_N)))
    ranks = []
    for worth_G in worths:
        predicted_N = shares_NG @ worth_G
        again = [spearman(predicted_N[each], measured_N[each]) for each in drawn]
        low, high = np.nanquantile(again, [0.025, 0.975]).tolist()
        ranks.append(Estimate(value=spearman(predicted_N, measured_N), low=low, high=high))
    return RankAgreement(metric=metric, by_gradients=ranks[0], by_loss=ranks[1])


# --- of the groups, by the models of some runs ----------------------------------------------------


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
