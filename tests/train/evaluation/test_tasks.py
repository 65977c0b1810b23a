"""The kinds of tasks: zero-shot, retrieval, probes, associations; over ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.metrics import metric_values
from clipmill.train.eval_data import images
from clipmill.train.eval_data.images import ImageFiles
from clipmill.train.eval_data.samples import Samples
from clipmill.train.evaluation import tasks
from clipmill.train.evaluation.tasks import (
    ASSOCIATION,
    choose_strength,
    evaluate,
    fit,
    held_out,
    jaccard_indices,
    read_samples,
)
from clipmill.train.formats import open_clip_files
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from clipmill.train.parallel import process_group
from tests.support import evaluation_ranks
from tests.support.late import optimize, special
from tests.support.task_data import images_of, task_of, write_tar
from tests.support.tasks import changed, class_folders


def test_it_agrees_with_open_clip_on_every_image(colours, model, tmp_path):
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


def test_columns_and_metadata_are_as_promised(colours, model, tmp_path):
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
            ("logprob_t", pa.float32()),
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
    (correct,) = metric_values(table, "accuracy")
    assert correct.tolist() == table["correct"].to_pylist()


def classify(logits_NC, labels):
    """The columns of the predictions as they are stored, and the metrics."""
    columns = tasks.sample_columns(logits_NC, torch.tensor(labels))
    columns, classes = tasks.with_best_temperature(columns), logits_NC.shape[1]
    return tasks.compact(columns, classes), tasks.summarise(columns, classes)


def test_classify_by_hand():
    images = torch.nn.functional.normalize(
        torch.tensor([[1.0, 0.1], [0.9, 0.2], [0.2, 1.0], [1.0, 0.0]]), dim=1
    )
    columns, metrics = classify(10 * images @ torch.eye(2).T, [0, 0, 1, 1])
    assert columns["predicted"].tolist() == [0, 0, 1, 0]
    assert metrics["accuracy"] == 0.75
    assert metrics["mean_class_accuracy"] == (1.0 + 0.5) / 2
    assert columns["margin"][3] == pytest.approx(-10.0)
    assert columns["logprob"][3] == pytest.approx(-np.log1p(np.exp(10.0)))
    assert columns["top_classes"].to_pylist() == [[0, 1], [0, 1], [1, 0], [0, 1]]
    assert metrics["logprob"] == pytest.approx(columns["logprob"].mean())


def test_a_tie_counts_against_the_model():
    constant = torch.ones(6, 4) / 2
    columns, metrics = classify(100 * constant @ constant.T, [0, 1, 2, 3, 4, 5])
    shares = {name: metrics[name] for name in ("accuracy", "accuracy5", "mean_class_accuracy")}
    assert shares == {"accuracy": 0.0, "accuracy5": 0.0, "mean_class_accuracy": 0.0}
    assert metrics["logprob"] == pytest.approx(-np.log(6))
    assert not (columns["predicted"] == columns["label"]).any()
    assert columns["margin"].tolist() == [0.0] * 6
    for label, classes in enumerate(columns["top_classes"].to_pylist()):
        assert label not in classes  # five others are as good
    two = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # classes 0 and 1 are one
    columns, metrics = classify(two @ two.T, [0, 1, 2])
    assert columns["predicted"].tolist() == [1, 0, 2]
    assert metrics["accuracy"] == 1 / 3


def test_a_logit_scale_that_overflows_is_refused(colours, tmp_path):
    broken = CLIP(MODELS["test"], seed=3)
    with torch.no_grad():
        broken.logit_scale.fill_(1000.0)
    with pytest.raises(ValueError, match=r"task 'colours': the logits of 'dark_red/0.jpg' are not"):
        evaluate(broken, [colours], str(tmp_path))
    assert not (tmp_path / "colours.parquet").exists()


def test_the_worst_group_is_that_of_the_data(colours, model, tmp_path):
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


# --------------------------------------------------------------------------------------------------


def test_ranks_by_hand():
    queries = torch.eye(3)
    candidates = torch.tensor([[0.9, 0.1, 0.5], [0.5, 0.8, 0.5], [0.1, 0.9, 0.5], [0.95, 0.0, 0.5]])
    # Query 0: 0 and 3 are right, 3 is first. Query 1: 1 is right, after 2. Query 2: a tie.
    matches = [(0, 0), (0, 3), (1, 1), (2, 2)]
    assert tasks.ranks(queries, candidates, matches).tolist() == [0, 1, 3]
    assert tasks.ranks(queries, torch.full((4, 3), torch.nan), matches).tolist() == [2, 3, 3]


def test_ranks_do_not_depend_on_the_batch(monkeypatch):
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


def test_retrieval_counts_both_directions(captioned, model, tmp_path):
    metrics = evaluate(model, [captioned], str(tmp_path))["captioned"]
    table = disk.read_parquet(tmp_path / "captioned.parquet")
    assert table.schema.names == ["direction", "sample", "rank", "loss", "loss_t"]
    assert table.schema.field("rank").type == pa.int32()
    rows = table.to_pylist()
    assert [r["sample"] for r in rows if r["direction"] == "image_to_text"] == [
        "a.png", "b.png", "c.png", "d/d.png", "e.png",
    ]  # fmt: skip
    texts = [r["sample"] for r in rows if r["direction"] == "text_to_image"]
    assert texts == ["red", "a red picture", "green", "blue", "grey", "grey"]
    of_directions = metric_values(table, "recall@1")
    for direction, correct in zip(tasks.DIRECTIONS, of_directions, strict=True):
        ranks = [r["rank"] for r in rows if r["direction"] == direction]
        assert correct.tolist() == [rank == 0 for rank in ranks]
        assert metrics[f"{direction}_recall@1"] == pytest.approx(np.mean(correct))
    both = metrics["image_to_text_recall@1"] + metrics["text_to_image_recall@1"]
    assert metrics["recall@1"] == both / 2
    images = [r["rank"] + 1 for r in rows if r["direction"] == "image_to_text"]
    assert metrics["image_to_text_median_rank"] == np.median(images)
    assert metrics["text_to_image_recall@5"] == 1.0  # of five images
    assert tasks.RETRIEVAL.chance({}, 5) == 0.2


def test_a_text_of_two_images_is_two_captions_and_no_wrong_one_of_either(captioned):
    samples = read_samples(captioned)  # captions: red, a red picture, green, blue, grey, grey
    image_NE = torch.eye(5)
    text_ME = image_NE[[0, 0, 1, 2, 3, 3]]  # both of grey lie on d
    columns, metrics = tasks.retrieve(image_NE, text_ME, samples, 10.0)
    assert columns["rank"].tolist()[:5] == [0, 0, 0, 0, 4]  # e is as far from all of them
    assert columns["rank"].tolist()[5:] == [0, 0, 0, 0, 0, 4]  # grey of d finds d, that of e too
    # CLIP_benchmark: recall_at_k of texts × images, each text with the image that it belongs to
    assert metrics["text_to_image_recall@1"] == pytest.approx(5 / 6)


def one_caption_each(count):
    pairs = tuple((n, n) for n in range(count))
    names = tuple(f"{n}" for n in range(count))
    return Samples(images=ImageFiles("", names), captions=names, matches=pairs)


def test_the_loss_of_one_batch_is_the_loss_of_training():
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


def test_other_right_answers_are_no_candidates(captioned):
    samples = read_samples(captioned)  # captions: red, a red picture, green, blue, grey, grey
    losses = tasks.contrastive_losses(torch.ones(5, 3), torch.ones(6, 3), samples, [1.0])
    by_image, by_text = (each[:, 0] for each in losses)
    assert np.exp(by_image).round().astype(int).tolist() == [5, 5, 5, 4, 4]  # two have "grey"
    assert np.isnan(by_text).tolist() == [False, True, False, False, False, False]
    assert np.exp(by_text[[0, 2, 3, 4, 5]]).round().astype(int).tolist() == [5, 5, 5, 4, 4]


# --------------------------------------------------------------------------------------------------


def clusters(count, seed=0):
    """Unit vectors (count, 6) of three classes that overlap a little."""
    generator = torch.Generator().manual_seed(seed)
    labels = [n % 3 for n in range(count)]
    vectors = torch.randn(count, 6, generator=generator) + 2 * torch.eye(6)[labels]
    return torch.nn.functional.normalize(vectors, dim=1), labels


@pytest.mark.parametrize("strength", [1e-3, 1.0])
def test_the_regression_is_that_of_scipy(strength):
    feature_NE, labels = clusters(60)
    x_NE, y_N = feature_NE.double().numpy(), np.array(labels)

    def objective(flat):
        weight, bias = flat[:18].reshape(6, 3), flat[18:]
        logprobs = special.log_softmax(x_NE @ weight + bias, axis=1)
        loss = -logprobs[np.arange(60), y_N].mean() + strength / 2 * (weight**2).sum()
        error = (np.exp(logprobs) - np.eye(3)[y_N]) / 60
        return loss, np.concatenate([(x_NE.T @ error + strength * weight).ravel(), error.sum(0)])

    reference = optimize.minimize(
        objective, np.zeros(21), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9}
    )
    probe = fit(feature_NE, torch.tensor(labels), 3, strength)
    np.testing.assert_allclose(probe.weight_EC.numpy(), reference.x[:18].reshape(6, 3), atol=1e-4)
    again = fit(feature_NE, torch.tensor(labels), 3, strength)
    assert torch.equal(probe.weight_EC, again.weight_EC)


def test_the_strength_has_the_most_right_answers_on_the_held_out():
    feature_NE, labels = clusters(150)
    strength = choose_strength(feature_NE, labels, 3)
    chosen, label_N = torch.from_numpy(held_out(labels)), torch.tensor(labels)
    hits = {}
    for each in tasks.STRENGTHS:
        probe = fit(feature_NE[~chosen], label_N[~chosen], 3, each)
        predicted_N = probe.logits(feature_NE[chosen]).argmax(dim=1)
        hits[each] = int((predicted_N == label_N[chosen]).sum())
    assert hits[strength] == max(hits.values())
    with pytest.raises(ValueError, match="no class has 5 training images"):
        choose_strength(feature_NE[:9], labels[:9], 3)


def test_a_probe_learns_the_training_images(colours, model, tmp_path):
    class_folders(tmp_path / "train")
    probe = changed(colours, kind="linear_probe", name="probe", train_data=str(tmp_path / "train"))
    metrics = evaluate(model, [probe], str(tmp_path / "out"))["probe"]
    assert metrics["accuracy"] == 1.0  # the same images; a zero-shot model of noise has a third
    path = tmp_path / "out" / "probe.parquet"
    assert disk.read_metadata(path)["strength"] in tasks.STRENGTHS
    assert disk.read_metadata(path)["train_images"] == 18
    table = disk.read_parquet(path)
    assert {"sample", "label", "predicted", "correct", "logprob", "margin"} <= set(
        table.column_names
    )


# --------------------------------------------------------------------------------------------------


def test_jaccard_by_hand():
    similarity = np.array([0.9, 0.8, 0.1, 0.7, 0.5, 0.5, 0.2])
    cue = np.array([0, 0, 0, 0, 1, 1, 1])
    right = np.array([True, False, True, False, True, False, False])
    # Cue 0: 0 and 1 are chosen, 0 and 2 are right: 1 of 3. Cue 1: a tie goes to the wrong one.
    indices, candidates, counts = jaccard_indices(similarity, cue, right)
    assert indices.tolist() == pytest.approx([1 / 3, 0])
    assert (candidates.tolist(), counts.tolist()) == ([4, 3], [2, 1])


@pytest.fixture
def associations(colours, tmp_path):
    """Three cues: ten candidates, then five, then three."""
    images, rows, first = images_of(read_samples(colours)), [], 0
    for cue, count, right in (("Apple", 10, 4), ("night", 5, 2), ("x", 3, 1)):
        names = [f"{cue}{n}" for n in range(count)]
        pictures = [{"bytes": image, "path": None} for image in images[first : first + count]]
        rows.append(
            {
                "cue": cue,
                "candidates": names,
                "associations": names[:right],
                "candidate_images": pictures,
            }
        )
        first += count
    (tmp_path / "w").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "w" / "test-0.parquet", row_group_size=2)
    return task_of(tmp_path / "w", "association")


def test_every_cue_has_its_row(associations, model, tmp_path):
    metrics = evaluate(model, [associations], str(tmp_path / "out"))["t"]
    table = disk.read_parquet(tmp_path / "out" / "t.parquet")
    assert table["sample"].to_pylist() == ["An apple", "A night", "A x"]
    assert table["candidates"].to_pylist() == [10, 5, 3]
    assert metrics["jaccard"] == pytest.approx(np.mean(table["jaccard"].to_numpy()))
    assert metrics["jaccard_10_12"] == table["jaccard"].to_pylist()[0]
    assert metric_values(table, "jaccard_10_12")[0].tolist() == [metrics["jaccard_10_12"]]
    (correct,) = metric_values(table, "accuracy")
    assert correct.mean() == metrics["accuracy"]
    metadata = disk.read_metadata(tmp_path / "out" / "t.parquet")
    assert ASSOCIATION.chance(metadata, 3) == pytest.approx((1 / 210 + 1 / 10 + 1 / 3) / 3)


# --------------------------------------------------------------------------------------------------


def run_ranks(world, tasks, folder):
    """Status and output of every rank; the predictions are in `folder`/out."""
    folder.mkdir()
    (folder / "tasks.json").write_text(json.dumps(disk.to_plain(tasks)))
    shared = {"WORLD_SIZE": str(world), process_group.STORE: str(folder / "store")}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, evaluation_ranks.__file__, str(folder)],
        env={**os.environ, **shared},
        stderr=subprocess.PIPE,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    ended = [(int(status), str(output)) for status, output in disk.read_json(folder / "ended.json")]
    assert {status for status, _ in ended} <= {0, 2}, done.stderr
    return ended


@pytest.mark.slow
def test_the_predictions_are_the_same_bytes_for_one_and_three_ranks(colours, captioned, tmp_path):
    class_folders(tmp_path / "more")
    probe = changed(colours, kind="linear_probe", name="probe", train_data=str(tmp_path / "more"))
    tasks = [colours, captioned, probe]
    contents = []
    for world in (1, 3):
        folder = tmp_path / f"{world}"
        assert run_ranks(world, tasks, folder) == [(0, "")] * world
        files = sorted((folder / "out").iterdir())
        assert [path.stem for path in files] == ["captioned", "colours", "probe"]
        contents.append([path.read_bytes() for path in files])
    assert contents[0] == contents[1]


@pytest.mark.slow
def test_an_error_of_one_rank_ends_all(colours, tmp_path):
    (Path(colours.data) / "green" / "0.jpg").write_bytes(b"\xff\xd8\xff no picture")
    for status, output in run_ranks(2, [colours], tmp_path / "r"):
        assert status == 2
        assert "green/0.jpg cannot be decoded as an image" in output
