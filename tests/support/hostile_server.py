"""Plays the entries of tables/hostile_routes.json, each under its own host, NAME.hostile.test."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gzip
import io
import socket
import ssl
import struct
import threading
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from PIL import Image

from clipmill.manifests import tls

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
BOMB = 64 * 2**20
NOT_FOUND = ["HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"]
# Path of a file of a site -> the key of an entry that says how it is answered.
SITE_FILES = {"/robots.txt": "robots", "/.well-known/tdmrep.json": "tdmrep", "/ai.txt": "ai"}
TLS = ("tls", "expired", "wrong-host", "self-signed")


def bodies() -> dict[str, bytes]:
    """What an entry can send by name."""
    out = io.BytesIO()
    Image.effect_noise((96, 64), 60).convert("RGB").save(out, "JPEG", quality=90)
    picture, html = out.getvalue(), b"<!doctype html><html><body>please log in</body></html>"
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    bomb = gzip.compress(bytes(BOMB), mtime=0)
    return {
        "picture": picture,
        "half picture": picture[: len(picture) // 2],
        "picture and html": picture + html,
        "html": html,
        "gzip picture": gzip.compress(picture, mtime=0),
        "half gzip picture": gzip.compress(picture, mtime=0)[:-500],
        "deflate picture": zlib.compress(picture),
        "raw deflate picture": raw.compress(picture) + raw.flush(),
        "gzip bomb": bomb,
        "deflate bomb": zlib.compress(bytes(BOMB)),
        "br bomb": bytes.fromhex("5bffff1f00") * 100,  # never looked at: the header decides
        # The head of a frame of zeros
        "zstd bomb": bytes.fromhex("28b52ffd0458540000100000010054fdff39c0022000"),
        "nested gzip bomb": gzip.compress(bomb, mtime=0),
    }


def certificate(
    folder: Path, name: str, host: str, issuer: tuple[Any, Any] | None, days: int = 30
) -> tuple[Any, Any]:
    """Key and certificate of `host`, in FOLDER/NAME.pem; self-signed without an issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=60)
    signer, above = issuer or (key, None)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(above.subject if above else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=60 + days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=above is None, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / f"{name}.pem").write_bytes(text + made.public_bytes(serialization.Encoding.PEM))
    return key, made


def certificates(folder: Path) -> ssl.SSLContext:
    """Write those of the TLS entries. The context trusts the authority that signed three."""
    authority = certificate(folder, "authority", "authority.test", None)
    certificate(folder, "tls", "tls.hostile.test", authority)
    certificate(folder, "expired", "tls-expired.hostile.test", authority, days=-30)
    certificate(folder, "wrong-host", "other.hostile.test", authority)
    certificate(folder, "self-signed", "tls-self-signed.hostile.test", None)
    return tls.context(str(folder / "authority.pem"))


def _tls(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem")
    return context


class HostileServer:
    """One thread, an event loop, and a port for each way to begin a connection.

    `sent` counts bytes per entry.
    """

    def __init__(self, entries: list[dict[str, Any]], folder: Path) -> None:
        self.entries = {entry["name"]: entry for entry in entries}
        self.bodies = bodies()
        self.sent: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()  # requests for the picture
        self.cookies: list[str] = []
        self.ports: dict[str, int] = {}
        self._folder = folder
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(),), daemon=True
        )

    def __enter__(self) -> HostileServer:
        self._thread.start()
        assert self._started.wait(900)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(300)
        self._loop.close()
        for taken in self._sockets:
            taken.close()

    def url(self, name: str) -> str:
        secure = name.startswith("tls")
        return f"http{'s' if secure else ''}://{name}.hostile.test/x"

    def connect_to(self) -> dict[str, str]:
        """Where each host is: fetch.connect_to."""
        targets = {"*.hostile.test": f"127.0.0.1:{self.ports['plain']}"}
        for name, entry in self.entries.items():
            port = self.ports.get(entry.get("at", name if "on" in entry else "plain"))
            targets[f"{name}.hostile.test"] = f"127.0.0.1:{port}"
        return targets

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        servers = [await self._listen("plain", self._connection)]
        for name in TLS:
            servers.append(await self._listen(name, self._connection, ssl=_tls(self._folder, name)))
        servers.append(await self._listen("plain-tls", self._no_tls))
        servers.append(await self._listen("hang-tls", self._silent))
        for name, entry in self.entries.items():
            if entry.get("on") == "accept":
                servers.append(
                    await self._listen(name, lambda r, w, name=name: self._at_once(name, w))
                )
        self._full()
        self._started.set()
        await self._end.wait()
        for server in servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, name: str, answer: Any, **options: Any) -> asyncio.Server:
        listening = socket.socket()
        # What is sent has been taken, nearly
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        listening.bind(("127.0.0.1", 0))
        self.ports[name] = listening.getsockname()[1]

        async def watched(reader: Reader, writer: Writer) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            if "ssl" not in options:  # asyncio's TLS loses what it has if it may hold nothing
                writer.transport.set_write_buffer_limits(0)
            try:
                with contextlib.suppress(
                    OSError, EOFError, asyncio.CancelledError, asyncio.LimitOverrunError
                ):
                    await answer(reader, writer)
            finally:
                self._tasks.discard(task)
                writer.transport.abort()

        return await asyncio.start_server(watched, sock=listening, backlog=512, **options)

    def _full(self) -> None:
        """A port whose queue of connections is full, and one where nobody listens."""
        full, nobody = socket.socket(), socket.socket()
        for taken in (full, nobody):
            taken.bind(("127.0.0.1", 0))
            self._sockets.append(taken)
        full.listen(0)
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(full.getsockname())
            self._sockets.append(client)
        self.ports |= {"full": full.getsockname()[1], "nobody": nobody.getsockname()[1]}

    async def _silent(self, reader: Reader, writer: Writer) -> None:
        await asyncio.sleep(3600)

    async def _no_tls(self, reader: Reader, writer: Writer) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 X\r\n\r\n")
        await writer.drain()

    async def _at_once(self, name: str, writer: Writer) -> None:
        await self._play(name, self.entries[name]["plays"], writer)

    async def _connection(self, reader: Reader, writer: Writer) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            path = head.split(" ")[1]
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            self.cookies += [headers["cookie"]] if "cookie" in headers else []
            name = headers["host"].split(".")[0]
            entry = self.entries[name]
            if path in SITE_FILES:
                plays = entry.get(SITE_FILES[path], NOT_FOUND)
            else:
                self.asked[name] += 1
                plays = self._plays(entry, path)
            if not await self._play(name, plays, writer, path):
                return

    def _plays(self, entry: dict[str, Any], path: str) -> list[Any]:
        times = self.asked[entry["name"]]
        if entry.get("lost") and path != "/x":
            return NOT_FOUND
        if times <= entry.get("hops", 0):
            return [f"HTTP/1.1 301 Moved\r\nLocation: /{times}\r\nContent-Length: 0\r\n\r\n"]
        plays: list[Any] = entry["first"] if times == 1 and "first" in entry else entry["plays"]
        return plays

    async def _play(self, name: str, plays: list[Any], writer: Writer, path: str = "/x") -> bool:
        """Sends an entry's steps. True where the connection serves the next request."""
        length = next(
            (len(self._body(step)) for step in plays if isinstance(step, dict) and "body" in step),
            0,
        )

        def text(step: str) -> bytes:
            for old, new in (
                ("{length}", str(length)), ("{x1024}", "x" * 1024),
                ("{other}", "y" if path == "/x" else "x"), ("{count}", str(self.asked[name])),
            ):  # fmt: skip
                step = step.replace(old, new)
            return step.encode("latin-1")

        async def send(data: bytes) -> None:
            writer.write(data)
            await writer.drain()
            self.sent[name] += len(data)

        for step in plays:
            if isinstance(step, str):
                await send(text(step))
            elif "forever" in step:
                while True:
                    await send(text(step["forever"]) * step.get("times", 1))
                    await asyncio.sleep(step.get("every_s", 0))
            elif "repeat" in step:
                await send(text(step["repeat"]) * step["times"])
            elif "hex" in step:
                await send(bytes.fromhex(step["hex"]))
            elif "chunks" in step:
                body = self.bodies[step["chunks"]]
                cut = [body[i : i + 700] for i in range(0, len(body), 700)]
                await send(
                    b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in cut) + b"0\r\n\r\n"
                )
            elif "body" in step:
                await send(self._body(step))
            elif "wait_s" in step:
                await asyncio.sleep(step["wait_s"])
            elif step["then"] == "hang":
                await asyncio.sleep(3600)
            else:
                if step["then"] == "reset":
                    raw = writer.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    writer.write_eof()
                return False
        return True

    def _body(self, step: dict[str, Any]) -> bytes:
        return self.bodies[step["body"]][: step.get("first")]
