"""torch, imported when something of it is used: it takes a second and gigabytes of disk, and the
report of an ablation needs none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            import torch as real

            value = self.__dict__[name] = getattr(real, name)  # is not asked for again
            return value

    torch = _Torch()

__all__ = ["torch"]
