from __future__ import annotations

import csv
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from manifests import disk
from manifests.schema import TaskSpec
from train.evaluation import zero_shot
from train.formats import open_clip_files
from train.model.architecture import MODELS
from train.model.clip import CLIP

ROOT = Path(__file__).resolve().parents[3]
COLOURS = {"dark_red": (150, 20, 30), "green": (20, 160, 40), "sky_blue": (80, 140, 220)}


@pytest.fixture(scope="module")
def model() -> CLIP:
    return CLIP(MODELS["test"], seed=3)


def draw(
    path: Path, colour: tuple[int, int, int], seed: int, size: tuple[int, int] = (40, 34)
) -> None:
    noise = np.random.default_rng(seed).integers(-60, 60, size=(*size, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)).save(path)


@pytest.fixture
def colours(tmp_path: Path) -> TaskSpec:
    """Eighteen noisy pictures of three classes, PNG and JPEG."""
    for c, (name, colour) in enumerate(COLOURS.items()):
        for i in range(6):
            draw(
                tmp_path / "colours" / name / f"{i}.{'png' if i % 2 else 'jpg'}",
                colour,
                seed=10 * c + i,
            )
    return TaskSpec(
        name="colours",
        kind="classification",
        data=str(tmp_path / "colours"),
        templates=("a photo of a {}", "{} in a picture", "one {} thing"),
    )


@pytest.fixture
def captioned(tmp_path: Path) -> TaskSpec:
    """Five pictures, of which the first has two captions and the last two share one."""
    folder = tmp_path / "captioned"
    rows = [
        ("a.png", "red"),
        ("a.png", "a red picture"),
        ("b.png", "green"),
        ("c.png", "blue"),
        ("d/d.png", "grey"),
    ]
    rows += [("e.png", "grey")]
    for i, file in enumerate(dict.fromkeys(f for f, _ in rows)):
        draw(folder / file, list(COLOURS.values())[i % 3], seed=i)
    with open(folder / "captions.csv", "w", newline="") as f:
        csv.writer(f).writerows([("file", "caption"), *rows])
    return TaskSpec(name="captioned", kind="retrieval", data=str(folder))


# --- classification ------------------------------------------------------------------------------------------------


def test_folders_are_classes_in_order_and_underscores_are_spaces(colours: TaskSpec) -> None:
    found = zero_shot.samples(colours)
    assert found.classes == ("dark red", "green", "sky blue")
    assert found.files[0] == "dark_red/0.jpg"
    assert found.labels == (0,) * 6 + (1,) * 6 + (2,) * 6


def test_it_agrees_with_open_clip_on_every_picture(
    colours: TaskSpec, model: CLIP, tmp_path: Path
) -> None:
    import open_clip

    metrics = zero_shot.evaluate(model, [colours], str(tmp_path / "eval"))["colours"]
    table = disk.read_parquet(tmp_path / "eval" / "colours.parquet")

    open_clip_files.save_export(model, str(tmp_path / "export"))
    theirs, _, transform = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'export'}")
    theirs.eval()
    tokenizer = open_clip.SimpleTokenizer(context_length=MODELS["test"].context_length)
    classes = zero_shot.samples(colours).classes
    files = table["sample"].to_pylist()
    with torch.no_grad():
        matrix_EC = open_clip.build_zero_shot_classifier(
            theirs, tokenizer, classes, colours.templates
        )
        images = torch.stack(
            [transform(Image.open(f"{colours.data}/{f}").convert("RGB")) for f in files]
        )
        logits_NC = (
            theirs.logit_scale.exp() * theirs.encode_image(images, normalize=True) @ matrix_EC
        )
    top = logits_NC.topk(2, dim=1)
    assert table["predicted"].to_pylist() == top.indices[:, 0].tolist()
    assert len(set(table["predicted"].to_pylist())) > 1, "the test would pass with a constant model"
    np.testing.assert_allclose(
        table["score"].to_numpy(), (top.values[:, 0] - top.values[:, 1]).numpy(), atol=2e-4
    )
    labels = torch.tensor(table["label"].to_pylist())
    assert metrics["accuracy"] == pytest.approx(
        (top.indices[:, 0] == labels).double().mean().item(), abs=1e-12
    )


def test_columns_and_footer_are_as_promised(colours: TaskSpec, model: CLIP, tmp_path: Path) -> None:
    metrics = zero_shot.evaluate(model, [colours], str(tmp_path))["colours"]
    table = disk.read_parquet(tmp_path / "colours.parquet")
    assert table.schema.remove_metadata() == pa.schema(
        [
            ("sample", pa.string()),
            ("label", pa.int32()),
            ("predicted", pa.int32()),
            ("correct", pa.bool_()),
            ("correct5", pa.bool_()),
            ("score", pa.float32()),
        ]
    )
    notes = disk.read_metadata(tmp_path / "colours.parquet")
    assert notes["task"] == disk.to_plain(colours)
    assert notes["metrics"] == metrics
    assert notes["classes"] == ["dark red", "green", "sky blue"]
    assert np.mean(table["correct"].to_numpy()) == metrics["accuracy"]
    assert metrics["accuracy5"] == 1.0  # of three classes


def test_classify_by_hand() -> None:
    images = torch.nn.functional.normalize(
        torch.tensor([[1.0, 0.1], [0.9, 0.2], [0.2, 1.0], [1.0, 0.0]]), dim=1
    )
    columns, metrics = zero_shot.classify(images, torch.eye(2), [0, 0, 1, 1], scale=10.0)
    assert columns["predicted"].tolist() == [0, 0, 1, 0]
    assert metrics["accuracy"] == 0.75
    assert metrics["mean_class_accuracy"] == (1.0 + 0.5) / 2
    assert columns["score"][3] == pytest.approx(10.0)


def test_display_names_replace_the_folders(colours: TaskSpec) -> None:
    named = disk.from_plain(
        TaskSpec, {**disk.to_plain(colours), "classes": ["red", "green", "blue"]}
    )
    assert zero_shot.samples(named).classes == ("red", "green", "blue")
    short = disk.from_plain(TaskSpec, {**disk.to_plain(colours), "classes": ["red", "green"]})
    with pytest.raises(ValueError, match=r"names 2 classes, but .* has 3 folders: dark_red"):
        zero_shot.samples(short)


def test_long_prompts_keep_their_end(model: CLIP) -> None:
    words = "a " * 40
    first, second = zero_shot.text_vectors(model, [words, words + "b"], torch.device("cpu"))
    torch.testing.assert_close(first, second)  # cut at the context, ended by the same token
    with pytest.raises(ValueError, match="no tokenizer 'bert'"):
        zero_shot.text_vectors(model, ["a"], torch.device("cpu"), "bert")


# --- retrieval -----------------------------------------------------------------------------------------------------


def test_ranks_by_hand() -> None:
    queries = torch.eye(3)
    candidates = torch.tensor([[0.9, 0.1, 0.5], [0.5, 0.8, 0.5], [0.1, 0.9, 0.5], [0.95, 0.0, 0.5]])
    # Query 0: candidates 0 and 3 are right, 3 comes first. Query 1: candidate 1, after 2. Query 2: all are equal.
    matches = [(0, 0), (0, 3), (1, 1), (2, 2)]
    assert zero_shot.ranks(queries, candidates, matches).tolist() == [0, 1, 3]
    assert zero_shot.ranks(queries, torch.full((4, 3), torch.nan), matches).tolist() == [2, 3, 3]


def test_ranks_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, candidates = (
        torch.randn(23, 8, generator=generator),
        torch.randn(40, 8, generator=generator),
    )
    matches = [(n, m) for n in range(23) for m in (n, n + 17)]
    whole = zero_shot.ranks(queries, candidates, matches)
    similarity = (queries @ candidates.T).numpy()
    slow = [
        sum(
            similarity[n, m] >= max(similarity[n, n], similarity[n, n + 17])
            for m in range(40)
            if m not in (n, n + 17)
        )
        for n in range(23)
    ]
    assert whole.tolist() == slow
    monkeypatch.setattr(zero_shot, "BATCH", 5)
    assert zero_shot.ranks(queries, candidates, matches).tolist() == slow


def test_retrieval_counts_both_directions(captioned: TaskSpec, model: CLIP, tmp_path: Path) -> None:
    metrics = zero_shot.evaluate(model, [captioned], str(tmp_path))["captioned"]
    table = disk.read_parquet(tmp_path / "captioned.parquet")
    assert table.schema.names == ["direction", "sample", "rank"]
    assert table.schema.field("rank").type == pa.int32()
    rows = table.to_pylist()
    assert [r["sample"] for r in rows if r["direction"] == "image_to_text"] == [
        "a.png", "b.png", "c.png", "d/d.png", "e.png",
    ]  # fmt: skip
    texts = [r["sample"] for r in rows if r["direction"] == "text_to_image"]
    assert texts == ["red", "a red picture", "green", "blue", "grey"]
    for direction in ("image_to_text", "text_to_image"):
        ranks = [r["rank"] for r in rows if r["direction"] == direction]
        assert metrics[f"{direction}_recall@1"] == pytest.approx(np.mean([r == 0 for r in ranks]))
    assert (
        metrics["recall@1"]
        == (metrics["image_to_text_recall@1"] + metrics["text_to_image_recall@1"]) / 2
    )
    assert metrics["recall@5"] == 1.0  # five candidates each way, or fewer wrong ones


def test_pictures_with_one_caption_in_common_are_both_right(captioned: TaskSpec) -> None:
    held = zero_shot.samples(captioned)
    vectors = torch.nn.functional.normalize(
        torch.randn(5, 6, generator=torch.Generator().manual_seed(1)), dim=1
    )
    columns, _ = zero_shot.retrieve(vectors, vectors[[0, 0, 1, 2, 4]], held)
    assert columns["rank"][-1] == 0  # grey is nearest to e
    assert (3, 4) in held.matches
    assert (4, 4) in held.matches


# --- a folder that is not right ------------------------------------------------------------------------------------


def spec(data: Path, kind: str = "classification", **more: object) -> TaskSpec:
    made: TaskSpec = disk.from_plain(
        TaskSpec, {"name": "t", "kind": kind, "data": str(data), **more}
    )
    return made


def test_what_a_folder_lacks_is_named(tmp_path: Path, captioned: TaskSpec) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*/nowhere"):
        zero_shot.samples(spec(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty has 0 folders of pictures .* at least two"):
        zero_shot.samples(spec(tmp_path / "empty"))
    with pytest.raises(ValueError, match=r"there is no .*captions\.csv"):
        zero_shot.samples(spec(tmp_path / "empty", "retrieval"))
    with pytest.raises(ValueError, match=r"template 'a photo' must hold \{\} once"):
        zero_shot.samples(
            spec(make_two(tmp_path), templates=["a photo"]),
        )
    with pytest.raises(ValueError, match="task 'a/b'"):
        zero_shot.samples(disk.from_plain(TaskSpec, {**disk.to_plain(captioned), "name": "a/b"}))


def make_two(folder: Path) -> Path:
    for name in ("x", "y"):
        draw(folder / "two" / name / "0.png", (1, 2, 3), seed=0)
    return folder / "two"


def test_what_a_captions_file_lacks_is_named(captioned: TaskSpec) -> None:
    path = Path(captioned.data) / "captions.csv"
    text = path.read_text()
    path.write_text(text.replace("file,caption", "file,captoin"))
    with pytest.raises(
        ValueError, match=r"no column 'caption'; did you mean 'captoin'\? \(of file, captoin\)"
    ):
        zero_shot.samples(captioned)
    path.write_text(text + "missing.png,nothing\n")
    with pytest.raises(ValueError, match=r"there is no picture .*missing\.png"):
        zero_shot.samples(captioned)
    path.write_text(text + "a.png,\n")
    with pytest.raises(
        ValueError, match=r"captions\.csv line 8: file and caption must both be there"
    ):
        zero_shot.samples(captioned)


def test_a_picture_that_is_none_is_named(colours: TaskSpec, model: CLIP, tmp_path: Path) -> None:
    (Path(colours.data) / "green" / "0.jpg").write_bytes(b"\xff\xd8\xff no picture")
    with pytest.raises(ValueError, match=r"green/0\.jpg is no picture that can be decoded"):
        zero_shot.evaluate(model, [colours], str(tmp_path))


# --- held between runs ---------------------------------------------------------------------------------------------


def test_pictures_are_decoded_once(colours: TaskSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    files = zero_shot.samples(colours).files
    first = np.concatenate(list(zero_shot.pictures(colours.data, files, (32, 32))))
    assert first.shape == (18, 32, 32, 3)
    monkeypatch.setattr(zero_shot, "decode_image", lambda data: pytest.fail("decoded again"))
    again = np.concatenate(list(zero_shot.pictures(colours.data, files, (32, 32))))
    np.testing.assert_array_equal(first, again)


def test_what_does_not_fit_is_decoded_again(
    colours: TaskSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zero_shot, "CACHE_BYTES", 100)
    monkeypatch.setattr(zero_shot, "BATCH", 7)
    files = zero_shot.samples(colours).files
    for _ in range(2):
        assert [len(b) for b in zero_shot.pictures(colours.data, files, (16, 16))] == [7, 7, 4]
    assert (colours.data, files, 16) not in zero_shot._decoded


def test_measured_knows_its_task_and_its_pictures(
    colours: TaskSpec, model: CLIP, tmp_path: Path
) -> None:
    out = str(tmp_path / "eval")
    assert zero_shot.measured(out, colours) is None
    metrics = zero_shot.evaluate(model, [colours], out)["colours"]
    assert zero_shot.measured(out, colours) == metrics
    other = disk.from_plain(TaskSpec, {**disk.to_plain(colours), "templates": ["a {}"]})
    assert zero_shot.measured(out, other) is None
    draw(Path(colours.data) / "green" / "new.png", (0, 0, 0), seed=99)
    assert zero_shot.measured(out, colours) is None


# --- overlap -------------------------------------------------------------------------------------------------------


def pool_with(folder: Path, pictures: list[bytes | None], *, committed: bool = True) -> str:
    """A pool of one shard; None is a row that was not stored."""
    rows = {
        "key": [f"00000{i:04d}" for i in range(len(pictures))],
        "uid": [f"{i:032x}" for i in range(len(pictures))],
        "sha256": [hashlib.sha256(p or b"gone").hexdigest() for p in pictures],
        "reason": pa.array([None if p else "dns" for p in pictures], pa.string()),
    }
    disk.write_parquet(folder / "shards" / "00000.parquet", pa.table(rows))
    if committed:
        disk.write_json(folder / "shards" / "00000_stats.json", {"shard": "00000"})
    return str(folder)


def test_a_picture_in_both_is_refused_by_name(colours: TaskSpec, tmp_path: Path) -> None:
    shared = (Path(colours.data) / "green" / "3.png").read_bytes()
    pool = pool_with(tmp_path / "pool", [b"other", shared, None])
    assert zero_shot.overlap([pool], [colours]) == [
        zero_shot.Shared(
            task="colours", file="green/3.png", pool=pool, key="000000001", uid=f"{1:032x}"
        )
    ]
    with pytest.raises(
        ValueError, match=r"green/3\.png is also in the pool .* \(key 000000001, uid 0+1\)"
    ):
        zero_shot.refuse_overlap([pool], [colours])
    allowed = disk.from_plain(TaskSpec, {**disk.to_plain(colours), "allow_overlap": True})
    assert zero_shot.refuse_overlap([pool], [allowed]) == {"colours": 1}


def test_only_stored_rows_of_committed_shards_count(colours: TaskSpec, tmp_path: Path) -> None:
    shared = (Path(colours.data) / "green" / "3.png").read_bytes()
    assert zero_shot.refuse_overlap([pool_with(tmp_path / "a", [b"other", None])], [colours]) == {
        "colours": 0
    }
    assert (
        zero_shot.overlap([pool_with(tmp_path / "b", [shared], committed=False)], [colours]) == []
    )


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_evaluates_a_run(colours: TaskSpec, model: CLIP, tmp_path: Path) -> None:
    open_clip_files.save_export(model, str(tmp_path / "run" / "export"))
    (tmp_path / "task.yaml").write_text(
        f"{{name: colours, kind: classification, data: {colours.data}}}"
    )
    words = [
        str(ROOT / "train/evaluate.py"),
        str(tmp_path / "run"),
        "--task",
        str(tmp_path / "task.yaml"),
        "--json",
    ]
    ended = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert (
        disk.read_metadata(tmp_path / "run" / "eval" / "colours.parquet")["metrics"]
        == told["colours"]
    )


def test_the_command_tells_mistakes_in_one_line(
    colours: TaskSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "task.yaml").write_text(
        f"{{name: colours, kind: classification, data: {colours.data}}}"
    )
    assert zero_shot.main([str(tmp_path), "--task", str(tmp_path / "task.yaml")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} holds no open_clip model")
    assert zero_shot.main([str(tmp_path), "--task", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml does not exist" in capsys.readouterr().err
