"""The table of the study of scales is that of the committed metrics."""

from benchmarks.studies import scales


def test_the_page_has_the_table_of_the_metrics() -> None:
    text = scales.PAGE.read_text()
    shown = text[text.index(scales.BEGIN) + len(scales.BEGIN) : text.index(scales.END)]
    assert shown.strip() == scales.table().strip()
    for names in scales.METRICS.values():
        for name in names:
            assert f", {name} |" in shown
