"""A table in memory is read as the file that it would be: the same measurements and notes."""

from __future__ import annotations

import decimal
import gc
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests import disk
from clipmill.verdict.tables.forms import frame_of_bytes, frame_of_table
from clipmill.verdict.tables.frames import Frame
from clipmill.verdict.tables.reader import read_results
from clipmill.verdict.tables.roles import Options

ROOT = Path(__file__).parents[3]
RUNS = ROOT / "examples/cifar10_120_runs.parquet"
LONG = pd.DataFrame(
    {
        "arm": ["raw", "raw", "basic", "basic", "clip", "clip"],
        "seed": [0, 1, 0, 1, 0, 1],
        "accuracy": [0.31, 0.33, 0.35, 0.36, 0.41, np.nan],
    }
)
WIDE = LONG.pivot(index="seed", columns="arm", values="accuracy")
STATISTICS = pd.DataFrame(
    [[0.31, 0.02, 0.5, 0.03], [0.36, 0.01, 0.6, 0.02]],
    index=pd.Index(["raw", "basic"], name="arm"),
    columns=pd.MultiIndex.from_product([["cifar10", "svhn"], ["mean", "std"]]),
)
TWICE = LONG.set_axis(["arm", "accuracy", "accuracy"], axis=1)


def measured(frame: Frame, **told: Any) -> Any:
    """All that is read of a table, but for what its form is called."""
    results = read_results([frame], Options(**told))
    account = replace(results.account, form="")
    results = replace(results, notes=[n for n in results.notes if not n.startswith("header: ")])
    values = [(name, getattr(results, name)) for name in results.__dataclass_fields__]
    plain = {name: value.tolist() for name, value in values if isinstance(value, np.ndarray)}
    if results.per_sample:
        plain["per_sample"] = [None if own is None else own.tolist() for own in results.per_sample]
    others = {name: value for name, value in values if name not in (*plain, "account")}
    return disk.to_plain({**plain, **others, "account": account})


def polars_of(frame: pd.DataFrame) -> Any:
    return pytest.importorskip("polars").from_arrow(pa.Table.from_pandas(frame))


@pytest.mark.parametrize(
    "given",
    [
        lambda frame: frame,
        lambda frame: frame.convert_dtypes(),
        lambda frame: frame.astype(object),
        lambda frame: frame.set_index(["arm", "seed"]),
        lambda frame: frame.set_index(["arm", "seed"])["accuracy"],
        lambda frame: frame.astype({"arm": "category", "seed": "int8", "accuracy": "float64"}),
        lambda frame: pd.concat([frame, frame[:1]])[:6].set_axis([5, 3, 1, 2, 9, 9]),
        pa.Table.from_pandas,
        lambda frame: pa.Table.from_pandas(frame).to_batches()[0],
        lambda frame: pa.Table.from_pandas(frame).to_pylist(),
        lambda frame: [row.to_dict() for _, row in frame.astype(object).map(np.array).iterrows()],
        polars_of,
    ],
    ids=[
        "pandas", "nullable", "objects", "index", "series", "categories", "numbered", "arrow",
        "batch", "dicts", "numpy", "polars",
    ],
)  # fmt: skip
def test_every_kind_of_table_is_read_as_the_parquet_of_it(given: Callable[[Any], Any]) -> None:
    file = io.BytesIO()
    LONG.to_parquet(file)
    expected = measured(frame_of_bytes(file.getvalue()))
    assert expected["account"]["cells_used"] == 5
    assert measured(frame_of_table(given(LONG))) == expected


@pytest.mark.parametrize(
    "frame",
    [WIDE, STATISTICS, LONG.assign(accuracy=LONG.accuracy.map("{:.1%}".format))],
    ids=["pivot", "two rows of header", "percent signs"],
)
def test_a_frame_of_pandas_is_read_as_the_csv_of_it(frame: pd.DataFrame) -> None:
    text = frame.to_csv(index=frame.index.name is not None)
    expected = measured(frame_of_bytes(text.encode()))
    assert measured(frame_of_table(frame)) == expected


def test_cells_of_several_types_are_each_read() -> None:
    cells = [0.31, "33 %", decimal.Decimal("0.35"), np.float32(0.5), "n/a", None]
    frame = LONG.assign(accuracy=pd.Series(cells, dtype=object))
    results = read_results([frame_of_table(frame)])
    assert results.value_N.tolist() == pytest.approx([0.31, 0.33, 0.35, 0.5])
    assert results.account.cells - results.account.cells_used == 2


def test_what_came_with_120_runs_is_the_same_from_a_file_and_from_memory() -> None:
    table = pq.read_table(RUNS)
    expected = measured(frame_of_bytes(RUNS.read_bytes()))
    assert measured(frame_of_table(table)) == expected
    assert measured(frame_of_table(table.to_pandas())) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "a builtins int is no table: give a DataFrame, an Arrow table, a list of dicts or a "
         "path"),
        (pd.DataFrame({"arm": [], "acc": []}), "pandas DataFrame: there is no row"),
        ([1, 2], "an item is no object: '1'"),
        (TWICE, "two columns have the name 'accuracy' (columns 2, 3): rename one"),
        (pd.DataFrame({"note": ["good", "bad"]}), "pandas DataFrame: there is no column of values"),
    ],
    ids=["number", "empty", "numbers", "a name twice", "texts"],
)  # fmt: skip
def test_what_is_no_table_of_results_is_refused_in_one_line(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)) as error:
        read_results([frame_of_table(given)])
    assert "\n" not in str(error.value)


def test_the_collector_is_left_as_it_was() -> None:
    gc.disable()
    try:
        read_results([frame_of_table(LONG)])
        assert not gc.isenabled()
    finally:
        gc.enable()
    read_results([frame_of_table(LONG)])
    assert gc.isenabled()
