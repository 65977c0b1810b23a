"""clipmill: from web crawls to trained CLIP models, and what each dataset choice was worth.

This is the one package that is installed. The folders of the repository (manifests, filters,
pipeline, train, examples) stand in it as links, and benchmarks/trainer as `bench`; an installation
has copies in their place. Nothing heavy is imported here, so that a stop signal is handled early:
a name of the library loads its module when it is used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipmill.library.ablations import AblationRun as AblationRun
    from clipmill.library.ablations import run_ablation as run_ablation
    from clipmill.library.answers import BlendAnswer as BlendAnswer
    from clipmill.library.answers import Verdict as Verdict
    from clipmill.library.answers import decide as decide
    from clipmill.library.answers import mix as mix
    from clipmill.library.builds import Built as Built
    from clipmill.library.builds import build_pool as build_pool
    from clipmill.library.pools import Pool as Pool
    from clipmill.library.pools import open_pool as open_pool
    from clipmill.library.reports import Comparison as Comparison
    from clipmill.library.reports import compare as compare
    from clipmill.library.training import Evaluation as Evaluation
    from clipmill.library.training import evaluate_model as evaluate_model
    from clipmill.library.training import train_model as train_model
    from clipmill.train.data.own_loop import Batch as Batch
    from clipmill.train.data.own_loop import Loader as Loader

# Own modules, shipped manifests and examples lie below PACKAGE; ROOT is what a child has on its
# PYTHONPATH: the checkout, or the site-packages of an installation.
PACKAGE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(PACKAGE)
IS_CHECKOUT = os.path.islink(os.path.join(PACKAGE, "manifests"))
OWN = ROOT if IS_CHECKOUT else PACKAGE  # whose lines are named: of a checkout its tests too

__all__ = [
    "AblationRun", "Batch", "BlendAnswer", "Built", "Comparison", "Evaluation", "Loader", "Pool",
    "Verdict", "build_pool", "compare", "decide", "evaluate_model", "mix", "open_pool",
    "run_ablation", "train_model",
]  # fmt: skip
MODULES = {  # that have these names
    "library.answers": ("BlendAnswer", "Verdict", "decide", "mix"),
    "library.ablations": ("AblationRun", "run_ablation"),
    "library.builds": ("Built", "build_pool"),
    "library.pools": ("Pool", "open_pool"),
    "library.training": ("Evaluation", "evaluate_model", "train_model"),
    "library.reports": ("Comparison", "compare"),
    "train.data.own_loop": ("Batch", "Loader"),
}


def __getattr__(name: str) -> Any:
    for module, names in MODULES.items():
        if name in names:
            from importlib import import_module

            value = globals()[name] = getattr(import_module(f"clipmill.{module}"), name)
            return value
    raise AttributeError(f"module 'clipmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
