"""Name servers for the tests: a function instead of DNS, and a server on loopback."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from clipmill.pipeline.fetch import guard


def fake_dns(patch: pytest.MonkeyPatch, look_up: Callable[[str], list[str]]) -> None:
    """Every name has the addresses that `look_up` returns, or fails with what it raises."""

    class FakeDns:
        async def addresses(self, host: str) -> list[str]:
            return look_up(host)

        async def close(self) -> None:
            pass

    patch.setattr(guard, "Dns", FakeDns)


A, AAAA = 1, 28  # kinds of records


class NameServer:
    """A name server on loopback. `answers` has an address by name; other names do not exist.

    Names under `.silent.test` get no answer. `asked` has every name that was asked for.
    """

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> NameServer:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._socket.getsockname())
        self._thread.join(300)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(4096)
            if not query:
                return
            name, end = _name(query)
            self.asked.append(name)
            if not name.endswith(".silent.test"):
                self._socket.sendto(self._answer(query, name, end), client)

    def _answer(self, query: bytes, name: str, end: int) -> bytes:
        kind = struct.unpack("!H", query[end : end + 2])[0]
        question = query[12 : end + 4]
        address = self.answers.get(name)
        records = b""
        if address is not None and kind == (AAAA if ":" in address else A):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            packed = socket.inet_pton(family, address)
            records = struct.pack("!HHHIH", 0xC00C, kind, 1, 60, len(packed)) + packed
        flags = 0x8180 if address is not None else 0x8183  # 3: there is no such name
        counts = struct.pack("!HHHH", 1, 1 if records else 0, 0, 0)
        return query[:2] + struct.pack("!H", flags) + counts + question + records


def _name(query: bytes) -> tuple[str, int]:
    """The name that a query asks for, and where it ends."""
    labels, offset = [], 12
    while length := query[offset]:
        labels.append(query[offset + 1 : offset + 1 + length].decode("ascii").lower())
        offset += 1 + length
    return ".".join(labels), offset + 1
