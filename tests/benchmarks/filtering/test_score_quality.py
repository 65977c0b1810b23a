"""Precision, recall and areas of scores against a known truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from benchmarks.filtering import score_quality
from manifests import disk


def test_the_figures_are_those_of_their_definitions() -> None:
    """The area is the share of pairs of a good and a bad row in which the good one scores more, a
    tie counting half."""
    rng = np.random.default_rng(0)
    good = rng.random(300) < 0.4
    values = np.round(rng.normal(size=300) + good, 1)  # with ties
    figures = score_quality.quality(values, good)
    gaps = values[good][:, None] - values[~good][None]
    assert figures["auc"] == pytest.approx(np.mean((gaps > 0) + 0.5 * (gaps == 0)))
    precision = [good[values >= value].mean() for value in values[good]]
    assert figures["average_precision"] == pytest.approx(np.mean(precision))
    for point in figures["points"]:
        kept = values >= point["threshold"]
        assert kept.mean() == point["kept"] >= point["share"]
        assert (values > point["threshold"]).mean() < point["share"]
        assert point["precision"] == good[kept].mean()
        assert point["recall"] == pytest.approx(good[kept].sum() / good.sum())


def test_the_command_joins_by_url_and_caption(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls, captions = ["a", "a", "b", "c"], ["x", "y", "x", "x"]
    rows = pa.table({"url": urls, "caption": captions, "score": [0.9, 0.1, 0.8, 0.2]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    truth = pa.table({"url": urls[:3], "caption": captions[:3], "good": [1, 0, 1]})
    pyarrow.csv.write_csv(pa.concat_tables([truth, truth]), tmp_path / "truth.csv")
    words = [str(tmp_path / "rows.parquet"), "--truth", str(tmp_path / "truth.csv")]
    words += [
        "--name",
        "small",
        "--columns",
        "score",
        "score:low",
        "--out",
        str(tmp_path / "o.json"),
    ]
    assert score_quality.main(words) == 0
    result = disk.read_json(tmp_path / "o.json")["small"]
    assert (result["rows"], result["of"]) == (3, 4)
    assert result["scores"]["score"]["auc"] == 1
    assert result["scores"]["score:low"]["auc"] == 0
    assert "| score | 1.000 | 1.000 |" in capsys.readouterr().out
    both = pa.table({"url": ["a"], "caption": ["x"], "good": [0]})
    pyarrow.csv.write_csv(pa.concat_tables([truth, both]), tmp_path / "truth.csv")
    with pytest.raises(ValueError, match="calls 1 pairs both good and not"):
        score_quality.main(words)


def test_the_page_has_the_measured_tables() -> None:
    page = score_quality.PAGE.read_text()
    tables = score_quality.markdown(disk.read_json(score_quality.RESULTS))
    assert f"{score_quality.BEGIN}\n{tables}{score_quality.END}" in page
