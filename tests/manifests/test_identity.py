"""What decides a pool's bytes: settings are hashed, manners and folders are not."""

from __future__ import annotations

from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.identity import (
    ablation_hash,
    fetch_identity,
    recipe_changes,
    recipe_hash,
    recipe_identity,
)
from clipmill.manifests.schema import (
    MANNERS,
    Ablation,
    Arm,
    Fetch,
    PoolRef,
    Recipe,
    Source,
    TaskSpec,
)

INDEX = Source(kind="wat_index", crawl="CC-MAIN-2024-51", sample=3)
OTHER_MANNERS: dict[str, Any] = {
    "user_agent": "someone else",
    "img2dataset_python": "/opt/python",
    "connect_to": {"*.test": "127.0.0.1:80"},
    "deadline_s": 5.0,
    "min_rate": 10,
    "retries": 0,
    "concurrency": 8,
    "per_host": 9,
    "delay_s": 1.0,
    "patience_s": 30.0,
}


def recipe(source: Source = INDEX, **fetch: Any) -> Recipe:
    return Recipe(name="r", source=source, fetch=Fetch(**fetch))


@pytest.mark.parametrize("name", sorted(MANNERS))
def test_manners_may_change_in_the_middle_of_a_pool(name: str) -> None:
    polite = recipe(**{name: OTHER_MANNERS[name]})
    assert recipe_hash(polite) == recipe_hash(recipe())
    assert recipe_changes(recipe_identity(recipe()), recipe_identity(polite)) == []


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"image_size": 512}, "fetch.image_size was 256 and is 512"),
        ({"max_redirects": 2}, "fetch.max_redirects was 5 and is 2"),
        ({"optout": "strict"}, "fetch.optout was 'respect' and is 'strict'"),
        ({"allow_ports": (80,)}, "fetch.allow_ports was [80, 443] and is [80]"),
    ],
)
def test_what_decides_bytes_is_named(changed: dict[str, Any], line: str) -> None:
    assert recipe_hash(recipe(**changed)) != recipe_hash(recipe())
    assert recipe_changes(recipe_identity(recipe()), recipe_identity(recipe(**changed))) == [line]


def test_a_folder_may_move_and_a_file_may_not_become_another() -> None:
    def table(path: str) -> Recipe:
        return recipe(Source(kind="table", paths=(path,)))

    here = table("/here/list.parquet")
    assert recipe_hash(here) == recipe_hash(table("/there/list.parquet"))
    changes = recipe_changes(recipe_identity(here), recipe_identity(table("/here/other.parquet")))
    assert changes == ["source.paths was ['list.parquet'] and is ['other.parquet']"]
    assert recipe_hash(table("s3://a/list.csv")) != recipe_hash(table("s3://b/list.csv"))


def test_hashes_of_recipes_without_local_paths_stay_what_they_were() -> None:
    assert recipe_hash(recipe()) == OLD_HASH
    assert disk.content_hash(fetch_identity(Fetch())) == OLD_SETTINGS


OLD_HASH = "585aaa655084"
OLD_SETTINGS = "be3bc25d8fb8"


def test_a_key_with_its_default_does_not_change_the_hash_of_an_ablation() -> None:
    common: dict[str, Any] = {
        "name": "x",
        "question": "?",
        "pools": {"p": PoolRef(out="p")},
        "arms": {"a": Arm(view="p/a"), "b": Arm(view="p/b")},
        "baseline": "a",
        "seeds": (0, 1),
        "evaluate": (TaskSpec(name="t", kind="classification", data="d"),),
        "primary": "t",
        "train": {"preset": "micro"},
    }
    plain = ablation_hash(Ablation(**common))
    assert plain == ablation_hash(Ablation(**common, jobs=1, equivalence=None))
    assert plain == "540f6ba8f249"  # adding a key must not change it
    assert plain != ablation_hash(Ablation(**common, equivalence=0.25))
