from __future__ import annotations

import itertools
from collections import Counter

import pytest

from train.data.tar_streams import readers_of_rank, tars_of_reader

TARS = [f"{k}.tar" for k in range(7)]


@pytest.mark.parametrize("readers", [1, 2, 3, 7])
def test_each_pass_reads_every_tar_once_whatever_the_number_of_readers(readers: int) -> None:
    read: Counter[tuple[int, str]] = Counter()
    for reader in range(readers):
        entries = range(reader, 3 * len(TARS), readers)  # of three passes
        read.update(itertools.islice(tars_of_reader(TARS, reader, readers, 5), len(entries)))
    assert read == Counter(itertools.product(range(3), TARS))


def test_no_two_readers_begin_with_the_same_tar_and_passes_differ() -> None:
    firsts = [next(tars_of_reader(TARS, reader, 7, 0))[1] for reader in range(7)]
    assert sorted(firsts) == TARS
    one = [tar for _, tar in itertools.islice(tars_of_reader(TARS, 0, 1, 0), 14)]
    assert one[:7] != one[7:]
    other = [tar for _, tar in itertools.islice(tars_of_reader(TARS, 0, 1, 1), 7)]
    assert one[:7] != other


def test_readers_never_outnumber_tars() -> None:
    assert readers_of_rank(tars=8, world=8, threads=4) == 1
    assert readers_of_rank(tars=100, world=8, threads=16) == 4
    assert readers_of_rank(tars=100, world=1, threads=2) == 2
    assert readers_of_rank(tars=3, world=1, threads=0) == 1
    with pytest.raises(AssertionError):
        next(tars_of_reader(TARS, 8, 9, 0))
