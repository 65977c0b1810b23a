"""This process as the kernel of a notebook: Rich's test for one, and IPython's display."""

from __future__ import annotations

import builtins
import sys
from dataclasses import dataclass, field
from types import ModuleType

import pytest


class ZMQInteractiveShell:
    """The class by whose name Rich knows a notebook."""


@dataclass
class Output:
    """One output of a cell: the texts that it showed, one in the place of the other."""

    texts: list[str] = field(default_factory=list)

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        """What the handle of a display does."""
        assert raw
        self.texts.append(bundle["text/plain"])


def fake_notebook(monkeypatch: pytest.MonkeyPatch) -> list[Output]:
    """From now on this process is a notebook's; the outputs of its cell."""
    outputs: list[Output] = []

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Output:
        assert display_id
        outputs.append(Output())
        outputs[-1].update(bundle, raw=raw)
        return outputs[-1]

    module = ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    return outputs
