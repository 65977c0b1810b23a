"""The report of an ablation's folder, and two of them compared, as `clipmill report` prints it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clipmill.library.answers import Answer
from clipmill.manifests import disk
from clipmill.study.collect import collect_report
from clipmill.study.compare import (
    ReportComparison,
    compare_reports,
    comparison_cells,
    comparison_lines,
    render_comparison,
    summary,
)
from clipmill.verdict import wording
from clipmill.verdict.decide.exports import INK, SOFT, Strip, drawing, latex, markdown
from clipmill.verdict.pages import charts
from clipmill.verdict.pages.page import scale_of

if TYPE_CHECKING:
    import pyarrow as pa


# --- two ablations --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Answer):
    """Two ablations that asked the same of the same test set. comparison: all that is known."""

    comparison: ReportComparison

    @property
    def text(self) -> str:
        return "\n".join(comparison_lines(self.comparison))

    @property
    def table(self) -> pa.Table:
        """A row for each arm that both have: its difference to the baseline in each of the two, and
        the second minus the first. Those of the unit `share` are 0 to 1; null: no interval.
        """
        import pyarrow as pa

        columns: dict[str, list[Any]] = {"arm": [arm.arm for arm in self.comparison.arms]}
        for name in ("first", "second"):
            of_one = [getattr(arm, name) for arm in self.comparison.arms]
            columns[name] = [row.difference for row in of_one]
            columns[f"{name}_low"] = [row.low for row in of_one]
            columns[f"{name}_high"] = [row.high for row in of_one]
            columns[f"{name}_verdict"] = [row.verdict for row in of_one]
        columns["change"] = [arm.change for arm in self.comparison.arms]
        columns["change_low"] = [arm.low for arm in self.comparison.arms]
        columns["change_high"] = [arm.high for arm in self.comparison.arms]
        is_text = {"arm", "first_verdict", "second_verdict"}
        types = [(name, "string" if name in is_text else "float64") for name in columns]
        return pa.table(columns, schema=pa.schema(types))

    @property
    def account(self) -> tuple[str, ...]:
        """What else the two have different, and which arms only one of them has."""
        return tuple(summary(self.comparison))

    def to_markdown(self) -> str:
        return markdown(self._title, self._rows(), (1, 2, 3), summary(self.comparison))

    def to_latex(self) -> str:
        lines = summary(self.comparison)
        return latex(self._title, self._rows(), "lrrrl", (1, 2, 3), lines)

    def to_svg(self) -> str:
        c, strips = self.comparison, []
        scale = scale_of(c.unit)
        for arm in c.arms:
            low, high = (None if end is None else scale * end for end in (arm.low, arm.high))
            row = charts.ForestRow(mean=scale * arm.change, low=low, high=high, colour="")
            numbers = comparison_cells(arm, c.unit)[2]
            shade, word = (INK, "beyond noise") if arm.beyond_noise else (SOFT, "")
            strips.append(Strip(name=arm.arm, numbers=numbers, word=word, shade=shade, row=row))
        unit = wording.unit_of_difference(c.unit) or "difference"
        text = f"{c.second} minus {c.first}, {unit} to {c.baseline}"
        return drawing(self._title, self._title, strips, text, summary(c))

    def to_html(self, links: Mapping[str, str] | None = None) -> str:
        """The page of `--page`. links: {file: title} of pages beside it."""
        return render_comparison(self.comparison, links)

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, object] = disk.to_plain(self.comparison)
        return plain

    @property
    def _title(self) -> str:
        c = self.comparison
        return f"{c.first} and {c.second}: {c.task}, {c.metric}"

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        c = self.comparison
        rows = [("arm", c.first, c.second, "change", "verdicts")]
        for arm in c.arms:
            words = f"{arm.first.verdict} / {arm.second.verdict}"
            rows.append((arm.arm, *comparison_cells(arm, c.unit), words))
        return rows


def compare(study: str | os.PathLike[str], other: str | os.PathLike[str], /) -> Comparison:
    """Compare two ablations that asked the same of the same test set: what each arm was worth in
    both, and what changed by more than its noise.

    Args:
        study: The folder of an ablation.
        other: That of another one.

    Raises:
        ValueError: A folder is no ablation's, or the two are not comparable; in one line, as
            `clipmill report` prints it.
    """
    first, second = (collect_report(os.fspath(folder)) for folder in (study, other))
    return Comparison(compare_reports(first, second))
