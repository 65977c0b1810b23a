"""The types of NumPy arrays, by what their elements are."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Pixels = NDArray[np.uint8]  # RGB, (height, width, 3)
Hashes = NDArray[np.uint64]
# What np.load raises for a damaged file, beside OSError: its header is read as Python, an .npz as a
# zip file, and a size in the header may be larger than memory.
NUMPY_ERRORS = (
    ValueError, EOFError, KeyError, SyntaxError, RuntimeError, OverflowError, MemoryError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
