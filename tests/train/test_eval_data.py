"""Evaluation data: folders, tables, tars, and the samples and images of tasks."""

import dataclasses
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests import disk
from clipmill.train.eval_data import images
from clipmill.train.eval_data import samples as benchmark_layout
from clipmill.train.eval_data.images import (
    ImageFiles,
    batch_rows,
    decoded_batches,
    image_hashes,
    map_images,
)
from clipmill.train.eval_data.samples import (
    RawSamples,
    captioned_samples,
    labelled_samples,
    read_associations,
    read_captioned,
    read_classes,
    read_labelled,
    read_probe,
    read_templates,
    write_benchmark,
)
from clipmill.train.model.architecture import MODELS
from tests.support.task_data import images_of, tar_members, task_of, write_tar
from tests.support.tasks import changed, class_folders, draw


@pytest.fixture
def coloured(colours):
    """The samples of `colours`."""
    return read_labelled(colours)


@pytest.fixture
def described(captioned):
    """The samples of `captioned`."""
    return read_captioned(captioned)


# --------------------------------------------------------------------------------------------------


IMAGES = ImageFiles("/d", ("a.png", "b.png", "c.png"))


def raw(**values):
    return RawSamples(source="/d", images=IMAGES, **values)


def test_numbers_need_names_and_texts_bring_them():
    numbers = raw(labels=[1, 0, 1])
    assert labelled_samples(task_of("/d", classes=["x", "y"]), numbers).classes == ("x", "y")
    assert labelled_samples(
        task_of("/d"), raw(labels=[1, 0, 1], class_names=("p", "q"))
    ).labels == (1, 0, 1)
    texts = labelled_samples(task_of("/d"), raw(labels=["b_c", "a", "b_c"]))
    assert (texts.classes, texts.labels) == (("a", "b c"), (1, 0, 1))


@pytest.mark.parametrize(
    ("changes", "values", "message"),
    [
        ({}, {"labels": [0, 1, 1]}, "labels of /d are numbers, and it names no classes"),
        ({"classes": ["x", "y"]}, {"labels": [0, 1, 2]}, r"label of c\.png is 2, but there are 2"),
        ({"classes": ["x", "y"]}, {"labels": [0, -1, 0]}, r"label of b\.png is -1"),
        ({}, {"labels": ["a", "a", "a"]}, "has 1 classes"),
        ({}, {"labels": ["a", "c", "b"], "class_names": ("a", "b")}, r"label of b\.png is 'c'"),
        (
            {"classes": ["x", "y"]},
            {"labels": [0, 1, 2], "class_names": ("p", "q", "r")},
            "names 2 classes, but /d has 3: p, q, r",
        ),
        ({}, {}, "/d has no labels"),
        ({"classes_from": "imagenets"}, {"labels": [0, 1, 2]}, "task 't': classes is 'imagenets'"),
        ({"templates_from": "openai"}, {"labels": ["a", "b", "b"]}, "templates is 'openai'"),
    ],
)
def test_labels_that_are_no_class_are_refused(changes, values, message):
    with pytest.raises(ValueError, match=message):
        labelled_samples(task_of("/d", **changes), raw(**values))


def test_templates_are_the_tasks_else_the_datas_else_the_usual(tmp_path):
    own = raw(labels=["a", "b", "b"], templates=("own {}",))
    assert labelled_samples(task_of("/d"), own).templates == ("own {}",)
    assert labelled_samples(task_of("/d", templates=["the {}"]), own).templates == ("the {}",)
    (tmp_path / "t.txt").write_text("a {c}.\n")
    from_file = task_of("/d", templates_from=str(tmp_path / "t.txt"))
    assert labelled_samples(from_file, own).templates == ("a {}.",)
    assert labelled_samples(task_of("/d"), raw(labels=["a", "b", "b"])).templates == (
        "a photo of a {}",
    )


def test_equal_captions_are_texts_of_their_own():
    samples = captioned_samples(
        task_of("/d", "retrieval"), raw(captions=[["x"], ["y", "x"], ["z"]])
    )
    assert samples.captions == ("x", "y", "x", "z")
    assert samples.matches == ((0, 0), (1, 1), (1, 2), (2, 3))
    with pytest.raises(ValueError, match=r"b\.png of /d has no caption"):
        captioned_samples(task_of("/d", "retrieval"), raw(captions=[["x"], [], ["z"]]))
    with pytest.raises(ValueError, match="/d has no captions"):
        captioned_samples(task_of("/d", "retrieval"), raw())


def test_the_lists_of_open_clip_have_its_names():
    import open_clip

    assert read_classes("imagenet") == tuple(open_clip.IMAGENET_CLASSNAMES)
    templates = read_templates("openai_imagenet")
    assert len(templates) == 80
    expected = [template("a fox") for template in open_clip.OPENAI_IMAGENET_TEMPLATES]
    assert [template.replace("{}", "a fox") for template in templates] == expected
    assert len(read_templates("simple_imagenet")) == 7


def model_of(size):
    return dataclasses.replace(MODELS["test"], image_size=size, patch_size=1)


def test_files_hold_a_name_per_line_or_a_json_list(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffcat\r\ndog\n\nred fox\n".encode())
    assert read_classes(str(tmp_path / "a.txt")) == ("cat", "dog", "", "red fox")
    (tmp_path / "a.json").write_text('["a photo of a {c}.", "{}"]')
    assert read_templates(str(tmp_path / "a.json")) == ("a photo of a {}.", "{}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("imagenett", None, r"classes is 'imagenett'; .* did you mean 'imagenet'\?"),
        ("none.txt", None, r"none\.txt does not exist"),
        ("a.json", b'{"a": 1}', "must hold a JSON list of texts"),
        ("a.json", b"[1]", "must hold a JSON list of texts"),
        ("a.json", b"[", "is not JSON"),
        ("a.txt", b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path, name, content, message):
    path = str(tmp_path / name) if "." in name else name
    if content is not None:
        Path(path).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_classes(path)


def test_a_probe_has_training_data_of_the_same_classes(colours, tmp_path):
    class_folders(tmp_path / "more")
    probe = changed(colours, kind="linear_probe", train_data=str(tmp_path / "more"))
    samples = read_probe(probe)
    assert samples.train is not None
    assert samples.train.images.path(0) == f"{tmp_path}/more/dark_red/0.jpg"
    assert samples.train.labels == samples.labels
    (tmp_path / "more" / "green").rename(tmp_path / "more" / "grass")
    with pytest.raises(ValueError, match=r"more has other classes than .* \(grass, green\)"):
        read_probe(probe)


def test_a_probe_takes_two_splits_of_one_folder(coloured, tmp_path):
    for split in ("test", "train"):
        write_benchmark(coloured, str(tmp_path / "b"), split)
    samples = read_probe(task_of(tmp_path / "b", "linear_probe"))
    assert samples.train is not None
    assert samples.train.images.path(0) == f"{tmp_path}/b/train/0.tar:s0000000.jpg"
    with pytest.raises(ValueError, match="test and training data are both 'test' of"):
        read_probe(task_of(tmp_path / "b", "linear_probe", train_split="test"))


# --------------------------------------------------------------------------------------------------


def test_folders_are_classes_in_order_and_underscores_are_spaces(colours):
    samples = read_labelled(colours)
    assert samples.classes == ("dark red", "green", "sky blue")
    assert samples.files[0] == "dark_red/0.jpg"
    assert samples.labels == (0,) * 6 + (1,) * 6 + (2,) * 6
    assert samples.images.path(0) == f"{colours.data}/dark_red/0.jpg"


def test_display_names_replace_the_folders(colours):
    named = changed(colours, classes=["red", "green", "blue"])
    assert read_labelled(named).classes == ("red", "green", "blue")
    with pytest.raises(ValueError, match=r"names 2 classes, but .* \(folders\) has 3: dark_red"):
        read_labelled(changed(colours, classes=["red", "green"]))


def test_a_link_back_counts_no_image_twice(colours):
    green = Path(colours.data) / "green"
    (green / "more").mkdir()
    (green / "2.jpg").rename(green / "more" / "2.jpg")
    (green / "more" / "back").symlink_to(green, target_is_directory=True)
    assert read_labelled(colours).labels == (0,) * 6 + (1,) * 6 + (2,) * 6


def test_cells_that_a_table_has_too_many_of_are_named(colours):
    listed = Path(colours.data) / "labels.csv"
    listed.write_text("file,label\ngreen/0.jpg,green, dark\nsky_blue/0.jpg,blue\n")
    samples = read_labelled(changed(colours, data=str(listed)))
    assert sorted(samples.classes) == ["blue", "green, dark"]
    assert "have more than 2 cells" in samples.notes[0]


def test_folders_in_a_store_have_the_order_of_local_ones(colours):
    (Path(colours.data) / "green" / "2").mkdir()
    draw(Path(colours.data) / "green" / "2" / "7.png", (0, 255, 0), 7)
    store = f"memory:/{colours.data}"
    disk.filesystem(store)[0].put(colours.data, colours.data, recursive=True)
    local, remote = read_labelled(colours), read_labelled(changed(colours, data=store))
    assert (remote.files, remote.labels) == (local.files, local.labels)
    assert "green/2/7.png" in remote.files


def test_what_a_folder_lacks_is_named(tmp_path, colours):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty has 0 folders of images .* at least two"):
        read_labelled(changed(colours, data=str(tmp_path / "empty")))
    (Path(colours.data) / "other").mkdir()
    (Path(colours.data) / "other" / "notes.txt").write_text("no image")
    assert len(read_labelled(colours).classes) == 3  # a folder without images is no class
    draw(Path(colours.data) / "other" / "0.gif", (0, 0, 0), 0)
    with pytest.raises(ValueError, match=r"other/0\.gif is one of 1 images there .* convert them"):
        read_labelled(colours)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text.replace("caption", "captoin"), r"no column 'caption'; .* 'captoin'\?"),
        (lambda text: text + "missing.png,nothing\n", r"image .*missing\.png does not exist"),
        (lambda text: text + "a.png,\n", r"csv line 8: file and caption must both be given"),
        (lambda _: "file,caption\na.png,one\n", "names 1 images; retrieval needs at least two"),
    ],
)
def test_what_a_captions_file_lacks_is_named(captioned, edit, message):
    path = Path(captioned.data) / "captions.csv"
    path.write_text(edit(path.read_text()))
    with pytest.raises(ValueError, match=message):
        read_captioned(captioned)
    path.unlink()
    with pytest.raises(ValueError, match=r"captions\.csv does not exist; retrieval reads"):
        read_captioned(captioned)


# --------------------------------------------------------------------------------------------------


def test_the_form_of_hugging_face_in_several_files_and_row_groups(coloured, tmp_path):
    features = {"label": {"names": ["red", "green", "blue"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    images = images_of(coloured)
    for number, rows in enumerate((slice(0, 7), slice(7, 18))):
        structs = [{"bytes": image, "path": None} for image in images[rows]]
        table = pa.table({"img": structs, "label": list(coloured.labels[rows]), "g": structs and
                          [f"g{i % 2}" for i in range(len(structs))]})  # fmt: skip
        pq.write_table(
            table.replace_schema_metadata(metadata),
            tmp_path / f"test-{number}.parquet",
            row_group_size=3,
        )
    pq.write_table(pa.table({"img": [b"x"]}), tmp_path / "train-0.parquet")
    samples = read_labelled(task_of(tmp_path, columns={"group": "g"}))
    assert samples.classes == ("red", "green", "blue")
    assert samples.labels == coloured.labels
    assert samples.groups[:3] == ("g0", "g1", "g0")
    assert images_of(samples) == images
    readers = samples.images.readers(5, 12)
    assert [read() for read in readers] == images[5:12]
    assert samples.images.path(8) == f"{tmp_path}/test-1.parquet:test-1/1"


def test_paths_are_beside_the_file_and_captions_may_be_lists(captioned, described):
    folder = Path(captioned.data)
    texts = [["red", "a red picture"], ["green"], ["blue"], ["grey"], ["grey", ""]]
    pq.write_table(pa.table({"path": described.files, "caption": texts}), folder / "c.parquet")
    samples = read_captioned(task_of(folder / "c.parquet", "retrieval"))
    assert samples == described


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_row_for_each_caption_is_one_image_with_several(captioned, described, as_bytes):
    folder = Path(captioned.data)
    files = [described.files[n] for n in (0, 1, 0, 2)]
    column = [{"bytes": (folder / file).read_bytes()} for file in files] if as_bytes else files
    texts = ["red", "green", "a red picture", "blue"]
    pq.write_table(
        pa.table({"image": column, "caption": texts}), folder / "c.parquet", row_group_size=3
    )
    samples = read_captioned(task_of(folder / "c.parquet", "retrieval"))
    assert samples.captions == ("red", "a red picture", "green", "blue")
    assert samples.matches == ((0, 0), (0, 1), (1, 2), (2, 3))
    assert len(samples.images.names) == 3
    contents = [read() for read in samples.images.readers(0, 3)]
    assert contents == [(folder / file).read_bytes() for file in described.files[:3]]
    assert samples.notes[0].startswith("4 rows of ")


@pytest.mark.parametrize(
    ("columns", "names", "message"),
    [
        (
            {"picture": [b"x"], "label": [0]},
            {},
            r"no column for the image \(of picture, label\); n",
        ),
        ({"image": [b"x"], "y": [0]}, {}, r"no column for the label .*columns: \{label: image\}"),
        ({"image": [b"x"], "y": [0]}, {"label": "z"}, "has no column 'z'"),
        ({"image": [b"x"], "label": [0]}, {"group": "labels"}, "did you mean 'label'"),
        ({"image": [b"x"], "label": [None]}, {}, r"a/0 of .*a\.parquet has no label"),
    ],
)
def test_what_a_table_lacks_is_named(columns, names, message, tmp_path):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        read_labelled(task_of(tmp_path / "a.parquet", columns=names, classes=["a", "b"]))


ROW = {
    "cue": "fire",
    "candidates": ["a", "b", "c"],
    "associations": ["c", "a"],
    "candidate_images": [b"1", b"2", b"3"],
}


def write(folder, *rows):
    path = folder / "w.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=1)
    return path


def test_rows_become_prompts_images_and_right_pairs(tmp_path):
    other = {**ROW, "cue": "Ice", "associations": ["b"], "candidate_images": [b"4", b"5", b"6"]}
    write(tmp_path, ROW, other)
    samples = read_associations(task_of(tmp_path, "association"))
    assert samples.captions == ("A fire", "An ice")
    assert samples.labels == (0, 0, 0, 1, 1, 1)
    assert samples.matches == ((0, 0), (2, 0), (4, 1))
    assert samples.files[5] == "w/1/c"
    assert images_of(samples) == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"associations": []}, r"w\.parquet, row 0 needs right and wrong candidates.*cue 'fire'"),
        ({"associations": ["a", "b", "c"]}, "needs right and wrong candidates"),
        ({"associations": ["z"]}, "every association among them"),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        read_associations(task_of(write(tmp_path, {**ROW, **change}), "association"))


# --------------------------------------------------------------------------------------------------


CLASSES = ["dark_red", "green", "sky_blue"]


def test_labels_are_numbers_or_texts(coloured, tmp_path):
    images = images_of(coloured)
    numbers = tar_members(images, [f"{label}\n" for label in coloured.labels], "cls")
    tar = write_tar(tmp_path / "n.tar", numbers)
    samples = read_labelled(task_of(tar, classes=["r", "g", "b"]))
    assert (samples.labels, images_of(samples)) == (coloured.labels, images)
    assert samples.files[:2] == ("k0000.jpg", "k0001.png")
    assert samples.images.path(1) == f"{tar}:k0001.png"
    texts = tar_members(images, [CLASSES[label] for label in coloured.labels], "cls")
    samples = read_labelled(task_of(write_tar(tmp_path / "t.tar", texts)))
    assert (samples.labels, samples.classes) == (coloured.labels, coloured.classes)


def test_the_shards_of_a_pool_are_read_if_they_are_committed(described, tmp_path):
    images, shards = images_of(described), tmp_path / "pool" / "shards"
    write_tar(shards / "00000.tar", tar_members(images[:3], ["a", "b", "c"], "txt"))
    write_tar(shards / "00001.tar", tar_members(images[3:], ["d", "e"], "txt", first=3))
    disk.write_json(shards / "00000_stats.json", {})
    (shards / "00000.parquet").write_bytes(b"the sidecar is not read")
    for data in (shards, tmp_path / "pool"):
        assert read_captioned(task_of(data, "retrieval")).captions == ("a", "b", "c")


def test_labels_and_groups_of_json_and_npy(coloured, tmp_path):
    members = []
    for number, (image, label) in enumerate(zip(images_of(coloured), coloured.labels, strict=True)):
        sink = io.BytesIO()
        np.save(sink, np.array([number % 2, 7]))
        suffix = "png" if number % 2 else "jpg"
        members += [(f"{number:02d}.{suffix}", image), (f"{number:02d}.npy", sink.getvalue())]
        members += [(f"{number:02d}.json", json.dumps({"colour": CLASSES[label]}).encode())]
    tar = write_tar(tmp_path / "g.tar", members)
    samples = read_labelled(task_of(tar, columns={"label": "json:colour", "group": "npy:0"}))
    assert samples.labels == coloured.labels
    assert samples.groups == ("0", "1") * 9
    for columns, message in (
        ({"label": "json:color"}, r"sample 00: json:color cannot be read \(KeyError\('color'\)"),
        ({"label": "json:colour", "group": "npy:2"}, r"sample 00: npy:2 cannot be read"),
        ({"label": "json"}, "json cannot be read .*a label is a number or a text"),
        ({"label": "cls"}, r"has no member \.cls \(beside the image: npy, json\)"),
    ):
        with pytest.raises(ValueError, match=message):
            read_labelled(task_of(tar, columns=columns))


def test_a_tar_with_a_fault_is_named(colours, coloured, tmp_path):
    images = images_of(coloured)
    lonely = write_tar(tmp_path / "a.tar", [("x.cls", b"0")])
    with pytest.raises(ValueError, match=r"a\.tar, sample x has no image \(jpg, jpeg"):
        read_labelled(task_of(lonely))
    twice = tar_members(images[:2], ["a", "b"], "cls")
    write_tar(tmp_path / "b" / "0.tar", twice)
    write_tar(tmp_path / "b" / "1.tar", twice)
    with pytest.raises(ValueError, match=r"1\.tar, sample k0000 is there twice"):
        read_labelled(task_of(tmp_path / "b"))
    with pytest.raises(ValueError, match="has no samples"):
        read_labelled(task_of(write_tar(tmp_path / "c.tar", [])))
    whole = Path(write_tar(tmp_path / "d.tar", twice)).read_bytes()
    (tmp_path / "d.tar").write_bytes(whole[: len(images[0]) + 600])
    with pytest.raises(ValueError, match=r"d\.tar is no plain tar, or it is cut"):
        read_labelled(task_of(tmp_path / "d.tar"))
    with tarfile.open(tmp_path / "e.tar", "w:gz") as tar:
        tar.add(colours.data, "x")
    with pytest.raises(ValueError, match=r"e\.tar is no plain tar"):
        read_labelled(task_of(tmp_path / "e.tar"))


def test_a_tar_that_was_written_anew_is_scanned_anew(coloured, tmp_path):
    images = images_of(coloured)
    tar = write_tar(tmp_path / "a.tar", tar_members(images[:2], ["a", "b"], "cls"))
    assert len(read_labelled(task_of(tar)).files) == 2
    write_tar(tmp_path / "a.tar", tar_members(images[:9], ["a", "b", "c"] * 3, "cls"))
    assert len(read_labelled(task_of(tar)).files) == 9


# --------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(coloured, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark_layout, "TAR_SAMPLES", 7)
    assert write_benchmark(coloured, str(tmp_path / "b")) == 18
    assert (tmp_path / "b" / "test" / "nshards.txt").read_text() == "3\n"
    templates = (tmp_path / "b" / "zeroshot_classification_templates.txt").read_text()
    assert templates.splitlines()[0] == "a photo of a {c}"
    samples = read_labelled(task_of(tmp_path / "b"))
    assert samples.classes == coloured.classes
    assert samples.labels == coloured.labels
    assert samples.templates == coloured.templates
    assert images_of(samples) == images_of(coloured)
    assert samples.files[:2] == ("s0000000.jpg", "s0000001.png")


def test_retrieval_is_written_and_read_again(described, tmp_path):
    write_benchmark(described, str(tmp_path / "b"))
    samples = read_captioned(task_of(tmp_path / "b", "retrieval"))
    assert (samples.captions, samples.matches) == (described.captions, described.matches)
    assert not (tmp_path / "b" / "classnames.txt").exists()
    with pytest.raises(ValueError, match=r"is for classification, but .* says 'retrieval'"):
        read_labelled(task_of(tmp_path / "b"))


# webdataset leaves its last tar open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_webdataset_reads_what_is_written(coloured, tmp_path):
    import webdataset

    write_benchmark(coloured, str(tmp_path / "b"))
    dataset = webdataset.WebDataset(str(tmp_path / "b" / "test" / "0.tar"), shardshuffle=False)
    rows = list(dataset.to_tuple("png;jpg", "cls", "__key__"))
    assert [image for image, _, _ in rows] == images_of(coloured)
    assert [int(label) for _, label, _ in rows] == list(coloured.labels)


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("test/nshards.txt", None, r"nshards\.txt is missing; it holds the number of tars \(1 are"),
        ("test/nshards.txt", "2", r"says 2 tars, but .* has 1 \(1\.tar is missing\)"),
        ("test/nshards.txt", "many", "it must hold the number of tars"),
        ("test/1.tar", "", r"says 1 tars, but .* has 2 \(1\.tar is not counted\)"),
        ("dataset_type.txt", "multilabel", "is for classification, but .* says 'multilabel'"),
        ("classnames.txt", None, "are numbers, and it names no classes"),
        ("classnames.txt", "a\nb\n", "is 2, but there are 2 classes"),
    ],
)
def test_a_damaged_folder_is_refused(coloured, tmp_path, path, content, message):
    write_benchmark(coloured, str(tmp_path))
    if content is None:
        (tmp_path / path).unlink()
    else:
        (tmp_path / path).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_labelled(task_of(tmp_path))


# --------------------------------------------------------------------------------------------------


def decoded(samples, size):
    batches = batch_rows(len(samples.files))
    return np.concatenate(
        [batch.image_BHWC for batch in decoded_batches(samples.images, model_of(size), batches)]
    )


def test_images_are_decoded_once(coloured, monkeypatch):
    first = decoded(coloured, 32)
    assert first.shape == (18, 32, 32, 3)
    monkeypatch.setattr(images, "decode_image", lambda data: pytest.fail("decoded again"))
    np.testing.assert_array_equal(first, decoded(coloured, 32))


def test_an_image_that_is_changed_in_place_is_read_again(colours, coloured):
    before, hashes = decoded(coloured, 32), image_hashes(coloured.images)
    red, green = (Path(colours.data) / name / "0.jpg" for name in ("dark_red", "green"))
    red.write_bytes(green.read_bytes())
    changed = {coloured.images.names.index("dark_red/0.jpg")}
    now, again = decoded(coloured, 32), image_hashes(coloured.images)
    assert {row for row in range(18) if (now[row] != before[row]).any()} == changed
    assert {row for row in range(18) if again[row] != hashes[row]} == changed


def test_what_does_not_fit_is_decoded_again(coloured, monkeypatch):
    monkeypatch.setattr(images, "CACHE_BYTES", 100)
    monkeypatch.setattr(images, "BATCH_SIZE", 7)
    before = len(images._kept)
    for _ in range(2):
        batches = list(decoded_batches(coloured.images, model_of(16), batch_rows(18)))
        assert [len(batch.image_BHWC) for batch in batches] == [7, 7, 4]
    assert len(images._kept) == before


def test_an_image_that_cannot_be_read_is_named(colours, coloured):
    (Path(colours.data) / "green" / "0.jpg").write_bytes(b"\xff\xd8\xff no picture")
    with pytest.raises(ValueError, match=r"green/0\.jpg cannot be decoded as an image"):
        decoded(coloured, 10)
    (Path(colours.data) / "green" / "0.jpg").unlink()
    with pytest.raises(ValueError, match=r"green/0\.jpg cannot be decoded .*No such file"):
        map_images(coloured.images, len)
