"""ONNX Runtime and TensorRT: the graphs that train/export.py --onnx writes, with uint8 pixels.

TensorRT runs through ONNX Runtime's provider for it: the file is the same, and what TensorRT cannot
run is left to CUDA.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from torch import Tensor

from train.formats import OnnxOptions, missing_packages, write_graphs
from train.inference.backends import Backend, Outputs, Setup, Unavailable
from train.transforms import normalise

# The setting `precision` -> the type of the graph.
GRAPH_DTYPES = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16"}
Provider = tuple[str, dict[str, Any]]


class OnnxRuntime(Backend):
    """ONNX Runtime with its provider for the device."""

    name = "onnxruntime"

    def __init__(self, setup: Setup) -> None:
        missing = missing_packages("onnxruntime")
        if missing:
            raise Unavailable(f"{' and '.join(missing)} not installed: pip install -e '.[onnx]'")
        import onnxruntime

        dtype = GRAPH_DTYPES.get(setup.config.precision)
        if dtype is None:
            raise Unavailable(f"its graphs are fp32 or fp16, not {setup.config.precision}")
        providers = self._providers(setup)
        available = onnxruntime.get_available_providers()
        if providers[0][0] not in available:
            raise Unavailable(
                f"this onnxruntime has no {providers[0][0]}, only {', '.join(available)}"
            )
        folder, options = _graphs(setup, dtype)
        self.config = setup.model.config
        self.takes_pixels = options.pixels == "uint8"
        session_options = onnxruntime.SessionOptions()
        session_options.intra_op_num_threads = setup.threads
        session_options.log_severity_level = 3
        sessions = []
        for name in ("image.onnx", "text.onnx"):
            try:
                session = onnxruntime.InferenceSession(
                    str(folder / name), session_options, providers=providers
                )
            # onnxruntime raises classes of its own: not an ONNX file, an opset that it lacks
            except Exception as error:
                first = (str(error).strip() or "no message").splitlines()[0]
                raise Unavailable(f"it cannot load {name}: {first[:200]}") from error
            if session.get_providers()[0] != providers[0][0]:
                raise Unavailable(f"{providers[0][0]} could not start; its libraries are missing")
            sessions.append(session)
        self.image, self.text = sessions

    def _providers(self, setup: Setup) -> list[Provider]:
        """Providers in order of preference. Nothing falls back from the first one silently."""
        if setup.device.type == "cuda":
            return [_cuda(setup)]
        return [("CPUExecutionProvider", {})]

    def __call__(self, pixels_BHWC: Tensor, token_BT: Tensor) -> Outputs:
        image = pixels_BHWC
        if not self.takes_pixels:
            image = normalise(pixels_BHWC, self.config.image_mean, self.config.image_std)
        (image_BE,) = self.image.run(["image_embedding"], {"image": image.numpy()})
        (text_BE,) = self.text.run(["text_embedding"], {"tokens": token_BT.numpy()})
        return Outputs(image_BE, text_BE)


def _graphs(setup: Setup, dtype: str) -> tuple[Path, OnnxOptions]:
    """The folder of the graphs and what they take. Without stored ones they are written here."""
    if setup.graphs is not None:
        stored = setup.graphs.options
        if stored.dtype != dtype:
            raise Unavailable(f"the graphs of --graphs are {stored.dtype}, not {dtype}")
        return setup.graphs.folder, stored
    options = OnnxOptions(dtype=dtype, text_length=setup.text_length, pixels="uint8")
    folder = setup.folder / dtype
    if not folder.exists():  # one export serves both back ends of this module
        folder.mkdir()
        write_graphs(setup.model, folder, options, {})
    return folder, options


class TensorRT(OnnxRuntime):
    """TensorRT's engines, built from the graphs when a shape is seen first."""

    name = "tensorrt"

    def _providers(self, setup: Setup) -> list[Provider]:
        if setup.device.type != "cuda":
            raise Unavailable("TensorRT needs a GPU")
        if importlib.util.find_spec("tensorrt") is None:
            raise Unavailable("tensorrt is not installed: pip install tensorrt onnxruntime-gpu")
        importlib.import_module("tensorrt")  # loads the libraries that the provider looks for

        options = {
            "device_id": setup.device.index or 0,
            "trt_fp16_enable": setup.config.precision == "fp16",
        }
        return [("TensorrtExecutionProvider", options), _cuda(setup)]


def _cuda(setup: Setup) -> Provider:
    options = {
        "device_id": setup.device.index or 0,
        "use_tf32": int(setup.config.precision == "tf32"),
    }
    return ("CUDAExecutionProvider", options)
