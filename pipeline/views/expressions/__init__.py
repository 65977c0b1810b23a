"""Expressions of rules: their syntax trees, and those that need no database."""

from __future__ import annotations

from pipeline.views.expressions.plain_tests import PlainTest, plain_test
from pipeline.views.expressions.syntax import Syntax, Tree, read_all, syntax_of

__all__ = ["PlainTest", "Syntax", "Tree", "plain_test", "read_all", "syntax_of"]
