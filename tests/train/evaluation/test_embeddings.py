from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from manifests.schema import TaskSpec
from train.evaluation import embeddings, evaluate, read_samples
from train.evaluation.embeddings import Encoder
from train.model import CLIP, MODELS

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
    embeddings.require_finite(vectors, ["a", "b", "c"], "t", "features")
    vectors[1, 2] = -torch.inf
    with pytest.raises(ValueError, match="features of 'b' are not finite, as for 1 of 3 samples"):
        embeddings.require_finite(vectors, ["a", "b", "c"], "t", "features")


def test_images_are_decoded_once(colours: TaskSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    files = read_samples(colours).files
    first = np.concatenate(list(embeddings.image_batches(colours.data, files, (32, 32))))
    assert first.shape == (18, 32, 32, 3)
    monkeypatch.setattr(embeddings, "decode_image", lambda data: pytest.fail("decoded again"))
    again = np.concatenate(list(embeddings.image_batches(colours.data, files, (32, 32))))
    np.testing.assert_array_equal(first, again)


def test_what_does_not_fit_is_decoded_again(
    colours: TaskSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "CACHE_BYTES", 100)
    monkeypatch.setattr(embeddings, "BATCH_SIZE", 7)
    files = read_samples(colours).files
    for _ in range(2):
        batches = embeddings.image_batches(colours.data, files, (16, 16))
        assert [len(batch) for batch in batches] == [7, 7, 4]
    assert (colours.data, files, (16, 16)) not in embeddings._decoded_images


def test_a_file_that_is_no_image_is_named(colours: TaskSpec, model: CLIP, tmp_path: Path) -> None:
    (Path(colours.data) / "green" / "0.jpg").write_bytes(b"\xff\xd8\xff no picture")
    with pytest.raises(ValueError, match=r"green/0\.jpg cannot be decoded as an image"):
        evaluate(model, [colours], str(tmp_path))
