"""Models, checkpoints and class names of public reports, rebuilt small, through the commands: what
`clipmill evaluate` and `clipmill weights` make of them.

The right outcome of a row was written down before it was run. Numbers are compared with those of
open_clip and of transformers, which compute the same model from the same files.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import logging
import os
import pickle
import tarfile
import warnings
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from clipmill.manifests import reader
from clipmill.manifests.preprocess import Preprocess, of_hugging_face
from clipmill.manifests.schema import Ablation
from clipmill.train.config import configure
from clipmill.train.formats.hf import to_hf
from clipmill.train.formats.model_files import initial_weights, load_model, source_files
from clipmill.train.formats.open_clip_files import from_open_clip
from clipmill.train.model.architecture import model_of_settings
from clipmill.train.model.clip import CLIP
from tests.support import commands

open_clip = pytest.importorskip("open_clip")
safetensors = pytest.importorskip("safetensors.torch")

Values = Mapping[str, Any]
SIDE = 16
TOWERS = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": SIDE, "layers": 1, "width": 16, "patch_size": 8, "head_width": 8},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
SIGLIP_TEXT = {
    "vocab_size": 40, "no_causal_mask": True, "pool_type": "last", "proj_bias": True,
    "norm_kwargs": {"eps": 1e-6}, "tokenizer_kwargs": {"clean": "canonicalize"},
}  # fmt: skip
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "photo", "of", "barn", "pier", "dune")
CLASSES = ("barn", "dune", "pier")


def picture(path: Path, seed: int, size: tuple[int, int] = (52, 19)) -> None:
    """A picture that is much wider than high, with other pixels in every part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    small = np.random.default_rng(seed).integers(0, 255, (5, 11, 3), dtype=np.uint8)
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(path)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Sums of two threads differ from those of one in the last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number, name in enumerate(CLASSES):
        for k in range(2):
            picture(tmp_path / "data" / name / f"{k}.png", 7 * number + k, ((52, 19), (19, 45))[k])
    return tmp_path / "data"


def state_of(towers: Values = TOWERS) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    settings = {key: value for key, value in towers.items() if key != "custom_text"}
    settings["text_cfg"] = dict(towers["text_cfg"])
    kind = open_clip.model.CustomTextCLIP if "custom_text" in towers else open_clip.CLIP
    model = kind(**settings)
    with torch.no_grad():
        model.logit_scale.fill_(4.0)
    return {key: x.contiguous() for key, x in model.state_dict().items() if key != "attn_mask"}


def open_clip_folder(folder: Path, preprocess: Values, towers: Values = TOWERS) -> Path:
    folder.mkdir(parents=True)
    safetensors.save_file(state_of(towers), folder / "open_clip_model.safetensors")
    document = {"model_cfg": towers, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(document))
    return folder


def own_tokenizer(folder: Path) -> None:
    """A tokenizer of a few words that has BERT's special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')


def evaluated(
    model: str, tmp_path: Path, capsys: Any, **keys: Any
) -> tuple[int, dict[str, Any], str]:
    """Exit status, the JSON of `clipmill evaluate`, and what it said."""
    task = {"name": "task", "kind": "classification", "data": str(tmp_path / "data"), **keys}
    (tmp_path / "task.yaml").write_text(json.dumps(task))
    words = [model, "--task", str(tmp_path / "task.yaml"), "--out", str(tmp_path / "out")]
    status = commands.evaluate([*words, "--device", "cpu", "--json"])
    said = capsys.readouterr()
    document = json.loads(said.out.splitlines()[-1]) if status == 0 else {}
    return status, document, said.out + said.err


def words_of(document: Values) -> str:
    """What `clipmill evaluate --json` says that it used."""
    return (
        f"images: {document['used']['images']}; captions: tokenizer {document['used']['captions']}"
    )


def logprobs(tmp_path: Path) -> dict[str, float]:
    rows = pq.read_table(tmp_path / "out" / "task.parquet").to_pylist()
    return {row["sample"]: row["logprob"] for row in rows}


def by_open_clip(folder: Path, pictures: Path, names: Sequence[str] = CLASSES) -> dict[str, float]:
    """The log-probability of the right class of every picture, by open_clip alone."""
    logging.disable(logging.WARNING)
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    tokenize = open_clip.get_tokenizer(f"local-dir:{folder}")
    logging.disable(logging.NOTSET)
    with torch.no_grad():
        tokens = tokenize([f"a photo of a {name}" for name in names])
        text_CE = model.eval().encode_text(tokens, normalize=True)
        values = {}
        for path in sorted(pictures.rglob("*.png")):
            pixels = transform(Image.open(path).convert("RGB"))[None]
            logits = (
                model.logit_scale.exp() * model.encode_image(pixels, normalize=True) @ text_CE.T
            )
            value = logits[0].log_softmax(0)[CLASSES.index(path.parent.name)]
            values[f"{path.parent.name}/{path.name}"] = float(value)
    return values


def by_transformers(
    folder: Path, pictures: Path, names: Sequence[str] = CLASSES
) -> dict[str, float]:
    """The same by transformers, of a CLIPModel with CLIP's tokenizer."""
    transformers = pytest.importorskip("transformers")
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    texts = [f"a photo of a {name}" for name in names]
    tokenizer = transformers.CLIPTokenizer.from_pretrained(folder)
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    processor, values = transformers.CLIPImageProcessorPil.from_pretrained(folder), {}
    for path in sorted(pictures.rglob("*.png")):
        pixels = processor(images=Image.open(path).convert("RGB"), return_tensors="pt")
        with torch.no_grad():
            logits = model(**tokens, **pixels).logits_per_image[0].log_softmax(0)
        name = f"{path.parent.name}/{path.name}"
        values[name] = float(logits[CLASSES.index(path.parent.name)])
    return values


def agree(one: Mapping[str, float], other: Mapping[str, float], within: float = 1e-5) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert abs(one[name] - other[name]) < within, name


# --- open_clip's preprocess_cfg -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder of open_clip's form. refuses: words of the one line, else open_clip's numbers."""

    source: str
    why: str
    preprocess: Values
    text: Values | None = None  # another caption tower, with a tokenizer of its own
    says: str = ""
    refuses: str = ""


HALVES = {"mean": [0.5] * 3, "std": [0.5] * 3}
FOLDERS = (
    Folder(
        source="epheterson/immich-apple-silicon#122",
        why="exported models of SigLIP squash, and wide pictures show it",
        preprocess={**HALVES, "resize_mode": "squash", "interpolation": "bicubic"},
        says="resize_mode squash",
    ),
    Folder(
        source="google-research/big_vision#91",
        why="SigLIP's own tokenizer and a warped picture together",
        preprocess={**HALVES, "resize_mode": "squash"},
        text=SIGLIP_TEXT,
        says="captions: tokenizer",
    ),
    Folder(
        source="mlfoundations/open_clip#782",
        why="the usual transform crops the centre: nothing changes for it",
        preprocess={},
        says="resize_mode shortest",
    ),
    Folder(
        source="apple/coreai-models#108",
        why="pad: the longer side is scaled and the rest is filled",
        preprocess={"resize_mode": "longest", "fill_color": 127, "interpolation": "bilinear"},
        says="fill_color 127",
    ),
    Folder(
        source="ggml-org/llama.cpp#24629",
        why="bilinear in the place of bicubic is another number",
        preprocess={"interpolation": "bilinear", "size": [48, 48], "mean": 0.5, "std": None},
        says="bilinear",
    ),
    Folder(
        source="mlfoundations/open_clip: src/open_clip/transform.py",
        why="open_clip takes bicubic for random when it evaluates, and null for its default",
        preprocess={"interpolation": "random", "resize_mode": None},
        says="random",
    ),
    Folder(
        source="ssundaram21/dreamsim#6",
        why="an interpolation that open_clip does not have is not replaced by another",
        preprocess={"interpolation": "area"},
        refuses="interpolation is 'area'",
    ),
)  # fmt: skip


@pytest.mark.parametrize("row", FOLDERS, ids=lambda row: row.source)
def test_a_folder_of_open_clip_has_open_clips_numbers(
    row: Folder, tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    towers, folder = dict(TOWERS), tmp_path / "model"
    if row.text is not None:
        text = {**TOWERS["text_cfg"], **row.text, "hf_tokenizer_name": "a name of a hub"}  # type: ignore[dict-item]
        towers |= {"text_cfg": text, "custom_text": True, "init_logit_bias": -10}
    open_clip_folder(folder, row.preprocess, towers)
    if row.text is not None:
        own_tokenizer(folder)
    status, document, said = evaluated(str(folder), tmp_path, capsys)
    if row.refuses:
        assert (status, said.count("error:")) == (2, 1)
        assert row.refuses in said
        return
    assert row.says in words_of(document)
    assert document["used"]["preprocess"]["size"] == [SIDE, SIDE]
    mine, theirs = logprobs(tmp_path), by_open_clip(folder, pictures)
    agree(mine, theirs)
    # The folder that `weights` writes is the same model, for open_clip and here.
    assert commands.weights([str(folder), "--to", str(tmp_path / "again")]) == 0
    agree(by_open_clip(tmp_path / "again", pictures), theirs)


CASED = ("BARN, red", "Dune.", "pier & a Pier")


@pytest.mark.parametrize(
    ("kwargs", "refuses"),
    [
        ({"clean": "whitespace"}, ""),
        ({"clean": "canonicalize"}, ""),
        ({"reduction_mask": "simple"}, "{'reduction_mask': 'simple'}; CLIP's tokenizer has clean"),
        ({"clean": "upper"}, "one of canonicalize, lower, whitespace"),
    ],
    ids=["mlfoundations/open_clip#773", "NVlabs/RADIO#142", "drawn at random", "unknown"],
)
def test_a_text_is_cleaned_as_its_configuration_says(
    kwargs: Values, refuses: str, tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    text = {**TOWERS["text_cfg"], "tokenizer_kwargs": kwargs}  # type: ignore[dict-item]
    folder = open_clip_folder(tmp_path / "model", {}, {**TOWERS, "text_cfg": text})
    status, document, said = evaluated(str(folder), tmp_path, capsys, classes=list(CASED))
    if refuses:
        assert (status, refuses in said) == (2, True)
        return
    assert words_of(document).endswith(f"tokenizer clip, clean {kwargs['clean']}")
    agree(logprobs(tmp_path), by_open_clip(folder, pictures, CASED))
    (tmp_path / "model.json").write_text(json.dumps({**TOWERS, "text_cfg": text}))
    with pytest.raises(ValueError, match="and stored tokens are of clean lower"):
        configure({"model": str(tmp_path / "model.json")})


def test_open_clips_weights_are_read_beside_those_of_others(
    tmp_path: Path, pictures: Path, plain_hf: Path, capsys: Any
) -> None:
    """huggingface/transformers#25622: a folder of LAION has the files of both programs."""
    folder = copied(plain_hf, tmp_path / "both")
    torch.save(state_of(), folder / "open_clip_pytorch_model.bin")
    torch.save({"step": torch.zeros(2)}, folder / "optimizer.bin")
    document = {"model_cfg": TOWERS, "preprocess_cfg": {"mean": [0.3, 0.4, 0.5]}}
    replaced(folder / "open_clip_config.json", document)
    assert evaluated(str(folder), tmp_path, capsys)[0] == 0
    agree(logprobs(tmp_path), expected := by_open_clip(folder, pictures))
    (folder / "model.safetensors").unlink()
    (folder / "open_clip_pytorch_model.bin").rename(folder / "pytorch_model.bin")
    assert evaluated(str(folder), tmp_path, capsys)[0] == 0
    agree(logprobs(tmp_path), expected)


def test_a_tower_that_has_a_size_of_its_own_is_named(
    tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    """microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224: open_clip_config.json, with an
    image_size that timm's tower does not take."""
    vision = {
        "timm_model_name": "vit_tiny_patch16_224",
        "timm_pool": "",
        "timm_proj": "linear",
        "image_size": 32,
    }
    towers = {**TOWERS, "custom_text": True, "vision_cfg": vision}
    folder = open_clip_folder(tmp_path / "model", {}, towers)
    status, _, said = evaluated(str(folder), tmp_path, capsys)
    assert (status, "does not take images of 32 pixels" in said) == (2, True)


@pytest.mark.parametrize(
    "row",
    [
        # mlfoundations/open_clip#1213: rectangular crops are bicubic there, whatever is asked
        {"size": (12, 30), "interpolation": "bilinear"},
        {"size": (30, 12), "resize_mode": "longest"},
        {"size": (16, 16), "resize_mode": "longest", "fill_color": 9},
    ],
    ids=["mlfoundations/open_clip#1213", "longest-tall", "longest-square"],
)
def test_every_bit_of_a_shape_is_open_clips(row: dict[str, Any]) -> None:
    from open_clip.transform import PreprocessCfg, image_transform_v2

    settings = {key: value for key, value in row.items() if key != "size"}
    steps = image_transform_v2(PreprocessCfg(**row), is_train=False).transforms[:-2]
    for size in ((52, 19), (19, 45), (31, 31), (9, 70), (16, 16)):
        image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (*size, 3), np.uint8))
        expected = image
        for step in steps:
            expected = step(expected)
        assert np.array_equal(
            Preprocess(**settings).pixels(image, row["size"]), np.asarray(expected)
        )


def test_half_of_a_tokenizer_is_named(tmp_path: Path, pictures: Path, capsys: Any) -> None:
    """mlfoundations/open_clip#217: tokenizer.json was copied alone, beside the name of another."""
    text = {**TOWERS["text_cfg"], "hf_tokenizer_name": "roberta-base"}  # type: ignore[dict-item]
    folder = open_clip_folder(tmp_path / "model", {}, {**TOWERS, "text_cfg": text})
    (folder / "tokenizer.json").write_text("{}")
    status, _, said = evaluated(str(folder), tmp_path, capsys)
    assert (status, "has tokenizer.json without tokenizer_config.json" in said) == (2, True), said


# --- Hugging Face's folders -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """A preprocessor_config.json. refuses: words of the one line; else transformers' pixels."""

    source: str
    why: str
    document: Values
    refuses: str = ""


CLIP_PROCESSOR = {"image_processor_type": "CLIPImageProcessor"}
SHORTER = {**CLIP_PROCESSOR, "size": {"shortest_edge": SIDE}}
BOTH = {"height": SIDE, "width": SIDE}
PROCESSORS = (
    Processor(
        source="haotian-liu/LLaVA#1738",
        why="both steps have one size, and still the longer side is cropped",
        document={**SHORTER, "crop_size": BOTH},
    ),
    Processor(
        source="open-mmlab/mmpretrain#30",
        why="the shorter side is scaled to more than the crop has",
        document={**SHORTER, "size": {"shortest_edge": 21}, "crop_size": SIDE, "resample": 2},
    ),
    Processor(
        source="huggingface/transformers.js#1472",
        why="crop_size is missing, and size is of an older file",
        document={"feature_extractor_type": "CLIPFeatureExtractor", "size": SIDE, "resample": 3},
    ),
    Processor(
        source="huggingface/transformers: models/clip/image_processing_clip.py",
        why="no crop, both sides scaled, values of 0 to 255 less nothing",
        document={**CLIP_PROCESSOR, "do_center_crop": False, "size": BOTH,
                  "resample": 0, "do_rescale": False, "do_normalize": False},
    ),
    Processor(
        source="huggingface/transformers#43313",
        why="another factor and statistics of levels",
        document={**CLIP_PROCESSOR, "size": {"shortest_edge": SIDE}, "rescale_factor": 1 / 127.5,
                  "image_mean": [1.0, 1.0, 1.0], "image_std": [0.5, 0.25, 1.0]},
    ),
    Processor(
        source="huggingface/transformers#30282",
        why="a crop of another size than the model's images",
        document={**SHORTER, "crop_size": {"height": 14, "width": 14}},
        refuses="gives images of 14 pixels, and the model takes 16",
    ),
    Processor(
        source="huggingface/transformers#30698",
        why="both sides scaled, by a class whose name is that of older files",
        document={"image_processor_type": "CLIPFeatureExtractor", "size": BOTH, "crop_size": BOTH,
                  "use_square_size": False, "_valid_processor_keys": ["images", "size"]},
    ),
    Processor(
        source="weaviate/multi2vec-clip-inference#51",
        why="what a fast processor writes beside the same settings",
        document={**SHORTER, "crop_size": BOTH, "image_processor_type": "CLIPImageProcessorFast",
                  "data_format": "channels_first", "device": None, "disable_grouping": None,
                  "do_pad": None, "default_to_square": False},
    ),
    Processor(
        source="huggingface/transformers.js: src/models/jina_clip/image_processing_jina_clip.js",
        why="a class of another model has words of its own, which are not CLIP's defaults",
        document={"image_processor_type": "JinaCLIPImageProcessor", "resize_mode": "squash",
                  "size": SIDE, "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"},
        refuses="JinaCLIPImageProcessor and has no resample",
    ),
    Processor(
        source="openai/CLIP#165",
        why="without the crop every picture has another shape",
        document={**CLIP_PROCESSOR, "do_center_crop": False, "size": {"shortest_edge": SIDE}},
        refuses="do_center_crop false",
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def plain_hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("huggingface")
    folder = open_clip_folder(root / "model", {})
    assert commands.weights([str(folder), "--to", str(root / "hf"), "--format", "huggingface"]) == 0
    return root / "hf"


def copied(folder: Path, to: Path, without: Sequence[str] = (), *, parents: bool = False) -> Path:
    to.mkdir(parents=parents)
    for path in folder.iterdir():
        if path.name not in without:
            os.link(path, to / path.name)
    return to


def replaced(path: Path, document: Any) -> None:
    """Write a file of a folder whose files are links."""
    path.unlink(missing_ok=True)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("row", PROCESSORS, ids=lambda row: row.source)
def test_a_folder_of_hugging_face_has_its_processors_pixels(
    row: Processor, tmp_path: Path, pictures: Path, plain_hf: Path, capsys: Any
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = copied(plain_hf, tmp_path / "hf")
    replaced(folder / "preprocessor_config.json", dict(row.document))
    status, _, said = evaluated(str(folder), tmp_path, capsys)
    if row.refuses:
        assert (status, said.count("error:")) == (2, 1)
        assert row.refuses in said
        return
    assert status == 0, said
    settings = Preprocess(**of_hugging_face(row.document, SIDE))
    # What the file leaves out is 224 pixels there, and the model's side here.
    usual = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    missing = {key: value for key, value in usual.items() if key not in row.document}
    processor = transformers.CLIPImageProcessorPil.from_pretrained(folder, **missing)
    for path in sorted(pictures.rglob("*.png")):
        image = Image.open(path).convert("RGB")
        theirs = np.asarray(processor(images=image, return_tensors="np")["pixel_values"][0])
        levels = settings.pixels(image, (SIDE, SIDE)) / 255
        mine = (levels - settings.image_mean) / settings.image_std
        assert np.abs(mine.transpose(2, 0, 1) - theirs).max() < 1e-4, path
    # Written again, the folder gives the same numbers.
    before = logprobs(tmp_path)
    words = [str(folder), "--to", str(tmp_path / "again"), "--format", "huggingface"]
    assert commands.weights(words) == 0
    assert evaluated(str(tmp_path / "again"), tmp_path, capsys)[0] == 0
    agree(logprobs(tmp_path), before)


MEAN = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
VIT = {"feature_extractor_type": "ViTFeatureExtractor", "size": SIDE}


@pytest.mark.parametrize(
    ("name", "document", "refuses"),
    [
        ("ViTImageProcessorPil", VIT, ""),
        ("CLIPImageProcessorPil",
         {**CLIP_PROCESSOR, "size": SIDE, "crop_size": SIDE, "default_to_square": True}, ""),
        ("", {"image_processor_type": "SiglipImageProcessor", "size": SIDE},
         "may be that of both sides or of the shorter one; write it"),
        ("", {"image_processor_type": "MobileViTImageProcessor", "size": BOTH,
              "do_flip_channel_order": True}, "do_flip_channel_order, which is not done here"),
    ],
    ids=["huggingface/transformers#24070", "default_to_square",
         "huggingface/transformers: models/siglip", "huggingface/transformers: models/mobilevit"],
)  # fmt: skip
def test_a_size_of_one_number_is_what_its_processor_makes_of_it(
    name: str, document: dict[str, Any], refuses: str, tmp_path: Path, pictures: Path,
    plain_hf: Path, capsys: Any,
) -> None:  # fmt: skip
    transformers = pytest.importorskip("transformers")
    folder, document = copied(plain_hf, tmp_path / "hf"), {**MEAN, "resample": 2, **document}
    replaced(folder / "preprocessor_config.json", document)
    status, _, said = evaluated(str(folder), tmp_path, capsys)
    if refuses:
        assert (status, refuses in said) == (2, True), said
        return
    assert status == 0, said
    settings = Preprocess(**of_hugging_face(document, SIDE))
    processor = getattr(transformers, name).from_pretrained(folder)
    for path in sorted(pictures.rglob("*.png")):
        image = Image.open(path).convert("RGB")
        theirs = np.asarray(processor(images=image, return_tensors="np")["pixel_values"][0])
        mine = (settings.pixels(image, (SIDE, SIDE)) / 255 - 0.5) / 0.5
        assert np.abs(mine.transpose(2, 0, 1) - theirs).max() < 1e-4, path


def test_a_folder_that_transformers_5_saved_is_read(
    tmp_path: Path, pictures: Path, plain_hf: Path, capsys: Any
) -> None:
    """huggingface/transformers: save_pretrained of a model and of its CLIPProcessor."""
    transformers = pytest.importorskip("transformers")
    processor = transformers.CLIPProcessor(
        transformers.CLIPImageProcessorPil.from_pretrained(plain_hf),
        transformers.CLIPTokenizer.from_pretrained(plain_hf),
    )
    processor.save_pretrained(tmp_path / "hf")
    model = transformers.CLIPModel.from_pretrained(plain_hf)
    model.save_pretrained(tmp_path / "hf", max_shard_size="1MB")
    assert (tmp_path / "hf" / "model.safetensors.index.json").exists()
    status, document, said = evaluated(str(tmp_path / "hf"), tmp_path, capsys)
    assert status == 0, said
    assert words_of(document).endswith("tokenizer clip")
    agree(logprobs(tmp_path), by_transformers(tmp_path / "hf", pictures))


def older(config: dict[str, Any], with_new: bool) -> None:
    """Each tower as older versions wrote it, beside another value of the newer key, or alone."""
    for tower in ("text_config", "vision_config"):
        config[f"{tower}_dict"] = {**config.pop(tower), "hidden_act": "quick_gelu"}
        if with_new:
            config[tower] = {**config[f"{tower}_dict"], "hidden_act": "gelu"}


def wider(config: dict[str, Any]) -> None:
    """A width of the embedding in each tower, which the one outside replaces."""
    for tower in ("text_config", "vision_config"):
        config[tower]["projection_dim"] = 512


@pytest.mark.parametrize(
    "edit",
    [lambda config: older(config, True), lambda config: older(config, False), wider],
    ids=["huggingface/optimum-habana#168", "older keys alone", "huggingface/transformers#25622"],
)
def test_a_configuration_of_hugging_face_means_what_it_means_there(
    edit: Callable[[dict[str, Any]], None], tmp_path: Path, pictures: Path, plain_hf: Path,
    capsys: Any,
) -> None:  # fmt: skip
    folder = copied(plain_hf, tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    edit(config)
    replaced(folder / "config.json", config)
    assert evaluated(str(folder), tmp_path, capsys)[0] == 0
    agree(logprobs(tmp_path), by_transformers(folder, pictures), 1e-4)


def test_another_model_of_hugging_face_is_refused_with_a_way(
    tmp_path: Path, pictures: Path, plain_hf: Path, capsys: Any
) -> None:
    """embeddings-benchmark/mteb#1424: a SigLIP in the form of transformers."""
    folder = copied(plain_hf, tmp_path / "hf")
    replaced(folder / "config.json", {"model_type": "siglip"})
    status, _, said = evaluated(str(folder), tmp_path, capsys)
    assert (status, "'siglip'; only 'clip'" in said) == (2, True)
    assert "the folder of the same weights that open_clip reads" in said


def test_what_a_folder_lacks_is_said(
    tmp_path: Path, pictures: Path, plain_hf: Path, capsys: Any, caplog: Any
) -> None:
    """huggingface/transformers#30714, #30524: run_clip.py saved the model without the others."""
    files = ["vocab.json", "merges.txt", "tokenizer_config.json", "preprocessor_config.json"]
    folder = copied(plain_hf, tmp_path / "hf", files)
    assert evaluated(str(folder), tmp_path, capsys)[0] == 0
    assert "has no tokenizer: captions get CLIP's 49408 tokens" in caplog.text
    assert "has no preprocessor_config.json: images get CLIP's preprocessing" in caplog.text
    agree(logprobs(tmp_path), by_transformers(plain_hf, pictures), 1e-4)


def test_a_token_that_was_added_is_read(
    tmp_path: Path, pictures: Path, plain_hf: Path, capsys: Any
) -> None:
    """huggingface/transformers#21096: a token of textual inversion, above the end of a text."""
    transformers = pytest.importorskip("transformers")
    folder = copied(plain_hf, tmp_path / "hf", ["model.safetensors", "tokenizer_config.json"])
    state = safetensors.load_file(plain_hf / "model.safetensors")
    key = "text_model.embeddings.token_embedding.weight"
    state[key] = torch.cat([state[key], torch.ones(1, 16)])
    safetensors.save_file(state, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= {"vocab_size": 49409, "eos_token_id": 2}
    replaced(folder / "config.json", config)
    tokenizer = transformers.CLIPTokenizer.from_pretrained(plain_hf)
    tokenizer.add_tokens(["<my-barn>"])
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    tokenizer.save_pretrained(folder)
    names = ["<my-barn> in a field", *CLASSES[1:]]
    assert evaluated(str(folder), tmp_path, capsys, classes=names)[0] == 0
    agree(logprobs(tmp_path), by_transformers(folder, pictures, names), 1e-4)


def test_a_processor_inside_of_processor_config_is_read(
    tmp_path: Path, pictures: Path, plain_hf: Path, capsys: Any
) -> None:
    """huggingface/transformers: image_processing_base.py reads processor_config.json first."""
    document = {"do_center_crop": False, "size": {"height": SIDE, "width": SIDE}}
    first, second = tmp_path / "one", tmp_path / "two"
    replaced(copied(plain_hf, first) / "preprocessor_config.json", document)
    copied(plain_hf, second, ["preprocessor_config.json"])
    inside = {"processor_class": "CLIPProcessor", "image_processor": document}
    replaced(second / "processor_config.json", inside)
    assert evaluated(str(first), tmp_path, capsys)[0] == 0
    expected = logprobs(tmp_path)
    status, used, _ = evaluated(str(second), tmp_path, capsys)
    assert (status, used["used"]["preprocess"]["resize_mode"]) == (0, "squash")
    agree(logprobs(tmp_path), expected)


def test_what_the_other_format_cannot_say_is_refused(
    tmp_path: Path, plain_hf: Path, capsys: Any
) -> None:
    folder = copied(plain_hf, tmp_path / "hf")
    replaced(folder / "preprocessor_config.json", {"size": {"shortest_edge": 21}})
    assert commands.weights([str(folder), "--to", str(tmp_path / "a")]) == 2
    assert "resize_mode shortest to 21" in capsys.readouterr().err
    padded = open_clip_folder(tmp_path / "padded", {"resize_mode": "longest"})
    words = [str(padded), "--to", str(tmp_path / "b"), "--format", "huggingface"]
    assert commands.weights(words) == 2
    assert "CLIPImageProcessor cannot" in capsys.readouterr().err
    assert not (tmp_path / "a").exists() or not any((tmp_path / "a").iterdir())


# --- tokenizers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """text_config and the tokens of a CLIPModel. refuses: words; else transformers' numbers."""

    source: str
    why: str
    config: Values
    own: bool = True  # the folder has the tokenizer of a few words
    clip: bool = False  # it has CLIP's
    refuses: str = ""
    says: str = ""


TEXTS = (
    Text(
        source="huggingface/transformers#24650",
        why="a small vocabulary with its own tokenizer; the old file pools at the highest token",
        config={"vocab_size": 12, "eos_token_id": 2},
        says="captions: tokenizer /",
    ),
    Text(
        source="huggingface/transformers#24777",
        why="tokens above the end of the text: it pools at eos_token_id",
        config={"vocab_size": 12, "eos_token_id": 3},
    ),
    Text(
        source="huggingface/transformers#1078",
        why="the vocabulary is smaller than what its tokenizer gives",
        config={"vocab_size": 8, "eos_token_id": 3},
        refuses="vocab_size is 8, but tokenizer",
    ),
    Text(
        source="openai/CLIP#7",
        why="a small vocabulary beside CLIP's tokenizer",
        config={"vocab_size": 1000, "eos_token_id": 2},
        own=False,
        clip=True,
        refuses="tokenizer clip gives the token 49407",
    ),
    Text(
        source="huggingface/diffusers#10754",
        why="CLIP's own tokens with the eos_token_id of old files are CLIP's",
        config={"vocab_size": 49408, "eos_token_id": 2},
        own=False,
        clip=True,
        says="captions: tokenizer clip",
    ),
)


@pytest.mark.parametrize("row", TEXTS, ids=lambda row: row.source)
def test_a_clip_model_reads_its_own_tokens(
    row: Text, tmp_path: Path, pictures: Path, plain_hf: Path, capsys: Any
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer_files = ["vocab.json", "merges.txt", "tokenizer_config.json"]
    folder = copied(plain_hf, tmp_path / "hf", [] if row.clip else tokenizer_files)
    if row.own:
        own_tokenizer(folder)
    state = safetensors.load_file(folder / "model.safetensors")
    key = "text_model.embeddings.token_embedding.weight"
    state[key] = state[key][: row.config["vocab_size"]].clone() * 20
    (folder / "model.safetensors").unlink()
    safetensors.save_file(state, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= row.config
    replaced(folder / "config.json", config)
    status, document, said = evaluated(str(folder), tmp_path, capsys)
    if row.refuses:
        assert (status, said.count("error:")) == (2, 1)
        assert row.refuses in said
        return
    assert status == 0, said
    assert row.says in words_of(document)
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    kind = transformers.BertTokenizer if row.own else transformers.CLIPTokenizer
    texts = [f"a photo of a {name}" for name in CLASSES]
    tokens = kind.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    tokens.pop("token_type_ids", None)
    processor, expected = transformers.CLIPImageProcessorPil.from_pretrained(folder), {}
    for path in sorted(pictures.rglob("*.png")):
        pixels = processor(images=Image.open(path).convert("RGB"), return_tensors="pt")
        with torch.no_grad():
            logits = model(**tokens, **pixels).logits_per_image[0].log_softmax(0)
        name = f"{path.parent.name}/{path.name}"
        expected[name] = float(logits[CLASSES.index(path.parent.name)])
    agree(logprobs(tmp_path), expected, 1e-4)
    assert commands.weights([str(folder), "--to", str(tmp_path / "again")]) == 0
    capsys.readouterr()
    assert evaluated(str(tmp_path / "again"), tmp_path, capsys)[0] == 0


def test_padding_before_a_text_is_refused(
    tmp_path: Path, pictures: Path, plain_hf: Path, capsys: Any
) -> None:
    """huggingface/sentence-transformers#3208: the place of a word is then that of its batch."""
    files = ["vocab.json", "merges.txt", "config.json", "tokenizer_config.json"]
    folder = copied(plain_hf, tmp_path / "hf", files)
    own_tokenizer(folder)
    tokenizer = {"tokenizer_class": "BertTokenizer", "padding_side": "left"}
    replaced(folder / "tokenizer_config.json", tokenizer)
    config = json.loads((plain_hf / "config.json").read_text())
    config["text_config"] |= {"eos_token_id": 3}
    replaced(folder / "config.json", config)
    status, _, said = evaluated(str(folder), tmp_path, capsys)
    assert (status, "its tokenizer has padding_side left" in said) == (2, True), said


# --- checkpoints ----------------------------------------------------------------------------------


class Trainer:
    """An object of a program that pickles more than its weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What torch saved of the weights. refuses: words of the one line; else they are read."""

    source: str
    why: str
    content: Callable[[dict[str, torch.Tensor]], Any] = field(repr=False)
    refuses: str = ""
    file: str = "epoch_3.pt"


def traced(state: dict[str, torch.Tensor]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))  # type: ignore[no-untyped-call]


def directed(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    stored = {}
    for name, x in state.items():
        if ".mlp." in name and name.endswith(".weight"):
            stored[f"{name.removesuffix('weight')}r"] = x.norm(dim=1, keepdim=True)
            stored[f"{name.removesuffix('weight')}theta"] = 1.7 * x
        else:
            stored[name] = x
    return stored


def in_towers(name: str) -> str:
    towers = {"visual.": "_image_encoder", "logit_scale": "_logit_scale"}
    tower = next((towers[start] for start in towers if name.startswith(start)), "_text_encoder")
    return f"{tower}.module.{name}"


def as_clip(state: Mapping[str, torch.Tensor]) -> CLIP:
    model = CLIP(model_of_settings(TOWERS, None, "tiny"))
    model.load_state_dict(from_open_clip(state, model.config))
    return model


def distributed(state: Mapping[str, torch.Tensor], world: int) -> dict[str, torch.Tensor]:
    """What the first of so many ranks has of a state that FSDP2 sharded by rows."""
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (world,))
        parts = {name: x.chunk(world)[0] if x.ndim else x for name, x in state.items()}
        return {
            name: DTensor.from_local(x, mesh, [Shard(0)], run_check=False) if x.ndim else x
            for name, x in parts.items()
        }
    finally:
        torch.distributed.destroy_process_group()


CHECKPOINTS = (
    Checkpoint(
        source="m1k2zoo/negbench#9",
        why="a number of NumPy beside the weights",
        content=lambda state: {"epoch": 3, "best": np.float64(0.5), "state_dict": state},
    ),
    Checkpoint(
        source="winycg/CLIP-KD#20",
        why="several of its kinds, and names of a wrapper",
        content=lambda state: {
            "acc": {"top1": np.float32(1.5), "n": np.int64(3)},
            "state_dict": {f"module.{name}": x for name, x in state.items()},
        },
    ),
    Checkpoint(
        source="MotrixLab/FineMoGen#3",
        why="a CLIP inside of a larger module's names",
        content=lambda state: {"model": {f"model.clip.{name}": x for name, x in state.items()}},
    ),
    Checkpoint(
        source="mlfoundations/open_clip#970",
        why="OpenAI's entries beside the weights",
        content=lambda state: OrderedDict(
            state, input_resolution=torch.tensor(SIDE), context_length=12, vocab_size=49408
        ),
    ),
    Checkpoint(
        source="openai/CLIP#284",
        why="Lightning's file, by its ending too, with a CLIP inside of its module",
        content=lambda state: {
            "pytorch-lightning_version": "1.6.0",
            "global_step": 5,
            "callbacks": {},
            "optimizer_states": [{"state": {}}],
            "hyper_parameters": {"lr": 1e-8},
            "state_dict": {f"clipmodel.{name}": x for name, x in state.items()},
        },
        file="last.ckpt",
    ),
    Checkpoint(
        source="deepspeedai/DeepSpeed#1181",
        why="the weights of DeepSpeed lie below its own key",
        content=lambda state: {
            "module": OrderedDict(state),
            "optimizer": None,
            "global_steps": 3,
            "param_shapes": [{name: x.shape for name, x in state.items()}],
            "ds_config": {},
        },
        file="mp_rank_00_model_states.pt",
    ),
    Checkpoint(
        source="mlfoundations/open_clip#824",
        why="trained with --siglip: the configuration of the name has no bias, and the file has",
        content=lambda state: {
            "epoch": 2,
            "state_dict": {**state, "logit_bias": torch.tensor(-9.0)},
        },
    ),
    Checkpoint(
        source="wdrink/SimpleAR#6",
        why="as many tokens of another width: no context length would fit",
        content=lambda state: {**state, "positional_embedding": torch.zeros(12, 32)},
        refuses="needs [12, 16]; is it another model",
    ),
    Checkpoint(
        source="huggingface/pytorch-image-models#2003",
        why="names of torch.compile around the blocks, below those of a wrapper",
        content=lambda state: {
            f"module.{name.replace('resblocks.0', 'resblocks.0._orig_mod')}": x
            for name, x in state.items()
        },
    ),
    Checkpoint(
        source="wkcn/TinyCLIP: src/open_clip/model.py",
        why="each tower is a module of its own, inside of a wrapper",
        content=lambda state: {"state_dict": {in_towers(name): x for name, x in state.items()}},
    ),
    Checkpoint(
        source="pytorch/pytorch#77224",
        why="names of recomputation around the blocks, and of FSDP around a tower",
        content=lambda state: {
            name.replace("visual.", "visual._fsdp_wrapped_module.").replace(
                "resblocks.0.", "resblocks.0._checkpoint_wrapped_module."
            ): x
            for name, x in state.items()
        },
    ),
    Checkpoint(
        source="ibrahimethemhamamci/CT-CLIP#17",
        why="FSDP's shards of one rank as if they were whole: most are of size 0",
        content=lambda state: {
            name: x if x.ndim < 2 else torch.zeros(0) for name, x in state.items()
        },
        refuses="visual.positional_embedding has shape [0]; the model needs [5, 16]",
    ),
    Checkpoint(
        source="Zasder3/train-CLIP-FT#10",
        why="a student and its teacher are two models: neither is taken for the other",
        content=lambda state: {
            "state_dict": {
                f"{which}.{name}": x for which in ("model", "teacher") for name, x in state.items()
            },
        },
        refuses="parameters that the model lacks: teacher.",
        file="fine.ckpt",
    ),
    Checkpoint(
        source="zer0int/CLIP-fine-tune: README.md",
        why="weights of the blocks as length and direction, which is of any length",
        content=lambda state: {"model_state_dict": directed(state)},
    ),
    Checkpoint(
        source="mlfoundations/open_clip#983",
        why="the file in Hugging Face's names that lies in a folder of open_clip",
        content=lambda state: to_hf(as_clip(state)),
        file="pytorch_model.bin",
    ),
    Checkpoint(
        source="hammoudhasan/SynthCLIP#2",
        why="arguments beside the weights of a SLIP, whose image tower has other names",
        content=lambda state: {
            "args": Namespace(lr=1e-3),
            "state_dict": {
                f"module.{name.replace('transformer.resblocks', 'blocks')}": x
                for name, x in state.items()
            },
        },
        refuses="lacks: blocks.0.attn.in_proj_bias, blocks.0",
    ),
    Checkpoint(
        source="SeaArtLab/ComfyUI-Long-CLIP#21",
        why="a second table of positions: without it the captions would be other ones",
        content=lambda state: {
            **state,
            "positional_embedding": torch.zeros(40, 16),
            "positional_embedding_res": torch.zeros(40, 16),
        },
        refuses="lacks: positional_embedding_res; is it another model",
    ),
    Checkpoint(
        source="zer0int/CLIP-fine-tune#16",
        why="the caption tower alone",
        content=lambda state: {k: x for k, x in state.items() if not k.startswith("visual.")},
        refuses="has no image tower",
    ),
    Checkpoint(
        source="zer0int/CLIP-fine-tune#16, in Hugging Face's names",
        why="the same in other names",
        content=lambda state: {
            name: x for name, x in to_hf(as_clip(state)).items() if name.startswith("text")
        },
        refuses="has no image tower",
    ),
    Checkpoint(
        source="bitsandbytes-foundation/bitsandbytes#80",
        why="numbers of 8 bits are no weights without what scales them",
        content=lambda state: {
            name: x.to(torch.int8) if "mlp" in name else x for name, x in state.items()
        },
        refuses="the weights are quantised; write the model in fp16 or fp32",
    ),
    Checkpoint(
        source="mlfoundations/open_clip#1149",
        why="a TorchScript archive is code",
        content=traced,
        refuses="TorchScript archive",
    ),
    Checkpoint(
        source="mlfoundations/open_clip#998",
        why="an object of another program is named, and not loaded",
        content=lambda state: {"state_dict": state, "trainer": Trainer()},
        refuses="test_models.Trainer",
    ),
    Checkpoint(
        source="mlfoundations/open_clip#1078",
        why="two sets of weights: neither is taken for the other",
        content=lambda state: {"model": state, "ema": state},
        refuses="below each of model, ema",
    ),
    Checkpoint(
        source="sming256/OpenTAD#44",
        why="weights and their moving average: neither is taken for the other",
        content=lambda state: {
            "state_dict": {f"module.{name}": x for name, x in state.items()},
            "state_dict_ema": state,
            "optimizer": {"state": {}, "param_groups": []},
        },
        refuses="below each of state_dict, state_dict_ema; write those that are meant",
    ),
    Checkpoint(
        source="pytorch/pytorch#35032",
        why="torch's AveragedModel counts what it averaged beside the names of its wrapper",
        content=lambda state: {
            "n_averaged": torch.tensor(7),
            **{f"module.{name}": x for name, x in state.items()},
        },
    ),
    Checkpoint(
        source="MaxZanella/CLIP-LoRA#2",
        why="an adapter of another form than PEFT's, a dict for each layer",
        content=lambda state: {
            "weights": {"layer_0": {"q_proj": {"w_lora_A": torch.zeros(2, 16)}}},
            "metadata": {"r": 2, "alpha": 1, "encoder": "both", "params": ["q"]},
        },
        refuses="is an adapter",
    ),
    Checkpoint(
        source="huggingface/accelerate#3487",
        why="what FSDP2 leaves on one rank is the whole",
        content=lambda state: {"state_dict": distributed(state, 1)},
    ),
    Checkpoint(
        source="pytorch/pytorch#139949",
        why="a rank's part of it is none, and state_dict() alone gives no other",
        content=lambda state: distributed(state, 2),
        refuses="that one rank had; write value.full_tensor() of every parameter",
    ),
    Checkpoint(
        source="jiazhou-garland/EventBind#4",
        why="prompts that were learned beside a CLIP are a part of what it computes",
        content=lambda state: {
            "module.prompt_leranable.ctx": torch.zeros(4, 16),
            **{f"module.prompt_leranable.clip_model.{name}": x for name, x in state.items()},
        },
        refuses="lacks: prompt_leranable.ctx",
    ),
    Checkpoint(
        source="mlfoundations/open_clip#81",
        why="the pointer of Git LFS in the place of the file",
        content=lambda state: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        refuses="pointer of Git LFS",
    ),
)


@pytest.mark.parametrize("row", CHECKPOINTS, ids=lambda row: row.source)
def test_a_file_of_weights_is_read_with_its_configuration_or_named(
    row: Checkpoint, tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    state, path = state_of(), tmp_path / row.file
    content = row.content(state)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, torch.jit.ScriptModule):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.save(content, path)
    else:
        torch.save(content, path)
    (tmp_path / "tiny.json").write_text(json.dumps(TOWERS))
    path.with_suffix(".json").write_text(json.dumps(TOWERS))
    for source in (str(path), f"open_clip:{tmp_path}/tiny.json/{path}"):
        status, _, said = evaluated(source, tmp_path, capsys)
        assert "\x1b" not in said
        if row.refuses:
            assert (status, said.count("error:")) == (2, 1)
            assert row.refuses in said
        else:
            assert status == 0, said
            expected = open_clip_folder(tmp_path / f"model{len(source)}", {})
            agree(logprobs(tmp_path), by_open_clip(expected, pictures))


def test_tables_of_positions_are_resized_as_open_clip_does(
    tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    """open_clip: src/open_clip/model.py, resize_pos_embed and resize_text_pos_embed."""
    folder, state = open_clip_folder(tmp_path / "model", {}), state_of()
    for name, rows in (("visual.positional_embedding", 17), ("positional_embedding", 20)):
        state[name] = torch.randn(rows, 16, generator=torch.Generator().manual_seed(rows))
    safetensors.save_file(state, folder / "open_clip_model.safetensors")
    assert evaluated(str(folder), tmp_path, capsys)[0] == 0
    expected = logprobs(tmp_path)
    agree(expected, by_open_clip(folder, pictures))
    torch.save(state, tmp_path / "epoch_1.pt")
    (tmp_path / "epoch_1.json").write_text(json.dumps(TOWERS))
    assert evaluated(str(tmp_path / "epoch_1.pt"), tmp_path, capsys)[0] == 0
    agree(logprobs(tmp_path), expected)
    larger = as_clip(state_of()).config
    weights = initial_weights(str(folder), dataclasses.replace(larger, image_size=4 * SIDE))
    assert weights["visual.positional_embedding"].shape == (65, 16)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("logs/a/checkpoints/epoch_2.pt", "open_clip:ViT-B-32/logs/a/checkpoints/epoch_2.pt"),
        ("logs/a", "open_clip:ViT-B-32/logs/a/checkpoints/epoch_2.pt"),
        ("RN50,logs/a/epoch.pt", "open_clip:RN50/logs/a/epoch.pt"),
    ],
    ids=["mertyg/vision-language-models-are-bows#29", "mertyg/vision-language-models-are-bows#27",
         "LAION-AI/CLIP_benchmark#56"],
)  # fmt: skip
def test_checkpoints_of_a_training_are_answered_with_their_source(
    source: str, says: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs/a/checkpoints").mkdir(parents=True)
    (tmp_path / "logs/a/params.txt").write_text("lr: 0.001\nmodel: ViT-B/32\nname: a\n")
    torch.save(state_of(), tmp_path / "logs/a/checkpoints/epoch_2.pt")
    status, _, said = evaluated(source, tmp_path, capsys)
    assert (status, said.count("error:"), says in said) == (2, 1, True), said


def test_an_arm_is_a_file_with_a_configuration_beside_the_manifest(tmp_path: Path) -> None:
    source = "open_clip:tiny.json/logs/raw_{seed}/checkpoints/epoch_2.pt"
    document: dict[str, Any] = {"name": "own", "seeds": [0, 1], "baseline": "raw"}
    document |= {"question": "?", "primary": "t", "arms": {"raw": {"model": source}}}
    document["arms"]["b"] = {"model": "open_clip:ViT-B-32/logs/b_{seed}.pt"}
    document["evaluate"] = [{"name": "t", "kind": "classification", "data": "data"}]
    (tmp_path / "own.yaml").write_text(json.dumps(document))
    arms = reader.read_manifest(str(tmp_path / "own.yaml"), Ablation).arms
    whole = f"open_clip:{tmp_path}/tiny.json/{tmp_path}/logs/raw_{{seed}}/checkpoints/epoch_2.pt"
    assert arms["raw"].model == whole
    assert arms["b"].model == f"open_clip:ViT-B-32/{tmp_path}/logs/b_{{seed}}.pt"


def test_weights_in_shards_are_read_whole_or_not_at_all(
    tmp_path: Path, pictures: Path, plain_hf: Path, capsys: Any
) -> None:
    """openai/CLIP#497: the weights of large models come in several files with an index."""
    assert evaluated(str(plain_hf), tmp_path, capsys)[0] == 0
    expected = logprobs(tmp_path)
    folder = copied(plain_hf, tmp_path / "hf", ["model.safetensors"])
    state = safetensors.load_file(plain_hf / "model.safetensors")
    names = sorted(state)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, of_file in shards.items():
        part = {name: state[name] for name in of_file}
        safetensors.save_file(part, folder / file, {"format": "pt"})
    weight_map = {name: file for file, of_file in shards.items() for name in of_file}
    replaced(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    assert evaluated(str(folder), tmp_path, capsys)[0] == 0
    agree(logprobs(tmp_path), expected)
    (folder / "model-2.safetensors").unlink()
    status, _, said = evaluated(str(folder), tmp_path, capsys)
    assert (status, "names model-2.safetensors" in said) == (2, True)


def test_a_pickle_is_not_run(tmp_path: Path, capsys: Any) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "harm"),)

    (tmp_path / "a.pt").write_bytes(pickle.dumps({"state_dict": Harm()}))
    (tmp_path / "a.json").write_text(json.dumps(TOWERS))
    picture(tmp_path / "data" / "a" / "0.png", 1)
    picture(tmp_path / "data" / "b" / "0.png", 2)
    assert evaluated(str(tmp_path / "a.pt"), tmp_path, capsys)[0] == 2
    assert not (tmp_path / "harm").exists()


# --- names of classes, folders and captions -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Folders of a task and its class names. labels: that of each folder; else what refuses it."""

    source: str
    why: str
    folders: tuple[str, ...]
    classes: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()
    says: str = ""
    silent: bool = False
    refuses: str = ""
    file: str | None = None  # the class names as a text file


def named(count: int) -> tuple[str, ...]:
    return tuple(f"kind {number}" for number in range(count))


NAMES = (
    Names(
        source="NVIDIA/DIGITS#665",
        why="26 folders 0 to 25 are labels, and not texts in order",
        folders=tuple(map(str, range(26))),
        classes=named(26),
        labels=tuple(range(26)),
        says="are the labels that they name, from 0",
    ),
    Names(
        source="modestyachts/ImageNetV2#10",
        why="numbers from 1 are labels in that order",
        folders=tuple(map(str, range(1, 13))),
        classes=named(12),
        labels=tuple(range(12)),
        says="from 1",
    ),
    Names(
        source="huggingface/pytorch-image-models#222",
        why="folders with words keep the order of text",
        folders=("class1", "class10", "class2"),
        classes=named(3),
        labels=(0, 1, 2),
        silent=True,
    ),
    Names(
        source="pytorch/vision#714",
        why="padded numbers are the same labels; some folders may be missing",
        folders=("000", "002", "011"),
        classes=named(12),
        labels=(0, 2, 11),
        says="from 0",
    ),
    Names(
        source="ultralytics/ultralytics#13936",
        why="angles are no labels, and their order as text is another one",
        folders=("0", "90", "180", "270"),
        classes=named(4),
        refuses="the numbers are no labels",
    ),
    Names(
        source="openai/CLIP#164",
        why="digits without class names are names, in the order of the numbers",
        folders=tuple(map(str, range(11))),
        labels=tuple(range(11)),
        silent=True,
    ),
    Names(
        source="LijieFan/LaCLIP#10",
        why="WordNet ids are no words",
        folders=("n02123394", "n02484975"),
        labels=(0, 1),
        says="set classes to their names",
    ),
    Names(
        source="Jiacheng8/CV-DD#5",
        why="the pictures of Tiny ImageNet's classes lie one folder below",
        folders=("barn/images", "dune/images"),
        labels=(0, 1),
        says="2 images of",
    ),
    Names(
        source="pytorch/vision: torchvision/datasets/folder.py",
        why="pictures below a class's own ones are of the class, whatever the depth",
        folders=("barn", "barn/more", "dune", "dune/more/still"),
        labels=(0, 0, 1, 1),
        says="2 images of",
    ),
    Names(
        source="huggingface/pytorch-image-models: timm/data/readers/reader_factory.py",
        why="the splits of a data set are not its classes",
        folders=("train/barn", "train/dune", "val/barn", "val/dune"),
        refuses="where these are the classes, name it as data",
    ),
    Names(
        source="openai/CLIP#246",
        why="lines of ImageNet's own list begin with ids, in whatever order and of more classes",
        folders=("n01440764", "n01484850"),
        file="n01484850 great white shark, white shark\nn00001740\tentity\nn01440764 tench, Tinca",
        labels=(0, 1),
        says="n01440764 is 'tench, Tinca'",
    ),
    Names(
        source="orrzohar/LOVM#3",
        why="a blank line is a class without a name, the last one is none",
        folders=("a", "b", "c"),
        file="red\n\nblue\n\n",
        labels=(0, 1, 2),
        says="class 1, from 0, has no name",
    ),
    Names(
        source="mlfoundations/open_clip#917",
        why="of two classes of one name the first wins, as in open_clip's argmax",
        folders=("a", "b"),
        classes=("sunglasses", "sunglasses"),
        labels=(0, 1),
        says="have the same name 'sunglasses'",
    ),
)


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row.source)
def test_folders_and_class_names(row: Names, tmp_path: Path, capsys: Any) -> None:
    folder = open_clip_folder(tmp_path / "model", {})
    for number, name in enumerate(row.folders):
        picture(tmp_path / "data" / name / "0.png", number)
    keys: dict[str, Any] = {"classes": list(row.classes)} if row.classes else {}
    if row.file is not None:
        (tmp_path / "names.txt").write_text(row.file)
        keys = {"classes": str(tmp_path / "names.txt")}
    status, document, said = evaluated(str(folder), tmp_path, capsys, **keys)
    if row.refuses:
        assert (status, said.count("error:")) == (2, 1)
        assert row.refuses in said
        return
    assert status == 0, said
    rows = pq.read_table(tmp_path / "out" / "task.parquet").to_pylist()
    labels = {each["sample"].rpartition("/")[0]: each["label"] for each in rows}
    assert labels == dict(zip(row.folders, row.labels, strict=True))
    notes = document["used"]["notes"]["task"]
    assert row.says in " ".join(notes)
    assert row.says in said
    assert bool(notes) != row.silent


def test_equal_names_have_open_clips_accuracy(tmp_path: Path, pictures: Path, capsys: Any) -> None:
    """CuPL#2, CLIP_benchmark#124, openai/CLIP#235: two of the classes have one name."""
    folder, names = open_clip_folder(tmp_path / "model", {}), ["barn", "dune", "barn"]
    status, document, _ = evaluated(str(folder), tmp_path, capsys, classes=names)
    assert status == 0
    rows = pq.read_table(tmp_path / "out" / "task.parquet").to_pylist()
    logging.disable(logging.WARNING)
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    logging.disable(logging.NOTSET)
    tokens = open_clip.get_tokenizer("ViT-B-32", context_length=12)(
        [f"a photo of a {n}" for n in names]
    )
    with torch.no_grad():
        text_CE = model.eval().encode_text(tokens, normalize=True)
        text_CE[2] = text_CE[0]
        for row in rows:
            pixels = transform(Image.open(pictures / row["sample"]))[None]
            logits = (
                model.logit_scale.exp() * model.encode_image(pixels, normalize=True) @ text_CE.T
            )[0]
            first = 0 if logits[0] >= logits[1] else 1
            assert row["predicted"] == first
            assert row["correct"] == (first == row["label"])
            assert abs(row["logprob"] - float(logits.log_softmax(0)[row["label"]])) < 1e-5
    assert document["task"]["accuracy"] == np.mean([row["correct"] for row in rows])


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_blank_captions_are_no_queries(form: str, tmp_path: Path, capsys: Any) -> None:
    """jmisilo and asappresearch/clip#1: empty texts beside real ones."""
    folder, data = open_clip_folder(tmp_path / "model", {}), tmp_path / "data"
    captions = {"0.png": ["a barn", "  "], "1.png": ["a dune"]}
    for number, name in enumerate(captions):
        picture(data / name, number)
    if form == "csv":
        lines = [f"{name},{text}" for name, texts in captions.items() for text in texts]
        (data / "captions.csv").write_text("\n".join(["file,caption", *lines]))
    else:
        table = pa.table({"file": list(captions), "caption": list(captions.values())})
        pq.write_table(table, data / "test.parquet")
    keys: dict[str, Any] = {"kind": "retrieval"}
    status, document, said = evaluated(str(folder), tmp_path, capsys, **keys)
    assert status == 0, said
    assert pq.read_table(tmp_path / "out" / "task.parquet").num_rows == 4
    assert "1 blank captions" in " ".join(document["used"]["notes"]["task"])


def test_an_image_whose_only_caption_is_blank_is_named(tmp_path: Path, capsys: Any) -> None:
    """beichenzbc/Long-CLIP#84: one of a thousand caption files is empty."""
    folder = open_clip_folder(tmp_path / "model", {})
    for number in range(2):
        picture(tmp_path / "data" / f"{number}.png", number)
    (tmp_path / "data" / "captions.csv").write_text('file,caption\n0.png,a barn\n1.png," "\n')
    status, _, said = evaluated(str(folder), tmp_path, capsys, kind="retrieval")
    assert (status, "1.png" in said and "has no caption" in said) == (2, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captions:
    """A captions.csv and the task's keys. refuses: words of the one line."""

    source: str
    why: str
    content: bytes
    keys: Values = field(default_factory=dict)
    refuses: str = ""


CAPTIONS = (
    Captions(
        source="activeloopai/deeplake#2061",
        why="the header of Flickr's tables, whose names Parquet may have too",
        content=b"image,caption\n0.png,a barn\n0.png,one barn\n1.png,a dune\n",
    ),
    Captions(
        source="d-ailin/CLIP-Guided-Decoding#4",
        why="columns that the task names",
        content=b"file_name,caption,sentence\n0.png,1,a barn\n0.png,2,one\n1.png,3,a dune\n",
        keys={"columns": {"image": "file_name", "caption": "sentence"}},
    ),
    Captions(
        source="ShuangLI59/Person-Search-with-Natural-Language-Description#5",
        why="a header that nothing names is answered with the key that does",
        content=b"file_path,captions\n0.png,a barn\n1.png,a dune\n",
        refuses="no column 'file'; did you mean 'file_path'? (of file_path, captions); name it, as "
        "in columns: {image: …}",
    ),
    Captions(
        source="NVIDIA/DIGITS#703",
        why="a file that is not UTF-8 is named",
        content="file,caption\n0.png,ein Grünspecht\n1.png,a dune\n".encode("latin-1"),
        refuses="captions.csv is not UTF-8",
    ),
)


@pytest.mark.parametrize("row", CAPTIONS, ids=lambda row: row.source)
def test_a_list_of_captions(row: Captions, tmp_path: Path, capsys: Any) -> None:
    folder = open_clip_folder(tmp_path / "model", {})
    for number in range(2):
        picture(tmp_path / "data" / f"{number}.png", number)
    (tmp_path / "data" / "captions.csv").write_bytes(row.content)
    status, _, said = evaluated(str(folder), tmp_path, capsys, kind="retrieval", **row.keys)
    if row.refuses:
        assert (status, row.refuses in said) == (2, True), said
        return
    assert status == 0, said
    rows = pq.read_table(tmp_path / "out" / "task.parquet").to_pylist()
    assert len(rows) == 5  # two images and three captions are queries


COCO = {
    "images": [{"id": 7, "file_name": "0.png"}, {"id": 3, "file_name": "1.png"}],
    "annotations": [
        {"image_id": 3, "id": 1, "caption": "a dune"},
        {"image_id": 7, "id": 2, "caption": "a barn"},
        {"image_id": 7, "id": 4, "caption": "one barn"},
    ],
}
KARPATHY = {
    "dataset": "coco",
    "images": [
        {"filepath": folder, "filename": name, "split": split, "cocoid": 1, "sentids": [1],
         "sentences": [{"raw": text, "tokens": text.split()} for text in texts]}
        for folder, name, split, texts in (
            ("val2014", "0.png", "test", ("a barn", "one barn")),
            ("val2014", "1.png", "test", ("a dune",)),
            ("train2014", "9.png", "restval", ("a pier",)),
        )
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "keys", "refuses"),
    [
        (COCO, {}, ""),
        (KARPATHY, {}, ""),
        (KARPATHY, {"split": "val"}, "no image of split 'val' (of restval, test); set split"),
        ({"images": [{"file": "0.png"}]}, {}, "no list of captions of COCO's form"),
        ({**COCO, "annotations": [{"image_id": 3, "caption": None}]}, {},
         "file and caption must both be given; they are '1.png' and 'None'"),
        ({**COCO, "annotations": [{"image_id": 3, "caption": 5}]}, {}, "'1.png' is no text: 5"),
    ],
    ids=["d-ailin/CLIP-Guided-Decoding#4", "sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning#25",
         "a split that is missing", "another form", "no caption", "a caption that is no text"],
)  # fmt: skip
def test_lists_of_captions_as_json_are_those_of_a_table(
    document: Values, keys: Values, refuses: str, tmp_path: Path, capsys: Any
) -> None:
    folder, data = open_clip_folder(tmp_path / "model", {}), tmp_path / "data"
    for number in range(2):
        picture(data / f"{number}.png", number)
        picture(data / "val2014" / f"{number}.png", number)
    (data / "captions.csv").write_text("file,caption\n0.png,a barn\n0.png,one barn\n1.png,a dune")
    status, expected, _ = evaluated(str(folder), tmp_path, capsys, kind="retrieval")
    assert status == 0
    (data / "captions.csv").unlink()
    (data / "list.json").write_text(json.dumps(document))
    for place in (data, data / "list.json"):
        given = {"kind": "retrieval", "data": str(place), **keys}
        status, used, said = evaluated(str(folder), tmp_path, capsys, **given)
        if refuses:
            assert (status, refuses in said) == (2, True), said
        else:
            assert (status, used["task"]) == (0, expected["task"])
        (data / "another.json").write_text("{}")  # the list must then be named


@pytest.mark.parametrize(
    ("file", "kind", "refuses"),
    [
        ("0.tar.gz", "classification", "test/0.tar.gz must be unpacked"),
        ("0.tar", "linear_probe", "no split 'train' (of test); set train_split, or train_data"),
    ],
    ids=["LAION-AI/CLIP_benchmark#47", "LAION-AI/CLIP_benchmark#127"],
)
def test_what_a_benchmarks_folder_lacks_is_named(
    file: str, kind: str, refuses: str, tmp_path: Path, capsys: Any
) -> None:
    folder, data = open_clip_folder(tmp_path / "model", {}), tmp_path / "data"
    (data / "test").mkdir(parents=True)
    (data / "classnames.txt").write_text("barn\ndune")
    (data / "test" / "nshards.txt").write_bytes(b"1\r\n")
    with tarfile.open(data / "test" / file, "w:gz" if file.endswith("gz") else "w") as tar:
        for number in range(2):
            picture(tmp_path / f"{number}.png", number)
            tar.add(tmp_path / f"{number}.png", f"s{number}.png")
            label = tarfile.TarInfo(f"s{number}.cls")
            label.size = 1
            tar.addfile(label, io.BytesIO(b"%d" % number))
    status, _, said = evaluated(str(folder), tmp_path, capsys, kind=kind)
    assert (status, refuses in said) == (2, True), said


# --- lists of images ------------------------------------------------------------------------------


FLICKR = """image_name| comment_number| comment
0.png| 0| a barn , "red" and | old
0.png| 1| one barn
1.png| 2| a dune"""
TEXTS = {"0.png": ["a barn", "one barn"], "1.png": ["a dune"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Files beside the pictures. texts: the captions that each has; refuses: words of the line."""

    source: str
    why: str
    files: Mapping[str, str]
    texts: Mapping[str, Sequence[str]] = field(default_factory=lambda: TEXTS)
    refuses: str = ""
    folder: str = ""  # of the pictures


CAPTION_LISTS = (
    Listed(
        source="flickr30k: results.csv",
        why="bars with blanks behind them, and captions with commas, quotes and bars",
        files={"results.csv": FLICKR},
        texts={"0.png": ['a barn , "red" and | old', "one barn"], "1.png": ["a dune"]},
    ),
    Listed(
        source="beichenzbc/Long-CLIP#24",
        why="Flickr's other form has no header: the file and the number of its caption",
        files={"results_20130124.token": "0.png#0\ta barn\n0.png#1\tone barn\n1.png#0\ta dune\n"},
    ),
    Listed(
        source="LAION-AI/CLIP_benchmark#101",
        why="the same in another language, with blanks, in a folder of its own",
        files={"captions.txt": "0.png#zhm#0 谷仓\n1.png#zhm#0 一个 沙丘"},
        texts={"0.png": ["谷仓"], "1.png": ["一个 沙丘"]},
        folder="pictures",
    ),
    Listed(
        source="salesforce/BLIP#55",
        why="a list of objects; a text is one caption, and not its letters (salesforce/ALBEF#72)",
        files={
            "test.json": '[{"image": "0.png", "caption": ["a barn", "one barn"]},'
            '{"image": "1.png", "caption": "a dune", "image_id": 4}]',
            "train.json": "[]",
        },
    ),
    Listed(
        source="google/docci: docci_descriptions.jsonlines",
        why="JSON lines with a split",
        files={
            "list.jsonl": '{"image": "0.png", "text": "a barn", "split": "test"}\n'
            '{"image": "9.png", "text": "a pier", "split": "train"}\n'
            '{"image": "0.png", "text": "one barn", "split": "test"}\n'
            '{"image": "1.png", "text": "a dune", "split": "test"}\n'
        },
    ),
    Listed(
        source="beichenzbc/Long-CLIP: Urban1k",
        why="a folder of pictures and one of texts with their names",
        files={"caption/0.txt": "a barn\none barn\n", "caption/1.txt": "a dune"},
        folder="image",
    ),
    Listed(
        source="winycg/CLIP-KD#18",
        why="tabs, open_clip's names of columns, and paths from the root on",
        files={
            "list.csv": "title\tfilepath\na barn\t{0}/0.png\none barn\t{0}/0.png\n"
            "a dune\t{0}/1.png\n"
        },
    ),
    Listed(
        source="OFA-Sys/Chinese-CLIP#221",
        why="pictures as text are named as what they are",
        files={"test_imgs.tsv": f"1000\t{'iVBORw0KGgo' * 100}\n" * 2},
        refuses="images as text (base64) are not read: write them as files",
    ),
    Listed(
        source="OFA-Sys/Chinese-CLIP#183",
        why="of two lists none is taken for the other",
        files={"one.jsonl": "", "texts.jsonl": ""},
        refuses="has several lists, one.jsonl, texts.jsonl; name one as data",
    ),
)


@pytest.mark.parametrize("row", CAPTION_LISTS, ids=lambda row: row.source)
def test_lists_of_captions_of_other_forms(row: Listed, tmp_path: Path, capsys: Any) -> None:
    folder, data = open_clip_folder(tmp_path / "model", {}), tmp_path / "data"
    for number in range(2):
        picture(data / row.folder / f"{number}.png", number)
    for name, content in row.files.items():
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_text(content.replace("{0}", str(data)))
    status, document, said = evaluated(str(folder), tmp_path, capsys, kind="retrieval")
    if row.refuses:
        assert (status, row.refuses in said) == (2, True), said
        return
    assert status == 0, said
    for number in range(2):
        picture(tmp_path / "plain" / f"{number}.png", number)
    with (tmp_path / "plain" / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("file", "caption"), *((name, text) for name in row.texts for text in row.texts[name])]
        )
    keys = {"kind": "retrieval", "data": str(tmp_path / "plain")}
    assert evaluated(str(folder), tmp_path, capsys, **keys)[1]["task"] == document["task"]


LABEL_LISTS = (
    Listed(
        source="MaxZanella/CLIP-LoRA#16",
        why="a path, a label and a name for each picture of each split",
        files={
            "split_zhou_Own.json": '{"train": [["9.png", 0, "pier"]], '
            '"test": [["0.png", 1, "barn"], ["1.png", 0, "dune"]]}'
        },
        folder="images",
    ),
    Listed(
        source="liaopeiyuan/artbench#2",
        why="a table beside the pictures, with a split",
        files={
            "metadata.csv": "file_name,label,split\n0.png,barn,test\n9.png,pier,train\n"
            "1.png,dune,test\n"
        },
    ),
    Listed(
        source="kamalkraj/Tiny-ImageNet: val_annotations.txt",
        why="a line for each picture, whose second word is the class",
        files={"val_annotations.txt": "0.png\tbarn\t0\t32\n1.png\tdune\t3\t4\n"},
        folder="images",
    ),
    Listed(
        source="visipedia/inat_comp: val.json",
        why="COCO's form with categories",
        files={
            "val.json": '{"images": [{"id": 5, "file_name": "1.png"}, {"id": 6, "file_name": '
            '"0.png"}], "categories": [{"id": 8, "name": "dune"}, {"id": 9, "name": "barn"}], '
            '"annotations": [{"image_id": 6, "category_id": 9}, {"image_id": 5, "category_id": 8}]}'
        },
    ),
    Listed(
        source="yang-ruixin/PyTorch-Image-Models-Multi-Label-Classification#8",
        why="a column for each class is no label",
        files={"_classes.csv": "filename, barn, dune\n0.png,1,1\n1.png,0,1\n"},
        refuses="several right classes of an image are not evaluated",
    ),
    Listed(
        source="OFA-Sys/Chinese-CLIP#200",
        why="a row for each label of a picture: neither is taken",
        files={"list.csv": "file,label\n0.png,barn\n0.png,dune\n1.png,dune\n"},
        refuses="0.png has the labels barn, dune; several right classes",
    ),
)


@pytest.mark.parametrize("row", LABEL_LISTS, ids=lambda row: row.source)
def test_lists_of_labels(row: Listed, tmp_path: Path, capsys: Any) -> None:
    folder, data = open_clip_folder(tmp_path / "model", {}), tmp_path / "data"
    for number in range(2):
        picture(data / row.folder / f"{number}.png", number)
    for name, content in row.files.items():
        (data / name).write_text(content)
    status, _, said = evaluated(str(folder), tmp_path, capsys)
    if row.refuses:
        assert (status, row.refuses in said) == (2, True), said
        return
    assert status == 0, said
    of_list = logprobs(tmp_path)
    for number, name in enumerate(("barn", "dune")):
        picture(tmp_path / "plain" / name / f"{number}.png", number)
    assert evaluated(str(folder), tmp_path, capsys, data=str(tmp_path / "plain"))[0] == 0
    expected = {name.rpartition("/")[2]: value for name, value in logprobs(tmp_path).items()}
    agree(of_list, expected, within=1e-6)


PROMPTS = {
    "barn": ["A barn is red.", "Hay lies in a barn.", "a barn"],
    "dune": ["Sand on a dune."],
    "pier": ["A pier goes into the sea.", "Boats lie at a pier."],
}


@pytest.mark.parametrize(
    ("document", "prompts"),
    [
        ({"cifar10": ["art of the {c}."], "task": ["a photo of a {c}.", "the {c}."]}, None),
        (PROMPTS, PROMPTS),
        ({"imagenet1k": PROMPTS}, PROMPTS),
    ],
    ids=["LAION-AI/CLIP_benchmark#98", "sarahpratt/CuPL", "CLIP_benchmark: cupl_prompts.json"],
)
def test_prompts_of_a_benchmark_are_means_of_each_class(
    document: Values, prompts: Mapping[str, Sequence[str]] | None, tmp_path: Path,
    pictures: Path, capsys: Any,
) -> None:  # fmt: skip
    folder, file = open_clip_folder(tmp_path / "model", {}), tmp_path / "prompts.json"
    file.write_text(json.dumps(document))
    assert evaluated(str(folder), tmp_path, capsys, templates=str(file))[0] == 0
    prompts = prompts or {name: [f"a photo of a {name}.", f"the {name}."] for name in CLASSES}
    logging.disable(logging.WARNING)
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    logging.disable(logging.NOTSET)
    tokenize, expected = open_clip.get_tokenizer("ViT-B-32", context_length=12), {}
    with torch.no_grad():
        means = [
            model.eval().encode_text(tokenize(list(prompts[name])), normalize=True).mean(dim=0)
            for name in CLASSES
        ]
        class_CE = torch.stack([mean / mean.norm() for mean in means])
        for path in sorted(pictures.rglob("*.png")):
            image_1E = model.encode_image(transform(Image.open(path))[None], normalize=True)
            logits = model.logit_scale.exp() * image_1E @ class_CE.T
            label = CLASSES.index(path.parent.name)
            expected[f"{path.parent.name}/{path.name}"] = float(logits[0].log_softmax(0)[label])
    agree(logprobs(tmp_path), expected)


def test_a_file_of_prompts_for_other_classes_is_named(
    tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    """LAION-AI/CLIP_benchmark#109: templates of another data set were taken in silence."""
    folder, file = open_clip_folder(tmp_path / "model", {}), tmp_path / "prompts.json"
    file.write_text(json.dumps({"cifar10": ["a {c}"], "food": ["the {c}"]}))
    status, _, said = evaluated(str(folder), tmp_path, capsys, templates=str(file))
    assert (status, "neither templates of 'task' nor prompts of every class" in said) == (2, True)


# --- what lies beside weights, and folders that are none ------------------------------------------


PARAMS = """force_quick_gelu: True
image_interpolation: bilinear
image_mean: [0.5, 0.5, 0.5]
image_resize_mode: squash
image_std: [0.5, 0.5, 0.5]
model: tiny
pretrained: openai
"""


def test_a_checkpoint_computes_what_its_training_did(
    tmp_path: Path, pictures: Path, capsys: Any, caplog: Any
) -> None:
    """mertyg/vision-language-models-are-bows#35: QuickGELU was trained, and GELU evaluated."""
    cfg = {**HALVES, "interpolation": "bilinear", "resize_mode": "squash"}
    forced = open_clip_folder(tmp_path / "forced", cfg, {**TOWERS, "quick_gelu": True})
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    file, params = tmp_path / "run" / "checkpoints" / "epoch_1.pt", tmp_path / "run" / "params.txt"
    torch.save({"epoch": 1, "state_dict": state_of()}, file)
    (tmp_path / "tiny.json").write_text(json.dumps(TOWERS))
    source = f"open_clip:{tmp_path}/tiny.json/{file}"
    params.write_text(PARAMS)
    assert evaluated(source, tmp_path, capsys)[0] == 0
    assert "params.txt says" in caplog.text
    agree(logprobs(tmp_path), by_open_clip(forced, pictures))
    assert str(params) in source_files(source)
    params.write_text("force_image_size: [32]\nforce_context_length: 9\npretrained: openai\n")
    config = load_model(source).config
    assert (config.image_size, config.context_length) == (32, 9)
    assert "older versions" in caplog.text


def test_a_file_of_a_folder_has_the_preprocessing_of_the_folder(
    tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    """mlfoundations/open_clip#1068: a name with the file of a SigLIP 2 lost its preprocessing."""
    towers = {**TOWERS, "quick_gelu": True}
    folder = open_clip_folder(tmp_path / "model", {**HALVES, "resize_mode": "squash"}, towers)
    (tmp_path / "tiny.json").write_text(json.dumps(TOWERS))
    source = f"open_clip:{tmp_path}/tiny.json/{folder}/open_clip_model.safetensors"
    assert evaluated(source, tmp_path, capsys)[0] == 0
    agree(logprobs(tmp_path), by_open_clip(folder, pictures))


@pytest.mark.parametrize(
    "towers",
    [
        {
            "vision_cfg": {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True},
            "text_cfg": {
                "vocab_size": 40, "hf_tokenizer_name": "bert-base-uncased", "pool_type": "last",
                "no_causal_mask": True, "tokenizer_kwargs": {"strip_sep_token": True},
            },
        },
        {
            "vision_cfg": {
                "timm_model_name": "fastvit_t8", "timm_model_pretrained": False, "image_size": 64,
                "timm_pool": "avg", "timm_proj": "linear", "timm_drop": 0.0, "timm_drop_path": 0.0,
            },
            "text_cfg": {"no_causal_mask": True},
            "custom_text": True,
        },
    ],
    ids=["mlfoundations/open_clip: ViT-L-14-CLIPA.json", "mlfoundations/open_clip: MobileCLIP-S1"],
)  # fmt: skip
def test_towers_of_other_families_have_open_clips_numbers(
    towers: Values, tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    vision = {} if "custom_text" in towers else TOWERS["vision_cfg"]
    model = {
        **TOWERS, **towers, "vision_cfg": {**vision, **towers["vision_cfg"]},  # type: ignore[dict-item]
        "text_cfg": {**TOWERS["text_cfg"], **towers["text_cfg"]},  # type: ignore[dict-item]
    }  # fmt: skip
    folder = open_clip_folder(tmp_path / "model", {"interpolation": "bilinear"}, model)
    if "hf_tokenizer_name" in model["text_cfg"]:
        own_tokenizer(folder)
    assert evaluated(str(folder), tmp_path, capsys)[0] == 0
    agree(logprobs(tmp_path), by_open_clip(folder, pictures))


def test_a_tower_that_starts_from_other_weights_has_those_of_its_folder(
    tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    """HLIP: model_configs/vit_base_multiscan_h2_token1176.json says timm_model_pretrained: true,
    which open_clip leaves out beside weights of the whole model."""
    vision = {"timm_model_name": "fastvit_t8", "image_size": 64, "timm_pool": "avg",
              "timm_proj": "linear", "timm_model_pretrained": False}  # fmt: skip
    towers = {**TOWERS, "custom_text": True, "vision_cfg": vision}
    folder = open_clip_folder(tmp_path / "model", {}, towers)
    towers["vision_cfg"] = {**vision, "timm_model_pretrained": True}
    replaced(folder / "open_clip_config.json", {"model_cfg": towers, "preprocess_cfg": {}})
    assert evaluated(str(folder), tmp_path, capsys)[0] == 0
    agree(logprobs(tmp_path), expected := by_open_clip(folder, pictures))
    file = folder / "open_clip_model.safetensors"
    assert evaluated(str(file), tmp_path, capsys)[0] == 0
    agree(logprobs(tmp_path), expected)
    (tmp_path / "own.json").write_text(json.dumps(towers))
    with pytest.raises(ValueError, match="timm_model_pretrained is true"):
        configure({"model": str(tmp_path / "own.json")})


def test_a_folder_without_a_model_is_answered_with_what_to_name(
    tmp_path: Path, pictures: Path, plain_hf: Path, capsys: Any
) -> None:
    def said_of(folder: Path | str) -> str:
        status, _, said = evaluated(str(folder), tmp_path, capsys)
        assert (status, said.count("error:")) == (2, 1), said
        return said

    # huggingface/sentence-transformers#1245
    copied(plain_hf, (tmp_path / "st").joinpath("0_CLIPModel"), parents=True)
    (tmp_path / "st" / "modules.json").write_text("[]")
    assert f"but {tmp_path}/st/0_CLIPModel has one" in said_of(tmp_path / "st")
    # Stability-AI/stablediffusion#73: the cache of the hub
    copied(plain_hf, tmp_path / "models--a--b" / "snapshots" / "abc", parents=True)
    (tmp_path / "models--a--b" / "refs").mkdir()
    assert "models--a--b/snapshots/abc has one" in said_of(tmp_path / "models--a--b")
    # huggingface/peft#309: an adapter alone, and one beside its base
    (tmp_path / "lora").mkdir()
    for folder in (tmp_path / "lora", copied(plain_hf, tmp_path / "both")):
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
        assert "model.merge_and_unload()" in said_of(folder)
    for name in ("adapter_model.safetensors", "adapter_model.bin"):  # the file by itself
        (tmp_path / name).write_bytes(b"")
        assert "is an adapter" in said_of(tmp_path / name)
    lora = {"base_model.model.visual.proj.lora_A.weight": torch.zeros(2, 2)}
    safetensors.save_file(lora, tmp_path / "step_1.safetensors")
    assert "is an adapter" in said_of(f"open_clip:ViT-B-32/{tmp_path}/step_1.safetensors")
    # Values of other kinds in a configuration
    for number, (part, value) in enumerate(
        [("text_config", 7), ("projection_dim", [[1]]), ("projection_dim", 2**63)]
    ):
        folder = copied(plain_hf, tmp_path / f"damaged-{number}")
        document = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**document, part: value}))
        assert str(folder) in said_of(folder)
    # Nicolas-BZRD/EuroBERT#9: the parts of torch's distributed checkpoints
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / "__0_0.distcp").write_bytes(b"")
    assert f"dcp_to_torch {tmp_path}/dcp FILE.pt" in said_of(tmp_path / "dcp")
    # baaivision/EVA: EVA-CLIP/rei/training/main.py, by DeepSpeed
    (tmp_path / "ds" / "epoch_1").mkdir(parents=True)
    (tmp_path / "ds" / "latest").write_text("epoch_1")
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        torch.save({}, tmp_path / "ds" / "epoch_1" / name)
    file = f"{tmp_path}/ds/epoch_1/mp_rank_00_model_states.pt"
    assert said_of(tmp_path / "ds").endswith(f"open_clip:NAME/{file}\n")
    # huggingface/accelerate#1853: what save_state writes
    state = copied(plain_hf, tmp_path / "step_500", ["config.json"])
    torch.save({}, state / "optimizer.bin")
    assert said_of(state).endswith(f"open_clip:NAME/{state}/model.safetensors\n")
    # InternLM/InternLM-XComposer#206
    assert "hf download openai/clip-a --local-dir" in said_of("openai/clip-a")
    # mlfoundations/open_clip#772: a tower whose configuration is on the hub
    text = {"hf_model_name": "a/b", "hf_tokenizer_name": "a/b", "context_length": 12}
    folder = open_clip_folder(tmp_path / "biomed", {})
    model = {"model_cfg": {**TOWERS, "text_cfg": text}, "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(model))
    assert "config.json of a/b into a folder" in said_of(folder)


# --- splits, labels and lists of other programs ---------------------------------------------------


def png(seed: int) -> bytes:
    data, levels = io.BytesIO(), np.random.default_rng(seed).integers(0, 255, (20, 18, 3), np.uint8)
    Image.fromarray(levels).save(data, "PNG")
    return data.getvalue()


def parquet(path: Path, labels: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": png(number), "path": None} for number in range(len(labels))]
    pq.write_table(pa.table({"image": images, "label": labels}), path)


def tar_of(path: Path, labels: Sequence[int], kind: str = "cls") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number, label in enumerate(labels):
            for end, data in (("png", png(number)), (kind, b"%d" % label)):
                member = tarfile.TarInfo(f"{path.stem}{number}.{end}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train-00000-of-00001.parquet", "validation-0000-of-0001.parquet"), "train, validation"),
        (("imagenet1k-train-0000.tar", "imagenet1k-validation-00.tar"), "train, validation"),
        (("train/0000.parquet", "val/0000.parquet"), ""),
        (("data/train-0-of-1.parquet", "data/validation-0-of-1.parquet"), "train, validation"),
    ],
    ids=["huggingface/dataset-viewer#1397", "webdataset/webdataset#135", "folders of splits",
         "a repository of a hub"],
)  # fmt: skip
def test_splits_are_not_evaluated_together(
    names: tuple[str, str], splits: str, tmp_path: Path, capsys: Any
) -> None:
    folder = open_clip_folder(tmp_path / "model", {})
    for name, count in zip(names, (6, 4), strict=True):
        path = tmp_path / "data" / name
        labels = [number % 2 for number in range(count)]
        tar_of(path, labels) if name.endswith(".tar") else parquet(path, labels)
    keys: dict[str, Any] = {"classes": ["barn", "dune"]}
    for split in ("val", "validation"):
        assert evaluated(str(folder), tmp_path, capsys, split=split, **keys)[0] == 0
        assert pq.read_table(tmp_path / "out" / "task.parquet").num_rows == 4
    status, _, said = evaluated(str(folder), tmp_path, capsys, **keys)
    assert status == 2
    assert not splits or f"no split 'test' (of {splits}); set split" in said
    if names[0].startswith("train-"):  # the only one is evaluated, and named
        (tmp_path / "data" / names[1]).unlink()
        status, _, said = evaluated(str(folder), tmp_path, capsys, **keys)
        assert status == 0
        assert "are of the split 'train', none of 'test'" in said


@pytest.mark.parametrize("kind", ["metadata.jsonl in each", "metadata.csv outside", "labels"])
def test_an_image_folder_of_hugging_face_has_splits(kind: str, tmp_path: Path, capsys: Any) -> None:
    """huggingface/datasets#6442, and docs/source/image_load.mdx there."""
    folder, data = open_clip_folder(tmp_path / "model", {}), tmp_path / "data"
    for split in ("train", "test"):
        rows = []
        for number in range(2):
            picture(data / split / f"{number}.png", number)
            rows.append({"file_name": f"{number}.png", "text": f"a {split} {number}"})
            rows[-1]["label"] = ("barn", "dune")[number]
        if kind != "metadata.csv outside":
            lines = "\n".join(map(json.dumps, rows))
            (data / split / "metadata.jsonl").write_text(lines)
    if kind == "metadata.csv outside":
        lines = "".join(f"{s}/{n}.png,a {s} {n}\n" for s in ("train", "test") for n in (0, 1))
        (data / "metadata.csv").write_text(f"file_name,text\n{lines}")
    keys = {"kind": "classification" if kind == "labels" else "retrieval"}
    status, _, said = evaluated(str(folder), tmp_path, capsys, **keys)
    assert status == 0, said
    samples = pq.read_table(tmp_path / "out" / "task.parquet")["sample"].to_pylist()
    assert len(samples) == (2 if kind == "labels" else 4)
    assert not any("train" in sample for sample in samples)
    status, _, said = evaluated(str(folder), tmp_path, capsys, split="validation", **keys)
    assert status == 2, said


@pytest.mark.parametrize(
    ("labels", "refuses"),
    [
        ([[0, 1], [1], [0]], "has the labels [0, 1]; several right classes of an image"),
        ([[1], [0], [2]], ""),
        (["1", "0", "10", *map(str, range(2, 10))], ""),
        ([1.0, 0.0, 2.0], ""),
    ],
    ids=["embeddings-benchmark/mteb#2059", "one label in a list", "mljar/mljar-supervised#245",
         "numbers of pandas beside missing ones"],
)  # fmt: skip
def test_labels_of_tables_are_numbers_of_classes(
    labels: list[Any], refuses: str, tmp_path: Path, capsys: Any
) -> None:
    folder, names = open_clip_folder(tmp_path / "model", {}), [f"kind {n}" for n in range(11)]
    parquet(tmp_path / "data" / "test.parquet", labels)
    classes = names[: max(3, len(labels))]
    status, _, said = evaluated(str(folder), tmp_path, capsys, classes=classes)
    if refuses:
        assert (status, refuses in said) == (2, True), said
        return
    assert status == 0, said
    rows = pq.read_table(tmp_path / "out" / "task.parquet").to_pylist()
    plain = [each[0] if isinstance(each, list) else each for each in labels]
    assert [row["label"] for row in rows] == [int(label) for label in plain]


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("a.txt", "{0: 'barn',\n 1: 'dune',\n 2: \"pier\"}", ""),
        ("a.txt", "0:barn\n1:dune\n2:pier\n", "numbers beside class names are their order"),
        ("a.txt", "1 dune\n0 barn\n2 pier\n", "'1 dune' is the first"),
        ("a.txt", "barn 0\ndune 1\npier 2\n", "numbers beside class names"),
        ("a.json", '{"0": ["n01440764", "barn"], "1": ["n1", "dune"], "2": ["n2", "pier"]}', "no"),
        ("a.json", '{"dune": 1, "barn": 0, "pier": 2}', ""),
        ("a.json", '{"0": "barn", "2": "pier"}', "an object that numbers classes from 0 to 1"),
        ("a.json", '["1 person", "2 people", "3 people"]', "as they are"),
        ("a.txt", "1 person\n2 people\n3 people", "as they are"),
    ],
    ids=["hysts/pytorch_image_classification#10", "kwotsin/transfer_learning_tutorial#13",
         "snowzach/doods2#76", "CSAILVision/places365: categories_places365.txt",
         "fchollet/deep-learning-models#44 (with ids)", "class_to_idx", "numbers are missing",
         "a list stays", "names that differ by a number"],
)  # fmt: skip
def test_numbers_of_class_names_are_no_part_of_them(
    file: str, text: str, says: str, tmp_path: Path, capsys: Any
) -> None:
    folder = open_clip_folder(tmp_path / "model", {})
    for number in range(3):
        picture(tmp_path / "data" / str(number) / "0.png", number)
    text = text.replace('"n1"', '"n01443537"').replace('"n2"', '"n01484850"')
    (tmp_path / file).write_text(text)
    status, _, said = evaluated(str(folder), tmp_path, capsys, classes=str(tmp_path / file))
    if "an object" in says:
        assert (status, says in said) == (2, True), said
        return
    assert status == 0, said
    of_file = logprobs(tmp_path)
    assert says in ("as they are", "no") or says in said
    names = ["1 person", "2 people", "3 people"] if says == "as they are" else list(CLASSES)
    assert evaluated(str(folder), tmp_path, capsys, classes=names)[0] == 0
    agree(of_file, logprobs(tmp_path), within=1e-6)


def test_folders_of_some_of_imagenets_classes_have_their_names(tmp_path: Path, capsys: Any) -> None:
    """huggingface/pytorch-image-models#2456 and #176: ImageNet-A and R have 200 of its classes."""
    folder, ids = open_clip_folder(tmp_path / "model", {}), ("n07768694", "n01443537")
    for number, name in enumerate(ids):
        picture(tmp_path / "data" / name / "0.png", number)
    status, document, said = evaluated(str(folder), tmp_path, capsys, classes="imagenet")
    assert status == 0, said
    notes = " ".join(document["used"]["notes"]["task"])
    assert "n01443537 is 'goldfish'" in notes
    assert "2 of the 1,000 classes are there, and compete" in notes
    of_ids = logprobs(tmp_path)
    keys = {"classes": ["goldfish", "pomegranate"]}
    assert evaluated(str(folder), tmp_path, capsys, **keys)[0] == 0
    agree(of_ids, logprobs(tmp_path), within=1e-6)


@pytest.mark.parametrize(
    "names",
    [
        ("001.Black_footed_Albatross", "002.Laysan_Albatross"),
        ("n02085620-Chihuahua", "n02085782-X"),
    ],
    ids=["reedscot/icml2016#28", "Stanford Dogs"],
)
def test_ids_in_the_names_of_folders_are_said(
    names: tuple[str, str], tmp_path: Path, capsys: Any
) -> None:
    folder = open_clip_folder(tmp_path / "model", {})
    for number, name in enumerate(names):
        picture(tmp_path / "data" / name / "0.png", number)
    status, _, said = evaluated(str(folder), tmp_path, capsys)
    assert (status, "class names begin with numbers or ids" in said) == (0, True), said


def test_texts_in_a_cell_are_captions_each(tmp_path: Path, capsys: Any) -> None:
    """nlphuji/flickr30k: flickr_annotations_30k.csv, and lists that pandas wrote."""
    folder, data = open_clip_folder(tmp_path / "model", {}), tmp_path / "data"
    for number in range(2):
        picture(data / "images" / f"{number}.png", number)
    (data / "list.csv").write_text(
        'raw,sentids,split,filename\n"[""a barn"", ""it\'s one""]","[0, 1]",test,0.png\n'
        '"[\'a dune\', ""it\'s sand""]","[2, 3]",test,1.png\n"[""x""]","[4]",train,9.png\n'
    )
    assert evaluated(str(folder), tmp_path, capsys, kind="retrieval")[0] == 0
    rows = pq.read_table(tmp_path / "out" / "task.parquet").to_pylist()
    texts = [row["sample"] for row in rows][2:]
    assert texts == ["a barn", "it's one", "a dune", "it's sand"]


@pytest.mark.parametrize(
    ("captions", "refuses"),
    [
        ([{"raw": "a barn", "sentid": 1}, {"raw": "a dune", "sentid": 2}], ""),
        ([[{"raw": "a barn", "sentid": 1}], [{"raw": "a dune", "sentid": 2}]], ""),
        ([7, 8], "a caption is no text: 7"),
        ([{"words": ["a"]}, {"words": ["b"]}], "a caption is no text"),
    ],
    ids=["HuggingFaceM4/COCO: sentences", "a list of them", "numbers", "another object"],
)
def test_captions_of_tables_that_are_objects(
    captions: list[Any], refuses: str, tmp_path: Path, capsys: Any
) -> None:
    folder = open_clip_folder(tmp_path / "model", {})
    (tmp_path / "data").mkdir()
    images = [{"bytes": png(number), "path": None} for number in range(2)]
    table = pa.table({"image": images, "sentences": captions})
    pq.write_table(table, tmp_path / "data" / "test.parquet")
    status, _, said = evaluated(str(folder), tmp_path, capsys, kind="retrieval")
    if refuses:
        assert (status, refuses in said) == (2, True), said
        return
    assert status == 0, said
    rows = pq.read_table(tmp_path / "out" / "task.parquet").to_pylist()
    assert [row["sample"] for row in rows][2:] == ["a barn", "a dune"]


def test_names_of_folders_in_an_object(tmp_path: Path, capsys: Any) -> None:
    """ObjectNet: folder_to_objectnet_label.json, which has more folders than are there."""
    folder = open_clip_folder(tmp_path / "model", {})
    for number, name in enumerate(("air_freshener", "alarm_clock")):
        picture(tmp_path / "data" / name / "0.png", number)
    names = {"alarm_clock": "Alarm clock (old)", "backpack": "Backpack", "air_freshener": "Spray"}
    (tmp_path / "names.json").write_text(json.dumps(names))
    keys: dict[str, Any] = {"classes": str(tmp_path / "names.json")}
    assert evaluated(str(folder), tmp_path, capsys, **keys)[0] == 0
    of_object = logprobs(tmp_path)
    for number in (2, 10):  # labels stay numbers of classes
        picture(tmp_path / "numbers" / str(number) / "0.png", number)
    (tmp_path / "more.json").write_text(json.dumps({str(n): f"kind {n}" for n in range(11)}))
    more = {"classes": str(tmp_path / "more.json"), "data": str(tmp_path / "numbers")}
    assert evaluated(str(folder), tmp_path, capsys, **more)[0] == 0
    rows = pq.read_table(tmp_path / "out" / "task.parquet").to_pylist()
    assert {row["sample"]: row["label"] for row in rows} == {"2/0.png": 2, "10/0.png": 10}
    keys = {"classes": ["Spray", "Alarm clock (old)"]}
    assert evaluated(str(folder), tmp_path, capsys, **keys)[0] == 0
    agree(of_object, logprobs(tmp_path), within=1e-6)


def test_a_member_of_a_tar_is_named_and_read(tmp_path: Path, capsys: Any) -> None:
    folder = open_clip_folder(tmp_path / "model", {})
    tar_of(tmp_path / "data" / "0.tar", [0, 1], "label")
    keys: dict[str, Any] = {"classes": ["barn", "dune"]}
    status, _, said = evaluated(str(folder), tmp_path, capsys, **keys)
    assert (status, "no member .cls (beside the image: label)" in said) == (2, True), said
    keys["columns"] = {"label": "label"}
    assert evaluated(str(folder), tmp_path, capsys, **keys)[0] == 0
