"""Weights and configurations of open_clip, Hugging Face and NeMo."""

from __future__ import annotations

from train.formats import model_files, nemo, open_clip_files
from train.formats.model_files import load_model
from train.formats.onnx_folder import (
    TOLERANCES,
    StoredGraphs,
    example_inputs,
    read_graphs,
    save_onnx,
    source_name,
)
from train.formats.onnx_graphs import (
    ImageTower,
    OnnxOptions,
    TextTower,
    missing_packages,
    write_graphs,
)
from train.formats.open_clip_files import from_open_clip, open_clip_config

__all__ = [
    "TOLERANCES",
    "ImageTower",
    "OnnxOptions",
    "StoredGraphs",
    "TextTower",
    "example_inputs",
    "from_open_clip",
    "load_model",
    "missing_packages",
    "model_files",
    "nemo",
    "open_clip_config",
    "open_clip_files",
    "read_graphs",
    "save_onnx",
    "source_name",
    "write_graphs",
]
