"""Read and write what is written down: YAML in, Parquet and JSON out, write-then-rename, content hashes.

Paths are fsspec URLs or local paths (`file`, `s3`, `gs`, `memory` behave the same). pydantic, yaml and xxhash are
imported where they are used: a trainer that reads resolved JSON needs none of them.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import io
import json
import os
import re
import shutil
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from manifests.schema import Ablation, Blend, Recipe, TaskSpec

T = TypeVar("T")
UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "k": 10**3, "m": 10**6, "b": 10**9}
QUANTITY = re.compile(r"^(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|[kKMB])$")
VARIABLE = re.compile(r"\$\{(\w+)\}")


# --- files ---------------------------------------------------------------------------------------------------------


def join(root: str | Path, *parts: str) -> str:
    """`root` with `parts` appended, for local paths and URLs alike."""
    return "/".join([str(root).rstrip("/"), *parts])


def is_url(path: str | Path) -> bool:
    """True for s3://…, memory://… and the like; False for local paths and file://…."""
    return "://" in str(path) and not str(path).startswith("file://")


def local(path: str | Path) -> Path:
    """A local path without its file:// prefix."""
    return Path(str(path).removeprefix("file://"))


def destination(out: str) -> str:
    """The absolute folder to write to. ValueError where it would lie in Ray's temporary copy of the checkout."""
    if is_url(out):
        return out
    if not Path(out).is_absolute() and "runtime_resources" in Path.cwd().parts:
        raise ValueError(
            f"--out is {out!r}: under a submitted working directory a relative folder lies in Ray's temporary copy and "
            "is lost with the job; give an absolute path or set CLIPMILL_OUT"
        )
    return str(Path(out).absolute())


def read_bytes(path: str | Path, start: int = 0, length: int | None = None) -> bytes:
    """Bytes of a file, or `length` of them from `start`. FileNotFoundError where there is none."""
    if not is_url(path):
        with open(local(path), "rb") as f:
            f.seek(start)
            return f.read() if length is None else f.read(length)
    import fsspec

    fs, name = fsspec.core.url_to_fs(str(path))
    data: bytes = fs.cat_file(name, start=start, end=None if length is None else start + length)
    return data


def write_bytes(path: str | Path, data: bytes) -> None:
    """Whole or not at all: a temporary file, fsync and a rename locally, one put elsewhere."""
    if is_url(path):
        import fsspec

        fs, name = fsspec.core.url_to_fs(str(path))
        fs.pipe_file(name, data)
        return
    target = local(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial.{os.getpid()}")
    with open(partial, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(partial, target)


def publish(staged: str | Path, path: str | Path) -> None:
    """Move a finished local file to its place: fsync and rename on one filesystem, one put elsewhere."""
    if is_url(path):
        import fsspec

        fs, name = fsspec.core.url_to_fs(str(path))
        fs.put_file(str(staged), name)
        return
    target = local(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial.{os.getpid()}")
    shutil.move(staged, partial)  # a copy where the two lie on different filesystems
    with open(partial, "rb") as f:
        os.fsync(f.fileno())
    os.replace(partial, target)


def exists(path: str | Path) -> bool:
    """True where a file or folder lies at `path`."""
    if not is_url(path):
        return local(path).exists()
    import fsspec

    fs, name = fsspec.core.url_to_fs(str(path))
    return bool(fs.exists(name))


def names(folder: str | Path, suffix: str = "") -> list[str]:
    """Sorted names inside a folder that end in `suffix`; [] where there is no folder. Unfinished files are left out."""
    if not is_url(folder):
        found = os.listdir(local(folder)) if local(folder).is_dir() else []
    else:
        import fsspec

        fs, name = fsspec.core.url_to_fs(str(folder))
        found = [x.rstrip("/").rsplit("/", 1)[-1] for x in fs.ls(name, detail=False)] if fs.exists(name) else []
    return sorted(x for x in found if x.endswith(suffix) and not x.startswith("."))


def remove(path: str | Path) -> None:
    """Delete one file; nothing happens where there is none."""
    if not is_url(path):
        local(path).unlink(missing_ok=True)
        return
    import fsspec

    fs, name = fsspec.core.url_to_fs(str(path))
    if fs.exists(name):
        fs.rm_file(name)


def write_json(path: str | Path, value: Any) -> None:
    """A dataclass or plain value as JSON with sorted keys, written whole."""
    write_bytes(path, (json.dumps(to_plain(value), indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())


def read_json(path: str | Path) -> Any:
    """A JSON file as plain values. ValueError that names the file where it is no JSON."""
    try:
        return json.loads(read_bytes(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def write_parquet(path: str | Path, table: pa.Table, notes: Mapping[str, Any] | None = None) -> None:
    """A table, written whole; `notes` go into the footer as JSON under the key `clipmill`."""
    if notes is not None:
        table = table.replace_schema_metadata(with_notes(table.schema, notes).metadata)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", row_group_size=10_000, write_page_checksum=True)
    write_bytes(path, sink.getvalue())


def with_notes(schema: pa.Schema, notes: Mapping[str, Any]) -> pa.Schema:
    """The schema with `notes` as JSON under the key `clipmill` of its metadata."""
    kept = {k: v for k, v in (schema.metadata or {}).items() if k != b"clipmill"}
    return schema.with_metadata({**kept, b"clipmill": json.dumps(to_plain(dict(notes)), sort_keys=True).encode()})


def read_parquet(
    path: str | Path, columns: list[str] | None = None, where: list[tuple[str, str, Any]] | None = None
) -> pa.Table:
    """A table, or some columns of it, or the rows that `where` (pyarrow's filters) lets through: only their row groups
    are read."""
    if not is_url(path):
        return pq.read_table(local(path), columns=columns, filters=where, partitioning=None)
    import fsspec

    with fsspec.open(str(path), "rb") as f:
        return pq.read_table(f, columns=columns, filters=where)


def notes(path: str | Path) -> dict[str, Any]:
    """What `write_parquet` put into the footer; {} where it put nothing."""
    if not is_url(path):
        footer = pq.read_metadata(local(path))
    else:
        import fsspec

        with fsspec.open(str(path), "rb") as f:
            footer = pq.read_metadata(f)
    found: dict[str, Any] = json.loads((footer.metadata or {}).get(b"clipmill", b"{}"))
    return found


# --- hashes --------------------------------------------------------------------------------------------------------


def uid_of(url: str, caption: str) -> str:
    """128-bit xxh3 of url, a NUL and caption, as 32 hex digits."""
    import xxhash

    return str(xxhash.xxh3_128_hexdigest(f"{url}\0{caption}".encode("utf-8", "surrogatepass")))


def content_hash(value: Any, length: int = 12) -> str:
    """sha256 of the canonical JSON of a dataclass or plain value, cut to `length` hex digits."""
    text = json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def recipe_hash(recipe: Recipe) -> str:
    """Hash of what decides a pool's rows and bytes: views, scores, the user agent and where to connect do not."""
    fetch = dataclasses.replace(recipe.fetch, connect_to={}, user_agent=None)
    return content_hash({"source": recipe.source, "fetch": fetch})


# --- dataclasses <-> plain values ----------------------------------------------------------------------------------


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and paths as dicts, lists and strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(v) for v in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    return str(value) if isinstance(value, Path) else value


def from_plain(kind: Any, value: Any) -> Any:
    """The inverse of `to_plain` for JSON that this program wrote; ValueError from the dataclasses' own checks."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        known = {f.name for f in dataclasses.fields(kind)}
        unknown = sorted(set(value) - known)
        if unknown:
            raise ValueError(f"{kind.__name__} has no {unknown[0]!r}{_nearest(unknown[0], known)}")
        return kind(**{k: from_plain(hints[k], v) for k, v in value.items()})
    if value is None or kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return from_plain(next(a for a in args if a is not type(None)), value)
    if origin is tuple:
        return tuple(from_plain(args[0], v) for v in value)
    if origin is dict:
        return {k: from_plain(args[1], v) for k, v in value.items()}
    return value


# --- YAML ----------------------------------------------------------------------------------------------------------


def read_manifest(path: str | Path, kind: type[T], *, scale: str | None = None) -> T:
    """A recipe, blend, ablation or task from YAML; `scale` merges the block of that name under `scales` over it.

    Paths inside are relative to the file, `${VAR}` is expanded from the environment, 20MiB and 12.8M are numbers.
    ValueError names the file, the key, the value and the nearest right one. JSON (resolved) is read as it is.
    """
    if str(path).endswith(".json") and exists(path):
        return typing.cast(T, from_plain(kind, read_json(path)))
    raw = _yaml(path)
    scales = raw.pop("scales", {})
    if scale is not None:
        if scale not in scales:
            raise ValueError(f"{path} has no scale {scale!r}; it has {', '.join(sorted(scales)) or 'none'}")
        raw = merge(raw, scales[scale])
    raw = _expand(raw, str(path))
    return _validate(_shape(raw, kind, Path(str(path)).resolve().parent), kind, str(path))


def read_block(path: str | Path, key: str, kind: type[T], *, scale: str | None = None) -> T | None:
    """One block of a manifest alone, before the variables of the rest are set; None where there is no such key."""
    if str(path).endswith(".json"):
        raw = read_json(path)
    else:
        raw = _yaml(path)
        raw = merge(raw, raw.get("scales", {}).get(scale, {})) if scale else raw
    block = raw.get(key)
    return None if block is None else _validate(_expand(block, str(path)), kind, f"{path}: {key}")


def merge(base: Any, change: Any) -> Any:
    """`change` over `base`: mappings key by key, a null removes its key, everything else is replaced."""
    if not (isinstance(base, dict) and isinstance(change, dict)):
        return change
    merged = {**base, **{k: merge(base.get(k), v) for k, v in change.items()}}
    return {k: v for k, v in merged.items() if not (k in change and change[k] is None)}


def kind_of(path: str | Path) -> type[Recipe] | type[Ablation]:
    """Whether a YAML or JSON file is a recipe or an ablation, by its keys. ValueError where it is neither."""
    raw = read_json(path) if str(path).endswith(".json") and exists(path) else _yaml(path)
    if "arms" in raw:
        return Ablation
    if "source" in raw:
        return Recipe
    raise ValueError(f"{path} is neither a recipe (it has no source) nor an ablation (it has no arms)")


def scales_of(path: str | Path) -> list[str]:
    """Names of the scales that a manifest knows, for `read_manifest(scale=…)`."""
    return sorted(_yaml(path).get("scales", {}))


def _yaml(path: str | Path) -> dict[str, Any]:
    import yaml

    if not exists(path):
        raise ValueError(f"{path} does not exist")
    try:
        raw = yaml.safe_load(read_bytes(path))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path} holds no mapping of keys")
    return raw


def _expand(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {k: _expand(v, where) for k, v in value.items()}
    if isinstance(value, list):
        return [_expand(v, where) for v in value]
    if not isinstance(value, str):
        return value
    for name in VARIABLE.findall(value):
        if name not in os.environ:
            raise ValueError(f"{where}: ${{{name}}} is not set in the environment")
        value = value.replace(f"${{{name}}}", os.environ[name])
    if match := QUANTITY.match(value):
        number = float(match[1]) * UNITS[match[2].lower()]
        return int(number) if number == int(number) else number
    return value


def _shape(raw: dict[str, Any], kind: type, folder: Path) -> dict[str, Any]:
    """The short forms of a manifest as the fields of its dataclass, its paths as absolute ones."""

    def place(path: Any) -> Any:
        return path if not isinstance(path, str) or "://" in path else str((folder / path).absolute())

    raw = dict(raw)
    if kind is Recipe:
        if isinstance(raw.get("source"), dict) and "paths" in raw["source"]:
            paths = raw["source"]["paths"]
            raw["source"] = {
                **raw["source"],
                "paths": [place(p) for p in ([paths] if isinstance(paths, str) else paths)],
            }
        if isinstance(raw.get("filters"), list):
            raw["filters"] = [_filter(f) for f in raw["filters"]]
        if isinstance(raw.get("views"), dict):
            raw["views"] = [{"name": k, "rules": [_rule(r) for r in v or []]} for k, v in raw["views"].items()]
    elif kind is Blend and isinstance(raw.get("pools"), dict):
        raw["pools"] = {k: place(v) for k, v in raw["pools"].items()}
    elif kind is TaskSpec:
        raw["data"] = place(raw.get("data"))
    elif kind is Ablation:
        for name, pool in dict(raw.get("pools") or {}).items():
            if isinstance(pool, dict):
                raw["pools"] = {**raw["pools"], name: {k: place(v) for k, v in pool.items()}}
        if isinstance(raw.get("arms"), dict):
            raw["arms"] = {
                k: place(v["blend"]) if isinstance(v, dict) and set(v) == {"blend"} else v
                for k, v in raw["arms"].items()
            }
        if isinstance(raw.get("evaluate"), list):
            raw["evaluate"] = [
                {**t, "data": place(t.get("data"))} if isinstance(t, dict) else t for t in raw["evaluate"]
            ]
        if isinstance(raw.get("controls"), dict) and raw["controls"].get("null_web"):
            raw["controls"] = {**raw["controls"], "null_web": place(raw["controls"]["null_web"])}
    return raw


def _filter(entry: Any) -> Any:
    if isinstance(entry, str):
        return {"name": entry}
    if isinstance(entry, dict) and len(entry) == 1:
        name, options = next(iter(entry.items()))
        return {"name": name, "options": options or {}}
    return entry


def _rule(entry: Any) -> Any:
    """`{english: language = 'en'}`, `{view: basic}` or `{random_like: clip30, seed: 1}` as the fields of Rule."""
    if not isinstance(entry, dict) or not entry:
        return entry
    if "view" in entry or "random_like" in entry:
        return {"name": str(entry.get("view") or "random"), **entry}
    if len(entry) == 1:
        name, where = next(iter(entry.items()))
        return {"name": str(name), "where": str(where)}
    return entry


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest of `known`, or nothing where none is close."""
    return _nearest(word, known)


def _validate(raw: dict[str, Any], kind: type[T], where: str) -> T:
    import pydantic

    try:
        return pydantic.TypeAdapter(kind).validate_python(raw)
    except pydantic.ValidationError as error:
        unknown = {
            "unexpected_keyword_argument",
            "extra_forbidden",
        }  # said first: a misspelt key also makes one missing
        first = min(error.errors(), key=lambda e: e["type"] not in unknown)
        key = ".".join(str(x) for x in first["loc"])
        if first["type"] in unknown:
            last = str(first["loc"][-1])
            raise ValueError(
                f"{where}: unknown key {key!r}{_nearest(last, _fields_at(kind, first['loc'][:-1]))}"
            ) from None
        value = "" if isinstance(first["input"], dict) else f" (is {first['input']!r})"
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{where}: {key + ': ' if key else ''}{message}{value}") from None


def _fields_at(kind: Any, path: Iterable[Any]) -> list[str]:
    """Field names of the dataclass that lies at `path` inside `kind`."""
    for step in path:
        if isinstance(step, str) and dataclasses.is_dataclass(kind) and isinstance(kind, type):
            kind = typing.get_type_hints(kind).get(step, Any)
        else:
            kind = (
                next(iter(typing.get_args(kind)[::-1]), Any) if not isinstance(step, int) else typing.get_args(kind)[0]
            )
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            kind = next(a for a in typing.get_args(kind) if a is not type(None))
    return [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
