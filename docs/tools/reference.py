"""What the site makes of the code: a line `<!-- reference: NAME -->` of a page, with a line in
italics below it for those who read the file, is replaced by a table or by sections when the site is
built. The repository keeps no copy of them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from docs.tools import code_tables, schema_tables

MARKER = re.compile(r"^<!-- reference: ([\w ]+) -->$(?:\n_[^\n]+_$)?", re.M)
MAKERS: dict[str, Callable[[], str]] = {
    "source kinds": schema_tables.source_table,
    "manners": schema_tables.manner_list,
    "variables": schema_tables.variable_table,
    "columns derived": schema_tables.derived_table,
    "filters": code_tables.filter_sections,
    "settings": code_tables.setting_sections,
    "presets": code_tables.preset_table,
    "commands": code_tables.command_sections,
    "verdict": code_tables.verdict_sections,
}
for _name in schema_tables.CLASSES:
    MAKERS[f"keys {_name}"] = functools.partial(schema_tables.key_table, _name)
for _name in ("PAIRS", "SIDECAR"):
    MAKERS[f"columns {_name}"] = functools.partial(schema_tables.column_table, _name)


def fill(text: str) -> str:
    """A page with its markers replaced. ValueError for a marker of no known name."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in MAKERS:
            raise ValueError(f"no block {match[1]!r}; there are {', '.join(sorted(MAKERS))}")
        return MAKERS[match[1]]()

    return MARKER.sub(replace, text)
