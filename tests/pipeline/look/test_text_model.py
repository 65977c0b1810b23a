"""The images that are most like a text, by the model that made the embeddings."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from clipmill.filters.clip import model as models
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline.look import server
from clipmill.pipeline.look.server import Answers
from clipmill.pipeline.look.survey import survey_pool
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.scorer import score
from tests.filters.conftest import clip_folder as clip_folder
from tests.support import looked
from tests.support.late import open_clip
from tests.support.small_pool import make_pool

TEXT = "a small grey dog"


@pytest.fixture
def model(clip_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(clip_folder, tmp_path / "model"))


@pytest.fixture
def answers(model: Path, tmp_path: Path) -> Answers:
    pool = make_pool(tmp_path / "pool", looked.rows(20))
    options = {"model": f"local-dir:{model}", "towers": ["image"], "device": "cpu"}
    assert (
        score(PoolWriter(pool), [FilterSpec(name="embed", options=options)], engine="inline")[
            "failed"
        ]
        == {}
    )
    return Answers(survey_pool(pool))


def test_images_most_like_a_text_are_those_of_the_model(
    answers: Answers, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []

    def counted(filter_: models.ClipFilter) -> models.ClipModel:
        loads.append(filter_.model)
        return models.shared_model(filter_)

    monkeypatch.setattr(server, "shared_model", counted)
    images = answers.like_text(TEXT)["images"]
    assert answers.like_text("another text")["images"]
    assert loads == [f"local-dir:{model}"]
    network, _, _ = open_clip.create_model_and_transforms(f"local-dir:{model}")
    tokens = open_clip.get_tokenizer(f"local-dir:{model}")([TEXT])
    with torch.inference_mode():
        wanted = torch.nn.functional.normalize(network.eval().encode_text(tokens), dim=-1)[0]
    assert answers.alike is not None
    cosines = answers.alike._vectors @ wanted.numpy()
    expected = answers.alike.rows[np.argsort(-cosines, kind="stable")].tolist()
    rows = answers.survey.rows
    assert [rows.row_at(one["shard"], one["row"]) for one in images] == expected
    for text in ("", "x" * 201):
        with pytest.raises(ValueError, match="1 to 200 characters"):
            answers.like_text(text)


def test_a_model_that_cannot_be_had_is_said_in_a_line(
    answers: Answers, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(server, "find_spec", lambda name: None)
        with pytest.raises(ValueError, match=r"torch is not installed here: pip install"):
            answers.like_text(TEXT)
    assert answers.alike is not None
    document = answers.alike.text_model._document
    with monkeypatch.context() as patch:
        patch.setattr(type(document), "filter_kind", "table")
        with pytest.raises(ValueError, match="those of the filter table, which has no model"):
            answers.like_text(TEXT)
    (model / "open_clip_model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ValueError, match="is not the model any more that made the embeddings"):
        answers.like_text(TEXT)
    shutil.rmtree(model)
    with pytest.raises(ValueError, match=r"there is no open_clip_config\.json"):
        answers.like_text(TEXT)


def test_a_pool_without_embeddings(tmp_path: Path) -> None:
    pool = looked.make(tmp_path / "pool", 20)
    with pytest.raises(ValueError, match="add the filter embed to its recipe"):
        Answers(survey_pool(pool)).like_text(TEXT)
