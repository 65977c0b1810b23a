"""`clipmill mix`: swarms of ablations and of tables, and the files to go on with."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from clipmill.manifests import console, disk, reader
from clipmill.manifests.schema import Ablation, Mixtures
from clipmill.verdict.measurements import Measurement, Measurements
from tests.support import commands
from tests.support.ablations import TRAIN, two_classes
from tests.support.reports import complete_pool

SOURCES = ("books", "code", "web")


def tables(
    folder: Path, runs: int = 16, key: str = "run", noise: float = 0.01, effect: float = 1.0
) -> tuple[str, str]:
    """ratios.csv and metrics.csv of a swarm in which books are best and code is worst."""
    random = np.random.default_rng(0)
    shares_RS = random.dirichlet(np.ones(3), runs).round(3)
    ratios, metrics = [f"{key},name,{','.join(SOURCES)}"], [f"{key},name,arc_bpb,mmlu_bpb"]
    for n, share_S in enumerate(shares_RS):
        loss = 1 + effect * np.exp(-np.sqrt(share_S) @ [1.5, 0.1, 0.7]) + random.normal(0, noise)
        ratios.append(f"r{n},swarm {n},{','.join(map(str, share_S))}")
        metrics.append(f"r{n},swarm {n},{loss},{loss + 1}")
    (folder / "ratios.csv").write_text("\n".join(ratios) + "\n")
    (folder / "metrics.csv").write_text("\n".join(metrics) + "\n")
    return str(folder / "ratios.csv"), str(folder / "metrics.csv")


def change(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new, 1))


def mixed(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON of a command that succeeds."""
    assert commands.mix([*words, "--json"]) == 0
    printed = capsys.readouterr().out
    choice: dict[str, Any] = json.loads(printed[printed.index("\n{") :])
    return choice


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert commands.mix(words) == 2
    return capsys.readouterr().err


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["run", "run_id", "index"])
def test_tables_give_a_blend_that_olmix_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    folder = tmp_path / "a path"
    folder.mkdir()
    choice = mixed([*tables(folder, key=key), "--to", str(folder / "to")], capsys)
    shares = dict(zip(choice["sources"], choice["shares"], strict=True))
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["books"] > 0.5 > shares["web"] > shares["code"]
    assert choice["targets"] == ["arc_bpb", "mmlu_bpb"]
    assert (choice["runs"], choice["mixtures"], choice["repeats"]) == (16, 16, None)
    assert choice["found"] < choice["others"]["uniform"]
    assert choice["p"] < 1e-3
    assert choice["skill"] > 0.95
    assert 0 <= choice["regret"] <= choice["regret_high"] < 0.05
    lines = (folder / "to" / "ratios.csv").read_text().splitlines()
    assert lines[0] == "run,books,code,web"
    assert json.loads((folder / "to" / "mix.json").read_text()) == choice
    assert [float(cell) for cell in lines[1].split(",")[1:]] == choice["shares"]


def test_tables_of_a_spreadsheet_with_decimal_commas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """opendidac/opendidac#681, asafdav/ng-csv#28: a mark, the delimiter and decimal commas."""
    words = [*tables(tmp_path)]
    plain = mixed(words, capsys)
    for name in words[:2]:
        text = Path(name).read_text().replace(",", ";").replace(".", ",")
        Path(name).write_text(f"\ufeffsep=;\n{text}")
    assert mixed(words, capsys)["found"] == plain["found"]


def test_what_is_written_replaces_its_own_files_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*tables(tmp_path), "--to"]
    before = (tmp_path / "ratios.csv").read_text()
    assert "a ratios.csv that" in refused([*words, str(tmp_path)], capsys)
    assert (tmp_path / "ratios.csv").read_text() == before
    out = tmp_path / "to"
    assert mixed([*words, str(out)], capsys) == mixed([*words, str(out)], capsys)
    (out / "blend.yaml").write_text("of an earlier answer, whose shares came from an ablation")
    mixed([*words, str(out)], capsys)
    assert sorted(path.name for path in out.iterdir()) == ["mix.json", "ratios.csv"]


def test_more_is_better_where_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*tables(tmp_path), "--target", "mmlu_bpb", "--higher-is-better", "mmlu_bpb"]
    choice = mixed(words, capsys)
    shares = dict(zip(choice["sources"], choice["shares"], strict=True))
    assert shares["code"] > shares["books"]
    assert choice["found"] > choice["others"]["uniform"]
    assert choice["targets"] == ["mmlu_bpb"]


def with_metrics(metrics: str, names: str, columns: Any) -> str:
    """The table of metrics with columns of these names: each made from the mean of the others."""
    header, *lines = Path(metrics).read_text().splitlines()
    rows = [f"{header.split(',')[0]},{names}"]
    for line in lines:
        run, _, value, _ = line.split(",")
        rows.append(",".join([run, *(str(one(float(value))) for one in columns)]))
    Path(metrics).write_text("\n".join(rows) + "\n")
    return metrics


def test_more_of_an_accuracy_is_better_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ratios, metrics = tables(tmp_path)
    with_metrics(metrics, "imagenet_acc,thing of mine", [lambda x: 1 - x / 3, lambda x: -x])
    words = [ratios, metrics, "--target"]
    choice = mixed([*words, "imagenet_acc"], capsys)
    shares = dict(zip(choice["sources"], choice["shares"], strict=True))
    assert shares["books"] > 0.5 > shares["code"]
    assert choice["found"] > choice["others"]["uniform"]
    assert "imagenet_acc: more is better (by its name), share" in choice["notes"]
    guessed = mixed([*words, "thing of mine"], capsys)
    assert guessed["shares"] == choice["shares"]
    assert "thing of mine: more is better (a guess), an unknown unit" in guessed["notes"]
    told = [*words, "thing of mine", "--lower-is-better", "thing of mine"]
    opposite = mixed(told, capsys)
    assert "thing of mine: less is better (as you say), an unknown unit" in opposite["notes"]
    assert opposite["shares"] != choice["shares"]


@pytest.mark.parametrize(
    ("names", "columns", "message"),
    [
        (
            "imagenet_acc,val_loss",
            [lambda x: 1 - x / 3, lambda x: x],
            "metrics of two directions have no mean; imagenet_acc: more is better (by its name), "
            "share; val_loss: less is better (by its name), an unknown unit; choose with --target",
        ),
        (
            "wiki_bpb,code_perplexity",
            [lambda x: x, lambda x: 40 * x],
            "metrics of two units have no mean; wiki_bpb: less is better (by its name), bits per "
            "byte; code_perplexity: less is better (by its name), perplexity; choose",
        ),
        (
            "acc,pets_acc",
            [lambda x: 1 - x / 3, lambda x: 100 - 30 * x],
            "acc: more is better (by its name), share; pets_acc: more is better (by its name), "
            "percent; choose",
        ),
        ("loss,constant", [lambda x: x, lambda x: 2.5], "constant is 2.5 in all 16 runs"),
    ],
    ids=["directions", "units", "percent", "constant"],
)
def test_metrics_without_a_mean_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: str, columns: Any, message: str
) -> None:
    ratios, metrics = tables(tmp_path)
    with_metrics(metrics, names, columns)
    error = refused([ratios, metrics], capsys)
    assert message in error
    assert "--target" in error
    assert mixed([ratios, metrics, "--target", names.split(",")[0]], capsys)["runs"] == 16


def test_directions_are_told_once_and_of_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*tables(tmp_path), "--target", "arc_bpb"]
    lower, higher = ["--lower-is-better"], ["--higher-is-better"]
    for more, message in (
        ([*lower, "mmlu_bpb"], "--lower-is-better names 'mmlu_bpb', which is no --target"),
        ([*higher, "mmlu_bpp"], "has no metric 'mmlu_bpp'; did you mean 'mmlu_bpb'"),
        ([*higher, "arc_bpb", *lower, "arc_bpb"], "'arc_bpb' is in --lower-is-better and in"),
    ):
        assert message in refused([*words, *more], capsys)


def test_a_step_is_no_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ratios, metrics = tables(tmp_path)
    with_metrics(metrics, "_step,loss", [lambda x: 100 * x, lambda x: x])
    choice = mixed([ratios, metrics], capsys)
    assert choice["targets"] == ["loss"]
    assert f"not read: '_step' of {metrics}" in choice["notes"]


def test_no_source_is_repeated_more_than_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["--rows", "books=10k", "code=1M", "web=100k"]
    capped = ["--samples-seen", "200k", "--max-repeats", "4"]
    choice = mixed([*tables(tmp_path), *rows, *capped], capsys)
    assert choice["repeats"][0] == pytest.approx(4, abs=0.02)
    assert max(choice["repeats"]) <= 4
    assert choice["shares"][0] == pytest.approx(0.2, abs=0.001)
    assert sum(choice["shares"]) == pytest.approx(1, abs=1e-9)
    assert choice["others"]["proportional"] > choice["found"]
    few = [*tables(tmp_path), *rows, "--samples-seen", "20M", "--max-repeats", "4"]
    assert "1,110,000 rows: 20,000,000 samples repeat them 18 times" in refused(few, capsys)
    for words, message in (
        (["--max-repeats", "4"], "--max-repeats needs the rows"),
        ([*rows, "--max-repeats", "4"], "--max-repeats needs --samples-seen"),
        ([*rows, *capped[:2], "--max-repeats", "0"], "must be above 0"),
        (["--rows", "books=10k"], "--rows must name each source once; 'code'"),
        (["--rows", "books"], "must be a whole number above 0"),
        (["--samples-seen", "nan"], "--samples-seen is 'nan'"),
    ):
        assert message in refused([*tables(tmp_path), *words], capsys)


# --- what the law leaves out, and the best run ----------------------------------------------------


def pair_tables(folder: Path, seed: int, runs: int = 24, pair: float = 4.0) -> tuple[str, str]:
    """A swarm of four sources, of which the first and the third need each other."""
    random = np.random.default_rng(seed)
    shares_RS = random.dirichlet(np.ones(4), runs).round(3)
    shares_RS[:, -1] = (1 - shares_RS[:, :-1].sum(axis=1)).round(3)
    loss_R = 1 + 0.3 * shares_RS[:, 1] - pair * shares_RS[:, 0] * shares_RS[:, 2]
    loss_R += random.normal(0, 0.02, runs)
    ratios, metrics = ["run,a,b,c,d"], ["run,loss"]
    for n, share_S in enumerate(shares_RS):
        ratios.append(f"r{n},{','.join(map(str, share_S))}")
        metrics.append(f"r{n},{loss_R[n]}")
    (folder / "ratios.csv").write_text("\n".join(ratios) + "\n")
    (folder / "metrics.csv").write_text("\n".join(metrics) + "\n")
    return str(folder / "ratios.csv"), str(folder / "metrics.csv")


def test_the_best_run_is_taken_where_the_law_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*pair_tables(tmp_path, 1), "--to", str(tmp_path / "to")]
    choice = mixed(words, capsys)
    assert (choice["recommended"], choice["best_run"], choice["fits"]) == ("r6", "r6", False)
    assert choice["p_fit"] < 0.001
    assert choice["p_better"] < 0.5
    assert choice["best_shares"] == [0.378, 0.106, 0.465, 0.051]
    assert choice["shares"] != choice["best_shares"]
    assert choice["best_value"] == choice["measured"]["best run"] == pytest.approx(0.3531, abs=1e-4)
    assert choice["others"]["best run"] > choice["best_value"], "the law knows no pairs"
    true = [1 + 0.3 * b - 4 * a * c for a, b, c, _ in (choice["shares"], choice["best_shares"])]
    assert true[1] < true[0] <= true[1] + choice["regret_high"]
    assert choice["regret"] <= choice["regret_high"]
    written = (tmp_path / "to" / "ratios.csv").read_text()
    assert written == "run,a,b,c,d\nr6,0.378,0.106,0.465,0.051\n"
    assert commands.mix(words[:2]) == 0
    printed = capsys.readouterr().out
    for text in (
        "The law does not fit these runs (p = 0.0001).",
        f"The found blend is better than run r6, the best that was measured (0.3531), with a "
        f"probability of {choice['p_better']:.0%} only: take the mixture of run r6 instead.",
        f"with 95 % by {choice['regret_high']:.2g} at most, if the law holds but for pairs of",
    ):
        assert text in printed


def test_the_found_blend_is_taken_where_it_is_clearly_better_by_pairs_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = mixed(list(pair_tables(tmp_path, 11)), capsys)
    assert (choice["recommended"], choice["fits"]) == ("found", False)
    assert choice["p_better"] > 0.95
    assert choice["advice"][1].startswith("The found blend is better than run r23, the best that")


def test_a_found_blend_that_is_a_run_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = mixed(list(pair_tables(tmp_path, 0)), capsys)
    assert choice["shares"] == choice["best_shares"]
    assert (choice["recommended"], choice["p_better"]) == ("found", 0.5)
    text = "The found blend is that of run r12, the best that was measured (0.2404)."
    assert choice["advice"][1] == text


def test_what_is_not_clearly_better_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = mixed(list(tables(tmp_path, runs=24, noise=0.08)), capsys)
    assert 0.5 < choice["p_better"] < 0.95
    assert (choice["recommended"], choice["fits"]) == ("found", True)
    assert f"with a probability of {choice['p_better']:.0%}. Confirm both." in choice["advice"][0]


def test_too_few_runs_to_test_the_law_have_no_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = list(pair_tables(tmp_path, 1, runs=8, pair=0.0))
    choice = mixed(words, capsys)
    for key in ("fits", "p_fit", "regret", "regret_high"):
        assert choice[key] is None
    assert commands.mix(words) == 0
    printed = capsys.readouterr().out
    assert "so few runs cannot test the law" in printed
    assert "95 %" not in printed


def test_the_best_run_is_one_that_keeps_to_the_limit_on_repeats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ratios, metrics = pair_tables(tmp_path, 1)
    words = [ratios, metrics, "--samples-seen", "1M", "--rows"]
    few = ["a=40k", "b=1M", "c=1M", "d=1M"]
    choice = mixed([*words, *few, "--max-repeats", "4"], capsys)
    assert choice["best_run"] != "r6"
    assert choice["best_shares"][0] <= 0.16
    lines = Path(ratios).read_text().splitlines()[1:]
    mean_S = np.mean([list(map(float, line.split(",")[1:])) for line in lines], axis=0)
    near_mean = [f"{name}={int(1e6 * share)}" for name, share in zip("abcd", mean_S, strict=True)]
    choice = mixed([*words, *near_mean, "--max-repeats", "1.02"], capsys)
    assert (choice["best_run"], choice["best_shares"], choice["p_better"]) == (None, None, None)
    assert "best run" not in choice["others"]
    assert "No run is within the limit on repeats" in " ".join(choice["advice"])


def test_equal_sources_are_said_to_be_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.mix(list(tables(tmp_path, effect=0))) == 0
    assert "take any blend" in capsys.readouterr().out
    assert commands.mix(list(tables(tmp_path))) == 0
    assert "take any blend" not in capsys.readouterr().out


def test_runs_without_a_value_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ratios, metrics = tables(tmp_path)
    lines = Path(metrics).read_text().splitlines()
    lines[3] = "r2,swarm 2,nan,1.0"
    lines[4] = "r3,swarm 3,1.2,"
    text = "\r\n".join([*lines[:-1], "of no ratios,x,1,1"])
    Path(metrics).write_text(text + "\r\n")
    choice = mixed([ratios, metrics], capsys)
    assert choice["runs"] == 13
    assert choice["left_out"] == 3
    assert [note for note in choice["notes"] if "left out" in note] == [
        "16 runs: 13 count, 3 are left out",
        "run r2 is left out: its arc_bpb is nan",
        "run r3 is left out: it has no mmlu_bpb",
        "run r15 is left out: it has no row of metrics",
        "runs with metrics and without shares, which are left out: of no ratios",
    ]
    assert f"not read: 'name' of {ratios}" in choice["notes"]


def test_the_shares_of_a_run_that_are_empty_are_0_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ratios, metrics = tables(tmp_path)
    lines = Path(ratios).read_text().splitlines()
    lines[1] = "r0,swarm 0,1.0,,"
    Path(ratios).write_text("\n".join(lines) + "\n")
    note = f"cells without a share in {ratios} that count as 0: 2"
    assert note in mixed([ratios, metrics], capsys)["notes"]


def test_tables_that_are_no_swarm_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ratios, metrics = tables(tmp_path)
    assert "did you mean 'arc_bpb'" in refused([ratios, metrics, "--target", "arc_bbp"], capsys)
    change(ratios, "books,code,web", "books,code,tokens")
    change(ratios, "r3,swarm 3,0.", "r3,swarm 3,9.")
    assert "the shares of run r3 sum to 10;" in refused([ratios, metrics], capsys)
    ratios, metrics = tables(tmp_path)
    change(ratios, "r3,", "r2,")
    message = "two rows have 'r2' in column 'run', the run"
    assert message in refused([ratios, metrics], capsys)
    change(ratios, "r2,", ",")
    assert "row 3 names no run in column 'run'" in refused([ratios, metrics], capsys)
    ratios, metrics = tables(tmp_path)
    change(metrics, "r3,swarm 3,", "r3,swarm 3,about ")
    assert "in column 'arc_bpb' is no number" in refused([ratios, metrics], capsys)
    few = tables(tmp_path, runs=4)
    assert "4 different mixtures are too few for 3 sources" in refused(list(few), capsys)
    (tmp_path / "one.csv").write_text("run,web\nr0,1\nr1,1\n")
    assert "1 columns of sources" in refused([str(tmp_path / "one.csv"), metrics], capsys)
    (tmp_path / "other.csv").write_text("trial,arc_bpb\nr0,1\n")
    both = [ratios, str(tmp_path / "other.csv")]
    assert "no column in common" in refused(both, capsys)


def test_runs_are_joined_by_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ratios, metrics = tables(tmp_path, key="index")
    Path(ratios).write_text(Path(ratios).read_text().replace("\nr", "\n"))
    lines = Path(metrics).read_text().replace("\nr", "\n").splitlines()
    as_floats = [re.sub(r"^(\d+),", r"\1.0,", line) for line in lines]
    Path(metrics).write_text("\n".join(as_floats))
    assert mixed([ratios, metrics], capsys)["runs"] == 16


def test_shares_may_miss_1_by_rounding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ratios, metrics = tables(tmp_path)
    lines = Path(ratios).read_text().splitlines()
    start, books, code, web = lines[1].rsplit(",", 3)
    lines[1] = f"{start},{float(books) - 0.002:.3f},{code},{web}"
    Path(ratios).write_text("\n".join(lines) + "\n")
    assert mixed([ratios, metrics], capsys)["runs"] == 16


def test_the_shipped_runs_prefer_the_hosts_with_right_captions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    examples = Path(__file__).parents[3] / "examples"
    tables = [str(examples / f"cifar10_mix_{name}.csv") for name in ("ratios", "metrics")]
    choice = mixed(tables, capsys)
    shares = dict(zip(choice["sources"], choice["shares"], strict=True))
    assert {name: share for name, share in shares.items() if share} == {
        "web/gallery": 0.65,
        "clean/all": 0.35,
    }
    assert choice["runs"] == 29


# --- ablations ------------------------------------------------------------------------------------

MANIFEST = """
name: tiny
question: Which blend is best?
pools: {{web: {{out: {pool}}}}}
mixtures: {{sources: [web/all, web/half], number: 4}}
arms:
  once: {{views: {{web/all: 1, web/half: 1}}, weights: repeats}}
  half: web/half
baseline: half
seeds: [0]
train: {train}
evaluate: [{{name: colours, kind: classification, data: {data}}}]
primary: colours
"""


@pytest.fixture
def manifest(tmp_path: Path, tiny_pool: str) -> str:
    data = two_classes(tmp_path / "data")
    pool = str(tmp_path / "pool")
    shutil.copytree(tiny_pool, pool)
    complete_pool(pool)
    text = MANIFEST.format(pool=pool, data=data, train=json.dumps(TRAIN))
    (tmp_path / "tiny.yaml").write_text(text)
    return str(tmp_path / "tiny.yaml")


@pytest.mark.slow
def test_a_swarm_is_trained_and_its_blend_confirmed(
    manifest: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, to = str(tmp_path / "out"), tmp_path / "found it"
    assert commands.ablate([manifest, "--out", out]) == 0
    assert "`clipmill mix` on this folder fits a law" in capsys.readouterr().out
    words = [out, "--to", str(to), "--samples-seen", "96", "--max-repeats", "3"]
    read = Measurements.read

    def patch(values: Callable[[list[str]], Mapping[str, float | None]]) -> None:
        """The study has one run of some arms, which all have this accuracy."""

        def changed(path: str, *columns: Sequence[str]) -> Measurements:
            real = read(path, *columns)
            if not path.startswith(f"{out}/"):  # of the study that confirms the blend
                return real
            rows = []
            for name, value in values(sorted({arm for arm, _ in real.runs})).items():
                arm, _, seed = name.partition(" ")
                row = Measurement(
                    arm=arm, seed=int(seed or 0), task="colours", metric="accuracy", value=value
                )
                rows.append(row)
            return dataclasses.replace(real, table=Measurements.of(rows).table)

        monkeypatch.setattr(Measurements, "read", changed)

    # a tiny model's runs may all have the same
    patch(lambda arms: {arm: n / 7 for n, arm in enumerate(arms)} | {"mix03 1": None})
    choice = mixed(words, capsys)
    assert choice["sources"] == ["web/all", "web/half"]
    assert (choice["runs"], choice["mixtures"]) == (6, 6)
    assert set(choice["others"]) == {"uniform", "proportional", "once", "half", "best run"}
    assert choice["others"]["once"] == pytest.approx(choice["others"]["proportional"])
    assert choice["notes"] == ["mix03 seed 1 is left out: its accuracy is no number"]
    assert max(choice["repeats"]) <= 3
    assert choice["same_as"] == []
    best = {"once": pytest.approx(5 / 7)}
    assert choice["measured"] == {**best, "half": 0, "best run": best["once"]}
    assert (choice["best_run"], choice["fits"], choice["regret"]) == ("once", None, None)
    assert commands.report([out]) in (0, console.EXIT_INCOMPLETE)  # one value is no number
    of_report = json.loads(Path(out, "report.json").read_text())["blend"]
    assert (of_report["runs"], of_report["samples"]) == (6, TRAIN["samples_seen"])
    assert of_report["max_repeats"] is None
    page = Path(out, "report.html").read_text()
    part = page[page.index("Blend of sources") :]
    for name, share in zip(of_report["sources"], of_report["shares"], strict=True):
        assert re.search(f"{name}</td><td[^>]*>{100 * share:.1f}<", part)
    blend = yaml.safe_load((to / "blend.yaml").read_text())
    taken = choice["shares"] if choice["recommended"] == "found" else choice["best_shares"]
    assert blend["views"] == {
        name: share for name, share in zip(choice["sources"], taken, strict=True) if share
    }
    assert blend["max_repeats"] == 3
    run = [str(to / "blend.yaml"), "--out", str(tmp_path / "run")]
    settings = [f"--set={key}={value}" for key, value in TRAIN.items()]
    assert commands.train([*run, *settings]) == 0
    confirm = yaml.safe_load((to / "confirm.yaml").read_text())
    assert set(confirm["arms"]) == {"found", "uniform", "proportional", "once", "half"}
    assert (confirm["baseline"], confirm["seeds"]) == ("found", list(range(1, 11)))
    assert confirm["train"]["samples_seen"] == 96
    confirm["seeds"] = [1, 2]
    (to / "confirm.yaml").write_text(yaml.safe_dump(confirm))
    assert commands.ablate([str(to / "confirm.yaml"), "--out", str(tmp_path / "confirm")]) == 0

    shares = {
        name: (arm.views or {"web/half": 1}).get("web/half", 0)
        for name, arm in reader.read_manifest(manifest, Ablation).arms.items()
    } | {"once": 0.3}  # of the samples, by rows
    patch(lambda arms: {arm: shares[arm] for arm in arms})
    choice = mixed([out, "--to", str(tmp_path / "half")], capsys)
    assert (choice["shares"], choice["same_as"]) == ([0, 1], ["half"])
    confirm = yaml.safe_load((tmp_path / "half" / "confirm.yaml").read_text())
    assert set(confirm["arms"]) == {"found", "uniform", "proportional", "once"}

    patch(lambda arms: {arm: shares[arm] for arm in ("once", "half", "mix00")})
    assert commands.report([out]) == console.EXIT_INCOMPLETE
    reason = "3 different mixtures are too few for 2 sources"
    assert reason in capsys.readouterr().out
    assert reason in Path(out, "report.html").read_text()
    Path(out, "results.json").unlink()
    assert "results.json does not exist; run clipmill ablate" in refused(words, capsys)


def test_an_ablation_is_read_with_options_of_ablations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path)
    assert "is no folder of an ablation" in refused([out], capsys)
    assert "are for tables" in refused([out, "--rows", "web=3"], capsys)
    assert "are for tables" in refused([out, "--higher-is-better", "a"], capsys)
    assert "are for tables" in refused([out, "--lower-is-better", "a"], capsys)
    assert "runs.csv needs a second table" in refused([f"{out}/runs.csv"], capsys)
    assert "names one metric" in refused([out, "--target", "a", "b"], capsys)


def test_mixtures_depend_on_their_numbers_alone() -> None:
    sources = ("web/a", "web/b", "web/c")
    arms = Mixtures(sources=sources, number=30, seed=1).arms()
    assert arms == Mixtures(sources=sources, number=30, seed=1).arms()
    assert list(arms)[:2] == ["mix00", "mix01"]
    assert len(arms) == 30
    fewer = Mixtures(sources=sources, number=3, seed=1).arms()
    assert fewer.items() <= arms.items()
    for arm in arms.values():
        assert sum(arm["views"].values()) == pytest.approx(1, abs=2e-4)
    means = [np.mean([arm["views"].get(name, 0) for arm in arms.values()]) for name in sources]
    assert max(abs(np.array(means) - 1 / 3)) < 0.15
    other = Mixtures(sources=sources, number=30, seed=2).arms()
    assert other != arms
    near = Mixtures(sources=sources, number=30, concentration=100.0).arms()
    assert all(0.2 < share < 0.5 for arm in near.values() for share in arm["views"].values())
    with pytest.raises(ValueError, match="two different ones"):
        Mixtures(sources=("web/a",), number=3)
    with pytest.raises(ValueError, match="concentration"):
        Mixtures(sources=sources, number=3, concentration=float("nan"))


@pytest.mark.parametrize("draw", ["shares", "halves"])
def test_mixtures_that_nothing_can_be_fitted_to_are_refused_before_the_first_run(
    manifest: str, capsys: pytest.CaptureFixture[str], draw: str
) -> None:
    enough = Path(manifest).read_text().replace("  half: web/half\n", "")
    enough = enough.replace("baseline: half", "baseline: once")
    number, command = (3, "clipmill mix") if draw == "shares" else (4, "clipmill why")
    enough = enough.replace("number: 4", f"number: {number}, draw: {draw}")
    words = ["check", manifest, "--out", str(Path(manifest).with_name("out"))]
    Path(manifest).write_text(enough)
    assert commands.ablate(words) == 0
    Path(manifest).write_text(enough.replace(f"number: {number}", f"number: {number - 1}"))
    assert commands.ablate(words) == 2
    error = capsys.readouterr().err
    assert f"{command} needs 4 runs of different mixtures of 2 sources" in error
    assert "the arms have 3" in error


def test_an_ablation_with_mixtures_takes_one_seed_and_no_vary(manifest: str) -> None:
    ablation = reader.read_manifest(manifest, Ablation)
    assert list(ablation.arms) == ["once", "half", "mix00", "mix01", "mix02", "mix03"]
    written = Path(manifest).with_name("again.json")
    written.write_text(json.dumps(disk.to_plain(ablation)))  # as `clipmill build` hands it on
    assert reader.read_manifest(str(written), Ablation) == ablation
    for old, new, message in (
        ("half: web/half", "mix01: web/half", "arms.mix01 is an arm of mixtures too"),
        ("baseline:", "vary: {lr: [1e-3, 1e-4]}\nbaseline:", "vary and mixtures both make arms"),
        ("seeds: [0]", "seeds: []", "at least two different ones"),
        ("number: 4", "number: 1", "number"),
    ):
        text = Path(manifest).read_text()
        Path(manifest).with_name("other.yaml").write_text(text.replace(old, new, 1))
        with pytest.raises(ValueError, match=message):
            reader.read_manifest(str(Path(manifest).with_name("other.yaml")), Ablation)
