"""The process that decodes images: `python -m pipeline.images.child MEMORY_BYTES DEADLINE_S`.

decoders.py starts it.
"""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":
    # Ctrl-C in the terminal, or its end, reaches this process too. Its parent ends it: it closes
    # the stdin. A child that died first would be the outcome of an image.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

from clipmill.pipeline.images.decoders import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
