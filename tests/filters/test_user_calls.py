"""What a user's code may do, and how each of it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

from filters import make
from filters.base import Batch
from filters.user_file import UserCodeError, call_user, error_line
from manifests.schema import FilterSpec

THUMB = """
from dataclasses import dataclass
import pyarrow as pa
from filters.base import Filter

@dataclass(kw_only=True)
class Thumb(Filter):
    needs = ["image"]
    adds = {"thumb": pa.int32()}
    most: int = 8

    def __post_init__(self):
        if self.most < 1:
            raise ValueError(f"most is {self.most}; it must be positive")
        1 / (self.most - 99)

    def score(self, batch):
        for image in batch.images:
            image.thumbnail((self.most, self.most))
        return {"thumb": [image.width for image in batch.images]}
"""


def raising(error: BaseException) -> Callable[[], Any]:
    def function() -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyError("a\nb"), r"F.score raised KeyError: 'a\\nb'"),
        (ValueError("two\n lines"), "F.score raised ValueError: two lines"),
        (SystemExit(0), r"F.score called sys.exit\(0\)"),
        (UserCodeError("F.inner raised it"), "^F.inner raised it$"),
        (MemoryError(), "F.score raised MemoryError:"),
    ],
)
def test_what_it_raises_is_one_line(error: BaseException, line: str) -> None:
    with pytest.raises(UserCodeError, match=line):
        call_user("mine.py", "F.score", raising(error))
    assert error_line(ValueError("a\nb")) == "ValueError: a b"


def test_what_it_prints_does_not_reach_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert call_user("mine.py", "F.score", lambda: print("here")) is None
    print("there")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("there\n", "here\n")
    assert sys.stdout is not sys.stderr


def test_a_child_that_it_forks_ends_there(tmp_path: Path) -> None:
    assert call_user("mine.py", "F.score", os.fork) > 0
    (tmp_path / str(os.getpid())).touch()
    process, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == 1
    assert not (tmp_path / str(process)).exists()


def thumb(folder: Path, **options: Any) -> Any:
    (folder / "mine.py").write_text(THUMB)
    return make(FilterSpec(name="thumb", kind=f"{folder}/mine.py:Thumb", options=options))


def test_images_that_others_read_are_not_changed(tmp_path: Path) -> None:
    image = Image.new("RGB", (40, 20))
    batch = Batch(captions=[""], images=[image], rows=pa.table({}))
    assert thumb(tmp_path).score(batch) == {"thumb": [8]}
    assert image.size == (40, 20)
