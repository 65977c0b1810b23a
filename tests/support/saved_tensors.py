"""What a real training step allocates on the CPU, as the profiler records every allocation."""

from __future__ import annotations

import dataclasses
import gc

import torch
from torch.profiler import ProfilerActivity, profile

from clipmill.train.config import model_config
from clipmill.train.model.clip import CLIP, pack_captions
from clipmill.train.parallel.parallelism import parallelize
from clipmill.train.parallel.process_group import Ranks
from clipmill.train.sizing.device_fit import step_shape
from clipmill.train.step import accumulate
from clipmill.train.step.loss import contrastive
from clipmill.train.step.update import Update, precision_context
from clipmill.train.trainer.loop import lock_towers

END = 49407


def tokens_of_lengths(lengths, context):
    """Captions of these lengths: ones, the highest number as the end, zeros behind it."""
    tokens_BT = torch.zeros(len(lengths), context, dtype=torch.long)
    for row, length in enumerate(lengths):
        tokens_BT[row, : length - 1] = 1
        tokens_BT[row, length - 1] = END
    return tokens_BT


def step_shape_of(config, lengths, device="cpu"):
    """What the settings and the captions say about memory."""
    tokens = float(max(lengths))
    if config.captions == "packed":
        tokens = sum(lengths) / len(lengths)
    shape = step_shape(config, ranks=1, kind=device)
    return dataclasses.replace(
        shape, samples=len(lengths), tokens=tokens, longest=max(lengths), loss_tile=config.loss_tile
    )


class Step:
    """A model with its captions and images in host memory, ready for one step."""

    def __init__(self, config, lengths, device="cpu"):
        self.config, self.device = config, torch.device(device)
        self.model = CLIP(model_config(config), attention=config.attention)
        ranks = Ranks(rank=0, world=1, device=self.device, owns_group=False)
        parallelize(self.model, ranks, config)
        lock_towers(self.model, config)
        height, width = self.model.config.height_width
        self.image_BHWC = torch.zeros(len(lengths), height, width, 3, dtype=torch.uint8)
        self.update = Update(self.model, config)  # it casts weights, where they have 16 bits
        self.tokens_BT = tokens_of_lengths(lengths, self.model.config.context_length)
        self.length_B = torch.tensor(list(lengths))

    def inputs(self, rows):
        """Images and captions of some samples, as the loop makes them."""
        self.model.reseed(0, 0, torch.arange(rows.start, rows.stop))
        image_BHWC = self.image_BHWC[rows].to(self.device)
        image_BCHW = image_BHWC.permute(0, 3, 1, 2).float().contiguous()
        tokens_BT, length_B = self.tokens_BT[rows], self.length_B[rows]
        if self.config.captions == "packed":
            return image_BCHW, pack_captions(tokens_BT, length_B).to(self.device)
        return image_BCHW, tokens_BT[:, : int(self.length_B.max())].to(self.device)

    def forward(self):
        """The outputs of one forward pass of all samples."""
        with precision_context(self.config, self.device):
            return self.model(*self.inputs(slice(0, len(self.length_B))))

    def backward(self):
        """Forward, loss and backward of a step."""
        accumulate.backward(
            self.model,
            self.inputs,
            len(self.length_B),
            lambda *outputs: contrastive("clip", *outputs, tile=self.config.loss_tile),
            micro_batch=self.config.micro_batch,
            precision=lambda: precision_context(self.config, self.device),
        )


class Allocations:
    """The allocations of a block of code on the CPU: what was left, and the highest sum."""

    def __enter__(self):
        gc.collect()  # what other code left must not be freed inside
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()
        return self

    def __exit__(self, *error):
        self._profile.__exit__(None, None, None)
        assert self._profile.profiler is not None
        events = self._profile.profiler.kineto_results.events()
        changes = [event for event in events if event.name() == "[memory]"]
        self.left = self.peak = 0
        for event in sorted(changes, key=lambda event: event.start_ns()):
            self.left += event.nbytes()
            self.peak = max(self.peak, self.left)


def retained(step):
    """Bytes that a forward pass leaves allocated: activations and copies of weights."""
    with Allocations() as allocations:
        outputs = step.forward()
    del outputs
    return allocations.left


def step_peak(step):
    """Bytes of weights and optimizer after a first step, and the peak of the second on top."""
    step.backward()
    step.update.step(1e-4, step.update.grad_norm())
    lasting = 0
    for parameter in step.model.parameters():
        lasting += parameter.numel() * parameter.element_size()
    for moments in step.update.state().values():
        lasting += sum(x.numel() * x.element_size() for x in moments.values())
    with Allocations() as allocations:
        step.backward()
    return lasting, allocations.peak
