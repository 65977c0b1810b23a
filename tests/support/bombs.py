"""Work that takes memory until something ends its worker, for the tests of the executor."""

from __future__ import annotations

import time
from typing import Any

from clipmill.pipeline.executor.tickets import Ticket, Work

BLOCK = 32 * 2**20


def hungry(job: Any) -> Work:
    """A factory: a ticket with the payload True fills memory without end."""

    def work(ticket: Ticket) -> dict[str, Any]:
        blocks = []
        while ticket.payload:
            blocks.append(b"x" * BLOCK)
            time.sleep(0.02)  # Ray looks at memory four times a second
        return {"id": ticket.id}

    return work
