"""A command line of open_clip's training, `--train-data … --model … --batch-size …`, as a run here.

The line means what it means there: what it leaves out has open_clip's default (open_clip_train
3.3, params.py and main.py), not ours. Every flag is a setting, or has no effect here and is named
with the reason, or is refused. Pure.
"""

from __future__ import annotations

import ast
import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from clipmill.manifests import disk
from clipmill.manifests.schema import Blend
from clipmill.train.data.blends import stream_of
from clipmill.train.model.architecture import WEIGHTS_SUFFIXES

MODULES = ("open_clip_train.main", "training.main", "main.py")  # ends of the word that starts it
TORCHRUN = {"--nproc_per_node": "ranks", "--nproc-per-node": "ranks", "--nnodes": "machines"}
SRUN = {
    "--ntasks-per-node": "ranks", "--nodes": "machines", "-N": "machines", "--ntasks": "all",
    "-n": "all",
}  # fmt: skip
MPI = {"-np": "all", "-n": "all", "--np": "all"}
ACCELERATE = {"--num_processes": "all", "--num_machines": "machines"}
# Options of #SBATCH -> the variables that Slurm makes of them.
SLURM = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks": ("SLURM_NTASKS",),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}
SHORT = {"-N": "--nodes", "-n": "--ntasks"}
# What starts the processes -> its words for those of a machine, for machines, for all processes.
LAUNCHERS = {
    "torchrun": TORCHRUN,
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "srun": SRUN,
    "mpirun": MPI,
    "mpiexec": MPI,
    "horovodrun": MPI,
    "accelerate": ACCELERATE,
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed": {"--num_gpus": "ranks", "--num_nodes": "machines"},
}
# Values of flags that a line may leave out, where they are not those of TrainConfig.
DEFAULTS = {
    "model": "RN50", "batch-size": "64", "epochs": "32", "warmup": "10000", "wd": "0.2",
    "precision": "amp", "accum-freq": "1", "lr": "5e-4",
}  # fmt: skip
VIT = {"beta1": "0.9", "beta2": "0.98", "eps": "1e-6"}
NO_VIT = {"beta1": "0.9", "beta2": "0.999", "eps": "1e-8"}
# Settings that no flag has: what open_clip 3.3 decays.
FIXED = {"decay_groups": "open_clip"}

LOCAL_DIR, CONFIG_FILE = "local-dir:", "open_clip_config.json"  # open_clip's folder of a model

# Flags whose value is that of a setting.
SAME = {
    "beta1": "beta1",
    "beta2": "beta2",
    "device": "device",
    "eps": "eps",
    "force-context-length": "context_length",
    "force-image-size": "model.image_size",
    "force-patch-dropout": "model.drop_patch_rate",
    "grad-clip-norm": "grad_clip",
    "image-mean": "model.image_mean",
    "image-std": "model.image_std",
    "lock-image-unlocked-groups": "lock_image_unlocked_groups",
    "lock-text-unlocked-layers": "lock_text_unlocked_layers",
    "log-every-n-steps": "log_every",
    "lr": "lr",
    "lr-cooldown-end": "cooldown_end_lr",
    "lr-cooldown-power": "cooldown_power",
    "model": "model",
    "seed": "seed",
    "warmup": "warmup",
    "wd": "weight_decay",
}
# Flags without a value, and what they set.
SWITCHES = {
    "force-quick-gelu": ("model.quick_gelu", "true"),
    "grad-checkpointing": ("recompute", "full"),
    "lock-image": ("lock_image", "true"),
    "lock-text": ("lock_text", "true"),
    "siglip": ("loss", "siglip"),
    "torchcompile": ("compile", "inductor"),
}
# Flags with a rule of their own in `translate`.
RULES = (
    "accum-freq", "aug-cfg", "batch-size", "csv-caption-key", "csv-img-key", "csv-separator",
    "dataset-type", "epochs", "epochs-cooldown", "logs", "lr-scheduler", "name", "opt",
    "precision", "pretrained", "report-to", "resume", "save-frequency", "skip-scheduler",
    "train-data", "train-data-upsampling-factors", "train-num-samples",
)  # fmt: skip
PRECISIONS = {
    "amp": "fp16", "amp_bf16": "bf16", "amp_bfloat16": "bf16", "fp32": "fp32",
    "bf16": "bf16", "pure_bf16": "bf16", "fp16": "fp16", "pure_fp16": "fp16",
}  # fmt: skip
SCHEDULES = {"cosine": "cosine", "const": "constant", "const-cooldown": "constant_cooldown"}
LOCKS = (("lock-image", "groups"), ("lock-text", "layers"))
ALWAYS = "this is always so"
NOT_COCA = "of the loss of a CoCa alone"
OF_EVALUATION = "of evaluation there; training crops at random and resizes bicubically, as here"
LATER = "clipmill evaluate RUN --task TASK.yaml does that after the run, from its checkpoints too"
PROCESS = "no flag of clipmill: it changes no weight"
NO_EFFECT = {
    "cache-dir": PROCESS,
    "coca-caption-loss-weight": NOT_COCA,
    "coca-contrastive-loss-weight": NOT_COCA,
    "copy-codebase": "run.json has the version of the code",
    "dataset-resampled": "every sample comes once before one comes again",
    "ddp-static-graph": PROCESS,
    "debug": PROCESS,
    "delete-previous-checkpoint": "keep_checkpoints says how many are kept: 2",
    "dist-backend": PROCESS,
    "dist-url": PROCESS,
    "gather-with-grad": ALWAYS,
    "image-interpolation": OF_EVALUATION,
    "image-resize-mode": OF_EVALUATION,
    "imagenet-v2": LATER,
    "imagenet-val": LATER,
    "local-loss": ALWAYS,
    "lock-image-freeze-bn-stats": ALWAYS,
    "lock-text-freeze-layer-norm": ALWAYS,
    "log-local": PROCESS,
    "loss-dist-impl": "the loss has one implementation",
    "no-set-device-rank": PROCESS,
    "remote-sync": "--out takes a URL, which is written as the run goes on",
    "remote-sync-frequency": PROCESS,
    "remote-sync-protocol": PROCESS,
    "save-most-recent": ALWAYS,
    "use-bn-sync": ALWAYS,
    "val-data": LATER,
    "val-frequency": LATER,
    "val-num-samples": LATER,
    "wandb-notes": PROCESS,
    "wandb-project-name": "WANDB_PROJECT in the environment names it",
    "workers": "processes there; here threads, whose number changes no sample (threads=4)",
    "zeroshot-frequency": LATER,
}
NOT_HERE = "clipmill has no such training"
REFUSED = {
    "distill-model": NOT_HERE,
    "distill-pretrained": NOT_HERE,
    "force-custom-text": "it renames weights; load the model from a folder with its configuration",
    "horovod": "start it with torchrun, or with --ranks",
    "momentum": "AdamW is the one optimizer",
    "pretrained-image": "write weights of the whole model as --set init=FILE",
    "torchscript": NOT_HERE,
    "trace": NOT_HERE,
    "use-bnb-linear": NOT_HERE,
}
# A text in quotation marks, or a comment of the shell: from a # that begins a word on.
COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'[^']*')|(?<!\S)#.*""")
# A script's array of words, the start of the training, an assignment, and a variable of a shell.
ARRAY = re.compile(r"^\w+=\((.*?)^[ \t]*\)", re.DOTALL | re.MULTILINE)
STARTS = re.compile("(" + "|".join(map(re.escape, MODULES)) + r")(?=[\s'\"]|$)")
ASSIGNS = re.compile(r"(?:export\s+|set\s+|local\s+)?\$?(\w+)\s*=(.*)", re.IGNORECASE)
VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)()|%(\w+)%()")
SUM = re.compile(r"\$\(\(\s*(\w+)\s*([*/+-])\s*(\w+)\s*\)\)")
SBATCH = re.compile(r"^#SBATCH\s+(\S.*)", re.MULTILINE)
UNKNOWN = re.compile(r"\$[\w{(]|%\w+%")
DATACOMP = "; DataComp's train.py --scale small is --preset datacomp_small here"
# Where a shell ends the words of a command: its output, the next command.
OPERATOR = re.compile(r"([0-9&]?>|<|\||;$|&+$)")
KNOWN = {*SAME, *SWITCHES, *RULES, *NO_EFFECT, *REFUSED}
USUAL_SCALE = "(0.9,1.0)"  # of open_clip's random crop: crop_min=0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The run of a line. notes: a line for each flag that is no plain setting here.

    changes: settings as `--set` takes them. ranks: processes on one machine. blend: None where the
    data come from elsewhere. out: LOGS/NAME; None where the line has no --name.
    """

    blend: Blend | None
    changes: tuple[str, ...]
    ranks: int
    out: str | None
    notes: tuple[str, ...]


def translate(line: str, *, has_data: bool, ranks: int | None = None) -> Translation:
    """The run that a line stands for. `has_data`: the data come from elsewhere, so that
    --train-data is not read. `ranks`: GPUs of a line that has no torchrun or srun in front to say
    so; the batch of another line stays that of its own GPUs. ValueError for a flag that open_clip
    does not have, one that cannot be done here, and a line that does not say how long it trains.
    """
    flags, numbers = _read(line)
    of_line, machines = numbers.get("ranks"), numbers.get("machines", 1)
    world = (of_line or ranks or 1) * machines
    notes = [f"--{flag}: {NO_EFFECT[flag]}" for flag in flags if flag in NO_EFFECT]
    model = flags.get("model", DEFAULTS["model"])
    if ":" not in model and not model.endswith(".json"):
        model = model.replace("/", "-")  # open_clip takes OpenAI's names, such as ViT-B/32
    if model.startswith("hf-hub:"):
        raise ValueError(
            f"--model {model} is of the hub: hf download {model[7:]} --local-dir FOLDER, and write "
            "--model local-dir:FOLDER"
        )
    if model.startswith(LOCAL_DIR):  # it starts from the folder's weights, whatever else is named
        folder = model.removeprefix(LOCAL_DIR).rstrip("/")
        model, flags = f"{folder}/{CONFIG_FILE}", flags | {"pretrained": f"{folder}/"}
    full = DEFAULTS | (VIT if "vit" in model.lower() else NO_VIT) | flags | {"model": model}
    if len({*(sides := full.get("force-image-size", "").split())}) == 1:
        full["force-image-size"] = sides[0]
    elif sides:
        raise ValueError(f"--force-image-size is {' '.join(sides)}; images are squares here")
    changes = {SAME[flag]: full[flag].replace(" ", ",") for flag in full if flag in SAME}
    changes |= FIXED
    changes |= {SWITCHES[flag][0]: SWITCHES[flag][1] for flag in flags if flag in SWITCHES}
    changes["precision"] = _word("precision", full, PRECISIONS)
    if full["precision"] in ("bf16", "pure_bf16", "fp16", "pure_fp16"):
        notes.append(f"--precision {full['precision']}: weights stay fp32, as with --precision amp")
    blend = None if has_data else _blend(full, notes)
    changes |= _length(full, world, notes)
    of_cooldown = ("cooldown", "cooldown_end_lr", "cooldown_power")
    of_locks = [SAME[f"{lock}-unlocked-{part}"] for lock, part in LOCKS if lock not in flags]
    unused = (*of_locks, *(of_cooldown if changes["schedule"] != "constant_cooldown" else ()))
    changes = {key: value for key, value in changes.items() if key not in unused}
    if "lock-image" in flags and "lock-image-freeze-bn-stats" not in flags:
        notes.append(
            "--lock-image: BatchNorm of a locked tower keeps its statistics here, which open_clip "
            "does with --lock-image-freeze-bn-stats alone"
        )
    if model.lower().startswith("rn") and "use-bn-sync" not in flags and world > 1:
        notes.append("BatchNorm has the statistics of all ranks here, as with --use-bn-sync there")
    changes |= _weights(full, model, notes)
    if "report-to" in flags:
        logs = flags["report-to"].replace("all", "tensorboard,wandb")
        changes |= {"log_to": logs} if logs not in ("", "none") else {}
    if full.get("opt", "adamw") != "adamw":
        raise ValueError(f"--opt {full['opt']} cannot be done here: AdamW is the one optimizer")
    if (crop := flags.get("aug-cfg")) is not None:
        changes |= _crop(crop)
    if machines > 1:
        notes.append(
            f"--nnodes {machines}: start `torchrun … train/run.py` on every machine with these "
            f"settings, or `clipmill train --ray`; the batch is that of {world} ranks"
        )
    return Translation(
        blend=blend,
        changes=tuple(f"{key}={value}" for key, value in changes.items()),
        ranks=ranks or of_line or 1,
        out=f"{full.get('logs', 'logs').rstrip('/')}/{full['name']}" if "name" in full else None,
        notes=tuple(notes),
    )


def _read(line: str) -> tuple[dict[str, str], dict[str, int]]:
    """The flags with their values (of several, as a text with blanks; "" for a switch); `ranks` of
    a machine and `machines`, where the line says so. ValueError for an unknown or refused flag.
    """
    words = _words_of_python(line) or _words_of_yaml(line)
    try:
        words = words or shlex.split(_of_settings(line) or _statement(line))
        is_inside = [word for word in words if len(word.split()) > 1 and STARTS.search(word)]
        if is_inside and not any(word.endswith(MODULES) for word in words):  # bash -c '…'
            words = shlex.split(_statement(is_inside[0]))
    except ValueError as error:
        raise ValueError(f"the line has no closing quotation mark ({error})") from None
    start = next((n for n, word in enumerate(words) if word.endswith(MODULES)), -1)
    ends = [n for n, word in enumerate(words) if OPERATOR.match(word) and n > start]
    launcher, words = words[: max(start, 0)], words[start + 1 : ends[0] if ends else None]
    numbers = _numbers(launcher, SBATCH.findall(line))
    flags: dict[str, str] = {}
    flag = ""
    for word in words:
        if word == "--":  # what is behind it is no flag of the launcher
            continue
        if word.startswith("--"):
            flag, _, value = word[2:].partition("=")
            flag = flag.replace("_", "-")
            begin_so = [name for name in KNOWN if name.startswith(flag)]
            if flag not in KNOWN and len(begin_so) == 1:  # argparse takes it for that one
                flag = begin_so[0]
            if flag not in KNOWN:
                near = disk.did_you_mean(flag, sorted(KNOWN))
                raise ValueError(f"open_clip's training has no flag --{flag}{near}")
            if flag in REFUSED:
                raise ValueError(f"--{flag} cannot be done here: {REFUSED[flag]}")
            flags[flag] = value
        elif not flag:
            raise ValueError(
                f"{word!r} is no flag, and the line does not start open_clip_train.main; give the "
                "words after that, or the whole line" + (DATACOMP if "--scale" in line else "")
            )
        else:
            flags[flag] = f"{flags[flag]} {word}".strip()
    for name, value in flags.items():
        if name in SWITCHES and value:
            raise ValueError(f"--{name} takes no value, but is followed by {value!r}")
        if name in SAME and not value:
            raise ValueError(f"--{name} has no value")
        if name not in (*NO_EFFECT, "name", "logs") and UNKNOWN.search(value):
            raise ValueError(f"--{name} is {value!r}, which nothing there assigns; write its value")
    return flags, numbers


def _numbers(launcher: list[str], sbatch: list[str]) -> dict[str, int]:
    """`ranks` of a machine and `machines`, by the words of the last program in front that starts
    processes. srun has what it leaves out from the lines #SBATCH of its script.
    """
    programs = [(n, word.rpartition("/")[2]) for n, word in enumerate(launcher)]
    at, program = next((each for each in reversed(programs) if each[1] in LAUNCHERS), (0, ""))
    words, known = launcher[at:], LAUNCHERS.get(program, {})
    if program == "srun":
        words = [*shlex.split("\n".join(sbatch), comments=True), *words]
    numbers: dict[str, int] = {}
    for n, word in enumerate(words):
        name, has_value, value = word.partition("=")
        if name in known:
            value = value if has_value else "".join(words[n + 1 : n + 2])
            if not value.isdigit() or value == "0":
                raise ValueError(f"{name} is {value!r}; write the number of processes or machines")
            numbers[known[name]] = int(value)
    if (processes := numbers.pop("all", None)) and "ranks" not in numbers:
        numbers["ranks"] = max(1, processes // numbers.get("machines", 1))
    return numbers


def _statement(script: str) -> str:
    """The command of a script of a shell, of Windows' too, that starts the training, in one line
    and with the values of variables that the script assigns; all of a text that has none.
    """
    text = COMMENT.sub(lambda match: match[1] or "", script.strip())
    text = re.sub(r"[\\^`][ \t]*(\r?\n|$)", " ", text)
    text = ARRAY.sub(lambda match: " ".join(match[1].split()), text)  # of bash, which it runs later
    lines = text.splitlines()
    start = next((n for n, each in enumerate(lines) if STARTS.search(each)), None)
    if start is None:
        return text
    values: dict[str, str] = {}
    for option, value in re.findall(r"^#SBATCH\s+(--?[\w-]+)[= ](\d+)\b", script, re.MULTILINE):
        values |= dict.fromkeys(SLURM.get(SHORT.get(option, option), ()), value)

    def value_of(match: re.Match[str]) -> str:
        name = match[1] or match[3] or match[5]
        return values.get(name, match[0] if match[2] is None else known(match[2]))

    def result_of(match: re.Match[str]) -> str:
        one, other = (values.get(match[n], match[n]) for n in (1, 3))
        if not (one.isdigit() and other.isdigit()) or (match[2], int(other)) == ("/", 0):
            return match[0]
        x, y = int(one), int(other)
        return str({"*": x * y, "/": x // max(y, 1), "+": x + y, "-": x - y}[match[2]])

    def known(words: str) -> str:
        return SUM.sub(result_of, VARIABLE.sub(value_of, words))

    for each in lines[:start]:
        if found := ASSIGNS.fullmatch(each.strip()):
            value = known(found[2].strip().strip("'\""))
            if "$(" not in value:
                values[found[1]] = value
    end = start + 1
    while end < len(lines):  # lines of flags, and of a text in quotation marks
        is_open = sum(map(" ".join(lines[start:end]).count, "'\"")) % 2
        if not is_open and lines[end].strip() and not lines[end].lstrip().startswith("-"):
            break
        end += 1
    if more := sum(bool(STARTS.search(each)) for each in lines[end:]):
        raise ValueError(
            f"the script starts {more + 1} trainings; give the one that is meant, with the values "
            "of its variables"
        )
    return known(" ".join(lines[start:end]))


def _words_of_python(text: str) -> list[str]:
    """The words of a list that a program in Python runs; [] where the text is none."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return []
    values: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            values |= {ast.unparse(name): str(node.value.value) for name in node.targets}
    for node in nodes:
        if isinstance(node, ast.List):
            words = [
                str(each.value) if isinstance(each, ast.Constant)
                else values.get(ast.unparse(each), f"${ast.unparse(each)}")
                for each in node.elts
            ]  # fmt: skip
            if _starts(words, text):
                return words
    return []


def _starts(words: list[str], text: str) -> bool:
    """Whether a list in a text starts the training, or has its flags while the text starts it."""
    has_data = any(re.match(r"--train[-_]data(=|$)", word) for word in words)
    return any(word.endswith(MODULES) for word in words) or (has_data and bool(STARTS.search(text)))


def _words_of_yaml(text: str) -> list[str]:
    """The words of `command` and `args` in a document such as those of Kubernetes and of editors,
    and the flags of a sweep with one value each; [] where the text is none. ValueError for more.
    """
    text = re.sub(r"^\s*//.*", "", text, flags=re.MULTILINE)
    if not STARTS.search(text):
        return []
    import yaml

    try:
        nodes = [*yaml.safe_load_all(text)]
    except (yaml.YAMLError, ValueError, RecursionError):  # a date that there is not
        return []
    for node in nodes:
        below = node if isinstance(node, list) else node.values() if isinstance(node, dict) else ()
        nodes += [each for each in below if not any(each is other for other in nodes)]
        if not isinstance(node, dict):
            continue
        lists = [node[key] for key in ("command", "args") if isinstance(node.get(key), list)]
        words = [str(word) for each in lists for word in each]
        if _starts(words, text):
            return words
        if str(node.get("program")).endswith(MODULES) and isinstance(node.get("parameters"), dict):
            for name, given in node["parameters"].items():
                values = given.get("values", [given.get("value")])
                if len(values) != 1 or values[0] is None:
                    raise ValueError(
                        f"the sweep tries several values of {name}; a line is one run: keep one of "
                        "them, and for several an ablation with an arm each (clipmill ablate)"
                    )
                words += [f"--{name}", *([] if values[0] is True else [str(values[0])])]
            return [str(node["program"]), *words]
    return []


def _of_settings(text: str) -> str:
    """params.txt of a run of open_clip, a line `name: value` for each of its flags, as the flags;
    "" for another text. What a flag leaves out is None or False there."""
    lines = [each for each in text.splitlines() if each.strip()]
    found = [re.fullmatch(r"(\w+):\s*(.*?)\s*", each) for each in lines]
    settings = {match[1].replace("_", "-"): match[2] for match in found if match}
    if not all(found) or "train-data" not in settings:
        return ""
    words = ["torchrun", "--nproc_per_node", settings.get("world-size", "1"), MODULES[0]]
    for flag, value in settings.items():
        if flag in KNOWN and value not in ("", "None", "False", "{}"):
            words += [f"--{flag}", *([] if value == "True" else [value])]
    return shlex.join(words)


def _word(flag: str, flags: Mapping[str, str], words: Mapping[str, str]) -> str:
    if flags[flag] not in words:
        near = disk.did_you_mean(flags[flag], words)
        raise ValueError(f"--{flag} is {flags[flag]!r}{near} (of {', '.join(words)})")
    return words[flags[flag]]


def _number(flag: str, flags: Mapping[str, str]) -> int:
    text = flags[flag]
    if not re.fullmatch(r"\d[\d_]*", text):
        raise ValueError(f"--{flag} is {text!r}; it must be a whole number")
    return int(text)


def _length(flags: Mapping[str, str], world: int, notes: list[str]) -> dict[str, str]:
    """Batch, samples and schedule: open_clip counts a batch for each GPU, a length in epochs."""
    per_rank, accumulated = _number("batch-size", flags), _number("accum-freq", flags)
    batch = per_rank * accumulated * world
    changes = {"batch_size": str(batch)}
    factors = [str(per_rank), f"{world} ranks" if world > 1 else "", ""]
    if accumulated > 1:
        changes["micro_batch"] = str(per_rank)
        factors[2] = f"--accum-freq {accumulated}"
    notes.append(f"--batch-size is of a GPU there: {' x '.join(filter(None, factors))} = {batch}")
    if "train-num-samples" not in flags:
        raise ValueError(
            "the line has no --train-num-samples, so that nobody knows how long it trains; add "
            "--train-num-samples N, the samples of an epoch"
        )
    samples, epochs = _number("train-num-samples", flags), _number("epochs", flags)
    epoch_steps = max(1, math.ceil(samples / (per_rank * world)) // accumulated)
    changes["samples_seen"] = str(epoch_steps * epochs * batch)
    notes.append(
        f"{epochs} epochs of {samples:,} samples are {epoch_steps * epochs:,} steps; open_clip "
        "rounds an epoch up to whole batches of every worker, here to whole batches"
        + (f", and both down to --accum-freq {accumulated} of them" if accumulated > 1 else "")
    )
    schedule = _word("lr-scheduler", {"lr-scheduler": "cosine", **flags}, SCHEDULES)
    changes["schedule"] = schedule
    if "skip-scheduler" in flags:
        changes |= {"schedule": "constant", "warmup": "0"}
    elif schedule == "constant_cooldown":
        if "epochs-cooldown" not in flags:
            raise ValueError("--lr-scheduler const-cooldown needs --epochs-cooldown")
        changes["cooldown"] = str(epoch_steps * _number("epochs-cooldown", flags))
    warmup, steps = int(changes.get("warmup", flags["warmup"])), epoch_steps * epochs
    if warmup > steps:  # the same learning rates by a shorter rise to a lower one
        lr = float(flags["lr"]) * steps / warmup
        changes |= {"schedule": "constant", "warmup": str(steps), "lr": repr(lr)}
        notes.append(
            f"--warmup {warmup}: the run ends after {steps} steps, before it has reached --lr "
            f"{flags['lr']}; it rises to {lr:.3g}, as there"
        )
    if flags.get("save-frequency"):
        changes["checkpoint_every"] = str(epoch_steps * _number("save-frequency", flags))
    return changes


def _weights(flags: Mapping[str, str], model: str, notes: list[str]) -> dict[str, str]:
    """Where the weights come from: --pretrained, --resume."""
    resumed = flags.get("resume", "latest")
    if resumed not in ("latest", "None", "none", ""):
        raise ValueError(
            f"--resume {resumed} cannot be done here: its optimizer's state is open_clip's; "
            f"write --pretrained {resumed} to start from its weights"
        )
    if "resume" in flags:
        notes.append("--resume latest: the same command resumes its run, from a step")
    source = flags.get("pretrained", "")
    if not source:
        return {}
    is_file = "/" in source or source.endswith(WEIGHTS_SUFFIXES)
    if "force-quick-gelu" in flags and not model.endswith("-quickgelu"):
        model += "-quickgelu"  # the name of the same model with that activation
    return {"init": source if is_file else f"open_clip:{model}/{source}"}


def _crop(text: str) -> dict[str, str]:
    """--aug-cfg: only the scale of the random crop is done here."""
    pairs = dict(word.partition("=")[::2] for word in re.sub(r",\s+", ",", text).split())
    scale = pairs.pop("scale", USUAL_SCALE).strip("'\"")
    match = re.fullmatch(r"[(\[]([0-9.]+),1(?:\.0*)?[)\]]", scale)
    if pairs or match is None:
        other = next(iter(pairs), f"scale={scale}")
        raise ValueError(
            f"--aug-cfg {other} cannot be done here: scale=(LEAST,1.0) is the one augmentation"
        )
    return {"crop_min": match[1]}


def _table_recipe(data: str, flags: Mapping[str, str]) -> str:
    """What to do with a table, which is no tar: the recipe that reads it as open_clip does."""
    if flags.get("dataset-type") == "synthetic":
        return "--dataset-type synthetic cannot be done here: clipmill trains on images"
    keys = {"paths": [data], "file_column": flags.get("csv-img-key", "filepath")}
    keys["caption_column"] = flags.get("csv-caption-key", "title")
    separator = flags.get("csv-separator", "\t").replace("\\t", "\t")
    if separator != "," and not data.endswith(".tsv"):
        keys["delimiter"] = separator
    return (
        f"--train-data {data}: only tars are read while a run trains; build a pool of a table first"
        f" (source: {json.dumps({'kind': 'files', **keys})}), and give --mix POOL/VIEW=1 beside "
        "the line"
    )


def _blend(flags: Mapping[str, str], notes: list[str]) -> Blend:
    """The tars of --train-data as streams."""
    data = flags.get("train-data", "")
    if not data:
        raise ValueError(
            "the line has no --train-data, so it trains nothing; add it, or give BLEND, --mix or "
            "--stream; where it only evaluates: clipmill evaluate MODEL --task TASK.yaml"
        )
    kind = flags.get("dataset-type", "auto")
    if data.endswith((".json", ".yaml", ".yml")):
        raise ValueError(
            f"--train-data {data}: a file that lists sources is not read; write their tars with :: "
            "between, their weights as --train-data-upsampling-factors, and --train-num-samples"
        )
    if kind in ("csv", "synthetic") or (kind == "auto" and data.endswith((".csv", ".tsv"))):
        raise ValueError(_table_recipe(data, flags))
    sources = data.split("::")
    factors = flags.get("train-data-upsampling-factors", "").split("::")
    if len(factors) != len(sources) and factors != [""]:
        raise ValueError(
            f"--train-data has {len(sources)} sources and --train-data-upsampling-factors "
            f"{len(factors)} numbers"
        )
    notes.append(
        "--train-data: tars are read while the run trains, which cannot resume; adopted into a "
        "pool (source: {kind: shards}) and given as --mix POOL/VIEW=1 beside the line, it can"
    )
    seed = int(flags.get("seed", "0"))
    if factors == [""]:
        tars = [tar for source in sources for tar in disk.expand_braces(source)]
        return stream_of(tars, seed)
    parts = {}
    for number, (source, factor) in enumerate(zip(sources, factors, strict=True)):
        tars = disk.expand_braces(source)
        (stream,) = stream_of(tars, seed).streams.values()
        weight = float(factor) * len(tars)
        parts[f"tars{number}"] = type(stream)(tars=stream.tars, weight=weight)
    notes.append("--train-data-upsampling-factors: a source's share is its factor times its tars")
    return Blend(name="open_clip", streams=parts, seed=seed)
