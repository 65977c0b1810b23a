"""The stages that train: reading a pool into batches, and a training step."""

from __future__ import annotations

import json
from collections.abc import Callable

from benchmarks import gpu
from benchmarks.peers.environments import environment_of
from benchmarks.peers.rows import in_turns, row_of
from benchmarks.peers.web_stages import Context, Measured
from benchmarks.reading import loader as reading

IMAGES, SAMPLES, LOADER_TURNS = 600, 2048, 3
REPEATS, SECONDS = 3, 5.0  # of a training cell
MODELS = {"micro": 64, "ViT-S-32": 8}  # the batch of each


def loader(context: Context) -> Measured:
    """Samples per CPU second from local tars, beside open_clip's pipeline and bare decoding."""
    peer = environment_of("open_clip")
    folder, work = context.work / "loader-images", context.work / "loader"
    folder.mkdir()
    work.mkdir()
    count = reading.write_images(context.photographs, folder, context.count(IMAGES, 300))
    pool = str(reading.build_pool(folder, work))
    samples = context.count(SAMPLES, 256)

    def way(name: str, python: str | None = None) -> Callable[[], float]:
        more = {} if python is None else {"python": python}

        def run() -> float:
            return float(reading.run_child(name, pool, 1, samples, **more)["samples_per_cpu_s"])

        return run

    ways = {"clipmill": way("ours"), "bare": way("bare")}
    if peer.python is not None:
        ways["open_clip"] = way("open_clip", peer.python)
    values = in_turns(ways, context.turns(LOADER_TURNS))
    rows = [
        row_of(
            f"JPEGs of {reading.SIDE} pixels to batches of {reading.SIZE}",
            "samples per CPU second",
            bar,
            title,
            values["clipmill"],
            values.get(name, []),
            items=samples,
            at_least=True,
            missing=peer.reason if name == "open_clip" else None,
        )
        for name, bar, title in (
            ("open_clip", 4.0, "open_clip's pipeline (webdataset, Pillow)"),
            ("bare", 0.5, "simplejpeg, decoded and dropped"),
        )
    ]
    return rows, {"open_clip_torch": peer.version, "images": str(count)}


def training(context: Context) -> Measured:
    """Samples per CPU second of a training step, beside open_clip's step."""
    peer = environment_of("open_clip")
    rows, missing, out = [], [], context.work / "training.json"
    for model, batch in MODELS.items():
        words = ["--device", "cpu", "--threads", "1", "--no-shards", "--no-profile"]
        words += ["--models", model, "--batch", str(batch), "--minutes", "12", "--out", str(out)]
        words += [
            "--repeats",
            str(context.turns(REPEATS)),
            "--seconds",
            str(SECONDS * context.share),
        ]
        words += ["--wheels", peer.packages] if peer.python else ["--programs", "ours"]
        gpu.main(words)
        cells = json.loads(out.read_text())["cells"]
        rates = {
            (cell["program"], cell["captions"]): cell["samples_per_cpu_s"]["repeats"]
            for cell in cells
            if cell["state"] == "measured"
        }
        for captions in ("padded", "packed"):
            ours = rates.get(("ours", captions))
            if ours is None:
                missing.append(f"{model} {captions}")
                continue
            rows.append(
                row_of(
                    f"a step of {model}, batch {batch}, captions {captions}",
                    "samples per CPU second",
                    1.0,
                    "open_clip's step, captions padded",
                    ours,
                    rates.get(("open_clip", "padded"), []),
                    items=batch,
                    at_least=True,
                    missing=peer.reason or "the time was over",
                )
            )
    if not rows:
        raise RuntimeError("no cell was measured in all repeats")
    left_out = {"no time was left for": ", ".join(missing) or None}
    return rows, {"open_clip_torch": peer.version, **left_out}
