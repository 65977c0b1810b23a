"""Counts the reads by which a host takes numbers from a device. On a GPU each of them waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Calls whose result is in host memory, and operations whose result has a size that the host must
# learn first. float(x), bool(x), int(x) and x.item() are one operation, _local_scalar_dense.
CALLS = {Tensor.tolist: "tolist", Tensor.cpu: "cpu", Tensor.numpy: "numpy"}
OPERATIONS = {
    torch.ops.aten._local_scalar_dense.default: "item",
    torch.ops.aten.nonzero.default: "nonzero",
    torch.ops.aten.masked_select.default: "masked_select",
    torch.ops.aten.equal.default: "equal",
}


class _Operations(TorchDispatchMode):
    def __init__(self, reads: list[tuple[str, Tensor]]) -> None:
        super().__init__()
        self._reads = reads

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in OPERATIONS:
            self._reads.append((OPERATIONS[func], args[0]))
        return func(*args, **(kwargs or {}))


class HostReads(TorchFunctionMode):
    """While the block runs, `reads` collects each read: its name, and the tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, Tensor]] = []
        self._operations = _Operations(self.reads)

    @property
    def names(self) -> list[str]:
        """The reads so far."""
        return [name for name, _ in self.reads]

    def __enter__(self) -> HostReads:
        self._operations.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._operations.__exit__(*error)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in CALLS:
            self.reads.append((CALLS[func], args[0]))
        return func(*args, **(kwargs or {}))
