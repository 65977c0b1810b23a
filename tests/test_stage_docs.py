"""The commands of the pages about the stages, from crawl to report, run one after another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from manifests import disk
from tests.support import pages
from tests.support.photo_folders import COLOURS, make_folder, pixels_of

pytestmark = pytest.mark.slow
STAGES = ("crawl", "fetch", "score", "choose", "blend", "train", "evaluate", "report")
# Two steps of a small model in place of 500 of the demo's.
CHANGES = {"samples_seen=64k": "samples_seen=32 batch_size=16 lanes=8 warmup=1 model=test"}


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
            assert pages.run_command(line, CHANGES) == 0, (line, capsys.readouterr().err[-2000:])
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
