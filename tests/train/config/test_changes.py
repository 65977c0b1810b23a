"""Changes to settings: text as the type of a setting, and the right name for a wrong one."""

from __future__ import annotations

import pytest

from manifests import disk
from train.config import TrainConfig, configure


def test_changes_go_over_the_preset_and_text_is_read_as_the_setting_s_type():
    config = configure(
        {
            "preset": "micro",
            "lr": "5e-4",
            "samples_seen": "12.8M",
            "grad_clip": "1",
            "local_loss": "false",
        }
    )
    assert (config.lr, config.samples_seen, config.grad_clip, config.local_loss) == (
        5e-4,
        12_800_000,
        1.0,
        False,
    )
    assert (config.model, config.batch_size) == ("micro", 128)
    assert (
        configure({"grad_clip": None, "context_length": "none", "samples_seen": 1e7}).samples_seen
        == 10_000_000
    )
    assert disk.from_plain(TrainConfig, disk.to_plain(config)) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 1}, "unknown training setting 'learning_rate'"),
        ({"batchsize": 8}, "did you mean 'batch_size'?"),
        ({"preset": "datacomp_smal"}, "did you mean 'datacomp_small'?"),
        ({"lr": "fast"}, "lr is 'fast'; it must be a number"),
        ({"lr": float("nan")}, "it must be a number"),
        ({"batch_size": 12.5}, "it must be a whole number"),
        ({"batch_size": True}, "it must be a whole number"),
        ({"local_loss": "maybe"}, "it must be true or false"),
        ({"model": 3}, "it must be text"),
        ({"pretrained": "x"}, "unknown training setting 'pretrained'; here it is init"),
        ({"wd": 0.1}, "here it is weight_decay"),
        ({"Warmup-Steps": 5}, "here it is warmup"),
        ({"model.depth": 3}, "unknown setting 'depth' of a model"),
        ({"model.logit_bias": True}, "unknown setting 'logit_bias' of a model"),
        ({"model_changes": {}}, "unknown training setting 'model_changes'"),
        (
            {"max_steps": 10},
            "the length of a run is samples_seen, in samples: steps x batch_size (now 4,096)",
        ),
        ({"log_to": 3}, "values with commas between them"),
    ],
)
def test_a_change_that_cannot_be_read_is_refused_with_the_right_one(changes, message):
    with pytest.raises(ValueError, match=r".") as error:
        configure(changes)
    assert message in str(error.value)


def test_epochs_are_refused_with_the_samples_that_they_are():
    with pytest.raises(
        ValueError, match="'epochs'; the length of a run is samples_seen, in samples: "
    ) as error:
        configure({"epochs": "3"})
    assert "eps" not in str(error.value)
    assert str(error.value).endswith("epochs x the rows that the views of the blend keep")
    with pytest.raises(
        ValueError, match=r"an epoch of this blend has 1,250, so 3 epochs are samples_seen=3750"
    ):
        configure({"epochs": "3"}, epoch_samples=1250)
    with pytest.raises(ValueError, match=r"an epoch of this blend has 1,250$"):
        configure({"num_epochs": "many"}, epoch_samples=1250)


def test_lists_may_be_text():
    assert configure({"log_to": "[tensorboard, wandb]"}).log_to == ("tensorboard", "wandb")
    assert configure({"log_to": []}).log_to == ()


def test_another_model_drops_the_changes_of_the_preset_s():
    config = configure({"preset": "micro", "model.text_layers": 1})
    assert config.model_changes == {"text_layers": 1}
    assert configure({"preset": "micro", "model": "test"}).model_changes == {}
