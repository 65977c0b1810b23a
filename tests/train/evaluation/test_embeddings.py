from __future__ import annotations

from pathlib import Path

import pytest
import torch

from manifests.schema import TaskSpec
from train.evaluation.tasks import Encoder, evaluate
from train.model.architecture import MODELS
from train.model.clip import CLIP

CPU = torch.device("cpu")


def test_long_prompts_keep_their_end(model: CLIP) -> None:
    words = "a " * 40
    first, second = Encoder(model=model, device=CPU).texts([words, words + "b"], "t")
    torch.testing.assert_close(first, second)  # cut at the context, ended by the same token


def test_a_class_is_the_mean_of_its_templates_at_length_one(model: CLIP) -> None:
    encoder = Encoder(model=model, device=CPU)
    with torch.no_grad():
        class_CE = encoder.classes(["cat", "dog"], ["a {}", "one {} here"], "t")
        prompts = encoder.texts(["a cat", "one cat here", "a dog", "one dog here"], "t")
    expected = torch.nn.functional.normalize(prompts.view(2, 2, -1).mean(dim=1), dim=1)
    torch.testing.assert_close(class_CE, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused_with_task_and_sample(
    colours: TaskSpec, tmp_path: Path, value: float
) -> None:
    broken = CLIP(MODELS["test"], seed=3)
    with torch.no_grad():
        next(broken.visual.parameters()).fill_(value)
    message = r"task 'colours': the image features of 'dark_red/0.jpg' are not finite, as for 18 of"
    with pytest.raises(ValueError, match=message):
        evaluate(broken, [colours], str(tmp_path))
    assert not (tmp_path / "colours.parquet").exists()
    assert broken.training, "the mode is restored after an error too"
