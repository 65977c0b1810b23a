"""A model of the hub is pinned to a commit: in the id, and in what is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pyarrow as pa
import pytest

from filters.base import Batch, set_id
from filters.clip import ClipScore, hub
from filters.clip.hub import pinned
from tests.filters.clip.test_clip_score import CAPTIONS, images

COMMITS = ("a" * 40, "b" * 40)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's client, and no network."""

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    hub._commit.cache_clear()
    return tmp_path


def store(cache: Path, commit: str, files: Path, *, main: bool = True) -> None:
    """Files of org/clip at a commit, as a download leaves them."""
    folder = cache / "models--org--clip"
    shutil.copytree(files, folder / "snapshots" / commit)
    if main:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
    hub._commit.cache_clear()


def test_the_commit_that_is_stored_here_is_the_id_and_what_is_loaded(
    cache: Path, clip_folder: Path
) -> None:
    store(cache, COMMITS[0], clip_folder)
    score = ClipScore(model="hf-hub:org/clip", device="cpu")
    first = score.resolved(gpu=False)
    assert isinstance(first, ClipScore)
    assert first.model == f"hf-hub:org/clip@{COMMITS[0]}"
    first_id = set_id(first)
    assert first_id in [set_id(each) for each in score.alternatives()]
    first.setup()
    local = ClipScore(model=f"local-dir:{clip_folder}", device="cpu", precision="fp32")
    local.setup()
    batch = Batch(captions=CAPTIONS, images=images(), rows=pa.table({}))
    values = first.score(batch)["clip_score"]
    np.testing.assert_array_equal(values, local.score(batch)["clip_score"])
    # The branch moves on: the name has another id, and a filter that was resolved keeps its own.
    store(cache, COMMITS[1], clip_folder)
    assert set_id(score.resolved(gpu=False)) != first_id == set_id(first)


def test_without_stored_files_the_commit_is_the_hub_s(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"no route; name one as org/clip@COMMIT"):
        pinned("clip_score", "org/clip")
    info = SimpleNamespace(sha=COMMITS[1])
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, repo: info)
    assert pinned("clip_score", "org/clip") == f"org/clip@{COMMITS[1]}"
    assert pinned("clip_score", f"org/clip@{COMMITS[0]}") == f"org/clip@{COMMITS[0]}"
    with pytest.raises(ValueError, match="a commit has 40 hex digits"):
        pinned("clip_score", "org/clip@main")
    score = ClipScore(model=f"hf-hub:org/clip@{COMMITS[0]}", precision="fp32")
    with pytest.raises(ValueError, match=f"org/clip@{COMMITS[0]} cannot be read from the hub"):
        score.setup()
