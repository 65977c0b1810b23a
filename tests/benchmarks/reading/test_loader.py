"""The benchmark of the loader: its images, its programs, and the ratios beside the bars."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.reading import loader
from train.data.read_ahead import StepReads


def result(rate: float) -> loader.Result:
    rates = {"samples_per_cpu_s": rate, "samples_per_s": rate / 2}
    return {"samples": 100, "cpu_s": 100 / rate, "wall_s": 1.0, **rates}


def test_the_best_turn_of_each_program_counts() -> None:
    rows = {
        "bare": [result(1500.0), result(2000.0)],
        "ours": [result(1000.0), result(900.0)],
        "open_clip": [result(200.0), result(250.0)],
        "remote": [result(940.0), result(800.0)],
        "cached": [result(900.0)],
    }
    compared = loader.compare(rows, {1: [3.0, 2.0], 2: [1.25, 1.0]})
    measured = {name: bar["measured"] for name, bar in compared["bars"].items()}
    assert measured == {
        "ours": 1000.0,
        "ours / open_clip": 4.0,
        "ours / bare": 0.5,
        "two threads / one": 2.0,
        "remote / ours": 0.94,
    }
    assert compared["bars"]["ours"]["reached"] == pytest.approx(1000 / 1100)


def test_without_images_or_a_pool_there_is_nothing_to_measure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments in ([], ["--program", "ours"], ["--images", str(tmp_path)]):
        with pytest.raises(SystemExit) as stopped:
            loader.main(arguments)
        assert stopped.value.code == 2
    assert "0 JPEGs; at least 256 are needed" in capsys.readouterr().err


@pytest.mark.slow
def test_every_program_reads_the_same_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(StepReads, "image", StepReads.image)  # the benchmark puts a timer around it
    pytest.importorskip("open_clip")
    pytest.importorskip("simplejpeg")
    source, folder = tmp_path / "source", tmp_path / "images"
    source.mkdir()
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(300):
        coarse = generator.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((400, 300)).save(source / f"{number}.jpg")
    assert loader.write_images(source, folder, 10_000) == 300
    with Image.open(folder / "000000.jpg") as image:
        assert image.size == (341, 256)
    pool = loader.build_pool(folder, tmp_path)
    for name in loader.PROGRAMS:
        # webdataset leaves tars open, so open_clip's pipeline runs in a process of its own.
        run = loader.run_child if name == "open_clip" else loader.run_program
        one = run(name, str(pool), 1, 256)
        assert one["samples"] >= 256
        assert one["samples_per_cpu_s"] > 0
    parts = loader.time_of_parts(str(pool), 64)
    assert set(parts) == {"positions", "read", "decode", "crop", "tokens"}
    with loader.late_store(tmp_path) as variables:
        remote = loader.run_child("remote", f"s3://{pool.parent.name}/pool", 1, 256, variables)
    assert remote["samples"] >= 256
