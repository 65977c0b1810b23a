"""The contract of a back end, and those of PyTorch: eager, compiled, and a CUDA graph.

A back end takes decoded pixels and tokens in host memory and returns the unit vectors of both in
host memory: what it copies, normalises and waits for is part of its time.
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from train.config import TrainConfig
from train.formats import ImageTower, StoredGraphs, TextTower
from train.model import CLIP, to_device
from train.step import matmul_precision, precision_context
from train.transforms import normalise

GRAPH_WARMUP = 3  # calls before a capture: libraries allocate their workspaces in the first ones


class Unavailable(Exception):
    """A back end that cannot run here. Its text is the reason, one line."""


class Outputs(NamedTuple):
    """Unit vectors in host memory, fp32."""

    image_BE: NDArray[np.float32]
    text_BE: NDArray[np.float32]


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
    """A copy of the model on the device, in the type of its weights."""
    model = copy.deepcopy(setup.model).to(setup.device).eval()
    if setup.config.precision == "bf16_o2":
        model.to(torch.bfloat16)
    return model


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
            if self.setup.config.precision == "bf16_o2":
                image_BCHW = image_BCHW.bfloat16()
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
