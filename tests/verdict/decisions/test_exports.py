"""A decision as Markdown, LaTeX, CSV and SVG: read back by parsers, with names of strangers."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from clipmill.manifests.text import is_printable, printable
from clipmill.verdict import wording
from clipmill.verdict.decide.exports import COLUMNS, failed, to_csv, to_latex, to_markdown, to_svg
from clipmill.verdict.decide.page import arm_rows, decision_lines, headline
from clipmill.verdict.decide.verdicts import Decision, Question, decide
from clipmill.verdict.stats.analysis import mean_sd
from clipmill.verdict.stats.model import Values
from clipmill.verdict.tables.account import Account
from tests.support.measurements import Measurement, results_of
from tests.verdict.decisions.test_account import ACCOUNT, facts
from tests.verdict.decisions.test_page import Read, decided, in_unit, with_account

HOSTILE = (
    "raw & base_line $5 100%",
    "<b>x</b> | \\textbf{y} #1 ^2 ~",
    "**bold** `code` [link](http://x) ![i](y) __a__ a_b_c ~~gone~~ $x$ &amp; #1",
    "a\x1b[31m\nnew--line \u202e ,, '' ``",
    "[option] \\\\ ?` !`",
    "*star",
    '=SUM(A1), "quoted"',
    "日本語の長い名前のフィルタ" * 4,
)
NAMES = st.lists(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(str.strip),
    min_size=2,
    max_size=3,
    unique_by=lambda name: printable(name).strip(),
)
SVG = "{http://www.w3.org/2000/svg}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadWithRuns(Read):
    """A decision that has the runs of all tasks."""

    task_values: dict[str, Values]


def hostile() -> Decision:
    return decided({name: 0.3 + 0.03 * place for place, name in enumerate(HOSTILE)})


def shown_table(d: Decision) -> list[list[str]]:
    """The cells of the arms, as the terminal has them."""
    rows = []
    for arm, runs, score, row in arm_rows(d):
        words = [wording.difference(row), str(row.verdict)] if row else ["", ""]
        if arm == d.baseline:
            words = ["", "baseline"]
        rows.append([printable(arm), str(runs), score, *words])
    return rows


# --- Markdown -------------------------------------------------------------------------------------


def read_markdown(text: str) -> tuple[list[list[str]], list[str]]:
    """The rows of its only table, and its paragraphs. Any other mark but bold ones fails."""
    rows: list[list[str]] = []
    texts, is_cell = [], False
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("td_open", "th_open", "paragraph_open"):
            is_cell = token.type != "paragraph_open"
        elif token.type == "inline":
            kinds = {child.type for child in token.children}
            assert kinds <= {"text", "text_special", "strong_open", "strong_close"}, token.content
            content = "".join(child.content for child in token.children)
            if is_cell:
                rows[-1].append(content)
            else:
                texts.append(content)
        else:
            assert re.fullmatch("(table|thead|tbody|tr|td|th|paragraph)_(open|close)", token.type)
    return rows, texts


def test_markdown_has_the_words_of_the_terminal() -> None:
    decision = hostile()
    lines = to_markdown(decision).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert re.fullmatch(r"\| -+ \| -+: \| -+: \| -+ \| -+ \|", table[1])
    assert len({wording.cells(line) for line in table}) == 1
    rows, (first, caption, *texts) = read_markdown(to_markdown(decision))
    assert rows[1:] == shown_table(decision)
    assert first == printable(headline(decision))
    assert caption == "Mean ± standard deviation over runs; intervals hold for all arms together."
    lines = decision_lines(decision)
    assert texts
    assert all(text in lines for text in texts)


@settings(max_examples=60)
@given(NAMES)
def test_markdown_finds_nothing_in_a_name(names: list[str]) -> None:
    decision = decided(dict.fromkeys(names, 0.4))
    rows, _ = read_markdown(to_markdown(decision))
    assert [row[0] for row in rows[1:]] == [row[0].strip(" ") for row in shown_table(decision)]


def test_a_name_of_letters_and_underscores_is_readable_as_it_stands() -> None:
    decision = decided({"raw": 0.3, "clip_30_b": 0.4})
    assert "| clip_30_b | 4 " in to_markdown(decision).replace("   ", " ").replace("  ", " ")
    assert "[+" in to_markdown(decision)


# --- LaTeX ----------------------------------------------------------------------------------------

LETTERS = {
    "backslash": "\\", "asciitilde": "~", "asciicircum": "^", "less": "<", "greater": ">",
    "bar": "|",
}  # fmt: skip
TOKEN = re.compile(r"\\text([a-z]+)\{\}|\\([&%$#_{}])|\$([^$]*)\$|(\{\})|(--)|([^\\&%$#_{}~^<>|])")


def read_latex(text: str) -> str:
    """What is printed of a cell. ValueError for what would be a command, and for ligatures."""
    place, printed, before = 0, "", ""
    while place < len(text):
        token = TOKEN.match(text, place)
        if token is None:
            raise ValueError(f"{text[place:]!r} begins with what LaTeX acts on")
        name, escaped, formula, nothing, dash, letter = token.groups()
        pair = before + (letter or "")
        if pair in ("--", "``", "''", ",,", "?`", "!`"):
            raise ValueError(f"{pair!r} is a ligature")
        before = letter or "x"
        printed += LETTERS[name] if name else escaped or letter or ""
        printed += read_formula(formula) if formula else wording.DASH if dash else ""
        assert nothing in (None, "{}")
        place = token.end()
    return printed


def read_formula(text: str) -> str:
    """Numbers as the terminal has them. ValueError for a command that is not known."""
    plain = re.sub(r" \\times 10\^\{(-?)(\d+)\}", lambda m: f"e{m[1] or '+'}{m[2].zfill(2)}", text)
    for command, sign in ((r"\pm", "±"), (r"\div", "÷"), ("\\ ", " ")):
        plain = plain.replace(command, sign)
    if "\\" in plain:
        raise ValueError(f"{plain!r} has a command")
    return re.sub(r"(?<!e)-", wording.MINUS, plain)


def latex_rows(text: str) -> list[list[str]]:
    """What the cells of the rows of a tabular print."""
    first, *lines = text.splitlines()
    assert first == r"% \usepackage{booktabs}"
    lines = [line for line in lines if not line.startswith("% ")]
    assert lines[0] == r"\begin{tabular}{lrrll}"
    assert lines[-1] == r"\end{tabular}"
    assert [lines[1], lines[3], lines[-2]] == [r"\toprule", r"\midrule", r"\bottomrule"]
    rows = []
    for line in (lines[2], *lines[4:-2]):
        assert line.endswith(r" \\")
        assert line[0] not in "[*"
        cells = re.split(r"(?<!\\) ?& ", line.removesuffix(r" \\"))
        rows.append([read_latex(cell) for cell in cells])
    return rows


def test_latex_has_the_words_of_the_terminal() -> None:
    decision = hostile()
    text = to_latex(decision)
    rows = latex_rows(text)
    assert rows[0][2:4] == ["cars, accuracy, %", f"points to {HOSTILE[0]} [95 %]"]
    assert rows[1:] == shown_table(decision)
    comments = [line for line in text.splitlines() if line.startswith("% ")]
    assert f"% {printable(headline(decision))}" in comments
    assert any("smallest visible difference" in line for line in comments)


@pytest.mark.parametrize(
    ("means", "noise", "formula"),
    [
        ({"raw": 4e-5, "b": 3e-5}, 6e-7, r"\times 10^{-5} \pm"),
        ({"raw": 4e9, "b": 3e9}, 6e7, r"\times 10^{9} \pm"),
    ],
)
def test_a_power_of_ten_is_one_in_latex(
    means: dict[str, float], noise: float, formula: str
) -> None:
    decision = in_unit(decided(means, noise, metric="loss"), "")
    assert formula in to_latex(decision)
    assert latex_rows(to_latex(decision))[1:] == shown_table(decision)


@settings(max_examples=60)
@given(NAMES)
def test_latex_finds_no_command_in_a_name(names: list[str]) -> None:
    decision = decided(dict.fromkeys(names, 0.4))
    rows = latex_rows(to_latex(decision))
    assert [row[0] for row in rows[1:]] == [row[0] for row in shown_table(decision)]


# --- CSV ------------------------------------------------------------------------------------------


def with_runs(decision: Decision, account: Account, **values: Values) -> ReadWithRuns:
    read = with_account(decision, account)
    fields = {one.name: getattr(read, one.name) for one in dataclasses.fields(read)}
    return ReadWithRuns(**{**fields, "task_values": values})


def two_tasks() -> Decision:
    rows = [
        Measurement(arm, seed, task, "accuracy", mean + place + 0.01 * (seed * 100 * mean % 7))
        for task, place in (("cars", 0.1), ("pets", 0.2))
        for arm, mean in (("raw", 0.3), ("b", 0.55))
        for seed in range(4)
    ]
    return decide(results_of(rows, scales={0.0: ""}, costs=True), Question())


def test_csv_has_a_row_for_each_arm_and_task_with_full_precision() -> None:
    decision = two_tasks()
    account = dataclasses.replace(
        ACCOUNT, metrics=(facts("cars", "accuracy"), facts("pets", "accuracy"))
    )
    pets = {"raw": {0: 0.5, 1: 0.6}, "b": {0: 0.7}}
    rows = list(csv.DictReader(io.StringIO(to_csv(with_runs(decision, account, pets=pets)))))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["task"], row["arm"]) for row in rows] == [
        (task, arm) for task in ("average", "cars", "pets") for arm in ("raw", "b")
    ]
    assert {row["direction"] for row in rows} == {"more"}
    assert {row["unit"] for row in rows} == {"share"}
    first, second = rows[:2]
    (compared,) = decision.result.comparisons
    assert [first[name] for name in ("difference", "low", "verdict")] == ["", "", "baseline"]
    assert second["verdict"] == compared.verdict
    for name in ("difference", "low", "high", "p_adjusted"):
        assert float(second[name]) == getattr(compared, name)
    for row in rows[:2]:
        runs = list(decision.values[row["arm"]].values())
        assert (float(row["mean"]), float(row["sd"])) == mean_sd(runs)
        assert row["runs"] == "4"
    assert [row["mean"] for row in rows[2:4]] == ["", ""]  # the runs of `cars` were not given
    assert (rows[4]["mean"], rows[4]["runs"]) == ("0.55", "2")
    assert (rows[5]["mean"], rows[5]["sd"]) == ("0.7", "")


def test_a_direction_that_nobody_says_is_empty_in_csv() -> None:
    decision = two_tasks()
    both = (
        facts("cars", "accuracy"),
        facts("cars", "loss", higher_is_better=False),
        facts("pets", "accuracy", higher_is_better=False),
    )
    account = dataclasses.replace(ACCOUNT, metrics=both)
    rows = list(csv.DictReader(io.StringIO(to_csv(with_account(decision, account)))))
    assert [row["direction"] for row in rows] == ["", "", "more", "more", "less", "less"]


def test_csv_keeps_names_as_they_are() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(hostile()), newline="")))
    assert tuple(row["arm"] for row in rows) == HOSTILE


# --- SVG ------------------------------------------------------------------------------------------


def texts_of(svg: str) -> list[str]:
    return ["".join(one.itertext()) for one in ET.fromstring(svg).iter(f"{SVG}text")]


def test_the_drawing_is_one_file_that_needs_nothing_else() -> None:
    svg = to_svg(decided({"raw": 0.3, "b": 0.5, "c": 0.3}))
    root = ET.fromstring(svg)
    kinds = {one.tag.removeprefix(SVG) for one in root.iter()}
    assert kinds == {"svg", "title", "rect", "path", "circle", "text", "tspan"}
    attributes = {name for one in root.iter() for name in one.attrib}
    assert not attributes & {"class", "style", "href"}
    assert "var(" not in svg
    assert "url(" not in svg
    assert all(one.get("fill") or one.get("stroke") for one in root.iter(f"{SVG}path"))
    assert root[1].get("fill") == "#ffffff"


def test_the_drawing_has_names_numbers_verdicts_and_a_dot_for_each_run() -> None:
    decision = decided({"raw": 0.3, "b": 0.5, "c": 0.3})
    svg = to_svg(decision)
    texts = texts_of(svg)
    for arm, runs, score, row in arm_rows(decision):
        assert arm in texts
        wanted = f"{score} ({runs} runs) baseline"
        if row is not None:
            wanted = f"{wording.difference(row)} {row.verdict}"
        assert wanted in texts
    assert "points to raw" in texts
    assert "cars, accuracy, %" in texts
    assert {"0", "+10", "+20"} <= set(texts)
    radii = [one.get("r") for one in ET.fromstring(svg).iter(f"{SVG}circle")]
    assert (radii.count("2"), radii.count("3.5")) == (8, 2)
    assert "counts as equal" not in svg


def test_nothing_is_drawn_outside_of_the_drawing() -> None:
    for decision in (hostile(), decided({"raw": 1e12, "b": 3e12}, 1e11, metric="loss")):
        root = ET.fromstring(to_svg(decision))
        width, height = float(root.get("width")), float(root.get("height"))
        for one in root.iter():
            for name, limit in (("x", width), ("cx", width), ("y", height), ("cy", height)):
                assert 0 <= float(one.get(name, 0)) <= limit
            if one.tag == f"{SVG}text":
                size = wording.cells("".join(one.itertext())) * float(one.get("font-size"))
                assert size * 0.6 <= width


def test_a_name_and_the_numbers_beside_it_do_not_touch() -> None:
    places: dict[str, float] = {}
    for one in ET.fromstring(to_svg(hostile())).iter(f"{SVG}text"):
        if one.get("text-anchor") != "middle":
            size = wording.cells("".join(one.itertext())) * float(one.get("font-size"))
            places[one.get("y")] = places.get(one.get("y"), 0.0) + size * 0.6
    assert len(places) > len(HOSTILE)
    assert max(places.values()) < 420 - 2 * 14


def test_an_interval_without_an_end_reaches_the_edge() -> None:
    decision = decided({"raw": 0.3, "b": 0.5})
    (row,) = decision.result.comparisons
    wide = dataclasses.replace(row, low=-math.inf, high=math.inf)
    result = dataclasses.replace(decision.result, comparisons=(wide,))
    paths = ET.fromstring(to_svg(dataclasses.replace(decision, result=result))).iter(f"{SVG}path")
    (bar,) = [path.get("d") for path in paths if path.get("stroke-width")]
    assert re.match(r"M14\.0 [\d.]+H406\.0M", bar)


def test_one_model_has_its_dot_from_the_mean_of_the_baseline() -> None:
    decision = decided({"raw": 0.3, "b": 0.5})
    (row,) = decision.result.comparisons
    one = dataclasses.replace(row, seeds=(), n=0)
    result = dataclasses.replace(decision.result, comparisons=(one,))
    values = {**decision.values, "b": {0: 0.5}}
    svg = to_svg(dataclasses.replace(decision, result=result, values=values))
    circles = {one.get("r"): one.get("cx") for one in ET.fromstring(svg).iter(f"{SVG}circle")}
    assert set(circles) == {"2", "3.5"}


def test_names_of_strangers_are_whole_in_the_drawing() -> None:
    drawn = "".join(texts_of(to_svg(hostile()))).replace(" ", "")
    for name in HOSTILE:
        assert printable(name).replace(" ", "") in drawn


@settings(max_examples=60)
@given(NAMES)
@example(["raw", "\U0001f3fb"])  # the colour of a hand, without one
def test_the_drawing_is_xml_whatever_the_names(names: list[str]) -> None:
    svg = to_svg(decided(dict.fromkeys(names, 0.4)))
    assert all(is_printable(line) for line in svg.splitlines())
    drawn = "".join(texts_of(svg)).replace(" ", "")
    for name in names:
        assert printable(name).replace(" ", "") in drawn


def test_what_is_not_decided_stands_in_the_drawing() -> None:
    svg = to_svg(decided({"raw": 0.3, "b": 0.5}, seeds=1))
    texts = texts_of(svg)
    assert "30.1 (1 run) baseline" in texts
    assert any(text.endswith(" (1 run) not compared") for text in texts)
    assert "Notdecided:noverdict:everyarmhasonerun" in "".join(texts).replace(" ", "")
    assert "<path" not in svg


def test_the_band_of_what_counts_as_equal_is_drawn_and_named() -> None:
    decision = decided({"raw": 0.3, "b": 0.5})
    rows = tuple(dataclasses.replace(row, band=0.01) for row in decision.result.comparisons)
    result = dataclasses.replace(decision.result, comparisons=rows)
    svg = to_svg(dataclasses.replace(decision, result=result))
    assert "Grey: counts as equal." in " ".join(texts_of(svg))
    assert len(list(ET.fromstring(svg).iter(f"{SVG}rect"))) == 2


# --- --fail-on ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "arms"),
    [
        (["worse"], ["down"]),
        (["better"], ["up"]),
        (["different"], ["up", "down"]),
        (["undecided"], ["same", "one"]),
        (["worse,undecided"], ["down", "same", "one"]),
        (["worse", "better"], ["up", "down"]),
    ],
)
def test_arms_that_make_the_command_fail(words: list[str], arms: list[str]) -> None:
    decision = decided({"raw": 0.5, "up": 0.8, "down": 0.2, "same": 0.5, "one": 0.5})
    kept = tuple(row for row in decision.result.comparisons if row.arm != "one")
    result = dataclasses.replace(decision.result, comparisons=kept)
    assert failed(dataclasses.replace(decision, result=result), words) == arms


@pytest.mark.parametrize("words", [["wurse"], ["worse,"], [""]])
def test_another_word_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match="none of worse, better, different, undecided"):
        failed(decided({"raw": 0.5, "b": 0.8}), words)
