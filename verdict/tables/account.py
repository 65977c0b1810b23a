"""The account of a table of results: what became of each column, metric, row and cell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from clipmill.verdict import wording

MOST_NAMES = 6  # of one role or direction, in the terminal
MOST_ROLES = 7  # lines of roles; those after them share the last one
# What `direction_from` and `unit_from` may be, beside other words, which are printed as they are.
SOURCES = {
    "file": "as the file says", "name": "by name", "values": "by values",
    "option": "as the options say"
}  # fmt: skip
GUESS = "guess"  # how the reason of a guess begins


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRole:
    """What a column of the file is, in one word, and why. A reason of a guess begins with GUESS."""

    name: str
    role: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFacts:
    """What a metric of a task is, and where that comes from: a key of SOURCES or words; of a guess
    they begin with GUESS.

    unit: `share` (0 to 1), `percent` (0 to 100, read as a share) or "" (shown as it is).
    """

    task: str
    metric: str
    higher_is_better: bool
    direction_from: str
    unit: str
    unit_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Rows or cells that were left out; the reason follows their number: `without an arm`."""

    reason: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of every part of a table: rows = rows_used + those left out; so of the cells.

    form: what the file is, in words. cells: those of the columns of values.
    """

    form: str
    columns: tuple[ColumnRole, ...]
    metrics: tuple[MetricFacts, ...] = ()
    rows: int
    rows_used: int
    rows_left_out: tuple[LeftOut, ...] = ()
    cells: int
    cells_used: int
    cells_left_out: tuple[LeftOut, ...] = ()


def account_of(decision: object) -> Account | None:
    """The account of a decision; None where its rows were given, not read."""
    account = getattr(decision, "account", None)
    return account if isinstance(account, Account) else None


def account_texts(account: Account) -> list[str]:
    """The account for a terminal: about a dozen lines, whatever the number of columns."""
    return [
        account.form, *_role_texts(account.columns), *_direction_texts(account.metrics),
        *_unit_texts(account.metrics),
        _count_text("rows", account.rows, account.rows_used, account.rows_left_out),
        _count_text("cells", account.cells, account.cells_used, account.cells_left_out)
    ]  # fmt: skip


def is_guess(reason: str) -> bool:
    return reason.startswith(GUESS)


def source_text(source: str) -> str:
    """Where a direction or a unit comes from, in words."""
    return SOURCES.get(source, source)


def direction_text(facts: MetricFacts) -> str:
    return "higher" if facts.higher_is_better else "lower"


def unit_text(unit: str) -> str:
    """The kind of values that a unit is."""
    return {"share": "shares", "percent": "percentages", "": "as they are"}.get(unit, unit)


def _role_texts(columns: Sequence[ColumnRole]) -> list[str]:
    """A line a role: `arm: column 'method'`, `setting: lr, bs`."""
    roles: dict[str, list[ColumnRole]] = {}
    for column in columns:
        roles.setdefault(column.role, []).append(column)
    texts = []
    for role, of_role in roles.items():
        if len(of_role) == 1:
            reason = f" ({of_role[0].reason})" if is_guess(of_role[0].reason) else ""
            texts.append(f"{role}: column {of_role[0].name!r}{reason}")
            continue
        names = [f"{one.name} (guess)" if is_guess(one.reason) else one.name for one in of_role]
        texts.append(f"{role}: {first_names(names)}")
    first, rest = texts[: MOST_ROLES - 1], texts[MOST_ROLES - 1 :]
    return [*first, "; ".join(rest)] if rest else first


def _direction_texts(metrics: Sequence[MetricFacts]) -> list[str]:
    """A line for each direction and source of it: `direction: higher, by name: acc, f1`."""
    texts = []
    for of_one in _grouped(metrics, "higher_is_better", "direction_from"):
        higher, source = of_one[0].higher_is_better, of_one[0].direction_from
        text = f"direction: {direction_text(of_one[0])}, {source_text(source)}"
        if is_guess(source):
            option = "--lower-is-better" if higher else "--higher-is-better"
            text = f"direction: {direction_text(of_one[0])} ({source}: {option} if it is wrong)"
        texts.append(f"{text}: {first_names(_names(of_one, metrics))}")
    return texts


def _unit_texts(metrics: Sequence[MetricFacts]) -> list[str]:
    """A line for each unit and source of it: `unit: share, by name: acc, f1`."""
    texts = []
    for of_one in _grouped(metrics, "unit", "unit_from"):
        unit, source = of_one[0].unit, of_one[0].unit_from
        text = f"unit: {unit or 'none'}"
        if unit:
            text += f" ({source})" if is_guess(source) else f", {source_text(source)}"
        texts.append(f"{text}: {first_names(_names(of_one, metrics))}")
    return texts


def _grouped(metrics: Sequence[MetricFacts], *fields: str) -> list[list[MetricFacts]]:
    """The metrics that are alike in some fields."""
    groups: dict[tuple[object, ...], list[MetricFacts]] = {}
    for one in metrics:
        groups.setdefault(attrgetter(*fields)(one), []).append(one)
    return list(groups.values())


def _names(group: Sequence[MetricFacts], metrics: Sequence[MetricFacts]) -> list[str]:
    """The metrics of a group; with their tasks where other tasks have the metric another way."""
    own = {(one.task, one.metric) for one in group}
    elsewhere = {one.metric for one in metrics if (one.task, one.metric) not in own}
    names = []
    for one in group:
        is_named = one.metric not in ("", "value") and one.metric not in elsewhere
        names.append(one.metric if is_named else wording.column_name(one.task, one.metric))
    return list(dict.fromkeys(names))


def first_names(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """The first names, and a count of the rest."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _count_text(what: str, number: int, used: int, left_out: Sequence[LeftOut]) -> str:
    """`rows: 38 of 40 used; left out: 2 without an arm`."""
    if not left_out and number == used:
        return f"{what}: all {number:,} used"
    texts = [
        f"{one.number:,} {what[:-1] if one.number == 1 else what} {one.reason}" for one in left_out
    ]
    more = f"; left out: {', '.join(texts)}" if texts else ""
    return f"{what}: {used:,} of {number:,} used{more}"
