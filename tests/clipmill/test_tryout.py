"""`clipmill try`: what it finds in a folder, holds back, writes and refuses."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clipmill.commands import tryout as command
from clipmill.manifests import console, disk, reader
from clipmill.manifests.schema import Ablation, Recipe
from clipmill.pipeline import tryout
from clipmill.pipeline.tryout import Pair, Pictures
from clipmill.study import runner
from clipmill.study.arms import ModelRun
from clipmill.train.sizing.device_fit import Speed
from clipmill.verdict.stats.comparison import StudyNoise
from tests.support import commands
from tests.support.other_tars import pack

PICTURES = 420
KINDS = ("circle", "stripe", "field of noise")
Plan = Callable[..., str]


def pixels(number: int) -> np.ndarray:
    """One of three patterns in other places and colours each time: no two are near copies."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[:32, :32]
    centre, radius = rng.uniform(6, 26, 2), rng.uniform(3, 10)
    shape = {
        0: np.hypot(y - centre[0], x - centre[1]) < radius,
        1: np.sin(x * rng.uniform(0.3, 1) + y * rng.uniform(-1, 1)) > rng.uniform(-0.3, 0.3),
        2: rng.random((4, 4)).repeat(8, 0).repeat(8, 1) > 0.5,
    }[number % 3]
    colours = rng.integers(0, 256, (2, 3))
    return np.where(shape[..., None], colours[0], colours[1]).astype(np.uint8)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PICTURES files NUMBER.JPG in one folder."""
    folder = tmp_path_factory.mktemp("drawn")
    for number in range(PICTURES):
        Image.fromarray(pixels(number)).save(folder / f"{number:03d}.JPG", "JPEG")
    return folder


@pytest.fixture
def plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Plan:
    """Runs `clipmill try WORDS` without carrying the plan out; what it prints, or its one error."""
    monkeypatch.setattr(command, "probed_speed", lambda *_: Speed(samples_per_s=617, source="x"))
    monkeypatch.setattr(command, "busy_lines", lambda device: [])
    monkeypatch.setattr(command, "_is_here", lambda name: False)
    monkeypatch.setattr(command, "carry_out", lambda out, minutes, of_runs, as_json: 0)
    monkeypatch.chdir(tmp_path)

    def call(*words: object, status: int = 0) -> str:
        capsys.readouterr()
        assert commands.try_folder([str(word) for word in words]) == status
        done = capsys.readouterr()
        return done.err if status else done.out

    return call


def captioned(drawn: Path, folder: Path) -> Path:
    """The pictures with a text file beside each, in folders that are not ASCII."""
    for path in sorted(drawn.iterdir()):
        target = folder / f"Bilder für {int(path.stem) % 4}" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        number = int(path.stem)
        text = f"{KINDS[number % 3]} number {number}, größer"
        target.with_suffix(".txt").write_text(text, "utf-8-sig" if number % 2 else "utf-8")
    return folder


def listed(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_text_files_beside_pictures_become_a_retrieval(
    drawn: Path, tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = captioned(drawn, tmp_path / "my pictures")
    (folder / "Bilder für 1" / "001.txt").write_bytes("größer".encode("latin-1"))
    (folder / "Bilder für 2" / "002.txt").unlink()
    shown = plan(folder, "--plan")
    assert "418 pictures with captions, from text files beside them" in shown
    assert "1 damaged" in shown
    assert "1 no_caption" in shown
    assert "100 pictures that are not trained on; the model finds the caption of each" in shown
    assert "12 runs of the model micro" in shown
    assert not (tmp_path / "out").exists()
    out = tmp_path / "a try"
    assert plan(folder, "--out", out) == shown
    ablation = reader.read_manifest(out / "ablation.yaml", Ablation)
    monkeypatch.setenv("SCORER", "/scorer")
    recipes = {}
    for name in ("pictures", "trusted", "heldout"):
        recipes[name] = reader.read_manifest(out / f"{name}.yaml", Recipe)
        assert recipes[name].source.paths == (str(out / f"{name}.jsonl"),)
    assert ablation.seeds == (0, 1, 2)
    assert ablation.evaluate[0].data == str(out / "pools" / "heldout")
    assert ablation.evaluate[0].near_overlap == "refuse"
    assert "my pictures" in ablation.question
    lists = {name: listed(out / f"{name}.jsonl") for name in recipes}
    counts = {name: len(lines) for name, lines in lists.items()}
    assert 410 < sum(counts.values()) <= 418  # of near copies in the test one is left
    assert (counts["heldout"], counts["trusted"]) == (100, 83)
    assert lists["heldout"][0]["caption"].endswith(", größer")
    assert plan(folder, "--out", out) == shown  # the plan is there: nothing is planned again
    assert "planned with seeds 3, and it is 4 now" in plan(
        folder, "--out", out, "--seeds", 4, status=2
    )


def test_class_folders_and_repeated_captions_become_a_classification(
    drawn: Path, tmp_path: Path, plan: Plan
) -> None:
    folder = tmp_path / "classes"
    for path in drawn.iterdir():
        target = folder / KINDS[int(path.stem) % 3].replace(" ", "_") / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path) if int(path.stem) == 0 else shutil.copy(path, target)
    shown = plan(folder, "--out", tmp_path / "out")
    assert "419 pictures with captions, from the names of 3 folders (" in shown
    assert "left out: 1 outside_folder" in shown
    assert "caption of each among 3 captions (by chance 33.3% right)" in shown
    task = reader.read_manifest(tmp_path / "out" / "ablation.yaml", Ablation).evaluate[0]
    assert (task.kind, task.columns, task.templates) == (
        "classification",
        {"label": "txt"},
        ("{}",),
    )
    captions = {line["caption"] for line in listed(tmp_path / "out" / "heldout.jsonl")}
    assert captions == {f"a photo of a {kind}" for kind in KINDS}


def test_a_table_is_known_by_its_columns(drawn: Path, tmp_path: Path, plan: Plan) -> None:
    folder = tmp_path / "table"
    shutil.copytree(drawn, folder)
    lines = [f'{number:03d}.JPG,"a {KINDS[number % 3]}, no {number}"' for number in range(PICTURES)]
    (folder / "all.csv").write_text("\n".join(["file_name,text", *lines, "gone.jpg,lost"]))
    (folder / "notes.csv").write_text("day,weather\n1,rain\n")
    shown = plan(folder, "--plan")
    assert "420 pictures with captions, from all.csv (columns file_name and text)" in shown
    assert "left out: 1 missing_file" in shown
    shutil.copy(folder / "all.csv", folder / "more.csv")
    assert "name one, as in --captions all.csv" in plan(folder, "--plan", status=2)
    assert "from more.csv" in plan(folder, "--plan", "--captions", "more.csv")
    assert "--captions is 'notes.csv'" in plan(
        folder, "--plan", "--captions", "notes.csv", status=2
    )


def test_tars_are_unpacked(drawn: Path, tmp_path: Path, plan: Plan) -> None:
    folder = tmp_path / "tars"
    for shard in range(2):
        members = []
        for number in range(shard * 210, shard * 210 + 210):
            members.append((f"{number:05d}.jpg", (drawn / f"{number:03d}.JPG").read_bytes()))
            members.append((f"{number:05d}.txt", f"{KINDS[number % 3]} no {number}".encode()))
        pack(folder / f"{shard:05d}.tar", members)
    shown = plan(folder, "--out", tmp_path / "out")
    assert "420 pictures with captions, from 2 tars" in shown
    number = 0
    for name in ("pictures", "trusted", "heldout"):
        for line in listed(tmp_path / "out" / f"{name}.jsonl"):
            number = int(line["caption"].rpartition(" ")[2])
            content = (tmp_path / "out" / line["file"]).read_bytes()
            assert content == (drawn / f"{number:03d}.JPG").read_bytes()


def test_a_sample_of_many_pictures_is_drawn(drawn: Path, tmp_path: Path, plan: Plan) -> None:
    folder = captioned(drawn, tmp_path / "many")
    shown = plan(folder, "--plan", "--pairs", 410)
    assert "420 pictures with captions, 410 of them are drawn" in shown


def test_a_test_and_right_captions_of_ones_own(drawn: Path, tmp_path: Path, plan: Plan) -> None:
    folder = captioned(drawn, tmp_path / "mine")
    test, trusted = tmp_path / "test", tmp_path / "trusted"
    for number in range(420, 560):
        part = (test if number < 480 else trusted) / KINDS[number % 3]
        part.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(number)).save(part / f"{number}.png")
    leaked = folder / "Bilder für 0" / "000.JPG"  # under another name: it is no longer trained on
    shutil.copy(leaked, test / KINDS[0] / "copy.jpg")
    out = tmp_path / "out"
    shown = plan(folder, "--out", out, "--test", test, "--trusted", trusted)
    assert "61 pictures that are not trained on" in shown
    assert "learns from the pictures of" in shown
    trained = {line["file"] for line in listed(out / "pictures.jsonl")}
    assert len(trained) <= 419
    assert str(leaked) not in trained
    (tmp_path / "task.yaml").write_text(f"{{name: own, kind: classification, data: {test}}}")
    plan(folder, "--out", tmp_path / "two", "--test", "task.yaml", "--trusted", trusted)
    task = reader.read_manifest(tmp_path / "two" / "ablation.yaml", Ablation).evaluate[0]
    assert (task.name, task.data) == ("own", str(test))


def test_a_scorer_that_exists(drawn: Path, tmp_path: Path, plan: Plan) -> None:
    folder = captioned(drawn, tmp_path / "mine")
    model = tmp_path / "run" / "export"
    model.mkdir(parents=True)
    for given, options in (
        ("ViT-B-32/openai", {"model": "ViT-B-32", "pretrained": "openai"}),
        ("run", {"model": f"local-dir:{model}"}),
    ):
        out = tmp_path / f"by {given.replace('/', '-')}"
        assert len(plan(folder, "--out", out, "--scorer", given).splitlines()) == 10
        assert reader.read_manifest(out / "ablation.yaml", Ablation).scorer is None
        recipe = reader.read_manifest(out / "pictures.yaml", Recipe)
        assert recipe.filters[-1].options == options
        assert len(listed(out / "pictures.jsonl")) <= 320
        assert not (out / "trusted.jsonl").exists()
    assert "not MODEL/TAG of open_clip" in plan(folder, "--plan", "--scorer", "b32", status=2)


def test_what_cannot_be_used_is_refused_with_the_number(
    drawn: Path, tmp_path: Path, plan: Plan
) -> None:
    assert "420 pictures and captions must come with them" in plan(drawn, "--plan", status=2)
    few = tmp_path / "few"
    for path in sorted(captioned(drawn, tmp_path / "all").rglob("01*")):
        few.mkdir(exist_ok=True)
        shutil.copy(path, few)
    message = plan(few, "--plan", status=2)
    assert "error: few has 10 different pictures with captions" in message
    assert "fewer than 200" in message
    assert "Give 400 different pictures" in message
    assert "text files beside them (.txt): 10 pairs, such as" in message
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "error: empty has no pictures" in plan(empty, "--plan", status=2)
    assert "it is empty" in plan(empty, "--plan", status=2)
    for folder, name in ((empty, "all"), (tmp_path / "all", "few")):
        (folder / "linked").symlink_to(tmp_path / name)
    assert "copy it into the folder, or give all" in plan(empty, "--plan", status=2)
    assert "linked is a symbolic link that leads out of it" in plan(tmp_path / "all", "--plan")
    (tmp_path / "urls.csv").write_text("url,caption\n")
    assert "A list of URLs becomes a pool by" in plan(tmp_path / "urls.csv", "--plan", status=2)
    assert "list of URLs" not in plan(tmp_path / "none", "--plan", status=2)
    assert "is no folder on this machine" in plan(tmp_path / "none", "--plan", status=2)
    inside = tmp_path / "all" / "out"
    assert "lies in FOLDER, which is read" in plan(tmp_path / "all", "--out", inside, status=2)
    assert "is not empty and no try's" in plan(tmp_path / "all", "--out", few, status=2)
    assert "at least 2 --seeds" in plan(tmp_path / "all", "--seeds", 1, status=2)


def test_pictures_of_a_task_are_found_in_the_plan(drawn: Path, tmp_path: Path, plan: Plan) -> None:
    folder = captioned(drawn, tmp_path / "mine")
    test = tmp_path / "test"
    for number in range(420, 480):
        (test / KINDS[number % 3]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(number)).save(test / KINDS[number % 3] / f"{number}.png")
    same, near = (folder / "Bilder für 0" / name for name in ("000.JPG", "004.JPG"))
    shutil.copy(same, test / KINDS[0] / "copy.jpg")
    Image.open(near).save(test / KINDS[1] / "near.jpg", "JPEG", quality=90)
    task = tmp_path / "task.yaml"
    task.write_text(f"{{name: own, kind: classification, data: {test}}}")
    out = tmp_path / "out"
    shown = plan(folder, "--out", out, "--test", task, "--scorer", "ViT-B-32/openai")
    counts = re.search(r"of 420 pictures (\d+) are trained on, (\d+) are near", shown)
    assert counts is not None
    used, left = map(int, counts.groups())
    assert used + left == 420
    assert 2 <= left <= 6  # patterns of the test may be as near
    assert "62 test pictures" in shown
    trained = {line["file"] for line in listed(out / "pictures.jsonl")}
    assert not trained & {str(same), str(near)}
    task.write_text(f"{{name: own, kind: classification, data: {test}, allow_overlap: true}}")
    words = (folder, "--test", task, "--scorer", "ViT-B-32/openai")
    assert "was planned with task" in plan(*words, "--out", out, status=2)
    assert "of 420 pictures 420 are trained on" in plan(*words, "--plan")


def test_the_counts_of_the_plan_add_up(drawn: Path, tmp_path: Path, plan: Plan) -> None:
    folder = captioned(drawn, tmp_path / "mine")
    shutil.copy(folder / "Bilder für 1" / "001.JPG", folder / "alone.jpg")
    (folder / "broken.jpg").write_bytes(b"no picture")
    (folder / "broken.txt").write_text("a broken one")
    for words in ((), ("--pairs", 405)):
        line = next(x for x in plan(folder, "--plan", *words).splitlines() if x.startswith("of 4"))
        total, *parts = [int(number) for number in re.findall(r"\d+", line)]
        assert total == sum(parts) == 422, line
        assert "1 no_caption" in line
        assert ("not drawn" in line) == bool(words)


def test_the_smallest_visible_difference_lies_in_the_range_that_is_printed() -> None:
    """Studies with runs 0.7 to 6.7 points apart: those of five tries that were carried out."""
    rng = np.random.default_rng(1)
    for seeds in (2, 3, 5):
        df, inside = 3 * (seeds - 1), 0
        of_one = StudyNoise(run_sd=1.0, seeds=seeds, arms=1, df=df).smallest_visible()
        for _ in range(1000):
            run_sd = np.exp(rng.uniform(np.log(0.007), np.log(0.067)))
            pictures, right = int(np.exp(rng.uniform(4, 8.5))), rng.uniform(0.02, 0.5)
            own = rng.uniform() * right * (1 - right) / pictures
            estimated = np.sqrt((run_sd**2 + own) * rng.chisquare(df) / df)
            low, high = command.visible_effects(pictures, seeds)
            inside += low <= of_one * estimated <= high
        assert inside >= 900, (seeds, inside)


def test_the_terminal_has_a_line_for_each_stage_and_twelve_for_all_runs(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: clock[0])
    caplog.set_level("INFO")
    tell = command.progress(60.0, of_runs=40.0, jobs=2)
    tell("$ clipmill build out/ablation.yaml --out out")
    tell("$ clipmill build out/recipes/pictures.json --out out/pools/pictures --until fetch")
    clock[0] = 30 * 60
    tell("$ clipmill build out/recipes/pictures.json --out out/pools/pictures")
    tell("$ clipmill build out/recipes/more.json --out out/pools/more")  # of a person
    tell("$ clipmill ablate out/ablation.json --out out")
    log_of_runs = console.LineFormatter().format
    for number in range(1, 121):
        clock[0] += 60
        run = ModelRun(arm="raw", seed=number, source="x", out="x")
        runner._log(runner.Outcome(run=run, metrics={}), (), number, 120)
        tell(log_of_runs(caplog.records[-1]))
    tell("12:00:02 runner: 120/120 runs are done after 0.5 minutes; raw seed 1: step 20 of 20")
    tell("$ clipmill report out")
    lines = [line[9:] for line in capsys.readouterr().out.splitlines()]
    assert lines[:4] == [
        "the pictures become a pool (about 60 min left in all)",
        "the pictures are scored (about 42 min left in all)",  # never below those of the runs
        "build more (about 42 min left in all)",
        "the runs begin (about 42 min left in all)",
    ]
    assert len(lines) == 17
    assert lines[4] == "10 of 120 runs are done (about 112 min left in all)"  # by their speed
    assert lines[-2:] == [
        "120 of 120 runs are done (about 2 min left in all)",
        "the report is written (about 2 min left in all)",
    ]
    clock[0] = 0.0
    tell = command.progress(60.0, of_runs=40.0, jobs=2)
    tell("$ clipmill look out/pools/pictures")  # again: all runs are done
    assert (
        capsys.readouterr().out[9:]
        == "the page of the pictures is written (about 2 min left in all)\n"
    )


def test_near_copies_are_on_one_side() -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(-(2**63), 2**63, 600)
    pairs = []
    for number in range(2000):  # every other one with up to 6 other bits than its picture
        bits = rng.choice(64, rng.integers(7), replace=False) if number % 2 else []
        near = int(pictures[rng.integers(600)]) ^ sum(1 << int(bit) for bit in bits)
        near = (near + 2**63) % 2**64 - 2**63
        pairs.append(
            Pair(file=f"{number}", caption=f"c{number}", sha256=f"{near % 2**64:x}", phash=near)
        )
    found = Pictures(folder="f", form="", pairs=pairs, drawn_from=2000, rejected=Counter())
    shares = tryout.divide(found, None, None)
    assert shares.classes == 0
    for part, other in (
        (shares.trained, shares.test),
        (shares.trained, shares.trusted),
        (shares.trusted, shares.test),
    ):
        words = [np.array([pair.phash for pair in side], np.int64) for side in (part, other)]
        apart = np.bitwise_count((words[0][:, None] ^ words[1]).view(np.uint64))
        assert apart.min() > tryout.RADIUS
    assert len({pair.caption for pair in shares.test}) == len(shares.test) > 100


@pytest.mark.slow
def test_the_whole_of_it_and_that_it_goes_on(
    drawn: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    folder, out = captioned(drawn, tmp_path / "mine"), tmp_path / "out"
    near = Image.open(folder / "Bilder für 0" / "000.JPG").resize((40, 40))
    for number in range(4):  # near copies: those of test pictures may not be trained on
        near.save(folder / f"near{number}.jpg", quality=80 + number)
        (folder / f"near{number}.txt").write_text(f"a near copy, the {number}th")
    words = [str(folder), "--out", str(out), "--seeds", "2", "--samples-seen", "640"]
    assert commands.try_folder([*words, "--json"]) == 0
    printed = capfd.readouterr().out
    assert json.loads(printed.splitlines()[-1])["report"] == str(out / "report.html")
    assert len(printed.splitlines()) <= 42
    # The headline says it; a line by another metric may follow.
    assert not re.search(r"^clip50 is (?!.* by )", printed, re.MULTILINE)
    assert len(re.findall(r"^(No difference|On heldout|Control: |A/A)", printed, re.MULTILINE)) == 4
    assert "rows are stored" in (out / "logs" / "try.log").read_text()
    report = disk.read_json(out / "report.json")
    assert {arm["arm"] for arm in report["arms"]} == {"raw", "clip50", "random_like_clip50", "a_a"}
    assert (out / "pictures.html").exists()
    runs = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/run.json")}
    assert len(runs) == 8
    manifest = out / "ablation.yaml"
    manifest.write_text(manifest.read_text().replace("seeds: [0, 1]", "seeds: [0, 1, 2]"))
    assert commands.try_folder(words) == 0  # a person's change stays
    assert f"begun before: {manifest} says what runs now" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in runs} == runs  # finished runs count again
    assert len(list(out.glob("runs/*/*/run.json"))) == 12
