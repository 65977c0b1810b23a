"""Test sets and lists of classes of public reports and repositories, rebuilt small, through
`clipmill evaluate`. The right outcome of a row was written down before it was run.
"""

from __future__ import annotations

import io
import json
import logging
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from tests.field.test_models import (
    CLASSES,
    COCO,
    agree,
    evaluated,
    logprobs,
    open_clip,
    open_clip_folder,
    picture,
    png,
)

Values = Mapping[str, Any]


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(open_clip_folder(tmp_path / "model", {}))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number, name in enumerate(CLASSES):
        picture(tmp_path / "data" / name / "0.png", number)
    return tmp_path / "data"


def notes_of(document: Values) -> str:
    return " ".join(document["used"]["notes"]["task"])


# --- lists of classes and of templates ------------------------------------------------------------

TEMPLATES = ("a bad photo of a {}.", "itap of the {}.")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("classes", "'barn',\n'dune',\n'pier',\n"),
        ("classes", '    "barn",\n    "dune",\n    "pier"\n'),
        ("classes", "# own\nclasses = [\n    'barn',\n    'dune', 'pier',\n]\n"),
        (
            "classes",
            "classes = ['barn', 'dune', 'pier']\n\ntemplates = [\n    'a photo of a {}.',\n]\n",
        ),
        ("templates", "classes = ['barn']\ntemplates = [\n'a bad photo of a {}.',\n"
         "    'itap of the {}.',\n]\n"),
        ("templates", "T = (\n    lambda c: f'a bad photo of a {c}.',\n"
         "    lambda c: f'itap of the {c}.',\n)\n"),
        ("templates", "lambda c: f'a bad photo of a {c}.',\nlambda c: f'itap of the {c}.',\n"),
    ],
    ids=["openai/CLIP#87", "azshue/TPT#17", "openai/CLIP: data/prompts.md, a list",
         "openai/CLIP: data/prompts.md", "its templates",
         "mlfoundations/open_clip: src/open_clip/zero_shot_metadata.py", "its lines"],
)  # fmt: skip
def test_lists_of_a_program_in_python_are_read_as_it_reads_them(
    key: str, text: str, model: str, tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    values = list(CLASSES if key == "classes" else TEMPLATES)
    assert evaluated(model, tmp_path, capsys, **{key: values})[0] == 0
    expected = logprobs(tmp_path)
    (tmp_path / "list.txt").write_text(text)
    status, _, said = evaluated(model, tmp_path, capsys, **{key: str(tmp_path / "list.txt")})
    assert status == 0, said
    agree(logprobs(tmp_path), expected, within=1e-6)


@pytest.mark.parametrize(
    "text",
    ["'barn' house\ndune's edge\npier", "(old) barn\n[red] dune\npier", "x = barn\ny = dune\npier"],
)
def test_names_that_are_no_python_are_names(
    text: str, model: str, tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    (tmp_path / "list.txt").write_text(text)
    assert evaluated(model, tmp_path, capsys, classes=str(tmp_path / "list.txt"))[0] == 0
    of_file = logprobs(tmp_path)
    assert evaluated(model, tmp_path, capsys, classes=text.split("\n"))[0] == 0
    agree(of_file, logprobs(tmp_path), within=1e-6)


def test_numbers_beside_ids_are_no_part_of_a_name(model: str, tmp_path: Path, capsys: Any) -> None:
    """pjreddie/darknet#530: map_clsloc.txt of ImageNet's devkit, id, number, name."""
    for number, name in enumerate(("n02119789", "n02100735")):
        picture(tmp_path / "data" / name / "0.png", number)
    text = "n02119789 1 kit_fox\nn02100735 2 English_setter\nn02096294 4 other\n"
    (tmp_path / "map.txt").write_text(text)
    status, document, _ = evaluated(model, tmp_path, capsys, classes=str(tmp_path / "map.txt"))
    assert (status, "n02100735 is 'English_setter'" in notes_of(document)) == (0, True)
    assert "2 class names have underscores" in notes_of(document)


def test_capitals_inside_of_names_are_said(model: str, tmp_path: Path, capsys: Any) -> None:
    """embeddings-benchmark/mteb#1103: EuroSAT's folders are AnnualCrop, HerbaceousVegetation …"""
    for number, name in enumerate(("AnnualCrop", "PermanentCrop", "River")):
        picture(tmp_path / "data" / name / "0.png", number)
    status, document, _ = evaluated(model, tmp_path, capsys)
    assert (status, "2 class names have" in notes_of(document)) == (0, True)
    names = ["iPod", "lamp", "desk"]
    assert notes_of(evaluated(model, tmp_path, capsys, classes=names)[1]) == ""


# --- labels ---------------------------------------------------------------------------------------


def table(path: Path, labels: Sequence[int], names: Sequence[str] = ()) -> None:
    """A Parquet file, with the names of a ClassLabel where they are given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": png(number), "path": None} for number in range(len(labels))]
    rows = pa.table({"image": images, "label": labels})
    if names:
        features = {"label": {"names": list(names), "_type": "ClassLabel"}}
        meta = {"huggingface": json.dumps({"info": {"features": features}})}
        rows = rows.replace_schema_metadata(meta)
    pq.write_table(rows, path)


def tar(path: Path, members: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))


def test_names_of_a_class_label_are_those_of_folders(
    model: str, tmp_path: Path, capsys: Any
) -> None:
    """ethz/food101: its names have underscores, as folders have, and prompts blanks."""
    names = ("apple_pie", "beef_tartare")
    table(tmp_path / "data" / "test-0-of-1.parquet", [0, 1], names)
    assert evaluated(model, tmp_path, capsys)[0] == 0
    of_table = [*logprobs(tmp_path).values()]
    for number, name in enumerate(names):
        (tmp_path / "plain" / name).mkdir(parents=True)
        (tmp_path / "plain" / name / "0.png").write_bytes(png(number))
    assert evaluated(model, tmp_path, capsys, data=str(tmp_path / "plain"))[0] == 0
    assert of_table == pytest.approx([*logprobs(tmp_path).values()], abs=1e-6)


# The last class or the first one has no image: both may be meant.
NO_LABEL_0 = "read as numbers from 0: 1 is 'green', and no image is 0, 'red'"


@pytest.mark.parametrize("kind", ["list", "table", "tar"])
@pytest.mark.parametrize(
    ("labels", "says"),
    [([1, 3, 2], "numbers from 1: 1 is 'red'"), ([0, 2, 2], ""), ([1, 1, 2], NO_LABEL_0)],
)
def test_labels_from_1_to_the_number_of_names_are_in_their_order(
    kind: str, labels: list[int], says: str, model: str, tmp_path: Path, capsys: Any
) -> None:
    """pytorch/vision#8388: the lists of Oxford's pets number classes from 1, as those of CUB."""
    data = tmp_path / "data"
    if kind == "table":
        table(data / "test.parquet", labels)
    elif kind == "tar":
        images = {f"{n}.png": png(n) for n in range(3)}
        classes = {f"{n}.cls": b"%d" % label for n, label in enumerate(labels)}
        tar(data / "0.tar", dict(sorted((images | classes).items())))
    else:
        for number in range(3):
            picture(data / "images" / f"{number}.png", number)
        (data / "list.txt").write_text("".join(f"{n}.png {x} 1 1\n" for n, x in enumerate(labels)))
    names = ["red", "green", "blue"]
    status, document, said = evaluated(model, tmp_path, capsys, classes=names)
    assert status == 0, said
    rows = pq.read_table(tmp_path / "out" / "task.parquet").to_pylist()
    assert [row["label"] for row in rows] == [label - ("from 1" in says) for label in labels]
    assert notes_of(document).endswith(says)


def test_a_split_without_labels_is_called_one(model: str, tmp_path: Path, capsys: Any) -> None:
    """huggingface/datasets#4299, pytorch/vision#8770: the labels of ImageNet's test images."""
    table(tmp_path / "data" / "test-0-of-1.parquet", [-1, -1], CLASSES)
    table(tmp_path / "data" / "validation-0-of-1.parquet", [0, 1], CLASSES)
    status, _, said = evaluated(model, tmp_path, capsys)
    assert (status, "-1 is that of a split without labels: set split" in said) == (2, True), said
    assert evaluated(model, tmp_path, capsys, split="validation")[0] == 0


# --- folders and files ----------------------------------------------------------------------------


def test_a_class_folder_without_images_is_said(
    model: str, tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    """wtyhub/MuseNet#5: twelve folders of classes had nothing in them."""
    (pictures / "quay").mkdir()
    status, document, _ = evaluated(model, tmp_path, capsys)
    assert (status, "have no images and are no classes: quay" in notes_of(document)) == (0, True)


@pytest.mark.parametrize(
    "suffix", [".ppm", ".JFIF", ".avif", ".heic"],
    ids=["surmenok/GTSRB", "supervisely/supervisely#839", "AVIF", "HEIC"],
)  # fmt: skip
def test_images_of_other_formats_are_not_left_out(
    suffix: str, model: str, tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    (pictures / "barn" / f"1{suffix}").write_bytes(b"")
    status, _, said = evaluated(model, tmp_path, capsys)
    assert (status, f"barn/1{suffix} is one of 1 images there that are none of" in said) == (
        2,
        True,
    )
    for name in ("0.png", f"1{suffix}"):
        (tmp_path / "flat").mkdir(exist_ok=True)
        (tmp_path / "flat" / name).write_bytes(b"")
        (tmp_path / "flat" / f"{name[0]}.txt").write_text("a text")
    keys = {"kind": "retrieval", "data": str(tmp_path / "flat")}
    assert "that are none of" in evaluated(model, tmp_path, capsys, **keys)[2]


def test_what_editors_and_macs_leave_is_no_class_and_no_image(
    model: str, tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    """open-mmlab/mmpretrain#507: .ipynb_checkpoints; OpenNeuroOrg/openneuro#2520: files ._ of Macs,
    scummvm/scummvm#4529 in a folder of their own."""
    assert evaluated(model, tmp_path, capsys)[0] == 0
    expected = logprobs(tmp_path)
    picture(pictures / ".ipynb_checkpoints" / "0.png", 1)
    picture(pictures / "barn" / ".ipynb_checkpoints" / "0-checkpoint.png", 1)
    for name in ("barn/._0.png", "__MACOSX/barn/._0.png"):
        (pictures / name).parent.mkdir(parents=True, exist_ok=True)
        (pictures / name).write_bytes(b"\0\5\26\7")
    assert evaluated(model, tmp_path, capsys)[0] == 0
    assert logprobs(tmp_path) == expected


def test_a_jpeg_that_pillow_reads_has_open_clips_numbers(
    model: str, tmp_path: Path, capsys: Any, caplog: Any
) -> None:
    """apple/turicreate#2528: bytes before a marker, of which libjpeg only warns."""
    data = tmp_path / "data"
    for number, name in enumerate(("barn", "dune")):
        levels = np.random.default_rng(number).integers(0, 255, (5, 11, 3), np.uint8)
        stored = io.BytesIO()
        Image.fromarray(levels).resize((52, 19)).save(stored, "JPEG")
        whole = stored.getvalue()
        (data / name).mkdir(parents=True)
        (data / name / "0.jpg").write_bytes(whole[:-2] + bytes(239) + whole[-2:])
    assert evaluated(model, tmp_path, capsys)[0] == 0
    pytest.importorskip("simplejpeg")
    assert "extraneous bytes before marker 0xd9; it is read by Pillow" in caplog.text
    logging.disable(logging.WARNING)
    network, _, transform = open_clip.create_model_and_transforms(f"local-dir:{model}")
    tokens = open_clip.get_tokenizer(f"local-dir:{model}")(
        ["a photo of a barn", "a photo of a dune"]
    )
    logging.disable(logging.NOTSET)
    with torch.no_grad():
        text_CE = network.eval().encode_text(tokens, normalize=True)
        for number, name in enumerate(("barn", "dune")):
            pixels = transform(Image.open(data / name / "0.jpg"))[None]
            image_1E = network.encode_image(pixels, normalize=True)
            logits = (network.logit_scale.exp() * image_1E @ text_CE.T)[0].log_softmax(0)
            assert abs(logprobs(tmp_path)[f"{name}/0.jpg"] - float(logits[number])) < 1e-5
    for name in ("barn", "dune"):
        (tmp_path / "cut" / name).mkdir(parents=True)
        (tmp_path / "cut" / name / "0.jpg").write_bytes(whole[: len(whole) // 2])
    status, _, said = evaluated(model, tmp_path, capsys, data=str(tmp_path / "cut"))
    assert (status, "cannot be decoded as an image" in said) == (2, True), said


# --- members of tars ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "keys", "says"),
    [
        (("left.png", "right.png", "cls"), {}, "has no image (jpg, jpeg, png, webp), but cls"),
        (("left.png", "right.png", "cls"), {"image": "right.png"}, ""),
        (("05.png", "05.cls"), {}, "but 05.cls, 05.png; name the image's member"),
        (("img", "label"), {"image": "img", "label": "label"}, ""),
        (("img", "kind"), {"image": "img", "label": "kind"}, ""),
        (("png", "cls"), {"image": "img"}, "has no image (img), but cls, png"),
        (("jpg", "png", "cls"), {}, "2 samples of"),
    ],
    ids=["webdataset/webdataset#20", "one of two", "huggingface/datasets#7144",
         "rom1504/clip-retrieval#14", "a label of another name", "a member that is missing",
         "jpg and png"],
)  # fmt: skip
def test_the_member_that_is_the_image_is_named_or_said(
    members: Sequence[str], keys: Values, says: str, model: str, tmp_path: Path, capsys: Any
) -> None:
    seeds = {"left.png": 7, "jpg": 7, "png": 7}

    def of(number: int, member: str) -> bytes:
        return (
            png(seeds.get(member, 0) + number)
            if member[-2:] in ("ng", "pg", "mg")
            else b"%d" % number
        )

    content = {f"s{n}.{member}": of(n, member) for n in range(2) for member in members}
    tar(tmp_path / "data" / "0.tar", content)
    given: dict[str, Any] = {"classes": ["barn", "dune"], "columns": dict(keys)}
    status, document, said = evaluated(model, tmp_path, capsys, **given)
    if says.startswith(("has", "but")):
        assert (status, says in said) == (2, True), said
        return
    assert status == 0, said
    assert notes_of(document).startswith(says)
    of_tar = [*logprobs(tmp_path).values()]
    first = seeds["jpg"] if "jpg" in members else 0
    for number, name in enumerate(("barn", "dune")):
        (tmp_path / "plain" / name).mkdir(parents=True)
        (tmp_path / "plain" / name / "0.png").write_bytes(png(first + number))
    assert evaluated(model, tmp_path, capsys, data=str(tmp_path / "plain"))[0] == 0
    assert of_tar == pytest.approx([*logprobs(tmp_path).values()], abs=1e-6)


def test_captions_of_another_member(model: str, tmp_path: Path, capsys: Any) -> None:
    content = {f"s{n}.{end}": (png(n) if end == "img" else b"text %d" % n)
               for n in range(2) for end in ("img", "cap")}  # fmt: skip
    tar(tmp_path / "data" / "0.tar", content)
    keys = {"kind": "retrieval", "columns": {"image": "img", "caption": "cap"}}
    assert evaluated(model, tmp_path, capsys, **keys)[0] == 0
    rows = pq.read_table(tmp_path / "out" / "task.parquet").to_pylist()
    assert [row["sample"] for row in rows] == ["s0.img", "s1.img", "text 0", "text 1"]


# --- lists of images ------------------------------------------------------------------------------


PLANES = "many planes ."
RSICD = {
    "dataset": "rsicd",
    "images": [
        {"filename": f"{n}.png", "imgid": n, "split": split, "sentids": [n],
         "sentences": [{"raw": text, "imgid": n} for text in texts]}
        for n, split, texts in (
            (0, "test", (PLANES, PLANES, "a barn .")), (1, "test", (PLANES,)),
            (2, "train", ("a dune .",)),
        )
    ],
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_the_list_of_a_folder_of_satellites(
    suffix: str, model: str, tmp_path: Path, capsys: Any
) -> None:
    """ChenDelong1999/RemoteCLIP#7: one sentence several times for an image; RSITMD has TIFF."""
    folder = tmp_path / "data" / "RSICD_images"
    for number in range(3):
        picture(folder / f"{number}.{suffix}", number)
    text = json.dumps(RSICD).replace(".png", f".{suffix}")
    (tmp_path / "data" / "dataset_rsicd.json").write_text(text)
    status, document, said = evaluated(model, tmp_path, capsys, kind="retrieval")
    if suffix == "tif":
        assert (status, "it is a TIFF image; convert it to PNG" in said) == (2, True), said
        return
    assert (status, "recall@1 is at most 0.750" in notes_of(document)) == (0, True)
    assert pq.read_table(tmp_path / "out" / "task.parquet").num_rows == 6


def test_a_table_of_paths_and_labels(
    model: str, tmp_path: Path, pictures: Path, capsys: Any
) -> None:
    """mlfoundations/wise-ft#23."""
    assert evaluated(model, tmp_path, capsys)[0] == 0
    expected = {f"data/{name}": value for name, value in logprobs(tmp_path).items()}
    lines = "".join(f"data/{name}/0.png,{name}\n" for name in CLASSES)
    (tmp_path / "all.csv").write_text(f"filepath,label\n{lines}")
    assert evaluated(model, tmp_path, capsys, data=str(tmp_path / "all.csv"))[0] == 0
    agree(logprobs(tmp_path), expected, within=1e-6)


LINES = (
    '{"image_path": "val2017/0.png", "captions": ["a barn", "one barn"]}\n'
    '{"image_path": "val2017/1.png", "captions": ["a dune"]}\n'
)


@pytest.mark.parametrize(
    ("file", "text", "columns"),
    [
        ("annotations/captions_val2017.json", json.dumps(COCO), {}),
        ("annotations/list.csv", "file,caption\nval2017/0.png,a barn\nval2017/0.png,one barn\n"
         "val2017/1.png,a dune\n", {}),
        ("test.json", LINES, {}),
        ("list.csv", "id,text\n0,a barn\n0,one barn\n1,a dune\n", {"image": "id"}),
        ("captions.csv", "image,caption,n\n0.png,a barn,0\n0.png,one barn,0\n1.png,a dune,1\n", {}),
    ],
    ids=["yuvalkirstain/PickScore#6", "a list in a folder of its own", "arampacha/CLIP-rsicd#33",
         "junxnone/aiwiki#29 (names without a suffix)", "moein-shariatnia/OpenAI-CLIP#2"],
)  # fmt: skip
def test_lists_find_their_images(
    file: str, text: str, columns: Values, model: str, tmp_path: Path, capsys: Any
) -> None:
    data = tmp_path / "data"
    for number in range(2):
        picture(data / "val2017" / f"{number}.png", number)
        picture(tmp_path / "plain" / f"{number}.png", number)
    plain = "file,caption\n0.png,a barn\n0.png,one barn\n1.png,a dune\n"
    (tmp_path / "plain" / "captions.csv").write_text(plain)
    keys: dict[str, Any] = {"kind": "retrieval"}
    status, expected, _ = evaluated(model, tmp_path, capsys, data=str(tmp_path / "plain"), **keys)
    assert status == 0
    (data / file).parent.mkdir(exist_ok=True)
    (data / file).write_text(text)
    keys |= {"data": str(data / file), "columns": dict(columns)}
    status, document, said = evaluated(model, tmp_path, capsys, **keys)
    assert (status, document.get("task")) == (0, expected["task"]), said
