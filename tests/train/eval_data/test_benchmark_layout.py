from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.task_data import images_of, task_of
from train.eval_data import samples as benchmark_layout
from train.eval_data.samples import Samples, read_captioned, read_labelled, write_benchmark


def test_what_is_written_is_read_again(
    coloured: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark_layout, "TAR_SAMPLES", 7)
    assert write_benchmark(coloured, str(tmp_path / "b")) == 18
    assert (tmp_path / "b" / "test" / "nshards.txt").read_text() == "3\n"
    templates = (tmp_path / "b" / "zeroshot_classification_templates.txt").read_text()
    assert templates.splitlines()[0] == "a photo of a {c}"
    samples = read_labelled(task_of(tmp_path / "b"))
    assert samples.classes == coloured.classes
    assert samples.labels == coloured.labels
    assert samples.templates == coloured.templates
    assert images_of(samples) == images_of(coloured)
    assert samples.files[:2] == ("s0000000.jpg", "s0000001.png")


def test_retrieval_is_written_and_read_again(described: Samples, tmp_path: Path) -> None:
    write_benchmark(described, str(tmp_path / "b"))
    samples = read_captioned(task_of(tmp_path / "b", "retrieval"))
    assert (samples.captions, samples.matches) == (described.captions, described.matches)
    assert not (tmp_path / "b" / "classnames.txt").exists()
    with pytest.raises(ValueError, match=r"is for classification, but .* says 'retrieval'"):
        read_labelled(task_of(tmp_path / "b"))


# webdataset leaves its last tar open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_webdataset_reads_what_is_written(coloured: Samples, tmp_path: Path) -> None:
    import webdataset

    write_benchmark(coloured, str(tmp_path / "b"))
    dataset = webdataset.WebDataset(str(tmp_path / "b" / "test" / "0.tar"), shardshuffle=False)
    rows = list(dataset.to_tuple("png;jpg", "cls", "__key__"))
    assert [image for image, _, _ in rows] == images_of(coloured)
    assert [int(label) for _, label, _ in rows] == list(coloured.labels)


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("test/nshards.txt", None, r"nshards\.txt is missing; it holds the number of tars \(1 are"),
        ("test/nshards.txt", "2", r"says 2 tars, but .* has 1 \(1\.tar is missing\)"),
        ("test/nshards.txt", "many", "it must hold the number of tars"),
        ("test/1.tar", "", r"says 1 tars, but .* has 2 \(1\.tar is not counted\)"),
        ("dataset_type.txt", "multilabel", "is for classification, but .* says 'multilabel'"),
        ("classnames.txt", None, "are numbers, and it names no classes"),
        ("classnames.txt", "a\nb\n", "is 2, but there are 2 classes"),
    ],
)
def test_a_damaged_folder_is_refused(
    coloured: Samples, tmp_path: Path, path: str, content: str | None, message: str
) -> None:
    write_benchmark(coloured, str(tmp_path))
    if content is None:
        (tmp_path / path).unlink()
    else:
        (tmp_path / path).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_labelled(task_of(tmp_path))
