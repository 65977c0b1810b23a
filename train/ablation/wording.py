"""Numbers and comparisons in words, the same in the terminal, the JSON and the page. Pure."""

from __future__ import annotations

from train.ablation.stats import ALPHA, Comparison, Verdict

MINUS = "\N{MINUS SIGN}"  # as wide as "+"
DASH = "\N{EN DASH}"
PHRASES: dict[Verdict, str] = {
    "better": "is better than",
    "worse": "is worse than",
    "practically equal": "is practically equal to",
    "not distinguishable": "is not distinguishable from",
}


def percent(share: float | None) -> str:
    """A share of 0..1 as a percentage with one decimal; a dash for None."""
    return DASH if share is None else f"{100 * share:.1f}".replace("-", MINUS)


def points(share: float | None) -> str:
    """A difference of shares in points, always with a sign, one decimal; a dash for None."""
    return DASH if share is None else f"{100 * share:+.1f}".replace("-", MINUS)


def interval(mean: float | None, low: float | None, high: float | None) -> str:
    """A difference with its interval, `+4.1 [+2.9, +5.3]`, or without where there is none."""
    if low is None or high is None:
        return points(mean)
    return f"{points(mean)} [{points(low)}, {points(high)}]"


def mean_and_sd(mean: float | None, sd: float | None) -> str:
    """`34.1 ± 1.0`, or `34.1` for one seed."""
    return percent(mean) if sd is None else f"{percent(mean)} ± {percent(sd)}"


def describe(comparison: Comparison, task: str) -> str:
    """A comparison in words: verdict, difference and 95 % interval in points, seeds and p.

    Where no difference was found, the smallest one that could have been follows.
    """
    c = comparison
    p = "Holm p < 0.001" if c.p_holm < 0.001 else f"Holm p = {c.p_holm:.3f}"
    text = (
        f"{c.arm} {PHRASES[c.verdict]} {c.baseline} on {task}: "
        f"{interval(c.difference, c.low, c.high)} points ({c.n} seeds, {p})"
    )
    if c.mde is None:
        return f"{text}; every seed gives the same difference, so the noise is not known."
    if c.verdict == "not distinguishable":
        return f"{text}; differences below {percent(c.mde)} points could not have been found."
    if c.verdict != "practically equal" and c.p_equal is not None and c.p_equal < ALPHA:
        return f"{text}; it is inside the band of ±{100 * c.band:g} points that counts as equal."
    return f"{text}."
