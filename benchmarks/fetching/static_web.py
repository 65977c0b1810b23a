"""A fast static web for benchmarks/fetching/fetch.py: nginx of the distribution, on loopback,
with a certificate of its own.
"""

from __future__ import annotations

import contextlib
import io
import math
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from benchmarks.photographs import paths_of

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
MOST_SMALL = 1500  # pictures as they are
LARGE = 48  # pictures of 3 megapixels
LARGE_PIXELS = 3_000_000
CONFIG = """
user root;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_timeout 65;
  keepalive_requests 1000000;
  types {{ image/jpeg jpg jpeg; }}
  default_type application/octet-stream;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{
    {listen}
    ssl_certificate {folder}/server.pem;
    ssl_certificate_key {folder}/server.key;
    root {folder}/web;
  }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Web:
    """What is served, and by which certificates it is trusted."""

    folder: Path
    http: int  # ports
    https: int
    # The system's certificates and ours: as long as the file that every program here reads.
    bundle: Path
    certificates: int  # in the bundle

    def urls(self, kind: str, count: int, *, tls: bool = False) -> list[str]:
        """`count` different URLs over the pictures of a kind (small, large), over all hosts."""
        names = sorted(path.name for path in (self.folder / "web" / kind).iterdir())
        base = f"https://{{}}:{self.https}" if tls else f"http://{{}}:{self.http}"
        return [
            f"{base.format(HOSTS[i % len(HOSTS)])}/{kind}/{names[i % len(names)]}"
            f"?copy={i // len(names)}"
            for i in range(count)
        ]


def picture_of(web: Web, url: str) -> Path:
    """The file behind a URL of a web."""
    return web.folder / "web" / url.split("/", 3)[3].partition("?")[0]


def lay_out(pictures: Path, web: Path) -> None:
    """web/small: the JPEGs of a folder; web/large: some of them at 3 megapixels."""
    paths = paths_of(pictures)[:MOST_SMALL]
    for kind in ("small", "large"):
        (web / kind).mkdir(parents=True)
    for i, path in enumerate(paths):
        shutil.copyfile(path, web / f"small/{i:05d}.jpg")
    for i, path in enumerate(paths[:: max(1, len(paths) // LARGE)][:LARGE]):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        scale = math.sqrt(LARGE_PIXELS / (image.width * image.height))
        large = image.resize(
            (round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS
        )
        sink = io.BytesIO()
        large.save(sink, "JPEG", quality=90)
        (web / f"large/{i:05d}.jpg").write_bytes(sink.getvalue())


@contextlib.contextmanager
def serving(pictures: Path, folder: Path) -> Iterator[Web]:
    """nginx over the pictures while the block runs. RuntimeError without nginx or openssl."""
    nginx, openssl = which_nginx(), shutil.which("openssl")
    if not nginx or not openssl:
        raise RuntimeError(
            "this benchmark needs nginx and openssl on the PATH (apt-get install nginx openssl)"
        )
    lay_out(pictures, folder / "web")
    bundle, certificates = _certificates(openssl, folder)
    http, https = _free_ports()
    listen = " ".join(f"listen {host}:{http}; listen {host}:{https} ssl;" for host in HOSTS)
    (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, listen=listen))
    server = subprocess.Popen(
        [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    )
    try:
        _wait(http, server)
        yield Web(folder=folder, http=http, https=https, bundle=bundle, certificates=certificates)
    finally:
        server.terminate()
        server.wait()


def which_nginx() -> str | None:
    """nginx on the PATH or where systems put it, which is on the PATH of root alone."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def version() -> str:
    """Of nginx."""
    return (
        subprocess.run([which_nginx() or "nginx", "-v"], capture_output=True, text=True)
        .stderr.strip()
        .rpartition("/")[2]
    )


def _certificates(openssl: str, folder: Path) -> tuple[Path, int]:
    def run(*words: str) -> None:
        subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True)

    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout"]
    authority = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    run(
        *new,
        "ca.key",
        "-x509",
        "-days",
        "2",
        "-subj",
        "/CN=benchmark authority",
        *authority,
        "-out",
        "ca.pem",
    )
    run(*new, "server.key", "-subj", "/CN=benchmark", "-out", "server.csr")
    names = ",".join(f"IP:{host}" for host in HOSTS)
    (folder / "names").write_text(
        f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\nbasicConstraints=CA:FALSE\n"
    )
    sign = [
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "2",
    ]
    run(*sign, "-extfile", "names", "-out", "server.pem")
    paths = ssl.get_default_verify_paths()
    system = next((p for p in (paths.cafile, paths.openssl_cafile) if p and Path(p).exists()), None)
    trusted = (Path(system).read_text() if system else "") + (folder / "ca.pem").read_text()
    (folder / "bundle.pem").write_text(trusted)
    return folder / "bundle.pem", trusted.count("BEGIN CERTIFICATE")


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(100):
        if server.poll() is not None:
            raise RuntimeError(f"nginx ended with status {server.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError("nginx does not answer")
