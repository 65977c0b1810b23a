from __future__ import annotations

from pathlib import Path

import pytest

from manifests.schema import TaskSpec
from tests.support.tasks import changed, draw
from train.eval_data.samples import read_captioned, read_labelled


def test_folders_are_classes_in_order_and_underscores_are_spaces(colours: TaskSpec) -> None:
    samples = read_labelled(colours)
    assert samples.classes == ("dark red", "green", "sky blue")
    assert samples.files[0] == "dark_red/0.jpg"
    assert samples.labels == (0,) * 6 + (1,) * 6 + (2,) * 6
    assert samples.images.path(0) == f"{colours.data}/dark_red/0.jpg"


def test_display_names_replace_the_folders(colours: TaskSpec) -> None:
    named = changed(colours, classes=["red", "green", "blue"])
    assert read_labelled(named).classes == ("red", "green", "blue")
    with pytest.raises(ValueError, match=r"names 2 classes, but .* \(folders\) has 3: dark_red"):
        read_labelled(changed(colours, classes=["red", "green"]))


def test_what_a_folder_lacks_is_named(tmp_path: Path, colours: TaskSpec) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty has 0 folders of images .* at least two"):
        read_labelled(changed(colours, data=str(tmp_path / "empty")))
    (Path(colours.data) / "other").mkdir()
    (Path(colours.data) / "other" / "notes.txt").write_text("no image")
    assert len(read_labelled(colours).classes) == 3  # a folder without images is no class
    draw(Path(colours.data) / "other" / "0.gif", (0, 0, 0), 0)
    with pytest.raises(ValueError, match=r"other/0\.gif is one of 1 images there .* convert them"):
        read_labelled(colours)


def test_what_a_captions_file_lacks_is_named(captioned: TaskSpec) -> None:
    path = Path(captioned.data) / "captions.csv"
    text = path.read_text()
    path.write_text(text.replace("file,caption", "file,captoin"))
    with pytest.raises(
        ValueError, match=r"no column 'caption'; did you mean 'captoin'\? \(of file, captoin\)"
    ):
        read_captioned(captioned)
    path.write_text(text + "missing.png,nothing\n")
    with pytest.raises(ValueError, match=r"image .*missing\.png does not exist"):
        read_captioned(captioned)
    path.write_text(text + "a.png,\n")
    with pytest.raises(
        ValueError, match=r"captions\.csv line 8: file and caption must both be given"
    ):
        read_captioned(captioned)
    path.write_text("file,caption\na.png,one\n")
    with pytest.raises(ValueError, match="names 1 images; retrieval needs at least two"):
        read_captioned(captioned)
    path.unlink()
    with pytest.raises(ValueError, match=r"captions\.csv does not exist; retrieval reads"):
        read_captioned(captioned)
