"""Streams without a device: every access to memory is checked against the events.

The operations of a program run on the CPU, in the order of the program. Each is noted with the
stream that was current. A real device may run two streams in any order that the events allow, so
two accesses to one memory, one of them a write, must be ordered by events: otherwise `Race` is
raised. The order is followed by vector clocks, as race detectors do (Flanagan and Freund,
"FastTrack", PLDI 2009).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Clock = dict[str, int]  # stream -> how many of its operations are over


class Race(AssertionError):
    """Two streams use one memory, and no event orders them."""


@dataclass(slots=True, eq=False)
class FakeEvent:
    """An event of `FakeStream.record`."""

    clock: Clock = field(default_factory=dict)

    def record(self, stream):
        """The event comes after all operations of the stream so far."""
        self.clock = dict(stream.clock)


@dataclass(slots=True, eq=False)
class FakeStream:
    """A stream by name. With `ignores` it does not wait for events."""

    name: str
    ignores: bool = False
    clock: Clock = field(default_factory=dict)
    waits: int = 0

    def wait_event(self, event):
        """Later operations come after the event; nothing where it was not recorded."""
        self.waits += 1
        if self.ignores:
            return
        for name, time in event.clock.items():
            self.clock[name] = max(time, self.clock.get(name, 0))


@dataclass(slots=True)
class _Accesses:
    """Who has used one memory: the time of each stream's last read, and the last write."""

    storage: Any  # kept, so that no other memory gets its address
    reads: Clock = field(default_factory=dict)
    writes: Clock = field(default_factory=dict)


class FakeStreams(TorchDispatchMode):
    """The streams of a device that is the CPU. Use it as a context: operations inside count."""

    def __init__(self, *, ignores=""):
        super().__init__()
        self.compute = FakeStream("compute", ignores == "compute")
        self.copies = FakeStream("copies", ignores == "copies")
        self.accesses: dict[int, _Accesses] = {}
        self._current = self.compute

    def current(self):
        """The stream that computes."""
        return self._current

    def event(self):
        """A new event."""
        return FakeEvent()

    @contextlib.contextmanager
    def copying(self):
        """The stream of the copies, which is the current one in the block."""
        before, self._current = self._current, self.copies
        try:
            yield self.copies
        finally:
            self._current = before

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        stream = self._current
        time = stream.clock[stream.name] = stream.clock.get(stream.name, 0) + 1
        if func.is_view:
            return result
        for value, argument in zip(args, func._schema.arguments, strict=False):
            alias = argument.alias_info
            for tensor in _tensors(value):
                self._use(stream, time, tensor, alias is not None and alias.is_write)
        for tensor in _tensors(result):
            self._use(stream, time, tensor, writes=True)
        return result

    def _use(self, stream, time, tensor, writes):
        storage = tensor.untyped_storage()
        accesses = self.accesses.setdefault(storage.data_ptr(), _Accesses(storage))
        for before in (accesses.writes, accesses.reads) if writes else (accesses.writes,):
            for name, at in before.items():
                if stream.clock.get(name, 0) < at:
                    kind = "writes" if writes else "reads"
                    raise Race(f"{stream.name} {kind} what {name} uses, without waiting for it")
        (accesses.writes if writes else accesses.reads)[stream.name] = time


def _tensors(value):
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
