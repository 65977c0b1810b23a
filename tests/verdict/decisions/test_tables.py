"""Results of anyone's runs in every form that is read, and what is guessed."""

from __future__ import annotations

import gzip
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.verdict.measurements import Measurement as StudyRow
from clipmill.verdict.measurements import Measurements
from clipmill.verdict.tables.account import LeftOut
from clipmill.verdict.tables.reader import Results, read_results
from clipmill.verdict.tables.roles import Options
from tests.support.measurements import Measurement, rows_of

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
    return read_results([str(path)], Options(**told))


def values(results: Results) -> dict[tuple[str, int, str], float]:
    return {(row.arm, row.seed, row.task): row.value for row in rows_of(results)}


def role(results: Results, name: str) -> str:
    return next(one.role for one in results.account.columns if one.name == name)


def counts(left_out: tuple[LeftOut, ...]) -> dict[str, int]:
    return {one.reason: one.number for one in left_out}


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
        ("utf16.csv", CSV.encode("utf-16")),
        ("latin1.csv", CSV.replace("metric", "m\xe9trique").encode("latin-1")),
        ("runs.csv.gz", gzip.compress(CSV.encode())),
        ("runs.jsonl.gz", gzip.compress("\n".join(map(json.dumps, LONG)).encode())),
        ("lines.json", "\n".join(map(json.dumps, LONG))),
        ("columns.json", json.dumps({key: [row[key] for row in LONG] for key in LONG[0]})),
        (
            "pandas.json",
            json.dumps({k: {str(i): r[k] for i, r in enumerate(LONG)} for k in LONG[0]}),
        ),
        (
            "pandas.csv",
            "".join(f"{i - 1 if i else ''},{x}\n" for i, x in enumerate(CSV.split("\n"))),
        ),
        ("pandas_wide.csv", "".join(f"{i or ''},{x}\n" for i, x in enumerate(WIDE.split("\n")))),
        ("a log", f"# of two runs\n{CSV}"),
        ("pipes.txt", CSV.replace(",", "|")),
        ("table.md", "\n".join(f"| {x} |" for x in CSV.replace(",", " | ").split("\n"))),
        ("quoted.csv", re.sub(r"0\.(\d+)", r'"0,\1"', CSV)),
        ("lines_in_cells.csv", CSV.replace("objects", '"objects\n"')),
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("arm,value\na,1.5\n", 1.5),
        ('arm,value\na,"12,345.5"\n', 12345.5),
        ('arm,value\na,"1,234"\n', 1234.0),
        ('arm,value\na,"0,234"\n', 0.234),
        ("arm;value\na;1,234\n", 1.234),
        ("arm;value\na;12.345,5\n", 12345.5),
        ("arm;value\na;12,5 %\n", 0.125),
        ("arm,value\na,1.5e-3\n", 0.0015),
        ("arm,value\na,\N{MINUS SIGN}2\n", -2.0),
    ],
)
def test_numbers_as_people_write_them(tmp_path: Path, text: str, value: float) -> None:
    (row,) = rows_of(read(tmp_path, text))
    assert row.value == pytest.approx(value)


def test_a_column_with_one_value_names_no_arm(tmp_path: Path) -> None:
    """As in DCLM's table of models: `name` is where the evaluation ran."""
    text = "name,model,Core,params\n/eval,c4,0.3,1000\n/eval,rw,0.4,1000\n"
    results = read(tmp_path, text)
    assert [row.arm for row in rows_of(results)] == ["c4", "rw"]
    assert role(results, "params") == "setting"


def test_an_unnamed_column_of_names_is_the_arm(tmp_path: Path) -> None:
    results = read(tmp_path, ",cars\nraw,0.1\nclip30,0.2\n")
    assert [row.arm for row in rows_of(results)] == ["raw", "clip30"]


def test_sizes_of_a_model_are_no_results(tmp_path: Path) -> None:
    """As in open_clip's table of profiles."""
    with pytest.raises(ValueError, match="no column of values"):
        read(tmp_path, "model,image_size,embed_dim,mparams,image_gflops\na,224,256,43.2,3.5\n")


def test_runs_that_open_clip_named_are_told_apart_by_their_settings(tmp_path: Path) -> None:
    """Their names say when they began; `params.txt` says which tars and which seed."""
    for n, (tars, seed) in enumerate([("raw", 0), ("raw", 1), ("clip30", 0), ("clip30", 1)]):
        run = f"2026_11_30-10_0{n}_00-model_ViT-B-32-lr_0.0005-b_256-j_4-p_amp"
        log = "".join(f'{{"val-top1": {epoch + n / 100}, "epoch": {epoch}}}\n' for epoch in (1, 2))
        (tmp_path / run / "checkpoints").mkdir(parents=True)
        (tmp_path / run / "checkpoints/results.jsonl").write_text(log)
        lines = f"lr: 0.0005\nname: {run}\nseed: {seed}\ntrain_data: {tars}/{{0..9}}.tar\n"
        (tmp_path / run / "params.txt").write_text(lines)
    assert values(read_results([str(tmp_path)])) == {
        ("raw/{0..9}.tar", 0, "val-top1"): 2.0,
        ("raw/{0..9}.tar", 1, "val-top1"): 2.01,
        ("clip30/{0..9}.tar", 0, "val-top1"): 2.02,
        ("clip30/{0..9}.tar", 1, "val-top1"): 2.03,
    }


def test_files_of_the_same_arms_are_scales_if_asked(tmp_path: Path) -> None:
    """As RegMix's losses: a file for each size, a row for each mixture."""
    for size in ("1m", "60m"):
        read(tmp_path, "index,pile_loss\n1,3.0\n2,2.5\n", f"loss_{size}.csv")
    results = read_results([str(tmp_path)], Options(names={"scale": ("file",)}))
    assert {(row.arm, results.scales[row.scale]) for row in rows_of(results)} == {
        (arm, size) for arm in ("1", "2") for size in ("loss_1m", "loss_60m")
    }


def test_urls_folders_of_urls_and_pipes_are_read(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    files.pipe("/decide/runs/raw.csv.gz", gzip.compress(CSV.encode()))
    files.pipe("/decide/runs/notes.txt", b"no result")
    expected = values(read(tmp_path, CSV, "sub folder/runs.csv"))
    for path in ("memory://decide/runs", "memory://decide/runs/raw.csv.gz"):
        assert values(read_results([path])) == expected
    assert values(read_results([f"file://{tmp_path}/sub folder"])) == expected
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        pool.submit(pipe.write_text, CSV)
        assert values(read_results([str(pipe)])) == expected
    with pytest.raises(ValueError, match="nothing does not exist"):
        read_results([str(tmp_path / "nothing")])


def test_rows_that_repeat_another_one_are_counted(tmp_path: Path) -> None:
    results = read(tmp_path, f"{CSV}\n" + "\n".join(CSV.split("\n")[1:]))
    assert len(rows_of(results)) == len(LONG)
    assert counts(results.account.cells_left_out) == {"that repeat another row of their run": 8}


def test_seeds_beyond_the_precision_of_a_float_stay_apart(tmp_path: Path) -> None:
    results = read(tmp_path, "arm,seed,value\na,12345678901234567890,1\na,12345678901234567891,2\n")
    assert len({row.seed for row in rows_of(results)}) == 2


def test_every_column_has_one_role_and_every_row_and_cell_is_counted(tmp_path: Path) -> None:
    account = read(tmp_path, WIDE).account
    assert {one.name: one.role for one in account.columns} == {
        "name": "arm",
        "random_seed": "seed",
        "params (M)": "setting",
        "objects": "metric",
        "scenes": "metric",
    }
    assert (account.rows, account.rows_used, account.rows_left_out) == (4, 4, ())
    assert (account.cells, account.cells_used, account.cells_left_out) == (8, 8, ())


def test_lm_evals_results_have_their_task_size_and_direction(tmp_path: Path) -> None:
    assert rows_of(read(tmp_path, json.dumps(LM_EVAL), "results_1.json")) == (
        Measurement("raw", 0, "hellaswag", "acc", 0.4, samples=9, higher=True),
    )


def test_the_last_value_of_each_run_of_a_chart_that_was_exported(tmp_path: Path) -> None:
    head = "Step,raw-seed1 - val/acc,raw-seed1 - val/acc__MIN,clip30-seed2 - val/acc\n"
    results = read(tmp_path, head + "1,0.1,0.1,0.2\n2,0.3,0.1,\n")
    assert values(results) == {("raw", 1, "val/acc"): 0.3, ("clip30", 2, "val/acc"): 0.2}


def test_the_lists_of_a_long_training_are_its_steps(tmp_path: Path) -> None:
    """No pair of all 10,000 steps is compared."""
    falling = np.geomspace(2, 0.1, 10_000).tolist()
    lists = {"train_loss": falling, "val_loss": falling, "val_accuracy": [0.5, 0.6] * 5_000}
    results = read(tmp_path, json.dumps({"base": lists, "wide": lists}), "history.json")
    assert [row.arm for row in rows_of(results) if row.task == "val_accuracy"] == ["base", "wide"]


def test_a_folder_of_clip_benchmarks_files_has_an_arm_for_each_model(tmp_path: Path) -> None:
    for model in ("a", "b"):
        for task in ("cars", "pets"):
            row = {"dataset": task, "model": "ViT-B-32", "pretrained": model, "task": "zeroshot"}
            row["metrics"] = {"acc1": 0.5, "acc5": 0.9, "note": "text"}
            path = tmp_path / f"{model}-{task}.json"
            path.write_text(json.dumps(row))

    (tmp_path / "samples_cars.jsonl").write_text("{}")
    results = read_results([str(tmp_path)])

    assert {(row.arm, row.task, row.metric) for row in rows_of(results)} == {
        (model, task, metric)
        for model in ("a", "b")
        for task in ("cars", "pets")
        for metric in ("acc1", "acc5")
    }


def test_files_of_one_row_each_name_the_arm_by_what_differs_in_their_paths(tmp_path: Path) -> None:
    for arm in ("raw", "clip30"):
        read(tmp_path, json.dumps({"key": "cars", "metrics": {"acc1": 0.5}}), f"{arm}/eval.jsonl")

    assert {row.arm for row in rows_of(read_results([str(tmp_path)]))} == {"raw", "clip30"}


def test_the_measurements_of_a_study_are_a_table_of_arm_seed_task_metric_and_value(
    tmp_path: Path,
) -> None:
    row = StudyRow(
        arm="raw", seed=3, task="cars", metric="accuracy", value=0.5, scale=64, test_samples=2,
        chance=0.1, per_sample=(np.array([0.0, 1.0]),), source="a.parquet", sha256="b",
    )  # fmt: skip
    path = str(tmp_path / "measurements.parquet")
    Measurements.of([row, replace(row, arm="clip30", value=1.0, per_sample=None)]).write(path)
    results = read_results([path])
    assert {(one.arm, one.task, one.metric) for one in rows_of(results)} == {
        ("raw", "cars", "accuracy"),
        ("clip30", "cars", "accuracy"),
    }
    assert values(results) == {("raw", 3, "cars"): 0.5, ("clip30", 3, "cars"): 1.0}
    assert results.account.form == "measurements of a study"


def test_a_pattern_takes_arm_scale_and_seed_from_the_name(tmp_path: Path) -> None:
    text = "name,cars\npool_s_clip_1,0.1\npool_m_clip_2,0.2\nother,0.3\n"
    pattern = r"(?P<arm>pool)_(?P<scale>s|m)_(?P<arm2>\w+)_(?P<seed>\d)"
    results = read(tmp_path, text, pattern=pattern)
    assert [(r.arm, r.seed, results.scales[r.scale]) for r in rows_of(results)] == [
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


def test_a_training_log_from_step_0_asks_for_its_last_step(tmp_path: Path) -> None:
    """Its steps are too many for scales without a ratio."""
    rows = [f"{arm},{step},{step / 1e4}" for arm in ("raw", "clip30") for step in range(400)]
    with pytest.raises(ValueError, match=r"--last step \(the last row"):
        read(tmp_path, "arm,step,accuracy\n" + "\n".join(rows))
    with pytest.raises(ValueError, match="400 scales without a ratio"):
        read(tmp_path, "arm,step,accuracy\n" + "\n".join(rows), names={"scale": ("step",)})


def test_what_only_rows_that_are_left_out_hold_is_no_seed_and_no_scale(tmp_path: Path) -> None:
    rows = [
        {"arm": arm, "seed": seed, "samples_seen": size, "acc": 0.5}
        for arm in "ab"
        for seed, size in (("0", "1000"), ("10", "1000"), ("0", "8000"), ("10", "8000"))
    ]
    rows += [{"arm": arm, "seed": "mean", "samples_seen": "all", "acc": 0.5} for arm in "ab"]
    results = read(tmp_path, parquet_of(rows), "runs.parquet")
    assert counts(results.account.rows_left_out) == {"that summarise other rows (seed mean)": 2}
    assert set(results.seed_N.tolist()) == {0, 10}
    assert results.seeds == {}
    assert results.scales == {1000.0: "1000", 8000.0: "8000"}


def test_cells_that_are_no_number_are_counted_and_percentages_are_shares(tmp_path: Path) -> None:
    text = "arm,seed,task,value\na,0,cars,12.5 %\na,1,cars,failed\na,2,cars,nan\na,3,cars,\n"
    results = read(tmp_path, text)
    assert values(results) == {("a", 0, "cars"): 0.125}
    assert counts(results.account.cells_left_out) == {
        "empty": 1,
        "no finite number (value is 'failed', 'nan')": 2,
    }


def test_rows_that_count_can_be_chosen(tmp_path: Path) -> None:
    results = read(tmp_path, CSV, where=(("task", "objects"), ("seed", "0"), ("seed", "1")))
    assert {row.task for row in rows_of(results)} == {"objects"}
    assert len(rows_of(results)) == 4


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


def test_a_run_that_diverged_is_left_out_with_a_note(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("arm,seed,accuracy\na,0,0.4\na,1,0.5\nb,0,nan\nb,1,0.6\nb,2,-inf\nb,3,\n")
    results = read_results([str(path)])
    found = [(row.arm, row.value) for row in rows_of(results)]
    assert found == [("a", 0.4), ("a", 0.5), ("b", 0.6)]
    assert sum(counts(results.account.cells_left_out).values()) == 3
