"""Tiny models that write captions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.caption_models import make_blip, make_encoder_decoder


@pytest.fixture(scope="session")
def blip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_blip(tmp_path_factory.mktemp("models") / "blip")


@pytest.fixture(scope="session")
def encoder_decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder_decoder(tmp_path_factory.mktemp("models") / "ved")
