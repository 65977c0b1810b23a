from __future__ import annotations

import json
from pathlib import Path

import torch

from manifests import disk
from tests.support.ablations import TRAIN, tiny_ablation
from train.ablation import runner
from train.ablation.arms import expand_runs
from train.formats import model_files, open_clip_files
from train.model.clip import CLIP


def test_an_error_is_an_answer(tiny_pool: str, data: str, tmp_path: Path) -> None:
    tiny = tiny_ablation(tiny_pool, data, train={**TRAIN, "batch_size": 64})
    run = expand_runs(tiny, str(tmp_path))[0]
    answer = runner.train_and_evaluate(runner.request_of(run, tiny.evaluate, 1))
    assert answer["refused"]
    assert answer["error"].startswith("ValueError: fewer rows than a batch")


def test_a_request_is_json(tiny_pool: str, data: str, tmp_path: Path) -> None:
    tiny = tiny_ablation(tiny_pool, data)
    request = runner.request_of(expand_runs(tiny, str(tmp_path))[0], tiny.evaluate, 3)
    assert json.loads(json.dumps(request)) == request
    assert request["threads"] == 3


def test_a_model_that_became_nan_is_a_failed_run(
    tiny_pool: str, data: str, tmp_path: Path, monkeypatch: object
) -> None:
    tiny = tiny_ablation(tiny_pool, data)
    run = expand_runs(tiny, str(tmp_path))[0]
    request = runner.request_of(run, tiny.evaluate, 1)
    assert "metrics" in runner.train_and_evaluate(request)
    broken: CLIP = open_clip_files.load_export(f"{run.out}/export")
    with torch.no_grad():
        next(broken.visual.parameters()).fill_(torch.nan)
    open_clip_files.save_export(broken, f"{run.out}/export")
    record = disk.read_json(f"{run.out}/run.json")  # as if training had written it
    export = model_files.source_files(f"{run.out}/export")
    disk.write_json(f"{run.out}/run.json", {**record, "export": export})
    answer = runner.train_and_evaluate(request)
    assert answer["refused"]
    assert "task 'colours': the image features of 'blue/0.png' are not finite" in answer["error"]
