#!/usr/bin/env python3
"""Run the arms of an ablation with every seed, evaluate them, and compare them."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from manifests import console

if __name__ == "__main__":
    console.end_on_stop_signals()

import argparse
import dataclasses
import json
import os

from manifests import disk, identity, reader
from manifests.folder_lock import locked_folder
from manifests.layout import AblationLayout
from manifests.schema import Ablation
from train.ablation import (
    FailedRun,
    Hardware,
    ModelRun,
    Plan,
    all_runs,
    check_ablation,
    check_plan,
    check_pools,
    dropped_lines,
    evaluate_scorer,
    expected_runs,
    history,
    ledger,
    plan_ablation,
    plan_lines,
    planned_drops,
    run_all,
    run_rounds,
)
from train.capacity import usable_cores
from train.reporting import collect_results, saved_scores

EXAMPLE = """example:
  python train/ablate.py out/demo/ablation.json --out out/demo
  python train/ablate.py manifests/ablations/datacomp_small.yaml --out out/datacomp \\
      --plan --sd 0.004 --budget-hours 100

The pools must have been built: python pipeline/build.py ABLATION builds them and calls this.
With --engine ray, runs go to the cluster that RAY_ADDRESS names (--out must be on storage that all
of its machines share), or to this machine.

"""
EXIT_STATUS = console.exit_help(
    {
        0: "every run has its result",
        console.EXIT_INCOMPLETE: "some run ended without a result; run again",
    }
)
STOPPED = "finished runs stay; run the same command again to do the others"


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="train/ablate.py",
        description=__doc__,
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "ablation", help="a manifest, or ablation.json as pipeline/build.py resolves it"
    )
    parser.add_argument("--out", required=True, help="folder of the runs and of results.json")
    parser.add_argument(
        "--engine",
        choices=["inline", "ray"],
        default="inline",
        help="where runs go (default: inline)",
    )
    parser.add_argument(
        "--scale", help="a block of the manifest's `scales` to merge over it, such as debug"
    )
    parser.add_argument(
        "--check", action="store_true", help="check what can be known without the pools, and end"
    )
    parser.add_argument(
        "--json", action="store_true", help="end with results.json as one line on stdout"
    )
    plan = parser.add_argument_group("a plan, which needs no pool")
    plan.add_argument(
        "--plan", action="store_true", help="print runs, memory, hours and what they show, and end"
    )
    plan.add_argument("--device", metavar="NAME", help="hardware to plan for, as in sizing.py")
    plan.add_argument("--ranks", type=int, metavar="N", help="processes of a run to plan for")
    plan.add_argument(
        "--utilisation", type=float, metavar="SHARE", help="of the device's peak (GPU 0.2, CPU 0.7)"
    )
    plan.add_argument("--price", type=float, metavar="X", help="of a device for an hour")
    plan.add_argument(
        "--sd",
        type=float,
        metavar="SHARE",
        help="standard deviation of one run's result (default: that of ablations beside --out)",
    )
    plan.add_argument(
        "--effect", type=float, metavar="SHARE", help="how many seeds this difference needs"
    )
    plan.add_argument(
        "--budget-hours", type=float, metavar="H", help="what so many device-hours buy"
    )
    plan.add_argument(
        "--limit-hours", type=float, metavar="H", help="refuse more hours than this in all"
    )
    return parser.parse_args(argv)


def hardware_of(args: argparse.Namespace) -> Hardware:
    """The hardware that the command line names. ValueError for options that need --plan."""
    only_plan = ("device", "ranks", "utilisation", "price", "sd", "effect", "budget_hours")
    for name in only_plan:
        if getattr(args, name) is not None and not args.plan:
            raise ValueError(f"--{name.replace('_', '-')} goes with --plan")
    on_cluster = args.engine == "ray" and bool(os.environ.get("RAY_ADDRESS"))
    return Hardware(
        name=args.device,
        ranks=args.ranks,
        utilisation=args.utilisation,
        price=args.price,
        limit_hours=args.limit_hours,
        here=not args.plan and not on_cluster,
    )


def plan_only(ablation: Ablation, out: str, args: argparse.Namespace) -> int:
    """`--plan`: what the ablation takes, in lines or as JSON."""
    if not any(arm.is_trained for arm in ablation.arms.values()):
        return plan_without_training(ablation, out, args.json)
    plan = plan_ablation(
        ablation,
        out,
        hardware_of(args),
        run_sd=args.sd,
        neighbours_sd=ledger.planned_sd(ablation, out),
        effect=args.effect,
        budget_hours=args.budget_hours,
    )
    plan = dataclasses.replace(plan, dropped=planned_drops(ablation, out))
    lines = [*plan_lines(plan), *busy_lines(plan), *stop_lines(ablation, plan, args.effect)]
    if plan.dropped is not None:
        lines += dropped_lines(plan.dropped)
    elif any(task.near_overlap == "drop" for task in ablation.evaluate):
        lines.append("near copies of evaluation images are counted when the views are built")
    print("\n".join(lines))
    if args.json:
        print(json.dumps(disk.to_plain(plan), sort_keys=True))
    return 0


def busy_lines(plan: Plan) -> list[str]:
    """What other work on this machine makes of the plan's hours, which are those of an idle one."""
    load, cores = os.getloadavg()[0], usable_cores()
    if plan.device != "cpu" or load < cores / 2:
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
        return [f"stop: {whole} runs at most; --sd SHARE tells how many are to be expected"]
    difference = effect or plan.smallest_effect or 0.0
    none = expected_runs(ablation, plan.run_sd)
    some = expected_runs(ablation, plan.run_sd, difference)
    return [
        f"stop: about {none:.0f} of {whole} runs if no arm differs, {some:.0f} if every arm "
        f"differs by {100 * difference:.2f} points (100 simulated studies)"
    ]


def plan_without_training(ablation: Ablation, out: str, as_json: bool) -> int:
    """`--plan` of models and predictions that exist."""
    runs = all_runs(ablation, out)
    models = sum(isinstance(run, ModelRun) for run in runs)
    files = (len(runs) - models) * len(ablation.evaluate)
    print(
        f"{ablation.name}: nothing is trained: {models:,} models to evaluate on "
        f"{len(ablation.evaluate)} tasks, {files:,} files of predictions to read"
    )
    if as_json:
        counts = {"models": models, "files": files}
        print(json.dumps({"name": ablation.name, "runs": counts}, sort_keys=True))
    return 0


def check_only(ablation: Ablation, out: str, as_json: bool) -> int:
    """`--check`: the number of runs, after the checks that need no pool."""
    number = len(all_runs(ablation, out))
    if as_json:
        print(json.dumps({"ablation_hash": identity.ablation_hash(ablation), "runs": number}))
    else:
        print(f"{ablation.name}: {number} runs; all checks that need no pool have passed")
    return 0


def run(args: argparse.Namespace) -> int:
    """Check, run, conclude. The exit status."""
    out = disk.output_folder(args.out)
    ablation = reader.read_manifest(args.ablation, Ablation, scale=args.scale)
    hardware = hardware_of(args)
    if args.plan:
        return plan_only(ablation, out, args)
    check_ablation(ablation, out)
    check_plan(ablation, out, hardware)
    if args.check:
        return check_only(ablation, out, args.json)
    with locked_folder(AblationLayout(out).lock, "train/ablate.py"):
        return run_and_conclude(ablation, out, args)


def run_and_conclude(ablation: Ablation, out: str, args: argparse.Namespace) -> int:
    """All runs and the verdict of an ablation that passed the checks. The exit status."""
    layout = AblationLayout(out)
    shared = check_pools(ablation, out)
    history.record_begin(ablation, out)
    disk.write_json(layout.ablation_json, ablation)
    if ablation.stop is None:
        outcomes = run_all(ablation, out, args.engine)
    else:
        prior = ledger.prior_of_rounds(ablation, out)
        alpha = history.alpha_of(history.earlier_looks(ablation, history.looks(out)))
        read = saved_scores(ablation, out)
        outcomes = run_rounds(ablation, out, args.engine, read, prior, alpha)
    evaluate_scorer(ablation, out)
    failed = []
    for outcome in outcomes:
        if outcome.metrics is None:
            arm, seed = outcome.run.arm, outcome.run.seed
            failed.append(FailedRun(arm=arm, seed=seed, error=outcome.error))
    results = collect_results(ablation, out, failed, shared)
    disk.write_json(layout.results_json, results)
    ledger.write_ledger(ablation, out, results.prior, results.entries)
    metrics = {
        arm: {int(seed): each for seed, each in of.runs.items()} for arm, of in results.arms.items()
    }
    complete = not results.failed and not results.incomplete
    history.record_look(ablation, out, metrics, complete=complete)
    print(results.verdict)
    print(f"\nresults: {layout.results_json}\nnext: python train/report.py {out}")
    if args.json:
        print(json.dumps(disk.to_plain(results), sort_keys=True))
    return console.EXIT_INCOMPLETE if results.failed else 0


def main(argv: list[str] | None = None) -> int:
    """The command line; its exit status: 0, 2 for a mistake, 3 if a run ended without a result."""
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: run(args), STOPPED)


if __name__ == "__main__":
    console.end_process(main)
