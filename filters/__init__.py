"""The filters, by the name that a recipe uses."""

from __future__ import annotations

from collections.abc import Iterable

from filters.base import Filter, check_options
from filters.caption import Caption
from filters.clip_score import ClipScore
from filters.language import Language
from filters.optout import Optout
from filters.picture import Picture
from filters.tokens import Tokens
from manifests import disk
from manifests.schema import FilterSpec, Recipe

__all__ = ["FILTERS", "check_filters", "make", "specs_of_recipe"]

FILTERS: dict[str, type[Filter]] = {
    "caption": Caption,
    "language": Language,
    "optout": Optout,
    "picture": Picture,
    "tokens": Tokens,
    "clip_score": ClipScore,
}


def make(spec: FilterSpec) -> Filter:
    """The filter that a recipe asks for, before `setup`.

    ValueError for an unknown filter or option, with the nearest known name, and for a wrong value.
    """
    import pydantic

    if spec.name not in FILTERS:
        raise ValueError(
            f"there is no filter {spec.name!r}{disk.did_you_mean(spec.name, FILTERS)}; "
            f"there are {', '.join(FILTERS)}"
        )
    filter_class = FILTERS[spec.name]
    check_options(filter_class, spec.options, spec.name)
    try:
        return pydantic.TypeAdapter(filter_class).validate_python(spec.options)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        option = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing":
            raise ValueError(f"filter {spec.name} needs the option {option}") from None
        prefix = f"filter {spec.name}: {option} is {first['input']!r}: " if option else ""
        raise ValueError(f"{prefix}{message}") from None


def specs_of_recipe(recipe: Recipe) -> tuple[FilterSpec, ...]:
    """The filters of a recipe, with the options that the rest of the recipe decides."""
    specs = []
    for spec in recipe.filters:
        decided = FILTERS[spec.name].options_from(recipe) if spec.name in FILTERS else {}
        specs.append(FilterSpec(name=spec.name, options={**decided, **spec.options}))
    return tuple(specs)


def check_filters(specs: Iterable[FilterSpec]) -> None:
    """ValueError for filters, options, models and weights that cannot work. No weights are
    loaded."""
    for spec in specs:
        make(spec).check()
