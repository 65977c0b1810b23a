from __future__ import annotations

import re
from pathlib import Path

import pytest

from manifests import disk
from manifests.reader import read_manifest
from manifests.schema import Balance, Blend


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
