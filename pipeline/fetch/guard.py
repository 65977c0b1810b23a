"""URLs and addresses that may be requested: http and https, some ports, no private network.

A URL is checked three times: as text (`target`), when its name is resolved (resolver.py refuses a
name if any of its addresses is forbidden), and when the socket is made (`socket_factory` sees the
address that the socket will connect to, so a name whose address changes, or an address that no
resolver sees, gains nothing). The deny table is written out because `ipaddress.is_global` accepts
18 of 48 forbidden addresses on Python 3.11, among them 64:ff9b::/96 and 168.63.129.16.
`allow_private` opens loopback and private networks, never metadata, link-local or multicast ones.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from manifests.schema import Fetch
from manifests.text import printable
from pipeline.archives import LONGEST_URL, ascii_host, trimmed

DEFAULT_PORTS = {"http": 80, "https": 443}
HOST_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*", re.ASCII
)
NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+", re.ASCII)
# Bytes that a URL holds in escaped form only.
UNSAFE = re.compile(rb"[^!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]")

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
    checked = Target(url="", scheme=parts.scheme, host=host, port=port)
    path_and_query = _escape(path + (f"?{parts.query}" if parts.query else ""))
    return replace(checked, url=checked.origin + path_and_query)


def _escape(text: str) -> str:
    """Escape what a URL may not hold. Existing escapes stay as they are: signed URLs need it."""
    try:  # surrogateescape: bytes of a Location header that are not UTF-8
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Refused("bad_url", "half of a surrogate pair") from error
    return UNSAFE.sub(lambda m: b"%%%02X" % m[0][0], raw).decode("ascii")


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
        return address.compressed, address.compressed
    try:
        host = ascii_host(host)
    except ValueError as error:  # UnicodeError is one
        raise Refused("bad_url", "the host is not a name that DNS can hold") from error
    if not HOST_NAME.fullmatch(host):
        raise Refused("bad_url", f"{host!r} is not a host name" if host else "no host")
    return host, _ipv4(host) if NUMBER.fullmatch(host.rsplit(".", 1)[-1]) else None


def _ipv4(host: str) -> str:
    """The address of a decimal, octal, hexadecimal or short spelling, as a C library reads it.

    Examples: `127.1`, `0x7f000001`, `0177.1`.
    """
    numbers = []
    for part in host.split("."):
        if not NUMBER.fullmatch(part):
            raise Refused("bad_url", f"{host} is neither a name nor an address")
        base = 16 if part.startswith("0x") else 8 if part.startswith("0") and part != "0" else 10
        try:
            numbers.append(int(part.removeprefix("0x") or "0", base))
        except ValueError as error:  # 08 is not an octal number
            raise Refused("bad_url", f"{host} is not an address") from error
    last = 4 - len(numbers) + 1  # bytes that the last number covers
    if len(numbers) > 4 or any(n > 255 for n in numbers[:-1]) or numbers[-1] >= 256**last:
        raise Refused("bad_url", f"{host} is not an address")
    value = numbers[-1] + sum(n << 8 * (3 - i) for i, n in enumerate(numbers[:-1]))
    return str(ipaddress.IPv4Address(value))


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
