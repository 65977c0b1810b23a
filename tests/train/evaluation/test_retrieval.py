from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F

from manifests import disk
from manifests.schema import TaskSpec
from train.eval_data import images
from train.eval_data.images import ImageFiles
from train.eval_data.samples import Samples
from train.evaluation import tasks
from train.evaluation.metrics import metric_values
from train.evaluation.tasks import evaluate, read_samples
from train.model.clip import CLIP


def test_ranks_by_hand() -> None:
    queries = torch.eye(3)
    candidates = torch.tensor([[0.9, 0.1, 0.5], [0.5, 0.8, 0.5], [0.1, 0.9, 0.5], [0.95, 0.0, 0.5]])
    # Query 0: 0 and 3 are right, 3 is first. Query 1: 1 is right, after 2. Query 2: a tie.
    matches = [(0, 0), (0, 3), (1, 1), (2, 2)]
    assert tasks.ranks(queries, candidates, matches).tolist() == [0, 1, 3]
    assert tasks.ranks(queries, torch.full((4, 3), torch.nan), matches).tolist() == [2, 3, 3]


def test_ranks_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(23, 8, generator=generator)
    candidates = torch.randn(40, 8, generator=generator)
    matches = [(n, m) for n in range(23) for m in (n, n + 17)]
    similarity = (queries @ candidates.T).numpy()
    expected = []
    for n in range(23):
        best = max(similarity[n, n], similarity[n, n + 17])
        wrong = [m for m in range(40) if m not in (n, n + 17)]
        expected.append(sum(similarity[n, m] >= best for m in wrong))
    assert tasks.ranks(queries, candidates, matches).tolist() == expected
    monkeypatch.setattr(images, "BATCH_SIZE", 5)
    assert tasks.ranks(queries, candidates, matches).tolist() == expected


def test_retrieval_counts_both_directions(captioned: TaskSpec, model: CLIP, tmp_path: Path) -> None:
    metrics = evaluate(model, [captioned], str(tmp_path))["captioned"]
    table = disk.read_parquet(tmp_path / "captioned.parquet")
    assert table.schema.names == ["direction", "sample", "rank", "loss"]
    assert table.schema.field("rank").type == pa.int32()
    rows = table.to_pylist()
    assert [r["sample"] for r in rows if r["direction"] == "image_to_text"] == [
        "a.png", "b.png", "c.png", "d/d.png", "e.png",
    ]  # fmt: skip
    texts = [r["sample"] for r in rows if r["direction"] == "text_to_image"]
    assert texts == ["red", "a red picture", "green", "blue", "grey", "grey"]
    for direction, correct in zip(tasks.DIRECTIONS, tasks.RETRIEVAL.correct(table), strict=True):
        ranks = [r["rank"] for r in rows if r["direction"] == direction]
        assert correct.tolist() == [rank == 0 for rank in ranks]
        assert metrics[f"{direction}_recall@1"] == pytest.approx(np.mean(correct))
    both = metrics["image_to_text_recall@1"] + metrics["text_to_image_recall@1"]
    assert metrics["recall@1"] == both / 2
    images = [r["rank"] + 1 for r in rows if r["direction"] == "image_to_text"]
    assert metrics["image_to_text_median_rank"] == np.median(images)
    assert metrics["text_to_image_recall@5"] == 1.0  # of five images
    assert tasks.RETRIEVAL.chance({}, 5) == 0.2


def test_a_text_of_two_images_is_two_captions_and_no_wrong_one_of_either(
    captioned: TaskSpec,
) -> None:
    samples = read_samples(captioned)  # captions: red, a red picture, green, blue, grey, grey
    image_NE = torch.eye(5)
    text_ME = image_NE[[0, 0, 1, 2, 3, 3]]  # both of grey lie on d
    columns, metrics = tasks.retrieve(image_NE, text_ME, samples, 10.0)
    assert columns["rank"].tolist()[:5] == [0, 0, 0, 0, 4]  # e is as far from all of them
    assert columns["rank"].tolist()[5:] == [0, 0, 0, 0, 0, 4]  # grey of d finds d, that of e too
    # CLIP_benchmark: recall_at_k of texts × images, each text with the image that it belongs to
    assert metrics["text_to_image_recall@1"] == pytest.approx(5 / 6)


def one_caption_each(count: int) -> Samples:
    pairs = tuple((n, n) for n in range(count))
    names = tuple(f"{n}" for n in range(count))
    return Samples(images=ImageFiles("", names), captions=names, matches=pairs)


def test_the_loss_of_one_batch_is_the_loss_of_training() -> None:
    generator = torch.Generator().manual_seed(2)
    image_NE = torch.nn.functional.normalize(torch.randn(7, 5, generator=generator), dim=1)
    text_NE = torch.nn.functional.normalize(torch.randn(7, 5, generator=generator), dim=1)
    columns, metrics = tasks.retrieve(image_NE, text_NE, one_caption_each(7), 20.0)
    logits, right = 20 * image_NE @ text_NE.T, torch.arange(7)
    expected = [F.cross_entropy(each, right, reduction="none") for each in (logits, logits.T)]
    np.testing.assert_allclose(columns["loss"].to_numpy(), torch.cat(expected), rtol=1e-5)
    assert metrics["contrastive_loss"] == pytest.approx(float(torch.cat(expected).mean()), rel=1e-6)
    (by_image, by_text) = metric_values(pa.table(columns), "contrastive_loss")
    np.testing.assert_allclose(by_text, expected[1], rtol=1e-5)
    assert len(by_image) == 7


def test_other_right_answers_are_no_candidates(captioned: TaskSpec) -> None:
    samples = read_samples(captioned)  # captions: red, a red picture, green, blue, grey, grey
    by_image, by_text = tasks.contrastive_losses(torch.ones(5, 3), torch.ones(6, 3), samples, 1.0)
    assert np.exp(by_image).round().astype(int).tolist() == [5, 5, 5, 4, 4]  # two have "grey"
    assert np.isnan(by_text).tolist() == [False, True, False, False, False, False]
    assert np.exp(by_text[[0, 2, 3, 4, 5]]).round().astype(int).tolist() == [5, 5, 5, 4, 4]
