"""Results of anyone's runs in every form that is read, and what is guessed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from train.decisions.tables import Columns, Measurement, Results, read_results

LONG = [
    {"arm": arm, "seed": seed, "task": task, "metric": "accuracy", "value": base + seed / 100}
    for arm, base in (("raw", 0.3), ("clip30", 0.4))
    for seed in (0, 1)
    for task in ("objects", "scenes")
]
CSV = "arm,seed,task,metric,value\n" + "\n".join(",".join(map(str, r.values())) for r in LONG)
WIDE = "name,random_seed,objects,scenes,params (M)\n" + "\n".join(
    f"{arm},{seed},{base + seed / 100},{base + seed / 100},151"
    for arm, base in (("raw", 0.3), ("clip30", 0.4))
    for seed in (0, 1)
)
LM_EVAL = {
    "results": {
        "hellaswag": {"alias": "hellaswag", "acc,none": 0.4, "acc_stderr,none": 0.01},
        "mmlu": {"acc,none": 0.3},
    },
    "groups": {"mmlu": {"acc,none": 0.3}},
    "higher_is_better": {"hellaswag": {"acc": True}},
    "n-samples": {"hellaswag": {"original": 10, "effective": 9}},
    "config": {"random_seed": 3},
    "model_name": "raw",
}


def read(folder: Path, text: str | bytes, name: str = "runs.csv", **told: object) -> Results:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_results([str(path)], Columns(**told))


def values(results: Results) -> dict[tuple[str, int, str], float]:
    return {(row.arm, row.seed, row.task): row.value for row in results.rows}


def parquet_of(rows: list[dict[str, object]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runs.csv", CSV),
        ("bom.csv", "\ufeff" + CSV.replace("\n", "\r\n")),
        ("semicolons.csv", CSV.replace(".", "DOT").replace(",", ";").replace("DOT", ",")),
        ("runs.tsv", CSV.replace(",", "\t")),
        ("runs.jsonl", "\n".join(map(json.dumps, LONG)) + "\n\n"),
        ("runs.json", json.dumps(LONG)),
        ("runs.parquet", parquet_of(LONG)),
        ("wide.csv", WIDE),
        ("seed_in_name.csv", WIDE.replace("random_seed", "step").replace("raw,", "raw-seed")),
    ],
)
def test_every_form_gives_the_same_measurements(tmp_path: Path, name: str, text: str) -> None:
    if name == "seed_in_name.csv":  # raw-seed0 and so on, without a column of the seed
        text = text.replace("clip30,", "clip30-seed").replace("name,step", "name")
    results = read(tmp_path, text, name)

    assert values(results) == {
        (row["arm"], row["seed"], row["task"]): pytest.approx(row["value"]) for row in LONG
    }


def test_what_is_guessed_is_said(tmp_path: Path) -> None:
    assert read(tmp_path, WIDE).notes == (
        "arm: column 'name'",
        "seed: column 'random_seed'",
        "task: each of 2 numeric columns",
        "left out as settings: params (M)",
    )


def test_lm_evals_results_have_their_task_size_and_direction(tmp_path: Path) -> None:
    assert read(tmp_path, json.dumps(LM_EVAL), "results_1.json").rows == (
        Measurement("raw", 0, "hellaswag", "acc", 0.4, samples=9, higher=True),
    )


def test_the_last_value_of_each_run_of_a_chart_that_was_exported(tmp_path: Path) -> None:
    head = "Step,raw-seed1 - val/acc,raw-seed1 - val/acc__MIN,clip30-seed2 - val/acc\n"
    results = read(tmp_path, head + "1,0.1,0.1,0.2\n2,0.3,0.1,\n")
    assert values(results) == {("raw", 1, "val/acc"): 0.3, ("clip30", 2, "val/acc"): 0.2}


def test_a_folder_of_clip_benchmarks_files_has_an_arm_for_each_model(tmp_path: Path) -> None:
    for model in ("a", "b"):
        for task in ("cars", "pets"):
            row = {"dataset": task, "model": "ViT-B-32", "pretrained": model, "task": "zeroshot"}
            row["metrics"] = {"acc1": 0.5, "acc5": 0.9, "note": "text"}
            path = tmp_path / f"{model}-{task}.json"
            path.write_text(json.dumps(row))

    (tmp_path / "samples_cars.jsonl").write_text("{}")
    results = read_results([str(tmp_path)])

    assert {(row.arm, row.task, row.metric) for row in results.rows} == {
        (f"ViT-B-32 {model}", task, metric)
        for model in ("a", "b")
        for task in ("cars", "pets")
        for metric in ("acc1", "acc5")
    }


def test_files_of_one_row_each_name_the_arm_by_what_differs_in_their_paths(tmp_path: Path) -> None:
    for arm in ("raw", "clip30"):
        read(tmp_path, json.dumps({"key": "cars", "metrics": {"acc1": 0.5}}), f"{arm}/eval.jsonl")

    assert {row.arm for row in read_results([str(tmp_path)]).rows} == {"raw", "clip30"}


def test_own_results_are_read(tmp_path: Path) -> None:
    runs = {"raw": {"0": {"cars": {"accuracy": 0.5}}}}
    text = json.dumps({"ablation_hash": "a", "runs": runs})
    assert values(read(tmp_path, text, "results.json")) == {("raw", 0, "cars"): 0.5}


def test_a_pattern_takes_arm_scale_and_seed_from_the_name(tmp_path: Path) -> None:
    text = "name,cars\npool_s_clip_1,0.1\npool_m_clip_2,0.2\nother,0.3\n"
    pattern = r"(?P<arm>pool)_(?P<scale>s|m)_(?P<arm2>\w+)_(?P<seed>\d)"
    results = read(tmp_path, text, pattern=pattern)
    assert [(r.arm, r.seed, results.scales[r.scale]) for r in results.rows] == [
        ("pool_clip", 1, "s"),
        ("pool_clip", 2, "m"),
    ]


@pytest.mark.parametrize(
    ("texts", "ordered"),
    [
        (["1e9", "12.8M", "128M"], ["12.8M", "128M", "1e9"]),
        (["large", "small", "medium"], ["small", "medium", "large"]),
        (["1.4B", "411M", "7B"], ["411M", "1.4B", "7B"]),
        (["first", "second"], ["first", "second"]),
    ],
)
def test_scales_are_ordered_by_size(tmp_path: Path, texts: list[str], ordered: list[str]) -> None:
    text = "arm,scale,cars\n" + "\n".join(f"a,{scale},0.5" for scale in texts)
    results = read(tmp_path, text)
    assert [results.scales[number] for number in sorted(results.scales)] == ordered


def test_cells_that_are_no_number_are_counted_and_percentages_are_shares(tmp_path: Path) -> None:
    text = "arm,seed,task,value\na,0,cars,12.5 %\na,1,cars,failed\na,2,cars,nan\na,3,cars,\n"
    results = read(tmp_path, text)
    assert values(results) == {("a", 0, "cars"): 0.125}
    assert "left out: 2 values that are no finite number" in results.notes


def test_rows_that_count_can_be_chosen(tmp_path: Path) -> None:
    results = read(tmp_path, CSV, where=(("task", "objects"), ("seed", "0"), ("seed", "1")))
    assert {row.task for row in results.rows} == {"objects"}
    assert len(results.rows) == 4


@pytest.mark.parametrize(
    ("text", "told", "message"),
    [
        ("arm,seed,task,value\na,0,t,1\na,0,t,2\n", {}, "two values"),
        ("a,b\nx,y\n", {}, "no column of values"),
        (CSV, {"names": {"arm": ("arn",)}}, "no column 'arn'"),
        (CSV, {"where": (("seeds", "1"),)}, "no column 'seeds'"),
        (CSV, {"pattern": "(?P<arm"}, "--pattern"),
        (CSV, {"pattern": "(?P<name>.)"}, "needs a group"),
        (CSV, {"pattern": "(?P<arm>zz)"}, "matches no arm"),
        ("arm,value\n", {}, "no row"),
        ("arm,value\na,1,2\n", {}, "more fields"),
        ("arm,value\na,x\n", {}, "no column of values"),
        (b"arm,value,value\na,1,1\n", {}, "two columns have the name 'value'"),
        ('{"arm": "a", "value": 1}\n{"arm": ', {}, "line 2: Expecting value"),
        (b"\x1f\x8bnothing", {}, "runs.csv: "),
        (CSV, {"where": (("task", "none"),)}, "leaves no row"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text, told, message) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text, **told)
