"""CIFAR-10's python archive as folders of PNGs."""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from examples.miniweb import cifar_archive, small_web
from tests.support.photo_folders import COLOURS, make_archive, pixels_of


@pytest.mark.parametrize("unpacked", [False, True])
def test_every_image_is_a_png_in_the_folder_of_its_class(unpacked: bool, tmp_path: Path) -> None:
    source = make_archive(tmp_path / "cifar-10-python.tar.gz", per_class=2)
    if unpacked:
        with tarfile.open(source) as tar:
            tar.extractall(tmp_path / "plain", filter="data")
        source = tmp_path / "plain"
    assert cifar_archive.unpack(source, tmp_path / "out") == {"train": 30, "test": 6}
    for label in COLOURS:
        assert len(list((tmp_path / "out/train" / label).iterdir())) == 10
        with Image.open(tmp_path / "out/train" / label / "0003.png") as image:
            assert np.array_equal(np.asarray(image), pixels_of(label, 101))
        with Image.open(tmp_path / "out/test" / label / "0001.png") as image:
            assert np.array_equal(np.asarray(image), pixels_of(label, 501))


class _Call:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("print('it was called')",)


def test_a_pickle_that_calls_something_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "batches.meta").write_bytes(pickle.dumps(_Call()))
    words = ["cifar10", str(tmp_path), "--out", str(tmp_path / "out")]
    assert small_web.main(words) == 2
    streams = capsys.readouterr()
    assert "batches.meta cannot be read as a pickle of arrays" in streams.err
    assert "builtins.eval" in streams.err
    assert "it was called" not in streams.out
