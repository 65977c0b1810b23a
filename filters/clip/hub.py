"""Models of the Hugging Face hub, pinned to a commit: a name alone may lead to other weights
tomorrow, or on another machine.

A commit is written behind the name: ORG/NAME@COMMIT. Without one it is that of the files on this
machine, and that of the hub's main branch where there are none.
"""

from __future__ import annotations

import contextlib
import functools
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

COMMIT = re.compile(r"[0-9a-f]{40}")


def pinned(kind: str, name: str) -> str:
    """ORG/NAME@COMMIT of a name with or without a commit.

    kind: the filter, for messages. ValueError where no commit can be found.
    """
    repo, at, commit = name.partition("@")
    if at:
        if not COMMIT.fullmatch(commit):
            raise ValueError(f"filter {kind}: {name}: a commit has 40 hex digits")
        return name
    hub = _client(kind, name)
    return f"{repo}@{_commit(kind, repo, str(hub.constants.HF_HUB_CACHE))}"


@functools.cache
def _commit(kind: str, repo: str, cache: str) -> str:
    hub = _client(kind, repo)
    stored = Path(cache) / f"models--{repo.replace('/', '--')}" / "refs" / "main"
    if stored.is_file():
        return stored.read_text().strip()
    try:
        return str(hub.HfApi().model_info(repo).sha)
    except Exception as error:  # of the network, of the hub, of its client
        line = " ".join(str(error).split())[:200]
        raise ValueError(
            f"filter {kind}: the commit of {repo} cannot be read from the hub, and its files are "
            f"not on this machine: {line}; name one as {repo}@COMMIT, or use local-dir:FOLDER"
        ) from error


def snapshot(kind: str, name: str, patterns: list[str] | None = None) -> str:
    """The folder with the files of ORG/NAME@COMMIT; what is not on this machine is downloaded.

    ValueError where it cannot be.
    """
    repo, _, commit = pinned(kind, name).partition("@")
    hub = _client(kind, name)
    download = functools.partial(
        hub.snapshot_download,
        repo,
        revision=commit,
        cache_dir=hub.constants.HF_HUB_CACHE,
        allow_patterns=patterns,
    )
    try:
        return str(download())
    except Exception as error:
        # Some versions of the client ask the hub for the list of files of a commit that is
        # stored here, and fail offline: what is stored is then enough.
        with contextlib.suppress(Exception):
            return str(download(local_files_only=True))
        line = " ".join(str(error).split())[:200]
        raise ValueError(f"filter {kind}: {name} cannot be read from the hub: {line}") from error


def _client(kind: str, name: str) -> Any:
    if find_spec("huggingface_hub") is None:
        raise ValueError(
            f"filter {kind}: {name} needs the package huggingface_hub, which is not installed: "
            "pip install -e '.[score]'"
        )
    import huggingface_hub

    return huggingface_hub
