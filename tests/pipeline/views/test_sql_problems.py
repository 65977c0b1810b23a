"""Mistakes in the SQL of a rule: one line that names view, rule and expression, what is wrong and
how to mend it, without a word of DuckDB's own.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from manifests.columns import SIDECAR
from manifests.schema import Rule, View
from pipeline.views import rules
from pipeline.views.choose import check
from tests.support.chosen import choose

SCHEMA = pa.schema([*SIDECAR, ("caption_words", pa.int32())])
CASES = [
    # a text in double quotes
    ('caption = "Shirt"', """"Shirt" stands in double quotes, which name a column.*: 'Shirt'$"""),
    ('caption = "it\'s"', "a text stands in single quotes: 'it''s'$"),
    ('"Caption_Wrds" > 4', "no such column; did you mean 'caption_words'\\?; a text stands in"),
    ('caption = "Shirt', "a double quote is not closed; a text stands in single quotes"),
    # columns
    ("not caption_url", "filter caption gives the column 'caption_url' with other options only"),
    ("caption_wrds > 4", "there is no column 'caption_wrds'; did you mean 'caption_words'\\?; "),
    ("license IS NULL", "'license' comes from the filter page; put page into the filters"),
    ("pool.caption_words > 4", "it names a table 'pool'; write the name of a column alone"),
    # syntax
    ("", "it is empty; write one condition, as in caption_words >= 4"),
    ("(caption_words > 4", "a parenthesis is not closed: '\\)' is missing$"),
    ("caption_words > 4)", "there is one parenthesis too many: '\\)' without '\\('$"),
    ("caption[1 = 'a'", "a bracket is not closed: '\\]' is missing$"),
    ("caption_words >", "it ends too early, after '>'; write one condition, as in"),
    ("caption_words > 4 and", "it ends too early, after 'and'"),
    ("caption = 'it's'", "a single quote is not closed; a quote inside a text is written twice"),
    ("caption contains 'cat'", "it is no SQL expression: it cannot be read at \"'cat'\"; write"),
    ("caption = '(' and and true", "it cannot be read at 'and'; write one condition"),
    # functions, operators and types
    ("lenght(caption) > 4", "there is no function lenght\\(\\); did you mean 'length'\\?$"),
    ("len_of_it(caption) > 4", "there is no function len_of_it\\(\\)"),
    ("qqqqq(caption) > 4", "there is no function qqqqq\\(\\) in DuckDB's SQL$"),
    ("caption_words >=>> 4", "there is no operator >=>>; did you mean '>='\\?$"),
    ("caption_words => 4", "there is no operator =>; did you mean '>='\\?$"),
    ("status && caption", "the operator && is not for such values; did you mean 'AND'\\?$"),
    ("CAST(caption AS NUMBR) = 3", "there is no type 'NUMBR'; types are INTEGER"),
    ("caption > 4", "it compares a text with a number; a text stands in single quotes, a num"),
    ("length(caption, 4) > 3", "length\\(\\) cannot be used on a text and a number; it is leng"),
    ("caption + 1 > 3", "\\+ cannot be used on a text and a number$"),
    ("caption LIKE 3", "LIKE cannot be used on a text and a number$"),
    ("regexp_matches(caption, '[')", "a regular expression that cannot be read: missing \\]"),
    ("caption ~ '('", "a regular expression that cannot be read: missing \\)"),
    ("regexp_extract(caption, '*a') = 'a'", "a regular expression that cannot be read: no arg"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "message"), CASES, ids=[where for where, _ in CASES])
def test_a_mistake_in_a_rule_says_how_to_mend_it(where: str, message: str) -> None:
    views = [View(name="long", rules=(Rule(name="words", where=where),))]
    with pytest.raises(ValueError, match=message) as caught:
        check(views, SCHEMA)
    line = str(caught.value)
    assert line.startswith(f"view 'long', rule 'words' ({where}): ")
    assert "\n" not in line
    assert not any(word in line for word in ("Error:", "Candidate", "LITERAL", "BIGINT"))


def test_a_value_that_cannot_be_converted_is_told_with_a_cast_that_can() -> None:
    table = pa.table({"status": ["success"], "caption": ["a cat"]})
    views = [View(name="v", rules=(Rule(name="r", where="CAST(caption AS INTEGER) > 4"),))]
    with pytest.raises(ValueError, match=r"TRY_CAST\(caption AS INT32\) is NULL") as caught:
        choose({"0": table}, views)
    assert "the text 'a cat' is no INT32" in str(caught.value)


def test_an_unknown_message_is_shown_without_its_class_and_candidates() -> None:
    error = Exception('Binder Error: Strange\nthings happen\nCandidate Entries: "a"\n\nLINE 1: x')
    assert rules.binding_problem(error, []) == "Strange things happen"
