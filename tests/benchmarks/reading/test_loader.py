"""The benchmark of the loader: its images, its programs, and the ratios beside the bars."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.reading import loader
from train.data.read_ahead import StepReads


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
