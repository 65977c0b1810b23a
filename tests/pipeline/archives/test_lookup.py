"""Each pair of an archive is found again by the offset of its record, however the file is
written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from clipmill.manifests import disk
from clipmill.pipeline.archives import wat
from clipmill.pipeline.archives.warc import pairs_of_warc_record
from clipmill.pipeline.archives.wat import pairs_of_wat_record
from tests.support import warcs, wats
from tests.support.wats import pairs_of_wat
from tests.support.web_files import FileServer

Forms = dict[str, Callable[[list[bytes]], bytes]]
FORMS: Forms = {
    "a member a record": wats.zipped,
    "one member": lambda records: wats.zipped([b"".join(records)]),
    "plain": b"".join,
}


def records() -> list[bytes]:
    """Pages with two pairs each, and links that are none before and between them."""
    made = [wats.INFO]
    for page in range(20):
        links = [
            wats.image("/no-alt.gif"),
            wats.image(f"/{page}-a.jpg", f"first of {page}"),
            wats.image("/empty.gif", " "),
            wats.image(f"/{page}-b.jpg", f"second of {page} with ümlaut and 水"),
        ]
        made += wats.page(f"http://p{page}.test/", links)
    return made


@pytest.mark.parametrize("form", FORMS)
def test_every_pair_of_a_wat_is_found_again(tmp_path: Path, form: str) -> None:
    path = tmp_path / "x.warc.wat.gz"
    path.write_bytes(FORMS[form](records()))
    pairs = pairs_of_wat(str(path), Counter())
    assert len(pairs) == 40
    for pair in pairs:
        assert pair.warc_offset is not None
        assert pair.link is not None
        pair_of_record = pairs_of_wat_record(str(path), pair.warc_offset)[pair.link]
        assert pair_of_record == (pair.url, pair.caption, pair.page_url)
        assert disk.uid_of(pair_of_record.url, pair_of_record.caption) == pair.uid


@pytest.mark.parametrize("form", ["a member a record", "plain"])
def test_a_record_with_a_place_of_its_own_costs_no_reading_of_the_file(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.warc.wat.gz"
    path.write_bytes(FORMS[form](records()))
    last = pairs_of_wat(str(path), Counter())[-1]
    monkeypatch.delattr(wat, "records")
    assert last.warc_offset is not None
    assert last.link is not None
    assert pairs_of_wat_record(str(path), last.warc_offset)[last.link].url == last.url


def test_behind_damage_too(tmp_path: Path) -> None:
    path = tmp_path / "x.warc.wat.gz"
    members = [wats.zipped([record]) for record in records()]
    members[5] = members[5][:30] + b"\0" * 40 + members[5][70:]
    path.write_bytes(b"".join(members))
    pairs = pairs_of_wat(str(path), Counter())
    assert len(pairs) == 38
    for pair in pairs:
        assert pair.warc_offset is not None
        found = pairs_of_wat_record(str(path), pair.warc_offset)
        assert {(each.url, each.caption) for each in found.values()} >= {(pair.url, pair.caption)}


@pytest.mark.parametrize("form", ["a member a record", "one member", "plain"])
def test_every_pair_of_a_warc_is_found_again(tmp_path: Path, form: str) -> None:
    path = tmp_path / "x.warc.gz"
    pages = warcs.pages(12)
    data = warcs.zipped(pages) if form == "a member a record" else b"".join(pages)
    rows, _ = warcs.read(path, warcs.zipped([data]) if form == "one member" else data)
    assert len(rows) == 12
    for row in rows:
        pair = pairs_of_warc_record(str(path), row["warc_offset"])[row["link"]]
        assert pair == (row["url"], row["caption"], row["page_url"])


def test_an_offset_between_two_records_is_refused(tmp_path: Path) -> None:
    wat, warc = tmp_path / "x.warc.wat.gz", tmp_path / "x.warc.gz"
    wat.write_bytes(wats.zipped(records()))
    warc.write_bytes(warcs.zipped(warcs.pages(3)))
    for path, of_record in ((wat, pairs_of_wat_record), (warc, pairs_of_warc_record)):
        for offset in (7, path.stat().st_size, 10**9):
            with pytest.raises(ValueError, match=f"no whole record of a page at byte {offset}"):
                of_record(str(path), offset)


@pytest.mark.parametrize("ranges", [True, False])
def test_over_http(tmp_path: Path, ranges: bool) -> None:
    data = wats.zipped(records())
    (tmp_path / "x.warc.wat.gz").write_bytes(data)
    last = pairs_of_wat(str(tmp_path / "x.warc.wat.gz"), Counter())[-1]
    assert last.warc_offset is not None
    assert last.link is not None
    with FileServer({"/x.warc.wat.gz": data}, ranges=ranges) as server:
        pairs = pairs_of_wat_record(f"{server.base}x.warc.wat.gz", last.warc_offset)
    assert pairs[last.link].caption == last.caption
