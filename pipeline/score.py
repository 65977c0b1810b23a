#!/usr/bin/env python3
"""`clipmill score` as a file, for a Ray job."""

import sys
from pathlib import Path

if not __package__:
    # The checkout, not pipeline/, whose file names could shadow other modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from clipmill.__main__ import start

if __name__ == "__main__":
    start("score")
