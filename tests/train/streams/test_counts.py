from __future__ import annotations

from train.data.tar_streams import LISTED, StreamCounts, StreamDraws, sum_counts


def counts(tars: int, broken: int, skipped: int) -> StreamCounts:
    of_rank = StreamCounts()
    for number in range(tars):
        of_rank.end_tar(f"{number}.tar", "cut off" if number < broken else None)
    for _ in range(skipped):
        of_rank.skip("no image")
    return of_rank


def test_the_counts_of_ranks_are_added_up() -> None:
    other = counts(2, 0, 1)
    other.skip("no caption")
    total = sum_counts([counts(5, 2, 3).to_plain(), other.to_plain()])
    assert total == {
        "tars_read": 7,
        "skipped": {"no caption": 1, "no image": 4},
        "broken": 2,
        "broken_tars": {"0.tar": "cut off", "1.tar": "cut off"},
    }
    assert sum_counts([])["tars_read"] == 0


def test_a_bounded_number_of_broken_tars_is_named() -> None:
    many = counts(3 * LISTED, 3 * LISTED, 0).to_plain()
    assert many["broken"] == 3 * LISTED
    assert len(many["broken_tars"]) == LISTED


def test_the_log_has_the_sums() -> None:
    draws = StreamDraws(drawn=8, share=0.5, tars=9, read=counts(3, 1, 2).to_plain())
    assert draws.realised() == {"samples": 8, "share": 0.5, "skipped": 2, "broken": 1}
    assert draws.document()["tars_read"] == 3
