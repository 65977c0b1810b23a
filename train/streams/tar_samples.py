"""The samples of a tar that is read from its beginning to its end, by way of `webdataset`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from manifests.schema import TarStream
from manifests.text import valid_text
from train.streams.byte_streams import BrokenSource, Source, TarBytes

IMAGES = ("jpg", "jpeg", "png", "webp")
JSON = "json:"  # before a key of the json member


@dataclass(frozen=True, slots=True, kw_only=True)
class TarSample:
    """An image and its caption."""

    tar: str
    key: str
    image: bytes
    caption: str


def read_samples(tar: str, source: Source, stream: TarStream) -> Iterator[TarSample | str]:
    """The samples of a tar in their order; in place of one that cannot be used, the reason.

    BrokenSource where the tar is damaged or ends too early; what came before it was whole.
    ValueError where `webdataset` is not installed.
    """
    tar_file_expander, group_by_keys = _webdataset()
    data = TarBytes(source)
    try:
        files = tar_file_expander([{"url": tar, "stream": data}])
        try:
            for members in group_by_keys(files):
                yield sample_of(tar, members, stream.caption)
        except BrokenSource as error:
            raise BrokenSource(str(error.args[0])) from error
        except Exception as error:  # tarfile and webdataset raise anything on damaged bytes
            reason = str(error.args[0]) if error.args else type(error).__name__
            raise BrokenSource(f"the tar is damaged: {reason.partition(' @ ')[0]}") from error
        data.finish()
    finally:
        data.close()


def sample_of(tar: str, members: Mapping[str, Any], caption: str) -> TarSample | str:
    """The sample of some members, by what follows the first dot of their names, or the reason why
    it cannot be used.

    caption: the name of a member, or json:KEY.
    """
    image = next((members[name] for name in IMAGES if members.get(name)), None)
    if image is None:
        return "no image"
    text = _caption(members, caption)
    if text is None or not text.strip():
        return "no caption"
    return TarSample(tar=tar, key=str(members["__key__"]), image=image, caption=valid_text(text))


def _caption(members: Mapping[str, Any], caption: str) -> str | None:
    member = members.get("json" if caption.startswith(JSON) else caption)
    if member is None:
        return None
    try:
        text = member.decode()
        if not caption.startswith(JSON):
            return str(text)
        value = json.loads(text).get(caption.removeprefix(JSON))
    except (ValueError, AttributeError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _webdataset() -> Any:
    try:
        from webdataset.tariterators import group_by_keys, tar_file_expander
    except ImportError as error:
        raise ValueError(
            f"tars are streamed by webdataset, which cannot be imported ({error}); "
            "run pip install -e '.[stream]', or adopt the tars into a pool"
        ) from error
    return tar_file_expander, group_by_keys
