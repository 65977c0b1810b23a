"""Measurements to verdicts: tables of anyone, statistics, wording, charts and pages. It imports
`manifests` alone; neither torch, ray nor duckdb is imported.
"""
