"""The list of known-bad content: which lines it has, and what it recognises."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from clipmill.manifests.hashes import KnownBad

BODY = b"a body"
DIGEST = hashlib.sha256(BODY).hexdigest()


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines))
    return str(path)


def test_bytes_are_known_by_their_hash(tmp_path: Path) -> None:
    others = [hashlib.sha256(bytes([i])).hexdigest() for i in range(100)]
    path = write(tmp_path / "list.txt", "# a comment", "", *others, f"  {DIGEST.upper()} ")
    known = KnownBad.read(path, 4)
    assert known.has_bytes(BODY)
    assert not known.has_bytes(BODY + b"!")
    assert not known.has_image([0])
    assert sum(known.has_bytes(bytes([i])) for i in range(256)) == 100


def test_an_image_is_known_within_the_distance(tmp_path: Path) -> None:
    path = write(tmp_path / "list.txt", f"{0xFF00FF00FF00FF00:016x}")
    near = 0xFF00FF00FF00FF00 ^ 0b1111
    assert KnownBad.read(path, 4).has_image([0, near])
    assert KnownBad.read(path, 4).has_image([near - 2**64]), "phash gives signed numbers"
    assert not KnownBad.read(path, 3).has_image([near])
    assert not KnownBad.read(path, 3).has_bytes(BODY)


def test_neither_path_nor_order_is_part_of_the_identity(tmp_path: Path) -> None:
    other = "0" * 64
    one = KnownBad.read(write(tmp_path / "a.txt", DIGEST, other, "0" * 16), 4)
    two = KnownBad.read(write(tmp_path / "b.txt", "# b", "0" * 16, other, DIGEST, DIGEST), 4)
    less = KnownBad.read(write(tmp_path / "c.txt", DIGEST, "0" * 16), 4)
    assert one.identity == two.identity != less.identity


@pytest.mark.parametrize("line", ["abc", "g" * 64, "0" * 32, "0x" + "0" * 16, DIGEST + " x"])
def test_other_lines_are_refused_with_their_number(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "list.txt", DIGEST, line)
    with pytest.raises(ValueError, match=r"list\.txt line 2 is .*write a sha256"):
        KnownBad.read(path, 4)


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"fetch\.known_bad names .*none\.txt, which does not"):
        KnownBad.read(str(tmp_path / "none.txt"), 4)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not a text file"):
        KnownBad.read(str(tmp_path / "binary"), 4)
