from __future__ import annotations

from pathlib import Path

import pytest
import torch

from manifests.schema import TaskSpec
from train.eval_data.images import image_hashes
from train.evaluation import tasks
from train.evaluation.tasks import Encoder, evaluate, read_samples
from train.model.architecture import MODELS
from train.model.clip import CLIP

CPU = torch.device("cpu")


def test_long_prompts_keep_their_end(model: CLIP) -> None:
    words = "a " * 40
    first, second = Encoder(model=model, device=CPU).texts([words, words + "b"], "t")
    torch.testing.assert_close(first, second)  # cut at the context, ended by the same token


def test_an_unknown_tokenizer_is_refused(model: CLIP) -> None:
    with pytest.raises(ValueError, match="no tokenizer 'bert'"):
        Encoder(model=model, device=CPU, tokenizer="bert").texts(["a"], "t")


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


def test_one_row_that_is_not_finite_is_enough() -> None:
    vectors = torch.ones(3, 4)
    names = ["a", "b", "c"]
    tasks.require_finite(tasks.finite_rows(vectors), names, "t", "features")
    vectors[1, 2] = -torch.inf
    with pytest.raises(ValueError, match="features of 'b' are not finite, as for 1 of 3 samples"):
        tasks.require_finite(tasks.finite_rows(vectors), names, "t", "features")


def test_images_are_hashed_while_they_are_embedded(colours: TaskSpec, model: CLIP) -> None:
    images = read_samples(colours).images
    encoder = Encoder(model=model, device=CPU)
    with torch.inference_mode():
        vectors = encoder.images(images, "t")
    assert vectors.shape == (18, MODELS["test"].embed_dim)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(18))
    assert encoder.hashes[images] == image_hashes(images)


def test_a_file_that_is_no_image_is_named(colours: TaskSpec, model: CLIP, tmp_path: Path) -> None:
    (Path(colours.data) / "green" / "0.jpg").write_bytes(b"\xff\xd8\xff no picture")
    with pytest.raises(ValueError, match=r"green/0\.jpg cannot be decoded as an image"):
        evaluate(model, [colours], str(tmp_path))
