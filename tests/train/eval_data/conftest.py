from __future__ import annotations

from pathlib import Path

import pytest

from manifests.schema import TaskSpec
from tests.support import tasks
from train.eval_data.samples import Samples, read_captioned, read_labelled


@pytest.fixture
def colours(tmp_path: Path) -> TaskSpec:
    """Eighteen noisy images of three classes, PNG and JPEG."""
    return tasks.class_folders(tmp_path / "colours")


@pytest.fixture
def captioned(tmp_path: Path) -> TaskSpec:
    """Five images: the first has two captions, the last two share one."""
    return tasks.captions_folder(tmp_path / "captioned")


@pytest.fixture
def coloured(colours: TaskSpec) -> Samples:
    """The samples of `colours`."""
    return read_labelled(colours)


@pytest.fixture
def described(captioned: TaskSpec) -> Samples:
    """The samples of `captioned`."""
    return read_captioned(captioned)
