"""The runs of an ablation: arms × seeds, factors, given predictions, models."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.manifests import disk, reader
from clipmill.manifests.arrays import Mask
from clipmill.manifests.layout import (
    AblationLayout,
    PoolLayout,
    RunLayout,
    part_view_name,
    random_view_name,
)
from clipmill.manifests.metrics import Metrics
from clipmill.manifests.records import RunIdentity, ViewDocument, read_document, read_part
from clipmill.manifests.schema import A_A, NO_SEED, RANDOM_LIKE, Ablation, Arm, Blend, TaskSpec
from clipmill.train.config import TrainConfig, configure, model_config, plain_changes
from clipmill.train.evaluation.tasks import saved_metrics
from clipmill.train.identity import changes_since, differences, run_identity
from clipmill.train.model.architecture import OPEN_CLIP

# --------------------------------------------------------------------------------------------------
# What differs between the arms: data, or one declared setting of training; all else is equal.


NEVER = ("preset", "seed", "order_seed")  # a preset is many settings; seeds are the ablation's


def arm_config(ablation: Ablation, arm: str) -> TrainConfig:
    """The settings of an arm: the ablation's, with the arm's own over them.

    ValueError, with the name of the arm, for settings that no run can have.
    """
    own = ablation.arms[arm].train
    if not own:
        return configure(ablation.train)
    try:
        return configure({**ablation.train, **own})
    except ValueError as error:
        raise ValueError(f"arm {arm!r}: {error}") from None


def check_factors(ablation: Ablation) -> None:
    """ValueError where arms differ in a setting that `vary` does not declare, or in two factors.

    Arms may have one value of the setting and differ in data; one view or blend and differ in the
    setting; or be a grid, every data with every value. In anything else, a difference from the
    baseline would be of both factors together.
    """
    trained = [name for name, arm in ablation.arms.items() if arm.is_trained]
    declared = next(iter(ablation.vary), None)
    for name in trained:
        for key in ablation.arms[name].train:
            if key in NEVER or key != declared:
                raise ValueError(
                    f"arm {name!r} sets {key}, which is not the factor that the ablation declares"
                    f" ({declared or 'data'}); "
                    f"write vary: {{{key}: [...]}}, or set {key} in train for all arms"
                )
    if declared is None:
        return
    values: dict[str, list[str]] = {}  # data -> values of the setting
    for name in trained:
        value = disk.content_hash(_setting(arm_config(ablation, name), declared))
        values.setdefault(_data(ablation.arms[name]), []).append(value)
    every = {value for of_data in values.values() for value in of_data}
    is_grid = all(sorted(of_data) == sorted(every) for of_data in values.values())
    if len(values) > 1 and len(every) > 1 and not is_grid:
        raise ValueError(
            f"the arms differ in data and in {declared}, and not every data has every value of "
            f"{declared}: a difference from the baseline would be of both; "
            f"give every data every value, or all arms the same data"
        )
    if trained and len(every) == 1:
        raise ValueError(f"vary names {declared}, but all arms have the same value of it")


def _setting(config: TrainConfig, key: str) -> Any:
    """The value of a setting, as training uses it."""
    (key,) = plain_changes({key: None})
    if key.startswith("model."):
        return getattr(model_config(config), key.removeprefix("model."))
    return getattr(config, key)


def _data(arm: Arm) -> str:
    """What an arm trains on, as text."""
    return disk.content_hash([arm.view, arm.blend, arm.views, arm.weights])


# --------------------------------------------------------------------------------------------------
# Runs whose predictions exist: files of other programs, judged like runs of this one.
#
# A file has one row per sample, with at least the columns
#
# * sample: text or whole number, different in every row; every file of a task has the same
#   samples,
# * label and predicted: the right class and the model's, text or whole number,
# * correct: true or false (or 1 and 0); never true where label and predicted differ.
#
# The rows may be in any order: they are put in the order of the first file that is read.


COLUMNS = ("sample", "label", "predicted", "correct")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRun:
    """A run of an arm of which only the predictions are known; `files` goes by task."""

    arm: str
    seed: int
    files: dict[str, str]

    def predictions(self, task: str) -> str:
        """The file with the predictions of a task."""
        return self.files[task]


def given_runs(ablation: Ablation) -> tuple[GivenRun, ...]:
    """The runs of every arm with predictions, the baseline first.

    ValueError for an arm of which no file exists. A single missing file is the reader's matter.
    """
    runs = []
    for name in dict.fromkeys([ablation.baseline, *ablation.arms]):
        pattern = ablation.arms[name].predictions
        if pattern is None:
            continue
        of_arm = []
        for seed in ablation.seeds:
            files = {}
            for task in ablation.evaluate:
                path = pattern.replace("{seed}", str(seed)).replace("{task}", task.name)
                files[task.name] = path
            of_arm.append(GivenRun(arm=name, seed=seed, files=files))
        paths = [path for run in of_arm for path in run.files.values()]
        if not any(disk.exists(path) for path in paths):
            raise ValueError(f"arm {name!r}: none of its predictions exists, as {paths[0]}")
        runs += of_arm
    return tuple(runs)


@dataclass(slots=True)
class GivenTask:
    """Reads the files of one task, all in the order of the first one."""

    task: str
    _samples: pa.Array | None = None
    _labels: list[Any] = field(default_factory=list)
    _first: str = ""

    def read(self, path: str) -> pa.Table:
        """The four columns, `correct` as booleans, text and numbers as text and int64. ValueError
        names the file and what is wrong with it.
        """
        table = _read_columns(path)
        samples = table["sample"].combine_chunks()
        labels, correct = table["label"], _as_booleans(table["correct"], path)
        table = table.set_column(3, "correct", pa.array(correct))
        differs = pc.not_equal(_as_text(labels), _as_text(table["predicted"])).to_numpy()
        wrong = np.flatnonzero(correct & differs)
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"{path}: sample {samples[row].as_py()!r} is correct, but its label is "
                f"{labels[row].as_py()!r} and {table['predicted'][row].as_py()!r} was predicted"
            )
        if self._samples is None:
            self._samples, self._first = samples, path
            self._labels = _as_text(labels).to_pylist()
            return table
        if samples.type != self._samples.type:
            raise ValueError(
                f"{path}: its samples are {samples.type}, those of {self._first} are "
                f"{self._samples.type}"
            )
        rows = pc.index_in(self._samples, value_set=samples)
        missing = pc.sum(pc.is_null(rows)).as_py()
        if missing or len(samples) != len(self._samples):
            raise ValueError(
                f"{path} has {len(samples):,} samples, of the {len(self._samples):,} of "
                f"{self._first} it lacks {missing:,}; all files of task {self.task!r} must be of "
                "the same samples"
            )
        if _as_text(labels).take(rows).to_pylist() != self._labels:
            raise ValueError(f"{path} has other labels than {self._first} for the same samples")
        return table.take(rows)

    @property
    def classes(self) -> int:
        """Different labels of the files that were read."""
        return len(set(self._labels))


def _read_columns(path: str) -> pa.Table:
    """The four columns. ValueError where one is missing, has a hole, or a sample comes twice."""
    try:
        names = disk.read_parquet(path).column_names
        missing = [name for name in COLUMNS if name not in names]
        table = None if missing else disk.read_parquet(path, list(COLUMNS))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None
    if table is None:
        raise ValueError(
            f"{path} has no column {missing[0]!r} (it has {', '.join(names)}); predictions have "
            f"the columns {', '.join(COLUMNS)}"
        )
    if not table.num_rows:
        raise ValueError(f"{path} has no rows")
    for name in COLUMNS:
        if table[name].null_count:
            raise ValueError(f"{path}: column {name!r} has {table[name].null_count} empty values")
    for position, name in enumerate(COLUMNS[:3]):
        plain = _text_or_number(table[name], f"{path}: column {name!r}")
        table = table.set_column(position, name, plain)
    different = pc.count_distinct(table["sample"]).as_py()
    if different < table.num_rows:
        raise ValueError(
            f"{path}: {table.num_rows - different} rows repeat a sample; each sample has one row"
        )
    return table


def _text_or_number(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """A column as text or int64, whichever way it is stored. ValueError for anything else."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_text = is_text or pa.types.is_string_view(kind) or pa.types.is_binary(kind)
    if not (is_number or is_text):
        raise ValueError(f"{where} holds {kind}; it must hold text or whole numbers")
    try:
        return column.cast(pa.int64() if is_number else pa.string())
    except pa.ArrowException as error:  # NaN, a fraction, bytes that are no text
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{where} must hold text or whole numbers: {reason}") from None


def _as_booleans(column: pa.ChunkedArray, path: str) -> Mask:
    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    values = column.to_numpy()
    if not (pa.types.is_boolean(kind) or (is_number and np.isin(values, (0, 1)).all())):
        raise ValueError(f"{path}: column 'correct' must hold true and false, or 1 and 0")
    return np.asarray(values).astype(bool)


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Labels as text, so that 3 and "3" are the same class."""
    return pc.cast(column, pa.string())


# --------------------------------------------------------------------------------------------------
# Runs whose models exist: evaluated like runs of this ablation, not trained.
#
# A model is what clipmill evaluate takes: a run, a folder with open_clip's or Hugging Face's
# files, or open_clip:NAME/TAG. Its predictions lie in runs/ARM/seed-N of the ablation's folder,
# beside model.json with the sha256 of its files: when they change, the scores are stale.


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """model.json of a run whose model exists: what decides the scores of the model."""

    source: str
    files: dict[str, str]  # file -> sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """A run of an arm of which the model exists."""

    arm: str
    seed: int  # NO_SEED where the arm is one model
    source: str
    out: str
    device: str = "auto"
    tokenizer: str = "clip"
    ranks: int = 1

    def predictions(self, task: str) -> str:
        """The file with the predictions of a task."""
        return RunLayout(self.out).task_predictions(task)


def model_runs(ablation: Ablation, out: str) -> tuple[ModelRun, ...]:
    """The runs of every arm that is a model: one for each seed, or a single one."""
    device = configure(ablation.train).device if ablation.train else "auto"
    layout, runs = AblationLayout(out), []
    for name in dict.fromkeys([ablation.baseline, *ablation.arms]):
        arm = ablation.arms[name]
        if arm.model is None:
            continue
        seeds = (NO_SEED,) if arm.is_one_model else ablation.seeds
        for seed in seeds:
            folder = layout.model(name) if arm.is_one_model else layout.run(name, seed)
            source = arm.model.replace("{seed}", str(seed))
            run = ModelRun(arm=name, seed=seed, source=source, out=folder, device=device)
            runs.append(run)
    return tuple(runs)


def scorer_run(ablation: Ablation, out: str) -> ModelRun | None:
    """The scorer that the ablation trained, as a model to evaluate; None where there is none."""
    layout = AblationLayout(out)
    if ablation.scorer is None or not disk.exists(RunLayout(layout.scorer).export):
        return None
    config = configure({**ablation.train, **ablation.scorer.train})
    return ModelRun(
        arm="scorer",
        seed=NO_SEED,
        source=RunLayout(layout.scorer).export,
        out=layout.scorer_evaluation,
        device=config.device,
        tokenizer=config.tokenizer,
    )


def check_models(ablation: Ablation, out: str) -> None:
    """ValueError for an arm of which no model exists; a single missing seed is one failed run."""
    of_arms: dict[str, list[ModelRun]] = {}
    for run in model_runs(ablation, out):
        of_arms.setdefault(run.arm, []).append(run)
    for arm, runs in of_arms.items():
        folders = [run_folder(run.source) for run in runs]
        if not any(folder is None or disk.exists(folder) for folder in folders):
            raise ValueError(
                f"arm {arm!r}: none of its models exists, as {runs[0].source}; name a run, a "
                "folder with a model, or open_clip:NAME/TAG"
            )


def run_folder(source: str) -> str | None:
    """The folder of a model; None for one that open_clip fetches."""
    return None if source.startswith(OPEN_CLIP) else source.removeprefix("local-dir:")


def trained_on(source: str) -> str | None:
    """run.json of the run that a model comes from, where that is known."""
    folder = run_folder(source)
    if folder is None:
        return None
    parent = os.path.dirname(folder.rstrip("/"))
    for root in (folder, parent) if folder.rstrip("/").endswith("/export") else (folder,):
        if disk.exists(RunLayout(root).run_json):
            return RunLayout(root).run_json
    return None


def model_identity(source: str) -> ModelIdentity:
    """What decides the scores of a model: its name, and the sha256 of its files.

    ValueError for a folder that does not exist.
    """
    from clipmill.train.formats import model_files  # with torch

    files = model_files.source_files(source, alone=False)
    return ModelIdentity(source=source, files=files)


def saved_model(run: ModelRun) -> ModelIdentity | None:
    """The identity of the model that was evaluated; None where none was."""
    path = RunLayout(run.out).model_json
    return read_document(path, ModelIdentity) if disk.exists(path) else None


def stale_model(run: ModelRun) -> list[str]:
    """How the model differs from the one that was evaluated, as `file: saved -> now`.

    [] where it does not differ, where nothing was evaluated, and where the model is gone: its
    scores stay those of the model that was there.
    """
    saved = saved_model(run)
    if saved is None:
        return []
    try:
        now = model_identity(run.source)
    except ValueError:
        return []
    if not saved.files and not now.files:
        return differences({"model": saved.source}, {"model": now.source})
    return differences(saved.files, now.files)


# --------------------------------------------------------------------------------------------------
# The runs of an ablation: arms × seeds, which of them are finished, and which are stale.


A_A_ORDER = 1000  # added to a seed, it is the seed of the order of its A/A run


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run of an arm.

    Runs of one seed start from the same weights. An A/A run differs from the run of its arm in the
    order of the samples; a random subset is another one for each seed.
    """

    arm: str
    seed: int
    blend: Blend
    config: TrainConfig
    out: str
    ranks: int = 1
    is_drawn: bool = False  # its rows are a random subset, which no other seed of the arm has

    def predictions(self, task: str) -> str:
        """The file with the predictions of a task."""
        return RunLayout(self.out).task_predictions(task)

    @property
    def blend_name(self) -> str:
        """The name of the blend's file: the seeds of an arm share it, but for random subsets."""
        return f"{self.arm}.seed-{self.seed}" if self.is_drawn else self.arm


WorkRun = Run | ModelRun  # a run that is trained or evaluated here
AnyRun = Run | ModelRun | GivenRun


def expand_runs(ablation: Ablation, out: str, *, built: bool = True) -> tuple[Run, ...]:
    """Every run to train: baseline, arms, their random subsets, and A/A.

    Arms whose models or predictions exist have none (see `all_runs`). ValueError for an arm that
    is neither POOL/VIEW nor a blend, for unknown training settings, for arms that differ in more
    than data or one declared setting, and, if the pools are `built`, for a view that is missing,
    with the command that makes it.
    """
    check_factors(ablation)
    # The baseline is first: a resolved ablation.json has its arms in alphabetical order.
    blends: dict[str, dict[int, Blend]] = {}
    for arm in dict.fromkeys([ablation.baseline, *ablation.arms]):
        blend_of_arm = _blend_of(ablation, out, arm)
        if blend_of_arm is not None:
            blends[arm] = dict.fromkeys(ablation.seeds, blend_of_arm)
    if not blends:
        return ()
    settings = {arm: arm_config(ablation, arm) for arm in blends}
    for config in settings.values():
        _refuse_relative_init(config.init)
    for control, arm in ablation.control_arms.items():
        blends[control], settings[control] = blends[arm], settings[arm]
        if control != A_A:
            seeds = ablation.seeds
            blends[control] = {seed: _random_blend(ablation, out, arm, seed) for seed in seeds}
    runs = []
    for arm, by_seed in blends.items():
        config = settings[arm]
        for seed, blend in by_seed.items():
            if ablation.part is not None:
                blend = _part_of(blend, ablation.part, ablation.random_draw(seed))
            if built:
                _require_views(ablation, blend, out)
            order_seed = seed + A_A_ORDER if arm == A_A else config.order_seed
            run = Run(
                arm=arm,
                seed=seed,
                blend=blend,
                config=replace(config, seed=seed, order_seed=order_seed),
                out=AblationLayout(out).run(arm, seed),
                ranks=ablation.arms[ablation.control_arms.get(arm, arm)].ranks or ablation.ranks,
                is_drawn=arm.startswith(RANDOM_LIKE) or ablation.part is not None,
            )
            runs.append(run)
    return tuple(runs)


def all_runs(ablation: Ablation, out: str) -> tuple[AnyRun, ...]:
    """Every run: trained here, a model that exists, or predictions that exist; the baseline's
    first. The pools need not be built.
    """
    runs: list[AnyRun] = [*expand_runs(ablation, out, built=False), *model_runs(ablation, out)]
    runs += given_runs(ablation)
    return tuple(sorted(runs, key=lambda run: run.arm != ablation.baseline))


def evaluated_runs(ablation: Ablation, out: str) -> tuple[WorkRun, ...]:
    """The runs that are trained or evaluated here. ValueError as by `expand_runs`."""
    return (*expand_runs(ablation, out), *model_runs(ablation, out))


def _refuse_relative_init(init: str | None) -> None:
    """ValueError for a relative path: a run may start in another folder than the manifest's."""
    if init is None or init.startswith("open_clip:") or disk.is_url(init):
        return
    if not os.path.isabs(init.removeprefix("local-dir:")):
        raise ValueError(
            f"train.init is {init!r}, a relative path; write the model's absolute path"
        )


def _blend_of(ablation: Ablation, out: str, arm: str) -> Blend | None:
    """The blend of an arm: POOL/VIEW, or a blend read from its file. None: it is not trained."""
    reserved = arm == A_A or arm.startswith(RANDOM_LIKE)
    if reserved or not re.fullmatch(r"\w[\w.-]*", arm):
        raise ValueError(
            f"arm {arm!r}: choose a name of letters, digits, '.', '_' and '-' that begins with a "
            "letter or a digit and that no control has"
        )
    given = ablation.arms[arm]
    if not given.is_trained:
        return None
    if given.blend is not None:
        return reader.read_manifest(given.blend, Blend)
    if given.views is not None:
        pools = {name.partition("/")[0] for name in given.views} & set(ablation.pools)
        folders = {pool: ablation.pool_folder(out, pool) for pool in sorted(pools)}
        return Blend(name=arm, pools=folders, views=given.views, weights=given.weights)
    pool, view = given.split_view()
    if not view or pool not in ablation.pools:
        raise ValueError(
            f"arm {arm!r} is {given.view!r}; it must be POOL/VIEW with a pool of "
            f"{sorted(ablation.pools)}"
        )
    folder = ablation.pool_folder(out, pool)
    return Blend(name=arm, pools={pool: folder}, views={f"{pool}/{view}": 1.0})


def _random_blend(ablation: Ablation, out: str, arm: str, seed: int) -> Blend:
    """The random subset of an arm's pool that has the size of the arm's view, drawn for a seed."""
    pool, view = ablation.arms[arm].split_view()
    if pool not in ablation.pools:
        raise ValueError(
            f"controls.random_like: arm {arm!r} is a blend; only POOL/VIEW has a random subset "
            "of its size"
        )
    name = random_view_name(view, ablation.random_draw(seed))
    return Blend(
        name=RANDOM_LIKE + arm,
        pools={pool: ablation.pool_folder(out, pool)},
        views={f"{pool}/{name}": 1.0},
    )


def _part_of(blend: Blend, share: float, draw: int) -> Blend:
    """The blend of parts of its views. ValueError for one that has none."""
    if blend.draws_from != "views":
        raise ValueError(f"part is {share:g}, but the blend {blend.name!r} is not of views")
    part = {name: part_view_name(name, share, draw) for name in blend.views}
    return replace(
        blend,
        views={part[name]: weight for name, weight in blend.views.items()},
        balance={part[name]: balance for name, balance in blend.balance.items()},
        captions={part[name]: shares for name, shares in blend.captions.items()},
    )


# --- views ---------------------------------------------------------------------------------------


def missing_views(blend: Blend) -> list[str]:
    """The views of a blend, as POOL/VIEW, of which there is no document."""
    return [
        name for name, folder, view in blend.places()
        if not disk.exists(PoolLayout(folder).view_json(view))
    ]  # fmt: skip


def _is_stale_part(pool: str, view: str) -> bool:
    """Whether a part was made of a view that has other rules or scores now."""
    layout = PoolLayout(pool)
    path = layout.view_json(view.rpartition(".part-")[0])
    if not disk.exists(path):
        return False
    part, whole = (read_document(each, ViewDocument) for each in (layout.view_json(view), path))
    return (part.rules[:-1], part.scores) != (whole.rules, whole.scores)


def _require_views(ablation: Ablation, blend: Blend, out: str) -> None:
    """ValueError for a view that is missing, with the command that makes it; for a part of a view
    as it was before too.
    """
    missing = missing_views(blend)
    for name, folder, view in blend.places():
        pool, problem = name.partition("/")[0], f"there is no view {name} yet"
        if name not in missing:
            if ablation.part is None or not _is_stale_part(folder, view):
                continue
            problem = f"the view {name} is of the rules or the scores as they were before"
        if pool in ablation.pools and ablation.pools[pool].recipe is not None:
            raise ValueError(
                f"{problem}: run clipmill build ABLATION --out {out}, "
                "which builds the pools and then runs the ablation"
            )
        command = f"filter {folder} --recipe RECIPE"
        draws = " ".join(str(ablation.random_draw(seed)) for seed in ablation.seeds)
        whole = view.rpartition(".part-")[0] if ablation.part is not None else ""
        if whole and disk.exists(PoolLayout(folder).view_json(whole)):
            of_arms = [each for arm in ablation.arms.values() for each in arm.view_weights]
            inside = [each.partition("/")[2] for each in of_arms if each.startswith(f"{pool}/")]
            names = " ".join(dict.fromkeys([whole, *inside]))
            command = f"filter part {folder} {names} --share {ablation.part:g} --seed {draws}"
        elif view.startswith(RANDOM_LIKE):
            like = view.removeprefix(RANDOM_LIKE).partition(".seed-")[0]
            command = f"filter random-like {folder} {like} --seed {draws}"
        raise ValueError(f"{problem}: run clipmill {command}")


def recipe_views(path: str) -> list[str]:
    """The names of a recipe's views, at every scale. No variable of the recipe needs to be set."""
    if path.endswith(".json"):
        return [view["name"] for view in disk.read_json(path).get("views", [])]
    views: dict[str, None] = {}
    for scale in (None, *reader.list_scales(path)):
        block = reader.read_block(path, "views", dict[str, object], scale=scale)
        views |= dict.fromkeys(block if block is not None else ["raw"])
    return list(views)


def check_views(ablation: Ablation, out: str) -> None:
    """ValueError for a view that neither the recipe nor the folder of its pool has.

    It needs no pool: what cannot be known yet (a pool without a recipe that is not there) passes.
    """
    known: dict[str, list[str]] = {}  # folder of a pool -> the names of its views
    for pool, reference in ablation.pools.items():
        folder = ablation.pool_folder(out, pool)
        if reference.recipe is not None:
            known.setdefault(folder, []).extend(recipe_views(reference.recipe))
    wanted = []
    for arm in ablation.arms:
        blend = _blend_of(ablation, out, arm)
        if blend is None:
            continue
        wanted += [(f"arm {arm!r}", name, blend.pools) for name in blend.views]
    if ablation.scorer:
        folders = {pool: ablation.pool_folder(out, pool) for pool in ablation.pools}
        wanted.append(("scorer.view", ablation.scorer.view, folders))
    for user, name, folders in wanted:
        pool, _, view = name.partition("/")
        _check_view(user, name, view, folders[pool], known.get(folders[pool], []))


def _check_view(user: str, name: str, view: str, folder: str, in_recipe: Sequence[str]) -> None:
    files = disk.list_names(PoolLayout(folder).views, ".json")
    views = [*in_recipe, *(file.removesuffix(".json") for file in files)]
    if views and view not in views:
        raise ValueError(
            f"{user} is {name!r}, but there is no view {view!r}{disk.did_you_mean(view, views)} "
            f"({folder} has {', '.join(dict.fromkeys(views))})"
        )


# --- what is there already -----------------------------------------------------------------------


def _saved_identity(run: Run) -> RunIdentity | None:
    """The identity in a run's folder: of the finished run, or of its newest checkpoint."""
    layout = RunLayout(run.out)
    if disk.exists(layout.run_json):
        identity: RunIdentity = read_part(layout.run_json, "identity")
        return identity
    steps = [name for name in disk.list_names(layout.checkpoints) if name.startswith("step-")]
    for name in sorted(steps, key=lambda name: int(name.removeprefix("step-")), reverse=True):
        state = disk.join(layout.checkpoints, name, "state.json")
        if disk.exists(state):
            with contextlib.suppress(ValueError):  # it is damaged: the run names it when it resumes
                checkpoint: RunIdentity = read_part(state, "identity")
                return checkpoint
    return None


def _export(run: Run) -> dict[str, str]:
    """sha256 of each exported file of a finished run, as it was written down."""
    path = RunLayout(run.out).run_json
    export: dict[str, str] = read_part(path, "export") if disk.exists(path) else {}
    return export


def stale_because(run: WorkRun) -> list[str]:
    """How the run in the folder differs from this one, as `key: saved -> now`; [] if it does not.

    Everything that decides the weights is compared (see train.trainer.run_identity), and the
    exported weights with those that training wrote; of a model that exists, its files. What is gone
    is not compared: the scores of a run stay those of the data that were there.
    """
    if isinstance(run, ModelRun):
        return stale_model(run)
    saved = _saved_identity(run)
    if saved is None:
        return []
    return changes_since(saved, run_identity(run.blend, run.config), run.out, _export(run))[1]


def finished_metrics(run: WorkRun, tasks: Sequence[TaskSpec]) -> dict[str, Metrics] | None:
    """The metrics of every task of a finished run; None where training or a task is missing, or
    the predictions are of other weights, images, classes or prompts than the present ones.

    The folder must not be stale (`stale_because`).
    """
    layout = RunLayout(run.out)
    if not disk.exists(layout.model_json if isinstance(run, ModelRun) else layout.run_json):
        return None
    weights = _evaluated_weights(run)
    metrics: dict[str, Metrics] = {}
    for task in tasks:
        saved = saved_metrics(layout.predictions, task, weights)
        if saved is None:
            return None
        metrics[task.name] = saved
    return metrics


def _evaluated_weights(run: WorkRun) -> dict[str, str] | None:
    """The hashes of the weights that are to be evaluated; None where they are gone."""
    if isinstance(run, Run):
        return _export(run)
    from clipmill.train.parallel import checkpoint  # with torch

    try:
        return checkpoint.hashes_of(run.source)
    except ValueError:
        return None


def set_aside(run: WorkRun, out: str) -> str:
    """Move the folder of a stale run to runs/.replaced/ARM/seed-N-HASH and return that path.

    The HASH is of the identity of the moved run. A number is added where the path is taken.
    """
    identity = saved_model(run) if isinstance(run, ModelRun) else _saved_identity(run)
    name = f"{posixpath.basename(run.out)}-{disk.content_hash(identity, 8)}"
    folder = disk.join(out, "runs", ".replaced", run.arm)
    target, number = disk.join(folder, name), 1
    while disk.exists(target):
        number += 1
        target = disk.join(folder, f"{name}-{number}")
    _move_folder(run.out, target)
    return target


def _move_folder(source: str, target: str) -> None:
    if disk.is_url(source):
        fs, name = disk.filesystem(source)
        fs.mv(name, disk.filesystem(target)[1], recursive=True)
        return
    disk.local_path(target).parent.mkdir(parents=True, exist_ok=True)
    disk.local_path(source).rename(disk.local_path(target))


def arm_names(runs: Sequence[AnyRun]) -> list[str]:
    """The arms of some runs, each once, in order."""
    return list(dict.fromkeys(run.arm for run in runs))


def missing_seeds(
    runs: Sequence[AnyRun], finished: Collection[tuple[str, int]]
) -> dict[str, tuple[int, ...]]:
    """The seeds without a result, of each arm that has such. finished: (arm, seed) of the runs."""
    missing: dict[str, tuple[int, ...]] = {}
    for run in runs:
        if (run.arm, run.seed) not in finished:
            missing[run.arm] = (*missing.get(run.arm, ()), run.seed)
    return missing
