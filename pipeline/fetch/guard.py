"""Which addresses may be connected to: http and https, a few ports, and no address inside somebody's network.

A URL is looked at three times: as text (`target`), when its name is resolved (`Resolver` refuses a name if any of its
answers is forbidden) and when the socket is made (`socket_factory` sees the very address that will be connected to, so
a name that changes its mind, or a literal address that no resolver sees, gains nothing). A look at the peer of the
connected socket would be one too many: it is the address of the third, and by then connected to. The deny table is
written out because `ipaddress.is_global` lets 18 of 48 forbidden addresses pass on Python 3.11, among them 64:ff9b::/96
and 168.63.129.16. `allow_private` opens loopback and private networks, never metadata, link-local or multicast ones.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

from manifests.schema import Fetch
from pipeline.crawl import LONGEST_URL, ascii_host, trimmed

LOOKUPS = 32  # names resolved at once; each holds a thread, and small resolvers fail above a few hundred a second
FAILED_S = 60.0  # how long a name that DNS could not answer for is left alone
UNKNOWN = frozenset(
    {socket.EAI_NONAME, socket.EAI_NODATA}
)  # there is no such name, or it has no address
DEFAULT_PORTS = {"http": 80, "https": 443}
HOST_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*", re.ASCII
)
NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+", re.ASCII)
UNSAFE = re.compile(rb"[^!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]")  # bytes that no URL holds unescaped

# network, what it is, and whether `allow_private` opens it. IPv6: only 2000::/3 is handed out, so the rest is denied as
# a whole, and the parts of 2000::/3 that carry an IPv4 address inside or lead nowhere are named.
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
        ("fd00:ec2::/32", "a cloud's metadata service", False),
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
HANDED_OUT = ipaddress.ip_network("2000::/3")


class Refused(OSError):
    """We do not connect there. An OSError, so that it travels through the connector as a failed connect does."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A URL that may be asked for, in its one spelling: ASCII, host in lower case, address literals as usual."""

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
    """A URL as it will be asked for. Refused with bad_url, scheme, port or private_address."""
    text = trimmed(url)
    if len(text) > LONGEST_URL:
        raise Refused("bad_url", f"longer than {LONGEST_URL} characters")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise Refused("bad_url", str(error)) from error
    if not parts.scheme:
        raise Refused("bad_url", "no scheme")
    if parts.scheme not in DEFAULT_PORTS:
        raise Refused("scheme", f"{parts.scheme} is not http or https")
    if "@" in parts.netloc or "\\" in parts.netloc or "%" in parts.netloc:
        raise Refused("bad_url", "credentials, a backslash or a percent sign beside the host")
    host = _host(parts.hostname or "", settings, literal="[" in parts.netloc)
    port = DEFAULT_PORTS[parts.scheme] if port is None else port
    if port not in settings.allow_ports:
        raise Refused(
            "port", f"{port} is not one of fetch.allow_ports {list(settings.allow_ports)}"
        )
    path = parts.path.replace("\\", "/") or "/"  # as browsers read it
    here = Target(url="", scheme=parts.scheme, host=host, port=port)
    tail = _escape(path + (f"?{parts.query}" if parts.query else ""))
    return Target(url=here.origin + tail, scheme=here.scheme, host=host, port=port)


def _escape(text: str) -> str:
    """Percent-escapes for what no URL holds; escapes that are there stay as they are (signed URLs depend on it)."""
    try:
        raw = text.encode(
            "utf-8", "surrogateescape"
        )  # bytes of a Location header that are no UTF-8
    except UnicodeEncodeError as error:
        raise Refused("bad_url", "half of a surrogate pair") from error
    return UNSAFE.sub(lambda m: b"%%%02X" % m[0][0], raw).decode("ascii")


def _host(host: str, settings: Fetch, *, literal: bool) -> str:
    """A host name in ASCII, or a permitted address in its usual spelling."""
    usual, address = _spelled(host, literal)
    if address is not None:
        check_address(address, settings)
        if usual != address:
            raise Refused("bad_url", f"{usual} is an unusual spelling of {address}")
    return usual


@lru_cache(maxsize=4096)  # a host has many pictures
def _spelled(host: str, literal: bool) -> tuple[str, str | None]:
    """A host in ASCII, and what address it is, if it is one."""
    if literal:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError as error:
            raise Refused("bad_url", f"[{host}] is no address") from error
        return address.compressed, address.compressed
    try:
        host = ascii_host(host)
    except ValueError as error:  # UnicodeError is one
        raise Refused("bad_url", "the host is no name that DNS can hold") from error
    if not HOST_NAME.fullmatch(host):
        raise Refused("bad_url", f"{host!r} is no host name" if host else "no host")
    return host, _ipv4(host) if NUMBER.fullmatch(host.rsplit(".", 1)[-1]) else None


def _ipv4(host: str) -> str:
    """What a C library makes of decimal, octal, hexadecimal and short spellings: `127.1`, `0x7f000001`, `0177.1`."""
    numbers = []
    for part in host.split("."):
        if not NUMBER.fullmatch(part):
            raise Refused("bad_url", f"{host} is neither a name nor an address")
        base = 16 if part.startswith("0x") else 8 if part.startswith("0") and part != "0" else 10
        try:
            numbers.append(int(part.removeprefix("0x") or "0", base))
        except ValueError as error:  # 08 is no octal number
            raise Refused("bad_url", f"{host} is no address") from error
    last = 4 - len(numbers) + 1  # bytes that the last number covers
    if len(numbers) > 4 or any(n > 255 for n in numbers[:-1]) or numbers[-1] >= 256**last:
        raise Refused("bad_url", f"{host} is no address")
    value = numbers[-1] + sum(n << 8 * (3 - i) for i, n in enumerate(numbers[:-1]))
    return str(ipaddress.IPv4Address(value))


def check_address(ip: str, settings: Fetch) -> None:
    """Refused("private_address") where no socket of ours may go. An IPv4 address inside ::ffff: counts as IPv4."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    for network, what, opened in DENIED:
        if address.version == network.version and address in network:
            if opened and settings.allow_private:
                return
            raise Refused("private_address", f"{ip} is {what}")
    if address.version == 6 and address not in HANDED_OUT:
        raise Refused(
            "private_address", f"{ip} is outside {HANDED_OUT}, where public addresses lie"
        )


# --- where to connect ----------------------------------------------------------------------------------------------


def mapping(settings: Fetch) -> dict[str, tuple[str, int]]:
    """fetch.connect_to as {name or *.suffix: (address, port)}. ValueError for what is neither."""
    found = {}
    for name, place in settings.connect_to.items():
        address, _, port = place.rpartition(":")
        address = address.removeprefix("[").removesuffix("]")
        if not HOST_NAME.fullmatch(name.removeprefix("*.").lower()) or NUMBER.fullmatch(
            name.rsplit(".", 1)[-1]
        ):
            raise ValueError(f"fetch.connect_to names {name!r}; it must be a host name or *.suffix")
        try:
            ipaddress.ip_address(address)
            found[name.lower()] = (address, int(port))
        except ValueError as error:
            raise ValueError(f"fetch.connect_to {name}: {place!r} is not ADDRESS:PORT") from error
    return found


def mapped(host: str, places: dict[str, tuple[str, int]]) -> tuple[str, int] | None:
    """Where `connect_to` sends a name: its own entry first, then the longest suffix."""
    if host in places:
        return places[host]
    labels = host.split(".")
    for cut in range(1, len(labels)):
        if (place := places.get("*." + ".".join(labels[cut:]))) is not None:
            return place
    return None


def socket_factory(settings: Fetch) -> Callable[[Any], socket.socket]:
    """Makes the connector's sockets: the last look at the address and port, by the numbers that `connect` will get."""
    ports = {*settings.allow_ports, *(port for _, port in mapping(settings).values())}

    def make(info: Any) -> socket.socket:
        family, kind, protocol, _, address = info
        check_address(address[0], settings)
        if address[1] not in ports:
            raise Refused("port", f"{address[1]} is not one of {sorted(ports)}")
        return socket.socket(family, kind, protocol)

    return make


class Resolver(AbstractResolver):
    """Names to checked addresses. Each name is looked up once; `connect_to` comes before DNS.

    A failure is kept too: that there is no such name for good, any other for FAILED_S.
    """

    def __init__(self, settings: Fetch) -> None:
        self._settings = settings
        self._places = mapping(settings)
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="dns")
        self._asked: dict[str, asyncio.Future[list[str]]] = {}
        self._failed_at: dict[str, float] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Every address of a name. Refused if one of them is forbidden, OSError where there is none."""
        addresses = [host]
        if (place := mapped(host, self._places)) is not None:
            addresses, port = [place[0]], place[1]
        else:
            addresses = await self._addresses(host)
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

    async def _addresses(self, host: str) -> list[str]:
        """What DNS says about a name, asked for by the first who wants to know and shared by all others."""
        if time.monotonic() - self._failed_at.get(host, math.inf) > FAILED_S:
            del self._asked[host], self._failed_at[host]
        if host not in self._asked:
            loop = asyncio.get_running_loop()
            self._asked[host] = loop.run_in_executor(self._threads, _look_up, host)
        try:
            return await asyncio.shield(self._asked[host])
        except OSError as error:
            if error.errno not in UNKNOWN:
                self._failed_at.setdefault(host, time.monotonic())
            raise

    async def close(self) -> None:
        """Lets go of the threads; a lookup under way ends on its own."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for asked in self._asked.values():
            if asked.done() and not asked.cancelled():
                asked.exception()  # seen, so that nothing is logged about failures nobody waited for
            asked.cancel()


def _look_up(host: str) -> list[str]:
    """IPv4 and IPv6 addresses of a name, in the order of the system's rules."""
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))
