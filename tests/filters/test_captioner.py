"""Captions that models write: the same in any batches, by each search, from each kind of model."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from clipmill.filters.base import set_id
from clipmill.filters.captioner import Captioner, TransformersWriter, draw, row_uniforms
from tests.support import commands
from tests.support.caption_models import images, make_blip, make_encoder_decoder, written
from tests.support.small_pool import Row, make_pool

KINDS = ["blip", "encoder_decoder"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_the_order_of_rows_change_nothing(
    kind: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    for options in ({}, {"beams": 3}, {"temperature": 1.5, "seed": 3}):
        whole = written(folder, max_tokens=6, **options)
        assert all(isinstance(text, str) and text for text in whole)
        assert len(set(whole)) > 1 or kind == "blip"  # its drawn weights hardly see the image
        assert written(folder, max_tokens=6, batch_size=2, **options) == whole
    assert written(folder, max_tokens=6, temperature=1.5, seed=4) != whole
    assert written(folder, max_tokens=6) != whole


def test_a_prompt_begins_the_caption(blip: Path, encoder_decoder: Path) -> None:
    for text in written(blip, 2, prompt="word3 word4", max_tokens=4):
        assert text is not None
        assert text.startswith("word3 word4")
    with pytest.raises(ValueError, match="takes no prompt"):
        written(encoder_decoder, 2, prompt="a")


def test_the_id_is_of_weights_precision_and_search(
    encoder_decoder: Path, blip: Path, tmp_path: Path
) -> None:
    def id_of(folder: Path, **options: Any) -> str:
        return set_id(Captioner(model=f"local-dir:{folder}", precision="fp32", **options))

    ids = {id_of(encoder_decoder), id_of(blip), id_of(blip, beams=2), id_of(blip, temperature=1.0)}
    assert len(ids) == 4
    assert id_of(blip, batch_size=1, device="cpu") == id_of(blip)
    half = Captioner(model=f"local-dir:{blip}").resolved(gpu=True)
    assert set_id(half) != id_of(blip)
    moved = tmp_path / "moved"
    shutil.copytree(blip, moved)
    assert id_of(moved) == id_of(blip)
    tokenizer = moved / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("word7", "wordx"))
    assert id_of(moved) != id_of(blip)


def test_models_that_write_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="there are no weights in"):
        Captioner(model=f"local-dir:{tmp_path}", precision="fp32").identity()
    with pytest.raises(ValueError, match="cannot be loaded as a model that writes captions"):
        written(tmp_path)


def test_drawn_tokens_have_the_shares_of_the_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 2.0]]).expand(20_000, -1)
    uniform = np.random.default_rng(0).random(20_000)
    shares = np.bincount(draw(logits, 2.0, uniform).numpy(), minlength=4) / 20_000
    expected = torch.softmax(logits[0] / 2, -1).numpy()
    np.testing.assert_allclose(shares, expected, atol=0.01)
    assert shares[2] == 0
    assert draw(logits[:2], 1.0, np.array([0.0, np.nextafter(1, 0)])).tolist() == [0, 3]


def test_numbers_are_of_uid_and_seed() -> None:
    both = row_uniforms(["a", "b"], 7, 5)
    assert np.array_equal(both[1:], row_uniforms(["b"], 7, 5))
    assert not np.array_equal(both, row_uniforms(["a", "b"], 8, 5))
    assert len(np.unique(both)) == 10


@pytest.mark.slow
def test_a_run_trains_on_a_mix_of_raw_and_written_captions(
    blip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a pool through two caption columns to a trained model, by the commands."""
    rows = [Row(caption=f"a dog number {i}") for i in range(16)]
    pool = make_pool(tmp_path / "pool", rows, per_shard=8)
    texts = [{"url": f"https://img{i}.example/{i}.jpg", "text": f"x{i}"} for i in range(15)]
    (tmp_path / "given.jsonl").write_text("\n".join(map(json.dumps, texts)))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"""
name: r
source: {{kind: files, paths: [x.csv]}}
filters:
  - {{toks: tokens}}  # an instance, which the trainer finds too
  - {{blip: {{captioner: {{model: "local-dir:{blip}", max_tokens: 5, device: cpu}}}}}}
  - {{given: {{caption_file: {{paths: given.jsonl, by: url, column: text}}}}}}
views: {{all: [{{any: blip IS NOT NULL}}]}}
"""
    )
    given = [pool, "--recipe", str(recipe)]
    assert commands.score([*given, "--engine", "inline"]) == 0
    assert commands.filter_pool(given) == 0
    blend = tmp_path / "blend.yaml"
    shares = "{caption: 0.25, blip: 0.5, given: 0.25}"
    blend.write_text(
        f"name: b\npools: {{p: {pool}}}\nviews: {{p/all: 1}}\ncaptions: {{p/all: {shares}}}\n"
    )
    settings = ["model=test", "samples_seen=32", "batch_size=8", "lanes=4", "warmup=1",
                "precision=fp32", "threads=1", "device=cpu", "lr=1e-3"]  # fmt: skip
    command = [str(blend), "--out", str(tmp_path / "run"), "--set", *settings]
    assert commands.train(command) == 2
    message = "does not read the column 'given'.*{given: given IS NOT NULL}"
    assert re.search(message, capsys.readouterr().err)
    views = "views: {all: [{any: blip IS NOT NULL}, {given: given IS NOT NULL}]}"
    recipe.write_text(recipe.read_text().replace("views: {all: [{any: blip IS NOT NULL}]}", views))
    assert commands.filter_pool(given) == 0
    assert commands.train(command) == 0
    log = (tmp_path / "run" / "log.jsonl").read_text()
    assert '"captions": {"blip": 16, "caption": 8, "given": 8}' in log


@pytest.mark.parametrize("kind", ["blip", pytest.param("encoder_decoder", marks=pytest.mark.slow)])
def test_transformers_writes_what_its_own_generate_gives(
    kind: str, request: pytest.FixtureRequest
) -> None:
    import transformers

    folder = request.getfixturevalue(kind)
    network = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for beams in (1, 2):
        tokens = network.generate(
            **processor(images=images(), return_tensors="pt"),
            max_new_tokens=6, min_new_tokens=1, num_beams=beams, do_sample=False,
        )  # fmt: skip
        texts = [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
        assert written(folder, max_tokens=6, beams=beams) == texts


def test_a_chat_model_is_asked_and_only_its_answer_is_stored() -> None:
    """With a processor that writes down what it gets: a model that chats has no tiny form."""
    asked: dict[str, Any] = {}

    class Inputs(dict[str, Any]):
        def to(self, device: str) -> Inputs:
            return self

    class Processor:
        chat_template, tokenizer = "x", SimpleNamespace()

        def apply_chat_template(self, chat: Any, *, add_generation_prompt: bool) -> str:
            asked.update(chat=chat, generation=add_generation_prompt)
            return "USER: <image> What?"

        def __call__(self, *, images: Any, text: Any, padding: bool, return_tensors: str) -> Inputs:
            asked.update(images=images, text=text, padding=padding)
            return Inputs(input_ids=torch.tensor([[5, 6]] * len(text)), pixels=torch.zeros(2, 3))

    def generate(**given: Any) -> Any:
        asked.update(beams=given["num_beams"], dtype=given["pixels"].dtype)
        return torch.tensor([[5, 6, 7, 8], [5, 6, 9, 9]])

    writer = TransformersWriter.__new__(TransformersWriter)
    writer.options = Captioner(model="hf:a/b", max_tokens=2, beams=2, prompt="What?")
    writer.device, writer.dtype = "cpu", torch.bfloat16
    writer.processor, writer.network = Processor(), SimpleNamespace(generate=generate)
    writer.tokenizer = SimpleNamespace(
        batch_decode=lambda tokens, skip_special_tokens: [f" {each} " for each in tokens.tolist()]
    )
    writer.is_chat, writer.takes_text = True, True
    given = images()[:2]
    assert writer.write(given, None) == ["[7, 8]", "[9, 9]"]
    content = [{"type": "image"}, {"type": "text", "text": "What?"}]
    assert asked["chat"] == [{"role": "user", "content": content}]
    assert asked["generation"]
    assert asked["images"] == [[given[0]], [given[1]]]
    assert asked["text"] == ["USER: <image> What?"] * 2
    assert (asked["beams"], asked["dtype"]) == (2, torch.bfloat16)


@pytest.fixture(scope="session")
def blip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_blip(tmp_path_factory.mktemp("models") / "blip")


@pytest.fixture(scope="session")
def encoder_decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder_decoder(tmp_path_factory.mktemp("models") / "ved")
