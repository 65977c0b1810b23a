from __future__ import annotations

from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest

from manifests import disk
from manifests.layout import RunLayout
from tests.support.ablations import TRAIN, changed, tiny_ablation, two_classes
from train.ablation.arms import expand_runs
from train.ablation.plan import check_ablation, check_pools


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"equivalence": 0.0}, r"equivalence is 0.0; it must be above 0"),
        ({"scorer": {"view": "wob/all"}}, r"scorer.view is 'wob/all'; its pool must be of"),
        (
            {"scorer": {"view": "web/all", "train": {"lr": "fast"}}},
            "lr is 'fast'; it must be a number",
        ),
        ({"train": {**TRAIN, "warmup": 5}}, "^train: warmup 5, but the run has 4 steps"),
        (
            {"scorer": {"view": "web/all", "train": {"warmup": 9}}},
            "^scorer.train: warmup 9, but the run has 4 steps",
        ),
        (
            {"scorer": {"view": "web/all", "train": {"samples_seen": 16, "warmup": 2}}},
            "^scorer.train: warmup 2, but the run has 1 steps",
        ),
        ({"arms": {"raw": "web/all", "half": "web/hlaf"}}, "no view 'hlaf'; did you mean 'half'"),
    ],
)
def test_what_can_be_known_without_a_pool(
    tiny_pool: str, data: str, change: dict[str, object], message: str
) -> None:
    tiny = tiny_ablation(tiny_pool, data)
    check_ablation(tiny, "/out")
    with pytest.raises(ValueError, match=message):
        check_ablation(changed(tiny, **change), "/out")


@pytest.mark.parametrize("finished", [False, True])
def test_weights_that_no_run_could_load_are_refused_before_the_first(
    tiny_pool: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    init = "open_clip:ViT-B-32/laion2b_s34b_b79k"
    tiny = changed(tiny_ablation(tiny_pool, data), train={**TRAIN, "init": init})
    if finished:
        for run in expand_runs(tiny, str(tmp_path), built=False):
            disk.write_json(RunLayout(run.out).run_json, {})
        check_ablation(tiny, str(tmp_path))
        return
    with pytest.raises(ValueError, match=rf"{init}: ViT-B-32/.* cannot be downloaded: no route"):
        check_ablation(tiny, str(tmp_path))


def test_two_tasks_of_one_name_are_refused(tiny_pool: str, data: str) -> None:
    tiny = tiny_ablation(tiny_pool, data)
    task = disk.to_plain(tiny.evaluate[0])
    with pytest.raises(ValueError, match="two tasks of one name: colours, colours"):
        check_ablation(changed(tiny, evaluate=[task, task]), "/out")


def test_pools_are_checked_and_searched(tiny_pool: str, data: str, tmp_path: Path) -> None:
    tiny, out = tiny_ablation(tiny_pool, data), str(tmp_path / "out")
    shared = check_pools(tiny, out)
    assert shared.images == ()
    assert disk.read_json(tmp_path / "out" / "overlap.json") == disk.to_plain(shared)
    with pytest.raises(ValueError, match="fewer rows than a batch"):
        check_pools(changed(tiny, train={**TRAIN, "batch_size": 64}), out)


def test_a_training_image_in_the_evaluation_is_refused(tiny_pool: str, tmp_path: Path) -> None:
    data = two_classes(tmp_path / "data")
    sidecar = disk.read_parquet(disk.join(tiny_pool, "shards", "00001.parquet"))
    row = sidecar.slice(2, 1).to_pylist()[0]
    tar = disk.join(tiny_pool, "shards", "00001.tar")
    image = disk.read_bytes(tar, row["image_offset"], row["image_length"])
    (Path(data) / "red" / "9.jpg").write_bytes(image)
    with pytest.raises(ValueError, match=rf"red/9.jpg is also in the pool .* {row['key']}"):
        check_pools(tiny_ablation(tiny_pool, data), str(tmp_path))
