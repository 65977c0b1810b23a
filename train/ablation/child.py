"""The process of one run after another: `python -m train.ablation.child`, started by runner.py."""

from __future__ import annotations

from train.ablation.worker import serve

if __name__ == "__main__":
    raise SystemExit(serve())
