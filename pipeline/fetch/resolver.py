"""Host names to checked addresses: one lookup a name, no thread a lookup, a time limit of its own.

DNS is asked by c-ares (aiodns), which reads /etc/hosts and /etc/resolv.conf. `getaddrinfo` holds a
thread until the system's own time limit, often 30 s: 64 silent names kept all others waiting.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import aiodns
from aiodns import error as dns_errors
from aiohttp.abc import AbstractResolver, ResolveResult

from manifests.schema import Fetch
from pipeline.fetch.guard import check_address, mapped, mapping

LOOKUP_S = 6.0  # for one name: two questions, the second after 2 s
FIRST_TRY_S = 2.0
LOOKUPS = 32  # names that are new to DNS at once: small resolvers fail above a few hundred a second
NEW_S = 0.25  # how long a lookup counts as new; later ones are waiting for a silent name server
LOOKUP_AGE_S = 600.0  # an address, or that there is none, is looked up again after this time
FAILED_S = 60.0  # a name that DNS could not answer for is left alone for this time
NO_SUCH_NAME = frozenset(
    {dns_errors.ARES_ENOTFOUND, dns_errors.ARES_ENODATA, dns_errors.ARES_EBADNAME}
)
UNKNOWN = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
IPV6_ADDRESSES = Path("/proc/net/if_inet6")
GLOBAL_SCOPE = "00"
ADDRESS = re.compile(r".*:.*|(?:.*\.)?[0-9]+")  # what is not a host name


class AddressSource(Protocol):
    """What a Resolver asks."""

    async def addresses(self, host: str) -> list[str]:
        """The addresses of a name. socket.gaierror where there is none."""

    async def close(self) -> None:
        """End what is under way."""


class Dns:
    """The name servers of the system, or `servers` ("ADDRESS" or "ADDRESS:PORT").

    Needs a running event loop.
    """

    def __init__(self, servers: Sequence[str] | None = None) -> None:
        self._client = aiodns.DNSResolver(nameservers=servers, timeout=FIRST_TRY_S, tries=2)
        # A name's IPv6 addresses are of no use without an IPv6 address of our own.
        self._family = socket.AF_UNSPEC if _has_ipv6() else socket.AF_INET

    async def addresses(self, host: str) -> list[str]:
        """IPv4 and IPv6 addresses in the order of RFC 6724. socket.gaierror where there is none."""
        try:
            async with asyncio.timeout(LOOKUP_S):
                answer = await self._client.getaddrinfo(
                    host, family=self._family, type=socket.SOCK_STREAM
                )
        except TimeoutError as error:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer from DNS") from error
        except aiodns.error.DNSError as error:
            raise _as_gaierror(error) from error
        return list(dict.fromkeys(node.addr[0].decode() for node in answer.nodes))

    async def close(self) -> None:
        """End the lookups under way."""
        await self._client.close()


def _has_ipv6() -> bool:
    """Whether this machine has an IPv6 address besides loopback and link-local ones."""
    try:
        lines = IPV6_ADDRESSES.read_text().splitlines()
    except OSError:  # not Linux: it may have one
        return True
    # Address, interface, prefix, scope
    return any(line.split()[3] == GLOBAL_SCOPE for line in lines)


def _as_gaierror(error: aiodns.error.DNSError) -> socket.gaierror:
    """The failure of a lookup, in words that do not change from run to run."""
    code = error.args[0] if error.args else None
    if code in NO_SUCH_NAME:
        return socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    if code == dns_errors.ARES_ETIMEOUT:
        return socket.gaierror(socket.EAI_AGAIN, "no answer from DNS")
    return socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@dataclass(slots=True, kw_only=True, eq=False)
class _Lookup:
    """One name: its answer, and until when the answer may be used."""

    begun: asyncio.Event
    answer: asyncio.Task[list[str]]
    good_until: float


class Resolver(AbstractResolver):
    """Names to checked addresses for aiohttp. `fetch.connect_to` comes before DNS.

    A failure is kept too, for FAILED_S where DNS did not answer.
    """

    def __init__(self, settings: Fetch, source: AddressSource | None = None) -> None:
        self._settings = settings
        self._fixed = mapping(settings)
        self._source = source or Dns()
        self._new_lookups = asyncio.Semaphore(LOOKUPS)
        self._lookups: dict[str, _Lookup] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Every address of a name. Refused if one of them is forbidden, OSError without any."""
        if (fixed := mapped(host, self._fixed)) is not None:
            addresses, port = [fixed[0]], fixed[1]
        else:
            addresses = await asyncio.shield(self._lookup(host).answer)
        for address in addresses:
            check_address(address, self._settings)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def wait_for_start(self, host: str) -> None:
        """Return as soon as the lookup of a host has begun, or is not needed.

        The wait for other lookups is not a row's own time: its deadline starts afterwards.
        """
        if ADDRESS.fullmatch(host) or mapped(host, self._fixed) is not None:
            return
        lookup = self._lookup(host)
        if not lookup.begun.is_set():
            await lookup.begun.wait()

    async def close(self) -> None:
        """End the lookups under way."""
        answers = [lookup.answer for lookup in self._lookups.values()]
        self._lookups.clear()
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
        await self._source.close()

    def _lookup(self, host: str) -> _Lookup:
        """The lookup of a name, shared by all rows that need it."""
        now = time.monotonic()
        lookup = self._lookups.get(host)
        if lookup is None or now > lookup.good_until:
            self._forget(now)
            begun = asyncio.Event()
            lookup = _Lookup(
                begun=begun,
                answer=asyncio.create_task(self._ask(host, begun)),
                good_until=now + LOOKUP_AGE_S,
            )
            lookup.answer.add_done_callback(functools.partial(_set_age, lookup))
            self._lookups.pop(host, None)
            self._lookups[host] = lookup
        return lookup

    async def _ask(self, host: str, begun: asyncio.Event) -> list[str]:
        """The addresses of a name. It counts as a new lookup for NEW_S at most."""
        is_new = True

        def end_new() -> None:
            nonlocal is_new
            if is_new:
                is_new = False
                self._new_lookups.release()

        await self._new_lookups.acquire()
        begun.set()
        timer = asyncio.get_running_loop().call_later(NEW_S, end_new)
        try:
            return await self._source.addresses(host)
        finally:
            timer.cancel()
            end_new()

    def _forget(self, now: float) -> None:
        """Drop the oldest lookups that are too old: two for each new one, so that none pile up."""
        for host in list(itertools.islice(self._lookups, 2)):
            if now > self._lookups[host].good_until:
                del self._lookups[host]


def _set_age(lookup: _Lookup, answer: asyncio.Task[list[str]]) -> None:
    """A failure is repeated earlier than an address, but not a name that does not exist."""
    if answer.cancelled() or (error := answer.exception()) is None:
        return
    if not isinstance(error, OSError) or error.errno not in UNKNOWN:
        lookup.good_until = time.monotonic() + FAILED_S
