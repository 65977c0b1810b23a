"""The entries that the server of a small web answers from."""

from __future__ import annotations

from pathlib import Path

from examples.miniweb.links import Link
from examples.miniweb.settings import Miniweb
from examples.miniweb.web_files import write_site
from manifests import disk


def link(kind: str, path: str) -> Link:
    return Link(
        kind=kind, host="shop.miniweb.test", path=path, caption="a", true_caption="a", right=True
    )


def test_a_redirected_image_is_at_its_second_address_too(tmp_path: Path) -> None:
    links = [link("clean", "/img/a.jpg"), link("redirect", "/go/b.jpg")]
    write_site(tmp_path, Miniweb(), links, lambda each: {"kind": each.kind})
    site = disk.read_json(tmp_path / "site.json")
    assert site["pictures"] == {
        "shop.miniweb.test": {"/img/a.jpg": {"kind": "clean"}, "/go/b.jpg": {"kind": "redirect"}},
        "cdn.miniweb.test": {"/img/b.jpg": {"kind": "clean"}},
    }
    assert site["photos"] is None
