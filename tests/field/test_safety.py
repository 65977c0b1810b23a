"""Pools, tables, names and rules of strangers: none runs code, takes the memory of the machine or
writes to a terminal as it likes; and what is like them and harmless works.

Each row names the public report whose kind it is of. The inputs are our own.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clipmill.filters import ranks
from clipmill.filters.ranks import SoftCap, ring_times
from clipmill.manifests import console, disk
from clipmill.manifests.schema import Rule, View
from clipmill.pipeline import cross_row
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring import scorer
from clipmill.pipeline.views import rules
from clipmill.pipeline.views.choose import check
from clipmill.pipeline.views.rules import Step
from tests.support import commands
from tests.support.chosen import choose, view
from tests.support.pool_filters import run_inline
from tests.support.small_pool import Row, make_pool

ROOT = Path(__file__).resolve().parents[2]


# --- a pool runs no code --------------------------------------------------------------------------


class Planted:
    """What makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def npz_of(value: Any) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, state=np.array([value], object))
    return sink.getvalue()


def parquet_of(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


@dataclass(frozen=True, kw_only=True)
class State:
    """A state that lies in a pool where the job of a score set expects its own."""

    source: str
    why: str
    form: str  # pickle, npz, columns or rows
    name: str = "state.parquet"


STATES = [
    State(source="repowise-dev/repowise#1390", why="a cache inside of the input", form="pickle"),
    State(
        source="beancount/beancount#1034",
        why="a cache of a fixed name beside the input",
        form="pickle",
        name="state.pickle",
    ),
    State(source="OSIPI/osipy#171", why="an array of objects in .npz", form="npz"),
    State(source="AD-Security/AD_Miner#238", why="protocol 0 is text", form="pickle 0"),
    State(source="the state of another filter", why="a table that is none of it", form="columns"),
    State(source="the state of another pool", why="a table without a row", form="rows"),
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.source)
def test_a_state_that_lies_in_a_pool_runs_no_code(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pool = make_pool(tmp_path / "pool", [Row(caption=f"dog {n}", width=90 + n) for n in range(9)])
    recipe = tmp_path / "r.yaml"
    score = "{rank: {rank_mean: {of: {original_width: 1, original_height: 2}}}}"
    source = "{kind: files, paths: [x.csv]}"
    recipe.write_text(f"name: r\nsource: {source}\nfilters: [{score}]\nviews: {{raw: []}}\n")
    words = [pool, "--recipe", str(recipe), "--engine", "inline"]
    marker = tmp_path / "ran"
    content = {
        "pickle": pickle.dumps(Planted(marker)),
        "pickle 0": pickle.dumps(Planted(marker), protocol=0),
        "npz": npz_of(Planted(marker)),
        "columns": parquet_of(pa.table({"share": [0.5]})),
        "rows": parquet_of(pa.table({"column": ["x"], "value": [0.5], "rank": [0.5]}).slice(1)),
    }[state.form]

    def plant(_: Any, job: cross_row.PoolJob, *__: Any, **___: Any) -> dict[str, str]:
        disk.write_json(disk.join(job.folder, "job.json"), job.identity())
        for number in range(job.units):
            disk.write_bytes(cross_row.summary_path(job, number), b"is not read")
        disk.write_bytes(disk.join(job.folder, state.name), content)
        return {"planted": "by a stranger"}

    with monkeypatch.context() as patched:
        patched.setattr(scorer, "compute", plant)
        assert commands.score(words) == console.EXIT_INCOMPLETE
    capsys.readouterr()
    assert commands.score(words) == console.EXIT_INCOMPLETE
    assert not marker.exists()
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    if "is damaged" not in errors[0]:  # of a table that can be read, the way through is this
        cross_row.remove_transient(PoolWriter(pool))
    assert commands.score(words) == 0, "what was planted is gone"


UNSAFE_NAMES = {"eval", "exec", "__import__"}
UNSAFE_METHODS = {
    ("pickle", "load"), ("pickle", "loads"), ("pickle", "Unpickler"), ("marshal", "load"),
    ("marshal", "loads"), ("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load"),
    ("joblib", "load"), ("dill", "load"), ("dill", "loads"), ("cloudpickle", "load"),
    ("cloudpickle", "loads"), ("shelve", "open"), ("pd", "read_pickle"),
    ("pandas", "read_pickle"), ("os", "system"),
}  # fmt: skip
SAFE_BY_OPTION = {
    ("torch", "load"): ("weights_only", True),
    ("np", "load"): ("allow_pickle", False),
}
# What is read there comes from no file of a pool: the factory of a stage, which the driver sends,
# and the Python file of a filter, which a person's own recipe names.
ALLOWED = {"pipeline/executor/tickets.py: pickle.loads", "filters/user_file.py: exec"}


def unsafe_calls(text: str) -> Iterator[str]:
    """The calls of a module that can run what a file says."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in UNSAFE_NAMES:
            yield node.func.id
        if not isinstance(node.func, ast.Attribute) or not isinstance(node.func.value, ast.Name):
            continue
        called = node.func.value.id, node.func.attr
        option = SAFE_BY_OPTION.get(called)
        values = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
        if called in UNSAFE_METHODS or (option and values.get(option[0]) is not option[1]):
            yield ".".join(called)


@dataclass(frozen=True, kw_only=True)
class Code:
    """A line of a program, and the call of it that can run what a file says."""

    source: str
    why: str
    text: str
    unsafe: list[str]


CODES = [
    Code(source="google/gemma_pytorch#1", why="no option", text="torch.load(p)",
         unsafe=["torch.load"]),
    Code(source="Linesight-RL/linesight#52", why="the option says no",
         text="torch.load(p, weights_only=False)", unsafe=["torch.load"]),
    Code(source="mit-han-lab/efficientvit#132", why="tensors alone",
         text="torch.load(p, weights_only=True)", unsafe=[]),
    Code(source="OSIPI/osipy#171 (code)", why="arrays of objects",
         text="np.load(p, allow_pickle=True)", unsafe=["np.load"]),
    Code(source="aboutcode-org/scancode-toolkit#5054", why="an index that is shipped",
         text="with open(p) as f: pickle.load(f)", unsafe=["pickle.load"]),
    Code(source="crewAIInc/crewAI#4746", why="JSON is no code", text="json.load(f)", unsafe=[]),
    Code(source="a network that is set to eval()", why="no eval of Python",
         text="model.eval().cpu()", unsafe=[]),
]  # fmt: skip


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.source)
def test_calls_that_run_what_a_file_says_are_known(code: Code) -> None:
    assert list(unsafe_calls(code.text)) == code.unsafe


def test_no_module_of_the_product_runs_what_a_file_says() -> None:
    calls = set()
    for package in ("clipmill", "manifests", "filters", "pipeline", "train", "verdict", "study"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            calls |= {f"{name}: {call}" for call in unsafe_calls(path.read_text())}
    assert calls == ALLOWED


# --- a terminal, a log line and JSON show what is there -------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text of a stranger and how it is shown."""

    source: str
    why: str
    text: str
    shown: str


TEXTS = [
    Text(source="poe-platform/poe-code#647", why="clears the screen",
         text="x\x1b[2J\x1b[H", shown=r"x\x1b[2J\x1b[H"),
    Text(source="andrebrait/DATROMTool#38", why="the title of the window",
         text="rom\x1b]0;owned\x07", shown=r"rom\x1b]0;owned\x07"),
    Text(source="kubestellar/console#20857", why="separators of lines, NUL",
         text="a\u2028b\u2029c\x00", shown=r"a\u2028b\u2029c\x00"),
    Text(source="quarkiverse/quarkus-http-problem#664", why="a log line that nobody wrote",
         text="a\n12:00:00 fetch: all is well", shown=r"a\x0a12:00:00 fetch: all is well"),
    Text(source="lint-md/cli#61", why="back to the beginning of the line",
         text="bad\rgood\x7f", shown=r"bad\x0dgood\x7f"),
    Text(source="GingerGraham/bash-logger#54", why="hides the cursor; one byte for ESC [",
         text="\x1b[?25l\x9b31m", shown=r"\x1b[?25l\x9b31m"),
    Text(source="opena2a-org/hackmyagent#330", why="right to left",
         text="\u202egnp.elif", shown=r"\u202egnp.elif"),
    Text(source="DouglasdeMoura/chroncal#369", why="isolates, no width, a byte order mark",
         text="a\u2066b\u2069\u200bc\ufeff", shown=r"a\u2066b\u2069\u200bc\ufeff"),
    Text(source="BurntSushi/xsv#275", why="a line break in a cell",
         text="first\nsecond", shown=r"first\x0asecond"),
    Text(source="uraurora/turnstile#22", why="0x9B is a byte of this letter in UTF-8",
         text="cześć ě Λ", shown="cześć ě Λ"),
    Text(source="niekcandaele/sitrep#33", why="Hebrew and Arabic without controls",
         text="כלב كلب", shown="כלב كلب"),
    Text(source="ronisbr/PrettyTables.jl#4", why="a backslash that was written",
         text=r"2\n \x1b", shown=r"2\n \x1b"),
]  # fmt: skip
ALL_TEXTS = pytest.mark.parametrize("row", TEXTS, ids=lambda row: row.source)


def is_plain(output: str) -> bool:
    """Whether a terminal only writes it."""
    return all(each == "\n" or each.isprintable() for each in output)


@ALL_TEXTS
def test_lines_errors_logs_and_json_are_plain(row: Text, capsys: Any) -> None:
    from clipmill.commands.app import print_json

    console.show(row.text)
    console.print_error(row.text)
    print_json({row.text: row.text}, True)
    out, err = capsys.readouterr()
    line, plain = out.splitlines()
    assert (line, err) == (row.shown, f"{row.shown}\n")
    assert json.loads(plain) == {row.text: row.text}
    assert is_plain(out)
    record = logging.LogRecord("pipeline.x", logging.WARNING, "", 0, "%s", (row.text,), None)
    assert console.LineFormatter().format(record).endswith(f" x: warning: {row.shown}")
    try:
        raise RuntimeError(row.text)
    except RuntimeError:
        record.exc_info = sys.exc_info()
    assert is_plain(console.LineFormatter().format(record))


@ALL_TEXTS
def test_names_of_groups_in_results_are_plain(row: Text, tmp_path: Path, capsys: Any) -> None:
    with (tmp_path / "r.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arm", "seed", "accuracy"])
        for seed in range(5):
            writer.writerow(["base", seed, 0.5 + seed / 100])
            writer.writerow([f"n{row.text.replace(chr(0), '')}", seed, 0.7 + seed / 100])
    words = [str(tmp_path / "r.csv"), "--baseline", "base"]
    assert commands.decide(words) in (0, 2)
    assert is_plain("".join(capsys.readouterr()))
    assert commands.decide([*words, "--json"]) in (0, 2)
    assert is_plain("".join(capsys.readouterr()))


@ALL_TEXTS
def test_the_history_of_a_row_and_a_rule_that_fails_are_plain(
    row: Text, tmp_path: Path, capsys: Any
) -> None:
    url = f"https://a.example/{row.text.replace(chr(0), '')}"
    pool = make_pool(tmp_path / "pool", [Row(caption=row.text, url=url), Row(caption="dog")])
    assert commands.audit(["explain", pool, url]) == 0
    output = "".join(capsys.readouterr())
    assert is_plain(output)
    assert row.shown.replace(r"\x00", "") in output
    recipe = {
        "name": "r",
        "source": {"kind": "files", "paths": ["x.csv"]},
        "views": {"v": [{"r": "CAST(caption AS INTEGER) > 3"}]},
    }
    (tmp_path / "r.json").write_text(json.dumps(recipe))
    assert commands.filter_pool([pool, "--recipe", str(tmp_path / "r.json")]) == 2
    assert is_plain("".join(capsys.readouterr()))


def test_files_of_any_name_are_built_and_tried_in_plain_lines(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, row in enumerate(TEXTS):
        name = f"{number}{row.text}".replace("\x00", "").replace("/", "")
        Image.new("RGB", (64, 64), (9 * number, 0, 0)).save(folder / f"{name}.jpg")
        (folder / f"{name}.txt").write_text(f"picture {row.text}")
        (folder / f"{name}-damaged.jpg").write_bytes(b"\x1b[2J")
        (folder / f"{name}-damaged.txt").write_text("none")
    recipe = tmp_path / "r.yaml"
    source = f"{{kind: image_folder, paths: [{json.dumps(str(folder))}], captions: txt}}"
    recipe.write_text(f"name: r\nsource: {source}\nfetch: {{image_size: 64}}\nviews: {{raw: []}}\n")
    pool = str(tmp_path / "pool")
    words = [str(recipe), "--out", pool, "--engine", "inline"]
    for command, given in (
        (commands.build, words),
        (commands.build, [*words, "--json"]),
        (commands.audit, [pool]),
        (commands.audit, [pool, "--json"]),
        (commands.audit, ["consent", pool]),
        (commands.filter_pool, ["columns", pool]),
        (commands.look, [pool, "--out", str(tmp_path / "page.html")]),
        (commands.try_folder, [str(folder), "--plan", "--out", str(tmp_path / "tried")]),
    ):
        assert command(given) in (0, 2), given
        assert is_plain("".join(capsys.readouterr())), given


# --- rules have a limit of memory and are the same in every release of DuckDB ---------------------


ROWS = pa.table(
    {
        "status": ["success"] * 6,
        "uid": [f"{number:032x}" for number in range(6)],
        "caption": ["a dog", "two cats & more", "x", "3", "", "an apple"],
        "label": ["0", "1", "none", "3", "4", "none"],
        "number": pa.array([0, 1, 2, 3, 4, 5], pa.int64()),
        "link": pa.array([10**12] * 6, pa.int64()),
        "score": [0.5, -0.5, 3.0, 0.1, 2.0, -7.0],
    }
)


@dataclass(frozen=True, kw_only=True)
class SqlRule:
    """A rule, and the rows that it keeps or what its refusal says."""

    source: str
    why: str
    where: str
    kept: int | None = None
    says: str = ""


LARGE, OTHER = "its memory has no limit", "in another release of DuckDB"
SQL_RULES = [
    SqlRule(source="duckdb/duckdb#12017", why="repeat() of repeat()", says=LARGE,
            where="length(repeat(repeat(caption, 900), 900)) > 3"),
    SqlRule(source="duckdb/duckdb#610", why="rpad() to any width", says=LARGE,
            where="rpad(caption, 100000000, 'x') <> ''"),
    SqlRule(source="duckdb/duckdb#16359", why="a number of the row, which a stranger wrote",
            where="len(range(link)) > 2", says=LARGE),
    SqlRule(source="duckdb/duckdb#24897", why="a column of numbers says how often", says=LARGE,
            where="repeat(caption, number) <> ''"),
    SqlRule(source="a function behind its argument", why="a method of a column", says=LARGE,
            where="caption.repeat(100000000) <> ''"),
    SqlRule(source="a width in a format", why="printf()", says=LARGE,
            where="length(printf('%300000000d', number)) > 3"),
    SqlRule(source="a width that an argument gives", why="format()", says=LARGE,
            where="length(format('{:{}}', number, 300000000)) > 3"),
    SqlRule(source="a replacement that is long", why="replace() of replace()", says=LARGE,
            where=f"replace(replace(caption, 'a', '{'b' * 99}'), 'b', '{'c' * 99}') <> ''"),
    SqlRule(source="a list of lists", why="range() in list_transform()", says=LARGE,
            where="len(list_transform(range(900), lambda x: repeat(caption, 900))) > 1"),
    SqlRule(source="a list that doubles a text", why="reduce()", says="of any size",
            where="list_reduce([caption, caption], lambda x, y: x || x || y) <> ''"),
    SqlRule(source="a number as a calculation", why="no constant", says=LARGE,
            where="bit_length(bitstring('1', 1000 * 1000000)) > 3"),
    SqlRule(source="duckdb/duckdb#15325", why="a padding of a fixed width",
            where="lpad(caption, 20, ' ') <> '' AND length(repeat(caption, 3)) > 20", kept=2),
    SqlRule(source="duckdb/duckdb#24534", why="a short range and a list of it",
            where="list_contains(list_transform(range(3), lambda x: x * 2), number)", kept=3),
    SqlRule(source="stencila/encoda#314", why="entities are replaced, one in another",
            where="length(replace(replace(replace(caption, '&', 'and'), ' ', '-'), 'x', '')) > 5",
            kept=2),
    SqlRule(source="duckdb/duckdb#17596", why="hash() of several", says=OTHER,
            where="hash(uid, 'salt') % 2 = 0"),
    SqlRule(source="duckdb/duckdb#17660", why="hash() inside of top()", says=OTHER,
            where="number >= top(hash(uid) % 7, 0.5)"),
    SqlRule(source="pola-rs/polars#12034", why="a sketch that is made of hashes", says=OTHER,
            where="list_aggregate([caption], 'approx_count_distinct') = 1"),
    SqlRule(source="duckdb/duckdb#16505", why="the bytes that sort a value", says=OTHER,
            where="create_sort_key(caption, 'ASC') > 'a'::BLOB"),
    SqlRule(source="duckdb/duckdb-web#1877", why="what the refusal names: uid is a hash",
            where="uid < '8'", kept=6),
    SqlRule(source="Query-farm/hashfuncs#2", why="a digest with a standard",
            where="md5(uid) <> sha256(uid)", kept=6),
]  # fmt: skip


@pytest.mark.parametrize("row", SQL_RULES, ids=lambda row: row.source)
def test_what_a_rule_may_compute(row: SqlRule) -> None:
    views = [view("v", ("r", row.where))]
    if row.kept is None:
        with pytest.raises(ValueError, match=row.says) as raised:
            check(views, ROWS.schema)
        assert len(str(raised.value).splitlines()) == 1
        assert "sample: 0.5" in str(raised.value) or row.says != OTHER
    else:
        check(views, ROWS.schema)
        assert choose({"0": ROWS}, views)["v"].kept == row.kept


def test_duckdb_itself_has_a_limit_and_no_folder() -> None:
    with rules.borrowed_connection() as connection:
        query = "SELECT current_setting('memory_limit'), current_setting('temp_directory')"
        limit, folder = connection.execute(query).fetchall()[0]
    assert limit == "1.8 GiB"
    assert folder == ""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Rules of which the last compares with a list of `{}`; it keeps as much however long."""

    source: str
    why: str
    rules: tuple[str, ...]
    values: str = "number"


LISTS = [
    Listed(source="duckdb/duckdb#12577", why="an earlier rule keeps numbers",
           rules=("label <> 'none'", "label IN ({})")),
    Listed(source="duckdb/duckdb#2685", why="CASE guards a cast",
           rules=("CASE WHEN label <> 'none' THEN label IN ({}) ELSE false END",)),
    Listed(source="duckdb/duckdb#16104", why="the argument of a function is guarded",
           rules=("abs(score) <= 1", "acos(score) IN ({}) OR acos(score) > 1")),
    Listed(source="duckdb/duckdb#16967", why="two lists, and one of them of numbers",
           rules=("label <> 'none'", "label IN ({}) AND number IN ({})")),
    Listed(source="duckdb/duckdb#23720", why="NOT IN", rules=("label <> 'none'",
           "label NOT IN ({})")),
    Listed(source="duckdb/duckdb-r#2410", why="a list of texts", values="text",
           rules=("label IN ({})",)),
    Listed(source="duckdb/duckdb#15479", why="a row that is not kept may be NULL",
           rules=("nullif(label, 'none') IS NOT NULL", "CAST(label AS BIGINT) IN ({})")),
]  # fmt: skip


@pytest.mark.parametrize("row", LISTS, ids=lambda row: row.source)
def test_a_long_list_decides_as_a_short_one(row: Listed) -> None:
    values = [1, 3] if row.values == "number" else ["'1'", "'3'"]
    more = range(100, 300) if row.values == "number" else [f"'n{n}'" for n in range(200)]
    results = []
    for listed in (values, [*values, *more]):
        text = ", ".join(map(str, listed))
        steps = [(f"r{n}", rule.replace("{}", text)) for n, rule in enumerate(row.rules)]
        chosen = choose({"0": ROWS}, [view("v", *steps)])["v"]
        results.append((chosen.column("rule"), chosen.funnel, chosen.effects))
    assert results[0] == results[1]


def test_a_long_list_that_cannot_be_compared_is_an_error_as_a_short_one_is() -> None:
    for listed in ([0, 1], range(40)):
        text = ", ".join(map(str, listed))
        with pytest.raises(ValueError, match="the text 'none' is no INT32"):
            choose({"0": ROWS}, [view("v", ("r", f"label IN ({text})"))])


# --- many views, and views that name views --------------------------------------------------------


def chain(depth: int, form: str, times: int = 2) -> list[View]:
    """Views of which each names the one before it `times` times."""
    views = [view("v0", ("w", "number > 0"))]
    for level in range(1, depth + 1):
        named: list[Rule] = []
        for number in range(times):
            named.append(Rule(name=f"r{number}", **{form: f"v{level - 1}"}))
        views.append(view(f"v{level}", *named))
    return views


def nine_views() -> list[View]:
    """Views that name one and have a rule of their own."""
    first = Rule(name="r", view="v0")
    return [view(f"w{number}", first, ("s", f"number < {number}")) for number in range(9)]


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Views that name views, and the steps of the last one or what is said."""

    source: str
    why: str
    views: list[View]
    steps: int = 0
    says: str = ""


CHAINS = [
    Chain(source="cockroachdb/cockroach#173725", why="each level doubles", views=chain(40, "view"),
          says="more than 2,000 rules, with those of the views that it names"),
    Chain(source="nodeca/js-yaml#742", why="each level has nine", views=chain(9, "view", 9),
          says="more than 2,000 rules"),
    Chain(source="apache/spark#17241", why="too deep", views=chain(300, "view", 1),
          says="names views more than 100 deep"),
    Chain(source="duckdb/duckdb#19067", why="sizes of views, twice a level",
          views=chain(40, "random_like"), steps=2),
    Chain(source="yaml/pyyaml#235", why="ten levels are no attack", views=chain(10, "view"),
          steps=1024),
    Chain(source="de-jcup/eclipse-yaml-editor#93", why="a circle",
          views=[view("v0", Rule(name="r", view="v1")), view("v1", Rule(name="r", view="v0"))],
          says="views name each other in a circle: v1 -> v0 -> v1"),
    Chain(source="manala/manala#374", why="one view that many name",
          views=[*chain(0, "view"), *nine_views()], steps=2),
]  # fmt: skip


@pytest.mark.parametrize("row", CHAINS, ids=lambda row: row.source)
def test_views_that_name_views_cost_what_their_rules_do(row: Chain) -> None:
    last = row.views[-1].name
    if row.says:
        with pytest.raises(ValueError, match=row.says):
            rules.steps_of(row.views, last)
        return
    steps = rules.steps_of(row.views, last)
    assert len(steps) == len({step.name for step in steps}) == row.steps
    assert len(rules.rules_of(row.views, last)) == row.steps
    assert rules.columns_of(row.views, last, ROWS.column_names) >= {"status"}
    check(row.views, ROWS.schema)


FORMS = {
    "duckdb/duckdb#12708": "{sample: 0.9, seed: %d}",
    "apache/arrow#38427": "'original_width >= top(original_width - %d, 0.5)'",
    "manaakiwhenua/vector2dggs#76": "{random_like: v0, seed: %d}",
}


@pytest.mark.parametrize("source", FORMS)
def test_more_views_than_files_that_may_be_open(source: str, tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", [Row(caption="a", width=90 + n) for n in range(9)])
    lines = ["  v0: [{r: original_width > 92}]"]
    lines += [f"  v{n}: [{{r: {FORMS[source] % n}}}]" for n in range(1, 110)]
    text = "name: r\nsource: {kind: files, paths: [x.csv]}\nviews:\n" + "\n".join(lines)
    (tmp_path / "r.yaml").write_text(f"{text}\n")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (90, 90))"
    words = ["filter", pool, "--recipe", str(tmp_path / "r.yaml")]
    code = f"{limit}\nfrom clipmill.commands.app import main\nraise SystemExit(main({words!r}))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-500:]
    assert len(list((tmp_path / "pool/views").glob("v*.json"))) == 110


# --- soft cap sampling ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of some rows, and the draws that it is."""

    source: str
    why: str
    share: float
    rows: int
    draws: int


SHARES = [
    Share(source="project-chip/connectedhomeip#27912", why="100 * 0.07 is above 7", share=0.07,
          rows=100, draws=7),
    Share(source="SkriptLang/Skript#4235", why="100 * 0.55 is above 55", share=0.55, rows=100,
          draws=55),
    Share(source="paiml/aprender#2136", why="2.1 is rounded up", share=0.3, rows=7, draws=3),
    Share(source="dask/dask-ml#747", why="a whole product", share=0.29, rows=100, draws=29),
    Share(source="Qqwy/elixir-rational#89", why="more draws than rows", share=1.1, rows=10,
          draws=11),
]  # fmt: skip


def scored(count: int, scale: float = 1.0) -> pa.Table:
    generator = np.random.default_rng(count)
    uids = [f"{number:032x}" for number in generator.permutation(count)]
    return pa.table({"uid": uids, "a": scale * generator.normal(size=count)})


@pytest.mark.parametrize("row", SHARES, ids=lambda row: row.source)
def test_a_share_is_taken_exactly(row: Share) -> None:
    values = run_inline(SoftCap(of="a", share=row.share, most=4), [scored(row.rows)], 1)
    assert sum(each["soft_cap"] for each in values.values()) == row.draws


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0, 1e9])
def test_a_histogram_of_few_bins_finds_the_last_draw(
    scale: float, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MaterializeInc/materialize#5815: a percentile that keeps all values does not scale."""
    monkeypatch.setattr(ranks, "MOST_BINS", 20)
    pool, filter_ = scored(600, scale), SoftCap(of="a", share=0.4, most=8)
    shards = [pool.slice(start, 100) for start in range(0, 600, 100)]
    assert filter_.merge(pa.concat_tables(map(filter_.summarise, shards))).num_rows <= 20
    values = run_inline(filter_, shards, partitions)
    times = ring_times(pool["a"].to_numpy(), pool["uid"].to_pylist(), 0.15, 8, 0)
    last = np.sort(times.ravel())[239]
    expected = (times <= last).sum(axis=1).tolist()
    assert [values[uid]["soft_cap"] for uid in pool["uid"].to_pylist()] == expected


def test_steps_of_a_stored_view_are_read_as_they_were() -> None:
    views = chain(2, "view")
    plain = rules.rules_of(views, "v2")
    assert [each.name for each in plain] == ["r0.r0.w", "r0.r1.w", "r1.r0.w", "r1.r1.w"]
    assert rules.step_of(plain[0]) == Step(name="r0.r0.w", where="number > 0")
