"""A run as workers of Ray Train, on the cluster that a job was submitted to: ray is imported here and only when asked.

Ray places the workers, gives them torchrun's variables and joins them in a group; each then runs `train/run.py`'s own
`main`. SIGTERM does not reach Ray's workers: what saves such a run is `checkpoint_every`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from manifests import disk

logger = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[2]


def start(main: Callable[[list[str]], int], arguments: Sequence[str], out: str, workers: int) -> int:
    """`main(arguments)` on `workers` workers. 0, or 3 where one of them failed; its own message says why."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's coming default; without it Ray warns
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    try:
        import ray
        from ray.train import RunConfig, ScalingConfig, TrainingFailedError
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise ValueError(f"--ray needs Ray Train, which cannot be imported ({error}); install ray[train]") from error
    if not ray.is_initialized():
        if not os.environ.get("RAY_ADDRESS"):
            raise ValueError("--ray joins the cluster of a `ray job submit`, or of RAY_ADDRESS; here leave it away")
        ray.init(runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})
    gpu = bool(ray.cluster_resources().get("GPU"))

    def work(_: Any) -> None:
        if status := main(list(arguments)):
            raise RuntimeError(f"a worker ended with status {status}")

    trainer = TorchTrainer(
        work,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu),
        run_config=RunConfig(name="workers", storage_path=disk.join(out, "ray")),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        logger.error("%s", " ".join(str(error).split())[:300])
        return 3
    return 0
