"""Results of anyone as measurements, with an account of every row, column and cell.

Files become one table of columns (`forms`), each column gets one role (`roles`), and the cells of
the values become measurements: arm, seed, block, task, metric, scale, value. What is left out is
counted, what is guessed is a note, and what cannot be known is a question in one sentence.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from clipmill.manifests import disk
from clipmill.manifests.arrays import Array, FloatArray, Integers, Mask
from clipmill.manifests.layout import AblationLayout
from clipmill.verdict.tables.account import Account, ColumnRole, LeftOut
from clipmill.verdict.tables.cells import (
    BRACKETS_NOTE,
    SECONDS,
    SIZES,
    SPREAD_NOTE,
    is_empty,
    is_missing,
    read_cell,
)
from clipmill.verdict.tables.forms import ERRORS, STUDY_FORM, frame_of_bytes
from clipmill.verdict.tables.frames import (
    Column,
    Frame,
    SeveralTables,
    distinct,
    group_codes,
    joined,
    joined_texts,
    pairs_of,
    recoded,
    refined,
    shared_start,
    stacked,
    text_of,
    varies,
    with_rows,
)
from clipmill.verdict.tables.json_forms import SCALAR_FORM
from clipmill.verdict.tables.metric_names import (
    deciding_words,
    is_bare_metric,
    is_known,
    metric_said,
    name_facts,
    plain_name,
    task_stem,
)
from clipmill.verdict.tables.roles import (
    ARM_WORDS,
    CROSSING,
    DATA_SETS,
    DERIVED_WORDS,
    METRIC_PREFIX,
    NO_ARM,
    SETTING_PREFIX,
    SHARED_SPLITS,
    SHOWN,
    STAGES,
    Chosen,
    Open,
    Options,
    Roles,
    Way,
    are_measured,
    are_of_one_size,
    are_whole,
    baseline_arm,
    is_design,
    is_tested_on,
    middle_digits,
    name_role,
    of_each_row,
    quoted,
    role_of_name,
    roles_of,
    values_of,
    were_counted,
)
from clipmill.verdict.tables.spreads import (
    MEAN_WORD,
    counts_runs,
    header_kind,
    runs_said,
    samples_behind,
    spread_kind,
    spread_said,
    standard_deviations,
    with_spreads_beside,
)

ENDINGS = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json", ".xlsx", ".xls", ".ods")
# Of a folder that has none of the others.
TEXT_ENDINGS = (".md", ".markdown", ".tex", ".txt", ".yaml", ".yml")
SETTINGS_FILE = re.compile(r"(config|params|args|hparams|variant|settings)\.(json|ya?ml|txt)")
# A run that nobody named is called by open_clip after its start and settings, not after its data.
OPEN_CLIP_RUN = re.compile(r"/\d{4}(_\d\d){2}-\d\d(_\d\d){2}-model_[^/]*$")
OF_ONE_RUN = re.compile(r"name|resume|\w*path|\w*rank|dist_url|device")  # of its params.txt
COSTS = ("samples_seen", "tokens_seen", "tokens", "compute")  # of the columns of a scale
MORE_IS_BETTER = ("true", "1", "1.0", "max", "maximize", "maximise", "higher", "up", "yes")
LESS_IS_BETTER = ("false", "0", "0.0", "min", "minimize", "minimise", "lower", "down", "no")
SEED_IN_NAME = re.compile(
    r"^(?P<arm>.*?[^-_./, ])[-_./, (]*(?:random[-_]?)?(?:seed|rng|rep|replicate|run|trial|fold)"
    r"[-_=# ]?(?P<seed>\d+)\)?(?P<rest>.*)$", re.IGNORECASE
)  # fmt: skip
SEED_FIRST = re.compile(r"^(?:seed|run|rep|trial)[-_=# ]?(?P<seed>\d+)[-_./ ]+(?P<arm>.+)$", re.I)
SEED_INSIDE = re.compile(
    r"(?P<one>.+?)(?P<gap>[-_./ ]+(?:seed|rng|rep|run|trial|fold|s)[-_=]?)(?P<seed>\d+)"
    r"(?P<next>[-_./ ]+)(?P<two>.+)", re.IGNORECASE
)  # fmt: skip
ONLY_SEED = re.compile(  # the name says nothing else
    r"^(?P<arm>)(?:seed|rng|rep|replicate|run|trial|fold)[-_=# ]?(?P<seed>\d+)$", re.I
)
MAIN = "main_metric"  # of DataComp: what counts in its average
LM_EVAL = "lm-eval"  # whose files have the time of the evaluation in their names
PLOTS = re.compile(r"(.*/)plots/")  # a curve of each metric, beside the last values, as of DVCLive
SCALAR_FILE = re.compile(r"(?:.*/)?run-(.+)-tag-(.+)")  # as TensorBoard calls what it exports
TIME_IN_NAME = re.compile(
    r"^(?P<arm>.*?)[-_./ ]*(?:run)?[-_./ ]*"
    r"(?P<seed>\d{4}-?\d\d-?\d\d[-_T ]\d\d[-_:]?\d\d[-_:]?\d\d\S*)$", re.I
)  # fmt: skip
POINT_IN_NAME = re.compile(  # of a run, as a folder of its checkpoint
    r"^(?P<one>(?:.*?[^-_./ ])?)[-_./ ]*(?<![a-z])(?:global[-_]?)?(?:checkpoints?|ckpt|step|epoch|"
    r"iter|iteration)[-_=]?(?P<point>\d+)(?P<two>(?:[-_./ ].*)?)$", re.I
)  # fmt: skip
COPY_NAME = re.compile(
    r"(.+?)(?: ?\(\d+\)| - copy(?: ?\(\d+\))?| copy(?: \d+)?| \(.*conflict.*\))", re.I
)
PART_IN_NAME = re.compile(  # of an evaluation
    r".*(?<![a-z])(rank|shard|worker|gpu|device|proc|process|chunk)[-_]?\d+$", re.I
)
SHORT_SEED = re.compile(r"^(?P<arm>.+?)[-_./ ]+(?:s|r)?[-_]?(?P<seed>\d{1,4})$")
SHORT_FIRST = re.compile(r"^[sr][-_]?(?P<seed>\d{1,4})[-_./ ]+(?P<arm>.+)$")
IN_BRACKETS = re.compile(r"^(?P<arm>.+?) ?[(\[#](?P<seed>\d{1,4})[)\]]?$")
SUMMARIES = re.compile(
    r"(mean|avg|average|total|overall) ?[(\[].*[)\]]|"  # of some of the rows
    r"(mean|avg|average|median|std|stdev|std\.? ?dev\.?|sd|stderr|sem|min|max|total|sum|overall|"
    r"all|aggregated?|mean ?[±/] ?(std|sd)|count|25%|50%|75%|±.*|standard_?deviation|all( "
    r"?\(.*\))?|(micro|macro|weighted|samples)[-_ ]?(avg|average)?|\(?(micro|macro) avg\.?\)?)",
    re.I,
)
SUMMARY_BEHIND = re.compile(
    r"(.+?)[-_/: (]+(mean|median|avg|average|min|max|std\w*|sd|cv|stderr)"
    r"([ _]?((of|over)[ _])?\d+[ _]?\w*)?\)?", re.I
)  # fmt: skip
SPREADS = re.compile(
    r"std.*|sd|sem|stderr|±.*|mean ?[±/] ?(std|sd)|standard_?deviation|25%|75%", re.I
)
NOT_ENDED = re.compile(
    r"(crash(ed)?|fail(ed|ure)?|kill(ed)?|((?!no\b)\w+ )?error(ed)?|running|"
    r"pending|queued|prun(ed|ing)|preempt(ed|ing)|"
    r"abort(ed)?|cancel(l?ed)?|timed? ?out|timeout|oom|out of memory|stopped|"
    r"interrupted|diverged|incomplete|unfinished|waiting|scheduled|resuming|invalid)\b(?! tests?)",
    re.I,
)
ENDED = re.compile(
    r"(finished|completed?|success(ful|fully)?|succeeded|done|terminated|ok|okay|passed|ended)",
    re.I,
)
PAIRED = {"metric", "value", "score", "result", "measure", "name"}  # of a metric and its value
# Columns that say on what part of the data an arm was scored.
TEST_SET = re.compile(
    r"((eval|evaluation|test|data|dataset)_)?(splits?|splitting|partition)(_(name|type|method|by))?"
)
RUN_AXIS = re.compile(r"((cv|test|outer)_)?(folds?|seeds?|runs?|resamples?|repeats?|trials?|reps?)")
RUN_IN_HEADER = re.compile(
    r"(?<![a-z])(?P<word>(per[_ -])?(cv|outer)?[_ -]?"
    r"(fold|seed|run|rep|repeat|trial|replicate|resample)|split(?=\d+_(test|train)_))"
    r"[_ =#.-]*(?P<number>\d+)(?!\d)", re.I
)  # fmt: skip
# Roles that a column may have by its name beside runs that stand in the header.
OF_RUNS = ("seed", "setting", "count", "step", "scale", "identifier", "test_size", "time")
VERDICTS = b"task,metric,arm,baseline,runs,mean,sd,difference,low,high,"  # of `decide --csv`
SPLIT = re.compile(r"mode|phase|split|type")
TIME = re.compile(r"\d{4}-\d\d-\d\d|\d{1,3}:\d\d")
STEP = re.compile(r"_?(\w+_)?(global_)?(step|steps|epoch|iter|iteration|training_iteration|round)")
HALF_ENDED = {"terminated", "stopped", "ended"}  # of a program or by a person: the others tell
HELD_OUT = ("val", "valid", "validation", "eval", "dev")  # before the name of a metric
MOST_FOREIGN = 10  # files for each that has other columns and so is a summary of theirs
LEAST_REPEATED = 8  # digits of the values of a row in which no two runs agree
MOST_REPEATED = 20_000  # rows of a table in which rows that repeat others are looked for
MOST_TRIED = 300_000  # cells of a table that is read again for each answer of a question
MOST_WORDS = 9  # columns of an answer, where another one has fewer
MOST_CHOICES = 2  # of values for --where
SOME, LONG_TEXT = 50, 40  # cells of a column, and the letters of a text that names nothing
LEAST_SEARCH = 8  # rows with settings of their own, which are no arms
LEAST_MATCHED = 3  # blocks that two arms share, where few of many blocks are shared
LEAST_SERIES = 5  # rows that rise from one to the next by chance in one table of 120
TRACKER_STEPS = {"_step", "training_iteration", "trainer_global_step", "global_step"}
WORDS = ("tiny", "xs", "s", "small", "m", "medium", "l", "large", "xl", "xlarge", "xxl")
MOST_NAMED = 3  # columns of a question with an option for each, where one column names them all
CLOSE = 0.01  # of a mean that is written with few digits
SAME_SCALE = 0.005  # a run that saw so much less saw as much: it ended on a whole batch
Record = dict[str, Any]
Source = str | Frame  # the path of a file or a folder, or a table that was in memory
NO_CODES: Integers = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All measurements, in columns, and what was guessed or left out.

    arms, tasks, metrics: the names; arm_N …: the place of each measurement's name. seed_N: run
    numbers. scales: {number: name}. higher_N: 1, 0, or -1 where the file does not say. costs:
    scales are what a run costs, samples or tokens seen. paired: runs of one seed belong together;
    else the runs of an arm have no order. blocks: names of what crosses the arms. block_columns:
    the columns that these come from. seeds: names of seeds that are no whole numbers. shares:
    tasks or metrics whose cells have percent signs.
    account: what became of rows, columns and cells. one_arm: why there is one
    arm only, with the columns that could name it. named_tasks: tasks are cells of a column, not
    columns of values, and their names say nothing of a metric. are_means: a cell is a mean of runs
    with its spread, and nothing numbers the rows, so that none of them is a run. runs_N, sd_N: of
    how many runs each value is the mean (0: not known), and their standard deviation (NaN: one run,
    or not known); None where values are runs, or where `missing` says what must be told. splits:
    {arm: a column of splits that nothing needs, and the ones that its rows are of}.
    """

    arms: tuple[str, ...]
    tasks: tuple[str, ...]
    metrics: tuple[str, ...]
    arm_N: Integers
    seed_N: Integers
    task_N: Integers
    metric_N: Integers
    value_N: FloatArray
    scale_N: FloatArray
    samples_N: Integers
    higher_N: Integers
    block_N: Integers
    scales: dict[float, str]
    account: Account
    notes: tuple[str, ...]
    per_sample: tuple[Array | None, ...] | None = None
    costs: bool = False
    paired: bool = True
    blocks: tuple[str, ...] = ()
    block_columns: tuple[str, ...] = ()
    seeds: dict[int, str] = field(default_factory=dict)
    shares: frozenset[str] = frozenset()
    one_arm: str = ""
    named_tasks: bool = False
    are_means: bool = False
    runs_N: Integers | None = None
    sd_N: FloatArray | None = None
    missing: str = ""
    splits: Mapping[str, tuple[str, frozenset[str]]] = field(default_factory=dict)

    def taken(self, places: Integers) -> Results:
        """Some of the measurements."""
        columns = {one.name: getattr(self, one.name) for one in fields(self)}
        taken = {
            name: own[places] for name, own in columns.items()
            if name.endswith("_N") and own is not None
        }  # fmt: skip
        if self.per_sample is not None:
            taken["per_sample"] = tuple(self.per_sample[n] for n in places.tolist())
        return replace(self, **taken)


def read_results(sources: Sequence[Source], columns: Options | None = None) -> Results:
    """The measurements of files, folders and tables. ValueError where they are no results, or where
    a question is open, in one line.
    """
    was_enabled = gc.isenabled()
    gc.disable()  # of a million rows the collector would take as long as all else
    try:
        return _Reading(columns or Options()).read(sources)
    finally:
        if was_enabled:
            gc.enable()


# --- files ----------------------------------------------------------------------------------------


def frames_of(
    sources: Sequence[Source], table: str | None = None, baseline: str | None = None
) -> list[Frame]:
    """The table of each file and each table, with its column `file`. SeveralTables where a file
    has several.
    """
    paths = [source for source in sources if isinstance(source, str)]
    tables = [source for source in sources if isinstance(source, Frame)]
    frames = _frames_of_files(paths, table, baseline) if paths else []
    for number, frame in enumerate(tables, 1):
        if not frame.rows:
            raise ValueError(f"{frame.form}: there is no row")
        _see_history(frame)
        frame.add("file", f"table {number}")
    return [*frames, *tables]


def source_name(source: Source) -> str:
    """What messages call a file, a folder or a table."""
    return source.form if isinstance(source, Frame) else Path(source).name or source


def _frames_of_files(paths: Sequence[str], table: str | None, baseline: str | None) -> list[Frame]:
    files, others, copies = [], [], list[str]()
    for path in paths:
        of_path, is_folder = _files(path, copies)
        files += of_path
        others += of_path if is_folder else []
    if not files:
        raise ValueError(f"{', '.join(paths)}: no file ends in {', '.join(ENDINGS)}")
    plots = {
        file for file in others
        if (found := PLOTS.match(file)) and f"{found[1]}metrics.json" in others
    }  # fmt: skip
    files = [file for file in files if file not in plots]
    files = [file for file in files if file not in others or not _is_copy(file, others, copies)]
    labels = _labels(files)
    sizes = dict[str, str]()  # {label of a study: samples that its runs see}
    frames, read = list[Frame](), list[tuple[str, str]]()
    skipped, several = list[str](), list[SeveralTables]()
    for file, label in zip(files, labels, strict=True):
        try:
            data = _bytes_of(file)
            if file in others and data.startswith(VERDICTS):
                skipped.append(f"{label} (verdicts that `clipmill decide --csv` wrote)")
                continue
            frame = frame_of_bytes(data, table, baseline)
        except ERRORS as error:
            if isinstance(error, SeveralTables):
                several.append(SeveralTables(f"{file}: {error.text}", error.labels))
            if file in others and len(files) > 1:
                skipped.append(f"{label} ({error})")
                continue
            if several:
                raise several[-1] from None
            raise ValueError(f"{file}: {error}") from None
        if frame.form == STUDY_FORM:
            sizes[label] = "".join(map(text_of, frame.columns.pop("scale").present()[:1]))
        _see_history(frame)
        frames.append(frame)
        read.append((file, label))
    again = Counter(sizes.values())
    for frame, (_, label) in zip(frames, read, strict=True):
        if (size := sizes.get(label)) and len(files) > 1:  # labels tell equal ones apart
            frame.add("samples_seen", f"{size} {label}" if again[size] > 1 else size)
    if foreign := _foreign(frames) if set(files) == set(others) else []:
        shown = ", ".join(read[n][1] for n in foreign[:3])
        frames = [frame for n, frame in enumerate(frames) if n not in foreign]
        kept = [file for n, (file, _) in enumerate(read) if n not in foreign]
        read = list(zip(kept, _labels(kept), strict=True))
        note = f"left out: {len(foreign)} of {len(files)} files, which share no column ({shown})"
        frames[0].notes.append(note)
    for frame, (_, label) in zip(frames, read, strict=True):
        tagged = SCALAR_FILE.fullmatch(label) if frame.form == SCALAR_FORM else None
        if tagged and "tag" not in frame.columns:
            label, tag = tagged.groups()
            frame.add("tag", tag)
        frame.add("file", label)
    _add_settings(frames, [file for file, _ in read])
    if not frames:
        if several:
            raise several[0]
        raise ValueError(f"{', '.join(paths)}: no file holds results: {skipped[0]}")
    if skipped:
        shown = "; ".join(skipped[:3])
        frames[0].notes.append(f"left out: {len(skipped)} files that hold no table: {shown[:300]}")
    if copies:
        shown = ", ".join(Path(file).name for file in copies[:3])
        frames[0].notes.append(f"left out: {len(copies)} hidden files, links and copies ({shown})")
    if plots:
        frames[0].notes.append(
            f"left out: {len(plots)} files of curves, whose last values metrics.json has"
        )
    if not sum(frame.rows for frame in frames):
        raise ValueError(f"{', '.join(paths)}: there is no row")
    return frames


def _foreign(frames: Sequence[Frame]) -> list[int]:
    """The places of few tables that share no column with those of nine in ten others, as a summary
    in a folder of single results.
    """
    alike = Counter(frozenset(frame.columns) for frame in frames).most_common(1)
    usual, count = alike[0] if alike else (frozenset(), 0)
    foreign = [n for n, frame in enumerate(frames) if not usual & frame.columns.keys()]
    return foreign if 0 < len(foreign) * MOST_FOREIGN <= count else []


def _add_settings(frames: Sequence[Frame], files: Sequence[str]) -> None:
    """In which settings the runs differ that open_clip named, from the `params.txt` of each."""
    settings = list[dict[str, str]]()
    for file in files:
        folder = file.rpartition("/")[0].removesuffix("/checkpoints")
        path = disk.join(folder, "params.txt")
        text = ""
        if OPEN_CLIP_RUN.search(folder) and disk.exists(path):
            text = disk.read_bytes(path).decode(errors="replace")
        settings.append(dict(re.findall(r"^(\w+): (.+)$", text, re.M)))
    for name in dict.fromkeys(name for run in settings for name in run):
        if not OF_ONE_RUN.fullmatch(name) and len({run.get(name) for run in settings}) > 1:
            for frame, run in zip(frames, settings, strict=True):
                frame.add(f"params.{name}", run.get(name, ""))


def records_of(source: Source, notes: list[str]) -> list[Record]:
    """The rows of a file, a folder or a table, each with the key `file`."""
    frame = joined(frames_of([source]))
    notes += frame.notes
    cells = []
    for column in frame.columns.values():
        values = [text_of(v) if isinstance(v, str) else v for v in column.values]
        if column.comma:
            numbers = [read_cell(value, column.comma).value for value in column.values]
            values = [v if n is None else n for v, n in zip(values, numbers, strict=True)]
        cells.append([values[code] for code in column.codes.tolist()])
    return [dict(zip(frame.columns, row, strict=True)) for row in zip(*cells, strict=True)]


def _files(path: str, left_out: list[str]) -> tuple[list[str], bool]:
    """The path, or the files of results in its folder; whether it is one. left_out gets those that
    are no files of their own.
    """
    if path.startswith(("http://", "https://")):
        return [path], False
    if not disk.exists(path):
        raise ValueError(f"{path} does not exist")
    if not disk.is_url(path) and not disk.local_path(path).is_dir():
        return [path], False
    fs, name = disk.filesystem(path)
    if not fs.isdir(name):
        return [path], False
    layout = AblationLayout(path)
    if disk.exists(layout.ablation_json) and disk.exists(layout.measurements):
        names = disk.list_names(layout.scales) if disk.exists(layout.scales) else []
        smaller = [AblationLayout(disk.join(layout.scales, n)).measurements for n in names]
        return [*filter(disk.exists, smaller), layout.measurements], False
    paths = _own_files(name, fs.find(name), left_out)
    if disk.is_url(path):
        paths = [fs.unstrip_protocol(each) for each in paths]
    if any(re.search(r"/[0-9a-f]{32}/metrics/", each) for each in paths):
        raise ValueError(
            f"{path} is MLflow's folder of runs: export the table of runs as CSV "
            "(mlflow.search_runs(…).to_csv)"
        )
    if own := [each for each in paths if _is_of_study(each)]:
        return own, False  # of ablations, not their other files
    for endings in (ENDINGS, TEXT_ENDINGS):
        found = [each for each in paths if each.lower().removesuffix(".gz").endswith(endings)]
        found = [each for each in found if not Path(each).name.startswith("samples_")]
        results = [each for each in found if not SETTINGS_FILE.fullmatch(Path(each).name)]
        if results:
            return found if endings == ENDINGS else results, True  # samples_ are of lm-eval
    logs = [each for each in paths if each.endswith(".log")]
    for sign, what, way in (
        (".wandb", "W&B's folder of runs", "export the table of runs as CSV"),
        ("tfevents", "TensorBoard's files of events", "download the scalars as CSV, a file a run"),
        (".db", "a folder with a database", "export its table as CSV"),
    ):
        if any(sign in Path(each).name for each in paths):
            raise ValueError(f"{path} is {what}: {way}")
    return logs, True


def _own_files(folder: str, files: Iterable[str], left_out: list[str]) -> list[str]:
    """The files of a folder, each once: without those that a name with a dot in front hides, such
    as an editor's older copies and what macOS keeps beside a file, and without links to others.
    """
    own = dict[str, str]()  # {where a file really is: its path}
    for file in sorted(files, key=lambda each: (os.path.islink(each), each)):
        is_hidden = re.search(r"(^|/)\.", file.removeprefix(folder).lstrip("/"))
        if is_hidden or own.setdefault(os.path.realpath(file), file) != file:
            left_out += [file] if file.lower().endswith(ENDINGS) else []
    return sorted(own.values())


def _is_copy(file: str, files: Sequence[str], copies: list[str]) -> bool:
    """Whether a file is called a copy of another one and has its bytes, as of a browser that got it
    twice or a cloud's conflicted copy; copies gets it.
    """
    path = Path(file)
    found = COPY_NAME.fullmatch(path.stem)
    of = file[: -len(path.name)] + found[1] + path.suffix if found else ""
    if of not in files or _bytes_of(of) != _bytes_of(file):
        return False
    copies.append(file)
    return True


def _is_of_study(file: str) -> bool:
    """Whether a file has the measurements of a study; not of its null web, which asks something
    else.
    """
    layout = AblationLayout(file.rpartition("/")[0])
    is_table = file == layout.measurements and not layout.root.endswith("/null")
    return is_table and disk.exists(layout.ablation_json)


def _bytes_of(file: str) -> bytes:
    """Of a URL, a file or a pipe."""
    return disk.read_bytes(file) if disk.is_url(file) else disk.local_path(file).read_bytes()


def _labels(files: Sequence[str]) -> list[str]:
    """A short name of each file: its path without what all paths begin and end with."""
    paths = [Path(file.removesuffix(".gz")) for file in files]
    parts = [[*path.parts[:-1], path.stem] for path in paths]
    if len(files) == 1:
        return [parts[0][-1]]
    start, end = shared_start(parts), shared_start([each[::-1] for each in parts])
    return ["/".join(each[start : len(each) - end] or each[-1:]) for each in parts]


def _see_history(frame: Frame) -> None:
    """Marks a file that is what one run left behind step by step: a step that never falls, and no
    column of text that changes.
    """
    if frame.history or frame.rows < 2:
        return
    steps = [
        name
        for name in frame.columns
        if STEP.fullmatch(plain_name(name)) and not re.match(r"(config|params?)[./]", name)
    ]
    for name in sorted(steps, key=lambda each: "step" not in plain_name(each)):
        numbers = frame.columns[name].numbers()
        numbers = numbers[~np.isnan(numbers)]
        if len(np.unique(numbers)) < 2 or (np.diff(numbers) < 0).any():
            continue
        others = [
            n for n in frame.columns if not (n in ("file", name) or SPLIT.fullmatch(plain_name(n)))
        ]
        if any(_has_words(frame.columns[other]) for other in others):
            return
        frame.history = name
        for other, column in frame.columns.items():
            present = column.present()
            if len(present) == 1 and not (is_known(other) or isinstance(present[0], list | dict)):
                frame.columns[other] = Column(present, np.zeros(frame.rows, np.int32))
        return


def _has_words(column: Column) -> bool:
    """Whether a column has several texts, not all of them times."""
    words = [
        value for value in column.present() if isinstance(value, str) and value[:1] not in "{["
        and read_cell(value).value is None and not is_missing(value)
    ]  # fmt: skip
    return len(words) > 1 and not all(map(TIME.match, words[:SOME]))


def _series(frames: Sequence[Frame]) -> str:
    """A column that rises from row to row in every file, so that its rows may be points of one
    run; "" where there is none.
    """
    if len(frames) < 2 or min(frame.rows for frame in frames) < LEAST_SERIES:
        return ""
    for name in frames[0].columns:
        own = [frame.columns[name] for frame in frames if name in frame.columns]
        if name == "file" or not plain_name(name) or len(own) < len(frames):
            continue
        steps = [np.diff(column.numbers()) for column in own]
        if all((one > 0).all() for one in steps) and any((one != 1).any() for one in steps):
            return name
    return ""


def _with_runs_below(frame: Frame, several: bool) -> Frame:
    """The table with a row for each run, where columns are runs: `fold 1`, `fold 2` …, or 0, 1 …
    behind a column that is called `folds`; of several metrics, as `fold1_auc`, a column for each,
    also where one lacks a run. A column called like one of these metrics is their summary.
    """
    inside: dict[str, dict[str, str]] = {}  # {metric: {number: name}}
    words = set[str]()
    for name in frame.columns:
        if match := RUN_IN_HEADER.search(name):
            rest = (name[: match.start()].strip("_ -/."), name[match.end() :].strip("_ -/."))
            inside.setdefault("_".join(filter(None, rest)) or "value", {})[match["number"]] = name
            words.add(plain_name(match["word"]))
    numbers = sorted({number for own in inside.values() for number in own}, key=int)
    metrics = {
        metric: own for metric, own in inside.items() if 2 * len(own) > max(len(numbers), 2)
        and any(frame.columns[name].has_numbers() for name in own.values())
    }  # fmt: skip
    if len(words) == 1 and 2 * len(metrics) > len(inside):
        taken = {plain_name(name) for name in frame.columns}
        key = next(word for word in (*words, "run of the header") if word not in taken)
        return _melted(frame, key, numbers, metrics, several)
    axis = next((name for name in frame.columns if RUN_AXIS.fullmatch(plain_name(name))), None)
    runs = {plain_name(name): name for name in frame.columns if plain_name(name).isdecimal()}
    if axis is None or frame.columns[axis].numbers()[:1] >= 0 or len(runs) < 3 or sorted(
        map(int, runs)
    ) not in (list(range(len(runs))), list(range(1, len(runs) + 1))):  # fmt: skip
        return frame
    return _melted(frame, "run", list(runs), {"value": runs}, several)


def _melted(
    frame: Frame, key: str, numbers: Sequence[str], metrics: Mapping[str, Mapping[str, str]],
    several: bool,
) -> Frame:  # fmt: skip
    """The table with a row for each of its runs. metrics: {metric: {number: its column}}."""
    names = [own[number] for own in metrics.values() for number in numbers if number in own]
    others = {
        name: column for name, column in frame.columns.items()
        if name not in names and name not in metrics
    }  # fmt: skip
    runs = {
        number: {metric: own[number] for metric, own in metrics.items() if number in own}
        for number in numbers
    }  # fmt: skip
    note = f"header: {', '.join(names[:3])}, … are runs"
    long = with_rows(frame, others, key, runs, list(metrics), note)
    if beside := [name for name in frame.columns if name in metrics]:
        long.notes.append(f"not read: {', '.join(beside[:5])}, beside the runs of this name")
    long.roles = {name: role for name, role in frame.roles.items() if name not in beside}
    long.roles[key] = ("seed", SHARED_SPLITS if key == "split" else "the columns are runs")
    if "value" in metrics:
        long.roles["value"] = ("value", "")
    labels = []
    for name, column in others.items():
        if role_of_name(name)[0] in OF_RUNS or SETTING_PREFIX.match(name):
            continue
        if column.has_numbers():
            long.roles.setdefault(name, ("spread", "beside the runs: not a value of its own"))
        elif len(column.present()) > 1 and name != "file":
            labels.append(name)
    if len(labels) == 1 and several:
        long.roles[labels[0]] = ("task", "what the rows are of")
    elif labels and RUN_AXIS.fullmatch(plain_name(labels[0])):
        shown = values_of(frame.columns[labels[0]])
        long.roles[labels[0]] = ("open", f"{labels[0]!r} ({shown}) names the rows")
    return long


def _with_arms_below(frame: Frame, baseline: str | None) -> Frame:
    """The table with a row for each arm, where no column names one and the names of all columns of
    metrics are each of some metrics with each of some arms: `ACC_GCN`, `ROC_GCN`, `ACC_GAT` …
    Where the baseline is a part of some names, or one of them, the columns of its metric alone:
    `loss_benchmark`, `loss_lgb`.
    """
    found: dict[str, dict[str, str]] = {}  # {arm: {metric: name}}
    others = {}
    for name, column in frame.columns.items():
        words = re.split(r"[_/.: -]+", name)
        ends = [n for n in range(1, len(words)) if is_bare_metric("_".join(words[:n]))]
        starts = [n for n in range(1, len(words)) if is_bare_metric("_".join(words[n:]))]
        if (ends or starts) and column.has_numbers():
            n = ends[-1] if ends else starts[0]
            metric, arm = ("_".join(part) for part in (words[:n], words[n:])[:: 1 if ends else -1])
            found.setdefault(arm, {})[metric] = name
        else:
            others[name] = column
    if baseline is not None and not frame.roles and (
        own := _columns_beside(found, baseline)
    ):  # fmt: skip
        return _with_rows_of_arms(frame, own)
    metrics = next(iter(found.values()), {})
    is_grid = len(found) > 1 < len(metrics) and all(own.keys() == metrics.keys()
                                                    for own in found.values())  # fmt: skip
    labels = [one for name, one in others.items() if name != "file" and len(one.present()) > 1]
    if not is_grid or not all(map(Column.has_numbers, labels)) or (
        {"arm", *metrics} & others.keys() or {*map(plain_name, found)} <= STAGES
        or frame.roles or any(DATA_SETS.search(plain_name(arm)) for arm in found)
    ):  # fmt: skip
        return frame
    shown = ", ".join([*found][:3])
    note = f"header: {', '.join(metrics)} of each of {shown}, … as the arms"
    long = with_rows(frame, others, "arm", found, list(metrics), note)
    long.roles = {"arm": ("arm", "a part of the header")}
    return long


def _columns_beside(found: Mapping[str, Mapping[str, str]], baseline: str) -> dict[str, str]:
    """{arm: column} of the metric that the baseline's column has; {} where it has none, or several.

    found: {arm: {metric: column}}.
    """
    named = {name: (arm, metric) for arm, own in found.items() for metric, name in own.items()}
    arm, metric = named.get(baseline, ("", ""))
    if not metric and len(found.get(baseline, {})) == 1:
        arm, metric = baseline, next(iter(found[baseline]))
    columns = {arm: own[metric] for arm, own in found.items() if metric in own}
    if len(columns) < 2 or arm in STAGES:
        return {}
    return columns if baseline not in named else {name: name for name in columns.values()}


def _with_rows_of_arms(frame: Frame, columns: Mapping[str, str]) -> Frame:
    """The table with a row for each arm in the place of its column. columns: {arm: column}. The
    other numbers of the row are of no arm alone.
    """
    taken = set(columns.values())
    metric = " ".join(sorted(set.intersection(*(set(deciding_words(name)) for name in taken))))
    known = [name for name in frame.columns if name not in taken and is_known(name)]
    beside = [name for name in known if frame.columns[name].has_numbers()]
    others = {name: frame.columns[name] for name in frame.columns if name not in {*taken, *beside}}
    if not metric or {"arm", metric} & others.keys():
        return frame
    arms = {arm: {metric: name} for arm, name in columns.items()}
    note = f"header: {metric} of {', '.join(columns)} as the arms"
    long = with_rows(frame, others, "arm", arms, [metric], note)
    if beside:
        long.notes.append(f"not read: {', '.join(beside[:6])}, which are of no such arm")
    long.roles = {"arm": ("arm", "a part of the header")}
    return long


def _with_pairs_below(frame: Frame) -> Frame:
    """The table with a row for each metric, where pairs of columns hold its name and its value:
    `metric_1`, `value_1`, `metric_2`, `value_2`.
    """
    stems: dict[str, list[str]] = {}
    for name in frame.columns:
        words = re.findall(r"[a-z]+|\d+", plain_name(name))
        if PAIRED & set(words):
            stem = "_".join(word for word in words if word not in PAIRED)
            stems.setdefault(stem, []).append(name)
    pairs = []  # of the column of names and that of values
    for own in (names for names in stems.values() if len(names) == 2):
        columns = [frame.columns[name].present()[:SOME] for name in own]
        are_names = [all(map(is_known, map(text_of, present))) for present in columns]
        metric, value = own if are_names[0] else own[::-1]
        if sum(are_names) == 1 and frame.columns[value].has_numbers():
            pairs.append((metric, value))
    taken = {name for pair in pairs for name in pair}
    if len(pairs) < 2 or {"metric", "value"} & (frame.columns.keys() - taken):
        return frame
    others = {name: column for name, column in frame.columns.items() if name not in taken}
    parts = []
    for metric, value in pairs:
        pair = {"metric": frame.columns[metric], "value": frame.columns[value]}
        part = Frame({**others, **pair}, frame.rows)
        parts.append(part.taken(frame.columns[metric].is_there()))
    shown = ", ".join(f"{value} of {metric}" for metric, value in pairs)
    long = stacked(frame, parts, f"header: {shown} are a row each")
    why = "pairs of its name and its value"
    long.roles = frame.roles | {"metric": ("metric", why), "value": ("value", why)}
    return long


# --- one table to measurements --------------------------------------------------------------------


@dataclass(slots=True)
class _Cells:
    """Cells of values: the row of each, the name of its column, and what it says."""

    row_N: Integers
    name_N: Integers
    names: list[str]
    value_N: FloatArray

    def taken(self, kept_N: Array) -> _Cells:
        return _Cells(self.row_N[kept_N], self.name_N[kept_N], self.names, self.value_N[kept_N])


class _Reading:
    """The steps from files to measurements, and what each of them leaves out.

    frame: the rows that count so far. roles: of its columns. cells: the values that count so far.
    table: {role: a text for each of these values}. spreads: {column of means: the spread of each
    row}.
    """

    def __init__(self, told: Options) -> None:
        self.told = told
        self.notes: list[str] = []
        self.rows_out: Counter[str] = Counter()
        self.cells_out: Counter[str] = Counter()
        self.rows = self.attempted = 0
        self.no_numbers: dict[str, Counter[str]] = {}
        self.shares: set[str] = set()
        self.are_means = False
        self.spreads: dict[str, FloatArray] = {}
        self.frame = Frame({}, 0)
        self.roles = Roles()
        self.cells = _Cells(NO_CODES, NO_CODES, [], np.zeros(0))
        self.table: dict[str, Column] = {}

    def read(self, sources: Sequence[Source]) -> Results:
        try:
            frames = frames_of(sources, self.told.table, self.told.baseline)
        except SeveralTables as several:
            paths = [source for source in sources if isinstance(source, str)]
            raise ValueError(_which_table(paths, self.told, several)) from None
        name = source_name(sources[0]) if len(sources) == 1 else f"{len(sources)} files"
        try:
            results = self._read(frames)
        except Open as question:
            raise ValueError(f"{name}: {self._question(frames, question)}") from None
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if (one := self._one_arm()) is not None:
            return replace(results, one_arm=f"{name}: {self._question(frames, one)}")
        return results

    def _question(self, frames: list[Frame], question: Open) -> str:
        """A question with those of its answers that end in a comparison."""
        ways = list(question.ways)
        if sum(frame.rows * len(frame.columns) for frame in frames) <= MOST_TRIED:
            told, base = self.told, self.told.baseline
            tried = [one for way in ways if (one := _completed(frames, told, way)) is not None]
            if not tried and base is not None:  # no answer has it: said of each
                found = [_completed(frames, replace(told, baseline=None), way) for way in ways]
                tried = [replace(one, what=f"{one.what or 'these rows'}; no arm is {base!r} then")
                         for one in found if one is not None]  # fmt: skip
            ways = tried or ways * (not question.otherwise)
            ways = [way for way in ways if way.size <= MOST_WORDS] or ways
        missing = _missing(ways)
        texts = [way.text for way in ways]
        if titles := next((f.tables for f in frames if f.tables and "table" in question.names), ()):
            texts.append(f"--table {quoted(titles[0])} (one of these tables)")
        shown = ", ".join(dict.fromkeys(texts))
        return f"{question.text}{shown or question.otherwise}{missing}"

    def _read(self, frames: list[Frame]) -> Results:
        series, several = _series(frames), len(frames) > 1
        frame = with_spreads_beside(joined(frames))
        frame = _with_runs_below(_with_pairs_below(frame), several)
        frame = _with_arms_below(frame, self.told.baseline)
        self.frame = replace(frame, columns=dict(frame.columns))  # as it is read again and again
        self._fill_switches()
        self.notes += self.frame.notes
        self._join_points()
        self.rows_out.update(self.frame.left_out)
        self.rows = self.frame.rows + sum(self.frame.left_out.values())
        self._choose()
        self._leave_out_parents()
        self.roles = roles_of(self.frame, self.told, several)
        self._settle_files()
        self._check_series(series)
        for name in self.roles.of("state"):
            self._leave_out_unended(name)
        self._choose_split()
        self._leave_out_summaries()
        self._leave_out_nameless()
        self._leave_out_repeats()
        self._number_seeds()
        self._average_inside()
        self._take_values()
        self._take_names()
        scales = self._scales()
        self._take_last_steps()
        return self._measured(scales)

    def _join_points(self) -> None:
        """Makes files of one run a file: those of its checkpoints, of which the last one counts,
        and the part of a log that was put aside under the time when the run was resumed.
        """
        frame, files = self.frame, self.frame.columns["file"].texts()
        names = files.present()
        told = self.told.names.values()
        if self.told.pattern is not None or "file" in itertools.chain(*told):
            return
        if self.told.baseline in names:
            return
        if frame.history:
            whole = {*names}
            found = {name: match["arm"] for name in names if (match := TIME_IN_NAME.match(name))}
            aside = {name: arm for name, arm in found.items() if arm in whole}
            if aside:
                frame.columns["file"] = files.mapped(lambda name: aside.get(name, name))
                shown = next(iter(aside))
                self.notes.append(f"file: {shown!r} is an earlier part of {aside[shown]!r}")
                return
        points = _all_matched(POINT_IN_NAME, names)
        rests = {name: match["one"] + match["two"] for name, match in points.items()}
        if len({*rests.values()}) < 2 or not all(rests.values()):
            return
        frame.columns["file"] = files.mapped(lambda name: rests[name])
        if not any(STEP.fullmatch(plain_name(name)) for name in frame.columns):
            frame.columns["step"] = files.mapped(lambda name: points[name]["point"])
        shown = next(iter(rests))
        self.notes.append(f"file: {shown!r} is a checkpoint of {rests[shown]!r}")

    def _fill_switches(self) -> None:
        """Makes a setting that is true, or not there, false where it is not there."""
        filled = []
        for name, column in self.frame.columns.items():
            if SETTING_PREFIX.match(name) and {*map(text_of, column.present())} == {"True"}:
                self.frame.columns[name] = column.texts().mapped(lambda text: text or "False")
                filled += [name] * (not column.is_there().all())
        if filled:
            self.notes.append(f"false where it is not there: {', '.join(filled[:4])}")

    def _keep_rows(self, kept: Mask, reason: str) -> None:
        if not kept.all():
            self.rows_out[reason] += int((~kept).sum())
            self.frame = self.frame.taken(kept)

    def _keep_cells(self, kept: Mask, reason: str = "") -> None:
        """reason: of all that leave; "" where they are counted already."""
        if kept.all():
            return
        if reason:
            self.cells_out[reason] += int((~kept).sum())
        self.cells = self.cells.taken(kept)
        self.table = {role: column.taken(kept) for role, column in self.table.items()}

    def _shown(self, name: str) -> str:
        return f"{name!r} ({values_of(self.frame.columns[name])})"

    # rows

    def _choose(self) -> None:
        """The rows that `where` chooses."""
        before, told = self.frame, dict[str, set[Any]]()
        for name, value in self.told.where:
            if name not in before.columns:
                shown = ", ".join(each for each in list(before.columns)[:40] if each != "file")
                raise ValueError(
                    f"--where {name}={value}: there is no column {name!r} (of {shown})"
                )
            told.setdefault(name, set()).update([value, read_cell(value).value])
        for name, values in told.items():
            kept = self.frame.columns[name].is_in(values - {None})
            self._keep_rows(kept, f"not chosen by --where {name}")
        if not self.frame.rows:
            shown = " ".join(f"{name}={value}" for name, value in self.told.where)
            there = "; ".join(f"{name} has {values_of(before.columns[name])}" for name in told)
            raise ValueError(f"--where {shown} leaves no row ({there})")

    def _leave_out_parents(self) -> None:
        """Leaves out runs that only hold others, as those over the folds of a search."""
        names = {re.sub("[^a-z]", "", name.lower()): name for name in self.frame.columns}
        above = [name for plain, name in names.items() if plain.endswith("parentrunid")]
        if above and "runid" in names:
            parents = map(text_of, self.frame.columns[above[0]].present())
            own = self.frame.columns[names["runid"]].texts()
            self._keep_rows(~own.is_in({*parents} - {""}), "of runs that only hold other runs")

    def _check_series(self, series: str) -> None:
        """ValueError, a question, where the rows of each file may be points of one run."""
        roles = self.roles
        is_open = roles.arm == ("file",) and not self.frame.history and not self.told.names
        if series and is_open and not (roles.seed or roles.block or roles.scale or roles.task):
            raise ValueError(
                f"the rows of each file rise by {self._shown(series)}: are they points of one run "
                f"(--last {series}) or runs (--seed {series})?"
            )

    def _settle_files(self) -> None:
        """What the names of files say beside a column of the arm: the seed, or what is asked for
        where rows of one run stand in several files.
        """
        roles, files = self.roles, self.frame.columns["file"].texts()
        if roles.given["file"][0] != "identifier" or len(files.present()) < 2:
            return
        if self.frame.form == LM_EVAL:
            self._take_last_evaluations()
            files = self.frame.columns["file"].texts()
        taken = {} if roles.seed or roles.runs else seeds_in_names(files.present())
        if taken:
            name, (rest, seed) = next(iter(taken.items()))
            self.frame.columns["file"] = files.mapped(lambda file: taken[file][0])
            self.frame.columns["seed of file"] = files.mapped(lambda file: taken[file][1])
            roles.seed, roles.paired = ("seed of file",), True
            roles.give("seed", roles.seed, "in the name of the file")
            self.notes.append(f"seed: in the file's name ({name!r} is {rest!r}, seed {seed})")
        roles.unsettled.append("file")

    def _take_last_evaluations(self) -> None:
        """Of the files of one model that differ in the time of the evaluation alone, the last one
        counts: it is no further run. Versions of a task that differ are parts of the task.
        """
        roles, frame = self.roles, self.frame
        files = frame.columns["file"].texts()
        found = {name: match for name in files.present() if (match := TIME_IN_NAME.match(name))}
        if "version" in frame.columns and self._vary_in(roles.task, ("version",)):
            roles.task = (*roles.task, "version")
            roles.give("task", ["version"], "versions of a task differ")
            self.notes.append("version: of a task differs, so its versions are tasks of their own")
        if not found or self.told.names:
            return
        times = files.mapped(lambda name: found[name]["seed"] if name in found else "")
        rests = files.mapped(lambda name: found[name]["arm"] if name in found else name)
        keys = (*roles.arm, *roles.task, *roles.metric)
        keys_N = refined(group_codes(frame, keys), rests.codes)
        order = np.argsort(times.values)
        rank_N = np.argsort(order)[times.codes]
        latest = np.full(int(keys_N.max()) + 1, -1)
        np.maximum.at(latest, keys_N, rank_N)
        kept = rank_N == latest[keys_N]
        if not kept.all():
            frame.columns["file"] = rests
            self._keep_rows(kept, "of earlier evaluations of the same model (--seed file: of runs)")

    def _leave_out_unended(self, name: str) -> None:
        """Leaves out runs that did not end, by a column of their state."""
        column = self.frame.columns[name].texts()
        present = {text.lower() for text in column.present()}
        others = {text for text in present if ENDED.fullmatch(text)} - HALF_ENDED
        plain = plain_name(name).removeprefix("sys_")
        are_answers = present <= {"true", "false", "0", "1", "yes", "no"}
        runs = (*self.roles.arm, *self.roles.seed)
        if are_answers and self.roles.seed and varies(group_codes(self.frame, runs), column.codes):
            self.roles.give("text", [name], "it varies inside of one run, so it is no state")
            return
        bad, unknown = [], []
        for text in column.present():
            word = text.lower().replace("_", " ")
            if plain in ("exit_code", "returncode"):
                is_bad = text not in ("0", "0.0")
            elif plain in ("crashed", "failed"):
                is_bad = word in ("true", "1", "yes")
            elif are_answers:
                is_bad = word in ("false", "0", "no")
            else:
                first = re.split(r"[:(,;]", word)[0].strip()
                is_bad = bool(NOT_ENDED.match(f"{first} ") or (word in HALF_ENDED and others))
                unknown += [text] * (not is_bad and not ENDED.fullmatch(word))
            bad += [text] * is_bad
        if unknown:
            shown = ", ".join(map(repr, unknown[:4]))
            self.notes.append(f"{name}: {shown} is taken for a run that ended")
        if column.is_in(bad).all():
            raise ValueError(f"no run ended: {name!r} is {values_of(column)} in every row")
        self._leave_out_unmeasured(column.is_in(bad))
        for text in bad:
            kept = ~self.frame.columns[name].is_in({text})
            self._keep_rows(kept, f"of runs that did not end ({name} is {text!r})")

    def _leave_out_unmeasured(self, is_bad_N: Mask) -> None:
        """Takes columns of values that stand in all rows of runs that failed, where most others are
        empty, for no values of these runs: they were not measured by any.
        """
        there = {name: self.frame.columns[name].is_there()[is_bad_N] for name in self.roles.values}
        whole = [name for name, own in there.items() if own.all()]
        blank = sum(not own.any() for own in there.values())
        if is_bad_N.any() and whole and 2 * blank > len(there) and not self.roles.is_long:
            self.roles.values = tuple(name for name in self.roles.values if name not in whole)
            self.roles.give("setting", whole, "it stands where a run failed too")
            shown = ", ".join(whole[:SHOWN])
            self.notes.append(f"{shown}: no value of a run, as it stands where a run failed too")

    def _choose_split(self) -> None:
        """The rows of the test set, where a column names several splits."""
        name = self.roles.split
        words = self.frame.columns[name].texts().present() if name else []
        if len(words) < 2:
            return
        for wanted in ({"test", "testing"}, {*HELD_OUT, "evaluation"}):
            tests = [word for word in words if wanted & set(re.split(r"[^a-z]+", word.lower()))]
            if len(tests) == 1:
                self._check_runs_elsewhere(name, tests[0], words)
                others = ", ".join(word for word in words if word != tests[0])
                self.notes.append(f"{name}: the rows of {tests[0]!r} count (--where {name}=…)")
                kept = self.frame.columns[name].is_in(tests)
                self._keep_rows(kept, f"of another split ({others})")
                return
            if tests:
                break
        self.roles.task = (*self.roles.task, name)
        self.roles.given[name] = ("task", "splits are parts of the task")

    def _check_runs_elsewhere(self, name: str, test: str, words: Sequence[str]) -> None:
        """ValueError, a question, where the test set has one run of each arm and another split has
        several, which a column counts that is empty in the rows of the test set.
        """
        roles, frame = self.roles, self.frame
        cells = group_codes(frame, (*roles.arm, *roles.task, *roles.metric))
        is_test = frame.columns[name].is_in({test})
        if not is_test.any() or np.bincount(cells[is_test]).max() > 1 or roles.arms_are_columns:
            return
        counters = [
            each for each in roles.unsettled
            if _crosses(each) or RUN_AXIS.fullmatch(plain_name(each))
        ]  # fmt: skip
        for other, column in itertools.product(words, (*roles.seed, *counters)):
            own, is_other = frame.columns[column], frame.columns[name].is_in({other})
            there = own.is_there()
            if other == test or (there & is_test).any() or not there[is_other].all():
                continue
            runs = refined(cells, own.codes)[is_other]
            if len(own.taken(is_other).present()) < 2 or np.bincount(runs).max() > 1:
                continue
            ways = [
                Way(f"each {column} {what}", {role: (column,)}, where=((name, other),))
                for role, what in (("block", "crosses the arms"), ("seed", "is a run"))
            ]
            ways.append(Way("one run of each arm", where=((name, test),)))
            raise Open(
                f"{name} {test!r} has one run of each arm, and {other!r} has several, by "
                f"{self._shown(column)}: which of them counts? ", ways, ()
            )  # fmt: skip

    def _leave_out_summaries(self) -> None:
        """Leaves out rows that are means or deviations of others."""
        roles = self.roles
        parts = {"seed": roles.seed, "arm": roles.arm, "task": roles.task, "block": roles.block}
        for what, names in parts.items():
            for name in names:
                texts = self.frame.columns[name].texts().present()
                summaries = {text for text in texts if SUMMARIES.fullmatch(text)}
                others = map(read_cell, {*texts} - summaries)
                is_name = what == "block" and any(cell.value is None for cell in others)
                if (what == "arm" or is_name) and not any(
                    SPREADS.fullmatch(text) for text in summaries
                ):  # an arm or a setting may be called all, sum or mean
                    summaries = {text for text in summaries if self._are_means_of(name, text)}
                summaries |= _summaries_of(texts) if what == "arm" else set()
                if summaries and name != "file" and len(texts) - len(summaries) > 1:
                    shown = ", ".join(sorted(summaries)[:4])
                    kept = ~self.frame.columns[name].is_in(summaries)
                    self._keep_rows(kept, f"that summarise other rows ({what} {shown})")

    def _are_means_of(self, name: str, text: str) -> bool:
        """Whether the values of the rows of one label are means of those of the other labels."""
        roles, checks = self.roles, list[bool]()
        others = [n for n in (*roles.arm, *roles.task, *roles.block, *roles.metric) if n != name]
        is_mean_N = self.frame.columns[name].is_in({text})
        groups_N = group_codes(self.frame, others)
        for column in (self.frame.columns[value].numbers() for value in roles.values):
            there = ~np.isnan(column)
            sums = np.bincount(groups_N, np.where(there & ~is_mean_N, column, 0))
            counts = np.bincount(groups_N, there & ~is_mean_N)
            for row in np.flatnonzero(there & is_mean_N).tolist():
                if counts[groups_N[row]] > 1:
                    mean = sums[groups_N[row]] / counts[groups_N[row]]
                    checks.append(abs(column[row] - mean) <= CLOSE * max(abs(mean), CLOSE))
        return len(checks) > 0 and 4 * sum(checks) >= 3 * len(checks)

    def _leave_out_nameless(self) -> None:
        """Leaves out rows without an arm, and rows without a seed where others have one."""
        for names, what in ((self.roles.arm, "an arm"), (self.roles.seed, "a seed")):
            there = np.zeros(self.frame.rows, bool)
            for name in names:
                there |= self.frame.columns[name].where(
                    lambda value: text_of(value).lower() not in NO_ARM
                )
            of_arms = np.bincount(group_codes(self.frame, self.roles.arm), there) > 0
            is_rare = 4 * there.sum() < len(there) and 2 * of_arms.sum() < len(of_arms)
            is_rare &= "seed" not in self.told.names
            if names and what == "a seed" and (is_rare or not there.any()):
                self.roles.seed = ()
                if there.any():
                    self.roles.give("setting", names, "most rows have none")
                    self.roles.unsettled += names
            elif names:
                if what == "a seed" and self.roles.arm:  # arms that never have one are kept
                    arms = group_codes(self.frame, self.roles.arm)
                    there |= np.bincount(arms, there)[arms] == 0
                shown = " and ".join(map(repr, names))
                self._keep_rows(there, f"without {what} ({shown} blank)")
        if not self.frame.rows:
            raise ValueError("no row names an arm: give the column with --arm")

    def _leave_out_repeats(self) -> None:
        """Leaves out rows without seeds that repeat another row of their arm in all values, with
        enough digits that no two runs agree in them, and differ from it in times alone; also those
        of all but one text of a column that nothing needs, where it changes no value of any arm.
        """
        roles, frame = self.roles, self.frame
        digits = [middle_digits(frame.columns[name]) for name in roles.values]
        if roles.seed or roles.runs or roles.is_long or frame.history or not roles.arm or (
            len(digits) < 2 or sum(digits) < LEAST_REPEATED or frame.rows > MOST_REPEATED
        ):  # fmt: skip
            return
        others = [name for name in frame.columns if roles.given[name][0] != "time"]
        for name in roles.of("text"):
            column = frame.columns[name].texts()
            rest_N = group_codes(frame, [each for each in others if each != name])
            present = np.unique(column.codes)
            cells = np.unique(np.stack([rest_N, column.codes]), axis=1, return_counts=True)[1]
            is_full = len(present) * distinct(rest_N) == len(cells) == frame.rows
            if len(present) > 1 and is_full:
                first = column.at(0)
                what = f"that are those of {name} {first!r} again, with equal values"
                self._keep_rows(column.is_in({first}), what)
                return
        rows_N = group_codes(frame, others)
        first_N = np.zeros(frame.rows, bool)
        first_N[np.unique(rows_N, return_index=True)[1]] = True
        self._keep_rows(first_N, "that repeat another row of their arm in all values")

    def _number_seeds(self) -> None:
        """Numbers the seeds of each task, where each task has seeds of its own: so that the first
        runs of all tasks are one run.
        """
        roles, frame = self.roles, self.frame
        seeds = math.prod(len(frame.columns[name].values) for name in roles.seed)
        most = max((len(frame.columns[name].values) for name in roles.task), default=0)
        if "seed" in self.told.names or not roles.seed:
            return
        tasks_N, seeds_N = group_codes(frame, roles.task), group_codes(frame, roles.seed)
        is_few = not 1 < most <= seeds / 2 or seeds_N.max() < 2 * tasks_N.max() + 1
        if is_few or varies(seeds_N, tasks_N):
            self._number_submissions()
            return
        order = np.unique(frame.columns[roles.seed[0]].numbers(), return_inverse=True)[1]
        starts_N = tasks_N * (int(order.max()) + 1)
        pairs, place_N = np.unique(starts_N + order, return_inverse=True)
        why = "each task has others, so its runs are numbered by them"
        self._take_seed_numbers(place_N - np.searchsorted(pairs, starts_N), why)
        if not varies(seeds_N, group_codes(frame, roles.arm)):
            roles.paired = False  # no two arms share a seed
        roles.seed = roles.seed[:1]

    def _number_submissions(self) -> None:
        """Numbers the runs of an arm in each task, where names that pair nothing are others in each
        task: else no run would have all tasks.
        """
        roles, frame = self.roles, self.frame
        if roles.paired or not roles.task or len(roles.seed) > 1:
            return
        column = frame.columns[roles.seed[0]]
        arms_N = group_codes(frame, roles.arm)
        cells_N = group_codes(frame, (*roles.arm, *roles.task))
        runs_N = refined(arms_N, column.codes)  # of an arm
        _, first, of_cell_N = np.unique(
            refined(cells_N, column.codes), return_index=True, return_inverse=True
        )
        tasks_A = np.bincount(arms_N[np.unique(cells_N, return_index=True)[1]])
        tasks_R = np.bincount(runs_N[first])
        arm_R = arms_N[np.unique(runs_N, return_index=True)[1]]
        has_all_A = np.bincount(arm_R, tasks_R == tasks_A[arm_R]) > 0
        if has_all_A.all():
            return  # each arm has a run with all of its tasks
        order = np.lexsort((first, cells_N[first]))
        starts = np.searchsorted(cells_N[first][order], cells_N[first][order])
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order)) - starts
        why = "runs of an arm have other names in each task, so they are numbered"
        self._take_seed_numbers(place[of_cell_N], why)

    def _take_seed_numbers(self, seed_N: Integers, why: str) -> None:
        name, numbers = self.roles.seed[0], range(int(seed_N.max()) + 1)
        self.frame.columns[name] = Column([*map(str, numbers)], seed_N.astype(np.int32))
        self.notes.append(f"{name}: {why}")

    def _average_inside(self) -> None:
        """Blocks that repeat one run, as the episodes or questions that it is tested on, or the
        settings that share the splits of a cross-validation, are parts of the task: the values of a
        run are averaged over them, and count once.
        """
        roles, told = self.roles, self.told.names.get("block", ())
        of_splits = any(roles.given[name][1] == SHARED_SPLITS for name in roles.seed)
        inside = tuple(name for name in told if of_splits or is_tested_on(name))
        repeats = self._vary_in(roles.seed, inside) and self._vary_in(inside, roles.seed)
        if not roles.seed or not inside or not repeats:
            return
        roles.block = tuple(name for name in roles.block if name not in inside)
        roles.task = (*roles.task, *inside)
        why = "all share the splits" if of_splits else "they repeat one run"
        roles.give("task", inside, f"averaged inside of each run: {why}")
        shown = " and ".join(map(repr, inside))
        self.notes.append(f"the values of a run are averaged over {shown}, as {why}")

    def _vary_in(self, groups: Sequence[str], names: Sequence[str]) -> bool:
        """Whether rows that are alike in some columns differ in others."""
        return varies(group_codes(self.frame, groups), group_codes(self.frame, names))

    # values

    def _take_values(self) -> None:
        """The cells of all columns of values that are numbers; the others are counted."""
        parts: list[_Cells] = []
        understood: Counter[str] = Counter()
        are_times = not self.roles.direction
        for name in self.roles.values:
            column = self.frame.columns[name]
            if _has_dictionaries(column):
                are_times = False
                parts.append(self._of_dictionaries(column))
                continue
            self.attempted += self.frame.rows
            units, own = Counter[str](), Counter[str]()
            counts = column.counts().tolist()
            for value, cell, count in zip(column.values, column.cells, counts, strict=True):
                if count and cell.value is None:
                    self._no_number(value, count, name)
                elif count:
                    units[cell.unit] += count
                    own[cell.note] += count
                    self.shares |= {name} if cell.is_percent else set()
            are_times &= bool(units) and units.keys() <= SECONDS.keys()
            if len(units) > 1:
                shown = ", ".join(unit or "none" for unit in units)
                raise ValueError(f"column {name!r} has numbers with several units ({shown})")
            if self.told.spread or header_kind(name):  # `acc (SD)`: cells such as 0.71 (0.01)
                own[SPREAD_NOTE] += own.pop(BRACKETS_NOTE, 0)
            understood += own
            if name in self.roles.spreads or own[SPREAD_NOTE]:
                self._take_spreads(name, column)
            numbers = column.numbers()
            there = np.flatnonzero(~np.isnan(numbers))
            parts.append(_Cells(there, np.zeros(len(there), np.int64), [name], numbers[there]))
        self.cells = _joined_cells([self.cells, *parts])
        if not len(self.cells.value_N):
            raise ValueError("no value is a finite number")
        for note, count in understood.items():
            if note:
                self.notes.append(f"understood: {count:,} cells are {note}; the number counts")
        self.are_means = 2 * understood[SPREAD_NOTE] > len(self.cells.value_N)
        self._leave_out_spreadless()
        self.table = self._texts()
        tasks = self.table["task"]
        if are_times and not any(name_facts(text_of(each)).higher for each in tasks.present()):
            self.table["higher"] = recoded(["lower"], 0 * tasks.codes)
        self._take_caption()
        metrics = self.table["metric"].texts()
        bad = {
            name: role for name in metrics.values
            if name not in self.told.named and (role := name_role(name)) and not (
                role == "identifier" and (self.cells.value_N[metrics.is_in({name})] % 1).any()
            )
        }  # fmt: skip
        if bad and not metrics.is_in(bad).all():
            for name, role in bad.items():
                kept = ~self.table["metric"].is_in({name})
                self._keep_cells(kept, f"of {name}, a {role}, not a metric")

    def _leave_out_spreadless(self) -> None:
        """Leaves out columns without a spread where most columns are arms that have one."""
        names = self.cells.names
        with_spread = [name in self.spreads for name in names]
        if self.roles.arms_are_columns and self.are_means and sum(with_spread) > 1:
            kept = np.array(with_spread)[self.cells.name_N]
            self._keep_cells(kept, "of columns without a spread, where the arms have one")

    def _take_caption(self) -> None:
        """Takes the metric of all values from the caption, where no name says it."""
        roles, names = self.roles, self.cells.names
        metric = metric_said(self.frame.caption)
        own, tasks = self.table["metric"], self.table["task"]
        are_tasks = {*own.present()} <= {"", *names} and not roles.is_long
        is_said = bool(roles.metric or roles.direction) or not are_tasks
        if not metric or is_said or any(map(is_known, names)):
            return
        values_N = self.cells.value_N
        if name_facts(metric).unit == "share" and not (
            0 <= values_N.min() <= values_N.max() <= 100
        ):
            return
        if own.present():
            self.table["task"] = joined_texts([tasks, own])
        self.table["metric"] = recoded([metric], 0 * own.codes)
        self.notes.append(f"metric: {metric}, as the caption says")

    def _take_spreads(self, name: str, column: Column) -> None:
        """The spreads of a column of means: behind ±, in brackets, or in the column beside it."""
        are_brackets = bool(self.told.spread or header_kind(name))
        inside = [
            cell.bracketed if are_brackets and cell.spread is None else cell.spread
            for cell in column.cells
        ]
        spread_N = np.array(inside, np.float64)[column.codes]  # None is NaN
        beside = self.frame.columns.get(self.roles.spreads.get(name, ""))
        if beside is not None:
            of_beside = [cell.is_percent for cell in beside.cells]
            of_own = [cell.is_percent for cell in column.cells]
            power_N = np.array(of_beside)[beside.codes] * 1 - np.array(of_own)[column.codes]
            other_N = beside.numbers() * 100.0**power_N
            spread_N = np.where(np.isnan(spread_N), other_N, spread_N)
        if not np.isnan(spread_N).all():
            self.spreads[name] = np.abs(spread_N)

    def _no_number(self, value: Any, count: int, name: str) -> None:
        if is_empty(value):
            self.cells_out["empty"] += count
        else:
            self.no_numbers.setdefault(name, Counter())[text_of(value)[:24]] += count

    def _of_dictionaries(self, column: Column) -> _Cells:
        """The metrics of each row: a dictionary each."""
        places: dict[str, int] = {}
        rows, names, values = [], [], []
        for row, code in enumerate(column.codes.tolist()):
            metrics = column.values[code]
            if isinstance(metrics, dict) and metrics.get(MAIN, 0) is None:
                self.attempted += 1
                self._no_number(None, 1, MAIN)
                continue  # the program has no result of this task
            for key, value in metrics.items() if isinstance(metrics, dict) else ():
                self.attempted += 1
                is_other = isinstance(value, str | list | dict | bool)
                number = None if is_other else read_cell(value).value
                if number is None:
                    self._no_number(type(value).__name__ if is_other else value, 1, key)
                    continue
                rows.append(row)
                names.append(places.setdefault(key, len(places)))
                values.append(number)
        return _Cells(
            np.array(rows, np.int64), np.array(names, np.int64), list(places), np.array(values)
        )

    def _texts(self) -> dict[str, Column]:
        """{role: a column of texts with a cell for each value}."""
        roles, frame = self.roles, self.frame
        own = recoded(self.cells.names, self.cells.name_N.astype(np.int32))
        runs = (roles.runs,) if roles.runs else ()
        table = {
            "arm": own if roles.arms_are_columns else self._joined_texts(roles.arm),
            "seed": self._joined_texts(roles.seed or runs),
            "block": self._joined_texts(roles.block), "task": self._joined_texts(roles.task),
            "metric": self._joined_texts(roles.metric), "scale": self._joined_texts(roles.scale),
            "higher": self._joined_texts((roles.direction,) if roles.direction else ()),
            "samples": self._joined_texts((roles.test_size,) if roles.test_size else ())
        }  # fmt: skip
        is_dict = any(_has_dictionaries(frame.columns[name]) for name in roles.values)
        if roles.arms_are_columns:
            higher = {name_facts(name).higher for name in self.cells.names}
            if len(higher) == 1 and None not in higher and not roles.direction:
                table["higher"] = recoded(["higher" if higher.pop() else "lower"], 0 * own.codes)
            return table
        if roles.is_long and not is_dict:
            return table
        what = "metric" if roles.task and not roles.metric else "task"
        if roles.task and roles.metric:
            what = "metric" if is_dict else "task"
        if what == "task" and roles.task:  # several columns of values for each name of a metric
            own = joined_texts([table["task"], own])
        if what == "task" and roles.metric and not is_dict:  # the row's metric is of its own value
            known = [name for name in self.cells.names if is_known(name)]
            its = [name for name in known if re.search("score|value|result", plain_name(name))]
            metrics = table["metric"]
            values = [
                name if its and name in known and name != its[0] else metric
                for metric in metrics.values for name in self.cells.names
            ]  # fmt: skip
            codes = metrics.codes * len(self.cells.names) + self.cells.name_N
            table["metric"] = recoded(values, codes.astype(np.int32))
        table[what] = own
        pairs = [frame.parts[name] for name in own.values if name in frame.parts]
        if what != "task" or len(pairs) < len(own.values) or not pairs:
            return table
        # Of names of two rows, one is the metric and the other one the task, or the arm
        places = [n for n in (1, 0) if all(is_known(pair[n]) for pair in pairs)]
        if places:
            above = recoded([pair[1 - places[0]] for pair in pairs], own.codes)
            are_arms = not roles.arm or self._are_arms(above, table["arm"])
            other = "arm" if are_arms else "task"
            table["task"] = self._joined_texts(roles.arm if are_arms else ())
            table["metric"] = recoded([pair[places[0]] for pair in pairs], own.codes)
            table[other] = above
            if are_arms and roles.arm:
                roles.give("task", roles.arm, "the arms are in the header")
                roles.task, roles.arm = roles.arm, ()
            self.notes.append(f"header: its rows are {other}s and metrics ({', '.join(pairs[0])})")
        return table

    def _are_arms(self, above: Column, rows: Column) -> bool:
        """Whether names of the header, and not those of the rows, are the arms: they have the
        baseline, or the rows are data sets and they are not.
        """
        names, labels = above.present(), rows.present()
        if self.told.baseline is not None:
            return self.told.baseline in names and self.told.baseline not in labels
        data_sets = [bool(DATA_SETS.search(plain_name(text_of(each)))) for each in labels]
        return 2 * sum(data_sets) > len(data_sets) and not any(
            DATA_SETS.search(plain_name(text_of(name))) for name in names
        )

    def _joined_texts(self, names: Sequence[str]) -> Column:
        """The cells of some columns in one text, for each value."""
        rows = self.cells.row_N
        if not names:
            return Column([""], np.zeros(len(rows), np.int32))
        return joined_texts([self.frame.columns[name].texts() for name in names]).taken(rows)

    # names

    def _take_names(self) -> None:
        """Takes seeds and what else a pattern says from the arms' names."""
        table, arms, roles = self.table, self.table["arm"], self.roles
        if self.told.pattern is not None:
            found = _by_pattern(arms, self.told.pattern)
            kept = arms.where(lambda name: name in found)
            self._keep_cells(kept, "of arms whose name the pattern does not match")
            table, arms = self.table, self.table["arm"]
            groups = next(iter(found.values()))
            if "task" in groups and not roles.is_long and not roles.metric:
                table["metric"] = table["task"]
            for group in groups:
                texts = [found.get(name, groups)[group] for name in arms.values]
                table[group] = recoded(texts, arms.codes)
            return
        files, paths = roles.arm == ("file",), arms.present()
        if files and (parts := _all_matched(PART_IN_NAME, paths)):
            raise ValueError(
                f"{paths[0]!r} is the part of one {parts[paths[0]][1]}, and parts of an evaluation "
                "are no runs: give one file a run, or --pattern '(?P<arm>…)(?P<seed>…)'"
            )
        taken = {} if self.told.baseline in paths else seeds_in_paths(paths)
        taken = taken or seeds_in_names(paths)
        if "arm" not in self.told.names and not (self.told.names if files else roles.task):
            _check_parts(arms.present(), taken, self.told.baseline, files=files)
        if not taken:  # also where other arms have no seed
            for name in arms.present():
                if match := SEED_IN_NAME.match(name):
                    taken[name] = (match["arm"] + match["rest"], match["seed"])
            if not roles.seed and len({arm for arm, _ in taken.values()}) == len(taken):
                taken = {}  # each is the only one of its arm
        if not taken:
            return
        own = {arm for arm, _ in taken.values()}
        means = {
            name for name in {*arms.present()} - taken.keys()
            if (match := SUMMARY_BEHIND.fullmatch(name)) and match[1] in own
        }  # fmt: skip
        self._keep_cells(
            ~arms.is_in(means), f"of means of runs ({', '.join(sorted(means)[:SHOWN])})"
        )
        table, arms = self.table, self.table["arm"]
        example = next(iter(taken))
        shown = f"({example!r} is {taken[example][0]!r}, seed {taken[example][1]})"
        if roles.seed:  # the name ends in the seed of its row, or its row has none
            column = table["seed"]
            codes, of_cells = refined(arms.codes, column.codes), list[str]()
            for row in np.unique(codes, return_index=True)[1].tolist():
                text = column.at(row)
                in_name = taken.get(arms.at(row), ("", text))[1]
                if text and read_cell(text).value != read_cell(in_name).value:
                    return
                of_cells.append(in_name)
            table["seed"] = recoded(of_cells, codes.astype(np.int32))
            self.notes.append(f"arm: without the seed in its name {shown}")
        else:
            table["seed"] = arms.mapped(lambda name: taken.get(name, ("", ""))[1])
            self.notes.append(f"seed: in the arm's name {shown}")
        table["arm"] = arms.mapped(lambda name: taken.get(name, (name, ""))[0])

    def _scales(self) -> dict[str, float]:
        """{text: number} of the scales. Those that differ by rounding to whole batches are one, the
        most frequent; where each arm has one of its own they are no scales.
        """
        column = self.table["scale"]
        scales = scale_numbers(map(text_of, column.values))
        counts = Counter[float]()
        for text, count in zip(column.values, column.counts().tolist(), strict=True):
            counts[scales[text_of(text)]] += count
        ordered = sorted(counts)
        if len(ordered) < 2 or ordered[0] <= 0 or " " in "".join(scales):
            return scales
        groups = list[list[float]]()
        for number in ordered:
            if not groups or number > groups[-1][0] * (1 + SAME_SCALE):
                groups.append([])
            groups[-1].append(number)
        if self._is_outcome(groups, scales):
            return {"": 0.0}
        alike: dict[float, float] = {}
        for group in groups:
            alike |= dict.fromkeys(group, max(group, key=lambda number: counts[number]))
            if len(group) > 1:
                shown = ", ".join(f"{number:g}" for number in group)
                self.notes.append(f"scale: {shown} are one, as runs end on whole batches")
        return {text: alike[number] for text, number in scales.items()}

    def _is_outcome(self, groups: list[list[float]], scales: Mapping[str, float]) -> bool:
        """Whether fewer than half of the scales are of two arms, so that they are no scales but
        what each run came to, as in a given time: that is said. Where they rise in each arm they
        may be steps, and are asked for.
        """
        names, arms, column = self.roles.scale, self.table["arm"], self.table["scale"]
        if "scale" in self.told.names or not names or len(arms.present()) < 2:
            return False
        place = {number: n for n, group in enumerate(groups) for number in group}
        places = np.array([place[scales[text_of(text)]] for text in column.values])[column.codes]
        pairs = pairs_of(places, arms.codes)
        if 2 * int((np.bincount(pairs[0]) > 1).sum()) > len(groups) or len(groups) < 2:
            return False
        name, shown = names[0], values_of(column)
        self.notes.append(
            f"{name}: no scale but a count of each run, as its values ({shown}) hardly repeat over "
            f"the arms (--scale {name} compares at each)"
        )
        self.roles.give("count", names, "its values hardly repeat over the arms")
        self.roles.scale, self.table["scale"] = (), self._joined_texts(())
        order = np.lexsort((self.cells.row_N, self._key("task", "metric"), arms.codes))
        is_same = self._key("arm", "task", "metric")[order]
        rises = np.diff(places[order])[np.diff(is_same) == 0] > 0
        self.roles.unsettled += names if len(rises) and rises.all() else ()
        return True

    # steps

    def _take_last_steps(self) -> None:
        """The last value of each run, where a step column says which it is."""
        roles, name = self.roles, self.roles.step
        if not name or name not in self.frame.columns or name in (*roles.scale, *roles.block):
            return
        is_told = "step" in self.told.names
        is_tracked = name == self.frame.history or plain_name(name) in TRACKER_STEPS
        is_tracked |= {"tag", "step", "value"} <= {*map(plain_name, self.frame.columns)}
        steps_N = self.frame.columns[name].numbers()[self.cells.row_N]
        keys_N = self._key("arm", "seed", "block", "task", "metric", "scale")
        is_open = varies(keys_N, steps_N)
        if not is_told and not is_tracked:
            roles.unsettled += [name] if is_open else []
            return
        if is_open or self.frame.history:
            what = "told" if is_told else "a tracker's step"
            self.notes.append(f"{name}: the last row of each run counts ({what})")
        steps_N = np.nan_to_num(steps_N, nan=-np.inf)
        parts = ("task",) if roles.is_long or roles.task else ()
        runs_N = self._key("arm", "seed", "block", "scale", *parts)
        kept = np.ones(len(keys_N), bool)
        if is_open:
            kept = self._at_the_end(steps_N, keys_N)
            earlier = int((~kept).sum())
            self.cells_out[f"earlier than the last {name} of its run"] += earlier
            kept &= ~self._without_an_end(steps_N, keys_N, runs_N, kept)
        elif not self.frame.history and not self.table["seed"].present():
            runs_N = np.unique(self.cells.row_N, return_inverse=True)[1].astype(np.int64)
        self._keep_cells(kept & self._long_enough(steps_N, kept, runs_N))
        if is_open or self.frame.history:
            self._name_training()

    def _name_training(self) -> None:
        """Calls the metrics of a history that have one of the same name on other data beside them,
        as `loss` beside `val_loss`, those of the training set.
        """
        for role in ("task", "metric"):
            names = self.table[role].present()
            plain = set(map(plain_name, names))
            of_training = [
                name for name in names if name not in self.told.named
                and any(f"{held}_{plain_name(name)}" in plain for held in HELD_OUT)
            ]  # fmt: skip
            if of_training:
                column = self.table[role]
                values = [
                    f"train {text}" if text in of_training else text for text in column.values
                ]
                self.table[role] = recoded(values, column.codes)
                self.notes.append(f"of the training set: {', '.join(of_training[:SHOWN])}")

    def _at_the_end(self, steps_N: FloatArray, keys_N: Integers) -> Mask:
        """The cells at the last step of their run and metric; of a history the last one alone.

        Several of one run without a history are several runs, or a question: none is dropped.
        """
        kept = np.ones(len(keys_N), bool)
        told = {name for names in self.told.names.values() for name in names}
        others = [n for n in self.roles.of("step") if n not in (self.roles.step, *told)]
        orders = [steps_N, *(self.frame.columns[n].numbers()[self.cells.row_N] for n in others)]
        places = keys_N
        for order in orders:
            order = np.where(np.isnan(order), -np.inf, order)
            kept &= order == _largest(order, keys_N, kept)[keys_N]
            places = refined(places, np.unique(order, return_inverse=True)[1])
        if self.frame.history:
            rows_N = self.cells.row_N.astype(np.float64)
            kept &= rows_N == _largest(rows_N, keys_N, kept)[keys_N]
        else:
            of = "seed" if self.table["seed"].present() else ""
            self._ask(places, np.bincount(places)[places] > 1, of, None)
        return kept

    def _without_an_end(
        self, steps_N: FloatArray, keys_N: Integers, runs_N: Integers, kept: Mask
    ) -> Mask:
        """The kept cells of a metric that most runs have at their last step, and this run has not:
        the value of an earlier step is not that of its end.
        """
        ends = _largest(steps_N, runs_N, kept)
        is_end = steps_N >= ends[runs_N]
        metrics_N = self._key("task", "metric")
        at_end, of = (np.bincount(metrics_N, weights) for weights in (kept & is_end, kept))
        lacks: Mask = kept & ~is_end & (2 * at_end > of)[metrics_N]
        if lacks.any():
            column = self.table["metric"]
            column = column if column.present() else self.table["task"]
            for code, count in enumerate(np.bincount(column.codes[lacks]).tolist()):
                reason = f"of {text_of(column.values[code])}, which is empty where the run ended"
                self.cells_out[reason] += count
        return lacks

    def _long_enough(self, steps_N: FloatArray, kept: Mask, runs_N: Integers) -> Mask:
        """Without runs that ended early: where at least half of the runs of a task end at one step,
        those of an arm that end before it although another run of the arm does not.
        """
        arms = self.table["arm"]
        tasks_N = self._key("task") if self.roles.is_long or self.roles.task else 0 * runs_N
        good = np.ones(len(kept), bool)
        ends = _largest(steps_N, runs_N, kept)
        if not np.isfinite(ends).all():
            return good
        arm_of, task_of = np.zeros((2, len(ends)), np.int64)
        arm_of[runs_N], task_of[runs_N] = arms.codes, tasks_N
        planned = _largest(ends, task_of, ends == ends)[task_of]
        enough = ends >= planned * (1 - SAME_SCALE)
        share = np.bincount(task_of, enough) / np.bincount(task_of)
        complete = set(zip(arm_of[enough].tolist(), task_of[enough].tolist(), strict=True))
        for task in np.flatnonzero(share < 0.5).tolist():
            here = ends[task_of == task]
            self.notes.append(f"runs end at different steps, {here.min():g} to {here.max():g}")
        for run in np.flatnonzero(~enough & (share[task_of] >= 0.5)).tolist():
            name, end = text_of(arms.values[arm_of[run]]), f"{ends[run]:g}"
            if (arm_of[run], task_of[run]) in complete:
                here = (runs_N == run) & kept
                good &= ~here
                reason = f"of a run of {name} that ended at {end} of {planned[run]:g}"
                self.cells_out[reason] += int(here.sum())
            else:
                self.notes.append(f"{name} ended at {end}, others at {planned[run]:g}")
        return good

    # measurements

    def _key(self, *roles: str) -> Integers:
        """A number for each value; equal where the texts of all these roles are equal."""
        codes = np.zeros(len(self.cells.row_N), np.int64)
        for role in roles:
            column = self.table[role]
            if len(column.values) > 1:
                codes = refined(codes, column.codes)
        return codes

    def _measured(self, scales: Mapping[str, float]) -> Results:
        has_seeds = bool(self.table["seed"].present())
        if has_seeds and not self.roles.seed and self.told.pattern is None:
            there, arms_N = self.table["seed"].is_there(), self.table["arm"].codes
            there |= np.bincount(arms_N, there)[arms_N] == 0  # arms that never have one are kept
            self._keep_cells(there, "without a seed")
        self._keep_one_each(has_seeds)
        if not has_seeds:
            self._check_double_keys()
        roles, table, cells = self.roles, self.table, self.cells
        if has_seeds:
            seed_N, seeds = _seed_numbers(table["seed"])
        else:
            seed_N, seeds = self._run_numbers(), {}
        self._say_layout(has_seeds, seed_N)
        self._say_search()
        arms, arm_N = _names(table["arm"], "")
        tasks, task_N = _names(table["task"], "task")
        metrics, metric_N = _names(table["metric"], "value")
        blocks, block_N = _names(table["block"], "")
        higher = [_direction(text, roles.direction) for text in table["higher"].values]
        sizes = [int(read_cell(text).value or 0) for text in table["samples"].values]
        samples_N = np.array(sizes, np.int64)[table["samples"].codes]
        samples_N[samples_N < 2] = 0
        lists = self._lists()
        if lists is not None:
            lengths = np.array([0 if one is None else len(one) for one in lists], np.int64)
            samples_N = np.where(samples_N == 0, lengths, samples_N)
        numbers = np.array([scales[text_of(text)] for text in table["scale"].values])
        runs_N, sd_N, missing = self._means(has_seeds)
        return Results(
            arms=arms, tasks=tasks, metrics=metrics, arm_N=arm_N, seed_N=seed_N, task_N=task_N,
            metric_N=metric_N, value_N=cells.value_N, scale_N=numbers[table["scale"].codes],
            samples_N=samples_N, higher_N=np.array(higher, np.int64)[table["higher"].codes],
            block_N=block_N, scales=_scale_names(scales, table["scale"]), account=self._account(),
            notes=tuple(dict.fromkeys(self.notes)), per_sample=lists,
            costs=any(plain_name(name) in COSTS for name in roles.scale),
            paired=has_seeds and roles.paired and not roles.runs,
            blocks=blocks if roles.block else (), block_columns=roles.block, seeds=seeds,
            shares=frozenset(self.shares if not roles.is_long else ()),
            are_means=runs_N is None and not (has_seeds or roles.runs) and (
                self.are_means or self._counts_runs() or bool(missing)
            ), runs_N=runs_N, sd_N=sd_N, missing=missing, splits=self._splits(),
            named_tasks=bool(roles.task) and 2 * sum(map(is_known, tasks)) <= len(tasks)
        )  # fmt: skip

    def _splits(self) -> dict[str, tuple[str, frozenset[str]]]:
        """{arm: the column of splits that nothing needs, and those that its rows are of}."""
        arms, of_arms = self.table["arm"], dict[str, set[str]]()
        for name in self.roles.of("text"):
            column = self.frame.columns.get(name)
            is_of_splits = TEST_SET.fullmatch(plain_name(name)) is not None
            if column is None or not is_of_splits or len(column.present()) < 2:
                continue
            texts = column.texts().taken(self.cells.row_N)
            for arm, code in pairs_of(arms.codes, texts.codes).T.tolist():
                own = of_arms.setdefault(text_of(arms.values[arm]), set())
                own |= {texts.values[code]} - {""}
            return {arm: (name, frozenset(own)) for arm, own in of_arms.items()}
        return {}

    def _counts_runs(self) -> bool:
        """Whether a column says of how many runs each row is the mean."""
        counts = [
            name for name in self.roles.of("count")
            if name in self.frame.columns and counts_runs(name) and "_" in plain_name(name)
        ]  # fmt: skip
        return any((self.frame.columns[name].numbers() > 1).any() for name in counts)

    def _means(self, has_seeds: bool) -> tuple[Integers | None, FloatArray | None, str]:
        """Of values that are means of runs: how many runs each is of, their standard deviations,
        and what must be told for these. ValueError where options say it of what are no means.
        """
        told, roles, cells = self.told, self.roles, self.cells
        is_told = bool(told.runs or told.spread or "runs" in told.names)
        option = "--runs and --spread are for means with a spread, one row each; here "
        none = "no value has one"
        rows_N = np.bincount(self._key("arm", "block", "task", "metric", "scale"))
        if "lm-eval" in self.frame.form:
            self.notes.append("stderr: over the test samples of one run, so no spread of runs")
        is_run = has_seeds or bool(roles.runs)
        if not self.spreads or is_run or rows_N.max() > 1:
            if is_told:
                what = "runs have seeds" if is_run else "arms have several rows"
                raise ValueError(option + (what if self.spreads else none))
            self.are_means |= any(map(MEAN_WORD.search, map(plain_name, self.spreads)))
            return None, None, ""
        spread_N, kind_N = np.full(len(cells.row_N), np.nan), np.zeros(len(cells.row_N), "U4")
        for place, name in enumerate(cells.names):
            if name in self.spreads:
                own_N = cells.name_N == place
                spread_N[own_N] = self.spreads[name][cells.row_N[own_N]]
                beside = roles.spreads.get(name)
                kind = spread_kind(beside) if beside else header_kind(name)
                kind_N[own_N] = told.spread or kind or ""
        there_N = ~np.isnan(spread_N)
        groups_N = self._key("task", "metric", "scale")
        for group in np.unique(groups_N[there_N]).tolist():
            own_N = there_N & (groups_N == group)
            if not roles.run_count and (  # a table that counts runs has their spread
                samples := samples_behind(cells.value_N[own_N], spread_N[own_N])
            ):
                there_N &= ~own_N
                name = cells.names[cells.name_N[own_N][0]]
                none = (
                    f"{name}: its spreads are what {samples:,} test samples of one run leave, "
                    "√(p(1-p)/n), no spread of runs"
                )
                self.notes.append(none)
        spread_N[~there_N] = np.nan
        if not there_N.any():
            if is_told:
                raise ValueError(option + none)
            return None, None, ""
        runs_N = np.full(len(cells.row_N), told.runs, np.int64)
        kind, runs = spread_said(self.frame.caption), runs_said(self.frame.caption)
        if kind and (there_N & (kind_N == "")).any():
            kind_N[kind_N == ""] = kind
            self.notes.append(f"spread: {kind}, as the caption says")
        if runs and not (told.runs or roles.run_count):
            runs_N[:] = runs
            self.notes.append(f"runs: {runs} of each mean, as the caption says (--runs)")
        if roles.run_count and not told.runs:
            counts = self.frame.columns[roles.run_count].numbers()[cells.row_N]
            runs_N = np.nan_to_num(counts).astype(np.int64)
        missing = []
        if not (there_N & (runs_N > 0)).any():
            named = [name for name in roles.of("count") if plain_name(name) in ("n", "count")]
            column = f" (--runs {named[0]} if that column counts them)" if named else ""
            missing.append(f"--runs N{column}")
        if (there_N & (kind_N == "")).any():
            missing.append("--spread sd, sem or ci95")
        if missing:
            return None, None, " and ".join(missing)
        sd_N = np.full(len(spread_N), np.nan)
        for kind in np.unique(kind_N[there_N]).tolist():
            own_N = there_N & (kind_N == kind)
            sd_N[own_N] = standard_deviations(spread_N[own_N], runs_N[own_N], kind)
        return runs_N, sd_N, ""

    def _one_arm(self) -> Open | None:
        """Why there is one arm, with the columns that could name it; None where there are more."""
        arms, roles = self.table["arm"].present(), self.roles
        if len(arms) > 1:
            return None
        what = f"there is one arm{f', {text_of(arms[0])}' if arms and text_of(arms[0]) else ''}: "
        if self.frame.history:
            return Open(
                f"{what}the file is the history of one run by {self.frame.history!r}; give the "
                "files of the other runs too", (), ()
            )  # fmt: skip
        no_arms = ("metric", "value", "spread", "time", "direction", "state", "seed", "step",
                   "count", "test_size", "per_sample")  # fmt: skip
        others = dict[str, int]()  # {column: its rows for each value}
        for name, (role, reason) in roles.given.items():
            column = self.frame.columns.get(name)
            is_open = role not in no_arms and name not in roles.arm and name != "file"
            count = len(column.present()) if column is not None else 0
            if column is not None and is_open and count > 1 and not reason.startswith("it holds"):
                others[name] = int(column.is_there().sum()) // count
        files = len(self.frame.columns["file"].present())
        names = [name for name in others if name not in roles.task]
        is_search = self.frame.rows >= LEAST_SEARCH
        if files > 1 or is_search or any(others[name] > 1 for name in names):
            names = [name for name in names if others[name] > 1]
        ways = [Way("each file is one", {"arm": ("file",)})] * (
            files > 1 and roles.arm != ("file",)
        )
        is_wide = len(roles.values) > 1 and not (roles.is_long or roles.arms_are_columns)
        known = sum(
            is_known(name) and not DERIVED_WORDS.search(plain_name(name)) for name in roles.values
        )
        ends: dict[str, list[str]] = {}
        for name in [each for each in self.frame.columns if roles.given.get(each, ("",))[0] in (
            "metric", "spread") and not is_known(each)]:  # fmt: skip
            ends.setdefault(name.rpartition("_")[2], []).append(name)
        grid = {end: own for end, own in ends.items() if len(own) > 1 and spread_kind(end) is None}
        if is_wide and len(grid) > 1:  # `lin_cov`, `lin_size`, `geo_cov`, `geo_size`
            ways += [
                Way(f"the {end} of each", {"arm": ("columns",), "value": tuple(own)}, "block")
                for end, own in itertools.islice(grid.items(), 3)
            ]
        elif is_wide and 3 * known <= len(roles.values) and (
            not known or are_of_one_size(self.frame, roles)
        ):  # fmt: skip
            ways.append(Way(f"{', '.join(roles.values[:4])}", {"arm": ("columns",)}, "block"))
        of_metric: dict[frozenset[str], set[str]] = {}  # {words of a metric: what else is named}
        for name in roles.values:
            if is_bare_metric(name.replace("@", "_at_")):
                continue
            rest = frozenset(task_stem(name).split("_")) - STAGES
            of_metric.setdefault(deciding_words(name), set()).add(" ".join(sorted(rest)))
        several = {words: rest for words, rest in of_metric.items() if len(rest) > 1 and words}
        if is_wide and not ways and len(of_metric) == len(several) == 1:
            ways.append(Way("columns of one metric are the arms", {"arm": ("columns",)}, "block"))
        elif is_wide and not ways:
            for words in list(several)[:3]:
                own = tuple(name for name in roles.values if deciding_words(name) == words)
                ways.append(Way(f"the {' '.join(sorted(words))} of each",
                                {"arm": ("columns",), "value": own}, "block"))  # fmt: skip
        tasks = [name for name in others if name in roles.task]
        for name in [*names[:6], *tasks[:6]]:
            what_of = f"now what is tested on: {values_of(self.frame.columns[name])}"
            ways.append(Way(what_of if name in tasks else what_of.partition(": ")[2],
                            {"arm": (name,)}, "block"))  # fmt: skip
        return Open(
            f"{what}a comparison needs two: ", ways, (),
            otherwise="give the files of the other arms too, or their rows" + (
                "; each row has settings of its own, as in a search of hyper-parameters, which "
                "has no arms" if is_search and others else "")
        )  # fmt: skip

    def _keep_one_each(self, has_seeds: bool) -> None:
        """One value for each run and metric. ValueError, a question, where rows of one run differ
        in a column without a role, and for two values that nothing tells apart.
        """
        cells, keys_N = self.cells, self._key("arm", "seed", "block", "task", "metric", "scale")
        if self.roles.runs or (has_seeds and not (self.roles.paired and self._shares_seeds())):
            arms_N = self._key("arm", "block", "task", "metric", "scale")
            several_N = np.bincount(arms_N)[arms_N] > 1
            self._ask(arms_N, several_N, "", None if self.roles.runs else self._chosen_settings())
        counts = np.bincount(keys_N)
        if counts.max() == 1:
            return
        order = np.lexsort((cells.row_N, keys_N))
        first = np.append(True, keys_N[order][1:] != keys_N[order][:-1])
        value_of = np.zeros(len(counts))
        value_of[keys_N[order[first]]] = cells.value_N[order[first]]
        differs = cells.value_N != value_of[keys_N]
        several_N = counts[keys_N] > 1
        if has_seeds and len(keys_N) < 2 * len(counts):  # few rows of one value repeat others
            several_N &= np.isin(keys_N, np.unique(keys_N[differs]))
        self._ask(keys_N, several_N, "seed" if has_seeds else "", None)
        if has_seeds and differs.any():
            n = int(np.flatnonzero(differs)[0])
            shown = {role: text_of(own.at(n)) for role, own in self.table.items()}
            of = " ".join(filter(None, (shown["task"], shown["metric"])))
            raise ValueError(
                f"arm {shown['arm']!r}, seed {shown['seed']} has two values of "
                f"{of or 'the value'}: {value_of[keys_N[n]]:g} and {cells.value_N[n]:g}, and no "
                "column tells them apart; name one with --seed, --block, --scale, --arm or --where"
            )
        if has_seeds:
            kept = np.zeros(len(keys_N), bool)
            kept[order[first]] = True
            self._keep_cells(kept, "that repeat another row of their run")

    def _check_double_keys(self) -> None:
        """ValueError, a question, where one task has several rows for each arm and the others have
        one: these may be two test sets of one name, and no runs.
        """
        roles = self.roles
        if len(roles.task) != 1 or roles.runs:
            return
        tasks, keys_N = self.table["task"], self._key("arm", "block", "task", "metric", "scale")
        counts, own = np.bincount(keys_N), Counter[str]()
        for code in np.unique(tasks.codes).tolist():
            of_task = counts[np.unique(keys_N[tasks.codes == code])]
            if len(of_task) < 2 or of_task.min() != of_task.max():
                return
            own[text_of(tasks.values[code])] = int(of_task[0])
        double = [task for task, count in own.items() if count > 1]
        single = [task for task, count in own.items() if count == 1]
        if not double or not single:
            return
        (name,) = roles.task
        ways = [
            Way(what, where=tuple((name, task) for task in of))
            for what, of in (("the others", single), ("its rows are runs", double))
        ]
        count = own[double[0]]
        raise Open(
            f"{name} {double[0]!r} has {count} rows for each arm, and {single[0]!r} has one: they "
            f"may be {count} test sets of one name, or runs; name a column that tells them apart, "
            "or choose ", ways, ()
        )  # fmt: skip

    def _shares_seeds(self) -> bool:
        """Whether some seed is of two arms."""
        return varies(self.table["seed"].codes, self.table["arm"].codes)

    def _chosen_settings(self) -> set[str]:
        """Columns whose values an experiment chooses, so that runs that differ in them are no
        repeated runs, although each has a seed or a number of its own.
        """
        roles, frame = self.roles, self.frame
        settings = set() if "seed" in self.told.names else {*roles.of("setting")} - {*roles.task}
        columns = {name: frame.columns[name] for name in roles.unsettled if name in frame.columns}
        return {
            name for name, column in columns.items() if _crosses(name)
            or (name in settings and not are_measured(column))
        }  # fmt: skip

    def _ask(self, keys_N: Integers, several_N: Mask, of: str, only: set[str] | None) -> None:
        """ValueError, a question, where rows of one run, or of one arm, differ in a column
        without a role. of: `seed` where it is a run. only: where one of these columns does.
        """
        if not several_N.any():
            return
        rows_N, groups_N, roles = self.cells.row_N[several_N], keys_N[several_N], self.roles
        differing = []
        for name in dict.fromkeys([*roles.unsettled, *self._crossing()]):
            if name in self.frame.columns:
                column = self.frame.columns[name].texts().taken(rows_N)
                there = column.is_there()  # a setting that some runs do not state is not another
                differing += [name] if varies(groups_N[there], column.codes[there]) else []
        if not differing or not (only is None or only & {*differing}):
            return
        names = tuple(self._needed(differing, rows_N, groups_N))
        column = self.frame.columns[names[0]].taken(rows_N)
        at = np.flatnonzero(column.is_there())
        pairs = pairs_of(groups_N[at], column.codes[at])[0]
        group = pairs[1:][pairs[1:] == pairs[:-1]][0]  # one that has two values
        n = int(np.flatnonzero(several_N)[np.flatnonzero(groups_N == group)[0]])
        arms, files = self.table["arm"], self.frame.columns["file"].present()
        arm = text_of(arms.at(n))
        seed = text_of(self.table["seed"].values[self.table["seed"].codes[n]])
        whose = f"one run (arm {arm!r}, seed {seed})" if of else f"one arm ({arm!r})"
        labels, is_one = self._labels(names), len(arms.present()) < 2
        steps = [each for each in names if roles.given[each][0] == "step"]
        if is_one and not labels and (steps or all(map(_crosses, names))):
            raise self._one_arm() or ValueError("there is one arm")
        told = self.told.names
        is_labelled = bool(labels) and len(names) > MOST_NAMED and not steps
        plain = plain_name(names[0]) if len(names) == 1 else ""
        own = roles.arm if roles.arm != ("file",) and not is_one else ()
        is_finer = bool(own) and not self._vary_in(names, own)
        is_wide = is_one and len(roles.values) > 2 and not is_known(roles.values[0])
        are_unnamed = all(re.fullmatch(r"column \d+", each) for each in names)
        are_settings = not are_unnamed and any(
            roles.given[each][0] in ("setting", "count") or plain_name(each) in ARM_WORDS
            for each in names
        )
        is_other = not (steps or is_labelled)
        arms_N = self.table["arm"].codes
        can_count = not steps and all(
            is_one or roles.given[each][0] == "identifier" or _crosses(each)
            or (are_whole(self.frame.columns[each])
                and (are_unnamed or roles.given[each][0] in ("metric", "seed")))
            or not varies(group_codes(self.frame, (each,))[self.cells.row_N], arms_N)
            for each in names
        )  # fmt: skip
        rest = tuple(each for each in names if each not in steps)
        is_last, last = plain in ("epoch", "epochs", "episode"), tuple((steps or names)[:1])
        block = _beside(roles.task, (*told.get("block", ()), *names))
        chosen = self._commonest(names, rows_N)
        rows = self.frame.rows
        alone = of_each_row(self.frame, roles) or tuple(
            each for each in roles.seed if len(self.frame.columns[each].present()) == rows
        )
        split = self._split(names)
        outer = tuple(each for each in names if each not in split.get("seed", ()))
        folds = tuple(filter(_crosses, names))
        parts = tuple(name for name in names if self._parts_arms(name))
        crossing = tuple(name for name in names if name not in (*parts, *steps))
        is_inside = bool(of) and all(map(is_tested_on, names))
        ways = [
            (bool(steps) or is_last, Way("the last row of each run", {"step": last}, "task")),
            (bool(steps and rest), Way("the last row of each run, and what crosses the arms",
                                       {"step": last} | _beside(roles.task, rest), "block")),
            (bool(steps and rest and own), Way("what crosses the arms", block, "block")),
            (bool(steps), Way("compare at each", {"scale": last}, "task")),
            (is_wide and is_other, Way(f"{', '.join(roles.values[:3])} are the arms", {
                "arm": ("columns",), "block": names}, "block")),
            (is_other and bool(own) and plain in ARM_WORDS, Way("the arms, and the tasks", {
                "arm": names, "task": (*roles.task, *own)}, "block")),
            (is_other and (is_one or is_finer), Way("the arms", {"arm": names}, "arm")),
            (bool(split), Way("what counts or crosses, and what is tested on", split)),
            ("seed" in split, Way("what counts runs, and what crosses the arms", {
                "seed": split.get("seed", ()), "block": outer})),
            (is_other and not split and bool(folds) and len(folds) < len(names),
             Way("what counts runs, and what crosses the arms", {
                "seed": (*roles.seed, *folds)} | _beside(roles.task, (
                    *told.get("block", ()), *(each for each in names if each not in folds))))),
            (bool(labels), Way("it names each of them", {"arm": tuple(labels)})),
            (is_inside, Way("averaged inside of each run",
                            {"task": (*roles.task, *names)}, "task")),
            (is_other and not is_inside, Way("what crosses the arms", block, next(iter(block)))),
            (can_count and not is_labelled and not are_settings,
             Way("what counts runs", {"seed": (*roles.seed, *names)}, "seed")),
            (is_other and not is_one and bool(roles.arm),
             Way("parts of the arm", {"arm": (*roles.arm, *names)}, "arm")),
            (is_other and not is_inside,
             Way("parts of the task", {"task": (*roles.task, *names)}, "task")),
            (is_other and bool(own) and 0 < len(parts) < len(names),
             Way("parts of the arm, and what crosses the arms",
                 {"arm": (*own, *parts)} | _beside(roles.task, crossing), "block")),
            *((is_other, way) for way in self._other_arms(names, own)),
            (are_settings and bool(alone) and not any(
                is_design(self.frame.columns[each].taken(self.cells.row_N), arms_N)
                for each in names
            ), Way("each row is a run", {"seed": alone})),  # of a search, which has no design
            (roles.arm != ("file",) and len(files) > 1 and "file" not in names,
             Way("each file is one", {"arm": ("file",)})),
            *((not is_labelled, Way("", {}, "where", one)) for one in chosen),
        ]  # fmt: skip
        shown = " and ".join(map(self._shown, names[:6]))
        shown += f" and {len(names) - 6} more columns" if len(names) > 6 else ""
        settings_N = group_codes(self.frame, names)
        alone_N = refined(groups_N, settings_N[rows_N])
        own_N = pairs_of(settings_N[self.cells.row_N], arms_N)[0]
        is_search = not of and are_settings and np.bincount(alone_N).max() == 1
        if is_search and 2 * distinct(own_N) > len(own_N) and not is_one:
            shown += ", each with settings of its own as in a search, so no run is repeated"
        raise Open(
            f"rows of {whose if arm else 'one arm'} differ in {shown}: say what "
            f"{'they are' if len(names) > 1 else 'it is'} with ",
            [way for is_open, way in ways if is_open], names, chosen[0], split=split
        )  # fmt: skip

    def _split(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Roles of columns of two kinds: those that count the runs, or cross the arms, in each cell
        of the others, and these, which are parts of the task. {} where all are of one kind.
        """
        counters = tuple(name for name in names if self._counts(name))
        crossing = tuple(name for name in names if _crosses(name) and name not in counters)
        rest = tuple(name for name in names if name not in (*counters, *crossing))
        if not rest or not (counters or crossing) or any(
            self.roles.given[name][0] == "setting" or plain_name(name) in ARM_WORDS for name in rest
        ):  # fmt: skip
            return {}
        found = {"seed": (*self.roles.seed, *counters)} if counters else {}
        found |= {"block": crossing} if crossing else {}
        return found | {"task": (*self.roles.task, *rest)}

    def _counts(self, name: str) -> bool:
        """Whether a column counts, from 0 or 1 on, and is called neither a step nor a question."""
        numbers = np.unique(self.frame.columns[name].numbers())
        plain = plain_name(name)
        counts = len(numbers) > 1 and numbers[0] in (0, 1) and (np.diff(numbers) == 1).all()
        if not counts or CROSSING.fullmatch(plain) or re.search("epoch|step|frame|token", plain):
            return False
        return is_design(self.frame.columns[name].taken(self.cells.row_N), self.table["arm"].codes)

    def _parts_arms(self, name: str) -> bool:
        """Whether an arm shares no value of a column with any other arm."""
        codes = self.frame.columns[name].texts().codes[self.cells.row_N]
        pairs = pairs_of(codes, self.table["arm"].codes)
        is_shared = np.bincount(pairs[0])[pairs[0]] > 1
        return bool((np.bincount(pairs[1], is_shared)[pairs[1]] == 0).any())

    def _other_arms(self, names: Sequence[str], own: Sequence[str]) -> list[Way]:
        """Comparisons of another one of the columns that differ, inside of all others."""
        if "arm" in self.told.names or self.told.baseline is not None or not own:
            return []
        counts = {
            name: len(self.frame.columns[name].present()) for name in names
            if self.roles.given[name][0] != "identifier" and not _crosses(name)
        }  # fmt: skip
        fewest = sorted((name for name in counts if counts[name] > 1), key=counts.__getitem__)
        rest = (*self.told.names.get("block", ()), *own)
        return [
            Way(f"to compare {name!r}", {"arm": (name,)} | _beside(
                self.roles.task, (*rest, *(each for each in names if each != name))
            ), "block")
            for name in fewest[:SHOWN] if 3 * counts[name] <= self.frame.rows
        ]  # fmt: skip

    def _commonest(self, names: Sequence[str], rows_N: Integers) -> list[Chosen]:
        """Values of the columns that together choose the rows of most runs of several arms; with
        other values of the first column, those of its next ones.
        """
        all_codes = group_codes(self.frame, names)
        codes = all_codes[self.cells.row_N]
        arms, runs = (
            np.bincount(pairs_of(codes, self._key(*keys))[0])
            for keys in (("arm",), ("arm", "seed"))
        )
        rows, here = np.bincount(codes), np.unique(all_codes[rows_N]).tolist()
        here.sort(key=lambda code: (arms[code] > 1, runs[code], rows[code]), reverse=True)
        texts = [self.frame.columns[name].texts() for name in names]
        found: dict[str, Chosen] = {}
        for code in here[:SOME]:
            row = int(np.flatnonzero(all_codes == code)[0])
            values = [text.at(row) for text in texts]
            found.setdefault(values[0], tuple(zip(names, values, strict=True)))
        return list(found.values())[: 1 if len(names) == 1 else MOST_CHOICES]

    def _needed(self, differing: list[str], rows_N: Integers, groups_N: Integers) -> list[str]:
        """Those of the columns that tell rows apart which do not follow from the others."""
        columns = {name: self.frame.columns[name].texts().taken(rows_N) for name in differing}
        kept = list(differing)
        order = {
            each: (-len(column.present()), _crosses(each), -n)
            for n, (each, column) in enumerate(columns.items())
        }
        for name in sorted(differing, key=order.__getitem__):
            rest_N = groups_N
            for other in [each for each in kept if each != name]:
                rest_N = refined(rest_N, columns[other].codes)
            if len(kept) > 1 and not varies(rest_N, columns[name].codes):
                kept.remove(name)
        return kept

    def _labels(self, names: Sequence[str]) -> list[str]:
        """A column of texts from which the arm and these columns follow: it may name the arms."""
        roles, frame = self.roles, self.frame
        parts = [*(roles.arm if roles.arm != ("file",) else ()), *names]
        runs = 2 if roles.seed and distinct(group_codes(frame, roles.seed)) > 1 else 1
        for name, (role, _) in roles.given.items():
            if role not in ("text", "identifier") or name in parts or name == "file":
                continue
            present, labels_N = frame.columns[name].present(), group_codes(frame, (name,))
            is_text = all(isinstance(value, str) for value in present)
            if role == "identifier" and len(present) == frame.rows:
                continue  # a run each, not an arm
            if is_text and sum(map(len, present[:SOME])) > LONG_TEXT * len(present[:SOME]):
                continue
            if is_text and runs * len(present) <= frame.rows and not any(
                varies(labels_N, frame.columns[each].codes) for each in parts
            ):  # fmt: skip
                return [name]
        return []

    def _crossing(self) -> list[str]:
        """Columns of whole numbers or identifiers that have the same values in two arms or more:
        what they count are no runs.
        """
        found, roles, arms_N = [], self.roles, self.table["arm"].codes
        if len(self.table["arm"].present()) < 2:
            return []
        for name, (role, _) in roles.given.items():
            is_nameless = re.fullmatch(r"(column|unnamed:?|level)?\W*\d*", name, re.I) is not None
            is_used = name in ("file", *roles.metric, *roles.arm)
            if role not in ("identifier", "metric") or is_used or is_nameless:
                continue
            column = self.frame.columns[name]
            is_metric = roles.is_long or is_known(name) or METRIC_PREFIX.match(name)
            if role == "metric" and (is_metric or not are_whole(column)):
                continue
            column = column.taken(self.cells.row_N)
            is_counted = role == "metric" and were_counted(column, arms_N, roles)
            if is_design(column, arms_N) and not is_counted:
                found.append(name)
        return found

    def _run_numbers(self) -> Integers:
        """Numbers of the runs of an arm: by its rows, so that the tasks of one row are one run."""
        rows_N = self.cells.row_N
        is_wide = not self.roles.is_long and not self.roles.task
        keys = ("arm", "block", "scale") if is_wide else ("arm", "block", "task", "metric", "scale")
        keys_N = self._key(*keys)
        order = np.lexsort((rows_N, keys_N))
        keys_N, rows_N = keys_N[order], rows_N[order]
        starts = np.append(True, keys_N[1:] != keys_N[:-1])
        is_new = starts | np.append(True, rows_N[1:] != rows_N[:-1])
        counted = np.cumsum(is_new)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = counted - np.maximum.accumulate(np.where(starts, counted, 0))
        return numbers

    def _lists(self) -> tuple[Array | None, ...] | None:
        if not self.roles.per_sample:
            return None
        column = self.frame.columns[self.roles.per_sample]
        arrays = [np.asarray(one) if isinstance(one, list) else None for one in column.values]
        return tuple(arrays[code] for code in column.codes[self.cells.row_N].tolist())

    def _say_layout(self, has_seeds: bool, seed_N: Integers) -> None:
        roles = self.roles
        unpaired = roles.seed if has_seeds and not roles.paired else ()
        if names := (roles.runs,) if roles.runs else unpaired:
            self.notes.append(
                f"runs: {' and '.join(map(repr, names))} counts or names the runs of an arm, which "
                f"are not paired with those of another arm (--seed {' '.join(names)} if they share "
                "a seed)"
            )
        elif not has_seeds and len(seed_N) and seed_N.max() > 0:
            within = f" in each {' and '.join(map(repr, roles.block))}" if roles.block else ""
            self.notes.append(
                f"runs: no column says the seed, so the rows of an arm{within} are its runs, which "
                "are not paired with those of another arm"
            )
        if has_seeds and any(re.search(r"fold|cv|split", plain_name(name)) for name in roles.seed):
            self.notes.append(
                "runs: the folds of a cross-validation share training data, so the intervals are "
                "rather too narrow"
            )
        if roles.arms_are_columns:
            shown = ", ".join(map(text_of, self.table["arm"].present()[:6]))
            self.notes.append(f"arm: the columns {shown} are the arms")

    def _say_search(self) -> None:
        """A note where rows that were told to be runs have settings of their own."""
        if "seed" not in self.told.names or self.frame.rows < LEAST_SEARCH:
            return
        of_arms, arms_N = self.roles.arm, group_codes(self.frame, self.roles.arm)
        chosen = [name for name in self.roles.of("setting") if name in self.frame.columns]
        own = [name for name in chosen if name not in (*of_arms, *self.roles.block)
               and varies(arms_N, group_codes(self.frame, (name,)))]  # fmt: skip
        runs = distinct(group_codes(self.frame, (*self.roles.arm, *own)))
        if own and 2 * runs > self.frame.rows:
            self.notes.append(
                f"runs: most have settings of their own ({', '.join(own[:SHOWN])}), as in a "
                "search, so a difference is between what was tried with each arm, not at equal "
                "settings"
            )

    def _account(self) -> Account:
        roles, columns = self.roles, []
        given = self.frame.original or {
            name: roles.given.get(name, ("text", "")) for name in self.frame.columns
        }
        for name, (role, reason) in given.items():
            if name == "file" and role == "identifier":
                continue
            if roles.arms_are_columns and name in roles.values:
                role, reason = "arm", "the arms are the columns"
            elif role == "metric" and name in roles.values and not roles.is_long:
                reason = "by its name" if is_known(name) else "a column of numbers"
            elif role == "metric" and name not in (*roles.values, *roles.metric):
                role, reason = "setting", "not a value"
            columns.append(ColumnRole(name=name, role=role, reason=reason or "nothing needs it"))
        used = distinct(self.cells.row_N)
        for name, texts in self.no_numbers.items():
            shown = ", ".join(repr(text) for text, _ in texts.most_common(4))
            more = ", …" if len(texts) > 4 else ""
            self.cells_out[f"no finite number ({name} is {shown}{more})"] += texts.total()
        self.rows_out["without a value that counts"] += self.frame.rows - used
        return Account(
            form=self.frame.form, columns=tuple(columns), rows=self.rows,
            rows_used=used, rows_left_out=_counts(self.rows_out), cells=self.attempted,
            cells_used=len(self.cells.value_N), cells_left_out=_counts(self.cells_out)
        )  # fmt: skip


def _crosses(name: str) -> bool:
    """Whether a column is called as what crosses the arms."""
    return CROSSING.fullmatch(plain_name(name)) is not None


def _summaries_of(names: Sequence[str]) -> set[str]:
    """Names that are those of others with a word for a summary, one of them for a spread, behind
    it: `decode`, `decode_mean`, `decode_stddev`.
    """
    found: dict[str, dict[str, str]] = {}
    for name in names:
        if (match := SUMMARY_BEHIND.fullmatch(name)) and match[1] in names:
            found.setdefault(match[1], {})[match[2]] = name
    return {
        name for own in found.values() if any(map(SPREADS.fullmatch, own)) for name in own.values()
    }


def _beside(tasks: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Options for what crosses the arms: files are conditions of a test, which is the task."""
    blocks = tuple(name for name in names if name != "file")
    found = {"block": blocks} if blocks else {}
    return found | ({"task": (*tasks, "file")} if "file" in names else {})


def _completed(frames: list[Frame], told: Options, way: Way, rounds: int = 4) -> Way | None:
    """An answer with all that it needs, so that no other question follows; None where it ends in a
    refusal, or compares nothing.
    """
    own = replace(
        told, names={**told.names, **way.names}, where=(*told.where, *way.where),
        pattern=way.pattern or told.pattern
    )  # fmt: skip
    reading = _Reading(own)
    try:
        results = reading._read(frames)
    except Open as more:
        grows = rounds and way.grows
        return _completed(frames, told, way.grown(more), rounds - 1) if grows else None
    except ValueError:
        return None
    are_told = "task" in own.names or way.pattern is not None
    baseline = told.baseline and baseline_arm(results.arms, told.baseline)
    has_baseline = told.baseline is None or baseline is not None
    is_shared = not are_told or _share_tasks(results, baseline)
    if results.blocks:  # enough blocks, and some of the baseline's, have two arms
        pairs = pairs_of(results.block_N, results.arm_N)
        arms = np.bincount(pairs[0])
        is_shared &= 2 * int((arms > 1).sum()) >= min(int((arms > 0).sum()), 2 * LEAST_MATCHED)
        if baseline:
            own = pairs[0][pairs[1] == results.arms.index(baseline)]
            is_shared &= bool((arms[own] > 1).any())
    is_compared = reading._one_arm() is None and has_baseline and is_shared
    return replace(way, missing=results.missing) if is_compared else None


def _missing(ways: Sequence[Way]) -> str:
    """What all answers need beside them, as their values are means with spreads."""
    needed = {way.missing for way in ways}
    text = needed.pop() if len(needed) == 1 else ""
    return text and f"; the values are means with their spreads, so a verdict needs {text} too"


def _which_table(paths: Sequence[str], told: Options, several: SeveralTables) -> str:
    """The tables of a file from which one is chosen, each with what it leads to: those that lead to
    a comparison, of the baseline where one has it.
    """
    most = max(MOST_NAMED, MOST_WORDS // len(several.labels))
    for baseline in dict.fromkeys((told.baseline, None)):
        ways = [
            (label, way) for label in several.labels
            for way in _ways_of(paths, replace(told, table=label, baseline=baseline))[:most]
        ]  # fmt: skip
        texts = [" ".join(f"--table {quoted(label)} {way.text}".split()) for label, way in ways]
        missing = _missing([way for _, way in ways])
        if texts:
            lost = f"; none of them has an arm {told.baseline!r}" * (baseline != told.baseline)
            return f"{several.text}: choose one with {', '.join(texts)}{lost}{missing}"
    return str(several)


def _ways_of(paths: Sequence[str], told: Options) -> list[Way]:
    """What one of several tables leads to: its arms, or answers of the question that it raises."""
    try:
        frames = frames_of(paths, told.table, told.baseline)
        if sum(frame.rows * len(frame.columns) for frame in frames) > MOST_TRIED:
            return [Way("")]
        reading = _Reading(told)
        results = reading._read(frames)
    except Open as question:
        ways = question.ways
    except ValueError:
        return []
    else:
        one = reading._one_arm()
        more = ", …" * (len(results.arms) > MOST_NAMED)
        shown = ", ".join(results.arms[:MOST_NAMED]) + more
        ways = one.ways if one else [Way(shown, missing=results.missing)]
    tried = [_completed(frames, told, way) for way in ways]
    return [way for way in tried if way is not None]


def _share_tasks(results: Results, baseline: str | None) -> bool:
    """Whether two arms, one of them the baseline, have all tasks, so that an average compares."""
    there = np.zeros((len(results.arms), len(results.tasks)), bool)
    there[results.arm_N, results.task_N] = True
    complete = [arm for arm, row in zip(results.arms, there, strict=True) if row.all()]
    return len(complete) > 1 and (baseline is None or baseline in complete)


def _has_dictionaries(column: Column) -> bool:
    return any(isinstance(value, dict) for value in column.values)


def _joined_cells(parts: Sequence[_Cells]) -> _Cells:
    """The cells of all columns; a name of several is one."""
    names: list[str] = []
    places = []
    for part in parts:
        places.append(part.name_N + len(names))
        names += part.names
    return _Cells(
        np.concatenate([part.row_N for part in parts]), np.concatenate(places), names,
        np.concatenate([part.value_N for part in parts])
    )  # fmt: skip


def _counts(counter: Mapping[str, int]) -> tuple[LeftOut, ...]:
    return tuple(LeftOut(reason=reason, number=n) for reason, n in counter.items() if n)


def _largest(values_N: FloatArray, groups_N: Integers, kept: Mask) -> FloatArray:
    """The largest of the kept values of each group."""
    found = np.full(int(groups_N.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(found, groups_N[kept], values_N[kept])
    return found


def _names(column: Column, empty: str) -> tuple[tuple[str, ...], Integers]:
    """The names that some cell has, in order of appearance, and the place of each cell's."""
    texts = column.texts()
    seen, first, inverse = np.unique(texts.codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    names = tuple(texts.values[seen[n]] or empty for n in order.tolist())
    return names, rank[inverse]


# --- seeds, scales and patterns in names ----------------------------------------------------------


def seeds_in_names(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """{name: (arm, seed)} where every name ends in, begins with or holds a seed; else {}.

    A bare number at the end, or `s1`, is one only where every arm has the same numbers, two or
    more, that count from 0 or 1, or have an `s0`.
    """
    for pattern in (TIME_IN_NAME, SEED_IN_NAME, SEED_FIRST, ONLY_SEED):
        if found := _all_matched(pattern, names):
            if pattern is TIME_IN_NAME:  # when each was written, beside what names it
                rests = [match["arm"] for match in found.values()]
                if inner := seeds_in_paths(rests):
                    return {name: inner[rest] for name, rest in zip(names, rests, strict=True)}
            taken = {}
            for name, match in found.items():
                rest = match.groupdict().get("rest") or ""
                taken[name] = (match["arm"] + rest, match["seed"])
            if len(set(taken.values())) == len(taken):
                return taken
    for pattern in (SHORT_SEED, IN_BRACKETS, SHORT_FIRST):
        if not (found := _all_matched(pattern, names)):
            continue
        seeds: dict[str, set[int]] = {}
        for match in found.values():
            seeds.setdefault(match["arm"], set()).add(int(match["seed"]))
        first = next(iter(seeds.values()))
        counts = sorted(first) in (list(range(len(first))), list(range(1, len(first) + 1)))
        counts |= 0 in first and all(re.search(r"[-_./ ]s[-_]?\d+$", name) for name in names)
        if len(seeds) > 1 and len(first) > 1 and counts and all(s == first for s in seeds.values()):
            return {name: (match["arm"], match["seed"]) for name, match in found.items()}
    return {}


def _all_matched(pattern: re.Pattern[str], names: Sequence[str]) -> dict[str, re.Match[str]]:
    """{name: its match} where every name has one; else {}."""
    found = {name: match for name in names if (match := pattern.match(name))}
    return found if len(found) == len(names) else {}


def seeds_in_paths(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """`seeds_in_names` of paths without the folders that all of them begin or end with; {} where
    this leaves nothing out, or makes two of them one.
    """
    parts = [name.split("/") for name in names]
    start, end = shared_start(parts), shared_start([each[::-1] for each in parts])
    short = ["/".join(each[start : len(each) - end]) for each in parts]
    if not start + end or len(set(short)) < len(short) or not all(short):
        return {}
    taken = seeds_in_names(short)
    return {name: taken[own] for name, own in zip(names, short, strict=True)} if taken else {}


def _check_parts(
    names: Sequence[str], taken: Mapping[str, tuple[str, str]], baseline: str | None, *, files: bool
) -> None:
    """A question, where the names of arms have two parts that cross each other: two levels of
    folders, around the seed, or where one is of known data sets. One may be what is tested on.
    """
    both, seed = "(?P<{}>[^/]+)/(?P<{}>.+", r"(?P<seed>\d+)"
    levels = {tuple(taken.get(name, (name, ""))[0].split("/", 1)) for name in names}
    counts = [len({one[n] for one in levels if len(one) > n}) for n in (0, 1)]
    files = files and len(levels) > max(counts) and min(counts) > 1
    of_seeds = files and all(ONLY_SEED.match(name.partition("/")[0]) for name in names)
    found = [match for name in names if (match := SEED_INSIDE.fullmatch(name))]
    patterns = {f"^[^/]*?{seed}/{both})$": True} if of_seeds else {}
    if found and len(found) == len(names):
        patterns[f"^(?P<{{}}>.+?){found[0]['gap']}{seed}{found[0]['next']}(?P<{{}}>.+)$"] = False
    end = rf"?)[-_./ ]+[A-Za-z]*[-_=# ]*{seed}$" if taken else ")$"
    patterns |= {f"^{both}{end}": True} if files else {}
    for sign in "_- " if files else "_-/ ":
        patterns[f"^(?P<{{}}>[^{sign}]+){sign}(?P<{{}}>.+{end}"] = False
        patterns[f"^(?P<{{}}>.+?){sign}(?P<{{}}>[^{sign}]+{end}"] = False
    for pattern, is_sure in patterns.items():
        matches = [re.match(pattern.format("arm", "task"), name) for name in names]
        pairs = {(match["arm"], match["task"]) for match in matches if match}
        sides = [sorted({pair[n] for pair in pairs}) for n in (0, 1)]
        sets = [sum(DATA_SETS.search(plain_name(each)) is not None for each in s) for s in sides]
        few, many = sorted(map(len, sides))
        is_inside = "(?P<seed>" in pattern[:-1] and not pattern.endswith(end)
        is_grid = len(pairs) == few * many and (is_inside or max(sets) > 1)
        is_grid |= is_sure and len(pairs) > many
        if None in matches or few < 2 or not is_grid:
            continue
        if baseline in {taken.get(name, (name, ""))[0] for name in names}:
            return
        ways = [
            Way(f"the arms are {', '.join(side[:SHOWN])}", {}, "block", (), pattern.format(*order))
            for side, order in zip(sides, (("arm", "task"), ("task", "arm")), strict=True)
        ]  # fmt: skip
        ways = ways[:: -1 if sets[0] > sets[1] else 1]
        ways += [Way("each file is one", {"arm": ("file",)})] * files
        raise Open(f"names of arms as {names[0]!r} have two parts that cross: ", ways, ())


def _by_pattern(arms: Column, pattern: str) -> dict[str, dict[str, str]]:
    """{arm: its groups} of the arms that the pattern matches."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"--pattern {pattern!r}: {error}") from None
    groups = set(compiled.groupindex)
    if "arm" not in groups or not groups <= {"arm", "arm2", "seed", "scale", "task"}:
        raise ValueError(
            f"--pattern {pattern!r} needs a group (?P<arm>…), and may have arm2, seed, scale, task"
        )
    found: dict[str, dict[str, str]] = {}
    for arm in arms.present():
        if match := compiled.search(arm):
            found[arm] = {key: value or "" for key, value in match.groupdict().items()}
            if second := found[arm].pop("arm2", ""):
                found[arm]["arm"] += f"_{second}"
    if not found:
        example = arms.present()[0] if arms.present() else ""
        raise ValueError(f"--pattern {pattern!r} matches no arm, such as {example!r}")
    return found


def scale_numbers(texts: Iterable[str]) -> dict[str, float]:
    """{text: number} of the scales, in their order: 12.8M, 1e9, small, medium, as they come. Of
    equal numbers with words behind them, the later one is larger by next to nothing.
    """
    seen = list(dict.fromkeys(texts))
    if seen == [""]:
        return {"": 0.0}
    numbers: dict[str, float] = {}
    for text in seen:
        pattern = r"([\d.,_]+(?:e[+-]?\d+)?)\s*([kmbgt]?)\w*( .+)?"
        match = re.fullmatch(pattern, text.strip().lower())
        if match is None or (number := read_cell(match[1].replace("_", "")).value) is None:
            break
        number *= SIZES.get(match[2], 1.0)
        while match[3] and number in numbers.values():
            number *= 1 + 1e-9
        numbers[text] = number
    else:
        if min(numbers.values()) > 0:
            return numbers
        seen.sort(key=lambda text: numbers[text])  # from 0 on there is no ratio: each is a step
    if all(text.lower() in WORDS for text in seen):
        seen.sort(key=lambda text: WORDS.index(text.lower()))
    if len(seen) > sys.float_info.max_10_exp:
        raise ValueError(f"{len(seen):,} scales without a ratio, such as {seen[1]!r}: name fewer")
    return {text: 10.0**place for place, text in enumerate(seen, 1)}  # each a step, as of sizes


def _scale_names(scales: Mapping[str, float], column: Column) -> dict[float, str]:
    """{number: its most frequent text}."""
    names: dict[float, str] = {}
    order = np.argsort(column.counts(), kind="stable")
    for place in order.tolist():
        text = text_of(column.values[place])
        names[scales[text]] = text
    return names


def _seed_numbers(column: Column) -> tuple[Integers, dict[int, str]]:
    """Seeds as whole numbers; other texts are numbered, and named."""
    texts = sorted(text for text in column.values if text)
    numbers, named = dict[str, int](), dict[int, str]()
    for text in texts:
        number = read_cell(text).value
        numbers[text] = int(text) if text.isdecimal() else int(number or 0)
        if number is None or number != int(number) or abs(numbers[text]) > 2**62:
            named = dict(enumerate(texts))
            numbers = {each: place for place, each in named.items()}
            break
    by_code = np.array([numbers.get(text, 0) for text in column.values], np.int64)
    return by_code[column.codes], named


def _direction(text: str, name: str) -> int:
    """1: more is better, 0: less, -1: the cell does not say."""
    word = text.lower()
    if word not in (*MORE_IS_BETTER, *LESS_IS_BETTER):
        return -1
    is_of_less = re.search(r"(lower|less|smaller)_is_better", plain_name(name)) is not None
    return int((word in MORE_IS_BETTER) != is_of_less)
