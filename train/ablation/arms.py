"""The runs of an ablation: arms × seeds, which of them are finished, and which are stale."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manifests import disk, reader
from manifests.pool_layout import PoolLayout, random_view_name
from manifests.run_layout import AblationLayout, RunLayout
from manifests.schema import Ablation, Blend, TaskSpec, Weights
from train.ablation.factors import arm_config
from train.ablation.given import GivenRun, given_runs
from train.ablation.models import ModelRun, model_runs, saved_model, stale_model
from train.config import TrainConfig
from train.evaluation import MARK, Metrics, clean_blend, saved_metrics
from train.running import complete_settings, deciding_settings, differences, view_hashes

A_A = "a_a"
A_A_ORDER = 1000  # added to a seed, it is the seed of the order of its A/A run
RANDOM_LIKE = "random_like_"
Json = dict[str, Any]


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
    weights: Weights = field(default_factory=Weights)  # that are evaluated

    def predictions(self, task: str) -> str:
        """The file with the predictions of a task."""
        return RunLayout(self.out).task_predictions(task, self.weights)

    @property
    def blend_name(self) -> str:
        """The name of the blend's file: the seeds of an arm share it, but for random subsets."""
        random = self.arm.startswith(RANDOM_LIKE)
        return f"{self.arm}.seed-{self.seed}" if random else self.arm


WorkRun = Run | ModelRun  # a run that is trained or evaluated here
AnyRun = Run | ModelRun | GivenRun


def expand_runs(
    ablation: Ablation, out: str, *, built: bool = True, clean: bool = True
) -> tuple[Run, ...]:
    """Every run to train: baseline, arms, their random subsets, and A/A.

    Arms whose models or predictions exist have none (see `all_runs`). ValueError for an arm that
    is neither POOL/VIEW nor a blend, for unknown training settings, and, if the pools are `built`,
    for a view that is missing, with the command that makes it. Of a task with `near_overlap: drop`
    the views are the clean ones; `clean=False` gives those that they are made from.
    """
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
    for arm in ablation.controls.random_like:
        blends[RANDOM_LIKE + arm] = {
            seed: _random_blend(ablation, out, arm, seed) for seed in ablation.seeds
        }
        settings[RANDOM_LIKE + arm] = settings[arm]
    if ablation.controls.a_a:
        blends[A_A] = blends[ablation.controls.a_a]
        settings[A_A] = settings[ablation.controls.a_a]
    runs = []
    for arm, by_seed in blends.items():
        config = settings[arm]
        for seed, whole in by_seed.items():
            blend = clean_blend(whole, ablation.evaluate) if clean else whole
            if built:
                _require_views(ablation, blend, out)
            order_seed = seed + A_A_ORDER if arm == A_A else config.order_seed
            run = Run(
                arm=arm,
                seed=seed,
                blend=blend,
                config=replace(config, seed=seed, order_seed=order_seed),
                out=AblationLayout(out).run(arm, seed),
                ranks=_ranks_of(ablation, arm),
                weights=ablation.evaluate_weights,
            )
            runs.append(run)
    return tuple(runs)


def _ranks_of(ablation: Ablation, arm: str) -> int:
    """The ranks of an arm; a control has those of the arm that it is for."""
    of = ablation.controls.a_a if arm == A_A else arm.removeprefix(RANDOM_LIKE)
    assert of is not None
    return ablation.arms[of].ranks or ablation.ranks


def all_runs(ablation: Ablation, out: str) -> tuple[AnyRun, ...]:
    """Every run: trained here, a model that exists, or predictions that exist; the baseline's
    first. The pools need not be built.
    """
    runs: list[AnyRun] = [*expand_runs(ablation, out, built=False), *model_runs(ablation, out)]
    runs += given_runs(ablation)
    return tuple(sorted(runs, key=lambda run: run.arm != ablation.baseline))


def evaluated_runs(ablation: Ablation, out: str, *, built: bool = True) -> tuple[WorkRun, ...]:
    """The runs that are trained or evaluated here. ValueError as by `expand_runs`."""
    return (*expand_runs(ablation, out, built=built), *model_runs(ablation, out))


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
        return Blend(name=arm, pools=folders, views=given.views)
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


# --- views ---------------------------------------------------------------------------------------


def missing_views(blend: Blend) -> list[str]:
    """The views of a blend, as POOL/VIEW, of which there is no document."""
    names = []
    for name in blend.views:
        pool, _, view = name.partition("/")
        if not disk.exists(PoolLayout(blend.pools[pool]).view_json(view)):
            names.append(name)
    return names


def _require_views(ablation: Ablation, blend: Blend, out: str) -> None:
    """ValueError for a view that is missing, with the command that makes it."""
    for name in missing_views(blend):
        pool, _, view = name.partition("/")
        folder = blend.pools[pool]
        if MARK in view:
            raise ValueError(
                f"there is no view {name} yet: run python train/ablate.py ABLATION --out {out}, "
                "which writes the views without near copies of evaluation images"
            )
        if pool in ablation.pools and ablation.pools[pool].recipe is not None:
            raise ValueError(
                f"there is no view {name} yet: run python pipeline/build.py ABLATION --out {out}, "
                "which builds the pools and then runs the ablation"
            )
        options = "--recipe RECIPE"
        if view.startswith(RANDOM_LIKE):
            like = view.removeprefix(RANDOM_LIKE).rpartition(".seed-")[0]
            draws = [str(ablation.random_draw(seed)) for seed in ablation.seeds]
            options = f"--random-like {like} --seed {' '.join(draws)}"
        raise ValueError(
            f"there is no view {name} yet: run python pipeline/filter.py {folder} {options}"
        )


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


def _saved_identity(run: WorkRun) -> Json | None:
    """The identity in a run's folder: of the finished run, or of its newest checkpoint."""
    if isinstance(run, ModelRun):
        return saved_model(run)
    layout = RunLayout(run.out)
    if disk.exists(layout.run_json):
        identity: Json = disk.read_json(layout.run_json)["identity"]
        return identity
    steps = [name for name in disk.list_names(layout.checkpoints) if name.startswith("step-")]
    for name in sorted(steps, key=lambda name: int(name.removeprefix("step-")), reverse=True):
        state = disk.join(layout.checkpoints, name, "state.json")
        if disk.exists(state):
            checkpoint: Json = disk.read_json(state)["identity"]
            return checkpoint
    return None


def stale_because(run: WorkRun) -> list[str]:
    """How the run in the folder differs from this one, as `key: saved -> now`; [] if it does not.

    Settings, the content of the views, and the weights and the seed of the blend are compared; of
    a model that exists, its files. Views that are gone are not compared: the scores of a run stay
    those of the data that were there.
    """
    if isinstance(run, ModelRun):
        return stale_model(run)
    saved = _saved_identity(run)
    if saved is None:
        return []
    before: Json = {"config": complete_settings(saved["config"]), "views": saved["views"]}
    now: Json = {"config": deciding_settings(run.config), "views": before["views"]}
    if not missing_views(run.blend):
        now["views"] = view_hashes(run.blend)
    run_json = RunLayout(run.out).run_json
    if disk.exists(run_json):
        blend = disk.read_json(run_json)["blend"]
        before["blend"] = _what_is_drawn(blend)
        now["blend"] = _what_is_drawn(disk.to_plain(run.blend.document()))
    return differences(before, now)


def _what_is_drawn(blend: Json) -> Json:
    """A blend's document without what does not decide its samples."""
    return {key: blend[key] for key in blend if key not in ("name", "pools", "max_repeats")}


def finished_metrics(run: WorkRun, tasks: Sequence[TaskSpec]) -> dict[str, Metrics] | None:
    """The metrics of every task of a finished run; None where training or a task is missing.

    The folder must not be stale (`stale_because`).
    """
    layout = RunLayout(run.out)
    if not disk.exists(layout.model_json if isinstance(run, ModelRun) else layout.run_json):
        return None
    metrics: dict[str, Metrics] = {}
    for task in tasks:
        saved = saved_metrics(layout.predictions_of(run.weights), task)
        if saved is None:
            return None
        metrics[task.name] = saved
    return metrics


def set_aside(run: WorkRun, out: str) -> str:
    """Move the folder of a stale run to runs/.replaced/ARM/seed-N-HASH and return that path.

    The HASH is of the identity of the moved run. A number is added where the path is taken.
    """
    name = f"{posixpath.basename(run.out)}-{disk.content_hash(_saved_identity(run), 8)}"
    folder = disk.join(out, "runs", ".replaced", run.arm)
    target, number = disk.join(folder, name), 1
    while disk.exists(target):
        number += 1
        target = disk.join(folder, f"{name}-{number}")
    _move_folder(run.out, target)
    return target


def _move_folder(source: str, target: str) -> None:
    if disk.is_url(source):
        import fsspec

        fs, name = fsspec.core.url_to_fs(source)
        fs.mv(name, fsspec.core.url_to_fs(target)[1], recursive=True)
        return
    disk.local_path(target).parent.mkdir(parents=True, exist_ok=True)
    disk.local_path(source).rename(disk.local_path(target))


def arm_names(runs: Sequence[AnyRun]) -> list[str]:
    """The arms of some runs, each once, in order."""
    return list(dict.fromkeys(run.arm for run in runs))


def missing_seeds(
    runs: Sequence[AnyRun], finished: Mapping[str, Mapping[int, Any]]
) -> dict[str, tuple[int, ...]]:
    """The seeds without a result, of each arm that has such. `finished` goes by arm and seed."""
    missing: dict[str, tuple[int, ...]] = {}
    for run in runs:
        if run.seed not in finished.get(run.arm, {}):
            missing[run.arm] = (*missing.get(run.arm, ()), run.seed)
    return missing
