"""What was purged is known without its content; a row of a selected view and stray files too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from manifests import disk
from manifests.commits import read_commits
from manifests.schema import Recipe, Source, View
from pipeline.audit import purge as purge_module
from pipeline.audit.explain import explain_lines, explain_row
from pipeline.audit.purge import purge_rows, purges_of_name, purges_of_uid, read_criteria
from pipeline.views.files import choose_views, write_selected_view
from tests.support import commands
from tests.support.exported import exported_pool
from tests.support.small_pool import make_pool, rows


def row_of(pool: str, shard: int, row: int) -> dict[str, str]:
    sidecar = disk.read_parquet(read_commits(pool).sidecar(shard), ["uid", "url"])
    values: dict[str, str] = sidecar.to_pylist()[row]
    return values


def test_a_purged_url_uid_and_host_are_explained_without_their_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = make_pool(tmp_path / "pool", rows(20))
    by_url, by_host, by_uid = row_of(pool, 0, 1), row_of(pool, 0, 2), row_of(pool, 1, 3)
    host = by_host["url"].split("/")[2]
    purge_rows(pool, read_criteria([f"url={by_url['url']}", f"domain={host}"]))
    purge_rows(pool, read_criteria([f"uid={by_uid['uid']}"]))
    for name in (by_url["url"], by_host["url"], f"https://www.{host}/another.jpg"):
        (purge,) = explain_row(pool, name)["purged"]
        assert (purge["by"], purge["rows"]) == (["domain", "url"], 2)
        assert purge["at"].endswith("Z")
    (line,) = explain_lines(explain_row(pool, by_url["url"]))
    assert "by domain and url, with 2 rows" in line
    assert "http" not in line
    history = explain_row(pool, by_uid["uid"])
    assert [purge["by"] for purge in history["purged"]] == [["uid"]]
    assert any(line.startswith("purged") for line in explain_lines(history))
    assert explain_row(pool, by_host["uid"])["purged"][0]["by"] == ["domain", "url"]
    assert explain_row(pool, row_of(pool, 1, 5)["uid"])["purged"] == []
    for path in Path(pool, "purges").iterdir():
        for text in (by_url["url"], host):
            assert text not in path.read_text()
    assert commands.audit(["explain", pool, by_url["url"]]) == 0
    assert "purged" in capsys.readouterr().out
    assert commands.audit(["explain", pool, "https://never.example/x.jpg"]) == 2
    assert purges_of_name(pool, "not a url") == purges_of_uid(pool, "ab" * 16) == []


def test_a_row_that_was_purged_by_its_uid_is_explained_by_its_url(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", rows(20))
    row = row_of(pool, 0, 1)
    purge_rows(pool, read_criteria([f"uid={row['uid']}"]))
    (purge,) = explain_row(pool, row["url"])["purged"]
    assert purge["by"] == ["uid"]
    for path in Path(pool, "purges").iterdir():
        assert row["url"] not in path.read_text()


def test_a_killed_purge_leaves_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool(tmp_path / "pool", rows(10))
    row = row_of(pool, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(purge_module.disk, "remove", _killed_at_the_journal)
        with pytest.raises(KeyboardInterrupt):
            purge_rows(pool, read_criteria([f"url={row['url']}"]))
    with pytest.raises(ValueError, match=r"no row of .* matches"):  # the first one is ended
        purge_rows(pool, read_criteria(["url=https://other.example/"]))
    assert len(disk.list_names(disk.join(pool, "purges"))) == 1
    assert len(explain_row(pool, row["url"])["purged"]) == 1


def _killed_at_the_journal(path: str) -> None:
    if str(path).endswith("purge.json"):
        raise KeyboardInterrupt
    Path(path).unlink(missing_ok=True)


def test_a_row_that_a_selected_view_does_not_keep(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", rows(10))
    commits = read_commits(pool)
    write_selected_view(
        commits, "even", "in the even rows", lambda start, stop: np.arange(start, stop) % 2 == 0
    )
    decision = explain_row(pool, row_of(pool, 0, 1)["uid"])["attempts"][0]["views"]["even"]
    [rule] = decision["rules"]
    assert (rule["rule"], rule["outcome"]) == ("in the even rows", "rejects")


def test_a_stray_folder_is_no_view_and_a_stray_file_has_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = exported_pool(tmp_path / "pool")
    stray = Path(pool, "views", "stray.json")
    stray.mkdir()
    assert commands.audit(["verify", pool]) == 0
    recipe = Recipe(
        name="r", source=Source(kind="files", paths=("x.csv",)), views=(View(name="raw"),)
    )
    choose_views(pool, recipe)
    uid = row_of(pool, 0, 0)["uid"]
    assert set(explain_row(pool, uid)["attempts"][0]["views"]) == {"raw", "wide"}
    stray.rmdir()
    stray.write_text("{}")
    capsys.readouterr()
    assert commands.audit([pool]) == 3
    output = capsys.readouterr().out
    assert "views/stray.json is no ViewDocument" in output
    assert "make the view again with clipmill filter, or remove it" in output
