"""Random damages of every kind of file of a pool, and tars that are not as they should be: each is
noticed, or changes nothing.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import chaos_pools, damages, malformed_tars, strict_readers
from tests.support.forked_commands import CommandServer
from tests.support.trials import EVERYWHERE, SEED

pytestmark = pytest.mark.slow
COUNT = 1500 if EVERYWHERE else 60  # of each pool


@pytest.mark.parametrize("make", [chaos_pools.whole_pool, chaos_pools.bundled_pool])
def test_a_damage_is_noticed_or_changes_nothing(
    tmp_path: Path, make: Callable[[str, str], None]
) -> None:
    pool = str(tmp_path / "pool")
    with CommandServer() as server:  # a reader that crashes ends a child, not the tests
        server.run(make, str(tmp_path / "inputs"), pool)
        done = 0
        while done < COUNT:
            count = min(COUNT - done, 100)
            result = server.run(damages.damage_many, pool, SEED + done, count)
            print(json.dumps({"counts": result["counts"], "refused": result["refused"]}))
            assert result["silent"] == [], "\n".join(result["silent"])
            done += count


# Both are read: the second sample gets a key of its own, and the text file is the caption.
NOT_NAMED = {"a key twice", "JSON that is cut"}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of webdataset
def test_malformed_tars_are_named_and_webdataset_misses_most(tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    assert len(malformed_tars.MALFORMED) == 20
    results = strict_readers.compare(malformed_tars.MALFORMED, tmp_path)
    print(json.dumps(results, indent=1))
    interleaved = results.pop("members of samples interleaved")
    assert interleaved["clipmill"]["samples"] == malformed_tars.SAMPLES
    assert interleaved["webdataset"]["samples"] == 3 * malformed_tars.SAMPLES  # one a member
    missed = {name for name, each in results.items() if not each["clipmill"]["says"]}
    assert missed == NOT_NAMED
    assert sum(bool(each["webdataset"]["error"]) for each in results.values()) == 3
    gc.collect()  # files that webdataset leaves open
