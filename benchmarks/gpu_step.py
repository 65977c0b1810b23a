"""One measurement of `gpu.py`, in a process of its own: a program's training steps, their speed,
memory and profile.

The first line of the input is the job; then `prepare SECONDS BATCH` (0: search for it), `repeat`
and `profile` are answered with a line of JSON each. What anything prints goes to the error output.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import os
import re
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

import torch
from torch import Tensor, nn

from benchmarks import gpu_data
from manifests.schema import Blend
from train.config import TrainConfig, configure, model_config
from train.data import Batch, Loader
from train.dist import Ranks, parallelize
from train.formats import open_clip_config
from train.model import CLIP, LOGIT_SCALE, PackedCaptions, pack_captions, to_device, training_flops
from train.pixels import fast_jpeg, normalise
from train.step import Update, accumulate, contrastive, precision_context

UNIT = 64  # a batch that was searched for is a multiple of it
FIRST, ROOM = 0.88, 0.94  # shares of the memory that the first and the second batch are made for
VARIETY = 4  # batches of captions in turn, so that packed ones differ in size
# Kernels and operators by name; the first that fits counts. Inductor names a kernel after all that
# it fused.
KINDS = {
    "norm_elementwise": r"^triton_(poi|red|per)|layer_?norm|gamma",
    "attention": r"flash|fmha|sdpa|attention|varlen",
    "optimizer": r"adam|multi_tensor|foreach|lpnorm|vector_norm",
    "gemm": r"gemm|cutlass|nvjet|xmma|cublas|triton_tem|splitk|convol|conv2d|linear"
    r"|aten::(b|add|baddb)?mm$",
    "elementwise": r"elementwise|vectorized|reduce|softmax|gelu|cat|copy|fill|cast|cross_entropy|"
    r"aten::(add|sub|mul|div|exp|log|sum|mean|norm|clamp|neg|sqrt|to|zero|where|stack|argmax|eq)",
}


class Ours:
    """clipmill's step, as train/running/loop.py takes it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.device = job, torch.device(job["device"])
        self.model_config = model_config(configure({"model": job["model"]}))
        self.model = _empty(self.model_config, self.device, job["attention"])
        self.config = self._configured(1)
        self.update = Update(self.model, self.config)
        self.work, self.number, self.waited = training_flops(self.model_config), 0, 0.0
        self.batches: Generator[Batch] | None = None

    def _configured(self, batch: int) -> TrainConfig:
        lanes = next(n for n in (64, 32, 16, 8, 4, 2, 1) if batch % n == 0)
        settings = {
            "model": self.job["model"],
            "precision": self.job["precision"],
            "batch_size": batch,
            "lanes": lanes,
        }
        rest = {
            "samples_seen": batch * 1_000_000,
            "threads": os.cpu_count() or 1,
            "device": self.job["device"],
        }
        return configure({**settings, **rest})

    def compile(self) -> None:
        """Every block by itself, as a run does."""
        alone = Ranks(rank=0, world=1, device=self.device, owns_group=False)
        parallelize(self.model, alone, dataclasses.replace(self.config, compile="inductor"))

    def load(self, batch: int) -> None:
        """Have so many samples a step."""
        self.batch, self.config = batch, self._configured(batch)
        context, vocabulary = self.model_config.context_length, self.model_config.vocab_size
        if self.job["data"] == "shards":
            if self.batches is not None:
                self.batches.close()
            blend = Blend(name="bench", pools={"pool": self.job["pool"]}, views={"pool/all": 1.0})
            self.loader = Loader(blend, self.config, self.model_config)
            self.batches = cast("Generator[Batch]", self.loader.batches())
            return
        drawn = [gpu_data.captions(batch, context, vocabulary, seed) for seed in range(VARIETY)]
        packed = self.job["captions"] == "packed"
        self.tokens = [(pack_captions(t, n) if packed else t).to(self.device) for t, n in drawn]
        self.flops = (
            sum(self.work.batch(n, self.job["captions"]) for _, n in drawn) / VARIETY / batch
        )
        self.mean_tokens = float(torch.cat([n for _, n in drawn]).double().mean())
        shape = (batch, *self.model_config.height_width, 3)
        self.image = torch.randint(0, 256, shape, dtype=torch.uint8, device=self.device)

    def _samples(self) -> tuple[Tensor, Tensor | PackedCaptions]:
        if self.batches is None:
            return self.image, self.tokens[self.number % VARIETY]
        began = time.perf_counter()
        batch = next(self.batches)
        self.waited += time.perf_counter() - began
        packed = self.job["captions"] == "packed"
        tokens = (
            pack_captions(batch.tokens_BT, batch.length_B)
            if packed
            else batch.tokens_BT[:, : int(batch.length_B.max())]
        )
        self.flops = self.work.batch(batch.length_B, self.job["captions"]) / self.batch
        self.mean_tokens = float(batch.length_B.double().mean())
        return batch.image_BHWC.to(self.device, non_blocking=True), to_device(tokens, self.device)

    def step(self) -> None:
        """Forward, loss, backward, norm, the check that both are numbers, and AdamW."""
        config = self.config
        image_BHWC, tokens = self._samples()

        def take(rows: slice) -> tuple[Tensor, Tensor | PackedCaptions]:
            image_BCHW = normalise(
                image_BHWC[rows], self.model_config.image_mean, self.model_config.image_std
            )
            return image_BCHW, tokens

        result = accumulate.backward(
            self.model,
            take,
            self.batch,
            functools.partial(contrastive, "clip"),
            precision=lambda: precision_context(config, self.device),
        )
        norm = self.update.grad_norm()
        values = torch.stack([result.loss.float(), result.accuracy, norm.float()]).tolist()
        if not all(abs(value) < float("inf") for value in values):
            raise FloatingPointError(f"step {self.number}: loss, accuracy and norm are {values}")
        self.update.step(self.number, config.lr, norm)
        self.number += 1
        self.loss = values[0]

    def reset(self) -> None:
        """Forget a batch that did not fit."""
        self.model.zero_grad(set_to_none=True)
        self.tokens, self.image = [], torch.empty(0)

    def feeder(self, seconds: float) -> dict[str, Any]:
        """The loader alone: what it decodes a second."""
        assert self.batches is not None
        for _ in range(6):  # those that are under way
            next(self.batches)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            count += len(next(self.batches).keys)
        decoder = "Pillow" if fast_jpeg() is None else "simplejpeg"
        rate = count / (time.perf_counter() - began)
        return {"loader_samples_per_s": rate, "decoder": decoder, "threads": self.config.threads}


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

    def compile(self) -> None:
        """The whole model, as its command does."""
        self.model = torch.compile(self.bare)

    def load(self, batch: int) -> None:
        """Have so many samples a step: pictures as its loader gives them, normalised in 32 bits."""
        self.batch = batch
        context, vocabulary = self.model_config.context_length, self.model_config.vocab_size
        drawn = [gpu_data.captions(batch, context, vocabulary, seed) for seed in range(VARIETY)]
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
    _wait(program.device)
    return time.perf_counter() - began


def _tried(program: Any, batch: int, count: int) -> int | None:
    """The most memory that steps of this batch held, None where it does not fit."""
    try:
        program.load(batch)
        program.step()
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
    program.waited = 0.0
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
    if getattr(program, "batches", None) is not None:
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


def kind_of(name: str) -> str:
    """What a kernel or operator does, by its name."""
    word = next(
        (kind for kind, words in KINDS.items() if re.search(words, name, re.IGNORECASE)), "other"
    )
    return "norm_elementwise" if word == "elementwise" else word


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
