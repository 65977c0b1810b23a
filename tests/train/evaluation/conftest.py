import pytest

from tests.support import tasks
from train.model.architecture import MODELS
from train.model.clip import CLIP


@pytest.fixture(scope="session")
def model():
    return CLIP(MODELS["test"], seed=3)


@pytest.fixture
def colours(tmp_path):
    """Eighteen noisy images of three classes, PNG and JPEG."""
    return tasks.class_folders(tmp_path / "colours")


@pytest.fixture
def captioned(tmp_path):
    """Five images: the first has two captions, the last two share one."""
    return tasks.captions_folder(tmp_path / "captioned")
