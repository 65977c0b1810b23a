"""Hosts on which rows lose time, in a table of bounded size.

A row that failed for a transient reason has lost the whole time that it took, at least a second; a
row that ended otherwise has lost the time above SLOW_S. Hosts that lose nothing are not in the
table.
"""

from __future__ import annotations

from collections.abc import Iterable

from manifests.columns import REASONS
from pipeline.progress.state import HostState

SLOW_S = 2.0
MIN_LOST_S = 1.0  # of a row that failed: one that was never requested took no time
MAX_HOSTS = 1_000  # that are kept; twice as many are held before the rest is dropped
SHOWN = 10


class HostLosses:
    """Seconds that were lost, by host. Adding costs O(1), and memory does not grow."""

    def __init__(self, max_hosts: int = MAX_HOSTS) -> None:
        self._max_hosts = max_hosts
        self._hosts: dict[str, tuple[float, int, str]] = {}  # seconds, rows, last reason

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, host: str, seconds: float, reason: str | None) -> None:
        """A row of a host has ended with a reason, or None where it has an image."""
        if reason is not None and REASONS.get(reason) == "transient":
            lost = max(MIN_LOST_S, seconds)
        elif seconds > SLOW_S:
            lost = seconds - SLOW_S
        else:
            return
        self._add(host, lost, 1, reason or "slow")

    def merge(self, hosts: Iterable[HostState]) -> None:
        """Add what another table says."""
        for each in hosts:
            self._add(each.host, each.seconds, each.rows, each.reason)

    def worst(self, count: int = SHOWN) -> tuple[HostState, ...]:
        """The hosts that lost most, the worst first."""
        ranked = sorted(self._hosts.copy().items(), key=lambda item: (-item[1][0], item[0]))
        states = []
        for host, (seconds, rows, reason) in ranked[:count]:
            states.append(HostState(host=host, rows=rows, seconds=round(seconds, 1), reason=reason))
        return tuple(states)

    def _add(self, host: str, lost: float, rows: int, reason: str) -> None:
        seconds, before, _ = self._hosts.get(host, (0.0, 0, ""))
        self._hosts[host] = (seconds + lost, before + rows, reason)
        if len(self._hosts) > 2 * self._max_hosts:
            kept = {state.host for state in self.worst(self._max_hosts)}
            self._hosts = {name: row for name, row in self._hosts.items() if name in kept}
