from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from clipmill.verdict.stats.blocks import interaction, seed_effect

BLOCKS = {run: run // 4 for run in range(12)}  # three blocks of four runs


def table(rng: np.random.Generator, effects: dict[str, tuple[float, ...]]) -> dict[str, dict]:
    """Runs of SD 1 around an effect for each arm and block."""
    rows = {}
    for arm, of_blocks in effects.items():
        rows[arm] = {run: float(of_blocks[block] + rng.normal()) for run, block in BLOCKS.items()}
    return rows


FLAT = {"base": (0.0, 0.0, 0.0), "a": (1.0, 1.0, 1.0), "b": (0.5, 0.5, 0.5)}


def test_the_test_of_replicates_is_that_of_the_two_way_layout() -> None:
    values = table(np.random.default_rng(1), FLAT)
    cube = np.array([list(row.values()) for row in values.values()]).reshape(3, 3, 4)
    cells = cube.mean(2)
    crossed = cells - cells.mean(0) - cells.mean(1, keepdims=True) + cells.mean()
    between = 4 * (crossed**2).sum() / 4
    within = ((cube - cells[:, :, None]) ** 2).sum() / 27
    result = interaction(values, BLOCKS, "base", BLOCKS)
    assert result is not None
    assert result.p == pytest.approx(float(stats.f.sf(between / within, 4, 27)), rel=1e-9)
    assert result.differences["a"][2] == pytest.approx(cells[1, 2] - cells[0, 2])


def test_paired_seeds_take_their_effects_out_of_the_test() -> None:
    rng = np.random.default_rng(1)
    values = table(rng, FLAT)
    before = interaction(values, BLOCKS, "base")
    effects = 9 * rng.normal(size=12)
    moved = {arm: {run: v + effects[run] for run, v in row.items()} for arm, row in values.items()}
    after = interaction(moved, BLOCKS, "base")
    assert before is not None
    assert after is not None
    assert before.p is not None
    assert after.p == pytest.approx(before.p, rel=1e-6)
    unpaired = interaction(moved, BLOCKS, "base", BLOCKS)
    assert unpaired is not None
    assert unpaired.p != pytest.approx(before.p, rel=1e-2)


def test_a_difference_that_turns_is_named() -> None:
    effects = {"base": (0.0, 0.0, 0.0), "turns": (-4.0, 0.0, 4.0), "rises": (4.0, 8.0, 12.0)}
    result = interaction(table(np.random.default_rng(2), effects), BLOCKS, "base", BLOCKS)
    assert result is not None
    assert result.p is not None
    assert result.p < 1e-6
    (crossing,) = result.crossings
    assert (crossing.arm, crossing.lowest, crossing.highest) == ("turns", 0, 2)
    assert crossing.is_clear


def test_single_runs_have_differences_and_no_test() -> None:
    values = {"base": {0: 1.0, 4: 2.0, 8: 3.0}, "a": {0: 1.5, 4: 1.0, 8: 9.0}}
    result = interaction(values, BLOCKS, "base", BLOCKS)
    assert result is not None
    assert result.p is None
    assert result.differences == {"a": pytest.approx({0: 0.5, 1: -1.0, 2: 6.0}, rel=1e-9)}
    (crossing,) = result.crossings
    assert (crossing.lowest, crossing.highest, crossing.p) == (1, 2, None)
    assert not crossing.is_clear
    assert interaction({"base": {0: 1.0}, "a": {1: 2.0}}, BLOCKS, "base", BLOCKS) is None
    # an arm and the baseline without a block in common have no difference
    apart = interaction({"base": {0: 1.0}, "a": {4: 2.0}}, BLOCKS, "base", BLOCKS)
    assert apart is not None
    assert apart.differences == {}


@pytest.mark.parametrize("is_paired", [True, False])
def test_where_nothing_differs_about_one_test_in_twenty_is_clear(is_paired: bool) -> None:
    rng = np.random.default_rng(7)
    called, turned = 0, 0
    for _ in range(400):
        # in one block the arms are far above the baseline, in the others equal to it
        values = table(rng, {"base": (0.0, 0.0, 0.0), "a": (0.0, 0.0, 0.0), "b": (9.0, 0.0, 0.0)})
        equal = {arm: values[arm] for arm in ("base", "a")}
        groups = None if is_paired else BLOCKS
        result, of_all = (interaction(one, BLOCKS, "base", groups) for one in (equal, values))
        assert result is not None
        assert of_all is not None
        assert result.p is not None
        called += result.p < 0.05
        turned += any(one.is_clear for one in of_all.crossings)
    assert 8 <= called <= 34  # 20 expected, standard deviation 4.4
    assert 1 <= turned <= 20  # half of 5 % for each arm at most


def test_wrong_blocks_are_refused() -> None:
    values = table(np.random.default_rng(1), FLAT)
    with pytest.raises(ValueError, match="run 3 of base is in no block"):
        interaction(values, {0: 0, 1: 0, 2: 0}, "base")
    with pytest.raises(ValueError, match="group 0 has runs of two blocks"):
        interaction(values, BLOCKS, "base", dict.fromkeys(BLOCKS, 0))


def _cells(rng: np.random.Generator, of_seed: float) -> dict[str, dict[tuple[int, int], float]]:
    """3 arms × 4 blocks × 5 seeds: runs of SD 1, blocks and seeds apart, and arm × seed."""
    block_B, seed_S = 10 * rng.normal(size=4), 5 * rng.normal(size=5)
    return {
        arm: {
            (b, s): float(block_B[b] + seed_S[s] + effect_S[s] + rng.normal())
            for b in range(4)
            for s in range(5)
        }
        for arm, effect_S in {arm: of_seed * rng.normal(size=5) for arm in "abc"}.items()
    }


def test_an_effect_of_arm_and_seed_is_found_and_no_other_one() -> None:
    rng = np.random.default_rng(0)
    ps = [seed_effect(_cells(rng, 0.0)) or 0.0 for _ in range(400)]
    assert 0.18 < np.mean(np.array(ps) < 0.25) < 0.32  # uniform without an effect
    assert np.mean([(seed_effect(_cells(rng, 2.0)) or 0.0) < 0.25 for _ in range(100)]) > 0.95


def test_the_effect_of_seeds_needs_complete_cells() -> None:
    cells = _cells(np.random.default_rng(1), 1.0)
    whole = seed_effect(
        {arm: {at: v for at, v in own.items() if at[1] != 4} for arm, own in cells.items()}
    )
    del cells["a"][0, 4]  # a seed that one arm lacks in one block does not count
    assert seed_effect(cells) == pytest.approx(whole)
    assert seed_effect({"a": cells["a"]}) is None
    assert (
        seed_effect(
            {arm: {at: v for at, v in own.items() if at[1] == 0} for arm, own in cells.items()}
        )
        is None
    )
    same = {
        arm: {(b, s): v for (_, s), v in own.items() for b in range(2)}
        for arm, own in cells.items()
    }
    assert seed_effect(same) == 0.0  # each block repeats the values of the seeds
