"""Suites, metrics, embeddings, and predictions that are saved."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from clipmill.manifests import disk
from clipmill.manifests.metrics import (
    METRICS,
    TEMPERATURES,
    at_best_temperature,
    calibration_error,
    f1_macro,
    mean_of_directions,
    metric_values,
    worst_group,
)
from clipmill.manifests.schema import Suite
from clipmill.train.evaluation.suite import evaluate_suite, group_averages, readable_tasks
from clipmill.train.evaluation.tasks import Encoder, evaluate, read_samples, saved_metrics
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from tests.support.late import optimize, special
from tests.support.tasks import changed, draw


def suite_of(*tasks, **groups):
    return Suite(name="small", tasks=tasks, groups=groups)


def test_what_is_present_is_evaluated_and_complete_groups_are_averaged(
    colours, captioned, model, tmp_path
):
    named = changed(colours, metric="mean_class_accuracy")
    gone = changed(colours, name="gone", data=str(tmp_path / "gone"))
    damaged = changed(colours, name="damaged", templates=["none"])
    both = ("colours", "captioned")
    suite = suite_of(named, captioned, gone, damaged, both=both, all=(*both, "gone", "damaged"))
    out = str(tmp_path / "out")
    results = evaluate_suite(model, suite, out)
    assert results.metrics == evaluate(model, [named, captioned], str(tmp_path / "again"))
    assert results.deciding == {"colours": "mean_class_accuracy", "captioned": "recall@1"}
    assert results.missing == {"gone": str(tmp_path / "gone")}
    assert "must contain {} once" in results.failed["damaged"]
    mean = (
        results.metrics["colours"]["mean_class_accuracy"] + results.metrics["captioned"]["recall@1"]
    )
    first, second = results.averages
    assert first.value == mean / 2
    assert first.line() == f"both: {mean / 2:.4f}, the mean of 2 tasks"
    assert second.line() == "all: no average, 2 of 4 tasks have no result (gone, damaged)"
    assert f"gone: missing, there is no {tmp_path}/gone" in results.lines()
    assert disk.read_json(tmp_path / "out" / "suite-small.json") == disk.to_plain(results)
    assert [task.name for task in readable_tasks(suite.tasks)] == ["colours", "captioned"]


def test_a_metric_that_a_task_does_not_have_fails_that_task(colours, model, tmp_path):
    wrong = changed(colours, metric="worst_group_accuracy")  # it has no groups
    results = evaluate_suite(model, suite_of(wrong), str(tmp_path / "out"))
    assert "task 'colours' has no worst_group_accuracy, which decides" in results.failed["colours"]
    assert results.deciding == {}


def test_metrics_that_do_not_add_up_have_no_group_average():
    tasks = [
        {"name": "a", "kind": "classification", "data": "d"},
        {"name": "b", "kind": "retrieval", "data": "d", "metric": "median_rank"},
        {"name": "c", "kind": "classification", "data": "d", "metric": "calibration_error"},
    ]
    fields = {"name": "s", "tasks": tasks, "groups": {"all": ["a", "b", "c"], "one": ["a"]}}
    suite = disk.from_plain(Suite, fields)
    metrics = {"a": {"accuracy": 0.5}, "b": {"median_rank": 120.0}, "c": {"calibration_error": 0.3}}
    deciding = {task: next(iter(of)) for task, of in metrics.items()}
    mixed, one = group_averages(suite, metrics, deciding)
    assert mixed.value is None
    assert mixed.line() == (
        "all: no average, accuracy, median_rank, calibration_error differ in unit or in which "
        "direction is better"
    )
    assert one.value == 0.5


def test_kinds_names_and_folders_are_checked(captioned, tmp_path):
    with pytest.raises(ValueError, match="kind is 'retrival'; it must be one of classification, r"):
        changed(captioned, kind="retrival")
    with pytest.raises(ValueError, match="task 'a/b': a task name is a file name"):
        read_samples(changed(captioned, name="a/b"))
    with pytest.raises(ValueError, match=r"there is no folder .*/nowhere"):
        read_samples(changed(captioned, data=str(tmp_path / "nowhere")))
    with pytest.raises(ValueError, match="task 'captioned' has no data; only predictions"):
        read_samples(changed(captioned, data=""))


def test_saved_metrics_are_of_this_task_and_these_images(colours, model, tmp_path):
    out = str(tmp_path / "eval")
    assert saved_metrics(out, colours) is None
    metrics = evaluate(model, [colours], out)["colours"]
    assert saved_metrics(out, colours) == metrics
    assert saved_metrics(out, changed(colours, templates=["a {}"])) is None
    draw(Path(colours.data) / "green" / "new.png", (0, 0, 0), seed=99)
    assert saved_metrics(out, colours) is None


@pytest.mark.parametrize("place", [300, -100])
def test_damaged_predictions_are_made_anew_with_a_reason(colours, model, tmp_path, caplog, place):
    """A page, and the footer: the size and the time of the file are the old ones."""
    path = tmp_path / "colours.parquet"
    evaluate(model, [colours], str(tmp_path))
    data = bytearray(path.read_bytes())
    data[place : place + 40] = bytes(40)
    path.write_bytes(data)
    with caplog.at_level("INFO"):
        assert saved_metrics(str(tmp_path), colours) is None
    assert "colours.parquet is damaged, or no Parquet file: " in caplog.text
    assert caplog.text.strip().endswith(": it is made anew")


def test_predictions_of_another_version_are_made_anew_with_a_reason(
    colours, model, tmp_path, caplog
):
    out, path = str(tmp_path), tmp_path / "colours.parquet"
    evaluate(model, [colours], out)
    metadata = disk.read_metadata(path)
    metadata["version"] = 1
    old = disk.read_parquet(path, ["sample", "label", "predicted", "correct", "correct5"])
    disk.write_parquet(path, old, metadata)
    with caplog.at_level("INFO"):
        assert saved_metrics(out, colours) is None
    assert "colours.parquet is of version 1, not 4: it is made anew" in caplog.text
    (correct,) = metric_values(disk.read_parquet(path), "accuracy")  # it can still be read
    assert correct.shape == (18,)


CPU = torch.device("cpu")


def test_long_prompts_keep_their_end(model):
    words = "a " * 40
    first, second = Encoder(model=model, device=CPU).texts([words, words + "b"], "t")
    torch.testing.assert_close(first, second)  # cut at the context, ended by the same token


def test_a_class_is_the_mean_of_its_templates_at_length_one(model):
    encoder = Encoder(model=model, device=CPU)
    with torch.no_grad():
        class_CE = encoder.classes([["a cat", "one cat here"], ["a dog", "one dog here"]], "t")
        prompts = encoder.texts(["a cat", "one cat here", "a dog", "one dog here"], "t")
    expected = torch.nn.functional.normalize(prompts.view(2, 2, -1).mean(dim=1), dim=1)
    torch.testing.assert_close(class_CE, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused_with_task_and_sample(colours, tmp_path, value):
    broken = CLIP(MODELS["test"], seed=3)
    with torch.no_grad():
        next(broken.visual.parameters()).fill_(value)
    message = r"task 'colours': the image features of 'dark_red/0.jpg' are not finite, as for 18 of"
    with pytest.raises(ValueError, match=message):
        evaluate(broken, [colours], str(tmp_path))
    assert not (tmp_path / "colours.parquet").exists()
    assert broken.training, "the mode is restored after an error too"


# --------------------------------------------------------------------------------------------------


def test_the_metrics_are_the_means_of_their_values_per_sample(colours, captioned, model, tmp_path):
    metrics = evaluate(model, [colours, captioned], str(tmp_path))
    checked = set()
    for task, directions in (("colours", 1), ("captioned", 2)):
        table = disk.read_parquet(tmp_path / f"{task}.parquet")
        for name, value in metrics[task].items():
            if METRICS[name].values is None:
                continue
            values = metric_values(table, name)
            assert len(values) == (1 if "_to_" in name else directions)
            assert mean_of_directions(values) == pytest.approx(value, abs=1e-12)
            checked.add(name)
    assert set(METRICS) - checked - {"accuracy5"} == {  # there are three classes
        "calibration_error", "f1_macro", "worst_group_accuracy", "worst_group_accuracy5",
        "median_rank", "image_to_text_median_rank", "text_to_image_median_rank",
        "jaccard", "jaccard_10_12",  # of associations, which have a test of their own
    }  # fmt: skip


def test_samples_without_a_loss_are_left_out():
    table = pa.table(
        {"direction": ["image_to_text", "text_to_image", "text_to_image"], "loss": [1.0, 3.0, None]}
    )
    assert [values.tolist() for values in metric_values(table, "contrastive_loss")] == [[1], [3]]


def test_the_best_temperature_is_that_of_a_search_and_a_model_that_is_too_sure_is_not_worse():
    rng = np.random.default_rng(4)
    labels = rng.integers(10, size=300)
    logits = 0.4 * rng.standard_normal((300, 10))
    logits[np.arange(300), labels] += 1.0

    def logprobs(factor: float, sure: float) -> np.ndarray:
        return special.log_softmax(factor * sure * logits, axis=1)[np.arange(300), labels]

    for sure in (1.0, 5.0, 60.0):
        best = optimize.minimize_scalar(
            lambda log, sure=sure: -logprobs(np.exp(log), sure).mean(), bounds=(-6, 3)
        )
        fitted = at_best_temperature(
            np.stack([logprobs(factor, sure) for factor in TEMPERATURES], axis=1)
        )
        assert fitted.mean() == pytest.approx(-best.fun, abs=1e-3)
        np.testing.assert_allclose(fitted, logprobs(np.exp(best.x), sure), atol=0.05)
    assert logprobs(1.0, 60.0).mean() < -np.log(10)  # worse than a guess, at its own temperature


def test_a_model_that_knows_nothing_has_its_best_temperature_at_an_end():
    wrong = np.stack([-factor * np.array([1.0, 3.0, np.nan]) for factor in TEMPERATURES], axis=1)
    fitted = at_best_temperature(wrong)
    np.testing.assert_allclose(fitted[:2], [-TEMPERATURES[0], -3 * TEMPERATURES[0]], atol=1e-6)
    assert np.isnan(fitted[2])


def test_what_cannot_be_had_is_named():
    old = pa.table({"label": [0], "correct": [True]})
    with pytest.raises(ValueError, match=r"no metric 'logprobs'; did you mean 'logprob'\?"):
        metric_values(old, "logprobs")
    with pytest.raises(ValueError, match="calibration_error is no mean over samples"):
        metric_values(old, "calibration_error")
    message = r"logprob needs the column logprob, .* \(they have label, correct\); evaluate"
    with pytest.raises(ValueError, match=message):
        metric_values(old, "logprob")


def test_the_calibration_error_by_hand():
    confidence = np.array([0.95, 0.97, 0.5, 0.52, 1 / 15])
    correct = np.array([True, False, True, True, False])
    # Bins (14/15, 1], (7/15, 8/15] and (0, 1/15]: |1 - 1.92| + |2 - 1.02| + |0 - 1/15| of 5.
    expected = (0.92 + 0.98 + 1 / 15) / 5
    assert calibration_error(confidence, correct) == pytest.approx(expected)
    assert calibration_error(np.array([1.0, 1.0]), np.array([True, True])) == 0.0
    assert calibration_error(np.array([0.0]), np.array([False])) == 0.0


def test_f1_and_the_worst_group_by_hand():
    label, predicted = np.array([0, 0, 1, 1, 3]), np.array([0, 1, 1, 1, 2])
    # Class 0: precision 1, recall 1/2. Class 1: 2/3 and 1. Class 3: 0. Class 2 has no sample.
    assert f1_macro(label, predicted) == pytest.approx((2 / 3 + 4 / 5 + 0) / 3)
    group = np.array(["a", "a", "b", "b", "other"])
    assert worst_group(label == predicted, group) == 0.0
    assert worst_group(label == predicted, group, ("other",)) == 0.5
    with pytest.raises(ValueError, match="ignore_groups names all groups: a, b, other"):
        worst_group(label == predicted, group, ("a", "b", "other"))
