"""train/evaluate.py as a command. The evaluation itself is in tests/train/evaluation/."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from manifests import disk
from train.evaluate import main
from train.formats import model_files, open_clip_files
from train.model import CLIP, MODELS


@pytest.fixture
def task(tmp_path: Path) -> Path:
    for label, colour in (("dark", (0, 0, 9)), ("light", (250, 250, 240))):
        (tmp_path / "data" / label).mkdir(parents=True)
        Image.new("RGB", (32, 32), colour).save(tmp_path / "data" / label / "0.png")
    path = tmp_path / "task.yaml"
    path.write_text(f"{{name: shades, kind: classification, data: {tmp_path / 'data'}}}")
    return path


def test_predictions_lie_beside_the_model_or_where_out_says(task: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    open_clip_files.save_export(CLIP(MODELS["test"], seed=0), str(model))
    assert main([str(model), "--task", str(task), "--device", "cpu"]) == 0
    assert len(disk.read_parquet(model / "eval" / "shades.parquet")) == 2
    command = [str(model), "--task", str(task), "--device", "cpu", "--out", str(tmp_path / "x")]
    assert main(command) == 0
    first, second = model / "eval" / "shades.parquet", tmp_path / "x" / "shades.parquet"
    assert disk.read_parquet(first).equals(disk.read_parquet(second))


def test_mistakes_are_one_line(
    task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([str(tmp_path), "--task", str(task)], [str(tmp_path), "--task", "none.yaml"]):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")


def test_a_hugging_face_folder_is_evaluated_like_an_open_clip_folder(
    task: Path, tmp_path: Path
) -> None:
    model, tables = CLIP(MODELS["test"], seed=0), []
    for name in ("open_clip", "huggingface"):
        model_files.save_model(model, str(tmp_path / name), name)
        command = [f"local-dir:{tmp_path / name}", "--task", str(task), "--device", "cpu"]
        assert main(command) == 0
        tables.append(disk.read_parquet(tmp_path / name / "eval" / "shades.parquet"))
    assert tables[0].equals(tables[1])


def test_a_model_of_a_list_needs_a_folder_for_the_predictions(
    task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["open_clip:ViT-B-32/openai", "--task", str(task)]) == 2
    assert "--out" in capsys.readouterr().err
