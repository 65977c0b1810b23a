"""Weights of the Hugging Face hub and of open_clip's list: pinned to a commit, because a name alone
may lead to other weights tomorrow or on another machine, and known to be in reach before a worker
starts.

A commit is written behind the name: ORG/NAME@COMMIT. Without one it is that of the files on this
machine, and that of the hub's main branch where there are none. `who` begins every message, such as
"filter clip_score".
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clipmill.manifests.installation import install_command

COMMIT = re.compile(r"[0-9a-f]{40}")
WEIGHTS = (".safetensors", ".bin")
REACH_S = 5.0  # for one answer of a server; its client would try for half a minute
HELP = "docs/stages/score.md says how weights come to machines without a network"


def pinned(who: str, name: str) -> str:
    """ORG/NAME@COMMIT of a name with or without a commit.

    ValueError where no commit can be found.
    """
    repo, at, commit = name.partition("@")
    if at:
        if not COMMIT.fullmatch(commit):
            raise ValueError(f"{who}: {name}: a commit has 40 hex digits")
        return name
    hub = _client(who, name)
    return f"{repo}@{_commit(who, repo, str(hub.constants.HF_HUB_CACHE))}"


@functools.cache
def _commit(who: str, repo: str, cache: str) -> str:
    hub = _client(who, repo)
    stored = Path(cache) / f"models--{repo.replace('/', '--')}" / "refs" / "main"
    if stored.is_file():
        return stored.read_text().strip()
    try:
        return str(hub.HfApi().model_info(repo, timeout=REACH_S).sha)
    except Exception as error:  # of the network, of the hub, of its client
        raise ValueError(
            f"{who}: the commit of {repo} cannot be read from the hub, and its files are "
            f"not on this machine: {_line(error)}; name one as {repo}@COMMIT, or use "
            f"local-dir:FOLDER; {HELP}"
        ) from error


def snapshot(who: str, name: str, patterns: list[str] | None = None) -> str:
    """The folder with the files of ORG/NAME@COMMIT; what is not on this machine is downloaded.

    ValueError where it cannot be.
    """
    repo, _, commit = pinned(who, name).partition("@")
    hub = _client(who, name)
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
        raise ValueError(f"{who}: {name} cannot be read from the hub: {_line(error)}") from error


# --- in reach -------------------------------------------------------------------------------------


def check_repository(who: str, name: str) -> None:
    """ValueError unless weights of ORG/NAME@COMMIT are on this machine or the hub has that commit.

    It downloads nothing.
    """
    repo, _, commit = pinned(who, name).partition("@")
    hub = _client(who, name)
    folder = Path(hub.constants.HF_HUB_CACHE, f"models--{repo.replace('/', '--')}", "snapshots")
    # A link to a file whose download did not end leads nowhere.
    stored = folder.joinpath(commit).rglob("*")
    if any(path.suffix in WEIGHTS and path.is_file() for path in stored):
        return
    try:
        hub.HfApi().model_info(repo, revision=commit, timeout=REACH_S)
    except Exception as error:  # as in _commit
        raise _out_of_reach(who, name, error) from error


def check_open_clip(who: str, model: str, tag: str, *, tokenizer: bool = True) -> None:
    """ValueError unless what open_clip reads for a model and a tag of its list is on this machine
    or can be downloaded: the weights, the configuration of a text tower and, with `tokenizer`, the
    tokenizer. It downloads nothing.
    """
    import open_clip

    if not os.path.isfile(tag):
        repository = open_clip.get_pretrained_cfg(model, tag).get("hf_hub")
        if repository:  # ORG/NAME/FILE, or ORG/NAME/ for the usual file
            repo, file = os.path.split(repository)
            file = file or "open_clip_pytorch_model.bin"
            usual = "open_clip_model" if file == "open_clip_pytorch_model.bin" else Path(file).stem
            names = [f"{usual}.safetensors", file]  # open_clip looks for them in this order
            _check_file(who, f"{model}/{tag}", repo, names)
    text = (open_clip.get_model_config(model) or {}).get("text_cfg", {})
    read = {"hf_model_name": "config.json"}
    if tokenizer:
        read["hf_tokenizer_name"] = "tokenizer_config.json"
    for key, file in read.items():
        if repo := text.get(key):
            _check_file(who, f"{file} of {model}", repo, [file])


def is_stored(repo: str) -> bool:
    """Whether weights of ORG/NAME, as open_clip names their files, are on this machine."""
    if find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub import try_to_load_from_cache

    names = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
    return any(isinstance(try_to_load_from_cache(repo, name), str) for name in names)


def _check_file(who: str, what: str, repo: str, names: Sequence[str]) -> None:
    """ValueError unless one of these files of a repository is here or the hub has it."""
    hub = _client(who, repo)
    cache = hub.constants.HF_HUB_CACHE
    if any(isinstance(hub.try_to_load_from_cache(repo, name, cache), str) for name in names):
        return
    for name in names:
        try:
            hub.get_hf_file_metadata(hub.hf_hub_url(repo, name), timeout=REACH_S)
            return
        except hub.errors.EntryNotFoundError as error:
            if name == names[-1]:
                raise _out_of_reach(who, f"{what} ({repo}/{name})", error) from error
        except Exception as error:  # as in _commit
            raise _out_of_reach(who, f"{what} ({repo}/{name})", error) from error


def _out_of_reach(who: str, what: str, error: Exception) -> ValueError:
    return ValueError(
        f"{who}: {what} is not on this machine and cannot be downloaded: {_line(error)}; {HELP}"
    )


def _line(error: Exception) -> str:
    """The start of an error's text, in one line."""
    return " ".join(str(error).split())[:200]


def _client(who: str, name: str) -> Any:
    if find_spec("huggingface_hub") is None:
        raise ValueError(
            f"{who}: {name} needs the package huggingface_hub, which is not installed: "
            f"{install_command('score')}"
        )
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors

    return huggingface_hub
