"""The samples of small tasks in other formats."""

from __future__ import annotations

import io
import tarfile

from clipmill.manifests import disk
from clipmill.manifests.schema import TaskSpec


def images_of(samples):
    """The encoded images."""
    return [read() for read in samples.images.readers(0, len(samples.files))]


def write_tar(path, members):
    """A plain tar of (name, content)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return str(path)


def tar_members(images, texts, extension, first=0):
    """An image and a text for each sample, with the keys k0000 and so on."""
    members = []
    for number, (image, text) in enumerate(zip(images, texts, strict=True), first):
        suffix = "png" if image.startswith(b"\x89PNG") else "jpg"
        members += [(f"k{number:04d}.{suffix}", image)]
        members += [(f"k{number:04d}.{extension}", text.encode())]
    return members


def task_of(data, kind="classification", **changes):
    """A task named t."""
    plain = {"name": "t", "kind": kind, "data": str(data), **changes}
    task: TaskSpec = disk.from_plain(TaskSpec, plain)
    return task
