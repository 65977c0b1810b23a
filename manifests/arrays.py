"""The types of NumPy arrays, by what their elements are."""

from __future__ import annotations

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
