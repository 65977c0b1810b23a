"""clipmill: from web crawls to trained CLIP models, and what each dataset choice was worth.

This is the one package that is installed. The folders of the repository (manifests, filters,
pipeline, train, examples) stand in it as links, and benchmarks/trainer as `bench`; an installation
has copies in their place. Nothing heavy is imported here, so that a stop signal is handled early: a
name of the library is imported when it is used.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipmill.train.data.own_loop import Loader as Loader

# The library: each name and the module that has it.
LIBRARY = {
    "Loader": "clipmill.train.data.own_loop",
}


def __getattr__(name: str) -> Any:
    if name not in LIBRARY:
        raise AttributeError(f"module 'clipmill' has no attribute {name!r}")
    return getattr(importlib.import_module(LIBRARY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *LIBRARY])


# Own modules, shipped manifests and examples lie below PACKAGE; ROOT is what a child has on its
# PYTHONPATH: the checkout, or the site-packages of an installation.
PACKAGE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(PACKAGE)
IS_CHECKOUT = os.path.islink(os.path.join(PACKAGE, "manifests"))
OWN = ROOT if IS_CHECKOUT else PACKAGE  # whose lines are named: of a checkout its tests too
