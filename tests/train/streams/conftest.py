"""Tars that another program wrote: images with a caption each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.other_tars import Members, pack, picture

ROWS = 6


def members_of(number: int, rows: int = ROWS) -> Members:
    """The members of tar `number`; each caption is the key of its sample."""
    members: Members = []
    for row in range(rows):
        key = f"{number}{row:03d}"
        members.append((f"{key}.jpg", picture(40 + row, 32, shade=30 * row)))
        members.append((f"{key}.txt", key.encode()))
    return members


@pytest.fixture
def tars(tmp_path: Path) -> list[str]:
    """Four tars of ROWS samples."""
    return [str(pack(tmp_path / f"t-{k}.tar", members_of(k))) for k in range(4)]
