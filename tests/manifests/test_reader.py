"""Manifests in: what a person may write, and one plain line for what is written wrongly."""

from __future__ import annotations

from pathlib import Path

import pydantic
import pytest

from clipmill.manifests import disk, reader
from clipmill.manifests.schema import (
    Ablation,
    Arm,
    Blend,
    Fetch,
    Recipe,
    Rule,
    Scorer,
    Source,
    Suite,
    TaskSpec,
)

RECIPE = """
name: small
source: {kind: wat, paths: [crawl.warc.wat.gz]}
fetch: {max_bytes: 1MiB, user_agent: "clipmill (me@example.org)"}
filters: [caption, {clip_score: {model: ViT-B-32}}]
views:
  raw: []
  basic:
    - words: caption_words > 2
  both: [{view: basic}, {clip: "clip_score >= top(clip_score, 0.30)"}]
  control: [{random_like: both, seed: 3}]
scales: {debug: {fetch: {max_bytes: 2KiB}, filters: [caption]}}
"""

ABLATION = """
name: question
question: Does it help?
pools: {web: {recipe: small.yaml}}
arms: {raw: web/raw, basic: web/basic, mixed: {blend: mixed.yaml}}
baseline: raw
controls: {random_like: [basic], a_a: raw}
seeds: [0, 1, 2]
train: {preset: micro, samples_seen: 12.8k}
evaluate: [{name: objects, kind: classification, data: eval}]
primary: objects
"""


def write(folder: Path, text: str, name: str = "small.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_recipe_with_all_short_forms(tmp_path: Path) -> None:
    recipe = reader.read_manifest(write(tmp_path, RECIPE), Recipe)
    assert recipe.source.paths == (str(tmp_path / "crawl.warc.wat.gz"),)
    assert recipe.fetch.max_bytes == 2**20
    assert [f.name for f in recipe.filters] == ["caption", "clip_score"]
    assert recipe.filters[1].options == {"model": "ViT-B-32"}
    assert recipe.view("both").rules[0].view == "basic"
    assert recipe.view("control").rules[0].random_like == "both"
    assert recipe.view("control").rules[0].seed == 3
    assert disk.from_plain(Recipe, disk.to_plain(recipe)) == recipe


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("max_bytes", "max_bytez"), "unknown key 'fetch.max_bytez'; did you mean 'max_bytes'?"),
        (("max_bytes: 1MiB", "rows_per_shard: 20000"), "20000; it must lie in 1..10000"),
        (("[caption, ", "[caption, caption, "), "filters named twice: caption"),
        (("crawl.warc", "'${CLIPMILL_NOWHERE}/crawl.gz', x"), "${CLIPMILL_NOWHERE}, which is not"),
        (("scales:", "scale:"), "unknown key 'scale'; did you mean 'scales'"),
        (
            ("both: [{view: basic}", 'long: "caption_words >= 4"\n  both: [{view: basic}'),
            "views.long is 'caption_words >= 4'; it must be a list of named rules, as in "
            'long: [{words: "caption_words >= 4"}]',
        ),
        (
            ("- words: caption_words > 2", "- caption_words > 2"),
            "views.basic has the rule 'caption_words > 2'; a rule is one of ",
        ),
        (("- words: caption_words > 2", "- words: 2"), "views.basic has the rule {'words': 2}"),
        (
            ("- words: caption_words > 2", "- half: {smaple: 0.5}"),
            "unknown key 'views.basic.half.smaple'; did you mean 'sample'?",
        ),
        (("views:\n  raw: []", "views: raw\nwiews:\n  raw: []"), "unknown key 'wiews'"),
        (("max_bytes: 1MiB", "image_size: big"), "fetch.image_size is 'big'; it must be a whole"),
        (("max_bytes: 1MiB", "deadline_s: soon"), "deadline_s is 'soon'; it must be a number"),
        (("max_bytes: 1MiB", "robots_txt: maybe"), "it must be true or false"),
        (("max_bytes: 1MiB", "allow_ports: 80"), "must be a list, as in allow_ports: [80, 443]"),
        (("max_bytes: 1MiB", "resize_mode: keep"), "must be one of no, border, keep_ratio"),
        (("name: small", "name: 2024"), "name is 2024; it must be text; put it in quotes"),
        (("paths: [crawl.warc.wat.gz]", "paths: 3"), "source.paths is 3; it must be a list"),
        (("kind: wat", "kind: wats"), "did you mean 'wat'?"),
    ],
)
def test_a_wrong_recipe_is_one_line_with_file_key_and_value(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    assert change[0] in RECIPE
    path = write(tmp_path, RECIPE.replace(*change))
    with pytest.raises(ValueError, match=r"small\.yaml: ") as error:
        reader.read_manifest(path, Recipe)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert "instance of" not in str(error.value)


def test_ablation(tmp_path: Path) -> None:
    ablation = reader.read_manifest(write(tmp_path, ABLATION), Ablation)
    assert ablation.pools["web"].recipe == str(tmp_path / "small.yaml")
    assert ablation.arms["mixed"] == Arm(blend=str(tmp_path / "mixed.yaml"))
    assert ablation.train["samples_seen"] == "12.8k"  # read by the type of the setting
    assert disk.from_plain(Ablation, disk.to_plain(ablation)) == ablation
    assert reader.manifest_kind(tmp_path / "small.yaml") is Ablation


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("baseline: raw", "baseline: row"), "baseline 'row' is not one of the arms"),
        (("primary: objects", "primary: imagenet"), "primary 'imagenet' is not one of the tasks"),
        (("random_like: [basic]", "random_like: [clip]"), "control of unknown arm 'clip'"),
        (("recipe: small.yaml", "recept: small.yaml"), "did you mean 'recipe'?"),
        (("seeds: [0, 1, 2]", "seeds: 3"), "seeds is 3; it must be a list, as in seeds: [0, 1, 2]"),
        (("seeds: [0, 1, 2]", "seeds: [a, b]"), "seeds.0 is 'a'; it must be a whole number"),
        (("question: Does it help?\n", ""), "question is missing"),
        (("kind: classification, ", ""), "evaluate.objects.kind is missing"),
        (("pools: {web: {recipe: small.yaml}}", "pools: {web: small.yaml}"), "pools.web is "),
    ],
)
def test_a_wrong_ablation_is_one_line(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    assert change[0] in ABLATION
    with pytest.raises(ValueError, match=r"small\.yaml: ") as error:
        reader.read_manifest(write(tmp_path, ABLATION.replace(*change)), Ablation)
    assert message in str(error.value)


def test_blend_and_task(tmp_path: Path) -> None:
    blend = reader.read_manifest(
        write(
            tmp_path, "name: b\npools: {web: ./pool}\nviews: {web/clip30: 0.7, web/basic: 0.3}\n"
        ),
        Blend,
    )
    assert blend.pools == {"web": str(tmp_path / "pool")}
    task = reader.read_manifest(
        write(tmp_path, "name: t\nkind: retrieval\ndata: pictures\n"), TaskSpec
    )
    assert task.data == str(tmp_path / "pictures")
    lists = "{name: t, kind: classification, data: d, classes: imagenet, templates: t/one.txt}"
    task = reader.read_manifest(write(tmp_path, lists), TaskSpec)
    assert (task.classes_from, task.templates_from) == ("imagenet", str(tmp_path / "t/one.txt"))
    suite = reader.read_manifest(write(tmp_path, f"name: s\ntasks: [{lists}]\n"), Suite)
    assert suite.tasks == (task,)
    assert disk.from_plain(Suite, disk.to_plain(suite)) == suite


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{name: x}", "neither a recipe"),
        ("{name: x, Source: {kind: files}}", "unknown key 'Source'; did you mean 'source'"),
        ("{name: x, arm: {raw: web/raw}, seeds: [0, 1]}", "'arm'; did you mean 'arms'"),
    ],
)
def test_the_key_that_tells_the_kind_is_missing_or_misspelt(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        reader.manifest_kind(write(tmp_path, text))


# --- numbers by the type of their field --------------------------------------------------------


def test_numbers_are_read_by_the_type_of_their_field(tmp_path: Path) -> None:
    text = """
name: 12.8M
source: {kind: table, paths: [20MiB], extra_columns: {1k: float}}
fetch: {max_bytes: 20MiB, max_pixels: 2k, min_rate: 1 KiB, deadline_s: 1k, user_agent: 5M}
filters: [{clip_score: {model: 12M}}]
views: {3k: [{10M: "caption = '12.8M'"}]}
"""
    recipe = reader.read_manifest(write(tmp_path, text), Recipe)
    assert recipe.name == "12.8M"
    assert recipe.source.paths == (str(tmp_path / "20MiB"),)
    assert (recipe.fetch.max_bytes, recipe.fetch.max_pixels) == (20 * 2**20, 2000)
    assert (recipe.fetch.min_rate, recipe.fetch.deadline_s) == (1024, 1000.0)
    assert recipe.fetch.user_agent == "5M"
    assert recipe.filters[0].options == {"model": "12M"}
    assert recipe.views[0].rules[0].name == "10M"


# --- paths and files ---------------------------------------------------------------------------


def test_paths_are_absolute_and_without_detours(tmp_path: Path) -> None:
    folder = tmp_path / "blends"
    folder.mkdir()
    text = "name: b\npools: {web: ../pools/web, far: s3://b/../pool}\nviews: {web/raw: 1}\n"
    blend = reader.read_manifest(write(folder, text), Blend)
    assert blend.pools == {"web": str(tmp_path / "pools" / "web"), "far": "s3://b/../pool"}


def test_a_path_of_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    text = "name: b\npools: {web: ~/pools/web, here: ~web, there: a/~/b}\nviews: {web/raw: 1}\n"
    blend = reader.read_manifest(write(tmp_path, text), Blend)
    here, there = str(tmp_path / "~web"), str(tmp_path / "a" / "~" / "b")
    assert blend.pools == {"web": "/home/somebody/pools/web", "here": here, "there": there}
    text = (
        "name: r\nsource: {kind: shards, paths: [~/tars]}\n"
        "filters: [{clip_score: {model: local-dir:~/clip}}]\n"
    )
    recipe = reader.read_manifest(write(tmp_path, text), Recipe)
    assert recipe.source.paths == ("/home/somebody/tars",)
    assert recipe.filters[0].options == {"model": "local-dir:/home/somebody/clip"}


def test_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\.yaml does not exist"):
        reader.read_manifest(tmp_path / "nothing.yaml", Recipe)
    for read in (reader.manifest_kind, reader.list_scales):
        with pytest.raises(ValueError, match=r"is a folder; name a YAML file"):
            read(tmp_path)


def test_one_kind_of_manifest_in_the_place_of_another_is_named(tmp_path: Path) -> None:
    recipe = write(tmp_path, "name: r\nsource: {kind: wat, paths: [x]}", "r.yaml")
    ablation = write(tmp_path, "name: a\narms: {raw: web/raw}", "a.yaml")
    blend = write(tmp_path, "name: b\npools: {web: p}\nviews: {web/raw: 1}", "b.yaml")
    kinds = {recipe: Recipe, ablation: Ablation, blend: Blend}
    says = {recipe: "a recipe; build", ablation: "an ablation; run", blend: "a blend; train on"}
    for path, kind in kinds.items():
        for other in (Recipe, Ablation, Blend, TaskSpec):
            if other is not kind:
                with pytest.raises(ValueError, match=f"{path.name} is {says[path]}"):
                    reader.read_manifest(path, other)
    task = write(tmp_path, "name: t\nkind: retrieval\ndata: d", "t.yaml")
    for path, message in ((blend, "a blend; train on it with"), (task, "a task; evaluate with")):
        with pytest.raises(ValueError, match=f"{path.name} is {message}"):
            reader.manifest_kind(path)


def test_an_ablation_may_name_a_task_file(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    write(tasks, "name: objects\nkind: classification\ndata: ../eval\n", "objects.yaml")
    inline = "{name: objects, kind: classification, data: eval}"
    text = ABLATION.replace(inline, "tasks/objects.yaml")
    ablation = reader.read_manifest(write(tmp_path, text), Ablation)
    assert ablation.evaluate[0].data == str(tmp_path / "eval")
    missing = ABLATION.replace(inline, "tasks/other.yaml")
    with pytest.raises(ValueError, match=r"tasks/other\.yaml does not exist"):
        reader.read_manifest(write(tmp_path, missing), Ablation)


# --- one block, read first ---------------------------------------------------------------------


BLOCK = "name: x\narms: {a: '${CLIPMILL_NOT_SET}/raw'}\nscorer: {view: web/all, seed: 2k}\n"


def test_one_block_is_read_before_the_variables_of_the_rest_are_set(tmp_path: Path) -> None:
    path = write(tmp_path, BLOCK + "scales: {debug: {scorer: {train: {lr: 0.1}}}}")
    small = reader.read_block(path, "scorer", Scorer, scale="debug")
    assert small == Scorer(view="web/all", seed=2000, train={"lr": 0.1})
    assert reader.read_block(path, "controls", Scorer) is None
    with pytest.raises(ValueError, match="no scale 'big'; it has debug"):
        reader.read_block(path, "scorer", Scorer, scale="big")
    with pytest.raises(reader.UnsetVariableError, match=r"arms\.a names \$\{CLIP") as error:
        reader.read_manifest(path, Ablation)
    assert error.value.name == "CLIPMILL_NOT_SET"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("{veiw: web/all}", "unknown key 'scorer.veiw'; did you mean 'view'?"),
        ("{view: web/all, seed: -1}", "scorer: seed is -1; it must lie in"),
        ("5", "scorer is 5; it must be a mapping"),
    ],
)
def test_a_wrong_block_names_file_key_and_value(tmp_path: Path, block: str, message: str) -> None:
    path = write(tmp_path, BLOCK.replace("{view: web/all, seed: 2k}", block))
    with pytest.raises(ValueError, match=r"small\.yaml: ") as error:
        reader.read_block(path, "scorer", Scorer)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('{"name": "r"}', "Recipe has no value for 'source'"),
        ('{"name": "r", "source": 5}', "Recipe.source is 5; it must be a mapping"),
        ('{"name": "r", "sauce": {}}', "Recipe has no 'sauce'; did you mean 'source'?"),
    ],
)
def test_a_resolved_recipe_that_is_none(tmp_path: Path, document: str, message: str) -> None:
    path = write(tmp_path, document, "r.json")
    with pytest.raises(ValueError, match=r"r\.json") as error:
        reader.read_manifest(path, Recipe)
    assert message in str(error.value)


def test_a_resolved_recipe_has_no_scale(tmp_path: Path) -> None:
    recipe = reader.read_manifest(write(tmp_path, RECIPE), Recipe)
    disk.write_json(tmp_path / "r.json", recipe)
    with pytest.raises(ValueError, match="is resolved already; it has no scale 'debug'"):
        reader.read_manifest(tmp_path / "r.json", Recipe, scale="debug")


# Values of which pydantic changes none, or refuses or changes one.
PLAIN = [
    (Source, {"kind": "wat", "paths": ["a"]}),
    (Fetch, {"deadline_s": 20, "max_bytes": "20MiB", "allow_ports": [80]}),
    (Rule, {"name": "tenth", "sample": 0.5, "seed": 3}),
    (TaskSpec, {"name": "t", "kind": "classification", "data": "eval"}),
]
ODD = [
    (Fetch, {"image_size": 256.0}),
    (Fetch, {"image_size": "256"}),
    (Fetch, {"deadline_s": "20"}),
    (Fetch, {"retries": True}),
    (Fetch, {"deadline_s": 2**60}),
    (Fetch, {"user_agent": "\ud800"}),
    (Fetch, {"unknown": 1}),
    (Source, {"kind": "wat", "paths": "a"}),
    (Source, {"kind": "watt", "paths": ["a"]}),
    (Source, {"kind": "wat"}),
    (Rule, {"name": "tenth", "where": 1}),
    (Rule, {"name": "tenth", "sample": 2}),
]


@pytest.mark.parametrize(("kind", "values"), PLAIN)
def test_values_of_the_right_types_need_no_pydantic(kind: type, values: dict[str, object]) -> None:
    raw = reader.with_numbers(values, kind)
    expected = pydantic.TypeAdapter(kind).validate_python(raw)
    assert repr(reader.without_pydantic(raw, kind)) == repr(expected)


@pytest.mark.parametrize(("kind", "values"), ODD)
def test_other_values_are_left_to_pydantic(kind: type, values: dict[str, object]) -> None:
    assert reader.without_pydantic(reader.with_numbers(values, kind), kind) is None
