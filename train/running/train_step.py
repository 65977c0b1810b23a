"""One step of a run: gradients, the check that they are finite, the new weights.

The numbers of a step (loss, norm, whether a rank shall stop) are means over the ranks, on the
device. On a CPU they are read before the weights are changed. On a GPU the host would wait for the
device there, so they are read one step late: the optimizer skips a step that is not finite by a
flag on the device, and the run ends when the host has read that step's numbers. By then one more
step has been computed and thrown away, and no weight has changed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from train.dist import process_group
from train.pixels import normalise
from train.running.nonfinite import report_nonfinite
from train.running.train_state import (
    SaveTimer,
    StopRequest,
    TrainState,
    count_damage,
    refuse_damage,
)
from train.step import (
    Captions,
    ReadyBatch,
    accumulate,
    contrastive,
    learning_rate,
    precision_context,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """The means over the ranks of what a step has computed, in host memory."""

    loss: float
    accuracy: float
    grad_norm: float
    stopping: float  # share of the ranks that were asked to stop
    save_due: float  # above 0 where rank 0 finds that it is time for a checkpoint
    damaged: float  # samples of a rank that could not be used
    logit_scale: float | None = None  # after the step, where it was read with the others

    @property
    def finite(self) -> bool:
        """Whether loss and gradients are."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass(slots=True, kw_only=True, eq=False)
class LaunchedStep:
    """A step whose gradients are computed, or on a GPU: will be."""

    ready: ReadyBatch
    waited: float  # seconds that training waited for the batch
    features: dict[str, Tensor]  # BE of this rank, by tower
    norm: Tensor
    means: Tensor  # all numbers but the logit scale
    numbers: Tensor | None = None  # all numbers, on their way to the host
    arrived: torch.cuda.Event | None = None

    @property
    def step(self) -> int:
        """The number of the step, from 0."""
        return self.ready.batch.step


class StepRunner:
    """Makes the steps of a run. `finished` is called with each step, in their order, and with its
    numbers, once these are read; the weights are then those after that step or after a later one.
    """

    def __init__(
        self,
        state: TrainState,
        stop: StopRequest,
        timer: SaveTimer,
        finished: Callable[[LaunchedStep, StepNumbers], None],
    ) -> None:
        self.state, self.late = state, reads_late(state)
        self.stopping = self.save_due = False
        self._stop, self._timer, self._finished = stop, timer, finished
        self._unread: LaunchedStep | None = None

    def step(self, ready: ReadyBatch, waited: float) -> None:
        """Gradients of a batch, then the step of the optimizer.

        NonFinite and ValueError (too many damaged samples) are of this step, or where numbers are
        read late of the one before; the weights are then those before that step.
        """
        launched = self._launch(ready, waited)
        if self.late:
            self.read()
            self._update_unread(launched)
            self._unread = launched
        else:
            self._read_and_update(launched)

    def read(self) -> None:
        """Read the numbers of the last step if that has not been done."""
        launched, self._unread = self._unread, None
        if launched is None:
            return
        assert launched.numbers is not None
        if launched.arrived is not None:
            launched.arrived.synchronize()
        numbers = _numbers_of(launched.numbers)
        self._count(launched, numbers)
        if not numbers.finite:
            self._raise_nonfinite(launched, numbers)
        self._finished(launched, numbers)

    def _launch(self, ready: ReadyBatch, waited: float) -> LaunchedStep:
        ready.begin()
        result = _backward(self.state, ready)
        device, update = self.state.ranks.device, self.state.update
        norm = update.grad_norm()
        flags = (
            float(self._stop.number is not None),
            float(self._timer.due()),
            float(ready.batch.damaged),
        )
        # torch.full fills on the device: nothing is copied from the host.
        flags_on_device = [torch.full((), flag, device=device) for flag in flags]
        values = [result.loss.float(), result.accuracy, norm.float(), *flags_on_device]
        return LaunchedStep(
            ready=ready,
            waited=waited,
            features={"image": result.image_bE.detach(), "text": result.text_bE.detach()},
            norm=norm,
            means=process_group.mean(torch.stack(values), self.state.ranks),
        )

    def _read_and_update(self, launched: LaunchedStep) -> None:
        """Change the weights once the host knows that the gradients are finite."""
        state = self.state
        numbers = _numbers_of(launched.means)
        self._count(launched, numbers)
        if numbers.finite:
            rate = learning_rate(state.config, launched.step)
            state.update.step(launched.step, rate, launched.norm)
        elif math.isfinite(numbers.loss) and state.update.may_skip():
            state.update.skip()
        else:
            self._raise_nonfinite(launched, numbers)
        self._finished(launched, numbers)

    def _update_unread(self, launched: LaunchedStep) -> None:
        """Change the weights unless the device finds a number that is not finite."""
        state = self.state
        skip = (~torch.isfinite(launched.means[:3]).all()).float()
        rate = learning_rate(state.config, launched.step)
        state.update.step(launched.step, rate, launched.norm, skip)
        scale = state.model.logit_scale.detach().to(launched.means)
        numbers = torch.cat([launched.means, scale.reshape(1)])
        if numbers.is_cuda:
            on_host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            launched.numbers = on_host.copy_(numbers, non_blocking=True)
            launched.arrived = torch.cuda.Event()
            launched.arrived.record()
        else:
            launched.numbers = numbers

    def _count(self, launched: LaunchedStep, numbers: StepNumbers) -> None:
        """Take over what the ranks agreed on. ValueError for too many damaged samples."""
        self.stopping = self.stopping or numbers.stopping > 0
        self.save_due = self.save_due or numbers.save_due > 0
        count_damage(self.state, launched.ready.batch, numbers.damaged)
        if numbers.damaged > 0:
            refuse_damage(self.state, launched.step)

    def _raise_nonfinite(self, launched: LaunchedStep, numbers: StepNumbers) -> None:
        """Raise NonFinite with the report of the step. A collective."""
        state = self.state
        if self.late:
            # The gradients are those of the next step by now. The weights have not changed, so this
            # step can be computed again.
            state.model.zero_grad(set_to_none=True)
            result = _backward(state, launched.ready)
            launched.features = {"image": result.image_bE, "text": result.text_bE}
        error = report_nonfinite(
            state.out,
            state.ranks,
            state.model,
            launched.ready.batch,
            numbers.loss,
            numbers.grad_norm,
            launched.features,
        )
        state.saver.finish()
        raise error


def _numbers_of(values: Tensor) -> StepNumbers:
    names = (field.name for field in dataclasses.fields(StepNumbers))
    return StepNumbers(**dict(zip(names, values.tolist(), strict=False)))


def reads_late(state: TrainState) -> bool:
    """Whether the numbers of a step are read one step late."""
    return state.ranks.device.type == "cuda" and state.update.skips_on_device


def _backward(state: TrainState, ready: ReadyBatch) -> accumulate.BackwardResult:
    """Forward and backward of a batch: the gradients of this rank are in the parameters."""
    config, device, model = state.config, state.ranks.device, state.model
    assert config.micro_batch != "auto"
    first_row = state.ranks.data_parallel.rank * len(ready)  # of this rank, in the global batch
    mean, std = model.config.image_mean, model.config.image_std

    def prepare(image_BHWC: Tensor) -> Tensor:
        return normalise(image_BHWC, mean, std)

    def model_inputs(rows: slice) -> tuple[Tensor, Captions]:
        start, end = first_row + rows.start, first_row + rows.stop
        model.reseed(config.seed, ready.batch.step, torch.arange(start, end, device=device))
        return ready.inputs(rows, prepare)

    loss_of = functools.partial(
        contrastive,
        config.loss,
        data_parallel=state.ranks.data_parallel,
        local_loss=config.local_loss,
        gather_with_grad=config.gather_with_grad,
        tile=config.loss_tile,
    )
    return accumulate.backward(
        state.wrapped,
        model_inputs,
        len(ready),
        loss_of,
        micro_batch=config.micro_batch,
        precision=lambda: precision_context(config, device),
        loss_scale=state.update.loss_scale(),
    )
