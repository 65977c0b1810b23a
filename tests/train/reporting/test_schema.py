from __future__ import annotations

import json

import pytest

from manifests import disk
from tests.support.reports import empty_report, sample_report
from train.reporting.schema import Report


@pytest.mark.parametrize("report", [sample_report(), empty_report()], ids=["full", "empty"])
def test_a_report_survives_its_json(report: Report) -> None:
    plain = json.loads(json.dumps(disk.to_plain(report), allow_nan=False))
    assert disk.from_plain(Report, plain) == report


def test_a_report_with_an_unknown_key_is_refused() -> None:
    plain = {**disk.to_plain(sample_report()), "run": "x"}
    with pytest.raises(ValueError, match="Report has no 'run'; did you mean 'runs'"):
        disk.from_plain(Report, plain)
