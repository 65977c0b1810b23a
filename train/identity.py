"""The identity of a run: everything that decides its weights, as plain values.

Every command that asks whether a run is still the one that is wanted asks `changes_since`: the
trainer, an ablation, its plan and its report. The page says what runs share by `shared_part`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout, RunLayout
from clipmill.manifests.preprocess import Preprocess
from clipmill.manifests.records import RunIdentity, RunRecord
from clipmill.manifests.schema import Blend
from clipmill.train import transforms
from clipmill.train.config import TrainConfig, model_config
from clipmill.train.data.view_rows import token_set
from clipmill.train.mixture.order import ORDER_VERSION
from clipmill.train.model.architecture import MODELS

if TYPE_CHECKING:
    from clipmill.train.data.loader import RunLoader

# Settings that change the weights by rounding at most: device, speed, memory, and what is written.
# A run may be resumed with other values of these.
INCIDENTAL = (
    "device",
    "threads",
    "checkpoint_every",
    "checkpoint_seconds",
    "keep_checkpoints",
    "log_every",
    "dp_shard",
    "tp",
    "recompute",
    "compile",
    "attention",
    "captions",
    "log_to",
    "micro_batch",
    "loss_tile",
    "read_cache",
    "read_cache_gb",
    "hang_seconds",
)
SEEDS = ("seed", "order_seed")  # runs of one ablation differ in them
SHA256 = re.compile(r"[0-9a-f]{64}")


def deciding_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings that decide the weights, as plain values."""
    return {key: value for key, value in disk.to_plain(config).items() if key not in INCIDENTAL}


def view_hashes(blend: Blend) -> dict[str, str]:
    """The hash of each view's document, which changes when the view or its pool changes. A live run
    has none: its segments have the hashes of its shards. Of streams nothing is known before.
    """
    hashes: dict[str, str] = {}
    if blend.draws_from != "views":
        return hashes
    for name, folder, view in blend.places():
        document = disk.read_json(PoolLayout(folder).view_json(view))
        hashes[name] = disk.content_hash(document)
    return hashes


def settings_identity(config: TrainConfig) -> RunIdentity:
    """What the settings alone decide: their values, the versions of order and pixels, the sha256 of
    the files of the initial weights. Files that are gone are left out.
    """
    identity: RunIdentity = {
        "config": deciding_settings(config),
        "order": {"version": ORDER_VERSION},
        "pixels": transforms.PIXELS_VERSION,
    }
    if config.model not in MODELS:  # open_clip's list and files may have another one tomorrow
        usual = dataclasses.asdict(Preprocess())  # is left out, as it was before it was stated
        plain = disk.to_plain(model_config(config)).items()
        identity["model"] = {
            key: value
            for key, value in plain
            if key.startswith("image_") or key not in usual or value != usual[key]
        }
    if config.init is not None:
        from clipmill.train.formats import model_files  # with torch

        with contextlib.suppress(ValueError):  # the model is gone
            identity["initial_files"] = model_files.source_files(config.init)
    return identity


def run_identity(blend: Blend, config: TrainConfig, loader: RunLoader | None = None) -> RunIdentity:
    """Everything that decides the weights, as plain values: settings, order, the pixels of crops,
    what is drawn, the content of the views and of the initial weights, and the sets of tokens.

    Without a loader, what is not known is left out: the order but for its version, and files, views
    and tokens that are gone.
    """
    identity = settings_identity(config)
    document = disk.to_plain(blend.document())  # lists, as a saved identity has them
    names = ("name", "pools", "max_repeats")  # they decide no sample
    identity["blend"] = {key: document[key] for key in document if key not in names}
    if loader is not None:
        identity["order"], identity["views"] = loader.order.identity(), view_hashes(blend)
        identity["tokens"] = dict(loader.route.token_sets)
        return identity
    if blend.draws_from != "views":
        del identity["order"]  # streams have none
        return identity
    with contextlib.suppress(OSError, ValueError):  # a view is gone
        identity["views"] = hashes = view_hashes(blend)
        model = model_config(config)
        if getattr(model, "tokenizer", None) is None:
            identity["tokens"] = _token_sets(blend, config.tokenizer, hashes)
        else:
            from clipmill.train.model.open_clip_model import own_tokenizer  # with torch

            own = own_tokenizer(model)
            assert own is not None
            identity["tokens"] = dict.fromkeys(blend.views, own.identity)
    return identity


def _token_sets(blend: Blend, tokenizer: str, hashes: Mapping[str, str]) -> dict[str, str]:
    sets = {}
    for name, folder, view in blend.places():
        scores = tuple(disk.list_names(PoolLayout(folder).scores))
        sets[name] = _token_set(folder, view, tokenizer, (hashes[name], scores))
    return sets


@functools.lru_cache(maxsize=1024)
def _token_set(pool: str, view: str, tokenizer: str, state: object) -> str:
    """A large pool's index takes seconds, and the runs of an arm have one view. `state` changes
    with the view and the score sets.
    """
    return token_set(pool, view, tokenizer)


def shared_part(identity: RunIdentity) -> RunIdentity:
    """The part of an identity that the runs of an ablation share: neither data nor seeds."""
    config = {key: identity["config"][key] for key in identity["config"] if key not in SEEDS}
    order = {"version": identity.get("order", {}).get("version")}
    shared: RunIdentity = {"config": config, "order": order, "pixels": identity["pixels"]}
    if "initial_files" in identity:
        shared["initial_files"] = identity["initial_files"]
    return shared


def differences(
    saved: Mapping[str, object], now: Mapping[str, object], prefix: str = ""
) -> list[str]:
    """What differs between two identities, each as `key: saved -> now`; hashes are cut."""
    lines = []
    for key in sorted({*saved, *now}):
        before, after = saved.get(key), now.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key}: {_short(before)} -> {_short(after)}")
    return lines


def _short(value: object) -> str:
    text = str(value)
    return text[:12] if SHA256.fullmatch(text) else text


def changes_since(
    saved: RunIdentity, now: RunIdentity, run: str, export: Mapping[str, str]
) -> tuple[RunIdentity, list[str]]:
    """The identity of a run now, and how it differs from the saved one, as `key: saved -> now`.

    What `now` leaves out is taken to be as it was: it is gone, or was not opened. `export`: sha256
    of each exported file of the finished run in the folder `run`; empty before. Files that have
    other bytes now are differences too.
    """
    identity: RunIdentity = {**saved, **now}
    if list(now.get("order", ())) == ["version"]:
        identity["order"] = {**saved.get("order", {}), **now["order"]}
    lines = differences(saved, identity)
    exported = {}
    for name in export:
        path = disk.join(RunLayout(run).export, name)
        exported[name] = disk.sha256_of(path) if disk.exists(path) else export[name]
    return identity, [*lines, *differences({"export": export}, {"export": exported})]


def check_same_run(
    saved: RunIdentity, now: RunIdentity, out: str, record: RunRecord | None = None
) -> RunIdentity:
    """Compare the identity in a run's folder with the present one, which is returned. ValueError
    names what differs.

    record: run.json of a finished run. Initial weights that are gone are not compared: only the
    first start reads them.
    """
    export = {} if record is None else record.export
    identity, different = changes_since(saved, now, out, export)
    if different:
        raise ValueError(
            f"{out} holds another run ({'; '.join(different[:3])}); "
            f"{_renamed(saved, now)}choose another --out, or start again with --restart"
        )
    return identity


def _renamed(saved: RunIdentity, now: RunIdentity) -> str:
    """The way to go on where the views are those of the run under other names, as of a pool that
    was moved; else "".
    """
    names = []
    for identity in (saved, now):
        sources = identity.get("order", {}).get("sources") or {}
        names.append({str(of.get("hash")): name for name, of in sources.items()})
    before, after = names
    if not before or before == after or before.keys() != after.keys():
        return ""
    pools = {before[key].rpartition("/")[0]: after[key].rpartition("/")[0] for key in before}
    shown = ", ".join(f"{old}: {new}" for old, new in pools.items())
    return f"its views have other names now, so give a blend with pools: {{{shown}}}; or "
