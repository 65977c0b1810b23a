"""The dataset card of an export: README.md with the YAML header that Hugging Face reads, made from
the pool's records. The same export gives the same card.
"""

from __future__ import annotations

from typing import Any

import yaml

from manifests import disk
from manifests.schema import SOURCES, Recipe
from pipeline.export.kept_rows import KeptRows
from pipeline.export.targets import Target
from pipeline.views import rule_text

MARK = "<!-- written by clipmill: filter.py --export"  # the rest of the line names the export
SIZES = (
    (1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"), (100_000_000, "10M<n<100M"), (1_000_000_000, "100M<n<1B"),
    (10_000_000_000, "1B<n<10B"), (100_000_000_000, "10B<n<100B"),
)  # fmt: skip
LARGEST = "n>1T"
CONTENTS = {
    "parquet": "one row a pair: URL, caption, sizes, hashes and scores; no image",
    "csv": "one row a pair: URL, caption, uid and sha256 of the received bytes; no image",
    "npy": "the uids of the pairs, sorted, as pairs of 64-bit integers (DataComp's subset form)",
    "folder": "WebDataset shards with image, caption and JSON of each pair, and a Parquet file "
    "with sizes, hashes and scores beside each shard",
}


def dataset_card(rows: KeptRows, target: Target, name: str, recipe: Recipe | None) -> str:
    """README.md of an export. name: of the dataset."""
    document = rows.document
    header = yaml.safe_dump(_header(rows, target, name), sort_keys=True, allow_unicode=True)
    lines = ["---", header.rstrip(), "---", f"{MARK} {target.name} -->", "", f"# {name}", ""]
    total = document.funnel[0][1]
    lines += [
        f"{document.kept:,} image-caption pairs: the view `{document.name}` of a pool of {total:,} "
        f"rows. It holds {CONTENTS[target.kind]}.",
        "",
        *_table("rows left", ("step", "rows", "share"), _funnel(rows)),
    ]
    if document.rules:
        lines += _table("Rules, in order", ("rule", "a row is kept where"), _rules(rows))
    if document.thresholds:
        lines += _table("Thresholds", ("call", "value", "share kept", "of rows"), _thresholds(rows))
    if rows.score_sets and target.kind in ("parquet", "folder"):
        lines += _table("Score columns", ("column", "filter", "id", "options"), _scores(rows))
    lines += ["## Where it comes from", "", *_origin(rows, recipe), ""]
    lines += [
        "## Licence",
        "",
        "The licence of the images and captions is not known: each belongs to its owner. Rows that "
        "were purged from the pool after this export are still in it.",
    ]
    return "\n".join(lines) + "\n"


def is_card_of(path: str, target: Target) -> bool:
    """True where the file is the card of an earlier export to this target."""
    mark = f"{MARK} {target.name} -->".encode()
    return mark in disk.read_bytes(path).splitlines()


def _header(rows: KeptRows, target: Target, name: str) -> dict[str, Any]:
    kept = rows.document.kept
    size = next((text for limit, text in SIZES if kept < limit), LARGEST)
    header: dict[str, Any] = {
        "license": "unknown",
        "pretty_name": name,
        "size_categories": [size],
        "tags": ["clipmill", "image-text-pairs"],
        "task_categories": ["zero-shot-image-classification", "text-to-image"],
    }
    files = {"parquet": target.name, "csv": target.name, "folder": "*.tar"}
    if target.kind in files:
        header["configs"] = [
            {
                "config_name": "default",
                "data_files": [{"split": "train", "path": files[target.kind]}],
            }
        ]
    return header


def _funnel(rows: KeptRows) -> list[tuple[str, ...]]:
    total = max(1, rows.document.funnel[0][1])
    lines: list[tuple[str, ...]] = []
    for step, left in rows.document.funnel:
        lines.append((step, f"{left:,}", f"{left / total:.2%}"))
    return lines


def _rules(rows: KeptRows) -> list[tuple[str, ...]]:
    return [(rule["name"], f"`{_cell(rule_text(rule))}`") for rule in rows.document.rules]


def _thresholds(rows: KeptRows) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for call, threshold in rows.document.thresholds.items():
        value, share = f"{threshold.value:.9g}", f"{threshold.share:.4%}"
        lines.append((f"`{_cell(call)}`", value, share, f"{threshold.rows:,}"))
    return lines


def _scores(rows: KeptRows) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for column, (name, _) in rows.score_columns.items():
        document = rows.score_sets[name]
        options = ", ".join(f"{key}={value}" for key, value in sorted(document.options.items()))
        lines.append((f"`{column}`", document.name, document.id, _cell(options) or "-"))
    return lines


def _origin(rows: KeptRows, recipe: Recipe | None) -> list[str]:
    document = rows.document
    lines = [f"- fingerprint of the pool: `{document.fingerprint}`"]
    if recipe is not None:
        source = recipe.source
        lines.insert(0, f"- recipe `{recipe.name}`, source of kind `{source.kind}`")
        lines.append(f"- images from: {SOURCES[source.kind].images}")
    if document.rows_sha256 is not None:
        lines.append(
            f"- hash of the rows: `{document.rows_sha256}` (`pipeline/filter.py POOL --hash "
            f"{document.name}` prints it; equal hashes are the same pairs with the same bytes)"
        )
    return lines


def _table(title: str, head: tuple[str, ...], lines: list[tuple[str, ...]]) -> list[str]:
    rows = [f"| {' | '.join(line)} |" for line in lines]
    rule = f"|{'---|' * len(head)}"
    return [f"## {title[0].upper()}{title[1:]}", "", f"| {' | '.join(head)} |", rule, *rows, ""]


def _cell(text: str) -> str:
    """A text inside a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")
