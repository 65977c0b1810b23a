"""Twenty tars that are not as WebDataset means them, each made from six whole samples."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.support.other_tars import Members, pack, picture

BLOCK = 512
SAMPLES = 6


def members() -> Members:
    listed: Members = []
    for i in range(SAMPLES):
        listed += [
            (f"{i:06d}.jpg", picture(shade=20 * i)),
            (f"{i:06d}.txt", f"caption {i}".encode()),
            (f"{i:06d}.json", b'{"n": %d}' % i),
        ]
    return listed


def whole(folder: Path) -> bytes:
    return pack(folder / "whole.tar", members()).read_bytes()


def header_of(data: bytes, name: str) -> int:
    """Where the header of a member begins."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getmember(name).offset


def changed(folder: Path, change: Callable[[Members], Members]) -> bytes:
    """The tar of other members."""
    return pack(folder / "changed.tar", change(members())).read_bytes()


def with_member(folder: Path, name: str, data: bytes) -> bytes:
    return changed(folder, lambda all_: [(n, data if n == name else d) for n, d in all_])


def without(folder: Path, name: str) -> bytes:
    return changed(folder, lambda all_: [(n, d) for n, d in all_ if n != name])


def renamed(folder: Path, old: str, new: str) -> bytes:
    return changed(folder, lambda all_: [(new if n == old else n, d) for n, d in all_])


def flipped(folder: Path, name: str, offset: int) -> bytes:
    data = bytearray(whole(folder))
    data[header_of(bytes(data), name) + offset] ^= 1
    return bytes(data)


def cut_in_member(folder: Path) -> bytes:
    data = whole(folder)
    return data[: header_of(data, "000003.jpg") + BLOCK + 100]


def cut_between_members(folder: Path) -> bytes:
    data = whole(folder)
    return data[: header_of(data, "000003.txt")]


def cut_between_samples(folder: Path) -> bytes:
    data = whole(folder)
    return data[: header_of(data, "000003.jpg")]


def two_tars(folder: Path) -> bytes:
    second = pack(folder / "b.tar", [("z.jpg", picture()), ("z.txt", b"z")])
    return whole(folder) + second.read_bytes()


def with_link(folder: Path) -> bytes:
    path = folder / "link.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in members():
            info = tarfile.TarInfo(name)
            if name == "000003.jpg":
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(info)
                continue
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path.read_bytes()


def zeros_inside(folder: Path) -> bytes:
    data = bytearray(whole(folder))
    at = header_of(bytes(data), "000002.jpg")
    data[at : at + 2 * BLOCK] = bytes(2 * BLOCK)
    return bytes(data)


def interleaved(folder: Path) -> bytes:
    return changed(folder, lambda all_: sorted(all_, key=lambda member: member[0][-3:]))


# {what is wrong: the bytes of the tar}
MALFORMED: dict[str, Callable[[Path], bytes]] = {
    "no bytes": lambda folder: b"",
    "not a tar": lambda folder: random.Random(1).randbytes(9000),
    "compressed, under the name .tar": lambda folder: gzip.compress(whole(folder), mtime=0),
    "cut inside a member": cut_in_member,
    "cut between the members of a sample": cut_between_members,
    "cut between two samples": cut_between_samples,
    "a bit flipped in a header": lambda folder: flipped(folder, "000003.jpg", 3),
    "a bit flipped in a length": lambda folder: flipped(folder, "000003.txt", 134),
    "a header overwritten with zeros": zeros_inside,
    "two tars, one after the other": two_tars,
    "a link in place of an image": with_link,
    "a key twice": lambda folder: changed(folder, lambda all_: [*all_, *all_[6:9]]),
    "members of samples interleaved": interleaved,
    "a sample without an image": lambda folder: without(folder, "000003.jpg"),
    "a sample without a caption": lambda folder: without(folder, "000003.txt"),
    "an image of no bytes": lambda folder: with_member(folder, "000003.jpg", b""),
    "an HTML page as an image": lambda folder: with_member(
        folder, "000003.jpg", b"<html>403</html>"
    ),
    "a caption that is not UTF-8": lambda folder: with_member(folder, "000003.txt", b"caf\xe9"),
    "a dot in the key of one member": lambda folder: renamed(folder, "000003.txt", "000003.v2.txt"),
    "JSON that is cut": lambda folder: with_member(folder, "000003.json", b'{"n": 3, "ca'),
}
