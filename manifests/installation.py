"""How clipmill was installed here, and what works without a package that is missing.

A message about a missing package names the command that fits: of uv, pipx or pip, for an index, a
folder or a repository. The help of a command is read without its packages. It imports the standard
library only.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
import types
from collections.abc import MutableSequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from clipmill import ROOT

NAME = "clipmill"
# Modules whose distribution has another name.
DISTRIBUTIONS = {
    "open-clip": "open-clip-torch", "ahocorasick": "pyahocorasick", "faiss": "faiss-cpu",
}  # fmt: skip
USUAL = ("build", "train", "score")  # where nothing says which extra has a package


def install_command(*extras: str) -> str:
    """The command that installs these extras beside what is here, in the way in which clipmill was
    installed: by uv or pipx as a tool, or by uv or pip into an environment.
    """
    prefix = Path(sys.prefix)
    what = _requirement(",".join(extras))
    if (prefix / "uv-receipt.toml").exists():
        return f"uv tool install --force {what}"
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx install --force {what.removeprefix('-e ')}"
    python = shlex.quote(sys.executable)
    if _metadata_text("INSTALLER") == "uv":
        return f"uv pip install --python {python} {what}"
    return f"{python} -m pip install {what}"


def version() -> str:
    """The version of clipmill."""
    from importlib import metadata

    return metadata.version(NAME)


def is_installed() -> bool:
    """False in a checkout that only lies on the path."""
    return bool(_metadata_text("METADATA"))


def extras_of(module: str) -> tuple[str, ...]:
    """The extra that brings a missing module: the first of pyproject.toml, or USUAL."""
    wanted = re.sub(r"[-_.]+", "-", module).lower()
    wanted = DISTRIBUTIONS.get(wanted, wanted)
    for requirement in _requirements():
        name = re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if name == wanted and extra:
            return (extra[1],)
    return USUAL


@functools.cache
def _requirements() -> list[str]:
    """What clipmill and its extras require; of a checkout that is not installed, by its project."""
    import tomllib
    from importlib import metadata  # not at the start of every command: 20 ms

    try:
        return metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        project = Path(ROOT, "pyproject.toml")
    if not project.exists():
        return []
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    return [f"{each}; extra == '{extra}'" for extra in extras for each in extras[extra]]


def _metadata_text(file: str) -> str:
    """A file of clipmill's metadata; empty where there is none."""
    from importlib import metadata

    try:
        return (metadata.distribution(NAME).read_text(file) or "").strip()
    except metadata.PackageNotFoundError:
        return ""


def _requirement(extras: str) -> str:
    """clipmill with extras, from where it came: an index, a folder, a file or a repository."""
    origin: dict[str, Any] = json.loads(_metadata_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    if not url:
        return shlex.quote(f"{NAME}[{extras}]")
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        revision = vcs.get("requested_revision") or vcs.get("commit_id")
        return shlex.quote(
            f"{NAME}[{extras}] @ {vcs['vcs']}+{url}{f'@{revision}' if revision else ''}"
        )
    if "dir_info" in origin:
        folder = shlex.quote(f"{unquote(urlparse(url).path)}[{extras}]")
        return f"-e {folder}" if origin["dir_info"].get("editable") else folder
    return shlex.quote(f"{NAME}[{extras}] @ {url}")


# --------------------------------------------------------------------------------------------------
# Stand-ins of packages that are missing, for the help of a command: its module is imported, and
# nothing of it is called.


class _Kind(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn

    def __call__(cls, *words: object, **more: object) -> Any:
        return StandIn


class StandIn(metaclass=_Kind):
    """Whatever is asked of a missing package: a base class, a decorator, a constant."""


class _Package(types.ModuleType):
    __path__: MutableSequence[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


class StandIns:
    """The last finder of sys.meta_path while a help is printed: of packages of an extra."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """A stand-in for a package that no finder before this one has."""
        top = name.partition(".")[0]
        is_ours = extras_of(top) != USUAL or isinstance(sys.modules.get(top), _Package)
        return ModuleSpec(name, self, is_package=True) if is_ours else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """An empty package."""
        return _Package(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: it has no code."""
