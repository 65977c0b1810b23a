#!/usr/bin/env python3
"""`clipmill build` as a file: `ray job submit … -- python pipeline/build.py RECIPE`.

Without a manifest such a job runs the demo.
"""

import sys
from pathlib import Path

if not __package__:
    # The checkout, not pipeline/, whose file names could shadow other modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from clipmill.__main__ import start

if __name__ == "__main__":
    start("build")
