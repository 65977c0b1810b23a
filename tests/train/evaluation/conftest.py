from __future__ import annotations

from pathlib import Path

import pytest

from manifests.schema import TaskSpec
from tests.support import tasks
from train.model.architecture import MODELS
from train.model.clip import CLIP


@pytest.fixture(scope="session")
def model() -> CLIP:
    return CLIP(MODELS["test"], seed=3)


@pytest.fixture
def colours(tmp_path: Path) -> TaskSpec:
    """Eighteen noisy images of three classes, PNG and JPEG."""
    return tasks.class_folders(tmp_path / "colours")


@pytest.fixture
def captioned(tmp_path: Path) -> TaskSpec:
    """Five images: the first has two captions, the last two share one."""
    return tasks.captions_folder(tmp_path / "captioned")
