"""Spreads beside means of runs: what they are by their names, and rows that hold those of others.

A spread is the standard deviation of the runs (`sd`), the standard error of their mean (`sem`) or
half of a 95 % interval of it (`ci95`). Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from clipmill.manifests.arrays import FloatArray, Integers
from clipmill.verdict.tables.frames import Column, Frame, column_of, text_of
from clipmill.verdict.tables.metric_names import plain_name

# A pattern of plain names for each kind; "": a spread whose name does not say which.
KINDS = tuple(
    (kind, re.compile(rf"(.*_)?({words})(_.*)?"))
    for kind, words in (
        ("sem", r"sem|se|std_?err\w*|standard_err\w*"),
        ("ci95", r"ci_?95|95_ci|95_conf\w*"),
        ("sd", r"std|stdev|stddev|std_?dev|sd|standard_dev\w*|s_d"),
        ("", r"err|errors?|ci|deviation|dev|pm|spread|uncertainty|interval|margin"),
    )
)
NO_HALF = re.compile(r"(.*_)?(low|lower|lo|lb|high|upper|hi|ub|l|u|min|max)")  # one end of two
# Names of a column that counts the runs of a mean; words alone, as `seeds`, where the cells say it.
RUN_COUNT = re.compile(
    r"((n|no|nb|num|number|total)_(of_)?)?"
    r"(seeds?|runs?|folds?|trials?|repeats?|repetitions?|replicates?|splits)(_(count|n|num))?"
)
ONE_RUN = re.compile(r"seed|run|fold|trial|repeat|repetition|replicate|splits")  # no count
# What a caption says of the runs of each mean: `mean ± std over three seeds`, `average of 5 runs`.
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
RUNS_SAID = re.compile(
    rf"\b(\d{{1,3}}|{'|'.join(NUMBERS)}) +((?!and |or )[a-z-]+ +){{0,2}}"
    r"(seeds?|runs?|trials?|repetitions?|repeats?|initiali[sz]ations?)\b", re.I
)  # fmt: skip
SPREAD_WORD = re.compile(
    r"(?<![a-z])(std\.? ?dev\.?|std\.? ?err\.?|standard[ _]deviation|standard[ _]error|stddev|"
    r"stdev|stderr|std|sd|s\.d\.|sem|95 ?% ?ci|ci ?95)(?![a-z])", re.I
)  # fmt: skip
MEAN_WORD = re.compile(r"(?<![a-z])(mean|average|avg)(?![a-z])", re.I)
LEAST_CELLS, ALIKE, APART = 3, 0.05, 0.15  # of spreads that a test set alone may have left
MOST_OF_MEAN = 0.5  # of a value its spread is, by the medians of a column


def header_kind(name: str) -> str:
    """What stands behind ± in cells, where their header says it: `acc (mean ± std)`."""
    words = re.findall(r"(?:±|\+/?-|[(\[])\s*([^±()\[\]]+)", name)
    return next(filter(None, map(spread_kind, words)), "")


def spread_kind(name: str) -> str | None:
    """What half of a symmetric spread is, by the name of its column: a kind, "" where the name does
    not say it, None where it is no such spread.
    """
    plain = plain_name(name)
    if NO_HALF.fullmatch(plain):
        return None
    return next((kind for kind, pattern in KINDS if pattern.fullmatch(plain)), None)


def counts_runs(name: str) -> bool:
    """Whether a column may count the runs of a mean by its name: `n_seeds`, `Runs`."""
    plain = plain_name(name)
    return RUN_COUNT.fullmatch(plain) is not None and ONE_RUN.fullmatch(plain) is None


def runs_said(caption: str) -> int:
    """Of how many runs each mean is, by the caption; 0 where it does not say, or says several."""
    numbers = {found[1].lower() for found in RUNS_SAID.finditer(caption)}
    counts = {NUMBERS.index(one) + 1 if one in NUMBERS else int(one) for one in numbers}
    return counts.pop() if len(counts) == 1 else 0


def spread_said(caption: str) -> str:
    """What stands behind ±, by the caption; "" where it does not say, or says several."""
    kinds = {
        spread_kind(re.sub(r"\W+", "_", found[0].lower())) or ""
        for found in SPREAD_WORD.finditer(caption)
    }
    return kinds.pop() if len(kinds) == 1 else ""


def standard_deviations(spread_N: FloatArray, runs_N: Integers, kind: str) -> FloatArray:
    """The standard deviations of the runs of means, NaN for fewer than two.

    An interval of 95 % is taken as 1.96 standard errors: of the divisors in use the smallest, so
    that the deviations, and what follows from them, are rather too wide.
    """
    root_N = np.sqrt(np.maximum(runs_N, 1))
    factors_N = {"sd": np.ones(len(root_N)), "sem": root_N, "ci95": root_N / 1.959964}
    return np.where(runs_N > 1, spread_N * factors_N[kind], np.nan)


def samples_behind(value_N: FloatArray, spread_N: FloatArray) -> int:
    """So many test samples leave these spreads to shares of right answers, √(p(1-p)/n): they
    are of the samples of one run, not of runs. 0 where they follow no such law, or cannot show it.
    """
    share_N = value_N / (100.0 if value_N.max(initial=0.0) > 1 else 1.0)
    scale = value_N.max(initial=0.0) / max(share_N.max(initial=0.0), 1e-300)
    if len(value_N) < LEAST_CELLS or share_N.min() <= 0 or share_N.max() >= 1:
        return 0
    of_one_N = np.sqrt(share_N * (1 - share_N))
    root_N = spread_N / scale / of_one_N
    if root_N.min() <= 0 or np.ptp(np.log(root_N)) > ALIKE or np.ptp(np.log(of_one_N)) < APART:
        return 0
    return round(1 / float(np.median(root_N)) ** 2)


def stand_ins(mean: float, sd: float, runs: int) -> list[float]:
    """So many values with this mean and sample standard deviation, two or more."""
    gap = sd * math.sqrt((runs - 1) / 2)
    return [mean - gap, mean + gap, *[mean] * (runs - 2)]


def with_spreads_beside(frame: Frame) -> Frame:
    """The table with a column of spreads beside each column of numbers, where rows hold the spreads
    of others by their label: `MSE (Avg) A`, `MSE (Std) A`.
    """
    numeric = [name for name, own in frame.columns.items() if _is_numeric(own)]
    texts = [name for name in frame.columns if name not in numeric]
    for name in texts:
        present = list(map(text_of, frame.columns[name].present()))
        if not any(map(SPREAD_WORD.search, present)):
            continue
        labels = {text: _stem(text) for text in present}
        kinds = {text: stem for text, stem in labels.items() if SPREAD_WORD.search(text)}
        means = {stem: text for text, stem in labels.items() if text not in kinds}
        is_all = len(kinds) + len(means) == len(labels) and (
            "" not in means or len(labels) == 2  # a column of `mean` and `std` says nothing else
        )
        if is_all and set(kinds.values()) <= means.keys() and name != "file":
            others = [other for other in texts if other != name]
            are_alone = {*labels.values()} == {""}  # of a column of `mean` and `std` alone
            moved = _moved(frame, name, labels, kinds, others, numeric, sure=are_alone)
            if moved is not None:
                return moved
    return frame


def _moved(
    frame: Frame, name: str, labels: Mapping[str, str], kinds: Mapping[str, str],
    others: list[str], numeric: list[str], *, sure: bool
) -> Frame | None:  # fmt: skip
    """The table without the rows of spreads, which stand in columns; None where a row has not one
    row of its mean, or, unless that is sure, where the numbers could be no spreads.
    """
    label = frame.columns[name].texts()
    parts = [frame.columns[other].texts() for other in others]
    keys: list[tuple[str, ...]] = []
    for row, code in enumerate(label.codes.tolist()):
        rest = (part.at(row) for part in parts)
        keys.append((labels.get(label.values[code], ""), *rest))
    is_spread = label.is_in(kinds)
    places = {keys[row]: row for row in np.flatnonzero(~is_spread).tolist()}
    rows = np.flatnonzero(is_spread).tolist()
    is_one = len(places) == frame.rows - len(rows) and len({keys[row] for row in rows}) == len(rows)
    if not is_one or any(keys[row] not in places for row in rows):
        return None
    of_row = np.full(frame.rows, -1)
    of_row[[places[keys[row]] for row in rows]] = rows
    of_mean = of_row[~is_spread]
    word = SPREAD_WORD.search(next(iter(kinds)))
    kept = frame.taken(~is_spread)
    columns = dict(kept.columns)
    columns[name] = columns[name].mapped(lambda value: labels.get(text_of(value), value))
    for other in numeric:
        own = frame.columns[other]
        mean, spread = own.numbers()[~is_spread], own.numbers()[of_mean]
        both = (of_mean >= 0) & ~np.isnan(mean) & ~np.isnan(spread)
        if not both.any() or (mean[both] == spread[both]).all():
            continue  # a setting or a count, which both rows have
        if not sure and (
            (spread[both] < 0).any()
            or np.median(spread[both]) > MOST_OF_MEAN * np.median(np.abs(mean[both]))
        ):
            return None
        beside = [own.at(row) if row >= 0 else None for row in of_mean.tolist()]
        columns[f"{other} {word[0] if word else ''}"] = column_of(beside)
    if not columns[name].present():
        del columns[name]
    note = f"header: rows such as {next(iter(kinds))!r} are the spreads of others"
    left_out = {**frame.left_out, "that are the spreads of other rows": len(rows)}
    return replace(kept, columns=columns, notes=[*frame.notes, note], left_out=left_out)


def _stem(label: str) -> str:
    """A label without the words for a mean and a spread."""
    plain = MEAN_WORD.sub("", SPREAD_WORD.sub("", label))
    return " ".join(re.sub(r"\(\s*\)|\[\s*\]|[-_/:,]+(?=\s|$)|(?<=\s)[-_/:,]+", " ", plain).split())


def _is_numeric(column: Column) -> bool:
    """Whether all cells that are there are numbers."""
    cells = [cell.value for cell in column.cells]
    return any(value is not None for value in cells) and all(
        value is not None for value, own in zip(cells, column.values, strict=True) if text_of(own)
    )
