"""The tables of `train.ablation` as the report has them: signal of the metrics, scaling curves."""

from __future__ import annotations

from manifests.schema import Ablation
from train.ablation import RunMetrics, ScalingTable, metric_tables, scaling_tables
from train.evaluation import METRICS
from train.reporting.schema import Results, Scaling, ScalingCurve, SignalRow


def signal_rows(ablation: Ablation, results: Results) -> tuple[SignalRow, ...]:
    """The known metrics of every task, most signal first, over the arms of the manifest."""
    rows = []
    for table in metric_tables(ablation, _runs(results)):
        for one in table.rows:
            if one.metric not in METRICS:
                continue
            ratio = None if one.ratio is None else (one.ratio.value, one.ratio.low, one.ratio.high)
            row = SignalRow(
                task=table.task,
                metric=one.metric,
                unit=METRICS[one.metric].unit,
                deciding=one.metric == table.deciding,
                arms=one.arms,
                seeds=one.seeds,
                best=one.best,
                spread=one.spread,
                noise=one.noise,
                ratio=ratio,
                single_agreement=one.single_agreement,
                half_agreement=one.half_agreement,
            )
            rows.append(row)
    return tuple(rows)


def scaling_curves(ablation: Ablation, results: Results) -> tuple[Scaling, ...]:
    """Error against samples seen on each task; () where the ablation varies something else."""
    return tuple(_scaling(table) for table in scaling_tables(ablation, _runs(results)))


def _scaling(table: ScalingTable) -> Scaling:
    warnings: dict[str, None] = {}
    curves = []
    for (name, law), ahead in zip(table.curves.items(), table.predictions, strict=True):
        curve = ScalingCurve(
            name=name,
            floor=law.floor,
            scale=law.scale,
            exponent=law.exponent,
            unit=law.unit,
            points=table.points[name],
            predicted=(ahead.n, ahead.error.value, ahead.error.low, ahead.error.high),
        )
        curves.append(curve)
        if ahead.warning:
            warnings[ahead.warning] = None
    for crossing in table.crossings:
        if crossing.warning:
            warnings[crossing.warning] = None
    return Scaling(
        task=table.task,
        metric=table.metric,
        curves=tuple(curves),
        crossings=tuple(crossing.sentence() for crossing in table.crossings),
        warnings=tuple(warnings),
    )


def _runs(results: Results) -> RunMetrics:
    return {name: arm.runs for name, arm in results.arms.items()}
