"""A report as one HTML page: no script, no font, no address outside the page; it opens from disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from train.reporting import charts

NONE = "&ndash;"
STYLE = """
:root { --ink:#1b2026; --soft:#5d6670; --paper:#fbfaf7; --card:#fff; --rule:#dcd8ce; --good:#1f7a4d;
  --bad:#b3372f; }
@media (prefers-color-scheme: dark) { :root { --ink:#e8e6e1; --soft:#a3a9b0; --paper:#16181b; --card:#1e2125;
  --rule:#363b41; --good:#5cc08c; --bad:#e58078; } }
* { box-sizing:border-box }
body { margin:0; background:var(--paper); color:var(--ink); font:15px/1.55 system-ui,sans-serif }
main { max-width:1040px; margin:0 auto; padding:40px 24px 80px }
h1 { font-size:30px; line-height:1.2; margin:0 0 8px }
h2 { font-size:20px; margin:44px 0 10px; border-top:1px solid var(--rule); padding-top:18px }
h3 { font-size:15px; margin:22px 0 6px }
p.lead { font-size:18px; color:var(--soft); margin:0 0 18px }
.verdict { font-size:16px; line-height:1.5; background:var(--card); border:1px solid var(--rule); 
  border-left:5px solid var(--ink); padding:16px 20px; border-radius:6px }
.note { color:var(--soft); font-size:13.5px }
.scroll { overflow-x:auto }
table { border-collapse:collapse; width:100%; font-size:14px }
th,td { text-align:left; padding:6px 10px; border-bottom:1px solid var(--rule); vertical-align:baseline }
th { color:var(--soft); font-weight:600 }
td.n,th.n { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap }
.chip { display:inline-block; width:11px; height:11px; border-radius:3px; margin-right:7px }
.better { color:var(--good); font-weight:600 }
.worse { color:var(--bad); font-weight:600 }
svg { width:100%; max-width:880px; height:auto; display:block; margin:8px 0; font:12px system-ui,sans-serif }
svg text { fill:var(--soft) }
svg text.name { fill:var(--ink) }
.grid { stroke:var(--rule) }
.axis { stroke:var(--soft) }
.band { fill:var(--rule); opacity:.55 }
.whisker { stroke-width:2.5 }
.curve { fill:none; stroke-width:1.6; opacity:.8 }
.steps { fill-opacity:.12; stroke-width:1.5 }
.mark { stroke:var(--ink); stroke-dasharray:4 3 }
.legend span { margin-right:18px }
.shots { display:grid; grid-template-columns:repeat(auto-fill,minmax(118px,1fr)); gap:10px }
figure { margin:0; background:var(--card); border:1px solid var(--rule); border-radius:6px; overflow:hidden }
figure img { width:100%; aspect-ratio:1; object-fit:contain; image-rendering:pixelated; display:block;
  background:#8883 }
figcaption { font-size:12px; padding:6px 8px; line-height:1.35; overflow-wrap:anywhere }
figcaption b { font-weight:600; font-variant-numeric:tabular-nums }
code { font-size:12.5px; overflow-wrap:anywhere }
details { margin:10px 0 }
summary { cursor:pointer; color:var(--soft) }
"""


def percent(value: float | None, signed: bool = False) -> str:
    """A share as a percentage with one decimal; a dash for None."""
    if value is None:
        return NONE
    return f"{value * 100:+.1f}" if signed else f"{value * 100:.1f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    """An HTML table; cells are HTML already, columns in `numeric` stand right."""
    right = set(numeric)

    def line(cells: Sequence[str], tag: str) -> str:
        mark = (' class="n"' if i in right else "" for i in range(len(cells)))
        return (
            "<tr>"
            + "".join(f"<{tag}{m}>{c}</{tag}>" for m, c in zip(mark, cells, strict=True))
            + "</tr>"
        )

    return f'<div class="scroll"><table>{line(head, "th")}{"".join(line(r, "td") for r in rows)}</table></div>'


def _chip(shade: str, name: str) -> str:
    return f'<span class="chip" style="background:{shade}"></span>{escape(name)}'


def _word(verdict: str | None) -> str:
    kind = verdict if verdict in ("better", "worse") else ""
    return f'<span class="{kind}">{escape(verdict)}</span>' if verdict else NONE


def _interval(difference: Mapping[str, Any] | None) -> str:
    if difference is None:
        return NONE
    low, high = percent(difference["low"], True), percent(difference["high"], True)
    return f"{percent(difference['mean'], True)} [{low}, {high}]"


def _shades(report: Mapping[str, Any]) -> dict[str, str]:
    return {arm["arm"]: charts.colour(i) for i, arm in enumerate(report["arms"])}


def arms_table(report: Mapping[str, Any], task: str) -> str:
    """One row per arm: size, repeats, mean ± SD on `task`, difference to the baseline with its interval, verdict."""
    shades = _shades(report)
    rows = []
    for arm in report["arms"]:
        metric = arm["metrics"][task]
        difference = arm["difference"]
        rows.append(
            [
                _chip(shades[arm["arm"]], arm["arm"]),
                f"{arm['rows']:,}",
                percent(arm["share"]),
                f"{arm['repeats']:.1f}",
                f"{percent(metric['mean'])} ± {percent(metric['sd'])}",
                _interval(difference),
                f"{difference['p_holm']:.3g}"
                if difference and difference["p_holm"] is not None
                else NONE,
                _word(difference["verdict"] if difference else None),
            ]
        )
    head = [
        "arm",
        "pairs",
        "% of stored",
        "repeats",
        f"{task}, %",
        "points to baseline [95 %]",
        "p (Holm)",
        "verdict",
    ]
    return table(head, rows, range(1, 7))


def _verdict(report: Mapping[str, Any]) -> str:
    shades = _shades(report)
    forest = [
        (a["arm"], *(100 * a["difference"][k] for k in ("mean", "low", "high")), shades[a["arm"]])
        for a in report["arms"]
        if a["difference"]
    ]
    seen = max((a["difference"]["mde"] for a in report["arms"] if a["difference"]), default=0.0)
    title = f"Difference to {report['baseline']} on {report['primary']}, points"
    chart = charts.forest(forest, 100 * report["equivalence"], title)
    band = percent(report["equivalence"])
    note = (
        f"Mean ± standard deviation over {len(report['seeds'])} seeds at {report['samples_seen']:,} samples seen "
        "a run. Intervals are 95 % t intervals of differences paired by seed; p values are Holm-adjusted over the "
        "arms. "
        f"The grey band is ± {band} points, inside which arms count as practically equal. The smallest difference that "
        f"each comparison could have seen (80 % power) is at most {percent(seen)} points."
    )
    told = "<br>".join(escape(line) for line in report["verdict"].splitlines())
    lead = f'<p class="verdict">{told}</p>'
    return f'{lead}{arms_table(report, report["primary"])}{chart}<p class="note">{note}</p>'


def _tasks(report: Mapping[str, Any]) -> str:
    parts = []
    for task in report["tasks"]:
        rows = [
            [
                _chip(_shades(report)[r["arm"]], r["arm"]),
                f"{percent(r['mean'])} ± {percent(r['sd'])}",
                _interval(r["difference"]),
                _word(r["difference"]["verdict"] if r["difference"] else None),
                f"{r['mcnemar']:.2g}" if r["mcnemar"] is not None else NONE,
            ]
            for r in task["rows"]
        ]
        chance = "" if task["chance"] is None else f", chance {percent(task['chance'])} %"
        head = [
            "arm",
            f"{task['metric']}, %",
            "points to baseline [95 %]",
            "verdict",
            "McNemar p, by sample",
        ]
        size = f"({task['kind']}, {task['samples']:,} samples{chance})"
        parts.append(
            f"<h3>{escape(task['task'])} <span class='note'>{size}</span></h3>{table(head, rows, (1, 2, 4))}"
        )
    note = (
        "McNemar's p compares one pair of runs (the first seed) sample by sample: it knows the test set's noise, "
        "not the seeds'."
    )
    return "".join(parts) + f'<p class="note">{note}</p>'


def _curves(report: Mapping[str, Any]) -> str:
    shades = _shades(report)
    legend = "".join(f"<span>{_chip(shade, name)}</span>" for name, shade in shades.items())
    series = [
        (f"{c['arm']}, seed {c['seed']}", shades[c["arm"]], [(p[0], p[1]) for p in c["points"]])
        for c in report["curves"]
    ]
    return f'<p class="legend">{legend}</p>' + charts.lines(
        series, "samples seen", "training loss", "Training loss of every run"
    )


def _funnels(report: Mapping[str, Any]) -> str:
    parts = []
    for funnel in report["funnels"]:
        first = max(1, funnel["steps"][0][1])
        steps = [
            (name, count, f"{count:,} ({100 * count / first:.1f} %)")
            for name, count in funnel["steps"]
        ]
        parts.append(f"<h3>{escape(funnel['title'])}</h3>" + charts.bars(steps, funnel["title"]))
        if funnel["reasons"]:
            lost = [
                (name, n, f"{n:,}")
                for name, n in sorted(funnel["reasons"].items(), key=lambda x: -x[1])
            ]
            parts.append(
                f"<details><summary>where {sum(funnel['reasons'].values()):,} rows ended</summary>"
            )
            parts.append(charts.bars(lost, "reasons", charts.colour(2)) + "</details>")
    return "".join(parts)


def _histograms(report: Mapping[str, Any]) -> str:
    shades = _shades(report)
    by_view = {arm["view"].split("/")[-1]: shades[arm["arm"]] for arm in reversed(report["arms"])}
    parts = []
    for h in report["histograms"]:
        colours = {"stored": charts.colour(0), **by_view}
        legend = "".join(
            f"<span>{_chip(colours.get(n, charts.colour(i)), n)}</span>"
            for i, n in enumerate(h["counts"])
        )
        chart = charts.histogram(
            h["edges"], h["counts"], h["marks"], colours, f"{h['column']} in {h['pool']}"
        )
        title = f"<h3>{escape(h['column'])} <span class='note'>in {escape(h['pool'])}</span></h3>"
        parts.append(f"{title}<p class='legend'>{legend}</p>{chart}")
    return "".join(parts)


def _gallery(report: Mapping[str, Any]) -> str:
    parts = []
    for shown in report["gallery"]:
        for kind, title in (
            ("kept", "kept"),
            ("near", "next to the threshold"),
            ("rejected", "rejected"),
        ):
            if not shown[kind]:
                continue
            cells = []
            for item in shown[kind]:
                score = "" if item["score"] is None else f"<b>{item['score']:.3f}</b> "
                rule = (
                    ""
                    if item["rule"] is None
                    else f" <span class='note'>({escape(item['rule'])})</span>"
                )
                cells.append(
                    f'<figure><img src="{item["image"]}" alt="{escape(item["caption"])}">'
                    f"<figcaption>{score}{escape(item['caption'])}{rule}</figcaption></figure>"
                )
            parts.append(
                f"<h3>{escape(shown['view'])}: {title}</h3><div class='shots'>{''.join(cells)}</div>"
            )
    return (
        "".join(parts)
        + '<p class="note">Drawn at random with a fixed seed, not by hand. The number is the row\'s CLIP score.</p>'
    )


def _composition(report: Mapping[str, Any]) -> str:
    names = report["overlap"]["arms"]
    rows = [
        [escape(a), *(f"{v:.2f}" for v in row)]
        for a, row in zip(names, report["overlap"]["jaccard"], strict=True)
    ]
    drawn = [
        [
            escape(a["arm"]),
            escape(a["view"]),
            f"{a['rows']:,}",
            f"{a['drawn']:,}",
            f"{a['repeats']:.2f}",
        ]
        for a in report["arms"]
    ]
    return (
        table(["arm", "view", "unique pairs", "samples drawn", "mean repeats"], drawn, (2, 3, 4))
        + "<h3>Overlap of the arms (Jaccard)</h3>"
        + table(["", *map(escape, names)], rows, range(1, len(names) + 1))
    )


def _checks(report: Mapping[str, Any]) -> str:
    absent = '<p class="note">Not run.</p>'
    parts = ["<h3>Against a random subset of the same size</h3>"]
    parts += [f"<p>{escape(row['told'])}</p>" for row in report["controls"]] or [absent]
    parts.append("<h3>A/A: the same data under other seeds</h3>")
    parts.append(f"<p>{escape(report['aa']['told'])}</p>" if report["aa"] else absent)
    parts.append("<h3>The null web: the same comparison where nothing is planted</h3>")
    if report["null_web"]:
        null = report["null_web"]
        parts.append(f"<p>{escape(null['verdict'])}</p>{arms_table(null, null['primary'])}")
    else:
        parts.append(absent)
    return "".join(parts)


def _costs(report: Mapping[str, Any]) -> str:
    rows = [(name, seconds, f"{seconds:.1f} s") for name, seconds in report["costs"]]
    return (
        charts.bars(rows, "Seconds of each stage", charts.colour(3))
        if rows
        else '<p class="note">Not recorded.</p>'
    )


def _provenance(report: Mapping[str, Any]) -> str:
    p = report["provenance"]
    facts = [[escape(k), f"<code>{escape(str(v))}</code>"] for k, v in p["facts"].items()]
    files = [
        [f"<code>{escape(name)}</code>", f"<code>{digest}</code>"] for name, digest in p["files"]
    ]
    return (
        table(["", ""], facts)
        + f"<details><summary>{len(files)} files that these numbers come from, with their sha256</summary>"
        + table(["file", "sha256"], files)
        + "</details>"
    )


def render(report: Mapping[str, Any]) -> str:
    """The whole page for a report dictionary (see results.collect)."""
    sections = [
        ("Every task", _tasks(report)),
        ("Checks on the method", _checks(report)),
        ("Training curves", _curves(report)),
        ("What became of the pairs", _funnels(report)),
        ("Scores", _histograms(report)),
        ("Kept, rejected, next to the threshold", _gallery(report)),
        ("Composition and repeats", _composition(report)),
        ("Cost of each stage", _costs(report)),
        ("Provenance", _provenance(report)),
    ]
    body = "".join(f"<section><h2>{title}</h2>{html}</section>" for title, html in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(report['name'])}: dataset ablation</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{escape(report['name'])}</h1><p class='lead'>{escape(report['question'])}</p>{_verdict(report)}{body}"
        "</main></body></html>\n"
    )
