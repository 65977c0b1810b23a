"""The process that decodes: `python -m pipeline.images.child MEMORY_BYTES DEADLINE_S`, started by decoders.py."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":
    # A Ctrl-C of the terminal reaches this process too; its parent ends it by closing its standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

from pipeline.images.decoders import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
