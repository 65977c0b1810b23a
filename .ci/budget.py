#!/usr/bin/env python3
"""Prints the size of the product and fails where it exceeds the budget of pyproject.toml.

Code lines are lines with a token, without comments and docstrings. A commit that raises the
budget says why.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    """The lines of a Python file that hold a token, without comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def main() -> int:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["clipmill"]["budget"]
    lines = modules = 0
    for package in budget["packages"]:
        for path in sorted((ROOT / package).rglob("*.py")):
            lines += code_lines(path.read_text())
            modules += 1
    print(
        f"budget: {lines:,} of {budget['code_lines']:,} code lines, "
        f"{modules} of {budget['modules']} modules"
    )
    if lines <= budget["code_lines"] and modules <= budget["modules"]:
        return 0
    print(
        "The product exceeds its budget: make it smaller, or raise the number under "
        "[tool.clipmill.budget] in pyproject.toml in a commit that says why.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
