"""What rules and views amount to: rows that each rule rejects, and the hash of the rows kept."""

from __future__ import annotations

from pipeline.views.outcomes.rule_outcomes import RuleOutcome, rule_outcomes, with_derived
from pipeline.views.outcomes.view_hash import hash_rows

__all__ = ["RuleOutcome", "hash_rows", "rule_outcomes", "with_derived"]
