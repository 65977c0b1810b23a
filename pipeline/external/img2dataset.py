"""img2dataset as the downloader: its run, and what it left as outcomes of the rows."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from clipmill.filters.optout import product
from clipmill.manifests import console, disk
from clipmill.manifests.columns import PAIRS, SIDECAR
from clipmill.manifests.identity import manners_of
from clipmill.manifests.layout import CommitRecord
from clipmill.manifests.schema import ROWS_PER_SHARD_LIMIT, SOURCES, Fetch, Pair
from clipmill.pipeline.executor.tickets import Stage, Ticket, Work
from clipmill.pipeline.external.adopt import group_samples, reason_of
from clipmill.pipeline.fetch import guard
from clipmill.pipeline.fetch.fetcher import user_agent
from clipmill.pipeline.fetch.request import OptoutPolicy, signals
from clipmill.pipeline.images.header import RejectedImage
from clipmill.pipeline.images.transform import as_it_is, boxes_of, limits_of
from clipmill.pipeline.planning.plan_files import RowsOfShard
from clipmill.pipeline.pool.shard_writer import ShardJob, ShardWriter
from clipmill.pipeline.pool.tars import index_tar

# --------------------------------------------------------------------------------------------------
# What a run of img2dataset left, as outcomes of the rows that it was asked for.


SIZES = ("width", "height", "original_width", "original_height")
# Columns of the sidecar, the bytes of the image, and its extension.
Outcome = tuple[dict[str, Any], bytes | None, str]


def outcomes(folder: Path, settings: Fetch, rows: int) -> Iterator[tuple[int, Outcome]]:
    """Position in the list and outcome for each of the `rows` that were asked for.

    RuntimeError where the tool's parquet does not have each of them once.
    """
    path = folder / "out/00000.tar"
    listed = disk.read_parquet(folder / "out/00000.parquet").to_pylist()
    positions = sorted(_position(row["key"]) for row in listed)
    if positions != list(range(rows)):
        raise RuntimeError(
            f"img2dataset lists {len(set(positions))} of {rows} rows, {len(listed)} in all"
        )
    samples = {_position(sample.name): sample for sample in group_samples(index_tar(str(path)))}
    with open(path, "rb") as tar:
        for row in listed:
            position = _position(row["key"])
            message = str(row["error_message"] or "")
            if row["status"] != "success":
                yield position, (failure(str(row["status"]), message), None, "")
                continue
            sample = samples.get(position)
            image = sample.read(tar, settings.encode_format) if sample else None
            if image is None:
                missing = {"reason": "missing_file", "error_message": "stored, but not in the tar"}
                yield position, (missing, None, "")
            else:
                yield position, success(image, row, settings)


def failure(status: str, message: str) -> dict[str, object]:
    """Columns of a row that the tool did not store."""
    http = re.match(r"HTTP Error (\d{3})", message)
    return {
        "reason": reason_of(status, message),
        "error_message": " ".join(message.split()) or "no reason was given",
        "http_status": int(http[1]) if http else None,
    }


def success(image: bytes, row: Mapping[str, object], settings: Fetch) -> Outcome:
    """Columns, bytes and extension of a row that the tool stored.

    With disable_all_reencoding it stores whatever came, a page of HTML too, and measures nothing:
    then our own check of the header decides.
    """
    columns = {name: row.get(name) for name in ("sha256", "exif", settings.compute_hash, *SIZES)}
    if not settings.disable_all_reencoding:
        return columns, image, settings.encode_format
    try:
        kept = as_it_is(image, settings)
    except RejectedImage as bad:
        return columns | {"reason": bad.reason, "error_message": bad.detail}, None, ""
    return columns | {name: getattr(kept, name) for name in SIZES}, image, kept.extension


def _position(name: str) -> int:
    """The row that a key or a sample's name numbers in its last four digits."""
    return int(name[-4:])


# --------------------------------------------------------------------------------------------------
# The other engine: img2dataset downloads a shard's rows, and what it leaves becomes one of our
# shards.
#
# It runs as a subprocess of an interpreter that has it, once for each shard of the plan: its own
# shards are numbered through the whole list and its keys with them, so one run per shard is what
# keeps our keys. That costs its start-up per shard (2 to 3 s of CPU). The rows are the plan's in
# the plan's order; what our own rules refuse before anything is sent (a URL that is none, another
# scheme or port, an address that is private as it is written, a page that says no) is refused
# here too, and the tool gets the rest.
#
# It keeps no promise about whom it connects to or whom it asks first, so a recipe has to take
# those promises back by name (see `NEEDS`); limits that it does not know are named in one line of
# the log.


# Run in the other interpreter; the options are a file, because its command line reads values as
# Python.
DRIVER = (
    "import json, sys; from img2dataset import download; download(**json.load(open(sys.argv[1])))"
)
VERSION = (
    "from importlib import metadata, util; assert util.find_spec('img2dataset'); "
    "print(metadata.version('img2dataset'))"
)
# Its start asks a server for a newer albumentations, and wandb is one of its dependencies.
QUIET = {"NO_ALBUMENTATIONS_UPDATE": "1", "WANDB_MODE": "disabled"}
# Settings that img2dataset has under the same name with the same meaning, and gets as they are.
# STORED_IMAGE_SETTINGS of manifests.schema is another list: it has no `retries`, which decides no
# byte of an image, and it has settings that `options` passes on in another form.
PASSED_ON = (
    "image_size",
    "resize_mode",
    "resize_only_if_bigger",
    "upscale_interpolation",
    "downscale_interpolation",
    "encode_format",
    "encode_quality",
    "skip_reencode",
    "disable_all_reencoding",
    "min_image_size",
    "extract_exif",
    "compute_hash",
    "retries",
)
# Promises to others that it cannot keep: what a recipe has to say instead, and why.
NEEDS: dict[str, tuple[Any, str]] = {
    "allow_private": (True, "it connects to any address, and follows redirects to any"),
    "robots_txt": (False, "it reads no robots.txt"),
    "site_files": ((), "it reads neither tdmrep.json nor ai.txt"),
    "delay_s": (0.0, "it waits for nobody"),
    "connect_to": ({}, "it looks every name up itself"),
    "known_bad": (None, "it writes every image before it can be compared"),
}
# Its own four, and two that it does not refuse by itself.
DIRECTIVES = ("noai", "noimageai", "noindex", "noimageindex", "none", "noml")
UNKNOWN = ("per_host", "max_bytes", "max_pixels", "min_rate", "max_redirects", "patience_s")
START_S = 120.0  # for its three processes to come up on a busy machine
ROW_S = 0.25  # for decoding and writing one row on a busy machine; an image of 20 MP takes that
LAST_LINES = 8
logger = logging.getLogger(__name__)


def img2dataset_stage(job: ShardJob) -> Stage:
    """The stage fetch with this engine; says once what it will not do. ValueError where the recipe
    asks too much.
    """
    settings = job.recipe.fetch
    check_img2dataset(settings, job.recipe.source.kind)
    logger.warning(
        "img2dataset does not know fetch.%s; deadline_s is its limit for each wait on a socket, "
        "not for a row; it calls itself Firefox and %s, without your address; "
        "it looks at no signal but X-Robots-Tag%s",
        ", ".join(UNKNOWN),
        product(user_agent(settings)),
        ""
        if settings.compute_hash == "sha256"
        else f"; sha256 stays empty beside {settings.compute_hash}",
    )
    return Stage(name="fetch", work=download, job=job, result=CommitRecord)


def check_img2dataset(settings: Fetch, source_kind: str) -> None:
    """ValueError that names everything this engine would have to ignore and may not."""
    if SOURCES[source_kind].images != "web":
        raise ValueError(
            "fetch.engine is img2dataset, which fetches from the web; "
            f"a source of kind {source_kind} has none"
        )
    missing = [
        f"{name}: {json.dumps(disk.to_plain(value))} ({why})"
        for name, (value, why) in NEEDS.items()
        if getattr(settings, name) != value
    ]
    limits_of(settings)
    if settings.optout not in ("respect", "ignore"):
        missing.append("optout: respect (it looks at X-Robots-Tag only)")
    if settings.verify_hash and settings.verify_hash[1] != settings.compute_hash:
        missing.append(
            f"compute_hash: {settings.verify_hash[1]} (it verifies the hash that it computes)"
        )
    if missing:
        raise ValueError(
            "fetch.engine is img2dataset, "
            f"which does less than this recipe asks; set {', '.join(missing)}"
        )


def version_of(python: str) -> str:
    """The version of img2dataset that an interpreter has. ValueError where it has none."""
    missing = (
        f"fetch.engine is img2dataset, but {python} has no img2dataset: "
        "pip install img2dataset into it, or name its interpreter as fetch.img2dataset_python"
    )
    try:
        answer = subprocess.run(
            [python, "-c", VERSION], capture_output=True, text=True, timeout=START_S
        )
    except OSError as error:
        raise ValueError(f"{missing} ({error.strerror})") from None
    if answer.returncode != 0:
        raise ValueError(missing)
    return answer.stdout.strip()


def download(job: ShardJob) -> Work:
    """Factory of the stage. ValueError where the interpreter has no img2dataset."""
    settings, extra_columns = job.recipe.fetch, job.recipe.sidecar_extra
    python = settings.img2dataset_python or sys.executable
    version = version_of(python)

    def work(ticket: Ticket) -> CommitRecord:
        """The commit record of the ticket's shard. RuntimeError with the tool's last lines where it
        left no shard.
        """
        rows: RowsOfShard = ticket.payload
        pairs, retried = rows.read()
        started = round(time.time() * 1000)
        with (
            disk.scratch_folder("clipmill-img2dataset-") as folder,
            ShardWriter(job.out, rows.shard, ticket.id, ticket.group, extra_columns) as writer,
        ):

            def add(
                row: int, outcome: dict[str, Any], image: bytes | None = None, extension: str = ""
            ) -> None:
                pair = pairs[row]
                record = pair_columns(pair) | {"retry_of": retried[row], "fetched_at": started}
                names = ("title", "anchor", "license", "robots")
                extra = {name: getattr(pair, name) for name in names}
                writer.add(row, record | outcome, image, extra, extension)

            requested = []
            for row, pair in enumerate(pairs):
                if refused := refusal(pair, settings):
                    add(row, {"reason": refused[0], "error_message": refused[1]})
                else:
                    requested.append(row)
            if requested:
                run(python, [pairs[row] for row in requested], settings, Path(folder))
                results = outcomes(Path(folder), settings, len(requested))
                for position, (outcome, image, extension) in results:
                    add(requested[position], outcome, image, extension)
            return writer.commit(
                len(pairs),
                engine="img2dataset",
                engine_version=version,
                manners=manners_of(settings),
            )

    return work


def run(python: str, pairs: Sequence[Pair], settings: Fetch, folder: Path) -> None:
    """Leave 00000.tar and 00000.parquet in `folder`. RuntimeError where the tool does not."""
    columns: dict[str, Any] = {"url": pa.array([pair.url for pair in pairs], pa.string())}
    if settings.bbox_column:
        boxes = []
        for pair in pairs:
            boxes.append([list(box) for box in boxes_of(pair.extra, settings)])
        columns["bbox"] = pa.array(boxes, pa.list_(pa.list_(pa.float64())))
    if settings.verify_hash:
        column = settings.verify_hash[0]
        hashes = [str((pair.extra or {}).get(column) or "") for pair in pairs]
        columns["expected"] = pa.array([text.strip().lower() for text in hashes], pa.string())
    disk.write_parquet(folder / "list.parquet", pa.table(columns))
    disk.write_json(folder / "options.json", options(settings, folder))
    limit_s = deadline_s(len(pairs), settings)
    command = [python, "-c", DRIVER, str(folder / "options.json")]
    status, last_lines = run_bounded(command, folder, limit_s)
    if status is None:
        raise RuntimeError(
            f"img2dataset was ended after {limit_s:.0f} s for {len(pairs)} rows; "
            f"its last lines: {last_lines}"
        )
    if status != 0 or not (folder / "out/00000_stats.json").exists():
        raise RuntimeError(
            f"img2dataset left no shard and ended with status {status}; its last lines: "
            f"{last_lines}"
        )


def options(settings: Fetch, folder: Path) -> dict[str, object]:
    """The arguments of img2dataset.download for a list in `folder`."""
    arguments: dict[str, object] = {name: getattr(settings, name) for name in PASSED_ON}
    arguments |= {
        "url_list": str(folder / "list.parquet"),
        "input_format": "parquet",
        "output_folder": str(folder / "out"),
        "output_format": "webdataset",
        # One shard: the last four digits of a key are the row.
        "number_sample_per_shard": ROWS_PER_SHARD_LIMIT,
        "processes_count": 1,
        "thread_count": settings.concurrency,
        "timeout": settings.deadline_s,
        "user_agent_token": product(user_agent(settings)),
        "disallowed_header_directives": [] if settings.optout == "ignore" else list(DIRECTIVES),
    }
    if settings.max_image_area:
        arguments["max_image_area"] = settings.max_image_area
    if settings.max_aspect_ratio:
        arguments["max_aspect_ratio"] = settings.max_aspect_ratio
    if settings.bbox_column:
        arguments["bbox_col"] = "bbox"
    if settings.verify_hash:
        arguments["verify_hash"] = ["expected", settings.verify_hash[1]]
    return arguments


def deadline_s(rows: int, settings: Fetch) -> float:
    """How long a run may take: all threads at their timeouts in every try, then decoding, after a
    slow start.
    """
    waits = math.ceil(rows / settings.concurrency) * settings.deadline_s * (settings.retries + 1)
    return START_S + waits + rows * ROW_S


def run_bounded(command: Sequence[str], folder: Path, limit_s: float) -> tuple[int | None, str]:
    """Exit status (None where the time was up) and last lines of a command in `folder` and all
    processes it started.

    A worker of img2dataset that dies leaves the others waiting for ever, so nothing but the clock
    can tell.
    """
    log = folder / "log.txt"
    options = {"cwd": folder, "env": {**os.environ, **QUIET}, "stderr": subprocess.STDOUT}
    with open(log, "wb") as out, console.attached(command, stdout=out, **options) as child:
        try:
            status: int | None = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
    lines = [
        line.strip()
        for line in re.split(r"[\r\n]+", log.read_text(errors="replace"))
        if line.strip()
    ]
    return status, " | ".join(lines[-LAST_LINES:]) or "nothing"


def pair_columns(pair: Pair) -> dict[str, object]:
    """What a sidecar's row has of its pair, with the page's own signals."""
    page_signals = signals((), pair.robots)
    text = json.dumps(page_signals, sort_keys=True, ensure_ascii=False) if page_signals else None
    columns = {name: getattr(pair, name) for name in PAIRS.names if name in SIDECAR.names}
    return columns | (pair.extra or {}) | {"optout": text}


def refusal(pair: Pair, settings: Fetch) -> tuple[str, str] | None:
    """(reason, detail) of a row for which nobody is answer."""
    policy = OptoutPolicy(user_agent(settings), settings.optout)
    if reason := policy.refusal(signals((), pair.robots)):
        return reason
    try:
        guard.target(pair.url, settings)
        boxes_of(pair.extra, settings)
    except (guard.Refused, RejectedImage) as error:
        return error.reason, error.detail
    return None
