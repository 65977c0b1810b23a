"""A small web for a manifest that `clipmill demo` builds: made in OUT/web, and served on loopback
while the manifest is built.

The manifest finds the web by ${MINIWEB}, its folder, and ${MINIWEB_PORT}.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from clipmill.examples.miniweb import small_web
from clipmill.examples.miniweb.server import running
from clipmill.examples.miniweb.settings import Miniweb
from clipmill.manifests import disk
from clipmill.pipeline import ablation_run

WEB_VARIABLES = ("MINIWEB", "MINIWEB_PORT")
SMALL_WEB = "examples/miniweb/small_web.py"


@contextmanager
def variables(web: str) -> Iterator[int]:
    """${MINIWEB} and ${MINIWEB_PORT} of a web while the block runs. Gives its port, a free one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    before = {name: os.environ.get(name) for name in WEB_VARIABLES}
    ablation_run.export(MINIWEB=web, MINIWEB_PORT=str(port))
    try:
        yield port
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def served(web: str, settings: Miniweb, port: int) -> Iterator[None]:
    """The web, made and served while the block runs."""
    words = ["write", "--out", web]
    for key, value in disk.to_plain(settings).items():
        text = ",".join(value) if isinstance(value, list) else value
        if text not in (None, ""):
            words.append(f"--{key.replace('_', '-')}={text}")
    print(f"\n$ python {SMALL_WEB} {shlex.join(words)}", flush=True)
    small_web.run(small_web.options(words))
    print(f"\n$ python {SMALL_WEB} serve --out {web} --port {port} &", flush=True)
    with running(web, port):
        yield
