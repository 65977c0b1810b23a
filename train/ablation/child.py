"""The process that trains and evaluates runs: `python -m train.ablation.child`, started by runner.py."""

from __future__ import annotations

from train.ablation.runner import main

if __name__ == "__main__":
    raise SystemExit(main())
