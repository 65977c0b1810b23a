"""`clipmill ablate` and `clipmill report`: arms × seeds, and what came out."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clipmill.commands.app import (
    MORE,
    Engine,
    Json,
    Scale,
    Scales,
    Whole,
    make_app,
    print_json,
    print_result,
)
from clipmill.library import ablations, reports
from clipmill.manifests import console, disk, identity, reader
from clipmill.manifests.layout import AblationLayout
from clipmill.manifests.schema import Ablation
from clipmill.manifests.web_page import MARK, pages_beside
from clipmill.study.arms import ModelRun, all_runs
from clipmill.study.collect import collect_report
from clipmill.study.compare import MARK as MARKDOWN_MARK
from clipmill.study.compare import (
    report_lines,
    report_markdown,
)
from clipmill.study.plan import (
    Hardware,
    Plan,
    plan_ablation,
    plan_lines,
)
from clipmill.train.sizing.device_fit import usable_cores
from clipmill.verdict.pages.page import render
from clipmill.verdict.rounds import expected_runs

# --- ablate ---------------------------------------------------------------------------------------

ABLATE = make_app(
    "ablate",
    """
  clipmill ablate out/demo/ablation.json --out out/demo
  clipmill ablate my_ablation.yaml --scales small medium --out out/mine
  clipmill ablate plan manifests/ablations/datacomp_small.yaml \\
      --sd 0.004 --budget-hours 100

The pools must have been built: clipmill build ABLATION builds them and calls
this. With --engine ray, runs go to the cluster that RAY_ADDRESS names (--out
must be on storage that all of its machines share), or to this machine.
""",
    {
        0: "every run has its result",
        console.EXIT_INCOMPLETE: "some run ended without a result; run again",
    },
)
Manifest = Annotated[
    str, Parameter(help="A manifest, or ablation.json as `clipmill build` resolves it.")
]
Out = Annotated[str, Parameter(help="The folder of the runs and of results.json.")]


@ABLATE.default
def ablate(
    ablation: Manifest,
    /,
    *,
    out: Out,
    engine: Engine = "inline",
    scale: Scale = None,
    scales: Scales = None,
    as_json: Json = False,
) -> int:
    """Run the arms of an ablation with every seed, evaluate them, and compare them."""
    status, run = 0, None
    for run in ablations.runs_of(ablation, out, engine, scale, scales):
        console.show(*run.text.split("\n"))
        console.show("", f"results: {run.results_json}", f"next: clipmill report {run.path}")
        status = console.EXIT_INCOMPLETE if run.results.failed else status
    if run is not None:
        print_json(run.results, as_json)
    return status


@ABLATE.command
def check(
    ablation: Manifest,
    /,
    *,
    out: Out,
    engine: Engine = "inline",
    scale: Scale = None,
    scales: Scales = None,
    as_json: Json = False,
) -> int:
    """Check what can be known without the pools; nothing is run."""
    checked = ablations.checked(ablation, out, engine, scale, scales)
    number = sum(len(all_runs(read, folder)) for folder, read in checked.items())
    read = list(checked.values())[-1]
    text = f"{read.name}: {number} runs; all checks that need no pool have passed"
    return print_result(
        [text], {"ablation_hash": identity.ablation_hash(read), "runs": number}, as_json
    )


@ABLATE.command
def plan(
    ablation: Manifest,
    /,
    *,
    out: str | None = None,
    sd: float | None = None,
    effect: float | None = None,
    budget_hours: float | None = None,
    price: float | None = None,
    device: str | None = None,
    ranks: Annotated[int | None, Whole] = None,
    utilisation: float | None = None,
    scale: Scale = None,
    as_json: Json = False,
) -> int:
    """What an ablation takes, before anything is downloaded or trained.

    Args:
        out: The folder that the ablation will have (default: out/NAME).
        sd: Standard deviation of one run's result, as a share, from an earlier ablation.
        effect: How many seeds this difference needs, as a share.
        budget_hours: What so many device-hours buy.
        price: Of a device for an hour.
        device: The device to plan for, such as a100-80gb.
        ranks: Processes of a run to plan for.
        utilisation: Of the device's peak (GPU 0.2, CPU 0.7).
    """
    folder = disk.output_folder(out or disk.join("out", Path(ablation).stem))
    read = reader.read_manifest(ablation, Ablation, scale=scale)
    if not any(arm.is_trained for arm in read.arms.values()):
        return plan_without_training(read, folder, as_json)
    hardware = Hardware(
        name=device,
        ranks=ranks,
        utilisation=utilisation,
        price=price,
        here=False,
    )
    planned = plan_ablation(
        read,
        folder,
        hardware,
        run_sd=sd,
        effect=effect,
        budget_hours=budget_hours,
    )
    lines = [*plan_lines(planned), *busy_lines(planned.device), *stop_lines(read, planned, effect)]
    console.show(*lines)
    print_json(planned, as_json)
    return 0


def busy_lines(device: str) -> list[str]:
    """What other work on this machine makes of a plan's hours, which are those of an idle one."""
    load, cores = os.getloadavg()[0], usable_cores()
    if device != "cpu" or load < cores / 2:
        return []
    return [
        f"other work: {load:.1f} processes on the {cores} cores of this machine now; beside them a "
        f"run takes up to {(load + cores) / cores:.1f} times as long"
    ]


def stop_lines(ablation: Ablation, plan: Plan, effect: float | None) -> list[str]:
    """How many of the runs `stop` is expected to need, by simulation."""
    if ablation.stop is None:
        return []
    whole = sum(plan.runs.values())
    if plan.run_sd is None:
        return [
            f"stop: {whole} runs at most, fewer where a round decides an arm; --sd SHARE tells how "
            "many are to be expected"
        ]
    difference = effect or plan.smallest_effect or 0.0
    none = expected_runs(ablation, plan.run_sd)
    some = expected_runs(ablation, plan.run_sd, difference)
    return [
        f"stop: about {none:.0f} of {whole} runs if no arm differs, {some:.0f} if every arm "
        f"differs by {100 * difference:.2f} points (100 simulated studies)"
    ]


def plan_without_training(ablation: Ablation, out: str, as_json: bool) -> int:
    """The plan of models and predictions that exist."""
    every = all_runs(ablation, out)
    models = sum(isinstance(run, ModelRun) for run in every)
    files = (len(every) - models) * len(ablation.evaluate)
    console.show(
        f"{ablation.name}: nothing is trained: {models:,} models to evaluate on "
        f"{len(ablation.evaluate)} tasks, {files:,} files of predictions to read"
    )
    print_json({"name": ablation.name, "runs": {"models": models, "files": files}}, as_json)
    return 0


# --- report ---------------------------------------------------------------------------------------

REPORT = make_app(
    "report",
    """
  clipmill report out/demo
  clipmill report out/demo --markdown
  clipmill report out/small out/large --page compared.html

The date on the page is today's, that of --date, or that of SOURCE_DATE_EPOCH;
the JSON has none.
""",
    {
        0: "the report is written",
        console.EXIT_INCOMPLETE: "the report is written; a result or a view is missing",
    },
)


@REPORT.default
def report(
    folder: str,
    other: str | None = None,
    /,
    *,
    markdown: bool = False,
    page: str | None = None,
    date: Annotated[str | None, Parameter(group=MORE)] = None,
    as_json: Json = False,
) -> int:
    """Write report.html and report.json of an ablation from its results, and print the tables. With
    two folders: compare two ablations that asked the same of the same test set.

    Args:
        folder: The --out of an ablation.
        other: A second one, to compare the two.
        markdown: Write report.md too, for a pull request.
        page: Of two ablations: write the page here.
        date: The date that the page shows, YYYY-MM-DD.
    """
    written = date_of(date)
    if other is not None:
        if markdown:
            raise ValueError("--markdown goes with one folder")
        return compare(folder, other, page, as_json)
    if page is not None:
        raise ValueError("--page goes with two folders; the page of one is FOLDER/report.html")
    layout = AblationLayout(folder)
    disk.check_replaceable(layout.report, MARK.encode(), "folder:")
    if markdown:
        mark = MARKDOWN_MARK.encode()
        disk.check_replaceable(layout.report_markdown, mark, "--markdown:")
    collected = collect_report(folder)
    disk.output_folder(folder, "folder")
    disk.write_json(layout.report_json, collected)
    page_text = render(collected, written, pages_beside(layout.report))
    disk.write_bytes(layout.report, page_text.encode())
    console.show(*report_lines(collected), "", f"report: {layout.report}")
    if markdown:
        text = report_markdown(collected, written)
        disk.write_bytes(layout.report_markdown, text.encode())
        console.show(f"summary: {layout.report_markdown}")
    print_json(collected, as_json)
    return console.EXIT_INCOMPLETE if collected.gaps else 0


def compare(folder: str, other: str, page: str | None, as_json: bool) -> int:
    """Compare two ablations, print it, and write it to `page`. The exit status 0."""
    if page is not None:
        disk.check_replaceable(page, MARK.encode(), "--page")
    compared = reports.compare(folder, other)
    console.show(*compared.text.split("\n"))
    if page is not None:
        disk.write_bytes(page, compared.to_html(pages_beside(page)).encode())
        console.show("", f"page: {page}")
    print_json(compared.comparison, as_json)
    return 0


def date_of(text: str | None) -> datetime.date:
    """The date of the page: as given, of SOURCE_DATE_EPOCH, or today's. ValueError for no date."""
    if text is not None:
        try:
            return datetime.date.fromisoformat(text)
        except ValueError:
            raise ValueError(f"--date {text!r} is no date; write it as 2026-01-31") from None
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return datetime.datetime.now(datetime.UTC).date()
    if not epoch.isdigit():
        raise ValueError(f"SOURCE_DATE_EPOCH is {epoch!r}; it must be seconds since 1970")
    return datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).date()
