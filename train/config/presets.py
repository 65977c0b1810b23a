"""Named training settings: the demo's and those of published runs."""

from __future__ import annotations

from collections.abc import Callable

from train.config.settings import TrainConfig


def micro() -> TrainConfig:
    """The demo: 100 steps of a model of 7.6M parameters, about 15 seconds on one core.

    These settings were fixed before the first published comparison: `make demo` and the figures on
    CIFAR-10 use them.
    """
    return TrainConfig(
        model="micro",
        samples_seen=12_800,
        batch_size=128,
        lr=1e-3,
        warmup=20,
        precision="fp32",
        lanes=32,
        threads=1,
        log_every=10,
    )


def datacomp_debug() -> TrainConfig:
    """DataComp's debug scale: 125 steps of a warm-up.

    DataComp states a warm-up of 500 steps to 1e-4, of which 125 are run. They end at a quarter of
    1e-4, which is what is written here.
    """
    return TrainConfig(samples_seen=128_000, batch_size=1024, lr=2.5e-5, warmup=125, log_every=10)


def datacomp_small() -> TrainConfig:
    """DataComp small: ViT-B/32, 12.8M samples, batch 4,096."""
    return TrainConfig(samples_seen=12_800_000, checkpoint_every=625)


def datacomp_medium() -> TrainConfig:
    """DataComp medium: ViT-B/32, 128M samples, batch 4,096."""
    return TrainConfig(samples_seen=128_000_000, checkpoint_every=1000)


def datacomp_large() -> TrainConfig:
    """DataComp large: ViT-B/16, 1.28B samples, batch 8,192."""
    return TrainConfig(
        model="ViT-B-16", samples_seen=1_280_000_000, batch_size=8192, checkpoint_every=1000
    )


def datacomp_xlarge() -> TrainConfig:
    """DataComp xlarge: ViT-L/14, 12.8B samples, batch 90,112, beta2 0.95."""
    return TrainConfig(
        model="ViT-L-14",
        samples_seen=12_800_000_000,
        batch_size=90_112,
        lr=1e-3,
        warmup=10_000,
        beta2=0.95,
        checkpoint_every=1000,
    )


def laion400m_b32() -> TrainConfig:
    """LAION-400M's ViT-B/32 (62.96 % on ImageNet, zero-shot): batch 32,768, 13B samples."""
    return TrainConfig(
        samples_seen=13_000_000_000, batch_size=32_768, warmup=2000, checkpoint_every=1000
    )


def cc12m() -> TrainConfig:
    """Thirty passes over CC12M's 10,968,539 pairs for a ViT-B/32.

    The other settings are those that were published for a ResNet-50 on CC12M.
    """
    return TrainConfig(
        samples_seen=30 * 10_968_539,
        batch_size=1024,
        lr=1e-3,
        warmup=10_000,
        beta2=0.999,
        eps=1e-8,
        weight_decay=0.1,
        checkpoint_every=10_000,
    )


PRESETS: dict[str, Callable[[], TrainConfig]] = {
    "micro": micro,
    "datacomp_debug": datacomp_debug,
    "datacomp_small": datacomp_small,
    "datacomp_medium": datacomp_medium,
    "datacomp_large": datacomp_large,
    "datacomp_xlarge": datacomp_xlarge,
    "laion400m_b32": laion400m_b32,
    "cc12m": cc12m,
}
