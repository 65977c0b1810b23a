from __future__ import annotations

import re
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clipmill.manifests import disk, schema
from clipmill.manifests.reader import read_manifest
from clipmill.manifests.schema import (
    Balance,
    Blend,
    Fetch,
    PoolRef,
    Recipe,
    Rule,
    Source,
    Suite,
    TaskSpec,
    View,
)
from clipmill.manifests.schema.recipe import check_ranges


def test_a_blend_names_views_of_its_pools() -> None:
    blend = Blend(name="b", pools={"web": "/p"}, views={"web/raw": 1.0})
    assert blend.max_repeats is None
    # The document has no key that came later, so the hash of such a blend stays.
    assert blend.document() == {
        "name": "b",
        "pools": {"web": "/p"},
        "views": {"web/raw": 1.0},
        "seed": 0,
        "max_repeats": None,
    }


FULL = """
name: full
pools: {web: pool}
views: {web/raw: 1, web/good: 2}
distinct: uid
weights: repeats
balance: {web/raw: {column: entry_count, limit: 20k}}
captions: {web/good: {caption: 0.3, synthetic: 0.7}}
"""


def test_every_key_is_read_from_yaml_and_from_its_own_document(tmp_path: Path) -> None:
    (tmp_path / "blend.yaml").write_text(FULL)
    blend = read_manifest(tmp_path / "blend.yaml", Blend)
    assert blend.balance == {"web/raw": Balance(column="entry_count", limit=20_000)}
    disk.write_json(tmp_path / "blend.json", blend.document())
    assert read_manifest(tmp_path / "blend.json", Blend) == blend


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("seed: -1", "seed is -1; it must lie in [0, 2^32)"),
        # (2^32 << 32) + 0 in 64 bits would be the order of seed 0
        ("seed: 4294967296", "seed is 4294967296; it must lie in [0, 2^32)"),
        ("caps: {web/raw: 5}", "unknown key 'caps'"),
        ("curriculum: []", "unknown key 'curriculum'"),
        ("captions: {web/bad: {a: 1}}", "captions names 'web/bad', which is not one of its views"),
        ("balance: {web/raw: {column: c}}", "balance.web/raw.limit is missing"),
        ("balance: {web/raw: {column: c, limit: 0}}", "limit is 0.0; it must be a number above 0"),
        ("captions: {web/raw: {}}", "captions of 'web/raw' is empty; give columns with"),
        ("captions: {web/raw: {synth: -1}}", "share of caption column 'synth' of 'web/raw' is -1"),
        ("live: true", "with live, views has one entry, web/stored (all stored rows); 'web/raw'"),
        ("segments: run", "with segments, views has one entry, web/stored (all stored rows)"),
        ("weights: rows", "weights is 'rows'; it must be one of samples, repeats"),
        ("repeats: 3", "unknown key 'repeats'"),
        ("views: {web/raw: 1, web/good: .inf}", "views.web/good is inf; it must lie in 0.."),
        ("views: {web/raw: 1, web/good: 0}", "the weight of 'web/good' is 0.0; it must be above"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_key(
    line: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "blend.yaml"
    views = "" if line.startswith("views") else "views: {web/raw: 1, web/good: 1}\n"
    path.write_text(f"name: b\npools: {{web: pool}}\n{views}{line}\n")
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        read_manifest(path, Blend)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(str(path))


def test_the_run_of_segments_is_found_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "blend.yaml"
    path.write_text("name: b\npools: {web: pool}\nviews: {web/stored: 1}\nsegments: runs/one\n")
    assert read_manifest(path, Blend).segments == f"{tmp_path}/runs/one"


# --- recipe


TASK: dict[str, Any] = {"name": "t", "kind": "classification", "data": "/d"}
BLEND: dict[str, Any] = {"name": "b", "pools": {"web": "/p"}}
LIVE: dict[str, Any] = {**BLEND, "views": {"web/stored": 1.0}}
BLOCKS = [each for each in vars(schema).values() if hasattr(each, "__pydantic_config__")]


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (Rule, {"name": "x"}, "must be one of an SQL expression, a view, random_like or sample"),
        (Rule, {"name": "x", "where": "a", "view": "b"}, "must be one of"),
        (Rule, {"name": "x", "sample": 1.5}, "sample is 1.5; it must lie between 0 and 1"),
        (
            Recipe,
            {
                "name": "r",
                "source": Source(kind="files", paths=("x.csv",)),
                "views": (View(name="a"), View(name="a")),
            },
            "views named twice: a",
        ),
        (Rule, {"name": " ", "where": "a"}, "a rule is named ' '; its name is the reason"),
        (
            Rule,
            {"name": "x", "sample": 0.5, "seed": -1},
            "rule 'x': seed is -1; it must lie in 0..",
        ),
        (
            Recipe,
            {
                "name": "r",
                "source": Source(kind="table", paths=("x.csv",), extra_columns={"MD5": "string"}),
                "fetch": Fetch(compute_hash="md5"),
            },
            "extra_columns names 'md5', the column of fetch.compute_hash",
        ),
        (Fetch, {"rows_per_shard": 10_001}, "rows_per_shard is 10001; it must lie in 1..10000"),
        (Fetch, {"deadline_s": 0.0}, "deadline_s is 0.0; it must lie in 0.001..86400.0"),
        (Fetch, {"retries": -1}, "retries is -1; it must lie in 0..100"),
        (Fetch, {"encode_quality": 0}, "of jpg it must lie in 1..100"),
        (Fetch, {"encode_format": "png", "encode_quality": 10}, "of png it must lie in 0..9"),
        (Fetch, {"patience_s": float("nan")}, "patience_s is nan; it must lie in 0.001.."),
        (Fetch, {"allow_ports": ()}, "allow_ports is []; it must name at least one port"),
        (Fetch, {"allow_ports": (80, 65_536)}, "allow_ports.1 is 65536; it must lie in 1..65535"),
        (Fetch, {"user_agent": "x/1\r\nCookie: a"}, "it must be printable ASCII in one line"),
        (Fetch, {"user_agent": "café/1"}, "it must be printable ASCII in one line"),
        (Fetch, {"verify_hash": ("column", "crc32")}, "verify_hash names 'crc32'"),
        (TaskSpec, {**TASK, "classes": ("a",), "classes_from": "imagenet"}, "give one of them"),
        (TaskSpec, {**TASK, "columns": {"labels": "x"}}, "columns names 'labels'; it takes image"),
        (TaskSpec, {**TASK, "train_data": "/x"}, "which only the kind linear_probe uses"),
        (Suite, {"name": "s", "tasks": (TaskSpec(**TASK),) * 2}, "has two tasks of one name"),
        (
            Suite,
            {"name": "s", "tasks": (TaskSpec(**TASK),), "groups": {"g": ("u",)}},
            "group 'g' must name different tasks of the suite, not 'u'",
        ),
        (PoolRef, {}, "a pool needs a recipe"),
        (Blend, {"name": "b", "views": {}}, "has no views"),
        (Blend, {**BLEND, "views": {"wob/raw": 1.0}}, "'wob/raw' is not POOL/VIEW"),
        (Blend, {**BLEND, "views": {"web": 1.0}}, "'web' is not POOL/VIEW"),
        (Blend, {**LIVE, "live": True, "segments": "/run"}, "it has live and segments; give one"),
        (Blend, {**LIVE, "live": True, "distinct": "uid"}, "distinct does not go with live, since"),
        (Blend, {**LIVE, "live": True, "max_repeats": 3}, "max_repeats does not go with live"),
        (Blend, {**LIVE, "segments": "/run", "weights": "repeats"}, "weights does not go with seg"),
    ],
)
def test_impossible_values_are_refused(make: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make(**values)


def has_numbers(kind: Any) -> bool:
    return kind in (int, float) or any(map(has_numbers, typing.get_args(kind)))


@pytest.mark.parametrize("block", BLOCKS)
def test_every_number_of_a_manifest_has_a_range(block: Any) -> None:
    hints = typing.get_type_hints(block)
    del hints["__pydantic_config__"]
    ranges = hints.pop("ranges", None) and block.ranges
    assert set(ranges or {}) == {name for name, kind in hints.items() if has_numbers(kind)}
    assert not ranges or "check_ranges" in block.__post_init__.__code__.co_names
    for name in ranges or {}:
        for wrong in (10**30, -(10**30), float("nan"), float("inf"), True, "5", (10**30,)):
            values = dict.fromkeys(ranges) | {name: {"key": wrong}}
            holder = type("Block", (SimpleNamespace,), {"ranges": ranges})(**values)
            with pytest.raises(ValueError, match=f"^{name}.key.* it must lie in"):
                check_ranges(holder)
