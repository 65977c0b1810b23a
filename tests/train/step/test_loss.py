import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from clipmill.train.step import loss as loss_module
from clipmill.train.step.loss import WHOLE, DataParallel, contrastive

B, E = 8, 6


pytestmark = pytest.mark.usefixtures("one_thread")


def features(count=B):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, count, E, generator=generator, dtype=torch.float64)
    return F.normalize(x, dim=-1)


def test_it_is_the_cross_entropy_of_both_directions():
    image, text = features()
    loss, accuracy = contrastive("clip", image, text, torch.tensor(5.0, dtype=torch.float64))
    logits, own = 5 * image @ text.T, torch.arange(B)
    torch.testing.assert_close(
        loss, (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
    )
    assert accuracy == (logits.argmax(dim=1) == own).float().mean()


def test_the_sigmoid_loss_counts_every_pair_alone():
    image, text = features(3)
    loss, _ = contrastive("siglip", image, text, torch.tensor(5.0), torch.tensor(-1.0))
    wanted = 0.0
    for i, j in itertools.product(range(3), range(3)):
        z = 5 * float(image[i] @ text[j]) - 1
        wanted += math.log1p(math.exp(-z if i == j else z))
    assert loss.item() == pytest.approx(wanted / 3)


def numbers_of(kind, dtype, count, tile, factor=20.0, seed=0):
    """Loss, accuracy and the gradients to the features, the scale and the bias."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, count, 16, generator=generator, dtype=torch.float64)
    leaf = F.normalize(x, dim=-1).to(dtype).requires_grad_()
    scale = torch.tensor(factor, dtype=dtype, requires_grad=True)
    bias = torch.tensor(-2.0, dtype=dtype, requires_grad=True) if kind == "siglip" else None
    loss, accuracy = contrastive(kind, leaf[0], leaf[1], scale, bias, tile=tile)
    loss.backward()
    return [loss.detach(), accuracy, leaf.grad, scale.grad, *([] if bias is None else [bias.grad])]


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("factor", [1.0, 20.0, 100.0])
@pytest.mark.parametrize("tile", [1, 7, 16, 50])
def test_in_tiles_it_is_the_same_in_64_bits(kind, factor, tile):
    count = 51 if tile > 1 else 9
    whole = numbers_of(kind, torch.float64, count, count, factor)
    for actual, wanted in zip(
        numbers_of(kind, torch.float64, count, tile, factor), whole, strict=True
    ):
        assert (actual - wanted).abs().max() <= 1e-12 * max(1, wanted.abs().max())


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_in_tiles_it_is_as_near_to_64_bits_as_the_whole_form(kind):
    exact = numbers_of(kind, torch.float64, 300, 300)
    whole, tiled = (numbers_of(kind, torch.float32, 300, tile) for tile in (300, 32))
    for actual, form, wanted in zip(tiled, whole, exact, strict=True):
        noise = (form - wanted).abs().max() + 2e-7 * wanted.abs().max()
        assert (actual - wanted).abs().max() <= 2 * noise


def test_the_first_of_equal_captions_is_the_highest_in_tiles_too():
    image, text = features(12).float()
    text[5:] = text[5]
    for kind in ("clip", "siglip"):
        losses = [
            contrastive(kind, image, text, torch.tensor(5.0), torch.tensor(0.0), tile=t)[1]
            for t in (2, 12)
        ]
        assert losses[0] == losses[1]


def test_features_of_16_bits_are_multiplied_in_32_also_under_autocast():
    image, text = features().bfloat16()
    wanted, _ = contrastive("clip", image.float(), text.float(), torch.tensor(20.0))
    with torch.autocast("cpu", torch.bfloat16):
        actual, _ = contrastive("clip", image, text, torch.tensor(20.0))
        tiled, _ = contrastive("clip", image, text, torch.tensor(20.0), tile=3)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, wanted)
    torch.testing.assert_close(tiled, wanted)


def peak(work):
    """The most bytes that tensors held at once beyond what there was before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    live_bytes = most = 0
    events = (
        event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"
    )
    for event in sorted(events, key=lambda event: event.start_ns()):
        live_bytes += event.nbytes()
        most = max(most, live_bytes)
    return most


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_large_batch_is_in_tiles_by_itself_and_needs_no_more_than_a_few(kind):
    count, width = 8192, 16  # 268 MB of logits
    image, text = (torch.randn(count, width).requires_grad_() for _ in range(2))

    def work():
        loss, _ = contrastive(
            kind, image, text, torch.tensor(1.0, requires_grad=True), torch.tensor(0.0)
        )
        loss.backward()

    gradients = 2 * count * width * 4
    assert peak(work) - gradients < 16e6
    assert count**2 > WHOLE
    assert image.grad.abs().sum() > 0


class World:
    """The collectives of the loss between threads of this process, each with its rank."""

    def __init__(self, size):
        self.parts = [None] * size
        self.barrier = threading.Barrier(size, timeout=900)
        self.local = threading.local()

    def exchange(self, own):
        self.parts[self.local.rank] = own
        self.barrier.wait()
        parts = list(self.parts)
        self.barrier.wait()
        return parts

    def all_gather(self, into, own, group):
        for part, received in zip(into, self.exchange(own), strict=True):
            part.copy_(received)

    def reduce_scatter_tensor(self, into, own, group):
        chunks = [part.chunk(len(self.parts))[self.local.rank] for part in self.exchange(own)]
        into.copy_(torch.stack(chunks).sum(dim=0))

    def run(self, work):
        """What `work(rank)` returns in a thread for each rank."""

        def of_rank(rank):
            self.local.rank = rank
            return work(rank)

        with ThreadPoolExecutor(len(self.parts)) as pool:
            return list(pool.map(of_rank, range(len(self.parts))))


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("tile", [None, 3, 4])
@pytest.mark.parametrize("size", [2, 3])
def test_the_mean_over_ranks_is_the_whole_batch(kind, tile, size, monkeypatch):
    """Losses, accuracies, and the gradients as data parallelism averages them."""
    count = 12
    world = World(size)
    monkeypatch.setattr(loss_module, "dist", world)
    wanted_loss, wanted_accuracy, wanted, *_ = numbers_of(kind, torch.float64, count, count)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, count, 16, generator=generator, dtype=torch.float64)
    whole = F.normalize(x, dim=-1)

    def work(rank):
        own = slice(rank * count // size, (rank + 1) * count // size)
        leaf = whole[:, own].clone().requires_grad_()
        scale, bias = torch.tensor(20.0).double(), torch.tensor(-2.0).double()
        loss, accuracy = contrastive(
            kind, leaf[0], leaf[1], scale, bias if kind == "siglip" else None,
            data_parallel=DataParallel(rank=rank, world=size), tile=tile,
        )  # fmt: skip
        loss.backward()
        return loss.detach(), accuracy, leaf.grad

    losses, accuracies, gradients = zip(*world.run(work), strict=True)
    assert sum(losses) / size == pytest.approx(wanted_loss.item(), rel=1e-12)
    assert sum(accuracies) / size == pytest.approx(wanted_accuracy.item())
    torch.testing.assert_close(torch.cat(gradients, dim=1) / size, wanted, rtol=1e-10, atol=1e-12)


def test_a_gathered_tensor_has_the_gradients_of_all_ranks(monkeypatch):
    world = World(2)
    monkeypatch.setattr(loss_module, "dist", world)
    whole = torch.arange(12.0).reshape(2, 2, 3)  # of two ranks
    weights = torch.tensor([[1.0, 10.0], [100.0, 1000.0]])  # [rank that uses it, rank that has it]

    def work(rank):
        leaf = whole[rank].clone().requires_grad_()
        data_parallel = DataParallel(rank=rank, world=2)
        gathered = loss_module.gather_with_gradient(leaf, data_parallel)
        (gathered * weights[rank, :, None, None]).sum().backward()
        return gathered.detach(), leaf.grad

    for rank, (gathered, gradient) in enumerate(world.run(work)):
        assert torch.equal(gathered, whole)
        assert torch.equal(gradient, weights[:, rank].sum().expand(2, 3))


@pytest.mark.parametrize(
    ("rows", "columns", "tile", "side"),
    [
        (4096, 4096, None, None),
        (4096, 4097, None, 1024),
        (1, 4096 * 4096 + 1, None, 1024),
        (8, 16, 16, None),
        (8, 16, 15, 15),
    ],
)
def test_more_than_16_million_logits_are_in_tiles_of_1024(rows, columns, tile, side):
    assert loss_module.loss_tile(rows, columns, tile) == side


@pytest.mark.parametrize(("b", "B", "side"), [(7, 7, 3), (2, 12, 4), (4, 12, 4), (5, 20, 2)])
def test_tiles_cover_each_pair_once_and_have_at_most_the_logits_of_a_square(b, B, side):
    seen = torch.zeros(b, B, dtype=torch.long)
    tiles = list(loss_module._tiles(b, B, side))
    for rows, columns in tiles:
        assert 0 < (rows.stop - rows.start) * (columns.stop - columns.start) <= side * side
        seen[rows, columns] += 1
    assert (seen == 1).all()
    height = min(b, side)
    assert len(tiles) == -(-b // height) * -(-B // (side * side // height))


def test_without_data_parallelism_there_is_one_rank():
    assert DataParallel() == DataParallel(rank=0, world=1, group=None)
