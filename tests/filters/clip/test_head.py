"""Heads from files of every kind give what torch gives; files that are no head are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from clipmill.filters.base import Batch
from clipmill.filters.clip.filters import Head, fixed_lists, read_layers

WIDTH = 8


def embeddings(rows: int = 5) -> np.ndarray[Any, np.dtype[np.float32]]:
    drawn = np.random.default_rng(0).standard_normal((rows, WIDTH)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    rounded = drawn.astype(np.float16).astype(np.float32)
    normal: np.ndarray[Any, np.dtype[np.float32]] = rounded / np.linalg.norm(
        rounded, axis=1, keepdims=True
    )
    return normal


def batch_of(rows_BE: np.ndarray[Any, Any], lacking: Any = None) -> Batch:
    column = fixed_lists(rows_BE, pa.list_(pa.float16(), rows_BE.shape[1]), lacking)
    captions = [""] * len(rows_BE)
    return Batch(captions=captions, images=None, rows=pa.table({}), columns={"e_image": column})


def scores(path: Path, batch: Batch, **options: Any) -> np.ndarray[Any, Any]:
    head = Head(weights=str(path), on="e", **options)
    head.setup()
    return np.asarray(head.score(batch)["head"])


def saved(state: dict[str, torch.Tensor], path: Path) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in state.items()})
    elif path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


class Mlp(nn.Module):
    """Twelve layers, so that layers.10 must come behind layers.9; a Dropout takes a number."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(11):
            layers += [nn.Linear(WIDTH, WIDTH), activation]
        self.layers = nn.Sequential(*layers, nn.Linear(WIDTH, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".npz"])
@pytest.mark.parametrize(
    ("activation", "last", "options"),
    [
        (nn.Identity(), nn.Identity(), {}),
        (nn.ReLU(), nn.Sigmoid(), {"hidden": "relu", "last": "sigmoid"}),
        (nn.GELU(), nn.Identity(), {"hidden": "gelu"}),
        (nn.Tanh(), nn.Identity(), {"hidden": "tanh"}),
    ],
)
def test_an_mlp_gives_what_torch_gives(
    tmp_path: Path, suffix: str, activation: nn.Module, last: nn.Module, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    mlp = Mlp(activation)
    for parameter in mlp.parameters():
        nn.init.normal_(parameter, std=0.5)
    path = saved(mlp.state_dict(), tmp_path / f"head{suffix}")
    with torch.no_grad():
        expected = last(mlp(torch.from_numpy(embeddings())))[:, 0].numpy()
    assert expected.std() > 1e-3
    given = scores(path, batch_of(embeddings()), **options)
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4)


def test_a_linear_head_and_rows_without_an_embedding(tmp_path: Path) -> None:
    linear = nn.Linear(WIDTH, 1)
    path = saved(linear.state_dict(), tmp_path / "linear.pth")
    with torch.no_grad():
        expected = linear(torch.from_numpy(embeddings()))[:, 0].numpy()
    lacking = np.array([False, True, False, False, False])
    given = scores(path, batch_of(embeddings(), lacking))
    assert np.isnan(given).tolist() == lacking.tolist()
    np.testing.assert_allclose(given[~lacking], expected[~lacking], atol=1e-6)


def test_the_input_is_normalised_and_one_output_chosen(tmp_path: Path) -> None:
    linear, mean, variance = nn.Linear(WIDTH, 3), torch.rand(WIDTH), torch.rand(WIDTH) + 0.5
    state = {"norm.mean": mean, "norm.variance": variance, "norm.count": torch.tensor(7)}
    path = saved({**state, **linear.state_dict(prefix="last.")}, tmp_path / "head.safetensors")
    with torch.no_grad():
        rows_BE = (torch.from_numpy(embeddings()) - mean) / variance.sqrt()
        expected = linear(rows_BE).softmax(-1)[:, 2].numpy()
    given = scores(path, batch_of(embeddings()), last="softmax", output=2)
    np.testing.assert_allclose(given, expected, atol=1e-5)
    with pytest.raises(ValueError, match="has 3 outputs; say which is the score with output: 0 t"):
        scores(path, batch_of(embeddings()))
    with pytest.raises(ValueError, match="output is 3"):
        scores(path, batch_of(embeddings()), output=3)


def test_an_embedding_of_another_width_is_refused(tmp_path: Path) -> None:
    path = saved(nn.Linear(WIDTH + 1, 1).state_dict(), tmp_path / "a.pth")
    with pytest.raises(ValueError, match="reads embeddings of width 9, and those of e have"):
        scores(path, batch_of(embeddings()))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"conv.weight": torch.zeros(1, 2, 3)}, r"conv.weight has the shape \(1, 2, 3\)"),
        ({"a.bias": torch.zeros(1)}, "there is no weight of 2 axes for"),
        (
            {"0.weight": torch.zeros(4, 8), "1.weight": torch.zeros(1, 5)},
            r"do not follow each other: shapes \[\(4, 8\), \(1, 5\)\]",
        ),
        ({"0.weight": torch.zeros(1, 8), "0.bias": torch.zeros(2)}, "do not follow each other"),
        ({"weight": torch.zeros(1, 8), "mean": torch.zeros(8)}, "mean without its counterpart"),
        (
            {"weight": torch.zeros(1, 8), "mean": torch.zeros(7), "variance": torch.ones(8)},
            "mean has 7 values for 8 inputs",
        ),
    ],
)
def test_tensors_that_are_no_head(
    tmp_path: Path, state: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_layers(saved(state, tmp_path / "head.pth"))


class Hostile:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("executed"),))


def test_a_pickle_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Hostile()}, tmp_path / "head.pth")
    with pytest.raises(ValueError, match="is not a file of weights"):
        read_layers(tmp_path / "head.pth")
    assert not (tmp_path / "executed").exists()
