"""Every rule over all stored rows: the same rows as the masks and the counts of a view."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.records import ViewDocument, ViewRule, ViewRulesDocument, read_document
from clipmill.manifests.schema import Rule
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.views.choose import rule_outcomes, with_derived
from clipmill.pipeline.views.files import choose_views
from clipmill.pipeline.views.rules import selected_rules
from tests.support import small_pool
from tests.support.chosen import recipe, view

RULES = (
    Rule(name="wide", where="original_width >= 200"),
    Rule(name="best", where="original_width >= top(original_width, 0.5)"),
    Rule(name="page", where="page_lang = 'en' OR page_lang IS NULL"),
    Rule(name="half", sample=0.7),
)
Made = tuple[pa.Table, ViewDocument, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    pool = small_pool.make_pool(tmp_path_factory.mktemp("pool"), small_pool.rows(40))
    random = view("r", Rule(name="random", random_like="v", seed=4))
    documents = choose_views(PoolWriter(pool), recipe(view("v", *RULES), random))
    tables = [PoolLayout(pool).sidecar(shard) for shard in range(4)]
    table = pa.concat_tables([pa.parquet.read_table(path) for path in tables])
    return table, documents["v"], pool


def test_the_counts_are_those_that_the_view_was_made_with(made: Made) -> None:
    table, document, pool = made
    effects = read_document(PoolLayout(pool).view_rules("v"), ViewRulesDocument).rules
    outcomes = list(rule_outcomes(table, document))
    times = np.zeros(table.num_rows, int)
    for outcome in outcomes:
        assert outcome.rejected is not None
        times += outcome.rejected
    for outcome, effect in zip(outcomes, effects, strict=True):
        assert outcome.rejected is not None
        assert outcome.name == effect.rule
        assert int(outcome.rejected.sum()) == effect.rejected
        assert int((outcome.rejected & (times == 1)).sum()) == effect.alone
    assert outcomes[1].columns == {"original_width"}


def test_a_random_view_is_drawn_again_only_from_the_whole_pool(made: Made) -> None:
    table, document, pool = made
    random = read_document(PoolLayout(pool).view_json("r"), ViewDocument)
    (outcome,) = rule_outcomes(table, random, {"v": document.kept})
    assert outcome.rejected is not None
    stored = np.asarray(pa.compute.equal(table["status"], "success"))
    assert int((stored & ~outcome.rejected).sum()) == random.kept
    (unknown,) = rule_outcomes(table, random)
    assert unknown.rejected is None


def test_missing_values_and_rules_that_cannot_be_evaluated(made: Made) -> None:
    table, document, _ = made
    rules = (
        ViewRule(name="lang", where="page_lang = 'en'"),
        ViewRule(name="gone", where="no_such_column > 3"),
    )
    lang, gone = rule_outcomes(table, dataclasses.replace(document, rules=rules))
    assert lang.missing is not None
    assert lang.missing.sum() == 32, "every stored row: pages have no language"
    assert gone.rejected is None
    prose = dataclasses.replace(document, rules=selected_rules("in the lock x"))
    assert next(rule_outcomes(table, prose)).rejected is None


def test_rows_keep_their_order_beside_long_lists(made: Made) -> None:
    numbers = np.random.default_rng(0).permutation(150_000)
    texts = pa.array([f"t{number % 1000}" for number in numbers.tolist()])
    table = pa.table({"status": ["success"] * len(numbers), "number": numbers, "text": texts})
    listed = ", ".join(f"'t{number}'" for number in range(500))
    rules = (
        ViewRule(name="list", where=f"text IN ({listed})"),
        ViewRule(name="both", where=f"text NOT IN ({listed}) AND number % 7 = 0"),
        ViewRule(name="fails", where="CAST(text AS INTEGER) > 3"),
    )
    in_list, both, fails = rule_outcomes(table, dataclasses.replace(made[1], rules=rules))
    assert in_list.rejected is not None
    assert both.rejected is not None
    assert (in_list.rejected == (numbers % 1000 >= 500)).all()
    assert (both.rejected == ((numbers % 1000 < 500) | (numbers % 7 > 0))).all()
    assert (fails.rejected, fails.columns) == (None, frozenset())


def test_derived_columns_stand_beside_the_others(made: Made) -> None:
    table = with_derived(made[0])
    assert table["page_host"][0].as_py() == "host0.example"
    assert table["aspect"][4].as_py() is None
    assert with_derived(made[0].select(["status"])).column_names == ["status"]
