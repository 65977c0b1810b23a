#!/usr/bin/env python3
"""Fill the blocks of the reference from the code. A block of a page begins with the line
`<!-- reference: NAME -->` and ends with `<!-- end -->`; what lies between is replaced.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path[0] = str(ROOT)

from docs.tools import code_tables, result_tables, schema_tables

BLOCK = re.compile(r"(<!-- reference: ([\w ]+) -->\n).*?(<!-- end -->)", re.S)
MAKERS: dict[str, Callable[[], str]] = {
    "source kinds": schema_tables.source_table,
    "manners": schema_tables.manner_list,
    "variables": schema_tables.variable_table,
    "columns derived": schema_tables.derived_table,
    "filters": code_tables.filter_sections,
    "settings": code_tables.setting_sections,
    "presets": code_tables.preset_table,
    "commands": code_tables.command_sections,
    "foreign loops": result_tables.loop_table,
}
for _name in schema_tables.CLASSES:
    MAKERS[f"keys {_name}"] = functools.partial(schema_tables.key_table, _name)
for _name in ("PAIRS", "SIDECAR"):
    MAKERS[f"columns {_name}"] = functools.partial(schema_tables.column_table, _name)


def fill(text: str) -> str:
    """A page with its blocks as the code has them now. ValueError for a block of no known name."""

    def replace(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        if name not in MAKERS:
            raise ValueError(f"no block {name!r}; there are {', '.join(sorted(MAKERS))}")
        return f"{start}{MAKERS[name]()}\n{end}"

    return BLOCK.sub(replace, text)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python docs/tools/reference.py --check",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is old")
    args = parser.parse_args(argv)
    old = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text()
        new = fill(text)
        if new != text:
            old.append(str(path.relative_to(ROOT)))
            if not args.check:
                path.write_text(new)
    for name in old:
        print(f"{name} is {'old' if args.check else 'written anew'}")
    return 1 if args.check and old else 0


if __name__ == "__main__":
    sys.exit(main())
