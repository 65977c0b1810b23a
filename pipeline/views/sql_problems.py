"""DuckDB's errors about a rule as what is wrong with the rule and how to mend it.

Pure functions from texts to texts. A message that is not known here is shown without the name of
its class, without DuckDB's list of candidates and without its excerpt of the SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from filters import FILTERS
from manifests import disk
from manifests.columns import PAIRS, SIDECAR

LIST_COLUMNS = "pipeline/filter.py POOL --columns lists them"
PAIRS_ONLY = frozenset(PAIRS.names) - frozenset(SIDECAR.names)
EXAMPLE = "write one condition, as in caption_words >= 4 AND aspect <= 3"
# What other languages write, and what SQL writes.
SQL_WORDS = {"&&": "AND", "=>": ">=", "=<": "<=", "!": "NOT", "len": "length"}
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
CLOSE_FUNCTION = 0.6  # similarity of two names, from 0 to 1
CLOSE_QUOTED = 0.8  # a text in double quotes is rather a text than a misspelt column
NEEDS_MORE = re.compile(
    r"(?:\b(?:and|or|not|like|in|is|between)|[-+*/<>=|,(\[])\s*$", re.IGNORECASE
)
QUOTED_TEXT = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
DOUBLE_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
NUMBERS = re.compile(r"^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*|INT\d+)$")

_NEAR = re.compile(r'syntax error at or near "(.*)"$')
_NO_FUNCTION = re.compile(r"Function with name (\S+) does not exist")
_NO_TYPE = re.compile(r"Type with name (\S+) does not exist")
_NO_TABLE = re.compile(r'Referenced table "(.*?)" not found')
_COMPARED = re.compile(r"Cannot compare values of type (.+?) and type (.+?) - an explicit cast")
_ARGUMENTS = re.compile(r"No function matches the given name and argument types '(\S+?)\((.*?)\)'")
_CANDIDATE = re.compile(r"\(([^()]*)\) -> \w+")
_NOT_CONVERTED = re.compile(
    r"Could not convert string '(.*)' to (\w+)(?: when casting from source column (\w+))?"
)
_PATTERN = re.compile(r"(missing [\])]|no argument for repetition|invalid escape|bad repetition).*")
_ERROR_CLASS = re.compile(r"^(?:[A-Z]\w* )+Error: ")


def syntax_problem(message: str, sql: str) -> str:
    """What is wrong with a rule that DuckDB's parser refuses. `message`: the parser's."""
    if not sql.strip():
        return f"it is empty; {EXAMPLE}"
    if message.startswith("unterminated quoted identifier"):
        return "a double quote is not closed; a text stands in single quotes, as in 'cat'"
    if message.startswith("unterminated"):
        return "a single quote is not closed; a quote inside a text is written twice: 'it''s'"
    bare = QUOTED_TEXT.sub("", sql)
    for left, right, name in (("(", ")", "parenthesis"), ("[", "]", "bracket")):
        difference = bare.count(left) - bare.count(right)
        if difference > 0:
            return f"a {name} is not closed: {right!r} is missing"
        if difference < 0:
            return f"there is one {name} too many: {right!r} without {left!r}"
    if NEEDS_MORE.search(sql):
        return f"it ends too early, after {sql.split()[-1]!r}; {EXAMPLE}"
    near = _NEAR.match(message)
    problem = f"it cannot be read at {near[1]!r}" if near else message
    return f"it is no SQL expression: {problem}; {EXAMPLE}"


def unknown_column(column: str, sql: str, known: Iterable[str]) -> str:
    """What is wrong with a rule that reads a column that is not there. `column` in lower case."""
    for written in DOUBLE_QUOTED.findall(sql):
        text = written.replace('""', '"')
        if text.lower() == column:
            close = disk.did_you_mean(column, known, CLOSE_QUOTED)
            in_single_quotes = "'" + text.replace("'", "''") + "'"
            return (
                f'"{written}" stands in double quotes, which name a column, and there is no such '
                f"column{close}; a text stands in single quotes: {in_single_quotes}"
            )
    if column in PAIRS_ONLY:
        return f"the column {column!r} comes from the filter page; put page into the filters"
    for name, filter_class in FILTERS.items():
        if column in filter_class.adds:
            return (
                f"the filter {name} gives the column {column!r} with other options only; "
                "docs/reference/filters.md says which"
            )
    return f"there is no column {column!r}{disk.did_you_mean(column, known)}; {LIST_COLUMNS}"


def binding_problem(error: Exception, functions: Iterable[str]) -> str:
    """What is wrong with a rule that DuckDB can read and not evaluate. `functions`: their names."""
    message = " ".join(str(error).split("\n\nLINE")[0].split())
    message = _ERROR_CLASS.sub("", message)
    if match := _NO_FUNCTION.search(message):
        return _unknown_function(match[1], functions)
    if match := _NO_TYPE.search(message):
        return f"there is no type {match[1]!r}; types are INTEGER, DOUBLE, VARCHAR, BOOLEAN, …"
    if match := _NO_TABLE.search(message):
        return f"it names a table {match[1]!r}; write the name of a column alone; {LIST_COLUMNS}"
    if match := _COMPARED.search(message):
        left, right = _type_name(match[1]), _type_name(match[2])
        return (
            f"it compares {left} with {right}; a text stands in single quotes, a number without, "
            "and TRY_CAST(column AS DOUBLE) reads a number from a text"
        )
    if match := _ARGUMENTS.search(message):
        return _wrong_arguments(match[1], match[2], message)
    if match := _NOT_CONVERTED.search(message):
        cast = f"TRY_CAST({match[3] or 'column'} AS {match[2]})"
        return f"the text {match[1]!r} is no {match[2]}; {cast} is NULL for such a row"
    if match := _PATTERN.match(message):
        return f"it has a regular expression that cannot be read: {message}"
    return message.split(" Candidate")[0].split(" Did you mean")[0]


def _unknown_function(name: str, functions: Iterable[str]) -> str:
    is_operator = not re.search(r"\w", name)
    kind, shown = ("operator", name) if is_operator else ("function", f"{name}()")
    known = COMPARISONS if is_operator else sorted(functions)
    meant = SQL_WORDS.get(name.lower()) or disk.closest(name.lower(), known, CLOSE_FUNCTION)
    if meant:
        return f"there is no {kind} {shown}; did you mean {meant!r}?"
    return f"there is no {kind} {shown} in DuckDB's SQL"


def _wrong_arguments(name: str, given: str, message: str) -> str:
    if name in SQL_WORDS:
        return f"the operator {name} is not for such values; did you mean {SQL_WORDS[name]!r}?"
    types = " and ".join(_type_name(kind) for kind in given.split(", ")) or "nothing"
    if not re.search(r"\w", name) or len(candidates := _CANDIDATE.findall(message)) > 4:
        operator = {"~~": "LIKE", "!~~": "NOT LIKE"}.get(name, name)
        return f"{operator} cannot be used on {types}"
    takes = " or ".join(f"{name}({arguments})" for arguments in candidates)
    return f"{name}() cannot be used on {types}; it is {takes.replace(', /', '')}"


def _type_name(kind: str) -> str:
    """An SQL type in words: a number, a text; others as they are."""
    plain = kind.removesuffix("_LITERAL")
    if NUMBERS.match(plain):
        return "a number"
    return "a text" if plain in ("VARCHAR", "STRING") else plain
