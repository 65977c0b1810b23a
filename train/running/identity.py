"""The identity of a run as plain values, and the differences between two identities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manifests import disk
from manifests.pool_layout import PoolLayout
from manifests.schema import Blend
from train.config import TrainConfig
from train.pixels import augment
from train.running.mix import RunLoader

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
    "reshard_after_forward",
    "cpu_offload",
    "recompute",
    "compile",
    "attention",
    "captions",
    "log_to",
    "micro_batch",
    "loss_tile",
    "local_loss",
    "read_mode",
    "read_cache",
    "read_cache_gb",
    "store_speed",
)


def deciding_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings that decide the weights, as plain values."""
    return {key: value for key, value in disk.to_plain(config).items() if key not in INCIDENTAL}


def view_hashes(blend: Blend) -> dict[str, str]:
    """The hash of each view's document, which changes when the view or its pool changes. A live run
    has none: its segments have the hashes of its shards. Of streams nothing is known before.
    """
    hashes: dict[str, str] = {}
    if blend.streams or blend.live or blend.segments is not None:
        return hashes
    for name in blend.views:
        pool, _, view = name.partition("/")
        document = disk.read_json(PoolLayout(blend.pools[pool]).view_json(view))
        hashes[name] = disk.content_hash(document)
    return hashes


def run_identity(blend: Blend, config: TrainConfig, loader: RunLoader) -> dict[str, Any]:
    """Everything that decides the weights, as plain values: settings, order, the pixels of crops,
    and the content of the views.
    """
    token_sets = {}
    for name, view in zip(loader.names, loader.views, strict=loader.is_resumable):
        token_sets[name] = view.token_set
    return {
        "config": deciding_settings(config),
        "order": loader.order.identity(),
        "pixels": augment.PIXELS_VERSION,
        "views": view_hashes(blend),
        "tokens": token_sets,
    }


def differences(saved: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two identities, each as `key: saved -> now`."""
    lines = []
    for key in sorted({*saved, *now}):
        before, after = saved.get(key), now.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key}: {before} -> {after}")
    return lines


def complete_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The deciding settings of a saved run, whatever version wrote it.

    An older version had fewer settings (such a run has their defaults), and counted more of them as
    deciding.
    """
    known = {key: value for key, value in saved.items() if key not in INCIDENTAL}
    return {**deciding_settings(TrainConfig()), **known}


def check_same_run(saved: Mapping[str, Any], now: Mapping[str, Any], out: str) -> dict[str, Any]:
    """Compare the identity in a run's folder with the present one, which is returned. ValueError
    names what differs.

    The hash of the initial weights is taken from the saved identity: only the first start reads
    them.
    """
    saved = {**saved, "config": complete_settings(saved["config"])}
    if "pixels" in now:
        saved.setdefault("pixels", 1)  # of a run that is older than this entry
    identity = dict(now)
    if "initial_weights" in saved:
        identity["initial_weights"] = saved["initial_weights"]
    if different := differences(saved, identity):
        raise ValueError(
            f"{out} holds another run ({'; '.join(different[:3])});"
            " choose another --out, or start again with --restart"
        )
    return identity
