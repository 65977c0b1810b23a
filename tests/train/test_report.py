"""clipmill report. What a report holds is tested in tests/study/reporting/."""

import datetime

import pytest

from clipmill.commands.ablate import date_of
from tests.support import commands


def test_the_date_is_given_or_of_the_environment(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert date_of("2026-01-31") == datetime.date(2026, 1, 31)
    assert date_of(None) == datetime.date(1970, 1, 2)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    with pytest.raises(ValueError, match="SOURCE_DATE_EPOCH is 'today'"):
        date_of(None)
    with pytest.raises(ValueError, match=r"'31\.1\.' is no date; write it as 2026-01-31"):
        date_of("31.1.")


def test_options_that_do_not_go_together_are_one_line(capsys, tmp_path):
    assert commands.report(["a", "b", "--markdown"]) == 2
    assert capsys.readouterr().err == "error: --markdown goes with one folder\n"
    assert commands.report(["a", "--page", "x.html"]) == 2
    assert "error: --page goes with two folders" in capsys.readouterr().err
    (tmp_path / "x.html").write_text("my notes")
    assert commands.report(["a", "b", "--page", str(tmp_path / "x.html")]) == 2
    assert "there is a file of that name that this command did not write" in capsys.readouterr().err
