"""The contract of a back end of inference, and the back ends.

A back end takes decoded pixels and tokens in host memory and returns the unit vectors of both in
host memory: what it copies, normalises and waits for is part of its time. One that cannot run here
is `Unavailable`, and the others go on. Graphs are written to the folder that the caller gives.

A new one is a subclass of `Backend` with a name, and an entry in `BACKENDS`.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from clipmill.manifests import disk
from clipmill.manifests.arrays import Float32Array
from clipmill.train.config import TrainConfig
from clipmill.train.formats.onnx_export import (
    CONFIG_FILE,
    FORMAT,
    IMAGE_FILE,
    TEXT_FILE,
    ImageTower,
    OnnxOptions,
    TextTower,
    missing_packages,
    write_graphs,
)
from clipmill.train.model.clip import CLIP, to_device
from clipmill.train.step.update import matmul_precision, precision_context
from clipmill.train.transforms import normalise

GRAPH_WARMUP = 3  # calls before a capture: libraries allocate their workspaces in the first ones


class Unavailable(Exception):
    """A back end that cannot run here. Its text is the reason, one line."""


class Outputs(NamedTuple):
    """Unit vectors in host memory, fp32."""

    image_BE: Float32Array
    text_BE: Float32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGraphs:
    """A folder that `save_onnx` has written, and what its graphs take."""

    folder: Path
    options: OnnxOptions
    weights_sha256: str  # of the model that they are made from


def read_graphs(folder: str) -> StoredGraphs:
    """The folder, whose files are those that were written.

    ValueError where it is no such folder, or a file of it is missing or has changed.
    """
    root = disk.local_path(folder)
    path = root / CONFIG_FILE
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {CONFIG_FILE}; give a local folder of clipmill weights onnx"
        )
    value = disk.read_json(path)
    try:
        if value["format"] != FORMAT:
            raise ValueError(f"format is {value['format']!r}; this program reads {FORMAT}")
        options = OnnxOptions(
            dtype=value["dtype"],
            text_length=value["text"]["text_length"],
            pixels=value["image"]["pixels"],
        )
        files = {name: (each["bytes"], each["sha256"]) for name, each in value["files"].items()}
        weights = str(value["weights_sha256"])
        disk.from_plain(int | None, options.text_length, "text_length")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        missing = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is damaged: {missing}") from error
    for name in sorted({IMAGE_FILE, TEXT_FILE} | files.keys()):
        file = root / os.path.basename(name)
        if name not in files or not file.is_file():
            raise ValueError(f"{folder} has no {name}; export the model again")
        if (file.stat().st_size, disk.file_sha256(file)) != files[name]:
            raise ValueError(f"{file} is not as it was written; export the model again")
    return StoredGraphs(folder=root, options=options, weights_sha256=weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every back end of a comparison is made from."""

    model: CLIP  # in host memory, fp32
    config: TrainConfig  # its precision is what is used of it
    device: torch.device
    text_length: int
    threads: int  # of the processor, inside an operation
    folder: Path  # for files, such as graphs; it is there
    graphs: StoredGraphs | None = None  # of the same model, in the place of new ones


class Backend(ABC):
    """A model that is ready to answer. `Unavailable` from the constructor where it cannot run."""

    name: ClassVar[str]

    @abstractmethod
    def __init__(self, setup: Setup) -> None: ...

    def prepare(self, pixels_BHWC: Tensor, token_BT: Tensor) -> None:  # noqa: B027
        """Get ready for inputs of these shapes, which all calls until the next `prepare` have."""

    @abstractmethod
    def __call__(self, pixels_BHWC: Tensor, token_BT: Tensor) -> Outputs:
        """uint8 RGB BHWC and int64 BT, in host memory, to unit vectors in host memory."""

    def close(self) -> None:  # noqa: B027
        """Free what the next back end would have to share."""


def device_model(setup: Setup) -> CLIP:
    """A copy of the model on the device."""
    return copy.deepcopy(setup.model).to(setup.device).eval()


@contextlib.contextmanager
def precision(setup: Setup) -> Iterator[None]:
    """The arithmetic of the settings, without gradients."""
    with (
        torch.inference_mode(),
        matmul_precision(setup.config),
        precision_context(setup.config, setup.device),
    ):
        yield


def to_host(image_BE: Tensor, text_BE: Tensor) -> Outputs:
    """Both as arrays in host memory; waits for the device."""
    return Outputs(image_BE.float().cpu().numpy(), text_BE.float().cpu().numpy())


# --- PyTorch --------------------------------------------------------------------------------------


class Eager(Backend):
    """PyTorch without a compiler, through the model's own methods: the framework."""

    name = "eager"

    def __init__(self, setup: Setup) -> None:
        self.setup, self.model = setup, device_model(setup)

    def __call__(self, pixels_BHWC: Tensor, token_BT: Tensor) -> Outputs:
        config, device = self.model.config, self.setup.device
        with precision(self.setup):
            pixels_BHWC = to_device(pixels_BHWC, device)
            token_BT = to_device(token_BT, device)
            image_BCHW = normalise(pixels_BHWC, config.image_mean, config.image_std)
            return to_host(self.model.encode_image(image_BCHW), self.model.encode_text(token_BT))


class Compiled(Backend):
    """torch.compile over both towers with the normalisation, for one shape at a time."""

    name = "compile"

    def __init__(self, setup: Setup) -> None:
        self.setup, model = setup, device_model(setup)
        self.image, self.text = _towers(model, setup.device)
        self.run: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = self._both

    def _both(self, pixels_BHWC: Tensor, token_BT: Tensor) -> tuple[Tensor, Tensor]:
        return self.image(pixels_BHWC), self.text(token_BT)[0]

    def prepare(self, pixels_BHWC: Tensor, token_BT: Tensor) -> None:
        """Compile for the shapes. Numbers of one batch never slow those of another."""
        torch.compiler.reset()
        self.run = torch.compile(self._both, dynamic=False)
        self(pixels_BHWC, token_BT)

    def __call__(self, pixels_BHWC: Tensor, token_BT: Tensor) -> Outputs:
        device = self.setup.device
        with precision(self.setup):
            return to_host(*self.run(to_device(pixels_BHWC, device), to_device(token_BT, device)))

    def close(self) -> None:
        """Drop the compiled code."""
        torch.compiler.reset()


class CudaGraph(Backend):
    """Eager operations, captured once for a shape and started as one."""

    name = "cuda_graph"

    def __init__(self, setup: Setup) -> None:
        if setup.device.type != "cuda":
            raise Unavailable("a CUDA graph needs a GPU")
        self.setup = setup
        self.image, self.text = _towers(device_model(setup), setup.device)

    def prepare(self, pixels_BHWC: Tensor, token_BT: Tensor) -> None:
        """Capture the operations. The inputs and outputs of a graph lie at fixed addresses."""
        device = self.setup.device
        self.pixels_BHWC, self.token_BT = pixels_BHWC.to(device), token_BT.to(device)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), precision(self.setup):
            for _ in range(GRAPH_WARMUP):
                self._both()
        torch.cuda.current_stream(device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with precision(self.setup), torch.cuda.graph(self.graph):
            self.outputs = self._both()

    def _both(self) -> tuple[Tensor, Tensor]:
        return self.image(self.pixels_BHWC), self.text(self.token_BT)[0]

    def __call__(self, pixels_BHWC: Tensor, token_BT: Tensor) -> Outputs:
        with torch.inference_mode():
            self.pixels_BHWC.copy_(pixels_BHWC.pin_memory(), non_blocking=True)
            self.token_BT.copy_(token_BT.pin_memory(), non_blocking=True)
            self.graph.replay()
            return to_host(*self.outputs)

    def close(self) -> None:
        """Give the memory of the graph back."""
        del self.graph, self.outputs


def _towers(model: CLIP, device: torch.device) -> tuple[ImageTower, TextTower]:
    """The modules that the exporter follows, too: they keep the means on the device."""
    return (
        ImageTower(model, "uint8").to(device).eval(),
        TextTower(model).to(device).eval(),
    )


# --- ONNX Runtime and TensorRT --------------------------------------------------------------------
#
# Both run the graphs that clipmill weights onnx writes, with uint8 pixels. TensorRT runs through
# ONNX Runtime's provider for it: the file is the same; what TensorRT cannot run is left to CUDA.

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


BACKENDS: dict[str, type[Backend]] = {
    backend.name: backend for backend in (Eager, Compiled, CudaGraph, OnnxRuntime, TensorRT)
}
