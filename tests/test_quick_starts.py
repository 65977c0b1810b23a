"""The commands of the quick starts, the stages, docs/interop.md and docs/look.md, taken from the
pages and run on small data.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clipmill.manifests import console, disk
from tests.support import commands, pages
from tests.support.datacomp import write_metadata
from tests.support.other_tars import pack
from tests.support.photo_folders import COLOURS, make_folder, pixels_of
from tests.support.small_pool import make_pool, rows
from tests.support.web_files import FileServer

ROWS = 48
STAGES = ("crawl", "fetch", "score", "choose", "blend", "train", "evaluate", "report")
# Two steps of a small model in place of 500 of the demo's.
SMALL_RUN = {
    "samples_seen=64k": "samples_seen=32 batch_size=16 lanes=8 warmup=1 model=test",
    "model=micro": "model=test",
}


def photograph(number: int) -> tuple[bytes, str]:
    """A JPEG and its caption."""
    label = list(COLOURS)[number % 3]
    sink = io.BytesIO()
    Image.fromarray(pixels_of(label, number)).save(sink, "JPEG")
    return sink.getvalue(), f"a photo of a {label}" if number % 2 else label


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards as img2dataset writes them, with their Parquet files, and images of a task."""
    folder = tmp_path_factory.mktemp("quick")
    for shard in range(2):
        members, rows = [], []
        for number in range(shard * ROWS // 2, (shard + 1) * ROWS // 2):
            image, caption = photograph(number)
            key, url = f"{shard:05d}{number:04d}", f"http://img.example/{number}.jpg"
            row = {"url": url, "caption": caption, "key": key, "status": "success"}
            row |= {"uid": disk.uid_of(url, caption), "error_message": None}
            members += [(f"{key}.jpg", image), (f"{key}.txt", caption.encode())]
            members.append((f"{key}.json", json.dumps(row).encode()))
            rows.append(row)
        pack(folder / f"shards/{shard:05d}.tar", members)
        pq.write_table(pa.Table.from_pylist(rows), folder / f"shards/{shard:05d}.parquet")
    make_folder(folder / "photographs", per_class=4, first=500)
    return folder


@pytest.fixture
def work(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a reader: the shared data and nothing else."""
    for name in ("shards", "photographs"):
        (tmp_path / name).symlink_to(shared / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_all(page: str, changes: dict[str, str] | None = None, without: str = "\0") -> list[str]:
    """Run every command of a page, but for those with a word. Each must end with status 0."""
    lines = [line for line in pages.runnable(page) if without not in line]
    for line in lines:
        assert pages.run_command(line, changes) == 0, line
    return lines


@pytest.mark.slow
def test_the_page_for_users_of_img2dataset(work: Path) -> None:
    images = {f"/{number}.jpg": photograph(number)[0] for number in range(6)}
    urls = [f"http://img.example/{number}.jpg" for number in range(8)]  # two are not there
    pq.write_table(pa.table({"URL": urls, "TEXT": ["a photo"] * 8}), "urls.parquet")
    with FileServer(images, ranges=False) as server:
        address = server.base.removeprefix("http://").rstrip("/")
        local = f'allow_private: true, connect_to: {{"*.example": "{address}"}}, user_agent'
        names = pages.write_files("docs/start/img2dataset.md", work, {"user_agent": local})
        assert names == ["mine.yaml", "list.yaml"]
        lines = run_all("docs/start/img2dataset.md")
    assert len(lines) == 8
    assert disk.read_json("out/mine/views/long.json")["kept"] == ROWS // 2
    counts = disk.read_json("out/list/pool.json")["fetch"]["final"]
    assert (counts["stored"], counts["reasons"]) == (6, {"http_4xx": 2})
    assert Path("out/mine.html").exists()
    assert disk.read_json("out/long_shards/export.json")["rows"] == ROWS // 2


@pytest.mark.slow
def test_the_page_of_lists_that_grow(work: Path) -> None:
    images = {f"/{number}.jpg": photograph(number)[0] for number in range(6)}
    Path("lists").mkdir()
    with FileServer(images, ranges=False) as server:
        address = server.base.removeprefix("http://").rstrip("/")
        local = f'allow_private: true, connect_to: {{"*.example": "{address}"}}, user_agent'
        assert pages.write_files("docs/growing.md", work, {"user_agent": local}) == ["weekly.yaml"]
        for week, numbers in enumerate([(0, 1, 2), (2, 3), (4, 0, 5)]):
            rows = [f"http://img.example/{n}.jpg,a photo of number {n}" for n in numbers]
            Path(f"lists/2026-0{week}.csv").write_text("\n".join(["url,caption", *rows]))
            run_all("docs/growing.md", without="all_w06")  # which tests/pipeline/test_growth.py has
        asked = {path: server.hits[path] for path in images}
    assert disk.read_json("out/weekly/views/all.json")["kept"] == len(images)
    assert set(asked.values()) == {1}, "nothing is asked for twice"


def test_the_page_for_results_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{arm} & {c} $\\pm$ 0.4 \\\\\n" for arm, c in (("ERM", 51.2), ("MLDG", 53.0)))
    Path("table.tex").write_text(
        "\\begin{tabular}{lc}\nMethod & C \\\\\n\\hline\n" + rows + "\\end{tabular}\n"
    )
    assert len(run_all("docs/start/results.md")) == 3
    printed = capsys.readouterr().out
    shown = (
        Path(console.ROOT, "docs/start/results.md")
        .read_text()
        .split("```text\n")[1]
        .split("```")[0]
    )
    assert shown in printed
    assert re.search(r"ImageNet 1k +s +16 of 20 +16 of 20, 0.80 \[0.52, 1.00\]", printed)
    assert "better than raw" in Path("out/verdicts.html").read_text()


@pytest.mark.slow
def test_the_page_for_data_sets_of_others(work: Path) -> None:
    images = {f"{number}.jpg": photograph(number)[0] for number in range(24)}
    Path("data").mkdir()
    rows = [{"bytes": data, "path": name} for name, data in images.items()]
    for part in range(2):
        own = rows[12 * part :][:12]
        table = pa.table(
            {"image": own, "text": [f"a photo of number {row['path']}" for row in own]}
        )
        pq.write_table(table, f"data/train-0000{part}-of-00002.parquet", row_group_size=5)
    for folder in ("coco/train2017", "coco/annotations"):
        Path(folder).mkdir(parents=True)
    for name, data in images.items():
        Path("coco/train2017", name).write_bytes(data)
    notes = [{"image_id": n % 24, "caption": f"a note {n}"} for n in range(120)]
    names = [{"id": n, "file_name": f"{n}.jpg"} for n in range(24)]
    document = {"info": {}, "images": names, "annotations": notes}
    Path("coco/annotations/captions_train2017.json").write_text(json.dumps(document))
    lines = [f"caption {n}\thttp://img.example/{n}.jpg\n" for n in range(26)]  # two are not there
    Path("Train_GCC-training.tsv").write_text("".join(lines))
    Path("tars").symlink_to("shards")
    with FileServer({f"/{name}": data for name, data in images.items()}, ranges=False) as server:
        address = server.base.removeprefix("http://").rstrip("/")
        local = f'allow_private: true, connect_to: {{"*.example": "{address}"}}, user_agent'
        pages.write_files("docs/start/datasets.md", work, {"user_agent": local})
        assert len(run_all("docs/start/datasets.md")) == 5
    kept = {"parquet/views/all": 24, "coco/views/all": 120, "coco/views/longest": 24}
    for view, count in {**kept, "cc3m/views/raw": 24, "tars/views/all": ROWS}.items():
        assert disk.read_json(f"out/{view}.json")["kept"] == count, view


@pytest.mark.slow
def test_the_page_for_a_folder_of_images(work: Path) -> None:
    for folder, numbers in (("images", range(36)), ("heldout", range(100, 112))):
        Path(folder).mkdir()
        lines = ["file,caption"]
        for number in numbers:
            image, _ = photograph(number)
            Path(folder, f"{number}.jpg").write_bytes(image)
            label = list(COLOURS)[number % 3]
            words = f"photo {number} of a {label}" if number % 2 else label
            lines.append(f"{number}.jpg,{words}")
        Path(folder, "captions.csv").write_text("\n".join(lines))
    shutil.copy("images/7.jpg", "images/copy.jpg")
    with open("images/captions.csv", "a") as f:
        f.write("\ncopy.jpg,one photo of the seventh sky\n")
    small = "samples_seen: 32, batch_size: 16, lanes: 8, warmup: 1, model: test"
    names = pages.write_files(
        "docs/start/images.md",
        work,
        {"samples_seen: 64k": small, "seeds: [0, 1, 2]": "seeds: [0, 1]"},
    )
    assert names == ["images.yaml", "question.yaml"]
    assert len(run_all("docs/start/images.md")) == 3
    pool = disk.read_json("out/images/pool.json")
    assert pool["fetch"]["stored"] == 37
    assert disk.read_json("out/images/views/filtered.json")["kept"] == 18
    assert Path("out/images.html").exists()
    report = disk.read_json("out/question/report.json")
    arms = {arm["arm"]: arm["role"] for arm in report["arms"]}
    assert arms == {
        "all": "baseline",
        "filtered": "arm",
        "random_like_filtered": "random",
        "a_a": "a_a",
    }
    assert "filtered" in report["results"]["headline"]


@pytest.mark.slow
def test_the_page_for_users_of_datacomp(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uids = []
    for path in sorted(Path("shards").glob("*.parquet")):
        uids += pq.read_table(path)["uid"].to_pylist()
    write_metadata(work / "metadata", "0000", uids[::-1])
    pairs = [(int(uid[:16], 16), int(uid[16:], 16)) for uid in uids[:12]]
    np.save(work / "basic.npy", np.sort(np.array(pairs, "u8,u8")))
    monkeypatch.setenv("DATACOMP", str(work))
    pages.write_files("docs/start/datacomp.md", work, {"fp16[768]": "fp16[8]"})
    assert len(run_all("docs/start/datacomp.md")) == 4
    assert disk.read_json("out/pool/views/listed.json")["kept"] == 12
    kept = disk.read_json("out/pool/views/best_of_listed.json")["kept"]
    assert kept == len(np.load("out/uids/best.npy")) >= 6


@pytest.mark.slow
def test_the_page_for_users_of_open_clip(work: Path) -> None:
    pages.write_files("docs/start/open_clip.md", work)
    assert len(run_all("docs/start/open_clip.md", SMALL_RUN)) == 6
    assert disk.read_json("out/run/run.json")["steps"] == 2
    assert len(pq.read_table("out/run/eval/objects.parquet")) == 12
    assert any(Path("out/exported").iterdir())


# --- the stages, one after another ---------------------------------------------------------------


def write_images(folder: Path) -> None:
    """36 images with titles of two or four words, and one without a title."""
    folder.mkdir()
    lines = ["file_name,title"]
    for number in range(36):
        label = list(COLOURS)[number % 3]
        name = f"{number}.jpg" if number else "shoe.jpg"
        Image.fromarray(pixels_of(label, number)).save(folder / name)
        lines.append(f"{name},{f'photo of one {label}' if number % 2 else f'one {label}'}")
    Image.new("RGB", (8, 8)).save(folder / "untitled.jpg")
    (folder / "metadata.csv").write_text("\n".join(lines))


def write_predictions(folder: Path) -> None:
    """What runs of another program left: old/seed-N/imagenet.parquet and new/…"""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 5, 200).astype(np.int32)
    for arm, share in (("old", 0.5), ("new", 0.9)):
        for seed in range(3):
            right = rng.random(200) < share
            predicted = np.where(right, label, (label + 1) % 5).astype(np.int32)
            columns = {"sample": [str(row) for row in range(200)], "label": label}
            columns |= {"predicted": predicted, "correct": right}
            path = folder / f"{arm}/seed-{seed}/imagenet.parquet"
            path.parent.mkdir(parents=True)
            pq.write_table(pa.table(columns), path)


@pytest.mark.slow
def test_the_commands_of_the_stages_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "images")
    make_folder(tmp_path / "photographs", per_class=2, first=500)
    write_predictions(tmp_path)
    output = {}
    for stage in STAGES:
        page = f"docs/stages/{stage}.md"
        pages.write_files(page, tmp_path)
        lines = pages.runnable(page)
        assert lines, page
        for line in lines:
            assert pages.run_command(line, SMALL_RUN) == 0, (line, capsys.readouterr().err[-2000:])
        output[stage] = capsys.readouterr().out
    assert len(list(Path("out/fashion/pairs").glob("part-*.parquet"))) == 1
    assert "shoe.jpg" in output["fetch"]
    assert "stored" in output["fetch"]
    assert "caption_words" in output["score"]
    assert disk.read_json("out/fashion/views/long.json")["kept"] == 18
    assert "fashion/long" in output["blend"]
    assert disk.read_json("out/run/run.json")["steps"] == 2
    assert pq.read_table("out/run/eval/objects.parquet").num_rows == 6
    results = disk.read_json("out/two_blends/report.json")["results"]
    (row,) = results["tasks"][next(iter(results["tasks"]))]["comparisons"]
    assert (row["arm"], row["verdict"]) == ("new", "better")
    assert "MiB" in output["report"] or "GiB" in output["report"]  # the plan of the ablation


# --- docs/interop.md and docs/look.md -------------------------------------------------------------

RECIPE = """
name: r
source: {kind: shards, paths: [shards]}
views: {basic: [{first: "original_width < 300"}]}
"""


def test_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_pool(tmp_path / "out/pool", rows(30))
    Path("r.yaml").write_text(RECIPE)
    assert commands.filter_pool(["out/pool", "--recipe", "r.yaml"]) == 0
    lines = pages.runnable("docs/interop.md")
    assert len(lines) == 5
    lines += pages.runnable("docs/look.md")
    assert len(lines) == 7
    for line in lines:
        assert pages.run_command(line) == 0, line
    assert Path("basic.html").stat().st_size > 10_000
    document = disk.read_json("out/pool/views/basic.json")
    table = pq.read_table("out/basic/basic.parquet")
    assert table.num_rows == document["kept"] == len(np.load("out/uids/basic.npy")) == 16
    assert Path("out/urls/basic.csv").read_text().count("https://") >= 16
    export = json.loads(Path("out/basic_shards/export.json").read_text())
    assert (export["complete"], export["rows"]) == (True, document["kept"])
    assert export["rows_sha256"] in capsys.readouterr().out
    assert export["rows_sha256"] in Path("out/basic_shards/README.md").read_text()
