"""URLs and addresses that may be requested, and the resolver that looks them up."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import itertools
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import aiodns
from aiodns import error as dns_errors
from aiohttp.abc import AbstractResolver, ResolveResult

from clipmill.manifests.schema import Fetch
from clipmill.manifests.text import printable
from clipmill.pipeline.archives import urls
from clipmill.pipeline.archives.urls import LONGEST_URL, ascii_host, split, trimmed, without_dots
from clipmill.pipeline.fetch import own_time

# --------------------------------------------------------------------------------------------------
# URLs and addresses that may be requested: http and https, some ports, no private network.
#
# A URL is checked three times: as text (`target`), when its name is resolved (`Resolver` refuses
# a name if any of its addresses is forbidden), and when the socket is made (`socket_factory` sees
# the address that the socket will connect to, so a name whose address changes, or an address that
# no resolver sees, gains nothing). The deny table is written out because `ipaddress.is_global`
# accepts 18 of 48 forbidden addresses on Python 3.11, among them 64:ff9b::/96 and 168.63.129.16.
# `allow_private` opens loopback and private networks, never metadata, link-local or multicast
# ones.


DEFAULT_PORTS = {"http": 80, "https": 443}
HOST_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*", re.ASCII
)
NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+", re.ASCII)
ESCAPED_DOTS = re.compile(r"(?i)(?<=/)(?:\.|%2e){1,2}(?=/|\Z)")
SAFE = "!#$%&'()*+,/:;=?@[]"  # beside letters, digits and -._~: what a URL holds as it is

# Network, what it is, and whether `allow_private` opens it; the first entry that fits counts. IPv6:
# only 2000::/3 is allocated, so the rest is denied as a whole. The parts of 2000::/3 that carry an
# IPv4 address or lead nowhere are listed. Metadata services inside fc00::/7 come before it.
DENIED = tuple(
    (ipaddress.ip_network(network), what, opened)
    for network, what, opened in (
        ("127.0.0.0/8", "loopback", True),
        ("10.0.0.0/8", "private", True),
        ("172.16.0.0/12", "private", True),
        ("192.168.0.0/16", "private", True),
        ("0.0.0.0/8", "this network", False),
        ("100.64.0.0/10", "carrier-grade NAT", False),  # holds 100.100.100.200, a metadata service
        ("168.63.129.16/32", "a cloud's own services", False),
        ("169.254.0.0/16", "link-local", False),  # holds 169.254.169.254, the metadata services
        ("192.0.0.0/24", "protocol assignments", False),
        ("192.0.2.0/24", "documentation", False),
        ("192.31.196.0/24", "AS112", False),
        ("192.52.193.0/24", "AMT relays", False),
        ("192.88.99.0/24", "6to4 relays", False),
        ("192.175.48.0/24", "AS112", False),
        ("198.18.0.0/15", "benchmarking", False),
        ("198.51.100.0/24", "documentation", False),
        ("203.0.113.0/24", "documentation", False),
        ("224.0.0.0/4", "multicast", False),
        ("240.0.0.0/4", "reserved", False),
        ("fd00:ec2::/32", "a metadata service", False),  # AWS: ::254, and ::23 for pods
        ("fd20:ce::/32", "a metadata service", False),  # Google: ::254
        ("fd00:c1::/32", "a metadata service", False),  # Oracle: ::a9fe:a9fe
        ("fd00:42::/32", "a metadata service", False),  # Scaleway: ::42
        ("fd00:100::/32", "a metadata service", False),  # Alibaba: ::100:200
        ("fd00:a9fe:a9fe::/48", "a metadata service", False),  # Akamai: ::1
        ("::1/128", "loopback", True),
        ("fc00::/7", "private", True),
        ("64:ff9b::/96", "NAT64", False),
        ("64:ff9b:1::/48", "NAT64", False),
        ("fe80::/10", "link-local", False),
        ("ff00::/8", "multicast", False),
        ("2001::/23", "protocol assignments, Teredo among them", False),
        ("2001:db8::/32", "documentation", False),
        ("2002::/16", "6to4", False),
        ("2620:4f:8000::/48", "AS112", False),
        ("3fff::/20", "documentation", False),
    )
)
ALLOCATED = ipaddress.ip_network("2000::/3")


class Refused(OSError):
    """A URL or address that is not requested. An OSError: aiohttp's connector passes it on."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = printable(detail)  # it quotes URLs of strangers
        super().__init__(f"{reason}: {self.detail}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A URL that may be requested, in its one spelling: ASCII, host in lower case."""

    url: str
    scheme: str
    host: str  # without the brackets of IPv6
    port: int

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + (
            "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        )


def target(url: str, settings: Fetch) -> Target:
    """A URL as it will be requested. Refused with bad_url, scheme, port or private_address."""
    text = trimmed(url)
    if len(text) > LONGEST_URL:
        raise Refused("bad_url", f"longer than {LONGEST_URL} characters")
    try:
        parts = split(text)
        port = parts.port
    except ValueError as error:
        raise Refused("bad_url", str(error)) from error
    if not parts.scheme:
        raise Refused("bad_url", "no scheme")
    if parts.scheme not in DEFAULT_PORTS:
        raise Refused("scheme", f"{parts.scheme} is not http or https")
    if "@" in parts.authority or "\\" in parts.authority or "%" in parts.authority:
        raise Refused("bad_url", "credentials, a backslash or a percent sign beside the host")
    host = _host(parts.host, settings, literal="[" in parts.authority)
    port = DEFAULT_PORTS[parts.scheme] if port is None else port
    if port not in settings.allow_ports:
        raise Refused(
            "port", f"{port} is not one of fetch.allow_ports {list(settings.allow_ports)}"
        )
    path = parts.path.replace("\\", "/") or "/"  # as browsers read it
    # What sites say of it, and what is requested, is about the path without escaped dots too.
    path = without_dots(ESCAPED_DOTS.sub(lambda dots: re.sub("(?i)%2e", ".", dots[0]), path))
    checked = Target(url="", scheme=parts.scheme, host=host, port=port)
    path_and_query = _escape(path + (f"?{parts.query}" if parts.query else ""))
    return replace(checked, url=checked.origin + path_and_query)


def joined(base: str, location: str) -> str:
    """The URL that a Location header of a response from `base` names: backslashes before its query
    are slashes, as in browsers. ValueError where it is none."""
    location = trimmed(location)
    path = re.match("[^?#]*", location)
    assert path is not None
    return urls.joined(base, path[0].replace("\\", "/") + location[path.end() :])


def _escape(text: str) -> str:
    """Escape what a URL may not hold. Existing escapes stay as they are: signed URLs need it."""
    try:  # surrogateescape: bytes of a Location header that are not UTF-8
        return quote(text, safe=SAFE, errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise Refused("bad_url", "half of a surrogate pair") from error


def _host(host: str, settings: Fetch, *, literal: bool) -> str:
    """A host name in ASCII, or a permitted address in its usual spelling."""
    spelling, address = _spelled(host, literal)
    if address is not None:
        check_address(address, settings)
        if spelling != address:
            raise Refused("bad_url", f"{spelling} is an unusual spelling of {address}")
    return spelling


@lru_cache(maxsize=4096)  # a host has many images
def _spelled(host: str, literal: bool) -> tuple[str, str | None]:
    """A host in ASCII, and the address that it stands for, if any."""
    if literal:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError as error:
            raise Refused("bad_url", f"[{host}] is not an address") from error
        spelling = address.compressed
        if address.ipv4_mapped is not None:  # Python 3.13 would write its end as 1.2.3.4
            spelling = f"::ffff:{int(address) >> 16 & 0xFFFF:x}:{int(address) & 0xFFFF:x}"
        return spelling, spelling
    try:
        host = ascii_host(host)
    except ValueError as error:  # UnicodeError is one
        raise Refused("bad_url", "the host is not a name that DNS can hold") from error
    if not HOST_NAME.fullmatch(host):
        raise Refused("bad_url", f"{host!r} is not a host name" if host else "no host")
    if not NUMBER.fullmatch(host.rsplit(".", 1)[-1]):
        return host, None
    try:  # a decimal, octal, hexadecimal or short spelling: `127.1`, `0x7f000001`, `0177.1`
        return host, str(ipaddress.IPv4Address(socket.inet_aton(host)))
    except OSError as error:
        raise Refused("bad_url", f"{host} is neither a name nor an address") from error


def check_address(ip: str, settings: Fetch) -> None:
    """Refused("private_address") for a forbidden address. An IPv4 address in ::ffff: is IPv4."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    for network, what, opened in DENIED:
        if address.version == network.version and address in network:
            if opened and settings.allow_private:
                return
            raise Refused("private_address", f"{ip} is {what}")
    if address.version == 6 and address not in ALLOCATED:
        raise Refused("private_address", f"{ip} is outside {ALLOCATED}, where public addresses lie")


# --- where to connect ----------------------------------------------------------------------


def mapping(settings: Fetch) -> dict[str, tuple[str, int]]:
    """fetch.connect_to as {name or *.suffix: (address, port)}. ValueError for anything else."""
    targets = {}
    for name, address_and_port in settings.connect_to.items():
        address, _, port = address_and_port.rpartition(":")
        address = address.removeprefix("[").removesuffix("]")
        if not HOST_NAME.fullmatch(name.removeprefix("*.").lower()) or NUMBER.fullmatch(
            name.rsplit(".", 1)[-1]
        ):
            raise ValueError(f"fetch.connect_to names {name!r}; it must be a host name or *.suffix")
        try:
            ipaddress.ip_address(address)
            targets[name.lower()] = (address, int(port))
        except ValueError as error:
            raise ValueError(
                f"fetch.connect_to {name}: {address_and_port!r} is not ADDRESS:PORT"
            ) from error
    return targets


def mapped(host: str, targets: dict[str, tuple[str, int]]) -> tuple[str, int] | None:
    """Where `connect_to` sends a name: its own entry first, then the longest suffix."""
    if not targets or host in targets:
        return targets.get(host)
    labels = host.split(".")
    for first in range(1, len(labels)):
        if (target := targets.get("*." + ".".join(labels[first:]))) is not None:
            return target
    return None


def socket_factory(settings: Fetch) -> Callable[[Any], socket.socket]:
    """Makes the connector's sockets, after the last check of the numbers that `connect` gets."""
    ports = {*settings.allow_ports, *(port for _, port in mapping(settings).values())}

    def make(info: Any) -> socket.socket:
        family, kind, protocol, _, address = info
        check_address(address[0], settings)
        if address[1] not in ports:
            raise Refused("port", f"{address[1]} is not one of {sorted(ports)}")
        return socket.socket(family, kind, protocol)

    return make


# --------------------------------------------------------------------------------------------------
# Host names to checked addresses: one lookup a name, no thread a lookup, a time limit of its own.
#
# DNS is asked by c-ares (aiodns), which reads /etc/hosts and /etc/resolv.conf. `getaddrinfo`
# holds a thread until the system's own time limit, often 30 s: 64 silent names kept all others
# waiting.


LOOKUP_S = 6.0  # for one name: two questions, the second after 2 s
FIRST_TRY_S = 2.0
LOOKUPS = 32  # names that are new to DNS at once: small resolvers fail above a few hundred a second
NEW_S = 0.25  # how long a lookup counts as new; later ones are waiting for a silent name server
LOOKUP_AGE_S = 600.0  # an address, or that there is none, is looked up again after this time
FAILED_S = 60.0  # a name that DNS could not answer for is left alone for this time
CONNECT_S = 3.0  # for a connection that only shows whether there is a network
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
            async with own_time.limit(LOOKUP_S):
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

    async def connects(self, host: str, port: int) -> bool:
        """Whether a name is found, asked anew, and one of its addresses takes a connection."""
        self._lookups.pop(host, None)
        with contextlib.suppress(OSError):  # a TimeoutError is one
            async with asyncio.timeout(CONNECT_S):
                places = [(host, port)]
                if not ADDRESS.fullmatch(host):
                    found = await self.resolve(host, port)
                    places = [(each["host"], each["port"]) for each in found]
                for place in places:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection(*place)
                        writer.close()
                        return True
        return False

    def forgive(self) -> None:
        """Forget the names that DNS did not answer for."""
        for host, lookup in list(self._lookups.items()):
            answer = lookup.answer
            if answer.done() and not answer.cancelled() and answer.exception() is not None:
                del self._lookups[host]

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
