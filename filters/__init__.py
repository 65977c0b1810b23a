"""The filters, by the name that a recipe uses."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from clipmill.filters.base import FilterBase, PoolFilter, check_options, options_of
from clipmill.filters.caption import Caption
from clipmill.filters.captioner import Captioner
from clipmill.filters.clip.filters import ClipLoss, ClipScore, Embed, Head
from clipmill.filters.columns import RESERVED, Instance, check_instance_name
from clipmill.filters.concepts import Balance, Concept, Synset
from clipmill.filters.decontaminate import Decontaminate
from clipmill.filters.duplicates import Duplicate, survivor_text
from clipmill.filters.faces import Faces
from clipmill.filters.language import Language
from clipmill.filters.optout import Optout
from clipmill.filters.page import Page
from clipmill.filters.picture import Pdq, Picture
from clipmill.filters.ranks import RankMean, SoftCap
from clipmill.filters.table import CaptionFile, Table
from clipmill.filters.targets import Targets
from clipmill.filters.text_overlap import TextOverlap
from clipmill.filters.tokens import Tokens
from clipmill.filters.user_file import FORM, is_path, load_class, provide_text, text_of
from clipmill.manifests import disk
from clipmill.manifests.columns import SIDECAR, shared_name
from clipmill.manifests.reader import with_numbers, without_pydantic
from clipmill.manifests.schema import FilterSpec, Recipe

logger = logging.getLogger(__name__)

FILTERS: dict[str, type[FilterBase]] = {
    "caption": Caption,
    "caption_file": CaptionFile,
    "captioner": Captioner,
    "language": Language,
    "optout": Optout,
    "pdq": Pdq,
    "page": Page,
    "picture": Picture,
    "faces": Faces,
    "tokens": Tokens,
    "clip_score": ClipScore,
    "concept": Concept,
    "balance": Balance,
    "synset": Synset,
    "targets": Targets,
    "text_overlap": TextOverlap,
    "embed": Embed,
    "clip_loss": ClipLoss,
    "head": Head,
    "rank_mean": RankMean,
    "soft_cap": SoftCap,
    "duplicate": Duplicate,
    "decontaminate": Decontaminate,
    "table": Table,
}


def make(spec: FilterSpec) -> FilterBase:
    """The filter that a recipe asks for, before `setup`.

    ValueError for an unknown filter or option, with the nearest known name, and for a wrong value.
    """
    spec = normalised(spec)
    filter_class = class_of(spec)
    check_options(filter_class, spec.options, spec.name)
    if (spec.kind or spec.name) in FILTERS:
        options = with_numbers(spec.options, filter_class)
        if (known := without_pydantic(options, filter_class)) is not None:
            return known
    import pydantic

    try:
        options = with_numbers(spec.options, filter_class)
        return pydantic.TypeAdapter(filter_class).validate_python(options)
    except (pydantic.errors.PydanticUserError, NameError) as error:  # of a user's class
        line = str(error).partition("\n")[0]
        raise ValueError(
            f"filter {spec.name}: the type of an option of its class cannot be read: {line}"
        ) from None
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        option = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing":
            raise ValueError(f"filter {spec.name} needs the option {option}") from None
        prefix = f"filter {spec.name}: {option} is {first['input']!r}: " if option else ""
        raise ValueError(f"{prefix}{message}") from None


def normalised(spec: FilterSpec) -> FilterSpec:
    """The spec with its `kind` where it has another name than its filter.

    `{clip_l14: {clip_score: {…}}}` comes from YAML as a filter clip_l14 with an option clip_score.
    ValueError for a filter that does not exist, with the nearest that does, and for a name that no
    instance can have.
    """
    name, kind, options = spec.name, spec.kind, spec.options
    if kind is None and name not in FILTERS and len(options) == 1:
        inner, value = next(iter(options.items()))
        if value is None or isinstance(value, dict):
            kind, options = inner, value or {}
    if kind == name:
        kind = None
    if (kind or name) not in FILTERS and not (kind is not None and is_path(kind)):
        raise _unknown(name, kind)
    if kind is not None:
        check_instance_name(name, FILTERS)
    return FilterSpec(name=name, options=options, kind=kind)


def _unknown(name: str, kind: str | None) -> ValueError:
    if kind is None and is_path(name):
        return ValueError(f"filter {name} needs a name, as in {FORM}")
    names = [name] if kind is None else [kind, name]
    suggestions = [disk.did_you_mean(each, FILTERS) for each in names]
    suggestion = next(filter(None, suggestions), "")
    what = " and no filter ".join(repr(each) for each in reversed(names))
    return ValueError(f"there is no filter {what}{suggestion}; there are {', '.join(FILTERS)}")


def class_of(spec: FilterSpec) -> type[FilterBase]:
    """The class of a normalised spec. ValueError for a file that holds none."""
    kind = spec.kind or spec.name
    return FILTERS[kind] if kind in FILTERS else load_class(kind)


def instances_of(specs: Iterable[FilterSpec], extra: Iterable[str] = ()) -> dict[str, Instance]:
    """The filters by the names of their instances, in the order of the specs.

    extra: further columns of the sidecars. ValueError for what `make` refuses, for a name or a
    column that two of them have, for a column that a sidecar or a filter of another name has
    (capitals do not count), and for a filter that reads one that stands behind it.
    """
    instances: dict[str, Instance] = {}
    owners = dict.fromkeys([name.lower() for name in (*RESERVED, *extra)], "the sidecar")
    for filter_name, filter_class in FILTERS.items():
        owners.update(dict.fromkeys(filter_class.adds, f"the filter {filter_name}"))
    for given in specs:
        spec = normalised(given)
        if spec.name in instances:
            raise ValueError(f"filters named twice: {spec.name}; give one another name")
        kind = spec.kind or spec.name
        instance = Instance(name=spec.name, kind=kind, filter=make(spec))
        if shared := shared_name(instance.columns()):
            raise ValueError(
                f"filter {spec.name} has the columns {shared[1]!r} and {shared[0]!r}, which are "
                "one column to a rule; give one of them another name"
            )
        for column in instance.columns():
            owner = owners.get(column.lower())
            if owner is not None and owner != f"the filter {spec.name}":
                raise ValueError(
                    f"filter {spec.name} has the column {column!r}, which {owner} has too; "
                    "give the filter another name"
                )
            owners[column.lower()] = f"the filter {spec.name}"
        instances[spec.name] = instance
    _check_reads(instances)
    return instances


UNKNOWN = "which no filter of the recipe gives"


def _check_reads(instances: Mapping[str, Instance]) -> None:
    """ValueError for an instance that reads itself or one that stands behind it."""
    before: set[str] = set()
    for name, instance in instances.items():
        columns_too = isinstance(instance.filter, PoolFilter)
        for read in instance.filter.reads:
            if columns_too and read in SIDECAR.names:
                continue
            owner = _owner(instances, read) if columns_too else None
            if owner is None and read in instances:
                owner = read
            if owner == name:
                raise ValueError(f"filter {name} reads its own columns ({read}); name another one")
            if owner is not None and owner not in before:
                raise ValueError(
                    f"filter {name} reads {read}, which stands behind it in the filter list; "
                    f"put {owner} before {name}"
                )
        before.add(name)


def _owner(instances: Mapping[str, Instance], column: str) -> str | None:
    """The instance that has a column."""
    for name, instance in instances.items():
        if column in instance.columns():
            return name
    return None


def specs_of_recipe(recipe: Recipe) -> tuple[FilterSpec, ...]:
    """The filters of a recipe, normalised, with the options that the rest of the recipe decides."""
    specs = []
    for given in recipe.filters:
        spec = normalised(given)
        decided = class_of(spec).options_from(recipe)
        specs.append(
            FilterSpec(name=spec.name, options={**decided, **spec.options}, kind=spec.kind)
        )
    return tuple(specs)


def check_filters(instances: Mapping[str, Instance], extra: Collection[str] = ()) -> None:
    """ValueError for options, models and weights that cannot work. No weights are loaded.
    extra: further columns of the sidecars."""
    for name, instance in instances.items():
        instance.filter.check()
        for read in _unknown_reads(instances, instance, extra):
            logger.warning("filter %s reads %s, %s: the pool must have it", name, read, UNKNOWN)


def check_reads(instances: Mapping[str, Instance], extra: Collection[str] = ()) -> None:
    """ValueError for a filter that reads what neither these filters give nor the sidecars have."""
    for name, instance in instances.items():
        for read in _unknown_reads(instances, instance, extra):
            raise ValueError(
                f"filter {name} reads {read}, {UNKNOWN}, and the pool has no columns of others; "
                f"put the filter that gives it before {name}"
            )


def _unknown_reads(
    instances: Mapping[str, Instance], instance: Instance, extra: Collection[str]
) -> list[str]:
    return [
        read for read in instance.filter.reads
        if read not in instances and _owner(instances, read) is None
        and read not in (*SIDECAR.names, *extra)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker needs to make an instance again."""

    name: str
    kind: str
    options: dict[str, Any]  # JSON
    texts: dict[str, str]  # path -> text of a user's file

    @classmethod
    def of(cls, instance: Instance) -> WorkerSpec:
        """That of an instance; the text of a user's file goes along."""
        kind, options = instance.kind, disk.to_plain(options_of(instance.filter))
        texts = dict([text_of(kind)]) if is_path(kind) else {}
        return cls(name=instance.name, kind=kind, options=options, texts=texts)

    def instance(self) -> Instance:
        """The instance, before `setup`."""
        for path, text in self.texts.items():
            provide_text(path, text)
        given = FilterSpec(name=self.name, options=self.options, kind=self.kind)
        return Instance(name=self.name, kind=self.kind, filter=make(given))
