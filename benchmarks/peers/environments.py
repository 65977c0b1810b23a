"""Virtual environments of the peers, one for each, made by pip and kept between runs.

A peer that computes with torch sees the packages of this project behind its own (a `.pth` file):
both programs then run the same build of torch, and nothing of two gigabytes is installed twice.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "out/bench/peers"
PATH_FILE = "clipmill_torch.pth"  # names the folder of the packages of this project


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What is installed for one peer."""

    packages: tuple[str, ...]
    module: str  # is imported as a check
    distribution: str  # whose version is reported
    with_torch: bool = False
    options: tuple[str, ...] = ()  # of pip


def _loader(requirement: str, module: str = "") -> Peer:
    """A loader that is one package."""
    name = re.split(r"[><=]", requirement)[0]
    return Peer(packages=(requirement,), module=module or name, distribution=name, with_torch=True)


PEERS = {
    "img2dataset": Peer(
        packages=("img2dataset>=1.47",), module="img2dataset", distribution="img2dataset"
    ),
    "open_clip": Peer(
        packages=("open_clip_torch>=3.2,<5", "webdataset>=0.2.100,<2"),
        module="open_clip",
        distribution="open_clip_torch",
        with_torch=True,
        options=("--no-deps", "--ignore-installed"),  # copies of its own, beside our torch
    ),
    "imagededup": Peer(
        packages=("imagededup>=0.3",),
        module="imagededup.methods",
        distribution="imagededup",
        with_torch=True,
    ),
    "datacomp": Peer(  # its code is no package: peers/datacomp.py has its algorithm
        packages=("pandas>=2", "pyarrow>=18"), module="pandas", distribution="pandas"
    ),
    # Loaders of reading/foreign_loops.py: each decodes with this project's torch and simplejpeg.
    "webdataset": _loader("webdataset>=1,<2"),
    "streaming": _loader("mosaicml-streaming>=0.13,<1", "streaming"),
    "litdata": _loader("litdata>=0.2.76,<1"),
    "spdl": _loader("spdl>=0.8,<1", "spdl.pipeline"),
    "datasets": _loader("datasets>=5,<6"),
    "lance": _loader("pylance>=14,<15", "lance"),
    "cc2dataset": Peer(  # fetching/crawl.py has its logic; the parser is the one that it uses
        packages=("pysimdjson>=6", "fastwarc>=2,<3", "pyarrow>=18"),
        module="simdjson",
        distribution="pysimdjson",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A peer's interpreter, or the reason why there is none."""

    name: str
    python: str | None
    version: str | None
    reason: str | None = None

    @property
    def packages(self) -> str:
        """The folder of its packages."""
        assert self.python is not None
        command = [self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environment_of(name: str, folder: Path = FOLDER) -> Environment:
    """The environment of a peer. It is made where it does not exist, holds other packages, or was
    made by another checkout, whose folders it refers to.

    ValueError: there is no peer of this name.
    """
    if name not in PEERS:
        raise ValueError(f"there is no peer {name!r}; there are {', '.join(sorted(PEERS))}")
    peer, home = PEERS[name], folder / name
    python, written = home / "bin/python", home / "clipmill.json"
    wanted = [*peer.packages, *peer.options, f"torch {peer.with_torch}"]
    stale = _stale(home) if written.exists() else None
    if stale is not None:
        print(f"{name}: {stale}; it is made again", flush=True)
    if stale is not None or not _holds(written, wanted):
        shutil.rmtree(home, ignore_errors=True)
        reason = _make(peer, home)
        if reason is not None:
            return Environment(name=name, python=None, version=None, reason=reason)
        written.write_text(json.dumps(wanted))
    code = f"from importlib.metadata import version; import {peer.module}; "
    code += f"print(version({peer.distribution!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    if done.returncode != 0:
        written.unlink()
        return Environment(name=name, python=None, version=None, reason=reason_of(done.stderr))
    return Environment(name=name, python=str(python), version=done.stdout.split()[-1])


def _holds(written: Path, wanted: list[str]) -> bool:
    """Whether an environment was made with these packages; False where its file is damaged."""
    try:
        return bool(json.loads(written.read_text()) == wanted)
    except (OSError, ValueError):
        return False


def _stale(home: Path) -> str | None:
    """Why an environment cannot be used from this checkout; None where it can."""
    python = home / "bin/python"
    if not python.exists():
        return f"its interpreter {python.readlink() if python.is_symlink() else python} is missing"
    ours = Path(sysconfig.get_path("purelib")).resolve()
    for path in home.glob(f"lib/python*/site-packages/{PATH_FILE}"):
        folder = Path(path.read_text().strip())
        if not folder.is_dir():
            return f"it was made by another checkout: {folder} does not exist"
        if folder.resolve() != ours:
            return f"it was made by another checkout, with the packages of {folder}"
    return None


def _make(peer: Peer, home: Path) -> str | None:
    """Make an environment. The reason where that fails."""
    home.parent.mkdir(parents=True, exist_ok=True)
    made = subprocess.run([sys.executable, "-m", "venv", str(home)], capture_output=True, text=True)
    if made.returncode != 0:
        return reason_of(made.stderr or made.stdout)
    if peer.with_torch:
        packages = next(home.glob("lib/python*/site-packages"))
        (packages / PATH_FILE).write_text(sysconfig.get_path("purelib") + "\n")
    pip = [str(home / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--quiet", *peer.options, *peer.packages], capture_output=True, text=True
    )
    return None if done.returncode == 0 else reason_of(done.stderr)


def reason_of(errors: str) -> str:
    """The last line of an error, without paths and addresses."""
    lines = [line.strip() for line in errors.splitlines() if line.strip() and "WARNING" not in line]
    line = lines[-1] if lines else "no message"
    return re.sub(r"(\w+://|/)[^\s'\"]+", "...", line)[:200]


def main(names: list[str]) -> int:
    """Make the environments of some peers, or of all, and print what each holds."""
    failed = 0
    for name in names or list(PEERS):
        environment = environment_of(name)
        failed += environment.python is None
        state = environment.reason or f"{PEERS[name].distribution} {environment.version}"
        print(f"{name:12} {state}", flush=True)
    return 3 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
