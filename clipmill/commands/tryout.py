"""`clipmill try`: a folder of pictures with captions as an ablation, in one command."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from clipmill.commands.ablate import busy_lines
from clipmill.commands.app import Json, Whole, make_app, print_json
from clipmill.commands.build import STATUSES, ended_with
from clipmill.manifests import console, disk, hub, reader
from clipmill.manifests.late import torch
from clipmill.manifests.layout import AblationLayout, PoolLayout
from clipmill.manifests.schema import Ablation, TaskSpec
from clipmill.manifests.text import printable
from clipmill.pipeline import ablation_run, tryout
from clipmill.pipeline.tryout import MANIFEST, TEST_POOL, Named, Pair, Pictures, Shares
from clipmill.train.config import configure
from clipmill.train.eval_data.images import image_hashes
from clipmill.train.evaluation.overlap import perceptual_hashes
from clipmill.train.evaluation.tasks import read_samples
from clipmill.train.sizing.device_fit import probed_speed, usable_cores
from clipmill.verdict.conclusions import MORE_SEEDS
from clipmill.verdict.stats.comparison import StudyNoise

TRY = make_app(
    "try",
    """
  clipmill try photos --plan
  clipmill try photos --out out/photos
  clipmill try photos --captions ../labels.csv --caption-column title
  clipmill try photos --trusted checked
  clipmill try photos --scorer ViT-B-32/laion2b_s34b_b79k
  clipmill try photos --test cars.yaml --seeds 5 --minutes 30

FOLDER has a text file beside each picture, a table with a column of files and
one of captions, a folder for each class, or tars (img2dataset's or others).
Where it has two forms of captions, --captions names one. What is found and
planned is printed before anything is trained, and written to OUT as manifests
to go on from.
""",
    STATUSES,
)
PLAN = "try.json"
# The scorer where its weights are on this machine already, and their repository.
USUAL_SCORER = "ViT-B-32/laion2b_s34b_b79k"
REPOSITORY = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
ARMS = 4  # raw, clip50, a random half, A/A: runs for each seed
LEAST_SAMPLES, MOST_SAMPLES = 12_800, 64_000  # samples seen that are planned for a run
WARMUP = 20  # steps, as the preset micro has, or a fifth of a shorter run
BATCHES = (128, 64, 32)  # samples: the first that is less than FILLED of the smallest view
FILLED = 0.9  # a picture may be lost in between
MOST_JOBS = 8
# Standard deviation of a run, a share, about 1 point around those that five tries had: 0.7 to 6.7
# points. Of simulated studies with such runs, 9 of 10 report a figure inside the range that follows
# (tests/clipmill/test_tryout.py).
RUN_SDS = (0.006, 0.07)
WORST_VARIANCE = 0.25  # of right or wrong, where half of the test is right
# Seconds of a try, a picture, a run, and ViT-B-32's score of a picture, where a core has the speed
# NOMINAL, in samples/s of micro (benchmarks/results/cpu_micro.json, docs/start/images.md).
NOMINAL, BASE_S, PICTURE_S, RUN_S, SCORE_S = 617.0, 30.0, 0.005, 2.0, 0.13
MOST_NOTES = 4  # lines of what else a folder holds
SHOWN_RUNS = 12  # lines of runs that have ended
LOADING = 0.8  # of the speed of steps alone is left when pictures are decoded beside them


@TRY.default
def try_folder(
    folder: str,
    /,
    *,
    out: str | None = None,
    captions: str | None = None,
    file_column: str | None = None,
    caption_column: str | None = None,
    scorer: str | None = None,
    trusted: str | None = None,
    test: str | None = None,
    seeds: Annotated[int, Whole] = 3,
    minutes: float = 10.0,
    samples_seen: Annotated[int | None, Whole] = None,
    pairs: Annotated[int, Whole] = 10_000,
    plan: bool = False,
    as_json: Json = False,
) -> int:
    """Ask of a folder of pictures with captions whether the half with the higher CLIP score trains
    a better CLIP than all of them: pool, test, scorer, arms, seeds, report. Run again, it goes on.

    Args:
        folder: Pictures with captions.
        out: Where all is written (default: $CLIPMILL_OUT/NAME, else out/NAME).
        captions: txt, caption, class_folders, or a table by its path from FOLDER (default: the one
            form that is there).
        file_column: The column of the table that names the pictures (default: the one whose values
            are pictures of FOLDER).
        caption_column: The column of captions (default: the one of a usual name, as caption).
        scorer: The CLIP that scores: MODEL/TAG of open_clip, a run, hf-hub:NAME or local-dir:FOLDER
            (default: ViT-B-32 where it is on this machine, else one that is trained on a share).
        trusted: A folder of pictures with right captions, for the scorer to learn from.
        test: A folder of pictures with captions, or a task (default: a share of FOLDER).
        seeds: Runs of each arm.
        minutes: How long it may take; the samples seen are planned by it.
        samples_seen: Of each run, in place of what --minutes gives.
        pairs: Pictures that are used at most.
        plan: Print what would be done, and write nothing.
    """
    settings: dict[str, Any] = dict(locals())  # the options, but for those of this call
    del settings["out"], settings["plan"], settings["as_json"]
    for name in ("folder", "trusted", "test"):
        settings[name] = settings[name] and disk.absolute_path(settings[name])
    if scorer and trusted:
        raise ValueError("--trusted is what a scorer learns from, and --scorer names one: give one")
    if seeds < 2 or not (0 < minutes < 1e6 and pairs > 0 and (samples_seen or 1) > 0):
        raise ValueError("at least 2 --seeds are needed for an interval, and numbers above 0")
    is_task = test is not None and test.endswith((".yaml", ".yml"))
    given = disk.to_plain(reader.read_manifest(settings["test"], TaskSpec)) if is_task else {}
    settings["task"] = {key: value for key, value in given.items() if value}
    path = Path(settings["folder"])
    target = disk.output_folder(out or disk.join(os.environ.get("CLIPMILL_OUT", "out"), path.name))
    if Path(target).is_relative_to(path):
        beside = shlex.quote(str(path.parent / "out" / path.name))
        raise ValueError(f"--out {target} lies in FOLDER, which is read: give --out {beside}")
    begun = earlier_plan(target, settings)
    document = begun or make_plan(target, settings, write=not plan)
    if begun:
        manifest = disk.join(disk.shown_path(target), MANIFEST)
        tryout.logger.info("begun before: %s says what runs now; planned then:", manifest)
    console.show(*document["lines"])
    if plan:
        print_json({"plan": document["lines"], **document["found"]}, as_json)
        return 0
    return carry_out(target, document["minutes"], document["minutes_of_runs"], as_json)


def command_of(out: str) -> str:
    """The command that goes on with the manifests in `out`."""
    return ablation_run.shown(["build", disk.join(out, MANIFEST), "--out", out, "--engine=inline"])


# --- the plan -------------------------------------------------------------------------------------


def earlier_plan(out: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The plan that lies in `out`; {} where there is none, or not the whole.

    ValueError where it is another's: of other options, or no plan at all.
    """
    path = disk.join(out, PLAN)
    if not disk.exists(path):
        if disk.exists(out) and disk.list_names(out):
            raise ValueError(
                f"--out {disk.shown_path(out)} is not empty and no try's; name a new folder"
            )
        return {}
    begun: dict[str, Any] = disk.read_json(path)
    for name, value in settings.items():
        if (before := begun["settings"].get(name)) != value:
            raise ValueError(
                f"{(shown := disk.shown_path(out))} was planned with {name} {before}, and it is "
                f"{value} now: give another --out, or change {disk.join(shown, MANIFEST)} and run "
                f"`{command_of(shown)}`"
            )
    return begun if begun["lines"] else {}


def make_plan(out: str, settings: Mapping[str, Any], *, write: bool) -> dict[str, Any]:
    """Look at the folder, plan, and write the manifests; the plan: its settings, its lines, the
    minutes that it takes, and all that was found."""
    test, trusted, most = settings["test"], settings["trusted"], settings["pairs"]
    task = settings["task"]
    scorer, whose = _scorer_of(settings["scorer"], trusted)
    names = ("captions", "file_column", "caption_column")
    named = Named(**{name: settings[name] for name in names})
    pictures = tryout.read_pictures(settings["folder"], named, most)
    tested = tryout.read_pictures(test, Named(), most).pairs if test and not task else None
    learned = tryout.read_pictures(trusted, Named(), most).pairs if trusted else None
    of_task = _pictures_of_task(reader.read_manifest(test, TaskSpec)) if task else []
    shown = [] if task.get("allow_overlap") else of_task
    shares = tryout.divide(pictures, [] if task else tested, [] if scorer else learned, shown)
    training, forecast, minutes, of_runs = _training(settings, shares, scorer)
    samples, count = training["train"]["samples_seen"], len(training["seeds"])
    tested_pictures = len(of_task if task else shares.test)
    low, high = visible_effects(tested_pictures, count)
    lines = [
        *_folder_lines(pictures),
        _account(pictures, shares),
        f"test: {'the task ' + task['name'] if task else _tested(shares)}",
        f"scorer: {whose}",
        f"arms: raw ({len(shares.trained):,} pairs), clip50 (the half with the higher CLIP score); "
        "controls: random_like_clip50 (a random half), a_a (raw in another order); "
        f"{count} seeds, {ARMS * count} runs of the model micro with {samples:,} samples seen each",
        forecast,
        *busy_lines("cuda" if torch.cuda.is_available() else "cpu"),
        f"the smallest visible difference: {100 * low:.1f} to {100 * high:.0f} points with "
        f"{tested_pictures:,} test pictures, by how far runs of one arm lie apart; more seeds or "
        "test pictures make it smaller",
    ]
    left = {"left_out": dict(pictures.rejected), "examples": dict(pictures.examples)}
    found = {"pictures": pictures.files, "read_as": pictures.form, "found": pictures.lines, **left}
    plan: dict[str, Any] = {"settings": settings, "lines": lines, "found": found}
    plan |= {"minutes": minutes, "minutes_of_runs": of_runs}
    if write:
        path = disk.join(out, PLAN)
        disk.write_json(path, {"settings": settings, "lines": []})  # from here the folder is ours
        name = printable(Path(pictures.folder).name)
        question = f"Do the pictures of {name} with the higher CLIP score train a better CLIP?"
        head = (
            "What `clipmill try` planned before the first run. Change it, or a recipe beside it, "
            f"and go on by\n  {printable(command_of(out))}\n"
            "Finished runs count again: more seeds cost only the new ones."
        )
        training = {"question": question, **training}
        tryout.write_manifests(out, shares, training, scorer=scorer, task=task or None, head=head)
        disk.write_json(path, plan)
    return plan


def visible_effects(test_pictures: int, seeds: int) -> tuple[float, float]:
    """The range in which the smallest visible difference of a try lies, as shares: runs of one arm
    lie RUN_SDS apart, and of the errors of the test pictures none or all are their own."""
    largest = math.sqrt(RUN_SDS[1] ** 2 + WORST_VARIANCE / max(1, test_pictures))
    low, high = (
        StudyNoise(run_sd=sd, seeds=seeds, arms=1, df=(ARMS - 1) * (seeds - 1)).smallest_visible()
        for sd in (RUN_SDS[0], largest)
    )
    return low, min(1.0, high)


def _pictures_of_task(task: TaskSpec) -> list[Pair]:
    """The pictures of a task by their hashes."""
    images = read_samples(task).images
    hashes = zip(image_hashes(images), perceptual_hashes(images).view("int64"), strict=True)
    return [Pair(file="", caption="", sha256=sha, phash=int(near)) for sha, near in hashes]


def _scorer_of(named: str | None, trusted: str | None) -> tuple[dict[str, str] | None, str]:
    """The options of clip_score, or None where a scorer is trained; and which it is, in words."""
    if trusted:
        return None, f"a small CLIP that learns from the pictures of {disk.shown_path(trusted)}"
    if named is None and _is_here(REPOSITORY):
        named = USUAL_SCORER
    if named is None:
        return None, (
            "a small CLIP that learns from a fifth of the pictures, whose captions are as wrong as "
            "the others; it knows little. Better: --trusted FOLDER of right captions, or a CLIP of "
            f"open_clip, as --scorer {USUAL_SCORER}"
        )
    if named.startswith(("local-dir:", "hf-hub:")):
        return {"model": named}, named
    if (folder := Path(named).absolute()).is_dir():
        export = folder / "export"  # of a run
        return {"model": f"local-dir:{export if export.is_dir() else folder}"}, f"{named}"
    model, slash, tag = named.partition("/")
    if not (model and slash and tag):
        raise ValueError(
            f"--scorer {named!r} is no folder and not MODEL/TAG of open_clip, as {USUAL_SCORER}"
        )
    return {"model": model, "pretrained": tag}, f"{named} of open_clip"


def _is_here(repository: str) -> bool:
    return find_spec("open_clip") is not None and hub.is_stored(repository)


def _training(
    settings: Mapping[str, Any], shares: Shares, scorer: Mapping[str, str] | None
) -> tuple[dict[str, Any], str, float, float]:
    """Seeds and settings of the runs that fit into the minutes at the speed of this machine, how
    long all takes, in words and in minutes, and the minutes of it that are those of the runs.
    """
    cores = usable_cores()
    jobs = 1 if torch.cuda.is_available() else min(MOST_JOBS, cores)
    rows = min(len(shares.trained) // 2, len(shares.trusted) or len(shares.trained))
    batch = next((size for size in BATCHES if size <= FILLED * rows), BATCHES[-1])
    train: dict[str, Any] = {"preset": "micro", "batch_size": batch}
    speed = probed_speed(configure(train), max(1, cores // jobs))
    rate = LOADING * speed.samples_per_s * jobs
    runs = ARMS * settings["seeds"] + bool(shares.trusted)
    pictures = len(shares.trained) + len(shares.test) + len(shares.trusted)
    scoring = SCORE_S * len(shares.trained) / cores if scorer else 0.0
    # This machine may be slower than that of the constants.
    fixed = BASE_S + PICTURE_S * pictures + scoring + RUN_S * runs / jobs
    fixed *= max(1.0, NOMINAL / speed.samples_per_s)
    samples = int(max(0.0, 60 * settings["minutes"] - fixed) * rate / runs)
    samples = settings["samples_seen"] or min(MOST_SAMPLES, max(LEAST_SAMPLES, samples))
    steps = max(1, samples // batch)
    train |= {"samples_seen": steps * batch, "warmup": min(WARMUP, steps // 5)}
    of_runs = runs * steps * batch / rate / 60
    minutes = fixed / 60 + of_runs
    words = (
        f"time: about {max(1.0, minutes):.0f} minutes where nothing else runs on this machine "
        f"({speed.source}; {jobs} at a time)"
    )
    training = {"seeds": list(range(settings["seeds"])), "train": train, "jobs": jobs}
    return training, words, minutes, of_runs


def _folder_lines(pictures: Pictures) -> list[str]:
    """What a folder holds, in lines."""
    used, words = len(pictures.pairs), f"{pictures.drawn_from:,} pictures with captions"
    words += f", {used:,} of them are drawn" if pictures.drawn_from > used else ""
    words += f", from {pictures.form}" + (", such as" if pictures.drawn_pairs else "")
    lines = [f"{disk.shown_path(pictures.folder)}: {words}"]
    lines += [f"  {pair}" for pair in pictures.drawn_pairs]
    notes = pictures.lines[2:]
    lines += notes[:MOST_NOTES]
    if (more := len(notes) - MOST_NOTES) > 0:
        lines.append(f"{more} more files were looked at: --json")
    if left := tryout.left_out(pictures):
        lines.append(f"left out: {left} (docs/start/images.md has these reasons)")
    return list(map(printable, lines))


def _account(pictures: Pictures, shares: Shares) -> str:
    """What each picture of the folder is used for: the numbers add up."""
    own = {pair.file for pair in pictures.pairs}
    parts = {
        "are trained on": shares.trained,
        "are the test": shares.test,
        "are for the scorer": shares.trusted,
    }
    counts = {}
    for name, pairs in parts.items():
        counts[name] = len(files := own & {pair.file for pair in pairs})
        own -= files
    counts["are near copies of those of the test or the scorer, or have their captions"] = len(own)
    counts |= pictures.lost
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"of {pictures.files:,} pictures {listed}"


def _tested(shares: Shares) -> str:
    """What the test asks, in words."""
    among = f"{shares.classes:,} captions" if shares.classes else "the captions of all"
    chance = 1 / (shares.classes or len(shares.test))
    return (
        f"{len(shares.test):,} pictures that are not trained on; the model finds the caption of "
        f"each among {among} (by chance {chance:.1%} right)"
    )


# --- carrying it out ------------------------------------------------------------------------------


def carry_out(out: str, minutes: float, of_runs: float, as_json: bool) -> int:
    """Build the test, run the ablation, write the page of its pool; the exit status."""
    page, recipe = disk.join(out, "pictures.html"), disk.join(out, "heldout.yaml")
    heldout, manifest = disk.join(out, TEST_POOL), disk.join(out, MANIFEST)
    pool = disk.join(out, "pools", "pictures")
    log = disk.local_path(disk.join(out, "logs", "try.log"))
    console.show("", f"what the stages print is in {disk.shown_path(log)}")
    tell = progress(minutes, of_runs, reader.read_manifest(manifest, Ablation).jobs)
    commands = [
        ["build", manifest, "--out", out, "--engine=inline"],
        ["look", pool, "--out", page],
    ]
    if disk.exists(recipe) and not disk.exists(PoolLayout(heldout).pool_json):
        commands.insert(0, ["build", recipe, "--out", heldout, "--engine=inline"])
    try:
        for words in commands:
            ablation_run.run_logged(words, log, tell)
    except subprocess.CalledProcessError as error:
        return ended_with(error)
    layout = AblationLayout(out)
    report, stored = layout.report, disk.read_json(layout.recipe_json("pictures"))["fetch"]
    kept = disk.join(out, "kept", "clip50.csv")
    export = ["export", disk.shown_path(pool), "clip50", "--to", disk.shown_path(kept)]
    results = disk.read_json(layout.results_json)
    verdict = results["verdict"].split("\n")
    if len(next(iter(results["tasks"].values()))["comparisons"]) == 1:
        del verdict[1]  # of one arm the headline says the same
    console.show(
        "",
        *(line for line in verdict if line != MORE_SEEDS),  # below in the words of a try
        "",
        f"the verdict, with its intervals: {disk.shown_path(report)}",
        f"the pictures, with a threshold to move: {disk.shown_path(page)}",
        f"a list of the files that clip50 keeps: {ablation_run.shown(export)} (with --to FOLDER "
        f"copies of at most {stored['image_size']} pixels on the shorter side)",
        f"another rule, threshold or more seeds: change pictures.yaml or {MANIFEST} in "
        f"{disk.shown_path(out)}, then the same command again. Finished runs count; it is another "
        "look, with wider intervals",
    )
    print_json({"out": out, "report": report, "page": page, "log": str(log)}, as_json)
    return 0


# What the commands of a try do; `build ablation` starts the others.
STAGES = {
    "build heldout": "the test pictures become a pool",
    "build ablation": "",
    "build trusted": "the scorer's pictures become a pool",
    "train scorer": "the scorer learns",
    "build pictures --until": "the pictures become a pool",
    "build pictures": "the pictures are scored",
    "filter random-like": "the random halves are drawn",
    "ablate check": "the manifests are checked",
    "ablate ablation": "the runs begin",
    "report": "the report is written",
    "look": "the page of the pictures is written",
}


def progress(minutes: float, of_runs: float, jobs: int) -> Callable[[str], None]:
    """What shows of the output of the stages, line by line: which one begins and how many runs have
    ended, and the minutes that are left of all. These are `minutes`, of which `of_runs` are those
    of the runs, until some runs have ended, and then by their speed; `jobs` run at a time.
    """
    begun = started = time.monotonic()
    share = 0.0  # of the runs that have ended
    after = 0.1 * (minutes - of_runs)  # report and page

    def tell(line: str) -> None:
        nonlocal begun, share
        now, text = time.monotonic(), ""
        if line.startswith("$ clipmill "):
            words = shlex.split(line)[2:]
            name = f"{words[0]} {Path(words[1]).stem}"
            text = STAGES.get(words[0], STAGES.get(name, name))
            if "--until" in words:
                text = STAGES.get(f"{name} --until", text)
            begun = begun if share else now
            if words[0] in ("report", "look"):  # of runs that an earlier command ended, too
                share = 1.0
        elif ended := re.search(r" runner: (\d+)/(\d+) (?!runs are done)", line):
            number, total = map(int, ended.groups())
            share = number / total
            shown = min(SHOWN_RUNS, max(2, total // jobs))
            if number * shown // total > (number - 1) * shown // total:
                text = f"{number} of {total} runs are done"
        if text:
            left = max(minutes - (now - started) / 60, of_runs + after)
            left = (now - begun) / 60 * (1 / share - 1) + after if share else left
            rest = f"about {max(1.0, left):.0f} min left in all"
            console.show(f"{time.strftime('%H:%M:%S')} {text} ({rest})")

    return tell
