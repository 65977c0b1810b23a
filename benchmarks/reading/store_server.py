"""A folder as an S3 store on loopback that answers late: for measurements of reading.

example: python benchmarks/reading/store_server.py --folder /data --wait-ms 50 --mb-per-s 400

The folder's sub-folders are buckets. It knows GET (with Range), HEAD and ListObjectsV2, and prints
its URL. Answers wait in one event loop, so a thousand waiting requests cost nothing; a request
costs about 0.1 ms of processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

DATE = "Mon, 01 Jan 2024 00:00:00 GMT"
REASONS = {200: "OK", 206: "Partial Content", 404: "Not Found", 416: "Range Not Satisfiable"}


class Line:
    """What all answers share: each waits, then its bytes go over the line one after another."""

    def __init__(self, wait_s: float, bytes_per_s: float) -> None:
        self.wait_s, self.bytes_per_s = wait_s, bytes_per_s
        self._free_at = 0.0

    async def send(self, size: int) -> None:
        """Wait as an answer of `size` bytes does."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + size / self.bytes_per_s
        await asyncio.sleep(self.wait_s + self._free_at - now)


class StoreServer:
    """Answers requests for the files of a folder."""

    def __init__(self, folder: Path, line: Line) -> None:
        self._folder, self._line = folder, line
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """All requests of one connection."""
        try:
            while request := await reader.readline():
                method, target, _ = request.decode().split(" ", 2)
                headers = {}
                while (line := (await reader.readline()).decode().strip()) != "":
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                self.requests += 1
                status, extra, body = self._answer(target, headers.get("range"))
                await self._line.send(0 if method == "HEAD" else len(body))
                lines = [f"HTTP/1.1 {status} {REASONS[status]}", f"Content-Length: {len(body)}"]
                lines += [f"{name}: {value}" for name, value in extra.items()]
                writer.write("\r\n".join([*lines, "", ""]).encode())
                if method != "HEAD":
                    writer.write(body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()

    def _answer(self, target: str, span: str | None) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) of a GET."""
        parts = urlsplit(target)
        name, query = unquote(parts.path).strip("/"), parse_qs(parts.query)
        if "list-type" in query:
            return 200, {"Content-Type": "application/xml"}, self._list(name, query)
        path = self._folder / name
        if "/" not in name and path.is_dir():  # the head of a bucket
            return 200, {}, b""
        if not path.is_file():
            return 404, {"Content-Type": "application/xml"}, _error("NoSuchKey")
        size = path.stat().st_size
        headers = {"ETag": f'"{size:x}"', "Last-Modified": DATE, "Accept-Ranges": "bytes"}
        if span is None:
            return 200, headers, path.read_bytes()
        first, last = _bounds(span, size)
        if first >= size:
            return 416, headers, _error("InvalidRange")
        with path.open("rb") as f:
            f.seek(first)
            body = f.read(last + 1 - first)
        return 206, {**headers, "Content-Range": f"bytes {first}-{last}/{size}"}, body

    def _list(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        """ListObjectsV2 of one folder."""
        prefix = unquote(query.get("prefix", [""])[0])
        folder, _, start = f"{bucket}/{prefix}".rpartition("/")
        inside = folder.partition("/")[2]
        items = []
        path = self._folder / folder
        for entry in sorted(path.iterdir()) if path.is_dir() else []:
            if not entry.name.startswith(start):
                continue
            key = escape(f"{inside}/{entry.name}".strip("/"))
            if entry.is_dir():
                items.append(f"<CommonPrefixes><Prefix>{key}/</Prefix></CommonPrefixes>")
            else:
                size = entry.stat().st_size
                items.append(
                    f"<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z"
                    f'</LastModified><ETag>"{size:x}"</ETag><Size>{size}</Size>'
                    "<StorageClass>STANDARD</StorageClass></Contents>"
                )
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
            f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix><Delimiter>/</Delimiter>"
            f"<KeyCount>{len(items)}</KeyCount><MaxKeys>100000</MaxKeys>"
            f"<IsTruncated>false</IsTruncated>{''.join(items)}</ListBucketResult>"
        ).encode()


def _bounds(span: str, size: int) -> tuple[int, int]:
    """First and last byte of a Range header."""
    first, _, last = span.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(int(last), size - 1) if last else size - 1


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


async def _run(folder: Path, line: Line) -> None:
    server = await asyncio.start_server(StoreServer(folder, line).serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    print(f"http://{host}:{port}", flush=True)
    parent = os.getppid()
    while os.getppid() == parent:  # it ends with the program that started it
        await asyncio.sleep(0.5)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", required=True, help="its sub-folders are the buckets")
    parser.add_argument("--wait-ms", type=float, default=50.0, help="of each answer (default: 50)")
    parser.add_argument("--mb-per-s", type=float, default=1000.0, help="of all answers together")
    args = parser.parse_args(arguments)
    asyncio.run(_run(Path(args.folder), Line(args.wait_ms / 1e3, args.mb_per_s * 1e6)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
