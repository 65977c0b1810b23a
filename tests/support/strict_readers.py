"""What webdataset's strict reader, and clipmill, notice of tars that are damaged or malformed."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clipmill.manifests.schema import Source
from clipmill.pipeline.audit.integrity import audit_pool
from clipmill.pipeline.external.adopt import adopt_tars, tar_tickets
from clipmill.pipeline.pool.tars import index_tar
from tests.support import malformed_tars
from tests.support.other_tars import Members, adoption, pack

SAMPLES = 60


def webdataset_samples(tar: Path) -> tuple[list[dict[str, Any]], str]:
    """(samples, the error that the strict reader raises or "")."""
    import webdataset

    samples: list[dict[str, Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dataset = webdataset.WebDataset(
                str(tar), shardshuffle=False, handler=webdataset.reraise_exception,
                empty_check=False,
            )  # fmt: skip
            for sample in dataset:
                samples.append({key: sample[key] for key in sample if key[:2] != "__"})
        except Exception as error:
            return samples, f"{type(error).__name__}: {error}"
    return samples, ""


def adopted(tar: Path, pool: Path) -> tuple[int, str]:
    """(samples that are taken, what clipmill says: the error, reasons of rows, or problems)."""
    try:
        source = Source(kind="shards", paths=(str(tar),))
        [ticket] = tar_tickets(source)
        record = adopt_tars(adoption(pool, source))(ticket)
    except (ValueError, OSError) as error:
        return 0, str(error)
    if record.reasons:
        return record.successes, f"rows with a reason: {record.reasons}"
    audit = audit_pool(str(pool), verify_files=True)
    return record.successes, "; ".join([*audit.problems, *audit.damaged])


def compare(
    malformed: Mapping[str, Callable[[Path], bytes]], folder: Path
) -> dict[str, dict[str, Any]]:
    """{what is wrong: what both say of the tar, when it is read and adopted for the first time}."""
    results = {}
    for number, (name, make) in enumerate(malformed.items()):
        here = folder / str(number)
        here.mkdir(parents=True)
        tar = here / "00000.tar"
        tar.write_bytes(make(here))
        samples, error = webdataset_samples(tar)
        taken, message = adopted(tar, here / "pool")
        results[name] = {
            "webdataset": {"samples": len(samples), "error": _short(error, here)},
            "clipmill": {"samples": taken, "says": _short(message, here)},
        }
    return results


def _short(text: str, folder: Path) -> str:
    return " ".join(text.replace(f"{folder}/", "").split())[:160]


def compare_damaged(count: int, seed: int, folder: Path) -> dict[str, dict[str, int]]:
    """{damage: counts} of a committed tar that is cut or has a flipped bit: what the strict reader
    raises, what it loses or alters without a word, and what clipmill notices.
    """
    folder.mkdir(parents=True)
    rng = random.Random(seed)
    listed: Members = []
    for i in range(SAMPLES):
        image = rng.randbytes(2000)
        listed += [(f"{i:06d}.jpg", image), (f"{i:06d}.txt", f"caption {i}".encode())]
    tar = pack(folder / "00000.tar", listed)
    data = tar.read_bytes()
    whole, error = webdataset_samples(tar)
    assert (len(whole), error) == (SAMPLES, "")
    headers = [member.offset - malformed_tars.BLOCK for member in index_tar(str(tar))]
    results = {}
    for how in ("cut at a block", "cut anywhere", "flip anywhere", "flip in a header"):
        counts = dict.fromkeys(("cases", "harmless", "raised", "silent"), 0)
        for _ in range(count):
            changed = bytearray(data)
            if how == "cut at a block":
                del changed[rng.randrange(1, len(data) // 512) * 512 :]
            elif how == "cut anywhere":
                del changed[rng.randrange(1, len(data)) :]
            else:
                start, size = (
                    (0, len(data)) if how == "flip anywhere" else (rng.choice(headers), 512)
                )
                changed[start + rng.randrange(size)] ^= 1 << rng.randrange(8)
            tar.write_bytes(bytes(changed))
            samples, error = webdataset_samples(tar)
            outcome = "raised" if error else "harmless" if samples == whole else "silent"
            counts["cases"] += 1
            counts[outcome] += 1
        results[how] = counts
    return results
