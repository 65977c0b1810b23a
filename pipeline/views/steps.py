"""The steps of a view: its rules in order, with the rules of other views in place of `view:`
rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manifests import disk
from manifests.pool_layout import NOT_STORED
from manifests.schema import Rule, View

RESERVED = (NOT_STORED, "attempted", "stored")  # steps of every funnel
LARGEST_SEED = 2**64 - 1
SHOWN_TEXT = 400  # characters of a rule in a message
SELECTED, SELECTED_WORD = "selected", "in "


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rule of a view. Exactly one of `where`, `random_like` and `sample` is set."""

    name: str  # "basic.words" if it came from view `basic`
    where: str | None = None  # SQL
    random_like: str | None = None  # a view
    sample: float | None = None  # a share of the stored rows
    seed: int = 0
    view: str = field(default="", compare=False)  # the view that is made, for messages

    def text(self) -> str:
        """The rule as a person reads it."""
        if self.where is not None:
            return self.where
        if self.sample is not None:
            return f"sample {self.sample:g}, seed {self.seed}"
        return f"random_like {self.random_like}, seed {self.seed}"

    def error(self, reason: str) -> ValueError:
        """A ValueError that names the view, the rule and its expression in one line."""
        view = f"view {self.view!r}, " if self.view else ""
        return ValueError(f"{view}rule {self.name!r} ({self.short_text()}): {reason}")

    def short_text(self) -> str:
        """The beginning of the rule in one line, for messages."""
        text = " ".join(self.text().split())
        return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]} …"


def steps_of(views: Sequence[View], name: str) -> tuple[Step, ...]:
    """The steps of view `name`.

    ValueError for unknown views, views that name each other in a circle, and rules of the same
    name.
    """
    steps = tuple(replace(step, view=name) for step in _steps_of_view(views, name, ()))
    names = Counter(step.name for step in steps)
    for step in steps:
        if names[step.name] > 1:
            raise ValueError(
                f"view {name!r} has two rules named {step.name!r}; give one of them another name"
            )
        if step.name in RESERVED or ":" in step.name:
            raise ValueError(f"view {name!r}: a rule cannot be named {step.name!r}")
    return steps


def rules_of(views: Sequence[View], name: str) -> tuple[dict[str, Any], ...]:
    """The steps as plain values for NAME.json. Equal values decide equally, and the other way
    round."""
    return tuple(_plain_rule(views, step) for step in steps_of(views, name))


def rules_hash(rules: Sequence[dict[str, Any]]) -> str:
    """Hash of what `rules_of` gave: it stands for a view in the rules of a random view of its
    size."""
    return disk.content_hash(rules)


def rule_text(rule: dict[str, Any]) -> str:
    """A rule of NAME.json as a person reads it."""
    fields = {key: value for key, value in rule.items() if key != "like"}
    return Step(**fields).text()


def selected_rules(where: str) -> tuple[dict[str, Any], ...]:
    """The plain rules of a view whose rows a program selected: `where` says in words which."""
    assert where.startswith(SELECTED_WORD), where
    return ({"name": SELECTED, "where": where},)


def is_selected(rules: Sequence[dict[str, Any]]) -> bool:
    """Whether `selected_rules` gave these rules. No SQL expression begins with the word `in`."""
    return len(rules) == 1 and str(rules[0].get("where", "")).startswith(SELECTED_WORD)


def _plain_rule(views: Sequence[View], step: Step) -> dict[str, Any]:
    if step.where is not None:
        return {"name": step.name, "where": step.where}
    if step.sample is not None:
        return {"name": step.name, "sample": step.sample, "seed": step.seed}
    assert step.random_like is not None
    return {
        "name": step.name,
        "random_like": step.random_like,
        "seed": step.seed,
        "like": rules_hash(rules_of(views, step.random_like)),
    }


def _steps_of_view(views: Sequence[View], name: str, outer: tuple[str, ...]) -> Iterator[Step]:
    """`outer`: the views that led here."""
    if name in outer:
        raise ValueError(f"views name each other in a circle: {' -> '.join([*outer, name])}")
    by_name = {view.name: view for view in views}
    if name not in by_name:
        prefix = f"view {outer[-1]!r}: " if outer else ""
        raise ValueError(
            f"{prefix}there is no view {name!r}{disk.did_you_mean(name, by_name)}; "
            f"there are {', '.join(by_name)}"
        )
    for rule in by_name[name].rules:
        yield from _steps_of_rule(views, rule, (*outer, name))


def _steps_of_rule(views: Sequence[View], rule: Rule, outer: tuple[str, ...]) -> Iterator[Step]:
    if rule.view is not None:
        for step in _steps_of_view(views, rule.view, outer):
            yield Step(
                name=f"{rule.name}.{step.name}",
                where=step.where,
                random_like=step.random_like,
                sample=step.sample,
                seed=step.seed,
            )
        return
    if rule.random_like is not None and rule.random_like in {view.name for view in views}:
        list(_steps_of_view(views, rule.random_like, outer))  # raises for a circle
    if not 0 <= rule.seed <= LARGEST_SEED:
        raise ValueError(f"rule {rule.name!r}: seed is {rule.seed}; it must lie in 0..2^64-1")
    yield Step(
        name=rule.name,
        where=rule.where,
        random_like=rule.random_like,
        sample=rule.sample,
        seed=rule.seed,
    )
