"""A hub of Hugging Face on loopback: data sets of files, which `hf://` paths lead to."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.loopback_server import serving


class Hub:
    """`files`: ORG/NAME/PATH -> bytes. `asked`: the paths that were asked for, with their ranges.
    `failures`: how many of the next requests for bytes end with status 503."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.asked, self.failures = files, list[tuple[str, str]](), 0

    def answer(self, path: str, range_: str) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body."""
        parts = unquote(urlsplit(path).path).strip("/").split("/")
        if parts[:2] == ["api", "datasets"]:
            return self._api("/".join(parts[2:4]), parts[4:])
        name = "/".join([*parts[1:3], *parts[5:]])  # datasets/ORG/NAME/resolve/REVISION/PATH
        self.asked.append((name, range_))
        if self.failures:
            self.failures -= 1
            return 503, {}, b""
        if name not in self.files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        data = self.files[name]
        if not range_:
            return 200, {}, data
        first, last = (int(end) for end in range_.removeprefix("bytes=").split("-"))
        last = min(last, len(data) - 1)
        headers = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        return 206, headers, data[first : last + 1]

    def _api(self, repository: str, rest: list[str]) -> tuple[int, Mapping[str, str], bytes]:
        own = {name: data for name, data in self.files.items() if name.startswith(repository + "/")}
        if not own:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if rest[:1] != ["tree"]:
            return 200, {}, json.dumps({"id": repository, "sha": "0" * 40}).encode()
        folder = "/".join([repository, *rest[2:]])
        entries: dict[str, dict[str, Any]] = {}
        for name, data in own.items():
            if not name.startswith(folder + "/"):
                continue
            child, _, deeper = name.removeprefix(folder + "/").partition("/")
            path = "/".join([*rest[2:], child])
            oid = hashlib.sha1(data).hexdigest()
            size = 0 if deeper else len(data)
            kind = "directory" if deeper else "file"
            entries[path] = {"type": kind, "oid": oid, "size": size, "path": path}
        if not entries:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        return 200, {"Content-Type": "application/json"}, json.dumps([*entries.values()]).encode()


@contextlib.contextmanager
def hub_of(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with these files, to which `hf://` leads until the block ends."""
    import huggingface_hub
    from huggingface_hub import constants, hf_api

    hub = Hub(files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            status, headers, body = hub.answer(self.path, self.headers.get("Range", ""))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body if self.command == "GET" else b"")

        do_HEAD = do_GET

    with serving(Handler) as port:
        for module in (constants, hf_api):
            monkeypatch.setattr(module, "ENDPOINT", f"http://127.0.0.1:{port}", raising=False)
        template = f"http://127.0.0.1:{port}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        huggingface_hub.HfFileSystem.clear_instance_cache()
        yield hub
    huggingface_hub.HfFileSystem.clear_instance_cache()
