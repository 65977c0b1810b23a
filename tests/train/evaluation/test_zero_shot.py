from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from manifests import console, disk
from manifests.schema import TaskSpec
from tests.support.task_data import images_of, task_of, write_tar
from train.evaluation import tasks
from train.evaluation.tasks import evaluate, read_samples
from train.formats import open_clip_files
from train.model.architecture import MODELS
from train.model.clip import CLIP


def test_it_agrees_with_open_clip_on_every_image(
    colours: TaskSpec, model: CLIP, tmp_path: Path
) -> None:
    import open_clip

    metrics = evaluate(model, [colours], str(tmp_path / "eval"))["colours"]
    table = disk.read_parquet(tmp_path / "eval" / "colours.parquet")

    open_clip_files.save_export(model, str(tmp_path / "export"))
    theirs, _, transform = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'export'}")
    theirs.eval()
    tokenizer = open_clip.SimpleTokenizer(context_length=MODELS["test"].context_length)
    classes = read_samples(colours).classes
    files = table["sample"].to_pylist()
    with torch.no_grad():
        matrix_EC = open_clip.build_zero_shot_classifier(
            theirs, tokenizer, classes, colours.templates
        )
        images = torch.stack(
            [transform(Image.open(f"{colours.data}/{f}").convert("RGB")) for f in files]
        )
        logits_NC = (
            theirs.logit_scale.exp() * theirs.encode_image(images, normalize=True) @ matrix_EC
        )
    top = logits_NC.topk(2, dim=1)
    assert table["predicted"].to_pylist() == top.indices[:, 0].tolist()
    assert len(set(table["predicted"].to_pylist())) > 1, "the test would pass with a constant model"
    labels = torch.tensor(table["label"].to_pylist())
    logprobs_NC = logits_NC.log_softmax(dim=1)
    right_N = logprobs_NC.gather(1, labels[:, None])[:, 0]
    np.testing.assert_allclose(table["logprob"].to_numpy(), right_N.numpy(), atol=1e-4)
    margin_N = right_N - logprobs_NC.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
    np.testing.assert_allclose(table["margin"].to_numpy(), margin_N.numpy(), atol=2e-4)
    order = logprobs_NC.sort(dim=1, descending=True)
    assert table["top_classes"].to_pylist() == order.indices.tolist()
    stored = torch.tensor(table["top_logprobs"].to_pylist())
    np.testing.assert_allclose(stored, order.values, rtol=1e-3, atol=1e-4)
    expected = (top.indices[:, 0] == labels).double().mean().item()
    assert metrics["accuracy"] == pytest.approx(expected, abs=1e-12)


def test_columns_and_metadata_are_as_promised(
    colours: TaskSpec, model: CLIP, tmp_path: Path
) -> None:
    metrics = evaluate(model, [colours], str(tmp_path))["colours"]
    table = disk.read_parquet(tmp_path / "colours.parquet")
    assert table.schema.remove_metadata() == pa.schema(
        [
            ("sample", pa.string()),
            ("label", pa.int16()),
            ("predicted", pa.int16()),
            ("correct", pa.bool_()),
            ("correct5", pa.bool_()),
            ("logprob", pa.float32()),
            ("margin", pa.float32()),
            ("top_classes", pa.list_(pa.int16(), 3)),
            ("top_logprobs", pa.list_(pa.float16(), 3)),
        ]
    )
    metadata = disk.read_metadata(tmp_path / "colours.parquet")
    assert metadata["task"] == disk.to_plain(colours)
    assert metadata["metrics"] == metrics
    assert metadata["classes"] == ["dark red", "green", "sky blue"]
    assert np.mean(table["correct"].to_numpy()) == metrics["accuracy"]
    assert "accuracy5" not in metrics  # of three classes it is always 1
    assert all(table["correct5"].to_pylist())
    assert tasks.CLASSIFICATION.chance(metadata, 18) == 1 / 3
    (correct,) = tasks.CLASSIFICATION.correct(table)
    assert correct.tolist() == table["correct"].to_pylist()


def test_classify_by_hand() -> None:
    images = torch.nn.functional.normalize(
        torch.tensor([[1.0, 0.1], [0.9, 0.2], [0.2, 1.0], [1.0, 0.0]]), dim=1
    )
    columns, metrics = tasks.classify(10 * images @ torch.eye(2).T, [0, 0, 1, 1])
    assert columns["predicted"].tolist() == [0, 0, 1, 0]
    assert metrics["accuracy"] == 0.75
    assert metrics["mean_class_accuracy"] == (1.0 + 0.5) / 2
    assert columns["margin"][3] == pytest.approx(-10.0)
    assert columns["logprob"][3] == pytest.approx(-np.log1p(np.exp(10.0)))
    assert columns["top_classes"].to_pylist() == [[0, 1], [0, 1], [1, 0], [0, 1]]
    assert metrics["logprob"] == pytest.approx(columns["logprob"].mean())


def test_a_tie_counts_against_the_model() -> None:
    constant = torch.ones(6, 4) / 2
    columns, metrics = tasks.classify(100 * constant @ constant.T, [0, 1, 2, 3, 4, 5])
    shares = {name: metrics[name] for name in ("accuracy", "accuracy5", "mean_class_accuracy")}
    assert shares == {"accuracy": 0.0, "accuracy5": 0.0, "mean_class_accuracy": 0.0}
    assert metrics["logprob"] == pytest.approx(-np.log(6))
    assert not (columns["predicted"] == columns["label"]).any()
    assert columns["margin"].tolist() == [0.0] * 6
    for label, classes in enumerate(columns["top_classes"].to_pylist()):
        assert label not in classes  # five others are as good
    two = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # classes 0 and 1 are one
    columns, metrics = tasks.classify(two @ two.T, [0, 1, 2])
    assert columns["predicted"].tolist() == [1, 0, 2]
    assert metrics["accuracy"] == 1 / 3


def test_a_logit_scale_that_overflows_is_refused(colours: TaskSpec, tmp_path: Path) -> None:
    broken = CLIP(MODELS["test"], seed=3)
    with torch.no_grad():
        broken.logit_scale.fill_(1000.0)
    with pytest.raises(ValueError, match=r"task 'colours': the logits of 'dark_red/0.jpg' are not"):
        evaluate(broken, [colours], str(tmp_path))
    assert not (tmp_path / "colours.parquet").exists()


def test_the_worst_group_is_that_of_the_data(
    colours: TaskSpec, model: CLIP, tmp_path: Path
) -> None:
    samples = read_samples(colours)
    members = []
    for number, image in enumerate(images_of(samples)):
        content = {"colour": samples.classes[samples.labels[number]], "place": number % 4}
        suffix = "png" if number % 2 else "jpg"
        members += [(f"{number:02d}.{suffix}", image)]
        members += [(f"{number:02d}.json", json.dumps(content).encode())]
    tar = write_tar(tmp_path / "grouped.tar", members)
    columns = {"label": "json:colour", "group": "json:place"}
    task = task_of(tar, columns=columns, ignore_groups=["3"])
    metrics = evaluate(model, [task], str(tmp_path / "out"))["t"]
    table = disk.read_parquet(tmp_path / "out" / "t.parquet")
    assert table["group"].to_pylist()[:5] == ["0", "1", "2", "3", "0"]
    right = table["correct"].to_numpy()
    assert metrics["worst_group_accuracy"] == min(right[place::4].mean() for place in range(3))
    assert "worst_group_accuracy5" not in metrics  # three classes


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_evaluates_a_model(colours: TaskSpec, model: CLIP, tmp_path: Path) -> None:
    open_clip_files.save_export(model, str(tmp_path / "run" / "export"))
    (tmp_path / "task.yaml").write_text(
        f"{{name: colours, kind: classification, data: {colours.data}}}"
    )
    words = ["evaluate", str(tmp_path / "run"), "--task", str(tmp_path / "task.yaml"), "--json"]
    ended = subprocess.run(
        console.program(words),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    printed = json.loads(ended.stdout.splitlines()[-1])
    path = tmp_path / "run" / "eval" / "colours.parquet"
    assert disk.read_metadata(path)["metrics"] == printed["colours"]
    assert "has no run.json: its training pools are not known" in ended.stderr
