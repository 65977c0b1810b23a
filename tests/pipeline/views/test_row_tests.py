"""Random draws over parts: ties are broken by uid and place, however the rows are cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from manifests.schema import Rule, View
from pipeline.views.choose import Part, choose_parts
from tests.support.masks import Masks

LIKE = View(name="like", rules=(Rule(name="random", random_like="model", seed=3),))


class Parts:
    """Rows in units of some rows, and parts of two."""

    def __init__(self, table: pa.Table, unit_rows: int) -> None:
        self.table, self.schema, self.rows = table, table.schema, table.num_rows
        self.unit_rows, self.units = unit_rows, -(-table.num_rows // unit_rows)

    def parts(self, unit: int, columns: Sequence[str] | None = None) -> Iterator[Part]:
        first = unit * self.unit_rows
        for row in range(first, min(first + self.unit_rows, self.rows), 2):
            size = min(2, first + self.unit_rows - row, self.rows - row)
            table = self.table.slice(row, size)
            yield Part(
                table=table if columns is None else table.select(list(columns)),
                first_row=row,
                sizes={f"{row:05d}": size},
            )


@pytest.mark.parametrize("size", range(1, 11))
def test_a_draw_of_rows_with_the_same_uids(size: int) -> None:
    uids = ["a", "b", "a", "c", "a", "b", "a", "d", "a", "a", "e"]
    table = pa.table({"uid": uids, "status": ["success"] * 10 + ["failed"]})
    kept = set()
    for unit_rows in (3, 4, 11):
        masks = Masks()
        source = Parts(table, unit_rows)
        selections = choose_parts(source, [LIKE], ["like"], masks.open, {"model": size})
        assert selections["like"].kept == size == sum(masks.kept("like"))
        kept.add(tuple(masks.kept("like")))
    assert len(kept) == 1


def test_a_rule_that_leaves_no_row_is_named() -> None:
    table = pa.table({"uid": ["a", "b"], "status": ["success", "success"], "x": [1, 2]})
    none = View(name="none", rules=(Rule(name="big", where="x > 5"),))
    with pytest.raises(ValueError, match=r"rule 'big' \(x > 5\) lets none of the 2 rows through"):
        choose_parts(Parts(table, 1), [none], ["none"], Masks().open)


def test_rules_that_share_a_query_with_one_that_fails() -> None:
    """`number` cannot be evaluated on the rows that `digits` rejects, nor on the last one."""
    table = pa.table(
        {
            "uid": ["a", "b", "c", "d", "e"],
            "status": ["success"] * 4 + ["failed"],
            "text": ["1", "x", "7", None, "y"],
            "x": [1, 2, 3, 4, 5],
        }
    )
    digits = Rule(name="digits", where="regexp_matches(text, '^[0-9]+$')")
    number = Rule(name="number", where="CAST(text AS INTEGER) > 3")
    small = Rule(name="small", where="x < 4")
    shifted = Rule(name="shifted", where="1 << (CAST(text AS INTEGER) * x) > 4")
    numbers = View(name="numbers", rules=(digits, number, small, shifted))
    others = View(name="others", rules=(small, digits))
    masks = Masks()
    selections = choose_parts(Parts(table, 5), [numbers, others], ["numbers", "others"], masks.open)
    assert masks.kept("numbers") == [False, False, True, False, False]
    assert masks.kept("others") == [True, False, True, False, False]
    effects = {effect.rule: effect for effect in selections["numbers"].effects}
    rejected = {name: effect.rejected for name, effect in effects.items()}
    assert rejected == {"digits": 2, "number": None, "small": 1, "shifted": None}
    assert all(effect.alone is None for effect in effects.values())
    assert [effect.rejected for effect in selections["others"].effects] == [1, 2]
    last = View(name="last", rules=(small, number))
    with pytest.raises(ValueError, match=r"rule 'number' .*: the text 'x' is no INT32"):
        choose_parts(Parts(table, 5), [others, last], ["others", "last"], Masks().open)
