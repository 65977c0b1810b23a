"""Weights of the hub are pinned to a commit, and a command whose weights are out of reach says so
before it starts anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.errors
import pytest

from clipmill.filters.clip.filters import ClipScore
from clipmill.manifests import hub
from clipmill.manifests.hub import pinned
from tests.support import commands
from tests.support.small_pool import make_pool, rows

COMMITS = ("a" * 40, "b" * 40)


def unreachable(*_: object, **__: object) -> None:
    raise OSError("no route")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's client, and no network."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub._commit.cache_clear()
    return folder


def store(cache: Path, repo: str, *names: str, commit: str = COMMITS[0]) -> None:
    """Files of a repository as a download leaves them."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    for name in names:
        (folder / "snapshots" / commit / name).write_bytes(b"")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (["clip_score.model=ViT-B-32", "clip_score.pretrained=laion2b_s34b_b79k"],
         "ViT-B-32/laion2b_s34b_b79k (laion/CLIP-ViT-B-32-laion2B-s34B-b79K/open_clip_model.safet"),
        (["clip_score.model=ViT-B-32-quickgelu", "clip_score.pretrained=openai"],
         "ViT-B-32-quickgelu/openai (timm/"),
        ([f"clip_score.model=hf-hub:org/clip@{COMMITS[0]}"], f"org/clip@{COMMITS[0]} is not on"),
        ([f"captioner.model=hf:org/blip@{COMMITS[0]}"], f"org/blip@{COMMITS[0]} is not on"),
    ],
)  # fmt: skip
def test_weights_out_of_reach_are_one_line_before_anything_starts(
    changes: list[str],
    what: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clipmill.pipeline.scoring.scorer._has_gpu", unreachable)  # it starts Ray
    pool = make_pool(tmp_path / "pool", rows(3))
    words = [word for change in changes for word in ("--set", change)]
    filter_name = changes[0].partition(".")[0]
    assert commands.score([pool, "--filters", filter_name, *words]) == 2
    message = capsys.readouterr().err
    assert f"error: filter {filter_name}: {what}" in message
    assert "cannot be downloaded: no route; docs/stages/score.md says how" in message


def test_a_build_says_it_before_the_crawl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "{name: r, source: {kind: files, paths: [x.csv]}, fetch: {user_agent: 'a (b@c.example)'},\n"
        " filters: [{clip_score: {model: ViT-B-32, pretrained: laion2b_s34b_b79k}}]}\n"
    )
    out = tmp_path / "pool"
    assert commands.build([str(recipe), "--out", str(out)]) == 2
    assert "cannot be downloaded: no route" in capsys.readouterr().err
    assert not out.exists()


def test_weights_without_the_tokenizer_are_not_enough(cache: Path) -> None:
    store(cache, "timm/ViT-B-16-SigLIP", "open_clip_model.safetensors")
    with pytest.raises(ValueError, match=r"tokenizer_config.json of ViT-B-16-SigLIP \(timm/ViT-B"):
        hub.check_open_clip("filter embed", "ViT-B-16-SigLIP", "webli")
    hub.check_open_clip("a run", "ViT-B-16-SigLIP", "webli", tokenizer=False)


def test_a_file_that_the_hub_lacks_is_asked_for_by_its_other_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def answer(url: str, timeout: float) -> None:
        asked.append(url.rpartition("/")[2])
        if asked[-1].endswith(".safetensors"):
            raise huggingface_hub.errors.EntryNotFoundError("404")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", answer)
    hub.check_open_clip("filter embed", "ViT-B-32", "laion2b_s34b_b79k")
    assert asked == ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"]


def test_without_stored_files_the_commit_is_the_hub_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match=r"no route; name one as org/clip@COMMIT"):
        pinned("filter clip_score", "org/clip")
    info = SimpleNamespace(sha=COMMITS[1])
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, repo, timeout: info)
    assert pinned("filter clip_score", "org/clip") == f"org/clip@{COMMITS[1]}"
    assert pinned("filter clip_score", f"org/clip@{COMMITS[0]}") == f"org/clip@{COMMITS[0]}"
    with pytest.raises(ValueError, match="a commit has 40 hex digits"):
        pinned("filter clip_score", "org/clip@main")
    score = ClipScore(model=f"hf-hub:org/clip@{COMMITS[0]}", precision="fp32")
    with pytest.raises(ValueError, match=f"org/clip@{COMMITS[0]} cannot be read from the hub"):
        score.setup()
