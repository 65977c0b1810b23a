"""The process that decodes: `python -m pipeline.images.child MEMORY_BYTES DEADLINE_S`, started by decoders.py."""

from __future__ import annotations

import sys

from pipeline.images.decoders import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
