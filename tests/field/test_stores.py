"""Stores that refuse, do not answer or have nothing: one line of every command that takes an
address. Folders that `datasets` saved, and captions that several images have."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.disk import files
from clipmill.manifests.schema import Source, TaskSpec
from clipmill.pipeline.crawl.sources import parts
from clipmill.train.eval_data.samples import read_captioned
from tests.conftest import TINY, draw
from tests.support.commands import run
from tests.support.s3_server import answer, error_body, read_body, s3_variables

# --- stores ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A store whose bucket has this name: its status, None of no answer, and what is said of it."""

    source: str
    why: str
    bucket: str
    status: int | None
    code: str
    says: str


FAULTS = (
    Fault(
        source="fsspec/s3fs#750",
        why="wrong keys were taken for a file that is not there",
        bucket="refused",
        status=403,
        code="InvalidAccessKeyId",
        says="set AWS_ACCESS_KEY_ID",
    ),
    Fault(
        source="fsspec/s3fs#758",
        why="a token that has expired, or another signature: 400, and HEAD has no words",
        bucket="expired",
        status=400,
        code="ExpiredToken",
        says="AWS_SESSION_TOKEN, which expires",
    ),
    Fault(
        source="fsspec/s3fs#951",
        why="a store that stays busy is not a fault of the program",
        bucket="busy",
        status=503,
        code="SlowDown",
        says="the store does not answer",
    ),
    Fault(
        source="marin-community/marin#7547",
        why="a connection that is accepted and never answered held workers without an end",
        bucket="silent",
        status=None,
        code="",
        says="AWS_ENDPOINT_URL is http://127.0.0.1",
    ),
    Fault(
        source="fsspec/s3fs#87",
        why="a bucket of another name",
        bucket="missing",
        status=404,
        code="NoSuchBucket",
        says="there is no bucket s3://missing",
    ),
)
COMMANDS = (
    ["build", "{}/r.yaml", "--out", "out", "--engine", "inline"],
    ["build", "--from-lock", "{}/l.parquet", "--out", "out", "--engine", "inline"],
    ["train", "--mix", "{}/pool/all=1", "--out", "out", "--preset", "micro"],
    ["train", "{}/blend.json", "--out", "out", "--preset", "micro"],
    ["evaluate", "{}/run", "--task", "t.yaml"],
    ["evaluate", "run", "--task", "{}/t.yaml"],
    ["evaluate", "run", "--suite", "{}/t.yaml"],
    ["evaluate", "benchmark", "{}/t.yaml", "--to", "out"],
    ["ablate", "{}/a.yaml", "--out", "out"],
    ["ablate", "plan", "{}/a.yaml"],
    ["report", "{}/ablation"],
    ["decide", "{}/x.csv"],
    ["mix", "{}/ablation"],
    ["why", "{}/ablation"],
    ["look", "{}/pool"],
    ["audit", "{}/pool"],
    ["audit", "verify", "{}/pool"],
    ["audit", "lock", "{}/pool", "l.parquet"],
    ["score", "{}/pool", "--recipe", "tiny.yaml", "--engine", "inline"],
    ["filter", "{}/pool", "--recipe", "tiny.yaml"],
    ["export", "{}/pool", "all", "--to", "x.parquet"],
    ["weights", "{}/run", "--to", "w"],
    ["size", "--model", "{}/m.json", "--device", "cpu"],
)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of a server that fails as the bucket of a request says."""
    is_over = threading.Event()
    faults = {fault.bucket: fault for fault in FAULTS}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_any(self) -> None:
            read_body(self)
            fault = faults[self.path.split("?")[0].split("/")[1]]
            if fault.status is None:
                is_over.wait()
                self.close_connection = True
                return
            answer(self, fault.status, {"Content-Type": "text/xml"}, error_body(fault.code))

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_any

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    is_over.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of botocore
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.source for fault in FAULTS])
def test_each_command_says_in_one_line_what_is_wrong_with_a_store(
    fault: Fault,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()
    for name, value in s3_variables(endpoint).items():
        monkeypatch.setenv(name, value)
    answer_s = 300.0 if fault.status else 0.5  # no machine is too slow for the others
    for name, seconds in (("FIRST_S", 0.0), ("ANSWER_S", answer_s), ("RETRY_S", 0.0)):
        monkeypatch.setattr(files, name, seconds)
    monkeypatch.setattr(files, "_answered", set())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    (tmp_path / "t.yaml").write_text("{name: t, kind: retrieval, data: x}")
    for words in COMMANDS:
        address = f"s3://{fault.bucket}"
        status = run(words[0], [word.format(address) for word in words[1:]])
        lines = capsys.readouterr().err.strip().split("\n")
        said = [line for line in lines if line.startswith("error: ")]
        assert (status, len(said)) == (2, 1), (words, status, lines)
        assert address in said[0], (words, said)
        assert fault.says in said[0] or words[1] == "--from-lock", (words, said)


@pytest.mark.parametrize("option", ["folder", "--trusted", "--test"])
def test_an_address_that_try_does_not_read_is_named_as_it_was_written(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(tmp_path / "photos", 12)
    address = "s3://refused/photos"
    words = [address] if option == "folder" else [str(tmp_path / "photos"), option, address]
    assert run("try", [*words, "--plan", "--out", str(tmp_path / "out")]) == 2
    assert f"error: {address} is no folder on this machine" in capsys.readouterr().err


# --- folders that `datasets` saved ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The files of a folder, and words of its refusal; none where it is read as it always was."""

    source: str
    why: str
    names: tuple[str, ...]
    says: str = ""


ONE = ("data-00000-of-00001.arrow", "dataset_info.json", "state.json")
SAVED = (
    Saved(
        source="huggingface/datasets#3700",
        why="one split: its JSON files were read in place of its rows",
        names=ONE,
        says=".to_parquet('pairs.parquet')",
    ),
    Saved(
        source="huggingface/datasets#2424",
        why="several splits: each is a folder",
        names=("dataset_dict.json", *(f"train/{name}" for name in ONE)),
        says="['train'].to_parquet",
    ),
    Saved(
        source="axolotl-ai-cloud/axolotl#1430",
        why="a folder of the cache has no state.json and is no saved one",
        names=("dataset_info.json", "x-train.arrow"),
        says="Dataset.from_file(",
    ),
    Saved(
        source="huggingface/datasets#3705",
        why="the description of a data set beside a Parquet file does no harm",
        names=("dataset_info.json", "pairs.parquet"),
    ),
    Saved(
        source="huggingface/diffusers#10913",
        why="Arrow files beside Parquet files: those are read",
        names=("pairs.parquet", "x.arrow", "state.json"),
    ),
)


@pytest.mark.parametrize("row", SAVED, ids=[row.source for row in SAVED])
def test_a_folder_of_arrow_files_is_named_with_the_way_through(row: Saved, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    table = pa.table({"image": pa.array([b"x"]), "text": pa.array(["a dog"])})
    for name in row.names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            disk.write_parquet(folder / name, table)
        elif name.endswith(".arrow"):
            with pa.OSFile(str(folder / name), "wb") as f, pa.ipc.new_stream(f, table.schema) as w:
                w.write_table(table)
        else:
            (folder / name).write_text("{}")
    source = Source(kind="image_table", paths=(str(folder),), caption_column="text")
    task: TaskSpec = disk.from_plain(
        TaskSpec, {"name": "t", "kind": "retrieval", "data": str(folder)}
    )
    if not row.says:
        assert parts(source) == [str(folder / "pairs.parquet")]
        return
    for read in (lambda: parts(source), lambda: read_captioned(task)):
        with pytest.raises(ValueError, match="holds Arrow files of Hugging Face") as raised:
            read()
        assert row.says in str(raised.value)


# --- captions that several images have ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Captions:
    """The captions of each image, and what the note counts: shared captions and the bound of the
    recall; None of both where no text is that of two images."""

    source: str
    why: str
    captions: tuple[tuple[str, ...], ...]
    shared: int | None = None
    bound: str = ""


CAPTIONS = (
    Captions(
        source="LAION-AI/CLIP_benchmark#7",
        why="six of ten images have one text, which finds one image first",
        captions=(*(("a photo",),) * 6, ("a dog",), ("a cat",), ("a car",), ("a bus",)),
        shared=6,
        bound="0.500",
    ),
    Captions(
        source="openai/CLIP#115",
        why="an image may have a text twice: both find it",
        captions=(("a photo", "a photo"), ("a photo", "a cat")),
        shared=3,
        bound="0.750",
    ),
    Captions(
        source="openai/CLIP#181",
        why="five captions of an image, two of them equal, are no doubt",
        captions=(("a dog", "a dog", "it runs"), ("a cat",)),
    ),
)


@pytest.mark.parametrize("row", CAPTIONS, ids=[row.source for row in CAPTIONS])
def test_captions_of_several_images_are_counted(row: Captions, tmp_path: Path) -> None:
    draw(tmp_path, len(row.captions))
    lines = ["file,caption"]
    lines += [f"{n}.jpg,{text}" for n, texts in enumerate(row.captions) for text in texts]
    (tmp_path / "captions.csv").write_text("\n".join(lines) + "\n")
    plain = {"name": "t", "kind": "retrieval", "data": str(tmp_path)}
    task: TaskSpec = disk.from_plain(TaskSpec, plain)
    notes = read_captioned(task).notes
    if row.shared is None:
        assert notes == ()
        return
    count = sum(map(len, row.captions))
    assert notes[0].startswith(f"{row.shared} of {count} captions have the text of another image")
    assert f"text_to_image_recall@1 is at most {row.bound}" in notes[0]
