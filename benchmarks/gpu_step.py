"""One measurement of `gpu.py`, in a process of its own: a program's training steps, their speed,
memory and profile.

The first line of the input is the job; then `prepare SECONDS BATCH` (0: search for it), `repeat`
and `profile` are answered with a line of JSON each. What anything prints goes to the error output.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

import torch
from torch import nn

from benchmarks.gpu_kernels import kind_of
from clipmill.bench.synthetic import SyntheticLoader, draw_captions
from clipmill.manifests.schema import Blend
from clipmill.train.config import TrainConfig, configure, model_config
from clipmill.train.data.loader import RunLoader
from clipmill.train.formats.open_clip_files import open_clip_config
from clipmill.train.model.clip import CLIP, LOGIT_SCALE
from clipmill.train.model.memory import training_flops
from clipmill.train.parallel.checkpoint import Saver
from clipmill.train.parallel.parallelism import parallelize
from clipmill.train.parallel.process_group import Ranks
from clipmill.train.step.feed import Feed
from clipmill.train.step.update import Update
from clipmill.train.trainer.loop import Records, SaveTimer, StepRunner, StopRequest, TrainState
from clipmill.train.transforms import fast_jpeg

MOST_LANES = 64
UNIT = 64  # a batch that was searched for is a multiple of it
FIRST, ROOM = 0.88, 0.94  # shares of the memory that the first and the second batch are made for
VARIETY = 4  # batches of captions in turn, so that packed ones differ in size


class Ours:
    """clipmill's step: the trainer's own feed, step, optimizer and log, on one rank."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.device = job, torch.device(job["device"])
        self.model_config = model_config(configure({"model": job["model"]}))
        self.model = _empty(self.model_config, self.device, job["attention"])
        self.work, self.waited = training_flops(self.model_config), 0.0
        self._ranks = Ranks(rank=0, world=1, device=self.device, owns_group=False)
        self._folder = tempfile.mkdtemp(dir=job["folder"])
        self._state: TrainState | None = None
        self._open = contextlib.ExitStack()  # the feed and the log of the present batch size
        self.begin()

    def _configured(self, batch: int) -> TrainConfig:
        return configure(
            {
                "model": self.job["model"],
                "precision": self.job["precision"],
                "captions": self.job["captions"],
                "attention": self.job["attention"],
                "batch_size": batch,
                "lanes": math.gcd(MOST_LANES, batch),
                "samples_seen": batch * 1_000_000,
                "threads": os.cpu_count() or 1,
                "device": self.job["device"],
            }
        )

    def compile(self) -> None:
        """Every block by itself, as a run does."""
        config = dataclasses.replace(self._configured(1), compile="inductor")
        parallelize(self.model, self._ranks, config)

    def load(self, batch: int) -> None:
        """Have so many samples a step."""
        self._open.close()
        self.batch, config = batch, self._configured(batch)
        loader = self._loader(config)
        if self._state is None:
            self._state = TrainState(
                config=config,
                out=self._folder,
                ranks=self._ranks,
                loader=loader,
                model=self.model,
                wrapped=self.model,
                used_tokens=None,
                reduced_table=None,
                update=Update(self.model, config),
                saver=Saver(self._folder, self._ranks, config.keep_checkpoints),
                identity={},
            )
        state = self._state
        state.config, state.loader = config, loader
        records = Records(state)
        self._open.callback(records.close)
        self.feed = Feed(config, self.device).batches(loader.batches())
        self._open.callback(self.feed.close)
        self.runner = StepRunner(state, StopRequest(0), SaveTimer(config), records.finished)

    def _loader(self, config: TrainConfig) -> RunLoader:
        if self.job["data"] == "shards":
            blend = Blend(name="bench", pools={"pool": self.job["pool"]}, views={"pool/all": 1.0})
            return RunLoader(blend, config, self.model_config)
        # It has what a run uses of a loader.
        made = SyntheticLoader(config, self.model_config, device=self.device)
        return cast("RunLoader", made)

    def begin(self) -> None:
        """Start a repeat: forget what was counted."""
        self.waited, self._operations, self._tokens, self._samples = 0.0, 0.0, 0, 0

    def step(self) -> None:
        """The next batch of the feed, and the trainer's step with it."""
        began = time.perf_counter()
        ready = next(self.feed)
        waited = time.perf_counter() - began
        self.waited += waited
        self.runner.step(ready, waited)
        length_B = ready.batch.length_B
        self._operations += self.work.batch(length_B, self.job["captions"])
        self._tokens += int(length_B.sum())
        self._samples += len(length_B)

    def settle(self) -> None:
        """Read the numbers of the last step, which a GPU gives one step late."""
        self.runner.read()

    @property
    def flops(self) -> float:
        """Operations of a sample, over the steps that were counted."""
        return self._operations / self._samples

    @property
    def mean_tokens(self) -> float:
        """Tokens of a caption, over the steps that were counted."""
        return self._tokens / self._samples

    def reset(self) -> None:
        """Forget a batch that did not fit."""
        self._open.close()
        self.model.zero_grad(set_to_none=True)
        del self.feed, self.runner
        assert self._state is not None
        self._state.loader = None  # type: ignore[assignment]

    def feeder(self, seconds: float) -> dict[str, Any]:
        """The loader alone: what it decodes a second."""
        for _ in range(6):  # those that are under way
            next(self.feed)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            count += len(next(self.feed))
        decoder = "Pillow" if fast_jpeg() is None else "simplejpeg"
        rate = count / (time.perf_counter() - began)
        threads = self.runner.state.config.threads
        return {"loader_samples_per_s": rate, "decoder": decoder, "threads": threads}


class Theirs:
    """open_clip's step, as open_clip_train/train.py takes it with --torchcompile and no
    --grad-checkpointing.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        import open_clip

        self.job, self.device = job, torch.device(job["device"])
        if self.device.type == "cuda":  # as its main.py has them
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.benchmark = True
        self.version = open_clip.__version__
        self.model_config = model_config(configure({"model": job["model"]}))
        with self.device:
            made = open_clip.CLIP(
                **open_clip_config(self.model_config)["model_cfg"], output_dict=True
            )
        self.model: nn.Module = made.train()
        self.bare = made
        self.loss_of = open_clip.ClipLoss(local_loss=True, gather_with_grad=True, cache_labels=True)
        spared = ("bn", "ln", "bias", "logit_scale")
        named = [
            (p.ndim < 2 or any(word in n for word in spared), p) for n, p in made.named_parameters()
        ]
        groups = [
            {"params": [p for plain, p in named if plain], "weight_decay": 0.0},
            {"params": [p for plain, p in named if not plain], "weight_decay": 0.2},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=5e-4, betas=(0.9, 0.98), eps=1e-6)
        self.work, self.number = training_flops(self.model_config, whole=True), 0
        self.waited = 0.0

    def compile(self) -> None:
        """The whole model, as its command does."""
        self.model = torch.compile(self.bare)

    def load(self, batch: int) -> None:
        """Have so many samples a step: pictures as its loader gives them, normalised in 32 bits."""
        self.batch = batch
        context, vocabulary = self.model_config.context_length, self.model_config.vocab_size
        drawn = [draw_captions(batch, context, vocabulary, seed) for seed in range(VARIETY)]
        self.tokens = [tokens_BT.to(self.device) for tokens_BT, _ in drawn]
        self.flops = self.work.sample(context)
        self.mean_tokens = float(torch.cat([length_B for _, length_B in drawn]).double().mean())
        self.image = torch.randn((batch, 3, *self.model_config.height_width), device=self.device)

    def step(self) -> None:
        """Forward, loss, backward, AdamW, clamp."""
        self.optimizer.zero_grad()
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.job["precision"] == "bf16"
        ):
            features = self.model(self.image, self.tokens[self.number % VARIETY])
            loss = sum(self.loss_of(**features, output_dict=True).values())
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            self.bare.logit_scale.clamp_(0, 4.605170185988092)
        self.number += 1

    def begin(self) -> None:
        """Start a repeat."""

    def settle(self) -> None:
        """Nothing of a step is left to be read."""

    def reset(self) -> None:
        """Forget a batch that did not fit."""
        self.optimizer.zero_grad()
        self.loss_of.labels.clear()
        self.tokens, self.image = [], torch.empty(0)


def _empty(config: Any, device: torch.device, attention: Any) -> CLIP:
    """A model whose numbers are drawn where it lies: 1.4 billion in main memory would take 15 s."""
    if device.type == "cpu":
        return CLIP(config, 0, attention=attention).train()
    with torch.device("meta"):
        model = CLIP(config, attention=attention)
    model.to_empty(device=device)
    with torch.no_grad():
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                if isinstance(module, nn.LayerNorm) and parameter is module.weight:
                    parameter.fill_(1)
                elif parameter.ndim < 2:
                    parameter.zero_()
                else:
                    parameter.normal_(0, parameter.shape[-1] ** -0.5)
        model.text.token_embedding.weight.normal_(0, 0.02)
        model.logit_scale.fill_(LOGIT_SCALE)
    return model.train()


# --- a batch that fits ----------------------------------------------------------------------------


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _steps(program: Any, count: int) -> float:
    """Seconds of so many steps."""
    _wait(program.device)
    began = time.perf_counter()
    for _ in range(count):
        program.step()
    program.settle()
    _wait(program.device)
    return time.perf_counter() - began


def _tried(program: Any, batch: int, count: int) -> int | None:
    """The most memory that steps of this batch held, None where it does not fit."""
    try:
        program.load(batch)
        _steps(program, 1)
        torch.cuda.reset_peak_memory_stats()
        _steps(program, count)
        return torch.cuda.max_memory_allocated()
    except torch.OutOfMemoryError:
        pass
    program.reset()
    gc.collect()
    torch.cuda.empty_cache()
    return None


def _forget() -> None:
    torch._dynamo.reset()


def _room() -> int:
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved()


def search(program: Any, until: float) -> dict[str, Any]:
    """Compile for the largest batch that fits: from two small ones without compiling, then once
    more where it pays.
    """
    room = _room()
    one, two = (_tried(program, batch, 1) for batch in (UNIT, 2 * UNIT))
    if one is None or two is None:
        raise MemoryError(f"a batch of {2 * UNIT} does not fit")
    each = max(1.0, (two - one) / UNIT)
    fixed = one - each * UNIT
    batch = max(UNIT, int((FIRST * room - fixed) / each) // UNIT * UNIT)
    if program.job["compile"]:
        program.compile()
    sizes: list[list[int | None]] = [[UNIT, one], [2 * UNIT, two]]
    began = time.perf_counter()
    while (measured := _tried(program, batch, 1)) is None:
        sizes.append([batch, None])
        _forget()  # sizes stay constants: a second one would make kernels for any size
        batch = int(batch * 0.85) // UNIT * UNIT
        if batch < UNIT:
            raise MemoryError("not even the smallest batch fits once compiled")
    took = time.perf_counter() - began
    sizes.append([batch, measured])
    larger = int(batch * (ROOM * room - fixed) / max(1.0, measured - fixed)) // UNIT * UNIT
    if larger >= 1.1 * batch and time.perf_counter() + 2 * took < until:
        _forget()
        measured = _tried(program, larger, 1)
        sizes.append([larger, measured])
        if measured is None:
            _forget()
            program.load(batch)
        else:
            batch = larger
    return {"batch": batch, "tried": sizes}


# --- answers --------------------------------------------------------------------------------------


def prepare(program: Any) -> dict[str, Any]:
    """Find a batch, compile, warm up, and choose how many steps make a repeat."""
    job, began = program.job, time.perf_counter()
    answer: dict[str, Any] = {}
    if not job["batch"]:
        answer = search(program, began + job["limit_s"] * 0.6)
    else:
        answer["batch"] = job["batch"]
        program.load(job["batch"])
        if job["compile"]:
            program.compile()
    # With shards until the batches that were read ahead are used up
    _steps(program, 3 if job["data"] == "memory" else 10)
    seconds = _steps(program, 2) / 2
    program.count = max(2, round(job["seconds"] / seconds))
    if program.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    parameters = sum(p.numel() for p in program.model.parameters())
    if version := getattr(program, "version", None):
        answer["open_clip"] = version
    return {
        **answer,
        "parameters": parameters,
        "prepare_s": time.perf_counter() - began,
        "steps": program.count,
    }


def repeat(program: Any) -> dict[str, Any]:
    """One repeat: the steps' speed, and what they held and took."""
    program.begin()
    used = time.process_time()
    seconds = _steps(program, program.count)
    used = time.process_time() - used
    peak = torch.cuda.max_memory_allocated() if program.device.type == "cuda" else None
    return {
        "samples_per_s": program.count * program.batch / seconds,
        "samples_per_cpu_s": program.count * program.batch / used,
        "flops_per_sample": program.flops,
        "tokens_per_caption": program.mean_tokens,
        "wait_share": program.waited / seconds,
        "peak_memory_bytes": peak,
    }


def profile(program: Any) -> dict[str, Any]:
    """Of one step: the share of each kind of kernel, and the longest kernels."""
    if program.job["data"] == "shards":
        return program.feeder(3.0)
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    cuda = program.device.type == "cuda"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with recorded(activities=kinds) as record:
        wall = _steps(program, 1)
    rows = []
    for event in record.key_averages():
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        if getattr(event, "is_user_annotation", False) or (cuda and not on_gpu):
            continue
        time_us = event.self_device_time_total if cuda else event.self_cpu_time_total
        if time_us > 0:
            rows.append((time_us / 1e3, event.count, event.key))
    whole = sum(ms for ms, _, _ in rows) or 1.0
    shares = dict.fromkeys(["gemm", "attention", "norm_elementwise", "optimizer", "other"], 0.0)
    for ms, _, name in rows:
        shares[kind_of(name)] += ms / whole
    rows.sort(reverse=True)
    top = [
        {"kernel": name[:120], "kind": kind_of(name), "calls": count, "ms": ms, "share": ms / whole}
        for ms, count, name in rows[:15]
    ]
    return {"step_ms": wall * 1e3, "kernels_ms": whole, "shares": shares, "top": top}


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    sys.path += job["path"]
    torch.set_num_threads(job["threads"] or torch.get_num_threads())
    if job["program"] == "open_clip":
        import open_clip  # noqa: F401  (while the process before still measures)
    program: Any = None
    for command in sys.stdin:
        command, *words = command.split()
        if command == "prepare":
            job["limit_s"], job["batch"] = float(words[0]), int(words[1])
            program = (Ours if job["program"] == "ours" else Theirs)(job)
        answer = {"prepare": prepare, "repeat": repeat, "profile": profile}[command](program)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)  # no thread of a loader, and no allocator, has anything left to tidy up


if __name__ == "__main__":
    raise SystemExit(main())
