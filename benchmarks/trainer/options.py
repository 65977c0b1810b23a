"""The options that all modes share, read and checked, and the contract of a mode.

No option is accepted and ignored.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from clipmill.bench.report import torch_device, without_folders
from clipmill.bench.report_form import Cell, Layout, parse_layout
from clipmill.manifests import console
from clipmill.manifests.disk import did_you_mean
from clipmill.train.config import TrainConfig, configure
from clipmill.train.formats.onnx_export import source_name
from clipmill.train.model.architecture import MODELS, read_model

# --dtype -> the setting `precision`, in the words of other benchmarks too
DTYPES = {
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16": "fp16",
    "bf16": "bf16",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
}
# Settings that follow from an option of the benchmark
DECIDED = {
    "model": "--model",
    "batch_size": "-b or --global-batch",
    "samples_seen": "-i and -e",
    "precision": "--dtype",
    "context_length": "--text-length",
    "dp_shard": "--parallel",
    "tp": "--parallel",
}
SYNTHETIC = "synthetic"
EXPORT = "export"  # the folder of a run with its model
MOST_RANKS = 1_000_000
MOST_LANES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured. Lists are measured in all combinations."""

    mode: str
    models: tuple[str, ...] = ("ViT-B-32",)
    dtypes: tuple[str, ...] = ("fp32",)  # values of the setting `precision`
    ranks: tuple[int, ...] = (1,)
    batches: tuple[int, ...] = ()  # of a data-parallel rank: weak scaling
    global_batches: tuple[int, ...] = ()  # of all ranks: strong scaling
    layouts: tuple[Layout, ...] = (Layout(name="dp"),)
    iterations: int = 20
    repeats: int = 1
    warmup: int = 2
    num_examples: int | None = None
    data: str = SYNTHETIC
    text_length: int | None = None
    changes: dict[str, str] = field(default_factory=dict)  # settings of the trainer

    def iterations_of(self, global_batch: int) -> int:
        """Steps of a repeat: --iterations, or fewer where --num-examples ends it before."""
        if self.num_examples is None:
            return self.iterations
        return min(self.iterations, self.num_examples // global_batch)

    def config(
        self, model: str, dtype: str, global_batch: int, layout: Layout, ranks: int, steps: int
    ) -> TrainConfig:
        """The settings of a run of so many steps. ValueError for what no run can have."""
        values: dict[str, Any] = {
            "warmup": 0,
            "checkpoint_every": 0,
            "log_every": steps,
            "lanes": math.gcd(MOST_LANES, global_batch),
            **self.changes,
            "model": model,
            "precision": dtype,
            "batch_size": global_batch,
            "samples_seen": global_batch * steps,
            "dp_shard": layout.shards(ranks),
            "tp": layout.tp,
        }
        if self.text_length is not None:
            values["context_length"] = self.text_length
        return configure(values)

    def plain(self) -> dict[str, Any]:
        """The options as a report has them."""
        values = dataclasses.asdict(self)
        values["layouts"] = [layout.name for layout in self.layouts]
        values["models"] = [source_label(name) for name in self.models]
        values["data"] = without_folders(self.data)
        values["changes"] = {k: without_folders(v) for k, v in self.changes.items()}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """What --mode names: one thing to measure, its options, and what a person reads of it.

    `cells` measures, and yields every cell as soon as it has ended. A cell that fails is yielded
    with its reason, and the others go on. ValueError before the first cell for a mistake in the
    options. Its second argument has the options of this mode.
    """

    about: str  # the text of --help
    cells: Callable[[BenchOptions, argparse.Namespace], Iterator[Cell]]
    lines: Callable[[Sequence[Cell]], list[str]]  # in plain text
    figures: tuple[str, ...]  # that `lines` reads of every measured cell; the first is above 0
    # Shared options that mean nothing here, by their name in the namespace, such as global_batch.
    # One that a command line states is refused. Only options whose default is None can be listed.
    unused: tuple[str, ...] = ()
    add_options: Callable[[argparse.ArgumentParser], None] | None = None  # those of it alone


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """The options of every mode."""
    parser.add_argument(
        "-n", "--ranks", metavar="N,N", help="processes, one per GPU (default: 1), as in 1,2,4,8"
    )
    parser.add_argument(
        "-b",
        "--batch",
        "--batch-size",
        metavar="N,N",
        help="samples of a rank: the table of weak scaling (default: 256)",
    )
    parser.add_argument(
        "--global-batch",
        metavar="N,N",
        help="samples of a step of all ranks together: the table of strong scaling",
    )
    parser.add_argument(
        "--model",
        default="ViT-B-32",
        metavar="NAME,NAME",
        help="architecture; in mode infer also a finished run, a folder of clipmill weights, or "
        "open_clip:NAME/TAG (default: ViT-B-32)",
    )
    parser.add_argument(
        "--dtype",
        metavar="NAME,NAME",
        help="fp32, tf32, fp16 or bf16 (default: bf16 on a GPU, fp32 on a processor)",
    )
    parser.add_argument(
        "--parallel",
        metavar="NAME,NAME",
        help="dp; fsdp (all ranks share one copy) or fsdpN; tpN; tpN+fsdpN (default: dp)",
    )
    parser.add_argument("--text-length", type=int, metavar="N", help="tokens of a caption at most")
    _add_lengths(parser)
    parser.add_argument(
        "--data",
        "--data-root",
        default=SYNTHETIC,
        metavar="WHAT",
        help="synthetic; BLEND.yaml or the blend.json of a run; POOL/VIEW; a folder of tars",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="settings of the trainer, as in clipmill train; --KEY VALUE does the same",
    )


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-i", "--iterations", type=int, default=20, metavar="N", help="steps of a repeat"
    )
    parser.add_argument("-e", "--repeats", type=int, default=1, metavar="N", help="repeats")
    parser.add_argument(
        "-w", "--warmup", type=int, default=2, metavar="N", help="steps that do not count"
    )
    parser.add_argument(
        "--num-examples",
        type=int,
        metavar="N",
        help="samples of a repeat at most: it ends before -i steps where these are more",
    )


def refuse_unused(args: argparse.Namespace, unused: Collection[str]) -> None:
    """ValueError for an option on the command line that means nothing to the mode."""
    for name in unused:
        if getattr(args, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"mode {args.mode} has no use for {flag}; leave it out")


def read_options(
    args: argparse.Namespace, rest: Sequence[str], flags: Collection[str]
) -> BenchOptions:
    """The options of a command line.

    `rest` are the words that no option of the benchmark took: settings of the trainer as `--KEY
    VALUE`. `flags` are the options, for the message about an unknown one. ValueError for a value
    that cannot be.
    """
    for name in ("iterations", "repeats", "warmup", "num_examples"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    changes = _changes(args.set, rest, flags)
    cuda = torch_device(changes.get("device", "auto")).type == "cuda"
    batches = _numbers("batch", args.batch)
    global_batches = _numbers("global-batch", args.global_batch)
    options = BenchOptions(
        mode=args.mode,
        models=tuple(_models(args.model, args.mode)),
        dtypes=tuple(_dtypes(args.dtype or ("bf16" if cuda else "fp32"), cuda)),
        ranks=_numbers("ranks", args.ranks) or (1,),
        batches=batches if batches or global_batches else (256,),
        global_batches=global_batches,
        layouts=tuple(parse_layout(text) for text in _words("parallel", args.parallel or "dp")),
        iterations=args.iterations,
        repeats=args.repeats,
        warmup=args.warmup,
        num_examples=args.num_examples,
        data=args.data,
        text_length=args.text_length,
        changes=changes,
    )
    if max(options.ranks) > MOST_RANKS:
        raise ValueError(f"ranks is {max(options.ranks)}; no machine has so many")
    return options


def _words(name: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ValueError(f"--{name} {text!r} has an empty value; write values with commas between")
    return list(dict.fromkeys(words))


def _numbers(name: str, text: str | None) -> tuple[int, ...]:
    """Whole numbers from 1, as in `1,2,4`; () for None."""
    if text is None:
        return ()
    numbers = []
    for word in _words(name, text):
        if not (word.isascii() and word.isdigit() and int(word) >= 1):
            raise ValueError(
                f"{name} is {word}; it must be at least 1, or a list of such numbers as in 1,2,4"
            )
        numbers.append(int(word))
    return tuple(dict.fromkeys(numbers))


def is_source(name: str) -> bool:
    """Whether a word of --model is a trained model, such as a run, and not an architecture."""
    try:
        read_model(name)
    except ValueError:
        return True
    return False


def source_label(name: str) -> str:
    """The name of a model in a report, without its folders; that of the run for RUN/export."""
    if not is_source(name):
        return name
    parent, _, last = name.rstrip("/").rpartition("/")
    return source_name(parent if parent and last == EXPORT else name)


def _models(text: str, mode: str) -> list[str]:
    names = _words("model", text)
    for name in names:
        if is_source(name) and ("/" in name or ":" in name or os.path.isdir(name)):
            if mode != "infer":
                raise ValueError(
                    f"--model {name} is a trained model, which mode infer alone measures; mode "
                    f"{mode} takes an architecture (of {', '.join(MODELS)})"
                )
        elif is_source(name):
            read_model(name)  # names the nearest one
    return names


def _dtypes(text: str, cuda: bool) -> list[str]:
    precisions = []
    for name in _words("dtype", text):
        if name not in DTYPES:
            raise ValueError(
                f"there is no dtype {name!r}{did_you_mean(name, DTYPES)} (of {', '.join(DTYPES)})"
            )
        if DTYPES[name] in ("tf32", "fp16") and not cuda:
            raise ValueError(
                f"dtype is {name}, which processors do not compute in; choose fp32 or bf16"
            )
        precisions.append(DTYPES[name])
    return list(dict.fromkeys(precisions))


def _changes(
    assigned: Sequence[str], rest: Sequence[str], flags: Collection[str]
) -> dict[str, str]:
    """Settings of the trainer from --set and from unknown options."""
    changes = dict(console.key_values(assigned))
    known = {field.name for field in dataclasses.fields(TrainConfig)} | {"preset"}
    words = list(rest)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"{word!r} belongs to no option; write --KEY VALUE, or see --help")
        flag, equals, value = word.partition("=")
        key = flag[2:].replace("-", "_")
        if key not in known and not key.startswith("model."):
            close = did_you_mean(flag, [*flags, *(f"--{name}" for name in sorted(known))], 0.6)
            raise ValueError(f"there is no option {flag}, and no setting of that name{close}")
        if not equals:
            if not words or words[0].startswith("--"):
                raise ValueError(f"{flag} has no value; write {flag} VALUE")
            value = words.pop(0)
        changes[key] = value
    for key, option in DECIDED.items():
        if key in changes:
            raise ValueError(f"{key} is a setting that {option} decides; leave it out")
    return changes
