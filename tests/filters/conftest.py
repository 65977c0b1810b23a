"""A CLIP of two layers in a folder, as open_clip and a run of ours write it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

VISION = {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32}
TEXT = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
CONFIG = {
    "model_cfg": {"embed_dim": 16, "vision_cfg": VISION, "text_cfg": TEXT},
    "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of torch wait for each other longer than such small models compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    open_clip = pytest.importorskip("open_clip")
    folder = tmp_path_factory.mktemp("clip")
    (folder / "open_clip_config.json").write_text(json.dumps(CONFIG))
    torch.manual_seed(0)
    model = open_clip.create_model(f"local-dir:{folder}", load_weights=False)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return folder
