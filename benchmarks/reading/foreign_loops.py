#!/usr/bin/env python3
"""`clipmill.Loader` and the loaders of the field in the same loop of somebody's own.

example: python benchmarks/reading/foreign_loops.py --images PHOTOGRAPHS

The photographs are scaled to a shorter side of 256 pixels and stored by clipmill build; the same
bytes and captions are then stored as each loader wants them. A program takes batches of 256 in one
process, without worker processes, in one of two ways:

  kernels    every loader with clipmill's own two: simplejpeg, and torch's bicubic crop of 8 bits
  transform  every loader with RandomResizedCrop of torchvision on an image of Pillow

The programs take turns, each in a process of its own. A figure is samples for a second of processor
time, of all threads, after the first batch; the best of the turns counts. Seconds to the first
batch begin with the process, so the imports of the loader are in them.

What a loader can do is tried, not read: its state after three batches is given to a new loader of
one rank, and to two processes of two ranks, and the captions of the next three batches are
compared. How a loader is told which rows it draws is in ROWS.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import platform
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

SIDE, QUALITY, SIZE, BATCH, CROP_MIN = 256, 92, 224, 256, 0.9
REPEATS = 4  # of every photograph, each with a caption of its own
SHARD_ROWS, CHUNK = 256, "8MB"
TRIED = 3  # batches before a state is taken, and after
WAYS = ("kernels", "transform")
RECIPE = """
name: loops
source: {{kind: image_folder, paths: ["{folder}"], captions: metadata.csv}}
fetch: {{image_size: {side}, rows_per_shard: {rows}}}
filters: [tokens]
"""
Sample = tuple[bytes, str]
Collate = Callable[[Sequence[Sample]], tuple[Any, list[str]]]
Result = dict[str, Any]


# --- bytes to a batch -----------------------------------------------------------------------------


def by_kernels() -> Collate:
    """(B, 224, 224, 3) uint8 by the kernels of clipmill."""
    import numpy as np
    import torch

    from clipmill.train.transforms import (
        ThreadBuffer,
        crop_numbers,
        decode_image,
        random_crop_into,
        smallest_side,
    )

    buffer, least, step = ThreadBuffer(), smallest_side(SIZE, CROP_MIN), iter(range(10**9))

    def collate(samples: Sequence[Sample]) -> tuple[Any, list[str]]:
        images = np.empty((len(samples), SIZE, SIZE, 3), np.uint8)
        numbers = crop_numbers(0, next(step), np.arange(len(samples)), CROP_MIN).tolist()
        for row, (data, _) in enumerate(samples):
            random_crop_into(images[row], decode_image(data, least, buffer), numbers[row])
        return torch.from_numpy(images), [caption for _, caption in samples]

    return collate


def transform() -> Callable[[Any], Any]:
    """What most training scripts do with an image of Pillow: (3, 224, 224) float32."""
    from torchvision import transforms

    way = transforms.InterpolationMode.BICUBIC
    crop = transforms.RandomResizedCrop(SIZE, scale=(CROP_MIN, 1.0), interpolation=way)
    return transforms.Compose([crop, transforms.ToTensor()])  # type: ignore[no-any-return]


def by_transform() -> Collate:
    """(B, 3, 224, 224) float32 by `transform`."""
    from io import BytesIO

    import torch
    from PIL import Image

    change = transform()

    def collate(samples: Sequence[Sample]) -> tuple[Any, list[str]]:
        images = [change(Image.open(BytesIO(data)).convert("RGB")) for data, _ in samples]
        return torch.stack(images), [caption for _, caption in samples]

    return collate


COLLATES = {"kernels": by_kernels, "transform": by_transform}


# --- the loaders ----------------------------------------------------------------------------------
#
# Each function gives an iterable of (images, captions) over the data in a folder, shuffled, for
# this rank of `world`. Where it can be resumed, it has `state_dict` and `load_state_dict`.


def tars_of(data: Path) -> list[Path]:
    """The shards of the pool."""
    return sorted((data / "pool/shards").glob("*.tar"))


def samples_of(data: Path) -> Iterator[Sample]:
    """The image and the caption of each sample, in the order of the shards."""
    for tar in tars_of(data):
        with tarfile.open(tar) as file:
            image = b""
            for member in file:
                content = file.extractfile(member)
                assert content is not None
                if member.name.endswith(".jpg"):
                    image = content.read()
                elif member.name.endswith(".txt"):
                    yield image, content.read().decode()


class ClipmillLoop:
    """clipmill.Loader; it decodes and crops itself."""

    def __init__(self, data: Path, way: str, rank: int, world: int) -> None:
        import clipmill

        how: dict[str, Any] = {"image_size": SIZE} if way == "kernels" else {}
        if way == "transform":
            how = {"transform": transform()}
        self.loader = clipmill.Loader(
            f"{data}/pool/raw", batch_size=BATCH, rank=rank, world=world, workers=1, **how
        )
        self.state_dict, self.load_state_dict = self.loader.state_dict, self.loader.load_state_dict

    def __iter__(self) -> Iterator[tuple[Any, list[str]]]:
        return ((batch.image, batch.captions) for batch in self.loader)


def webdataset_loop(data: Path, way: str, rank: int, world: int) -> Iterable[Any]:
    import webdataset as wds

    tars = [str(tar) for tar in tars_of(data)]
    dataset = wds.WebDataset(tars, shardshuffle=len(tars), seed=0).shuffle(1000)
    named = dataset.to_tuple("jpg", "txt").map_tuple(bytes, bytes.decode)
    return named.batched(BATCH, collation_fn=COLLATES[way](), partial=False)  # type: ignore[no-any-return]


def streaming_convert(data: Path, target: Path) -> None:
    from streaming import MDSWriter

    columns = {"image": "bytes", "caption": "str"}
    with MDSWriter(out=str(target), columns=columns, size_limit=CHUNK.lower()) as writer:
        for image, caption in samples_of(data):
            writer.write({"image": image, "caption": caption})


def streaming_loop(data: Path, way: str, rank: int, world: int) -> Iterable[Any]:
    from streaming import StreamingDataLoader, StreamingDataset

    rows = BATCH // world
    dataset = StreamingDataset(
        local=str(data / "streaming"), shuffle=True, shuffle_seed=0, batch_size=rows,
        num_canonical_nodes=1,
    )  # fmt: skip
    return StreamingDataLoader(  # type: ignore[no-any-return]
        dataset, batch_size=rows, collate_fn=of_rows(way), num_workers=0, drop_last=True
    )


def litdata_convert(data: Path, target: Path) -> None:
    import litdata

    samples = list(samples_of(data))
    litdata.optimize(
        fn=_Row(samples), inputs=list(range(len(samples))), output_dir=str(target),
        chunk_bytes=CHUNK, num_workers=1,
    )  # fmt: skip


@dataclass(frozen=True)
class _Row:
    """What litdata's writer calls for each number of a sample."""

    samples: list[Sample]

    def __call__(self, number: int) -> dict[str, Any]:
        image, caption = self.samples[number]
        return {"image": image, "caption": caption}


def litdata_loop(data: Path, way: str, rank: int, world: int) -> Iterable[Any]:
    import litdata

    dataset = litdata.StreamingDataset(str(data / "litdata"), shuffle=True, seed=0, drop_last=True)
    return litdata.StreamingDataLoader(  # type: ignore[no-any-return]
        dataset, batch_size=BATCH // world, collate_fn=of_rows(way), num_workers=0
    )


def spdl_loop(data: Path, way: str, rank: int, world: int) -> Iterable[Any]:
    """SPDL has threads and no storage: the source is a list of places in the tars."""
    from spdl.pipeline import PipelineBuilder

    places: list[tuple[Path, int, int, str]] = []
    for tar in tars_of(data):
        with tarfile.open(tar) as file:
            members = {member.name: member for member in file}
            for name, member in members.items():
                if name.endswith(".jpg"):
                    text = file.extractfile(members[f"{name[:-4]}.txt"])
                    assert text is not None
                    places.append((tar, member.offset_data, member.size, text.read().decode()))
    random.Random(0).shuffle(places)
    files = {tar: os.open(tar, os.O_RDONLY) for tar in tars_of(data)}
    collate = COLLATES[way]()

    def made(rows: Sequence[tuple[Path, int, int, str]]) -> tuple[Any, list[str]]:
        read = [(os.pread(files[tar], size, start), text) for tar, start, size, text in rows]
        return collate(read)

    builder = PipelineBuilder().add_source(places).aggregate(BATCH, drop_last=True)
    pipeline = builder.pipe(made, concurrency=1).add_sink(2).build(num_threads=1)

    def batches() -> Iterator[Any]:
        with pipeline.auto_stop():
            yield from pipeline

    return batches()


def lance_convert(data: Path, target: Path) -> None:
    import lance
    import pyarrow as pa

    images, captions = zip(*samples_of(data), strict=True)
    table = pa.table({"image": pa.array(images, pa.large_binary()), "caption": captions})
    lance.write_dataset(table, str(target), max_rows_per_file=8 * SHARD_ROWS)


def lance_loop(data: Path, way: str, rank: int, world: int) -> Iterable[Any]:
    """Shuffled batches by `take`, the random access that Lance is made for."""
    import lance

    dataset = lance.dataset(str(data / "lance"))
    rows = list(range(dataset.count_rows()))
    random.Random(0).shuffle(rows)
    collate = COLLATES[way]()
    for start in range(0, len(rows) - BATCH + 1, BATCH):
        table = dataset.take(rows[start : start + BATCH], columns=["image", "caption"])
        images, captions = table["image"].to_pylist(), table["caption"].to_pylist()
        yield collate(list(zip(images, captions, strict=True)))


def datasets_convert(data: Path, target: Path) -> None:
    import datasets

    def rows() -> Iterator[dict[str, Any]]:
        for image, caption in samples_of(data):
            yield {"image": {"bytes": image, "path": None}, "caption": caption}

    kinds = datasets.Features(
        {"image": datasets.Image(decode=False), "caption": datasets.Value("string")}
    )
    cache = str(target.with_name("datasets-cache"))
    made = datasets.Dataset.from_generator(rows, features=kinds, cache_dir=cache)
    made.save_to_disk(str(target))


class DatasetsLoop:
    """A Dataset in a DataLoader of torch, and for a state its IterableDataset, shuffled in a
    buffer."""

    def __init__(self, data: Path, way: str, rank: int, world: int) -> None:
        import datasets

        self._rows = datasets.load_from_disk(str(data / "datasets"))
        self._way, self._world = way, world
        self._stream = self._rows.to_iterable_dataset(num_shards=8).shuffle(0, buffer_size=1000)
        self._is_resumed = False
        if world > 1:
            from datasets.distributed import split_dataset_by_node

            self._stream = split_dataset_by_node(self._stream, rank=rank, world_size=world)

    def state_dict(self) -> Any:
        return self._stream.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._stream.load_state_dict(state)

    def stream(self) -> Iterator[Any]:
        """The batches of the IterableDataset."""
        for part in self._stream.iter(BATCH // self._world):
            yield None, part["caption"]

    def __iter__(self) -> Iterator[Any]:
        import torch
        from torch.utils.data import DataLoader

        collate, generator = COLLATES[self._way](), torch.Generator().manual_seed(0)

        def of_dicts(rows: Sequence[dict[str, Any]]) -> Any:
            return collate([(row["image"]["bytes"], row["caption"]) for row in rows])

        return iter(
            DataLoader(
                self._rows, BATCH, shuffle=True, collate_fn=of_dicts, drop_last=True,  # type: ignore[arg-type]
                generator=generator,
            )
        )  # fmt: skip


def of_rows(way: str) -> Callable[[Sequence[dict[str, Any]]], Any]:
    """A `collate_fn` for rows that are dicts."""
    collate = COLLATES[way]()
    return lambda rows: collate([(row["image"], row["caption"]) for row in rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loader: how its data is stored (None: as the pool has it), and its batches."""

    title: str
    batches: Callable[[Path, str, int, int], Iterable[Any]]
    convert: Callable[[Path, Path], None] | None = None


LOOPS = {
    "clipmill": Loop(title="clipmill.Loader", batches=ClipmillLoop),
    "webdataset": Loop(title="webdataset", batches=webdataset_loop),
    "streaming": Loop(
        title="MosaicML Streaming", batches=streaming_loop, convert=streaming_convert
    ),
    "litdata": Loop(title="litdata", batches=litdata_loop, convert=litdata_convert),
    "spdl": Loop(title="SPDL", batches=spdl_loop),
    "datasets": Loop(title="Hugging Face datasets", batches=DatasetsLoop, convert=datasets_convert),
    "lance": Loop(title="Lance", batches=lance_loop, convert=lance_convert),
}
# How a loader draws from some of the rows, without their bytes being written again.
ROWS = {
    "clipmill": "a view: rules over columns",
    "webdataset": "no: `.select` reads the bytes of all rows",
    "streaming": "no",
    "litdata": "no: `subsample` is a share",
    "spdl": "the source is your own list",
    "datasets": "`select`, `filter`",
    "lance": "`filter`, SQL over columns",
}


# --- what a process of a loader does --------------------------------------------------------------


def measure(name: str, data: Path, way: str) -> Result:
    """Seconds to the first batch, and samples for a second of the processor after it."""
    import torch

    torch.set_num_threads(1)
    batches = iter(LOOPS[name].batches(data, way, 0, 1))
    next(batches)
    first_at, first_cpu_s = time.time(), time.process_time()
    samples = sum(len(captions) for _, captions in batches)
    cpu_s = time.process_time() - first_cpu_s
    return {
        "first_batch_at": first_at,
        "first_batch_cpu_s": first_cpu_s,
        "samples": samples,
        "cpu_s": cpu_s,
        "samples_per_cpu_s": samples / cpu_s,
    }


def captions_of(name: str, data: Path, state: Path | None, out: Path) -> Result:
    """The captions of the next batches of this rank, from a state on; the state after TRIED of
    them is left in `out`. `resumes` is False where the loader has no state."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        import torch.distributed as dist

        place = f"file://{os.environ['MEETING']}"
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
    loader = LOOPS[name].batches(data, "kernels", rank, world)
    if not hasattr(loader, "state_dict"):
        return {"resumes": False}
    if state is not None:
        loader.load_state_dict(pickle.loads(state.read_bytes()))  # type: ignore[attr-defined]
    batches = loader.stream() if isinstance(loader, DatasetsLoop) else iter(loader)
    captions = []
    for number in range(TRIED if state is not None else 2 * TRIED):
        captions.append(sorted(next(batches, (None, []))[1]))  # [] where it ends before
        if number == TRIED - 1:
            out.write_bytes(pickle.dumps(loader.state_dict()))
    return {"resumes": True, "captions": captions}


# --- the run --------------------------------------------------------------------------------------


def write_images(source: Path, folder: Path) -> None:
    """Scale the photographs to SIDE pixels and list each REPEATS times."""
    from PIL import Image

    from benchmarks.photographs import paths_of

    lines, paths = ["file_name,caption"], paths_of(source)
    for number, path in enumerate(paths):
        with Image.open(path) as image:
            factor = SIDE / min(image.size)
            size = (round(image.width * factor), round(image.height * factor))
            small = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        for repeat in range(REPEATS):
            name = f"{number + repeat * len(paths):06d}"
            small.save(folder / f"{name}.jpg", "JPEG", quality=QUALITY)
            lines.append(f"{name}.jpg,a photo of a thing that has the number {name}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")


def run_child(
    python: str, words: Sequence[str], program: str = __file__, **variables: str
) -> Result:
    """A program of loaders in a process of its own: the last line of its output, and how long its
    first batch took."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    started = time.time()
    command = [python, program, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-2000:]}")
    result: Result = json.loads(done.stdout.splitlines()[-1])
    if "first_batch_at" in result:
        result["first_batch_s"] = result.pop("first_batch_at") - started
    return result


def trial(name: str, python: str, data: Path, work: Path) -> dict[str, bool]:
    """Whether a loader goes on after a state exactly: on one rank, and on two."""
    state = work / f"{name}.state"

    def of(rank: int, world: int, start: Path | None, out: Path) -> Result:
        words = ["--captions", name, "--data", str(data), "--out", str(out)]
        words += ["--state", str(start)] if start else []
        variables = {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
        variables |= {name: str(world) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
        return run_child(python, words, **variables, MEETING=str(work / f"{name}.meeting"))

    whole = of(0, 1, None, state)
    if not whole["resumes"]:
        return {"exact resume": False, "other ranks": False}
    again = of(0, 1, state, work / "unused")
    resumes = again["captions"] == whole["captions"][TRIED:]
    (work / f"{name}.meeting").unlink(missing_ok=True)
    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(of, rank, 2, state, work / f"unused-{rank}") for rank in (0, 1)]
        try:
            parts = [rank.result()["captions"] for rank in ranks]
        except RuntimeError as error:
            print(f"{name} on two ranks: {error}", file=sys.stderr)
            return {"exact resume": resumes, "other ranks": False}
    joined = [sorted(one + other) for one, other in zip(*parts, strict=True)]
    return {"exact resume": resumes, "other ranks": joined == whole["captions"][TRIED:]}


def prepare(images: Path, work: Path, pythons: Mapping[str, str]) -> int:
    """The pool of the photographs, and their data as each loader wants it; the number of samples.
    What is there is used again."""
    from clipmill.manifests import console
    from clipmill.manifests.commits import read_commits

    if not (work / "pool").exists():
        (work / "images").mkdir(parents=True)
        write_images(images, work / "images")
        recipe = RECIPE.format(folder=work / "images", side=SIDE, rows=SHARD_ROWS)
        (work / "recipe.yaml").write_text(recipe)
        words = ["build", str(work / "recipe.yaml"), "--out", str(work / "pool")]
        words += ["--engine", "inline"]
        subprocess.run(console.program(words), check=True, capture_output=True)
    for name, python in pythons.items():
        if LOOPS[name].convert is not None and not (work / name).exists():
            run_child(python, ["--convert", name, "--data", str(work)])
    return read_commits(str(work / "pool")).totals.stored


def run(images: Path, work: Path, turns: int, names: Sequence[str]) -> Result:
    """All loaders in turns, and what each can do."""
    from benchmarks.peers.environments import environment_of

    environments = {name: environment_of(name) for name in names if name != "clipmill"}
    pythons = {"clipmill": sys.executable}
    pythons |= {name: each.python for name, each in environments.items() if each.python}
    rows = prepare(images, work, pythons)
    measured: dict[str, dict[str, list[Result]]] = {}
    for _ in range(turns):
        for name, python in pythons.items():
            for way in WAYS:
                result = run_child(python, ["--loop", name, "--data", str(work), "--way", way])
                measured.setdefault(name, {}).setdefault(way, []).append(result)
                print(f"{name} {way}: {result['samples_per_cpu_s']:.0f}", flush=True)
    tried = {name: trial(name, python, work, work) for name, python in pythons.items()}
    loaders: dict[str, Result] = {}
    for name in names:
        loaders[name] = {"title": LOOPS[name].title, "rows": ROWS[name]}
        if name in environments:
            one = environments[name]
            loaders[name] |= {"version": one.version, "missing": one.reason}
        if name in measured:
            loaders[name] |= {"turns": measured[name], "tried": tried[name]}
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    return {
        "loaders": loaders, "samples": rows, "side": SIDE, "size": SIZE, "batch": BATCH,
        "turns": turns, "machine": machine, "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


def parser_of(description: str | None, loops: Iterable[str]) -> argparse.ArgumentParser:
    """The options of a program that measures some loaders."""
    from benchmarks.photographs import folder_option

    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=folder_option, metavar="FOLDER", help="photographs, JPEG")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--loaders", nargs="+", choices=[*loops], default=[*loops])
    parser.add_argument("--out", metavar="FILE", help="write the figures here, as JSON")
    parser.add_argument("--data", type=Path, help="keep the data here, and use what is there")
    return parser


def run_to_file(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    run: Callable[[Path, Path, int, Sequence[str]], Result],
) -> int:
    """Measure, with these options, and write the figures."""
    if not args.images:
        parser.error("--images is missing: a folder of photographs")
    with tempfile.TemporaryDirectory() as folder:
        result = run(args.images, args.data or Path(folder), args.turns, args.loaders)
    if args.out:
        from clipmill.manifests import disk

        disk.write_json(args.out, result)
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of(__doc__, LOOPS)
    of_child = parser.add_argument_group("what a process of a loader does")
    of_child.add_argument("--loop", choices=LOOPS)
    of_child.add_argument("--convert", choices=LOOPS)
    of_child.add_argument("--captions", choices=LOOPS)
    of_child.add_argument("--way", choices=WAYS)
    of_child.add_argument("--state", type=Path)
    args = parser.parse_args(arguments)
    if args.loop or args.captions or args.convert:
        with contextlib.redirect_stdout(sys.stderr):  # peers print there
            if args.loop:
                result = measure(args.loop, args.data, args.way)
            elif args.captions:
                result = captions_of(args.captions, args.data, args.state, Path(args.out))
            else:
                convert = LOOPS[args.convert].convert
                assert convert is not None
                convert(args.data, args.data / args.convert)
                result = {}
        print(json.dumps(result))
        return 0
    return run_to_file(parser, args, run)


if __name__ == "__main__":
    sys.exit(main())
