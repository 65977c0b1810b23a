"""Dataclasses as plain values and back."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import pytest

from clipmill.manifests import disk
from clipmill.manifests.schema import Blend, FilterSpec


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Blend, 5, "x is 5; it must be a mapping"),
        (Blend, {"pools": {"w": "x"}}, "x has no value for 'name'"),
        (Blend, {"name": "b", "poools": {}}, "x has no 'poools'; did you mean 'pools'?"),
        (Blend, {"name": "b", "seed": True}, "x.seed is True; it must be a whole number"),
        (Blend, {"name": "b", "views": {"w/v": "x"}}, "x.views['w/v'] is 'x'; it must be a number"),
        (tuple[int, ...], [1, "2"], "x[1] is '2'; it must be a whole number"),
        (tuple[str, int], ["a"], "x is ['a']; it must be a list of 2 values"),
        (dict[str, float], {"a": None}, "x['a'] is None; it must be a number"),
        (Literal["a", "b"], "c", "x is 'c'; it must be one of a, b"),
        (int | None, "", "x is ''; it must be a whole number"),
        (int | tuple[int, ...], "", "x is ''; it must be a list"),
    ],
)
def test_every_type_of_a_field_is_checked(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        disk.from_plain(kind, value, "x")
    assert disk.from_plain(int | tuple[int, ...], [1], "x") == (1,)
    assert disk.from_plain(float, 1, "x") == 1
    assert disk.from_plain(int | None, None, "x") is None


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int
    colour: str = "red"
    tags: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    several: tuple[Inner, ...] = ()
    by_name: Any = None


def test_fields_with_their_default_are_left_out() -> None:
    first, second = Inner(size=0), Inner(size=1, colour="blue", tags={"a": 1})
    assert disk.to_plain(Outer(inner=first), with_defaults=False) == {"inner": {"size": 0}}
    both = Outer(inner=first, several=(first, second))
    assert disk.to_plain(both, with_defaults=False) == {
        "inner": {"size": 0},
        "several": [{"size": 0}, {"size": 1, "colour": "blue", "tags": {"a": 1}}],
    }
    by_name = {"x": first, "y": None}
    assert disk.to_plain(Outer(inner=second, by_name=by_name), with_defaults=False)["by_name"] == {
        "x": {"size": 0},
        "y": None,
    }


def test_a_later_field_leaves_what_was_written_before_as_it_was() -> None:
    assert disk.to_plain(FilterSpec(name="a")) == {"name": "a", "options": {}}
    renamed = FilterSpec(name="a", kind="b")
    assert disk.to_plain(renamed) == {"name": "a", "options": {}, "kind": "b"}
    assert disk.from_plain(FilterSpec, disk.to_plain(renamed)) == renamed


# --- Hashes of rows and documents are the same everywhere, and take any text


def test_hashes_are_pinned() -> None:
    assert disk.uid_of("http://a/b.jpg", "a cat") == "f89428b805e63d706f158e1dc5842bb0"
    assert disk.content_hash({"b": 1, "a": [1, 2]}) == "94a786c3662b"
    assert disk.content_hash({"b": 1, "a": [1, 2]}) == disk.content_hash({"a": (1, 2), "b": 1})
    assert len(disk.uid_of("u", "c")) == 32
    assert disk.uid_of("ab", "c") != disk.uid_of("a", "bc")


def test_hashes_take_any_text() -> None:
    assert disk.uid_of("http://a/\udce9", "\ud800") != disk.uid_of("http://a/\ufffd", "\ufffd")
    assert disk.content_hash(["\ud800"]) != disk.content_hash(["\ufffd"])


def test_the_hash_of_plain_values_is_that_of_their_content() -> None:
    value = {"b": [1, 2.5, None, True, "ä"], "a": {"y": {}, "x": "z"}}
    assert disk.plain_hash(value) == disk.content_hash(value)
    assert disk.plain_hash(value, 64) == disk.content_hash(value, 64)
    with pytest.raises(TypeError):
        disk.plain_hash({"path": Path("x")})


# --- Paths and URLs as text; the folder of a command


def test_braces_stand_for_many_paths() -> None:
    assert disk.expand_braces("a/{008..011}.tar") == [
        f"a/{n}.tar" for n in ["008", "009", "010", "011"]
    ]
    assert disk.expand_braces("{2..0}{x,y}") == ["2x", "2y", "1x", "1y", "0x", "0y"]
    assert disk.expand_braces("pipe:awk {x} {0..1}") == ["pipe:awk {x} 0", "pipe:awk {x} 1"]
    assert disk.expand_braces("{9..10}") == ["9", "10"]
    for text in ("w-{00..02.tar", "w-}{", "{a,{b,c}}"):
        with pytest.raises(ValueError, match=r"the braces of .* do not fit; write web-\{00000"):
            disk.expand_braces(text)
    for text in ("{0..9999999}", "{0..999999}{0..1}", "{0..999999999999999999}"):
        with pytest.raises(ValueError, match="at most 1,000,000 are listed"):
            disk.expand_braces(text)


def test_a_relative_folder_under_a_submitted_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runtime_resources" / "working_dir_files"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match="lost with the job; give an absolute path"):
        disk.output_folder("out")
    assert disk.output_folder("/abs/out") == "/abs/out"
    assert disk.output_folder("s3://bucket/out") == "s3://bucket/out"
    monkeypatch.chdir(tmp_path)
    assert disk.output_folder("out") == str(tmp_path / "out")


def test_a_folder_that_cannot_be_written_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--to is '/proc/a/b', but nothing .* to /proc \(No such"):
        disk.output_folder("/proc/a/b", "--to")  # os.access says that root may write there
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"--out is .*/file/x', but .*/file is a file"):
        disk.output_folder(str(tmp_path / "file" / "x"))
    assert disk.output_folder(str(tmp_path / "new" / "er")) == str(tmp_path / "new" / "er")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
