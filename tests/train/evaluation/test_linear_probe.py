from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from manifests import disk
from manifests.schema import TaskSpec
from tests.support.late import optimize, special
from tests.support.tasks import changed, class_folders
from train.evaluation import tasks
from train.evaluation.tasks import choose_strength, evaluate, fit, held_out
from train.model.clip import CLIP


def clusters(count: int, seed: int = 0) -> tuple[torch.Tensor, list[int]]:
    """Unit vectors (count, 6) of three classes that overlap a little."""
    generator = torch.Generator().manual_seed(seed)
    labels = [n % 3 for n in range(count)]
    vectors = torch.randn(count, 6, generator=generator) + 2 * torch.eye(6)[labels]
    return torch.nn.functional.normalize(vectors, dim=1), labels


@pytest.mark.parametrize("strength", [1e-3, 1.0])
def test_the_regression_is_that_of_scipy(strength: float) -> None:
    feature_NE, labels = clusters(60)
    x_NE, y_N = feature_NE.double().numpy(), np.array(labels)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
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


def test_the_strength_has_the_most_right_answers_on_the_held_out() -> None:
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


def test_a_probe_learns_the_training_images(colours: TaskSpec, model: CLIP, tmp_path: Path) -> None:
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
