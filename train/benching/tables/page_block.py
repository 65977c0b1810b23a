"""A part of a Markdown page that a command writes, between two comments.

<!-- written by COMMAND -->
<!-- end -->
"""

from __future__ import annotations

from collections.abc import Sequence

from manifests import disk

END = "<!-- end -->"


def replace_block(path: str, command: str, lines: Sequence[str]) -> None:
    """Put lines, as preformatted text, between the comments of a command. ValueError for a page
    without them, and for a line that would end the text.
    """
    for line in lines:
        if END in line or line.startswith("```"):
            raise ValueError(f"a line would end the block of the page: {line!r}")
    page = disk.read_bytes(path).decode()
    start = f"<!-- written by {command} -->"
    before, found, rest = page.partition(start)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{path} has no lines {start} and {END}; add them where the text belongs")
    body = "\n".join(["", "", "```text", *lines, "```", "", ""])
    disk.write_bytes(path, f"{before}{start}{body}{END}{after}".encode())
