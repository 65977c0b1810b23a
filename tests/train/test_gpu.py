"""On a GPU: 16 bits against 32, the attention kernels against each other, compiled blocks, and what
memory is held.

`python -m pytest -m gpu tests/train/test_gpu.py` runs these alone; without a GPU they are skipped.
"""

import dataclasses
import importlib.util
import json

import pytest
import torch

from clipmill.manifests.schema import Blend
from clipmill.train.config import configure
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP, pack_captions
from clipmill.train.parallel.parallelism import parallelize
from clipmill.train.parallel.process_group import Ranks
from clipmill.train.step.loss import contrastive
from clipmill.train.trainer.loop import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
    pytest.mark.filterwarnings("default"),  # compilers warn of what they could do better
]
DEVICE = "cuda"
SMALL = dataclasses.replace(MODELS["ViT-S-32"], vision_layers=4, text_layers=4)
KERNELS = ["sdpa", "varlen", *(["flash"] if importlib.util.find_spec("flash_attn") else [])]
# What bf16 (8 bits of mantissa) may change: a few thousandths of features and a few hundredths of
# gradients are usual.
FEATURES, GRADIENTS = 0.02, 0.06


def batch(count=32, seed=0):
    """Normalised pictures, and captions of 4 to 77 tokens in main memory."""
    generator = torch.Generator().manual_seed(seed)
    image_BCHW = torch.randn((count, 3, 224, 224), generator=generator)
    tokens_BT = torch.randint(1, 49_406, (count, 77), generator=generator)
    length_B = torch.randint(4, 78, (count,), generator=generator)
    tokens_BT[torch.arange(count), length_B - 1] = 49_407
    tokens_BT[torch.arange(77) >= length_B[:, None]] = 0
    return image_BCHW.to(DEVICE), tokens_BT


def computed(model, tokens, image_BCHW, *, bf16=True):
    """Both features one under the other, and all gradients of the loss in one row, in 32 bits."""
    model.zero_grad(set_to_none=True)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
        image_BE, text_BE, scale, _ = model(image_BCHW, tokens.to(DEVICE))
    contrastive("clip", image_BE, text_BE, scale)[0].backward()
    grads = torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])
    return torch.cat([image_BE, text_BE]).detach().float(), grads


def difference(actual, wanted):
    return float((actual - wanted).norm() / wanted.norm())


def made(config=SMALL, **settings):
    return CLIP(config, 0, **settings).to(DEVICE)


@pytest.mark.parametrize("kernel", KERNELS)
# Heads of 64, 80 and 88 channels
@pytest.mark.parametrize("name", ["ViT-S-32", "ViT-H-14", "ViT-g-14"])
def test_every_kernel_gives_the_same_for_padded_and_packed_captions(kernel, name):
    config = dataclasses.replace(MODELS[name], vision_layers=2, text_layers=2)
    image_BCHW, tokens_BT = batch(8)
    wanted = computed(made(config, attention="sdpa"), tokens_BT, image_BCHW, bf16=False)
    for tokens in (tokens_BT, pack_captions(tokens_BT)):
        actual = computed(made(config, attention=kernel), tokens, image_BCHW)
        assert difference(actual[0], wanted[0]) < FEATURES
        assert difference(actual[1], wanted[1]) < GRADIENTS


@pytest.mark.parametrize("captions", ["padded", "packed"])
def test_compiled_blocks_give_the_same(captions):
    alone = Ranks(rank=0, world=1, device=torch.device(DEVICE), owns_group=False)
    compiled = made()
    parallelize(compiled, alone, configure({"model": "ViT-S-32", "compile": "inductor"}))
    plain = made()
    for seed in range(3):  # packed captions have another number of tokens every time
        image_BCHW, tokens_BT = batch(seed=seed)
        tokens = pack_captions(tokens_BT) if captions == "packed" else tokens_BT
        actual, wanted = computed(compiled, tokens, image_BCHW), computed(plain, tokens, image_BCHW)
        assert difference(actual[0], wanted[0]) < FEATURES
        assert difference(actual[1], wanted[1]) < GRADIENTS


# --- memory ---------------------------------------------------------------------------------------


def held(work):
    """Bytes that `work` held at most, beside what was there before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def test_a_loss_of_32768_pairs_needs_little_beside_features_and_gradients():
    count, width = 32_768, 512
    drawn = [torch.randn(count, width, device=DEVICE) for _ in range(2)]
    units = [torch.nn.functional.normalize(x, dim=-1).requires_grad_() for x in drawn]
    scale = torch.tensor(14.3, device=DEVICE, requires_grad=True)
    gradients = 2 * count * width * 4

    def work():
        contrastive("clip", *units, scale)[0].backward()

    work()  # workspaces of the libraries
    for leaf in (*units, scale):
        leaf.grad = None
    assert held(work) - gradients < 50 * 2**20


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_recomputed_blocks_hold_less_and_give_the_same(recompute):
    alone = Ranks(rank=0, world=1, device=torch.device(DEVICE), owns_group=False)
    image_BCHW, tokens_BT = batch(128)
    plain, thrifty = made(), made()
    parallelize(thrifty, alone, configure({"model": "ViT-S-32", "recompute": recompute}))
    wanted, actual = (
        computed(plain, tokens_BT, image_BCHW),
        computed(thrifty, tokens_BT, image_BCHW),
    )
    assert difference(actual[1], wanted[1]) < 1e-3
    much, little = (held(lambda m=m: computed(m, tokens_BT, image_BCHW)) for m in (plain, thrifty))
    assert little < 0.9 * much


def test_a_run_on_the_gpu_learns_and_says_what_it_used(tiny_pool, tmp_path):
    changes = {
        "preset": "micro",
        "model": "test",
        "precision": "bf16",
        "device": "cuda",
        "samples_seen": "6400",
    }
    config = configure(
        {**changes, "batch_size": 64, "lanes": 4, "compile": "inductor", "captions": "packed"}
    )
    blend = Blend(name="tiny", pools={"pool": tiny_pool}, views={"pool/all": 1.0})
    done = train(blend, config, str(tmp_path / "run"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5
    assert done.peak_memory_bytes > 0
