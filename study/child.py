"""A process of runner.py, `python -m clipmill.study.child`: it does one run after another.

With the path of a request it is one rank of that run. It ends with its parent: it must not go on
writing to the folder of a run that is tried again.
"""

from __future__ import annotations

import sys

from clipmill.manifests import console

if __name__ == "__main__":
    console.end_with_parent()

from clipmill.study.runner import serve, train_as_rank

if __name__ == "__main__":
    console.end_process(lambda: train_as_rank(sys.argv[1]) if len(sys.argv) > 1 else serve())
