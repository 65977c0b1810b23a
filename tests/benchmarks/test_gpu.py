"""The parts of benchmarks/gpu.py that decide what is measured, on made-up memory and names; no GPU,
nothing timed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_data, gpu_results, gpu_step
from benchmarks.trainer.synthetic import draw_captions
from manifests.schema import Blend
from tests.support.blocked import BLOCKED
from train.config import configure, model_config
from train.data.loader import Loader
from train.parallel import process_group
from train.parallel.process_group import Ranks
from train.trainer.loop import StepRunner


def test_captions_are_twenty_tokens_in_the_mean_and_one_fills_the_context() -> None:
    tokens_BT, length_B = draw_captions(4096, 77, 49_408, seed=1)
    assert float(length_B.double().mean()) == pytest.approx(20, abs=0.5)
    assert int(length_B.max()) == 77
    assert int(length_B.min()) >= 4
    assert torch.equal(tokens_BT.argmax(dim=1) + 1, length_B)
    assert tokens_BT[torch.arange(77) >= length_B[:, None]].sum() == 0


@pytest.mark.slow
def test_the_pool_is_one_that_the_trainer_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_data, "ROWS", 8)
    gpu_data.write_pool(str(tmp_path / "pool"))
    blend = Blend(name="bench", pools={"pool": str(tmp_path / "pool")}, views={"pool/all": 1.0})
    config = configure(
        {"preset": "micro", "batch_size": 32, "samples_seen": 64, "warmup": 0, "threads": 0}
    )
    first = next(iter(Loader(blend, config, model_config(config))))
    assert first.substituted == 0
    assert first.image_BHWC.float().std() > 20
    assert 20_000 < len(gpu_data.picture(0)) < 45_000


class Made:
    """A program of which only the memory is there: what is fixed and what a sample takes, before
    and once compiled.
    """

    def __init__(self, fixed: int, eager: int, compiled: int) -> None:
        self.needs, self.is_compiled, self.job = (fixed, eager, compiled), False, {"compile": True}

    def compile(self) -> None:
        self.is_compiled = True

    def load(self, batch: int) -> None:
        self.batch = batch


@pytest.mark.parametrize(
    ("needs", "batch", "tried"),
    [
        ((3_000, 30, 22), 5952, [64, 128, 4096, 5952]),  # compiled, more fits
        ((3_000, 30, 30), 4096, [64, 128, 4096]),
        ((20_000, 524, 700), 128, [64, 128, 192, 128]),  # compiled, less fits
    ],
)
def test_the_batch_is_the_largest_that_fits(
    needs: tuple[int, int, int], batch: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 140 * 1024

    def held(program: Made, size: int, count: int) -> int | None:
        program.load(size)
        need = program.needs[0] + size * program.needs[2 if program.is_compiled else 1]
        return need if need <= room else None

    monkeypatch.setattr(gpu_step, "_tried", held)
    monkeypatch.setattr(gpu_step, "_room", lambda: room)
    monkeypatch.setattr(gpu_step, "_forget", lambda: None)  # imports torch's compiler, 8 s
    program = Made(*needs)
    largest = gpu_step.search(program, time.perf_counter() + 100)
    assert (largest["batch"], [size for size, _ in largest["tried"]]) == (batch, tried)
    assert program.batch == batch


def ours(folder: Path, **changes: str) -> gpu_step.Ours:
    about = {"model": "test", "captions": "packed", "data": "memory", "attention": "auto"}
    run = {"precision": "fp32", "device": "cpu", "folder": str(folder)}
    return gpu_step.Ours({**about, **run, **changes})


def test_our_cell_takes_the_trainers_own_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    means: list[int] = []
    mean = process_group.mean

    def counted(values: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        means.append(len(values))
        return mean(values, ranks)

    monkeypatch.setattr(process_group, "mean", counted)
    program = ours(tmp_path)
    before = program.model.visual.class_embedding.detach().clone()
    program.load(8)
    assert isinstance(program.runner, StepRunner)
    assert gpu_step._steps(program, 2) > 0
    assert len(means) == 2, "the mean over the ranks is part of a step"
    assert not torch.equal(before, program.model.visual.class_embedding)
    logs = list(tmp_path.glob("*/log.jsonl"))
    assert len(logs) == 1
    assert json.loads(logs[0].read_text().splitlines()[0])["loss"] > 0
    program.begin()
    program.step()
    assert program.flops > 1e6
    assert 4 <= program.mean_tokens <= 16
    program.reset()  # as after a batch that does not fit
    program.load(16)
    program.begin()
    gpu_step._steps(program, 1)
    assert program.flops > 1e6
    program.reset()


@pytest.mark.slow
def test_a_cell_runs_with_torch_and_little_else(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(gpu.ROOT)!r})\n"
        f"for name in {[*BLOCKED, 'pynvml']!r}: sys.modules[name] = None\n"
        "from benchmarks import gpu, gpu_step\n"
        "job = dict(model='test', captions='packed', data='shards', attention='auto',\n"
        f"    precision='fp32', device='cpu', folder={str(tmp_path)!r})\n"
        "job['pool'] = job['folder'] + '/pool'\n"
        "gpu.gpu_data.write_pool(job['pool'])\n"
        "program = gpu_step.Ours(job)\n"
        "program.load(8)\n"
        "gpu_step._steps(program, 2)\n"
        "program.reset()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>", "gemm"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma", "attention"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_clone_3", "norm_elementwise"),
        ("triton_red_fused_native_layer_norm_native_layer_norm_backward_7", "norm_elementwise"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>",
            "norm_elementwise",
        ),
        (
            "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, "
            "FusedAdam>",
            "optimizer",
        ),
        ("Memcpy HtoD (Pinned -> Device)", "other"),
    ],
)
def test_kernels_are_known_by_their_names(kernel: str, kind: str) -> None:
    assert gpu_step.kind_of(kernel) == kind


def test_what_matters_most_is_measured_first() -> None:
    cells = gpu.plan(gpu.MODELS_MEASURED, ["ours", "open_clip"])
    first = [(cell["model"], cell["program"]) for cell in cells[:7]]
    compared = [(m, p) for m in ("ViT-B-32", "ViT-L-14", "ViT-H-14") for p in ("ours", "open_clip")]
    assert first == [*compared, ("ViT-g-14", "ours")]
    assert len({tuple(cell.values()) for cell in cells}) == len(cells) == 16


def test_bars_are_measured_over_goal_and_nothing_is_made_up() -> None:
    def cell(program: str, captions: str, rate: float, state: str = "measured") -> gpu.Cell:
        about = {
            "model": "ViT-B-32",
            "program": program,
            "captions": captions,
            "data": "memory",
            "state": state,
        }
        return {**about, "samples_per_s": {"mean": rate}}

    results = [
        cell("ours", "padded", 9900.0),
        cell("open_clip", "padded", 6000.0),
        cell("ours", "packed", 1.0, "partly"),
    ]
    ratios = {
        bar["bar"]: bar for bar in gpu_results.bars(results, ["ViT-B-32", "ViT-L-14"], cpu=False)
    }
    assert ratios["ViT-B-32: samples/s"]["measured_over_goal"] == pytest.approx(1.1)
    assert ratios["ViT-B-32: ours ÷ open_clip"]["measured"] == pytest.approx(1.65)
    assert ratios["ViT-L-14: samples/s"]["measured"] is None
    assert "ViT-B-32: packed ÷ padded" not in ratios


def test_help_and_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in (
        (["--help"], "example: python benchmarks/gpu.py"),
        (["--device", "cpu"], "needs a --batch"),
    ):
        with pytest.raises(SystemExit):
            gpu.main(arguments)
        output = capsys.readouterr()
        assert word in output.out + output.err


@pytest.mark.slow
def test_every_cell_of_a_small_model_ends_on_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded, packed and from shards, each with its profile."""
    monkeypatch.setattr(gpu_data, "ROWS", 8)
    out = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--models", "test", "--programs", "ours", "--batch", "8"]
    words += ["--threads", "1", "--seconds", "0.05", "--repeats", "1", "--out", str(out)]
    assert gpu.main(words) == 0
    cells = json.loads(out.read_text())["cells"]
    kinds = [(cell["captions"], cell["data"], cell["state"], "why" in cell) for cell in cells]
    measured = ("measured", False)
    assert kinds == [(*kind, *measured) for kind in (
        ("padded", "memory"), ("packed", "memory"), ("packed", "shards"),
    )]  # fmt: skip
    assert cells[0]["profile"]["shares"]["gemm"] > 0
    assert cells[2]["profile"]["loader_samples_per_s"] > 0


@pytest.mark.slow
def test_a_cell_that_breaks_costs_that_cell(tmp_path: Path) -> None:
    request = {
        "path": [],
        "threads": 1,
        "precision": "fp32",
        "compile": False,
        "device": "cpu",
        "attention": "flash",
        "folder": str(tmp_path),
    }
    cell = {"model": "test", "program": "ours", "captions": "padded", "data": "memory"}
    child = gpu.Child(cell, {**request, "seconds": 0.1}, tmp_path, 0)
    with pytest.raises(RuntimeError, match="flash"):
        child.ask("prepare 60 4", 120)
    child.end()
