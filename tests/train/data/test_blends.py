from pathlib import Path

import pytest

from clipmill.manifests.aligned import view_names
from clipmill.manifests.layout import PoolLayout
from clipmill.train.data.blends import blend_of, count_rows
from tests.support import commands


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ("pool/all", "is not POOL/VIEW=WEIGHT, like out/pool/all=0.7"),
        ("all=1", "is not POOL/VIEW=WEIGHT"),
        ("pool/=1", "is not POOL/VIEW=WEIGHT"),
        ("pool/all=much", "the weight 'much' is no number"),
        ("pool/all=-1", "the weight of 'pool/all' is -1.0; it must be above 0"),
        ("pool/all=nan", "must be above 0"),
    ],
)
def test_what_is_no_mix_is_refused(mix, message):
    with pytest.raises(ValueError, match=message):
        blend_of([mix])


def test_pools_and_views_are_looked_for(tiny_pool):
    assert view_names(PoolLayout(tiny_pool)) == ["all", "half"]
    assert count_rows(blend_of([f"{tiny_pool}/all=1", f"{tiny_pool}/half=1"])) == 72


def test_a_forgotten_view_is_named_with_the_views_of_the_pool(tiny_pool, tmp_path, monkeypatch):
    expected = f"{tiny_pool} is a pool, and the view is missing: write POOL/VIEW=WEIGHT, like"
    with pytest.raises(ValueError, match=expected) as refused:
        count_rows(blend_of([f"{tiny_pool}=0.5"]))
    assert f"like {tiny_pool}/all=0.5 (its views: all, half)" in str(refused.value)
    monkeypatch.chdir(Path(tiny_pool).parent)
    with pytest.raises(ValueError, match=r"^pool is a pool, .* like pool/all=2 \(its views: all"):
        blend_of(["pool=2"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=f"{tmp_path} is not a pool: it has neither pool.json nor"):
        count_rows(blend_of([f"{tmp_path}/empty=1"]))


def test_the_plan_says_shares_unique_rows_and_repeats_before_training(tiny_pool, tmp_path, capsys):
    blend = tmp_path / "blend.yaml"
    blend.write_text(
        f"name: b\npools: {{web: {tiny_pool}}}\nviews: {{web/all: 3, web/half: 1}}\n"
        "captions: {web/all: {caption: 1}}\n"
    )
    settings = ["--set", "batch_size=16", "lanes=8", "samples_seen=128", "warmup=0"]
    assert commands.train([str(blend), "--plan", "--preset", "micro", *settings]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["blend", "b:", "128", "samples"]
    assert lines[1] == ["view", "share", "samples", "rows", "unique", "repeats"]
    assert lines[2] == ["web/all", "0.750", "96", "48", "48", "2.00"]
    assert lines[3] == ["web/half", "0.250", "32", "24", "24", "1.33"]
    assert lines[4] == ["web/all:", "96", "captions", "of", "column", "caption"]
    blend.write_text(blend.read_text().replace("{web/all: {", "{web/hall: {"))
    assert commands.train([str(blend), "--plan"]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert (
        "captions names 'web/hall', which is not one of its views (web/all, web/half)" in error[0]
    )
