"""Numbers and comparisons in words, the same in the terminal, the JSON and the page. Pure.

Values have the unit of their metric: `share` (0 to 1; shown as percentages, differences as points),
or another one, or none (shown as they are, with as many digits as their noise leaves: `Digits`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal

from clipmill.manifests.schema import NO_SEED
from clipmill.manifests.text import printable
from clipmill.verdict.stats.analysis import ScorerScore, TaskResult
from clipmill.verdict.stats.comparison import MOST_SEEDS, Comparison, Power, Verdict
from clipmill.verdict.stats.groups import Attribution
from clipmill.verdict.stats.scales import SURE, ScaleAgreement, ScaleDecision

MINUS = "\N{MINUS SIGN}"  # as wide as "+"
DASH = "\N{EN DASH}"
ROUNDING = 1e-12  # of the values: what is smaller is a rounding error
SHOWN_POINTS = 0.05  # points of noise that one decimal of a share still shows
# Half of an interval around a difference of 0.1 points or more, which itself can be seen
SHOWN_BESIDE, SMALL_SHARE = 0.02, 0.001
EXPONENT_BELOW, EXPONENT_FROM = 1e-4, 1e7  # numbers outside are written as 3.02e-05
PHRASES: dict[Verdict, str] = {
    "better": "is better than",
    "worse": "is worse than",
    "higher": "is higher than",
    "lower": "is lower than",
    "practically equal": "is practically equal to",
    "not distinguishable": "is not distinguishable from",
    "nothing varies": "is beside",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """How numbers that stand together are written: all end at the same power of ten, `last`.

    factor: 100 for shares, which are shown as percentages. with_exponent: as 3.02e-05.
    """

    factor: float
    last: int
    with_exponent: bool = False

    def write(self, value: float, *, sign: bool = False) -> str:
        """The number, in the unit that is shown. sign: a positive number has one too."""
        shown, plus = value * self.factor, "+" if sign else ""
        if self.with_exponent and math.isfinite(shown):
            rounded = Decimal(shown).quantize(Decimal((0, (1,), self.last)))
            mantissa, _, power = f"{rounded:{plus}e}".partition("e")
            text = f"{mantissa}e{int(power):+03}" if rounded else f"{plus}0"
        else:
            text = f"{shown:{plus}.{max(0, -self.last)}f}"
        return MINUS + text[1:] if text.startswith("-") else text


def digits_of(
    unit: str, noise: float | None, values: Sequence[float], shown: float = SHOWN_POINTS
) -> Digits:
    """The digits of values that have this noise: an SD, or half of an interval. None: not known.

    The noise has two digits where it begins with 10 to 35, otherwise one, so that rounding changes
    it by at most a seventh (after the rule of the Particle Data Group). No digit before the point
    is rounded away. Without a noise a number has four digits. Shares always have one decimal at
    least, and more only where their noise is below `shown` points.
    """
    factor = 100.0 if unit == "share" else 1.0
    largest = factor * max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if noise is not None and math.isfinite(noise) and factor * noise > ROUNDING * largest:
        leading, exponent = _leading(factor * noise)
        last = exponent - (leading < 3.55)
        is_known = unit != "share" or factor * noise < shown
    else:
        last = _leading(largest)[1] - 3 if largest > 0 else 0
        is_known = unit != "share"
    if not is_known:
        return Digits(factor=factor, last=-1)
    with_exponent = largest > 0 and not EXPONENT_BELOW <= largest < EXPONENT_FROM
    return Digits(factor=factor, last=last, with_exponent=with_exponent)


def _leading(number: float) -> tuple[float, int]:
    """A number above 0 as 1.00 to 9.99 times a power of ten, also where that is below 1e-308."""
    mantissa, _, exponent = f"{number:.2e}".partition("e")
    return float(mantissa), int(exponent)


def percent(value: float | None, unit: str = "share", noise: float | None = None) -> str:
    """A value of a metric: a share as a percentage with one decimal; a dash for None."""
    return DASH if value is None else _write(value, unit, noise)


def in_unit(value: float | None, unit: str) -> str:
    """A value with its unit, as in a sentence: `12.3 %`."""
    return _with(percent(value, unit), "%" if unit == "share" else unit)


def points(difference: float | None, unit: str = "share") -> str:
    """A difference, always with a sign: of shares in points, one decimal; a dash for None."""
    return DASH if difference is None else _write(difference, unit, None, sign=True)


def in_points(size: float | None, unit: str) -> str:
    """The size of a difference with its unit, as in a sentence: `1.7 points`. It is known as well
    as noise is.
    """
    return _with(percent(size, unit, size), unit_of_difference(unit))


def _with(text: str, unit: str) -> str:
    return f"{text} {unit}" if unit else text


def _write(value: float, unit: str, noise: float | None, *, sign: bool = False) -> str:
    if abs(value) < ROUNDING and (unit == "share" or (sign and not noise)):
        value = 0.0  # no "−0.0" for a difference of rounding errors
    return digits_of(unit, noise, (value,)).write(value, sign=sign)


def unit_of_difference(unit: str) -> str:
    """What stands behind a difference: `points` of shares, otherwise the unit."""
    return "points" if unit == "share" else unit


def interval(mean: float | None, low: float | None, high: float | None, unit: str = "share") -> str:
    """A difference with its interval, `+4.1 [+2.9, +5.3]`, or without where there is none: all with
    the digits that the interval gives.
    """
    if mean is None or low is None or high is None:
        return points(mean, unit)
    values = (mean, low, high)
    shown = SHOWN_POINTS if abs(mean) < SMALL_SHARE else SHOWN_BESIDE
    digits = digits_of(unit, (high - low) / 2, values, shown)
    texts = [digits.write(value, sign=True) for value in values]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"


def missed_gain(answer: Attribution) -> str:
    """That groups of pairs do not predict an arm's gain, and what that means; "" where they do."""
    gain = answer.misses
    if gain is None or gain.measured is None:
        return ""
    predicted, measured = (
        points(one.value, answer.unit) for one in (gain.predicted, gain.measured)
    )
    unit = _with("", unit_of_difference(answer.unit))
    if gain.is_overshot:
        return (
            f"The groups predict {predicted}{unit} and {answer.arm} gained {measured}: its shares "
            "are far from those of the mixtures, where more of the same helps less. The shares of "
            "the gain are those of the line."
        )
    return (
        f"The groups predict {predicted} of the {measured}{unit} that {answer.arm} gained: it "
        "comes from what it selects inside of them; divide by another column."
    )


def difference(c: Comparison) -> str:
    """A comparison's difference with its interval."""
    return interval(c.difference, c.low, c.high, c.unit)


def mean_and_sd(mean: float | None, sd: float | None, unit: str = "share") -> str:
    """`34.1 ± 1.0`, or `34.1` for one seed."""
    if sd is None or mean is None:
        return percent(mean, unit)
    digits = digits_of(unit, sd, (mean,))
    return f"{digits.write(mean)} ± {digits.write(sd)}"


def p_value(p: float, adjustment: str) -> str:
    """A p value with the name of its adjustment."""
    name = "p" if adjustment == "none" else f"{adjustment} p"
    return f"{name} < 0.001" if p < 0.001 else f"{name} = {p:.3f}"


def adjusted(c: Comparison) -> str:
    """The p value of a comparison, with all that it is adjusted for."""
    text = p_value(c.p_adjusted, c.adjustment)
    text += f" over {c.tasks} tasks" if c.tasks > 1 else ""
    text += f" over {c.rounds} rounds" if c.rounds > 1 else ""
    return text + (f", look {c.looks}" if c.looks > 1 else "")


def level(looks: int) -> str:
    """The level of the intervals of a look: each look has half the error of the one before."""
    return f"{100 - 5 / 2 ** (looks - 1):g} %"


def could_have_seen(power: Power, unit: str) -> str:
    """What these runs could have shown at least."""
    if power.possible is not None and power.smallest > power.possible:
        return "these runs could have seen nothing: no difference can be as large as their noise"
    return f"these runs could only have seen {in_points(power.smallest, unit)} or more"


def power_texts(task: TaskResult, seeds: int, word: str = "seeds") -> list[str]:
    """The smallest visible difference, and how many seeds (or runs: `word`) would see half of
    it.
    """
    power = task.power
    if power is None:
        return []
    first, half = (
        f"The smallest visible difference is {in_points(power.smallest, task.unit)}: of "
        f"ablations like this one, with {seeds} {word}, 80 % find such a true difference.",
        "Half of it",
    )
    if power.possible is not None and power.smallest > power.possible:
        first, half = (
            f"Nothing can be seen with {seeds} {word}: no difference can be above "
            f"{in_points(power.possible, task.unit)}, and the noise hides all of them.",
            "Half of that",
        )
    return [
        first,
        f"{half}, {in_points(power.half, task.unit)}, {seeds_text(power.seeds_for_half, word)}.",
    ]


def seeds_text(seeds: int | None, word: str = "seeds") -> str:
    """How many seeds a difference needs, as the end of a sentence."""
    if seeds is None:
        return f"is not seen by any number of {word} up to {MOST_SEEDS:,}"
    return f"needs {seeds} {word} of each arm"


def seed_name(seed: int) -> str:
    """A seed as a reader knows it; a dash for an arm that is one model."""
    return DASH if seed == NO_SEED else str(seed)


def run_name(arm: str, seed: int) -> str:
    """A run by its arm and seed; an arm that is one model has no seed."""
    return arm if seed == NO_SEED else f"{arm} seed {seed}"


def without(seeds: Sequence[int]) -> str:
    """What an arm has no result of: some seeds, or its only model."""
    if tuple(seeds) == (NO_SEED,):
        return "without its model"
    return f"without seed {', '.join(map(str, seeds))}"


def _runs(comparison: Comparison) -> str:
    """The runs that a comparison is of. Without a common seed the arm is one model."""
    if comparison.n == 0:
        return f"one model, as if another would vary like a run of {comparison.baseline}"
    return f"{comparison.n} seeds"


def describe(comparison: Comparison, power: Power | None = None) -> str:
    """A comparison in words: verdict, difference, interval, seeds and p.

    power: what these runs could have shown; it follows where nothing was found.
    """
    c, unit = comparison, comparison.unit
    text = (
        f"{c.arm} {PHRASES[c.verdict]} {c.baseline} on {c.task}: "
        f"{_with(difference(c), unit_of_difference(unit))} ({_runs(c)}, {adjusted(c)})"
    )
    if c.low is None:
        return f"{text}; nothing varies between these runs, so the noise is not known."
    if c.verdict == "not distinguishable" and power is not None:
        return f"{text}; {could_have_seen(power, unit)}."
    inside = c.low90 is not None and c.high90 is not None and -c.band < c.low90 < c.high90 < c.band
    if c.is_clear and inside:
        band = percent(c.band, unit, c.band)
        return f"{text}; it is inside the band of ±{band} that counts as equal."
    return f"{text}."


def sentences(task: TaskResult) -> list[str]:
    """The arms of a task in words."""
    return [describe(row, task.power) for row in task.comparisons]


def range_sentence(task: TaskResult) -> str:
    """How near the scores of a task are to an end of the metric; without a full stop."""
    assert task.range is not None
    best = in_unit(task.range.best, task.unit)
    chance = "" if task.chance is None else in_unit(task.chance, task.unit)
    if task.range.at_chance:
        return f"No model is above chance on {task.task}: the best arm has {best}, chance {chance}"
    of_chance = f", chance gives {chance}" if task.range.near == "floor" and chance else ""
    return f"{task.metric} is near its {task.range.near} on {task.task}: {best} at best{of_chance}"


def scorer_sentence(scorer: ScorerScore) -> str:
    """The score of a scorer, beside chance where that is known; without a full stop."""
    s = scorer
    chance = "" if s.chance is None else f"; chance is {in_unit(s.chance, s.unit)}"
    value = in_unit(s.value, s.unit)
    return f"The scorer, trained on {s.view}, has {s.metric} {value} on {s.task}{chance}"


def scorer_caution(scorer: ScorerScore) -> str:
    """What the headline adds where the scorer is at chance; otherwise empty."""
    s = scorer
    if not s.at_chance:
        return ""
    return (
        f" The scorer is at chance on {s.task} ({in_unit(s.value, s.unit)} against "
        f"{in_unit(s.chance, s.unit)}): what it filtered says little about CLIP-score filtering."
    )


# --- tables of a terminal -------------------------------------------------------------------------


def cells(text: str) -> int:
    """The cells of a terminal that a text takes: two for a wide character of East Asia."""
    from rich.cells import cell_len  # where a table is printed: the trainer does without it

    return cell_len(text)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken at spaces and in words that are longer."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and cells(lines[-1]) + 1 + cells(word) <= width:
            lines[-1] += f" {word}"
            continue
        lines.append("")
        for letter in word:
            if lines[-1] and cells(lines[-1] + letter) > width:
                lines.append("")
            lines[-1] += letter
    return lines


def aligned(
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    *,
    indent: int = 0,
    width: int | None = None,
) -> list[str]:
    """Rows of a table as lines, each column as wide as its cells and two spaces from the next.

    Characters that a terminal would act on are shown as escapes. right: columns aligned to the
    right. width: cells of a line (None: any number); a text of the first column that leaves no room
    for the others has a line of its own, and the others follow in the next one.
    """
    shown = [[printable(text) for text in row] for row in rows]
    columns = list(zip(*shown, strict=True))
    widths = [max(map(cells, column)) for column in columns]
    if width is not None and columns:
        room = width - indent - sum(widths[1:]) - 2 * len(widths[1:])
        widths[0] = max((size for text in columns[0] if (size := cells(text)) <= room), default=0)
    lines, margin = [], " " * indent
    for row in shown:
        texts, is_long = [], cells(row[0]) > widths[0]
        if is_long:
            lines.append(f"{margin}{row[0]}".rstrip())
        for number, text in enumerate(["", *row[1:]] if is_long else row):
            space = " " * (widths[number] - cells(text))
            texts.append(f"{space}{text}" if number in right else f"{text}{space}")
        lines.append(f"{margin}{'  '.join(texts)}".rstrip())
    return lines


# --- scales ---------------------------------------------------------------------------------------


def column_name(task: str, metric: str) -> str:
    """`cars, accuracy`; the task alone where the metric has no name."""
    return task if metric in ("", "value") else f"{task}, {metric}"


SHARE_ASSUMES = (
    "the intervals of shares assume that other arms are like these: one that reverses its order "
    "is in them only if it is among these"
)


def share_text(one: ScaleAgreement) -> str:
    """`0.87 [0.60, 1.00]`."""
    return f"{one.share.value:.2f} [{one.share.low:.2f}, {one.share.high:.2f}]"


def abstained(one: ScaleDecision) -> int:
    """Pairs that a small scale does not decide."""
    return one.agreement.pairs - (one.stated.pairs if one.stated else 0)


def price_text(one: ScaleDecision) -> str:
    """How sure the runs of a small scale are on average, and what it takes to be SURE; "" where no
    seeds tell it.
    """
    if one.probability is None:
        return ""
    cost, more = "", f"no number of runs at {one.small} makes it"
    if one.cost is not None:
        cost = f", {percent(one.cost)} % of what {one.large} costs,"
    if one.seeds_for_sure is not None:
        more = f"with {runs_text(one.seeds_for_sure)}{_price(one)} it is"
    scope = "" if one.with_shift else " of the order at its own scale"
    return (
        f"{column_name(one.task, one.metric)}: with {runs_text(one.seeds)} of each arm at "
        f"{one.small}{cost} a pair is {one.probability:.0%} sure{scope} on average; {more} "
        f"{SURE:.0%}"
    )


def runs_text(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def scale_texts(
    decisions: Sequence[ScaleDecision], most: int, width: int | None = None
) -> list[str]:
    """How often a small scale decides as the largest one, as a table, and what that costs by the
    headline metric. most: rows. width: as of `aligned`.
    """
    if not decisions:
        return []
    rows = scale_rows(decisions)
    texts = [scales_title(decisions), *aligned(rows[: most + 1], indent=2, width=width)]
    if len(rows) - 1 > most:
        texts.append(f"  and {len(rows) - 1 - most} more, in --json and on the page")
    return [*texts, *(f"  {text}" for text in price_texts(decisions))]


def scales_title(decisions: Sequence[ScaleDecision]) -> str:
    headline, large = headline_of(decisions), decisions[0].large
    truth = large if headline is None else f"{column_name(*headline)} at {large}"
    return f"How often a smaller scale orders two arms as {truth} does"


def scale_rows(decisions: Sequence[ScaleDecision]) -> list[tuple[str, ...]]:
    """The names of the columns that have values, then a row for each metric and small scale."""
    compared: dict[tuple[str, str, str], dict[bool, ScaleDecision]] = {}
    for one in decisions:
        key = (one.task, one.metric, one.small)
        compared.setdefault(key, {})[one.truth == key[:2]] = one
    rows: list[tuple[str, ...]] = [
        ("metric", "from", "as itself", "pairs alike", "clear", "decided, right", "abstains",
         "sure", f"runs for {SURE:.0%}"),
    ]  # fmt: skip
    for (task, metric, small), by_truth in compared.items():
        same = by_truth.get(True)
        one = by_truth.get(False) or by_truth[True]
        rows.append(
            (column_name(task, metric), small, _pairs_alike(same.agreement if same else None),
             f"{_pairs_alike(one.agreement)}, {share_text(one.agreement)}", *_decided(one))
        )  # fmt: skip
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return list(zip(*columns, strict=True))


def headline_of(decisions: Sequence[ScaleDecision]) -> tuple[str, str] | None:
    """What all metrics are held against; None where it ties the arms, so that nothing is."""
    columns = {(one.task, one.metric) for one in decisions}
    others = [one.truth for one in decisions if one.truth != (one.task, one.metric)]
    return next(iter(others or (columns if len(columns) == 1 else ())), None)


def _decided(one: ScaleDecision) -> tuple[str, ...]:
    """The last cells of a row: clear, decided and right, abstains, sure, runs."""
    if one.probability is None:
        return (_pairs_alike(one.clear), "", "", "", "")
    stated = one.stated
    return (
        _pairs_alike(one.clear),
        f"{stated.pairs}, {stated.alike}" if stated else "none",
        str(abstained(one)),
        f"{one.probability:.0%}",
        "never" if one.seeds_for_sure is None else f"{one.seeds_for_sure}{_price(one)}",
    )


def _price(one: ScaleDecision) -> str:
    """What the runs that make a pair SURE cost of the large scale, in brackets."""
    if one.seeds_for_sure is None or one.cost is None:
        return ""
    return f" ({percent(one.seeds_for_sure / one.seeds * one.cost)} %)"


def _pairs_alike(one: ScaleAgreement | None) -> str:
    return "" if one is None else f"{one.alike} of {one.pairs}"


def price_texts(decisions: Sequence[ScaleDecision]) -> list[str]:
    """What a decision by the headline metric itself costs, at each small scale, and what the
    intervals of shares assume.
    """
    headline = headline_of(decisions)
    own = [one for one in decisions if one.truth == headline == (one.task, one.metric)]
    return [*(text for one in own if (text := price_text(one))), SHARE_ASSUMES]
