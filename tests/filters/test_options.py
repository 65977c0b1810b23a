"""Options of all filters, in tables: which are refused, and files by their content."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clipmill.filters import FILTERS, make
from clipmill.filters.base import BETWEEN_0_AND_1, PLACE, SHARE, FilterBase, set_id
from clipmill.manifests.schema import FilterSpec

CLIP = {"model": "ViT-B-32", "pretrained": "laion2b_s34b_b79k"}
HF = {"model": "hf:a/b"}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("caption", {"min_words": 3}, "has no option 'min_words'; did you mean 'words'"),
    ("pdq", {"min_words": 3}, "filter pdq has no option 'min_words'; it has no options"),
    ("tokens", {"tokenizer": "words"}, "tokenizer is 'words'"),
    ("optout", {}, "user_agent is empty; set fetch.user_agent in"),
    ("clip_score", {**CLIP, "batchsize": 8}, "'batchsize'; did you mean 'batch_size'"),
    ("clip_score", {**CLIP, "batch_size": "many"}, "batch_size is 'many'"),
    ("clip_score", {**CLIP, "batch_size": 0}, "batch_size is 0; it must be at least 1"),
    ("clip_score", {**CLIP, "device": "tpu"}, "device is 'tpu'"),
    ("clip_score", {**CLIP, "loaded": 1}, "no option 'loaded'"),
    ("clip_score", {}, "filter clip_score needs the option model"),
    ("clip_score", {"model": "ViT-B-32"}, "name them with pretrained"),
    ("clip_score", {"model": "local-dir:/x", "pretrained": "openai"}, "brings its own weights"),
    ("clip_score", {"on": "e", "precision": "fp32"}, "leave model, pretrained and precision out"),
    ("embed", {**CLIP, "towers": []}, "name image, text, or each of them once"),
    ("embed", {**CLIP, "towers": ["image", "image"]}, "name image, text, or each of them once"),
    ("clip_loss", {"on": "e", "batch": 1}, "batch is 1; it must be at least 2"),
    ("clip_loss", {"on": "e", "rounds": 0}, "rounds is 0; it must be at least 1"),
    ("clip_loss", {"on": "e", "temperature": 0}, "temperature is 0.0; it must be above 0"),
    ("head", {"weights": __file__, "on": "e"}, "it must end with .pth"),
    ("faces", {"weights": __file__, "threshold": 1.5}, "it must be above 0 and below 1"),
    ("faces", {"weights": __file__, "overlap": 0}, "overlap is 0.0; it must be above 0"),
    ("faces", {"weights": __file__, "size": 100}, "size is 100; it must be a multiple of 32"),
    ("concept", {}, "filter concept needs the option entries"),
    ("balance", {}, "needs either t or tail_share, as in {balance: {t: 20000}}"),
    ("balance", {"t": 5, "tail_share": 0.06}, "needs either t or tail_share"),
    ("balance", {"t": 0}, "t is 0; it must be at least 1"),
    ("balance", {"tail_share": 6}, "tail_share is 6.0; it must be above 0 and below 1"),
    ("balance", {"t": 1, "seed": -1}, "seed is -1"),
    ("rank_mean", {}, "filter rank_mean needs the option of"),
    ("rank_mean", {"of": {}}, "it names no column; write {clip_score: 2, clip_loss: 1}"),
    ("rank_mean", {"of": {"a": 0}}, "the weight of a is 0.0; it must be a number but 0"),
    ("rank_mean", {"of": {"a": float("nan")}}, "the weight of a is nan"),
    ("soft_cap", {"of": "a"}, "filter soft_cap needs the option share"),
    ("soft_cap", {"of": "a", "share": 0}, "share is 0.0; it must be above 0"),
    ("soft_cap", {"of": "a", "share": 17}, "drawn 16 times at most; lower it to 16 or less, or"),
    ("soft_cap", {"of": "a", "share": float("nan")}, "share is nan; it must be above 0"),
    ("soft_cap", {"of": "a", "share": 1, "penalty": 0}, "penalty is 0.0; it must be above 0 and"),
    ("soft_cap", {"of": "a", "share": 1, "most": 33}, "most is 33; it must be at least 1 and"),
    ("targets", {"targets": __file__, "clusters": 0}, "clusters is 0; it must be at least 1"),
    ("targets", {"targets": __file__, "sample": 0}, "it must be above 0 and at most 1"),
    ("table", {"paths": "x", "take": {"a": "double"}}, "'double' is not one of string, "),
    ("table", {"paths": "x", "take": {"a": "fp16[0]"}}, "'fp16[0]' is not one of string, "),
    ("table", {"paths": "x", "take": {"A": "float"}}, "a column cannot be named 'A'"),
    ("table", {"paths": "x", "take": {}}, "needs paths and take"),
    ("table", {"paths": "a.npy", "take": {"a": "float"}}, "lists of uids (.npy) give one column"),
    ("table", {"paths": ["a.npy", "b"], "take": {"a": "bool"}}, "cannot be mixed"),
    ("caption_file", {"paths": "a.npy"}, "a.npy has no captions"),
    ("duplicate", {"on": "pixels"}, "on is 'pixels'"),
    ("duplicate", {}, "needs the option on"),
    ("duplicate", {"on": "sha256", "radius": 3}, "it belongs to on: perceptual"),
    ("duplicate", {"on": "perceptual", "radius": -1}, "radius is -1; it must be at least 0"),
    ("duplicate", {"on": "perceptual", "threshold": 0.9}, "it belongs to on: embedding"),
    ("duplicate", {"on": "sha256", "device": "cuda"}, "it belongs to on: embedding"),
    ("duplicate", {"on": "perceptual", "column": "phash", "quality": 3}, "has no column of qual"),
    ("duplicate", {"on": "embedding", "threshold": 1.5}, "it must be above 0 and at most 1"),
    ("duplicate", {"on": "embedding", "sample": 0}, "sample is 0.0"),
    ("duplicate", {"on": "embedding", "clusters": 0}, "clusters is 0"),
    ("duplicate", {"on": "sha256", "best": "hard"}, "needs the clusters"),
    ("decontaminate", {}, "needs the option against"),
    ("decontaminate", {"against": []}, "against is empty"),
    ("decontaminate", {"against": "x", "radius": -2}, "radius is -2; it must be at least 0"),
    ("decontaminate", {"against": "x", "on": "embedding", "radius": 2}, "it belongs to on: perc"),
    ("decontaminate", {"against": "x", "threshold": 0.5}, "it belongs to on: embedding"),
    ("decontaminate", {"against": "x", "column": "phash", "quality": 9}, "phash has none"),
    ("decontaminate", {"against": "x", "on": "embedding", "threshold": 0}, "threshold is 0.0"),
    ("captioner", {}, "needs the option model"),
    ("captioner", {"model": "ViT-B-32"}, "a model of transformers as hf:ORG/NAME or local-dir:"),
    ("captioner", {**HF, "beams": 0}, "beams is 0; it must be at least 1"),
    ("captioner", {**HF, "temperature": -1}, "temperature is -1.0; it must be at least 0"),
    ("captioner", {**HF, "min_tokens": 31}, "min_tokens is 31 and max_tokens 30"),
    ("captioner", {**HF, "beams": 2, "temperature": 1}, "temperature is 1.0 with 2 beams"),
    ("captioner", {**HF, "seed": 2}, "nothing is drawn at temperature 0"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_options_that_cannot_be(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make(FilterSpec(name=name, options=options))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@dataclass(kw_only=True)
class Bounded(FilterBase):
    name = "bounded"
    least: float = field(default=5, metadata={"least": 1})
    share: float = field(default=0.5, metadata=SHARE)
    between: float | None = field(default=None, metadata=BETWEEN_0_AND_1)
    place: Any = field(default="here", metadata=PLACE)


@pytest.mark.parametrize(
    ("option", "values", "refused"),
    [
        ("least", (1, 9), (0.9, -1, float("nan"))),
        ("share", (1e-9, 1), (0, 1.1, float("nan"))),
        ("between", (None, 1e-9, 0.999), (0, 1, float("nan"))),
    ],
)
def test_a_bound_is_as_it_says(
    option: str, values: tuple[Any, ...], refused: tuple[float, ...]
) -> None:
    for value in values:
        assert getattr(Bounded(**{option: value}), option) == value
    for value in refused:
        with pytest.raises(ValueError, match=f"filter bounded: {option} is {value}; it must be "):
            Bounded(**{option: value})


def test_a_place_is_absolute_but_for_a_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Bounded().place == "here"
    assert Bounded(place="x").place == f"{tmp_path}/x"
    assert Bounded(place=["x", "s3://b/x"]).place == (f"{tmp_path}/x", "s3://b/x")


OF_FILES: dict[str, dict[str, Any]] = {
    "caption": {"words": "words.txt"},
    "concept": {"entries": "words.txt"},
    "synset": {"nouns": "index.noun", "wnids": "wnids.txt"},
    "targets": {"targets": "targets.npy"},
    "faces": {"weights": "faces.onnx"},
    "head": {"weights": "head.npz", "on": "e"},
    "language": {"model": "lid.ftz"},
}


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option.name)
        for name, kind in FILTERS.items()
        for option in dataclasses.fields(kind)
        if option.metadata.get("file")
    ],
)
def test_the_id_is_of_the_content_of_a_file_and_not_of_its_place(
    name: str, option: str, tmp_path: Path
) -> None:
    def id_in(folder: str, content: str = "x") -> str:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "noun.exc").touch()
        options = dict(OF_FILES[name])
        for each in options.keys() - {"on"}:
            path = tmp_path / folder / options[each]
            path.write_text(content if each == option else "the same")
            options[each] = str(path)
        return set_id(make(FilterSpec(name=name, options=options)))

    assert id_in("a") == id_in("b") != id_in("c", "y")
    missing = {**dict.fromkeys(OF_FILES[name], __file__), option: "/nowhere/x"}
    with pytest.raises(ValueError, match=f"filter {name}: there is no file /nowhere/x"):
        make(FilterSpec(name=name, options=missing))
