"""The state of a command as text: one line for a log, a few lines for a narrow terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from manifests.text import printable
from pipeline.progress.state import CommandState, HostState, StageState

REASONS_IN_A_LINE = 4
HOSTS_IN_A_LINE = 2
OLD_S = 300.0  # a ticket that runs longer is named
TIME_LEFT_METHOD = "time left: tasks left ÷ tasks ended per second in the last 10 min of this run"


def stage_line(stage: StageState) -> str:
    """One line about one stage, for a log."""
    parts = [f"{stage.done + stage.failed:,} of {stage.total:,} tasks", f"{stage.failed} failed"]
    if stage.rows:
        parts.append(f"{stage.rows:,} rows ({rate_text(stage.rows_per_s)} rows/s)")
    if stage.bytes_per_s:
        parts.append(f"{bytes_text(stage.bytes_per_s)}/s")
    if stage.reasons:
        parts.append(f"{stage.stored:,} stored")
        parts.append(reasons_text(stage.reasons, REASONS_IN_A_LINE))
    if stage.hosts and not stage.ended:
        hosts = ", ".join(host_text(host) for host in stage.hosts[:HOSTS_IN_A_LINE])
        parts.append(f"slow or failing: {hosts}")
    if stage.oldest is not None and stage.oldest_s >= OLD_S:
        parts.append(f"{stage.oldest} runs since {span_text(stage.oldest_s)}")
    parts.append(f"{stage.seconds:.1f} s")
    if not stage.ended and stage.left_s is not None:
        parts.append(f"about {span_text(stage.left_s)} left")
    return printable(f"{stage.name}: {', '.join(parts)}")


def short_lines(state: CommandState, now: float | None = None) -> Iterator[str]:
    """A few short lines, for a terminal without room for a table."""
    yield printable(f"{state.command} {header_text(state, now)}")
    for stage in state.stages:
        ended = stage.done + stage.failed
        mark = "ok" if stage.ended and not stage.failed else f"{percent(ended, stage.total)} %"
        yield printable(f"{stage.name} {ended:,}/{stage.total:,} {mark}")
    current = state.current
    if current is None or current.ended:
        return
    if current.failed:
        yield f"failed {current.failed:,}"
    if current.rows:
        yield f"{rate_text(current.rows_per_s)} rows/s {bytes_text(current.bytes_per_s)}/s"
    yield f"left {span_text(current.left_s)}"
    for reason, count in list((current.reasons or {}).items())[:REASONS_IN_A_LINE]:
        yield printable(f"{reason} {count:,}")
    for host in current.hosts[:HOSTS_IN_A_LINE]:
        yield printable(f"slow {host.host}")


def header_text(state: CommandState, now: float | None = None) -> str:
    """`since 12 min`, `finished after 3 h`, or why it failed."""
    if state.phase == "running":
        return f"since {span_text((now or time.time()) - state.started)}"
    text = f"{state.phase} after {span_text(state.updated - state.started)}"
    return f"{text}: {state.message}" if state.message else text


def reasons_text(reasons: Mapping[str, int], limit: int) -> str:
    """The commonest reasons with their rows, and how many more there are."""
    ranked = sorted(reasons.items(), key=lambda item: -item[1])
    texts = [f"{reason} {count:,}" for reason, count in ranked[:limit]]
    if len(ranked) > limit:
        others = sum(count for _, count in ranked[limit:])
        texts.append(f"{len(ranked) - limit} other reasons {others:,}")
    return ", ".join(texts)


def host_text(host: HostState) -> str:
    """`a.example (12 rows, 240 s, deadline)`."""
    return f"{host.host} ({host.rows:,} rows, {host.seconds:,.0f} s, {host.reason})"


def span_text(seconds: float | None) -> str:
    """Seconds for a person: `42 s`, `12 min`, `3.5 h`, `4 days`; `?` where nothing is known."""
    if seconds is None:
        return "?"
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 72 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"


def bytes_text(size: float) -> str:
    """Bytes for a person: `5.6 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def rate_text(per_second: float) -> str:
    """Rows per second for a person."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


def percent(part: int, total: int) -> int:
    """Whole percent; 100 of nothing."""
    return 100 if not total else int(100 * part / total)
