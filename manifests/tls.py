"""Verify the certificates of servers in one way, whatever the version of Python.

`ssl.create_default_context` is not the same everywhere: since Python 3.13 it sets
VERIFY_X509_STRICT, which refuses certificates without an authority key identifier and other
deviations from RFC 5280 that browsers and curl take, and VERIFY_X509_PARTIAL_CHAIN, with which an
intermediate certificate that the machine trusts is enough, as for curl. Here the first is off and
the second is on. Chain, dates, purpose and name are verified as ever.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl


@functools.cache
def context(authorities: str | None = None) -> ssl.SSLContext:
    """The context of all clients; `authorities`: a file of certificates in place of the system's.

    There is one for each file: making one reads 200 KB of certificates, 33 ms of CPU.
    """
    import ssl  # not at the start of every command

    made = ssl.create_default_context(cafile=authorities)
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return made


async def web_client(**options: Any) -> Any:
    """The aiohttp.ClientSession of fsspec's filesystems http and https, in its own event loop."""
    import aiohttp

    if "connector" not in options:
        options["connector"] = aiohttp.TCPConnector(ssl=context())
    return aiohttp.ClientSession(**options)
