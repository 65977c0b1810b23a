"""Faces of small ONNX models that are made here: boxes as shares, the surest first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from clipmill.filters.base import Batch
from clipmill.filters.faces import Faces
from clipmill.manifests.schema import Fetch
from clipmill.pipeline.images.transform import boxes_of

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

Arrays = dict[str, np.ndarray[Any, Any]]


def model(
    path: Path, outputs: Arrays, height: int = 64, width: int = 64, follows: str = ""
) -> Path:
    """A model with constant outputs, to which zero times the mean of its input is added, or all of
    the mean for the output `follows`."""
    from onnx import TensorProto, helper, numpy_helper

    image = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, height, width])
    nodes = [
        helper.make_node("ReduceMean", ["input"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
    ]
    constants = [numpy_helper.from_array(np.array(0, np.float32), "zero")]
    results = []
    for name, array in outputs.items():
        constants.append(numpy_helper.from_array(array.astype(np.float32), f"{name}_value"))
        added = "mean" if name == follows else "nothing"
        nodes.append(helper.make_node("Add", [f"{name}_value", added], [name]))
        results.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(array.shape)))
    graph = helper.make_graph(nodes, "faces", [image], results, constants)
    opset = helper.make_opsetid("", 13)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), str(path))
    return path


def ultraface(path: Path) -> Path:
    scores = np.array([[[0.9, 0.1], [0.2, 0.8], [0.05, 0.95], [0.3, 0.7]]])
    boxes = np.array(
        [[[0, 0, 1, 1], [0.1, 0.1, 0.3, 0.4], [0.5, 0.5, 1.2, 0.9], [0.11, 0.1, 0.31, 0.4]]]
    )
    return model(path, {"scores": scores, "boxes": boxes})


def faces(path: Path, image: Image.Image, **options: Any) -> list[list[float]]:
    filter_ = Faces(weights=str(path), **options)
    filter_.setup()
    columns = filter_.score(Batch(captions=[""], images=[image], rows=pa.table({})))
    (boxes,) = columns["faces_boxes"]
    assert list(columns["faces_count"]) == [len(boxes)]
    array = pa.array(columns["faces_boxes"], Faces.adds["faces_boxes"])
    assert boxes_of({"faces": array[0].as_py()}, Fetch(bbox_column="faces")) == tuple(
        pytest.approx(tuple(box)) for box in boxes
    )
    return [[round(x, 4) for x in box] for box in boxes]


def test_boxes_of_an_ultraface(tmp_path: Path) -> None:
    path = ultraface(tmp_path / "u.onnx")
    image = Image.new("RGB", (300, 200), "white")
    sure = [0.5, 0.5, 1.0, 0.9]
    assert faces(path, image) == [sure, [0.1, 0.1, 0.3, 0.4]]
    assert faces(path, image, threshold=0.9) == [sure]
    assert len(faces(path, image, overlap=0.95)) == 3


def test_boxes_of_an_scrfd_are_those_of_the_image_without_its_padding(tmp_path: Path) -> None:
    outputs: Arrays = {}
    counts = [2 * (64 // stride) ** 2 for stride in (8, 16, 32)]
    for stride, count in zip((8, 16, 32), counts, strict=True):
        outputs[f"score_{stride}"] = np.zeros((count, 1))
    for stride, count in zip((8, 16, 32), counts, strict=True):
        outputs[f"bbox_{stride}"] = np.ones((count, 4))
    # The second anchor at row 1, column 2 of the grid of 16 pixels: its centre is (32, 16).
    outputs["score_16"][2 * (1 * 4 + 2) + 1] = 0.9
    outputs["bbox_16"][2 * (1 * 4 + 2) + 1] = [1, 0.5, 0.75, 1]
    path = model(tmp_path / "s.onnx", outputs)
    # 128 x 64 becomes 64 x 32 on a canvas of 64 x 64.
    assert faces(path, Image.new("RGB", (128, 64))) == [[0.25, 0.25, 0.6875, 1.0]]
    assert faces(path, Image.new("RGB", (128, 64)), threshold=0.95) == []


def test_models_of_another_kind_are_refused(tmp_path: Path) -> None:
    other = model(tmp_path / "o.onnx", {"a": np.zeros((1, 5, 2)), "b": np.zeros((1, 5, 3))})
    with pytest.raises(ValueError, match="it must be an UltraFace, with"):
        faces(other, Image.new("RGB", (9, 9)))
    six: Arrays = {f"o{i}": np.zeros((4, 1 if i < 3 else 4)) for i in range(6)}
    with pytest.raises(ValueError, match="has 4 boxes at stride 8, and an SCRFD has 128"):
        faces(model(tmp_path / "s.onnx", six), Image.new("RGB", (9, 9)))
    (tmp_path / "x.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"x\.onnx cannot be loaded: "):
        faces(tmp_path / "x.onnx", Image.new("RGB", (9, 9)))
