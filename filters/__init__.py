"""The filters there are, by the name that a recipe uses."""

from __future__ import annotations

from filters.base import Filter, check_options
from filters.caption import Caption
from filters.clip_score import ClipScore
from filters.language import Language
from filters.optout import Optout
from filters.picture import Picture
from filters.tokens import Tokens
from manifests import disk
from manifests.schema import FilterSpec

FILTERS: dict[str, type[Filter]] = {
    "caption": Caption,
    "language": Language,
    "optout": Optout,
    "picture": Picture,
    "tokens": Tokens,
    "clip_score": ClipScore,
}


def make(spec: FilterSpec) -> Filter:
    """The filter that a recipe asks for, not yet set up. ValueError with the nearest name for what is not there."""
    import pydantic

    if spec.name not in FILTERS:
        raise ValueError(
            f"there is no filter {spec.name!r}{disk.did_you_mean(spec.name, FILTERS)}; there are {', '.join(FILTERS)}"
        )
    kind = FILTERS[spec.name]
    check_options(kind, spec.options, spec.name)
    try:
        return pydantic.TypeAdapter(kind).validate_python(spec.options)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        option = ".".join(str(x) for x in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing":
            raise ValueError(f"filter {spec.name} needs the option {option}") from None
        where = f"filter {spec.name}: {option} is {first['input']!r}: " if option else ""
        raise ValueError(f"{where}{message}") from None
