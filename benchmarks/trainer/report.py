"""What a report says beside its cells, and where it is written: this machine, its libraries, the
commit of the checkout and the words of the command.

train/sizing/device_fit.py has its form.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

import torch

from clipmill import ROOT
from clipmill.bench.report_form import Machine, Report, read_report
from clipmill.manifests import disk
from clipmill.train.sizing.device_fit import usable_cores

PACKAGES = ("numpy", "pyarrow", "pillow", "simplejpeg", "triton")


def torch_device(name: str = "auto") -> torch.device:
    """The device that a run with the setting `device` computes on. ValueError for one that is not
    there.
    """
    if name not in ("auto", "cpu") and not name.startswith("cuda"):
        raise ValueError(f"device is {name!r}; it must be auto, cpu or cuda")
    cuda = torch.cuda.is_available()
    if name.startswith("cuda") and not cuda:
        raise ValueError(f"device is {name!r}, but torch finds no GPU here; set it to cpu or auto")
    return torch.device(("cuda" if cuda else "cpu") if name == "auto" else name)


def processor_name() -> str:
    """The model of the processor, or its architecture where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def this_machine(device: torch.device) -> Machine:
    """What is measured on. Nothing of it names the host or a user."""
    processor = processor_name()
    gpus, memory, name = 0, None, processor
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gpus, memory, name = torch.cuda.device_count(), properties.total_memory, properties.name
    return Machine(
        device=name,
        kind=device.type,
        gpus=gpus,
        gpu_memory_bytes=memory,
        processor=processor,
        cores=usable_cores(),
        memory_bytes=_host_memory(),
        system=f"{platform.system()} {platform.machine()}",
        versions=versions(),
    )


def _host_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def versions() -> dict[str, str]:
    """Python, torch and what decides the speed of a run."""
    values = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda is not None:
        values["cuda"] = torch.version.cuda
    for package in PACKAGES:
        try:
            values[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return values


def commit(folder: Path = Path(ROOT)) -> str | None:
    """The commit of the checkout, with -dirty where files differ from it; None outside git."""
    if not (folder / ".git").exists():
        return None
    try:
        head = _git(folder, "rev-parse", "HEAD").strip()
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no").strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}-dirty" if changed else head


def without_folders(text: str) -> str:
    """A word of a command line with the last part of an absolute path in its place: a report names
    no folder of a machine. The same for KEY=/PATH and for paths with commas between.
    """
    return ",".join(_last_part(path) for path in re.split(",(?=/)", text))


def _last_part(text: str) -> str:
    key, equals, value = text.rpartition("=")
    if not os.path.isabs(value):
        return text
    return f"{key}{equals}{os.path.basename(value.rstrip('/')) or value}"


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout


# --- the file -------------------------------------------------------------------------------------


def check_target(path: str) -> None:
    """ValueError where a report cannot be written to `path`, or would replace another document."""
    disk.output_folder(os.path.dirname(path) or ".", "-o")
    if not disk.is_url(path) and os.path.isdir(path):
        raise ValueError(f"-o {path} is a folder; name a file, like {path.rstrip('/')}/report.json")
    if not disk.exists(path):
        return
    try:
        read_report(path)
    except ValueError as error:
        raise ValueError(
            f"-o would replace a file that is no whole report ({error}); name another file, or "
            "remove that one"
        ) from error


def write_report(path: str, report: Report) -> None:
    """Write a report whole, in place of an older one."""
    disk.write_json(path, report)
